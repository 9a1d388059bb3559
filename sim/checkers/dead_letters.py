"""Dead letters are conserved (promise G7): once confirmed they are there, exactly once, until redriven or acked.

What must hold: a dead letter confirmed at redrive number n is not delivered at n or below again; nothing is
delivered at n + 1 unless someone asked for that redrive; a confirmed redrive is not undone; and in the end,
where the run was drained, each replica lists the same dead letters, each once, among them every confirmed one
that nobody asked to redrive or ack.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Violation, group_messages, name


class DeadLettersConserved(Checker):
    kinds = ("dead_letter", "redrive", "ack", "deliver", "list", "phase")
    promise = "dead letters conserved"

    def __init__(self) -> None:
        self.confirmed: dict[GroupKey, tuple[int, float]] = {}  # the highest n confirmed dead, and when
        self.asked: dict[GroupKey, int] = {}  # the highest n that a redrive was asked for
        self.redriven: dict[GroupKey, int] = {}  # the highest n that a redrive was confirmed for
        self.ack_asked: dict[GroupKey, None] = {}
        self.acked: dict[GroupKey, None] = {}
        self.listed: dict[str, dict[GroupKey, int]] = {}
        self.listers: dict[str, dict[tuple[str, int], None]] = {}
        self.drained_at: float | None = None
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        kind, at = row["kind"], row["at"]
        if kind == "phase":
            if row["phase"] == "drained":
                self.drained_at = at
        elif kind == "dead_letter":
            if row["outcome"] == "ok" and row["who"].startswith("client:"):
                for key in group_messages(row):
                    if self.confirmed.get(key, (-1, 0.0))[0] < row["n"]:
                        self.confirmed[key] = (row["n"], at)
        elif kind == "redrive":
            book = {"invoke": self.asked, "ok": self.redriven}.get(row["outcome"])
            if book is not None:
                for key in group_messages(row):
                    book[key] = max(book.get(key, -1), row["n"])
        elif kind == "ack":
            book_of = self.ack_asked if row["outcome"] == "invoke" else self.acked
            if row["outcome"] == "invoke" or row["outcome"].startswith("acked"):
                book_of.update(dict.fromkeys(group_messages(row)))
        elif kind == "deliver":
            for key in group_messages(row):
                if key in self.confirmed and row["n"] <= self.confirmed[key][0]:
                    n, when = self.confirmed[key]
                    self._found(
                        at, f"{name(key)} was delivered at n = {row['n']}, dead at n = {n} since {when:.4f} s"
                    )
                if row["n"] > self.asked.get(key, -1) + 1:
                    self._found(
                        at, f"{name(key)} was delivered at n = {row['n']}, and nobody redrove it so often"
                    )
        elif row["state"] == "dead":
            mine = self.listed.setdefault(row["who"], {})
            for key in group_messages(row):
                if key in mine:
                    self._found(at, f"{row['who']} lists {name(key)} twice")
                mine[key] = row["n"]

    def _found(self, at: float, text: str) -> None:
        self.found.append(Violation(self.promise, at, text))

    def verdict(self) -> list[Violation]:
        at = self.drained_at
        if at is None:
            return self.found
        union: dict[GroupKey, int] = {}
        for mine in self.listed.values():
            union.update(mine)
        for key, n in union.items():
            holders = {who: mine[key] for who, mine in self.listed.items() if key in mine}
            if len({*holders.values()}) > 1:
                self._found(at, f"{name(key)} is listed differently: {holders}")
            if key in self.acked:
                self._found(at, f"{name(key)} is listed dead, and an ACK of it was confirmed")
            if n <= self.redriven.get(key, -1):
                self._found(at, f"{name(key)} is listed dead at n = {n}, whose redrive was confirmed")
        for key, (n, when) in self.confirmed.items():
            if union.get(key, -1) >= n or key in self.ack_asked or self.asked.get(key, -1) >= n:
                continue
            self._found(at, f"{name(key)}, a dead letter at n = {n} since {when:.4f} s, is gone")
        return self.found

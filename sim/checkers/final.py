"""Finality after ACK (promise G3), and fencing tokens that rise.

After ``acked`` was heard the message is not delivered again; after any other successful ACK no FETCH sent
later delivers it; at most one delivery of a message ever hears ``acked``; and the tokens of successive
deliveries of a message to a group strictly increase.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Violation, group_messages, name


class FinalAfterAck(Checker):
    kinds = ("ack", "deliver")
    promise = "final after ack"

    def __init__(self) -> None:
        self.acked: dict[GroupKey, tuple[float, str]] = {}
        self.settled: dict[GroupKey, tuple[float, str]] = {}
        self.tokens: dict[GroupKey, tuple[str, float]] = {}
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        at, owner = row["at"], row["owner"]
        if row["kind"] == "ack":
            outcome = row["outcome"]
            if not outcome.startswith("acked"):
                return
            for key in group_messages(row):
                self.settled.setdefault(key, (at, outcome))
                if outcome == "acked":
                    first = self.acked.setdefault(key, (at, owner))
                    if first[1] != owner:
                        self._found(
                            at, f"{name(key)}: {owner} heard acked, and so did {first[1]} at {first[0]:.4f} s"
                        )
            return
        for key in group_messages(row):
            if key in self.acked:
                self._found(
                    at, f"{name(key)} was delivered as {owner} after {self.acked[key][1]} heard acked"
                )
            elif key in self.settled and row["asked"] > self.settled[key][0]:
                when, outcome = self.settled[key]
                self._found(
                    at,
                    f"{name(key)} was delivered to a FETCH sent at {row['asked']:.4f} s, after an ACK had heard "
                    f"{outcome} at {when:.4f} s",
                )
            last = self.tokens.get(key)
            # A reply that was held up may be handed over after a later one only if its own deadline is past, so never.
            if last is not None and row["token"] <= last[0]:
                self._found(at, f"{name(key)} was delivered with token {row['token']} after {last[0]}")
            self.tokens[key] = (row["token"], at)

    def _found(self, at: float, text: str) -> None:
        self.found.append(Violation(self.promise, at, text))

    def verdict(self) -> list[Violation]:
        return self.found

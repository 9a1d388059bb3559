"""Finality after ACK (promise G3), and fencing tokens that rise.

After ``acked`` was heard the message is not delivered again; after any other successful ACK no FETCH sent
later delivers it; at most one delivery of a message ever hears ``acked``; and the tokens of successive
deliveries of a message to a group strictly increase.

All but the tokens is per generation of the group: a rewind opens the message again. In a group of dead letters an ACK
settles the letter at its generation and redrive number.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import DEAD, Checker, GroupKey, Violation, group_messages, name

Life = tuple[GroupKey, int, int]
"""What an ACK settles: a message in a generation; a dead letter at its redrive number, too."""


class FinalAfterAck(Checker):
    kinds = ("ack", "deliver")
    promise = "final after ack"

    def __init__(self) -> None:
        self.acked: dict[Life, tuple[float, str]] = {}
        self.settled: dict[Life, tuple[float, str]] = {}
        self.tokens: dict[GroupKey, tuple[str, float]] = {}
        self.found: list[Violation] = []

    def see(self, row: Row) -> None:
        at, owner = row["at"], row["owner"]
        generation, n = row["generation"], row["n"] if row["group"].endswith(DEAD) else 0
        if row["kind"] == "ack":
            outcome = row["outcome"]
            if not outcome.startswith("acked"):
                return
            for key in group_messages(row):
                life = (key, generation, n)
                self.settled.setdefault(life, (at, outcome))
                if outcome == "acked":
                    first = self.acked.setdefault(life, (at, owner))
                    if first[1] != owner:
                        self._found(
                            at, f"{name(key)}: {owner} heard acked, and so did {first[1]} at {first[0]:.4f} s"
                        )
            return
        for key in group_messages(row):
            life = (key, generation, n)
            if life in self.acked:
                self._found(
                    at, f"{name(key)} was delivered as {owner} after {self.acked[life][1]} heard acked"
                )
            elif life in self.settled and row["asked"] > self.settled[life][0]:
                when, outcome = self.settled[life]
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

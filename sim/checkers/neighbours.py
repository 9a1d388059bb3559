"""Suspects are alone (protocol.md, FETCH): no message dies by its neighbour.

What must hold of a dead letter that nobody rejected: of its deliveries that were not acked, it had company in the first
alone. Company is what the same process had in hand at the same time: delivered to it, and not yet acked. A process that
was started again is another one. This is asked only of histories in which no node crashes: each crash may lose a count.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, Violation, group_messages, name


class NobodyDiesByANeighbour(Checker):
    kinds = ("deliver", "ack", "reject", "dead_letter", "list")
    promise = "neighbours"

    def __init__(self) -> None:
        self.hands: dict[str, dict[GroupKey, None]] = {}
        self.company: dict[GroupKey, list[bool]] = {}  # of each delivery
        self.rejected: dict[GroupKey, None] = {}
        self.dead: dict[GroupKey, float] = {}

    def see(self, row: Row) -> None:
        kind, keys = row["kind"], list(group_messages(row))
        hand = self.hands.setdefault(row["who"], {})
        if kind == "deliver":
            for key in keys:
                self.company.setdefault(key, []).append(False)
                hand[key] = None
            if len(hand) > 1:
                for key in hand:
                    self.company[key][-1] = True
        elif kind == "ack":
            for key in keys:
                hand.pop(key, None)
        elif kind == "list":
            if row["state"] == "dead":
                self.dead.update((key, row["at"]) for key in keys)
        else:
            self.rejected.update((key, None) for key in keys if row["who"].startswith("client:"))

    def verdict(self) -> list[Violation]:
        return [
            Violation(self.promise, at, f"{name(key)} died, and had company in deliveries {beside}")
            for key, at in self.dead.items()
            if key not in self.rejected
            for beside in [[n for n, yes in enumerate(self.company.get(key, []), 1) if yes]]
            if len(beside) > 1
        ]

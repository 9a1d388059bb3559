"""Suspects are alone (protocol.md, FETCH): no message dies by its neighbour.

What must hold of a dead letter that nobody rejected: of its deliveries that were not acked, it had company in the first
alone. Company is what the same process had in hand at the same time: delivered to it, and not yet acked. A process that
was started again is another one. This is asked only of histories in which no node crashes: each crash may lose a count.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, group_messages, name


class NobodyDiesByANeighbour(Checker):
    promise = "neighbours"

    def __init__(self) -> None:
        super().__init__()
        self.hands: dict[str, dict[GroupKey, None]] = {}
        self.company: dict[GroupKey, list[bool]] = {}  # of each delivery
        self.rejected: dict[GroupKey, None] = {}
        self.dead: dict[GroupKey, float] = {}

    def on_deliver(self, row: Row) -> None:
        hand = self.hands.setdefault(row["who"], {})
        for key in group_messages(row):
            self.company.setdefault(key, []).append(False)
            hand[key] = None
        if len(hand) > 1:
            for key in hand:
                self.company[key][-1] = True

    def on_ack(self, row: Row) -> None:
        for key in group_messages(row):
            self.hands.setdefault(row["who"], {}).pop(key, None)

    def on_reject(self, row: Row) -> None:
        if row["who"].startswith("client:"):
            self.rejected.update(dict.fromkeys(group_messages(row)))

    on_dead_letter = on_reject

    def on_list(self, row: Row) -> None:
        if row["state"] == "dead":
            self.dead.update(dict.fromkeys(group_messages(row), row["at"]))

    def end(self) -> None:
        for key, at in self.dead.items():
            beside = [n for n, yes in enumerate(self.company.get(key, []), 1) if yes]
            if key not in self.rejected and len(beside) > 1:
                self.broken(f"{name(key)} died, and had company in deliveries {beside}", at)

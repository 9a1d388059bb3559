"""Suspects are delivered in lots, and alone at last (protocol.md, FETCH): no message dies by its neighbour.

The promise of a dead letter without a REJECT, of five deliveries or more: in the first two it may have had any
company, then that of a lot, and from the fifth on none. Company is what the same process had in hand at the same time:
delivered to it, and not yet acked. A process that was started again is another one. This is asked only of histories in
which no node crashes: each crash may lose a count.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, GroupKey, group_messages, name

TOGETHER = {3: 4, 4: 2}
"""Most messages that share a delivery of that number (protocol.md, FETCH): below 3 any number, above 4 one."""


class DeathsByNeighbours(Checker):
    promise = "neighbours"

    def __init__(self) -> None:
        super().__init__()
        self.hands: dict[str, dict[GroupKey, None]] = {}
        self.company: dict[
            GroupKey, list[tuple[int, int]]
        ] = {}  # number of each delivery, and size of its lot
        self.rejected: dict[GroupKey, None] = {}
        self.dead: dict[GroupKey, float] = {}

    def on_deliver(self, row: Row) -> None:
        hand = self.hands.setdefault(row["who"], {})
        for key in group_messages(row):
            self.company.setdefault(key, []).append((row["attempt"], 1))
            hand[key] = None
        for key in hand:
            attempt, count = self.company[key][-1]
            self.company[key][-1] = attempt, max(count, len(hand))

    def on_ack(self, row: Row) -> None:
        for key in group_messages(row):
            self.hands.setdefault(row["who"], {}).pop(key, None)

    def on_reject(self, row: Row) -> None:
        if row["who"].startswith("client:") and not row.get("interrupted"):
            self.rejected.update(dict.fromkeys(group_messages(row)))

    on_dead_letter = on_reject

    def on_list(self, row: Row) -> None:
        if row["state"] == "dead":
            self.dead.update(dict.fromkeys(group_messages(row), row["at"]))

    def end(self) -> None:
        for key, at in self.dead.items():
            many = [
                f"{count} in delivery {attempt}"
                for attempt, count in self.company.get(key, [])
                if attempt > 2 and count > TOGETHER.get(attempt, 1)
            ]
            if key not in self.rejected and many:
                self.broken(f"{name(key)} died, and was in company: {', '.join(many)}", at)

"""Each partition in its turn: while nothing fails, a FETCH does not begin with the same partition again and again.

The bound is in the ``settings`` line, as ``passed_max``; without one nothing is checked. A partition is passed over if
the group gets messages of another one while a confirmed message waits there for its first delivery.
"""

from __future__ import annotations

from quorumq.history import Row
from sim.checkers.base import Checker, Key, messages


class EachInTurn(Checker):
    """Finds partitions that a group passes over again and again."""

    promise = "each in turn"

    def __init__(self) -> None:
        super().__init__()
        self.bound = 0
        self.published: dict[Key, None] = {}
        self.got: dict[str, dict[Key, None]] = {}  # messages that were delivered, by group
        self.waiting: dict[str, dict[int, dict[Key, None]]] = {}  # by group and partition
        self.passed: dict[
            tuple[str, int], int
        ] = {}  # deliveries since the partition's last one, or since it had any

    def on_settings(self, row: Row) -> None:
        self.bound = row["settings"].get("passed_max", 0)

    def on_publish(self, row: Row) -> None:
        if row["outcome"] != "ok" or not self.bound:
            return
        for key in messages(row):
            self.published[key] = None
            for group, got in self.got.items():
                if key not in got:
                    self.waiting[group].setdefault(key[0], {})[key] = None

    def on_deliver(self, row: Row) -> None:
        if not self.bound:
            return
        group, partition = row["group"], row["partition"]
        if group not in self.got:
            self.got[group], self.waiting[group] = {}, {}
            for key in self.published:
                self.waiting[group].setdefault(key[0], {})[key] = None
        waiting = self.waiting[group]
        for key in messages(row):
            self.got[group][key] = None
            waiting.get(partition, {}).pop(key, None)
        for other, keys in waiting.items():
            count = self.passed.get((group, other), 0) + 1 if keys and other != partition else 0
            self.passed[group, other] = count
            if count == self.bound:
                text = (
                    f"group {group} got {count} deliveries from others while partition {other} had messages"
                )
                self.broken(text, row["at"])

"""Paused groups (registers.md, PAUSE): a FETCH sent while a group is paused for certain gets nothing of it.

A pause is certain from its OK until a resumption of the group is sent, or a deletion of it.
"""

from __future__ import annotations

import math

from quorumq.history import Row
from sim.checkers.base import Checker


class PausedGroups(Checker):
    promise = "paused groups"

    def __init__(self) -> None:
        super().__init__()
        self.since: dict[str, float] = {}  # time of the OK of the pause that is certain, by group
        self.resumed: dict[
            str, float
        ] = {}  # when the last resumption, or deletion, was sent that may yet take effect
        self.sent: dict[tuple[str, int], float] = {}
        self.open: dict[str, dict[tuple[str, int], None]] = {}  # resumptions without a known outcome

    def on_pause_group(self, row: Row) -> None:
        group, op = row["group"], (row["who"], row["op"])
        if row["outcome"] == "invoke":
            self.sent[op] = row["at"]
            if not row["paused"]:
                self.since.pop(group, None)
                self.open.setdefault(group, {})[op] = None
                self.resumed[group] = math.inf
        elif row["paused"]:
            if row["outcome"] == "ok" and self.resumed.get(group, -math.inf) < self.sent[op]:
                self.since[group] = row["at"]
        elif row["outcome"] in ("ok", "fail"):
            self.open[group].pop(op, None)
            if not self.open[group]:
                self.resumed[group] = row["at"]

    def on_delete_group(self, row: Row) -> None:
        self.since.pop(row["group"], None)
        self.resumed[row["group"]] = math.inf  # a creation may follow at any time

    def on_deliver(self, row: Row) -> None:
        since = self.since.get(row["group"], math.inf)
        if row["asked"] > since:
            self.broken(
                f"group {row['group']!r}, which was paused at {since:.4f} s, got a message at a FETCH sent at "
                f"{row['asked']:.4f} s"
            )

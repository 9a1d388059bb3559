"""Limited groups (registers.md, LIMIT): no window of time has more deliveries of a group than its limit lets through.

Each message that a client gets took its tokens between its FETCH and its delivery. So the messages whose FETCHes and
deliveries all lie in one window are counted against the tokens that all nodes together can have had in it. A limit is
certain from its OK until another one, or a deletion of the group, is sent. If two were under way together, their order
is not known. One with an unknown outcome may take effect later.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from quorumq.history import Row
from sim.checkers.base import Checker

REPLICAS_MAX = 5
"""Replicas of a partition at most. All nodes together get as many tokens for each message that the limit lets through.
Each of them may be enough for a message: a majority may have only one member that knows the limit."""

CLOCKS = 1.05
"""Tokens for each that there should be: clocks run up to 1 % fast, and votes may lack 2 %."""


class Standing(NamedTuple):
    """A limit that is certain, with the deliveries since: times of the FETCH and of the delivery, and messages."""

    since: float
    per_second: float
    burst: int
    got: list[tuple[float, float, int]]


class LimitedGroups(Checker):
    promise = "limited groups"

    def __init__(self) -> None:
        super().__init__()
        self.standing: dict[str, Standing] = {}
        self.open: dict[
            str, dict[tuple[str, int], float]
        ] = {}  # requests that may yet change the limit, and when sent
        self.changed: dict[str, float] = {}  # time of the last OK
        self.over: dict[str, None] = {}  # groups that were deleted once
        self.nodes: dict[str, None] = {}

    def on_start(self, row: Row) -> None:
        self.nodes[row["who"]] = None

    def on_limit_group(self, row: Row) -> None:
        group, op = row["group"], (row["who"], row["op"])
        waiting = self.open.setdefault(group, {})
        if row["outcome"] == "invoke":
            self.count(group)
            waiting[op] = row["at"]
        elif row["outcome"] in ("ok", "fail"):
            sent = waiting.pop(op, -math.inf)
            alone = not waiting and group not in self.over and self.changed.get(group, -math.inf) < sent
            if row["outcome"] == "ok":
                self.changed[group] = row["at"]
                if row["per_second"] and alone:
                    self.standing[group] = Standing(row["at"], row["per_second"], row["burst"], [])

    def on_delete_group(self, row: Row) -> None:
        self.count(row["group"])
        self.over[row["group"]] = None

    def on_deliver(self, row: Row) -> None:
        standing = self.standing.get(row["group"])
        if standing is not None and row["asked"] > standing.since:
            count = sum(stop - start for _, start, stop in row["spans"])
            standing.got.append((row["asked"], row["at"], count))

    def count(self, group: str) -> None:
        """End a limit, and count its deliveries in each window that begins with a FETCH and ends with a delivery."""
        standing = self.standing.pop(group, None)
        if standing is None:
            return
        nodes = len(self.nodes) or REPLICAS_MAX
        replicas = min(REPLICAS_MAX, nodes)
        for first, _, _ in standing.got:
            got = 0
            for asked, at, messages in standing.got:
                got += messages if asked >= first else 0
                tokens = replicas * (standing.per_second * (at - first) + standing.burst) + nodes
                if asked >= first and got > CLOCKS * tokens:
                    self.broken(
                        f"group {group!r}, limited to {standing.per_second:g} a second and {standing.burst} at once, "
                        f"got {got} messages from {first:.4f} s to {at:.4f} s",
                        at,
                    )
                    return

    def end(self) -> None:
        for group in list(self.standing):
            self.count(group)

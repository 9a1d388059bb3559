"""The hybrid logical clock that numbers ballots and settings.

The promise: a stamp that this node has used, or has granted a ballot at, is never above the reserve
that is durable in its journal. So after any start the reserve is a floor: everything that the node can
have forgotten lies at or below it. A clock that runs ahead of the time of day (a peer's was a year ahead)
counts on from there: stamps serve order only.
"""

from __future__ import annotations

from quorumq.core.types import NodeId, Now, Stamp

RESERVE_STEP = 60_000 << 16
"""How far ahead a reserve is journalled: one minute of stamps."""


class HybridClock:
    """A clock whose values never go back, across restarts too.

    Args:
        node: the node id that makes stamps unique.
        floor: the reserve found in the journal; 0 for a new node.
        reserve: the reserve that this start makes durable before it uses the clock.
    """

    __slots__ = ("floor", "node", "reserve", "reserving", "value", "wanted")

    def __init__(self, node: NodeId, floor: int, reserve: int) -> None:
        self.node = node
        self.floor = floor
        self.reserve = reserve
        self.reserving = reserve  # asked to be made durable
        self.value = floor
        self.wanted = floor  # the highest stamp seen, which may lie above the reserve

    def fresh(self, now: Now) -> Stamp | None:
        """A stamp above every stamp used or seen; None while that needs a higher reserve first."""
        value = max(self.value + 1, self.wanted + 1, now.wall_ms << 16)
        if value > self.reserve:
            self.wanted = max(self.wanted, value)
            return None
        self.value = value
        return Stamp(value, self.node)

    def merge(self, time: int) -> bool:
        """Take note of a stamp's time seen elsewhere; False while it lies above the durable reserve."""
        self.wanted = max(self.wanted, time)
        self.value = max(self.value, min(time, self.reserve))
        return time <= self.reserve

    def next_reserve(self, now: Now) -> int | None:
        """The reserve to make durable now, or None. Asked for when half of the current one is used."""
        highest = max(self.value, self.wanted, now.wall_ms << 16)
        if highest + RESERVE_STEP // 2 <= self.reserving:
            return None
        self.reserving = highest + RESERVE_STEP
        return self.reserving

    def reserved(self, time: int) -> None:
        """``time`` is durable as a reserve."""
        self.reserve = max(self.reserve, time)
        self.value = max(self.value, min(self.wanted, self.reserve))

    def check(self) -> None:
        """Assert what holds between any two events."""
        assert self.floor <= self.value <= self.reserve <= self.reserving
        assert self.wanted >= self.floor

"""The hybrid logical clock that numbers ballots and settings.

The promise: a stamp that this node has used, or has granted a ballot at, is never above the reserve
that is durable in its journal. So after any start the reserve is a minimum: every stamp that the node can
have lost lies at or below it. A clock that runs ahead of the time of day (a peer's was a year ahead)
counts on from there, because stamps serve order only. Stamps end at `STAMPS_END`. Only a peer that lies can bring a
clock there. Such a clock makes no more stamps, and its node goes on with requests that need none.
"""

from __future__ import annotations

from quorumq.core.values.limits import CLOCK_END, STAMP_LAST, STAMPS_END
from quorumq.core.values.types import NodeId, Now, Stamp

RESERVE_STEP = 60_000 << 16
"""Distance in stamps by which a reserve is journalled ahead: one minute."""
HALF_STEP = RESERVE_STEP // 2
TOKEN_RESERVE = -(1 << 62)
"""The least token that names a reserve: that token is TOKEN_RESERVE + (the time reserved >> 16). Those of completions
are above all of them (core/requests/placing.py)."""


class HybridClock:
    """A clock whose values never go back, across restarts too.

    Args:
        node: the node id that makes stamps unique.
        min_ballot: the reserve found in the journal; 0 for a new node.
        reserve: the highest reserve that is durable; at a start, the journal's.
    """

    __slots__ = ("durable_reserve", "highest", "min_ballot", "node", "requested_reserve", "value")

    def __init__(self, node: NodeId, min_ballot: int, reserve: int) -> None:
        self.node = node
        self.min_ballot = min_ballot
        self.durable_reserve = reserve
        self.requested_reserve = reserve  # durable, or about to be
        self.value = min_ballot
        self.highest = min_ballot  # the highest stamp seen, which may lie above the reserve

    def fresh(self, now: Now) -> Stamp | None:
        """Return a stamp above every one used or seen; None while that needs a higher reserve, or if none is left."""
        value = max(self.value + 1, self.highest + 1, self.by_day(now))
        if value > self.durable_reserve:
            self.highest = max(self.highest, min(value, STAMPS_END - 1))
            return None
        self.value = value
        return Stamp(value, self.node)

    @property
    def used_up(self) -> bool:
        """Return True if there is no stamp above those that were used or seen."""
        return max(self.value, self.highest) >= STAMP_LAST

    def by_day(self, now: Now) -> int:
        """Return the stamp of the time of day; 0 if no correct clock shows that time."""
        value = now.wall_ms << 16
        return value if value < CLOCK_END else 0

    def request_first_reserve(self, now: Now) -> int:
        """Request the reserve that a start makes durable before it speaks, and return it."""
        self.requested_reserve = min(
            max(self.min_ballot, self.by_day(now)) + RESERVE_STEP, max(self.min_ballot, STAMP_LAST)
        )
        return self.requested_reserve

    def merge(self, time: int) -> bool:
        """Note the time of a stamp seen elsewhere; return False while it lies above the durable reserve."""
        if time > self.highest:
            self.highest = time
        if time > self.value:
            self.value = min(time, self.durable_reserve)
        return time <= self.durable_reserve

    def request_reserve(self, now: Now) -> int | None:
        """Request a higher reserve, and return it; None while less than half of the requested one is used."""
        highest = max(self.value, self.highest, self.by_day(now))
        if min(highest + HALF_STEP, STAMP_LAST) <= self.requested_reserve:
            return None
        self.requested_reserve = min(highest + RESERVE_STEP, STAMP_LAST)
        return self.requested_reserve

    def on_reserve_durable(self, time: int) -> None:
        """Note that ``time`` is durable as a reserve."""
        self.durable_reserve = max(self.durable_reserve, time)
        self.value = max(self.value, min(self.highest, self.durable_reserve))

    def check(self) -> None:
        assert self.min_ballot <= self.value <= self.durable_reserve <= self.requested_reserve
        assert self.min_ballot <= self.highest < STAMPS_END
        assert self.requested_reserve < STAMPS_END


def reserve_token(reserve: int) -> int:
    """Return the token that `Durable` has once the clock's reserve is on disk."""
    return TOKEN_RESERVE + (reserve >> 16)

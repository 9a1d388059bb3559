"""Token buckets: each node's share of a group's limit of deliveries a second (docs/registers.md, LIMIT).

A node has one bucket for each limited group of a topic that it has replicas of. Each hold that it grants takes a token
for each message, and a hold that ends unused gives them back. A vote counts only if the tokens were there. A bucket
that had too few is in debt afterwards, so that all buckets of a group stay in step.
"""

from __future__ import annotations

import math
from typing import Final

from quorumq.core.values.limits import DEADLINE_SHARE
from quorumq.core.values.types import Limit

SLACK: Final = 1e-6
"""Part of a token that may be missing from a whole one, because times are rounded."""

TOGETHER_S: Final = 0.01
"""Seconds whose tokens are awaited together, so that a high rate does not wake the node for each message."""

DEBT_MAX: Final = 2.0
"""Debt at most, as a multiple of the burst. A slow clock would add to it as long as all tokens are used."""


class Bucket:
    """Tokens of one group on one node.

    It starts empty, so that a node that starts again and again grants no more than its share.

    Args:
        now: monotonic seconds.

    Attributes:
        limit: deliveries a second of the whole group.
        per_second: tokens added a second.
        capacity: tokens at most.
        debt_max: tokens that may be missing at most.
        level: tokens that are here; negative while the bucket is in debt.
        others: tokens of the node that completes a majority, as its last vote said; never above the capacity.
        alarm: time at which parked FETCHes are woken; 0.0 if none is set.
    """

    __slots__ = ("alarm", "at", "capacity", "debt_max", "level", "limit", "others", "per_second")

    def __init__(self, now: float) -> None:
        self.at = now
        self.limit = 0.0
        self.per_second = 0.0
        self.capacity = 0.0
        self.debt_max = 0.0
        self.level = 0.0
        self.others = 0.0
        self.alarm = 0.0

    def alter(self, limit: Limit, share: float, now: float) -> None:
        """Take over a limit; ``share`` of it is this node's. The tokens that are here stay."""
        self._fill(now)
        self.limit = limit.per_second
        self.per_second = limit.per_second * share
        self.capacity = max(1.0, limit.burst * share)
        self.debt_max = DEBT_MAX * limit.burst
        self.alarm = 0.0
        self._fill(now)

    def _fill(self, now: float) -> None:
        came = max(0.0, now - self.at) * self.per_second
        self.at = max(self.at, now)
        self.level = min(self.capacity, self.level + came)
        self.others = min(self.capacity, self.others + came)

    def spare(self, now: float) -> int:
        """Return the number of messages that a coordinator may ask for: the others have as many tokens, too."""
        self._fill(now)
        return max(0, math.floor(min(self.level, self.others) + SLACK))

    def ready_at(self, now: float) -> float:
        """Return the time at which messages may be asked for: one, or the first few of a high rate together."""
        self._fill(now)
        few = max(1.0, min(self.capacity / 2, TOGETHER_S * self.per_second))
        return now + max(0.0, few - min(self.level, self.others)) / self.per_second

    def take(self, count: int, now: float) -> float:
        """Take ``count`` tokens, in debt or not. Returns the number that was there."""
        self._fill(now)
        level = self.level
        self.level = max(-self.debt_max, level - count)
        self.others = max(-self.debt_max, self.others - count)
        return level

    def give_back(self, count: int, now: float) -> None:
        """Put back the tokens of a hold that ended unused."""
        self._fill(now)
        self.level = min(self.capacity, self.level + count)
        self.others = min(self.capacity, self.others + count)

    def learn(self, level: float, now: float) -> None:
        """Note the tokens of the node that completes a majority."""
        self._fill(now)
        self.others = min(self.capacity, level)

    def check(self) -> None:
        assert self.capacity >= 1.0, "a bucket has no room for a message"
        assert self.per_second > 0.0, "a bucket is never filled"
        assert max(self.level, self.others) <= self.capacity, "a bucket is overfull"


def suffice(tokens: float, count: int) -> bool:
    """Return True if a vote for ``count`` messages counts if there were ``tokens``.

    Two percent may be missing, *because* the clocks of two nodes differ by as much.
    """
    return tokens + SLACK >= DEADLINE_SHARE * count

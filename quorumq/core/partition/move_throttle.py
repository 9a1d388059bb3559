"""Limits of the payload that one node gives to moves: bytes a second, and partitions at a time."""

from __future__ import annotations

from quorumq.core.cluster.state import NodeConfig
from quorumq.core.values.types import Now, PartitionId

INTERVALS = 3
"""Values of sync_interval for which a partition counts that asked last. A new slot asks once in each."""


class MoveThrottle:
    """Payload that one node gives to slots that are new.

    A question beyond the limits gets no payload and no numbers of the rest. So it is the next question of the source,
    or the next comparison, that has the slot ask again.

    Attributes:
        bytes_per_s: bytes a second that may be given; 0: no limit.
        at_once: partitions that may get payload at a time; 0: no limit.
        interval: seconds between questions of one new slot.
        budget: bytes that may be given now. A batch that is larger makes it negative.
        active: partitions that get payload, each with the time until which it counts (monotonic seconds).
        waiting: partitions held up by a limit, each with the time until which it is shown.
    """

    __slots__ = ("active", "at_once", "budget", "bytes_per_s", "counted_at", "interval", "waiting")

    def __init__(self, config: NodeConfig) -> None:
        self.interval = config.sync_interval
        self.bytes_per_s, self.at_once = config.move_bytes_per_s, config.moves_at_once
        self.budget = self.capacity
        self.counted_at = 0.0
        self.active: dict[PartitionId, float] = {}
        self.waiting: dict[PartitionId, float] = {}

    @property
    def capacity(self) -> float:
        """Return the bytes that may be given at once: those of two intervals, as there is one question in each."""
        return 2 * self.interval * self.bytes_per_s

    @property
    def is_used_up(self) -> bool:
        """Return True if no bytes may be given now."""
        return self.bytes_per_s > 0 and self.budget <= 0

    def limit(self, bytes_per_s: int, at_once: int, now: Now) -> None:
        """Go by other limits from now on. Of the partitions that get payload, those that began last wait if need be.

        Why a new budget: what was given without a limit, or by a higher one, is no debt.
        """
        self.bytes_per_s, self.at_once = bytes_per_s, at_once
        self.budget, self.counted_at = self.capacity, now.mono
        for partition in list(self.active)[at_once:] if at_once else ():
            self.waiting[partition] = self.active.pop(partition)

    def begin(self, partition: PartitionId, now: Now) -> bool:
        """Return True if a partition may get payload now; else note that it waits."""
        passed = max(0.0, now.mono - self.counted_at)
        self.budget = min(self.capacity, self.budget + passed * self.bytes_per_s)
        self.counted_at = now.mono
        for table in (self.active, self.waiting):
            for other in [other for other, until in table.items() if until <= now.mono]:
                del table[other]
        full = 0 < self.at_once <= len(self.active) and partition not in self.active
        until = now.mono + INTERVALS * self.interval
        if full or self.is_used_up:
            self.waiting[partition] = until
            return False
        self.active[partition] = until
        self.waiting.pop(partition, None)
        return True

    def take(self, partition: PartitionId, size: int) -> bool:
        """Count bytes that a partition gets. Return True if there may be more; else the partition waits."""
        self.budget -= size
        if self.is_used_up:
            self.waiting[partition] = self.active[partition]
        return not self.is_used_up

    def end(self, partition: PartitionId) -> None:
        """Note that a partition got all that it asked for."""
        self.active.pop(partition, None)

    def held_up(self, now: Now) -> list[tuple[PartitionId, list[PartitionId]]]:
        """Return the partitions that wait, each with those that it waits for; none if it waits for bytes."""
        most = self.at_once
        active = [other for other, until in self.active.items() if until > now.mono]
        return [
            (partition, active if 0 < most <= len(active) and partition not in active else [])
            for partition, until in sorted(self.waiting.items())
            if until > now.mono
        ]

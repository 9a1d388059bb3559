"""FETCHes that are parked on a node, because nothing is available for them."""

from __future__ import annotations

from collections.abc import Sequence

from quorumq.core.messages import Fetch
from quorumq.core.values.types import PartitionId

GroupKey = tuple[PartitionId, str]
"""The partition and group that a FETCH waits for."""


class Parking:
    """Parked FETCHes, and which of them the peers know of.

    Attributes:
        lines: keys of FETCHes by partition and group: those with an idle client, and others.
        announced: partitions and groups that the peers know of.
    """

    __slots__ = ("announced", "lines")

    def __init__(self) -> None:
        self.lines: dict[GroupKey, tuple[dict[int, None], dict[int, None]]] = {}
        self.announced: dict[GroupKey, None] = {}

    def park(self, key: int, partitions: Sequence[PartitionId], request: Fetch) -> list[PartitionId]:
        """Park a FETCH; return the partitions whose peers do not know that one is parked for its group."""
        unknown: list[PartitionId] = []
        for partition in partitions:
            group_key = (partition, request.group)
            self.lines.setdefault(group_key, ({}, {}))[not request.idle][key] = None
            if group_key not in self.announced:
                unknown.append(partition)
        return unknown

    def unpark(self, key: int, partitions: Sequence[PartitionId], request: Fetch) -> None:
        """End the parking of a FETCH. Peers learn it with our next HOLD or heartbeat."""
        for partition in partitions:
            lines = self.lines[(partition, request.group)]
            del lines[not request.idle][key]
            if not any(lines):
                del self.lines[(partition, request.group)]

    def keys_at(self, group_key: GroupKey) -> list[int]:
        """Return the keys of FETCHes parked there: idle clients' first, then in the order in which they parked."""
        idle, others = self.lines.get(group_key, ((), ()))
        return [*idle, *others]

    def is_parked_still(self, group_key: GroupKey) -> bool:
        """Return True if a FETCH is parked there; else drop its announcement: the caller's HOLD informs the peers."""
        if group_key in self.lines:
            return True
        self.announced.pop(group_key, None)
        return False

    def announce(self) -> tuple[GroupKey, ...]:
        """Return all partitions and groups with a parked FETCH, which the caller passes to the peers."""
        self.announced = dict.fromkeys(self.lines)
        return tuple(self.lines)

"""Messages between brokers, coordinator and clients of the log."""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.rivals.log.assignors import Assignment
from sim.rivals.workload import Key


class Entry(NamedTuple):
    """A place in a log: a message, or in the offsets log a fact that the coordinator must keep."""

    epoch: int
    key: Any  # Key; or (group's) partition, or "group"
    value: Any


class Produce(NamedTuple):
    """A producer appends; numbered, so that a retry appends nothing (the idempotent producer)."""

    partition: int
    producer_id: str
    first: int
    items: tuple[tuple[Key, bytes], ...]


class NotLeader(NamedTuple):
    """Ask this one."""

    leader: str


class Poll(NamedTuple):
    """A consumer reads from these offsets on; kept for a while if there is nothing (long poll)."""

    offsets: dict[int, int]
    most: int
    wait: float


class Polled(NamedTuple):
    """Entries below the high watermark, from these offsets on."""

    entries: dict[int, tuple[Entry, ...]]


class Pull(NamedTuple):
    """A follower reads: per partition the epoch that it knows, where its log ends, and the epoch of its last entry."""

    number: int
    ends: dict[int, tuple[int, int, int]]


class Pulled(NamedTuple):
    """By partition: epoch, offset to cut its log off, or -1; entries from its end on, high watermark."""

    number: int  # number of the Pull
    parts: dict[int, tuple[int, int, tuple[Entry, ...], int]]


class FindCoordinator(NamedTuple):
    """Request for the broker that coordinates the group."""


class Join(NamedTuple):
    """A consumer wants to be a member, and still owns these partitions."""

    member: str
    instance: str
    owned: tuple[int, ...]


class Joined(NamedTuple):
    """``members`` only for the leader of the group, who divides the partitions."""

    generation: int
    member: str
    leader: str
    members: dict[str, tuple[int, ...]]


class Sync(NamedTuple):
    """A member asks for its partitions; the leader says whose they are."""

    member: str
    generation: int
    assignment: Assignment


class Beat(NamedTuple):
    """A heartbeat."""

    member: str
    generation: int


class Commit(NamedTuple):
    """A member has handled everything below these offsets."""

    member: str
    generation: int
    offsets: dict[int, int]


class OffsetFetch(NamedTuple):
    """Request for the group's offsets."""

    partitions: tuple[int, ...]


class Offsets(NamedTuple):
    """Offset of the next entry to handle, by partition."""

    offsets: dict[int, int]


class Assigned(NamedTuple):
    """The partitions of a member."""

    partitions: tuple[int, ...]


REBALANCE, UNKNOWN_MEMBER, ILLEGAL_GENERATION, NOT_COORDINATOR = (
    "rebalance in progress", "unknown member", "illegal generation", "not coordinator",
)  # fmt: skip
"""Refusals of a coordinator. Else it says True."""

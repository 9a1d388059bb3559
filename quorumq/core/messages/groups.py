"""Requests of clients about groups, and the answers."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.values.types import Group, Stamp


class GroupReply(NamedTuple):
    """The answer to a request that changes a group: its register, on a majority of every partition's replica set."""

    group: Group


class SetGroup(NamedTuple):
    """Create a group, or rewind it: a new generation that begins at ``start``.

    ``start`` is "earliest", "latest" (what is published from now on), or "time": batches published at or after
    ``from_ms`` by their producers' clocks. Without ``rewind``, a group that is there stays as it is.

    With ``id``, it is about this ``generation`` of the group in the topic of this id, and does nothing to a later one.
    So a request that arrives late spoils nothing. A creation does nothing to a later *deletion*. The other requests
    about groups have these fields, too.
    """

    topic: str
    group: str
    start: str = "earliest"
    from_ms: int = 0
    rewind: bool = False
    id: bytes | None = None
    generation: int = 0


class DeleteGroup(NamedTuple):
    """Delete a group, with all that was recorded for it and its dead letters. See SetGroup."""

    topic: str
    group: str
    id: bytes | None = None
    generation: int = 0


class PauseGroup(NamedTuple):
    """Pause a group, or resume it: while it is paused, no FETCH gets messages of it.

    It is about each generation until the group is deleted.

    With ``seen``, the stamp of the last pause or resumption that its client knows of, it undoes no later one.
    """

    topic: str
    group: str
    paused: bool
    id: bytes | None = None
    generation: int = 0
    seen: Stamp | None = None


class LimitGroup(NamedTuple):
    """Limit the deliveries to a group: ``per_second``, and up to ``burst`` at once.

    A ``per_second`` of 0 ends the limit. A ``burst`` of 0 leaves it to the node. See PauseGroup.
    """

    topic: str
    group: str
    per_second: float
    burst: int = 0
    id: bytes | None = None
    generation: int = 0
    seen: Stamp | None = None


class GroupPart(NamedTuple):
    """A group's work left in one partition, as one replica has it in memory; counts of messages.

    ``oldest_s`` is the age of the oldest that is ready, held or delayed; None without one. ``suspects``: how
    many of those that are ready are delivered in lots, with nothing else. ``dying``: out of deliveries, and no dead
    letters yet. ``dropped`` are those that expired, since the replica started, if the topic drops such.
    """

    partition: int
    ready: int = 0
    held: int = 0
    delayed: int = 0
    dead: int = 0
    oldest_s: float | None = None
    suspects: int = 0
    dying: int = 0
    dropped: int = 0


class GroupFlow(NamedTuple):
    """Messages of one partition that a node delivered to a group's consumers, and settled, in the last minute."""

    partition: int
    delivered: int
    settled: int


class GroupConsumer(NamedTuple):
    """A consumer that fetched for a group through a node in the last minute.

    ``software`` is the client's, ``address`` the machine it dials from. ``partitions`` are those it asked for, and
    ``delivered`` is the count of messages that it got of each.
    """

    name: str
    version: str
    software: str
    address: str
    partitions: tuple[int, ...]
    delivered: tuple[int, ...]


class DescribedGroup(NamedTuple):
    """A group as the answering node sees it now. The core adds its replicas (``parts``), the shell the consumers.

    ``left_out``: count of consumers beside these, which fetched last.
    """

    topic: bytes
    group: str
    parts: tuple[GroupPart, ...]
    flows: tuple[GroupFlow, ...] = ()
    consumers: tuple[GroupConsumer, ...] = ()
    left_out: int = 0


class DescribeGroups(NamedTuple):
    """A request for groups as the answering node sees them now: pairs of a topic's name and a group's."""

    groups: tuple[tuple[str, str], ...]


class DescribeGroupsReply(NamedTuple):
    """The answer to DescribeGroups, without groups that are not known here. Of several, each has few consumers."""

    groups: tuple[DescribedGroup, ...]

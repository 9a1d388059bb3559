"""Moves of partitions: the request of a client, and the questions of a node that left a replica set."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.values.types import NodeId, PartitionId, Span


class MovePartition(NamedTuple):
    """MOVE: the slot that ``source`` has in the replica set of a partition is to be the node ``to``'s.

    With an empty ``to``, ``source`` has left the set and is dead for good: it is a source no longer.

    With ``id`` it is about the topic of this id; with ``epoch``, that of the partition as its client knows it, it
    changes no later set.
    """

    name: str
    partition: int
    source: NodeId
    to: NodeId
    dry_run: bool = False  # check it, and move nothing
    id: bytes | None = None
    epoch: int | None = None


class SourceRequest(NamedTuple):
    """A question of a node that left a set to a slot of it: how many of these messages, which it has, are lacking?"""

    round: int
    partition: PartitionId
    epoch: int
    spans: tuple[Span, ...]


class SourceReply(NamedTuple):
    """Number of those messages that the sender lacks, or has not on disk yet; -1 if it does not know."""

    round: int
    partition: PartitionId
    epoch: int
    lacking: int

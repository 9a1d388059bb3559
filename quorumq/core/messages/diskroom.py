"""Space left on a node's disk, and the records of the journal that are still written then.

Why a table by kind of record: a limit that another type of request can bypass is no limit. Every new type of record
has to be classified here (`tests/core/test_diskroom.py`). Records that make space, and those of a start, are written
as long as anything can be. Records that only add to the disk stop first.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

from quorumq.core.messages import records as r
from quorumq.core.values.limits import DEATH_BARE_MAX
from quorumq.core.values.types import Kind, Record


class Capacity(IntEnum):
    """Space left on a node's disk: the higher the value, the less. `NodeState.disk_shortage` has it."""

    PLENTY = 0  # more than the reserve
    FIRST = 1  # the reserve
    SECOND = 2  # the last reserve, a file that was given up
    NONE = 3  # no more than a start needs, or nothing


Written = type[r.JournalRecord] | Kind | Literal["delay"]
"""A record, or a request's wish: a message becomes of a kind, or a REJECT's delay."""

WRITTEN: Final[dict[Written, Capacity]] = {
    # A start, of this node or of a peer.
    r.DirectoryMade: Capacity.NONE,
    r.ClusterMade: Capacity.NONE,
    r.ClusterPut: Capacity.NONE,
    r.Started: Capacity.NONE,
    r.Trusted: Capacity.NONE,
    r.TrustLost: Capacity.NONE,
    r.DirectoryLocation: Capacity.NONE,
    r.PeerSeen: Capacity.NONE,
    r.PeerPosition: Capacity.NONE,
    r.Reserved: Capacity.NONE,
    # Registers are bounded by the limits of a cluster, and deletions make room. New ones are refused as a batch is.
    r.TopicPut: Capacity.NONE,
    r.DecisionPut: Capacity.NONE,
    r.PartitionTrusted: Capacity.NONE,
    r.AbsentNoted: Capacity.NONE,
    r.GroupPut: Capacity.NONE,
    r.DeletedNoted: Capacity.NONE,
    # It repeats registers that are on the disk, and stay there until it is written.
    r.DeletedPage: Capacity.PLENTY,
    # These make room.
    r.PartitionDropped: Capacity.NONE,
    r.Reclaimed: Capacity.NONE,
    r.SessionsPromised: Capacity.NONE,
    r.SessionsClosed: Capacity.NONE,
    # Clients add these at will, again and again.
    r.BatchStored: Capacity.PLENTY,
    "delay": Capacity.PLENTY,
    # Nothing is promised of these: a crash may take them as well. What a stop writes may be long.
    r.CleanStopped: Capacity.FIRST,
    r.AttemptsCounted: Capacity.SECOND,
    # Peers' records of a message are learned while anything can be written. For a request, its wish decides.
    r.DelaysSet: Capacity.NONE,
    r.RecordsMerged: Capacity.NONE,
    Kind.OPEN: Capacity.FIRST,
    Kind.DEAD: Capacity.FIRST,
    Kind.ACKED: Capacity.SECOND,
    Kind.SKIPPED: Capacity.SECOND,
    Kind.PURGED: Capacity.SECOND,
}
"""Last level at which this is written. A dead letter that the topic's limits make is written as an ACK is."""

_WHY: Final = {
    Capacity.FIRST: "node {node} has only its reserve of disk space left: let consumers ack what is there, delete what "
    "nobody reads, or give it a larger disk",
    Capacity.SECOND: "node {node} has only its last reserve of disk space left, which is for acks: let consumers "
    "ack what is there, delete what nobody reads, or give it a larger disk",
    Capacity.NONE: "the disk of node {node} is full: delete topics that are not needed, or give it a larger disk; "
    "it goes on by itself once there is room",
}


def why_full(capacity: Capacity, node: str) -> str:
    """Return the state of the disk and the remedy. Empty while there is space."""
    return _WHY[capacity].format(node=node) if capacity else ""


def is_written(kind: Written, capacity: Capacity) -> bool:
    """Return True if this is written while the disk has as much space as ``capacity`` says."""
    return capacity <= WRITTEN[kind]


def bare(record: Record) -> Record:
    """Return the record with its death cut to about what a tombstone costs: reason, class and fingerprint."""
    death = record.death
    if death is None:
        return record
    cut = death._replace(
        error_class=death.error_class[:DEATH_BARE_MAX],
        fingerprint=death.fingerprint[:DEATH_BARE_MAX],
        message="",
        stack="",
        consumer="",
        consumer_version="",
        host="",
    )
    return record._replace(death=cut)

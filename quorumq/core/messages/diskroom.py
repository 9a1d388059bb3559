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


class Shortage(IntEnum):
    """Shortage of space on a node's disk: the higher the value, the less is left. `NodeState.disk_shortage` has it."""

    NONE = 0  # more than the reserve is left
    RESERVE = 1  # the reserve is left
    LAST_RESERVE = 2  # the last reserve is left, a file that was given up
    FULL = 3  # no more than a start needs is left, or nothing


CAPACITIES: Final = ("plenty", "first", "second", "none")
"""Names of the space that is left, by shortage, in the status and in logs."""

Written = type[r.JournalRecord] | Kind | Literal["delay"]
"""A record, or a request's wish: a message becomes of a kind, or a REJECT's delay."""

WRITTEN: Final[dict[Written, Shortage]] = {
    # A start, of this node or of a peer.
    r.DirectoryMade: Shortage.FULL,
    r.ClusterMade: Shortage.FULL,
    r.ClusterPut: Shortage.FULL,
    r.Started: Shortage.FULL,
    r.Trusted: Shortage.FULL,
    r.TrustLost: Shortage.FULL,
    r.DirectoryLocation: Shortage.FULL,
    r.PeerSeen: Shortage.FULL,
    r.PeerPosition: Shortage.FULL,
    r.Reserved: Shortage.FULL,
    # Registers are bounded by the limits of a cluster, and deletions make room. New ones are refused as a batch is.
    r.TopicPut: Shortage.FULL,
    r.DecisionPut: Shortage.FULL,
    r.PartitionTrusted: Shortage.FULL,
    r.AbsentNoted: Shortage.FULL,
    r.GroupPut: Shortage.FULL,
    r.DeletedNoted: Shortage.FULL,
    # It repeats registers that are on the disk, and stay there until it is written.
    r.DeletedPage: Shortage.NONE,
    # These make room.
    r.PartitionDropped: Shortage.FULL,
    r.Reclaimed: Shortage.FULL,
    r.SessionsPromised: Shortage.FULL,
    r.SessionsClosed: Shortage.FULL,
    # Clients add these at will, again and again.
    r.BatchStored: Shortage.NONE,
    "delay": Shortage.NONE,
    # Nothing is promised of these: a crash may take them as well. What a stop writes may be long.
    r.CleanStopped: Shortage.RESERVE,
    r.AttemptsCounted: Shortage.LAST_RESERVE,
    # Peers' records of a message are learned while anything can be written. For a request, its wish decides.
    r.DelaysSet: Shortage.FULL,
    r.RecordsMerged: Shortage.FULL,
    Kind.OPEN: Shortage.RESERVE,
    Kind.DEAD: Shortage.RESERVE,
    Kind.ACKED: Shortage.LAST_RESERVE,
    Kind.SKIPPED: Shortage.LAST_RESERVE,
    Kind.PURGED: Shortage.LAST_RESERVE,
}
"""Last level at which this is written. A dead letter that the topic's limits make is written as an ACK is."""

_WHY: Final = {
    Shortage.RESERVE: "node {node} has only its reserve of disk space left: let consumers ack what is there, delete "
    "what nobody reads, or give it a larger disk",
    Shortage.LAST_RESERVE: "node {node} has only its last reserve of disk space left, which is for acks: let consumers "
    "ack what is there, delete what nobody reads, or give it a larger disk",
    Shortage.FULL: "the disk of node {node} is full: delete topics that are not needed, or give it a larger disk; "
    "it goes on by itself once there is room",
}


def why_full(shortage: Shortage, node: str) -> str:
    """Return the state of the disk and the remedy. Empty while there is space."""
    return _WHY[shortage].format(node=node) if shortage else ""


def is_written(kind: Written, shortage: Shortage) -> bool:
    """Return True if this is written at this shortage of space."""
    return shortage <= WRITTEN[kind]


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

"""Records that the core writes into the journal, as values. docs/file-format.md says how they look on disk.

A TYPE number is never used for anything else, fields are only appended. Replaying the records of a journal
in order rebuilds the durable state; every one of them merges, so replaying one twice changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from quorumq.core.messages import Counted, NotDue, SpanRecord
from quorumq.core.values.types import (
    Batch,
    ClusterLayout,
    Decision,
    Group,
    Incarnation,
    Machines,
    NodeId,
    Owner,
    PartitionId,
    Span,
    Topic,
)


class DirectoryMade(NamedTuple):
    """The first record of a data directory: whose it is. ``directory`` is 64 random bits."""

    node: NodeId
    cluster_id: str
    directory: int


class ClusterMade(NamedTuple):
    """The cluster's fixed settings, the same on all nodes for ever: node ids, sorted, and ``hold_time_max`` (s).

    Replica sets are drawn from the list, no two of a set from one machine (``machines``, empty if each node has its
    own), and a quarantine lasts as long as the longest hold that may have been granted.
    """

    nodes: tuple[NodeId, ...]
    hold_time_max: float
    machines: Machines = ()


class ClusterPut(NamedTuple):
    """A layout of the cluster that was chosen: its members. The one with the highest number stands."""

    layout: ClusterLayout


class Started(NamedTuple):
    """A start of this node, and the number of records that it found. Durable before the node first speaks.

    ``boot``: 60 bits that stand for the boot of the machine on which it ran, 0 if the system does not say.
    """

    incarnation: Incarnation
    records: int = 0
    boot: int = 0


class Trusted(NamedTuple):
    """The directory is trusted from here on: new or moved and confirmed by all peers, or resynced.

    ``declared``: True if this resync or an earlier one heard the declared survivors alone.
    """

    declared: bool = False


class TrustLost(NamedTuple):
    """The directory is not trusted until a later Trusted: why, and a start count that no earlier start has reached.

    0 if the driver found damage at this start: the core then takes a value far above all earlier start counts.
    """

    above: int
    reason: str


class DirectoryLocation(NamedTuple):
    """The data directory's location: a start that finds it elsewhere may have found an old copy.

    ``why`` is empty for a place that it had from the beginning, and else says why start ``n`` trusted it.
    """

    location: int
    n: int
    why: str


class PeerSeen(NamedTuple):
    """The highest incarnation seen of a peer, and its directory. Durable before its HELLO is answered."""

    node: NodeId
    incarnation: Incarnation
    directory: int


class PeerPosition(NamedTuple):
    """The count of records in a peer's directory, as its start ``start`` reported it. Written without waiting."""

    node: NodeId
    directory: int
    position: int
    start: int


class Reserved(NamedTuple):
    """Stamps up to this time may be used: the next start begins above it."""

    time: int


class TopicPut(NamedTuple):
    """A topic's register as merged."""

    topic: Topic


class DecisionPut(NamedTuple):
    """The node's promise and acceptance in an instance. Each part counts by its higher ballot."""

    decision: Decision


class GroupPut(NamedTuple):
    """A group's register as merged."""

    group: Group


class DeletedNoted(NamedTuple):
    """Packed registers of deleted names (core/cluster/deleted_names.py), as merged, that a peer sent."""

    packed: bytes


class DeletedPage(NamedTuple):
    """All packed registers of one page, by key: it replaces the records of that page with lower numbers.

    ``number`` is one of those of batches: the journal keeps a page, and drops it, as it does a batch. ``total`` is the
    sum of the registers' digests under the key with ``key_number``.
    """

    number: int
    page: int
    key_number: bytes
    total: bytes
    packed: bytes


class PartitionTrusted(NamedTuple):
    """All that was promised from this node's slot of a partition since layout ``since`` is in this directory.

    The last one of a partition counts, unless the directory has lost trust since. ``since`` 0: it is not.
    """

    partition: PartitionId
    since: int


class PartitionDropped(NamedTuple):
    """The partition was moved away, and nothing of it is kept: earlier records of it do not count."""

    partition: PartitionId


class AbsentNoted(NamedTuple):
    """Messages that a resync or a new slot heard of, and that are not here: votes from here may have confirmed them."""

    partition: PartitionId
    spans: tuple[Span, ...]


class BatchStored(NamedTuple):
    """A batch. ``number`` is this node's own, counted up; ``received_ms`` its time of day then.

    ``age_ms``: how old the batch was then, from when its producer made it; -1 if only peers' clocks showed it.
    ``start`` of the node wrote it, whose monotonic clock showed ``mono_ms`` then.
    """

    number: int
    batch: Batch
    received_ms: int
    age_ms: int = 0
    start: int = 0
    mono_ms: int = 0


class RecordsMerged(NamedTuple):
    """Records (tombstones, redrives) of one group, as merged.

    One death may be that of many, under their own ballots. On disk it stands in one entry, and ``again`` says which
    others have it: (entry, entry that has it). Only there is it not empty.
    """

    partition: PartitionId
    group: str
    entries: tuple[SpanRecord, ...]
    again: tuple[tuple[int, int], ...] = ()


class AttemptsCounted(NamedTuple):
    """Attempt counts. Written without waiting."""

    partition: PartitionId
    group: str
    entries: tuple[Counted, ...]


class DelaysSet(NamedTuple):
    """Delays of REJECT: ``remaining`` seconds, counted from ``at_ms``, this node's time of day.

    ``start`` of the node wrote it, whose monotonic clock showed ``mono_ms`` then.
    """

    partition: PartitionId
    group: str
    at_ms: int
    entries: tuple[NotDue, ...]
    start: int = 0
    mono_ms: int = 0


class Reclaimed(NamedTuple):
    """The payload of these messages was dropped here, because it is not needed; they stay known.

    ``numbers`` are this node's batches that are void with it: should a crash have kept one, it is dropped again.
    """

    partition: PartitionId
    spans: tuple[Span, ...]
    numbers: tuple[int, ...] = ()


class SessionsPromised(NamedTuple):
    """No further STORE of these producer ids, as in `SessionsClosed`, is taken from a client."""

    partition: PartitionId
    spans: tuple[Span, ...]


class SessionsClosed(NamedTuple):
    """Producer ids that are over everywhere, as spans of their numbers under the producer id with k = 0."""

    partition: PartitionId
    spans: tuple[Span, ...]


class HeldAtStop(NamedTuple):
    """One hold in CLEAN_STOP."""

    partition: PartitionId
    group: str
    span: Span
    owner: Owner
    n: int
    remaining: float  # seconds
    ballot: tuple[int, str]  # the highest ballot granted (a Stamp); (0, "") for a hold learned from a peer
    generation: int = 0


class BallotAtStop(NamedTuple):
    """In CLEAN_STOP: the highest ballot granted for these messages, (0, "") if none, and their own minimum ballot, or
    0."""

    span: Span
    ballot: tuple[int, str]  # a Stamp
    min_ballot: int


class MemoryAtStop(NamedTuple):
    """All ballots that a replica remembers of a group in CLEAN_STOP: it granted no others above ``min_ballot``."""

    partition: PartitionId
    group: str
    min_ballot: int
    ballots: tuple[BallotAtStop, ...]


class CleanStopped(NamedTuple):
    """The very last record of a clean stop; counts only there, and only for the incarnation it names.

    ``holds`` and ``memory`` are of the replicas that were out of quarantine. ``quarantine_s``: seconds until the last
    quarantine would have ended, 0 if none was left. The next start begins with it, but for the replicas in
    ``recovered``, which were in none. ``memory`` leaves out groups with too many ballots: it is only known of these
    that every granted ballot is at or below the reserve.
    """

    incarnation: Incarnation
    holds: tuple[HeldAtStop, ...]
    quarantine_s: float = 0.0
    recovered: tuple[PartitionId, ...] = ()
    memory: tuple[MemoryAtStop, ...] = ()


JournalRecord = Union[
    DirectoryMade, ClusterMade, ClusterPut, Started, Trusted, TrustLost, DirectoryLocation, PeerSeen,
    PeerPosition, Reserved,
    TopicPut, DecisionPut, GroupPut, PartitionTrusted, PartitionDropped, BatchStored, RecordsMerged, AttemptsCounted,
    DelaysSet, Reclaimed, SessionsPromised, SessionsClosed, CleanStopped, AbsentNoted, DeletedNoted,
    DeletedPage,
]  # fmt: skip

NUMBERED = (BatchStored, DeletedPage)
"""Records that a journal keeps, in whichever segment they are, until their number is forgotten."""

"""Messages between nodes beside the quorums: heartbeats, anti-entropy, registers, recovery and resync."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages.quorum import NotDue, SpanRecord
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    ClusterLayout,
    Decision,
    Group,
    Incarnation,
    NodeId,
    Owner,
    PartitionId,
    ProducerId,
    Span,
    Stamp,
    Topic,
)


class Heartbeat(NamedTuple):
    """The groups that the sender has a FETCH parked for now: all of them, so a group that is not named has none."""

    waiting: tuple[tuple[PartitionId, str], ...]
    quarantine_s: float = 0.0
    full: str = ""  # reason why the sender takes no new messages, with the remedy; empty if it takes them
    position: int = 0  # records durable in the sender's directory, or 0 if they are not counted
    trusted: bool = True  # True if the sender is trusted
    layout: int = 0  # number of the cluster layout that the sender knows


class HoldsRequest(NamedTuple):
    """A node that was started again asks for the holds that there are in these partitions (recovery from peers).

    HELLO settles the sender's incarnation; ``round`` is used for no other request of that start.
    """

    round: int
    partitions: tuple[PartitionId, ...]
    epochs: tuple[int, ...] = ()  # those of the partitions, in their order; empty: none was ever moved


class HeldThere(NamedTuple):
    """One hold in the answer, with ``remaining`` seconds. The owner `NO_OWNER`: two, or one that acked."""

    group: str
    span: Span
    owner: Owner
    n: int
    remaining: float
    generation: int = 0


class HoldsReply(NamedTuple):
    """One of ``chunks`` chunks of a replica's table of holds. A replica that has no vote itself says nothing."""

    round: int
    partition: PartitionId
    chunk: int
    chunks: int
    holds: tuple[HeldThere, ...]


class SyncDigests(NamedTuple):
    """Anti-entropy of a partition: sums of digests, as 16 bytes each.

    Of each of the 16 parts of every node of the tree in ``locations``; the first message, which has none, of its root.
    The receiver answers, if it differs, with those of the parts that differ, or lists them.

    ``tells``: in the end the sender sends its content, and the receiver merges it; else the other way round.
    """

    partition: PartitionId
    epoch: int
    tells: bool
    locations: tuple[int, ...]
    sums: bytes


class Digest(NamedTuple):
    """A digest of the sender's state of one producer id, or of a block of closed ones."""

    producer_id: ProducerId
    digest: bytes


class GroupDigest(NamedTuple):
    """A digest of one group at the sender: records, attempts and delays, by producer id."""

    group: str
    producer_ids: tuple[Digest, ...]


class SyncListed(NamedTuple):
    """Anti-entropy: all that the sender has in these places, by producer id. The receiver answers with its
    differences."""

    partition: PartitionId
    epoch: int
    locations: tuple[int, ...]
    producer_ids: tuple[Digest, ...]
    groups: tuple[GroupDigest, ...]
    closed: tuple[Digest, ...]


class Counted(NamedTuple):
    """``ended`` attempts of these messages at (generation, n) have ended by expiry or REJECT.

    ``expiries``: count of these that expired; ``last_expired``: the last one, too. ``interruptions``: count of
    deliveries beside them that were interrupted.
    """

    span: Span
    n: int
    ended: int
    generation: int = 0
    last_expired: bool = False
    expiries: int = 0
    interruptions: int = 0


class GroupState(NamedTuple):
    """Anti-entropy: everything that differs of one group, to be merged."""

    group: str
    records: tuple[SpanRecord, ...]
    attempts: tuple[Counted, ...]
    delays: tuple[NotDue, ...]


class Aged(NamedTuple):
    """The age of the batch with these messages, by the clock of the sender."""

    span: Span
    age_ms: int


class SyncState(NamedTuple):
    """Anti-entropy: the answer to a list: the sender's spans and records that differed.

    Records are merged before any batch is pulled. A long answer is several of these. With ``rest`` it
    ends the answer to a SyncPull: ``spans`` are those asked for and not sent yet.
    """

    partition: PartitionId
    epoch: int
    spans: tuple[Span, ...]  # present at the sender
    groups: tuple[GroupState, ...]
    rest: bool = False
    reclaimed: tuple[Span, ...] = ()  # known to the sender, and its payload dropped there
    closed: tuple[Span, ...] = ()  # numbers of closed producer ids, under the producer id with k = 0
    # With ``rest``: asked for, and neither present at the sender nor reclaimed.
    nowhere: tuple[Span, ...] = ()
    ages: tuple[Aged, ...] = ()  # answers to a SyncPull, as far as the sender is not in doubt of them
    # In an answer to a ResyncRequest: no more STOREs of these from clients; numbers as in ``closed``.
    promised: tuple[Span, ...] = ()


class GroupsRequest(NamedTuple):
    """RECLAIM: which groups of these topics, sorted, do you know of?"""

    number: int
    topics: tuple[bytes, ...]
    after: str = ""  # only those behind this group of the first topic
    # Numbers of the layouts of the topics at the sender; empty: no partition was ever moved.
    layouts: tuple[int, ...] = ()


class GroupsReply(NamedTuple):
    """The groups of those topics that the sender knew of when it was asked, sorted: all of them, or the first."""

    number: int
    groups: tuple[Group, ...]
    more: bool = False


class RegistersRequest(NamedTuple):
    """A question: the topics of these names and ids, and these groups. Of a group, topic and name count.

    With ``after``, also all groups of the topics ``ids``, sorted, behind that one; "" is before all.

    With ``ballot``, a change of settings of that group, or of that topic, is to be written under this stamp: the
    receiver promises it before it answers.
    """

    round: int
    names: tuple[str, ...]
    ids: tuple[bytes, ...]
    groups: tuple[Group, ...]
    after: str | None = None
    page: int = 0  # with ``after``: the page of packed registers of deleted groups to go on from
    ballot: Stamp | None = None


class RegistersReply(NamedTuple):
    """The registers that the sender knew of when it was asked, deleted ones included; of many the first."""

    round: int
    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    known: tuple[Incarnation, ...] = ()  # starts of the node list, in its order
    more: bool = False  # groups follow, behind the last one, or packed ones, from ``page`` on
    packed: bytes = b""  # packed registers of deleted groups
    page: int = 0
    epoch: int = 0  # epoch of the voters in which the answer counts; -1: none


class SyncPull(NamedTuple):
    """Anti-entropy: send the batches that hold these spans, as STOREs of round 0; and say how old others are."""

    partition: PartitionId
    spans: tuple[Span, ...]
    ages: tuple[Span, ...] = ()  # a message of each batch whose age is asked for


class SyncRegisters(NamedTuple):
    """Anti-entropy of the registers: the sum of the digests of all that the sender has, 16 bytes.

    A receiver with another sum answers with those of its 256 buckets, and gets the registers of those that differ.
    ``key_number`` names the key of these sums.
    """

    sums: bytes
    key_number: bytes = b""


class SyncTopics(NamedTuple):
    """Anti-entropy of the registers: topics and groups of buckets that differ, or in a resync all of them.

    ``packed``: registers of names that were deleted long ago (core/cluster/deleted_names.py).
    """

    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    packed: bytes = b""


class ResyncRequest(NamedTuple):
    """A node that is not trusted, or not in a partition's set, asks for the receiver's state of the partition.

    It asks from place ``start`` on. Without a partition it asks for the registers.
    """

    round: int
    partition: PartitionId | None
    start: int
    epoch: int = FIRST_LAYOUT  # epoch of the partition, or of the voters, at the sender
    since: int = FIRST_LAYOUT  # number of the layout since which the sender has its slot


class SeenStart(NamedTuple):
    """A start of a node and its directory, as it said in HELLO."""

    node: NodeId
    incarnation: Incarnation
    directory: int


class ResyncReply(NamedTuple):
    """One of ``chunks`` chunks of the answer; ``following`` is the place to go on from, 0 at the end."""

    round: int
    partition: PartitionId | None
    chunk: int
    chunks: int
    following: int
    registers: SyncTopics
    state: SyncState | None
    decisions: tuple[Decision, ...] = ()  # with the registers: instances undecided at the sender
    cluster: ClusterLayout | None = None  # with the registers, in each chunk: layout 0 is known to all
    seen: tuple[SeenStart, ...] = ()  # with the registers, in the first chunk: the newest start of each node


class SurvivorsRequest(NamedTuple):
    """A question: can the receiver be trusted, and which starts has it seen.

    With ``survivors``, these nodes are declared to be all that is left: a node that is not trusted waits for no other.
    """

    round: int
    survivors: tuple[NodeId, ...] = ()


class SurvivorsReply(NamedTuple):
    """The answer to SurvivorsRequest: ``why`` the sender is not trusted, or "" if it can or is new.

    ``seen`` are the newest starts that it knows durably, its own first; ``survivors`` those that were declared to it.
    """

    round: int
    trusted: bool
    why: str
    seen: tuple[SeenStart, ...]
    survivors: tuple[NodeId, ...]

"""Everything that nodes say to each other, and clients to nodes.

Each message is a NamedTuple of plain values, nested NamedTuples and tuples of them; the wire
encodes it as [TYPE, *fields] (docs/wire-format.md), so a field may be appended with a default but
never moved or removed, and a TYPE is never used for anything else. A reader skips fields that it
does not know.

Quorum requests carry a round number. A reply counts once per replica and only for its round, and
says which incarnations its sender knows, so that the coordinator can leave out a reply of an
incarnation that anyone in the round knows to be superseded (docs/protocol.md, section 3).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Union

from quorumq.core.types import (
    Batch,
    BatchHeader,
    Creation,
    Group,
    Incarnation,
    Letter,
    NodeId,
    Origin,
    Owner,
    PartitionId,
    Receipt,
    Record,
    Span,
    Stamp,
    Topic,
)

# ---------------------------------------------------------------------------------------------
# Node to node: quorum requests and their replies
# ---------------------------------------------------------------------------------------------


class Store(NamedTuple):
    """STORE: keep this batch on disk. ``age_ms``: how long ago its producer made it, as far as is known.

    In one of anti-entropy (round 0) it is what the sender's clock says, -1 where the sender is itself in doubt.
    """

    round: int
    epoch: int
    batch: Batch
    age_ms: int = 0


class Stored(NamedTuple):
    """STORED, or why not: ``refused`` is "" or an error code of core/errors.py.

    ``position``: of the records in the sender's directory so many are durable, those of this answer among them; 0 where
    it promises none, or nobody counts.
    """

    round: int
    refused: str
    detail: str
    known: tuple[Incarnation, ...]  # of the replica set, in its order
    position: int = 0


class Want(NamedTuple):
    """Messages that a HOLD asks for, all at redrive number ``n``."""

    span: Span
    n: int


class Freed(NamedTuple):
    """Holds that an owner no longer has: what RELEASE and LEAVE carry."""

    partition: PartitionId
    group: str
    owner: Owner
    spans: tuple[Span, ...]


class Hold(NamedTuple):
    """HOLD: let ``ballot`` of the sender's incarnation have these messages for ``hold_time`` seconds.

    ``freed`` repeats, in front of the HOLD, what earlier RELEASEs to this replica said and it has not
    confirmed. ``parked`` says whether the sender has another FETCH parked for the group: a hint, as in a
    Heartbeat.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    generation: int
    ballot: Stamp
    hold_time: float
    wants: tuple[Want, ...]
    freed: tuple[Freed, ...] = ()
    parked: bool = False


class Granted(NamedTuple):
    """An OK. ``attempts`` have ended before; ``exhausted`` and ``expired`` are looked at after the win.

    ``unseen``: the replica has no batch with these messages, so it cannot tell whether they are due.
    """

    span: Span
    attempts: int
    exhausted: bool
    expired: bool
    unseen: bool = False


class Resolved(NamedTuple):
    """A TOMB: the replica's record is another than the HOLD's."""

    span: Span
    record: Record


class NotDue(NamedTuple):
    """NOT_DUE: the group's delay (generation, n, ballot) has ``remaining`` seconds left.

    The ballot STAMP_ZERO stands for the batch's own delay, by the clock of whoever answers.
    """

    span: Span
    n: int
    ballot: Stamp
    remaining: float
    generation: int = 0


class Refused(NamedTuple):
    """A NOK. ``highest`` is the highest ballot granted (or the floor); ``remaining`` > 0 seconds if held."""

    span: Span
    highest: Stamp
    remaining: float


class HoldReply(NamedTuple):
    """The votes on a HOLD. ``abstained`` (in quarantine, or not able to vouch) is a vote for nothing.

    Partition and group come along so that a reply whose round is over still repairs.
    """

    round: int
    partition: PartitionId
    group: str
    abstained: bool
    granted: tuple[Granted, ...]
    resolved: tuple[Resolved, ...]
    not_due: tuple[NotDue, ...]
    refused: tuple[Refused, ...]
    error: str  # "", "unknown-topic", "not-found" (deleted) or "wrong-epoch": nothing was looked at
    known: tuple[Incarnation, ...]


class Release(NamedTuple):
    """RELEASE (a lost round) or LEAVE (certainly nobody works on it): remove where the owner matches exactly."""

    freed: tuple[Freed, ...]


class Released(NamedTuple):
    """Confirms a RELEASE, so that it need not be repeated in front of the next HOLD."""

    freed: tuple[Freed, ...]


class Extend(NamedTuple):
    """EXTEND: a new ``hold_time`` (seconds, from now) where exactly this owner holds now."""

    round: int
    partition: PartitionId
    epoch: int
    group: str
    owner: Owner
    spans: tuple[Span, ...]
    hold_time: float


class Extended(NamedTuple):
    """The votes on an EXTEND; a span in neither list was not looked at (abstained)."""

    round: int
    granted: tuple[Span, ...]
    refused: tuple[Span, ...]
    error: str
    known: tuple[Incarnation, ...]


class Acked(NamedTuple):
    """One entry of an ACK: messages, and the owner of the receipt that names them.

    ``n`` matters in a dead-letter group, where ACK writes PURGED at that redrive number.
    """

    span: Span
    owner: Owner
    n: int = 0


class Ack(NamedTuple):
    """ACK: write ACKED for these messages of this group generation."""

    round: int
    partition: PartitionId
    epoch: int
    group: str
    generation: int
    entries: tuple[Acked, ...]


class Tombed(NamedTuple):
    """TOMBED: ACKED is durable here for every entry.

    ``exclusive``: this replica is out of quarantine and the highest ballot it granted for the message,
    or its floor, is not above the receipt's. ``higher``: it granted a higher one. ``resolved``: in a dead-letter
    group, where the record was higher than PURGED at that n, and so stands. ``position``: as in STORED.
    """

    round: int
    exclusive: tuple[Acked, ...]
    higher: tuple[Acked, ...]
    error: str  # "", "unknown-topic", "not-found" (deleted), "wrong-epoch" or "stale-generation"
    known: tuple[Incarnation, ...]
    resolved: tuple[Resolved, ...] = ()
    position: int = 0


class Reject(NamedTuple):
    """REJECT: where exactly ``owner`` holds, requeue after ``delay`` seconds, or write DEAD with ``letter``.

    TOPIC_BACKOFF_S as ``delay``: each replica takes the step of the topic's backoff for its count of attempts.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    generation: int
    n: int
    owner: Owner
    spans: tuple[Span, ...]
    delay: float
    letter: Letter | None


class Rejected(NamedTuple):
    """The votes on a REJECT, durable here; ``resolved`` says what stood instead."""

    round: int
    applied: tuple[Span, ...]
    refused: tuple[Span, ...]
    resolved: tuple[Resolved, ...]
    error: str
    known: tuple[Incarnation, ...]


class Merge(NamedTuple):
    """Merge these records (REDRIVE, read repair). Answered once durable."""

    round: int
    partition: PartitionId
    epoch: int
    group: str
    entries: tuple[Resolved, ...]


class Merged(NamedTuple):
    """``exact``: our record is now what was asked. ``higher``: it is this one instead."""

    round: int
    exact: tuple[Span, ...]
    higher: tuple[Resolved, ...]
    error: str
    known: tuple[Incarnation, ...]


class PutTopic(NamedTuple):
    """Merge a topic's register, and those of some of its groups. Answered once durable."""

    round: int
    topic: Topic
    groups: tuple[Group, ...] = ()


class PutGroup(NamedTuple):
    """Merge a group's register. Answered once durable, with the merged one where it is higher.

    With ``ask``, ``group`` only names one, and what is known of it is answered.
    """

    round: int
    group: Group
    ask: bool = False


class Put(NamedTuple):
    """Answers PutTopic and PutGroup; the merged register comes along where it is higher than what was asked.

    ``refused`` is "" or "deleted", with the register that has taken the topic's place; or "cannot-vouch" of a PutGroup
    that a node which cannot vouch did not take in.
    """

    round: int
    refused: str
    detail: str
    topic: Topic | None
    group: Group | None
    known: tuple[Incarnation, ...] = ()  # of the node list, in its order


class Prepare(NamedTuple):
    """CREATE, first: promise, durably, to accept no proposal for this name that has a lower ballot.

    ``deletions``: how often the name was deleted before, as far as the proposer knows.
    """

    round: int
    name: str
    deletions: int
    ballot: Stamp


class Accept(NamedTuple):
    """CREATE, second: accept this register, durably, unless a higher ballot was promised."""

    round: int
    ballot: Stamp
    topic: Topic


class Voted(NamedTuple):
    """Answers Prepare and Accept: what the sender has promised and accepted by now, or what it knows was chosen.

    ``chosen`` is a register of that name with at least as many deletions as were asked about, deleted or not.
    """

    round: int
    creation: Creation | None
    chosen: Topic | None
    known: tuple[Incarnation, ...]  # of the node list, in its order


class PeekRequest(NamedTuple):
    """PEEK one partition as this replica sees it; holds nothing."""

    round: int
    partition: PartitionId
    group: str
    which: str  # "ready" | "held" | "delayed" | "acked" | "dead" | "skipped" | "purged" | "open" | "all"
    cursor: tuple[int, int]  # (batch number, record) to go on from, this replica's own; (0, 0) for the start
    limit: int
    bodies: bool = False


class Peeked(NamedTuple):
    """What one replica shows of some messages."""

    span: Span
    state: str
    record: Record
    attempts: int
    remaining: float  # seconds of hold or delay left; 0.0 otherwise
    owner: Owner | None


class Survey(NamedTuple):
    """What does the group make of every message that this replica knows of? PEEK complete and PURGE ask it.

    Everything is listed, whatever was asked for: what one replica calls ready, another may know to be acked. Items
    come in the order of message ids, from behind the end of ``after``.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    after: Span | None
    limit: int


class Surveyed(NamedTuple):
    """The answer to a Survey: everything up to the end of ``upto`` was looked at, or all there is if it is None."""

    round: int
    items: tuple[Peeked, ...]
    upto: Span | None
    error: str
    known: tuple[Incarnation, ...]


class PeekReply(NamedTuple):
    """One page of PEEK; ``cursor`` is None at the end.

    ``slices`` are the messages' bytes, of as many of the first items as fit into `FETCH_BYTES_MAX`.
    """

    round: int
    items: tuple[Peeked, ...]
    cursor: tuple[int, int] | None
    error: str
    slices: tuple[Slice, ...] = ()


# ---------------------------------------------------------------------------------------------
# Node to node: heartbeat and anti-entropy
# ---------------------------------------------------------------------------------------------


class Heartbeat(NamedTuple):
    """For which groups the sender has a FETCH parked now: all of them, so what is not named is not."""

    waiting: tuple[tuple[PartitionId, str], ...]
    quarantine_s: float = 0.0
    disk_free: int = -1
    position: int = 0  # records durable in the sender's directory, or 0 where nobody counts them
    vouched: bool = True  # whether the sender can vouch for its directory


class HoldsAsk(NamedTuple):
    """A node that was started again asks which holds there are in these partitions (recovery from peers).

    From which incarnation it comes is settled by HELLO; ``round`` is used for no other request of that start.
    """

    round: int
    partitions: tuple[PartitionId, ...]


class HeldThere(NamedTuple):
    """One hold in the answer, with ``remaining`` seconds. An owner with node "" is two owners: see HoldTable.learn."""

    group: str
    span: Span
    owner: Owner
    n: int
    remaining: float
    generation: int = 0


class HoldsTold(NamedTuple):
    """One of ``pieces`` pieces of a replica's table of holds. A replica that has no vote itself says nothing."""

    round: int
    partition: PartitionId
    piece: int
    pieces: int
    holds: tuple[HeldThere, ...]


class Digest(NamedTuple):
    """What the sender has of one origin: how many messages, and a digest of the spans."""

    origin: Origin
    messages: int
    digest: int


class GroupDigest(NamedTuple):
    """What the sender has of one (group, origin): records, attempts and delays, digested."""

    group: str
    generation: int
    origins: tuple[Digest, ...]


class SyncOffer(NamedTuple):
    """Anti-entropy of a partition: what the sender has, in digest.

    The first offer has one digest for each of a fixed number of buckets that origins fall into. Who differs answers
    with full offers, which have a digest for each origin of the ``buckets`` that they speak of.
    """

    partition: PartitionId
    epoch: int
    digests: tuple[int, ...]
    buckets: tuple[int, ...] = ()
    origins: tuple[Digest, ...] = ()
    groups: tuple[GroupDigest, ...] = ()
    closed: tuple[Digest, ...] = ()  # of the numbers of closed origins


class Counted(NamedTuple):
    """``ended`` attempts of these messages at (generation, n) have ended by expiry or REJECT."""

    span: Span
    n: int
    ended: int
    generation: int = 0


class GroupState(NamedTuple):
    """Anti-entropy: everything that differs of one group, to be merged."""

    group: Group
    records: tuple[Resolved, ...]
    attempts: tuple[Counted, ...]
    delays: tuple[NotDue, ...]


class Aged(NamedTuple):
    """How long ago the batch with these messages was made, by the clock of the sender."""

    span: Span
    age_ms: int


class SyncState(NamedTuple):
    """Anti-entropy: the answer to a full offer: the sender's spans and records for what differed.

    Records are merged before any batch is pulled. A long answer comes in several of these. With ``rest`` it
    ends the answer to a SyncPull: ``spans`` are those asked for and not sent yet.
    """

    partition: PartitionId
    epoch: int
    spans: tuple[Span, ...]  # present at the sender
    groups: tuple[GroupState, ...]
    rest: bool = False
    reclaimed: tuple[Span, ...] = ()  # known to the sender, and its payload dropped there
    closed: tuple[Span, ...] = ()  # numbers of closed origins, under the origin with k = 0
    # With ``rest``: asked for, and neither present at the sender nor reclaimed.
    nowhere: tuple[Span, ...] = ()
    ages: tuple[Aged, ...] = ()  # what a SyncPull asked for, as far as the sender is not in doubt of it


class CloseAsk(NamedTuple):
    """Promise, durably, to take no more STOREs of these origins from clients; with which are you done?"""

    round: int
    partition: PartitionId
    epoch: int
    origins: tuple[Origin, ...]


class CloseTold(NamedTuple):
    """``done``: promised, and nothing is left of it here but the knowledge of what it had."""

    round: int
    done: tuple[Origin, ...]
    error: str
    known: tuple[Incarnation, ...]


class GroupsAsk(NamedTuple):
    """RECLAIM: which groups of these topics, sorted, do you know of?"""

    number: int
    topics: tuple[bytes, ...]
    after: str = ""  # only those behind this group of the first topic


class GroupsTold(NamedTuple):
    """The groups of those topics that the sender knew of when it was asked, sorted: all of them, or the first."""

    number: int
    groups: tuple[Group, ...]
    more: bool = False


class RegistersAsk(NamedTuple):
    """What do you know of the topics of these names and ids, and of these groups? Of a group, topic and name count.

    With ``after``, also all groups of the topics ``ids``, sorted, behind that one; "" is before all.
    """

    round: int
    names: tuple[str, ...]
    ids: tuple[bytes, ...]
    groups: tuple[Group, ...]
    after: str | None = None


class RegistersTold(NamedTuple):
    """The registers that the sender knew of when it was asked, deleted ones included; of many the first."""

    round: int
    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    known: tuple[Incarnation, ...] = ()  # of the node list, in its order
    more: bool = False  # groups follow, behind the last one


class SyncPull(NamedTuple):
    """Anti-entropy: send the batches that hold these spans, as STOREs of round 0; and say how old others are."""

    partition: PartitionId
    spans: tuple[Span, ...]
    ages: tuple[Span, ...] = ()  # a message of each batch whose age is asked for


class SyncTopics(NamedTuple):
    """Anti-entropy of the registers: every topic and group the sender has, on connect and when asked."""

    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]


class ResyncAsk(NamedTuple):
    """A node that cannot vouch asks for what the receiver has of a partition, from bucket ``start`` on.

    Without a partition it asks for the registers.
    """

    round: int
    partition: PartitionId | None
    start: int


class ResyncTold(NamedTuple):
    """One of ``pieces`` pieces of the answer; ``following`` is the bucket to go on from, 0 at the end."""

    round: int
    partition: PartitionId | None
    piece: int
    pieces: int
    following: int
    registers: SyncTopics
    state: SyncState | None
    creations: tuple[Creation, ...] = ()  # with the registers: what is not decided as far as the sender knows


class SurvivorsAsk(NamedTuple):
    """Whether the receiver can vouch, and which starts it has seen.

    With ``survivors``, these nodes are declared to be all that is left: who cannot vouch waits for no other.
    """

    round: int
    survivors: tuple[NodeId, ...] = ()


class Seen(NamedTuple):
    """A start of a node and its directory, as it said in HELLO."""

    node: NodeId
    incarnation: Incarnation
    directory: int


class SurvivorsTold(NamedTuple):
    """The answer to SurvivorsAsk: ``why`` the sender cannot vouch, or "" where it can or is new.

    ``seen`` are the newest starts that it knows durably, its own first; ``survivors`` those that were declared to it.
    """

    round: int
    vouched: bool
    why: str
    seen: tuple[Seen, ...]
    survivors: tuple[NodeId, ...]


# ---------------------------------------------------------------------------------------------
# The first frame on every connection
# ---------------------------------------------------------------------------------------------


VERSIONS: Final = (1, 1)
"""The lowest and highest version of the protocol that this software speaks."""


class Hello(NamedTuple):
    """HELLO from a node or a client (``node`` is "" then, and so are incarnation and directory).

    ``nodes`` is a digest of the configured node list; a client leaves ``cluster_id`` empty to take any.
    ``versions`` are the lowest and highest protocol versions the sender speaks.
    """

    versions: tuple[int, int]
    cluster_id: str
    nodes: bytes
    hold_time_max: float
    node: NodeId
    incarnation: Incarnation
    directory: int
    wall_ms: int
    stamp: int
    software: str = ""


class Welcome(NamedTuple):
    """HELLO accepted. ``seen_n`` and ``seen_directories``: what was durable here about the dialler before."""

    version: int
    cluster_id: str
    node: NodeId
    incarnation: Incarnation
    directory: int
    wall_ms: int
    stamp: int
    seen_n: int
    seen_directories: tuple[int, ...]
    software: str = ""
    position: int = 0  # of the dialler's directory, as it last told us, and the start of it that told
    position_by: int = 0


# ---------------------------------------------------------------------------------------------
# Client to node
# ---------------------------------------------------------------------------------------------


class OpenSession(NamedTuple):
    """Ask for an origin to number messages under."""


class SessionOpened(NamedTuple):
    origin: Origin


class CloseSession(NamedTuple):
    """The producer is done with its session: all batches of it in these partitions are confirmed, no more will come."""

    origin: Origin
    partitions: tuple[PartitionId, ...]


class SessionClosed(NamedTuple):
    """The session's replicas were told. What they did not hear is done when it has been idle for long."""


class CreateTopic(NamedTuple):
    """Create a topic, or say that it is there. One that is there with other settings is a Conflict.

    ``unnamed`` are settings that the caller leaves to us: of a topic that exists they may be anything.
    """

    name: str
    rf: int = 3
    partitions: int = 1
    max_deliveries: int = 5
    durability: str = "fsync"
    implicit: bool = False  # a producer asks because it publishes: refused unless auto_create_topics is on
    retention_s: float = 0.0  # this and the next two: as in Topic
    ttl_s: float = 0.0
    backoff: tuple[float, ...] = ()
    unnamed: tuple[str, ...] = ()


class TopicCreated(NamedTuple):
    topic: Topic


class AlterTopic(NamedTuple):
    """Change the settings named here (not None) of a topic; the others stay. ``partitions`` can only rise."""

    name: str
    partitions: int | None = None
    max_deliveries: int | None = None
    durability: str | None = None
    retention_s: float | None = None
    ttl_s: float | None = None
    backoff: tuple[float, ...] | None = None


class TopicAltered(NamedTuple):
    """The settings are these now, at a majority of the nodes."""

    topic: Topic


class DeleteTopic(NamedTuple):
    """DELETE the topic of this id, for good. The name comes along because a new topic may have it by now."""

    name: str
    id: bytes


class TopicDeleted(NamedTuple):
    """A majority of the nodes, and of each partition's replicas, knows: no request for that id succeeds any more."""

    topic: Topic


class Metadata(NamedTuple):
    """Ask for nodes, limits, and topics by name (none named: all)."""

    topics: tuple[str, ...] = ()


class NodeInfo(NamedTuple):
    node: NodeId
    address: str  # "host:port" for clients
    up: bool


class MetadataReply(NamedTuple):
    cluster_id: str
    node: NodeId
    nodes: tuple[NodeInfo, ...]
    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    message_bytes_max: int
    batch_bytes_max: int
    hold_time_max: float


class Publish(NamedTuple):
    """PUBLISH a batch. Safe to repeat, through any node, at any later time (promise G6).

    ``age_ms``: how long ago the producer made the batch, by its monotonic clock; a retry says more.
    """

    batch: Batch
    age_ms: int = 0


class Published(NamedTuple):
    """OK: the batch is durable on a majority."""

    replicas: int  # how many had said STORED when this was written


class Fetch(NamedTuple):
    """FETCH: hold and deliver the oldest available messages.

    ``max_wait`` is how long the node may park the request (it parks no longer than hold_time / 10; the
    client library repeats). ``sent_at`` is the client's own clock, echoed, from which it counts its
    deadline. Partition indexes limit the FETCH to those; none means all.
    """

    topics: tuple[str, ...]
    group: str
    max_messages: int
    max_bytes: int
    min_messages: int
    min_bytes: int
    max_wait: float
    hold_time: float
    sent_at: float
    consumer: str = ""
    partitions: tuple[int, ...] = ()
    start: str = "earliest"  # where the group begins if this FETCH creates it: "earliest" or "latest"


class Delivery(NamedTuple):
    """One receipt's worth of messages: consecutive in the batch, won by one ballot, same attempt number."""

    receipt: Receipt
    attempt: int  # 1 for the first delivery
    sealed: bytes = b""  # the receipt as bytes with its keyed digest; filled in by the node's shell
    letter: Letter | None = None  # of a dead letter, in a dead-letter group


class Slice(NamedTuple):
    """A part of a stored batch: records [first, stop) of it, and the deliveries that cover them."""

    topic: str
    partition: PartitionId
    batch: int  # the replica's number for the batch: the shell reads the bytes by it
    first: int
    stop: int
    header: BatchHeader
    deliveries: tuple[Delivery, ...]


class Fetched(NamedTuple):
    """The answer to a FETCH. Empty when nothing was available within the wait."""

    sent_at: float
    hold_time: float
    slices: tuple[Slice, ...]


class RemoteFetch(NamedTuple):
    """A node that is no replica of ``partitions`` asks one that is to serve this FETCH there (node to node)."""

    round: int
    partitions: tuple[PartitionId, ...]
    request: Fetch


class RemoteFetched(NamedTuple):
    """The answer to a RemoteFetch: what was won, or an error code. Sent like a reply to a client, with bodies."""

    round: int
    code: str
    detail: str
    slices: tuple[Slice, ...]


class RemoteGone(NamedTuple):
    """The RemoteFetch of this round is not wanted any more: give back what it won."""

    round: int


class Named(NamedTuple):
    """Part of a receipt: the messages of ``spans`` within it."""

    receipt: Receipt
    spans: tuple[Span, ...]


class AckRequest(NamedTuple):
    """ACK receipts of any mix; one verdict each."""

    items: tuple[Named, ...]


class Verdict(NamedTuple):
    """``outcome``: "acked", "acked_after_expiry", "acked_unproven", "ok", or an error code.

    One per span asked for, or per part of one where the parts fared differently.
    """

    item: int  # index into the request's items
    span: Span
    outcome: str
    detail: str = ""


class Verdicts(NamedTuple):
    """The answer to ACK, REJECT, EXTEND and REDRIVE. ``sent_at`` echoes an EXTEND's."""

    verdicts: tuple[Verdict, ...]
    sent_at: float = 0.0


class RejectRequest(NamedTuple):
    """REJECT receipts: requeue after ``delay`` seconds, or dead-letter when ``letter`` is given.

    TOPIC_BACKOFF_S as ``delay`` leaves it to the topic's backoff list; 0 is at once.
    """

    items: tuple[Named, ...]
    delay: float = 0.0
    letter: Letter | None = None


class ExtendRequest(NamedTuple):
    """EXTEND receipts by ``hold_time`` seconds from ``sent_at`` (the client's clock, echoed)."""

    items: tuple[Named, ...]
    hold_time: float
    sent_at: float


class LeaveRequest(NamedTuple):
    """LEAVE: these messages were never handed to the application and now never will be. No answer waits."""

    items: tuple[Named, ...]


class Left(NamedTuple):
    """The answer to LEAVE."""


class RedriveRequest(NamedTuple):
    """REDRIVE dead letters: each span as it was listed, with its generation and n."""

    topic: str
    partition: int
    group: str
    entries: tuple[Resolved, ...]  # the DEAD records as listed


class SetGroup(NamedTuple):
    """Create a group, or rewind it: a new generation that begins at ``start``.

    ``start`` is "earliest", "latest" (what is published from now on), or "time": batches published at or after
    ``from_ms`` by their producers' clocks. Without ``rewind``, a group that is there stays as it is.
    """

    topic: str
    group: str
    start: str = "earliest"
    from_ms: int = 0
    rewind: bool = False


class GroupSet(NamedTuple):
    """The answer to SetGroup: the group's register, on a majority of every partition's replica set."""

    group: Group


class PurgeRequest(NamedTuple):
    """PURGE a group's backlog in one partition, or its dead letters where ``group`` ends in "!dead"."""

    topic: str
    partition: int
    group: str


class Purged(NamedTuple):
    """The answer to PURGE: how many messages it settled."""

    messages: int


class PeekAsk(NamedTuple):
    """PEEK a partition of a topic, as the answering replica sees it.

    With ``complete``, as RF - majority + 1 replicas see it together: everything that a majority has is there, in
    the order of message ids; ``after`` is the ``upto`` of the page before.
    """

    topic: str
    partition: int
    group: str
    which: str
    cursor: tuple[int, int]
    limit: int
    bodies: bool = False
    complete: bool = False
    after: Span | None = None


class PeekPage(NamedTuple):
    partition: PartitionId
    items: tuple[Peeked, ...]
    cursor: tuple[int, int] | None
    slices: tuple[Slice, ...] = ()
    upto: Span | None = None  # of a complete PEEK: where to go on; None at the end


class DeclareSurvivors(NamedTuple):
    """Declare that these nodes, those that can vouch, are all that is left; with none, ask which they are."""

    survivors: tuple[NodeId, ...] = ()


class Learner(NamedTuple):
    """A node that cannot vouch for its directory, and why."""

    node: NodeId
    why: str


class SurvivorsDeclared(NamedTuple):
    """The answer to DeclareSurvivors: who is left, and who learns from them."""

    survivors: tuple[NodeId, ...]
    learners: tuple[Learner, ...]


class StatusAsk(NamedTuple):
    """What this node knows of itself and its peers."""


class StatusReply(NamedTuple):
    """A mapping of plain values, for people and scripts: see docs/operations.md."""

    facts: dict[str, object]


class Failed(NamedTuple):
    """Any request may be answered with an error of core/errors.py instead."""

    code: str
    detail: str
    needed: int = 0
    answered: int = 0


# ---------------------------------------------------------------------------------------------

PeerMessage = Union[
    Store, Stored, Hold, HoldReply, Release, Released, Extend, Extended, Ack, Tombed, Reject, Rejected,
    Merge, Merged, PutTopic, PutGroup, Put, Prepare, Accept, Voted, PeekRequest, PeekReply, Survey, Surveyed,
    Heartbeat, SyncOffer, SyncState, SyncPull, SyncTopics, GroupsAsk, GroupsTold,
    RegistersAsk, RegistersTold, CloseAsk, CloseTold,
    RemoteFetch, RemoteFetched, RemoteGone,
    HoldsAsk, HoldsTold, ResyncAsk, ResyncTold, SurvivorsAsk, SurvivorsTold,
]  # fmt: skip


class Envelope(NamedTuple):
    """A peer message on its way: from and to which incarnation, and the sender's clock (a stamp's time)."""

    sender: NodeId
    incarnation: Incarnation
    to: NodeId
    to_incarnation: Incarnation
    stamp: int
    message: PeerMessage


ClientRequest = Union[
    Hello, OpenSession, CloseSession, CreateTopic, AlterTopic, DeleteTopic, Metadata, Publish, Fetch, AckRequest,
    RejectRequest, ExtendRequest, LeaveRequest, RedriveRequest, SetGroup, PurgeRequest, PeekAsk, DeclareSurvivors,
    StatusAsk,
]  # fmt: skip

ClientReply = Union[
    Welcome, SessionOpened, SessionClosed, TopicCreated, TopicAltered, TopicDeleted, MetadataReply, Published, Fetched,
    Verdicts, Left, GroupSet, Purged, PeekPage, SurvivorsDeclared, StatusReply, Failed,
]  # fmt: skip

"""The nouns of the protocol, as values.

Everything here is an immutable value that compares, hashes and sorts, because the same values
go over the wire, into the journal, into the simulator's traces and into the explorer's state
keys. A NamedTuple gives all of that and encodes as a positional array. docs/protocol.md,
section 1 ("Words"), is the dictionary; the names here are its names.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from enum import IntEnum
from operator import attrgetter
from typing import Final, NamedTuple

from quorumq.core.values.limits import NUMBERS_END

NodeId = str
"""The configured name of a node, 1 to 32 characters of ``a-z 0-9 -``."""

Machines = tuple[tuple[NodeId, str], ...]
"""The machine of each node, if several nodes share one; else empty."""


NODES_MAX = 64
"""Nodes in a cluster at one time."""

MEMBERS_MAX = 256
"""Nodes that a cluster ever had: each keeps its number for good."""


class Incarnation(NamedTuple):
    """One start of one node: ``n`` counts starts, ``nonce`` is 64 random bits minted at this start."""

    n: int
    nonce: int


class ProducerId(NamedTuple):
    """A source of message numbers: the ``k``-th producer session granted by one incarnation of a node."""

    node: NodeId
    n: int
    nonce: int
    k: int

    def __str__(self) -> str:
        return f"{self.node}.{self.n}.{self.nonce & 0xFFFF:04x}.{self.k}"


DERIVED = "~derived"
"""The node of producer ids that clients derive from the ids of other messages: no node can have this id. They belong to
no session, so nothing says that such a producer id is finished: an input may be delivered again at any later time."""


NAMED = "~named"
"""The node of producer ids for messages that publishers name: ``n`` is the window in seconds, 0 for the topic's life,
``nonce`` a part of the name's hash, and ``k`` the number of the window."""


class Span(NamedTuple):
    """The messages ``producer_id[start, stop)`` of one partition. Never empty if stored or sent."""

    producer_id: ProducerId
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.producer_id}[{self.start},{self.stop})"


def just_before(producer_id: ProducerId, seq: int) -> Span | None:
    """Return a place in the order of ids just before a message, with nothing or little between; None for the beginning.

    It is a span that is not empty, as those on the wire are: a message after its end is after the place.
    """
    if seq:
        return Span(producer_id, 0, seq)
    if producer_id.k:
        return Span(producer_id._replace(k=producer_id.k - 1), 0, NUMBERS_END)
    return (
        Span(producer_id._replace(nonce=producer_id.nonce - 1), 0, NUMBERS_END) if producer_id.nonce else None
    )


class PartitionId(NamedTuple):
    """One partition of one topic. ``topic`` is the 16-byte topic id, not the name."""

    topic: bytes
    number: int

    def __str__(self) -> str:
        return f"{self.topic.hex()[:8]}/{self.number}"


class Stamp(NamedTuple):
    """A hybrid logical clock value: 58 bits of time (milliseconds << 16 | counter), then the node id.

    Stamps order ballots and settings. They are never compared with a time of day
    (docs/protocol.md, "stamp, ballot").
    """

    time: int
    node: NodeId

    def __str__(self) -> str:
        return f"{self.time}@{self.node}"


STAMP_ZERO = Stamp(0, "")


class Owner(NamedTuple):
    """The owner of a hold: one delivery attempt (ballot) of one incarnation of one node."""

    node: NodeId
    incarnation: Incarnation
    ballot: Stamp

    def __str__(self) -> str:
        return f"{self.node}.{self.incarnation.n}#{self.ballot.time}"


class Kind(IntEnum):
    """A record's statement, in the order in which equal (generation, n) merge. ACKED beats all of them."""

    OPEN = 0
    SKIPPED = 1  # the group's backlog was purged, or the message expired and its topic drops such
    DEAD = 2  # a dead letter
    PURGED = 3  # a dead letter that was purged, or acked in the dead-letter queue
    ACKED = 4


class Death(NamedTuple):
    """The history that a DEAD record carries. One death may serve a whole span.

    Times of day are in milliseconds since 1970; ``ballot`` is that of the hold under which it was written.
    """

    ballot: Stamp
    reason: str  # "rejected" | "max-deliveries" | "expired"
    error_class: str = ""
    message: str = ""
    stack: str = ""
    fingerprint: str = ""
    attempts: int = 0
    published_ms: int = 0
    first_delivered_ms: int = 0
    last_delivered_ms: int = 0
    died_ms: int = 0
    consumer: str = ""
    consumer_version: str = ""
    host: str = ""
    node: NodeId = ""
    redrives: int = 0
    interruptions: int = 0  # deliveries beside the attempts that clean stops of their consumers ended

    @property
    def text_bytes(self) -> int:
        """Return the size of all texts, as UTF-8."""
        return sum([len(value.encode()) for value in self if isinstance(value, str)])


class Record(NamedTuple):
    """The one value of (group, message): the outcome of the message for that group.

    ``n`` counts redrives. An ACKED record always has ``n == 0``: nothing depends on the redrive that
    was acked, and runs of ACKED messages then collapse into one span.
    """

    generation: int
    n: int
    kind: Kind
    death: Death | None = None


OPEN_ZERO = Record(0, 0, Kind.OPEN)


def record_rank(record: Record) -> tuple[int, bool, int, int]:
    """Return the order in which records merge (docs/protocol.md, "record, hold key"): larger wins."""
    return (record.generation, record.kind == Kind.ACKED, record.n, int(record.kind))


def merge_records(ours: Record, theirs: Record) -> Record:
    """Return the larger of two records; of two equal DEADs the one with the lower ballot's history.

    Of one ballot the longer history stays: a full node has cut the other one.
    """
    mine, other = record_rank(ours), record_rank(theirs)
    if mine != other:
        return ours if mine > other else theirs
    if ours.death is not None and theirs.death is not None:
        return min(
            (ours, theirs),
            key=lambda it: (it.death.ballot, -it.death.text_bytes, it.death),  # type: ignore[union-attr]
        )
    return ours if ours.death is not None else theirs


class Receipt(NamedTuple):
    """A delivery's name for the client, which can use it later through any node."""

    partition: PartitionId
    group: str
    generation: int
    n: int
    span: Span
    owner: Owner


FIRST_LAYOUT: Final = 1
"""Number of the layout that a topic is created with, and epoch of a partition that was never moved."""


class ReplicaSlot(NamedTuple):
    """A place in a replica set: the node that has it, and the number of the layout since which it has it."""

    node: NodeId
    since: int


class Placement(NamedTuple):
    """The replica set of a partition that was moved.

    ``epoch``: number of the layout in which a slot last changed. ``before``: the set before that layout, until every
    slot is trusted and lacks nothing; then (). ``sources``: nodes that left, and keep their payload until then.
    ``learners``: nodes that copy the payload, and get slots together once each has it (RAISE).
    """

    partition: int
    epoch: int
    slots: tuple[ReplicaSlot, ...]
    before: tuple[ReplicaSlot, ...] = ()
    sources: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Return the nodes of the set, in the order of its slots."""
        return tuple([slot.node for slot in self.slots])

    @property
    def nodes_before(self) -> tuple[NodeId, ...]:
        """Return the nodes of the set before; () once the move is over."""
        return tuple([slot.node for slot in self.before])

    def since_of(self, node: NodeId) -> int:
        """Return the number of the layout since which ``node`` has its slot; 0 if it has none."""
        return next((slot.since for slot in self.slots if slot.node == node), 0)


partition_of = attrgetter("partition")


class Layout(NamedTuple):
    """The replica sets of all partitions of a topic that were ever moved: one value, which is chosen (CHOOSE).

    ``made``: stamp of the proposal. ``rf``: the number of slots that each partition is to get (RAISE); 0: as created.
    """

    topic: bytes
    number: int
    made: Stamp
    placements: tuple[Placement, ...]  # by partition
    rf: int = 0

    def placement(self, partition: int) -> Placement | None:
        """Return the placement of a partition; None if it was never moved."""
        at = bisect_left(self.placements, partition, key=partition_of)
        each = self.placements[at] if at < len(self.placements) else None
        return each if each is not None and each.partition == partition else None


class Label(NamedTuple):
    """One label of a topic: a text that belongs to its last writer; None if that one removed it."""

    name: str
    text: str | None
    stamp: Stamp


class Topic(NamedTuple):
    """One topic's register, spread to every node. Replica sets are chosen at creation, and then by layouts.

    ``backoff`` is in seconds per attempt, for a REJECT that names no delay; its last entry repeats. Without
    ``auto_create_groups`` a FETCH for a group that was never created makes none. ``stamps`` are
    those of the settings (core/cluster/topics.py): each goes to its last writer; () says that ``stamp`` is that of
    all. ``deletions`` counts how often the name had been deleted before: a topic with more has taken the place of the
    others. ``made`` names the creation that this topic is of; it, ``born`` and ``digest_key`` never change.
    ``proposed`` counts all partitions whose addition has begun, if these are more than ``replicas`` has: until
    one is confirmed, it is only counted. A deleted topic, whose ``replicas`` are gone, keeps that count.
    """

    id: bytes
    name: str
    rf: int
    replicas: tuple[tuple[NodeId, ...], ...]  # one tuple of nodes per partition
    max_deliveries: int
    stamp: Stamp  # the highest of those of the settings
    deleted: bool = False
    retention_s: float = 0.0  # seconds that payload is kept after the last group's tombstone
    ttl_s: float = 0.0  # seconds after which a message without an ACK expires; 0 = never
    backoff: tuple[float, ...] = ()
    born: int = 0  # partitions at creation, which derived messages are spread over
    stamps: tuple[Stamp, ...] = ()
    deletions: int = 0
    made: Stamp = STAMP_ZERO  # stamp of the proposal that was chosen
    proposed: int = 0
    auto_create_groups: bool = True
    on_expiry: str = "dead-letter"  # outcome of a message that expires; or "drop"
    digest_key: bytes = b""  # key of the digests that replicas compare; no client gets it
    layout: Layout | None = None  # adopted; ``replicas`` has its sets. None: no partition was ever moved
    next_layout: Layout | None = None  # chosen, and not yet at a majority of the nodes: no node may adopt it
    over: Machines = ()  # nodes, with their machines, that sets are drawn from; empty: those of the first list
    buried: bool = False  # its deletion is at a majority of every set: the register names no sets any more
    labels: tuple[
        Label, ...
    ] = ()  # by name, removed ones included; clients get them by a request of their own

    @property
    def partitions(self) -> int:
        return len(self.replicas)

    @property
    def all_partitions(self) -> int:
        """Return how many partitions it has, or may yet have, or had."""
        return max(len(self.replicas), self.proposed)

    @property
    def target_rf(self) -> int:
        """Return the number of slots that each partition has, or is to get; ``rf`` is that of the creation."""
        return self.layout.rf or self.rf if self.layout is not None else self.rf

    @property
    def layout_number(self) -> int:
        """Return the number of the adopted layout."""
        return FIRST_LAYOUT if self.layout is None else self.layout.number

    @property
    def layout_known(self) -> int:
        """Return the highest number of a layout that is known to be chosen, adopted or not."""
        return self.layout_number if self.next_layout is None else self.next_layout.number

    def placement(self, partition: int) -> Placement | None:
        """Return where a partition was moved to; None if it was never moved."""
        return None if self.layout is None else self.layout.placement(partition)

    def learners_of(self, partition: int) -> tuple[NodeId, ...]:
        """Return the nodes that copy the payload of a partition, and get slots of it later."""
        placement = self.placement(partition)
        return () if placement is None else placement.learners

    def epoch_of(self, partition: int) -> int:
        """Return the number of the layout in which the slots of a partition last changed."""
        placement = self.placement(partition)
        return FIRST_LAYOUT if placement is None else placement.epoch


class Latest(IntEnum):
    """A group's beginning with what is published from now on: not wanted, under way, or done."""

    NO = 0
    SKIPPING = 1  # no client reads it yet: present messages are being skipped
    BEGUN = 2


class Pause(NamedTuple):
    """The last pause or resumption of a group, between two of its deletions (``buried``). The highest one stands."""

    buried: int = 0
    stamp: Stamp = STAMP_ZERO
    on: bool = False


NOT_PAUSED = Pause()


class Limit(NamedTuple):
    """The last limit of deliveries of a group, between two of its deletions (``buried``). The highest one stands.

    ``per_second`` messages are delivered each second, and up to ``burst`` at once; 0 and 0 for no limit.
    """

    buried: int = 0
    stamp: Stamp = STAMP_ZERO
    per_second: float = 0.0
    burst: int = 0


NOT_LIMITED = Limit()


class Group(NamedTuple):
    """One group's register: a value that was decided, change by change (docs/protocol.md, "group, generation").

    ``generation`` counts the changes: 0 is the first register, and each rewind, deletion, and creation after a deletion
    is the next one. ``from_ms``: it reads batches published at or after this time of day, by their producers' clocks;
    0 is all. ``buried`` is the generation of the last deletion; records from before that are void. ``made`` names
    the proposal that was chosen; zero stands for the register that all nodes propose alike.
    """

    topic: bytes
    name: str
    generation: int
    from_ms: int = 0
    buried: int = 0
    latest: Latest = Latest.NO
    made: Stamp = STAMP_ZERO
    pause: Pause = NOT_PAUSED  # no part of what is decided: it goes to its last writer
    limit: Limit = NOT_LIMITED  # nor is this

    @property
    def paused(self) -> bool:
        """Return True if no client gets messages of the group until it is resumed."""
        return self.pause.on and self.pause.buried == self.buried

    @property
    def limited(self) -> Limit | None:
        """Return the limit of deliveries that stands; None if there is none."""
        return self.limit if self.limit.per_second and self.limit.buried == self.buried else None

    @property
    def deleted(self) -> bool:
        """Return True if the last change was a deletion."""
        return 0 < self.generation == self.buried


def merge_groups(ours: Group, theirs: Group) -> Group:
    """Merge two registers of one group: the later change stands.

    Two of one generation are one value, and one may have begun. They differ only if a majority of the
    directories was lost and the generation was decided again; the later proposal stands then. Pauses and limits
    merge apart, and a deletion ends them.
    """
    stands = max(ours, theirs, key=lambda group: (group.generation, group.made, group.latest))
    if stands.deleted:  # the form that is packed: two forms of one register would go to and fro without end
        return Group(stands.topic, stands.name, stands.generation, buried=stands.buried, made=stands.made)
    pause, limit = max(ours.pause, theirs.pause), max(ours.limit, theirs.limit)
    same = stands.pause == pause and stands.limit == limit
    return stands if same else stands._replace(pause=pause, limit=limit)


class MemberState(IntEnum):
    """Part of a node in the cluster."""

    JOINED = 0
    DRAINING = 1  # it is to leave: no new partition is placed on it
    REMOVED = 2  # no member any more; its number is never used again


class Member(NamedTuple):
    """One node in a cluster layout. Its place in the list of members is its number, for good."""

    node: NodeId
    address: str = ""  # "host:port" for clients; empty: as each node's configuration says
    peer_address: str = ""  # for the other nodes, if that differs
    machine: str = ""
    state: MemberState = MemberState.JOINED


class ClusterLayout(NamedTuple):
    """Members of the cluster, as one value that wins whole (docs/layouts.md, MEMBERS)."""

    number: int
    made: Stamp  # stamp of the proposal that was chosen
    members: tuple[Member, ...]
    voters: int  # number of the first members, with which the cluster was made
    slots: tuple[ReplicaSlot, ...] = ()  # the voters, if they are not all of the first members
    before: tuple[ReplicaSlot, ...] = ()  # the voters before layout ``epoch``, in which a slot last changed
    epoch: int = 0


class Instance(NamedTuple):
    """One thing to decide: a topic's first register, the next change of a group, the next layout of a topic or cluster.

    ``topic`` is the id of the group's topic, or of the layout's, whose ``name`` is empty; empty if ``name`` is a
    topic's. Both are empty for a layout of the cluster. ``number``: how often that name had been deleted before; of a
    group, the generation.
    """

    topic: bytes
    name: str
    number: int


class Decision(NamedTuple):
    """One node's promise and acceptance in one instance, until it knows what was chosen.

    ``promised``: no proposal with a lower ballot is accepted. One of the values was proposed, and
    accepted here under ``ballot``; it may never be chosen, and no node serves it.
    """

    instance: Instance
    promised: Stamp = STAMP_ZERO
    ballot: Stamp = STAMP_ZERO
    topic: Topic | None = None
    group: Group | None = None
    layout: Layout | None = None
    cluster: ClusterLayout | None = None

    @property
    def value(self) -> Value | None:
        return self.topic or self.group or self.layout or self.cluster


Value = Topic | Group | Layout | ClusterLayout
"""Values that an instance may choose."""


def instance_of(value: Value) -> Instance:
    """Return the instance in which a value was, or may be, chosen."""
    if isinstance(value, Topic):
        return Instance(b"", value.name, value.deletions)
    if isinstance(value, Layout):
        return Instance(value.topic, "", value.number)
    if isinstance(value, ClusterLayout):
        return Instance(b"", "", value.number)
    return Instance(value.topic, value.name, value.generation)


class BatchHeader(NamedTuple):
    """A node's knowledge of a batch; the bytes of the records are in the body.

    ``offsets`` are the ends of the records in the body (the first begins at 0) and ``crcs`` their
    CRC-32C, both packed as little-endian u32; sections share one numbering of the records in order.
    ``delay_ms`` and ``ttl_ms`` are of all its records.
    """

    partition: PartitionId
    spans: tuple[Span, ...]
    published_ms: int  # by the producer's clock
    offsets: bytes
    crcs: bytes
    crc: int  # CRC-32C of the whole body
    delay_ms: int = 0  # ms before which it is not delivered, counted from when the producer made the batch
    ttl_ms: int = 0  # ms after which it expires, counted from the same time; 0: after the topic's `ttl_s`

    @property
    def size(self) -> int:
        return len(self.offsets) // 4

    def end_of(self, index: int) -> int:
        """Return the end of record ``index`` in the body; 0 for index -1."""
        if index < 0:
            return 0
        return int.from_bytes(self.offsets[4 * index : 4 * index + 4], "little")

    def crc_of(self, index: int) -> int:
        """Return the CRC-32C of record ``index``."""
        return int.from_bytes(self.crcs[4 * index : 4 * index + 4], "little")

    def key(self) -> str:
        return f"{self.partition} {', '.join(map(str, self.spans))}"


class Batch(NamedTuple):
    """A batch as published, stored and sent: header and body bytes are encoded once, by the producer.

    ``raw`` is the encoded header, kept so that it is not encoded again.
    """

    header: BatchHeader
    raw: bytes
    body: bytes | memoryview


class Now(NamedTuple):
    """One reading of both clocks, taken once per event.

    ``mono`` is in seconds and counts suspended time if the system has such a clock; every hold,
    deadline and timeout uses it. ``wall_ms`` is the time of day in milliseconds: it serves order
    (stamps), delays and histories, and decides nothing.
    """

    mono: float
    wall_ms: int


def topic_id(name: str, rf: int, times_deleted: int = 0) -> bytes:
    """Return the 128-bit id of a topic, so that two creations at once make one topic."""
    text = f"quorumq topic\0{name}\0{rf}\0{times_deleted}".encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def made_ms(stamp: Stamp) -> int:
    """Return when a stamp was made, in milliseconds since 1970 by the clock of stamps: for people, decides nothing."""
    return stamp.time >> 16

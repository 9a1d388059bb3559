"""Quorum requests between nodes, and their replies.

A request carries a round number. A reply counts once per replica and only for its round, and says which incarnations
its sender knows, so that the coordinator can leave out a reply of an incarnation that anyone in the round knows to be
superseded (docs/protocol.md, section 3).

The names of docs/protocol.md, and the classes here: a vote on HOLD is OK (`Granted`), NOK (`Refused`), NOT_DUE
(`NotDue`) or TOMB (`SpanRecord`), all in one `HoldReply`; STORED is `StoreReply`, TOMBED is `AckReply`, and so on.
`Replica` (core/partition/replica.py) has one handler for each request, as `on_hold` for HOLD; a rule of
core/partition/fate.py decides about each message.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from quorumq.core.values.types import (
    FIRST_LAYOUT,
    Batch,
    ClusterLayout,
    Death,
    Decision,
    Group,
    Incarnation,
    Instance,
    Layout,
    Owner,
    PartitionId,
    Record,
    Span,
    Stamp,
    Topic,
    Value,
    instance_of,
)


class Part(NamedTuple):
    """One batch of a STORE. ``epoch``: of its partition's replica set; ``age_ms``: as in `Store`."""

    epoch: int
    batch: Batch
    age_ms: int = 0


class Store(NamedTuple):
    """STORE: keep this batch on disk. ``age_ms``: how long ago its producer made it, as far as is known.

    In anti-entropy (round 0) it is the age by the sender's clock, -1 if the sender does not know it.
    ``more``: batches stored together with it, of partitions with the same replicas. Each is kept, or refused, by
    itself. ``hold``: a HOLD that is piggybacked on it, for messages of its one batch.
    """

    round: int
    epoch: int
    batch: Batch
    age_ms: int = 0
    more: tuple[Part, ...] = ()
    hold: Hold | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return all of its batches."""
        return (Part(self.epoch, self.batch, self.age_ms), *self.more)


class Problem(NamedTuple):
    """Reason why part number ``part`` of a STORE was refused: an error code of core/values/errors.py, and words."""

    part: int
    error: str
    detail: str


class Starts(NamedTuple):
    """The newest starts of a replica set's nodes that the sender knows, in the order of the set.

    ``nodes``: 32 bits of a hash of their names. Why: under another layout a slot has another node, and a start of that
    one says nothing of this one.
    """

    nodes: int
    newest: tuple[Incarnation, ...]


NO_STARTS: Final = Starts(0, ())


class StoreReply(NamedTuple):
    """STORED: acknowledges all batches of the STORE except those in ``problems``.

    ``position``: count of durable records in the sender's directory, those of this answer among them; 0 if
    it promises none, or does not count. ``votes``: on the HOLD that was piggybacked on the STORE.
    """

    round: int
    problems: tuple[Problem, ...]
    known: Starts
    position: int = 0
    votes: HoldReply | None = None


class Want(NamedTuple):
    """Messages that a HOLD asks for, all at redrive number ``n``.

    ``ended``: count of their attempts that have ended, as far as the sender knows; ``expiries``: those by expiry;
    ``last_expired``: the last one, too. ``interruptions``: count of deliveries beside them that were interrupted.
    """

    span: Span
    n: int
    ended: int = 0
    last_expired: bool = False
    expiries: int = 0
    interruptions: int = 0


class Released(NamedTuple):
    """Holds that an owner no longer has: the content of RELEASE and LEAVE."""

    partition: PartitionId
    group: str
    owner: Owner
    spans: tuple[Span, ...]


class Hold(NamedTuple):
    """HOLD: grant these messages to their owner (sender, incarnation, ``ballot``) for ``hold_time`` seconds.

    ``released``: earlier RELEASEs that this replica has not confirmed, to be applied before the HOLD. ``parked`` says
    whether the sender has another FETCH parked for the group: a hint, as in a Heartbeat.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    generation: int
    ballot: Stamp
    hold_time: float
    wants: tuple[Want, ...]
    released: tuple[Released, ...] = ()
    parked: bool = False


class Granted(NamedTuple):
    """An OK. ``attempts``: attempts that ended before. ``exhausted`` and ``expired`` count only if the message is
    won.

    ``unseen``: the replica has no batch with these messages, so it cannot say if they are due. ``expiries``: count of
    attempts that ended by expiry; ``last_expired``: the last one, too. ``interruptions``: count of deliveries
    beside them that were interrupted.
    """

    span: Span
    attempts: int
    exhausted: bool
    expired: bool
    unseen: bool = False
    last_expired: bool = False
    expiries: int = 0
    interruptions: int = 0


class SpanRecord(NamedTuple):
    """A TOMB: the replica's record differs from the one that the HOLD requires."""

    span: Span
    record: Record


class NotDue(NamedTuple):
    """NOT_DUE: the group's delay (generation, n, ballot) has ``remaining`` seconds left.

    The ballot STAMP_ZERO stands for the batch's own delay, by the answering node's clock. ``claimed``: the delivery
    under that ballot has claimed the message; ``ended`` attempts, ``expiries`` of them by expiry, had ended before it.
    """

    span: Span
    n: int
    ballot: Stamp
    remaining: float
    generation: int = 0
    claimed: bool = False
    ended: int = 0
    expiries: int = 0


class Refused(NamedTuple):
    """A NOK. ``highest`` is the highest ballot granted (or the minimum ballot); ``remaining`` > 0 seconds if held."""

    span: Span
    highest: Stamp
    remaining: float


class HoldReply(NamedTuple):
    """The votes on a HOLD.

    ``abstained``: no vote on any message: the replica is in quarantine or not trusted, the ballot is above its durable
    reserve, the group is paused, or there is an ``error``. The count of the round takes it as a vote against, as a NOK.
    ``tokens``: count of tokens that a limited group had here. If they do not suffice, no OK counts.
    Partition and group are included, so that a reply to a finished round still serves read repair.
    """

    round: int
    partition: PartitionId
    group: str
    abstained: bool
    granted: tuple[Granted, ...]
    tombs: tuple[SpanRecord, ...]
    not_due: tuple[NotDue, ...]
    refused: tuple[Refused, ...]
    # "", "unknown-topic", "not-found" (deleted), "wrong-epoch" or "stale-generation"; or the error of a refused STORE
    # that the HOLD was piggybacked on. Nothing was looked at.
    error: str
    known: Starts
    tokens: float | None = None


class Release(NamedTuple):
    """RELEASE (a lost round) or LEAVE (certainly no client works on it): remove if the owner matches exactly."""

    released: tuple[Released, ...]


class ReleaseReply(NamedTuple):
    """Confirms a RELEASE, so that it need not be repeated in front of the next HOLD."""

    released: tuple[Released, ...]


class Owned(NamedTuple):
    """Messages, and their possible holder: the owner of the receipt that names them, and its redrive number."""

    span: Span
    owner: Owner
    n: int = 0


class Extend(NamedTuple):
    """EXTEND: a new ``hold_time`` (seconds, from now) if exactly the owner holds now, or has claimed the messages.

    One above the cluster's ``hold_time_max`` claims them, durably.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    entries: tuple[Owned, ...]
    hold_time: float


class ExtendReply(NamedTuple):
    """The votes on an EXTEND; messages in neither list were not looked at (abstained)."""

    round: int
    granted: tuple[Owned, ...]
    refused: tuple[Owned, ...]
    error: str
    known: Starts


class Ack(NamedTuple):
    """ACK: write ACKED for these messages of this group generation."""

    round: int
    partition: PartitionId
    epoch: int
    group: str
    generation: int
    entries: tuple[Owned, ...]


class AckReply(NamedTuple):
    """TOMBED: ACKED is durable here for every entry.

    ``exclusive``: the highest ballot that this replica granted for the message is not above the receipt's, or its
    minimum ballot is below it, if it remembers no grant. ``higher``: it granted a higher one. ``settled``: in a
    dead-letter group, if the record was higher than PURGED at that n, and so stands. ``position``: as in STORED.
    """

    round: int
    exclusive: tuple[Owned, ...]
    higher: tuple[Owned, ...]
    error: str  # "", "unknown-topic", "not-found" (deleted), "wrong-epoch" or "stale-generation"
    known: Starts
    settled: tuple[SpanRecord, ...] = ()
    position: int = 0


class Reject(NamedTuple):
    """REJECT: if exactly the owner holds, requeue after ``delay`` seconds, or write DEAD with ``death``.

    TOPIC_BACKOFF_S as ``delay``: each replica takes the step of the topic's backoff for its count of attempts. In what
    is written, the death has the ballot and the redrive number of the message's own entry. ``interrupted``: a clean
    stop of the consumer ended the deliveries. ``drop``: write SKIPPED, as the messages expired and their topic says so.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    generation: int
    entries: tuple[Owned, ...]
    delay: float
    death: Death | None
    interrupted: bool = False
    drop: bool = False


class RejectReply(NamedTuple):
    """The votes on a REJECT, durable here; ``settled`` has the records that stood instead."""

    round: int
    applied: tuple[Owned, ...]
    refused: tuple[Owned, ...]
    settled: tuple[SpanRecord, ...]
    error: str
    known: Starts


class Merge(NamedTuple):
    """Merge these records (REDRIVE, PURGE, read repair). Answered once durable.

    ``redrive``: only if the message is a dead letter, at one n less than the record's; else it is `not_dead`.
    ``alike``: more messages, to which the last entry's record applies, too.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    entries: tuple[SpanRecord, ...]
    redrive: bool = False
    alike: tuple[Span, ...] = ()


class MergeReply(NamedTuple):
    """``exact``: our record is now the one asked for. ``higher``: it is this one instead. ``not_dead``: of these we
    have not heard that they are dead letters, and nothing was written. ``whole``: all of it is exact, and not named.
    """

    round: int
    exact: tuple[Span, ...]
    higher: tuple[SpanRecord, ...]
    error: str
    known: Starts
    not_dead: tuple[Span, ...] = ()
    whole: bool = False


class PutTopic(NamedTuple):
    """Merge a topic's register, and those of some of its groups, deleted ones packed. Answered once durable."""

    round: int
    topic: Topic
    groups: tuple[Group, ...] = ()
    packed: bytes = b""


class PutGroup(NamedTuple):
    """Merge a group's register. Answered once durable, with the merged one if it is higher.

    ``partitions``: number of partitions that the sender knows, proposed ones included. ``layout``: the highest number
    of a layout of the topic that the sender knows to be chosen. A node that knows more replies with its register.
    """

    round: int
    group: Group
    partitions: int = 0
    layout: int = FIRST_LAYOUT


class PutReply(NamedTuple):
    """Answers PutTopic, PutGroup and PutCluster; it has the merged register if that is higher than the one asked.

    ``refused`` is "", or "deleted" with the register that has taken the topic's place; of a PutGroup also
    "not-trusted" or "unknown-topic": it was not taken in. Of a PutCluster it is "conflict" if a drained node may get
    a partition yet, as ``detail`` says. The answer to a PutGroup has ``topic``, too, if it
    has more partitions, or a later layout, than the sender knew of. ``promised``: a change of the settings may be under
    way under this stamp, which is above those that were written.
    """

    round: int
    refused: str
    detail: str
    topic: Topic | None
    group: Group | None
    known: tuple[Incarnation, ...] = ()  # starts of the members, by number
    epoch: int = 0  # epoch of the voters in which the answer counts; -1: none
    promised: Stamp | None = None


class Prepare(NamedTuple):
    """PREPARE: promise, durably, to accept no proposal in this instance that has a lower ballot.

    ``base``: of a group, the register that the change is made to, which was chosen. ``implicit``: a FETCH asks for the
    group, which a topic may forbid.
    """

    round: int
    instance: Instance
    ballot: Stamp
    base: Group | None = None
    implicit: bool = False


class Accept(NamedTuple):
    """ACCEPT: accept this value, durably, unless a higher ballot was promised: one of the four.

    ``stands``: it may have been chosen, and too few acceptors can be reached to say that it was not.
    """

    round: int
    ballot: Stamp
    topic: Topic | None = None
    group: Group | None = None
    implicit: bool = False
    layout: Layout | None = None
    cluster: ClusterLayout | None = None
    stands: bool = False

    @property
    def value(self) -> Value:
        """Return the value that it proposes."""
        value = self.topic or self.group or self.layout or self.cluster
        assert value is not None, "the reader of a frame refuses one without"
        return value

    @property
    def instance(self) -> Instance:
        """Return the instance that it is about."""
        return instance_of(self.value)


class ProposalReply(NamedTuple):
    """Answers Prepare and Accept: the sender's promise and acceptance by now, or the chosen register if it knows it.

    ``topic`` or ``group`` is a register that was chosen in this instance or a later one, deleted or not; ``cluster`` is
    a layout of the cluster. Asked about a group, ``topic`` says that the topic was deleted, or makes no groups for a
    FETCH. ``error`` is "", "unknown-topic", "not-trusted" or "conflict": no vote.
    """

    round: int
    decision: Decision | None
    topic: Topic | None
    group: Group | None
    known: tuple[Incarnation, ...]  # starts of the members, by number
    error: str = ""
    cluster: ClusterLayout | None = None
    epoch: int = 0  # epoch of the voters in which the answer counts; -1: none


class Peeked(NamedTuple):
    """Some messages as one replica shows them.

    ``may_cover``: the present generation, if the record is of an older one and the replica does not know which counts:
    it has no payload, so no time of publication. Else 0.
    """

    span: Span
    state: str
    record: Record
    attempts: int
    remaining: float  # seconds of hold or delay left; 0.0 otherwise
    owner: Owner | None
    interruptions: int = 0
    may_cover: int = 0


class StateCount(NamedTuple):
    """Count of messages in one state; of dead letters, of one kind of failure, consumer version and hour of death.

    ``sample`` is one of them, ``message`` the beginning of its error's text, and the times of death are in
    milliseconds since 1970.
    """

    state: str
    messages: int
    sample: Span
    reason: str = ""
    error_class: str = ""
    fingerprint: str = ""
    message: str = ""
    version: str = ""
    first_died_ms: int = 0
    last_died_ms: int = 0


class ReplicaList(NamedTuple):
    """A question: the group's state of every message that this replica knows of. PEEK complete and PURGE ask it.

    Everything is listed, for any request: a message that is ready at one replica may be acked at another. Items
    are in the order of message ids, from the end of ``after`` on. ``reclaimed``: list what was reclaimed, too,
    and of all only what ``generation`` has settled of it. The answer says whether that has begun. ``named``: say only,
    in ``open``, which of these are known. ``requested``: list what was reclaimed and the group would read, in state
    ``reclaimed``, because another replica may bring it back.
    """

    round: int
    partition: PartitionId
    epoch: int
    group: str
    after: Span | None
    limit: int
    reclaimed: bool = False
    generation: int = 0
    named: tuple[Span, ...] = ()
    requested: bool = False


class ReplicaListReply(NamedTuple):
    """The answer to a ReplicaList: everything up to the end of ``upto`` was looked at, or all there is if it is None.

    ``has_begun``: the sender has a register of the group of that generation that has begun, or of a later one.
    ``open``: if what was reclaimed was asked for, too, all that the generation has not settled; the others are items.
    """

    round: int
    items: tuple[Peeked, ...]
    upto: Span | None
    error: str
    known: Starts
    has_begun: bool = False
    open: tuple[Span, ...] = ()


class CloseRequest(NamedTuple):
    """Promise, durably, to take no more STOREs of these producer ids from clients; with which are you done?

    ``numbers`` are spans of their numbers, as in `SessionsClosed`.
    """

    round: int
    partition: PartitionId
    epoch: int
    numbers: tuple[Span, ...]


class CloseReply(NamedTuple):
    """``done``: promised, and nothing is left of these here but the knowledge of their numbers."""

    round: int
    done: tuple[Span, ...]
    error: str
    known: Starts


class SlotRequest(NamedTuple):
    """A question: is the receiver trusted in the replica set of this partition, as of this epoch?

    ``copied``: and do the partition's learners have its payload?
    """

    round: int
    partition: PartitionId
    epoch: int
    copied: bool = False


class SlotReply(NamedTuple):
    """The answer to a SlotRequest: it is, unless ``error`` says why not."""

    round: int
    error: str
    known: Starts


_NOTHING: Final[dict[type, tuple[type, tuple[object, ...]]]] = {
    Hold: (HoldReply, (True, (), (), (), ())),
    Extend: (ExtendReply, ((), ())),
    Ack: (AckReply, ((), ())),
    Reject: (RejectReply, ((), (), ())),
    Merge: (MergeReply, ((), ())),
    ReplicaList: (ReplicaListReply, ((), None)),
    CloseRequest: (CloseReply, ((),)),
    SlotRequest: (SlotReply, ()),
}


def refusal(message: Any, error: str, known: Starts = NO_STARTS) -> Any:
    """Return the answer to a request about one partition if nothing was done."""
    reply, nothing = _NOTHING[type(message)]
    names = (message.partition, message.group) if reply is HoldReply else ()
    return reply(message.round, *names, *nothing, error, known)

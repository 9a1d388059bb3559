"""Requests of clients to nodes, and the answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumq.core.messages.quorum import Peeked, SpanRecord, StateCount
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    STAMP_ZERO,
    Batch,
    BatchHeader,
    Death,
    Group,
    NodeId,
    PartitionId,
    ProducerId,
    Receipt,
    Span,
    Stamp,
    Topic,
)


class OpenSession(NamedTuple):
    """Ask for a producer id to number messages under."""


class OpenSessionReply(NamedTuple):
    """A session, which is the client's: PUBLISH and CloseSession for it have to bring ``signature``, made by the
    shell."""

    producer_id: ProducerId
    signature: bytes = b""


class CloseSession(NamedTuple):
    """The producer is done with its session: all its batches in these partitions are confirmed, without a later one."""

    producer_id: ProducerId
    partitions: tuple[PartitionId, ...]
    signature: bytes = b""


class NotedReply(NamedTuple):
    """The answer to CloseSession and LEAVE: the node has the request, and passes it on to the replicas."""


class CreateTopic(NamedTuple):
    """Create a topic, or say that it is there. One that is there with other settings is a Conflict.

    ``unnamed`` are settings that the caller leaves to us: of a topic that exists they may be anything.

    With ``deletions``, how often its client knows the name to have been deleted, it does nothing after a later one.
    """

    name: str
    rf: int = 3
    partitions: int = 1
    max_deliveries: int = 5
    implicit: bool = False  # a producer asks because it publishes: refused unless auto_create_topics is on
    retention_s: float = 0.0  # this and the next two: as in Topic
    ttl_s: float = 0.0
    backoff: tuple[float, ...] = ()
    unnamed: tuple[str, ...] = ()
    auto_create_groups: bool = True
    on_expiry: str = "dead-letter"
    deletions: int | None = None


class TopicSeen(NamedTuple):
    """A topic as a client knows it: its id, the stamp of its settings, and the number of its layout."""

    id: bytes
    stamp: Stamp
    layout: int


class AlterTopic(NamedTuple):
    """Change the settings named here (not None) of a topic; the others stay. ``partitions`` can only rise.

    ``rf`` is named alone: the number of replicas of each partition, which get there afterwards (RAISE).

    With ``seen``, the topic as the client knows it, it is about that one, and undoes no later change of a setting.
    """

    name: str
    partitions: int | None = None
    max_deliveries: int | None = None
    retention_s: float | None = None
    ttl_s: float | None = None
    backoff: tuple[float, ...] | None = None
    auto_create_groups: bool | None = None
    on_expiry: str | None = None
    rf: int | None = None
    seen: TopicSeen | None = None


SETTINGS = ("max_deliveries", "retention_s", "ttl_s", "backoff", "auto_create_groups", "on_expiry")
"""Those of a topic that stamps order, each by its own, as they are called in Topic, CreateTopic and AlterTopic."""


class DeleteTopic(NamedTuple):
    """DELETE the topic of this id, for good. The request has the name, too, because a new topic may have it by now."""

    name: str
    id: bytes


class TopicReply(NamedTuple):
    """The answer to a request that creates, alters, deletes or moves: the topic as a majority of the nodes has it."""

    topic: Topic


class LabelChange(NamedTuple):
    """A label by name. None as ``text`` removes it."""

    name: str
    text: str | None


class LabelsRequest(NamedTuple):
    """Ask for the labels of a topic; and change these first. Labels that are not named stay.

    With ``id`` it is about the topic of this id. With ``seen``, the stamp of an answer, it undoes no later change.
    """

    topic: str
    changes: tuple[LabelChange, ...] = ()
    id: bytes | None = None
    seen: Stamp | None = None


class LabelsReply(NamedTuple):
    """The answer to LabelsRequest: all labels of the topic with this id, as a majority of the nodes has them.

    ``stamp`` is that of the last change.
    """

    topic: bytes
    labels: tuple[LabelChange, ...]
    stamp: Stamp = STAMP_ZERO


class Metadata(NamedTuple):
    """Ask for nodes, limits, and topics by name (none named: all).

    ``groups``: with the groups of these topics; a topic may have a thousand. ``after``: go on behind an answer's
    ``more``.
    """

    topics: tuple[str, ...] = ()
    groups: bool = True
    after: tuple[bytes, int] | None = None


class NodeInfo(NamedTuple):
    node: NodeId
    address: str  # "host:port" for clients
    up: bool
    voter: bool = True  # keeps the registers
    machine: str = ""
    state: int = 0  # `MemberState`
    full: str = ""  # reason why it takes no new messages, with the remedy; empty if it takes them


class MetadataReply(NamedTuple):
    """The answer to METADATA, or a page of it. ``more``: place to go on from, as topic id and number of its groups."""

    cluster_id: str
    node: NodeId
    nodes: tuple[NodeInfo, ...]
    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    hold_time_max: float
    layout: int = 0  # number of the cluster layout with these nodes
    more: tuple[bytes, int] | None = None


class Publish(NamedTuple):
    """PUBLISH a batch. Safe to repeat, through any node, at any later time (promise G6).

    ``age_ms``: how long ago the producer made the batch, by its monotonic clock; a retry says more. ``signature`` is
    that of the session whose producer id the batch has; derived messages have none.
    """

    batch: Batch
    age_ms: int = 0
    signature: bytes = b""


class FindName(NamedTuple):
    """Ask which id a message has that its publisher names, or is to have: its window's number, by the node's clock.

    ``slot`` and ``seq`` are parts of the name's hash, ``window_s`` is how long the name is kept.
    """

    partition: PartitionId
    window_s: int
    slot: int
    seq: int


class FindNameReply(NamedTuple):
    """The producer id to publish under. ``known``: a replica knows of a message of that name."""

    producer_id: ProducerId
    known: bool


class PublishReply(NamedTuple):
    """OK: the batch is durable on a majority."""

    replicas: int  # replicas that had said STORED when this was written


class Fetch(NamedTuple):
    """FETCH: hold and deliver the oldest available messages.

    ``max_wait`` is how long the node may park the request (it parks no longer than hold_time / 10; the
    client library repeats). ``sent_at`` is the client's own clock, echoed, from which it counts its
    deadline. Partition indexes limit the FETCH to those; none means all. ``idle``: the client has nothing in hand for
    this group. Only then may it get suspects, a lot of them with nothing else. ``had_lot``: it had one last, and
    gets first-timers now if there are any. ``spans``: only these messages, of the one partition that is named; such a
    FETCH does not wait.
    """

    topics: tuple[str, ...]
    group: str
    max_messages: int
    max_bytes: int
    min_messages: int
    max_wait: float
    hold_time: float
    sent_at: float
    consumer: str = ""
    partitions: tuple[int, ...] = ()
    start: str = "earliest"  # start of the group if this FETCH creates it: "earliest" or "latest"
    idle: bool = False
    version: str = ""  # version of the consumer, as its program says
    spans: tuple[Span, ...] = ()
    had_lot: bool = False


class Delivery(NamedTuple):
    """One receipt's worth of messages: consecutive in the batch, won by one ballot, same attempt number."""

    receipt: Receipt
    attempt: int  # 1 for the first delivery
    signed: bytes = b""  # the receipt as bytes with its keyed digest; filled in by the node's shell
    death: Death | None = None  # history of a dead letter, in a dead-letter group
    suspect: bool = False  # it may be what ended its consumers: nothing but a lot of such is in the reply
    interruptions: int = 0  # deliveries before it that clean stops ended, and that are no attempts


class Slice(NamedTuple):
    """A part of a stored batch: records [first, stop) of it, and the deliveries that cover them."""

    topic: str
    partition: PartitionId
    batch: int  # the replica's number for the batch: the shell reads the bytes by it
    first: int
    stop: int
    header: BatchHeader
    deliveries: tuple[Delivery, ...]


class FetchReply(NamedTuple):
    """The answer to a FETCH. Empty when nothing was available within the wait.

    ``suspects``: had the client nothing in hand, it would get suspects now, and it is the one that is asked to.
    """

    sent_at: float
    hold_time: float
    slices: tuple[Slice, ...]
    suspects: bool = False


class ReceiptPart(NamedTuple):
    """Part of a receipt: the messages of ``spans`` within it."""

    receipt: Receipt
    spans: tuple[Span, ...]


class AckRequest(NamedTuple):
    """ACK receipts of any mix; one verdict each."""

    items: tuple[ReceiptPart, ...]


class Verdict(NamedTuple):
    """``outcome``: "acked", "acked_after_expiry", "acked_unproven", "ok", or an error code.

    One per span asked for, or per part of one if the parts fared differently.
    """

    item: int  # index into the request's items
    span: Span
    outcome: str
    detail: str = ""


class SettleReply(NamedTuple):
    """The answer to ACK, REJECT, EXTEND and REDRIVE. ``sent_at`` echoes an EXTEND's."""

    verdicts: tuple[Verdict, ...]
    sent_at: float = 0.0


class RejectRequest(NamedTuple):
    """REJECT receipts: requeue after ``delay`` seconds, or dead-letter when ``death`` is given.

    TOPIC_BACKOFF_S as ``delay`` leaves it to the topic's backoff list; 0 is at once. ``interrupted``: not what the
    consumer did with them ended the deliveries, but a clean stop of it.
    """

    items: tuple[ReceiptPart, ...]
    delay: float = 0.0
    death: Death | None = None
    interrupted: bool = False


class ExtendRequest(NamedTuple):
    """EXTEND receipts by ``hold_time`` seconds from ``sent_at`` (the client's clock, echoed)."""

    items: tuple[ReceiptPart, ...]
    hold_time: float
    sent_at: float


class ReleaseRequest(NamedTuple):
    """LEAVE: these messages were never handed to the application and now never will be. No answer waits."""

    items: tuple[ReceiptPart, ...]


class RedriveRequest(NamedTuple):
    """REDRIVE dead letters: each span as it was listed, with its generation and n."""

    topic: str
    partition: int
    group: str
    entries: tuple[SpanRecord, ...]  # the DEAD records as listed


class PurgeRequest(NamedTuple):
    """PURGE a group's backlog in one partition, or its dead letters if ``group`` ends in "!dead".

    ``spans``: only these messages; all if there are none. See SetGroup.
    """

    topic: str
    partition: int
    group: str
    spans: tuple[Span, ...] = ()
    id: bytes | None = None
    generation: int = 0


class PurgeReply(NamedTuple):
    """The answer to PURGE: count of messages that it settled."""

    messages: int


class PeekRequest(NamedTuple):
    """PEEK a partition of a topic, as the answering replica sees it.

    With ``complete``, as RF - majority + 1 replicas see it together: everything that a majority has is there, in
    the order of message ids; ``after`` is the ``upto`` of the page before.

    With ``counted``, the messages are counted and not listed, page by page, as one replica sees them. ``since_ms``
    leaves out what was published before, by the producers' clocks, or, of a count, what a rewind to then would. 0 is
    none. With ``follow`` the cursor of the last page is after the last message, for later ones; the cursor (-1, 0)
    begins there.
    """

    topic: str
    partition: int
    group: str
    which: str  # "ready" | "held" | "delayed" | "acked" | "dead" | "skipped" | "purged" | "open" | "all"
    cursor: tuple[int, int]  # (batch number, record) to go on from, this replica's own; (0, 0) for the start
    limit: int
    bodies: bool = False
    complete: bool = False
    after: Span | None = None
    counted: bool = False
    since_ms: int = 0
    follow: bool = False


class PeekReply(NamedTuple):
    """One page of PEEK; ``cursor`` is None at the end.

    ``slices`` are the messages' bytes, of as many of the first items as fit into `FETCH_BYTES_MAX`.
    """

    partition: PartitionId
    items: tuple[Peeked, ...]
    cursor: tuple[int, int] | None
    slices: tuple[Slice, ...] = ()
    upto: Span | None = None  # place to go on from in a complete PEEK; None at the end
    counts: tuple[StateCount, ...] = ()


class ShowRequest(NamedTuple):
    """A request for one message as the answering node's own replica has it, with ``body`` the message too."""

    partition: PartitionId
    span: Span
    body: bool = False


class ShownGroup(NamedTuple):
    """A message's state for a group at one replica. ``granted`` is the highest ballot that it granted, or zero."""

    group: str
    peeked: Peeked
    granted: Stamp


class ShowReply(NamedTuple):
    """``payload``: True if the node has it. ``published_ms`` is 0 if it has not.

    ``left_out``: count of groups beside these, which are the first by name, of those that the client may see.
    """

    payload: bool
    published_ms: int
    delay_ms: int
    groups: tuple[ShownGroup, ...]
    left_out: int = 0
    slices: tuple[Slice, ...] = ()


class DeclareSurvivors(NamedTuple):
    """Declare that these nodes, those that are trusted, are all that is left; with none, ask which they are."""

    survivors: tuple[NodeId, ...] = ()


class Learner(NamedTuple):
    """A node that is not trusted, and why."""

    node: NodeId
    why: str


class DeclareSurvivorsReply(NamedTuple):
    """The answer to DeclareSurvivors: the nodes that are left, and those that learn from them."""

    survivors: tuple[NodeId, ...]
    learners: tuple[Learner, ...]


class StatusRequest(NamedTuple):
    """A request for this node's view of itself, its peers and its partitions.

    ``begin``: the partition, and the group in it, to go on with, as an answer said; that answer has nothing else.
    """

    begin: tuple[PartitionId, str] | None = None


class StatusReply(NamedTuple):
    """A mapping of plain values, for people and scripts: see docs/operations.md.

    ``more``: place to go on from, if one answer cannot hold all partitions and groups; else None.
    """

    fields: dict[str, Any]
    more: tuple[PartitionId, str] | None = None

    def joined_to(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return ``fields``, from earlier answers, with these partitions; one's groups may be in several answers."""
        known = list(fields["partitions"])
        for row in self.fields["partitions"]:
            row_key = (row["topic"], row["partition"])
            if known and (known[-1]["topic"], known[-1]["partition"]) == row_key:
                row = {**row, "groups": {**known.pop()["groups"], **row["groups"]}}
            known.append(row)
        return {**fields, "partitions": known}


class Failed(NamedTuple):
    """Any request may be answered with an error of core/values/errors.py instead.

    ``delay``: seconds after which a client beyond its quota is to ask again. ``topic`` and ``group``: which name, if it
    is for one that it is not-found. ``number``: of a creation that was late, number of the last deletion.
    """

    code: str
    detail: str
    needed: int = 0
    answered: int = 0
    delay: float = 0.0
    topic: str = ""
    group: str = ""
    number: int = 0


class RequestRefused(Exception):
    """Raised by the first look at a request, before anything has changed.

    Args:
        reply: the answer.
    """

    def __init__(self, reply: Failed) -> None:
        super().__init__(reply.detail)
        self.reply = reply


def refuse_if(detail: str, code: str = Code.USAGE) -> None:
    """Refuse the request with ``code`` and ``detail``, the error that a check found; "" stands for none."""
    if detail:
        raise RequestRefused(Failed(code, detail))

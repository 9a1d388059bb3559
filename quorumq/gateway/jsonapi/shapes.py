"""Bodies of requests and answers. The OpenAPI document is made of these classes (openapi.py)."""

from __future__ import annotations

import base64
import binascii
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from quorumq.client import Backlog, Life, Match, Message, Peek, receipt_to_text
from quorumq.core.values.errors import UsageError
from quorumq.core.values.limits import DELAY_MAX_S, LONG_POLL_MAX_S, TOPIC_TIME_MAX_S
from quorumq.wire.batch import HEADER_NAME_CHARS_MAX, HeaderValue
from quorumq.wire.batch import Message as Parts

MESSAGES_MAX: Final = 1000
RECEIPTS_MAX: Final = 1000
RECEIPT_CHARS_MAX: Final = 2000
IDS_MAX: Final = 1000
BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of payloads in one answer."""

Number = Annotated[int, Meta(ge=1, le=MESSAGES_MAX)]
Wait = Annotated[float, Meta(ge=0, le=LONG_POLL_MAX_S)]
Delay = Annotated[float, Meta(ge=0, le=DELAY_MAX_S)]
Name = Annotated[str, Meta(max_length=205)]
Receipts = Annotated[
    list[Annotated[str, Meta(max_length=RECEIPT_CHARS_MAX)]], Meta(min_length=1, max_length=RECEIPTS_MAX)
]
Beginning = Annotated[
    str, Meta(max_length=50, description="earliest, latest, or a time: 2026-11-21T08:00:00Z")
]
Ids = Annotated[list[str], Meta(max_length=IDS_MAX)]
State = Literal["ready", "held", "delayed", "acked", "dead", "skipped", "purged", "all"]
Header = Union[str, int, float, bool, None]


class Shape(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Body of a request: a field that it does not have is an error."""


class Answer(Struct, kw_only=True):
    """Body of an answer."""

    @classmethod
    def made_from(cls, source: Any, **given: Any) -> Self:
        """Return the answer with the fields of ``source`` that have its names, and with those that are given."""
        names = [name for name in cls.__struct_fields__ if name not in given and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **given)


class NewMessage(Shape, kw_only=True):
    """A message to publish: one of payload (text), payload_base64 (bytes) and json (any value)."""

    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    json: Any = UNSET
    key: str | None = None
    headers: dict[Annotated[str, Meta(max_length=HEADER_NAME_CHARS_MAX)], Header] = field(
        default_factory=dict
    )
    delay: Delay | None = None
    ttl: Annotated[float, Meta(gt=0, le=TOPIC_TIME_MAX_S)] | None = None
    dedup: Annotated[str, Meta(min_length=1, max_length=500)] | None = None

    def options(self) -> tuple[bytes | None, dict[str, Any]]:
        """Return payload and options of a publish; UsageError if there is not one payload, or it is no base64."""
        given = [name for name in ("payload", "payload_base64", "json") if getattr(self, name) is not UNSET]
        if len(given) != 1:
            raise UsageError(
                f"a message has {' and '.join(given) or 'no payload'}: give payload, payload_base64 or json"
            )
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("key", "headers", "delay", "ttl", "dedup")
        }
        if self.payload is not UNSET:
            return self.payload.encode("utf-8", "surrogatepass"), options
        if self.payload_base64 is UNSET:
            return None, {**options, "json": self.json}
        try:
            return base64.b64decode(self.payload_base64, validate=True), options
        except (binascii.Error, ValueError) as error:
            raise UsageError(
                f"payload_base64 is {self.payload_base64[:50]!r}: it must be base64 ({error})"
            ) from None


class NewMessages(Shape, kw_only=True):
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]


class Problem(Answer, kw_only=True):
    """An error (RFC 9457): ``code`` is for programs, ``value`` was refused, ``remedy`` is the next step."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    value: str | None = None
    remedy: str = ""


class Published(Answer, kw_only=True):
    id: str


class Stored(Answer, kw_only=True):
    """Result for one of several messages: its id, or the problem."""

    id: str | None = None
    problem: Problem | None = None


class PublishedAll(Answer, kw_only=True):
    results: list[Stored]
    stored: int


class FetchBody(Shape, kw_only=True):
    """Wait up to max_wait seconds for up to max_messages messages; each is held for hold_time seconds."""

    max_messages: Number = 10
    max_wait: Wait = 0.0
    hold_time: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    start: Literal["earliest", "latest"] = "earliest"


class DeadLetter(Answer, kw_only=True):
    """Reason and history of a dead letter. Times are milliseconds since 1970."""

    reason: str
    error_class: str
    message: str
    stack: str
    fingerprint: str
    attempts: int
    died_ms: int
    first_delivered_ms: int
    last_delivered_ms: int
    consumer: str
    consumer_version: str
    host: str
    redrives: int


class Content(Answer, kw_only=True):
    """Parts of a message: payload if it is text in UTF-8, else payload_base64; headers as text, numbers or truth."""

    id: str
    key: str | None
    headers: dict[str, Header]
    published_ms: int
    payload: str | None = None
    payload_base64: str | None = None


class Delivered(Content, kw_only=True):
    """A delivered message. The receipt settles it, until expires_in seconds have passed."""

    receipt: str
    attempt: int
    interruptions: int
    expires_in: float
    dead_letter: DeadLetter | None = None


class Fetched(Answer, kw_only=True):
    messages: list[Delivered]


class ReceiptsBody(Shape, kw_only=True):
    receipts: Receipts


class RejectBody(ReceiptsBody, kw_only=True):
    """Make messages available again after delay seconds; without one, after the topic's backoff."""

    delay: Delay | None = None


class DeadLetterBody(ReceiptsBody, kw_only=True):
    reason: Annotated[str, Meta(max_length=2000)] = ""


class ExtendBody(ReceiptsBody, kw_only=True):
    hold_time: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class Settled(Answer, kw_only=True):
    """Result for one receipt, in the order of the request: an outcome, or a problem."""

    outcome: str | None = None
    problem: Problem | None = None


class SettledAll(Answer, kw_only=True):
    results: list[Settled]


class TopicView(Answer, kw_only=True):
    name: str
    partitions: int
    rf: int
    max_deliveries: int
    retention: float
    ttl: float
    backoff: list[float]
    groups: list[str]


class Topics(Answer, kw_only=True):
    topics: list[TopicView]


class GroupBody(Shape, kw_only=True):
    """Beginning of a new group: earliest, latest, or a time of day with its zone."""

    start: Beginning = "earliest"


class RewindBody(Shape, kw_only=True):
    """Beginning of a group from now on; dry_run counts the messages, and changes nothing."""

    to: Beginning
    dry_run: bool = False


class Rewound(Answer, kw_only=True):
    group: str
    dry_run: bool
    messages: int | None = None
    states: dict[str, int] = field(default_factory=dict)
    complete: bool = True


class GroupView(Answer, kw_only=True):
    topic: str
    name: str
    paused: bool
    per_second: float | None = None
    burst: int | None = None


class LimitBody(Shape, kw_only=True):
    """Deliveries a second, of all consumers together; null for no limit. burst: deliveries at once."""

    per_second: float | None
    burst: Annotated[int, Meta(ge=1)] | None = None


class Consumer(Answer, kw_only=True):
    name: str
    version: str
    software: str
    address: str
    delivered: int


class BacklogView(Answer, kw_only=True):
    """Work of a group: answered is false if no replica of some partition answered, and then the counts are 0."""

    topic: str
    group: str
    answered: bool = True
    ready: int = 0
    held: int = 0
    delayed: int = 0
    dead: int = 0
    oldest: float | None = None
    delivered: int = 0
    settled: int = 0
    suspects: int = 0
    dying: int = 0
    dropped: int = 0
    consumers: list[Consumer] = field(default_factory=list)

    @classmethod
    def of(cls, topic: str, group: str, backlog: Backlog | None) -> BacklogView:
        consumers = [Consumer.made_from(one) for one in backlog.consumers] if backlog is not None else []
        return cls.made_from(
            backlog, topic=topic, group=group, answered=backlog is not None, consumers=consumers
        )


class Backlogs(Answer, kw_only=True):
    backlogs: list[BacklogView]


class Peeked(Content, kw_only=True):
    """A message as a group sees it, without holding it."""

    state: str
    partition: int
    attempts: int
    redrives: int
    remaining: float
    dead_letter: DeadLetter | None = None


class Peeks(Answer, kw_only=True):
    """Messages, of looked_at that were read; of is the number in that state, about, if it is known."""

    messages: list[Peeked]
    looked_at: int
    of: int | None
    complete: bool


class Kind(Answer, kw_only=True):
    messages: int
    reason: str
    error_class: str
    fingerprint: str
    message: str
    first_died_ms: int
    last_died_ms: int
    versions: dict[str, int]
    samples: list[str]


class Kinds(Answer, kw_only=True):
    kinds: list[Kind]
    complete: bool


class Choice(Shape, kw_only=True):
    """Dead letters: by ids, by fingerprint or error_class, or all; limit is the number of messages at most."""

    ids: Ids | None = None
    fingerprint: str | None = None
    error_class: str | None = None
    all: bool = False
    limit: Number = MESSAGES_MAX


class Redriven(Answer, kw_only=True):
    """Messages that were redriven, and that had been settled or redriven before; more is true if some are left."""

    redriven: int
    already: int
    more: bool


class PurgeBody(Shape, kw_only=True):
    """Messages by ids, or all."""

    ids: Ids | None = None
    all: bool = False


class Purged(Answer, kw_only=True):
    purged: int


class SeenView(Answer, kw_only=True):
    group: str
    state: str
    remaining: float
    ended: int
    redrives: int
    holder: str | None
    dead_letter: DeadLetter | None = None


class ReplicaView(Answer, kw_only=True):
    node: str
    payload: bool
    error: str | None
    groups: list[SeenView]


class LifeView(Answer, kw_only=True):
    """The life of one message as each replica remembers it."""

    id: str
    topic: str
    published_ms: int | None
    delay: float
    replicas: list[ReplicaView]
    message: Content | None = None

    @classmethod
    def of(cls, life: Life) -> LifeView:
        message = None
        if life.body is not None:
            message = Content(id=str(life.id), published_ms=life.published_ms or 0, **parts_of(life.body))
        replicas = [
            ReplicaView.made_from(
                replica,
                groups=[SeenView.made_from(seen, dead_letter=history_of(seen)) for seen in replica.groups],
            )
            for replica in life.replicas
        ]
        return cls.made_from(life, id=str(life.id), replicas=replicas, message=message)


dead_letter_of: Final = attrgetter("death")
"""Return the history of a dead letter that a record, a message, or a state of it has; None without one."""


def history_of(owner: Any) -> DeadLetter | None:
    """Return a dead letter's history for JSON, if there is one."""
    history = dead_letter_of(owner)
    return DeadLetter.made_from(history) if history is not None else None


def header_of(value: HeaderValue | memoryview) -> Header:
    """Return a header's value for JSON: bytes as text if they are text, else with escapes."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    return value


def parts_of(message: Parts | Message) -> dict[str, Any]:
    """Return key, headers and payload for a `Content`."""
    payload = bytes(message.payload or b"")
    fields: dict[str, Any] = {
        "key": None if message.key is None else bytes(message.key).decode(errors="backslashreplace"),
        "headers": {name: header_of(value) for name, value in message.headers.items()},
    }
    try:
        return {**fields, "payload": payload.decode(), "payload_base64": None}
    except UnicodeDecodeError:
        return {**fields, "payload": None, "payload_base64": base64.b64encode(payload).decode()}


def delivered_of(message: Message, now: float) -> Delivered:
    """Return a delivered message for JSON; ``now`` is of the client's clock."""
    return Delivered.made_from(
        message,
        id=str(message.id),
        receipt=receipt_to_text(message.receipt),
        expires_in=round(max(0.0, message.deadline - now), 3),
        dead_letter=history_of(message),
        **parts_of(message),
    )


def peeked_of(match: Match) -> Peeked:
    """Return a message that was looked at for JSON."""
    peek: Peek = match.peek
    return Peeked.made_from(
        peek.peeked,
        id=str(match.id),
        partition=peek.partition,
        redrives=peek.peeked.record.n,
        remaining=round(peek.peeked.remaining, 3),
        published_ms=match.published_ms,
        dead_letter=history_of(peek.peeked.record),
        **parts_of(match.message),
    )


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)

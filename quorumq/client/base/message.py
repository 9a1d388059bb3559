"""Delivered messages in the hands of a consumer.

A message is delivered as one of a *delivery*: consecutive messages won by one ballot, under one receipt. What
they share is in one `Delivery`, made once; a `Message` adds its own few fields. This is the only part of quorumq
that does work per message, so it is kept to slots and plain loops.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import update_wrapper
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from quorumq.client.base.hints import hinted
from quorumq.client.base.times import Duration
from quorumq.core.values.errors import BadReceipt, QuorumqError, Unanswered, UsageError
from quorumq.core.values.limits import DEADLINE_SHARE, NUMBERS_END
from quorumq.core.values.types import Death, PartitionId, ProducerId, Receipt, Span, Stamp, Topic
from quorumq.wire import cbor
from quorumq.wire.batch import HeaderValue
from quorumq.wire.batch import Message as Parts
from quorumq.wire.cbor import BadValue
from quorumq.wire.receipts import read_receipt
from quorumq.wire.values import SignedNamed

F = TypeVar("F", bound=Callable[..., Any])


class Outcome(Enum):
    """Verdict on an ack (docs/protocol.md, ACK), or result of a reject."""

    ACKED = "acked"
    """Final, and this delivery was the only one that could have been inside its hold."""

    ACKED_AFTER_EXPIRY = "acked_after_expiry"
    """Final, but the hold had run out, and a majority granted the message again: it may be processed twice."""

    ACKED_UNPROVEN = "acked_unproven"
    """Final, but too few replicas knew whether this delivery was alone."""

    REWOUND = "rewound"
    """Void: the group was rewound since the delivery. Nothing was written, unless by an attempt whose answer was lost.
    The message is redelivered if the group now begins before it (docs/protocol.md, "group, generation")."""

    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"


class MessageId(NamedTuple):
    """The name of a message, for ever: its numbering producer, and its number."""

    partition: PartitionId
    producer_id: ProducerId
    seq: int

    def __str__(self) -> str:
        topic, number = self.partition
        node, n, nonce, k = self.producer_id
        return f"{topic.hex()}/{number}/{node}.{n}.{nonce:016x}.{k}/{self.seq}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Return the id that ``str`` gave; ValueError with the text if it is none."""
        match = _ID.fullmatch(text)
        numbers = [] if match is None else [int(match[at]) for at in (2, 4, 6, 7)]
        if match is None or max(numbers) >= 1 << 64:
            shown = (
                f"{text[:200]!r}; it looks like TOPIC/PARTITION/NODE.N.NONCE.K/SEQ, with numbers of 64 bits"
            )
            raise ValueError(f"not a message id: {shown}")
        number, n, k, seq = numbers
        producer_id = ProducerId(match[3], n, int(match[5], 16), k)
        return cls(PartitionId(bytes.fromhex(match[1]), number), producer_id, seq)


_ID: Final = re.compile(
    r"([0-9a-f]{32})/(\d{1,20})/([^./]+)\.(\d{1,20})\.([0-9a-f]{16})\.(\d{1,20})/(\d{1,20})"
)


def id_of(message: MessageId | str | Any) -> MessageId:
    """Return the id that is meant by an id, its text, or a message.

    Raises:
        UsageError: none of these.
    """
    if isinstance(message, MessageId):
        return message
    name = getattr(message, "id", message)
    if isinstance(name, MessageId):
        return name
    if not isinstance(name, str):
        raise UsageError(f"{message!r} is no id of a message: give a MessageId, its text, or the message")
    try:
        return MessageId.parse(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def ids_of(messages: Any) -> set[MessageId]:
    """Return the ids meant by several arguments of `id_of`, or by one alone."""
    alone = isinstance(messages, MessageId | str) or isinstance(getattr(messages, "id", None), MessageId)
    if not alone and not isinstance(messages, Iterable):
        raise UsageError(f"{messages!r} is no list of messages: give ids, texts of ids, or messages")
    return {id_of(one) for one in ([messages] if alone else messages)}


def settleables_of(messages: Any) -> list[Settleable]:
    """Return the messages to be settled, from several or one alone.

    Raises:
        UsageError: one is no message that was delivered.
    """
    alone = isinstance(messages, Settleable | str | MessageId) or not isinstance(messages, Iterable)
    settleables: list[Settleable] = [messages] if alone else list(messages)
    for one in settleables:
        if not isinstance(one, Settleable):
            raise UsageError(
                f"{one!r} is not a message that was delivered: settle what a consumer or `fetch` gave, or "
                "`ticket(receipt)`; an id names a message, and no delivery"
            )
    return settleables


def check_topic(name: MessageId, topic: Topic) -> None:
    """Raise UsageError if the message is of another topic."""
    if name.partition.topic != topic.id:
        raise UsageError(f"{name} is of another topic than {topic.name!r}, which has the id {topic.id.hex()}")


class Source(Protocol):
    """A message that others may be derived from: one that was delivered, to whichever front of the client."""

    @property
    def id(self) -> MessageId: ...

    @property
    def topic(self) -> str: ...

    @property
    def group(self) -> str: ...


class Settler(Protocol):
    """Calls that settle a message. `Client` has the same calls for many messages."""

    clock: Callable[[], float]

    async def ack(self, messages: Iterable[Settleable], *, timeout: float | None) -> list[Outcome]: ...

    async def reject(
        self,
        messages: Iterable[Settleable],
        *,
        delay: Duration | None,
        interrupted: bool,
        timeout: float | None,
    ) -> None: ...

    async def dead_letter(
        self,
        messages: Iterable[Settleable],
        error: BaseException | None,
        *,
        reason: str,
        timeout: float | None,
    ) -> None: ...

    async def extend(
        self, messages: Iterable[Settleable], hold_time: Duration | None, *, timeout: float | None
    ) -> None: ...


class Holder(Protocol):
    """Consumer that works on the messages of a delivery, as dead letters name it."""

    name: str
    version: str

    def settled(self, messages: Sequence[Settleable]) -> None:
        """Take messages of it that have their verdicts."""


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """Fields shared by the messages of one delivery."""

    topic: str  # its name
    signed: bytes  # the receipt, as the node gave it
    receipt: Receipt  # the same, decoded
    attempt: int  # 1 for the first delivery
    published_ms: int  # the batch's, by the producer's time of day
    delivered_ms: int  # the client's time of day at the delivery
    hold_time: float  # seconds
    settler: Settler
    holder: Holder | None  # the consumer that got it; None if `Client.fetch` did
    crcs: str = ""  # CRC-32C of each record in hex, 8 digits each, if a history is written
    via: str = ""  # the node that delivered it
    asked: float = 0.0  # when its FETCH was sent, by the client's clock
    death: Death | None = None  # why the messages died, if they are dead letters
    interruptions: int = 0  # deliveries before it that were given back as interrupted
    suspect: bool = False  # it may be what ended its consumers


CALLS: Final[ContextVar[list[Any] | None]] = ContextVar("calls", default=None)
"""Calls of a handler that settle or extend its message, and may not have been awaited; None outside of handlers."""


NOTED_MAX: Final = 16
"""Calls that are noted if none of them is awaited."""


def noted(method: F) -> F:
    """Return an async method whose calls are noted in `CALLS`, so that a missing ``await`` is found."""

    def called(*args: Any, **more: Any) -> Any:
        call = method(*args, **more)
        if (calls := CALLS.get()) is not None:
            while calls and not not_awaited(calls[-1:]):
                calls.pop()
            del calls[NOTED_MAX:]
            calls.append(call)
        return call

    return cast("F", update_wrapper(called, method))


def not_awaited(calls: Iterable[Any]) -> list[Any]:
    """Return the calls of async functions that have not begun."""
    return [call for call in calls if getcoroutinestate(call) == CORO_CREATED]


class Settleable:
    """A message to be settled: a `Message`, or one that a receipt from elsewhere names.

    Attributes:
        outcome: result of settling it; None before.
        failure: reason why the last attempt to settle it failed; None otherwise.
    """

    __slots__ = ("delivery", "failure", "outcome", "seq")

    delivery: Delivery
    seq: int
    outcome: Outcome | None
    failure: QuorumqError | None

    def __init__(self, delivery: Delivery, seq: int) -> None:
        self.delivery = delivery
        self.seq = seq
        self.outcome = None
        self.failure = None


@hinted
class Message(Settleable):
    """One delivered message.

    Attributes:
        payload: the bytes that were published.
        key: the key it was published with, or None.
        headers: its headers; do not change them.
        deadline: end of its certain hold, by the client's clock (`Client.clock`): beyond it another delivery
            may have begun. Moves when the hold is extended.
    """

    __slots__ = ("deadline", "headers", "key", "payload")

    payload: bytes
    key: bytes | None
    headers: Mapping[str, HeaderValue]
    deadline: float

    # ------------------------------------------------------------------- identity

    @property
    def id(self) -> MessageId:
        """Its name, the same in every delivery."""
        receipt = self.delivery.receipt
        return MessageId(receipt.partition, receipt.span.producer_id, self.seq)

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self.delivery.topic

    @property
    def group(self) -> str:
        """The group that it was delivered to."""
        return self.delivery.receipt.group

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.delivery.receipt.partition.number

    @property
    def attempt(self) -> int:
        """Number of this delivery, 1 for the first. An estimate: each crash may lose one (docs/protocol.md).

        Those in `interruptions` are not counted.
        """
        return self.delivery.attempt

    @property
    def suspect(self) -> bool:
        """True if its deliveries expired, so that it may have ended its consumers: work on nothing beside it.

        Such messages arrive in lots of 4 at most, and the worst alone.
        """
        return self.delivery.suspect

    @property
    def interruptions(self) -> int:
        """Number of earlier deliveries that were given back as interrupted (`reject`)."""
        return self.delivery.interruptions

    @property
    def fencing_token(self) -> Stamp:
        """Rises strictly with each delivery of this message to this group: compare as a pair, keep the highest."""
        return self.delivery.receipt.owner.ballot

    @property
    def published_ms(self) -> int:
        """When it was published, by the producer's time of day, in milliseconds since 1970."""
        return self.delivery.published_ms

    @property
    def death(self) -> Death | None:
        """Reason of its death, if it was read from a group of dead letters; None otherwise."""
        return self.delivery.death

    @property
    def receipt(self) -> SignedNamed:
        """The receipt, for settling it elsewhere: see `receipt_to_text`."""
        return SignedNamed(
            self.delivery.signed, (Span(self.delivery.receipt.span.producer_id, self.seq, self.seq + 1),)
        )

    @property
    def is_live(self) -> bool:
        """Return True if its hold is certain at this moment."""
        return self.delivery.settler.clock() < self.deadline

    def json(self) -> Any:
        """Return the payload, read as JSON (UTF-8).

        Raises:
            ValueError: it is none; names the message.
        """
        try:
            return json.loads(self.payload)
        except ValueError as error:
            raise ValueError(f"the payload of message {self.id} is not JSON: {error}") from error

    def __repr__(self) -> str:
        shown = self.payload if len(self.payload) <= 32 else self.payload[:32] + b"..."
        return f"<Message {self.topic} {self.id} {shown!r}>"  # the id as `quorumq show` takes it

    # ----------------------------------------------------------------- settling it

    @noted
    async def ack(self, *, timeout: float | None = None) -> Outcome:
        """Ack it as processed: never deliver it to this group again. A dead letter is purged.

        Many acks at once go as one request. Cancelled while waiting, the ack may still happen.

        Returns:
            how certain it is that this delivery was alone, or that the group was rewound: see `Outcome`.

        Raises:
            OutcomeUnknown, NotStored: not confirmed within ``timeout``; call it again, with the same message.
            AlreadySettled: it was read as a dead letter, and is none any more: it was redriven or purged meanwhile.
        """
        await self.delivery.settler.ack((self,), timeout=timeout)
        assert self.outcome is not None
        return self.outcome

    @noted
    async def reject(
        self,
        delay: Duration | None = None,
        *,
        interrupted: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reject it for now: make it available again after a while. Counts as an attempt.

        Args:
            delay: seconds or a timedelta; 0 is at once. None takes the step of the topic's ``backoff`` for this
                attempt; at once if the topic has none.
            interrupted: your program has to stop, and no longer works on the message. It is available at once, and
                no attempt is counted: up to 10 times, and from then on as without this.

        A dead letter stays one. If the group was rewound since, nothing is done: ``outcome`` is REWOUND.

        Raises:
            UsageError: the delay is negative, or above 366 days, or given with ``interrupted``.
            HoldLost: the hold is over; another delivery may have begun. It may have taken effect all the same.
            OutcomeUnknown, NotStored: not confirmed within ``timeout`` seconds.
            StorageFull: the disks are full. Raised at once: leave it, and it is redelivered after its hold.
        """
        await self.delivery.settler.reject((self,), delay=delay, interrupted=interrupted, timeout=timeout)

    @noted
    async def dead_letter(
        self, error: BaseException | None = None, *, reason: str = "", timeout: float | None = None
    ) -> None:
        """Give it up for this group: keep it as a dead letter, with the reason.

        Args:
            error: exception of the handler; its class, text, stack and fingerprint are kept.
            reason: in words, if there is more to say, or no error.

        Raises:
            UsageError: it is a dead letter already; nothing was sent.
            HoldLost: as of `reject`.
            OutcomeUnknown, NotStored: not confirmed within ``timeout`` seconds.
        """
        await self.delivery.settler.dead_letter((self,), error=error, reason=reason, timeout=timeout)

    @noted
    async def extend(self, hold_time: Duration | None = None, *, timeout: float | None = None) -> None:
        """Keep the hold for ``hold_time``, seconds or a timedelta, from now (that of the FETCH if None).

        More than the cluster's ``hold_time_max``, up to a week, *claims* the message, on disk at a majority: no other
        consumer gets it before, though this program and nodes may crash. It is never shortened: `reject` gives back.

        Raises:
            HoldLost: it is over; nothing revives it.
        """
        await self.delivery.settler.extend((self,), hold_time, timeout=timeout)


def messages_of(delivery: Delivery, parts: Iterable[Parts | None], deadline: float) -> list[Message]:
    """Return the messages of a delivery, made without a call for each; ``parts`` has None for an unreadable one."""
    made: list[Message] = []
    new: Callable[[type[Message]], Message] = object.__new__
    for seq, content in enumerate(parts, delivery.receipt.span.start):
        if content is not None:
            message = new(Message)
            message.delivery = delivery
            message.seq = seq
            message.payload, message.key, message.headers = content
            message.deadline = deadline
            message.outcome = message.failure = None
            made.append(message)
    return made


def receipt_to_text(receipt: SignedNamed) -> str:
    """Return a receipt as text without spaces, for another process to settle the message by.

    Raises:
        BadReceipt: it is none.
    """
    if not isinstance(receipt, SignedNamed):
        raise BadReceipt(f"not a receipt: {receipt!r:.40}; give that of the message, Message.receipt")
    parts = [(span.start, span.stop) for span in receipt.spans]
    encoded = b"".join((
        b"\x82", cbor.blob(receipt.signed), cbor.array_head(len(parts)),
        *(b"\x82" + cbor.uint(start) + cbor.uint(stop) for start, stop in parts),
    ))  # fmt: skip
    return base64.urlsafe_b64encode(encoded).rstrip(b"=").decode()


def receipt_from_text(text: str) -> SignedNamed:
    """Return the receipt that `receipt_to_text` wrote.

    Raises:
        BadReceipt: it is not one, as far as can be seen without the cluster's secret.
    """
    try:
        raw = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), altchars=b"-_", validate=True)
        value: Any = cbor.load(raw, "a receipt")
        signed, parts = value
        producer_id = read_receipt(signed).span.producer_id
        spans = [Span(producer_id, int(start), int(stop)) for start, stop in parts]
        if not all(0 <= span.start < span.stop <= NUMBERS_END for span in spans):
            raise ValueError(spans)
        return SignedNamed(signed, tuple(spans))
    except (binascii.Error, BadValue, BadReceipt, AttributeError, TypeError, ValueError) as exc:
        raise BadReceipt(
            f"not a receipt: {str(text)[:40]!r}; give back the text of the delivery unchanged"
        ) from exc


def deadline_of(sent_at: float, hold_time: float) -> float:
    """Return the time until which a hold is certain for the client (docs/protocol.md, FETCH and EXTEND)."""
    return sent_at + DEADLINE_SHARE * hold_time


def again(error: QuorumqError) -> QuorumqError:
    """Return a new exception like ``error``, so that each waiter raises its own."""
    if isinstance(error, Unanswered):
        return type(error)(error.detail, needed=error.needed, answered=error.answered)
    return type(error)(*error.args)

"""Messages without a cluster, which record how a handler settles them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from quorumq.client import blocking
from quorumq.client.base import message as delivered
from quorumq.client.base.message import Delivery, Outcome, Settleable
from quorumq.client.consume.settling import ACKS, ENDINGS, SettleCalls, refuse_dead
from quorumq.client.portal import Portal
from quorumq.core.values.errors import HoldLost, UsageError
from quorumq.core.values.limits import DEADLINE_SHARE, HOLD_TIME_DEFAULT_S, TOPIC_BACKOFF_S
from quorumq.core.values.types import (
    Death,
    Incarnation,
    Owner,
    PartitionId,
    ProducerId,
    Receipt,
    Span,
    Stamp,
)
from quorumq.wire.batch import HeaderValue
from quorumq.wire.receipts import signature

SECRET: Final = b"of messages that no node has seen"
NODE: Final = "test"
NUMBERS: Final = itertools.count(1)
"""Numbers of fake messages: each has an id of its own."""


@dataclass
class Settlement:
    """Calls that settled a fake message, in one record.

    Attributes:
        delay: seconds of `reject`; None if the topic's backoff applies, or it was not rejected.
        interrupted: True if it was rejected as interrupted.
        error: exception of `dead_letter`.
        reason: reason of `dead_letter`.
        death: report that `dead_letter` would have stored.
        extended: seconds of each `extend`, in order.
    """

    delay: float | None = None
    interrupted: bool = False
    error: BaseException | None = None
    reason: str = ""
    death: Death | None = None
    extended: list[float] = field(default_factory=list)


class FakeContext:
    """The part of a client's context that settling needs."""

    host = NODE

    @property
    def nodes(self) -> FakeContext:
        """Return the object that has `check_open`."""
        return self

    def check_open(self) -> None:
        """Accept every call: a fake client is never closed."""


class Recorder(SettleCalls):
    """Settler that checks calls like a client, and records them instead of sending them."""

    def __init__(self) -> None:
        self.time = 0.0
        self.clock = lambda: self.time
        self.context: Any = FakeContext()
        self.settlement = Settlement()

    async def ack(
        self, messages: Iterable[Settleable] | Settleable, *, timeout: float | None = None
    ) -> list[Outcome]:
        given = delivered.settleables_of(messages)
        for message in given:
            late = message.outcome in ENDINGS or not isinstance(message, Message) or not message.is_live
            if message.outcome not in ACKS:
                message.outcome = Outcome.ACKED_AFTER_EXPIRY if late else Outcome.ACKED
        return [one.outcome for one in given if one.outcome is not None]

    async def dead_letter(
        self,
        messages: Iterable[Settleable] | Settleable,
        error: BaseException | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        given = delivered.settleables_of(messages)
        refuse_dead(given)
        for message in given:
            death = self._death(message, error, reason)
            await self._reject([message], 0.0, death, Outcome.DEAD_LETTERED, timeout)
        self.settlement.error, self.settlement.reason = error, reason

    async def _reject(
        self,
        messages: Sequence[Settleable],
        delay: float,
        death: Death | None,
        outcome: Outcome,
        timeout: float | None,
        *,
        interrupted: bool = False,
    ) -> None:
        for message in messages:
            self._check_held(message)
            message.outcome = outcome
        self.settlement.death = death
        self.settlement.interrupted = interrupted
        self.settlement.delay = None if death is not None or delay == TOPIC_BACKOFF_S else delay

    async def extend_quietly(
        self,
        messages: Sequence[Settleable],
        hold_time: float | None,
        failures: object,
        *,
        timeout: float | None = None,
    ) -> None:
        for message in messages:
            self._check_held(message)
            seconds = message.delivery.hold_time if hold_time is None else hold_time
            self.settlement.extended.append(seconds)
            if isinstance(message, Message):
                message.deadline = max(message.deadline, self.time + DEADLINE_SHARE * seconds)

    def _check_held(self, message: Settleable) -> None:
        over = isinstance(message, Message) and not message.is_live
        if over or message.outcome in ACKS or message.outcome in ENDINGS:
            state = "its hold has run out" if over else f"it was settled before ({message.outcome})"
            message.failure = HoldLost(f"the hold on {message!r} is over: {state}")
            raise message.failure


class Message(delivered.Message):
    """A message for tests of handlers on trio or asyncio; made by `fake`."""

    __slots__ = ()

    @classmethod
    def fake(
        cls,
        payload: bytes | str | None = None,
        *,
        json: Any = None,
        key: bytes | str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        topic: str = "topic",
        group: str = "group",
        partition: int = 0,
        attempt: int = 1,
        interruptions: int = 0,
        suspect: bool = False,
        published_ms: int = 0,
        hold_time: float = HOLD_TIME_DEFAULT_S,
    ) -> Self:
        """Return a message as a consumer gets it, without a cluster.

        Args:
            payload: bytes, or a text that is encoded.
            json: value of a payload in JSON, instead of ``payload``.
            key, headers, topic, group, partition, attempt, interruptions, suspect, published_ms: its fields.
            hold_time: seconds of its hold. Its time stands still, until `pass_time`.

        Raises:
            UsageError: neither ``payload`` nor ``json`` is given, or both, or ``attempt`` is below 1.
        """
        if (payload is None) == (json is None):
            raise UsageError("give either the payload or json= of a fake message")
        if attempt < 1:
            raise UsageError(f"attempt is {attempt}: the first delivery is attempt 1")
        number = next(NUMBERS)
        receipt = Receipt(
            PartitionId(topic.encode().ljust(16, b"\0")[:16], partition),
            group,
            0,
            0,
            Span(ProducerId(NODE, 1, 1, 0), number, number + 1),
            Owner(NODE, Incarnation(1, 1), Stamp(number, NODE)),
        )
        delivery = Delivery(
            topic=topic,
            signed=signature(receipt, secret=SECRET),
            receipt=receipt,
            attempt=attempt,
            published_ms=published_ms,
            delivered_ms=published_ms,
            hold_time=hold_time,
            settler=Recorder(),
            holder=None,
            interruptions=interruptions,
            suspect=suspect,
        )
        made = cls(delivery, number)
        made.payload = bytes_of(dumped(json) if payload is None else payload)
        made.key = None if key is None else bytes_of(key)
        made.headers = dict(headers or {})
        made.deadline = DEADLINE_SHARE * hold_time
        return made

    @property
    def settlement(self) -> Settlement:
        """Record of the calls that settled it; `outcome` is their result."""
        settler = self.delivery.settler
        assert isinstance(settler, Recorder)
        return settler.settlement

    def pass_time(self, seconds: float) -> None:
        """Let time pass for this message. Its hold runs out if it has less time left."""
        settler = self.delivery.settler
        assert isinstance(settler, Recorder)
        settler.time += seconds


class BlockingMessage(blocking.Message):
    """A message for tests of handlers in threads; made by `fake`, with the arguments of `Message.fake`."""

    __slots__ = ()

    inner: Message

    @classmethod
    def fake(cls, payload: bytes | str | None = None, **fields: Any) -> Self:
        """Return a message as a consumer in a thread gets it, without a cluster."""
        return cls(Immediately(), Message.fake(payload, **fields))

    @property
    def settlement(self) -> Settlement:
        """Record of the calls that settled it; `outcome` is their result."""
        return self.inner.settlement

    def pass_time(self, seconds: float) -> None:
        """Let time pass for this message. Its hold runs out if it has less time left."""
        self.inner.pass_time(seconds)


class Immediately(Portal):
    """Portal without a thread, for calls that wait for nothing."""

    def __init__(self) -> None:
        pass

    def call(self, function: Callable[..., Any], *args: object, undo: object = None, **more: object) -> Any:
        """Return the result of a coroutine function that never waits."""
        coroutine = function(*args, **more)
        try:
            coroutine.send(None)
        except StopIteration as returned:
            return returned.value
        coroutine.close()
        raise AssertionError(f"{function!r} waits")


def bytes_of(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()

"""The client library for programs without trio: threads, scripts, web workers.

A thread of its own runs trio and the client of client.py in it; a call here runs there while the caller waits. So
holds are extended and answers read while the program computes, and there is one implementation of everything.

Promise: what a call takes, returns and raises is what the method of the same name in `quorumq.client` does. Whatever
interrupts the caller (Ctrl-C) cancels the call, and is raised once that has ended; messages that came all the same
are rejected, to be delivered again at once.

with connect(["127.0.0.1:7401", "127.0.0.1:7402"]) as client:
    with client.producer("jobs") as producer:
        producer.publish(b"payload")
    with client.consumer("jobs", group="workers") as consumer:
        for message in consumer:
            message.ack()
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import partial, update_wrapper
from itertools import count, islice
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

import trio

from quorumq.client import batches
from quorumq.client import client as waiting
from quorumq.client import consumer as consuming
from quorumq.client import message as delivered
from quorumq.client import producer as producing
from quorumq.client.client import Peek, Redriven
from quorumq.client.message import MessageId, Outcome, Ticket
from quorumq.client.nodes import CLOSED
from quorumq.client.nodes import Closed as Closed
from quorumq.client.settling import SettleCalls
from quorumq.client.times import Duration
from quorumq.core.errors import OutcomeUnknown, QuorumqError, UsageError
from quorumq.core.types import Letter, Stamp
from quorumq.wire.batch import HeaderValue
from quorumq.wire.values import SealedNamed

INTERRUPTED_S: Final = 2.0
"""How long a call that is interrupted may take to end."""

PUBLISH_MANY: Final = 256
"""Messages that are handed over to be published in one turn."""

PAGE: Final = 500
"""Items of a listing that are brought over at once."""

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")
Served = TypeVar("Served", consuming.Consumer, producing.Producer)


class Portal:
    """Runs trio in a thread, and calls in it from others.

    Any number of threads may call. After a fork the child needs one of its own.
    """

    def __init__(self) -> None:
        self._ready: Future[waiting.Client] = Future()
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._process = os.getpid()

    def open(self, connect: Callable[[], Any]) -> waiting.Client:
        """Begin, with what ``connect`` gives as an ``async with``; raises what it raises."""
        self._thread = threading.Thread(
            target=trio.run, args=(self._run, connect), name="quorumq", daemon=True
        )
        self._thread.start()
        try:
            return self._ready.result()
        except BaseException:
            self.close()
            raise

    async def _run(self, connect: Callable[[], Any]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        try:
            with self._scope:
                async with connect() as client, trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._ready.set_result(client)
                    try:
                        await trio.sleep_forever()
                    finally:
                        self._nursery = None
        except BaseException as error:
            if self._ready.done():
                self._failure = error
            else:
                self._ready.set_exception(error)

    def close(self) -> None:
        """End: what is under way is cancelled, and the thread has ended when this returns.

        Raises:
            whatever a background task of the client failed with.
        """
        thread = self._thread
        assert thread is not None
        while thread.is_alive():
            if self._token is not None:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._scope.cancel)
            thread.join(0.1 if self._token is None else None)
        if self._failure is not None:
            raise self._failure

    def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: object,
        undo: Callable[[T], Awaitable[object]] | None = None,
        **more: object,
    ) -> T:
        """What ``await function(*args, **more)`` returns or raises in the other thread.

        Args:
            function, args, more: what to do.
            undo: called in the other thread with what ``function`` returned, where the caller was interrupted meanwhile
                and will never see it.

        Raises:
            Closed: the client is closed.
            UsageError: this is the thread that would have to do the work.
            OutcomeUnknown: another thread closed the client meanwhile.
        """
        if os.getpid() != self._process:
            raise Closed("this client was made before a fork, in another process: make one in this process")
        if threading.current_thread() is self._thread:
            raise UsageError("a blocking call inside of the client's own thread would wait for itself")
        answer: Future[T] = Future()
        scope = trio.CancelScope()
        work = partial(self._answer, answer, scope, partial(function, *args, **more))
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._begin, work, answer)
        except trio.RunFinishedError:
            raise Closed(CLOSED) from self._failure
        try:
            return answer.result()
        except BaseException:
            if not answer.done():  # it is this thread that was interrupted
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(scope.cancel)
                wait([answer], INTERRUPTED_S)
            came = answer.done() and not answer.cancelled() and answer.exception() is None
            if undo is not None and came:
                with suppress(QuorumqError):
                    self.call(undo, answer.result())
            raise

    def _begin(self, work: Callable[[], Awaitable[None]], answer: Future[T]) -> None:
        if self._nursery is None:
            answer.set_exception(Closed(CLOSED))
        else:
            self._nursery.start_soon(work)

    async def _answer(
        self, answer: Future[T], scope: trio.CancelScope, work: Callable[[], Awaitable[T]]
    ) -> None:
        try:
            with scope:
                answer.set_result(await work())
        except trio.Cancelled:
            answer.set_exception(OutcomeUnknown("the client was closed before the answer came"))
            raise
        except BaseException as error:
            answer.set_exception(error)
        if not answer.done():
            answer.cancel()
            answer.set_running_or_notify_cancel()  # else nobody who waits for it would hear


def _blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method of an async class as one of its counterpart here."""

    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> T:
        return cast("T", self.portal.call(method, self.inner, *args, **more))

    return update_wrapper(called, method)


def _making(
    method: Callable[Concatenate[Any, P], Any], kind: Callable[[Portal, Any], T]
) -> Callable[Concatenate[Any, P], T]:
    """A method that makes something for an ``async with`` as one that makes its counterpart here."""

    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> T:
        return kind(self.portal, method(self.inner, *args, **more))

    return update_wrapper(called, method)


class Counterpart(Generic[Inner]):
    """What stands here for something of `quorumq.client`.

    Attributes:
        portal: where calls run.
        inner: that something.
    """

    __slots__ = ("inner", "portal")

    def __init__(self, portal: Portal, inner: Inner) -> None:
        self.portal = portal
        self.inner = inner


class Entered(Counterpart[Served]):
    """A counterpart that is used by ``with``."""

    __slots__ = ()

    def __enter__(self) -> Self:
        async def end(entered: object) -> None:
            await self.inner.aclose()

        self.portal.call(self.inner.__aenter__, undo=end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Closed):  # whoever waited has heard of it, or nobody did
            self.portal.call(self.inner.__aexit__, kind, exc, trace)


class Message(Counterpart[delivered.Message]):
    """One delivered message: as `quorumq.client.Message`, settled without await."""

    __slots__ = ()

    @property
    def payload(self) -> bytes:
        """The bytes that were published."""
        return self.inner.payload

    @property
    def key(self) -> bytes | None:
        """The key it was published with, or None."""
        return self.inner.key

    @property
    def headers(self) -> Mapping[str, HeaderValue]:
        """Its headers; do not change them."""
        return self.inner.headers

    @property
    def id(self) -> MessageId:
        """Its name, the same in every delivery."""
        return self.inner.id

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self.inner.topic

    @property
    def group(self) -> str:
        """The group that it was delivered to."""
        return self.inner.group

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.inner.partition

    @property
    def attempt(self) -> int:
        """Which delivery this is, 1 for the first."""
        return self.inner.attempt

    @property
    def fencing_token(self) -> Stamp:
        """Rises strictly with each delivery of this message to this group."""
        return self.inner.fencing_token

    @property
    def published_ms(self) -> int:
        """When it was published, by the producer's time of day, in milliseconds since 1970."""
        return self.inner.published_ms

    @property
    def letter(self) -> Letter | None:
        """Why it died, where it was read from a group of dead letters; None otherwise."""
        return self.inner.letter

    @property
    def receipt(self) -> SealedNamed:
        """The receipt, for settling it elsewhere: see `quorumq.client.receipt_to_text`."""
        return self.inner.receipt

    @property
    def is_live(self) -> bool:
        """Whether its hold is certain at this moment."""
        return self.inner.is_live

    @property
    def outcome(self) -> Outcome | None:
        """What became of it, once settled."""
        return self.inner.outcome

    @property
    def failure(self) -> Exception | None:
        """Why the last attempt to settle it failed; None otherwise."""
        return self.inner.failure

    def __repr__(self) -> str:
        return repr(self.inner)

    ack = _blocking(delivered.Message.ack)
    reject = _blocking(delivered.Message.reject)
    dead_letter = _blocking(delivered.Message.dead_letter)
    extend = _blocking(delivered.Message.extend)


def _delivered(
    portal: Portal, settler: SettleCalls, take: Callable[[], Awaitable[list[delivered.Message]]]
) -> list[Message]:
    """What ``take`` gets. What comes for a caller who was interrupted is rejected, to be delivered again at once."""

    async def reject(messages: list[delivered.Message]) -> None:
        await settler.reject(messages, delay=0.0, timeout=INTERRUPTED_S)

    return [Message(portal, one) for one in portal.call(take, undo=reject)]


def _tickets(messages: Iterable[Message | Ticket]) -> list[Ticket]:
    return [one.inner if isinstance(one, Message) else one for one in messages]


class Pending(Counterpart[batches.Pending]):
    """A message that was taken, and may not be stored yet: as `quorumq.client.Pending`."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self.inner.done

    wait = _blocking(batches.Pending.wait)


class Producer(Entered[producing.Producer]):
    """A producer to one topic, to be used by ``with``: as `quorumq.client.Producer`."""

    flush = _blocking(producing.Producer.flush)

    def publish(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
        derived_from: Message | None = None,
        index: int = 0,
        delay: Duration | None = None,
        not_before: datetime | None = None,
        ttl: Duration | None = None,
    ) -> Pending:
        """Take a message; waits while too much is buffered. As `quorumq.client.Producer.publish`."""
        pending = self.portal.call(
            self.inner.publish,
            payload,
            key=key,
            headers=headers,
            partition=partition,
            derived_from=None if derived_from is None else derived_from.inner,
            index=index,
            delay=delay,
            not_before=not_before,
            ttl=ttl,
        )
        return Pending(self.portal, pending)

    def publish_many(self, payloads: Iterable[bytes], **options: Any) -> list[Pending]:
        """`publish` each, with the same options, many in one turn of the client's thread.

        With ``derived_from`` they are its outputs ``index``, ``index + 1`` …, in their order.

        Raises:
            as `publish` does; those before the one that failed were taken.
        """

        rest = iter(payloads)  # in this thread: the client's own has other things to do

        source: Message | None = options.pop("derived_from", None)
        numbers = count(options.pop("index", 0))

        async def take(some: list[bytes]) -> list[batches.Pending]:
            if source is None:
                return [await self.inner.publish(payload, **options) for payload in some]
            return [
                await self.inner.publish(payload, derived_from=source.inner, index=number, **options)
                for payload, number in zip(some, numbers, strict=False)
            ]

        found: list[Pending] = []
        while some := list(islice(rest, PUBLISH_MANY)):
            found += [Pending(self.portal, pending) for pending in self.portal.call(take, some)]
        return found


class Consumer(Entered[consuming.Consumer]):
    """A consumer of one group, to be used by ``with`` and iterated: as `quorumq.client.Consumer`.

    Several threads may iterate one: each message goes to one of them.
    """

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        found = self.next()
        if found is None:
            raise StopIteration
        return found

    def next(self, timeout: float = float("inf")) -> Message | None:
        """The next message, waiting for one if need be.

        Args:
            timeout: seconds to wait; 0 takes what has been fetched already.

        Returns:
            None where none came in time, or the consumer is closed.

        Raises:
            TooFewReplicas, UsageError: as iterating `quorumq.client.Consumer` does.
        """
        found = self.take(1, timeout=timeout)
        return found[0] if found else None

    def take(self, max_messages: int = 1000, *, timeout: float = float("inf")) -> list[Message]:
        """The messages that are there, waiting for the first if need be. As `quorumq.client.Consumer.take`."""
        take = partial(self.inner.take, max_messages, timeout=timeout)
        return _delivered(self.portal, self.inner.settler, take)

    def batches(self, max_messages: int = 1000, *, timeout: float = float("inf")) -> Iterator[list[Message]]:
        """The messages in lists of 1 to ``max_messages``, as they are there: one wait and one ack for many.

        Args:
            max_messages: in a list, at most.
            timeout: end when nothing has come for so many seconds.
        """
        while found := self.take(max_messages, timeout=timeout):
            yield found

    def ack(self, messages: Iterable[Message | Ticket], *, timeout: float | None = None) -> list[Outcome]:
        """Ack many at once: see `Client.ack`."""
        return self.portal.call(self.inner.ack, _tickets(messages), timeout=timeout)


def _fetching(
    method: Callable[Concatenate[Any, P], Awaitable[list[delivered.Message]]],
) -> Callable[Concatenate[Any, P], list[Message]]:
    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> list[Message]:
        return _delivered(self.portal, self.inner, partial(method, self.inner, *args, **more))

    return update_wrapper(called, method)


def _listing(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> Iterator[T]:
        source = method(self.inner, *args, **more)

        async def some() -> list[T]:
            found: list[T] = []
            async for one in source:
                found.append(one)
                if len(found) == PAGE:
                    break
            return found

        try:
            while found := self.portal.call(some):
                yield from found
        finally:
            with suppress(Closed):
                self.portal.call(source.aclose)  # type: ignore[attr-defined]

    return update_wrapper(called, method)


class Client(Counterpart[waiting.Client]):
    """A connected client: as `quorumq.client.Client`. Any number of threads may use it."""

    create_topic = _blocking(waiting.Client.create_topic)
    alter_topic = _blocking(waiting.Client.alter_topic)
    delete_topic = _blocking(waiting.Client.delete_topic)
    topic = _blocking(waiting.Client.topic)
    create_group = _blocking(waiting.Client.create_group)
    rewind = _blocking(waiting.Client.rewind)
    purge = _blocking(waiting.Client.purge)
    metadata = _blocking(waiting.Client.metadata)
    status = _blocking(waiting.Client.status)

    producer = _making(waiting.Client.producer, Producer)
    consumer = _making(waiting.Client.consumer, Consumer)
    fetch = _fetching(waiting.Client.fetch)
    peek = _listing(waiting.Client.peek)

    def lookup(
        self, topic: str, group: str, ids: Iterable[MessageId], *, timeout: float | None = None
    ) -> dict[MessageId, Peek]:
        """What became of messages for a group, as a majority knows it. As `quorumq.client.Client.lookup`."""
        return self.portal.call(self.inner.lookup, topic, group, list(ids), timeout=timeout)

    def redrive(
        self, topic: str, group: str, items: Iterable[Peek], *, timeout: float | None = None
    ) -> Redriven:
        """Make dead letters available again, to that group only. As `quorumq.client.Client.redrive`."""
        return self.portal.call(self.inner.redrive, topic, group, list(items), timeout=timeout)

    def ticket(self, receipt: SealedNamed) -> Ticket:
        """A receipt from elsewhere (`receipt_from_text`), to be given to `ack`, `reject`, `dead_letter`, `extend`."""
        return self.inner.ticket(receipt)

    def ack(self, messages: Iterable[Message | Ticket], *, timeout: float | None = None) -> list[Outcome]:
        """They are processed: never deliver them to this group again. As `quorumq.client.Client.ack`."""
        return self.portal.call(self.inner.ack, _tickets(messages), timeout=timeout)

    def reject(
        self,
        messages: Iterable[Message | Ticket],
        *,
        delay: Duration | None = None,
        timeout: float | None = None,
    ) -> None:
        """Not now: make them available again after a while. As `quorumq.client.Client.reject`."""
        self.portal.call(self.inner.reject, _tickets(messages), delay=delay, timeout=timeout)

    def dead_letter(
        self,
        messages: Iterable[Message | Ticket],
        error: BaseException | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        """Never again, for these groups: keep them as dead letters. As `quorumq.client.Client.dead_letter`."""
        self.portal.call(
            self.inner.dead_letter, _tickets(messages), error=error, reason=reason, timeout=timeout
        )

    def extend(
        self,
        messages: Iterable[Message | Ticket],
        hold_time: Duration | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Keep their holds for ``hold_time``, seconds or a timedelta, from now. As `quorumq.client.Client.extend`."""
        self.portal.call(self.inner.extend, _tickets(messages), hold_time, timeout=timeout)


def _connecting(
    connect: Callable[P, AbstractAsyncContextManager[waiting.Client]],
) -> Callable[P, AbstractContextManager[Client]]:
    def connected(*args: P.args, **more: P.kwargs) -> Iterator[Client]:
        portal = Portal()
        client = portal.open(partial(connect, *args, **more))
        try:
            yield Client(portal, client)
        finally:
            portal.close()

    return update_wrapper(contextmanager(connected), connect)


connect = _connecting(waiting.connect)

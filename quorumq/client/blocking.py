"""The client library for programs without trio: threads, scripts, web workers.

A thread of its own runs trio and the client of client.py in it (portal.py); a call here runs there while the caller
waits. So holds are extended and answers read while the program computes, and there is one implementation of everything.

Promise: a call takes, returns and raises the same as the method of that name in `quorumq.client`. An
exception that interrupts the caller (Ctrl-C) cancels the call, and is raised once that has ended. Messages that arrived
all the same are given back, to be delivered again at once.

with connect(["127.0.0.1:7401", "127.0.0.1:7402"]) as client:
    client.publish("jobs", b"payload")
    with client.consumer("jobs", group="workers") as consumer:
        for message in consumer:
            message.ack()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial, update_wrapper
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from quorumq.client import client as waiting
from quorumq.client.base import message as delivered
from quorumq.client.base.counterparts import Counterpart, blocking
from quorumq.client.base.counterparts import Message as Message
from quorumq.client.base.entry import by_with
from quorumq.client.base.message import MessageId, Settleable, ids_of
from quorumq.client.base.options import NewMessage as NewMessage
from quorumq.client.base.options import Options, Outgoing, refuse
from quorumq.client.base.times import Duration
from quorumq.client.client import Peek, Redriven
from quorumq.client.consume import consumer as consuming
from quorumq.client.consume.consumer import ConsumerOptions
from quorumq.client.consume.settling import SettleCalls
from quorumq.client.consume.work import GRACE_S, TASK_OPTIONS, Pool, Stop
from quorumq.client.consume.work import Task as Task
from quorumq.client.consume.work import Worked as Worked
from quorumq.client.portal import INTERRUPTED_S, PAGE, PUBLISH_MANY, Portal, like, page_of
from quorumq.client.produce import batches
from quorumq.client.produce import producer as producing
from quorumq.client.produce.bulk import outgoing_of
from quorumq.client.produce.producer import ProducerOptions
from quorumq.client.transport.nodes import Closed as Closed
from quorumq.core.values.errors import UsageError
from quorumq.wire.values import SignedNamed

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")
Served = TypeVar("Served", consuming.Consumer, producing.Producer)


class Entered(Counterpart[Served]):
    """A counterpart that is used by ``with``."""

    __slots__ = ()

    def __enter__(self) -> Self:
        async def end(entered: object) -> None:
            await self.inner.close()

        self.portal.call(self.inner.__aenter__, undo=end)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(Closed):  # a caller that waited has received it; else no caller did
            self.portal.call(self.inner.__aexit__, *exc_info)


def _delivered(
    portal: Portal, settler: SettleCalls, take: Callable[[], Awaitable[list[delivered.Message]]]
) -> list[Message]:
    """Return the messages of ``take``. If the caller is interrupted, its messages are given back as interrupted."""

    async def reject(messages: list[delivered.Message]) -> None:
        await settler.reject(messages, interrupted=True, timeout=INTERRUPTED_S)

    return [Message(portal, one) for one in portal.call(take, undo=reject)]


def _settling(
    method: Callable[Concatenate[Any, Iterable[Settleable], P], Awaitable[T]],
) -> Callable[Concatenate[Any, Iterable[Message | Settleable], P], T]:
    """Return a method that settles messages as one that settles messages as they are here."""

    def called(self: Any, messages: Any, *args: P.args, **more: P.kwargs) -> T:
        alone = isinstance(messages, str | MessageId) or not isinstance(messages, Iterable)
        given = [messages] if alone else messages
        tickets = [one.inner if isinstance(one, Message) else one for one in given]
        return cast("T", self.portal.call(method, self.inner, tickets, *args, **more))

    wrapped: Any = update_wrapper(called, method)
    return cast("Callable[Concatenate[Any, Iterable[Message | Settleable], P], T]", wrapped)


class Pending(Counterpart[batches.Pending]):
    """A message that was taken, and may not be stored yet: as `quorumq.client.Pending`."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        """Return True if `wait` would return or raise at once."""
        return self.inner.done

    wait = blocking(batches.Pending.wait)


class Producer(Entered[producing.Producer]):
    """A producer to one topic: as `quorumq.client.Producer`."""

    def open(self) -> None:
        """Begin, until `close`: for programs whose start and stop are two calls. Else use ``with``."""
        self.__enter__()

    flush = blocking(producing.Producer.flush)
    close = blocking(producing.Producer.close)
    publish = blocking(producing.Producer.publish)

    @like(producing.Producer.send)
    def send(self, payload: bytes | None = None, **options: Unpack[Options]) -> Pending:
        return Pending(self.portal, self.portal.call(self.inner.send, payload, **cast("Any", options)))

    @like(producing.Producer.publish_many)
    def publish_many(self, messages: Iterable[Outgoing], **options: Unpack[Options]) -> list[MessageId]:
        rest = outgoing_of(messages)  # in this thread: the client's own has other things to do
        bulk = self.portal.call(self.inner._bulk, **cast("Any", options))
        try:
            more = True
            while more:
                chunk: list[Outgoing] = []
                try:
                    chunk.extend(islice(rest, PUBLISH_MANY))
                except Exception as error:
                    self.portal.call(bulk.take, chunk)
                    self.portal.call(bulk.end_by, error)
                    raise
                more = bool(chunk) and self.portal.call(bulk.take, chunk)
            return self.portal.call(bulk.finish)
        finally:
            bulk.abandon()


class Consumer(Entered[consuming.Consumer]):
    """A consumer of one group, to be used by ``with`` and iterated: as `quorumq.client.Consumer`.

    Several threads may iterate one: each message goes to one of them.
    """

    portal: Portal

    def open(self) -> None:
        """Begin to fetch, until `close`: for programs whose start and stop are two calls. Else use ``with``."""
        self.__enter__()

    def close(self) -> None:
        """End: nothing more is handed over, and the rest is given back. Takes at most a second."""
        self.__exit__()

    drain = blocking(consuming.Consumer.drain)
    ack = _settling(consuming.Consumer.ack)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.next()
        if message is None:
            raise StopIteration
        return message

    def next(self, timeout: float = float("inf")) -> Message | None:
        """Return the next message, waiting for one if need be.

        Args:
            timeout: seconds to wait; 0 takes messages that have been fetched already.

        Returns:
            None if none arrived in time, or the consumer is closed.

        Raises:
            TooFewReplicas, UsageError: as iterating `quorumq.client.Consumer` does.
        """
        messages = self.take(1, timeout=timeout)
        return messages[0] if messages else None

    @like(consuming.Consumer.take)
    def take(self, max_messages: int = 1000, *, timeout: float = float("inf")) -> list[Message]:
        take = partial(self.inner.take, max_messages, timeout=timeout)
        return _delivered(self.portal, self.inner.settler, take)

    @like(consuming.Consumer.batches)
    def batches(self, max_messages: int = 1000, *, timeout: float = float("inf")) -> Iterator[list[Message]]:
        while batch := self.take(max_messages, timeout=timeout):
            yield batch


def _fetching(
    method: Callable[Concatenate[Any, P], Awaitable[list[delivered.Message]]],
) -> Callable[Concatenate[Any, P], list[Message]]:
    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> list[Message]:
        return _delivered(self.portal, self.inner, partial(method, self.inner, *args, **more))

    return update_wrapper(called, method)


def _listing(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]], most: int = PAGE
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    def called(self: Any, /, *args: P.args, **more: P.kwargs) -> Iterator[T]:
        source = method(self.inner, *args, **more)

        try:
            while page := self.portal.call(page_of, source, most):
                yield from page
        finally:
            with suppress(Closed):
                self.portal.call(source.aclose)  # type: ignore[attr-defined]

    return update_wrapper(called, method)


class Client(Counterpart[waiting.Client]):
    """A connected client: as `quorumq.client.Client`. Any number of threads may use it."""

    portal: Portal

    @classmethod
    def open(cls, addresses: str | Sequence[str] | None = None, **options: Any) -> Client:
        """Connect until `close`, like `quorumq.client.Client.open`. Without `close` nothing is flushed at the end."""
        portal = Portal()
        return cls(portal, portal.open(partial(waiting.connect, addresses, **options)))

    def close(self) -> None:
        """Flush the producers, and end: later calls raise `Closed`. As `quorumq.client.Client.close`."""
        try:
            with suppress(Closed):
                self.portal.call(self.inner.context.flush)
        finally:
            self.portal.close()

    create_topic = blocking(waiting.Client.create_topic)
    alter_topic = blocking(waiting.Client.alter_topic)
    delete_topic = blocking(waiting.Client.delete_topic)
    move_partition = blocking(waiting.Client.move_partition)
    give_up_source = blocking(waiting.Client.give_up_source)
    add_node = blocking(waiting.Client.add_node)
    drain_node = blocking(waiting.Client.drain_node)
    move_voter = blocking(waiting.Client.move_voter)
    raise_voters = blocking(waiting.Client.raise_voters)
    remove_node = blocking(waiting.Client.remove_node)
    topic = blocking(waiting.Client.topic)
    labels = blocking(waiting.Client.labels)
    set_labels = blocking(waiting.Client.set_labels)
    create_group = blocking(waiting.Client.create_group)
    rewind = blocking(waiting.Client.rewind)
    pause_group = blocking(waiting.Client.pause_group)
    resume_group = blocking(waiting.Client.resume_group)
    limit_group = blocking(waiting.Client.limit_group)
    delete_group = blocking(waiting.Client.delete_group)
    backlog = blocking(waiting.Client.backlog)
    backlogs = blocking(waiting.Client.backlogs)
    count_dead_letters = blocking(waiting.Client.count_dead_letters)
    count_rewind = blocking(waiting.Client.count_rewind)
    search = blocking(waiting.Client.search)
    show = blocking(waiting.Client.show)
    purge = blocking(waiting.Client.purge)
    metadata = blocking(waiting.Client.metadata)
    status = blocking(waiting.Client.status)
    ack = _settling(waiting.Client.ack)
    reject = _settling(waiting.Client.reject)
    dead_letter = _settling(waiting.Client.dead_letter)
    extend = _settling(waiting.Client.extend)
    publish = blocking(waiting.Client.publish)
    fetch = _fetching(waiting.Client.fetch)
    fetch_any = _fetching(waiting.Client.fetch_any)
    peek = _listing(waiting.Client.peek)
    tail = _listing(waiting.Client.tail, 1)

    @like(waiting.Client.producer)
    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        return Producer(self.portal, self.inner.producer(topic, **options))

    @like(waiting.Client.consumer)
    def consumer(
        self, topic: str | Sequence[str], group: str, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        return Consumer(self.portal, self.inner.consumer(topic, group, **options))

    @like(waiting.Client.work)
    def work(
        self,
        topic: str | Sequence[str],
        group: str,
        handler: Callable[[Message], object],
        *,
        grace: Duration = GRACE_S,
        stop: Stop | None = None,
        signals: bool | None = None,
        **options: Any,
    ) -> Worked:
        refuse("work", options, TASK_OPTIONS)
        task = Task(topic, group, cast("Any", handler), **options)
        return self.work_all([task], grace=grace, stop=stop, signals=signals)

    @like(waiting.Client.work_all)
    def work_all(
        self,
        tasks: Sequence[Task],
        *,
        grace: Duration = GRACE_S,
        stop: Stop | None = None,
        signals: bool | None = None,
    ) -> Worked:
        from quorumq.client.signals import (
            stopped_by_signals,  # not imported by programs that only publish
        )

        inner = self.inner
        pool = Pool(inner.context, inner.consumer, [self._plain(task) for task in tasks], grace, stop)
        with stopped_by_signals(pool.stop, self.portal.post, signals=signals):
            return self.portal.call(pool.run)

    def _plain(self, task: Task) -> Task:
        """Return the same with a handler that gets messages as they are here, and the caller's context variables."""
        task.check()
        if task.is_async:
            raise UsageError(
                f"{task.handler!r} is async: give it to quorumq.client, or a plain function here"
            )
        handler: Callable[[Any], Any] = task.handler
        context = copy_context()

        def handled(one: Any) -> Any:  # made by `for_thread`
            return context.copy().run(handler, Message(self.portal, one.inner))

        return replace(task, handler=update_wrapper(handled, handler))

    @like(waiting.Client.lookup)
    def lookup(
        self,
        topic: str,
        group: str,
        ids: Iterable[MessageId | str] | MessageId | str,
        *,
        timeout: float | None = None,
    ) -> dict[MessageId, Peek]:
        return self.portal.call(self.inner.lookup, topic, group, ids_of(ids), timeout=timeout)

    @like(waiting.Client.redrive)
    def redrive(
        self,
        topic: str,
        group: str,
        items: Iterable[Peek | MessageId | str] | Peek | MessageId | str,
        *,
        timeout: float | None = None,
    ) -> Redriven:
        alone = isinstance(items, Peek | MessageId | str) or not isinstance(items, Iterable)
        given = [items] if alone else list(items)
        return self.portal.call(self.inner.redrive, topic, group, given, timeout=timeout)

    @like(waiting.Client.ticket)
    def ticket(self, receipt: SignedNamed) -> Settleable:
        return self.inner.ticket(receipt)


def _connecting(
    connect: Callable[P, AbstractAsyncContextManager[waiting.Client]],
) -> Callable[P, AbstractContextManager[Client]]:
    def connected(*args: P.args, **more: P.kwargs) -> Iterator[Client]:
        portal = Portal()
        client = Client(portal, portal.open(partial(connect, *args, **more)))
        try:
            yield client
        except BaseException:
            portal.close()
            raise
        client.close()

    return update_wrapper(by_with(contextmanager(connected)), connect)


connect = _connecting(waiting.connect)

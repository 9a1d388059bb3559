"""The client library for asyncio: the classes of `quorumq.client`, whose calls may be awaited in an event loop.

A thread of its own runs trio and the client of client.py in it (portal.py). Awaited calls run there, and the
event loop goes on meanwhile. So there is one implementation of everything, and holds are extended and answers read
also while a handler keeps the event loop busy. docs/decisions/0010 has the costs and the other measurements.

Promise: a call takes, returns and raises the same as the method of that name in `quorumq.client`. Cancelling
a task cancels its call, and is over once that has ended; messages that arrived all the same are rejected, to be
delivered again at once.

async with connect(["127.0.0.1:7401", "127.0.0.1:7402"]) as client:
    await client.publish("jobs", b"payload")
    async with client.consumer("jobs", group="workers") as consumer:
        async for message in consumer:
            await message.ack()
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from itertools import islice
from typing import Any, Final, ParamSpec, TypeVar, Unpack, cast

import trio

from quorumq.client import client as waiting
from quorumq.client.admin.counts import Match
from quorumq.client.base.entry import by_async_with
from quorumq.client.base.message import CALLS, MessageId
from quorumq.client.base.message import Message as Message
from quorumq.client.base.options import NewMessage as NewMessage
from quorumq.client.base.options import Options, Outgoing
from quorumq.client.base.times import Duration
from quorumq.client.client import Peek
from quorumq.client.consume import consumer as consuming
from quorumq.client.consume.consumer import ConsumerOptions
from quorumq.client.consume.work import GRACE_S, Pool, Stop
from quorumq.client.consume.work import Task as Task
from quorumq.client.consume.work import Worked as Worked
from quorumq.client.portal import (
    CLOSED_MEANWHILE,
    INTERRUPTED_S,
    PAGE,
    PUBLISH_MANY,
    Portal,
    is_cancelled,
    like,
    page_of,
)
from quorumq.client.produce import batches
from quorumq.client.produce import producer as producing
from quorumq.client.produce.bulk import outgoing_of
from quorumq.client.produce.producer import ProducerOptions
from quorumq.client.transport.nodes import CLOSED
from quorumq.client.transport.nodes import Closed as Closed
from quorumq.core.values.errors import OutcomeUnknown, QuorumqError, UsageError

P = ParamSpec("P")
T = TypeVar("T")
Made = TypeVar("Made", bound="Bridged")

TURN_S: Final = 0.25
"""Longest seconds between two turns of the event loop while a pool is awaited."""

Quick = Callable[[], batches.Pending | None]
"""Function that begins a call without a task, and returns its pending outcome; None if it takes a task."""


@dataclass(slots=True, eq=False)
class Call:
    """One call on its way through the other thread."""

    work: Callable[[], Awaitable[Any]]  # to be run in the other thread
    answer: asyncio.Future[Any]  # wakes the caller
    quick: Quick | None = None  # does the same without a task, if that can be
    pending: batches.Pending | None = None  # result of ``quick``, until it has its outcome
    scope: trio.CancelScope | None = None  # around ``work``
    certain: bool = False  # it begins though its caller was cancelled before
    is_running: bool = False  # whether its task has begun
    value: Any = None  # how it ended: so, or by an error
    error: BaseException | None = None
    ended: bool = False  # whether the event loop knows how
    awaited: asyncio.Future[None] | None = None  # wakes a cancelled caller at the end


class Bridge(Portal):
    """Thread that runs trio, with calls in it from an event loop.

    Waking the other side costs more than a call, so all that is asked in one turn of the event loop goes over at once,
    and so do all answers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        # Either side appends, and then wakes the other one unless it did: which first forgets that, and then looks.
        self._asked: deque[Call] = deque()
        self._asked_woken = False
        self._answered: deque[Call] = deque()
        self._answered_woken = False

    async def call(  # type: ignore[override]
        self,
        function: Callable[..., Awaitable[T]],
        *args: object,
        undo: Callable[[T], Awaitable[object]] | None = None,
        quick: Quick | None = None,
        certain: bool = False,
        **more: object,
    ) -> T:
        """Call in the other thread like `Portal.call`, awaited in the event loop in which this was made.

        ``quick`` does the same there without a task: its result has the outcome. It returns None if it cannot.
        A ``certain`` call begins though its caller is cancelled before.
        """
        self.check_process()
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("this client was made in another event loop: connect in this one, too")
        call = Call(partial(function, *args, **more), self._loop.create_future(), quick)
        call.certain = certain
        self._ask(call)
        try:
            return cast("T", await call.answer)
        except asyncio.CancelledError:
            await self._cancel(call)
            if undo is not None and call.ended and call.error is None:
                with suppress(QuorumqError):
                    self._ask(Call(partial(undo, call.value), self._loop.create_future()))
            raise

    def _ask(self, call: Call) -> None:
        assert self._token is not None
        self._asked.append(call)
        if not self._asked_woken:
            self._asked_woken = True
            try:
                self._token.run_sync_soon(self._begin_asked)
            except trio.RunFinishedError:  # no one takes it: the next call has to look, too
                self._asked_woken = False
                self._asked.clear()
                raise Closed(CLOSED) from self._failure

    async def _cancel(self, call: Call) -> None:
        """Cancel it there, and wait until it has ended, for a while."""
        if not call.ended:
            call.awaited = self._loop.create_future()
            self.post(self._drop, call)
            await asyncio.wait([call.awaited], timeout=INTERRUPTED_S)

    def _begin_asked(self) -> None:
        self._asked_woken = False
        while self._asked:
            call = self._asked.popleft()
            if self._nursery is None:
                call.error = Closed(CLOSED)
                self._answer_call(call)
            elif call.quick is None or not self._begin_quick(call, call.quick):
                call.scope = trio.CancelScope()
                self._nursery.start_soon(self._work, call, call.scope)

    def _begin_quick(self, call: Call, quick: Quick) -> bool:
        """Return True if the call needs no task: it is answered, or will be when `quick`'s result has its outcome."""
        try:
            pending = call.pending = quick()
        except BaseException as error:
            call.error = error
            self._answer_call(call)
            return True
        if pending is None:
            return False
        if pending.done:
            self._end_quick(call)
        else:
            pending._watch(partial(self._end_quick, call))
        return True

    def _end_quick(self, call: Call) -> None:
        """Answer a call whose `pending` has its outcome."""
        pending, call.pending = call.pending, None
        if pending is None:  # the caller was cancelled before
            return
        try:
            call.value = pending._outcome()
        except QuorumqError as error:
            call.error = error
        self._answer_call(call)

    def _drop(self, call: Call) -> None:
        """Drop a call whose caller was cancelled."""
        pending, call.pending = call.pending, None
        if pending is not None:
            call.error = asyncio.CancelledError()
            self._answer_call(call)
        elif call.certain and not call.is_running:
            self.post(self._drop, call)  # its task begins in the next turn
        elif call.scope is not None:
            call.scope.cancel()

    async def _work(self, call: Call, scope: trio.CancelScope) -> None:
        call.is_running = True
        try:
            with scope:
                call.value = await call.work()
            if scope.cancelled_caught:
                call.error = asyncio.CancelledError()
        except BaseException as error:
            call.error = error
            if is_cancelled(error):
                call.error = OutcomeUnknown(CLOSED_MEANWHILE)
                raise
        finally:
            self._answer_call(call)

    def _answer_call(self, call: Call) -> None:
        self._answered.append(call)
        if not self._answered_woken:
            self._answered_woken = True
            with suppress(RuntimeError):  # the event loop is closed: no caller waits
                self._loop.call_soon_threadsafe(self._take_answers)

    def _take_answers(self) -> None:
        self._answered_woken = False
        while self._answered:
            call = self._answered.popleft()
            call.ended = True
            if call.awaited is not None and not call.awaited.done():
                call.awaited.set_result(None)
            if call.answer.done():
                continue
            if call.error is None:
                call.answer.set_result(call.value)
            else:
                call.answer.set_exception(call.error)

    async def aclose(self) -> None:
        """Close like `close`, without keeping the event loop."""
        await asyncio.shield(self._loop.run_in_executor(None, self.close))

    # ------------------------------------------------------------------- handlers

    def handler(self, task: Task) -> Task:
        """Return ``task`` for the other thread: an ``async def`` runs in the event loop all the same.

        Either kind sees the context variables of this method's caller, and changes only its own copy.
        """
        task.check()
        context, inner = copy_context(), cast("Any", task.handler)
        if not task.is_async:
            return replace(
                task, handler=update_wrapper(lambda message: context.copy().run(inner, message), inner)
            )

        async def handled(message: Message) -> None:
            own = context.copy()
            own.run(CALLS.set, CALLS.get())
            await self._in_loop(partial(inner, message), own)

        return replace(task, handler=update_wrapper(handled, inner))

    async def _in_loop(self, work: Callable[[], Any], context: Context) -> None:
        """Run a coroutine of the event loop from the other thread, and wait until it has ended in any way."""
        ended = trio.Event()
        tasks: list[asyncio.Task[None]] = []
        exits: list[SystemExit] = []
        loop = self._loop

        async def held() -> None:  # SystemExit in a task would end the event loop, before the pool
            try:
                await work()
            except SystemExit as error:
                exits.append(error)

        def begin() -> None:
            task = loop.create_task(held(), context=context)
            task.add_done_callback(lambda task: self.post(ended.set))
            tasks.append(task)

        loop.call_soon_threadsafe(begin)
        try:
            await ended.wait()
        except trio.Cancelled:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            with trio.CancelScope(shield=True):
                await ended.wait()
            if tasks[0].cancelled() or tasks[0].exception() is not None:
                raise
        if exits:
            raise exits[0]
        (task,) = tasks
        if task.cancelled():
            raise QuorumqError("the handler's task was cancelled, and not by its pool")
        error = task.exception()
        if error is not None:
            raise error


class Bridged:
    """Base of objects that are made in an event loop and work in the other thread."""

    bridge: Bridge


async def _reject(owner: Any, came: list[Message] | Message) -> None:
    """Have messages that arrived for a cancelled caller delivered again at once."""
    settler = getattr(owner, "settler", owner)
    messages = [came] if isinstance(came, Message) else came
    await settler.reject(messages, interrupted=True, timeout=INTERRUPTED_S)


UNDO: Final = {"__anext__": _reject, "take": _reject, "fetch": _reject, "fetch_any": _reject}
"""Functions that undo a call by its result. They run if the caller was cancelled and will never see the result."""

CERTAIN: Final = {"ack"}
"""Methods that are carried out once they are called. As in trio, a cancelled ack that has begun is sent: else its
message stays unsettled, and the program cannot know."""

QUICK: Final = {"publish": "_publish_now"}
"""Methods that do the same as a call without a task, if the call would wait for nothing but the answer."""


def _bridge(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a method of a class of `quorumq.client`, to be awaited in either thread."""
    undo, quick = UNDO.get(name), QUICK.get(name)

    async def called(self: Bridged, /, *args: Any, **more: Any) -> Any:
        if self.bridge.is_here:
            return await method(self, *args, **more)
        back = None if undo is None else partial(undo, self)
        now = None if quick is None else partial(getattr(self, quick), *args, **more)
        return await self.bridge.call(
            method, self, *args, undo=back, quick=now, certain=name in CERTAIN, **more
        )

    return update_wrapper(called, method)


def bridged(cls: type[T]) -> type[T]:
    """Have all that can be awaited of ``cls``, and that it does not say itself, go through its bridge."""
    for name, method in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if name not in vars(cls) and (not name.startswith("_") or name.startswith("__a")):
            setattr(cls, name, _bridge(name, method))
    return cls


class Pending(Bridged):
    """A message that was taken, and may not be stored yet: as `quorumq.client.Pending`."""

    def __init__(self, bridge: Bridge, inner: batches.Pending) -> None:
        self.bridge = bridge
        self._inner = inner

    @property
    def done(self) -> bool:
        """Return True if `wait` would return or raise at once."""
        return self._inner.done

    @like(batches.Pending.wait)
    async def wait(self) -> MessageId:
        return await self.bridge.call(self._inner.wait, quick=lambda: self._inner)


@bridged
class Producer(Bridged, producing.Producer):
    """Publisher to one topic: as `quorumq.client.Producer`."""

    @like(producing.Producer.send)
    async def send(self, payload: bytes | None = None, **options: Unpack[Options]) -> Any:
        if self.bridge.is_here:
            return await super().send(payload, **options)
        return Pending(self.bridge, await self.bridge.call(super().send, payload, **cast("Any", options)))

    @like(producing.Producer.publish_many)
    async def publish_many(self, messages: Iterable[Outgoing], **options: Unpack[Options]) -> list[MessageId]:
        call = self.bridge.call
        rest = outgoing_of(messages)  # in this thread: it is the caller's
        bulk = await call(self._bulk, **cast("Any", options))
        try:
            more = True
            while more:
                chunk: list[Outgoing] = []
                try:
                    chunk.extend(islice(rest, PUBLISH_MANY))
                except Exception as error:
                    await call(bulk.take, chunk)
                    await call(bulk.end_by, error)
                    raise
                more = bool(chunk) and await call(bulk.take, chunk)
            return await call(bulk.finish)
        finally:
            bulk.abandon()


@bridged
class Consumer(Bridged, consuming.Consumer):
    """A stream of messages of one group: as `quorumq.client.Consumer`."""


@bridged
class Client(Bridged, waiting.Client):
    """A connected client: as `quorumq.client.Client`. It belongs to the event loop in which it was made."""

    def __init__(self, bridge: Bridge, inner: waiting.Client) -> None:
        super().__init__(inner.context)
        self.bridge = bridge

    @classmethod
    async def open(cls, addresses: str | Sequence[str] | None = None, **options: Any) -> Client:
        """Connect until `close`, like `quorumq.client.Client.open`. Without `close` nothing is flushed at the end."""
        try:
            bridge = Bridge(asyncio.get_running_loop())
        except RuntimeError:
            raise UsageError(
                "quorumq.client.aio runs on asyncio, and this is no coroutine of it: use asyncio.run; on trio "
                "quorumq.client, and anywhere else quorumq.client.blocking"
            ) from None
        try:
            inner = await asyncio.wrap_future(bridge.begin(partial(waiting.connect, addresses, **options)))
        except BaseException:
            await bridge.aclose()
            raise
        return cls(bridge, inner)

    @like(waiting.Client.close)
    async def close(self) -> None:
        try:
            with suppress(Closed):
                await self.bridge.call(self.context.flush)
        finally:
            await self.bridge.aclose()

    work = waiting.Client.work  # calls `work_all`, in the event loop

    @like(waiting.Client.producer)
    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        return self._here(Producer, super().producer(topic, **options))

    @like(waiting.Client.consumer)
    def consumer(
        self, topic: str | Sequence[str], group: str, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        return self._here(Consumer, super().consumer(topic, group, **options))

    def _here(self, kind: type[Made], made: Any) -> Made:
        """Turn a new object of `quorumq.client` into its class here."""
        made.__class__ = kind
        made.bridge = self.bridge
        return cast("Made", made)

    @like(waiting.Client.peek)
    async def peek(self, *args: Any, **more: Any) -> AsyncIterator[Peek]:
        async for one in self._listed(super().peek(*args, **more)):
            yield one

    @like(waiting.Client.tail)
    async def tail(self, *args: Any, **more: Any) -> AsyncIterator[Match]:
        async for one in self._listed(super().tail(*args, **more), 1):
            yield one

    async def _listed(self, source: Any, most: int = PAGE) -> AsyncIterator[Any]:
        """Yield the items of a listing in the other thread, handed over up to ``most`` at once."""
        try:
            while page := await self.bridge.call(page_of, source, most):
                for one in page:
                    yield one
        finally:
            with suppress(Closed):
                await self.bridge.call(source.aclose)

    @like(waiting.Client.work_all)
    async def work_all(
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

        pool = Pool(self.context, self.consumer, [self.bridge.handler(task) for task in tasks], grace, stop)
        turning = asyncio.create_task(_turn())
        try:
            with stopped_by_signals(pool.stop, self.bridge.post, signals=signals):
                return await self.bridge.call(pool.run)
        finally:
            turning.cancel()


async def _turn() -> None:
    """Have the event loop turn: a notebook's handler of SIGINT leaves its cancellations to the next turn."""
    while True:
        await asyncio.sleep(TURN_S)


def _connecting(
    connect: Callable[P, AbstractAsyncContextManager[waiting.Client]],
) -> Callable[P, AbstractAsyncContextManager[Client]]:
    @by_async_with
    @asynccontextmanager
    async def connected(*args: P.args, **more: P.kwargs) -> AsyncIterator[Client]:
        client = await Client.open(*args, **more)  # type: ignore[arg-type]
        try:
            yield client
        except BaseException:  # unconfirmed messages are given up
            await client.bridge.aclose()
            raise
        await client.close()

    return update_wrapper(connected, connect)


connect = _connecting(waiting.connect)

"""The client for asyncio behaves as the one for trio, in an event loop that goes on meanwhile."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import inspect
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from types import ModuleType
from typing import Any

import pytest
import trio

import quorumq.client
from quorumq.client import (
    NotFound,
    Outcome,
    OutcomeUnknown,
    TooFewReplicas,
    TooLarge,
    UsageError,
    aio,
    blocking,
)
from quorumq.client.aio import Call, Client, Consumer, Message, Pending, Producer
from quorumq.client.blocking import Message as PlainMessage
from quorumq.client.consume.work import Task
from quorumq.client.produce.bulk import NotAllStored
from quorumq.client.transport.nodes import Closed
from quorumq.core.messages import Publish
from tests.client.fake import FakeCluster, failing
from tests.client.steps import in_a_loop
from tests.patience import PATIENCE_S

CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop, with a client of a fake cluster."""

    async def whole(**fixtures: Any) -> None:
        async with asyncio.timeout(PATIENCE_S), in_a_loop() as client:
            await client.create_topic("jobs")
            await test(client, **fixtures)

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(whole(**fixtures))

    names = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return run


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel it, and see it end by that."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("module", [aio, blocking])
def test_a_type_checker_finds_the_types_of_handlers_and_pools(module: ModuleType) -> None:
    """In its strict mode it finds the module's own classes, and what is imported ``as`` itself."""
    body = ast.parse(inspect.getsource(module)).body
    own = {node.name for node in body if isinstance(node, ast.ClassDef)}
    imported = {name.asname for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {"Closed", "Message", "NewMessage", "Task", "Worked"} <= own | imported


@looped
async def test_published_messages_are_delivered_and_acked(client: Client) -> None:
    first = await client.publish("jobs", b"one", key="k")
    async with client.producer("jobs") as producer:
        second = await producer.publish(b"two")
        pending = await producer.send(b"three")
        assert isinstance(pending, Pending)
        third = await pending.wait()
        assert pending.done
        more = await producer.publish_many(b"%d" % number for number in range(600))
        await producer.flush()
    assert len({first, second, third, *more}) == 603
    async with client.consumer("jobs", "g") as consumer:
        message = await anext(consumer)
        assert (message.id, message.payload, message.key, message.attempt) == (first, b"one", b"k", 1)
        assert message.is_live
        assert await message.ack() is Outcome.ACKED
        rest = []
        async for batch in consumer.batches(timeout=0.3):
            rest += batch
            assert await consumer.ack(batch) == [Outcome.ACKED] * len(batch)
        assert [one.payload for one in rest] == [b"two", b"three", *(b"%d" % n for n in range(600))]
    listed = [peek async for peek in client.peek("jobs", "g", "all")]
    assert {peek.peeked.state for peek in listed} == {"acked"}


@looped
async def test_messages_are_rejected_given_up_extended_and_redriven(client: Client) -> None:
    await client.publish("jobs", b"x")
    (message,) = await client.fetch("jobs", "g", max_wait=5.0)
    await message.extend(2.0)
    await message.reject(0.0)
    (message,) = await client.fetch("jobs", "g", max_wait=5.0)
    assert message.attempt == 2
    await message.dead_letter(ValueError("no"))
    deaths = [peek async for peek in client.peek("jobs", "g", "dead")]
    assert (await client.redrive("jobs", "g", deaths)).messages == 1
    assert [one.payload for one in await client.fetch("jobs", "g", max_wait=5.0)] == [b"x"]


@looped
async def test_many_tasks_share_the_client_while_the_loop_goes_on(client: Client) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    ids = await asyncio.gather(*(client.publish("jobs", b"%d" % number) for number in range(300)))
    counting.cancel()
    assert len(set(ids)) == 300
    assert turns > 10


@looped
async def test_a_publish_takes_no_task_of_the_other_thread(client: Client) -> None:
    """A task would be most of the cost of asyncio beside trio."""
    async with client.producer("jobs") as producer:
        await asyncio.gather(client.publish("jobs", b"the first opens a session"), producer.publish(b"x"))
        works: list[Call] = []
        work = client.bridge._work

        async def counted(call: Call, scope: trio.CancelScope) -> None:
            works.append(call)
            await work(call, scope)

        client.bridge._work = counted  # type: ignore[method-assign]
        ids = await asyncio.gather(
            *(client.publish("jobs", b"%d" % number, key="k") for number in range(100)),
            *(producer.publish(json=number) for number in range(100)),
        )
        pending = await producer.send(b"y")
        works.clear()
        assert len({*ids, await pending.wait(), await pending.wait()}) == 201
        assert not works


@looped
async def test_a_failed_publish_raises_at_its_await(client: Client) -> None:
    await client.publish("jobs", b"the first opens a session")
    with pytest.raises(TooLarge):
        await client.publish("jobs", b"x" * (2 << 20))
    with pytest.raises(TypeError, match="neither"):
        await client.publish("jobs")
    with pytest.raises(NotFound, match="there is no 7"):
        await client.publish("jobs", b"x", partition=7)
    await client.delete_topic("jobs")
    with pytest.raises(NotFound) as caught:
        await client.publish("jobs", b"x")
    assert "jobs" in str(caught.value)
    await client.create_topic("jobs")
    await client.publish("jobs", b"to the topic of today")


def test_a_cancelled_publish_ends_at_once_and_has_no_later_effect() -> None:
    async def main() -> None:
        clusters: list[FakeCluster] = []
        async with asyncio.timeout(PATIENCE_S), in_a_loop(clusters) as client:
            (cluster,) = clusters
            await client.create_topic("jobs")
            await client.publish("jobs", b"first")
            cluster.lag = 0.3
            began = asyncio.get_running_loop().time()
            publishing = [asyncio.create_task(client.publish("jobs", b"%d" % number)) for number in range(3)]
            while len(cluster.of(Publish)) < 2:
                await asyncio.sleep(0)
            await cancelled(publishing[0])
            assert asyncio.get_running_loop().time() - began < 0.3, "it waited for the answer"
            await asyncio.gather(*publishing[1:])
            cluster.answer = failing("conflict", times=1, of=Publish)
            failed = asyncio.create_task(client.publish("jobs", b"given up"))
            asked = len(cluster.of(Publish))
            while len(cluster.of(Publish)) == asked:
                await asyncio.sleep(0)
            failed.cancel()
            await asyncio.wait([failed])
            await asyncio.sleep(0.5)
            cluster.answer = lambda node, request: None
            await client.publish("jobs", b"last")
            cluster.lag = 0.0
            messages = await client.fetch("jobs", "g", min_messages=5, max_wait=5.0)
        assert {b"first", b"0", b"1", b"2", b"last"} <= {message.payload for message in messages}

    asyncio.run(main())


@looped
async def test_errors_are_those_of_the_client(client: Client) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        await client.topic("nowhere")
    with pytest.raises(UsageError, match="linger"):
        client.producer("jobs", linger=-1)
    async with client.producer("jobs") as producer:
        with pytest.raises(NotAllStored):
            await producer.publish_many([b"good", b"x" * (2 << 20)])

        def breaks() -> Any:
            yield b"one"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await producer.publish_many(breaks())


def test_it_connects_and_says_what_is_wrong_with_an_address() -> None:
    async def no_client() -> None:
        async with aio.connect("127.0.0.1:1", timeout=0.3):
            raise AssertionError

    async def wrong() -> None:
        async with aio.connect("here"):
            raise AssertionError

    with pytest.raises(TooFewReplicas):
        asyncio.run(no_client())
    with pytest.raises(UsageError, match="here"):
        asyncio.run(wrong())
    assert not [thread for thread in threading.enumerate() if thread.name == "quorumq"]


def test_a_client_belongs_to_its_event_loop_and_ends_with_its_block() -> None:
    async def main() -> Client:
        async with in_a_loop() as client:
            error = await asyncio.to_thread(lambda: asyncio.run(elsewhere(client)))
            assert "another event loop" in str(error)
        for _ in range(3):  # each time, not the first time alone
            with pytest.raises(Closed):
                await asyncio.wait_for(client.publish("jobs", b"x"), PATIENCE_S)
        return client

    async def elsewhere(client: Client) -> UsageError:
        with pytest.raises(UsageError) as caught:
            await client.publish("jobs", b"x")
        return caught.value

    asyncio.run(main())


@looped
async def test_closing_flushes_and_says_what_was_given_up(client: Client) -> None:
    pending = await client.producer("jobs").send(b"x")
    await client.close()
    assert pending.done
    with pytest.raises(Closed):
        await client.publish("jobs", b"x")


@looped
async def test_a_pool_whose_client_is_closed_ends_by_one_error(client: Client) -> None:
    started = asyncio.Event()

    async def handler(message: Message) -> None:
        started.set()

    working = asyncio.create_task(client.work("jobs", "g", handler, concurrency=2, signals=False))
    await client.publish("jobs", b"x")
    await started.wait()
    await client.close()
    with pytest.raises(OutcomeUnknown, match="closed"):
        await working


# --------------------------------------------------------------------------------------- cancellation


@looped
async def test_a_cancelled_wait_takes_no_message_along(client: Client) -> None:
    async with client.consumer("jobs", "g") as consumer:
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0.05)
        await cancelled(waiting)
        await client.publish("jobs", b"x")
        assert (await anext(consumer)).attempt == 1


@looped
async def test_messages_of_a_cancelled_task_come_again_at_once(client: Client) -> None:
    """The message is there already, and the event loop has not heard of it."""
    await client.publish("jobs", b"x")
    async with client.consumer("jobs", "g") as consumer:
        waiting = asyncio.create_task(anext(consumer))
        answer = client.bridge._take_answers
        held = threading.Event()
        client.bridge._take_answers = held.set  # type: ignore[method-assign]
        assert await asyncio.to_thread(held.wait, PATIENCE_S) is True
        client.bridge._take_answers = answer  # type: ignore[method-assign]
        waiting.cancel()
        asyncio.get_running_loop().call_later(0.05, answer)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        message = await anext(consumer)
        assert (message.payload, message.attempt, message.interruptions) == (b"x", 1, 1)


@looped
async def test_an_ack_that_is_cancelled_before_its_task_runs_is_sent(client: Client) -> None:
    await client.publish("jobs", b"x")
    async with client.consumer("jobs", "g") as consumer:
        message = await anext(consumer)
        client.bridge.post(time.sleep, 0.1)  # the other thread is behind
        acking = asyncio.create_task(message.ack())
        await asyncio.sleep(0)
        await cancelled(acking)
        while (await client.backlog("jobs", "g")).held:
            await asyncio.sleep(0.01)
        assert message.outcome == Outcome.ACKED


@looped
async def test_a_timeout_of_asyncio_ends_a_call(client: Client) -> None:
    async with client.consumer("jobs", "g") as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(consumer)
        assert await consumer.take(timeout=0.0) == []


# ------------------------------------------------------------------------------------------- workers


@looped
async def test_a_pool_runs_coroutines_in_the_loop_and_functions_in_threads(client: Client) -> None:
    here = threading.current_thread()
    CALLER.set("me")
    seen: list[tuple[bytes, bool, str]] = []
    loop = asyncio.get_running_loop()

    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        seen.append((message.payload, threading.current_thread() is here, CALLER.get()))
        CALLER.set("somebody else")
        if message.payload == b"bad":
            raise ValueError("no")
        if message.payload == b"mine":
            await message.ack()

    def plain(message: Message) -> None:
        seen.append((message.payload, threading.current_thread() is here, CALLER.get()))

    await client.create_topic("others")
    for payload in (b"good", b"bad", b"mine"):
        await client.publish("jobs", payload)
    await client.publish("others", b"plain")
    tasks = [Task("jobs", "g", handler, concurrency=2), Task("others", "g", plain)]
    working = asyncio.create_task(client.work_all(tasks, signals=False))
    while len(seen) < 4 or [peek async for peek in client.peek("jobs", "g", "held")]:
        await asyncio.sleep(0.01)
    await cancelled(working)
    assert sorted(seen) == [
        (b"bad", True, "me"), (b"good", True, "me"), (b"mine", True, "me"), (b"plain", False, "me")
    ]  # fmt: skip
    states = [peek.peeked.state async for peek in client.peek("jobs", "g", "all")]
    assert sorted(states) == ["acked", "acked", "dead"]
    assert CALLER.get() == "me"


@looped
async def test_a_handler_is_cancelled_with_its_time_and_its_end_is_awaited(client: Client) -> None:
    ended: list[str] = []

    async def handler(message: Message) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    await client.publish("jobs", b"x")
    working = asyncio.create_task(client.work("jobs", "g", handler, timeout=0.05, signals=False))
    while not ended:
        await asyncio.sleep(0.01)
    await cancelled(working)
    assert set(ended) == {"cleaned up"}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@looped
async def test_a_call_that_a_handler_does_not_await_is_told(client: Client) -> None:
    async def handler(message: Message) -> None:
        if message.payload == b"missed":
            message.reject()  # type: ignore[unused-coroutine]
        else:
            await message.reject(100.0)
            done.set()

    done = asyncio.Event()
    await client.publish("jobs", b"missed")
    await client.publish("jobs", b"good")
    working = asyncio.create_task(client.work("jobs", "g", handler, concurrency=1, signals=False))
    await done.wait()
    await cancelled(working)
    (death,) = [peek async for peek in client.peek("jobs", "g", "dead")]
    assert "called Message.reject without await" in repr(death.peeked.record)


@looped
async def test_a_handler_that_cancels_itself_costs_its_message_and_not_the_pool(client: Client) -> None:
    async def handler(message: Message) -> None:
        if message.payload == b"bad":
            raise asyncio.CancelledError
        done.set()

    done = asyncio.Event()
    await client.publish("jobs", b"bad")
    await client.publish("jobs", b"good")
    working = asyncio.create_task(client.work("jobs", "g", handler, signals=False))
    await done.wait()
    await cancelled(working)
    (death,) = [peek async for peek in client.peek("jobs", "g", "dead")]
    assert death.peeked.record.death is not None
    assert death.peeked.record.death.error_class == "quorumq.core.values.errors.QuorumqError"


@looped
async def test_leaving_the_program_in_a_handler_ends_the_pool_before_the_event_loop(client: Client) -> None:
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    await client.publish("jobs", b"x")
    with pytest.raises(SystemExit):
        await client.work("jobs", "g", handler, concurrency=2, signals=False)
    (message,) = await client.fetch("jobs", "g")
    assert (message.attempt, message.interruptions) == (2, 0)


@looped
async def test_an_interrupted_message_comes_again_when_its_coroutine_has_ended(client: Client) -> None:
    stopping = asyncio.Event()
    ended: list[bytes] = []

    async def handler(message: Message) -> None:
        stopping.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            ended.append(message.payload)
            if message.payload == b"fails":
                raise ValueError from None
            if message.payload != b"ends":
                raise

    for payload in (b"stops", b"fails", b"ends"):
        await client.publish("jobs", payload)
    worked = await client.work("jobs", "g", handler, stop=stopping, grace=0.1, concurrency=3)
    assert (worked.done, worked.interrupted, worked.dead_lettered) == (1, 2, 0)
    assert sorted(ended) == [b"ends", b"fails", b"stops"]
    interrupted = await client.fetch("jobs", "g", max_messages=3)
    assert {(message.attempt, message.interruptions) for message in interrupted} == {(1, 1)}
    assert len(interrupted) == 2


@looped
async def test_an_event_stops_a_pool(client: Client) -> None:
    stopping = asyncio.Event()

    async def handler(message: Message) -> None:
        stopping.set()
        await asyncio.sleep(0.2)

    for payload in (b"x", b"y"):
        await client.publish("jobs", payload)
    worked = await client.work("jobs", "g", handler, stop=stopping)
    assert (worked.done, worked.signal) == (1, None)
    (again,) = await client.fetch("jobs", "g")
    assert again.attempt == 1


@looped
async def test_a_notebooks_interrupt_cancels_a_pool_that_waits(client: Client) -> None:
    """Its handler schedules a callback, and does not wake the event loop for it."""
    loop = asyncio.get_running_loop()
    await client.create_topic("jobs")
    working = asyncio.create_task(client.work("jobs", "g", print))
    before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon(working.cancel))
    interrupting = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    interrupting.start()
    began = time.monotonic()
    try:
        with pytest.raises(asyncio.CancelledError):
            await working
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 10


@looped
async def test_a_signal_stops_a_pool(client: Client) -> None:
    async def handler(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)

    await client.publish("jobs", b"x")
    worked = await client.work("jobs", "g", handler)
    assert (worked.done, worked.signal) == (1, signal.SIGTERM)


# ---------------------------------------------------------------------------------------- the surface


@pytest.mark.parametrize("kind", [Client, Producer, Consumer])
def test_all_that_can_be_awaited_goes_through_the_bridge(kind: type) -> None:
    """`batches` and `work` are made of what does."""
    theirs = getattr(quorumq.client, kind.__name__)
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if is_async and (not name.startswith("_") or name.startswith("__a")):
            assert name in vars(kind) or name == "batches", f"{kind.__name__}.{name}"
            if name == "open":  # without a nursery
                continue
            assert inspect.signature(getattr(kind, name)) == inspect.signature(method)
            assert getattr(kind, name).__doc__ == method.__doc__


@looped
async def test_a_handler_that_does_not_fit_is_named_as_the_program_has_it(client: Client) -> None:
    """The pool runs a function around it."""

    async def later() -> None: ...

    def resize(message: Message) -> Any:
        return later()

    await client.publish("jobs", b"x")
    with pytest.raises(UsageError, match=r"handler <function .*<locals>\.resize at .* does not fit"):
        await client.work("jobs", "g", resize, signals=False)


@looped
async def test_a_plain_handler_settles_its_message_without_await(client: Client) -> None:
    """Its reject was a coroutine that no one awaited, and the message was acked."""
    attempts: list[tuple[bytes, int]] = []

    def handler(message: PlainMessage) -> None:
        attempts.append((message.payload, message.attempt))
        if message.payload == b"later" and message.attempt == 1:
            message.reject(delay=0.01)
        elif message.payload == b"never":
            message.dead_letter(reason="no")
        elif message.payload == b"done":
            assert message.ack() is Outcome.ACKED

    for payload in (b"later", b"never", b"done"):
        await client.publish("jobs", payload)
    working = asyncio.create_task(client.work("jobs", "g", handler, signals=False))
    while len(attempts) < 4 or [peek async for peek in client.peek("jobs", "g", "held")]:
        await asyncio.sleep(0.01)
    await cancelled(working)
    assert sorted(attempts) == [(b"done", 1), (b"later", 1), (b"later", 2), (b"never", 1)]
    states = [peek.peeked.state async for peek in client.peek("jobs", "g", "all")]
    assert sorted(states) == ["acked", "acked", "dead"]

"""A pool of workers: each message gets the verdict that its handler earned, and stopping costs no message anything."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from quorumq.client import (
    Client,
    Message,
    NotFound,
    NotStored,
    Outcome,
    Task,
    Unauthorized,
    UsageError,
    Worked,
)
from quorumq.client.blocking import Message as PlainMessage
from quorumq.client.consume.fuse import FUSE, Fuse
from quorumq.core.messages import AckRequest, ExtendRequest, Failed, Fetch
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import DiskFull
from tests.client.fake import connected, failing
from tests.client.steps import in_a_thread, jobs, payloads, publish
from tests.patience import PATIENCE_S
from tests.virtual import in_real_time


async def work_for(client: Client, seconds: float, handler: Callable[[Any], Any], **options: Any) -> Worked:
    """Run a pool for some time, stop it, and return its counts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_after, seconds)
        return await client.work("jobs", "g", handler, **options)


async def stop_after(seconds: float, number: signal.Signals = signal.SIGTERM) -> None:
    await trio.sleep(seconds)
    os.kill(os.getpid(), number)


async def generating(message: Message) -> Any:
    yield message


async def nothing(message: Message) -> None:
    """A handler that has nothing to do."""


async def deaths(client: Client) -> list[Any]:
    return [item.peeked.record.death async for item in client.peek("jobs", "g", "dead")]


# ---------------------------------------------------------------------------------- verdicts


async def test_returning_handlers_ack_and_run_within_the_concurrency() -> None:
    async with jobs(20) as (_, client):
        running = most = 0

        async def handler(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await trio.sleep(1.0)
            running -= 1

        worked = await work_for(client, 30.0, handler, concurrency=4)
        assert worked == Worked(done=20, signal=signal.SIGTERM)
        assert most == 4
        assert await payloads(client, group="g") == []


async def test_an_exception_to_retry_on_rejects_and_any_other_makes_a_dead_letter() -> None:
    async with jobs(3, max_deliveries=5, backoff=[2.0]) as (_, client):
        seen: dict[bytes, list[tuple[int, float]]] = {}

        async def handler(message: Message) -> None:
            seen.setdefault(message.payload, []).append((message.attempt, trio.current_time()))
            if message.payload == b"1" and message.attempt < 3:
                raise ConnectionResetError("again")
            if message.payload == b"2":
                raise ZeroDivisionError("no good")

        worked = await work_for(client, 30.0, handler, retry=(OSError,))
        assert worked == Worked(done=2, retried=2, dead_lettered=1, signal=signal.SIGTERM)
        assert [attempt for attempt, _ in seen[b"1"]] == [1, 2, 3]
        times = [at for _, at in seen[b"1"]]
        assert all(later - at >= 2.0 for at, later in pairwise(times)), "the topic's backoff"
        (death,) = await deaths(client)
        assert (death.error_class, death.message) == ("ZeroDivisionError", "no good")
        assert "in handler" in death.stack


async def test_an_exception_takes_one_short_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The line had the whole exception: 100 kB of an answer, or a traceback of `logging` if there was no repr."""

    class Mute(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    async def handler(message: Message) -> None:
        raise ValueError("line\n" * 20_000) if message.payload == b"0" else Mute

    async with jobs(2) as (_, client):
        await work_for(client, 5.0, handler)
    lines = [record.getMessage() for record in caplog.records]
    assert [len(line) < 1_200 and "\n" not in line for line in lines] == [True, True]
    assert "<RuntimeError in __repr__>" in caplog.text


def frames_of(death: Any) -> list[str]:
    """The functions that its stack names."""
    return [line.rpartition(" in ")[2] for line in death.stack.splitlines() if "  File " in line]


async def test_the_stack_of_a_dead_letter_begins_in_the_handler() -> None:
    async def handler(message: Message) -> None:
        function(message)

    def function(message: Message) -> None:
        raise ValueError("no good")

    async with jobs(1) as (_, client):
        await work_for(client, 2.0, handler)
        (death,) = await deaths(client)
        assert frames_of(death) == ["handler", "function"]


async def test_the_last_attempt_writes_its_exception_in_the_dead_letter() -> None:
    async with jobs(1, max_deliveries=2) as (_, client):

        async def handler(message: Message) -> None:
            raise TimeoutError(f"at attempt {message.attempt}")

        worked = await work_for(client, 30.0, handler, retry=TimeoutError)
        assert (worked.retried, worked.dead_lettered) == (1, 1)
        (death,) = await deaths(client)
        assert death.message == "at attempt 2"


async def test_without_a_backoff_of_its_topic_a_message_waits_twice_as_long_each_time() -> None:
    async with jobs(1, max_deliveries=4) as (_, client):
        at = []

        async def handler(message: Message) -> None:
            at.append(trio.current_time())
            raise TimeoutError

        await work_for(client, 30.0, handler, retry=TimeoutError)
        waits = [later - earlier for earlier, later in pairwise(at)]
        assert all(least <= wait < least + 0.5 for least, wait in zip((1, 2, 4), waits, strict=True)), waits


async def test_a_handler_that_met_a_cluster_error_runs_again() -> None:
    async with jobs(1) as (_, client):

        async def handler(message: Message) -> None:
            if message.attempt == 1:
                raise NotStored("the disks are full")

        assert await work_for(client, 30.0, handler) == Worked(done=1, retried=1, signal=signal.SIGTERM)


async def test_a_group_of_exceptions_is_retried_where_all_of_it_is() -> None:
    task = Task("jobs", "g", print, retry=(OSError, KeyError))
    assert task.retries_on(ExceptionGroup("", [OSError(), ExceptionGroup("", [KeyError()])]))
    assert not task.retries_on(ExceptionGroup("", [OSError(), ValueError()]))


async def test_a_handler_beyond_its_time_is_cancelled_and_its_message_comes_again() -> None:
    async with jobs(1, max_deliveries=2) as (_, client):
        ended: list[float] = []

        async def handler(message: Message) -> None:
            began = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                ended.append(trio.current_time() - began)

        worked = await work_for(client, 60.0, handler, timeout=7.0)
        assert ended == [pytest.approx(7.0), pytest.approx(7.0)]
        assert (worked.retried, worked.dead_lettered) == (1, 1)
        (death,) = await deaths(client)
        assert (death.error_class, death.message) == ("TimeoutError", "the handler ran for more than 7 s")


async def test_a_handler_that_ignores_cancellation_loses_its_hold(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that blocks an event loop of its own does the same."""
    async with jobs(1) as (_, client):
        began: list[float] = []

        async def handler(message: Message) -> None:
            began.append(trio.current_time())
            if message.attempt == 1:
                with trio.CancelScope(shield=True):
                    await trio.sleep(60.0)

        worked = await work_for(client, 90.0, handler, timeout=7.0, hold_time=10.0, concurrency=2)
        assert worked.done == 1
        assert 8.0 <= began[1] - began[0] <= 20.0, "another worker got it when the hold was over"
        assert "was cancelled after 7 s and has not ended" in caplog.text


async def test_the_hold_is_kept_for_as_long_as_the_handler_runs() -> None:
    async with jobs(1) as (cluster, client):

        async def handler(message: Message) -> None:
            await trio.sleep(600.0)
            assert message.is_live

        worked = await work_for(client, 400.0, handler, hold_time=50.0, grace=300.0)
        assert worked == Worked(done=1, signal=signal.SIGTERM), "also after it was told to stop"
        assert len(cluster.of(ExtendRequest)) > 10


async def test_a_message_settled_by_its_handler_stays_settled() -> None:
    async with jobs(3) as (cluster, client):

        async def handler(message: Message) -> None:
            if message.payload == b"0":
                await message.reject(100.0)
            if message.payload == b"1":
                await message.dead_letter(reason="no")

        worked = await work_for(client, 10.0, handler)
        assert worked == Worked(done=1, retried=1, dead_lettered=1, signal=signal.SIGTERM)
        assert len(cluster.of(AckRequest)) == 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_a_call_that_a_handler_does_not_await_is_told_and_not_acked_over(timeout: float | None) -> None:
    """The message was acked, as its handler returned: a rejected one was lost without a word."""
    async with jobs(7) as (_, client):

        async def handler(message: Message) -> None:
            if message.payload in b"0123":
                call = (message.ack, message.reject, message.extend, message.dead_letter)[
                    int(message.payload)
                ]
                call()
                await message.extend()
            if message.payload == b"4":
                await trio.sleep(0)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(message.reject, 100.0)
            if message.payload == b"5":
                message.reject()  # type: ignore[unused-coroutine]
                raise ValueError("of its own")

        worked = await work_for(client, 10.0, handler, timeout=timeout)
        assert worked == Worked(done=1, retried=1, dead_lettered=5, signal=signal.SIGTERM)
        missed = sorted(death.message for death in await deaths(client) if death.error_class != "ValueError")
        assert missed == [
            f"the handler called Message.{name} without await: write `await` before it"
            for name in ("ack", "dead_letter", "extend", "reject")
        ]


async def test_an_ack_that_is_not_confirmed_is_told_and_the_pool_goes_on() -> None:
    async with jobs(2) as (cluster, client):
        cluster.answer = failing("outcome-unknown", times=1000, of=AckRequest)

        worked = await work_for(client, 70.0, nothing, hold_time=60.0)
        assert (worked.done, worked.lost) == (0, 2)


@pytest.mark.parametrize(("full", "within"), [("abc", 3.0), ("ab", 9.0)])
async def test_a_full_disk_that_refuses_rejects_does_not_stop_a_pool(full: str, within: float) -> None:
    """Acks make space, so the workers that failed may not wait for it; the ends of the holds do what rejects do."""
    async with jobs(9) as (cluster, client):
        for name in full:
            cluster.feed(name, DiskFull(Shortage.RESERVE))
        done: dict[bytes, float] = {}

        async def handler(message: Message) -> None:
            if message.payload in (b"0", b"1") and message.attempt == 1:
                raise ConnectionError
            done[message.payload] = trio.current_time()

        began = trio.current_time()
        worked = await work_for(client, 80.0, handler, concurrency=2, retry=ConnectionError)
        assert (worked.done, worked.lost) == (9, 2)
        assert max(done[b"%d" % number] for number in range(2, 9)) - began < within


async def test_dead_letters_are_worked_on_and_do_not_die_again() -> None:
    async with jobs(2) as (_, client):
        await client.dead_letter(await client.fetch("jobs", "g", max_messages=2), reason="no")

        async def handler(message: Message) -> None:
            if message.payload == b"1":
                raise ValueError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 100.0)
            worked = await client.work("jobs", "g!dead", handler)
        assert worked == Worked(done=1, retried=2, signal=signal.SIGTERM)


async def test_each_handler_sees_the_callers_context_and_no_other_handlers() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    async with jobs(3) as (_, client):
        seen = []

        async def handler(message: Message) -> None:
            seen.append(who.get())
            who.set("a handler")

        who.set("the caller")
        await work_for(client, 5.0, handler)
        assert seen == ["the caller"] * 3


async def test_several_handlers_of_several_topics() -> None:
    async with jobs(3) as (_, client):
        await client.create_topic("mail")
        await publish(client, 4, topic="mail")
        done: dict[str, int] = {}

        async def count(message: Message) -> None:
            done[message.topic] = done.get(message.topic, 0) + 1

        async def slow(message: Message) -> None:
            await trio.sleep(1.0)
            await count(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 10.0)
            tasks = [Task("jobs", "g", slow), Task("mail", "h", count, concurrency=2)]
            worked = await client.work_all(tasks)
        assert done == {"jobs": 3, "mail": 4}
        assert worked.done == 7


# ---------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_gives_back_what_is_not_begun_and_lets_the_rest_end(number: signal.Signals) -> None:
    async with jobs(20) as (_, client):
        began: list[float] = []

        async def handler(message: Message) -> None:
            began.append(trio.current_time())
            await trio.sleep(5.0 if len(began) > 10 else 0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 3.0, number)
            worked = await client.work("jobs", "g", handler, concurrency=2)
        assert worked.signal == number
        assert (worked.done, worked.retried, worked.lost) == (12, 0, 0)
        assert trio.current_time() - began[10] == pytest.approx(5.0, abs=0.2)
        rest = await client.fetch("jobs", "g", max_messages=100)
        assert len(rest) == 8
        assert {message.attempt for message in rest} == {1}


async def test_when_the_grace_is_over_handlers_are_cancelled_and_their_messages_come_again_at_once() -> None:
    async with jobs(3) as (_, client):

        async def handler(message: Message) -> None:
            await trio.sleep_forever()

        began = trio.current_time()
        worked = await work_for(client, 1.0, handler, grace=4.0, concurrency=2)
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.1)
        assert worked == Worked(interrupted=2, given_back=worked.given_back, signal=signal.SIGTERM)
        messages = await client.fetch("jobs", "g")
        assert sorted((message.attempt, message.interruptions) for message in messages) == [
            (1, 0),
            (1, 1),
            (1, 1),
        ]


@pytest.mark.parametrize("max_deliveries", [1, 5])
async def test_stops_cost_a_healthy_job_no_attempt_ten_times_over(max_deliveries: int) -> None:
    """Five deploys made a dead letter of a job that takes longer than the grace, and says nothing of itself."""
    async with jobs(1) as (_, client):
        await client.alter_topic("jobs", max_deliveries=max_deliveries)
        attempts = []

        async def handler(message: Message) -> None:
            attempts.append((message.attempt, message.interruptions))
            await trio.sleep_forever()

        for _ in range(10):
            assert (await work_for(client, 1.0, handler, grace=0.5)).interrupted == 1
        assert attempts == [(1, count) for count in range(10)]
        for _ in range(max_deliveries):  # as one that blocks its loop would go on
            await work_for(client, 1.0, handler, grace=0.5)
        assert attempts[10:] == [(1 + count, 10) for count in range(max_deliveries)]
        await trio.sleep(1.0)
        (death,) = await deaths(client)
        assert (death.reason, death.attempts, death.interruptions) == ("max-deliveries", max_deliveries, 10)


async def test_a_cancelled_handler_may_raise_anything_and_one_that_fails_is_not_interrupted() -> None:
    async with jobs(3) as (_, client):

        async def handler(message: Message) -> None:
            try:
                await trio.sleep(1.0 if message.payload == b"1" else 100.0)
                raise SystemExit(3)
            finally:
                if message.payload == b"0":
                    raise ValueError("the connection is closed")

        with pytest.raises(SystemExit):
            await client.work("jobs", "g", handler, concurrency=3)
        assert await deaths(client) == []
        messages = await client.fetch("jobs", "g", max_messages=3)
        outcomes = {bytes(message.payload): (message.attempt, message.interruptions) for message in messages}
        assert outcomes == {b"0": (1, 1), b"1": (2, 0), b"2": (1, 1)}


async def test_a_second_signal_does_not_wait_for_the_grace() -> None:
    async with jobs(1) as (_, client):

        async def handler(message: Message) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 1.0)
            nursery.start_soon(stop_after, 2.0)
            worked = await client.work("jobs", "g", handler, grace=1000.0)
        assert trio.current_time() < 100.0
        assert worked.interrupted == 1


async def test_cancelling_it_does_the_same_at_once() -> None:
    async with jobs(20) as (_, client):

        async def handler(message: Message) -> None:
            await trio.sleep(0.01 if int(message.payload) < 10 else 1000.0)

        before = signal.getsignal(signal.SIGTERM)
        began = trio.current_time()
        with trio.move_on_after(3.0) as scope:
            await client.work("jobs", "g", handler)
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(3.0, abs=0.1)
        assert signal.getsignal(signal.SIGTERM) is before
        messages = await client.fetch("jobs", "g", max_messages=100)
        assert sorted((message.attempt, message.interruptions) for message in messages) == [(1, 0)] * 9 + [
            (1, 1)
        ]


async def test_a_verdict_that_is_under_way_when_the_grace_ends_is_carried_through() -> None:
    async with jobs(1) as (cluster, client):
        cluster.lag = 0.5

        async def handler(message: Message) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep(0.1)

        assert await client.work("jobs", "g", handler, grace=0.2) == Worked(done=1, signal=signal.SIGTERM)
        assert len(cluster.of(AckRequest)) == 2


@pytest.mark.parametrize("event", [trio.Event, threading.Event])
async def test_an_event_ends_a_pool_as_a_signal_does(event: Callable[[], Any]) -> None:
    async with jobs(20) as (_, client):
        stopping = event()

        async def handler(message: Message) -> None:
            if message.payload == b"4":
                stopping.set()
            await trio.sleep(3.0 if int(message.payload) >= 4 else 0.01)

        began = trio.current_time()
        worked = await client.work("jobs", "g", handler, stop=stopping)
        assert (worked.done, worked.retried, worked.signal) == (5, 0, None)
        assert trio.current_time() - began < 4.0
        assert [message.attempt for message in await client.fetch("jobs", "g", max_messages=100)] == [1] * 15
        assert await client.work("jobs", "g", handler, stop=stopping) == Worked(), "it is set already"


async def test_an_event_ends_a_pool_that_waits_for_its_topic_or_for_its_grace() -> None:
    async with jobs(1) as (_, client):

        async def handler(message: Message) -> None:
            await trio.sleep_forever()

        for topic, grace in [("never", 10.0), ("jobs", 2.0)]:
            stopping = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.work, topic, "g", handler, stop=stopping, grace=grace))
                await trio.sleep(1.0)
                began = trio.current_time()
                stopping.set()
            assert trio.current_time() - began < 2.5


async def test_without_signals_they_are_left_alone() -> None:
    async with jobs(1) as (_, client):
        before = signal.getsignal(signal.SIGTERM)
        handlers = []

        async def handler(message: Message) -> None:
            handlers.append(signal.getsignal(signal.SIGTERM))

        with trio.move_on_after(1.0):
            await client.work("jobs", "g", handler, signals=False)
        assert handlers == [before]


# ----------------------------------------------------------------------------------- trouble


async def test_a_pool_outlives_an_outage() -> None:
    async with jobs(1) as (cluster, client):
        client.timeout = 2.0
        done = []

        async def handler(message: Message) -> None:
            done.append(message.payload)

        async def outage() -> None:
            await trio.sleep(1.0)
            await cluster.cut_off()
            await trio.sleep(20.0)
            cluster.refuse.clear()
            async with connected(cluster) as other:
                await publish(other, 1)
            await stop_after(20.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(outage)
            worked = await client.work("jobs", "g", handler)
        assert worked.done == len(done) == 2


async def test_a_pool_waits_for_its_topic_and_serves_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quorumq.client")
    async with jobs(1) as (_, client):
        seen: list[tuple[float, bytes]] = []

        async def handler(message: Message) -> None:
            seen.append((trio.current_time(), message.payload))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 20.0)
            tasks = [Task(["later", "jobs"], "g", handler), Task("never", "g", handler)]
            nursery.start_soon(client.work_all, tasks)
            await trio.sleep(10.0)
            assert [payload for _, payload in seen] == [b"0"]
            await publish(client, 3, "later")
        assert [payload for _, payload in seen] == [b"0", b"0", b"1", b"2"]
        assert seen[-1][0] - seen[0][0] < 12.0, "it looks every second"
    said = [record.getMessage() for record in caplog.records if "is there" in record.getMessage()]
    assert sorted(said) == [
        "no topic 'later' is there: group 'g' waits for it",
        "no topic 'never' is there: group 'g' waits for it",
        "topic 'later' is there: group 'g' reads it",
    ]


async def test_a_pool_outlives_its_topic_and_reads_what_is_made_of_that_name() -> None:
    async with jobs(1) as (_, client):
        seen: list[bytes] = []

        async def handler(message: Message) -> None:
            seen.append(message.payload)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 30.0)
            nursery.start_soon(client.work, "jobs", "g", handler)
            await trio.sleep(2.0)
            await client.delete_topic("jobs")
            await trio.sleep(10.0)
            await client.create_topic("jobs", partitions=3)
            await client.publish("jobs", b"new", partition=2)
        assert seen == [b"0", b"new"]


async def test_a_topic_on_several_sets_of_nodes_is_read_by_each_once_when_it_is_made_again() -> None:
    async with jobs(nodes=5, partitions=5) as (cluster, client):
        seen: list[bytes] = []

        async def handler(message: Message) -> None:
            seen.append(message.payload)

        async def fetches() -> int:
            before = len(cluster.of(Fetch))
            await trio.sleep(30.0)
            return len(cluster.of(Fetch)) - before

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_after, 100.0)
            nursery.start_soon(client.work, "jobs", "g", handler)
            await trio.sleep(5.0)
            first = await fetches()
            await client.delete_topic("jobs")
            await trio.sleep(10.0)
            await client.create_topic("jobs", partitions=5)
            await trio.sleep(5.0)
            second = await fetches()
            for number in range(5):
                await client.publish("jobs", b"%d" % number, partition=number)
        assert sorted(seen) == [b"%d" % number for number in range(5)]
        assert second == pytest.approx(first, abs=first // 5)


async def test_an_event_after_a_signal_is_no_second_signal() -> None:
    async with jobs(1) as (_, client):
        stopping = trio.Event()

        async def handler(message: Message) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep(1.0)
            stopping.set()
            await trio.sleep(1.0)

        assert await client.work("jobs", "g", handler, stop=stopping) == Worked(done=1, signal=signal.SIGTERM)


async def test_a_group_that_is_deleted_or_that_no_one_may_make_ends_a_pool() -> None:
    async with jobs(1) as (_, client):
        async with trio.open_nursery() as nursery:

            async def delete() -> None:
                await trio.sleep(2.0)
                await client.delete_group("jobs", "g")

            nursery.start_soon(delete)
            with pytest.raises(NotFound, match="'g'"), trio.fail_after(5.0):
                await client.work("jobs", "g", nothing)
        await client.create_topic("strict", auto_create_groups=False)
        with pytest.raises(NotFound, match="'typo'"), trio.fail_after(1.0):
            await client.work("strict", "typo", nothing)


async def test_a_pool_that_starts_in_an_outage_begins_when_it_is_over() -> None:
    async with jobs(1) as (cluster, client):
        async with trio.open_nursery() as nursery:
            cluster.mute |= {"a", "b", "c"}
            nursery.start_soon(stop_after, 100.0)
            worked: list[Worked] = []

            async def work() -> None:
                worked.append(await client.work("jobs", "g", nothing))

            nursery.start_soon(work)
            await trio.sleep(65.0)
            cluster.wake("abc")
        assert worked[0].done == 1


async def test_an_error_that_can_never_pass_is_raised_unchanged() -> None:
    async with jobs(0) as (_, client):
        for wrong, said in [
            ({"handler": "work"}, "the handler is 'work'"),
            ({"handler": lambda: None}, "nothing else: too many positional arguments"),
            ({"handler": lambda message, extra: None}, "nothing else: missing a required argument: 'extra'"),
            ({"handler": generating}, "has a yield"),
            ({"concurrency": 0}, "concurrency is 0"),
            ({"retry": ("TimeoutError",)}, "retry has 'TimeoutError'"),
            ({"timeout": 0}, "timeout is 0"),
            ({"grace": -1.0}, "grace is -1"),
            ({"stop": 5.0}, "stop is 5.0: give an event"),
            ({"hold_time": 61.0}, "hold_time is 61"),
        ]:
            options: dict[str, Any] = {"handler": print, **wrong}
            with pytest.raises(UsageError, match=said):
                await client.work("jobs", "g", **options)
        with pytest.raises(UsageError, match="no task is given"):
            await client.work_all([])


async def test_leaving_the_program_in_a_handler_ends_the_pool_too(caplog: pytest.LogCaptureFixture) -> None:
    async with jobs(2) as (_, client):

        async def handler(message: Message) -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            await client.work("jobs", "g", handler)
        (line,) = caplog.messages
        assert re.fullmatch(r"the handler ends this process at <Message jobs .*> by SystemExit\(3\)", line)
        assert len(await client.fetch("jobs", "g")) == 2


async def test_a_message_that_ends_the_program_is_not_taken_by_another_slot_meanwhile() -> None:
    async with jobs(1) as (_, client):
        calls = 0

        async def handler(message: Message) -> None:
            nonlocal calls
            calls += 1
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            await client.work("jobs", "g", handler, concurrency=8)
        assert calls == 1


# ------------------------------------------------------- a handler that harms the whole queue


class Wrapped(Exception):
    """Error that a handler's library raises around the real cause."""


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_handler_of_another_event_loop_ends_its_pool_and_costs_no_delivery(
    wrapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """F1: "no running event loop" was a dead letter, of each message of the backlog."""

    async def handler(message: Message) -> None:
        try:
            await asyncio.sleep(0.1)
        except RuntimeError as error:
            raise Wrapped("no luck") if wrapped else error from error

    async with jobs(3, max_deliveries=2) as (_, client):
        for _ in range(3):  # a supervisor starts it again
            with pytest.raises(UsageError, match="does not fit what runs it"):
                await client.work("jobs", "g", handler, concurrency=2, retry=RuntimeError)
        assert await deaths(client) == []
        assert {message.attempt for message in await client.fetch("jobs", "g", max_wait=1.0)} == {1}
        assert "unsettled" not in caplog.text, "it was given back, and waits for no hold"


async def test_a_pool_whose_handler_always_fails_pauses_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """F4: a broken deployment made dead letters of a queue at full speed."""
    async with jobs(300) as (_, client):

        async def handler(message: Message) -> None:
            raise TypeError(f"no column {message.payload!r}")

        worked = await work_for(client, 15.5, handler)
        assert worked.dead_lettered == 5 * FUSE, "pauses of 1, 2, 4 and 8 s, and one of 16 s that lasts"
        assert "this process pauses for 16 s" in caplog.text


async def test_a_success_ends_what_the_pool_has_counted() -> None:
    async with jobs(300) as (_, client):

        async def handler(message: Message) -> None:
            if int(message.payload) % FUSE:
                raise TypeError("no")

        worked = await work_for(client, 20.0, handler)
        assert (worked.dead_lettered, worked.done) == (285, 15)


def test_a_thousand_poison_messages_cost_ten_minutes_at_most_and_other_failures_nothing() -> None:
    fuse, now = Fuse(), 0.0
    for _ in range(1000):
        fuse.died(ValueError("no"), now)
        now = max(now, fuse.paused_until)
    assert 300 < now < 600
    fuse = Fuse()
    assert not any(fuse.died(type(f"Kind{number}", (Exception,), {})("no"), 0.0) for number in range(3000))


async def test_an_ack_after_the_hold_is_late_and_a_blocked_loop_is_named(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """F3: a handler that blocks the loop had its message done twice, and got "done" as its outcome."""
    async with jobs(1) as (_, client):
        stolen: list[Message] = []

        async def handler(message: Message) -> None:
            if stolen:
                return
            autojump_clock.jump(
                7.0
            )  # as time.sleep(7) does; a look that was due within it is late by the rest
            async with trio.open_nursery() as nursery:

                async def other() -> None:
                    stolen.extend(await client.fetch("jobs", "g", max_wait=2.0))

                nursery.start_soon(other)

        worked = await work_for(client, 15.0, handler, hold_time=3.0)
        assert stolen, "another worker had it meanwhile"
        assert (worked.done, worked.late) == (0, 1)
        assert "the event loop stood for 6.8 s" in caplog.text
        assert "those of 1 message of group 'g' ran out" in caplog.text


def test_an_ack_that_no_one_could_prove_is_late_only_where_its_hold_was_over() -> None:
    worked = Worked()
    worked.count(Outcome.ACKED_UNPROVEN)
    worked.count(Outcome.ACKED_UNPROVEN, over=True)
    worked.count(Outcome.ACKED, over=True)
    worked.count(Outcome.ACKED_AFTER_EXPIRY)
    assert worked == Worked(done=2, late=2)


async def test_a_message_whose_group_is_rewound_meanwhile_counts_as_lost() -> None:
    async with jobs(1) as (_, client):

        async def handler(message: Message) -> None:
            await client.rewind("jobs", "g", "earliest")

        worked = await work_for(client, 5.0, handler)
        assert (worked.lost, worked.done) == (1, 0)


async def test_a_pool_outlasts_a_file_of_clients_in_change_but_not_at_its_start() -> None:
    """F2: a file that was empty for a moment ended all workers, and lost their work."""
    async with jobs(2) as (cluster, client):
        refused: list[object] = []

        def answer(node: str, request: object) -> Failed | None:
            if 10.0 < trio.current_time() - began < 20.0 and isinstance(request, Fetch | AckRequest):
                refused.append(request)
                return Failed("unauthorized", "the node was shown a token that it does not know")
            return None

        async def handler(message: Message) -> None:
            await trio.sleep(9.0)

        began = trio.current_time()
        cluster.answer = answer
        assert await work_for(client, 40.0, handler) == Worked(done=2, signal=signal.SIGTERM)
        assert any(isinstance(request, AckRequest) for request in refused)
        cluster.answer = failing("unauthorized", times=1000, of=Fetch)
        began = trio.current_time()
        with pytest.raises(Unauthorized):
            await client.work("jobs", "g", handler)
        assert trio.current_time() - began < 1.0


async def test_a_pool_that_is_refused_for_good_ends_after_a_while() -> None:
    async with jobs(1) as (cluster, client):
        began = trio.current_time()

        async def handler(message: Message) -> None:
            cluster.answer = failing("unauthorized", times=10_000, of=Fetch)

        with pytest.raises(Unauthorized):
            await client.work("jobs", "g", handler)
        assert 60.0 <= trio.current_time() - began < 75.0


# ----------------------------------------------------------------------------------- threads
# In real time: virtual time does not wait for a thread, and holds and signals would be over before its end.


def working(
    handler: Callable[[PlainMessage], object], count: int, **options: Any
) -> tuple[Worked, list[int]]:
    """Run a pool of threads until `done`; return its counts and the attempts of the remaining messages."""
    with in_a_thread() as client:
        client.create_topic("jobs", max_deliveries=2)
        with client.producer("jobs") as producer:
            for number in range(count):
                producer.publish(b"%d" % number)
        worked = client.work("jobs", "g", handler, **options)
        return worked, [message.attempt for message in client.fetch("jobs", "g", max_wait=0.5)]


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@in_real_time
async def test_a_plain_handler_that_ends_the_program_gives_its_message_back() -> None:
    """It was held until its hold was over, although the thread had ended."""

    def handler(message: PlainMessage) -> None:
        raise SystemExit(3)

    async with jobs(1) as (_, client):
        with pytest.raises(SystemExit):
            await client.work("jobs", "g", handler)
        assert len(await client.fetch("jobs", "g")) == 1


@in_real_time
async def test_a_plain_handler_on_trio_settles_its_message_without_await() -> None:
    async with jobs(1, backoff=[60.0]) as (_, client):
        attempts: list[int] = []
        stopping = threading.Event()

        def handler(message: PlainMessage) -> None:
            attempts.append(message.attempt)
            if message.attempt == 1:
                message.reject(delay=0.01)
                assert message.outcome is Outcome.REQUEUED
            else:
                stopping.set()

        assert (await client.work("jobs", "g", handler, stop=stopping)).done == 1
        assert attempts == [1, 2]


def test_plain_functions_run_in_threads_with_the_callers_context() -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("the caller")
    barrier = threading.Barrier(3, timeout=PATIENCE_S)
    seen = []

    def handler(message: PlainMessage) -> None:
        seen.append((who.get(), message.payload))
        if barrier.wait() == 0 and len(seen) == 6:
            stop()  # once: the second time cancels

    worked, attempts = working(handler, 6, concurrency=3)
    assert worked == Worked(done=6, signal=signal.SIGTERM)
    assert sorted(seen) == [("the caller", b"%d" % number) for number in range(6)]
    assert attempts == []


def test_an_event_of_threads_stops_a_pool_of_them() -> None:
    stopping = threading.Event()

    def handler(message: PlainMessage) -> None:
        stopping.set()
        time.sleep(0.2)  # it is at work when the pool stops

    worked, attempts = working(handler, 3, stop=stopping)
    assert worked == Worked(done=1)
    assert attempts == [1, 1]


def test_a_plain_functions_exceptions_are_judged_too() -> None:
    def handler(message: PlainMessage) -> None:
        if message.attempt == 2:
            stop()
            message.ack()
        raise TimeoutError if message.payload == b"1" else ValueError

    worked, attempts = working(handler, 2, retry=TimeoutError)
    assert (worked.done, worked.retried, worked.dead_lettered) == (1, 1, 1)
    assert attempts == []


def test_the_stack_of_a_dead_letter_begins_in_the_plain_function() -> None:
    def function(message: PlainMessage) -> None:
        stop()
        raise ValueError("no good")

    with in_a_thread() as client:
        client.create_topic("jobs")
        client.publish("jobs", b"0")
        assert client.work("jobs", "g", function).dead_lettered == 1
        (death,) = [item.peeked.record.death for item in client.peek("jobs", "g", "dead")]
        assert frames_of(death) == ["function"]


def test_a_thread_beyond_its_time_is_rejected_when_it_ends_and_not_extended_meanwhile() -> None:
    ends: list[tuple[int, float, bool]] = []

    def handler(message: PlainMessage) -> None:
        time.sleep(1.5 if message.attempt == 1 else 0.0)  # longer than its hold
        ends.append((message.attempt, time.monotonic(), message.is_live))
        if message.attempt == 2:
            stop()

    worked, _ = working(handler, 1, timeout=0.3, hold_time=1.0, concurrency=2)
    assert (worked.done, worked.retried + worked.lost) == (1, 1)
    (first, second) = sorted(ends, key=lambda end: -end[1])
    assert {first[0], second[0]} == {1, 2}
    assert not next(live for attempt, _, live in ends if attempt == 1), "its hold ran out at 1 s"


def test_a_thread_that_outlives_the_grace_is_left_to_its_hold() -> None:
    release, ended = threading.Event(), threading.Event()

    def handler(message: PlainMessage) -> None:
        stop()
        release.wait(PATIENCE_S)
        ended.set()

    worked, attempts = working(handler, 1, grace=0.2)
    assert not ended.is_set()
    release.set()
    assert (worked.lost, attempts) == (1, []), "nobody else gets it while the thread may be at work"


def test_a_coroutine_that_no_one_awaits_is_no_success() -> None:
    async def dropped(message: PlainMessage) -> None:
        raise AssertionError

    def handler(message: PlainMessage) -> object:
        stop()
        return dropped(message)

    with pytest.raises(UsageError, match="returns no coroutine"):
        working(handler, 1)
    with pytest.raises(UsageError, match="is async"):
        working(dropped, 1)

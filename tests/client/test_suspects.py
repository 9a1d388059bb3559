"""Suspects are delivered alone, to any reader, however busy, and no reader pauses for anything else.

Most tests have two deliveries a message: who ran out once is alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from quorumq.client import Client, Consumer, Message
from quorumq.core.messages import Fetch
from tests.client.fake import connected, fake_cluster
from tests.client.steps import RUNS_OUT_S, publish, with_suspects


class Log:
    """Messages in hand, with times.

    Attributes:
        started: when each message was handed over, by topic, payload and attempt.
        beside: most messages, by suspect, that its reader had in hand at the same time.
        least: the fewest that each reader had in hand after its first `warm` seconds.
        done: number of settled messages.
    """

    def __init__(self, warm: float = 0.0) -> None:
        self.since = trio.current_time()
        self.warm = warm
        self.started: list[tuple[float, str, bytes, int]] = []
        self.beside: dict[bytes, int] = {}
        self.least: dict[str, int] = {}
        self.done = 0
        self._hands: dict[str, dict[Message, None]] = {}

    def begin(self, who: str, messages: list[Message]) -> None:
        hand = self._hands.setdefault(who, {})
        for message in messages:
            hand[message] = None
            at = trio.current_time() - self.since
            self.started.append((at, message.topic, message.payload, message.attempt))
        for one in hand:
            if one.attempt > 1:
                self.beside[one.payload] = max(self.beside.get(one.payload, 0), len(hand) - 1)

    def end(self, who: str, messages: list[Message]) -> None:
        hand = self._hands[who]
        for message in messages:
            del hand[message]
            self.done += 1
        if trio.current_time() - self.since > self.warm:
            self.least[who] = min(self.least.get(who, 1000), len(hand))

    def suspects(self) -> list[float]:
        return [at for at, _, _, attempt in self.started if attempt > 1]


async def work(
    client: Client, log: Log, seconds: Callable[[int], float], who: str = "", **options: object
) -> None:
    """A pool whose handlers take as long as the number of the message says."""

    async def handler(message: Message) -> None:
        log.begin(who, [message])
        await trio.sleep(seconds(len(log.started)))
        log.end(who, [message])

    await client.work("jobs", "g", handler, signals=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_an_expired_message_comes_again_to_an_idle_worker(concurrency: int) -> None:
    """A message that takes its process along would else take along all that is beside it."""
    async with with_suspects(5, 35) as (_, client):
        await trio.sleep(RUNS_OUT_S)
        log = Log()
        with trio.move_on_after(60.0):
            await work(client, log, lambda _: 0.2, concurrency=concurrency)
        assert (log.done, len(log.suspects())) == (40, 5)
        assert set(log.beside.values()) == {0}


async def test_a_full_pool_of_slow_handlers_takes_a_suspect_within_a_handlers_time() -> None:
    async with with_suspects(1, 90) as (_, client):
        log = Log()
        with trio.move_on_after(100.0):
            await work(client, log, lambda count: 2.5 * count if count <= 8 else 20.0, concurrency=8)
        (at,) = log.suspects()
        assert at < RUNS_OUT_S + 2.5 + 20.0
        assert set(log.beside.values()) == {0}
        # It cost what was idle meanwhile: half of the 20 s on average, and the 20 s of the suspect.
        assert log.done > 8 * (100.0 - 20.0 - 20.0 - 20.0) / 20.0


async def test_without_suspects_no_one_pauses() -> None:
    async with with_suspects(0, 60) as (cluster, client):
        log = Log(warm=8.5)
        with trio.move_on_after(45.0):
            await work(client, log, lambda count: 1.0 * count if count <= 8 else 8.0, concurrency=8)
        assert log.least[""] == 7, "all others run whenever one ends"
        assert log.done >= 8 + 8 * 36.0 / 8.0
        assert all(request.max_messages < 8 for _, request in cluster.of(Fetch)[10:])


def mixed(count: int) -> float:
    """Handlers that end one by one."""
    return 0.5 * count if count <= 16 else 8.0


async def test_only_one_worker_drains_for_a_suspect() -> None:
    async with with_suspects(1, 100) as (cluster, client), connected(cluster) as other:
        log = Log(warm=RUNS_OUT_S)
        with trio.move_on_after(30.0):
            async with trio.open_nursery() as nursery:
                for one, who in ((client, "x"), (other, "y")):
                    nursery.start_soon(partial(work, one, log, mixed, who, concurrency=8))
        (at,) = log.suspects()
        assert at < RUNS_OUT_S + 2.0 + 8.0
        assert sorted(log.least.values()) == [0, 7]


async def each(consumer: Consumer, log: Log) -> None:
    async for message in consumer:
        log.begin("", [message])
        await trio.sleep(0.1)
        log.end("", [message])
        await message.ack()


async def lists(consumer: Consumer, log: Log) -> None:
    async for messages in consumer.batches(50):
        log.begin("", messages)
        await trio.sleep(0.1)
        log.end("", messages)
        await consumer.ack(messages)


async def taken(consumer: Consumer, log: Log) -> None:
    while messages := await consumer.take(20):
        log.begin("", messages)
        await trio.sleep(0.1)
        log.end("", messages)
        await consumer.ack(messages)


async def started(consumer: Consumer, log: Log) -> None:
    async def handle(message: Message) -> None:
        log.begin("", [message])
        await trio.sleep(0.2 + len(log.started) % 3 / 4)
        log.end("", [message])
        await message.ack()

    async with trio.open_nursery() as nursery:
        async for message in consumer:
            nursery.start_soon(handle, message)


@pytest.mark.parametrize("reader", [each, lists, taken, started])
async def test_all_readers_get_suspects_alike(reader: Callable[[Consumer, Log], Awaitable[None]]) -> None:
    async with with_suspects(3, 60) as (_, client):
        log = Log()
        with trio.move_on_after(9.0):
            async with (
                client.consumer(
                    "jobs", "g", hold_time=10.0, max_unsettled=10 if reader is started else None
                ) as consumer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(reader, consumer, log)
                while True:
                    await publish(client, 20)
                    await trio.sleep(1.0)
        assert len(log.suspects()) == 3
        assert max(log.suspects()) < RUNS_OUT_S + 6.0, "it shares its time"
        assert set(log.beside.values()) == {0}
        assert log.done > 30


async def test_a_worker_that_keeps_its_messages_is_asked_less_often() -> None:
    async with with_suspects(1, 20) as (_, client):
        async with client.consumer("jobs", "g", hold_time=5.0) as consumer:
            kept = await consumer.take(20)
            await trio.sleep(RUNS_OUT_S)
            came: list[float] = []
            with trio.move_on_after(45.0):
                while True:
                    await publish(client, 1)
                    began = trio.current_time()
                    kept += await consumer.take(1)
                    came.append(trio.current_time() - began)
                    await trio.sleep(1.5)
        pauses = [seconds for seconds in came if seconds > 1.0]
        assert len(pauses) == 2, "for a fifth of the time"
        assert all(3.0 < seconds < 7.0 for seconds in pauses), "one hold time"
        assert len(kept) > 30
        assert all(message.attempt == 1 for message in kept)


async def test_a_suspect_is_never_delivered_beside_other_messages() -> None:
    """Topics have FETCHes of their own: the one brings a suspect, the other brings first-timers all the time."""
    async with with_suspects(3, 50) as (_, client):
        await client.create_topic("others")
        log = Log()

        async def handle(message: Message) -> None:
            log.begin("", [message])
            await trio.sleep(0.3 + len(log.started) % 3)
            log.end("", [message])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(client.work, ["jobs", "others"], "g", handle, concurrency=4, signals=False)
            )
            for _ in range(45):
                await publish(client, 6, topic="others")
                await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        assert len(log.suspects()) == 3
        assert set(log.beside.values()) == {0}
        assert log.done > 40


async def test_a_worker_drained_for_a_deleted_suspect_prefetches_again() -> None:
    """It waited until nothing was in hand. The suspect is not there any more."""
    async with with_suspects(1, 0) as (cluster, client):
        await client.create_topic("others")
        await publish(client, 1, topic="others")
        consumer = client.consumer(["jobs", "others"], "g", hold_time=10.0)
        consumer.expects_topics = True
        async with consumer, trio.open_nursery() as nursery:
            (kept,) = await consumer.take(1)
            came: list[Message] = []

            async def collect() -> None:
                async for message in consumer:
                    came.append(message)

            nursery.start_soon(collect)
            await trio.sleep(RUNS_OUT_S + 1.0)
            cluster.asked.clear()
            await trio.sleep(3.0)
            assert not cluster.of(Fetch), "while it has something in hand"
            await client.delete_topic("jobs")
            await kept.ack()
            await trio.sleep(1.0)
            for number in range(1, 4):
                await publish(client, 1, topic="others")
                await trio.sleep(2.0)
                assert len(came) == number
            nursery.cancel_scope.cancel()


async def test_a_hint_not_acted_on_ends_with_the_topic_of_its_suspect() -> None:
    """The consumer would empty its hands for nothing."""
    async with with_suspects(1, 0) as (_, client):
        await client.create_topic("others")
        consumer = client.consumer(["jobs", "others"], "g", hold_time=5.0)
        consumer.expects_topics = True
        async with consumer:

            async def longest(seconds: float) -> float:
                end, most = trio.current_time() + seconds, 0.0
                while (began := trio.current_time()) < end:
                    await publish(client, 1, topic="others")
                    assert await consumer.take(1)  # and keep it
                    most = max(most, trio.current_time() - began)
                    await trio.sleep(1.5)
                return most

            assert await longest(RUNS_OUT_S + 10.0) > 3.0
            await client.delete_topic("jobs")
            assert await longest(30.0) < 1.0


async def test_a_suspect_goes_before_what_waits_already_and_alone() -> None:
    async with with_suspects(1, 0) as (_, client):
        await client.create_topic("others")
        async with client.consumer(["jobs", "others"], "g", hold_time=30.0) as consumer:
            assert await consumer.take(2, timeout=0.0) == []  # a caller that may ask again has both fetched
            await publish(client, 1, topic="others")
            await trio.sleep(RUNS_OUT_S)
            for topic in ("jobs", "others"):
                (message,) = await consumer.take(2)
                assert message.topic == topic
                await message.ack()


# ---------------------------------------------------------------- what a crash costs a pool

HOLD_S = 2.0


async def crashed(client: Client, count: int, crashes: int) -> None:
    """A process had ``count`` messages in hand each time that it died."""
    await client.create_topic("jobs")
    await publish(client, count)
    for _ in range(crashes):
        got = 0
        while got < count:
            got += len(await client.fetch("jobs", "g", max_messages=count, hold_time=HOLD_S))
        await trio.sleep(HOLD_S)


@pytest.mark.parametrize(("crashes", "times"), [(1, 1.3), (2, 2.0), (3, 3.0)])
async def test_a_killed_pool_goes_on_with_nearly_all_of_its_workers(crashes: int, times: float) -> None:
    """16 jobs of 2 s were in hand, 48 wait behind: 8 s of work for 16 workers."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        await crashed(client, 16, crashes)
        await publish(client, 48)
        log = Log()
        with trio.move_on_after(60.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(work, client, log, lambda _: 2.0, concurrency=16))
                while log.done < 64:
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        assert trio.current_time() - log.since <= 8.0 * times


@pytest.mark.parametrize("crashes", [pytest.param(1, marks=pytest.mark.soak), 2])
async def test_new_messages_do_not_wait_for_what_a_crash_left(crashes: int) -> None:
    """Two pools of 16 with handlers of 0.3 s, 20 messages a second, 200 that a killed client had."""
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await crashed(client, 200, crashes)
        sent: dict[bytes, float] = {}
        waits: list[float] = []
        unseen: set[bytes] = set()

        async def handler(message: Message) -> None:
            if message.payload in sent:
                waits.append(trio.current_time() - sent[message.payload])
            else:
                unseen.add(message.payload)
            await trio.sleep(0.3)

        async with trio.open_nursery() as nursery:
            for one in (client, other):
                pool = partial(one.work, "jobs", "g", handler, concurrency=16, signals=False)
                nursery.start_soon(pool)
            for number in range(400):
                sent[b"new %d" % number] = trio.current_time()
                await client.publish("jobs", b"new %d" % number)
                await trio.sleep(0.05)
            await trio.sleep(2.0)
            nursery.cancel_scope.cancel()
        assert (len(waits), len(unseen)) == (400, 200)
        for begin in range(0, 400, 100):
            assert sorted(waits[begin : begin + 100])[50] < 2.0, "the median, throughout"

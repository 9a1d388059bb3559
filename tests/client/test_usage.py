"""What a newcomer gets wrong in the first hour: it works, or says what to do; it never hangs and drops nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import trio

from quorumq.client import Client, Closed, Conflict, Outcome, UsageError, connect
from tests.client.fake import connected, fake_cluster
from tests.client.steps import jobs, publish, take


@pytest.mark.parametrize(("most", "taken"), [(5.0, 5.0), (60.0, 30.0)])
async def test_the_default_hold_time_is_one_that_the_cluster_allows(most: float, taken: float) -> None:
    for topic in ("jobs", "j*"):
        async with fake_cluster(hold_time_max=most) as cluster, connected(cluster) as client:
            await client.create_topic("jobs")
            await publish(client, 2)
            client.nodes.hold_time_max = None  # as in a client that made no topic
            (fetched,) = await client.fetch(topic, "once", max_messages=1, max_wait=1.0)
            client.nodes.hold_time_max = None
            async with client.consumer(topic, "g") as consumer:
                (message,) = await take(consumer, 1)
            assert consumer.hold_time == message.delivery.hold_time == fetched.delivery.hold_time == taken


async def test_a_hold_time_may_be_a_timedelta() -> None:
    async with (
        jobs(1) as (_, client),
        client.consumer("jobs", "g", hold_time=timedelta(seconds=4)) as consumer,
    ):
        (message,) = await take(consumer, 1)
        assert message.delivery.hold_time == 4.0
        before = message.deadline
        await message.extend(timedelta(seconds=40))
        assert message.deadline > before + 30.0


async def test_times_of_a_topic_may_be_timedeltas() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        made = await client.create_topic("jobs", ttl=timedelta(days=1), backoff=[timedelta(seconds=1), 2])
        assert (made.ttl_s, made.backoff) == (86400.0, (1.0, 2.0))
        assert (await client.alter_topic("jobs", retention=timedelta(hours=1))).retention_s == 3600.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda client: client.consumer("jobs", "g", hold_time="5s"), "hold_time is '5s': give seconds or a timedelta"),
        (lambda client: client.consumer("jobs", 7), "7 is no name"),
        (lambda client: client.consumer([b"jobs"], "g"), "b'jobs' is no name"),
        (lambda client: client.fetch("jobs", "g", hold_time="5s"), "hold_time is '5s'"),
        (lambda client: client.create_topic("other", ttl="1d"), "ttl is '1d': give seconds or a timedelta"),
        (lambda client: client.create_topic("other", backoff=["1s"]), "backoff is '1s'"),
    ],
)  # fmt: skip
async def test_a_value_of_the_wrong_type_is_named_and_the_client_goes_on(
    wrong: Callable[[Client], Any], said: str
) -> None:
    async with jobs() as (_, client):
        with pytest.raises(UsageError, match=said):
            await wrong(client)
        await publish(client, 1)
        assert len(await client.fetch("jobs", "g", max_wait=1.0)) == 1


async def test_a_key_and_headers_of_the_wrong_type_are_named_and_the_producer_goes_on() -> None:
    async with jobs() as (_, client):
        text: Any = 1
        async with client.producer("jobs") as producer:
            with pytest.raises(TypeError, match="a key is bytes, not int: encode it first"):
                await producer.send(b"1", key=text)
            headers: Any = [("a", "b")]
            with pytest.raises(TypeError, match="headers are a mapping of names to values, not list"):
                await producer.send(b"1", headers=headers)
            await producer.publish(b"1")


async def test_a_consumer_says_that_it_is_used_by_with_and_both_are_used_once() -> None:
    async with jobs() as (_, client):
        producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
        with trio.fail_after(5.0):
            with pytest.raises(UsageError, match="nothing is fetched yet: use the consumer by `with`"):
                await consumer.take(1)
            with pytest.raises(UsageError, match="nothing is fetched yet"):
                await anext(consumer)
        async with producer, consumer:
            await producer.send(b"1")
            assert len(await take(consumer, 1)) == 1
        with pytest.raises(UsageError, match=r"used before: make another one by `Client.producer`"):
            await producer.__aenter__()
        with pytest.raises(UsageError, match=r"used before: make another one by `Client.consumer`"):
            await consumer.__aenter__()


async def test_messages_may_come_from_a_generator() -> None:
    async with jobs(8) as (_, client):
        a, b, c, d, *more = await client.fetch("jobs", "g", max_messages=8)
        await client.extend(one for one in [a, b])
        assert await client.ack(one for one in [a, b]) == [Outcome.ACKED] * 2
        await client.reject(one for one in [c])
        await client.dead_letter((one for one in [d]), ValueError("no"))
        assert (c.outcome, d.outcome) == (Outcome.REQUEUED, Outcome.DEAD_LETTERED)
        async with client.consumer("jobs", "h") as consumer:
            found = await take(consumer, 2)
            assert await consumer.ack(one for one in found) == [Outcome.ACKED] * 2
        assert more


async def test_a_list_that_changes_while_it_is_acked_is_acked_as_it_was() -> None:
    async with jobs(3) as (_, client):
        messages = await client.fetch("jobs", "g", max_messages=3)
        kept = list(messages)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ack, messages)
            await trio.testing.wait_all_tasks_blocked()
            messages.clear()
        assert [message.outcome for message in kept] == [Outcome.ACKED] * 3


async def test_a_closed_client_says_so_at_once() -> None:
    async with fake_cluster() as cluster:
        async with connected(cluster) as client:
            await client.create_topic("jobs")
            await publish(client, 1)
            (message,) = await client.fetch("jobs", "g")
            producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
        began = trio.current_time()
        calls: list[Callable[[], Awaitable[object]]] = [
            client.status, message.ack, message.reject, message.extend, producer.__aenter__, consumer.__aenter__,
            lambda: client.fetch("j*", "g"), lambda: client.create_topic("jobs"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(Closed, match="the client is closed"):
                await call()
        assert trio.current_time() == began


async def test_batches_end_when_nothing_comes_for_so_long() -> None:
    async with jobs(3) as (_, client):
        async with client.consumer("jobs", "g") as consumer:
            with trio.fail_after(10.0):
                found = [
                    one for batch in [b async for b in consumer.batches(2, timeout=1.0)] for one in batch
                ]
        assert len(found) == 3


def test_outside_of_trio_it_names_the_client_to_use() -> None:
    async def main() -> None:
        async with connect("127.0.0.1:1"):
            raise AssertionError

    with pytest.raises(UsageError, match=r"runs on trio.*quorumq\.client\.blocking"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:7401,127.0.0.1:7402", "must be one host:port: give several as several"),
        ("http://127.0.0.1:7401", "without a scheme"),
        ("::1:7401", "in brackets"),
        ("localhost", "'localhost'"),
    ],
)
async def test_an_address_that_is_none_says_how_to_write_it(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        async with connect(address):
            raise AssertionError


async def test_a_client_of_another_run_is_refused() -> None:
    async def elsewhere(client: Client) -> None:
        with pytest.raises(UsageError, match=r"belongs to another trio\.run"):
            await client.topic("jobs")
        with pytest.raises(UsageError, match=r"belongs to another trio\.run"):
            async with client.producer("jobs"):
                pass

    async with jobs() as (_, client):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            threads.submit(trio.run, elsewhere, client).result()


async def test_partitions_are_added_by_create_only_while_a_topic_made_by_publishing_is_empty() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.topic("empty", create=True)
        assert (await client.create_topic("empty", partitions=3)).partitions == 3
        await client.publish("jobs", b"one")
        with pytest.raises(Conflict, match="made by publishing, with 1 partition, and has messages"):
            await client.create_topic("jobs", partitions=3)
        assert (await client.create_topic("jobs", partitions=1, max_deliveries=7)).partitions == 1
        assert (await client.alter_topic("jobs", partitions=3)).partitions == 3
        assert (await client.create_topic("jobs", partitions=3)).partitions == 3

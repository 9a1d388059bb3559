"""Fetches from several groups at once, and the other calls that gateways and brokers need."""

from __future__ import annotations

import pytest
import trio

from quorumq.client import NotFound, UsageError
from quorumq.core.messages import Fetch
from tests.client.fake import connected, fake_cluster
from tests.client.steps import RUNS_OUT_S, in_a_loop, in_a_thread, jobs, publish, with_suspects

SOURCES = [("jobs", "g"), ("others", "g"), ("jobs", "g!dead")]


async def test_a_fetch_takes_from_several_groups_and_their_dead_letters() -> None:
    async with jobs(3) as (_, client):
        (first, *_) = await client.fetch("jobs", "g", max_messages=1, max_wait=1.0)
        await first.dead_letter(ValueError("no"))
        await publish(client, 2, topic="others")
        messages = await client.fetch_any(SOURCES, max_messages=4)
        assert [(message.topic, message.group) for message in messages] == [
            ("jobs", "g"), ("jobs", "g"), ("others", "g"), ("others", "g"),
        ]  # fmt: skip
        (dead,) = await client.fetch_any(SOURCES, max_messages=4)
        assert (dead.group, dead.death is not None) == ("g!dead", True)
        await client.ack([*messages, dead])
        assert await client.fetch_any(SOURCES) == []


async def test_a_fetch_waits_at_all_of_them_for_the_first() -> None:
    async with jobs() as (cluster, client):
        await client.create_topic("others")
        async with trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.sleep(2.0)
                await publish(client, 1, topic="others")

            nursery.start_soon(later)
            began = trio.current_time()
            (message,) = await client.fetch_any(SOURCES[:2], max_wait=10.0)
            assert message.topic == "others"
            assert trio.current_time() - began < 5.0
        before = len(cluster.of(Fetch))
        await publish(client, 1)
        (message,) = await client.fetch_any(SOURCES[:2], max_wait=10.0)
        assert message.topic == "jobs"
        assert len(cluster.of(Fetch)) - before <= 2, "what waits is asked for once"


async def test_messages_of_a_cancelled_wait_are_given_back() -> None:
    async with jobs() as (_, client):
        await client.create_topic("others")
        with trio.move_on_after(1.0):
            await client.fetch_any(SOURCES[:2], max_wait=10.0)
        await publish(client, 1)
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        assert message.attempt == 1


async def test_messages_of_one_source_are_given_back_if_another_one_fails() -> None:
    async with jobs(1) as (_, client):
        with pytest.raises(NotFound):
            await client.fetch_any([("jobs", "g"), ("nowhere", "g")])
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        assert message.attempt == 1, "given back, it costs no attempt"


async def test_an_error_while_it_waits_is_raised_as_it_is() -> None:
    async with jobs() as (_, client):
        await client.create_topic("others")
        async with trio.open_nursery() as nursery:

            async def delete() -> None:
                await trio.sleep(1.0)
                await client.delete_topic("others")

            nursery.start_soon(delete)
            with pytest.raises(NotFound):
                await client.fetch_any(SOURCES[:2], max_wait=10.0)


@pytest.mark.parametrize("sources", [[], [("jobs",)], ["jobs"], [("jobs", "g")] * 65])
async def test_impossible_sources_are_refused(sources: list[tuple[str, str]]) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        with pytest.raises(UsageError, match="topic and group"):
            await client.fetch_any(sources)


async def test_a_program_with_others_in_hand_gets_no_suspects_and_says_so() -> None:
    async with with_suspects(1, 0) as (_, client):
        await trio.sleep(RUNS_OUT_S)
        assert await client.fetch("jobs", "g", max_wait=0.5, idle=False) == []
        assert await client.fetch_any([("jobs", "g")], idle=False) == []
        (message,) = await client.fetch("jobs", "g", max_wait=0.5)
        assert message.suspect
        await publish(client, 1)
        (other,) = await client.fetch("jobs", "g", max_wait=0.5, idle=False)
        assert not other.suspect


async def test_a_take_without_time_asks_the_cluster_once() -> None:
    async with jobs(3) as (cluster, client), client.consumer("jobs", "g") as consumer:
        messages = await consumer.take(2, timeout=0)
        assert len(messages) == 2
        messages += await consumer.take(2, timeout=0)
        assert len(messages) == 3
        await consumer.ack(messages)
        assert consumer.unsettled == 0
        before = len(cluster.of(Fetch))
        assert await consumer.take(2, timeout=0) == []
        assert len(cluster.of(Fetch)) - before <= 2


async def test_a_take_without_time_and_position_takes_nothing() -> None:
    async with jobs(3) as (_, client), client.consumer("jobs", "g", max_unsettled=1) as consumer:
        assert len(await consumer.take(2, timeout=0)) == 1
        assert await consumer.take(2, timeout=0) == []


async def test_consumers_and_producers_open_and_close_beside_with() -> None:
    async with jobs() as (_, client):
        producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
        await producer.open()
        await consumer.open()
        await producer.publish(b"x")
        (message,) = await consumer.take(1)
        await message.ack()
        await consumer.close()
        await producer.close()
        assert await consumer.take(1) == []


def test_those_of_threads_open_and_close() -> None:
    with in_a_thread() as client:
        client.create_topic("jobs")
        producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
        producer.open()
        consumer.open()
        producer.publish(b"x")
        (message,) = consumer.take(1)
        assert message.suspect is False
        message.ack()
        consumer.close()
        producer.close()
        assert client.fetch_any([("jobs", "g")]) == []


def test_those_of_asyncio_open_and_close() -> None:
    import asyncio

    async def work() -> None:
        async with in_a_loop() as client:
            await client.create_topic("jobs")
            producer, consumer = client.producer("jobs"), client.consumer("jobs", "g")
            await producer.open()
            await consumer.open()
            await producer.publish(b"x")
            (message,) = await consumer.take(1)
            await message.ack()
            await consumer.close()
            await producer.close()
            assert await client.fetch_any([("jobs", "g")]) == []

    asyncio.run(work())

"""`Client.fetch` with ids: the messages that are named, wherever they are, and no others."""

from __future__ import annotations

import pytest
import trio

from quorumq.client import MessageId, NotFound, UsageError
from quorumq.core.messages import Fetch
from tests.client.steps import jobs


async def test_messages_are_fetched_by_their_ids_from_all_partitions() -> None:
    async with jobs(partitions=3) as (cluster, client):
        ids = [await client.publish("jobs", b"%d" % n, partition=n % 3) for n in range(9)]
        requested = [ids[7], ids[2], ids[3], ids[2]]
        messages = await client.fetch("jobs", "g", ids=requested, hold_time=5.0)
        assert {message.id: message.payload for message in messages} == {
            ids[7]: b"7",
            ids[2]: b"2",
            ids[3]: b"3",
        }
        assert len(cluster.of(Fetch)) == 3, "each partition was asked once"
        assert await client.fetch("jobs", "g", ids=requested) == []
        await client.ack(messages)
        rest = await client.fetch("jobs", "g", max_messages=9, min_messages=6, max_wait=1.0)
        assert {message.id for message in rest} == set(ids) - set(requested)
        states = {name: peek.peeked.state for name, peek in (await client.lookup("jobs", "g", ids)).items()}
        assert set(states.values()) == {"acked", "held"}
        assert await client.fetch("jobs", "g", ids=[]) == []


async def test_many_ids_take_several_requests() -> None:
    async with jobs() as (_, client):
        ids = await client.producer("jobs").publish_many([b"%d" % n for n in range(2500)])
        assert {message.id for message in await client.fetch("jobs", "g", ids=ids[::-1])} == set(ids)


async def test_a_message_that_a_worker_died_of_is_fetched_alone() -> None:
    async with jobs(max_deliveries=2) as (_, client):
        ids = [await client.publish("jobs", b"x") for _ in range(3)]
        assert len(await client.fetch("jobs", "g", ids=ids[:1], hold_time=0.5)) == 1
        await trio.sleep(0.6)
        came: list[MessageId] = []
        sizes: list[int] = []
        while messages := await client.fetch("jobs", "g", ids=ids):
            came += [message.id for message in messages]
            sizes.append(len(messages))
        assert (sorted(came), sorted(sizes)) == (sorted(ids), [1, 2])


async def test_contradictory_arguments_are_refused() -> None:
    async with jobs() as (_, client):
        await client.create_topic("others")
        (name, other) = [await client.publish(topic, b"x") for topic in ("jobs", "others")]
        with pytest.raises(UsageError, match="max_wait is 1"):
            await client.fetch("jobs", "g", ids=[name], max_wait=1.0)
        with pytest.raises(UsageError, match="topic"):
            await client.fetch("jobs", "g", ids=[other])
        far = name._replace(partition=name.partition._replace(number=7))
        with pytest.raises(NotFound, match="there is no 7"):
            await client.fetch("jobs", "g", ids=[far])

"""Names of the publisher's own (docs/protocol.md, NAMES): published again, it is the same message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio

from quorumq.client import Busy, Client, Conflict, NewMessage, NotFound, UsageError
from quorumq.client.base.context import REFRESH_S
from quorumq.client.base.message import MessageId
from quorumq.client.produce.derived import Name, window_of
from quorumq.core.messages import Failed, Publish
from quorumq.core.values.types import NAMED
from tests.client.fake import connected, fake_cluster, serving

HOUR_S = 3600
BUSY = Failed(Busy.code, "as the test says", 2, 1)


async def all_of(client: Client, topic: str = "jobs") -> list[bytes]:
    return sorted(
        [message.payload for message in await client.fetch(topic, "g", max_messages=50, max_wait=0.2)]
    )


@pytest.mark.parametrize("window", [None, HOUR_S])
async def test_a_name_is_one_message_whoever_publishes_it(window: int | None) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await client.create_topic("jobs", partitions=3)
        options: dict[str, Any] = {"dedup": "invoice-4711", "window": window}
        first = await client.publish("jobs", b"bill", **options)
        assert first.producer_id.node == NAMED
        assert await other.publish("jobs", b"bill", **options) == first
        assert await client.publish("jobs", b"bill", dedup="invoice-4712", window=window) != first
        with pytest.raises(Conflict, match=f"stored as {first}.*one dedup= name is for one payload"):
            await other.publish("jobs", b"another bill", **options)
        assert await all_of(client) == [b"bill", b"bill"]


async def test_an_acked_message_is_not_published_again_while_its_name_is_kept() -> None:
    async with serving("jobs") as (_, client):
        await client.create_group("jobs", "g")
        first = await client.publish("jobs", b"bill", dedup="x", window=HOUR_S)
        (message,) = await client.fetch("jobs", "g", max_wait=1.0)
        await message.ack()
        await trio.sleep(6)  # its payload is reclaimed
        assert await client.publish("jobs", b"bill", dedup="x", window=HOUR_S) == first
        assert await all_of(client) == []


async def test_names_of_many_messages_share_batches() -> None:
    async with serving("jobs") as (_, client):
        messages = [NewMessage(b"%d" % number, dedup=f"n{number % 5}") for number in (0, 1, 2, 3, 4)]
        ids = await client.producer("jobs").publish_many(messages)
        assert len(set(ids)) == 5
        assert await client.producer("jobs").publish_many(messages) == ids
        assert len(await all_of(client)) == 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dedup": ""}, "1 to 1024 bytes"),
        ({"dedup": 4711}, "must be text"),
        ({"dedup": "x", "window": 5}, "from 60"),
        ({"dedup": "x", "window": 367 * 86_400}, "to 31622400 s"),
        ({"window": 60}, "give dedup="),
        ({"dedup": "x", "partition": 0}, "no partition"),
    ],
)
async def test_impossible_names_are_refused(options: dict[str, Any], text: str) -> None:
    async with serving("jobs") as (_, client):
        with pytest.raises(UsageError, match=text):
            await client.publish("jobs", b"bill", **options)


def test_the_parts_of_a_name_never_change() -> None:
    name = Name.of("invoice-4711")
    assert name == Name(848714730, 789, 2296643887092445338)
    assert [name.slot_of(window) for window in (0, 60, 3600, 86_400)] == [789, 789 % 16, 789 % 256, 789]


@pytest.mark.parametrize(
    ("window", "kept"),
    [
        (None, 0),
        (60, 60),
        (60.5, 120),
        (timedelta(hours=1), 3600),
        (3601, 7200),
        (366 * 86_400, 366 * 86_400),
    ],
)
def test_a_name_is_kept_for_the_next_longer_window(window: Any, kept: int) -> None:
    assert window_of(window) == kept


async def test_a_name_that_is_looked_up_while_its_topic_is_replaced_goes_to_the_new_one() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await client.create_topic("jobs")
        producer = client.producer("jobs")
        old = await producer.publish(b"before", dedup="x", window=60)
        await trio.sleep(REFRESH_S - 1.0)
        ids: list[MessageId] = []

        async def publish() -> None:
            ids.append(await producer.publish(b"after", dedup="y", window=60))

        async with trio.open_nursery() as nursery:
            cluster.lag = 2.0  # the answer is under way for 2 s
            nursery.start_soon(publish)
            await trio.sleep(0.1)
            cluster.lag = 0.0
            await other.delete_topic("jobs")
            await other.create_topic("jobs")
        assert ids[0].partition.topic != old.partition.topic
        assert await all_of(client) == [b"after"]


@pytest.mark.parametrize("window", [None, 60])
async def test_a_name_in_a_topic_made_again_is_one_message_of_the_new_one(window: int | None) -> None:
    """It was NotFound once, though the topic was there."""
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await client.create_topic("jobs")
        producer = client.producer("jobs", create=False)
        await producer.publish(b"before", dedup="x", window=window)
        await other.delete_topic("jobs")
        with pytest.raises(NotFound):
            await client.producer("jobs", create=False).publish(b"nowhere", dedup="x", window=window)
        topic = await other.create_topic("jobs")
        first = await producer.publish(b"after", dedup="x", window=window)
        assert first.partition.topic == topic.id
        assert await other.publish("jobs", b"after", dedup="x", window=window) == first
        assert await all_of(client) == [b"after"]


@pytest.mark.parametrize("window", [None, 60])
async def test_names_under_way_follow_to_the_topic_that_was_made_again(window: int | None) -> None:
    """Their names were looked up in the old one, and mean nothing in the new one."""
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster) as other:
        await client.create_topic("jobs")
        producer = client.producer("jobs")
        names = [f"n{number}" for number in range(3)]
        before = [await producer.publish(b"old", dedup=name, window=window) for name in names]
        cluster.answer = lambda node, request: BUSY if isinstance(request, Publish) else None
        ids: dict[str, MessageId] = {}

        async def publish(name: str) -> None:
            ids[name] = await producer.publish(name.encode(), dedup=name, window=window)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(publish, name)
            await trio.sleep(0.5)
            assert cluster.of(Publish), "they are named, and under way"
            await other.delete_topic("jobs")
            await other.create_topic("jobs")
            cluster.answer = lambda node, request: None
        assert not set(ids.values()) & set(before)
        for name in names:
            assert await other.publish("jobs", name.encode(), dedup=name, window=window) == ids[name]
        assert await all_of(client) == [b"n0", b"n1", b"n2"]

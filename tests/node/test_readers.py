"""Readers of a group and their rates: each node counts for a minute, for a bounded number of consumers."""

from __future__ import annotations

from typing import Any

import trio

from quorumq.core import messages as m
from quorumq.core.values.types import STAMP_ZERO, PartitionId, ProducerId, Topic
from quorumq.node.readers import SPAN_S, TOLD_MAX, TRACKED_MAX, Readers
from quorumq.wire.batch import Message, build_batch
from tests.node.memory import fetch, payloads, publish, receipts, served, world

TOPIC = Topic(bytes(16), "jobs", 3, (("a",), ("a",)), 5, STAMP_ZERO)
ASKED = m.DescribedGroup(TOPIC.id, "g", ())


def described(readers: Readers, asked: m.DescribedGroup, now: float) -> m.DescribedGroup:
    (reply,) = readers.describe((asked,), {TOPIC.id: TOPIC}, now)
    return reply


async def described_by(client: Any, group: str = "g") -> m.DescribedGroup:
    (reply,) = (await client.ask(m.DescribeGroups((("jobs", group),)))).groups
    assert isinstance(reply, m.DescribedGroup)
    return reply


def request(name: str = "w", *topics: str, partitions: tuple[int, ...] = (), group: str = "g") -> m.Fetch:
    return m.Fetch(topics or ("jobs",), group, 10, 10, 1, 0.0, 5.0, 0.0, name, partitions)


def won(number: int, count: int, topic: bytes = TOPIC.id) -> m.FetchReply:
    """``count`` messages, of a batch of twice as many."""
    here = PartitionId(topic, number)
    header = build_batch(here, ProducerId("a", 1, 1, 1), 0, 0, [Message(b"")] * 2 * count).header
    return m.FetchReply(0.0, 5.0, (m.Slice("jobs", here, 1, 1, 1 + count, header, ()),))


async def test_a_delivery_won_by_another_node_counts_at_the_node_that_was_asked() -> None:
    async with served(rf=1) as (cluster, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x", b"y"))
        far = await cluster.client(next(name for name in "abc" if name not in topic.replicas[0]))
        assert len(payloads(await far.ask(fetch()))) == 2
        reply = await described_by(far)
        assert (reply.parts, reply.flows) == ((), (m.GroupFlow(0, 2, 0),))


async def test_a_node_tells_who_fetched_from_where_what_was_delivered_and_what_settled() -> None:
    async with world() as cluster:
        client = await cluster.client("a", address="10.0.0.9:5555")
        topic, producer_id = await client.topic(), await client.session()
        await client.ask(publish(topic, producer_id, 0, b"x", b"y", b"z"))
        got = await client.ask(fetch(2)._replace(consumer="worker", version="2.1"))
        assert payloads(got) == [b"x", b"y"]
        await client.ack(*receipts(got)[:1])
        other = await cluster.client("a")
        await other.ask(fetch()._replace(consumer="idle", topics=("jo*",), group="h"))
        reply = await described_by(client)
        assert reply.parts == (m.GroupPart(0, ready=1, held=0, oldest_s=reply.parts[0].oldest_s),)
        assert reply.flows == (m.GroupFlow(0, delivered=2, settled=2),), "both are of one receipt"
        assert reply.consumers == (m.GroupConsumer("worker", "2.1", "test", "10.0.0.9", (0,), (2,)),)
        (idle,) = (await described_by(client, "h")).consumers
        assert idle.name == "idle"
        elsewhere = await described_by(await cluster.client("b"))
        assert elsewhere[3:] == ((), (), 0)
        await trio.sleep(SPAN_S + 5)
        assert (await described_by(client))[3:] == ((), (), 0), "that was a minute ago"
        assert (await client.ask(m.DescribeGroups((("nothing", "g"),)))).groups == ()


def test_counts_are_of_one_group_one_topic_and_one_minute() -> None:
    readers = Readers()
    readers.fetching(request(), "lib", "host", 0.0)
    readers.delivered(request(), won(1, 5), "lib", "host", 1.0)
    readers.delivered(request(), won(1, 7), "lib", "host", 30.0)
    readers.delivered(request("v"), won(0, 1), "lib", "host", 30.0)
    readers.delivered(request(), won(1, 1, topic=bytes(15) + b"x"), "lib", "host", 30.0)
    readers.delivered(request(group="h"), won(1, 1), "lib", "host", 30.0)
    reply = described(readers, ASKED, 50.0)
    assert reply.flows == (m.GroupFlow(0, 1, 0), m.GroupFlow(1, 12, 0))
    assert reply.consumers == (m.GroupConsumer("w", "", "lib", "host", (0, 1), (0, 12)),)
    readers.fetching(request(partitions=(1,)), "lib", "host", 70.0)
    reply = described(readers, ASKED, 70.0)
    assert reply.flows == (m.GroupFlow(0, 1, 0), m.GroupFlow(1, 7, 0))
    assert reply.consumers[0][4:] == ((1,), (7,))
    assert described(readers, ASKED, 200.0) == ASKED


def test_consumers_of_a_pattern_and_of_dead_letters_read_what_they_name() -> None:
    readers = Readers()
    readers.fetching(request("all", "jo*"), "", "", 0.0)
    readers.fetching(request("dead", "jobs.deadletters"), "", "", 0.0)
    readers.fetching(request("else", "nobs"), "", "", 0.0)
    assert [consumer.name for consumer in described(readers, ASKED, 0.0).consumers] == ["all"]
    dead = described(readers, ASKED._replace(group="g!dead"), 0.0)
    assert [consumer.name for consumer in dead.consumers] == ["dead"]


def test_a_crowd_takes_bounded_space_and_is_gone_after_a_minute() -> None:
    readers = Readers()
    for number in range(TRACKED_MAX + 100):
        crowd = request(f"{number}{'x' * 500}")
        readers.fetching(crowd, "lib", "host", 1.0)
        readers.delivered(crowd, won(0, 1), "lib", "host", 1.0)
    assert max(len(readers._asking), len(readers._flows)) == TRACKED_MAX
    reply = described(readers, ASKED, 1.0)
    assert (len(reply.consumers), reply.left_out) == (TOLD_MAX, TRACKED_MAX - TOLD_MAX)
    assert reply.consumers[0].name.startswith(str(TRACKED_MAX + 99)), "who asked last"
    assert max(len(consumer.name) for consumer in reply.consumers) == 100
    assert reply.flows == (m.GroupFlow(0, TRACKED_MAX + 100, 0),), "the sum is of all"
    readers.fetching(request("one"), "lib", "host", 100.0)
    readers.delivered(request("one"), won(0, 1), "lib", "host", 100.0)
    assert (len(readers._asking), len(readers._flows)) == (1, 2)

"""Numbers that no cluster reaches are refused at the entrance: no node takes them over, and every node starts again."""

from __future__ import annotations

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.values.limits import NUMBERS_END, STAMPS_END, STARTS_MAX
from quorumq.core.values.types import PartitionId, ProducerId, Span, Stamp, Topic
from quorumq.wire.batch import encode_header
from quorumq.wire.codec import encode_message
from tests.node.memory import Client, World, fetch, payloads, publish, receipts, served, world

FAR = (1 << 64) - 2
"""The highest number whose successor can still be encoded in 64 bits."""


async def again(cluster: World) -> None:
    """Stop every node, start them all, and use the cluster."""
    for name in cluster.names:
        if name in cluster.services:
            await cluster.stop(name)
    assert {name: cluster.codes[name] for name in cluster.names} == dict.fromkeys(cluster.names, 0)
    for name in cluster.names:
        cluster.start(name)
        await trio.sleep(0)
    with trio.fail_after(60):
        await cluster.ready()
    client = await cluster.client("a")
    producer_id = await client.session()
    topic = (await client.ask(m.CreateTopic("jobs", 3))).topic
    assert isinstance(await client.ask(publish(topic, producer_id, 0, b"after")), m.PublishReply)
    assert b"after" in payloads(await client.ask(fetch()))


async def test_a_hello_of_a_peer_beyond_the_limits_is_hung_up_on_and_nothing_is_taken_over() -> None:
    async with world() as cluster:
        await (await cluster.client("a")).topic()
        node = cluster.services["b"].node
        hello = node.core.hello(node.clock())
        start = hello.incarnation
        for evil, says in (
            (
                hello._replace(stamp=FAR),
                f"Hello.stamp is {FAR}: must be an integer from 0 to {STAMPS_END - 1}",
            ),
            (hello._replace(stamp=STAMPS_END), f"Hello.stamp is {STAMPS_END}: must be"),
            (
                hello._replace(incarnation=start._replace(n=STARTS_MAX)),
                f"Incarnation.n is {STARTS_MAX}: must be",
            ),
        ):
            before = len(cluster.logs["a"].of("connection_broken"))
            stranger = Client(cluster.connect("a"))
            await stranger.send(evil)
            assert await stranger.closed(1), evil
            (line,) = cluster.logs["a"].of("connection_broken")[before:]
            assert says in line["reason"]
        await trio.sleep(3)
        for service in cluster.services.values():
            clock = service.node.core.state.clock
            assert max(clock.value, clock.highest, clock.requested_reserve) < STAMPS_END // 2
        await again(cluster)


async def test_stamps_and_ballots_of_peers_beyond_the_limits_end_their_connection() -> None:
    async with world() as cluster:
        client = await cluster.client("a")
        topic = await client.topic()
        here = PartitionId(topic.id, 0)
        hold = m.Hold(1, here, topic.epoch_of(0), "g", 0, Stamp(STAMPS_END, "b"), 1.0, ())
        for chunks, says in (
            (encode_message(m.Heartbeat(()), stamp=STAMPS_END), f"stamp is {STAMPS_END}"),
            (encode_message(hold), f"Stamp.time is {STAMPS_END}"),
        ):
            await cluster.ready()
            link = cluster.services["b"].node.links["a"]
            before = len(cluster.logs["a"].of("connection_broken"))
            assert link.send(chunks)
            link.flush()
            await trio.sleep(1)
            (line,) = cluster.logs["a"].of("connection_broken")[before:]
            assert says in line["reason"]
        await again(cluster)


async def test_the_last_stamp_of_all_ends_no_node_and_says_so_to_clients() -> None:
    async with world() as cluster:
        await (await cluster.client("a")).topic()
        link = cluster.services["b"].node.links["a"]
        assert link.send(encode_message(m.Heartbeat(()), stamp=STAMPS_END - 1))
        link.flush()
        await trio.sleep(3)
        for _ in range(2):
            client = await cluster.client("c")
            refused = await client.ask(fetch())
            assert refused.code == "not-stored"
            assert str(STAMPS_END) in refused.detail
            for name in cluster.names:
                assert await cluster.stop(name) == 0
            for name in cluster.names:
                cluster.start(name)
                await trio.sleep(0)
            with trio.fail_after(60):
                await cluster.ready()


@pytest.mark.parametrize("k", [NUMBERS_END, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
async def test_a_session_that_no_cluster_opens_is_refused_and_every_node_starts_again(k: int) -> None:
    async with served() as (cluster, client, topic, producer_id):
        evil = producer_id._replace(k=k)
        says = f"is {k}: must be an integer from 0 to {NUMBERS_END - 1}"
        for request in (far_publish(topic, evil), m.CloseSession(evil, (PartitionId(topic.id, 0),))):
            reply = await client.ask(request)
            assert (reply.code, says in reply.detail) == ("usage", True), reply
        assert isinstance(await client.ask(publish(topic, producer_id, 0, b"x")), m.PublishReply)
        got = await client.ask(fetch())
        (receipt,) = receipts(got)
        reply = await client.ack(receipt._replace(spans=(Span(evil, 0, 1),)))
        assert (reply.code, says in reply.detail) == ("usage", True), reply
        await trio.sleep(1)
        await again(cluster)


def far_publish(topic: Topic, producer_id: ProducerId) -> m.Publish:
    """A PUBLISH whose header names ``producer_id``, written without the checks of the client."""
    good = publish(topic, producer_id._replace(k=1), 0, b"evil").batch
    spans = (Span(producer_id, 0, 1),)
    header = good.header._replace(spans=spans)
    return m.Publish(good._replace(header=header, raw=encode_header(header)))

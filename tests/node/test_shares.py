"""Each client begins a bounded share in one turn of the loop. The rest of its requests waits unread."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.messages.effects import Event, Request
from quorumq.core.values.types import DERIVED, PartitionId, ProducerId, Span
from quorumq.node.node import Node
from quorumq.node.shares import (
    ANSWER_BYTES,
    BESIDE_S,
    BODY_BYTES,
    HEADER_BYTES,
    REST_S,
    SHARE,
    SHARE_ALONE,
    SPANS,
    Shares,
    price,
)
from quorumq.wire.batch import Message, encode_record, pack_spans
from quorumq.wire.codec import encode_message
from sim.shell.memory import WALL_MS, pair
from tests.node.memory import Client, World, fetch, payloads, publish, world

FLOODS = 20
EACH = 60


class Clock:
    """Seconds, as a test sets them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_client_has_one_share_a_turn_and_a_large_one_only_where_it_is_alone() -> None:
    clock = Clock()
    shares = Shares(clock)
    shares.spend("greedy", 1)
    assert shares.share == SHARE_ALONE
    shares.spend("calm", 1)
    assert shares.share == SHARE
    shares.spend("greedy", SHARE - 1)
    assert shares.is_spent("greedy")
    assert not shares.is_spent("calm")
    shares.begin()
    assert not shares.is_spent("greedy")
    clock.now = 2 * BESIDE_S
    shares.spend("greedy", 1)
    shares.begin()
    assert shares.share == SHARE_ALONE


def test_a_client_beyond_its_share_rests_only_beside_others() -> None:
    clock = Clock()
    shares = Shares(clock)
    large = price(100, 100 * BODY_BYTES)
    shares.spend("greedy", large)
    shares.begin()
    assert not shares.is_spent("greedy"), "nobody else is there"
    shares.spend("calm", 1)
    shares.spend("greedy", large)
    shares.begin()
    rest = (large - SHARE) * REST_S
    for now, rests in ((0.5 * rest, True), (0.99 * rest, True), (1.01 * rest, False)):
        clock.now = now
        shares.begin()
        assert shares.is_spent("greedy") is rests
        assert not shares.is_spent("calm")


async def test_a_resting_client_goes_on_at_its_time() -> None:
    async with world("a") as cluster:
        calm = await cluster.client("a", address="calm:1")
        greedy = await cluster.client("a", address="greedy:1")
        node = cluster.services["a"].node
        await calm.ask(m.OpenSession())
        node.shares.spend("greedy", SHARE + 1000)
        began = trio.current_time()
        await greedy.ask(m.OpenSession())
        assert trio.current_time() - began == pytest.approx(1000 * REST_S, abs=0.01)


async def test_a_batch_of_many_producer_ids_costs_by_their_number() -> None:
    """Each is looked for and kept by all replicas: a calm client's request waited for several such batches."""
    async with world("a") as cluster:
        calm = await cluster.client("a", address="calm:1")
        greedy = await cluster.client("a", address="greedy:1")
        topic = await greedy.topic(rf=1)
        record = [encode_record(Message(b"x"))] * 600
        spans = tuple(sorted(Span(ProducerId(DERIVED, n, 7 * n, n), 0, 1) for n in range(600)))
        batch = pack_spans(PartitionId(topic.id, 0), spans, WALL_MS, record)
        await calm.ask(m.OpenSession())
        began = trio.current_time()
        assert isinstance(await greedy.ask(m.Publish(batch)), m.PublishReply)
        await greedy.ask(m.OpenSession())
        least = price(len(batch.raw), 600) + 600 // SPANS - SHARE
        assert trio.current_time() - began >= least * REST_S


async def test_an_answer_costs_by_its_bytes() -> None:
    async with world("a") as cluster:
        calm = await cluster.client("a", address="calm:1")
        greedy = await cluster.client("a", address="greedy:1", capacity=1 << 24)
        topic, producer_id = await greedy.topic(rf=1), await greedy.session()
        await greedy.ask(publish(topic, producer_id, 0, *[bytes(1 << 20)] * 3))
        await calm.ask(m.OpenSession())
        await trio.sleep(1.0)  # and has rested
        await calm.ask(m.OpenSession())
        began = trio.current_time()
        assert len(payloads(await greedy.ask(fetch(size=1 << 22)))) == 3
        await greedy.ask(m.OpenSession())
        assert trio.current_time() - began >= ((3 << 20) // ANSWER_BYTES - SHARE) * REST_S


@pytest.mark.parametrize(
    ("header", "body", "cost"), [(100, 0, 1), (HEADER_BYTES * 40, 0, 41), (100, 1 << 20, 65)]
)
def test_a_request_costs_by_its_bytes(header: int, body: int, cost: int) -> None:
    assert price(header, body) == cost


class Fed:
    """Requests given to the core of a node, by address of the client."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Counter[Any]] = []
        feed = node.feed

        def noted(*events: Event) -> None:
            callers = [event.caller for event in events if isinstance(event, Request)]
            if callers:
                self.steps.append(Counter(caller[0] for caller in callers if isinstance(caller, tuple)))
            feed(*events)

        monkeypatch.setattr(node, "feed", noted)

    def of(self, client: str) -> int:
        return sum(step[client] for step in self.steps)


async def flood(cluster: World, connections: int = FLOODS) -> list[Client]:
    """Connections of one address, each with many requests that are sent and not read."""
    floods = [await cluster.client("a", address=f"greedy:{number}") for number in range(connections)]
    for client in floods:
        frames = b"".join(b"".join(encode_message(m.OpenSession(), request=2 + at)) for at in range(EACH))
        client.transport.send_some([memoryview(frames)])
    return floods


async def test_a_client_waits_for_a_share_of_another_one_and_not_for_all_that_it_has_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world("a") as cluster:
        calm = await cluster.client("a", address="calm:1")
        fed = Fed(cluster.services["a"].node, monkeypatch)
        floods = await flood(cluster)
        for _ in range(5):
            before = fed.of("greedy")
            await calm.ask(m.OpenSession())
            assert fed.of("greedy") - before <= 6 * SHARE
        assert max(step["greedy"] for step in fed.steps) <= SHARE
        for client in floods:
            await client.receive(EACH)
        assert fed.of("greedy") >= FLOODS * (EACH - 1), "nothing is lost"


async def test_requests_of_a_client_that_has_left_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world("a") as cluster:
        calm = await cluster.client("a", address="calm:1")
        fed = Fed(cluster.services["a"].node, monkeypatch)
        floods = await flood(cluster)
        await calm.ask(m.OpenSession())
        for client in floods:
            client.transport.close()
        before = fed.of("greedy")
        await trio.sleep(1.0)
        assert fed.of("greedy") - before <= 4 * SHARE
        assert (await calm.ask(m.StatusRequest())).fields["connections"] == 1


async def test_one_client_alone_is_slowed_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world("a") as cluster:
        fed = Fed(cluster.services["a"].node, monkeypatch)
        (client,) = await flood(cluster, 1)
        await client.receive(EACH)
        assert max(step["greedy"] for step in fed.steps) == EACH


async def test_a_connection_that_waits_for_its_share_can_be_hung_up_on() -> None:
    async with world("a") as cluster:
        await cluster.client("a", address="calm:1")
        node = cluster.services["a"].node
        node.shares.spend("calm", 1)
        node.shares.spend("greedy", 10_000)
        ours, theirs = pair()
        cluster.services["a"].serve(theirs, "greedy:1")
        client = Client(ours)
        await client.hello()
        await client.send(m.Metadata())
        (inbound,) = [it for it in cluster.services["a"]._inbound.values() if it.host == "greedy"]
        inbound.give_up("for the test")
        assert await client.closed(0.5)

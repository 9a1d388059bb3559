"""Bounds of one request, and requests that grow too large for the peers: the node goes on."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.node import request_router
from quorumq.core.node.request_router import RequestRouter
from quorumq.core.values.limits import (
    CLIENT_HEADER_BYTES_MAX,
    CLIENT_HEADER_ITEMS_MAX,
    HEADER_BYTES_MAX,
    SPANS_SETTLED_MAX,
)
from quorumq.core.values.types import Death, Span, Stamp
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import MAGIC
from quorumq.wire.values import SignedNamed
from sim.memory_disk import MemoryDisk
from tests.node.memory import fetch, outcomes, payloads, publish, receipts, served, world


async def test_a_message_that_is_too_large_for_a_peer_is_dropped_and_logged_and_the_node_goes_on() -> None:
    async with world() as cluster:
        client = await cluster.client("a")
        topic = await client.topic()
        node = cluster.services["a"].node
        node.send("b", m.SyncTopics((topic,) * 120_000, ()))
        (line,) = cluster.logs["a"].of("message_not_sent")
        assert (line["peer"], line["message"]) == ("b", "SyncTopics")
        assert str(HEADER_BYTES_MAX) in line["reason"]
        producer_id = await client.session()
        assert isinstance(await client.ask(publish(topic, producer_id, 0, b"x")), m.PublishReply)


async def test_a_message_that_cannot_be_encoded_is_dropped_whatever_was_raised() -> None:
    async with world() as cluster:
        node = cluster.services["a"].node
        node.send("b", m.SyncTopics((object(),), ()))  # type: ignore[arg-type]
        (line,) = cluster.logs["a"].of("message_not_sent")
        assert (line["peer"], line["message"]) == ("b", "SyncTopics")
        assert line["exc_info"].__traceback__ is not None
        client = await cluster.client("a")
        await client.topic()
        assert (await client.ask(m.StatusRequest())).fields["messages_not_sent"] == 1


async def test_a_bug_met_before_a_change_costs_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    create = RequestRouter._create_topic

    def planted(listens_for: RequestRouter, key: int, request: m.CreateTopic) -> Any:
        if request.name == "boom":
            raise ZeroDivisionError("planted")
        return create(listens_for, key, request)

    monkeypatch.setattr(RequestRouter, "_create_topic", planted)
    async with served() as (cluster, client, topic, producer_id):
        boom = m.CreateTopic("boom")
        batch = publish(topic, producer_id, 0, b"x")
        frames = [
            b"".join(encode_message(each, request=1000 + at))
            for at, each in enumerate((batch, boom, fetch()))
        ]
        await client.push(b"".join(frames))  # they are one step of the core
        assert isinstance(await client.receive(1000), m.PublishReply)
        refused = await client.receive(1001)
        assert (refused.code, "ZeroDivisionError: planted" in refused.detail) == ("not-stored", True)
        assert isinstance(await client.receive(1002), m.FetchReply)
        (line,) = cluster.logs["a"].of("request_failed")
        assert (line["request"], line["exc_info"].__traceback__ is None) == ("CreateTopic", False)
        assert (await client.ask(m.StatusRequest())).fields["requests_failed"] == 1
        assert cluster.services["a"].node.failed is None


async def test_an_unencodable_answer_costs_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        await client.topic(rf=1)
        looked = request_router.metadata
        monkeypatch.setattr(
            request_router, "metadata", lambda *args: looked(*args)._replace(topics=(object(),))
        )
        reply = await client.ask(m.Metadata(()))
        assert (reply.code, "it was done" in reply.detail) == ("outcome-unknown", True)
        (line,) = cluster.logs["a"].of("request_failed")
        assert (line["request"], line["exc_info"].__traceback__ is None) == ("MetadataReply", False)
        status = await client.ask(m.StatusRequest())
        assert status.fields["requests_failed"] == 1
        assert status.fields["inflight_bytes"] < 1 << 20


async def test_the_names_in_a_request_have_one_limit_however_divided() -> None:
    async with served("a") as (_, client, topic, producer_id):
        assert isinstance(await client.ask(publish(topic, producer_id, 0, *[b"x"] * 20)), m.PublishReply)
        (receipt,) = receipts(await client.ask(fetch(20)))
        one = tuple(Span(producer_id, seq, seq + 1) for seq in range(20))
        most = SPANS_SETTLED_MAX // 20
        for count, fits in ((most, True), (most + 1, False)):
            items = (SignedNamed(receipt.signed, one),) * count
            for request in (m.AckRequest(items), m.ExtendRequest(items, 1.0, 0.0), m.ReleaseRequest(items)):
                reply = await client.ask(request)
                if fits:
                    assert not isinstance(reply, m.Failed), reply
                else:
                    assert (reply.code, f"at most {SPANS_SETTLED_MAX}" in reply.detail) == ("too-large", True)


@pytest.mark.parametrize("text", ["x", "🐇"])
async def test_a_dead_letter_for_many_deliveries_has_a_limit_in_all(text: str) -> None:
    async with served() as (cluster, client, topic, producer_id):
        for seq in range(80):
            await client.ask(publish(topic, producer_id, seq, b"x"))
        got = receipts(await client.ask(fetch(80)))
        death = Death(Stamp(0, ""), "rejected", "Error", text * 8_000, stack=text * 8_000)
        items = tuple(got)
        assert len(items) > 70
        reply = await client.ask(m.RejectRequest(items, 0.0, death))
        assert (reply.code, "send fewer deliveries at once" in reply.detail) == ("too-large", True)
        reply = await client.ask(m.RejectRequest(items[:4], 0.0, death))
        assert outcomes(reply) == ["ok"] * 4
        await trio.sleep(1.0)
        assert all(service.node.failed is None for service in cluster.services.values())


async def test_the_names_in_a_request_are_bounded_and_repeats_count_once() -> None:
    async with served() as (_, client, topic, producer_id):
        await client.ask(publish(topic, producer_id, 0, b"x"))
        names = tuple(f"{number:06}" + "n" * 190 for number in range(1_001))
        patterns = tuple(f"j*{number}" for number in range(11))
        for request, says in (
            (m.Metadata(names), "1001 names of topics: at most 1000"),
            (m.Metadata(patterns), "11 patterns of names: at most 10"),
            (fetch()._replace(topics=names), "1001 names of topics: at most 1000"),
            (fetch()._replace(topics=patterns), "11 patterns of names: at most 10"),
            (fetch()._replace(partitions=(0,) * 1_025), "1025 partitions: at most 1024"),
            (m.PurgeRequest("jobs", 0, "g", (Span(producer_id, 0, 1),) * 1_001), "1001 spans: at most 1000"),
        ):
            reply = await client.ask(request)
            assert (reply.code, says in reply.detail) == ("too-large", True), reply
        reply = await client.ask(m.Metadata(names[:1000]))
        assert reply.code == "not-found"
        twice = fetch()._replace(topics=("jobs", "j*", "jobs"), partitions=(0, 0))
        assert payloads(await client.ask(twice)) == [b"x"]


async def test_a_request_that_takes_long_to_read_is_not_read() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        header = b"\x84\x18\x44\x01\x00\x9a" + struct.pack(">I", 1 << 21) + b"\xa0" * (1 << 21)
        await client.push(MAGIC + struct.pack(">II", len(header), 0) + header)
        assert await client.closed(1)
        (line,) = cluster.logs["a"].of("connection_broken")
        assert f"a header of {len(header)} bytes: at most {CLIENT_HEADER_BYTES_MAX}" in line["reason"]


async def test_a_request_of_too_many_small_items_is_not_read() -> None:
    """786,000 nested arrays would take a tenth of a second."""
    item = b"\x81\x81\x81\x00"
    count = (CLIENT_HEADER_BYTES_MAX - 16) // len(item)
    header = b"\x84\x18\x44\x01\x00\x9a" + struct.pack(">I", count) + item * count
    async with world("a") as cluster:
        client = await cluster.client("a")
        await client.push(MAGIC + struct.pack(">II", len(header), 0) + header)
        assert await client.closed(1)
        (line,) = cluster.logs["a"].of("connection_broken")
        assert f"more than {CLIENT_HEADER_ITEMS_MAX} items in {len(header)} bytes" in line["reason"]


async def test_a_node_that_lost_its_disk_gets_the_longest_dead_letters_back() -> None:
    async with served() as (cluster, client, topic, producer_id):
        text = "🐇" * 8_192
        death = Death(
            Stamp(0, ""), "rejected", "Error", text, stack=text, host="h" * 16_000, consumer="c" * 16_000
        )
        assert death.text_bytes > 95_000
        for seq in range(70):
            await client.ask(publish(topic, producer_id, seq, b"x"))
        for item in receipts(await client.ask(fetch(70, hold_time=5.0))):
            assert outcomes(await client.ask(m.RejectRequest((item,), 0.0, death))) == ["ok"]
        await cluster.stop("c")
        cluster.disks["c"] = MemoryDisk()
        cluster.start("c")
        with trio.fail_after(60):
            while "c" not in cluster.codes:  # it hears that it was there before
                await trio.sleep(0.1)
            cluster.disks["c"].unlock()
            cluster.start("c")
            await cluster.ready()
        core = cluster.services["c"].node.core
        with trio.fail_after(60):
            while (
                sum(view.records.messages for each in core.replicas.values() for view in each.views.sorted())
                < 70
            ):
                await trio.sleep(0.5)
        for name in "abc":
            assert cluster.services[name].node.failed is None
            assert not cluster.logs[name].of("message_not_sent")
        await trio.sleep(20.0)
        reader = await cluster.client("c")
        got = await reader.ask(fetch(70)._replace(group="g!dead"))
        assert 20 < len(payloads(got)) <= 32

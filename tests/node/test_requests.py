"""What one request may ask for, and what becomes of one that grows too large for the peers: the node goes on."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.limits import HEADER_BYTES_MAX, SPANS_PER_REQUEST_MAX
from quorumq.core.types import Letter, Span, Stamp
from quorumq.storage.memory import MemoryDisk
from quorumq.wire.values import SealedNamed
from tests.node.memory import fetch, outcomes, payloads, publish, receipts, world


async def test_a_message_that_is_too_large_for_a_peer_is_dropped_and_logged_and_the_node_goes_on() -> None:
    async with world() as cluster:
        await cluster.ready()
        client = await cluster.client("a")
        topic = await client.topic()
        node = cluster.services["a"].node
        node.send("b", m.SyncTopics((topic,) * 120_000, ()))
        (line,) = cluster.logs["a"].of("message_not_sent")
        assert (line["peer"], line["message"]) == ("b", "SyncTopics")
        assert str(HEADER_BYTES_MAX) in line["reason"]
        origin = await client.session()
        assert isinstance(await client.ask(publish(topic, origin, 0, b"x")), m.PublishReply)


async def test_what_a_request_names_has_one_limit_however_it_is_divided() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        topic, origin = await client.topic(rf=1), await client.session()
        assert isinstance(await client.ask(publish(topic, origin, 0, *[b"x"] * 20)), m.PublishReply)
        (receipt,) = receipts(await client.ask(fetch(20)))
        one = tuple(Span(origin, seq, seq + 1) for seq in range(20))
        most = SPANS_PER_REQUEST_MAX // 20
        for count, fits in ((most, True), (most + 1, False)):
            items = (SealedNamed(receipt.sealed, one),) * count
            for request in (m.AckRequest(items), m.ExtendRequest(items, 1.0, 0.0), m.LeaveRequest(items)):
                reply = await client.ask(request)
                if fits:
                    assert not isinstance(reply, m.Failed), reply
                else:
                    assert (reply.code, f"at most {SPANS_PER_REQUEST_MAX}" in reply.detail) == (
                        "too-large",
                        True,
                    )


@pytest.mark.parametrize("text", ["x", "🐇"])
async def test_a_letter_for_many_deliveries_has_a_limit_in_all(text: str) -> None:
    async with world() as cluster:
        client = await cluster.client("a")
        topic, origin = await client.topic(), await client.session()
        for seq in range(80):
            await client.ask(publish(topic, origin, seq, b"x"))
        got = receipts(await client.ask(fetch(80)))
        letter = Letter(Stamp(0, ""), "rejected", "Error", text * 8_000, stack=text * 8_000)
        items = tuple(got)
        assert len(items) > 70
        reply = await client.ask(m.RejectRequest(items, 0.0, letter))
        assert (reply.code, "send fewer deliveries at once" in reply.detail) == ("too-large", True)
        reply = await client.ask(m.RejectRequest(items[:4], 0.0, letter))
        assert outcomes(reply) == ["ok"] * 4
        await trio.sleep(1.0)
        assert all(service.node.failed is None for service in cluster.services.values())


async def test_names_of_metadata_cost_nobody_a_node() -> None:
    async with world() as cluster:
        await cluster.ready()
        client = await cluster.client("a")
        names = tuple(f"{number:06}" + "n" * 190 for number in range(10_000))
        reply: Any = await client.ask(m.Metadata(names))
        assert isinstance(reply, m.MetadataReply | m.Failed), reply
        await client.topic()
        assert all(service.node.failed is None for service in cluster.services.values())


async def test_a_node_that_lost_its_disk_gets_the_longest_dead_letters_back() -> None:
    async with world() as cluster:
        client = await cluster.client("a")
        topic, origin = await client.topic(), await client.session()
        text = "🐇" * 8_192
        letter = Letter(
            Stamp(0, ""), "rejected", "Error", text, stack=text, host="h" * 16_000, consumer="c" * 16_000
        )
        assert letter.text_bytes > 95_000
        for seq in range(70):
            await client.ask(publish(topic, origin, seq, b"x"))
        for item in receipts(await client.ask(fetch(70, hold_time=5.0))):
            assert outcomes(await client.ask(m.RejectRequest((item,), 0.0, letter))) == ["ok"]
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

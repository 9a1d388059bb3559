"""durability = "os" in the shell: what is answered before the fsync, and when that comes (docs/protocol.md, G1)."""

from __future__ import annotations

import pytest
import trio

from quorumq.core import messages as m
from quorumq.core.types import Origin, Topic
from quorumq.driver import UNSYNCED_S
from quorumq.wire.values import SealedNamed
from tests.node.memory import Client, World, fetch, outcomes, payloads, publish, receipts, world


async def hasty(client: Client, rf: int) -> tuple[Topic, Origin]:
    """A topic with durability "os", and a session."""
    reply = await client.ask(m.CreateTopic("jobs", rf, 1, durability="os"))
    assert isinstance(reply, m.CreateTopicReply), reply
    return reply.topic, await client.session()


async def delivered(cluster: World) -> tuple[Client, Topic, Origin, list[SealedNamed]]:
    """A client of node a, a topic as above with message 0, which is delivered, and the receipt."""
    client = await cluster.client("a")
    topic, origin = await hasty(client, 1)
    await client.ask(publish(topic, origin, 0, b"x"))
    return client, topic, origin, receipts(await client.ask(fetch()))


async def test_publishes_are_answered_before_any_fsync_and_one_follows_within_the_bound() -> None:
    async with world("abc") as cluster:
        client = await cluster.client("a")
        topic, origin = await hasty(client, 3)
        await trio.sleep(3 * UNSYNCED_S)
        before = {name: commits.count for name, commits in cluster.commits.items()}
        for seq in range(20):
            assert isinstance(await client.ask(publish(topic, origin, seq, b"x")), m.PublishReply)
        assert {name: commits.count for name, commits in cluster.commits.items()} == before
        stores = [service.node.store for service in cluster.services.values()]
        assert all(store.needs_sync for store in stores)
        await trio.sleep(UNSYNCED_S + 0.01)
        assert not any(store.needs_sync for store in stores)
        counts = [commits.count - before[name] for name, commits in cluster.commits.items()]
        assert all(1 <= count <= 2 for count in counts), counts


async def test_such_publishes_go_on_beside_an_fsync_that_an_ack_waits_for() -> None:
    async with world("a") as cluster:
        client, topic, origin, given = await delivered(cluster)
        await trio.sleep(2 * UNSYNCED_S)
        commits = cluster.commits["a"]
        commits.hold()
        acked = await client.send(m.AckRequest(given))
        for seq in range(1, 20):
            assert isinstance(await client.ask(publish(topic, origin, seq, b"%d" % seq)), m.PublishReply)
        assert len(payloads(await client.ask(fetch()))) == 19, "and they are there to be fetched"
        await trio.sleep(2 * UNSYNCED_S)  # the bound passes while that fsync hangs
        before = commits.count
        commits.release()
        assert outcomes(await client.receive(acked)) == ["acked"]
        await trio.sleep(0.1)
        assert commits.count == before + 2, "the one that hung, and one for what was written meanwhile"
        assert not cluster.services["a"].node.store.needs_sync


async def test_an_ack_is_not_answered_before_its_fsync_though_publishes_are() -> None:
    async with world("a") as cluster:
        client, topic, origin, given = await delivered(cluster)
        commits = cluster.commits["a"]
        commits.hold()
        await client.send(m.AckRequest(given))
        await client.ask(publish(topic, origin, 1, b"y"))
        with trio.move_on_after(2):
            await client.transport.receive()
            pytest.fail("the answer to an ACK overtook its fsync")


@pytest.mark.parametrize("end", ["killed", "without power", "stopped"])
async def test_what_was_answered_survives_a_kill_and_a_stop_and_a_power_cut_only_once_fsynced(
    end: str,
) -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        topic, origin = await hasty(client, 1)
        await client.ask(publish(topic, origin, 0, b"synced"))
        await trio.sleep(2 * UNSYNCED_S)
        await client.ask(publish(topic, origin, 1, b"written"))
        if end == "stopped":
            assert await cluster.stop("a") == 0
            cluster.disks["a"] = cluster.disks["a"].crash()  # and the power goes afterwards
        else:
            cluster.kill("a", **({"keep_bytes": 1 << 30} if end == "killed" else {}))
        cluster.start("a")
        await cluster.ready()
        client = await cluster.client("a")
        await trio.sleep(7)  # a quarantine, but after a clean stop
        got = payloads(await client.ask(fetch()))
        assert sorted(got) == sorted([b"synced"] + ([] if end == "without power" else [b"written"]))


async def test_a_failed_fsync_stops_the_node_though_nobody_waits_for_it() -> None:
    async with world("a") as cluster:
        client = await cluster.client("a")
        topic, origin = await hasty(client, 1)
        await trio.sleep(2 * UNSYNCED_S)
        cluster.disks["a"].fail_syncs = 1
        assert isinstance(await client.ask(publish(topic, origin, 0, b"x")), m.PublishReply)
        assert await client.closed(5)
        while "a" not in cluster.codes:
            await trio.sleep(0.01)
        assert cluster.codes["a"] == 74


async def test_segments_are_rolled_under_such_publishes_and_nothing_is_lost() -> None:
    async with world("a", segment_bytes=1 << 20) as cluster:
        client = await cluster.client("a")
        topic, origin = await hasty(client, 1)
        for seq in range(12):
            asked = publish(topic, origin, seq, bytes([seq]) * 200_000)
            assert isinstance(await client.ask(asked), m.PublishReply)
        assert len(cluster.logs["a"].of("segment_begun")) >= 2
        cluster.kill("a", keep_bytes=1 << 30)
        cluster.start("a")
        await trio.sleep(7)
        client = await cluster.client("a")
        got = payloads(await client.ask(fetch(size=8 << 20)))
        assert got == [bytes([seq]) * 200_000 for seq in range(12)]

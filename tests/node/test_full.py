"""Nodes on full disks: they stay up, start, name the remedy, and go on when there is space."""

from __future__ import annotations

from typing import Any

import trio

from quorumq.core import messages as m
from quorumq.core.values.limits import KIB, MIB
from quorumq.core.values.types import STAMP_ZERO, Death
from quorumq.node.serve import EXIT_OK
from quorumq.storage.commit import RESERVE_NAME
from quorumq.wire.values import SignedNamed
from sim.memory_disk import MemoryDisk
from tests.node.memory import Client, World, fetch, outcomes, payloads, publish, receipts, world

DEATH = Death(STAMP_ZERO, "rejected", "ValueError", "m" * 8000, "s" * 8000, "f" * 32)


async def of_topic(client: Client, rf: int) -> tuple[Any, Any]:
    return await client.topic(rf=rf), await client.session()


def fill(cluster: World, free: int) -> None:
    """Keep ``free`` bytes of every disk free."""
    for disk in cluster.disks.values():
        disk.capacity += free - disk.free_bytes()


def shortage_of(cluster: World, name: str = "a") -> str:
    return cluster.services[name].node.core.state.disk_shortage.name


async def test_dead_letters_end_no_node_and_all_start_again() -> None:
    """The finding: REJECT with a long dead letter, again and again, past the reserve, on all nodes."""
    async with world("abc", disk_reserve_bytes=256 * KIB, segment_bytes=MIB) as cluster:
        client = await cluster.client("a")
        topic, producer_id = await of_topic(client, 3)
        for seq in range(0, 2000, 100):
            await client.ask(publish(topic, producer_id, seq, *[b"x"] * 100))
        await client.ask(fetch(most=1, hold_time=0.1))
        fill(cluster, 200 * KIB)
        await trio.sleep(1.1)
        assert shortage_of(cluster) == "RESERVE"
        assert all(RESERVE_NAME in disk.list() for disk in cluster.disks.values())
        verdicts: dict[str, int] = {}
        for _ in range(600):
            reply = await client.ask(fetch(most=3, hold_time=5.0))
            for one in receipts(reply):
                (outcome,) = outcomes(await client.ask(m.RejectRequest((one,), 0.0, DEATH)))
                verdicts[outcome] = verdicts.get(outcome, 0) + 1
        assert cluster.codes == {}, "no node has ended"
        assert verdicts.keys() <= {"ok", "storage-full"}
        assert verdicts["ok"] > 500
        for name in "abc":
            await cluster.stop(name)
            assert cluster.codes.pop(name) == EXIT_OK
            cluster.start(name)
        await cluster.ready()
        client = await cluster.client("b")
        assert (await client.ask(publish(topic, producer_id, 2000, b"x"))).code == "storage-full"
        assert (await client.ask(m.DeleteTopic("jobs", topic.id))).topic.deleted
        fill(cluster, MIB)
        await trio.sleep(3)
        assert shortage_of(cluster) == "NONE"


async def test_a_disk_that_is_full_to_the_last_byte_stops_no_node_and_what_waited_is_done() -> None:
    async with world("a", disk_reserve_bytes=64 * KIB) as cluster:
        client = await cluster.client("a")
        topic, producer_id = await of_topic(client, 1)
        await client.ask(publish(topic, producer_id, 0, b"x", b"y"))
        await client.ask(fetch(hold_time=0.1))
        await trio.sleep(1.1)
        disk: MemoryDisk = cluster.disks["a"]
        disk.delete(RESERVE_NAME)  # an operator removed the reserve
        cluster.services["a"].node.store._writer.reserved = False
        fill(cluster, 0)
        async with trio.open_nursery() as nursery:
            got: list[Any] = []

            async def wait() -> None:
                got.append(await client.ask(publish(topic, producer_id, 2, b"z")))

            nursery.start_soon(wait)
            await trio.sleep(2)
            node = cluster.services["a"].node
            assert node.failed is None
            assert node.committer.stalled
            assert shortage_of(cluster) == "FULL"
            other = await cluster.client("a")
            held = receipts(await other.ask(fetch()))
            assert outcomes(await other.ack(*held)) == ["storage-full"], "it is refused at once"
            status = (await other.ask(m.StatusRequest())).fields
            assert (status["disk_full"], status["disk_capacity"]) == (True, "none")
            assert not got or got[0].code == "outcome-unknown"
            fill(cluster, MIB)
            await trio.sleep(2.1)
        assert shortage_of(cluster) == "NONE"
        assert RESERVE_NAME in disk.list(), "it is made again"
        assert outcomes(await client.ack(*held)) == ["acked"]
        assert payloads(await client.ask(fetch())) == [b"z"], "what waited was written"
        assert [fields["capacity"] for fields in cluster.logs["a"].of("disk_full")] == ["none"]
        assert "larger disk" in cluster.logs["a"].of("disk_full")[0]["reason"]
        assert cluster.logs["a"].of("disk_not_full")


async def test_publishes_stop_at_the_reserve_while_all_of_them_wait_for_one_slow_fsync() -> None:
    async with world("a", disk_reserve_bytes=256 * KIB) as cluster:
        client = await cluster.client("a")
        topic, producer_id = await of_topic(client, 1)
        await trio.sleep(1.1)
        fill(cluster, 2 * MIB)
        cluster.commits["a"].hold()
        for seq in range(40):
            await client.send(publish(topic, producer_id, seq, bytes(64 * KIB)))
        with trio.move_on_after(0.1) as scope:  # the disk is looked at each second in any case
            assert (await client.ask(publish(topic, producer_id, 40, b"x"))).code == "storage-full"
        assert not scope.cancelled_caught


async def test_acks_use_the_last_reserve_and_stop_before_the_space_of_a_start() -> None:
    async with world("a", disk_reserve_bytes=64 * KIB) as cluster:
        client = await cluster.client("a")
        topic, producer_id = await of_topic(client, 1)
        for seq in range(0, 4000, 100):
            await client.ask(publish(topic, producer_id, seq, *[b"x"] * 100))
        await trio.sleep(1.1)
        reply = await client.ask(fetch(most=4000, hold_time=5.0))
        fill(cluster, 0)
        seen: dict[str, int] = {}
        for delivery in [delivery for part in reply.slices for delivery in part.deliveries]:
            span = delivery.receipt.span
            for seq in range(span.start, span.stop, 2):  # every second: runs do not join
                one = SignedNamed(delivery.signed, (span._replace(start=seq, stop=seq + 1),))
                (outcome,) = outcomes(await client.ack(one))
                seen[outcome] = seen.get(outcome, 0) + 1
        assert seen["acked"] > 100, "the last reserve is for them"
        assert cluster.codes == {}
        await cluster.stop("a")
        assert cluster.codes.pop("a") == EXIT_OK
        cluster.start("a")
        await cluster.ready()
        assert cluster.codes == {}


async def test_a_stop_on_a_full_disk_ends_in_time_and_cleanly() -> None:
    async with world("a", disk_reserve_bytes=0) as cluster:
        client = await cluster.client("a")
        topic, producer_id = await of_topic(client, 1)
        fill(cluster, 0)
        with trio.move_on_after(1):
            await client.ask(publish(topic, producer_id, 0, b"x"))
        with trio.fail_after(10):
            await cluster.stop("a")
        assert cluster.codes.pop("a") == EXIT_OK
        assert cluster.logs["a"].of("node_stopped")[0]["clean"] is False
        fill(cluster, MIB)
        cluster.start("a")
        await cluster.ready()

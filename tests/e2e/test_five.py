"""Five real nodes: idle long polls, one partition through every node, and RF 5."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from quorumq.client import Outcome
from quorumq.core.values.types import Topic
from quorumq.lab.local import LocalCluster
from tests.e2e.groups import KEPT_S, drained, outsider, payloads, publish, taken, through

HOLD_S = 10.0
LONG_POLL_S = 20.0
"""The longest there is."""


def cpu_seconds(cluster: LocalCluster) -> float:
    """Return the processor seconds of the nodes' processes so far."""
    ticks = 0
    for name in cluster.nodes:
        fields = Path(f"/proc/{cluster.pid(name)}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def made(
    cluster: LocalCluster, name: str, partitions: int, count: int = 0, rf: int = 3, retention: float = 0.0
) -> Topic:
    """A topic with ``count`` messages, spread evenly."""
    async with through(cluster, "n1") as client:
        topic = await client.create_topic(name, rf=rf, partitions=partitions, retention=retention)
        async with client.producer(name) as producer:
            for number in range(count):
                await producer.send(b"%d" % number, partition=number % partitions)
        return topic


def test_an_idle_long_poll_lasts_as_long_as_asked_and_costs_nothing(five: LocalCluster) -> None:
    seconds = 3.0

    async def main() -> None:
        topic = await made(five, "idle", 6)
        async with through(five, "n1") as client:
            await client.fetch("idle", "g", hold_time=HOLD_S)
            took: dict[str, float] = {}

            async def wait(node: str) -> None:
                began = trio.current_time()
                messages = await client.fetch("idle", "g", max_wait=seconds, hold_time=HOLD_S, node=node)
                took[node] = trio.current_time() - began
                assert messages == []

            before = cpu_seconds(five)
            async with trio.open_nursery() as nursery:
                for node in five.nodes:
                    nursery.start_soon(wait, node)
            used = cpu_seconds(five) - before
            assert len(topic.replicas) == 6
            for node, elapsed in took.items():
                assert seconds - 0.1 <= elapsed < LONG_POLL_S, (node, elapsed)
            longest = max(took.values())
            assert used < 0.25 * longest * len(five.nodes), f"{used:.2f} s of CPU in {longest:g} s"

    trio.run(main)


@pytest.mark.parametrize("node", ["n1", "n2", "n3", "n4", "n5"])
def test_one_partition_s_life_through_any_node(five: LocalCluster, node: str) -> None:
    """Published, looked at with payloads, rejected, dead, redriven, acked: all through one node, replica or not."""

    async def main() -> None:
        topic = await made(
            five, "one", 1, retention=KEPT_S
        )  # else replicas may reclaim what the others are done with
        group = f"g-{node}"
        async with through(five, node) as client:
            if node == outsider(five, topic):
                assert node not in topic.replicas[0]
            before = len(await drained(client, "one", group, node))
            await publish(client, "one", range(before, before + 20))
            shown = [
                bodies.payload
                async for item in client.peek("one", group, "ready", bodies=True, node=node)
                for bodies in item.bodies.values()
            ]
            assert sorted(map(int, shown)) == list(range(before, before + 20))
            messages = await taken(client, "one", group, 20, HOLD_S, node)
            await client.reject(messages[:5])
            await client.dead_letter(messages[5:10], error=ValueError("no"))
            assert await client.ack(messages[10:]) == [Outcome.ACKED] * 10
            dead = [item async for item in client.peek("one", group, "dead", bodies=True, node=node)]
            deaths = [bodies.payload for item in dead for bodies in item.bodies.values()]
            assert sorted(map(int, deaths)) == payloads(messages[5:10])
            assert (await client.redrive("one", group, dead)).messages == 5
            assert payloads(await drained(client, "one", group, node)) == payloads(messages[:10])
            assert await client.fetch("one", group + "!dead", hold_time=HOLD_S, node=node) == []

    trio.run(main)


@pytest.mark.soak
def test_rf_5_works_with_two_nodes_down() -> None:
    async def main(cluster: LocalCluster) -> None:
        topic = await made(cluster, "wide", 6, 60, rf=5)
        assert {len(members) for members in topic.replicas} == {5}
        async with through(cluster, "n1") as client:
            await client.create_group("wide", "h")  # for which everything is kept
            held = await taken(client, "wide", "g", 30, HOLD_S)
            for name in ("n4", "n5"):
                cluster.kill(name)
            await client.dead_letter(held[:5], error=ValueError("no"))
            assert set(await client.ack(held[5:])) == {Outcome.ACKED}
            await publish(client, "wide", range(60, 120))
            dead = [item async for item in client.peek("wide", "g", "dead", complete=True)]
            assert (await client.redrive("wide", "g", dead)).messages == 5
            assert payloads(await drained(client, "wide", "g") + held[5:]) == list(range(120))
            for name in ("n4", "n5"):
                cluster.spawn(name)
            await cluster.wait_ready_async(quarantine=True)
            for name in ("n1", "n2"):
                cluster.kill(name)
        async with through(cluster, "n5") as client:
            assert await client.fetch("wide", "g", max_wait=1.0, hold_time=2.0) == []
            assert payloads(await drained(client, "wide", "h")) == list(range(120))

    with LocalCluster(5, hold_time_max=HOLD_S) as cluster:
        trio.run(main, cluster)

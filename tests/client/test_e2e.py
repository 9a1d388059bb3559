"""The client on three real node processes. One is killed and comes back."""

from __future__ import annotations

import pytest
import trio

from quorumq.client import MessageId, Outcome, connect
from quorumq.lab.local import LocalCluster
from tests.patience import PATIENCE_S

COUNT = 3_000


@pytest.mark.e2e
def test_everything_is_stored_once_and_processed_while_a_node_dies() -> None:
    with LocalCluster(nodes=3, hold_time_max=3.0) as nodes:
        nodes.wait_ready()
        trio.run(publish_and_consume, nodes)


async def publish_and_consume(nodes: LocalCluster) -> None:
    outcomes: dict[MessageId, list[Outcome]] = {}
    payloads: dict[MessageId, bytes] = {}
    ids: list[MessageId] = []
    with trio.fail_after(PATIENCE_S):
        async with connect(nodes.addresses) as client, trio.open_nursery() as nursery:
            await client.create_topic("jobs", partitions=2)

            async def consume() -> None:
                async with client.consumer("jobs", "g", hold_time=2.0, prefetch=200) as consumer:
                    async for messages in consumer.batches(max_messages=100):
                        for message, outcome in zip(messages, await consumer.ack(messages), strict=True):
                            outcomes.setdefault(message.id, []).append(outcome)
                            payloads[message.id] = message.payload
                        if len(outcomes) == COUNT:
                            return

            nursery.start_soon(consume)
            async with client.producer("jobs") as producer:
                pendings = []
                for number in range(COUNT):
                    pendings.append(await producer.send(b"%d" % number, key=b"%d" % number))
                    if number == COUNT // 3:
                        await trio.to_thread.run_sync(nodes.kill, "n1")
                for pending in pendings:
                    ids.append(await pending.wait())
            await trio.to_thread.run_sync(nodes.start, "n1")
        assert len(set(ids)) == COUNT
        assert set(outcomes) == set(ids)
        assert sorted(map(int, payloads.values())) == list(range(COUNT))
        # At most one delivery of a message gets `acked`, the proof that it was the only one.
        assert all(seen.count(Outcome.ACKED) <= 1 for seen in outcomes.values())


@pytest.mark.e2e
def test_partitions_raised_under_load_lose_and_double_nothing() -> None:
    """A node dies just then, so batches are retried that were numbered for the old partitions."""
    with LocalCluster(nodes=3, hold_time_max=3.0) as nodes:
        nodes.wait_ready()
        trio.run(raise_partitions, nodes)


async def raise_partitions(nodes: LocalCluster) -> None:
    stored: dict[MessageId, bytes] = {}
    seen: dict[MessageId, bytes] = {}
    with trio.fail_after(PATIENCE_S):
        async with connect(nodes.addresses) as client, trio.open_nursery() as nursery:
            await client.create_topic("jobs", partitions=2)

            async def consume() -> None:
                async with client.consumer("jobs", "g", hold_time=2.0) as consumer:
                    async for messages in consumer.batches(max_messages=100):
                        await consumer.ack(messages)
                        seen.update((message.id, message.payload) for message in messages)

            nursery.start_soon(consume)
            async with client.producer("jobs") as producer:
                pendings = []
                homes: set[int] = set()
                number = 0
                while len(homes) < 6:  # until the new partitions are in use
                    pendings += [await producer.send(b"%d" % n) for n in range(number, number + 200)]
                    number += 200
                    if number == 1000:
                        await trio.to_thread.run_sync(nodes.kill, "n1")
                        grown = await client.alter_topic("jobs", partitions=6)
                        assert grown.partitions == 6
                    await trio.sleep(0.05)
                    homes |= {(await pending.wait()).partition.number for pending in pendings[-400:-200]}
                await producer.flush()
                for index, pending in enumerate(pendings):
                    stored[await pending.wait()] = b"%d" % index
            await trio.to_thread.run_sync(nodes.start, "n1")
            while len(seen) < len(stored):
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    assert len(stored) == number, "each message has an id of its own"
    assert seen == stored
    assert {id_.partition.number for id_ in stored} == set(range(6))

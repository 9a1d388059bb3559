"""The shell gives the room of forgotten batches back, without being asked twice."""

from __future__ import annotations

import trio

from quorumq.core import messages as m
from quorumq.core.messages.effects import DropBatches
from quorumq.core.values.limits import MIB
from quorumq.node.node import Node
from quorumq.storage.commit import RESERVE_NAME
from quorumq.storage.segment import segment_name
from tests.node.memory import fetch, payloads, publish, served


def drop(node: Node, numbers: list[int]) -> None:
    """Have the core's next step say that these batches are not needed."""
    step = node.core.step

    def once(*args: object) -> list[object]:
        node.core.step = step  # type: ignore[method-assign]
        return [*step(*args), DropBatches(tuple(numbers))]  # type: ignore[arg-type]

    node.core.step = once  # type: ignore[assignment, method-assign]
    node.feed()


async def test_an_idle_node_empties_old_segments_and_reports_the_damage_it_meets() -> None:
    async with served("a", segment_bytes=MIB) as (cluster, client, topic, producer_id):
        for seq in range(60):
            await client.ask(publish(topic, producer_id, seq, bytes([seq]) * 100_000))
        node = cluster.services["a"].node
        numbers = list(node.store._index.numbers)
        assert len(numbers) == 60
        assert len(node.store.live) > 4
        kept = numbers[::6]
        position = node.store._index.get(kept[1])
        assert position is not None
        cluster.disks["a"].flip(segment_name(position.segment), position.offset + 50_000)
        drop(node, [number for number in numbers if number not in kept])
        await trio.sleep(2)
        assert node.failed is None
        assert node.store.unreadable == (kept[1],)
        disk = cluster.disks["a"]
        size = sum(disk.size(name) for name in disk.list() if name != RESERVE_NAME)
        assert size < 2 * len(kept) * 100_000 + 2 * MIB, size
        idle = cluster.commits["a"].count
        await trio.sleep(5)
        assert cluster.commits["a"].count - idle < 5, "it comes to rest"
        assert await cluster.stop("a") == 0
        cluster.start("a")
        await cluster.ready()
        assert cluster.logs["a"].of("batch_damaged")[-1]["batch"] == kept[1]
        (replica,) = cluster.services["a"].node.core.replicas.values()
        assert replica.batches.absent.messages == 1, "what it had is known"
        client = await cluster.client("a")
        got = payloads(await client.ask(fetch(most=100)))
        expected = [bytes([seq]) * 100_000 for seq in range(0, 60, 6) if seq != 6]
        assert got == expected
        # No number is used twice, though the batches that had the highest ones are gone.
        await client.ask(publish(topic, await client.session(), 0, b"new"))
        assert max(cluster.services["a"].node.store._index.numbers) > max(numbers)


async def test_damage_met_by_anti_entropy_is_reported_and_the_batch_is_fetched_from_who_has_it() -> None:
    """docs/protocol.md, section 6: a corrupt record is quarantined, reported, refetched; never served."""
    async with served() as (cluster, client, topic, producer_id):
        cluster.kill("c")
        for seq in range(5):
            reply = await client.ask(publish(topic, producer_id, seq, b"message %d" % seq))
            assert isinstance(reply, m.PublishReply)
        await trio.sleep(0.5)
        cluster.kill("b")
        a = cluster.services["a"].node
        position = a.store._index.get(a.store._index.numbers[2])
        assert position is not None
        cluster.disks["a"].flip(segment_name(position.segment), position.end - 3)
        cluster.start("c")  # only a has the messages that c lacks
        await trio.sleep(10)
        assert (len(a.store.unreadable), len(cluster.services["c"].node.store)) == (1, 4)
        cluster.start("b")
        await trio.sleep(30)
        for name in "abc":
            assert len(cluster.services[name].node.store) == 5, name
        assert not a.store.unreadable, "what is here again is forgotten where it was damaged"
        got = payloads(await client.ask(fetch(most=100, wait=1.0)))
        assert sorted(got) == [b"message %d" % seq for seq in range(5)]

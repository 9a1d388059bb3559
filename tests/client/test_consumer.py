"""Consuming: messages that are handed over or not, and holds that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing

from quorumq.client import (
    Client,
    HoldLost,
    Message,
    NotFound,
    Outcome,
    OutcomeUnknown,
    TooFewReplicas,
    UsageError,
)
from quorumq.client.base.context import REFRESH_S
from quorumq.client.client import FETCH_LANES
from quorumq.client.consume.fetching import LAST_S
from quorumq.core.messages import AckRequest, ClientReply, ExtendRequest, Failed, Fetch, ReleaseRequest
from quorumq.core.values.errors import Code, Conflict, Transient
from quorumq.core.values.limits import DEADLINE_SHARE
from tests.client.fake import FakeCluster, connected, failing, fake_cluster, serving
from tests.client.steps import jobs, publish, take


def left(cluster: FakeCluster, node: str = "a", group: str = "g") -> tuple[int, int]:
    """(held, available) of a group at one replica."""
    (replica,) = cluster.nodes[node].replicas.values()
    view = replica.group(group)
    return view.held_count, view.available.messages


# --------------------------------------------------------------------------------- hand-over


async def test_a_messages_life() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        topic = await client.create_topic("jobs")
        async with client.producer("jobs") as producer:
            name = await producer.publish(b"payload", key=b"k", headers={"x": 1})
        async with client.consumer("jobs", "g") as consumer:
            (message,) = await take(consumer, 1)
            assert (message.payload, message.key, message.headers) == (b"payload", b"k", {"x": 1})
            assert message.id == name
            assert (message.topic, message.group, message.partition) == ("jobs", "g", 0)
            assert message.attempt == 1
            assert message.fencing_token.node in "abc"
            assert message.published_ms == cluster.wall_ms()
            assert message.deadline == client.clock() + DEADLINE_SHARE * 30.0
            assert message.is_live
            assert message.id.partition.topic == topic.id
            assert "payload" in repr(message)
            assert await message.ack() is Outcome.ACKED
        await trio.sleep(40)
        assert await client.fetch("jobs", "g") == []


async def test_every_message_once_by_many_workers() -> None:
    async with jobs(500, partitions=3) as (_, client):
        payloads: list[bytes] = []
        async with client.consumer("jobs", "g", prefetch=64) as consumer:

            async def work() -> None:
                async for message in consumer:
                    await trio.sleep(0.01)
                    await message.ack()
                    payloads.append(message.payload)
                    if len(payloads) == 500:
                        nursery.cancel_scope.cancel()

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(work)
        assert sorted(payloads, key=int) == [b"%d" % i for i in range(500)]


async def test_in_batches() -> None:
    async with jobs(500) as (cluster, client):
        total = 0
        async with client.consumer("jobs", "g") as consumer:
            async for messages in consumer.batches(max_messages=200):
                assert 1 <= len(messages) <= 200
                total += len(messages)
                assert await consumer.ack(messages) == [Outcome.ACKED] * len(messages)
                if total == 500:
                    break
        assert left(cluster) == (0, 0)


async def test_a_message_whose_deadline_has_passed_is_never_handed_over() -> None:
    """docs/protocol.md, FETCH. The clock alone decides: giving back is switched off by stopping the loop's turn."""
    async with fake_cluster() as cluster:
        skew = 0.0
        async with connected(cluster, clock=lambda: trio.current_time() + skew) as client:
            await client.create_topic("jobs")
            await publish(client, 10)
            async with client.consumer("jobs", "g", hold_time=10.0) as consumer:
                first = await take(consumer, 6)  # by then as much is fetched ahead
                assert [message.payload for message in first] == [b"%d" % i for i in range(6)]
                await trio.testing.wait_all_tasks_blocked()
                skew = 9.81  # as if this process had been suspended
                with trio.move_on_after(0.001):
                    await take(consumer, 1)
                    raise AssertionError("handed over after its deadline")
                assert consumer.expired == 4
                # The holds run out, of what was handed over too, and all of it is redelivered.
                again = []
                for _ in range(10):
                    again += await take(consumer, 1)
                    assert again[-1].is_live
                    await again[-1].ack()  # the expired message is alone
                assert sorted(message.payload for message in again) == [b"%d" % i for i in range(10)]


async def test_prefetched_messages_of_a_lost_connection_are_released() -> None:
    async with jobs(10) as (cluster, client), client.consumer("jobs", "g") as consumer:
        first = await take(consumer, 6)
        await trio.testing.wait_all_tasks_blocked()
        tokens = {message.fencing_token for message in first}
        cluster.hang_up("a")
        await trio.testing.wait_all_tasks_blocked()
        rest = await take(consumer, 4)
        assert {message.fencing_token for message in rest}.isdisjoint(tokens)
        assert sorted(message.payload for message in rest) == [b"%d" % i for i in range(6, 10)]
        assert [message.attempt for message in rest] == [1] * 4
        assert consumer.expired + consumer.given_back >= 4


async def test_messages_of_a_lost_connection_are_released_without_a_reader() -> None:
    async with jobs(10) as (cluster, client), client.consumer("jobs", "g") as consumer:
        await take(consumer, 6)
        await trio.testing.wait_all_tasks_blocked()
        cluster.hang_up("a")
        await trio.sleep(0.2)
        assert consumer.given_back == 4


async def test_leaving_gives_back_what_was_not_handed_over() -> None:
    async with jobs(100) as (cluster, client):
        async with client.consumer("jobs", "g") as consumer:
            await take(consumer, 60)
            await trio.testing.wait_all_tasks_blocked()
            assert left(cluster) == (100, 0)
        assert left(cluster) == (60, 40)
        assert len(cluster.of(ReleaseRequest)) == 1
        messages = await client.fetch("jobs", "g", max_messages=1000)
        assert len(messages) == 40
        assert {message.attempt for message in messages} == {1}


async def test_draining_gives_back_what_was_not_handed_over_and_keeps_what_was() -> None:
    async with jobs(100) as (cluster, client), client.consumer("jobs", "g", hold_time=10.0) as consumer:
        messages = await take(consumer, 60)
        await trio.testing.wait_all_tasks_blocked()
        await consumer.drain()
        assert left(cluster) == (60, 40)
        assert await take(consumer, 1) == []
        await trio.sleep(60.0)
        assert all(message.is_live for message in messages)
        assert await consumer.ack(messages) == [Outcome.ACKED] * 60


async def test_a_drain_beside_another_one_ends_when_all_is_given_back() -> None:
    """A program that rejects its messages in hand after it gets them again by a FETCH that is still parked."""
    async with jobs(2) as (cluster, client):
        cluster.lag = 0.1
        seen: list[tuple[int, int]] = []
        async with client.consumer("jobs", "g") as consumer, trio.open_nursery() as nursery:

            async def drain() -> None:
                await consumer.drain()
                seen.append(left(cluster))

            assert await consumer.take(2, timeout=0.15) == []
            assert left(cluster) == (2, 0), "they are on their way"
            nursery.start_soon(drain)
            nursery.start_soon(drain)
        assert seen == [(0, 2), (0, 2)]


async def test_cancellation_around_the_client_allows_time_to_give_back() -> None:
    """A Ctrl-C or a failed task cancels all: the consumer ends before the connections."""
    async with fake_cluster() as cluster:
        with trio.move_on_after(1.0):
            async with connected(cluster) as client:
                await client.create_topic("jobs")
                await publish(client, 10)
                async with client.consumer("jobs", "g", prefetch=5) as consumer:
                    await take(consumer, 1)
                    await trio.sleep_forever()
        assert left(cluster) == (1, 9)


async def test_a_fetch_that_is_answered_after_leaving_is_given_back() -> None:
    async with jobs() as (cluster, client):
        async with client.consumer("jobs", "g", hold_time=30.0) as consumer:
            with trio.move_on_after(1.0):
                await take(consumer, 1)
        await publish(client, 1)  # the FETCH is still parked at the node
        await trio.testing.wait_all_tasks_blocked()
        assert left(cluster) == (0, 1)


async def test_nothing_is_lost_when_iterating_is_cancelled() -> None:
    async with jobs(300) as (_, client):
        payloads: list[bytes] = []
        async with client.consumer("jobs", "g", prefetch=10, max_unsettled=300) as consumer:
            for round_ in range(400):
                with trio.CancelScope() as scope:
                    if round_ % 2:
                        scope.cancel()
                    async for message in consumer:
                        payloads.append(message.payload)
                        break
                if len(payloads) == 300:
                    break
            with trio.move_on_after(1.0):
                async for message in consumer:
                    payloads.append(message.payload)
        assert sorted(payloads, key=int) == [b"%d" % i for i in range(300)]


# --------------------------------------------------------------------------------- extension


async def test_the_hold_is_kept_while_the_handler_runs() -> None:
    async with (
        jobs(1) as (cluster, client),
        connected(cluster, "b") as other,
        client.consumer("jobs", "g", hold_time=4.0) as consumer,
    ):
        (message,) = await take(consumer, 1)
        before = message.deadline
        for _ in range(12):
            await trio.sleep(1.0)
            assert message.is_live
            assert await other.fetch("jobs", "g") == []
        assert message.deadline > before + 8
        asked = len(cluster.of(ExtendRequest))
        assert 5 <= asked <= 8, "about every half hold time"
        assert await message.ack() is Outcome.ACKED
        await trio.sleep(10.0)
        assert len(cluster.of(ExtendRequest)) == asked, "settled: no longer extended"


async def test_extension_ends_after_max_extend() -> None:
    async with (
        jobs(1) as (_, client),
        client.consumer("jobs", "g", hold_time=4.0, max_extend=10.0) as consumer,
    ):
        (message,) = await take(consumer, 1)
        await trio.sleep(9.0)
        assert message.is_live
        await trio.sleep(7.0)
        assert not message.is_live
        (again,) = await take(consumer, 1)
        assert again.attempt == 2
        assert again.fencing_token > message.fencing_token


async def test_without_auto_extend_it_runs_out() -> None:
    async with (
        jobs(1) as (cluster, client),
        client.consumer("jobs", "g", hold_time=4.0, auto_extend=False) as consumer,
    ):
        (message,) = await take(consumer, 1)
        await trio.sleep(4.1)
        assert not message.is_live
        (again,) = await take(consumer, 1)
        assert again.id == message.id
        assert cluster.of(ExtendRequest) == []


async def test_settled_messages_are_let_go() -> None:
    async with jobs(6) as (_, client), client.consumer("jobs", "g") as consumer:
        messages = await take(consumer, 6)
        assert consumer.unsettled == 6
        await consumer.ack(messages[:3])
        await messages[3].reject(50.0)
        await messages[4].dead_letter(reason="no")
        assert consumer.unsettled == 1


async def test_extension_goes_on_through_another_node() -> None:
    async with serving("jobs", attempt_timeout=0.5) as (cluster, client):
        await publish(client, 1)
        async with client.consumer("jobs", "g", hold_time=4.0) as consumer:
            (message,) = await take(consumer, 1)
            cluster.mute.add("a")
            await trio.sleep(10.0)
            assert message.is_live
            assert await message.ack() is Outcome.ACKED


async def test_a_lost_hold_is_not_extended_for_ever() -> None:
    async with jobs(1) as (cluster, client), client.consumer("jobs", "g", hold_time=4.0) as consumer:
        (message,) = await take(consumer, 1)
        await client.nodes.ask(
            lambda: ReleaseRequest((message.receipt,)),  # type: ignore[arg-type]
            action="leave", timeout=1.0, writes=True,
        )  # fmt: skip
        await trio.sleep(12.0)
        assert len(cluster.of(ExtendRequest)) == 1
        with pytest.raises(HoldLost, match="stop working"):
            await message.extend()


async def test_a_slow_handler_finds_nothing_fetched_ahead_and_uses_up_no_deliveries() -> None:
    async with jobs(12, max_deliveries=3) as (cluster, client):
        attempts: list[int] = []
        async with client.consumer("jobs", "g", hold_time=2.0) as consumer:
            async for message in consumer:
                await trio.sleep(6.0)  # three times the hold time, for each
                assert left(cluster)[0] == 1, "a neighbour could do the others"
                assert await message.ack() is Outcome.ACKED
                attempts.append(message.attempt)
                if len(attempts) == 12:
                    break
            assert attempts == [1] * 12
            assert (consumer.given_back, consumer.expired, consumer.unsettled) == (0, 0, 0)
        assert [item async for item in client.peek("jobs", "g", "dead")] == []


async def test_a_handler_that_slows_down_gives_back_what_was_fetched_ahead_and_fetches_it_no_more() -> None:
    async with jobs(200) as (cluster, client), client.consumer("jobs", "g") as consumer:
        for message in await take(consumer, 60):
            await message.ack()
        await trio.testing.wait_all_tasks_blocked()
        assert left(cluster)[0] > 30, "it was fast"
        await take(consumer, 1)
        await trio.sleep(1.2)
        assert left(cluster)[0] == 1
        await trio.sleep(20.0)
        assert left(cluster)[0] == 1
        assert all(request.max_messages < 100 for _, request in cluster.of(Fetch)), (
            "it grows with what is used"
        )
        assert (await take(consumer, 1))[0].attempt == 1


@pytest.mark.parametrize(("late", "concurrency"), [(0.0, 1), (2.0, 1), (0.0, 2)])
async def test_two_workers_share_slow_jobs_evenly_whoever_comes_first(late: float, concurrency: int) -> None:
    async with jobs() as (cluster, client), connected(cluster, "b") as other:
        done: list[str] = []

        async def work(who: Client, name: str) -> None:
            async def handler(message: Message) -> None:
                await trio.sleep(5.0)
                done.append(name)

            await who.work("jobs", "g", handler, concurrency=concurrency, signals=False)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, client, "first")
            await trio.sleep(1.0)
            if not late:
                nursery.start_soon(work, other, "second")
            await trio.sleep(1.0)
            began = trio.current_time()
            await publish(client, 8)
            await trio.sleep(late)
            if late:
                nursery.start_soon(work, other, "second")
            with trio.fail_after(60.0):
                while len(done) < 8:
                    await trio.sleep(0.1)
            took = trio.current_time() - began
            nursery.cancel_scope.cancel()
        assert done.count("first") == done.count("second") == 4
        assert took < 1.1 * 8 / 2 * 5.0 / concurrency + late


async def test_a_handler_that_is_started_and_not_awaited_is_bounded() -> None:
    async with jobs(300) as (_, client):
        for most, expected in ((None, 100), (7, 7)):
            running = highest = 0

            async def handler(message: Message) -> None:
                nonlocal running, highest
                running += 1
                highest = max(highest, running)
                await trio.sleep(5.0)
                running -= 1
                await message.ack()

            async with (
                client.consumer("jobs", f"g{expected}", max_unsettled=most) as consumer,
                trio.open_nursery() as nursery,
            ):
                with trio.move_on_after(21.0):
                    async for message in consumer:
                        nursery.start_soon(handler, message)
                assert (highest, consumer.unsettled) == (expected, running)
                nursery.cancel_scope.cancel()


async def test_a_consumer_that_settles_after_expiry_goes_on() -> None:
    async with jobs(1, max_deliveries=2) as (_, client):
        assert len(await client.fetch("jobs", "g", hold_time=1.0)) == 1
        await trio.sleep(2.0)
        async with client.consumer("jobs", "g", hold_time=10.0) as consumer:
            (alone,) = await take(consumer, 1)
            assert alone.attempt == 2
            await publish(client, 5)
            began = trio.current_time()
            assert len(await take(consumer, 5)) == 5
            assert 5.0 < trio.current_time() - began < 15.0, "alone for one hold time"
            assert await alone.ack() is Outcome.ACKED


async def test_a_bound_that_is_asked_for_holds_for_lists_too_and_waiting_for_ever_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with jobs(100) as (_, client):
        async with client.consumer("jobs", "g", max_unsettled=10) as consumer:
            messages = await consumer.take(100)
            assert len(messages) == 10
            assert await consumer.take(100, timeout=11.0) == []
            assert "10 messages of group 'g' are not settled" in caplog.text
            await consumer.ack(messages[:4])
            assert len(await consumer.take(100)) == 4
            caplog.clear()
            for _ in range(12):  # a caller that asks for a moment each time waits as long
                assert await consumer.take(100, timeout=1.0) == []
            assert "10 messages of group 'g' are not settled, the oldest for" in caplog.text
        async with client.consumer("jobs", "all") as consumer:
            assert len(await consumer.take(100)) == 100


# ---------------------------------------------------------------------------------- prefetch


@pytest.mark.parametrize("turns", [0, 1])
async def test_an_immediate_ack_is_sent_before_the_next_fetch(turns: int) -> None:
    async with fake_cluster() as cluster, connected(cluster) as client, client.producer("jobs") as producer:
        await client.create_topic("jobs")
        async with client.consumer("jobs", "g", prefetch=1) as consumer:
            for number in range(20):
                await producer.send(b"%d" % number)
                message = await anext(consumer)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                await message.ack()
            await trio.testing.wait_all_tasks_blocked()
    order = [type(request) for _, request in cluster.asked if isinstance(request, AckRequest | Fetch)]
    assert order == [Fetch, *[AckRequest, Fetch] * 20]


async def test_a_waiting_consumer_with_unacked_messages_is_served_at_once() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with fake_cluster() as cluster, connected(cluster) as client, client.producer("jobs") as producer:
        await client.create_topic("jobs")
        await producer.publish_many([b"%d" % number for number in range(21)])
        async with client.consumer("jobs", "g", prefetch=1) as consumer, trio.open_nursery() as nursery:
            await anext(consumer)
            nursery.start_soon(count)
            for _ in range(20):
                await anext(consumer)
            nursery.cancel_scope.cancel()
    assert turns <= 20 * 11


async def test_prefetch_is_bounded_in_messages_and_bytes() -> None:
    async with jobs() as (cluster, client):
        await publish(client, 200, size=1000)
        async with client.consumer("jobs", "g", prefetch=40) as consumer:
            await take(consumer, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert left(cluster)[0] <= 41
        async with client.consumer("jobs", "h", prefetch_bytes=20_000) as consumer:
            await take(consumer, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert left(cluster, group="h")[0] <= 25


async def test_partitions_on_different_nodes_are_all_read() -> None:
    async with fake_cluster(5) as cluster, connected(cluster) as client:
        topic = await client.create_topic("jobs", partitions=12)
        assert len({frozenset(members) for members in topic.replicas}) > 3
        async with client.producer("jobs") as producer:
            for i in range(600):
                await producer.send(b"%d" % i, partition=i % 12)
        async with client.consumer("jobs", "g", hold_time=5.0, max_unsettled=600) as consumer:
            messages = await take(consumer, 600)
        assert len({message.id for message in messages}) == 600
        assert {message.partition for message in messages} == set(range(12))
        got = await client.fetch("jobs", "h", max_messages=600, min_messages=600, max_wait=5.0)
        assert len({message.id for message in got}) == 600
        cluster.asked.clear()
        async with client.consumer("jobs", "i", prefetch=60, prefetch_bytes=6_000) as consumer:
            assert await consumer.take(1000)
        sets = len({frozenset(members) for members in topic.replicas})
        assert max(request.max_messages for _, request in cluster.of(Fetch)) == 60 // sets
        assert max(request.max_bytes for _, request in cluster.of(Fetch)) == 6_000 // sets


async def test_a_topic_that_is_made_again_has_what_is_fetched_ahead_to_itself() -> None:
    async with jobs(nodes=5, partitions=12) as (cluster, client):
        consumer = client.consumer("jobs", "g", prefetch=60)
        consumer.expects_topics = True
        async with consumer:
            await consumer.take(1000, timeout=5.0)
            await client.delete_topic("jobs")
            await consumer.take(1000, timeout=5.0)
            topic = await client.create_topic("jobs", partitions=12)
            sets = len({frozenset(members) for members in topic.replicas})
            await consumer.take(1000, timeout=5.0)
            cluster.asked.clear()
            await publish(client, 600)
            assert await consumer.take(1000)
            await consumer.take(1000, timeout=5.0)
        assert max(request.max_messages for _, request in cluster.of(Fetch)) == 60 // sets


async def test_a_topic_that_seemed_to_be_gone_is_read_once_by_each_of_its_sets_of_nodes() -> None:
    """One FETCH hears that it is not there, while the others wait for their turn."""
    async with jobs(nodes=5, partitions=12) as (cluster, client):
        consumer = client.consumer("jobs", "g")
        consumer.expects_topics = True
        refused: list[str] = []

        def answer(node: str, request: object) -> ClientReply | None:
            if isinstance(request, Fetch) and request.partitions == first and len(refused) < 3:
                refused.append(node)
                return Failed("not-found", "no such topic")
            return None

        async def fetches() -> Counter[tuple[int, ...]]:
            cluster.asked.clear()
            await consumer.take(timeout=30.0)
            return Counter(request.partitions for _, request in cluster.of(Fetch))

        async with consumer:
            before = await fetches()
            assert len(before) > 3
            first = next(iter(before))
            cluster.answer = answer
            await consumer.take(timeout=10.0)
            assert len({*refused}) == 3
            after = await fetches()
        assert after.keys() == before.keys()
        assert max(after.values()) <= max(before.values())


async def test_buffered_messages_of_a_deleted_topic_are_handed_over() -> None:
    """A fast consumer has a buffer, and another FETCH under way, which reports the deletion."""
    async with jobs(400) as (_, client):
        consumer = client.consumer("jobs", "g", prefetch=1000)
        consumer.expects_topics = True
        async with consumer:
            for _ in range(300):
                (message,) = await consumer.take(1)
                await message.ack()
                await trio.sleep(0.002)
            await client.delete_topic("jobs")
            await trio.sleep(0.1)
            assert len(await consumer.take(1000)) > 0
            await client.create_topic("jobs")
            await client.publish("jobs", b"new")
            with trio.fail_after(5.0):
                while b"new" not in [message.payload for message in await consumer.take(1000)]:
                    pass


async def test_several_topics() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        for name in ("jobs", "mail"):
            await client.create_topic(name)
            await publish(client, 5, name)
        async with client.consumer(["jobs", "mail"], "g") as consumer:
            messages = await take(consumer, 10)
        assert sorted({message.topic for message in messages}) == ["jobs", "mail"]


async def test_a_consumer_of_one_node_asks_only_that() -> None:
    async with jobs(5) as (cluster, client):
        async with client.consumer("jobs", "g", node="c") as consumer:
            messages = await take(consumer, 5)
        assert {node for node, _ in cluster.of(Fetch)} == {"c"}
        assert {message.fencing_token.node for message in messages} == {"c"}
        with pytest.raises(NotFound, match="no node 'z'"):
            async with client.consumer("jobs", "g", node="z"):
                raise AssertionError


# ----------------------------------------------------------------------------------- trouble


async def test_it_goes_on_at_another_node() -> None:
    async with fake_cluster(hold_time_max=5.0) as cluster, connected(cluster) as client:
        await client.create_topic("jobs")
        await publish(client, 50)
        ids: dict[object, None] = {}
        async with client.consumer("jobs", "g", hold_time=2.0, prefetch=5) as consumer:
            async for message in consumer:
                await message.ack()
                ids[message.id] = None
                if len(ids) == 10:
                    cluster.kill("a")
                if len(ids) == 30:
                    cluster.hang_up("b")
                    cluster.hang_up("c")
                if len(ids) == 50:
                    break
        assert len(ids) == 50


async def test_iterating_raises_when_no_one_answers_and_can_go_on_later() -> None:
    async with jobs() as (cluster, client), client.consumer("jobs", "g", timeout=3.0) as consumer:
        with trio.move_on_after(0.5):
            await take(consumer, 1)
        await cluster.cut_off()
        began = trio.current_time()
        with pytest.raises(TooFewReplicas, match=r"fetch from 'jobs' for group 'g'.*c:1.*connection refused"):
            await take(consumer, 1)
        assert trio.current_time() - began == pytest.approx(3.0, abs=0.5)
        cluster.refuse.clear()
        async with connected(cluster) as other:
            await publish(other, 1)
        with trio.fail_after(5.0):
            await take(consumer, 1)


async def test_an_idle_consumer_with_a_timeout_below_the_time_of_a_parked_fetch_raises_nothing() -> None:
    async with jobs() as (_, client), client.consumer("jobs", "g", timeout=1.0) as consumer:
        assert await consumer.take(timeout=10.0) == []


@asynccontextmanager
async def one_replica_each() -> AsyncIterator[tuple[FakeCluster, Client, list[int]]]:
    """A cluster with six partitions of one replica after node c has gone, and the partitions that the others have."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        topic = await client.create_topic("jobs", partitions=6, rf=1)
        for number in range(6):
            await client.publish("jobs", b"%d" % number, partition=number)
        cluster.kill("c")
        cluster.refuse.add("c:1")
        yield cluster, client, [number for number, nodes in enumerate(topic.replicas) if nodes != ("c",)]


async def test_a_consumer_reads_on_while_the_only_replica_of_some_partitions_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        one_replica_each() as (cluster, client, there),
        client.consumer("jobs", "g", timeout=3.0) as consumer,
    ):
        await client.ack(await take(consumer, len(there)))
        assert await consumer.take(timeout=10.0) == []
        assert "a part of the partitions cannot be read" in caplog.text
        await client.publish("jobs", b"later", partition=there[0])
        assert [message.payload for message in await consumer.take(timeout=1.0)] == [b"later"]
        await cluster.cut_off()
        with pytest.raises(TooFewReplicas):
            await consumer.take(timeout=10.0)


async def test_a_fetch_returns_messages_of_the_partitions_that_answer_and_raises_if_there_are_none() -> None:
    async with one_replica_each() as (_, client, there):
        gone = next(number for number in range(6) if number not in there)
        began = trio.current_time()
        messages = await client.fetch("jobs", "g", max_messages=100, min_messages=100, max_wait=2.0)
        assert sorted(int(message.payload) for message in messages) == there
        assert trio.current_time() == pytest.approx(began + 2.0)
        with pytest.raises(TooFewReplicas, match="connection refused"):
            await client.fetch("jobs", "g", timeout=3.0)
        assert trio.current_time() == pytest.approx(began + 5.0, abs=LAST_S)
        ids = [message.id for message in messages]
        lost = ids[0]._replace(partition=ids[0].partition._replace(number=gone))
        with pytest.raises(TooFewReplicas):
            await client.fetch("jobs", "h", ids=[*ids, lost], timeout=3.0)


async def test_a_fetch_pauses_between_its_attempts_if_no_replica_set_answers() -> None:
    """Without pauses it would use a whole core, and the time of this test would stand still."""
    async with one_replica_each() as (cluster, client, there):
        await client.fetch("jobs", "g", max_messages=100, min_messages=len(there), max_wait=2.0)

        async def cut_off() -> None:
            await trio.sleep(1.0)
            await cluster.cut_off()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_off)
            with pytest.raises(TooFewReplicas, match="fetch from"):
                await client.fetch("jobs", "g", max_wait=5.0, timeout=8.0)


async def test_a_fetch_returns_nothing_if_the_replica_set_that_was_away_has_nothing() -> None:
    async with jobs(partitions=6, rf=1) as (cluster, client):
        cluster.refuse.add("c:1")
        too_often = Failed(Code.USAGE, "it asks without a pause")
        cluster.answer = lambda node, request: too_often if len(cluster.asked) > 1000 else None

        async def come_back() -> None:
            await trio.sleep(1.0)
            cluster.refuse.clear()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            assert await client.fetch("jobs", "g", max_wait=6.0) == []


async def test_a_consumer_raises_nothing_while_one_replica_set_after_the_other_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        jobs(partitions=6, rf=1) as (cluster, client),
        client.consumer("jobs", "g", timeout=3.0) as consumer,
    ):
        for name in cluster.names:
            caplog.clear()
            cluster.refuse.add(f"{name}:1")
            cluster.hang_up(name)
            assert await consumer.take(timeout=70.0) == []  # equal lines of the log are a minute apart
            assert "a part of the partitions cannot be read" in caplog.text
            cluster.refuse.clear()
            assert await consumer.take(timeout=10.0) == []


async def test_a_fetch_that_can_never_work_is_raised() -> None:
    async with jobs() as (_, client):
        async with client.consumer("jobs", "g", hold_time=61.0) as consumer:
            with pytest.raises(UsageError, match="hold_time is 61"):
                await take(consumer, 1)
        with pytest.raises(NotFound, match="no topic 'jobz'"):
            async with client.consumer("jobz", "g"):
                raise AssertionError


async def test_a_damaged_record_is_left_out_and_the_others_are_handed_over() -> None:
    async with jobs() as (cluster, client):
        await publish(client, 5, linger=0.0)
        read = cluster.read

        def damaged(node: str):  # type: ignore[no-untyped-def]
            return lambda part: read(node)(part).replace(b"3", b"X")

        cluster.read = damaged  # type: ignore[method-assign]
        async with client.consumer("jobs", "g", hold_time=3.0) as consumer:
            messages = await take(consumer, 4)
            assert sorted(message.payload for message in messages) == [b"0", b"1", b"2", b"4"]
            await consumer.ack(messages)
            cluster.read = read  # type: ignore[method-assign]
            (whole,) = await take(consumer, 1)
            assert (whole.payload, whole.attempt) == (b"3", 2)


# ------------------------------------------------------------------------------------- fetch


async def test_fetch_takes_what_is_there() -> None:
    async with jobs() as (_, client):
        assert await client.fetch("jobs", "g") == []
        await publish(client, 10)
        assert len(await client.fetch("jobs", "g", max_messages=4)) == 4
        assert len(await client.fetch("jobs", "g", max_messages=40)) == 6


async def test_fetch_waits_for_as_many_as_asked_for() -> None:
    async with jobs() as (cluster, client):

        async def later() -> None:
            for _ in range(3):
                await trio.sleep(7.0)
                await publish(client, 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            began = trio.current_time()
            messages = await client.fetch("jobs", "g", min_messages=1, max_wait=60.0)
            assert len(messages) in (1, 2)
            assert trio.current_time() - began == pytest.approx(7.0, abs=0.1)
            assert len(cluster.of(Fetch)) >= 3, "a node parks it for a tenth of the hold time"
            rest = await client.fetch("jobs", "g", min_messages=6 - len(messages), max_wait=30.0)
            # A quarter of the hold time after the first of them it is enough.
            assert 17.0 <= trio.current_time() - began <= 14.0 + 7.5
            assert 2 <= len(rest) <= 4


async def test_fetch_ends_after_its_wait() -> None:
    async with jobs(2) as (_, client):
        began = trio.current_time()
        assert len(await client.fetch("jobs", "g", min_messages=3, max_wait=5.0)) == 2
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.1)


async def test_a_cancelled_fetch_gives_back_what_it_had() -> None:
    async with jobs(2) as (cluster, client):
        with trio.move_on_after(4.0) as scope:
            await client.fetch("jobs", "g", min_messages=3, max_wait=50.0)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(3.0)
        assert left(cluster) == (0, 2)


async def test_a_fetch_that_is_cancelled_with_its_client_gives_back_what_it_had() -> None:
    async with fake_cluster() as cluster:
        with trio.move_on_after(4.0) as scope:
            async with connected(cluster) as client:
                await client.create_topic("jobs")
                await publish(client, 2)
                await client.fetch("jobs", "g", min_messages=3, max_wait=50.0)
        assert scope.cancelled_caught
        await trio.sleep(3.0)  # far less than the hold
        assert left(cluster) == (0, 2)


async def test_a_fetch_that_is_cancelled_at_any_moment_gives_back_what_is_on_its_way() -> None:
    cancelled = []
    for after in range(2, 50, 4):
        async with serving("jobs") as (cluster, client):
            await publish(client, 2)
            cluster.lag = 0.1
            with trio.move_on_after(after / 100) as scope:
                await client.fetch("jobs", "g")
            await trio.sleep(3.0)  # far less than the hold
            assert left(cluster) == ((0, 2) if scope.cancelled_caught else (2, 0)), after
            cancelled.append(scope.cancelled_caught)
    assert cancelled == sorted(cancelled, reverse=True)
    assert 5 <= sum(cancelled) < len(cancelled)  # HELLO, then FETCH


async def test_a_client_that_ends_gives_back_what_its_cancelled_fetches_have_taken() -> None:
    """Those beyond `FETCH_LANES` share connections, and nodes have them parked: a message waited for a hold time."""
    async with serving("jobs") as (cluster, client):
        async with connected(cluster) as other:
            async with trio.open_nursery() as nursery:
                for _ in range(FETCH_LANES + 1):
                    nursery.start_soon(partial(other.fetch, "jobs", "g", max_wait=20.0))
                await trio.sleep(1.0)
                nursery.cancel_scope.cancel()
            cluster.lag = 0.1
            client.context.tasks.spawn(partial(publish, client, 1))
            while left(cluster) != (1, 0):
                await trio.sleep(0.01)
        cluster.lag = 0.0
        await trio.sleep(3.0)  # far less than the hold
        assert left(cluster) == (0, 1)


async def test_a_consumer_that_ends_gives_back_what_was_on_its_way() -> None:
    async with jobs(2) as (cluster, client):
        cluster.lag = 0.1
        async with client.consumer("jobs", "g") as consumer:
            assert await consumer.take(2, timeout=0.15) == []
            assert left(cluster) == (2, 0)
        assert left(cluster) == (0, 2)


async def test_fetch_fails_over() -> None:
    async with jobs(1) as (cluster, client):
        cluster.answer = failing("too-few-replicas", times=2, of=Fetch)
        assert len(await client.fetch("jobs", "g")) == 1


# ------------------------------------------------------------------------ patterns, later partitions


async def test_a_pattern_brings_what_matches_and_what_is_made_later() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        for name in ("orders.at", "orders.de", "other"):
            await client.create_topic(name)
            async with client.producer(name) as producer:
                await producer.send(name.encode())
        messages = await client.fetch("orders.*", "once")
        assert sorted(message.payload for message in messages) == [b"orders.at", b"orders.de"]
        async with client.consumer("orders.*", "g") as consumer:
            got = sorted([(await consumer.__anext__()).topic, (await consumer.__anext__()).topic])
            assert got == ["orders.at", "orders.de"]
            await client.create_topic("orders.ch")
            async with client.producer("orders.ch") as producer:
                await producer.send(b"late")
            message = await consumer.__anext__()
            assert (message.topic, message.payload) == ("orders.ch", b"late")
            await message.ack()


async def test_a_pattern_that_matches_nothing_is_no_error() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        assert await client.fetch("none.*", "g", max_wait=0.5) == []
        with trio.move_on_after(30.0) as scope:
            async with client.consumer("none.*", "g") as consumer:
                await consumer.__anext__()
        assert scope.cancelled_caught


async def test_partitions_made_later_are_written_and_read_without_a_restart() -> None:
    """Five nodes, so that the partitions have several replica sets, and new partitions have new ones."""
    async with (
        jobs(nodes=5, partitions=2) as (_, client),
        client.consumer("jobs", "g") as consumer,
        client.producer("jobs") as producer,
    ):
        await producer.publish(b"first")
        await (await consumer.__anext__()).ack()
        await client.alter_topic("jobs", partitions=12)
        await trio.sleep(2 * REFRESH_S + 1)
        sent = [await producer.send(b"%d" % number) for number in range(64 * 8)]
        homes = {(await pending.wait()).partition.number for pending in sent}
        assert len(homes) > 6, "round robin goes over the new ones"
        seen: list[bytes] = []
        with trio.fail_after(30.0):
            async for message in consumer:
                seen.append(message.payload)
                await message.ack()
                if len(seen) == len(sent):
                    break
        assert sorted(seen) == sorted(b"%d" % number for number in range(64 * 8))


async def move(client: Client, partition: int, source: str, to: str) -> None:
    """Move a replica of "jobs", as soon as it can be."""
    with trio.fail_after(100.0):
        while True:
            with suppress(Conflict, Transient):
                await client.move_partition("jobs", partition, source, to)
                return
            await trio.sleep(1.0)


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_consumer_goes_on_after_all_first_replicas_of_its_topic_have_left(partitions: int) -> None:
    """One replica set has a consumer that names no partition, and two have one that names them."""
    async with jobs(nodes=8, partitions=partitions) as (cluster, client):
        replicas = (await client.topic("jobs")).replicas
        first = {node for members in replicas for node in members}
        stay = [node for node in cluster.names if node not in first]
        async with client.consumer("jobs", "g") as consumer:
            await publish(client, 1)
            await (await consumer.__anext__()).ack()
            for number, members in enumerate(replicas):
                for source, to in zip(members, stay, strict=False):
                    await move(client, number, source, to)
            await trio.sleep(30.0)  # the payload follows
            for name in sorted(first - {node for it in (await client.topic("jobs")).replicas for node in it}):
                cluster.refuse.add(f"{name}:1")
                cluster.hang_up(name)
            for pause in (0.0, 60.0):  # no request of the first sets runs out of time later
                await trio.sleep(pause)
                await publish(client, 8)
                with trio.fail_after(3 * REFRESH_S):
                    received = await take(consumer, 8)
                await client.ack(received)
                assert len({message.payload for message in received}) == 8


async def test_a_partition_that_moves_to_another_set_is_fetched_at_once() -> None:
    """The FETCHes that its present nodes and those before have parked do not name it."""
    async with jobs(rf=1, partitions=12) as (_, client):
        sets: dict[str, list[int]] = {}
        for number, (node,) in enumerate((await client.topic("jobs")).replicas):
            sets.setdefault(node, []).append(number)
        (source, (number, beside, *_)), (to, _) = [it for it in sets.items() if len(it[1]) > 1][:2]
        async with (
            client.consumer("jobs", "g", hold_time=60.0) as consumer,
            client.producer("jobs") as producer,
        ):
            with trio.move_on_after(REFRESH_S + 1.5):
                await consumer.__anext__()
            await move(client, number, source, to)
            with trio.move_on_after(REFRESH_S - 1.0):
                await consumer.__anext__()
            for home in (beside, number):
                await producer.publish(b"%d" % home, partition=home)
                with trio.fail_after(0.5):
                    (message,) = await take(consumer, 1)
                assert await message.ack() is Outcome.ACKED
                await trio.sleep(0.1)


async def test_an_automatic_extension_does_not_change_why_an_ack_failed() -> None:
    async with jobs(1) as (cluster, client), client.consumer("jobs", "g", hold_time=4.0) as consumer:
        (message,) = await take(consumer, 1)
        cluster.answer = failing("outcome-unknown", times=99, of=AckRequest)
        with pytest.raises(OutcomeUnknown):
            await message.ack(timeout=1.0)
        await trio.sleep(3.0)
        assert cluster.of(ExtendRequest)
        assert isinstance(message.failure, OutcomeUnknown)
        cluster.answer = lambda node, request: None
        assert await message.ack() is Outcome.ACKED
        assert message.failure is None


async def test_one_node_may_be_named_where_topics_are_a_pattern() -> None:
    async with jobs(2) as (cluster, _), connected(cluster) as other:
        assert len(await other.fetch("j*", "g", node="c")) == 2

"""Publishing: once under all faults, with bounded waits, and with an error if it cannot be done."""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorumq.client import (
    BadReceipt,
    DefaultPartitioner,
    NotFound,
    NotStored,
    OutcomeUnknown,
    QuorumqError,
    SessionClosed,
    StorageFull,
    TooFewReplicas,
    TooLarge,
    UsageError,
    partition_of_key,
)
from quorumq.client.produce.batches import Pending
from quorumq.client.transport.connection import Lost
from quorumq.core import messages as m
from quorumq.core.values.limits import SESSION_IDLE_S
from quorumq.wire.address import split_address
from tests.client.fake import FakeCluster, connected, failing, fake_cluster, serving
from tests.client.steps import jobs, payloads


def sizes(cluster: FakeCluster) -> list[int]:
    return [request.batch.header.size for _, request in cluster.of(m.Publish)]


# ---------------------------------------------------------------------------------- batching


async def test_a_message_alone_goes_at_once_and_a_flood_fills_its_batches() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", linger=5.0) as producer:
            began = trio.current_time()
            pending = await producer.send(b"alone")
            await pending.wait()
            assert trio.current_time() == began
            assert sizes(cluster) == [1]
            cluster.mute.add("a")
            for _ in range(2000):
                await producer.send(b"x" * 1024)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() == began
            # The first message went at once. Each batch that is full while others are under way is twice as large as
            # the one before, until it has half a MiB.
            assert sizes(cluster)[2:] == [127, 254, 509, 509, 509]
            cluster.wake("a")
            await producer.flush()
        assert max(len(request.batch.body) for _, request in cluster.of(m.Publish)) <= 512 * 1024
        assert len(await payloads(client)) == 2001


async def test_messages_that_are_published_together_fill_the_largest_batches_at_once() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        async with client.producer("jobs", linger=5.0) as producer:
            await producer.publish_many([b"x" * 1024] * 1200)
        assert sizes(cluster) == [509, 509, 182]
        assert len(await payloads(client)) == 1200


async def test_a_producer_that_is_told_how_large_batches_are_keeps_to_that() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        async with client.producer("jobs", linger=5.0, batch_bytes=64 * 1024) as producer:
            await producer.publish_many([b"x" * 1024] * 300)
        assert max(sizes(cluster)) == 63
        assert len(await payloads(client)) == 300


async def test_a_flood_of_small_messages_makes_no_batch_that_takes_a_node_long() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        async with client.producer("jobs", linger=5.0) as producer, trio.open_nursery() as nursery:
            await producer.publish(b"first")
            cluster.mute.add("a")
            nursery.start_soon(producer.publish_many, [b"%05d" % n for n in range(30_000)])
            await trio.testing.wait_all_tasks_blocked()
            cluster.wake("a")
        assert 4096 < max(sizes(cluster)) <= 8192  # 64 KiB, and not 512


async def test_while_one_is_under_way_the_next_lingers_and_no_longer() -> None:
    async with jobs() as (cluster, client), client.producer("jobs", linger=0.25) as producer:
        await producer.publish(b"first")
        cluster.mute.add("a")
        await producer.send(b"under way")
        await trio.testing.wait_all_tasks_blocked()
        await producer.send(b"lingers")
        await trio.sleep(0.2)
        await producer.send(b"with it")
        assert sizes(cluster) == [1, 1]
        await trio.sleep(0.06)
        assert sizes(cluster) == [1, 1, 2]
        cluster.mute.clear()


async def test_numbers_are_dense_per_partition_and_batches_are_pipelined() -> None:
    async with jobs(partitions=2) as (cluster, client):
        async with client.producer("jobs", batch_bytes=100, in_flight=3) as producer:
            pendings = [await producer.send(b"x" * 40, partition=i % 2) for i in range(20)]
            ids = [await pending.wait() for pending in pendings]
        for number in (0, 1):
            assert [id_.seq for id_ in ids if id_.partition.number == number] == list(range(10))
        assert len({id_.producer_id for id_ in ids}) == 1
        assert len(cluster.of(m.OpenSession)) == 1


async def test_the_number_of_batches_in_flight_is_bounded() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", batch_bytes=10, in_flight=3) as producer:
            await producer.publish(b"first")
            cluster.mute.update("abc")
            for _ in range(10):
                await producer.send(b"0123456789")
            await trio.testing.wait_all_tasks_blocked()
            assert len(sizes(cluster)) == 4
            cluster.wake("a")
            await producer.flush()
        assert len(await payloads(client)) == 11


async def test_publish_waits_when_too_much_is_buffered() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", buffer_bytes=5_000, batch_bytes=1_000) as producer:
            await producer.publish(b"first")
            cluster.mute.update("abc")
            taken = 0
            with trio.move_on_after(1.0):
                for _ in range(100):
                    await producer.send(b"x" * 900)
                    taken += 1
            assert taken == 5
            cluster.wake("a")
            with trio.fail_after(10.0):
                await producer.send(b"y" * 900)
        assert len(await payloads(client)) == 7


# ---------------------------------------------------------------------------------- limits


async def test_too_large_is_refused_before_anything_is_sent() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client, client.producer("jobs") as producer:
        with pytest.raises(TooLarge, match="1048576"):
            await producer.send(b"x" * (1 + (1 << 20)))
        with pytest.raises(TypeError, match="encode it first"):
            await producer.send("text")  # type: ignore[arg-type]
        assert cluster.of(m.Publish) == []
        assert cluster.of(m.CreateTopic) == []


async def test_the_largest_message_and_headers_come_through() -> None:
    async with jobs() as (_, client):
        async with client.producer("jobs") as producer:
            await producer.send(b"x" * ((1 << 20) - 100), key=b"k", headers={"n": 7, "t": "é", "b": b"\0"})
        (message,) = await client.fetch("jobs", "g")
        assert len(message.payload) == (1 << 20) - 100
        assert (message.key, message.headers) == (b"k", {"n": 7, "t": "é", "b": b"\0"})


async def test_a_partition_that_is_not_there_is_named() -> None:
    async with jobs(partitions=2) as (_, client), client.producer("jobs") as producer:
        with pytest.raises(NotFound, match="there is no 2"):
            await producer.send(b"x", partition=2)


# ------------------------------------------------------------------------------ partitions


@given(st.binary(min_size=1, max_size=20), st.integers(1, 1024))
def test_a_key_always_has_the_same_partition(key: bytes, partitions: int) -> None:
    number = DefaultPartitioner()(key, partitions)
    assert 0 <= number < partitions
    assert number == DefaultPartitioner(sticky=3)(key, partitions) == (partition_of_key(key, partitions))


def test_the_hash_of_keys_is_part_of_the_api() -> None:
    assert [partition_of_key(key, 16) for key in (b"a", b"b", b"order-17", b"")] == [15, 5, 0, 4]


def test_without_a_key_it_stays_for_a_while_and_takes_turns() -> None:
    choose = DefaultPartitioner(sticky=3)
    numbers = [choose(None, 4) for _ in range(24)]
    assert all(len(set(numbers[at : at + 3])) == 1 for at in range(0, 24, 3))
    assert sorted(numbers[::3]) == [0, 0, 1, 1, 2, 2, 3, 3]


@given(st.integers(1, 9), st.integers(1, 5), st.lists(st.integers(1, 20), max_size=8))
def test_many_go_where_they_would_go_one_by_one(sticky: int, partitions: int, counts: list[int]) -> None:
    many, each = (DefaultPartitioner(sticky, random.Random(1)) for _ in range(2))
    for count in counts:
        runs = many.runs(count, partitions)
        assert [number for number, run in runs for _ in range(run)] == [
            each(None, partitions) for _ in range(count)
        ]


async def test_a_partitioner_of_ones_own() -> None:
    async with (
        jobs(partitions=4) as (_, client),
        client.producer("jobs", partitioner=lambda key, count: count - 1) as producer,
    ):
        assert (await producer.publish(b"x")).partition.number == 3
        assert [name.partition.number for name in await producer.publish_many([b"y", b"z"])] == [3, 3]


# -------------------------------------------------------------------------------- failover


async def test_a_lost_answer_makes_no_second_message() -> None:
    """docs/protocol.md, G6: the same batch is repeated through another node."""
    async with fake_cluster() as cluster, connected(cluster, "b") as client:
        await client.create_topic("jobs")
        async with client.producer("jobs") as producer:
            await producer.publish(b"0")
            cluster.lose = lambda node, request: isinstance(request, m.Publish) and node == "b"
            pendings = [await producer.send(b"%d" % i) for i in range(1, 50)]
            ids = [await pending.wait() for pending in pendings]
        published = cluster.of(m.Publish)
        assert {node for node, _ in published} > {"b"}
        repeated = [request.batch.raw for node, request in published if node == "b"][1:]
        others = {bytes(request.batch.raw) for node, request in published if node != "b"}
        assert {bytes(raw) for raw in repeated} <= others, "a retry sends the same bytes"
        assert [id_.seq for id_ in ids] == list(range(1, 50))
        assert len(await payloads(client)) == 50


async def test_a_node_that_dies_in_the_middle_loses_and_doubles_nothing() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", batch_bytes=2_000) as producer:
            pendings = []
            for i in range(200):
                pendings.append(await producer.send(b"%d" % i))
                if i == 100:
                    cluster.kill("a")
            for pending in pendings:
                await pending.wait()
        async with connected(cluster, "b") as other:
            assert sorted(await payloads(other), key=int) == [b"%d" % i for i in range(200)]


@pytest.mark.parametrize("code", ["outcome-unknown", "not-stored", "too-few-replicas", "storage-full"])
async def test_a_retryable_failure_is_tried_again(code: str) -> None:
    async with jobs() as (cluster, client):
        cluster.answer = failing(code, times=7, of=m.Publish)
        async with client.producer("jobs") as producer:
            await producer.publish(b"x")
        assert len({bytes(request.batch.raw) for _, request in cluster.of(m.Publish)}) == 1
        assert await payloads(client) == [b"x"]


async def test_a_node_that_does_not_answer_within_the_attempts_timeout_is_left_for_another() -> None:
    async with serving("jobs", attempt_timeout=0.4) as (cluster, client), client.producer("jobs") as producer:
        await producer.publish(b"0")
        cluster.mute.add("a")
        began = trio.current_time()
        await producer.publish(b"1")
        assert trio.current_time() - began == pytest.approx(0.4, abs=0.1)
        await producer.publish(b"2")
        assert trio.current_time() - began == pytest.approx(0.4, abs=0.1), "the mute one is not asked again"


# ---------------------------------------------------------------------------------- giving up


async def test_when_all_are_down_it_raises_what_was_tried() -> None:
    async with jobs() as (cluster, client), client.producer("jobs", timeout=4.0) as producer:
        await producer.publish(b"0")
        for name in "abc":
            cluster.kill(name)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        pending = await producer.send(b"1")
        with pytest.raises(NotStored) as caught:
            await pending.wait()
        assert trio.current_time() - began == pytest.approx(4.0, abs=0.5)
        for part in ("publish of 1 message to 'jobs'/0", "a:1", "b:1", "c:1", "connection refused"):
            assert part in str(caught.value)


async def test_once_it_was_sent_the_outcome_is_unknown() -> None:
    async with (
        serving("jobs", attempt_timeout=1.0) as (cluster, client),
        client.producer("jobs", timeout=4.0) as producer,
    ):
        await producer.publish(b"0")
        cluster.mute.update("abc")
        pending = await producer.send(b"1")
        with pytest.raises(OutcomeUnknown, match="no answer within"):
            await pending.wait()
        with pytest.raises(OutcomeUnknown):
            await pending.wait()
        cluster.mute.clear()
        # A dropped batch leaves a gap, and no later one waits for it.
        assert (await producer.publish(b"2")).seq == 2


async def test_leaving_raises_what_no_one_waited_for() -> None:
    async with jobs() as (cluster, client):
        with pytest.raises(NotStored) as caught:  # noqa: PT012
            async with client.producer("jobs", timeout=2.0) as producer:
                await producer.publish(b"0")
                await cluster.cut_off()
                for _ in range(3):
                    await producer.send(b"1")
        assert any("3 messages" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("received", [0, 1])
async def test_a_wait_given_up_and_one_for_another_of_the_batch_hear_for_no_one(received: int) -> None:
    async with jobs() as (cluster, client):
        with pytest.raises(OutcomeUnknown) as caught:  # noqa: PT012
            async with client.producer("jobs", timeout=2.0) as producer:
                await producer.publish(b"0")
                cluster.mute.update("abc")
                await producer.send(b"under way")  # so that the others share a batch
                pending = [await producer.send(b"1") for _ in range(3)]
                with trio.move_on_after(0.1) as scope:
                    await pending[2].wait()
                assert scope.cancelled_caught
                if received:
                    with pytest.raises(OutcomeUnknown):
                        await pending[0].wait()
        assert any(f"{4 - received} messages" in note for note in caught.value.__notes__)


async def test_a_task_waiting_in_a_closed_producer_alone_gets_its_error() -> None:
    async with jobs() as (cluster, client):
        received: list[BaseException] = []

        async def wait(pending: Pending) -> None:
            try:
                await pending.wait()
            except OutcomeUnknown as error:
                received.append(error)

        async with trio.open_nursery() as nursery, client.producer("jobs", timeout=2.0) as producer:
            await producer.publish(b"0")
            cluster.mute.update("abc")
            nursery.start_soon(wait, await producer.send(b"1"))
            await trio.testing.wait_all_tasks_blocked()
        assert len(received) == 1


async def test_leaving_by_an_exception_raises_that_and_gives_up_the_rest() -> None:
    async with jobs() as (cluster, client):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.producer("jobs") as producer:
                cluster.mute.update("bc")
                await producer.publish(b"0")
                cluster.mute.add("a")
                sent = await producer.send(b"1")
                await trio.testing.wait_all_tasks_blocked()
                kept = await producer.send(b"2")
                raise ZeroDivisionError
        with pytest.raises(OutcomeUnknown):
            await sent.wait()
        with pytest.raises(NotStored):
            await kept.wait()
        with pytest.raises(NotStored):
            await producer.send(b"3")


@pytest.mark.parametrize(("code", "error"), [("session-closed", SessionClosed), ("bad-receipt", BadReceipt)])
async def test_a_session_that_nodes_refuse_fails_its_batches_and_the_next_go_under_a_new_one(
    code: str, error: type[QuorumqError]
) -> None:
    """They closed it, or do not have the secret any more that signed it."""
    async with jobs() as (cluster, client):
        async with client.producer("jobs") as producer:
            first = await producer.publish(b"0")
            cluster.answer = failing(code, times=1, of=m.Publish)
            with pytest.raises(error):
                await producer.publish(b"1")
            second = await producer.publish(b"2")
        assert second.producer_id != first.producer_id
        assert second.seq == 0


@pytest.mark.parametrize("first_answer", ["lost", "outcome-unknown"])
async def test_a_batch_that_may_be_stored_is_not_reported_as_refused(first_answer: str) -> None:
    """If the error said that its session was closed before it was stored, the application would publish it again."""
    async with jobs() as (cluster, client):
        async with client.producer("jobs") as producer:
            first = await producer.publish(b"0")
            cluster.lose = lambda node, request: isinstance(request, m.Publish)

            def answer(node: str, request: object) -> m.Failed | None:
                if not isinstance(request, m.Publish) or (node == "a" and first_answer == "lost"):
                    return None
                return m.Failed(first_answer if node == "a" else "session-closed", "as the test asked")

            pending = await producer.send(b"1")
            cluster.answer = answer
            with pytest.raises(OutcomeUnknown, match="as the test asked"):
                await pending.wait()
            cluster.answer, cluster.lose = (lambda *asked: None), (lambda *asked: False)
            second = await producer.publish(b"2")
        assert (second.producer_id != first.producer_id, second.seq) == (True, 0), (
            "the next goes under a new session"
        )


async def test_a_message_every_other_day_comes_through() -> None:
    later = 0.0
    async with (
        fake_cluster() as cluster,
        connected(cluster, clock=lambda: trio.current_time() + later) as client,
    ):
        await client.create_topic("jobs")
        async with client.producer("jobs") as producer:
            first = await producer.publish(b"0")
            same = await producer.publish(b"1")
            assert same.producer_id == first.producer_id
            later = 2 * SESSION_IDLE_S

            def closed(node: str, request: object) -> m.Failed | None:
                """Answer as nodes do after closing an idle session."""
                if (
                    isinstance(request, m.Publish)
                    and request.batch.header.spans[0].producer_id == first.producer_id
                ):
                    return m.Failed("session-closed", "closed for being idle")
                return None

            cluster.answer = closed
            second = await producer.publish(b"2")
            assert (second.producer_id != first.producer_id, second.seq) == (True, 0)


async def test_messages_blocked_while_a_session_closes_use_the_next_session() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", batch_bytes=1, buffer_bytes=1) as producer:
            first = await producer.publish(b"0")
            cluster.answer = failing("session-closed", times=1, of=m.Publish)
            refused = await producer.send(b"1")
            stored = await producer.send(b"2")  # waits until there is room, which is when that one has failed
            with pytest.raises(SessionClosed):
                await refused.wait()
            second = await stored.wait()
        assert (second.producer_id != first.producer_id, second.seq) == (True, 0)


@pytest.mark.parametrize(
    ("code", "error", "after"), [("conflict", UsageError, 0.0), ("storage-full", StorageFull, 3.0)]
)
async def test_usage_errors_are_raised_at_once_and_a_full_disk_in_the_end(
    code: str, error: type[QuorumqError], after: float
) -> None:
    async with jobs() as (cluster, client), client.producer("jobs", timeout=3.0) as producer:
        cluster.answer = failing(code, times=1_000, of=m.Publish)
        began = trio.current_time()
        pending = await producer.send(b"0")
        with pytest.raises(error, match="as the test asked"):
            await pending.wait()
        assert trio.current_time() - began == pytest.approx(after, abs=0.5 * after)


@pytest.mark.parametrize("code", ["conflict", "session-closed", "usage"])
async def test_a_refusal_after_an_unknown_outcome_does_not_say_that_nothing_is_stored(code: str) -> None:
    """Other bytes may have won at the replicas that the second node asked, and ours are at the first one's."""
    async with jobs() as (cluster, client), client.producer("jobs") as producer:
        codes = iter(["outcome-unknown", code])
        cluster.answer = lambda node, request: (
            m.Failed(next(codes), "as the test asked") if isinstance(request, m.Publish) else None
        )
        with pytest.raises(OutcomeUnknown, match="as the test asked"):
            await producer.publish(b"A")


# -------------------------------------------------------------------------------- topics


async def test_publishing_makes_the_topic_where_the_cluster_allows_it() -> None:
    for count, rf in ((1, 1), (2, 1), (3, 3), (5, 3)):
        async with fake_cluster(count) as cluster, connected(cluster) as client:
            async with client.producer("new") as producer:
                await producer.send(b"x")
            topic = await client.topic("new")
            assert (topic.rf, topic.partitions) == (rf, 1)


async def test_publishing_to_no_topic_says_so_where_it_does_not() -> None:
    async with fake_cluster(auto_create_topics=False) as cluster, connected(cluster) as client:
        await client.create_topic("jobs")
        async with client.producer("jbos") as producer:
            with pytest.raises(NotFound, match="did you mean 'jobs'"):
                await producer.send(b"x")


async def test_a_node_that_does_not_know_the_topic_is_not_believed_alone() -> None:
    async with fake_cluster() as cluster, connected(cluster, "c") as client:
        cluster.drop = lambda sender, to, message: "c" in (sender, to)
        async with connected(cluster, "a") as other:
            await other.create_topic("jobs", max_deliveries=9)
        cluster.asked.clear()
        async with client.producer("jobs") as producer:
            await producer.publish(b"x")
        assert cluster.of(m.CreateTopic) == [], "it would overwrite the settings"
        assert (await client.topic("jobs")).max_deliveries == 9


# ---------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("steps", range(8))
async def test_a_producer_may_be_left_at_any_moment(steps: int) -> None:
    """Also between the decision to send a batch and its first step."""
    async with jobs() as (_, client):
        pending: Pending | None = None

        async def body() -> None:
            nonlocal pending
            async with client.producer("jobs") as producer:
                await producer.publish(b"before")
                pending = await producer.send(b"x")
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                raise KeyError

        with pytest.raises(KeyError):
            await body()
        assert pending is not None
        with contextlib.suppress(NotStored, OutcomeUnknown):
            await pending.wait()


async def test_a_cancelled_publish_took_nothing_and_a_cancelled_wait_takes_nothing_back() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", buffer_bytes=100) as producer:
            await producer.publish(b"first")
            cluster.mute.update("abc")
            with trio.move_on_after(0.5):
                pending = await producer.send(b"x" * 90)
                await pending.wait()
            with trio.move_on_after(0.5) as scope:
                await producer.send(b"never")
            assert scope.cancelled_caught
            with trio.CancelScope() as scope:
                scope.cancel()
                await producer.send(b"nor this")
            assert scope.cancelled_caught
            cluster.wake("a")
            await pending.wait()
        assert sorted(await payloads(client)) == [b"first", b"x" * 90]


async def test_cancelling_everything_ends_it() -> None:
    async with fake_cluster() as cluster:
        with trio.move_on_after(5.0) as scope:
            async with connected(cluster) as client, client.producer("jobs") as producer:
                cluster.answer = failing("not-stored", times=1 << 30, of=m.Publish)
                await producer.send(b"x")
                await trio.sleep_forever()
        assert scope.cancelled_caught


# ------------------------------------------------------------------------------ connecting


async def test_connecting_to_no_one_says_what_was_tried() -> None:
    async with fake_cluster() as cluster:
        cluster.refuse.update(cluster.addresses)
        began = trio.current_time()
        with pytest.raises(
            TooFewReplicas, match=r"Tried ([abc]:1(, |: )){3}connection refused \(\d+ times\)"
        ):
            async with connected(cluster, timeout=5.0):
                raise AssertionError
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.5)


async def test_one_address_is_enough_to_learn_the_others() -> None:
    async with serving("jobs", addresses=["a:1"]) as (cluster, client), client.producer("jobs") as producer:
        await producer.publish(b"0")
        cluster.kill("a")
        await producer.publish(b"1")


async def test_nodes_that_move_one_after_the_other_are_followed() -> None:
    async with fake_cluster() as cluster:
        moved: set[str] = set()

        async def dial(address: str) -> trio.abc.Stream:
            node, _, port = address.partition(":")
            if port != ("2" if node in moved else "1"):
                raise ConnectionRefusedError(111, "Connection refused")
            return await cluster.dial(f"{node}:1")

        def answer(node: str, request: object) -> m.MetadataReply | None:
            if not isinstance(request, m.Metadata):
                return None
            reply = cluster.ask(node, request)
            assert isinstance(reply, m.MetadataReply)
            said = [info._replace(address=f"{info.node}:{1 + (info.node in moved)}") for info in reply.nodes]
            return reply._replace(nodes=tuple(said))

        cluster.answer = answer
        async with connected(cluster, addresses=["a:1"], dial=dial) as client:
            await client.create_topic("jobs")
            await client.metadata()
            for name in "bca":
                moved.add(name)
                cluster.hang_up(name)
                await client.metadata()
            async with client.producer("jobs") as producer:
                await producer.publish(b"0")
            (message,) = await client.fetch("jobs", "g")
            (other,) = await client.fetch("jobs", "h", node="b")
            assert (message.payload, other.payload) == (b"0", b"0")


async def test_another_cluster_is_refused_at_once() -> None:
    async with fake_cluster() as cluster:
        with pytest.raises(UsageError, match="cluster"):
            async with connected(cluster, cluster_id="other"):
                raise AssertionError


async def test_a_node_with_too_many_clients_is_left_for_another() -> None:
    async with fake_cluster() as cluster:

        def answer(node: str, request: object) -> m.Failed | None:
            full = node == "a" and isinstance(request, m.Hello)
            return (
                m.Failed("not-stored", "node a has 2 clients, its connections_max: ask another node")
                if full
                else None
            )

        cluster.answer = answer
        async with connected(cluster) as client:
            await client.create_topic("jobs")
            async with client.producer("jobs") as producer:
                await producer.publish(b"0")
        with pytest.raises(TooFewReplicas, match=r"a:1: .*its connections_max"):
            async with connected(cluster, addresses=["a:1"], timeout=2.0):
                pytest.fail("it was let in")


async def test_a_node_that_cannot_be_reached_is_dialled_once_for_all_who_wait() -> None:
    async with fake_cluster() as cluster, connected(cluster, addresses=["a:1"]) as client:
        dialled: list[str] = []

        async def slow(address: str) -> trio.abc.Stream:
            dialled.append(address)
            await trio.sleep(1.0)
            raise ConnectionRefusedError(111, "Connection refused")

        client.nodes.dial = slow
        cluster.hang_up("a")
        await trio.testing.wait_all_tasks_blocked()
        failed: list[str] = []

        async def reach() -> None:
            with pytest.raises(Lost) as caught:
                await client.nodes.connection("a:1", timeout=60.0)
            failed.append(caught.value.cause)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(reach)
        assert failed == ["connection refused"] * 50
        assert trio.current_time() - began == pytest.approx(1.0)
        assert dialled == ["a:1"]


async def test_not_found_at_one_node_says_nothing_while_another_may_have_it() -> None:
    async with jobs() as (cluster, client):
        tries = 0

        def answer(node: str, request: object) -> m.Failed | None:
            nonlocal tries
            if not isinstance(request, m.Publish) or tries >= 6:
                return None
            tries += 1
            return (
                m.Failed("not-found", "not here")
                if node != "b"
                else m.Failed("outcome-unknown", "maybe", 2, 1)
            )

        cluster.answer = answer
        async with client.producer("jobs") as producer:
            await producer.publish(b"x")
        assert tries == 6


# ------------------------------------------------------------------------------------- times


def times(cluster: FakeCluster) -> list[tuple[int, int, int]]:
    """Delay, TTL (milliseconds) and messages of each PUBLISH."""
    headers = [request.batch.header for _, request in cluster.of(m.Publish)]
    return [(header.delay_ms, header.ttl_ms, header.size) for header in headers]


async def test_a_batch_closes_where_the_times_differ() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs", linger=5.0) as producer:
            await producer.publish(b"alone")
            cluster.mute.add("a")
            await producer.send(b"under way")
            await trio.testing.wait_all_tasks_blocked()
            for delay, ttl in (
                (None, None),
                (0, None),
                (2, None),
                (timedelta(seconds=2), None),
                (2, 2.0001),
                (0, 9),
            ):
                await producer.send(b"x", delay=delay, ttl=ttl)
            cluster.wake("a")
            await producer.flush()
        assert set(times(cluster)) == {(0, 0, 1), (0, 0, 2), (2000, 0, 2), (2000, 2001, 1), (0, 9000, 1)}


async def test_a_delayed_message_comes_when_it_is_due_and_an_expired_one_does_not() -> None:
    async with jobs() as (_, client):
        began = trio.current_time()
        async with client.producer("jobs") as producer:
            await producer.send(b"late", delay=30.0)
            await producer.send(b"too late", delay=10.0, ttl=20.0)
        assert await payloads(client) == []
        await trio.sleep(25.0)
        while not (received := await payloads(client)):
            await trio.sleep(0.5)
        assert received == [b"late"]
        assert 30.0 <= trio.current_time() - began < 33.0


async def test_a_retry_has_the_same_bytes_and_a_greater_age() -> None:
    async with jobs() as (cluster, client):
        cluster.answer = failing("outcome-unknown", times=3, of=m.Publish)
        async with client.producer("jobs") as producer:
            await producer.publish(b"once", delay=5.0)
        tries = [request for _, request in cluster.of(m.Publish)]
        assert len(tries) == 4
        assert len({(request.batch.raw, bytes(request.batch.body)) for request in tries}) == 1
        ages = [request.age_ms for request in tries]
        assert ages == sorted(ages)
        assert ages[0] == 0 < ages[-1]


async def test_a_time_of_day_becomes_a_delay_at_once() -> None:
    async with jobs() as (cluster, client):
        now = datetime.fromtimestamp(client.wall_ms() / 1000, UTC)
        east = timezone(timedelta(hours=5))
        async with client.producer("jobs") as producer:
            for not_before in (
                now - timedelta(days=1),
                now + timedelta(seconds=60),
                (now + timedelta(1)).astimezone(east),
            ):
                await producer.publish(b"x", not_before=not_before)
        past, minute, day = (delay for delay, _, _ in times(cluster))
        assert past == 0
        assert 59_000 < minute <= 60_000
        assert 86_399_000 < day <= 86_400_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": -1}, "delay is -1 s: it must be from 0 to 31622400 s (366 days)"),
        ({"delay": timedelta(days=400)}, "delay is 34560000 s"),
        ({"delay": float("nan")}, "delay is nan s"),
        ({"ttl": 0}, "ttl is 0 s: it must be above 0"),
        ({"ttl": timedelta(days=-1)}, "ttl is -86400 s"),
        ({"ttl": 1e12}, "ttl is 1e+12 s: it must be from 0 to 316224000 s"),
        ({"not_before": datetime(2027, 1, 1)}, "without a time zone"),
        ({"not_before": datetime(2999, 1, 1, tzinfo=UTC)}, "it must be from 0 to 31622400 s"),
        ({"not_before": datetime(2027, 1, 1, tzinfo=UTC), "delay": 1}, "give one of them"),
    ],
)
async def test_times_out_of_bounds_are_refused_by_name(options: Any, says: str) -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs") as producer:
            with pytest.raises(UsageError) as caught:
                await producer.send(b"x", **options)
            assert says in str(caught.value)
        assert cluster.of(m.Publish) == []


async def test_an_address_that_cannot_be_one_is_a_node_that_cannot_be_reached() -> None:
    """METADATA gives the address; `connect` checks the ones that it is given."""
    addresses = (("a", "a:1"), ("b", "nonsense"), ("c", "c:1"))
    async with fake_cluster(addresses=addresses) as cluster:

        async def dial(address: str) -> trio.abc.Stream:
            split_address(address)
            return await cluster.dial(address)

        async with connected(cluster, addresses=["a:1"], dial=dial) as client:
            await client.create_topic("jobs")
            cluster.kill("a")
            with trio.fail_after(5.0):
                await client.topic("jobs")


async def test_the_requests_of_one_operation_share_its_time() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        asked: list[str] = []

        def slow(node: str, request: object) -> m.Failed | None:
            asked.append(type(request).__name__)
            if isinstance(request, m.Metadata) and trio.current_time() - began < 2.0:
                return m.Failed("too-few-replicas", "not now", 2, 1)
            if isinstance(request, m.CreateTopic | m.OpenSession):
                return m.Failed("not-stored", "not now", 2, 1)
            return None

        for make in (
            lambda: client.create_topic("jobs", timeout=3.0),
            lambda: client.topic("jobs", create=True, timeout=3.0),
        ):
            cluster.answer = slow
            began = trio.current_time()
            with pytest.raises(NotStored, match="within"):
                await make()
            assert trio.current_time() - began == pytest.approx(3.0, abs=0.2)
            assert "CreateTopic" in asked
        cluster.answer = lambda node, request: None
        await client.create_topic("jobs")
        cluster.answer = slow
        async with client.producer("jobs", timeout=3.0) as producer:
            began = trio.current_time()
            with pytest.raises(NotStored):
                await producer.send(b"x")
            assert trio.current_time() - began == pytest.approx(3.0, abs=0.2)

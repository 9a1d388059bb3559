"""Derived publishes: an output is named after its input, so that publishing it again makes no second one (G6)."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from quorumq.client import (
    Client,
    Conflict,
    Message,
    MessageId,
    NotFound,
    OutcomeUnknown,
    Producer,
    UsageError,
)
from quorumq.client.produce.batches import NO_TIMES, DerivedBatch
from quorumq.client.produce.derived import derived_partition, derived_producer_id, runs_of
from quorumq.client.produce.encoded import encoded_of
from quorumq.client.produce.partitioner import DefaultPartitioner, partition_of_key
from quorumq.core.messages import OpenSession, Publish
from quorumq.core.values.types import DERIVED, NAMED, STAMP_ZERO, PartitionId, ProducerId, Span, Topic
from quorumq.wire.batch import SPANS_MAX
from tests.client.fake import FakeCluster, connected, fake_cluster, serving
from tests.client.steps import payloads

SOURCE = MessageId(PartitionId(b"i" * 16, 5), ProducerId("n1", 7, 2**64 - 1, 3), 41)


async def inputs(client: Client, count: int, *, partitions: int = 1, group: str = "g") -> list[Message]:
    """``count`` messages of a topic "in", as ``group`` gets them."""
    await client.create_topic("in", partitions=partitions)
    async with client.producer("in") as producer:
        for number in range(count):
            await producer.send(b"%d" % number, partition=number % partitions)
    return await client.fetch("in", group, max_messages=count, min_messages=count, max_wait=2.0)


async def derive(client: Client, messages: list[Message], prefix: bytes = b"out ") -> list[MessageId]:
    async with client.producer("out") as producer:
        pendings = [await producer.send(prefix + item.payload, derived_from=item) for item in messages]
        return [await pending.wait() for pending in pendings]


async def outputs(client: Client, group: str = "reader") -> list[bytes]:
    received: list[bytes] = []
    while batch := await payloads(client, "out", group):  # some 128 of those of different sessions at a time
        received += batch
    return sorted(received)


def all_spans(cluster: FakeCluster, seen: int = 0) -> list[tuple[Span, ...]]:
    return [request.batch.header.spans for _, request in cluster.of(Publish)][seen:]


# --------------------------------------------------------------------------------- exactly once


async def test_an_output_published_again_by_anyone_is_the_same_message() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.create_topic("out", partitions=3)
        messages = await inputs(client, 20, partitions=2)
        first = await derive(client, messages)
        assert {id_.producer_id.node for id_ in first} == {DERIVED}
        assert [id_.seq for id_ in first] == [item.id.seq for item in messages]
        async with connected(cluster, "b") as other:
            # As after a kill -9 between publish and ack: another consumer gets them, in other batches.
            await client.reject(messages)
            again = await other.fetch("in", "g", max_messages=20, min_messages=20, max_wait=2.0)
            assert {item.attempt for item in again} == {2}
            second = [(await derive(other, [item]))[0] for item in again]
        assert sorted(second) == sorted(first)
        assert await outputs(client) == sorted(b"out %d" % number for number in range(20))
        assert len(cluster.of(OpenSession)) == 1, "only what is numbered needs a session"


async def test_outputs_of_one_input_and_of_several_groups_and_topics_are_apart() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        (message,) = await inputs(client, 1)
        (other,) = await client.fetch("in", "another group")
        await client.create_topic("out")
        await client.create_topic("third")
        async with client.producer("out") as producer, client.producer("third") as third:
            pendings = [
                await producer.send(b"same", derived_from=message),
                await producer.send(b"same", derived_from=message, index=1),
                await producer.send(b"same", derived_from=other),
                await third.send(b"same", derived_from=message),
            ]
            assert len({await pending.wait() for pending in pendings}) == 4
        assert len(await outputs(client)) == 3
        # And an output is an input for the next.
        (middle,) = await client.fetch("third", "g")
        assert (await derive(client, [middle]))[0].producer_id.node == DERIVED


async def test_a_redriven_input_derives_the_same_and_adds_nothing() -> None:
    async with serving("out") as (_, client):
        (message,) = await inputs(client, 1)
        first = await derive(client, [message])
        await message.dead_letter(reason="the ack was forgotten")
        deaths = [item async for item in client.peek("in", "g", "dead")]
        await client.redrive("in", "g", deaths)
        (again,) = await client.fetch("in", "g")
        assert again.delivery.receipt.n == 1
        assert await derive(client, [again]) == first
        assert await outputs(client) == [b"out 0"]


async def test_more_partitions_later_do_not_move_a_retry() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.create_topic("out", partitions=3)
        messages = await inputs(client, 12, partitions=6)
        first = await derive(client, messages)
        assert {id_.partition.number for id_ in first} == {0, 1, 2}
        await client.alter_topic("out", partitions=7)
        async with connected(cluster, "c") as later:
            assert (await later.topic("out")).born == 3
            assert await derive(later, messages) == first
            keyed: set[MessageId] = set()
            for each in (client, later):
                async with each.producer("out") as producer:
                    pending = await producer.send(b"keyed", key=b"k", derived_from=messages[0], index=1)
                    keyed.add(await pending.wait())
                    named = await producer.send(b"named", partition=6, derived_from=messages[0], index=2)
                    assert (await named.wait()).partition.number == 6, "a partition that is named is that one"
            (where,) = keyed
            assert where.partition.number == partition_of_key(b"k", 3)


# ------------------------------------------------------------------------------------- batches


async def under_way(cluster: FakeCluster, producer: Producer, message: Message) -> None:
    """Have an output sent and not answered: later publishes fill a batch."""
    pending = await producer.send(b"0", derived_from=message)
    await pending.wait()
    cluster.mute.add("a")
    await producer.send(b"0", derived_from=message)
    await trio.testing.wait_all_tasks_blocked()
    cluster.mute.clear()


async def test_outputs_of_consecutive_inputs_cost_one_section() -> None:
    async with serving("out") as (cluster, client):
        messages = await inputs(client, 100)
        async with client.producer("out", linger=5.0) as producer:
            await under_way(cluster, producer, messages[0])
            seen = len(cluster.of(Publish))
            for item in reversed(messages[1:]):  # in any order
                await producer.send(item.payload, derived_from=item)
            cluster.hang_up("a")
        (again, rest) = all_spans(cluster, seen)
        assert sorted(span.size for span in (*again, *rest)) == [1, 99]
        assert len(await outputs(client)) == 100


async def test_a_batch_closes_when_it_has_as_many_spans_as_it_may() -> None:
    async with serving("out") as (cluster, client):
        messages = (await inputs(client, 2 * SPANS_MAX + 20))[::2]  # every other: no two in one run
        async with client.producer("out", linger=5.0) as producer:
            await under_way(cluster, producer, messages[0])
            seen = len(cluster.of(Publish))
            for item in messages[1:]:
                await producer.send(b"x", derived_from=item)
            cluster.hang_up("a")
        assert max(len(spans) for spans in all_spans(cluster, seen)) == SPANS_MAX
        assert len(await outputs(client)) == len(messages)


async def test_the_same_output_twice_in_one_batch_is_one_record() -> None:
    async with serving("out") as (_, client):
        (message,) = await inputs(client, 1)
        async with client.producer("out") as producer:
            one = await producer.send(b"x", derived_from=message)
            two = await producer.send(b"x", derived_from=message)
            with pytest.raises(Conflict, match="must depend on its input alone"):
                await producer.send(b"y", derived_from=message)
            assert await one.wait() == await two.wait()
        assert await outputs(client) == [b"x"]


# ------------------------------------------------------------------------------------ refusals


async def test_other_bytes_under_an_id_are_a_conflict_and_take_no_others_with_them() -> None:
    async with serving("out") as (_, client):
        messages = await inputs(client, 10)
        await derive(client, messages[3:4], b"first ")
        async with client.producer("out") as producer:
            pendings = [await producer.send(b"out " + x.payload, derived_from=x) for x in messages]
            for number, pending in enumerate(pendings):
                if number == 3:
                    with pytest.raises(Conflict, match="other bytes"):
                        await pending.wait()
                else:
                    assert (await pending.wait()).seq == messages[number].id.seq
        assert await outputs(client) == sorted([b"first 3", *(b"out %d" % n for n in range(10) if n != 3)])


async def test_a_conflict_that_no_one_waited_for_is_raised_when_the_producer_is_left() -> None:
    async with serving("out") as (_, client):
        messages = await inputs(client, 4)
        await derive(client, messages[:1], b"first ")
        producer = await client.producer("out").__aenter__()
        for message in messages:
            pending = await producer.send(b"x" + message.payload, derived_from=message)
        await pending.wait()
        with pytest.raises(Conflict) as caught:
            await producer.close()
        assert caught.value.__notes__ == ["given up, and nobody waited: 1 message to 'out'"]
        async with client.producer("out") as producer:
            await producer.send(b"x", derived_from=messages[0])
            with pytest.raises(Conflict):
                await producer.flush()


async def test_an_unknown_output_retried_makes_no_second_message() -> None:
    async with serving("out") as (cluster, client):
        messages = await inputs(client, 3)
        async with client.producer("out", timeout=1.0) as producer:
            pending = await producer.send(b"out 0", derived_from=messages[0])
            await pending.wait()
            cluster.lose = lambda node, request: isinstance(request, Publish)
            pendings = [await producer.send(b"out " + x.payload, derived_from=x) for x in messages]
            for pending in pendings:
                with pytest.raises(OutcomeUnknown):
                    await pending.wait()
            cluster.lose = lambda node, request: False
        await derive(client, messages)
        assert await outputs(client) == [b"out 0", b"out 1", b"out 2"]


@pytest.mark.parametrize("partitions", [2, 3])
async def test_outputs_follow_to_a_topic_made_again_if_their_partition_stays(partitions: int) -> None:
    """They were NotFound once, though the topic was there."""
    async with fake_cluster() as cluster, connected(cluster) as client, connected(cluster, "b") as other:
        await client.create_topic("out", partitions=2)
        messages = await inputs(client, 6, partitions=3)
        producer = client.producer("out", create=False)
        before = [await producer.publish(b"out " + item.payload, derived_from=item) for item in messages]
        await other.delete_topic("out")
        topic = await other.create_topic("out", partitions=partitions)
        moved, stays = list[Message](), messages
        if partitions == 3:  # inputs of the third partition go from the first of two to the third of three
            moved, stays = ([m for m in messages if m.id.partition.number == where] for where in (2, 1))
        pendings = [await producer.send(b"out " + item.payload, derived_from=item) for item in stays + moved]
        for item, pending in zip(stays, pendings, strict=False):
            assert (await pending.wait()) != before[messages.index(item)]
        for pending in pendings[len(stays) :]:
            with pytest.raises(NotFound):
                await pending.wait()
        again = await derive(other, messages)
        assert {id_.partition for id_ in again} == {PartitionId(topic.id, n) for n in range(partitions)}
        assert [
            await producer.publish(b"out " + item.payload, derived_from=item) for item in messages
        ] == again
        assert await outputs(client) == [b"out %d" % number for number in range(6)]


def test_messages_are_renamed_unless_two_would_be_one() -> None:
    """Two windows of a name are two messages of the old topic, and may be one window of the new one."""
    old, new = PartitionId(b"o" * 16, 0), PartitionId(b"p" * 16, 0)
    batch = DerivedBatch(old, 0.0, NO_TIMES, {})
    named = [(ProducerId(NAMED, window, 7, 0), 4) for window in (1, 2, 3)]
    for name in named[:2]:
        batch.index_of(name, encoded_of(lambda: 0, b"x", dedup="n", window=60))
    batch.refuse(1, Conflict("by the old topic"))
    assert not batch.rename(new, named[2:] * 2)
    assert batch.id_of(1) == MessageId(old, *named[1])
    assert batch.rename(new, named[1:])
    assert batch.ids(0, 2) == [MessageId(new, *name) for name in named[1:]]
    batch.finish(None)
    assert batch.failure(1) is None
    assert batch.messages == [], "payloads are freed"


async def test_impossible_arguments_are_refused_by_name() -> None:
    async with serving("out") as (cluster, client):
        (message,) = await inputs(client, 1)
        async with client.producer("out") as producer:
            with pytest.raises(UsageError, match="index is 1"):
                await producer.send(b"x", index=1)
            with pytest.raises(UsageError, match="index is -1"):
                await producer.send(b"x", derived_from=message, index=-1)
            with pytest.raises(NotFound, match="there is no 4"):
                await producer.send(b"x", derived_from=message, partition=4)
            cluster.mute.update("abc")
            with trio.move_on_after(1.0):
                (pending,) = [await producer.send(b"x", derived_from=message)]
                await pending.wait()
            cluster.mute.clear()


# --------------------------------------------------------------------------------------- names


def test_the_producer_id_of_an_output_never_changes() -> None:
    assert derived_producer_id(SOURCE, "workers", b"o" * 16, 0) == ProducerId(
        "~derived", 3466930717, 0x33F3012E9F1618C5, 2693754695
    ), "another version of the library would publish everything again"


def test_whatever_tells_outputs_apart_is_in_their_producer_id() -> None:
    producer_id = SOURCE.producer_id
    sources = [
        SOURCE,
        SOURCE._replace(partition=PartitionId(b"j" * 16, 5)),
        SOURCE._replace(partition=PartitionId(b"i" * 16, 6)),
        *(SOURCE._replace(producer_id=producer_id._replace(**{name: value})) for name, value in
          (("node", "n2"), ("n", 8), ("nonce", 1), ("k", 4))),
    ]  # fmt: skip
    made = {derived_producer_id(source, "g", b"o" * 16, 0) for source in sources}
    made.add(derived_producer_id(SOURCE, "g2", b"o" * 16, 0))
    made.add(derived_producer_id(SOURCE, "g", b"p" * 16, 0))
    made.add(derived_producer_id(SOURCE, "g", b"o" * 16, 1))
    assert len(made) == len(sources) + 3
    assert derived_producer_id(SOURCE._replace(seq=42), "g", b"o" * 16, 0) in made, "runs of inputs stay runs"


@given(st.integers(0, 20), st.integers(1, 8), st.integers(0, 12), st.none() | st.binary(max_size=4))
def test_the_partition_of_an_output_does_not_depend_on_how_many_there_are_now(
    number: int, born: int, more: int, key: bytes | None
) -> None:
    def topic(partitions: int) -> Topic:
        members = (("a",),) * partitions
        return Topic(b"o" * 16, "out", 1, members, 5, STAMP_ZERO, born=born)

    source = SOURCE._replace(partition=PartitionId(b"i" * 16, number))
    chosen = [derived_partition(source, key, topic(p), DefaultPartitioner()) for p in (born, born + more)]
    assert chosen[0] == chosen[1] < born


@given(
    st.sets(
        st.tuples(st.sampled_from((SOURCE.producer_id, ProducerId("a", 1, 2, 3))), st.integers(0, 30)),
        min_size=1,
    )
)
def test_spans_are_the_names_in_as_few_runs_as_there_are(names: set[tuple[ProducerId, int]]) -> None:
    runs = runs_of(sorted(names))
    assert [(run.producer_id, seq) for run in runs for seq in range(run.start, run.stop)] == sorted(names)
    assert len(runs) == sum((producer_id, seq - 1) not in names for producer_id, seq in names)

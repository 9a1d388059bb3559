"""Batches that overlap, as retries of derived publishes do (docs/patterns.md, "Consume, process, publish"; G6).

A retry of a session's batch is that batch. Outputs of several workers are in other batches each time: some of it
stored here, some there, some under way. In any order, every replica must get every message once.
"""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import strategies as st

from quorumq.client.produce.derived import runs_of
from quorumq.core.messages import Failed, Publish, PublishReply, Store
from quorumq.core.values.types import DERIVED, Batch, PartitionId, ProducerId, Topic
from quorumq.wire.batch import Message, encode_record, pack_spans
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts
from tests.seeds import property_of

PRODUCER_IDS = (ProducerId(DERIVED, 1, 2, 3), ProducerId(DERIVED, 4, 5, 6))
Name = tuple[ProducerId, int]

names = st.sets(st.tuples(st.sampled_from(PRODUCER_IDS), st.integers(0, 11)), min_size=1)
publishes = st.tuples(
    names,
    st.sampled_from("abc"),  # through whom
    st.sets(
        st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), max_size=3
    ),  # links that lose the STORE
    st.sampled_from(["", "", "a", "b", "c"]),  # the node that is killed and started again afterwards
)


def record_of(name: Name) -> bytes:
    """A function of the name alone, of a size that differs."""
    producer_id, seq = name
    return encode_record(Message(b"%d/%d " % (producer_id.k, seq) * (1 + seq % 3)))


def batch_of(topic: Topic, names: set[Name], wall_ms: int) -> Batch:
    ordered = sorted(names)
    return pack_spans(PartitionId(topic.id, 0), runs_of(ordered), wall_ms, [record_of(x) for x in ordered])


def check_stored(cluster: Cluster, topic: Topic, expected: set[Name]) -> None:
    for node in cluster.nodes.values():
        replica = node.replicas[PartitionId(topic.id, 0)]
        stored: set[Name] = set()
        for span, slot in replica.batches.index.items():
            header = replica.batches.stored[slot.number].header
            for seq in range(span.start, span.stop):
                stored.add((span.producer_id, seq))
                assert header.crc_of(seq + slot.shift) == crc32c(record_of((span.producer_id, seq)))
        assert stored == expected


@property_of(st.lists(publishes, min_size=1, max_size=8), count=8, of=60)
def test_however_derived_messages_are_batched_each_is_stored_once_everywhere(
    plan: list[tuple[set[Name], str, set[tuple[str, str]], str]],
) -> None:
    cluster = Cluster(3, sync_interval=1.0, sync_grace=0.5, hold_time_max=2.0, request_timeout=0.5)
    topic = cluster.topic()
    expected: set[Name] = set()
    for names, via, losing, victim in plan:
        cluster.drop = lambda sender, to, message, losing=losing: (  # type: ignore[misc]
            isinstance(message, Store) and (sender, to) in losing
        )
        reply = cluster.ask(via, Publish(batch_of(topic, names, cluster.now.wall_ms)), 0.6)
        assert isinstance(reply, PublishReply) or (
            isinstance(reply, Failed) and reply.code == "outcome-unknown"
        )
        if isinstance(reply, PublishReply) or (via, via) not in losing:
            expected |= names
        else:
            cluster.hear_all()
            assert isinstance(
                cluster.ask(via, Publish(batch_of(topic, names, cluster.now.wall_ms)), 0.6), PublishReply
            ), "a retry of what is unknown goes through"
            expected |= names
        if victim:
            cluster.crash(victim)
    cluster.hear_all(8.0)
    check_stored(cluster, topic, expected)
    delivered: list[Name] = []
    for node in "abcabc":
        for item in receipts(cluster.ask(node, fetch(most=1000, hold_time=2.0), 0.05)):
            delivered += [(item.receipt.span.producer_id, seq) for seq in range(*item.receipt.span[1:])]
    assert sorted(delivered) == sorted(expected), "and is delivered once, under its own name"

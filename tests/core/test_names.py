"""Names of publishers' own (docs/protocol.md, NAMES): the id of a name, and the end of its window."""

from __future__ import annotations

from quorumq.core.messages import (
    AckRequest,
    Failed,
    FindName,
    FindNameReply,
    Publish,
    PublishReply,
    Store,
)
from quorumq.core.values.errors import Code
from quorumq.core.values.types import NAMED, PartitionId, ProducerId, Span, Topic
from tests.core.cluster import Cluster
from tests.core.network import wipe
from tests.core.steps import fetch, receipts

WINDOW_S = 60
SLOT, SEQ = 3, 17


def found(cluster: Cluster, topic: Topic, node: str = "a") -> tuple[ProducerId, bool]:
    reply = cluster.ask(node, FindName(PartitionId(topic.id, 0), WINDOW_S, SLOT, SEQ))
    assert isinstance(reply, FindNameReply), reply
    assert reply.producer_id[:3] == (NAMED, WINDOW_S, SLOT)
    return reply.producer_id, reply.known


def published(
    cluster: Cluster, topic: Topic, producer_id: ProducerId, node: str = "a", payload: bytes = b"x"
) -> object:
    return cluster.ask(node, Publish(cluster.batch(topic, producer_id, SEQ, [payload])))


def at_a_border(cluster: Cluster) -> None:
    """Let time pass until shortly before a window ends."""
    seconds = WINDOW_S - (cluster.now.wall_ms / 1000) % WINDOW_S
    cluster.time += seconds - 1


def test_a_name_is_found_in_the_window_before_and_after_and_by_clocks_that_differ() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    at_a_border(cluster)
    first, known = found(cluster, topic)
    assert not known
    assert isinstance(published(cluster, topic, first), PublishReply)
    assert found(cluster, topic, "b") == (first, True)
    cluster.wall_off_ms = {"b": 2_000, "c": -2_000}
    assert found(cluster, topic, "b") == (first, True), "that node's window is the next one"
    cluster.time += 2
    assert found(cluster, topic, "c") == (first, True), "and that one's the one before"
    cluster.time += WINDOW_S - 2
    cluster.wall_off_ms = {}
    later, known = found(cluster, topic, "a")
    assert (later, known) == (first, True)
    cluster.time += 2
    later, known = found(cluster, topic, "a")
    assert (later.k, known) == (first.k + 2, False)


def test_one_replica_that_knows_is_enough_and_is_completed_by_the_next_publish() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    cluster.drop = lambda sender, to, message: isinstance(message, Store) and to != "b"
    cluster.submit("a", Publish(cluster.batch(topic, first, SEQ, [b"x"])))
    cluster.drop = lambda sender, to, message: False
    assert found(cluster, topic, "c") == (first, True)
    assert isinstance(published(cluster, topic, first, "c"), PublishReply)
    other = published(cluster, topic, first, "b", b"y")
    assert isinstance(other, Failed)
    assert other.code == Code.CONFLICT


def test_a_name_is_asked_of_a_majority_and_outlasts_a_disk() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    published(cluster, topic, first)
    wipe(cluster, "c")
    cluster.advance(70)
    assert found(cluster, topic, "c")[0] == first
    cluster.drop = lambda sender, to, message: sender != to
    key = cluster.submit("c", FindName(PartitionId(topic.id, 0), WINDOW_S, SLOT, SEQ + 1))
    cluster.advance(6)
    assert cluster.replies[key].code == Code.TOO_FEW_REPLICAS  # type: ignore[union-attr]


def test_an_acked_message_is_known_by_its_name_until_its_window_is_past_and_then_closed() -> None:
    cluster = Cluster(session_idle=1.0)
    topic = cluster.topic()
    at_a_border(cluster)
    first, _ = found(cluster, topic)
    published(cluster, topic, first)
    cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch()))))
    cluster.advance(20)
    replica = next(iter(cluster.nodes["a"].replicas.values()))
    assert not replica.batches.stored, "its payload is reclaimed"
    assert found(cluster, topic, "b") == (first, True)
    assert first not in replica.batches.closed
    cluster.wall_off_ms = {"a": 4_000_000}
    cluster.advance(10)
    assert first not in replica.batches.closed, "one clock alone closes nothing"
    cluster.wall_off_ms = dict.fromkeys("abc", 4_000_000)
    cluster.advance(20)
    assert all(
        first in replica.batches.closed
        for core in cluster.nodes.values()
        for replica in core.replicas.values()
    )
    late = published(cluster, topic, first)
    assert isinstance(late, Failed)
    assert late.code == Code.SESSION_CLOSED


def test_a_name_for_the_life_of_its_topic_is_never_closed() -> None:
    cluster = Cluster(session_idle=1.0)
    topic = cluster.topic()
    for_good = ProducerId(NAMED, 0, SLOT, 0)
    published(cluster, topic, for_good)
    cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch()))))
    cluster.advance(30)
    assert isinstance(published(cluster, topic, for_good, "b"), PublishReply)
    assert receipts(cluster.ask("c", fetch())) == ()


def test_a_name_whose_payload_is_absent_is_known() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    for core in cluster.nodes.values():
        replica = next(iter(core.replicas.values()))
        replica.batches.note_offered("b", (Span(first, SEQ, SEQ + 1),), cluster.now)
    assert found(cluster, topic, "b") == (first, True)

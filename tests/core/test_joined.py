"""Small publishes join: all of one step go as one STORE of many batches (docs/protocol.md, PUBLISH)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect, MemoryFull, Request, Send
from quorumq.core.values import limits
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from tests.core.cluster import Cluster
from tests.core.steps import check_failed, fetch, receipts


class Watched(Cluster):
    """Notes the STOREs and STOREDs that nodes send each other, and counts appends."""

    def __init__(self, nodes: int = 3) -> None:
        self.stores: list[m.Store] = []
        self.answers: list[m.StoreReply] = []
        super().__init__(nodes)

    def send(self, sender: str, to: str, message: object) -> None:
        if isinstance(message, m.Store) and message.round and to == max(self.nodes):
            self.stores.append(message)
        if isinstance(message, m.StoreReply):
            self.answers.append(message)
        super().send(sender, to, message)

    def together(self, node: str, *requests: m.Publish) -> list[object]:
        """Send these requests in one turn of the loop; return their answers."""
        keys = range(self.keys + 1, self.keys + 1 + len(requests))
        self.keys += len(requests)
        self.drivers[node].feed(*[Request(key, it) for key, it in zip(keys, requests, strict=True)])
        self.run()
        return [self.replies.get(key) for key in keys]


def sessions(cluster: Cluster, count: int) -> list[ProducerId]:
    return [cluster.ask("a", m.OpenSession()).producer_id for _ in range(count)]  # type: ignore[union-attr]


def one(
    cluster: Cluster, topic: Topic, producer_id: ProducerId, seq: int = 0, partition: int = 0, **more: int
) -> m.Publish:
    return m.Publish(cluster.batch(topic, producer_id, seq, [b"work"], partition, **more))


def test_publishes_of_one_step_are_one_store_one_append_and_one_answer() -> None:
    cluster = Watched()
    topic = cluster.topic(partitions=4)
    producer_ids = sessions(cluster, 40)
    before = {name: len(cluster.journals[name]) for name in "abc"}
    publishes = [
        one(cluster, topic, producer_id, partition=at % 4) for at, producer_id in enumerate(producer_ids)
    ]
    assert cluster.together("b", *publishes) == [m.PublishReply(2)] * 40
    assert [len(store.parts) for store in cluster.stores] == [40]
    assert len(cluster.answers) == 2
    assert all(len(cluster.journals[name]) - before[name] == 40 for name in "abc")
    got = receipts(cluster.ask("c", fetch(wait=0.0, most=100)))
    assert {named.receipt.span.producer_id for named in got} == set(producer_ids)


def test_each_batch_keeps_its_own_delay() -> None:
    cluster = Watched()
    topic = cluster.topic()
    late, now = sessions(cluster, 2)
    assert (
        cluster.together("a", one(cluster, topic, late, delay_ms=60_000), one(cluster, topic, now))
        == [m.PublishReply(2)] * 2
    )
    assert [it.receipt.span.producer_id for it in receipts(cluster.ask("b", fetch(wait=0.0)))] == [now]


def test_a_conflict_a_closed_session_and_a_missing_partition_refuse_themselves_alone() -> None:
    cluster = Watched()
    topic = cluster.topic(partitions=1)
    clash, closed, fine, astray = sessions(cluster, 4)
    cluster.ask("a", one(cluster, topic, clash))
    cluster.ask("a", m.CloseSession(closed, (PartitionId(topic.id, 0),)))
    cluster.advance(60.0)
    other = m.Publish(cluster.batch(topic, clash, 0, [b"other bytes"]))
    nowhere = one(cluster, topic, astray, partition=7)
    answers = cluster.together("b", other, one(cluster, topic, closed), nowhere, one(cluster, topic, fine))
    assert [getattr(answer, "code", answer) for answer in answers] == [
        "conflict",
        "session-closed",
        "not-found",
        m.PublishReply(2),
    ]
    assert [len(store.parts) for store in cluster.stores[-1:]] == [3]


def test_a_message_is_never_twice_in_one_store() -> None:
    """Both are answered, the second one from the first one's batch."""
    cluster = Watched()
    topic = cluster.topic()
    first, second = sessions(cluster, 2)
    again = one(cluster, topic, first)
    assert cluster.together("a", again, again, one(cluster, topic, second)) == [m.PublishReply(2)] * 3
    assert [len(store.parts) for store in cluster.stores] == [1, 2]
    for store in cluster.stores:
        spans = [span for part in store.parts for span in part.batch.header.spans]
        assert len(spans) == len(set(spans))


def test_batches_of_one_producer_join_in_their_order() -> None:
    cluster = Watched()
    topic = cluster.topic()
    (producer_id,) = sessions(cluster, 1)
    publishes = [one(cluster, topic, producer_id, seq) for seq in range(5)]
    assert cluster.together("a", *publishes) == [m.PublishReply(2)] * 5
    assert [len(store.parts) for store in cluster.stores] == [5]


@pytest.mark.parametrize("limit", ["STORE_BATCHES_MAX", "STORE_BYTES_MAX"])
def test_a_store_is_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Watched()
    topic = cluster.topic()
    publishes = [one(cluster, topic, producer_id) for producer_id in sessions(cluster, 10)]
    size = len(publishes[0].batch.raw) + len(publishes[0].batch.body)
    monkeypatch.setattr(limits, limit, {"STORE_BATCHES_MAX": 4, "STORE_BYTES_MAX": 4 * size}[limit])
    assert cluster.together("a", *publishes) == [m.PublishReply(2)] * 10
    assert [len(store.parts) for store in cluster.stores] == [4, 4, 2]


def test_a_node_that_does_not_know_a_topic_is_told_of_it_and_stores_all() -> None:
    cluster = Watched()
    known, missed = cluster.topic(), cluster.topic("missed")
    first, second = sessions(cluster, 2)
    catalogue = cluster.nodes["c"].catalogue
    del catalogue.topics[missed.id], catalogue.names["missed"], catalogue.living["missed"]
    catalogue.sums.replace(missed, None)
    cluster.nodes["c"].replicas.pop(PartitionId(missed.id, 0))
    cluster.kill("b")
    assert (
        cluster.together("a", one(cluster, known, first), one(cluster, missed, second))
        == [m.PublishReply(2)] * 2
    )
    assert all(replica.batches.stored for replica in cluster.nodes["c"].replicas.values())
    assert len(cluster.nodes["c"].replicas) == 2


def test_a_refusal_of_a_replica_is_counted_by_batch() -> None:
    """b is short of memory: it confirms the batch that it has and refuses the new one. c is away."""
    cluster = Watched()
    topic = cluster.topic()
    here, new = sessions(cluster, 2)
    cluster.ask("a", one(cluster, topic, here))
    cluster.kill("c")
    cluster.feed("b", MemoryFull("too much"))
    again, fresh = cluster.together("a", one(cluster, topic, here), one(cluster, topic, new))
    assert again == m.PublishReply(2)
    check_failed(fresh, "outcome-unknown", "b: too much")


def test_a_topic_that_is_deleted_ends_its_own_publishes_and_no_others() -> None:
    cluster = Watched()
    stays, goes = cluster.topic(), cluster.topic("gone")
    first, second = sessions(cluster, 2)
    cluster.drop = lambda sender, to, message: isinstance(message, m.StoreReply)
    assert cluster.together("a", one(cluster, stays, first), one(cluster, goes, second)) == [None, None]
    keys = [cluster.keys - 1, cluster.keys]
    cluster.ask("a", m.DeleteTopic("gone", goes.id))
    assert keys[0] not in cluster.replies
    assert cluster.replies[keys[1]].code == "not-found"  # type: ignore[union-attr]
    cluster.hear_all(10.0)
    assert cluster.replies[keys[0]].code == "outcome-unknown"  # type: ignore[union-attr]
    assert not cluster.nodes["a"].context.rounds


def test_without_a_majority_nothing_is_sent_for_any_of_them() -> None:
    cluster = Watched()
    topic = cluster.topic()
    producer_ids = sessions(cluster, 3)
    cluster.kill("bc")
    answers = cluster.together("a", *[one(cluster, topic, producer_id) for producer_id in producer_ids])
    assert [answer.code for answer in answers] == ["not-stored"] * 3  # type: ignore[attr-defined]
    assert not cluster.nodes["a"].context.rounds
    assert not cluster.nodes["a"].context.requests


def test_topics_of_other_replica_sets_have_stores_of_their_own() -> None:
    cluster = Watched(5)
    topic = cluster.topic(partitions=8)
    producer_ids = sessions(cluster, 24)
    publishes = [
        one(cluster, topic, producer_id, partition=at % 8) for at, producer_id in enumerate(producer_ids)
    ]
    sent: list[Effect] = []
    core = cluster.nodes["a"]
    sent = core.step([Request(1000 + at, it) for at, it in enumerate(publishes)], cluster.now, cluster.rng)
    stores = {
        id(it.message): it.message for it in sent if isinstance(it, Send) and isinstance(it.message, m.Store)
    }
    for store in stores.values():
        sets = {frozenset(topic.replicas[part.batch.header.partition.number]) for part in store.parts}
        assert len(sets) == 1
    assert len(stores) <= len({frozenset(members) for members in topic.replicas})


def test_a_slot_that_is_new_refuses_its_own_batches_of_a_store_alone() -> None:
    """The whole STORE was refused, so other partitions got their messages by anti-entropy, seconds later."""
    cluster = Watched(4)
    topic = cluster.topic(partitions=16)
    stays = 0
    moves = next(at for at in range(16) if set(topic.replicas[at]) != set(topic.replicas[stays]))
    (source,) = set(topic.replicas[moves]) - set(topic.replicas[stays])
    (to,) = set(topic.replicas[stays]) - set(topic.replicas[moves])
    cluster.drop = lambda sender, receiver, message: isinstance(message, m.ResyncReply)
    cluster.ask(source, m.MovePartition("jobs", moves, source, to), 3.0, of=m.TopicReply)
    producer_ids = sessions(cluster, 2)
    replies = cluster.together(
        min(set(topic.replicas[stays]) - {to}),
        *[
            one(cluster, topic, each, partition=at)
            for at, each in zip((stays, moves), producer_ids, strict=True)
        ],
    )
    assert replies == [m.PublishReply(2)] * 2
    kept = {
        number: cluster.nodes[to].replicas[PartitionId(topic.id, number)].batches for number in (stays, moves)
    }
    assert [span.producer_id for span in kept[stays].present.items()] == producer_ids[:1]
    assert not kept[moves].present.runs


def test_a_store_that_is_repeated_after_a_move_has_the_epochs_that_its_set_was_taken_from() -> None:
    """The moved partition's batch went to the set before under the new epoch. Its answer has the starts of the new set:
    one start was taken for that of another node, whose words counted no more, for ever."""
    cluster = Watched(4)
    cluster.crash("d", 70.0)
    topic = cluster.topic(partitions=16)
    stays, moves = [at for at in range(16) if "d" not in topic.replicas[at]][:2]
    one_id, other_id = sessions(cluster, 2)
    registers = (m.PutTopic, m.SyncRegisters)
    cluster.drop = lambda sender, receiver, message: receiver == "b" and isinstance(message, registers)
    cluster.ask("c", m.MovePartition("jobs", moves, "a", "d"), of=m.TopicReply)
    assert cluster.nodes["b"].topics[topic.id].epoch_of(moves) == 1
    cluster.drop = lambda sender, receiver, message: sender == "a" and isinstance(message, m.StoreReply)
    moved = one(cluster, topic, one_id, partition=moves)
    cluster.together("b", moved, one(cluster, topic, other_id, partition=stays))
    cluster.advance(1.0)
    starts = {name: core.state.incarnation for name, core in cluster.nodes.items()}
    for core in cluster.nodes.values():
        assert {name: starts[name] for name in core.state.known} == core.state.known

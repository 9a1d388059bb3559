"""Moves and raises towards nodes whose disk or memory is full (docs/layouts.md, LAYOUTS 13 and RAISE 1)."""

from __future__ import annotations

from functools import partial

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import DiskFull, Event, MemoryFull
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Topic
from tests.core import layouts
from tests.core.cluster import Cluster
from tests.core.layouts import fetched, is_voter, move, publish
from tests.core.steps import check_failed

made = partial(layouts.made, hold_time_max=2.0)


def refusal(reply: m.ClientReply) -> str:
    check_failed(reply, Code.STORAGE_FULL)
    return reply.detail


def shown(cluster: Cluster, name: str) -> list[tuple[object, object]]:
    rows = cluster.nodes[name].status(cluster.now)["moves"]
    return [(row["state"], row["waits_for"]) for row in rows]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "full", [DiskFull(Shortage.RESERVE), DiskFull(Shortage.FULL), MemoryFull("node NAME has no memory")]
)
def test_a_move_to_a_full_node_is_refused_by_name_also_as_a_dry_run(full: Event) -> None:
    cluster, topic, members, (new, other) = made()
    if isinstance(full, MemoryFull):
        full = MemoryFull(full.detail.replace("NAME", new))
    publish(cluster, members[0], topic, 0)
    cluster.feed(new, full)
    cluster.advance(1.0)
    for node in (new, other):
        for dry_run in (True, False):
            reply = cluster.ask(node, m.MovePartition("jobs", 0, members[0], new, dry_run))
            assert f"node {new}" in refusal(reply)
    assert cluster.nodes[other].topics[topic.id].layout is None, "nothing was chosen"
    assert isinstance(move(cluster, other, members[0], other), m.TopicReply), "to another node"


@pytest.mark.parametrize("shortage", [Shortage.RESERVE, Shortage.LAST_RESERVE, Shortage.FULL])
def test_a_move_whose_target_fills_up_waits_for_it_and_can_be_undone(shortage: Shortage) -> None:
    cluster, topic, (old,), (new, *_) = made(rf=1, nodes=4)
    publish(cluster, old, topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    assert isinstance(move(cluster, new, old, new), m.TopicReply)
    cluster.advance(0.5)
    cluster.feed(new, DiskFull(shortage))
    cluster.hear_all(12.0)
    assert shown(cluster, old) == [("leaving", [new])]
    assert ("full", []) in shown(cluster, new)
    cluster.feed(old, DiskFull(Shortage.RESERVE))
    cluster.advance(1.0)
    assert isinstance(move(cluster, old, new, old), m.TopicReply), "it has the payload already"
    cluster.advance(12.0)
    assert is_voter(cluster, old, topic)
    assert not any(shown(cluster, name) for name in cluster.names)
    cluster.feed(old, DiskFull(Shortage.NONE))
    assert sum(part.receipt.span.size for part in fetched(cluster, old)) == 3


def test_a_new_topic_avoids_full_nodes() -> None:
    cluster = Cluster(5)
    for name in "de":
        cluster.feed(name, DiskFull(Shortage.RESERVE))
    cluster.advance(1.0)
    for number in range(8):
        topic = cluster.topic(f"t{number}", partitions=3)
        assert all(sorted(members) == ["a", "b", "c"] for members in topic.replicas), topic.replicas
    more = cluster.ask("a", m.AlterTopic("t0", partitions=5), of=m.TopicReply)
    assert len(more.topic.replicas) == 5
    assert len(cluster.topic("wide", rf=5).replicas[0]) == 5, "three of five can store"
    cluster.feed("c", DiskFull(Shortage.RESERVE))
    cluster.advance(1.0)
    detail = refusal(cluster.ask("a", m.CreateTopic("wider", rf=5)))
    assert "rf is 5" in detail
    assert "node e has only its reserve" in detail
    assert sorted(cluster.topic("one", rf=1).replicas[0]) <= ["b"]
    for name in "cde":
        cluster.feed(name, DiskFull(Shortage.NONE))
    cluster.advance(1.0)
    assert len({node for n in range(8) for node in cluster.topic(f"n{n}").replicas[0]}) == 5
    assert isinstance(cluster.ask("a", m.DeleteTopic("t0", topic_named(cluster, "t0"))), m.TopicReply)


def topic_named(cluster: Cluster, name: str) -> bytes:
    return cluster.nodes["a"].catalogue.names[name]


def learners(cluster: Cluster, topic: Topic) -> tuple[str, ...]:
    return cluster.nodes["a"].topics[topic.id].learners_of(0)


def test_a_raise_copies_to_nodes_with_space_and_is_refused_if_they_are_too_few() -> None:
    cluster, topic, (old,), (one, two, three) = made(rf=1, nodes=4)
    publish(cluster, old, topic, 0)
    cluster.feed(one, DiskFull(Shortage.RESERVE))
    cluster.feed(two, DiskFull(Shortage.LAST_RESERVE))
    cluster.advance(1.0)
    detail = refusal(cluster.ask(old, m.AlterTopic("jobs", rf=3)))
    assert f"node {one} has only its reserve" in detail
    assert f"node {two} has only its last reserve" in detail
    cluster.feed(two, DiskFull(Shortage.NONE))
    cluster.advance(1.0)
    assert isinstance(cluster.ask(old, m.AlterTopic("jobs", rf=3)), m.TopicReply)
    assert sorted(learners(cluster, topic)) == sorted([two, three])
    cluster.feed(two, DiskFull(Shortage.RESERVE))
    cluster.advance(1.0)
    assert isinstance(cluster.ask(old, m.AlterTopic("jobs", rf=3)), m.TopicReply), "it is under way"
    cluster.feed(two, DiskFull(Shortage.NONE))
    cluster.advance(60.0)
    assert all(is_voter(cluster, name, topic) for name in (old, two, three))


def test_a_raise_whose_learner_fills_up_waits_for_it_and_can_be_taken_back() -> None:
    cluster, topic, (old,), _ = made(rf=1, nodes=3)
    publish(cluster, old, topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    assert isinstance(cluster.ask(old, m.AlterTopic("jobs", rf=3)), m.TopicReply)
    cluster.advance(5.0)
    full, other = learners(cluster, topic)
    cluster.feed(full, DiskFull(Shortage.RESERVE))
    cluster.hear_all(20.0)
    assert shown(cluster, old) == [("copying", [full])]
    assert shown(cluster, full) == [("full", [])]
    assert shown(cluster, other) == []
    assert isinstance(cluster.ask(old, m.AlterTopic("jobs", rf=1)), m.TopicReply)
    cluster.advance(5.0)
    assert not any(shown(cluster, name) for name in cluster.names)

"""Nodes that were removed from a cluster hold nothing up: no deletion, no new group, no resync waits for them."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from tests.core.growing import GrowingCluster
from tests.core.network import wipe


def change(cluster: GrowingCluster, name: str, *changes: str) -> None:
    for each in changes:
        cluster.ask("a", m.ChangeMembers(each, name), of=m.ChangeMembersReply)


def on(cluster: GrowingCluster, nodes: str, rf: int) -> Topic:
    """Make a topic whose only partition is on these nodes, and perhaps others."""
    for number in range(200):
        topic = cluster.topic(f"t{number}", rf=rf)
        if all(node in topic.replicas[0] for node in nodes):
            return topic
        cluster.ask("a", m.DeleteTopic(topic.name, topic.id))
    raise AssertionError("no topic is on these nodes")


def deleted_while_down(nodes: str, rf: int, removed: str) -> tuple[GrowingCluster, m.DeleteTopic]:
    """Delete a topic on these nodes while all of them are down, and remove some of them."""
    cluster = GrowingCluster(3)
    for name in "def":
        cluster.add(name)
    topic = on(cluster, nodes, rf)
    cluster.kill(nodes)
    delete = m.DeleteTopic(topic.name, topic.id)
    assert isinstance(cluster.ask("a", delete, 6.0), m.Failed)
    for name in removed:
        change(cluster, name, "drain", "remove")
    return cluster, delete


@pytest.mark.parametrize(("nodes", "rf"), [("d", 1), ("de", 3), ("def", 3)])
def test_a_deletion_is_completed_though_nodes_of_a_set_were_removed_meanwhile(nodes: str, rf: int) -> None:
    """They know nothing of it. A node that knows the deletion lets a drained node leave."""
    cluster, delete = deleted_while_down(nodes, rf, removed=nodes)
    assert isinstance(cluster.ask("b", delete, 6.0), m.TopicReply)
    assert cluster.topic(delete.name).deletions == 1


def test_a_deletion_waits_for_the_nodes_of_a_set_that_are_members() -> None:
    """Two of three were removed: the third alone is asked, and has to answer."""
    cluster, delete = deleted_while_down("def", 3, removed="de")
    assert isinstance(cluster.ask("a", delete, 6.0), m.Failed)
    cluster.start("f")
    assert isinstance(cluster.ask("a", delete, 6.0), m.TopicReply)


def moved_on() -> tuple[GrowingCluster, Topic]:
    """The only slot goes from b to f to a: b, down, is still a source; f was released, and removed."""
    cluster = GrowingCluster(5)
    topic = on(cluster, "b", 1)
    cluster.add("f")
    batch = cluster.batch(topic, ProducerId("x", 1, 1, 1), 0, [b"1", b"2"])
    assert isinstance(cluster.ask("b", m.Publish(batch)), m.PublishReply)
    for source, to in ("bf", "fa"):
        cluster.ask("c", m.MovePartition(topic.name, 0, source, to), of=m.TopicReply)
        cluster.advance(0.1)
        cluster.kill("b") if to == "f" else cluster.advance(12.0)
    change(cluster, "f", "drain", "remove")
    placement = cluster.nodes["a"].topics[topic.id].placement(0)
    assert placement is not None
    assert (placement.nodes_before, placement.sources) == (("f",), ("b",))
    return cluster, topic


def test_a_group_is_made_though_the_set_before_was_removed() -> None:
    cluster, topic = moved_on()
    reply = cluster.ask("c", m.SetGroup(topic.name, "g"), 6.0)
    assert isinstance(reply, m.GroupReply), reply


def test_a_wiped_node_does_not_wait_for_a_set_before_that_was_removed() -> None:
    cluster, topic = moved_on()
    wipe(cluster, "a", 12.0)
    assert cluster.nodes["a"].state.trusted
    assert cluster.nodes["a"].replicas[PartitionId(topic.id, 0)].is_trusted


def test_a_set_needs_a_majority_or_all_that_are_members() -> None:
    round_ = Round(1, ("a", "b", "c", "d"))
    cases = [
        ("ab", "abc", "", True),
        ("a", "abc", "", False),
        ("a", "abc", "c", False),
        ("ab", "abc", "c", True),
    ]
    cases += [("a", "abc", "bc", True), ("", "abc", "bc", False), ("", "c", "c", True), ("", "e", "", False)]
    for answered, nodes, gone, enough in cases:
        bits = round_.bits_of(answered)
        assert round_.is_majority_of_each(bits, [tuple(nodes)], tuple(gone)) is enough, (
            answered,
            nodes,
            gone,
        )

"""A node that carries a move is killed after each of its messages: others finish the move, or it is undone."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from tests.core.cluster import Cluster

ME = ProducerId("x", 1, 1, 1)
ROLES = ("outsider", "stays", "leaves", "new")


class Killed:
    """Kill of a node before a given message of it: neither that one nor a later one is sent, or written.

    Args:
        number: count of messages that are sent.
        torn: True if the records since the last message that is sent are lost, too.
    """

    def __init__(self, cluster: Cluster, node: str, number: int, *, torn: bool) -> None:
        self.cluster, self.node, self.number, self.torn = cluster, node, number, torn
        self.sent = 0
        self.written = 0
        cluster.drop = self.drop

    def drop(self, sender: str, to: str, message: object) -> bool:
        if sender != self.node:
            return False
        self.sent += 1
        if self.sent <= self.number + (not self.torn):
            self.written = len(self.cluster.journals[self.node])
        return self.sent > self.number

    def is_dead(self) -> bool:
        """End the node; return False if it had sent no more messages than the given number."""
        if self.sent <= self.number:
            return False
        self.cluster.hear_all()
        del self.cluster.journals[self.node][self.written :]
        self.cluster.kill(self.node)
        return True


def begun() -> tuple[Cluster, Topic, dict[str, str]]:
    """A cluster with a topic and three messages, and its nodes by their part in a move."""
    cluster = Cluster(5, hold_time_max=1.0, heartbeat=2.0)
    topic = cluster.topic()
    old, stays, _ = topic.replicas[0]
    new, outsider = (name for name in cluster.names if name not in topic.replicas[0])
    assert isinstance(cluster.ask(stays, m.Publish(cluster.batch(topic, ME, 0, [b"x"] * 3))), m.PublishReply)
    return cluster, topic, {"leaves": old, "stays": stays, "new": new, "outsider": outsider}


def moved(cluster: Cluster, by: str, source: str, to: str) -> Topic:
    """Move the slot as an operator does: again, until it is done."""
    for _ in range(4):
        reply = cluster.ask(by, m.MovePartition("jobs", 0, source, to), 6.0)
        if isinstance(reply, m.TopicReply):
            return reply.topic
    raise AssertionError(f"{reply}")


def cut_short(role: str, number: int, *, torn: bool, undo: bool) -> bool:
    """Kill the node with this part that was asked for the move; return False if the move was over before."""
    cluster, topic, nodes = begun()
    killed = Killed(cluster, nodes[role], number, torn=torn)
    source, to = nodes["leaves"], nodes["new"]
    cluster.submit(nodes[role], m.MovePartition("jobs", 0, source, to))
    if not killed.is_dead():
        return False
    other = nodes["stays"] if role == "outsider" else nodes["outsider"]
    if role in ("stays", "new") or undo:
        cluster.start(nodes[role])
    register = moved(cluster, other, source, to)
    if undo:
        register = moved(cluster, other, to, source)
    if nodes[role] not in cluster.nodes:
        cluster.start(nodes[role])
    cluster.advance(14.0)
    settled(cluster, topic, register)
    return True


def settled(cluster: Cluster, topic: Topic, register: Topic) -> None:
    """Assert that all nodes agree, that each slot is trusted and has the messages, and that no source is left."""
    partition = PartitionId(topic.id, 0)
    for name, core in cluster.nodes.items():
        known = core.topics[topic.id]
        placement = known.placement(0)
        assert known.replicas == register.replicas
        assert known.next_layout is None
        assert placement is None or not placement.sources
        replica = core.replicas.get(partition)
        assert (replica is not None) == (name in register.replicas[0])
        if replica is not None:
            assert replica.is_trusted
            assert replica.batches.present.messages == 3


@pytest.mark.parametrize(("role", "number"), [("outsider", 1), ("leaves", 12)])
def test_a_move_outlives_its_coordinator(role: str, number: int) -> None:
    assert cut_short(role, number, torn=False, undo=False)


def released_late(number: int, *, torn: bool) -> bool:
    """Kill the source, after a move, before a given message of it; return False if it was released before."""
    cluster, topic, nodes = begun()
    reply = cluster.ask(nodes["outsider"], m.MovePartition("jobs", 0, nodes["leaves"], nodes["new"]))
    assert isinstance(reply, m.TopicReply)
    killed = Killed(cluster, nodes["leaves"], number, torn=torn)
    source = cluster.nodes[nodes["leaves"]].context
    for _ in range(20):
        cluster.advance(1.0)
        if not source.sources and not source.requests:
            break
    if not killed.is_dead():
        return False
    cluster.advance(3.0)
    cluster.start(nodes["leaves"], 14.0)
    settled(cluster, topic, reply.topic)
    return True


@pytest.mark.soak
def test_a_release_outlives_its_source_at_each_message() -> None:
    number = 0
    while released_late(number, torn=number % 2 > 0):
        number += 1
    assert number > 8


@pytest.mark.soak
@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("role", ROLES)
def test_a_move_outlives_its_coordinator_at_each_message(role: str, undo: bool) -> None:
    number = 0
    while cut_short(role, number, torn=number % 2 > 0, undo=undo):
        number += 1
    assert number > 8, "the move was not carried out by this node"

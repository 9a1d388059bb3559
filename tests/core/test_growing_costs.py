"""Frames and writes of a message before, during and after moves of its partition: as many as with three nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quorumq.core import messages as m
from quorumq.core.messages.effects import Done, Effect, Persist
from quorumq.core.values.types import NodeId, PartitionId, Topic
from tests.core.growing import GrowingCluster
from tests.core.layouts import acked, fetched, is_voter, publish

COUNT = 10
"""Messages of each measurement."""


class Cost(NamedTuple):
    """Frames between nodes of one message that is published, delivered and acked, and writes that end in an fsync."""

    frames: float
    writes: float


class Counted(GrowingCluster):
    """A cluster that counts frames of quorum requests, and writes."""

    frames = writes = 0

    def send(self, sender: NodeId, to: NodeId, message: object) -> None:
        self.frames += isinstance(message, m.QUORUM_REQUESTS + m.QUORUM_REPLIES + (m.Release, m.ReleaseReply))
        super().send(sender, to, message)

    def carry_out(self, name: NodeId, effects: Iterable[Effect | Done]) -> None:
        effects = list(effects)
        self.writes += sum(isinstance(effect, Persist) and bool(effect.records) for effect in effects)
        super().carry_out(name, effects)

    def cost(self, node: NodeId, topic: Topic, first: int) -> Cost:
        """Return the cost of messages that are published, delivered and acked one by one, through a node."""
        self.frames = self.writes = 0
        for number in range(first, first + COUNT):
            publish(self, node, topic, number, 1)
            assert acked(self, node, fetched(self, node)) == ["acked"]
        return Cost(self.frames / COUNT, self.writes / COUNT)


def test_a_message_costs_as_much_while_its_partition_moves_and_afterwards() -> None:
    """A new slot that does not vote yet is asked, too: its refusals take the place of votes."""
    cluster = Counted(3, hold_time_max=2.0, heartbeat=30.0, sync_interval=30.0)
    topic = cluster.topic()
    cluster.ask("a", m.SetGroup("jobs", "g"))
    before = cluster.cost("b", topic, 0)
    for name in "de":
        cluster.add(name)
    grown = cluster.cost("b", topic, COUNT)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    cluster.ask("b", m.MovePartition("jobs", 0, "a", "d"), 3.0, of=m.TopicReply)
    assert not is_voter(cluster, "d", topic)
    during = cluster.cost("b", topic, 2 * COUNT)
    cluster.hear_all(10.0)
    assert is_voter(cluster, "d", topic)
    assert "a" not in cluster.nodes["b"].topics[topic.id].replicas[0]
    after = cluster.cost("b", topic, 3 * COUNT)
    elsewhere = cluster.cost("d", topic, 4 * COUNT)
    steady = (before, grown, after, elsewhere)
    assert max(cost.frames for cost in steady) <= 12.5
    assert during.frames <= 14.5
    assert max(cost.writes for cost in (*steady, during)) <= 10.5
    assert PartitionId(topic.id, 0) not in cluster.nodes["a"].replicas

"""Requests and looks of tests about replica sets that change."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from tests.core.cluster import Cluster
from tests.core.steps import fetch, outcomes, receipts

ME = ProducerId("x", 1, 1, 1)


def made(rf: int = 3, nodes: int = 5, **settings: object) -> tuple[Cluster, Topic, list[str], list[str]]:
    """Return a cluster with a topic of one partition: (cluster, topic, its nodes, the others)."""
    cluster = Cluster(nodes, **settings)  # type: ignore[arg-type]
    topic = cluster.topic(rf=rf)
    members = list(topic.replicas[0])
    return cluster, topic, members, [name for name in cluster.names if name not in members]


def move(cluster: Cluster, node: str, source: str, to: str, within: float = 0.0) -> m.ClientReply:
    """Have a node's slot of the only partition go to another node."""
    return cluster.ask(node, m.MovePartition("jobs", 0, source, to), within)


def publish(cluster: Cluster, node: str, topic: Topic, first: int, count: int = 3) -> None:
    payloads = [b"%d" % (first + at) for at in range(count)]
    cluster.ask(node, m.Publish(cluster.batch(topic, ME, first, payloads)), of=m.PublishReply)


def fetched(cluster: Cluster, node: str, most: int = 10) -> tuple[m.ReceiptPart, ...]:
    """Return the receipts that a waiting FETCH gets."""
    return receipts(cluster.ask(node, fetch(most=most, hold_time=1.0, wait=0.3), 2.0))


def acked(cluster: Cluster, node: str, got: tuple[m.ReceiptPart, ...]) -> list[str]:
    return outcomes(cluster.ask(node, m.AckRequest(got)))


def is_voter(cluster: Cluster, name: str, topic: Topic) -> bool:
    """Return True if the node is trusted, for its directory and in the partition's set."""
    replica = cluster.nodes[name].replicas.get(PartitionId(topic.id, 0))
    return replica is not None and replica.is_trusted and cluster.nodes[name].state.trusted

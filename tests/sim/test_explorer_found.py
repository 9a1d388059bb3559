"""Findings of the explorer in the core, each as the smallest run that shows it."""

from __future__ import annotations

from quorumq.core.messages import Envelope, Fetch, FetchReply, OpenSession, Publish, RemoteFetchReply
from quorumq.core.messages.effects import Received
from quorumq.core.values.types import PartitionId
from tests.core.cluster import Cluster


def test_a_doubled_answer_of_another_node_gives_nothing_back() -> None:
    """`explore --scenario remote`: the second copy of a RemoteFetchReply released the delivery of the first copy."""
    cluster = Cluster(4)
    topic = cluster.topic()
    members = topic.replicas[0]
    outsider = next(name for name in cluster.names if name not in members)
    session = cluster.ask(members[0], OpenSession())
    cluster.ask(members[0], Publish(cluster.batch(topic, session.producer_id, 0, [b"work"])))
    answers: list[tuple[str, RemoteFetchReply]] = []

    def listen(sender: str, to: str, message: object) -> bool:
        if isinstance(message, RemoteFetchReply):
            answers.append((sender, message))
        return False

    cluster.drop = listen
    fetch = Fetch(("jobs",), "g", 1, 1 << 20, 1, 0.0, 30.0, cluster.now.mono)
    reply = cluster.ask(outsider, fetch)
    assert isinstance(reply, FetchReply)
    assert reply.slices
    ((leg, answer),) = answers

    there, here = cluster.nodes[leg].state.incarnation, cluster.nodes[outsider].state.incarnation
    cluster.feed(outsider, Received(Envelope(leg, there, outsider, here, 0, answer)))

    span = reply.slices[0].deliveries[0].receipt.span
    for member in members:
        view = cluster.nodes[member].replicas[PartitionId(topic.id, 0)].group("g")
        assert view.held(span), f"{member} lost the hold of a live delivery"


def test_an_answer_that_comes_after_its_leg_was_called_off_is_given_back_once() -> None:
    cluster = Cluster(4)
    topic = cluster.topic()
    members = topic.replicas[0]
    outsider = next(name for name in cluster.names if name not in members)
    session = cluster.ask(members[0], OpenSession())
    cluster.ask(members[0], Publish(cluster.batch(topic, session.producer_id, 0, [b"work"])))
    late: list[tuple[str, RemoteFetchReply]] = []

    def hold_back(sender: str, to: str, message: object) -> bool:
        if isinstance(message, RemoteFetchReply):
            late.append((sender, message))
            return True
        return False

    cluster.drop = hold_back
    key = cluster.submit(outsider, Fetch(("jobs",), "g", 1, 1 << 20, 1, 0.0, 30.0, cluster.now.mono))
    cluster.advance(6.0)
    assert key in cluster.replies
    leg, answer = next(item for item in late if item[1].slices)
    there, here = cluster.nodes[leg].state.incarnation, cluster.nodes[outsider].state.incarnation
    cluster.feed(outsider, Received(Envelope(leg, there, outsider, here, 0, answer)))

    span = answer.slices[0].deliveries[0].receipt.span
    for member in members:
        view = cluster.nodes[member].replicas[PartitionId(topic.id, 0)].group("g")
        held = [lease for _, lease in view.held(span)]
        assert all(lease.owner != answer.slices[0].deliveries[0].receipt.owner for lease in held)
    assert answer.round not in cluster.nodes[outsider].context.called_off

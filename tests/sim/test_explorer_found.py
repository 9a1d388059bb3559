"""Findings of the explorer in the core, each as the smallest run that shows it."""

from __future__ import annotations

from quorumq.core.messages import RemoteFetchReply
from quorumq.core.partition.replica import Replica
from tests.core.cluster import Cluster
from tests.core.network import hand_over, held_back
from tests.core.steps import fetch, published, receipts


def with_an_outsider() -> tuple[Cluster, str, list[Replica]]:
    """Return a cluster with one message, a node without a replica of it, and the replicas."""
    cluster = Cluster(4)
    published(cluster, 1)
    replicas = {name: replica for name, core in cluster.nodes.items() for replica in core.replicas.values()}
    (outsider,) = cluster.nodes.keys() - replicas.keys()
    return cluster, outsider, [*replicas.values()]


def test_a_doubled_answer_of_another_node_gives_nothing_back() -> None:
    """`explore --scenario remote`: the second copy of a RemoteFetchReply released the delivery of the first copy."""
    cluster, outsider, replicas = with_an_outsider()
    answers: list[tuple[str, str, object]] = []

    def listen(*message: object) -> bool:
        if isinstance(message[2], RemoteFetchReply):
            answers.append(message)
        return False

    cluster.drop = listen
    ((receipt, _),) = receipts(cluster.ask(outsider, fetch()))
    ((*answer,),) = answers
    hand_over(cluster, *answer)
    for replica in replicas:
        assert replica.group("g").held(receipt.span), "a live delivery lost its hold"


def test_an_answer_that_comes_after_its_leg_was_called_off_is_given_back_once() -> None:
    cluster, outsider, replicas = with_an_outsider()
    late = held_back(cluster, lambda sender, to, message: isinstance(message, RemoteFetchReply))
    key = cluster.submit(outsider, fetch())
    cluster.advance(6.0)
    assert key in cluster.replies
    leg, to, answer = next(item for item in late if item[2].slices)
    hand_over(cluster, leg, to, answer)
    (delivery,) = answer.slices[0].deliveries
    for replica in replicas:
        held = [lease for _, lease in replica.group("g").held(delivery.receipt.span)]
        assert all(lease.owner != delivery.receipt.owner for lease in held)
    assert answer.round not in cluster.nodes[outsider].context.called_off

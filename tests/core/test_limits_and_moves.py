"""A limit of deliveries a second beside moves: it is kept (docs/registers.md, LIMIT), and the group goes on."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.topics import with_layout
from quorumq.core.requests import merging
from quorumq.core.requests.moving import numbered
from quorumq.core.values.types import Layout, Placement, ReplicaSlot
from tests.core.cluster import Cluster
from tests.core.steps import published

RF_SHARE = 1.5 / 0.98
"""Deliveries for each token with three replicas, as LIMIT says."""


def limited(per_second: float, burst: int, rf: int) -> tuple[Cluster, list[str], list[str]]:
    """A cluster of five nodes with a backlog and a limited group: (cluster, the topic's nodes, the others)."""
    cluster = Cluster(5, checks=False)
    topic, _ = published(cluster, 300, rf)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    cluster.ask("a", m.LimitGroup("jobs", "g", per_second, burst))
    members = list(topic.replicas[0])
    return cluster, members, [name for name in cluster.names if name not in members]


def taken(cluster: Cluster, node: str) -> int:
    """FETCH through a node, and count the messages that it brings."""
    key = cluster.submit(node, m.Fetch(("jobs",), "g", 20, 1 << 20, 1, 0.0, 30.0, cluster.time))
    cluster.advance(0.02)
    reply = cluster.replies.get(key)
    slices = reply.slices if isinstance(reply, m.FetchReply) else ()
    return sum(each.receipt.span.size for part in slices for each in part.deliveries)


@pytest.mark.parametrize("rf", [1, 3])
def test_a_limit_is_kept_and_the_group_goes_on_beside_moves(rf: int) -> None:
    cluster, members, others = limited(20.0, 2, rf)
    began, got, last = cluster.time, 0, 0
    for step in range(260):
        if step in (20, 40, 60):
            cluster.advance(0.1)
            source, to = members.pop(0), others.pop(0)
            members.append(to)
            others.append(source)
            cluster.ask("a", m.MovePartition("jobs", 0, source, to), of=m.TopicReply)
        came = taken(cluster, cluster.names[step % 5])
        got += came
        last += came if step >= 160 else 0
    seconds = cluster.time - began
    assert got <= (20.0 * seconds + 2) * (RF_SHARE if rf == 3 else 1 / 0.98)
    assert last >= 30, "of 40 that the limit lets through in the last two seconds"


def test_a_node_keeps_a_limit_until_it_has_left() -> None:
    """It hears of the layout, and acts as a member of the set before until that is durable."""
    cluster, (only,), others = limited(0.001, 1, 1)
    core = cluster.nodes[only]
    for bucket in core.state.buckets.values():
        bucket.level = bucket.others = bucket.capacity
    topic = core.topic_named("jobs")
    assert topic is not None
    slots = (ReplicaSlot(others[0], 0),)
    placement = numbered(topic, Placement(0, 0, slots, (), (only,)), 2)
    moved = with_layout(topic, Layout(topic.id, 2, topic.made, (placement,)))
    # Its effects are not carried out: they wait for the disk.
    merging.take_in_topic(core.context, moved, cluster.now)
    assert taken(cluster, only) == 1
    assert taken(cluster, only) == 0

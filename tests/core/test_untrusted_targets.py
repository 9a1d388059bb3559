"""Moves to nodes that do not vote: untrusted ones, those in quarantine, new slots (docs/layouts.md, LAYOUTS 13)."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Topic
from tests.core.cluster import Cluster
from tests.core.layouts import fetched, is_voter, publish
from tests.core.network import hand_over, wipe
from tests.core.steps import check_failed, created, fetch


def made() -> tuple[Cluster, Topic, str, str, str]:
    """A cluster with a topic of one partition and a message: (cluster, topic, two of its nodes, one other)."""
    cluster = Cluster(5)
    topic = cluster.topic()
    source, stays, _ = topic.replicas[0]
    publish(cluster, source, topic, 0)
    return (
        cluster,
        topic,
        source,
        stays,
        next(name for name in cluster.names if name not in topic.replicas[0]),
    )


def test_a_move_to_a_node_that_lost_its_directory_is_refused_until_it_is_trusted() -> None:
    cluster, topic, source, stays, new = made()
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and to == new
    wipe(cluster, new, 1.0)
    assert not cluster.nodes[new].state.trusted
    for dry_run in (True, False):
        refused = cluster.ask(stays, m.MovePartition("jobs", 0, source, new, dry_run))
        check_failed(refused, Code.TOO_FEW_REPLICAS, f"node '{new}' is not trusted yet")
    assert cluster.nodes[stays].topics[topic.id].layout is None, "nothing was chosen"
    cluster.hear_all(4.0)
    move = m.MovePartition("jobs", 0, source, new)
    assert isinstance(cluster.ask(stays, move), m.TopicReply)
    cluster.advance(1.0)
    assert is_voter(cluster, new, topic)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and to == new
    wipe(cluster, new, 1.0)
    assert isinstance(cluster.ask(stays, move), m.TopicReply), "asked again it answers the same"


def test_a_fetch_is_refused_and_gives_all_back_if_its_slot_is_a_new_one_meanwhile() -> None:
    """The slot has moved away and back, and its node hears only of the second move. It does not vote for a while."""
    cluster, topic, late, stays, other = made()
    created(cluster, stays)
    key = cluster.submit(late, fetch(least=4, hold_time=30.0, wait=3.0))
    cluster.drop = lambda sender, to, message: to == late and isinstance(message, m.PutTopic)
    cluster.ask(stays, m.MovePartition("jobs", 0, late, other), of=m.TopicReply)
    back = cluster.ask(stays, m.MovePartition("jobs", 0, other, late), of=m.TopicReply)
    cluster.drop = lambda sender, to, message: to == late and isinstance(message, m.ResyncReply)
    hand_over(cluster, stays, late, m.PutTopic(0, back.topic))
    assert not is_voter(cluster, late, topic)
    cluster.advance(3.0)
    check_failed(cluster.replies[key], Code.TOO_FEW_REPLICAS, "is not trusted yet")
    assert fetched(cluster, stays), "no hold has to run out"


def test_a_slot_moves_to_a_node_in_quarantine() -> None:
    """A new slot has a quarantine of its own, which those end that had it."""
    cluster, topic, source, stays, new = made()
    cluster.crash(new, 1.0)
    assert cluster.nodes[new].state.quarantine_until > cluster.time
    assert isinstance(cluster.ask(stays, m.MovePartition("jobs", 0, source, new)), m.TopicReply)
    cluster.advance(1.0)
    assert is_voter(cluster, new, topic)

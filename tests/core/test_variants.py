"""Promises that were broken once, with other nodes, orders and faults than in the tests of each."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from quorumq.core import messages as m
from tests.core.cluster import Cluster
from tests.core.network import cut, wipe
from tests.core.steps import fetch, opened, outcomes, published, receipts, with_messages


def asked(cluster: Cluster, node: str, request: object, wait: float = 1.0) -> object:
    """Return the reply to a request within that time, or None."""
    key = cluster.submit(node, request)
    cluster.advance(wait)
    return cluster.replies.get(key)


def got(cluster: Cluster, node: str, hold_time: float = 60.0) -> tuple[m.ReceiptPart, ...]:
    """Return the messages that a FETCH through the node brings."""
    reply = asked(cluster, node, fetch(hold_time=hold_time), 0.3)
    return () if isinstance(reply, m.Failed) else receipts(reply)


def again(cluster: Cluster, nodes: str, how: str) -> None:
    """Each of the nodes goes down and starts, one after the other."""
    for node in nodes:
        getattr(cluster, how)(node)
        cluster.start(node, 0.5)


@pytest.mark.parametrize(("nodes", "how"), [("b", "kill"), ("ab", "kill"), ("ba", "stop")])
@pytest.mark.parametrize("opened", ["rewound", "purged", "deleted", "deleted first"])
def test_a_live_hold_outlasts_restarts_and_all_ways_to_reopen(opened: str, nodes: str, how: str) -> None:
    """a1 is live at a and b, and c has not heard of it. a0 is acked late, and the message opened again."""
    cluster = with_messages(1)
    first = got(cluster, "a", 5.0)
    cluster.advance(5.1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold) and to == "c"
    assert got(cluster, "a")
    cluster.hear_all()
    asked(cluster, "b", m.AckRequest(first))
    if opened == "deleted first":
        asked(cluster, "c", m.DeleteGroup("jobs", "g"))
    again(cluster, nodes, how)
    if opened == "purged":
        asked(cluster, "c", m.PurgeRequest("jobs", 0, "g"))
    if opened == "deleted":
        asked(cluster, "c", m.DeleteGroup("jobs", "g"))
    asked(cluster, "c", m.SetGroup("jobs", "g", rewind=not opened.startswith("deleted")))
    for node in "cba":
        assert got(cluster, node) == (), "two live deliveries"


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("lost", ["wiped", "wiped twice", "restored", "restored twice"])
@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.soak)])
def test_a_value_known_to_one_absent_peer_is_not_undone(count: int, lost: str, how: str) -> None:
    """The last node's later starts, which have b's ACK, are seen by b alone; b is away when they are lost."""
    cluster = Cluster(count, hold_time_max=5.0)
    published(cluster, 1) if count == 3 else published_on_five(cluster)
    cluster.advance(3.0)
    last, backup = cluster.names[-1], list(cluster.journals[cluster.names[-1]])
    others = [name for name in cluster.names if name not in ("b", last)]
    cut(cluster, *(name + last for name in others))
    again(cluster, 2 * last, how)
    cluster.advance(6.0)
    delivered = got(cluster, "b", 5.0)
    cut(cluster, *(name + last for name in others), *("b" + name for name in others[count // 2 - 1 :]))
    reply = asked(cluster, "b", m.AckRequest(delivered))
    assert isinstance(reply, m.SettleReply)
    assert outcomes(reply)[0].startswith("acked")
    cluster.kill("b")
    cut(cluster)
    wipe(cluster, last, kept=backup if lost.startswith("restored") else [])
    if lost.endswith("twice"):
        again(cluster, last, "kill")
    cluster.advance(7.0)
    for name in (*others, last):
        assert got(cluster, name, 5.0) == (), "delivered after an ACK had succeeded"


def published_on_five(cluster: Cluster) -> None:
    """One message on five replicas."""
    topic, producer_id = opened(cluster, rf=5)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"m"])))


@pytest.mark.parametrize("nodes", [5, pytest.param(7, marks=pytest.mark.soak)])
def test_nothing_is_published_after_a_deletion_to_a_partition_that_its_node_did_not_know(nodes: int) -> None:
    """Some nodes add two partitions; others start again and delete the topic, not known to be dead by the first."""
    deletions = 0
    for seed in range(12):
        rng = random.Random(seed)
        cluster = Cluster(nodes, seed=seed)
        topic = cluster.topic()
        cluster.advance(3.0)
        here, there = (rng.sample(cluster.names, rng.randint(nodes // 2 + 1, nodes - 1)) for _ in range(2))
        cut_off(cluster, here)
        altered = asked(cluster, here[0], m.AlterTopic("jobs", partitions=3), 6.0)
        if not isinstance(altered, m.TopicReply):
            continue
        cut_off(cluster, there)
        again(cluster, "".join(there[1:]), "kill")
        deleted = asked(cluster, there[0], m.DeleteTopic("jobs", topic.id), 6.0)
        if not isinstance(deleted, m.TopicReply):
            continue
        deletions += 1
        cut_off(cluster, here)
        opened = asked(cluster, here[0], m.OpenSession())
        assert isinstance(opened, m.OpenSessionReply)
        for partition in range(3):
            batch = cluster.batch(altered.topic, opened.producer_id, 0, [b"m"], partition)
            assert isinstance(asked(cluster, here[0], m.Publish(batch), 6.0), m.Failed)
    assert deletions >= 3


def cut_off(cluster: Cluster, names: Sequence[str]) -> None:
    """Drop all messages between these nodes and the others, and all that nodes say of themselves."""
    cluster.drop = lambda sender, to, message: (
        (sender in names) != (to in names) or isinstance(message, m.SyncTopics)
    )

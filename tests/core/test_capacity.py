"""Limits of a cluster: one item more is refused with its limit, and the others go on."""

from __future__ import annotations

from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.types import ProducerId
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (
        ("TOPICS_MAX", 3),
        ("DELETED_NAMES_MAX", 5),
        ("PARTITIONS_IN_ALL_MAX", 8),
        ("GROUPS_PER_TOPIC_MAX", 3),
        ("GROUPS_MAX", 6),
        ("GROUP_PARTITIONS_MAX", 9),
    ):
        monkeypatch.setattr(limits, name, most)
    monkeypatch.setattr("quorumq.core.partition.storing.SESSIONS_PER_PARTITION_MAX", 2)


def refused(reply: Any, words: str, code: Code = Code.TOO_LARGE) -> bool:
    return isinstance(reply, m.Failed) and reply.code == code and words in reply.detail


def test_topics_and_their_names() -> None:
    cluster = Cluster()
    made = [cluster.topic(f"t{number}") for number in range(3)]
    assert refused(cluster.ask("b", m.CreateTopic("t3")), "3 topics: at most 3 are allowed; delete one")
    assert not isinstance(cluster.ask("b", m.CreateTopic("t2")), m.Failed), "it is there"
    cluster.ask("a", m.DeleteTopic("t2", made[2].id))
    for name in ("t3", "t4", "t5", "t6"):
        cluster.ask("c", m.DeleteTopic(name, cluster.topic(name).id))
    assert refused(
        cluster.ask("b", m.CreateTopic("t7")), "5 deleted names of topics, which are kept for good"
    )
    assert refused(cluster.ask("b", m.SetGroup("t0", "g")), "5 deleted names of topics"), (
        "which may be deleted one day"
    )
    assert not isinstance(cluster.ask("b", m.CreateTopic("t3")), m.Failed), (
        "the name of a deleted one is free"
    )


def test_partitions() -> None:
    cluster = Cluster()
    cluster.topic("t0", partitions=6)
    assert refused(cluster.ask("a", m.CreateTopic("t1", partitions=3)), "6 partitions, and 3 more asked for")
    assert refused(cluster.ask("a", m.AlterTopic("t0", partitions=9)), "6 partitions, and 3 more asked for")
    assert not isinstance(cluster.ask("a", m.AlterTopic("t0", partitions=8)), m.Failed)
    assert not isinstance(cluster.ask("a", m.AlterTopic("t0", ttl_s=1.0)), m.Failed)


def test_partitions_of_a_topic_that_groups_read() -> None:
    """Each group has a view of each: a thousand groups of one partition would be a million of a thousand."""
    cluster = Cluster()
    cluster.topic("t0")
    for group in ("g0", "g1", "g2"):
        cluster.ask("a", m.SetGroup("t0", group))
    more = m.AlterTopic("t0", partitions=4)
    assert refused(
        cluster.ask("b", more), "3 groups, each counted once for each partition of its topic, and 9"
    )
    cluster.ask("a", m.DeleteGroup("t0", "g2"))
    assert not isinstance(cluster.ask("b", more), m.Failed)


@pytest.mark.parametrize("asked", [lambda topic, group: m.SetGroup(topic, group),
                                   lambda topic, group: fetch(group)._replace(topics=(topic,))])  # fmt: skip
def test_groups(asked: Any) -> None:
    cluster = Cluster()
    cluster.topic("t0")
    for number in range(3):
        cluster.ask("a", asked("t0", f"g{number}"))
    assert refused(cluster.ask("b", asked("t0", "g3")), "3 groups of topic 't0': at most 3")
    assert not isinstance(cluster.ask("b", asked("t0", "g2")), m.Failed), "it is there"
    cluster.topic("t1", partitions=6)
    cluster.ask("b", asked("t1", "g0"))
    assert refused(cluster.ask("b", asked("t1", "g1")), "9 groups, each counted once for each partition")
    for number in range(3):
        cluster.ask("a", m.DeleteGroup("t0", f"g{number}"))
    for name in ("g3", "g4"):
        assert not isinstance(cluster.ask("b", asked("t0", name)), m.Failed), "deleted ones leave room"
    cluster.ask("a", m.DeleteGroup("t0", "g3"))
    cluster.ask("a", m.DeleteGroup("t0", "g4"))
    assert refused(cluster.ask("b", asked("t0", "g5")), "5 deleted names of topics")
    assert not isinstance(cluster.ask("b", m.SetGroup("t0", "g2")), m.Failed), (
        "the name of a deleted one is free"
    )


def test_sessions_of_a_partition() -> None:
    cluster = Cluster(auto_create_topics=True)
    topic = cluster.topic()
    producer_ids: list[ProducerId] = [cluster.ask("a", m.OpenSession()).producer_id for _ in range(3)]  # type: ignore[union-attr]
    published = [
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
        for producer_id in producer_ids
    ]
    assert refused(published[2], "messages of 2 producers' sessions", Code.STORAGE_FULL)
    assert not isinstance(
        cluster.ask("b", m.Publish(cluster.batch(topic, producer_ids[0], 1, [b"x"]))), m.Failed
    )


def test_sessions_of_a_topic_count_per_partition_until_all_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumq.core.partition.storing.PRODUCER_IDS_PER_TOPIC_MAX", 3)
    cluster = Cluster(auto_create_topics=True)
    topic = cluster.topic(partitions=3)
    one, other = (cluster.ask("a", m.OpenSession()).producer_id for _ in range(2))  # type: ignore[union-attr]
    for partition in range(3):
        batch = cluster.batch(topic, one, 0, [b"x"], partition)
        assert not isinstance(cluster.ask("b", m.Publish(batch)), m.Failed)
    more = cluster.batch(topic, other, 0, [b"x"])
    assert refused(cluster.ask("c", m.Publish(more)), "has messages of 3", Code.STORAGE_FULL)
    assert not isinstance(cluster.ask("b", m.Publish(cluster.batch(topic, one, 1, [b"x"]))), m.Failed)
    for _ in range(3):
        cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
        cluster.advance(5.0)
    assert not isinstance(cluster.ask("c", m.Publish(more)), m.Failed), "all of it was reclaimed"
    cluster.ask("a", m.DeleteTopic("jobs", topic.id))
    assert {core.state.producer_ids.get(topic.id) for core in cluster.nodes.values()} == {None}


def test_names_are_counted_and_half_of_them_is_noticed() -> None:
    cluster = Cluster()
    catalogue = cluster.nodes["a"].catalogue
    made = cluster.topic("t0")
    assert catalogue.names_used() == (1, 3, 0, 6, 0, 0, 5)
    assert not catalogue.names_used().are_half_gone
    for name in ("t1", "t2"):
        cluster.ask("c", m.DeleteTopic(name, cluster.topic(name).id))
    assert catalogue.names_used() == (1, 3, 0, 6, 2, 0, 5)
    assert not catalogue.names_used().are_half_gone
    for name in ("g", "h"):
        cluster.ask("a", m.SetGroup("t0", name))
    cluster.ask("b", m.DeleteGroup("t0", "g"))
    assert catalogue.names_used() == (1, 3, 1, 6, 2, 1, 5)
    assert catalogue.names_used().are_half_gone
    assert cluster.ask("a", m.StatusRequest()).fields["names"]["groups_deleted"] == 1  # type: ignore[union-attr]
    cluster.ask("a", m.DeleteTopic("t0", made.id))
    assert catalogue.names_used() == (0, 3, 0, 6, 3, 0, 5), "the names of its groups go with a topic"

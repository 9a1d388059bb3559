"""Nodes of two versions in one cluster: nobody is sent what it does not know, and what needs all of them says so."""

from __future__ import annotations

import pytest

from quorumq.core.limits import TOPIC_BACKOFF_S
from quorumq.core.messages import (
    AckRequest,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    Failed,
    GroupSet,
    Named,
    PeekAsk,
    PeekPage,
    Publish,
    Published,
    Purged,
    PurgeRequest,
    RejectRequest,
    SetGroup,
    TopicAltered,
    TopicCreated,
)
from quorumq.core.records import PeerSeen
from tests.core.cluster import Cluster
from tests.core.test_cluster_smoke import fetch, outcomes, published, receipts


def refused(reply: object, *nodes: str) -> str:
    assert isinstance(reply, Failed), reply
    assert reply.code in ("cluster-mismatch", "too-few-replicas")
    assert f"{', '.join(nodes)} speak" in reply.detail
    assert "version 1 of the protocol only: upgrade" in reply.detail
    return reply.detail


def count(items: tuple[Named, ...]) -> int:
    """How many messages receipts are for."""
    return sum(item.receipt.span.size for item in items)


@pytest.mark.parametrize("old", ["a", "b", "ab"])
def test_messages_flow_through_nodes_of_both_versions(old: str) -> None:
    cluster = Cluster(protocol=dict.fromkeys(old, 1))
    topic, origin = published(cluster, 9)
    for at, node in enumerate(cluster.names):
        assert isinstance(cluster.ask(node, Publish(cluster.batch(topic, origin, 9 + at, [b"x"]))), Published)
        got = receipts(cluster.ask(node, fetch(most=3)))
        assert outcomes(cluster.ask(cluster.names[at - 1], AckRequest(got))) == ["acked"] * len(got)
    got = receipts(cluster.ask("c", fetch(most=1)))
    assert outcomes(cluster.ask("b", RejectRequest(got, TOPIC_BACKOFF_S))) == ["ok"], (
        "no backoff list: at once"
    )
    assert len(receipts(cluster.ask("a", fetch(most=1)))) == 1


def test_a_hello_is_answered_in_the_highest_version_of_both() -> None:
    cluster = Cluster(protocol={"b": 1})
    assert cluster.nodes["a"].state.versions == {"b": 1, "c": 2}
    assert cluster.nodes["b"].state.versions == {"a": 1, "c": 1}
    assert cluster.nodes["a"].status(cluster.now)["peers"]["b"]["version"] == 1  # type: ignore[index]


def test_what_needs_all_nodes_names_those_to_upgrade() -> None:
    cluster = Cluster(protocol={"b": 1})
    topic, origin = published(cluster, 3)
    for node in "ac":
        refused(cluster.ask(node, AlterTopic("jobs", max_deliveries=7)), "b")
        refused(cluster.ask(node, DeleteTopic("jobs", topic.id)), "b")
        refused(cluster.ask(node, CreateTopic("other", ttl_s=5.0)), "b")
        refused(cluster.ask(node, SetGroup("jobs", "g", rewind=True)), "b")
        refused(cluster.ask(node, SetGroup("jobs", "late", start="latest")), "b")
        refused(cluster.ask(node, fetch()._replace(group="late", start="latest")), "b")
        refused(cluster.ask(node, Publish(cluster.batch(topic, origin, 3, [b"x"], delay_ms=50))), "b")
        refused(cluster.ask(node, Publish(cluster.batch(topic, origin, 3, [b"x"], ttl_ms=50))), "b")
        assert isinstance(cluster.ask(node, SetGroup("jobs", "plain")), GroupSet)
    receipts(cluster.ask("a", fetch(most=1)))
    refused(cluster.ask("a", fetch()._replace(group="g!dead")), "b")
    assert isinstance(cluster.ask("a", CreateTopic("other")), TopicCreated)


def test_a_survey_does_without_a_node_that_does_not_know_it_where_enough_others_do() -> None:
    ask = PeekAsk("jobs", 0, "g", "all", (0, 0), 100, complete=True)
    for old, enough in (("b", True), ("bc", False)):
        cluster = Cluster(protocol=dict.fromkeys(old, 1))
        published(cluster, 3)
        cluster.ask("a", SetGroup("jobs", "g"))
        page, purged = cluster.ask("a", ask), cluster.ask("a", PurgeRequest("jobs", 0, "g"))
        if enough:
            assert isinstance(page, PeekPage)
            assert sum(item.span.size for item in page.items) == 3
            assert purged == Purged(3)
            assert receipts(cluster.ask("b", fetch())) == (), "an older node has what the purge wrote"
        else:
            assert refused(page, "b", "c") == refused(purged, "b", "c")


def test_beside_an_older_node_quarantine_takes_its_time() -> None:
    cluster = Cluster(protocol={"b": 1})
    published(cluster, 3)
    cluster.kill("a")
    cluster.start("a")
    assert cluster.nodes["a"].quarantine_left(cluster.now) > 60.0
    asked = [what for _, _, what in cluster.nodes["a"].state.timers if what[:2] == ("recover", "b")]
    assert not asked, "who cannot answer is not asked again and again"
    cluster.advance(62.0)
    assert count(receipts(cluster.ask("a", fetch()))) == 3


def test_a_node_that_is_down_still_counts_as_what_it_was_even_after_our_own_restart() -> None:
    cluster = Cluster(protocol={"b": 1})
    published(cluster, 1)
    cluster.kill("b")
    refused(cluster.ask("a", AlterTopic("jobs", max_deliveries=7)), "b")
    cluster.stop("a")
    cluster.start("a")
    refused(cluster.ask("a", AlterTopic("jobs", max_deliveries=7)), "b")
    (seen,) = [record for record in cluster.nodes["a"].snapshot(cluster.now) if isinstance(record, PeerSeen)][
        :1
    ]
    assert (seen.node, seen.version) == ("b", 1)


def test_a_wiped_node_waits_until_enough_others_can_tell_it_what_it_had() -> None:
    cluster = Cluster(protocol={"b": 1})
    published(cluster, 3)
    cluster.kill("a")
    cluster.journals["a"] = []
    cluster.start("a")
    cluster.advance(2.0)
    assert not cluster.nodes["a"].state.vouched
    assert "b speaks version 1" in str(cluster.nodes["a"].status(cluster.now)["resync"])
    cluster.stop("b")
    del cluster.protocol["b"]
    cluster.start("b")
    cluster.advance(2.0)
    assert cluster.nodes["a"].state.vouched


def test_a_rolling_upgrade_lifts_the_versions_one_by_one() -> None:
    cluster = Cluster(protocol=dict.fromkeys("abc", 1))
    topic, origin = published(cluster, 6)
    for at, node in enumerate("abc"):
        got = receipts(cluster.ask(node, fetch(most=1)))
        refused(cluster.ask("c", AlterTopic("jobs", ttl_s=9.0)), *"abc"[at:])
        cluster.stop(node)
        del cluster.protocol[node]
        cluster.start(node)
        assert outcomes(cluster.ask(node, AckRequest(got))) == ["acked"]
    assert isinstance(cluster.ask("a", AlterTopic("jobs", max_deliveries=7)), TopicAltered)
    assert isinstance(
        cluster.ask("a", Publish(cluster.batch(topic, origin, 6, [b"later"], delay_ms=1000))), Published
    )
    got = receipts(cluster.ask("b", fetch()))
    assert count(got) == 3, "the delayed one is not due"
    assert outcomes(cluster.ask("c", AckRequest(got))) == ["acked"] * len(got)
    cluster.advance(1.1)
    assert len(receipts(cluster.ask("c", fetch()))) == 1


def test_settings_survive_a_node_that_does_not_know_them() -> None:
    cluster = Cluster()
    topic, _ = published(cluster, 1)
    assert isinstance(cluster.ask("a", AlterTopic("jobs", retention_s=60.0)), TopicAltered)
    cluster.stop("b")
    cluster.protocol["b"] = 1  # not a thing to do, but then it must not spread
    cluster.start("b")
    cluster.advance(10.0)
    for node in "ac":
        assert cluster.nodes[node].topics[topic.id].retention_s == 60.0
    cluster.stop("b")
    del cluster.protocol["b"]
    cluster.start("b")
    cluster.advance(10.0)
    assert {core.topics[topic.id] for core in cluster.nodes.values()} == {cluster.nodes["a"].topics[topic.id]}

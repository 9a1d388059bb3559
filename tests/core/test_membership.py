"""HELLO: admission, and requests to a node that is not trusted (docs/protocol.md, RECOVERY)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.peers import node_list_digest
from quorumq.core.messages.effects import HelloRefused, LinkDown, LinkUp
from quorumq.core.messages.records import PeerSeen, Trusted
from quorumq.core.recovery.resync import far_above
from quorumq.core.values.types import Incarnation
from tests.core.cluster import Cluster
from tests.core.steps import check_failed


def hello(cluster: Cluster, **changes: object) -> m.Hello:
    base = m.Hello(
        m.VERSIONS,
        "cluster",
        node_list_digest(cluster.names),
        60.0,
        "b",
        Incarnation(9, 9),
        42,
        cluster.now.wall_ms,
        0,
    )
    return base._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster_id": "other"}, ["'cluster'", "'other'"]),
        ({"nodes": node_list_digest(("a", "b"))}, ["node list", "a, b, c"]),
        ({"nodes": node_list_digest(("a", "b", "c"), (("a", "x"),))}, ["node list", "`machines`"]),
        ({"node": "z"}, ["node list", "'z'"]),
        ({"hold_time_max": 5.0}, ["hold_time_max", "5.0", "60.0"]),
        ({"versions": (7, 9)}, ["7 to 9", "1 to 1"]),
    ],
)
def test_another_cluster_is_refused_by_name(changes: dict[str, object], words: list[str]) -> None:
    cluster = Cluster()
    answer = cluster.ask("a", hello(cluster, **changes))
    check_failed(answer, "cluster-mismatch")
    assert all(word in answer.detail for word in words), answer.detail


@pytest.mark.parametrize("who", ["b", ""])
def test_a_side_that_speaks_a_later_version_too_is_answered_in_ours(who: str) -> None:
    cluster = Cluster()
    cluster.kill("b")
    lowest, highest = m.VERSIONS
    welcome = cluster.ask("a", hello(cluster, node=who, versions=(lowest, highest + 1)), of=m.Welcome)
    assert welcome.version == highest
    later = cluster.ask("a", hello(cluster, node=who, versions=(highest + 1, highest + 1)))
    check_failed(
        later, "cluster-mismatch", "2 to 2 are offered, node 'a' speaks 1 to 1: upgrade the older side"
    )


def test_a_client_may_omit_the_cluster_id_but_not_get_it_wrong() -> None:
    cluster = Cluster()
    client = hello(cluster, node="", cluster_id="", nodes=b"", hold_time_max=0.0)
    assert isinstance(cluster.ask("a", client), m.Welcome)
    assert isinstance(cluster.ask("a", client._replace(cluster_id="other")), m.Failed)


def test_an_older_start_is_refused_as_superseded_and_begins_again_above_it() -> None:
    cluster = Cluster()
    for _ in range(3):
        cluster.crash("b")
    cluster.feed("a", LinkDown("b"))
    answer = cluster.ask("a", hello(cluster, incarnation=Incarnation(2, 5)), of=m.Failed)
    assert (answer.code, answer.needed) == ("superseded", 4)
    assert "old copy" in answer.detail
    cluster.feed("b", HelloRefused("a", answer.code, answer.detail, answer.needed))
    assert [name for name, _ in cluster.restarts] == ["b"]
    assert cluster.nodes["b"].state.incarnation.n == far_above(4) + 1


def test_a_copy_of_the_directory_waits_while_the_first_is_alive_and_then_resyncs() -> None:
    cluster = Cluster()
    live = cluster.nodes["b"].state
    copy = hello(cluster, incarnation=live.incarnation._replace(nonce=1), directory=live.directory)
    check_failed(cluster.ask("a", copy), "not-stored", "running twice")
    cluster.feed("a", LinkDown("b"))
    answer = cluster.ask("a", copy, of=m.Failed)
    assert (answer.code, answer.needed) == ("superseded", 1)


def test_a_newer_start_waits_while_the_older_one_is_alive() -> None:
    cluster = Cluster()
    state = cluster.nodes["b"].state
    newer = hello(cluster, incarnation=Incarnation(2, 3), directory=state.directory)
    check_failed(cluster.ask("a", newer), "not-stored")
    cluster.kill("b")
    assert isinstance(cluster.ask("a", newer), m.Welcome)


def test_the_incarnation_of_a_peer_is_durable_before_its_welcome() -> None:
    cluster = Cluster()
    cluster.kill("b")
    cluster.ask("a", hello(cluster, incarnation=Incarnation(5, 3)))
    assert PeerSeen("b", Incarnation(5, 3), 42) in cluster.journals["a"]


def test_a_directory_older_than_a_peer_has_seen_is_not_trusted() -> None:
    cluster = Cluster()
    cluster.feed("b", LinkUp("a", Incarnation(1, 1), 0, (Incarnation(3, 7),)))
    ((name, reason),) = cluster.restarts
    assert name == "b"
    assert "start 3" in reason
    assert cluster.nodes["b"].state.incarnation.n == far_above(3) + 1


def test_a_new_node_serves_only_once_everybody_said_it_is_new() -> None:
    fresh = Cluster(0)
    fresh.names = ("a", "b", "c")
    fresh.settings["hold_time_max"] = 60.0
    fresh.journals = {name: [] for name in fresh.names}
    for name in "ab":
        fresh.start(name)
    for request in (m.OpenSession(), m.Fetch(("jobs",), "g", 1, 1, 1, 0.0, 10.0, 0.0)):
        check_failed(fresh.ask("a", request), None, "still missing c")
    fresh.start("c")
    assert Trusted() in fresh.journals["a"]
    assert not isinstance(fresh.ask("a", m.OpenSession()), m.Failed)
    assert fresh.nodes["a"].state.trusted


def test_a_publisher_that_makes_a_topic_does_not_undo_what_an_operator_chose() -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: to == "c"
    cluster.topic(max_deliveries=17)
    cluster.hear_all(0.5)
    cluster.nodes["c"].topics.clear()
    cluster.nodes["c"].catalogue.names.clear()
    cluster.nodes["c"].catalogue.living.clear()
    cluster.ask("c", m.CreateTopic("jobs", 3, 1, 5, implicit=True), of=m.TopicReply)
    cluster.advance(5)
    assert {core.topic_named("jobs").max_deliveries for core in cluster.nodes.values()} == {17}

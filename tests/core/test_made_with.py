"""Initial settings of a cluster are on disk: a start with others is refused (docs/protocol.md, section 1)."""

from __future__ import annotations

import pytest

from quorumq.core.messages import Failed, OpenSession, OpenSessionReply
from quorumq.core.messages.records import ClusterMade
from quorumq.core.values.errors import UsageError
from tests.core.cluster import Cluster
from tests.core.steps import fetch, published, receipts, with_messages


def test_hold_time_max_cannot_become_smaller_while_all_nodes_are_down() -> None:
    cluster = with_messages(1, hold_time_max=60.0)
    assert receipts(cluster.ask("a", fetch(hold_time=60.0))), (
        "a hold that a shorter quarantine would not outlast"
    )
    cluster.kill("abc")
    cluster.settings["hold_time_max"] = 5.0
    for name in "abc":
        with pytest.raises(UsageError, match=r"hold_time_max = 60\.0 s.*5\.0 s.*Put the old value back"):
            cluster.start(name)
    cluster.settings["hold_time_max"] = 60.0
    cluster.start("abc", 50.0)
    answer = cluster.ask("b", fetch(hold_time=5.0))
    assert isinstance(answer, Failed), "nobody votes while that hold may live"
    assert "quarantine" in answer.detail


@pytest.mark.parametrize("names", ["abcdefg", "ab", "abd"])
def test_the_node_list_cannot_change_while_all_nodes_are_down(names: str) -> None:
    cluster = with_messages(1)
    cluster.kill("abc")
    cluster.names = tuple(names)
    new = ", ".join(names)
    with pytest.raises(
        UsageError, match=rf"made with nodes a, b, c, .*with nodes {new}: .*Put the old list back"
    ):
        cluster.start("a")


def test_nor_can_the_machines_of_the_nodes() -> None:
    cluster = Cluster(machines=(("a", "x"), ("b", "y"), ("c", "z")))
    published(cluster, 1)
    cluster.kill("abc")
    for machines, words in (((), "no machines"), ((("a", "x"), ("b", "x"), ("c", "z")), "b = 'x'")):
        cluster.settings["machines"] = machines
        with pytest.raises(
            UsageError, match=rf"made with machines a = 'x', .*{words}.*Put the old machines back"
        ):
            cluster.start("a")


def test_the_order_of_the_node_list_does_not_matter() -> None:
    cluster = with_messages(1)
    cluster.kill("abc")
    cluster.names = tuple("cba")
    cluster.start("abc", 1.0)
    assert isinstance(cluster.ask("a", OpenSession()), OpenSessionReply)


def test_it_is_known_from_the_first_start_on_and_from_a_snapshot() -> None:
    cluster = Cluster(hold_time_max=7.0)
    made = ClusterMade(("a", "b", "c"), 7.0)
    for _ in range(2):
        assert cluster.journals["a"].count(made) == 1
        assert cluster.nodes["a"].snapshot(cluster.now).count(made) == 1
        cluster.crash("a")

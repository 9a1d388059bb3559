"""A change that had no answer and arrives late does nothing to what was made, or changed, meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Group, Topic
from tests.core.cluster import Cluster
from tests.core.steps import check_failed, drained, fetch, outcomes, published, receipts

ABOUT_GROUPS = [
    m.DeleteGroup("jobs", "g"),
    m.SetGroup("jobs", "g", rewind=True),
    m.SetGroup("jobs", "g", "latest", rewind=True),
    m.SetGroup("jobs", "g", "time", 1, rewind=True),
    m.SetGroup("jobs", "g"),
    m.PurgeRequest("jobs", 0, "g"),
    m.PurgeRequest("jobs", 0, "g!dead"),
    m.PauseGroup("jobs", "g", True),
    m.LimitGroup("jobs", "g", 1.0),
]
CHANGES = {
    "made again": (m.DeleteGroup("jobs", "g"), m.SetGroup("jobs", "g")),
    "rewound": (m.SetGroup("jobs", "g", rewind=True),),
}


def made() -> tuple[Cluster, Topic, Group]:
    """Return a cluster with five messages, two of them acked, their topic, and the register of the group."""
    cluster = Cluster()
    topic, _ = published(cluster, 5)
    assert outcomes(cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=2)))))) == ["acked"]
    (group,) = cluster.ask("a", m.Metadata(("jobs",))).groups
    return cluster, topic, group


def asked(cluster: Cluster, node: str, *requests: Any) -> Any:
    return [cluster.ask(node, request, 1.0) for request in requests][-1]


def effect(group: Group | None) -> object:
    """Return all of a register that counts."""
    assert group is not None
    return group[:7], group.paused, group.limited


def with_names(request: Any, topic: Topic, group: Group) -> Any:
    return request._replace(id=topic.id, generation=group.generation)


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("request_", ABOUT_GROUPS, ids=str)
def test_a_late_request_does_nothing_to_a_later_generation(request_: Any, change: str, lags: bool) -> None:
    """Through a node that knows of the change, or one that stood still since the request."""
    cluster, topic, group = made()
    late = with_names(request_, topic, group)
    if lags:
        cluster.drop = lambda sender, to, message: "c" in (sender, to)
    asked(cluster, "a", *CHANGES[change])
    newest = cluster.nodes["a"].catalogue.group(topic.id, "g")
    cluster.drop = lambda sender, to, message: False
    assert newest is not None
    assert newest.generation > group.generation
    reply = cluster.ask("c", late, 1.0)
    harmless = isinstance(late, m.SetGroup) and not late.rewind
    if not (harmless or (change == "rewound" and isinstance(late, m.PauseGroup | m.LimitGroup))):
        check_failed(reply, Code.STALE_GENERATION, f"since its generation {group.generation}")
        cluster.advance(5.0)
        drained(cluster)
        assert effect(cluster.nodes["b"].catalogue.group(topic.id, "g")) == effect(newest)


@pytest.mark.parametrize("request_", ABOUT_GROUPS, ids=str)
def test_a_request_in_time_is_done_also_at_a_node_that_lags(request_: Any) -> None:
    cluster, topic, _ = made()
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    asked(cluster, "a", *CHANGES["made again"])
    newest = cluster.nodes["a"].catalogue.group(topic.id, "g")
    cluster.drop = lambda sender, to, message: False
    assert newest is not None
    cluster.ask("c", with_names(request_, topic, newest), 1.0, of=m.GroupReply | m.PurgeReply)


def test_a_pause_through_a_node_that_lags_is_one_of_the_group_that_was_made_again() -> None:
    """It was answered with OK, and counted for the group that was deleted only."""
    cluster, *_ = made()
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    asked(cluster, "a", *CHANGES["made again"])
    cluster.drop = lambda sender, to, message: False
    assert cluster.ask("c", m.PauseGroup("jobs", "g", True), of=m.GroupReply).group.paused
    limited = cluster.ask("c", m.LimitGroup("jobs", "g", 2.0), of=m.GroupReply).group
    assert limited.limit.buried == limited.buried


def test_a_deletion_that_is_done_is_done_again() -> None:
    cluster, topic, group = made()
    late = with_names(m.DeleteGroup("jobs", "g"), topic, group)
    first = cluster.ask("a", late, of=m.GroupReply)
    assert cluster.ask("b", late, of=m.GroupReply).group == first.group
    asked(cluster, "a", m.SetGroup("jobs", "g"))
    check_failed(cluster.ask("b", late), Code.STALE_GENERATION)


def test_a_late_creation_does_not_make_a_group_that_was_deleted_since() -> None:
    cluster, topic, group = made()
    asked(cluster, "a", m.DeleteGroup("jobs", "g"))
    check_failed(cluster.ask("a", with_names(m.SetGroup("jobs", "g"), topic, group)), Code.STALE_GENERATION)


@pytest.mark.parametrize("request_", ABOUT_GROUPS, ids=str)
def test_a_late_request_does_nothing_to_a_topic_that_was_made_again(request_: Any) -> None:
    cluster, topic, _ = made()
    late = request_._replace(id=topic.id)
    asked(cluster, "a", m.DeleteTopic("jobs", topic.id), m.CreateTopic("jobs"), m.SetGroup("jobs", "g"))
    new = cluster.nodes["a"].topic_named("jobs")
    groups = list(cluster.nodes["a"].catalogue.groups.values())
    check_failed(cluster.ask("b", late), Code.NOT_FOUND, "another one has its name")
    cluster.advance(5.0)
    assert cluster.nodes["c"].topic_named("jobs") == new
    assert list(cluster.nodes["c"].catalogue.groups.values()) == groups

"""A late change of settings does not undo a newer one that was confirmed (docs/registers.md, SETTINGS).

Each request of that kind names what its client saw. It is tried through a node that knows of the newer change, through
one that stood still meanwhile, and, where voters promise, with its own writes under way while the newer one is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from quorumq.core import messages as m
from quorumq.core.values.errors import Code
from quorumq.core.values.types import STAMP_ZERO, Group, MemberState, Topic
from tests.core.cluster import Cluster
from tests.core.growing import GrowingCluster
from tests.core.network import SlowDisk, hand_over, held_back
from tests.core.steps import check_failed

PROPOSALS = m.Prepare | m.Accept
WRITES = m.PutGroup | m.PutTopic
Core = Any


class Setting(NamedTuple):
    """A request, the newer ones after it, and the value that it would undo, by node."""

    late: Any
    newer: tuple[Any, ...]
    value: Callable[[Core], object]


def group_of(core: Core) -> Group:
    return next(group for group in core.catalogue.groups.values() if group.name == "g")


def topic_of(core: Core) -> Topic:
    topic = core.topic_named("jobs")
    assert topic is not None
    return topic


def label_of(core: Core) -> object:
    return [label.text for label in topic_of(core).labels if label.name == "team"]


def label(text: str) -> m.LabelsRequest:
    return m.LabelsRequest("jobs", (m.LabelChange("team", text),))


PROMISED = {
    "pause": Setting(
        m.PauseGroup("jobs", "g", True),
        (m.PauseGroup("jobs", "g", False),),
        lambda core: group_of(core).paused,
    ),
    "resume": Setting(
        m.PauseGroup("jobs", "g", False),
        (m.PauseGroup("jobs", "g", True),),
        lambda core: group_of(core).paused,
    ),
    "limit": Setting(
        m.LimitGroup("jobs", "g", 1.0), (m.LimitGroup("jobs", "g", 9.0),), lambda core: group_of(core).limited
    ),
    "alter": Setting(
        m.AlterTopic("jobs", max_deliveries=9, ttl_s=9.0),
        (m.AlterTopic("jobs", ttl_s=7.0),),
        lambda core: topic_of(core).ttl_s,
    ),
    "label": Setting(label("late"), (label("newer"),), label_of),
}
"""Settings with a stamp of their own."""

MOVED = {
    "move": Setting(
        m.MovePartition("jobs", 0, "a", "d"),
        (m.MovePartition("jobs", 0, "a", "d"), m.MovePartition("jobs", 0, "d", "a")),
        lambda core: topic_of(core).replicas[0],
    ),
    "raise": Setting(
        m.AlterTopic("jobs", rf=5),
        (m.AlterTopic("jobs", rf=5), m.AlterTopic("jobs", rf=3)),
        lambda core: topic_of(core).target_rf,
    ),
    "drain": Setting(
        m.ChangeMembers("drain", "d"),
        (m.ChangeMembers("drain", "d"), m.ChangeMembers("add", "d", "d:7401")),
        lambda core: core.catalogue.cluster.member("d").state,
    ),
    "address": Setting(
        m.ChangeMembers("add", "d", "d:1"),
        (m.ChangeMembers("add", "d", "d:2"),),
        lambda core: core.catalogue.cluster.member("d").address,
    ),
}
"""Changes of layouts."""

DELETED = {
    "topic": Setting(
        m.CreateTopic("new"),
        (m.CreateTopic("new"), m.DeleteTopic("new", b"")),
        lambda core: core.topic_named("new"),
    ),
    "topic that is made again": Setting(
        m.CreateTopic("new"),
        (m.CreateTopic("new"), m.DeleteTopic("new", b""), m.CreateTopic("new", max_deliveries=9)),
        lambda core: core.topic_named("new"),
    ),
    "group": Setting(
        m.SetGroup("jobs", "new"),
        (m.SetGroup("jobs", "new"), m.DeleteGroup("jobs", "new")),
        lambda core: core.catalogue.reads(topic_of(core).id, "new"),
    ),
}
"""Creations, and deletions of what they have made."""

ALL = {**PROMISED, **MOVED, **DELETED}


def deletions(core: Core, name: str) -> int:
    known = core.catalogue.register_named(name)
    return known.deletions + known.deleted if known is not None else 0


def seen(core: Core, request: Any) -> Any:
    """Return the request as a client makes it that looks at this node."""
    match request:
        case m.CreateTopic():
            return request._replace(deletions=deletions(core, request.name))
        case m.DeleteTopic():
            return request._replace(id=core.topic_named(request.name).id)
        case m.SetGroup() | m.DeleteGroup():
            known = core.catalogue.group(topic_of(core).id, request.group)
            generation = known.generation if known is not None else 0
            return request._replace(id=topic_of(core).id, generation=generation)
        case m.PauseGroup() | m.LimitGroup():
            group = group_of(core)
            stamp = group.pause.stamp if isinstance(request, m.PauseGroup) else group.limit.stamp
            return request._replace(id=group.topic, generation=group.generation, seen=stamp)
        case m.LabelsRequest():
            stamps = [it.stamp for it in topic_of(core).labels]
            return request._replace(id=topic_of(core).id, seen=max(stamps, default=STAMP_ZERO))
        case m.AlterTopic():
            topic = topic_of(core)
            return request._replace(seen=m.TopicSeen(topic.id, topic.stamp, topic.layout_number))
        case m.MovePartition():
            return request._replace(id=topic_of(core).id, epoch=topic_of(core).epoch_of(0))
    return request._replace(layout=core.catalogue.cluster.layout.number)


def made() -> Cluster:
    cluster = Cluster()
    cluster.topic()
    cluster.ask("a", m.SetGroup("jobs", "g"))
    return cluster


def grown() -> Cluster:
    """Return a cluster of five nodes, three of them voters, with a topic on these."""
    cluster = GrowingCluster(3, hold_time_max=1.0, heartbeat=2.0)
    cluster.topic()
    for name in "de":
        cluster.add(name)
    return cluster


def done(cluster: Cluster, node: str, requests: tuple[Any, ...]) -> None:
    for request in requests:
        reply = cluster.ask(node, seen(cluster.nodes[node], request), 3.0)
        assert not isinstance(reply, m.Failed), reply


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_late_change_undoes_no_newer_one(name: str, lags: bool) -> None:
    """Through a node that knows of the newer one, or that stood still since the request."""
    case = ALL[name]
    cluster = grown() if name in MOVED else made()
    node = "e" if name == "move" else "c"  # a move needs all slots
    late, before = seen(cluster.nodes[node], case.late), case.value(cluster.nodes[node])
    if lags:
        cluster.drop = lambda sender, to, message: (
            node in (sender, to) and isinstance(message, WRITES | PROPOSALS | m.SyncTopics | m.PutCluster)
        )
    done(cluster, "b", case.newer)
    newest = case.value(cluster.nodes["b"])
    assert not lags or case.value(cluster.nodes[node]) == before
    cluster.hear_all()
    check_failed(cluster.ask(node, late, 3.0), Code.STALE_GENERATION, "since")
    cluster.advance(8.0)
    assert {repr(case.value(core)) for core in cluster.nodes.values()} == {repr(newest)}


@pytest.mark.parametrize("name", PROMISED)
def test_a_change_whose_writes_are_late_undoes_no_newer_one(name: str) -> None:
    """Its stamp is the highest, by a clock that is ahead; the voters have promised it, and it is at its node alone."""
    case = PROMISED[name]
    cluster = made()
    cluster.nodes["c"].state.clock.value += 1 << 20
    late = held_back(
        cluster,
        lambda sender, to, message: (
            sender == "c" != to
            and isinstance(message, WRITES)
            and bool(message.round)
            and getattr(message, "ballot", None) is None
        ),
    )
    key = cluster.submit("c", seen(cluster.nodes["c"], case.late))
    cluster.advance(0.1)
    assert late
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    done(cluster, "b", case.newer)
    newest = case.value(cluster.nodes["b"])
    cluster.hear_all()
    for frame in late:
        hand_over(cluster, *frame)
    cluster.advance(8.0)
    assert {repr(case.value(core)) for core in cluster.nodes.values()} == {repr(newest)}
    check_failed(cluster.replies[key], Code.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("ahead", [1 << 20, 1 << 40])
@pytest.mark.parametrize("name", PROMISED)
def test_that_is_so_though_those_that_promised_were_started_again(name: str, ahead: int) -> None:
    """By a clock that is little ahead, or more than the reserves of the others."""
    case = PROMISED[name]
    cluster = made()
    cluster.nodes["c"].state.clock.value += ahead
    cluster.drop = lambda sender, to, message: (
        sender == "c" != to and isinstance(message, WRITES) and getattr(message, "ballot", None) is None
    )
    cluster.submit("c", seen(cluster.nodes["c"], case.late))
    cluster.advance(0.1)
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    cluster.crash("ab", 1.0)
    done(cluster, "b", case.newer)
    newest = case.value(cluster.nodes["b"])
    cluster.hear_all(8.0)
    assert {repr(case.value(core)) for core in cluster.nodes.values()} == {repr(newest)}


def test_a_promise_above_the_reserve_waits_for_the_disk() -> None:
    """A start counts the reserve of the clock as promised."""
    cluster = made()
    cluster.nodes["c"].state.clock.value += 1 << 40
    disk = SlowDisk(cluster, "a")
    answers = held_back(cluster, lambda sender, to, message: isinstance(message, m.RegistersReply))
    cluster.submit("c", seen(cluster.nodes["c"], m.PauseGroup("jobs", "g", True)))
    cluster.run()
    assert {sender for sender, *_ in answers} == {"b"}
    disk.sync()
    cluster.run()
    assert {sender for sender, *_ in answers} == {"a", "b"}


@pytest.mark.parametrize("name", PROMISED)
def test_a_change_is_made_above_what_another_voter_promised_to_a_clock_far_ahead(name: str) -> None:
    case = PROMISED[name]
    cluster = made()
    cluster.nodes["c"].state.clock.value += 1 << 40
    cluster.drop = lambda sender, to, message: (
        (sender, to) == ("c", "b") or (sender == "c" and isinstance(message, WRITES))
    )
    cluster.submit("c", seen(cluster.nodes["c"], case.late))
    cluster.advance(0.1)
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    done(cluster, "b", case.newer)


@pytest.mark.parametrize("name", ALL)
def test_a_change_that_is_made_again_is_done_once(name: str) -> None:
    """The first attempt had no answer: the second finds that all is as it wants."""
    case = ALL[name]
    cluster = grown() if name in MOVED else made()
    first = seen(cluster.nodes["c"], case.newer[0])
    for node in "cb":
        reply = cluster.ask(node, first, 3.0)
        assert not isinstance(reply, m.Failed), reply


def test_a_node_that_is_drained_stays_so() -> None:
    """The value of the table is one that differs: a state of a member."""
    cluster = grown()
    done(cluster, "b", (m.ChangeMembers("drain", "d"),))
    assert MOVED["drain"].value(cluster.nodes["a"]) == MemberState.DRAINING


def test_a_creation_finds_a_group_in_any_generation() -> None:
    cluster = made()
    request = seen(cluster.nodes["a"], m.SetGroup("jobs", "g"))
    done(cluster, "b", (m.SetGroup("jobs", "g", rewind=True),))
    assert cluster.ask("a", request, of=m.GroupReply).group.generation == 1


def test_a_creation_that_was_made_and_deleted_before_its_client_knew_is_unknown() -> None:
    cluster = Cluster()
    answers = held_back(
        cluster, lambda sender, to, message: to == "c" != sender and (sees_value(message) or bool(answers))
    )
    key = cluster.submit("c", m.CreateTopic("jobs", deletions=0))
    cluster.advance(0.1)
    assert cluster.ask("b", m.CreateTopic("jobs"), of=m.TopicReply).topic.made.node == "c"
    done(cluster, "b", (m.DeleteTopic("jobs", b""),))
    cluster.hear_all()
    for frame in answers:
        hand_over(cluster, *frame)
    cluster.advance(1.0)
    check_failed(cluster.replies[key], Code.OUTCOME_UNKNOWN, "since")


def test_a_creation_undoes_no_alteration_of_what_a_producer_made() -> None:
    """It finds the settings of no operator, and an operator's are OK before its own are promised."""
    cluster = Cluster()
    cluster.ask("a", m.CreateTopic("jobs", implicit=True), of=m.TopicReply)
    cluster.nodes["c"].state.clock.value += 1 << 30
    late = held_back(cluster, lambda sender, to, message: sender == "c" != to and is_promise(message))
    key = cluster.submit("c", m.CreateTopic("jobs", ttl_s=9.0))
    cluster.advance(0.1)
    assert late
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    done(cluster, "b", (m.AlterTopic("jobs", ttl_s=7.0),))
    cluster.hear_all()
    for frame in late:
        hand_over(cluster, *frame)
    cluster.advance(8.0)
    check_failed(cluster.replies[key], Code.CONFLICT, "ttl_s = 7.0")
    assert {topic_of(core).ttl_s for core in cluster.nodes.values()} == {7.0}


def sees_value(message: object) -> bool:
    """Return True for the answer to an ACCEPT."""
    return (
        isinstance(message, m.ProposalReply)
        and message.decision is not None
        and message.decision.value is not None
    )


def is_promise(message: object) -> bool:
    return isinstance(message, m.RegistersRequest) and message.ballot is not None


def test_a_change_that_one_node_has_and_a_later_one_of_another_setting_are_both_kept() -> None:
    cluster = Cluster()
    cluster.topic()
    spread = m.PutTopic | m.SyncRegisters | m.SyncTopics
    cluster.drop = lambda sender, to, message: sender == "a" != to and isinstance(message, spread)
    check_failed(cluster.ask("a", m.AlterTopic("jobs", max_deliveries=9), 6.0), Code.OUTCOME_UNKNOWN)
    cluster.drop = lambda sender, to, message: "a" in (sender, to) and sender != to
    cluster.ask("b", m.AlterTopic("jobs", ttl_s=60.0), of=m.TopicReply)
    cluster.hear_all(5.0)
    for core in cluster.nodes.values():
        topic = topic_of(core)
        assert (topic.max_deliveries, topic.ttl_s) == (9, 60.0)

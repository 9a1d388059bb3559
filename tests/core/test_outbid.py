"""A change that meets a higher promise is made again, or its outcome is unknown (docs/registers.md, SETTINGS).

Any voter may have promised a higher stamp than the one that was written, to a request of another node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.promises import PROMISES_MAX, Promises
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import STAMP_LAST
from quorumq.core.values.types import Decision, Group, Instance, Stamp, Topic
from tests.core.cluster import Cluster
from tests.core.network import SlowDisk, hand_over, held_back
from tests.core.steps import check_failed

LITTLE, FAR = 1 << 20, 1 << 40
"""Distances in stamps: within the reserve of every clock, and beyond it."""

NEWER = {
    "pause": m.PauseGroup("jobs", "g", False),
    "limit": m.LimitGroup("jobs", "g", 9.0),
    "alter": m.AlterTopic("jobs", ttl_s=7.0),
    "label": m.LabelsRequest("jobs", (m.LabelChange("team", "newer"),)),
}
CHANGES: dict[str, Any] = {
    "pause": m.PauseGroup("jobs", "g", True),
    "limit": m.LimitGroup("jobs", "g", 1.0),
    "alter": m.AlterTopic("jobs", ttl_s=9.0),
    "label": m.LabelsRequest("jobs", (m.LabelChange("team", "late"),)),
}


def registers(cluster: Cluster, node: str) -> tuple[Topic, Group]:
    """Return the registers of the topic and its group at one node."""
    topic = cluster.nodes[node].topic_named("jobs")
    assert topic is not None
    group = cluster.nodes[node].catalogue.group(topic.id, "g")
    assert group is not None
    return topic, group


def stamp_of(cluster: Cluster, name: str, node: str = "a") -> Stamp:
    """Return the stamp of the setting."""
    topic, group = registers(cluster, node)
    stamps = {"pause": group.pause.stamp, "limit": group.limit.stamp, "alter": topic.stamp}
    return stamps[name] if name in stamps else max(label.stamp for label in topic.labels)


def value_of(cluster: Cluster, name: str, node: str = "a") -> object:
    topic, group = registers(cluster, node)
    values = {"pause": group.pause.on, "limit": group.limit.per_second, "alter": topic.ttl_s}
    return values[name] if name in values else [label.text for label in topic.labels]


def as_seen(cluster: Cluster, request: Any) -> Any:
    """Return the request of a client that has looked at the setting, which had no stamp."""
    topic, group = registers(cluster, "a")
    if isinstance(request, m.AlterTopic):
        return request._replace(seen=m.TopicSeen(topic.id, topic.stamp, topic.layout_number))
    if isinstance(request, m.LabelsRequest):
        return request._replace(id=topic.id, seen=Stamp(0, ""))
    return request._replace(id=topic.id, generation=group.generation, seen=Stamp(0, ""))


def promised(name: str, ahead: int = LITTLE, *, settings: bool = True) -> tuple[Cluster, Stamp]:
    """Return a cluster in which b has promised a stamp to a request that was lost since, and the stamp."""
    cluster = Cluster()
    cluster.ask("a", m.CreateTopic("jobs", implicit=not settings), of=m.TopicReply)
    cluster.ask("a", m.SetGroup("jobs", "g"), of=m.GroupReply)
    topic, _ = registers(cluster, "a")
    state = cluster.nodes["b"].state
    stamp = Stamp(state.clock.value + ahead, "z")
    state.promises.make((topic.id, "g" if name in ("pause", "limit") else ""), stamp)
    return cluster, stamp


def later_rounds(kind: type) -> Callable[[str, str, Any], bool]:
    """Return a fault: a's questions of this kind are lost, except those of the first round."""
    first: list[int] = []

    def drop(sender: str, to: str, message: Any) -> bool:
        if sender != "a" or not isinstance(message, kind):
            return False
        first.append(message.round)  # type: ignore[attr-defined]
        return message.round != first[0]  # type: ignore[attr-defined, no-any-return]

    return drop


@pytest.mark.parametrize("ahead", [LITTLE, FAR])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_ok_only_above_what_a_voter_has_promised(name: str, ahead: int) -> None:
    """At once, though a higher reserve of the clock has to be durable first."""
    cluster, stamp = promised(name, ahead)
    reply = cluster.ask("a", CHANGES[name], 0.2)
    assert not isinstance(reply, m.Failed), reply
    assert sum(stamp_of(cluster, name, node) > stamp for node in "abc") >= 2


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(("lost", "code"), [("all", Code.TOO_FEW_REPLICAS), ("later", Code.OUTCOME_UNKNOWN)])
def test_a_change_without_promises_is_unknown_if_written_before(name: str, lost: str, code: str) -> None:
    cluster, _ = promised(name)
    before = value_of(cluster, name, "b")
    if lost == "all":
        cluster.drop = lambda sender, to, message: sender == "a" and isinstance(message, m.RegistersRequest)
    else:
        cluster.drop = later_rounds(m.RegistersRequest)
    check_failed(cluster.ask("a", CHANGES[name], 8.0), code)
    cluster.hear_all(8.0)
    assert (value_of(cluster, name, "b") == before) is (lost == "all")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_overtaken_once_it_was_written_is_unknown(name: str) -> None:
    """Clients may have seen it."""
    cluster, stamp = promised(name)
    request, newer = as_seen(cluster, CHANGES[name]), as_seen(cluster, NEWER[name])
    key = cluster.submit("a", request)
    cluster.run()
    assert key not in cluster.replies
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    cluster.nodes["b"].state.clock.merge(stamp.time)
    reply = cluster.ask("b", newer._replace(seen=None))
    assert not isinstance(reply, m.Failed), reply
    cluster.hear_all(1.0)
    check_failed(cluster.replies[key], Code.OUTCOME_UNKNOWN)
    assert value_of(cluster, name) == value_of(cluster, name, "b")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_through_a_node_that_does_not_know_of_the_deletion_is_not_found(name: str) -> None:
    cluster, _ = promised(name)
    cluster.drop = lambda sender, to, message: to == "a" and isinstance(message, m.PutTopic | m.SyncTopics)
    cluster.ask("b", m.DeleteTopic("jobs", registers(cluster, "a")[0].id), of=m.TopicReply)
    assert not registers(cluster, "a")[0].deleted
    cluster.hear_all()
    check_failed(cluster.ask("a", CHANGES[name], 3.0), Code.NOT_FOUND, "deleted")


def test_a_creation_whose_settings_meet_a_higher_promise_is_unknown_and_is_done_if_asked_again() -> None:
    """The settings that it wrote may be replaced by the request that was promised more."""
    cluster, _ = promised("alter", settings=False)
    check_failed(cluster.ask("a", m.CreateTopic("jobs", ttl_s=9.0), 3.0), Code.OUTCOME_UNKNOWN)
    assert cluster.ask("a", m.CreateTopic("jobs", ttl_s=9.0), 3.0, of=m.TopicReply).topic.ttl_s == 9.0


def test_a_rewind_that_had_to_wait_for_a_stamp_is_made_once() -> None:
    """It was to be tried again later, and the change is on its way to the replicas then."""
    cluster, _ = promised("pause")
    cluster.nodes["a"].state.clock.merge(cluster.nodes["a"].state.clock.value + FAR)
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutGroup | m.SyncTopics)
    key = cluster.submit("a", m.SetGroup("jobs", "g", rewind=True))
    cluster.advance(1.1)
    assert key not in cluster.replies
    cluster.hear_all(4.0)
    assert {registers(cluster, node)[1].generation for node in "abc"} == {1}


def ask_to_promise(cluster: Cluster, ballot: Stamp) -> None:
    """Have c ask a to promise a stamp for the settings of the topic."""
    topic, _ = registers(cluster, "a")
    hand_over(cluster, "c", "a", m.RegistersRequest(99, (), (topic.id,), (), ballot=ballot))


def test_a_promise_writes_nothing_unless_it_is_above_the_reserve() -> None:
    cluster, stamp = promised("alter")
    before = len(cluster.journals["a"])
    ask_to_promise(cluster, stamp)
    assert len(cluster.journals["a"]) == before
    ask_to_promise(cluster, stamp._replace(time=stamp.time + FAR))
    assert len(cluster.journals["a"]) == before + 1


def test_a_promise_that_was_dropped_as_others_came_is_not_replaced_by_a_lower_one() -> None:
    promises, high = Promises(), Stamp(9, "z")
    for number in range(PROMISES_MAX + 1):
        promises.make((b"%d" % number, ""), high)
    for lower in (high._replace(time=5), high._replace(node="a")):
        promises.make((b"0", ""), lower)
        assert promises.of((b"0", ""), 0) == high


def test_a_voter_keeps_its_promises_above_those_of_the_voters_before() -> None:
    """They are known by their time alone; two nodes may have made stamps at the same time."""
    promises, same = Promises(), Stamp(9, "b")
    promises.make((b"0", ""), same)
    promises.make((b"1", ""), Stamp(8, "b"))
    promises.make_all(9)
    assert promises.of((b"0", ""), 0) == same
    assert promises.of((b"1", ""), 0) == Stamp(9, "")


@pytest.mark.parametrize("highest", [1 << 42, STAMP_LAST])
def test_a_promise_lowers_no_reserve_that_is_on_its_way_to_the_disk(highest: int) -> None:
    cluster, stamp = promised("alter")
    disk, clock = SlowDisk(cluster, "a"), cluster.nodes["a"].state.clock
    for time in (min(stamp.time + highest, STAMP_LAST), stamp.time + FAR):
        ask_to_promise(cluster, stamp._replace(time=time))
    disk.sync()
    cluster.run()
    assert clock.durable_reserve == clock.requested_reserve <= STAMP_LAST
    cluster.nodes["a"].check(cluster.now)


@pytest.mark.parametrize(
    ("request_", "after"),
    [
        (m.SetGroup("jobs", "g", rewind=True), (m.SetGroup("jobs", "g", rewind=True),)),
        (m.DeleteGroup("jobs", "g"), (m.DeleteGroup("jobs", "g"), m.SetGroup("jobs", "g"))),
    ],
    ids=["rewind", "deletion"],
)
def test_a_group_change_that_was_overtaken_is_no_definite_no(request_: Any, after: tuple[Any, ...]) -> None:
    """Another node completes the proposal, and goes on from there, before a counts the answers."""
    cluster, _ = promised("pause")
    topic, _ = registers(cluster, "a")
    late = held_back(
        cluster,
        lambda sender, to, message: (
            to == "a" != sender and isinstance(message, m.ProposalReply) and voted(message)
        ),
    )
    key = cluster.submit("a", request_._replace(id=topic.id, generation=0))
    cluster.run()
    assert late
    replies = [cluster.ask("b", request, 1.0, of=m.GroupReply) for request in after]
    assert replies[-1].group.generation > 1
    cluster.hear_all()
    for frame in late:
        hand_over(cluster, *frame)
    cluster.advance(3.0)
    check_failed(cluster.replies[key], Code.OUTCOME_UNKNOWN)


def voted(reply: m.ProposalReply) -> bool:
    """Return True if an acceptor says that it has accepted a value."""
    return reply.decision is not None and reply.decision.value is not None


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_goes_on_once_there_is_a_stamp_above_one_of_a_clock_that_is_far_ahead(name: str) -> None:
    """The answers bring that: a slept through the change before, and c, which made it, is away."""
    cluster, _ = promised("alter" if name == "pause" else "pause", 0)
    cluster.drop = lambda sender, to, message: "a" in (sender, to) and sender != to
    cluster.nodes["c"].state.clock.value += FAR
    reply = cluster.ask("c", NEWER[name])
    assert not isinstance(reply, m.Failed), reply
    cluster.drop = lambda sender, to, message: "c" in (sender, to) and sender != to
    reply = cluster.ask("a", CHANGES[name], 0.5)
    assert not isinstance(reply, m.Failed), reply
    assert stamp_of(cluster, name, "b") > Stamp(cluster.nodes["c"].state.clock.value, "c")


def test_a_move_that_was_chosen_and_overtaken_is_no_conflict() -> None:
    """Its client did not name the epoch, and finds that the slot has gone on to a third node."""
    cluster = Cluster(5, request_timeout=30.0)
    topic = cluster.topic()
    first, second, node = topic.replicas[0]
    one, other = (name for name in cluster.names if name not in topic.replicas[0])
    late = held_back(
        cluster,
        lambda sender, to, message: (
            to == node != sender and isinstance(message, m.ProposalReply) and voted(message)
        ),
    )
    key = cluster.submit(node, m.MovePartition("jobs", 0, first, one))
    cluster.run()
    assert late
    for move in (m.MovePartition("jobs", 0, first, one), m.MovePartition("jobs", 0, one, other)):
        cluster.ask(second, move, 3.0, of=m.TopicReply)
    assert key not in cluster.replies
    cluster.hear_all()
    for frame in late:
        hand_over(cluster, *frame)
    cluster.advance(1.0)
    check_failed(cluster.replies[key], Code.OUTCOME_UNKNOWN)


def test_a_move_that_was_proposed_is_unknown_though_a_slot_is_away_when_it_is_made_again() -> None:
    """Another proposer that meets the first proposal at one acceptor has it chosen."""
    cluster = Cluster(5, request_timeout=2.0)
    topic = cluster.topic()
    first, second, node = topic.replicas[0]
    one, _ = (name for name in cluster.names if name not in topic.replicas[0])
    state = cluster.nodes[second].state
    instance = Instance(topic.id, "", topic.layout_number + 1)
    outbid: list[m.Accept] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.Accept) and sender == node != to and not outbid:
            outbid.append(message)
            for other in cluster.names:
                promise = Decision(instance, Stamp(state.clock.value + LITTLE, "z"))
                cluster.nodes[other].catalogue.decisions[instance] = promise
        return second in (sender, to) and sender != to and bool(outbid) and isinstance(message, m.SlotRequest)

    cluster.drop = drop
    check_failed(cluster.ask(node, m.MovePartition("jobs", 0, first, one), 5.0), Code.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_waits_for_a_stamp_ends_though_there_is_none_any_more(name: str) -> None:
    """A peer has brought the clock to its end after the request was taken."""
    cluster, _ = promised(name)
    disk, clock = SlowDisk(cluster, "a"), cluster.nodes["a"].state.clock
    clock.merge(clock.durable_reserve)
    key = cluster.submit("a", CHANGES[name])
    cluster.run()
    clock.merge(STAMP_LAST)
    for _ in range(12):
        disk.sync()
        cluster.advance(1.0)
    assert clock.used_up
    check_failed(cluster.replies[key], Code.OUTCOME_UNKNOWN)

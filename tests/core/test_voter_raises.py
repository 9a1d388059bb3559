"""Members are added to the voters, and clusters made with more nodes than voters (MEMBERS)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.members import Members, first_layout
from quorumq.core.recovery import voterslots
from quorumq.core.requests.membership import MembersCoordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import ClusterLayout, NodeId
from tests.core.conftest import Without
from tests.core.growing import GrowingCluster
from tests.core.steps import check_failed
from tests.core.voting import (
    between,
    create,
    empty,
    grown,
    losing,
    made,
    move,
    restart,
    to_nodes,
    unaware,
    voters,
    votes,
)


def ask_for(cluster: GrowingCluster, count: int, through: NodeId = "a") -> object:
    """Ask for that number of voters, and return the answer."""
    return cluster.ask(through, m.ChangeMembers("raise-voters", "", voters=count), 6.0)


def raised(cluster: GrowingCluster, count: int = 5, through: NodeId = "a") -> ClusterLayout:
    reply = ask_for(cluster, count, through)
    assert isinstance(reply, m.ChangeMembersReply), reply
    return reply.layout


# --------------------------------------------------------------------------------------------- what goes on


def test_three_voters_become_five_in_one_layout() -> None:
    cluster = grown("d", "e")
    create(cluster, "old")
    layout = raised(cluster, through="b")
    assert [slot.node for slot in layout.slots] == [*"abcde"]
    assert [slot.since for slot in layout.slots] == [0, 0, 0, layout.number, layout.number]
    assert ([slot.node for slot in layout.before], layout.epoch) == ([*"abc"], layout.number)
    assert all(votes(cluster, name) and voters(cluster, name) == (*"abcde",) for name in "abcde")
    cluster.kill("ac")
    create(cluster, "new", "d")
    restart(cluster, "b", "d", "e")
    assert all(votes(cluster, name) for name in "de"), "the journal says so"
    assert [it.name for it in cluster.ask("e", m.Metadata(("old", "new"))).topics] == ["old", "new"]
    assert raised(cluster, through="e") == layout, "asked again, it changes nothing"


@pytest.mark.parametrize(("nodes", "count"), [(1, 3), (1, 5), (2, 3), (2, 5), (4, 5)])
def test_voters_are_added_whatever_their_number(nodes: int, count: int) -> None:
    cluster = grown(*"vwxyz"[: count - nodes], nodes=nodes)
    create(cluster, "jobs")
    cluster.delay = 0.03  # new voters have answered before they vote, and no majority can do without them
    raised(cluster, count)
    cluster.delay = 0.0
    names = cluster.names
    assert len(names) == count
    assert all(votes(cluster, name) for name in names)
    for name in names[: count // 2]:
        cluster.kill(name)
    create(cluster, "more", names[-1])


def test_an_emptied_voter_learns_again_whether_it_is_old_or_new() -> None:
    cluster = grown("d", "e")
    create(cluster, "jobs")
    raised(cluster)
    for name in "aed":
        empty(cluster, name)
        assert votes(cluster, name)
        assert cluster.ask(name, m.Metadata(("jobs",))).topics


def test_a_voter_that_was_added_moves_on() -> None:
    cluster = grown("d", "e", "f")
    raised(cluster)
    assert isinstance(move(cluster, "d", "f"), m.ChangeMembersReply)
    assert isinstance(move(cluster, "a", "d", "b"), m.ChangeMembersReply)
    assert voters(cluster, "b") == (*"dbcfe",)
    assert all(votes(cluster, name) for name in "bcdef")


@pytest.mark.parametrize("other", ["raise-voters", "move-voter", "drain"])
def test_changes_at_one_time_follow_each_other(other: str) -> None:
    cluster = grown("d", "e", "f")
    cluster.delay = 0.01
    change = m.ChangeMembers(other, "c" if other == "move-voter" else "" if "raise" in other else "f")
    keys = [
        cluster.submit("a", m.ChangeMembers("raise-voters", "", voters=5)),
        cluster.submit("b", change._replace(voters=5 if "raise" in other else 0)),
    ]
    cluster.advance(12.0)
    assert all(isinstance(cluster.replies[key], m.ChangeMembersReply) for key in keys), cluster.replies
    assert len(voters(cluster, "b")) == 5
    assert all(votes(cluster, name) for name in voters(cluster, "b"))


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_raise_that_is_broken_off_anywhere_ends_when_it_is_asked_for_again(at: int) -> None:
    cluster = grown("d", "e")
    cluster.delay = 0.01
    create(cluster, "old")
    cluster.submit("a", m.ChangeMembers("raise-voters", "", voters=5))
    cluster.advance(at / 500)
    restart(cluster, "a")
    create(cluster, "between", "b")
    assert [slot.node for slot in raised(cluster, through="c").slots] == [*"abcde"]
    cluster.advance(6.0)
    assert all(votes(cluster, name) for name in "abcde")
    cluster.kill("bc")
    assert len(cluster.ask("d", m.Metadata(("old", "between"))).topics) == 2


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (1, "they cannot become fewer"),
        (2, "they cannot become fewer"),
        (4, "it must be odd"),
        (7, "at most 5"),
        (5, "d can become one"),
    ],
)
def test_a_number_that_cannot_be_is_refused(count: int, why: str) -> None:
    cluster = grown("d")
    check_failed(ask_for(cluster, count), Code.USAGE, why)
    assert cluster.nodes["a"].catalogue.cluster.layout.number == 1


def test_no_machine_gets_two_voters_by_a_raise() -> None:
    cluster = GrowingCluster(3, machines=(("a", "m1"), ("b", "m2"), ("c", "m3")))
    for name, machine in (("d", "m1"), ("e", "m4"), ("f", "m4")):
        cluster.add(name, machine=machine)
    check_failed(ask_for(cluster, 5), None, "and e can become one")
    cluster.add("g", machine="m5")
    assert {slot.node for slot in raised(cluster).slots} == {*"abceg"}


@pytest.mark.parametrize("silent", ["c", "d"])
def test_a_raise_waits_for_every_voter_and_for_those_that_are_added(silent: str) -> None:
    """With one silent voter, or one that is added and does not begin, a single failure could stop the others."""
    cluster = grown("d", "e")
    cluster.kill(silent)
    check_failed(ask_for(cluster, 5), Code.TOO_FEW_REPLICAS, f"({silent} did not say so)")
    assert len(voters(cluster, "b")) == 3
    cluster.start(silent)
    cluster.relink()
    raised(cluster)


def test_no_node_is_drained_without_which_the_voters_would_be_more_than_the_nodes() -> None:
    cluster = grown("d")
    assert isinstance(cluster.ask("a", m.ChangeMembers("drain", "c")), m.ChangeMembersReply)
    refused = cluster.ask("a", m.ChangeMembers("drain", "d"))
    assert (
        "without d 2 nodes would be left (a, b), and settings of topics and groups are kept on 3"
        in refused.detail
    )
    assert refused.code == Code.USAGE
    cluster.change("c")
    cluster.add("e")
    raised(cluster)
    assert "kept on 5. Add a node first" in cluster.ask("a", m.ChangeMembers("drain", "a")).detail
    assert "node e is a voter" in cluster.ask("a", m.ChangeMembers("remove", "e")).detail


def test_no_voter_is_drained_if_every_other_machine_has_one() -> None:
    cluster = GrowingCluster(3, machines=(("a", "m1"), ("b", "m2"), ("c", "m3")))
    cluster.add("d", machine="m1")
    assert "no other node can keep the settings" in cluster.ask("a", m.ChangeMembers("drain", "c")).detail
    assert isinstance(cluster.ask("b", m.ChangeMembers("drain", "a")), m.ChangeMembersReply)


# --------------------------------------------------------------- the rules, and what breaks without each


def test_added_voters_hear_a_majority_of_the_voters_before(rule: bool, without: Without) -> None:
    """The topic is at a and b. d and e hear c alone: without the rule c, d and e make another topic."""
    cluster = grown("d", "e")
    cluster.drop = losing(between("a", "b"))
    assert made(cluster, "a", 2)
    without(voterslots, "majority_of", lambda size: 1)
    silent = lambda sender, to, message: isinstance(message, m.ResyncReply) and sender in "ab"  # noqa: E731
    cluster.drop = losing(silent)
    ask_for(cluster, 5)
    assert voters(cluster, "c") == (*"abcde",)
    assert [votes(cluster, name) for name in "de"] == [not rule] * 2
    cluster.drop = losing(between("c", "d", "e"))
    assert made(cluster, "c", 3) is not rule


def test_voters_are_added_only_if_every_voter_votes(rule: bool, without: Without) -> None:
    """d never learned. With e and f it is to learn from a, b and itself: without the rule b's death ends that."""
    cluster = grown("d", "e", "f")
    cluster.drop = losing(to_nodes(m.ResyncReply, "d"))
    move(cluster, "c", "d")
    without(MembersCoordinator, "lacking", lambda self, context, round_: [])
    cluster.drop = losing(to_nodes(m.ResyncReply, *"def"))
    reply = ask_for(cluster, 5)
    assert not rule or (isinstance(reply, m.Failed) and "(d did not say so)" in reply.detail)
    cluster.kill("b")
    cluster.hear_all(10.0)
    assert votes(cluster, "d") is rule, "c, which left, may tell it"


def test_old_and_new_majorities_do_not_act_beside_each_other(
    rule: bool, monkeypatch: pytest.MonkeyPatch, without: Without
) -> None:
    """b and c have not heard of five voters: without the rule d and e count already, and make another topic with a."""
    cluster = grown("d", "e")
    without(voterslots, "may_tell", lambda context, epoch: True)
    monkeypatch.setattr("quorumq.core.node.upkeep.finish_undecided", lambda context, now: [])
    cluster.drop = losing(unaware("b", "c"))
    cluster.submit("a", m.ChangeMembers("raise-voters", "", voters=5))
    cluster.advance(4.0)
    assert (voters(cluster, "a"), voters(cluster, "b")) == ((*"abcde",), (*"abc",))
    assert votes(cluster, "d") is not rule
    cluster.drop = losing(between("b", "c"), unaware("b", "c"))
    assert made(cluster, "b", 2)
    cluster.drop = losing(between("a", "d", "e"), unaware("b", "c"))
    assert made(cluster, "a", 3) is not rule


# ----------------------------------------------------------------------------------- made with more than five


def test_five_of_seven_first_nodes_are_voters() -> None:
    cluster = GrowingCluster(7, hold_time_max=2.0)
    create(cluster, "jobs", "g", rf=3)
    assert all(voters(cluster, name) == (*"abcde",) for name in "abcdefg")
    assert [info.node for info in cluster.ask("g", m.Metadata()).nodes if info.voter] == [*"abcde"]
    cluster.kill("afgb")
    create(cluster, "more", "c")
    cluster.start("abfg")
    cluster.relink()
    for name in "af":
        empty(cluster, name)
        assert cluster.nodes[name].state.trusted
        assert cluster.ask(name, m.Metadata(("more",))).topics
    assert isinstance(move(cluster, "a", "g", "f"), m.ChangeMembersReply)
    assert voters(cluster, "b") == (*"gbcde",)


def test_three_of_five_voters_have_to_be_up_and_no_other_node_does() -> None:
    cluster = GrowingCluster(7, hold_time_max=2.0)
    cluster.kill("abc")
    assert isinstance(cluster.ask("g", m.CreateTopic("jobs", 1, 1), 6.0), m.Failed)


@pytest.mark.parametrize(
    ("machines", "chosen"),
    [
        ({}, "abcde"),
        (dict(zip("abcdefg", "1112223", strict=True)), "abdeg"),
        (dict(zip("abcdefg", "1111234", strict=True)), "abefg"),
        (dict(zip("abcdefg", "1234567", strict=True)), "abcde"),
        (dict(zip("abcdef", "111111", strict=True)), "abcde"),
    ],
)
def test_first_voters_are_spread_over_machines(machines: dict[str, str], chosen: str) -> None:
    nodes = tuple(machines) or (*"abcdefg",)
    on = tuple(machines.items())
    known = Members(first_layout(nodes, on))
    known.check()
    assert sorted(known.voters) == [*chosen]
    assert known.first == nodes
    assert Members(first_layout(nodes[::-1], on[::-1])).voters == known.voters, "in any order"


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_up_to_five_first_nodes_all_vote(nodes: int) -> None:
    layout = first_layout("abcde"[:nodes])
    assert (layout.slots, Members(layout).voters) == ((), (*"abcde"[:nodes],))

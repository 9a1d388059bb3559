"""Voters of registers move to other members: what goes on, and what breaks without each rule (MEMBERS)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.members import with_member
from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.rounds import RegisterRound
from quorumq.core.messages.effects import Done, Persist
from quorumq.core.messages.records import ClusterPut
from quorumq.core.node import upkeep
from quorumq.core.recovery import voterslots
from quorumq.core.requests import merging
from quorumq.core.requests.membership import MembersCoordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import MemberState, NodeId, Stamp
from tests.core.conftest import Without
from tests.core.growing import GrowingCluster
from tests.core.network import hand_over
from tests.core.steps import check_failed, fetch
from tests.core.voting import (
    between,
    create,
    empty,
    grown,
    losing,
    made,
    move,
    moved,
    restart,
    to_nodes,
    unaware,
    voters,
    votes,
)

# --------------------------------------------------------------------------------------------- what goes on


def test_the_slot_of_a_voter_goes_to_a_member() -> None:
    cluster = grown("d")
    create(cluster, "old")
    layout = moved(cluster, "c", through="b")
    assert [slot.node for slot in layout.slots] == ["a", "b", "d"]
    assert (layout.epoch, [slot.since for slot in layout.slots]) == (layout.number, [0, 0, layout.number])
    assert all(voters(cluster, name) == ("a", "b", "d") for name in "abcd")
    assert votes(cluster, "d")
    cluster.kill("ca")
    create(cluster, "new", "b")
    restart(cluster, "b", "d")
    assert votes(cluster, "d"), "its journal says so"
    assert cluster.ask("d", m.Metadata(("new",))).topics[0].name == "new"
    assert [info.node for info in cluster.ask("d", m.Metadata()).nodes if info.voter] == ["a", "b", "d"]


def test_a_move_that_is_asked_for_again_changes_nothing() -> None:
    cluster = grown("d", "e")
    number = moved(cluster, "c", "d").number
    assert moved(cluster, "c", "e", "e").number == number
    check_failed(move(cluster, "x"), None, "there is no node 'x'")


def test_a_voter_that_is_dead_for_good_is_replaced_from_the_others() -> None:
    cluster = grown("d")
    create(cluster, "jobs")
    cluster.kill("c")
    moved(cluster, "c")
    assert votes(cluster, "d")
    cluster.kill("a")
    create(cluster, "more", "d")


def test_a_cluster_moves_to_other_machines() -> None:
    cluster = grown("d", "e", "f")
    create(cluster, "jobs")
    for old, new in zip("abc", "def", strict=True):
        moved(cluster, old, new, "b" if old == "a" else "a")
    cluster.kill("abc")
    assert voters(cluster, "d") == ("d", "e", "f")
    create(cluster, "more", "e")
    assert cluster.ask("f", m.Metadata(("jobs",))).topics
    empty(cluster, "e")
    assert votes(cluster, "e"), "d and f tell it"
    restart(cluster, "d", "e", "f")
    create(cluster, "most", "f")


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_a_slot_moves_whatever_the_number_of_voters(nodes: int) -> None:
    cluster = grown("x", nodes=nodes)
    create(cluster, "jobs")
    moved(cluster, "a", through="x")
    assert votes(cluster, "x")
    cluster.kill("a")
    create(cluster, "more", "x")


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("node", "to", "why"),
    [
        ("c", "a", "the settings that c keeps can go to d"),
        ("c", "x", "the settings that c keeps can go to d"),
        ("x", "d", "there is no node 'x'"),
    ],
)
def test_a_slot_goes_to_a_member_that_is_no_voter(node: str, to: str, why: str) -> None:
    check_failed(move(grown("d"), node, to), Code.USAGE, why)


def test_a_slot_goes_to_no_drained_node_and_no_first_name_is_given_again() -> None:
    cluster = grown("d")
    cluster.ask("a", m.ChangeMembers("drain", "d"))
    check_failed(move(cluster, "c"), None, "no other node can keep the settings that c keeps")
    cluster.change("d")
    moved(cluster, "c")
    for change in ("drain", "remove"):
        cluster.ask("a", m.ChangeMembers(change, "c"), of=m.ChangeMembersReply)
    assert "was one of the first nodes" in cluster.ask("a", m.ChangeMembers("add", "c", "c:7401")).detail


def test_no_machine_gets_two_voters() -> None:
    machines = (("a", "m1"), ("b", "m2"), ("c", "m3"))
    cluster = GrowingCluster(3, machines=machines)
    cluster.add("d", machine="m1")
    check_failed(move(cluster, "c", "d"), None, "no other node can keep the settings")
    assert moved(cluster, "a", "d").slots[0].node == "d"


def test_a_voter_is_drained_and_removed_once_its_slot_has_moved() -> None:
    cluster = grown("d")
    assert isinstance(cluster.ask("a", m.ChangeMembers("drain", "c")), m.ChangeMembersReply)
    refused = cluster.ask("a", m.ChangeMembers("remove", "c"))
    assert "node c is a voter" in refused.detail
    moved(cluster, "c")
    cluster.ask("a", m.ChangeMembers("remove", "c"), of=m.ChangeMembersReply)
    cluster.advance(2.0)
    assert "c" not in cluster.nodes["a"].state.links
    assert any(isinstance(it, ClusterPut) for it in cluster.records_of("a"))


def test_a_change_is_proposed_in_the_instance_that_votes_were_asked_for() -> None:
    """Another node's change is known between the question and the proposal."""
    cluster = grown("d", "e")
    cluster.delay = 0.01
    proposed: list[object] = []
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.Accept) and bool(proposed.append(message.cluster))
    )
    key = cluster.submit("a", m.ChangeMembers("drain", "d"))
    layout = cluster.nodes["a"].catalogue.cluster.layout
    gone = next(member for member in layout.members if member.node == "d")._replace(state=MemberState.REMOVED)
    hand_over(cluster, "b", "a", m.PutCluster(0, with_member(layout, gone, Stamp(1, "b"))))
    cluster.advance(1.0)
    assert {it.number for it in proposed if it is not None} == {layout.number + 1}  # type: ignore[attr-defined]
    assert key in cluster.replies


# --------------------------------------------------------------- the rules, and what breaks without each


def test_a_new_voter_hears_a_majority_of_the_voters_before(rule: bool, without: Without) -> None:
    """The topic is at a and c, and c is dead. d hears b alone: without the rule b and d make another topic."""
    cluster = grown("d")
    cluster.drop = losing(between("b", "d"))
    assert made(cluster, "a", 2)
    cluster.kill("c")
    without(voterslots, "majority_of", lambda size: 1)
    cluster.drop = losing(lambda sender, to, message: isinstance(message, m.ResyncReply) and sender == "a")
    move(cluster, "c", "d", "b")
    assert voters(cluster, "b") == ("a", "b", "d")
    cluster.drop = losing(between("b", "d"))
    assert made(cluster, "b", 3) is not rule


def test_a_node_tells_a_new_voter_only_once_it_has_adopted_the_layout(
    rule: bool, monkeypatch: pytest.MonkeyPatch, without: Without
) -> None:
    """b and c know nothing of d, which b tells it: without the rule b and c make the topic, a and d another one."""
    cluster = grown("d")
    without(voterslots, "may_tell", lambda context, epoch: True)
    monkeypatch.setattr(upkeep, "finish_undecided", lambda context, now: [])  # b and c could, without a and d
    cluster.drop = losing(unaware("b", "c"))
    cluster.submit("a", m.ChangeMembers("move-voter", "c", to="d"))
    cluster.advance(4.0)
    assert (voters(cluster, "a"), voters(cluster, "b")) == (("a", "b", "d"), ("a", "b", "c"))
    assert votes(cluster, "d") is not rule
    cluster.drop = losing(between("b", "c"), unaware("b", "c"))
    assert made(cluster, "b", 2)
    assert made(cluster, "a", 3) is not rule


def test_an_answer_counts_in_the_epoch_of_its_round(rule: bool, without: Without) -> None:
    """a and d make a topic; c, which does not know that d is a voter in its place, asks b."""
    cluster = grown("d")
    without(RegisterRound, "check_epoch", lambda self, sender, epoch: None)
    cluster.drop = losing(unaware("c"))
    moved(cluster, "c", "d")
    cluster.drop = losing(between("a", "d"), unaware("c"))
    assert made(cluster, "a", 2)
    cluster.drop = losing(between("b", "c"), unaware("c"))
    assert voters(cluster, "c") == ("a", "b", "c")
    assert made(cluster, "c", 3) is not rule


def test_a_layout_with_other_voters_is_adopted_once_it_is_durable() -> None:
    """b would send d its state, crash, and make a topic with c as if d was no voter."""
    cluster = grown("d")
    layout = moved(cluster, "c", "d")
    context = cluster.nodes["b"].context
    other = layout._replace(number=layout.number + 1, epoch=layout.number + 1)
    (put,) = merging.take_in_cluster(context, other, cluster.now)
    assert isinstance(put, Persist)
    assert (put.records, [type(then) for then in put.then]) == ((ClusterPut(other),), [Done])
    assert context.catalogue.cluster.layout == layout
    assert merging.take_in_cluster(context, other, cluster.now) == [], "it is on its way to the disk"
    same = layout._replace(number=layout.number + 1)
    context.completions.clear()
    assert merging.take_in_cluster(context, same, cluster.now)
    assert context.catalogue.cluster.layout == same, "voters stay, so no vote depends on it"


def test_a_new_voter_has_promised_what_its_slot_had() -> None:
    """It may have a promise of the same register already: from an earlier slot, or because it changed a setting."""
    cluster = grown("d")
    create(cluster, "jobs")
    (topic,) = cluster.nodes["a"].topics
    stamp = Stamp(cluster.nodes["a"].state.clock.value, "a")
    low, high = (stamp._replace(time=stamp.time + ahead) for ahead in (1, 1 << 20))
    for name, ballot in (("d", low), ("c", high)):
        hand_over(cluster, "a", name, m.RegistersRequest(99, (), (topic,), (), ballot=ballot))
    moved(cluster, "c", "d")
    assert cluster.nodes["d"].state.promises.of((topic, ""), 0) >= high


def test_a_request_that_voters_answer_in_another_epoch_waits_for_no_timeout() -> None:
    """b has not adopted the layout yet, and d has to learn what its slot promised."""
    cluster = grown("d")
    create(cluster, "jobs", rf=3)
    cluster.drop = losing(unaware("b", "c"), to_nodes(m.ResyncReply, "d"))
    cluster.submit("a", m.ChangeMembers("move-voter", "c", to="d"))
    cluster.advance(4.0)
    assert (voters(cluster, "a"), voters(cluster, "b")) == (("a", "b", "d"), ("a", "b", "c"))
    assert not votes(cluster, "d")
    key = cluster.submit("a", fetch("g")._replace(hold_time=1.0))
    cluster.advance(0.1)
    assert key not in cluster.replies, cluster.replies[key]
    cluster.hear_all(1.0)
    assert isinstance(cluster.replies[key], m.FetchReply)


def test_an_emptied_node_waits_until_other_voters_are_chosen_or_not(rule: bool, without: Without) -> None:
    """a has sent d its state, and is emptied; b and c have only accepted the layout. b adopts it, and sends too."""
    cluster = grown("d")
    cluster.drop = losing(unaware("b", "c"))
    cluster.submit("a", m.ChangeMembers("move-voter", "c", to="d"))
    cluster.advance(0.2)
    assert ("a", None) in cluster.nodes["d"].context.resync_answers.complete
    without(Catalogue, "undecided_voters", lambda self, decisions: None)
    alone = lambda sender, to, message: "d" in (sender, to)  # noqa: E731
    cluster.drop = losing(alone, lambda sender, to, message: isinstance(message, m.Prepare | m.Accept))
    cluster.isolated.add("d")
    empty(cluster, "a")
    trusted = cluster.nodes["a"].state.trusted
    assert trusted is not rule
    if trusted:
        cluster.isolated.clear()
        cluster.drop = losing(between("b", "d"))
        cluster.relink()
        hand_over(cluster, "d", "b", m.PutCluster(0, cluster.nodes["d"].catalogue.cluster.layout))
        cluster.advance(2.0)
        assert made(cluster, "b", 2)
        cluster.drop = losing(between("a", "c"))
        assert made(cluster, "a", 3), "another one"
        return
    cluster.isolated.clear()
    cluster.drop = losing()
    cluster.relink()
    cluster.advance(20.0)
    assert [votes(cluster, name) for name in "abd"] == [True] * 3, "b or c has finished it"
    assert voters(cluster, "c") == ("a", "b", "d")


def test_a_slot_moves_only_if_every_other_voter_votes(rule: bool, without: Without) -> None:
    """d never learned: without the rule it never will, as the voters that could answer are no longer asked."""
    cluster = grown("d", "e")
    cluster.drop = losing(to_nodes(m.ResyncReply, "d"))
    move(cluster, "c", "d")
    assert not votes(cluster, "d")
    without(MembersCoordinator, "lacking", lambda self, context, round_: [])
    reply = move(cluster, "a", "e", "b")
    if rule:
        check_failed(reply, None, "(d did not say so)")
        assert moved(cluster, "d", "e", "b").slots[2].node == "e", (
            "a new voter that never learned may be replaced"
        )
    cluster.hear_all(10.0)
    new = "e" if rule else "d"
    assert votes(cluster, new) is rule


def test_a_new_voter_learns_what_was_accepted(rule: bool, without: Without) -> None:
    """a and c have accepted a topic, so it is chosen, and no node knows it: else b and d choose another one."""
    cluster = grown("d")

    def late(sender: NodeId, to: NodeId, message: object) -> bool:
        """Lose a's acceptance, and all questions to b."""
        accepted = isinstance(message, m.ProposalReply) and message.decision and message.decision.topic
        return bool(sender == "a" and accepted) or (isinstance(message, m.Prepare | m.Accept) and to == "b")

    cluster.drop = losing(late)
    cluster.submit("c", m.CreateTopic("jobs", 1, 2))
    cluster.advance(0.1)
    cluster.drop = losing(between("a", "b", "d"))
    without(Catalogue, "take_decision", lambda self, decision: False)
    move(cluster, "c", "d")
    assert votes(cluster, "d")
    cluster.drop = losing(between("b", "d"))
    assert made(cluster, "b", 3) is not rule, "b finishes the first one, and says that it differs"


def test_a_new_voter_learns_the_starts(rule: bool, monkeypatch: pytest.MonkeyPatch, without: Without) -> None:
    """d and f have never heard of e, and become voters: without the rule e uses a start number twice."""
    cluster = grown("d", "f")
    without(Peers, "take_in", lambda self, starts: [])
    apart = lambda sender, to, message: "e" in (sender, to) and bool({"d", "f"} & {sender, to})  # noqa: E731
    cluster.drop = apart
    link = cluster.link
    monkeypatch.setattr(
        cluster, "link", lambda one, other: None if apart(one, other, None) else link(one, other)
    )
    cluster.add("e")
    first = cluster.nodes["e"].state.incarnation.n
    moved(cluster, "b", "d")
    moved(cluster, "c", "f")
    cluster.kill("abc")
    cluster.hear_all()
    monkeypatch.setattr(cluster, "link", link)
    empty(cluster, "e")
    assert (cluster.nodes["e"].state.incarnation.n > first) is rule

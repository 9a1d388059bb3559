"""A cluster gets more nodes: who is a member, how it begins, and what it may vote on (docs/layouts.md, MEMBERS)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.members import outdated
from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.rounds import RegisterRound
from quorumq.core.cluster.topics import replica_sets
from quorumq.core.messages.records import ClusterPut, TrustLost
from quorumq.core.recovery import resync, voterslots
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests import proposing
from quorumq.core.requests.proposing import Proposer
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    MEMBERS_MAX,
    NODES_MAX,
    STAMP_ZERO,
    ClusterLayout,
    Member,
    MemberState,
    Value,
)
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import HANDSHAKE_BYTES_MAX
from tests.core.conftest import Without
from tests.core.growing import GrowingCluster
from tests.core.network import cut, wipe
from tests.core.steps import check_failed, fetch, outcomes, published, receipts


def test_a_node_is_let_in_once_it_is_a_member() -> None:
    cluster = GrowingCluster(3)
    refused = cluster.asks("d")
    assert refused.code == Code.NOT_STORED
    assert "quorumq nodes add d --address d:7401" in refused.detail
    layout = cluster.change("d", "b")
    assert (layout.number, [member.node for member in layout.members], layout.voters) == (1, [*"abcd"], 3)
    cluster.enter("d", "c")
    assert cluster.nodes["d"].state.trusted
    assert sorted(cluster.nodes["d"].state.links) == ["a", "b", "c"]
    assert all("d" in cluster.nodes[name].state.links for name in "abc")
    known = cluster.ask("d", m.Metadata())
    assert [(info.node, info.voter, info.up) for info in known.nodes] == [
        ("a", True, True), ("b", True, True), ("c", True, True), ("d", False, True)
    ]  # fmt: skip


def test_an_empty_node_with_the_id_of_one_that_runs_is_not_let_in() -> None:
    """Else a configuration that was copied takes the place of that node, which loses trust in its directory."""
    cluster = GrowingCluster(3)
    cluster.add("d")
    for name, through in (("d", "a"), ("b", "a"), ("a", "a")):
        refused = cluster.asks(name, through)
        assert refused.code == Code.NOT_STORED
        assert f"node '{name}' is running" in refused.detail
    cluster.kill("d")
    assert isinstance(cluster.asks("d"), m.Admitted), "its link is down"
    cluster.enter("d")
    assert cluster.nodes["d"].state.trusted


def test_adding_a_node_again_changes_nothing_but_its_address() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    assert cluster.change("d", "c").number == 1
    assert cluster.ask("d", m.ChangeMembers("add", "d", "elsewhere:7401")).layout.number == 2
    cluster.advance(1.0)
    known = cluster.ask("b", m.Metadata())
    assert (known.layout, known.nodes[3].node, known.nodes[3].address) == (2, "d", "elsewhere:7401")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (m.ChangeMembers("add", "D!", "d:1"), "a-z, 0-9 and '-'"),
        (m.ChangeMembers("add", "d", "nowhere"), "host:port"),
        (m.ChangeMembers("add", "d", "d:99999"), "from 1 to 65535"),
        (m.ChangeMembers("add", "d", "::1:7401"), "stands in brackets"),
        (m.ChangeMembers("add", "d", "http://d:7401"), "without a scheme"),
        (m.ChangeMembers("add", "d", "d:1,e:1"), "must be one host:port"),
        (m.ChangeMembers("add", "d", "d..x:7401"), "labels"),
        (m.ChangeMembers("add", "d", "d\0:7401"), "cannot be printed"),
        (m.ChangeMembers("add", "d", "d" * 300 + ":1"), "302 characters"),
        (m.ChangeMembers("add", "d", "d:1", "peers"), "peer address = 'peers'"),
        (m.ChangeMembers("add", "d", "d:1", "e:7401"), "that is e's"),
        (m.ChangeMembers("add", "d", "d:1", machine="m1"), "every node has one if nodes share machines"),
        (m.ChangeMembers("add", "d", "a:7401"), "that is a's"),
        (m.ChangeMembers("elect", "d"), "it must be add or drain or remove or move-voter"),
    ],
)
def test_a_node_that_cannot_be_added_is_refused(request_: m.ChangeMembers, why: str) -> None:
    cluster = GrowingCluster(3, addresses=(("a", "a:7401"), ("b", "b:7401"), ("c", "c:7401")))
    cluster.add("e")
    check_failed(cluster.ask("b", request_), Code.USAGE, why)
    assert [info.address for info in cluster.ask("e", m.Metadata()).nodes] == [
        f"{name}:7401" for name in "abce"
    ]


def test_the_first_node_that_is_added_has_no_address_of_a_voter() -> None:
    """The layout that the cluster was made with has no addresses: they are in the configuration of each voter."""
    cluster = GrowingCluster(
        3, addresses=(("a", "a:7401"), ("b", "b:7401")), peer_addresses=(("a", "a:8401"),)
    )
    for address in ("b:7401", "a:8401"):
        refused = cluster.ask("c", m.ChangeMembers("add", "d", address))
        assert refused == m.Failed(Code.USAGE, f"address is {address!r}: that is {address[0]}'s")


def test_a_dry_run_checks_a_change_and_changes_nothing() -> None:
    cluster = GrowingCluster(3)
    cluster.topic()
    before = [len(cluster.journals[name]) for name in "abc"]
    assert cluster.ask("a", m.ChangeMembers("add", "d", "d", dry_run=True)).code == Code.USAGE
    assert cluster.ask("a", m.ChangeMembers("add", "d", "d:1", dry_run=True)).layout.number == 0
    assert cluster.ask("a", m.MovePartition("jobs", 0, "a", "e", dry_run=True)).code == Code.USAGE
    assert [len(cluster.journals[name]) for name in "abc"] == before
    cluster.add("d")
    assert cluster.ask("a", m.MovePartition("jobs", 0, "a", "d", dry_run=True)).topic.layout is None


def test_a_member_keeps_its_peer_address_and_machine_if_none_is_named() -> None:
    """`nodes add` with its address takes a drained node back into use."""
    machines = (("a", "x"), ("b", "y"), ("c", "z"))
    cluster = GrowingCluster(3, machines=machines)
    cluster.change("d", peer_address="d:8401", machine="w")
    cluster.ask("b", m.ChangeMembers("drain", "d"))
    member = cluster.change("d", "c").members[3]
    assert (member.peer_address, member.machine, member.state) == ("d:8401", "w", MemberState.JOINED)


def test_a_partition_does_not_move_to_a_node_that_is_away() -> None:
    """Else a typing error, or a node that was added and never started, takes the place of a replica that is up."""
    cluster = GrowingCluster(3)
    cluster.topic()
    cluster.change("d")
    refused = cluster.ask("a", m.MovePartition("jobs", 0, "a", "d"))
    assert refused.code == Code.TOO_FEW_REPLICAS
    assert "'d' cannot be reached from a" in refused.detail
    cluster.enter("d")
    assert isinstance(cluster.ask("a", m.MovePartition("jobs", 0, "a", "d")), m.TopicReply)
    cluster.kill("d")
    assert isinstance(cluster.ask("b", m.MovePartition("jobs", 0, "a", "d")), m.TopicReply)


def test_nodes_added_at_once_through_several_nodes_all_become_members() -> None:
    cluster = GrowingCluster(3)
    cluster.delay = 0.002
    pairs = zip("abc", "def", strict=True)
    keys = [cluster.submit(name, m.ChangeMembers("add", other, f"{other}:1")) for name, other in pairs]
    cluster.advance(5.0)
    assert all(isinstance(cluster.replies[key], m.ChangeMembersReply) for key in keys), cluster.replies
    layouts = [cluster.nodes[name].catalogue.cluster.layout for name in "abc"]
    assert layouts[0] == layouts[1] == layouts[2]
    assert layouts[0].number == 3
    assert sorted(member.node for member in layouts[0].members) == [*"abcdef"]


def test_a_node_that_was_added_keeps_replicas_and_coordinates() -> None:
    cluster = GrowingCluster(3, hold_time_max=2.0)
    cluster.add("d")
    cluster.add("e", "d")
    topic = cluster.ask("e", m.CreateTopic("jobs", 3, 8)).topic
    assert {node for members in topic.replicas for node in members} == {*"abcde"}
    number = next(at for at, members in enumerate(topic.replicas) if "d" in members and "e" in members)
    (other,) = set(topic.replicas[number]) - {"d", "e"}
    cluster.kill(other)
    producer_id = cluster.ask("d", m.OpenSession()).producer_id
    reply = cluster.ask("d", m.Publish(cluster.batch(topic, producer_id, 0, [b"0", b"1"], number)))
    assert isinstance(reply, m.PublishReply)
    got = receipts(cluster.ask("e", fetch(hold_time=1.0)))
    assert outcomes(cluster.ask("d", m.AckRequest(got))) == ["acked"]
    for name in "de":
        cluster.crash(name)
    cluster.advance(3.0)
    assert not receipts(cluster.ask("d", fetch(hold_time=1.0))), "they start again from their own journals"


@pytest.mark.parametrize("lost", ["", "all", "some"])
def test_only_a_node_without_a_past_grants_holds_at_once(lost: str) -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.ask("d", m.CreateTopic("jobs", 1, 8))
    if lost:
        cluster.kill("d")
        cluster.journals["d"].append(TrustLost(0, "the data directory is damaged"))
        cluster.enter("d", journal=lost == "some")
    assert cluster.nodes["d"].state.trusted
    quarantined = [replica.in_quarantine(cluster.now) for replica in cluster.nodes["d"].replicas.values()]
    assert quarantined == [bool(lost)] * len(quarantined) != []


def test_a_partition_moves_to_a_node_that_was_added() -> None:
    cluster = GrowingCluster(3)
    published(cluster, 5)
    cluster.add("d")
    cluster.ask("d", m.MovePartition("jobs", 0, "a", "d"), of=m.TopicReply)
    cluster.advance(12.0)
    assert not cluster.nodes["a"].context.sources, "its payload is at d"
    cluster.kill("b")
    assert len(receipts(cluster.ask("a", fetch()))) == 1


def test_partitions_of_a_topic_are_drawn_from_the_members_that_it_was_made_with() -> None:
    """A coordinator that has not heard of the members draws the same sets."""
    cluster = GrowingCluster(3)
    old = cluster.topic("old", partitions=2)
    cluster.add("d")
    new = cluster.topic("new", partitions=2)
    assert (old.over, new.over) == ((), tuple((name, "") for name in "abcd"))
    more = cluster.ask("b", m.AlterTopic("new", partitions=12)).topic
    assert more.replicas == replica_sets(new, 12, ("x", "y", "z"))
    assert any("d" in members for members in more.replicas)
    assert not any(
        "d" in each for each in cluster.ask("d", m.AlterTopic("old", partitions=12)).topic.replicas
    )


# ------------------------------------------------------------- the rules, and what breaks without each


def test_a_node_that_was_added_waits_for_no_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs a majority of the voters."""
    cluster = GrowingCluster(3)
    cluster.kill("c")
    cluster.add("d")
    assert cluster.nodes["d"].state.trusted
    monkeypatch.setattr(Trust, "has_joined", property(lambda self: False))
    cluster.add("e")
    assert not cluster.nodes["e"].state.trusted, "it waits until c says that it never saw it"


def test_nodes_never_trusted_do_not_wait_for_each_other(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of both may be made before either has begun. A restart before they have changes nothing."""
    cluster = GrowingCluster(3)
    cluster.change("d")
    cluster.change("e")
    topic = cluster.ask("a", m.CreateTopic("jobs", 3, 8)).topic
    assert any({"d", "e"} <= set(members) for members in topic.replicas)
    for name in "abc":
        cluster.isolated.add(name)
    for name in "de":
        cluster.layouts[name] = cluster.nodes["a"].catalogue.cluster.layout
        cluster.names += (name,)
        cluster.journals[name] = []
        for _ in range(2):
            cluster.start(name)
    if not rule:
        for name in "de":
            cluster.nodes[name].trust.resync.is_first = False
    cluster.isolated.clear()
    cluster.relink()
    assert [cluster.nodes[name].state.trusted for name in "de"] == [rule, rule]
    assert not rule or not cluster.nodes["d"].context.quarantine_left(cluster.now)


def test_two_resyncs_of_a_node_that_was_added_have_a_voter_in_common(rule: bool, without: Without) -> None:
    """Else it uses a start number twice: votes of the one start pass for those of the other."""
    without(resync, "majority_of", lambda size: size // 2)
    cluster = GrowingCluster(4)
    cluster.change("e")
    cluster.advance(2.0)
    cluster.drop = lambda sender, to, message: "e" in (sender, to) and bool({"c", "d"} & {sender, to})
    for name in "cd":
        cluster.isolated.add(name)
    cluster.enter("e")
    first = cluster.nodes["e"].state.incarnation.n
    cluster.kill("e")
    for name in "cd":
        cluster.isolated.discard(name)
    for name in "ab":
        cluster.isolated.add(name)
    cluster.drop = lambda sender, to, message: "e" in (sender, to) and bool({"a", "b"} & {sender, to})
    cluster.enter("e", "c")
    again = cluster.nodes["e"].state
    assert (again.trusted and again.incarnation.n == first) is not rule


def test_a_resync_brings_the_starts_of_nodes_that_others_have_seen(rule: bool, without: Without) -> None:
    """Else b, which is emptied while d is down, forgets d, and d, emptied too, uses a start number twice."""
    without(Peers, "take_in", lambda self, starts: [])
    cluster = GrowingCluster(3)
    cluster.change("d")
    cluster.drop = lambda sender, to, message: {sender, to} == {"c", "d"}
    cluster.isolated.add("c")
    cluster.enter("d")
    first = cluster.nodes["d"].state.incarnation.n
    cluster.kill("d")
    cluster.isolated.discard("c")
    cluster.relink()
    wipe(cluster, "b")
    cluster.relink()
    cluster.advance(3.0)
    assert cluster.nodes["b"].state.trusted
    cluster.start("b")
    cluster.relink()
    cluster.isolated.add("a")
    cluster.hear_all()
    cluster.enter("d", "c")
    cluster.advance(3.0)
    again = cluster.nodes["d"].state
    assert again.trusted
    assert (again.incarnation.n == first) is not rule


def test_a_resync_brings_the_cluster_layout(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next layout is chosen in an instance that is over: one number has two contents."""
    if not rule:
        take_in = resync.take_in
        monkeypatch.setattr(
            resync,
            "take_in",
            lambda context, sender, reply, now: take_in(context, sender, reply._replace(cluster=None), now),
        )
    cluster = GrowingCluster(3)
    cluster.drop = lambda sender, to, message: (
        "c" in (sender, to) or (type(message) is m.PutCluster and not message.round)
    )
    cluster.change("d")
    cluster.drop = lambda sender, to, message: type(message) is m.PutCluster and not message.round
    wipe(cluster, "a", 3.0)
    assert cluster.nodes["a"].state.trusted
    cluster.drop = lambda sender, to, message: "b" in (sender, to)
    layout = cluster.ask("a", m.ChangeMembers("add", "e", "e:7401"), 6.0).layout
    assert [member.node for member in layout.members] == ([*"abcde"] if rule else [*"abce"])


def test_only_voters_make_a_majority_for_registers(rule: bool, without: Without) -> None:
    """Else a change is OK that no majority of the voters has."""
    without(RegisterRound, "is_majority", lambda self, bits: bits.bit_count() >= 3)
    without(RegisterRound, "is_read", lambda self, bits: bool(bits))
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.add("e")
    cluster.topic()
    cluster.kill("bc")
    assert isinstance(cluster.ask("d", m.AlterTopic("jobs", max_deliveries=9), 6.0), m.Failed) is rule


def test_a_moved_directory_is_confirmed_by_members_that_were_added(rule: bool, without: Without) -> None:
    """Else, as d alone has seen the second start of c, what c and d acked is delivered again by c's copy and a."""
    cluster = GrowingCluster(3)
    cluster.add("d")
    topic = cluster.ask("a", m.CreateTopic("jobs", 3, 8)).topic
    assert any(set(members) == {*"acd"} for members in topic.replicas)
    cluster.advance(3.0)
    backup = list(cluster.journals["c"])
    cut(cluster, "ac", "bc")
    cluster.crash("c")
    cluster.kill("d")
    cut(cluster)
    cluster.kill("c")
    cluster.journals["c"] = backup
    without(Trust, "unconfirmed", lambda self, context: [it for it in "ab" if it not in self.confirmed_by])
    cluster.start("c", 10.0)
    assert cluster.nodes["c"].catalogue.cluster.is_member("d")
    assert cluster.nodes["c"].state.trusted is not rule
    if rule:
        cluster.start("d")
        cluster.relink()
        assert cluster.nodes["c"].state.trusted


def test_answers_about_registers_name_starts_of_members(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the nodes know different layouts: numbers of members stay the same."""
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.drop = lambda sender, to, message: type(message) is m.PutCluster and to == "c"
    cluster.change("e")
    vectors = [cluster.nodes[name].state.register_vector() for name in "ac"]
    assert [len(vector) for vector in vectors] == [5, 4]
    later = vectors[0][3]._replace(n=vectors[0][3].n + 1)
    news = (*vectors[0][:3], later, vectors[0][4])
    state = cluster.nodes["c"].state
    if rule:
        state.learn_register_vector(news)
    else:
        a = cluster.nodes["a"].state
        starts = a.vector(a.catalogue.cluster.names)._replace(newest=news)
        state.learn_vector(state.catalogue.cluster.names, starts)
    assert (state.known["d"] == later) is rule


def test_a_node_hears_of_members_by_its_peers_heartbeats() -> None:
    cluster = GrowingCluster(3)
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    cluster.change("d")
    assert not cluster.nodes["c"].catalogue.cluster.is_member("d")
    cluster.hear_all(1.0)
    assert cluster.nodes["c"].catalogue.cluster.is_member("d")


def test_layouts_of_one_number_and_other_content_are_refused_by_name() -> None:
    one, other = GrowingCluster(3), GrowingCluster(3)
    one.change("d")
    other.change("e")
    refused = one.ask("a", other.nodes["b"].hello(other.now))
    assert refused.code == Code.CLUSTER_MISMATCH
    assert "layout 1 of the cluster at node" in refused.detail
    other.change("f")
    assert "not in the node list" in one.ask("a", other.nodes["b"].hello(other.now)._replace(node="e")).detail


def test_status_says_where_the_configuration_is_out_of_date() -> None:
    cluster = GrowingCluster(3, addresses=(("a", "a:7401"), ("b", "b:1"), ("c", "c:7401")))
    assert "layout" not in cluster.nodes["a"].status(cluster.now)
    cluster.change("d")
    cluster.ask("a", m.ChangeMembers("add", "b", "b:2"))
    status = cluster.nodes["a"].status(cluster.now)
    assert (status["layout"], status["members"], status["voters"]) == (2, [*"abcd"], [*"abc"])
    assert status["outdated"] == "it has b = 'b:1', and the members' list 'b:2'", (
        "a list of the voters is enough"
    )
    members = cluster.nodes["a"].catalogue.cluster
    addresses = [(name, f"{name}:7401") for name in "acd"]
    assert outdated(members, "a", addresses) == "it lacks b = 'b:2'"
    assert outdated(members, "a", addresses[:2]) == "it lacks b = 'b:2'"
    assert outdated(members, "b", [*addresses[:2], ("b", "b:1")]) == "", "it may listen elsewhere"
    cluster.change("e")
    members = cluster.nodes["a"].catalogue.cluster
    assert outdated(members, "a", addresses) == "it lacks b = 'b:2'; it lacks e = 'e:7401'"


# ------------------------------------------------------------------------------------- leaving


def exit_cluster(cluster: GrowingCluster, change: str, name: str, through: str = "a") -> object:
    return cluster.ask(through, m.ChangeMembers(change, name))


def test_a_node_is_drained_and_removed_and_refused_by_name() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.add("e")
    topic = next(
        made for name in ("one", "two", "three", "jobs") if "d" in (made := cluster.topic(name)).replicas[0]
    )
    assert "is in use: `quorumq nodes drain d`" in exit_cluster(cluster, "remove", "d").detail
    for _ in range(2):
        reply = exit_cluster(cluster, "drain", "d", "e")
        assert isinstance(reply, m.ChangeMembersReply), reply
        assert reply.layout.number == 3
    refused = exit_cluster(cluster, "remove", "d")
    assert f"node d still keeps {topic.name}/0" in refused.detail
    to = next(name for name in "abce" if name not in topic.replicas[0])
    assert "to is 'd'" in cluster.ask("a", m.MovePartition(topic.name, 0, topic.replicas[0][0], "d")).detail
    assert isinstance(cluster.ask("b", m.MovePartition(topic.name, 0, "d", to)), m.TopicReply)
    cluster.advance(0.1)
    refused = exit_cluster(cluster, "remove", "d")
    assert isinstance(refused, m.Failed), "its payload is not copied yet"
    cluster.advance(12.0)
    refused = exit_cluster(cluster, "remove", "d", "d")
    assert (refused.code, refused.detail) == (Code.NOT_STORED, "a node cannot remove itself: ask another one")
    assert cluster.nodes["d"].catalogue.cluster.layout.number == 3
    for _ in range(2):
        reply = exit_cluster(cluster, "remove", "d", "c")
        assert isinstance(reply, m.ChangeMembersReply), reply
        assert reply.layout.number == 4
    assert reply.layout.members[3] == Member("d", state=MemberState.REMOVED), "its name and number are kept"
    assert cluster.nodes["c"].catalogue.cluster.present == ("a", "b", "c", "e")
    assert not any("d" in cluster.nodes[name].state.links for name in "abce")
    hello = cluster.nodes["d"].hello(cluster.now)
    assert "node 'd' was removed from this cluster (layout 4" in cluster.ask("e", hello).detail
    assert [info.node for info in cluster.ask("e", m.Metadata()).nodes] == [*"abce"]
    cluster.kill("d")
    cluster.add("d")
    assert cluster.nodes["d"].state.trusted, "its name is given to another machine"
    assert [member.node for member in cluster.nodes["a"].catalogue.cluster.layout.members] == [*"abcded"]


def test_a_node_is_let_in_however_many_nodes_there_were() -> None:
    """The answer with the longest list fits the frame that a handshake may have."""
    host = ".".join(["h" * 63] * 4)
    here = [
        Member(f"{number:032}", f"{host}:{10_000 + number}", f"{host}:{20_000 + number}", "m" * 64)
        for number in range(NODES_MAX)
    ]
    gone = [Member(f"{number:032}", state=MemberState.REMOVED) for number in range(NODES_MAX, MEMBERS_MAX)]
    layout = ClusterLayout(1 << 60, STAMP_ZERO, (*here, *gone), 5)
    machines = tuple((member.node, member.machine) for member in here[:5])
    admitted = m.Admitted(tuple(member.node for member in here[:5]), 60.0, machines, layout)
    assert sum(map(len, encode_message(admitted))) < HANDSHAKE_BYTES_MAX


def test_a_node_that_is_dead_for_good_is_drained_from_the_others() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    topic = next(
        made for name in ("one", "two", "three", "jobs") if "d" in (made := cluster.topic(name)).replicas[0]
    )
    cluster.kill("d")
    assert isinstance(exit_cluster(cluster, "drain", "d"), m.ChangeMembersReply)
    to = next(name for name in "abc" if name not in topic.replicas[0])
    key = cluster.submit("b", m.MovePartition(topic.name, 0, "d", to))
    cluster.advance(5.0)
    assert isinstance(cluster.replies[key], m.TopicReply), cluster.replies[key]
    cluster.advance(20.0)
    assert f"still keeps {topic.name}/0" in exit_cluster(cluster, "remove", "d").detail
    assert isinstance(cluster.ask("b", m.MovePartition(topic.name, 0, "d", "")), m.TopicReply)
    assert isinstance(cluster.ask("c", m.MovePartition(topic.name, 0, "d", "")), m.TopicReply)
    (placement,) = cluster.nodes["a"].catalogue.topics[topic.id].layout.placements  # type: ignore[union-attr]
    assert (placement.sources, placement.before) == ((), ())
    assert isinstance(exit_cluster(cluster, "remove", "d"), m.ChangeMembersReply)


def test_a_source_that_is_up_or_has_a_replica_is_not_given_up() -> None:
    """Else messages are lost that a node has, because of a typing error."""
    cluster = GrowingCluster(3)
    topic = cluster.topic()
    cluster.add("d")
    for to in ("", "b", "d"):
        refused = cluster.ask("b", m.MovePartition("jobs", 0, "z", to))
        assert "from is 'z': there never was such a node" in refused.detail
    give_up = m.MovePartition("jobs", 0, "a", "")
    assert "has a replica of partition 0" in cluster.ask("b", give_up).detail
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply)
    assert isinstance(cluster.ask("b", m.MovePartition("jobs", 0, "a", "d")), m.TopicReply)
    assert "is up, and gives partition 0" in cluster.ask("b", give_up).detail
    cluster.kill("da")
    assert cluster.ask("b", give_up, 6.0).code == Code.TOO_FEW_REPLICAS, (
        "the new replica may know of messages that are at a"
    )
    assert cluster.nodes["b"].catalogue.topics[topic.id].placement(0).sources == ("a",)  # type: ignore[union-attr]


def test_a_voter_is_not_removed_and_a_drained_node_may_stay() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    refused = exit_cluster(cluster, "remove", "b")
    assert refused.code == Code.USAGE
    assert "node b is a voter" in refused.detail
    for change in ("drain", "remove"):
        assert "there is no node 'x'" in exit_cluster(cluster, change, "x").detail
    exit_cluster(cluster, "drain", "d")
    assert not any("d" in each for each in cluster.topic("jobs", partitions=8).replicas)
    assert cluster.change("d").number == 3, "it is in use again"
    assert any("d" in each for each in cluster.topic("more", partitions=8).replicas)


def test_more_partitions_are_not_put_on_a_leaving_node() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.topic("jobs", partitions=1)
    exit_cluster(cluster, "drain", "d")
    refused = cluster.ask("a", m.AlterTopic("jobs", partitions=12))
    assert refused.code == Code.USAGE
    assert "d is no member any more, or drained" in refused.detail
    assert isinstance(exit_cluster(cluster, "remove", "d"), m.Failed) is any(
        "d" in members for topic in cluster.nodes["a"].catalogue.live() for members in topic.replicas
    )


# ------------------------------------------------------------------------- registers on later members


def test_registers_are_changed_where_replica_sets_have_later_members() -> None:
    """Each of these needs a majority of every replica set, and one later member is down."""
    cluster = GrowingCluster(3)
    for name in "def":
        cluster.add(name)
    topic = cluster.topic("jobs", partitions=2)
    assert all(set(members) & {*"def"} for members in topic.replicas), "else choose another name"
    cluster.kill("f")
    for request, reply in (
        (m.SetGroup("jobs", "g"), m.GroupReply),
        (m.SetGroup("jobs", "late", "latest"), m.GroupReply),
        (m.PauseGroup("jobs", "g", True), m.GroupReply),
        (m.AlterTopic("jobs", max_deliveries=9), m.TopicReply),
        (m.AlterTopic("jobs", partitions=4), m.TopicReply),
        (m.LabelsRequest("jobs", (m.LabelChange("team", "x"),)), m.LabelsReply),
        (m.DeleteGroup("jobs", "g"), m.GroupReply),
        (m.DeleteTopic("jobs", topic.id), m.TopicReply),
        (m.CreateTopic("jobs", 3, 2), m.TopicReply),
    ):
        for through in "d", "a":
            if through == "a" and not isinstance(request, m.AlterTopic):
                continue
            key = cluster.submit(through, request)
            cluster.advance(2.0)
            assert isinstance(cluster.replies.get(key), reply), (request, cluster.replies.get(key))


def test_a_later_member_finds_what_it_has_not_received() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.drop = lambda sender, to, message: (
        to == "d" and isinstance(message, m.PutTopic | m.PutGroup | m.SyncTopics)
    )
    topic = cluster.topic("jobs")
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g")), m.GroupReply)
    assert topic.id not in cluster.nodes["d"].topics
    refused = cluster.ask("d", m.AlterTopic("other", max_deliveries=9))
    assert refused.code == Code.NOT_FOUND, "a majority of the voters does not know it"
    assert isinstance(cluster.ask("d", m.AlterTopic("jobs", max_deliveries=9)), m.TopicReply)


def test_a_later_member_is_sent_registers_again_and_again() -> None:
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.drop = lambda sender, to, message: to == "d" and isinstance(message, m.PutTopic | m.SyncTopics)
    topic = cluster.topic("jobs")
    cluster.advance(5.0)
    assert topic.id not in cluster.nodes["d"].topics
    cluster.drop = lambda sender, to, message: "d" in (sender, to) and isinstance(message, m.PutTopic)
    cluster.advance(8.0)
    assert topic.id in cluster.nodes["d"].topics, "its peers compare with it"


def test_a_group_is_looked_for_at_later_members_too() -> None:
    """Else too few of a replica set answer, and no answer is certain."""
    cluster = GrowingCluster(3)
    for name in "de":
        cluster.add(name)
    assert any({"d", "e"} <= set(members) for members in cluster.topic("jobs", partitions=8).replicas)
    assert cluster.ask("a", m.PauseGroup("jobs", "g", True)).code == Code.NOT_FOUND


def half_known_move(cluster: GrowingCluster, *deaf: str) -> None:
    """A move to d is accepted by all voters but these, and no node has it as chosen."""
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.PutTopic | m.SyncTopics)
        or (isinstance(message, m.Accept) and message.layout is not None and to in deaf)
    )
    cluster.submit("a", m.MovePartition("jobs", 0, "c", "d"))
    cluster.advance(0.1)


def test_a_node_that_a_chosen_layout_puts_a_partition_on_is_not_removed(rule: bool, without: Without) -> None:
    """The coordinator need not know of it: each acceptor of the removal is asked."""
    without(proposing, "contradiction", lambda catalogue, value, stands: "")
    without(voterslots, "undecided_on", lambda catalogue, nodes: [])
    cluster = GrowingCluster(3)
    cluster.topic("jobs")
    cluster.add("d")
    half_known_move(cluster, "c")
    assert isinstance(exit_cluster(cluster, "drain", "d", "c"), m.ChangeMembersReply)
    assert isinstance(cluster.ask("c", m.ChangeMembers("remove", "d"), 10.0), m.Failed) is rule
    cluster.hear_all(10.0)
    topic = cluster.nodes["b"].topic_named("jobs")
    assert "d" in topic.replicas[0] or topic.layout is None
    assert cluster.nodes["b"].catalogue.cluster.is_member("d") is rule


def test_a_value_that_puts_a_partition_on_a_removed_node_is_passed_over(rule: bool, without: Without) -> None:
    """It was accepted by a alone, and never will be chosen: else no layout of the topic could be."""
    without(Proposer, "_is_refused", lambda *args: False)
    cluster = GrowingCluster(3)
    cluster.topic("jobs")
    for name in "de":
        cluster.add(name)
    half_known_move(cluster, "b", "c")
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    for change in ("drain", "remove"):
        key = cluster.submit("c", m.ChangeMembers(change, "d"))
        cluster.advance(6.0)
        assert isinstance(cluster.replies[key], m.ChangeMembersReply), cluster.replies[key]
    cluster.hear_all(1.0)
    key = cluster.submit("b", m.MovePartition("jobs", 0, "c", "e"))
    cluster.advance(10.0)
    assert isinstance(cluster.replies[key], m.TopicReply) is rule, cluster.replies[key]


def half_known_topic() -> tuple[GrowingCluster, str]:
    """A topic on d is accepted by a alone, and no node has it as chosen; then d is drained. The topic's name."""
    cluster = GrowingCluster(3)
    cluster.add("d")
    names = (f"jobs{number}" for number in range(100))
    name = next(name for name in names if "d" in cluster.topic(name).replicas[0])
    cluster = GrowingCluster(3)
    cluster.add("d")
    cluster.drop = lambda sender, to, message: isinstance(message, m.Accept) and to != "a"
    cluster.submit("a", m.CreateTopic(name, 3, 1))
    cluster.advance(6.0)
    cluster.drop = lambda sender, to, message: False
    assert isinstance(exit_cluster(cluster, "drain", "d", "c"), m.ChangeMembersReply)
    return cluster, name


def created(cluster: GrowingCluster, through: str, name: str) -> object:
    key = cluster.submit(through, m.CreateTopic(name, 3, 1))
    cluster.advance(12.0)
    return cluster.replies[key]


def test_a_removal_is_not_proposed_beside_a_topic_to_be_chosen_there(rule: bool, without: Without) -> None:
    """a accepts the topic and c the removal. b is wiped, and learns both: it can accept neither."""
    without(voterslots, "undecided_on", lambda catalogue, nodes: [])
    cluster, name = half_known_topic()
    cluster.kill("b")
    key = cluster.submit("c", m.ChangeMembers("remove", "d"))
    cluster.advance(10.0)
    removed = cluster.replies[key]
    assert isinstance(removed, m.Failed)
    assert (f"'{name}' may be placed on d" in removed.detail) is rule, removed.detail
    cluster.journals["b"] = []
    cluster.start("b")
    cluster.advance(10.0)
    assert cluster.nodes["b"].state.trusted
    assert isinstance(created(cluster, "c", name), m.TopicReply) is rule


def test_a_topic_on_a_drained_node_is_passed_over_without_a_majority(rule: bool, without: Without) -> None:
    accept = Proposer.accept
    without(Proposer, "_on_promised", lambda self, a, b, round_, now: accept(self, a, b, now))
    cluster, name = half_known_topic()
    reply = created(cluster, "b", name)
    assert isinstance(reply, m.TopicReply), reply
    assert ("d" not in reply.topic.replicas[0]) is rule
    assert isinstance(exit_cluster(cluster, "remove", "d", "c"), m.ChangeMembersReply) is rule


def stands_never(
    catalogue: Catalogue, value: Value, *, stands: bool, real: Callable[..., str] = proposing.contradiction
) -> str:
    return real(catalogue, value)


@pytest.mark.parametrize("silent", ["b", "c"])
def test_a_topic_that_a_drained_node_may_have_is_made(silent: str, rule: bool, without: Without) -> None:
    """a has accepted it, one other voter has not, and the third is gone for good: it may have accepted it, too."""
    without(proposing, "contradiction", stands_never)
    cluster, name = half_known_topic()
    cluster.kill(silent)
    reply = created(cluster, "a", name)
    assert isinstance(reply, m.TopicReply) is rule, reply
    assert isinstance(created(cluster, "a", name), m.TopicReply) is rule, "for ever"
    if rule:
        kept = cluster.ask("a", m.ChangeMembers("remove", "d"), 6.0, of=m.Failed)
        assert f"d still keeps {name}/0" in kept.detail


def test_a_layout_that_may_be_chosen_keeps_no_other_from_it(rule: bool, without: Without) -> None:
    without(proposing, "contradiction", stands_never)
    cluster = GrowingCluster(3)
    cluster.topic("jobs")
    for name in "de":
        cluster.add(name)
    half_known_move(cluster, "b", "c")
    cluster.hear_all()
    assert isinstance(exit_cluster(cluster, "drain", "d", "c"), m.ChangeMembersReply)
    cluster.kill("c")
    replies = [cluster.ask("b", m.MovePartition("jobs", 0, old, "e"), 30.0) for old in "cd"]
    assert isinstance(replies[-1], m.TopicReply) is rule, replies


def test_members_are_known_again_after_a_restart_and_in_a_snapshot() -> None:
    cluster = GrowingCluster(3)
    cluster.change("d")
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutCluster)
    core = cluster.nodes["b"]
    put = ClusterPut(core.catalogue.cluster.layout)
    assert put in cluster.journals["b"]
    assert put in core.snapshot(cluster.now)
    cluster.crash("b")
    assert cluster.nodes["b"].catalogue.cluster.is_member("d")

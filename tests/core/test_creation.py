"""CREATE is consensus: which first register a name gets is chosen once (docs/registers.md, CREATE)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.topics import first_topic
from quorumq.core.messages.effects import Effect, LinkDown, Persist, Received, Send
from quorumq.core.messages.records import DecisionPut, TopicPut
from quorumq.core.values.types import Group, Instance, Stamp, Topic, topic_id
from tests.core.cluster import Cluster
from tests.core.network import hand_over, held_back, wipe
from tests.core.steps import check_failed


def created(reply: object) -> Topic:
    assert isinstance(reply, m.TopicReply), reply
    return reply.topic


def is_conflict(reply: object) -> bool:
    return isinstance(reply, m.Failed) and reply.code == "conflict"


def answer(cluster: Cluster, key: int) -> object:
    """Return the reply to the request within ten seconds."""
    cluster.advance(10.0)
    return cluster.replies[key]


def payload(cluster: Cluster, topic: Topic) -> list[int]:
    """Return the number of the topic's messages, by node."""
    return [
        sum(
            replica.batches.present.messages
            for replica in core.replicas.values()
            if replica.topic.id == topic.id
        )
        for core in cluster.nodes.values()
    ]


def filled(cluster: Cluster, topic: Topic, node: str) -> None:
    producer_id = cluster.ask(node, m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask(node, m.Publish(cluster.batch(topic, producer_id, 0, [b"m"] * 5)), of=m.PublishReply)


# ---------------------------------------------------------------------- nodes that are down


def test_a_new_topic_avoids_nodes_that_are_down_if_enough_are_up() -> None:
    cluster = Cluster(5)
    cluster.kill("de", 0.1)
    assert created(cluster.ask("a", m.CreateTopic("early", rf=1, partitions=32))).over == (), "they may start"
    cluster.advance(10.0)
    for rf in (1, 3):
        topic = created(cluster.ask("a", m.CreateTopic(f"t{rf}", rf, partitions=32)))
        assert {node for members in topic.replicas for node in members} == {*"abc"}
        filled(cluster, topic, "b")
    cluster.start("d", 10.0)
    wide = created(cluster.ask("a", m.CreateTopic("wide", rf=5)))
    assert len(wide.replicas[0]) == 5
    assert wide.over == (), "too few are up: it is placed as if all were"
    cluster.start("e", 10.0)
    assert created(cluster.ask("e", m.CreateTopic("late", rf=1))).over == ()


def test_creations_by_nodes_that_see_different_ones_down_agree() -> None:
    cluster = Cluster(5)
    cluster.advance(10.0)
    cluster.feed("a", LinkDown("d"))
    cluster.feed("b", LinkDown("e"))
    cluster.delay = 0.01
    keys = [cluster.submit(name, m.CreateTopic("jobs", rf=1, partitions=32)) for name in "ab"]
    cluster.advance(10.0)
    first, second = [created(cluster.replies[key]) for key in keys]
    assert first.replicas == second.replicas
    assert {*"abcde"} - {node for members in first.replicas for node in members} in ({"d"}, {"e"})


def test_partitions_are_not_added_on_nodes_that_are_down() -> None:
    cluster = Cluster()
    topic = cluster.topic(rf=1)
    cluster.advance(10.0)
    cluster.kill("c")
    assert "c" not in topic.replicas[0]
    reply = cluster.ask("a", m.AlterTopic("jobs", partitions=32))
    check_failed(reply, "too-few-replicas", "would be on c, and too few of these are up (away: c)")
    assert cluster.nodes["a"].topics[topic.id].all_partitions == 1
    cluster.start("c", 1.0)
    cluster.ask("a", m.AlterTopic("jobs", partitions=32), of=m.TopicReply)


# ---------------------------------------------------------------------- conflicts destroy nothing


def test_a_refusal_to_an_uninformed_node_destroys_nothing() -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: (
        to == "a" and sender != "a" and isinstance(message, m.PutTopic | m.SyncTopics)
    )
    topic = created(cluster.ask("b", m.CreateTopic("jobs", 3)))
    filled(cluster, topic, "b")
    assert is_conflict(cluster.ask("a", m.CreateTopic("jobs", 1)))
    cluster.hear_all(10.0)
    assert cluster.nodes["a"].topic_named("jobs") == topic, "what a serves is what there is"
    other = first_topic(m.CreateTopic("jobs", 1), cluster.names, 0, Stamp(1, "a"))
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    for node in "abc":
        check_failed(cluster.ask(node, m.Publish(cluster.batch(other, producer_id, 0, [b"x"]))), "not-found")
    assert payload(cluster, topic) == [5, 5, 5]


@pytest.mark.parametrize("rf", [1, 3])
def test_a_creation_on_the_minority_side_of_a_cut_serves_nothing(rf: int) -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: sender != to and "a" in (sender, to)
    key = cluster.submit("a", m.CreateTopic("jobs", rf, 2))
    topic = created(cluster.ask("b", m.CreateTopic("jobs", 3, 4)))
    filled(cluster, topic, "b")
    check_failed(answer(cluster, key), "outcome-unknown")
    assert not cluster.nodes["a"].topics
    cluster.hear_all(10.0)
    assert is_conflict(cluster.ask("a", m.CreateTopic("jobs", rf, 2)))
    assert [core.catalogue.register_named("jobs") for core in cluster.nodes.values()] == [topic] * 3
    assert payload(cluster, topic) == [5, 5, 5]


def test_a_creation_that_loses_moves_no_output() -> None:
    """``born`` says where outputs go: it is that of the creation that won, in any order of arrival."""
    cluster = Cluster()
    late = held_back(
        cluster,
        lambda sender, to, message: sender + to == "bc" and isinstance(message, m.Accept),
        lambda sender, to, message: {sender, to} == {"a", "b"},
    )
    loser = cluster.submit("b", m.CreateTopic("out", 3, 2))
    made = created(cluster.ask("a", m.CreateTopic("out", 3, 4)))
    cluster.hear_all()
    assert late
    for item in late:
        hand_over(cluster, *item)
    assert is_conflict(answer(cluster, loser))
    for core in cluster.nodes.values():
        assert core.topic_named("out") == made
    assert (made.born, made.partitions) == (4, 4)


def test_no_one_serves_finds_or_spreads_what_was_only_accepted() -> None:
    """A minority has accepted it, and its proposer is gone."""
    cluster = Cluster(5)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Accept) and to in "cde"
    cluster.submit("a", m.CreateTopic("jobs", 1))
    cluster.crash("a")
    cluster.hear_all(10.0)
    assert (
        sum(
            decision.topic is not None
            for core in cluster.nodes.values()
            for decision in core.catalogue.decisions.values()
        )
        == 2
    )
    for node in cluster.names:
        assert not cluster.nodes[node].topics
        assert isinstance(cluster.ask(node, m.Metadata(("jobs",))), m.Failed)
    cluster.ask("c", m.CreateTopic("jobs", 5))
    (made,) = {core.topic_named("jobs") for core in cluster.nodes.values()}
    assert made is not None


# ------------------------------------------------------------------------- two creations at once


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
@pytest.mark.parametrize("alike", [True, False])
def test_two_creations_at_once_are_one_topic(nodes: int, alike: bool) -> None:
    cluster = Cluster(nodes)
    keys = [
        cluster.submit(node, m.CreateTopic("jobs", 1, partitions, max_deliveries=4 if alike else partitions))
        for node, partitions in (("a", 2), ("b", 2 if alike else 3))
    ]
    cluster.advance(10.0)
    replies = [cluster.replies[key] for key in keys]
    (one,) = {core.topic_named("jobs") for core in cluster.nodes.values()}
    won = [reply for reply in replies if isinstance(reply, m.TopicReply)]
    assert len(won) == (2 if alike else 1)
    assert all(reply.topic == one for reply in won)
    assert all(is_conflict(reply) for reply in replies if reply not in won)


def test_a_creation_that_won_is_created_though_it_was_changed_before_its_client_knew() -> None:
    cluster = Cluster()
    late = held_back(
        cluster, lambda sender, to, message: isinstance(message, m.PutTopic) and sender == "a" and to != "a"
    )
    key = cluster.submit("a", m.CreateTopic("jobs", max_deliveries=9))
    altered = cluster.ask("b", m.AlterTopic("jobs", max_deliveries=2), of=m.TopicReply)
    cluster.hear_all()
    for item in late:
        hand_over(cluster, *item)
    assert created(answer(cluster, key)) == altered.topic
    assert is_conflict(cluster.ask("a", m.CreateTopic("jobs", max_deliveries=9))), (
        "that is what it is not any more"
    )


def test_the_next_creation_finds_the_value_that_a_majority_accepted() -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: isinstance(message, m.ProposalReply) and sender != to
    silent = cluster.drop
    received: list[object] = []

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.ProposalReply) and sender == "b" and not received:
            received.append(message)
            return False  # the promise
        return silent(sender, to, message)

    cluster.drop = keep
    key = cluster.submit("a", m.CreateTopic("jobs", 1))
    check_failed(answer(cluster, key), "outcome-unknown")
    cluster.kill("a")
    cluster.hear_all()
    assert is_conflict(cluster.ask("c", m.CreateTopic("jobs", 3))), "it was chosen, though nobody knew"
    assert cluster.nodes["c"].topic_named("jobs").rf == 1  # type: ignore[union-attr]


def test_a_topic_made_by_a_producer_takes_the_first_explicit_settings() -> None:
    cluster = Cluster()
    first = created(cluster.ask("a", m.CreateTopic("jobs", implicit=True)))
    assert (first.born, first.partitions) == (1, 1)
    made = created(cluster.ask("b", m.CreateTopic("jobs", partitions=4, max_deliveries=9)))
    assert (made.id, made.made, made.born) == (first.id, first.made, 1)
    assert (made.partitions, made.max_deliveries) == (4, 9)
    assert is_conflict(cluster.ask("c", m.CreateTopic("jobs", partitions=4, max_deliveries=5)))
    assert created(cluster.ask("c", m.CreateTopic("jobs", implicit=True))) == made


def test_two_simultaneous_creations_of_an_implicit_topic_do_not_conflict() -> None:
    cluster = Cluster()
    cluster.ask("a", m.CreateTopic("jobs", implicit=True))
    late = held_back(
        cluster,
        lambda sender, to, message: (
            sender == "a" and to == "c" and isinstance(message, m.PutTopic) and message.topic.partitions == 4
        ),
        lambda sender, to, message: {sender, to} == {"a", "b"},
    )
    one = cluster.submit("a", m.CreateTopic("jobs", partitions=4, max_deliveries=4))
    other = cluster.submit("b", m.CreateTopic("jobs", partitions=2, max_deliveries=2))
    cluster.hear_all()
    for item in late:
        hand_over(cluster, *item)
    replies = [answer(cluster, key) for key in (one, other)]
    served = cluster.nodes["c"].topic_named("jobs")
    assert served is not None
    for reply, asked in zip(replies, (4, 2), strict=True):
        if is_conflict(reply):
            assert asked not in (served.partitions, served.max_deliveries), replies


# -------------------------------------------------------------------------------- names given again


def test_a_name_is_given_again_and_only_once() -> None:
    cluster = Cluster(5)
    for deletions in range(3):
        keys = [
            cluster.submit(node, m.CreateTopic("jobs", rf, retention_s=float(rf)))
            for node, rf in (("a", 1), ("e", 3))
        ]
        cluster.advance(10.0)
        (one,) = {core.topic_named("jobs") for core in cluster.nodes.values()}
        assert one is not None
        assert one.deletions == deletions
        assert one.id == topic_id("jobs", one.rf, deletions)
        assert sum(isinstance(cluster.replies[key], m.TopicReply) for key in keys) == 1
        assert isinstance(cluster.ask("c", m.DeleteTopic("jobs", one.id)), m.TopicReply)
    assert not any(core.catalogue.decisions for core in cluster.nodes.values())


# ------------------------------------------------------------------------------- acceptors on disk


def half_chosen(cluster: Cluster) -> Topic:
    """a, b and c of five have accepted a topic, and a serves it. No other node knows that it was chosen."""
    cluster.drop = lambda sender, to, message: (
        (isinstance(message, m.Prepare | m.Accept) and to in "de")
        or (isinstance(message, m.PutTopic | m.SyncTopics) and sender != to)
    )
    cluster.submit("a", m.CreateTopic("jobs", 1))
    (topic,) = cluster.nodes["a"].topics.values()
    assert not any(cluster.nodes[node].topics for node in "bcde")
    return topic


def of_others(cluster: Cluster) -> Topic | None:
    """a and c are gone; d gets a different creation of the name."""
    cluster.kill("ac")
    cluster.hear_all()
    cluster.submit("d", m.CreateTopic("jobs", 3))
    cluster.advance(6.0)
    return cluster.nodes["d"].topic_named("jobs")


def test_an_accepted_value_survives_a_restart_of_the_acceptor() -> None:
    cluster = Cluster(5, hold_time_max=1.0)
    topic = half_chosen(cluster)
    cluster.crash("b")
    assert of_others(cluster) == topic


def test_an_accepted_value_is_in_the_snapshot_of_the_acceptor() -> None:
    cluster = Cluster(5, hold_time_max=1.0)
    topic = half_chosen(cluster)
    snapshot = cluster.nodes["b"].snapshot(cluster.now)
    cluster.kill("b")
    cluster.journals["b"] = list(snapshot)
    cluster.start("b")
    assert of_others(cluster) == topic


def test_a_wiped_acceptor_learns_its_accepted_value_from_peers() -> None:
    """By c, to which it is no register."""
    cluster = Cluster(5, hold_time_max=1.0)
    topic = half_chosen(cluster)
    cluster.feed("b", LinkDown("a"))
    cluster.kill("a")
    wipe(cluster, "b", 3.0)
    assert cluster.nodes["b"].state.trusted
    cluster.start("a")
    assert of_others(cluster) == topic


def test_a_wiped_acceptor_learns_its_promise_from_peers() -> None:
    """An ACCEPT that is late by a wipe must not pass an acceptor that has promised otherwise."""
    cluster = Cluster(5, hold_time_max=1.0)
    late: list[tuple[str, str, object]] = []

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.Accept) and sender == "a":
            late.append((sender, to, message))
            return True
        return isinstance(message, m.PutTopic | m.SyncTopics) and sender != to

    cluster.drop = keep
    loser = cluster.submit("a", m.CreateTopic("jobs", 1))
    cluster.drop = lambda sender, to, message: (
        keep(sender, to, message)
        or (isinstance(message, m.Prepare | m.Accept) and sender == "e" and to in "ab")
    )
    cluster.submit("e", m.CreateTopic("jobs", 3))  # c, d and e choose it, and e serves it
    assert cluster.nodes["e"].topic_named("jobs").rf == 3  # type: ignore[union-attr]
    cluster.kill("e")
    wipe(cluster, "c", 0.6)
    assert cluster.nodes["c"].state.trusted
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutTopic | m.SyncTopics) and sender != to
    for item in [item for item in late if item[1] in "bc"]:
        hand_over(cluster, *item)
    served = cluster.nodes["a"].topic_named("jobs")
    assert served is None or served.rf == 3
    cluster.hear_all()
    assert not isinstance(answer(cluster, loser), m.TopicReply)
    cluster.start("e")
    assert is_conflict(cluster.ask("a", m.CreateTopic("jobs", 1)))


@pytest.mark.parametrize("order", ["ac", "ca"])
def test_the_accepted_value_of_the_higher_ballot_is_proposed_again(order: str) -> None:
    """a alone has accepted its own; c, d and e have accepted e's, under a higher ballot: that is chosen."""
    cluster = Cluster(5)
    registers = (m.PutTopic, m.SyncTopics, m.RegistersReply)
    cluster.drop = lambda sender, to, message: isinstance(message, (m.Accept, *registers)) and sender != to
    cluster.submit("a", m.CreateTopic("jobs", 1))
    cluster.drop = lambda sender, to, message: (
        sender != to and (isinstance(message, registers) or bool({sender, to} & {"a", "b"}))
    )
    cluster.submit("e", m.CreateTopic("jobs", 3))
    made = cluster.nodes["e"].topic_named("jobs")
    assert made is not None
    late: dict[str, object] = {}

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.ProposalReply) and to == "b" and sender != "b":
            late.setdefault(sender, message)
            return True
        return sender != to and (isinstance(message, registers) or "e" in (sender, to))

    cluster.drop = keep
    cluster.nodes["b"].state.clock.value += 1 << 20  # above all that was promised
    key = cluster.submit("b", m.CreateTopic("jobs", 5))
    proposed: list[Topic] = []
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.Accept) and sender == "b" and bool(proposed.append(message.topic) or True)
    )
    for sender in order:
        hand_over(cluster, sender, "b", late[sender])
    assert key not in cluster.replies
    assert set(proposed) == {made}


def test_an_instance_that_is_over_is_not_begun_again_by_a_node_that_knows_none() -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: sender != to and "c" in (sender, to)
    old = created(cluster.ask("a", m.CreateTopic("jobs", 1)))
    assert isinstance(cluster.ask("a", m.DeleteTopic("jobs", old.id)), m.TopicReply)
    made = created(cluster.ask("a", m.CreateTopic("jobs", 3)))
    assert made.deletions == 1
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    assert not cluster.nodes["c"].topics
    assert is_conflict(cluster.ask("c", m.CreateTopic("jobs", 1)))
    assert cluster.nodes["c"].topic_named("jobs") == made


def test_a_node_that_is_learning_answers_no_proposal() -> None:
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    wipe(cluster, "b")
    cluster.kill("c")
    key = cluster.submit("a", m.CreateTopic("jobs", 1))
    assert isinstance(answer(cluster, key), m.Failed)
    assert not cluster.nodes["b"].catalogue.decisions
    assert not cluster.nodes["a"].topics


@pytest.mark.parametrize(
    "request_",
    [
        m.CreateTopic("new", 1),
        m.SetGroup("jobs", "new"),
        m.SetGroup("jobs", "new", "latest"),
        m.DeleteGroup("jobs", "old"),
    ],
    ids=["topic", "group", "group from latest", "deletion"],
)
def test_a_refusal_before_a_vote_is_no_vote(request_: m.CreateTopic | m.SetGroup | m.DeleteGroup) -> None:
    """b and c is not trusted, and e is down: a and d are no majority, however late d answers."""
    cluster = Cluster(5)
    cluster.topic()
    cluster.ask("a", m.SetGroup("jobs", "old"))
    cluster.advance(1.0)
    late = held_back(
        cluster,
        lambda sender, to, message: isinstance(message, m.ProposalReply) and sender == "d",
        lambda sender, to, message: isinstance(message, m.ResyncReply),
    )
    wipe(cluster, "b")
    wipe(cluster, "c")
    cluster.kill("e")
    core = cluster.nodes["a"]
    before = dict(core.topics), dict(core.catalogue.groups)
    key = cluster.submit("a", request_)
    assert late, "d has voted"
    while late:
        hand_over(cluster, *late.pop(0))
    assert (dict(core.topics), dict(core.catalogue.groups)) == before
    assert isinstance(answer(cluster, key), m.Failed)


def test_acceptors_drop_the_proposal_once_the_choice_is_known() -> None:
    cluster = Cluster(5)
    half_chosen(cluster)
    assert cluster.nodes["b"].catalogue.decisions
    cluster.hear_all(10.0)
    for core in cluster.nodes.values():
        assert not core.catalogue.decisions
        assert not any(isinstance(record, DecisionPut) for record in core.snapshot(cluster.now))
    cluster.crash("b")
    assert not cluster.nodes["b"].catalogue.decisions, "nor does its journal bring it back"


@pytest.mark.parametrize("kind", [m.ProposalReply, m.PutReply])
def test_a_vote_of_a_superseded_start_does_not_count(kind: type) -> None:
    """b's answer is on its way while b is started again; c has seen the new start, and says so in its own."""
    cluster = Cluster(5)
    late: list[tuple[str, str, object]] = []

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, kind) and sender in "bc" and to == "a":
            late.append((sender, to, message))
            return True
        return sender != to and {sender, to} & {"d", "e"} != set()

    if kind is m.PutReply:
        cluster.topic()
    cluster.drop = keep
    request = (
        m.CreateTopic("jobs", 3, max_deliveries=9)
        if kind is m.ProposalReply
        else m.AlterTopic("jobs", ttl_s=3.0)
    )
    key = cluster.submit("a", request)
    ((_, _, first),) = [item for item in late if item[0] == "b"]
    ((_, _, second),) = [item for item in late if item[0] == "c"]
    old = cluster.nodes["b"].state.incarnation
    core, b, c = cluster.nodes["a"], cluster.nodes["b"], cluster.nodes["c"]
    later = old._replace(n=old.n + 1)
    known = tuple(
        later if node == "b" else seen for node, seen in zip(cluster.names, second.known, strict=True)
    )  # type: ignore[attr-defined]
    cluster.drop = lambda sender, to, message: True
    for sender, incarnation, message in (
        ("b", old, first),
        ("c", c.state.incarnation, second._replace(known=known)),
    ):  # type: ignore[attr-defined]
        envelope = m.Envelope(sender, incarnation, "a", core.state.incarnation, b.state.clock.value, message)  # type: ignore[arg-type]
        cluster.feed("a", Received(envelope))
    assert key not in cluster.replies
    (round_,) = cluster.nodes["a"].context.requests[key].rounds.values()
    assert round_.valid(core.state) == 0b101, "a and c: it is no majority of five"


# ----------------------------------------------------------------------------------- what it costs


def counted(cluster: Cluster) -> dict[str, int]:
    """Count the messages that are sent from now on, by type."""
    kinds: dict[str, int] = {}

    def count(sender: str, to: str, message: object) -> bool:
        kinds[type(message).__name__] = kinds.get(type(message).__name__, 0) + 1
        return False

    cluster.drop = count
    return kinds


def test_a_creation_is_three_rounds_and_three_writes_on_each_node() -> None:
    cluster = Cluster()
    before = {name: len(cluster.journals[name]) for name in "abc"}
    kinds = counted(cluster)
    cluster.ask("a", m.CreateTopic("jobs"))
    others = {"Prepare": 2, "Accept": 2, "PutTopic": 2}  # messages of a node to itself do not travel
    assert kinds == {**others, "ProposalReply": 4, "PutReply": 2}
    for name in "abc":
        written = [type(record) for record in cluster.journals[name][before[name] :]]
        assert written == [DecisionPut, DecisionPut, TopicPut]


def answers(effects: list[Effect]) -> list[tuple[int, m.PeerMessage]]:
    """Return sent messages, each with the number of records before it in the same Persist or an earlier one."""
    sent: list[tuple[int, m.PeerMessage]] = []
    records = 0
    for effect in effects:
        if isinstance(effect, Persist):
            records += len(effect.records)
            sent += [(records, item.message) for item in effect.then if isinstance(item, Send)]
        else:
            assert not isinstance(effect, Send), f"{effect} does not wait for the disk"
    return sent


def test_registers_promises_and_proposals_are_durable_before_they_are_answered() -> None:
    cluster = Cluster()
    topic = first_topic(m.CreateTopic("jobs"), cluster.names, 0, Stamp(1 << 60, "b"))
    core, peer = cluster.nodes["a"], cluster.nodes["b"]

    def told(message: m.PeerMessage) -> list[tuple[int, m.PeerMessage]]:
        own = core.state.incarnation
        envelope = m.Envelope("b", peer.state.incarnation, "a", own, 0, message)
        return answers(core.step([Received(envelope)], cluster.now, cluster.rng))

    for message in (
        m.Prepare(1, Instance(b"", "jobs", 0), Stamp(1 << 59, "b")),
        m.Accept(2, Stamp(1 << 60, "b"), topic),
        m.PutTopic(3, topic),
        m.PutGroup(4, Group(topic.id, "g", 0, 0)),
        m.PutTopic(5, topic._replace(deleted=True, replicas=())),
    ):
        ((records, reply),) = told(message)
        assert records == 1, message
        assert reply.round == message.round  # type: ignore[union-attr]
        ((records, again),) = told(message)
        assert records == 0, "there is nothing new to write, and it waits for what was written"
        assert isinstance(again, type(reply))

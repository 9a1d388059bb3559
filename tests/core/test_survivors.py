"""More directories lost than a resync can do without: declaring the rest to be all there is (docs/protocol.md)."""

from __future__ import annotations

import itertools

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.members import with_member
from quorumq.core.messages.effects import HelloRefused, Persist, Received
from quorumq.core.messages.records import Trusted
from quorumq.core.recovery.resync import Resync
from quorumq.core.recovery.survivors import answer_survivors
from quorumq.core.values.types import Member, ProducerId, Stamp, Topic
from tests.core.cluster import Cluster
from tests.core.conftest import Without
from tests.core.network import hand_over, wipe
from tests.core.steps import (
    check_failed,
    fetch,
    opened,
    outcomes,
    present,
    receipts,
    with_messages,
    with_session,
)


def wiped(cluster: Cluster, names: str) -> None:
    """These nodes are down, and start again with empty directories."""
    wipe(cluster, names, 3.0)


def declare(cluster: Cluster, through: str, survivors: str, within: float = 6.0) -> object:
    key = cluster.submit(through, m.DeclareSurvivors(tuple(survivors)))
    cluster.advance(0.0 if key in cluster.replies else within)
    return cluster.replies[key]


def trust(cluster: Cluster) -> str:
    return "".join(name for name in sorted(cluster.nodes) if cluster.nodes[name].state.trusted)


def resync_of(cluster: Cluster, name: str) -> str:
    return str(cluster.nodes[name].status(cluster.now)["resync"])


def test_two_of_three_wait_for_each_other_until_the_survivor_is_declared_to_be_all_there_is() -> None:
    cluster, topic, producer_id = with_session(10, hold_time_max=10.0)
    got = receipts(cluster.ask("b", fetch(most=4)))
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"]
    wiped(cluster, "bc")
    cluster.advance(60.0)
    assert trust(cluster) == "a"
    for name, other in ("bc", "cb"):
        text = resync_of(cluster, name)
        assert "was emptied" in text
        assert f"{other} is not trusted either" in text
        assert "`quorumq survivors declare`" in text
        assert "runs twice" not in text

    plan = declare(cluster, "a", "")
    assert isinstance(plan, m.DeclareSurvivorsReply)
    assert plan.survivors == ("a",)
    assert [learner.node for learner in plan.learners] == ["b", "c"]
    assert all("was emptied" in learner.why for learner in plan.learners)
    cluster.advance(10.0)
    assert trust(cluster) == "a", "asking declares nothing"

    assert declare(cluster, "a", "a") == plan
    assert trust(cluster) == "abc"
    assert cluster.nodes["b"].context.quarantine_left(cluster.now) > 9.0, (
        "holds of the lost directories may be live"
    )
    cluster.advance(20.0)
    assert [present(cluster, name) for name in "abc"] == [10, 10, 10]
    cluster.kill("a")
    again = m.Publish(cluster.batch(topic, producer_id, 0, [b"%d" % number for number in range(10)]))
    assert isinstance(cluster.ask("b", again), m.PublishReply)
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("b", fetch(wait=0.9), 1.0))) == 6, (
        "not what was acked"
    )


def test_one_of_five_is_left_and_a_partition_of_which_nothing_is_begins_empty() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    topic, producer_id = opened(cluster, rf=3, partitions=8)
    for number in range(8):
        batch = cluster.batch(topic, producer_id, 0, [b"x"] * 3, partition=number)
        assert isinstance(cluster.ask("a", m.Publish(batch)), m.PublishReply)
    cluster.advance(10.0)
    kept = [number for number in range(8) if "a" in topic.replicas[number]]
    assert 0 < len(kept) < 8
    wiped(cluster, "bcde")
    assert trust(cluster) == "a"
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    assert trust(cluster) == "abcde"
    cluster.advance(20.0)
    for number, members in enumerate(topic.replicas):
        for name in members:
            replicas = {
                partition.number: replica for partition, replica in cluster.nodes[name].replicas.items()
            }
            assert replicas[number].batches.present.messages == (3 if number in kept else 0)
    for number in range(8):
        more = m.Publish(cluster.batch(topic, producer_id, 3, [b"y"], partition=number))
        assert isinstance(cluster.ask("b", more), m.PublishReply)


def test_all_survivors_answer_before_anyone_goes_on() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    topic, producer_id = opened(cluster, rf=5)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 6)))
    cluster.drop = lambda sender, to, message: to == "a" and sender != "a"
    cluster.settings["request_timeout"] = 1.0
    got = receipts(cluster.ask("b", fetch(most=2)))
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"], "a has not heard of it"
    cluster.drop = lambda sender, to, message: (
        {sender, to} == {"a", "b"} or (isinstance(message, m.ResyncReply) and sender == "b")
    )
    wiped(cluster, "cde")
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and sender == "b"
    assert isinstance(declare(cluster, "a", "ab"), m.DeclareSurvivorsReply)
    cluster.advance(10.0)
    assert trust(cluster) == "ab", "b has not told yet"
    assert "is not trusted" not in resync_of(cluster, "c"), "nor can it be said that nobody will"
    assert isinstance(declare(cluster, "b", ""), m.DeclareSurvivorsReply), "asking takes nothing back"
    cluster.hear_all(2.0)
    assert trust(cluster) == "abcde"
    for name in "cde":
        (replica,) = cluster.nodes[name].replicas.values()
        assert sum(span.size for span, _ in replica.group("g").records.items()) == 2


def acked_at_b_alone(cluster: Cluster) -> None:
    """Leave b's record alone of an ACK by b, c and d; c, d and e are wiped, and a answers them first."""
    topic, producer_id = opened(cluster, rf=5)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
    cluster.drop = lambda sender, to, message: "a" in (sender, to) or "e" in (sender, to)
    assert outcomes(cluster.ask("b", m.AckRequest(receipts(cluster.ask("b", fetch(wait=0.5), 2.0))))) == [
        "acked"
    ]
    cluster.drop = lambda sender, to, message: sender == "b" and not isinstance(message, m.SurvivorsReply)
    wiped(cluster, "cde")


def delivered(cluster: Cluster, through: str) -> int:
    """Return the number of messages that a node delivers once all are out of quarantine."""
    cluster.advance(15.0)
    reply = cluster.ask(through, fetch(wait=0.9), 6.0)
    return 0 if isinstance(reply, m.Failed) else sum(item.receipt.span.size for item in receipts(reply))


def test_whoever_does_not_hear_every_survivor_delivers_what_was_acked(rule: bool, without: Without) -> None:
    """The row of docs/rules.md: with the rule, and without it."""
    cluster = Cluster(5, hold_time_max=10.0)
    acked_at_b_alone(cluster)
    without(Resync, "lacks", lambda self, core: not self.survivors)
    assert isinstance(declare(cluster, "a", "ab"), m.DeclareSurvivorsReply)
    assert trust(cluster) == ("ab" if rule else "abcde")
    assert delivered(cluster, "c") == (0 if rule else 1)


def test_acks_known_to_a_cut_off_node_alone_come_again_without_a_wait(rule: bool) -> None:
    """The row of docs/rules.md: c lives, and knows b's acks with it."""
    cluster = with_messages(1, hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    assert outcomes(cluster.ask("c", m.AckRequest(receipts(cluster.ask("b", fetch(wait=0.5), 1.0))))) == [
        "acked"
    ]
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    wiped(cluster, "b")
    if rule:
        assert isinstance(declare(cluster, "a", "a"), m.Failed)
    else:
        envelope = m.Envelope(
            "a",
            cluster.nodes["a"].state.incarnation,
            "b",
            cluster.nodes["b"].state.incarnation,
            0,
            m.SurvivorsRequest(1, ("a",)),
        )
        cluster.feed("b", Received(envelope))
    assert trust(cluster) == ("ac" if rule else "abc")
    assert delivered(cluster, "a") == (0 if rule else 1)


def test_nodes_without_a_topic_wait_for_registers_all_the_same() -> None:
    cluster = Cluster()
    wiped(cluster, "bc")
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    assert trust(cluster) == "abc"


def test_most_nodes_are_left_but_too_few_of_one_replica_set() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    topic = cluster.topic(rf=3)
    lost, survivor = "".join(topic.replicas[0][:2]), topic.replicas[0][2]
    survivors = "".join(name for name in "abcde" if name not in lost)
    wiped(cluster, lost)
    assert trust(cluster) == survivors
    assert isinstance(declare(cluster, survivor, survivors), m.DeclareSurvivorsReply)
    assert trust(cluster) == "abcde"


def test_a_topic_that_was_deleted_needs_no_one() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    topic = cluster.topic(rf=3)
    lost = "".join(topic.replicas[0][:2])
    cluster.ask("a", m.DeleteTopic("jobs", topic.id))
    wiped(cluster, lost)
    assert trust(cluster) == "abcde"
    answer = declare(cluster, "a", "")
    assert isinstance(answer, m.Failed)
    assert answer.detail == "nothing has to be declared. These nodes are trusted: a, b, c, d, e"


def test_a_declaration_is_durable_before_its_reply() -> None:
    cluster = Cluster()
    (effect,) = answer_survivors(cluster.nodes["b"].context, None, "a", m.SurvivorsRequest(7))
    assert isinstance(effect, Persist)


@pytest.mark.parametrize("cut", ["down", "never heard", "one way"])
def test_it_is_refused_while_a_node_is_only_cut_off(cut: str) -> None:
    cluster = with_messages(3, hold_time_max=10.0)
    wiped(cluster, "b")
    assert trust(cluster) == "abc", "one that is lost comes back by itself"
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and sender == "c"
    wiped(cluster, "b")
    if cut == "down":
        cluster.kill("c")
    elif cut == "never heard":
        cluster.drop = lambda sender, to, message: "c" in (sender, to)
    else:
        cluster.drop = lambda sender, to, message: sender == "c"
    answer = declare(cluster, "a", "a")
    check_failed(answer, "not-stored", "nothing was declared: node c cannot be")
    assert "with its own directory if that still exists" in answer.detail
    if cut == "down":
        assert "cannot be reached from a" in answer.detail, "and nobody was waited for"
        assert "c cannot be reached" in resync_of(cluster, "b")
    cluster.advance(10.0)
    assert "b" not in trust(cluster)


def test_it_is_refused_where_nothing_has_to_be_declared() -> None:
    cluster = with_messages(3, hold_time_max=10.0)
    answer = declare(cluster, "a", "")
    assert isinstance(answer, m.Failed)
    assert (answer.code, answer.detail) == (
        "usage",
        "nothing has to be declared. These nodes are trusted: a, b, c",
    )
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    wiped(cluster, "b")
    answer = declare(cluster, "c", "ac")
    assert isinstance(answer, m.Failed)
    assert (
        answer.detail == "nothing has to be declared. These nodes are trusted: a, c; these learn from them: b"
    )


def test_it_is_refused_through_a_node_that_lost_its_own() -> None:
    cluster = with_messages(3)
    wiped(cluster, "bc")
    check_failed(declare(cluster, "b", "a"), None, "node b is not trusted")


def test_it_is_refused_where_other_nodes_are_left_than_were_declared() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    cluster.topic(rf=5)
    wiped(cluster, "cde")
    for declared in ("a", "abc", "bx"):
        check_failed(declare(cluster, "a", declared), "conflict", "these nodes are trusted now: a, b")
    assert trust(cluster) == "ab"


def test_it_is_refused_while_a_node_may_trusted_yet_for_what_it_has() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    cluster.topic(rf=5)
    wiped(cluster, "cde")
    cluster.nodes["b"].state.trusted = False  # as one that waits for the others to say what they know of it
    answer = declare(cluster, "a", "a")
    check_failed(answer, None, "nothing was declared: b is not trusted yet, and does not resync")
    cluster.nodes["b"].state.trusted = True
    assert isinstance(declare(cluster, "a", "ab"), m.DeclareSurvivorsReply)


def test_it_is_refused_while_somebody_has_not_seen_a_new_directory() -> None:
    cluster = with_messages(3, hold_time_max=10.0)
    for name in "bc":
        cluster.kill(name)
        cluster.journals[name] = []
    cluster.start("b")
    link, cluster.link = cluster.link, lambda dialler, acceptor: None  # type: ignore[method-assign]
    cluster.start("c")
    for dialler, acceptor in ("ca", "ac"):
        link(dialler, acceptor)
    cluster.advance(3.0)
    cluster.link = link  # type: ignore[method-assign]
    for dialler, acceptor in ("ca", "ac"):
        cluster.link(dialler, acceptor)
    cluster.advance(3.0)
    check_failed(declare(cluster, "a", "a"), None, "has not seen start")
    cluster.link("b", "c")
    cluster.link("c", "b")
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)


def test_a_lost_directory_that_turns_up_afterwards_resyncs_and_brings_back_what_only_it_has() -> None:
    cluster, topic, producer_id = with_session(4, hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    assert isinstance(
        cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, 4, [b"only b and c have this"])), 6.0),
        m.PublishReply,
    )
    old = list(cluster.journals["c"])
    cluster.hear_all()
    wiped(cluster, "bc")
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    cluster.advance(20.0)
    assert [present(cluster, name) for name in "abc"] == [4, 4, 4], "what may be forgotten is"

    restarts = len(cluster.restarts)
    cluster.kill("c")
    cluster.journals["c"] = old
    cluster.start("c")
    assert len(cluster.restarts) == restarts + 1, "it does not be trusted"
    cluster.advance(30.0)
    assert trust(cluster) == "abc"
    assert [present(cluster, name) for name in "abc"] == [5, 5, 5]


@pytest.mark.parametrize("rf", [1, 3])
def test_a_topic_that_was_dropped_and_made_again_is_one_when_the_old_directory_turns_up(rf: int) -> None:
    """The later creation stays. Of the same RF they are one topic, with the messages of both."""
    cluster = Cluster(hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    made = made_with_a_message(cluster, "b", m.CreateTopic("jobs", 3, 2))
    old = list(cluster.journals["c"])
    cluster.hear_all()
    cluster.wall_off_ms["a"] = 1000
    wiped(cluster, "bc")
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    cluster.advance(20.0)
    again = made_with_a_message(cluster, "a", m.CreateTopic("jobs", rf, 1))
    assert (again.id == made.id) == (rf == 3)
    cluster.kill("c")
    cluster.journals["c"] = old
    cluster.start("c", 30.0)
    assert trust(cluster) == "abc"
    registers = [core.topic_named("jobs") for core in cluster.nodes.values()]
    assert all(register == registers[0] for register in registers)
    assert registers[0] is not None
    assert (registers[0].id, registers[0].rf, registers[0].born, registers[0].made) == (
        again.id,
        rf,
        1,
        again.made,
    )
    assert registers[0].partitions == (2 if rf == 3 else 1)
    assert sum(present(cluster, name) for name in "abc") == (6 if rf == 3 else 1)


def made_with_a_message(cluster: Cluster, through: str, request: m.CreateTopic) -> Topic:
    """A topic of the name, with one message in partition 0."""
    topic = cluster.ask(through, request, 6.0).topic  # type: ignore[union-attr]
    producer_id = cluster.ask(through, m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask(through, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])), 6.0, of=m.PublishReply)
    return topic  # type: ignore[no-any-return]


def test_two_operators_get_the_same_answer_or_one_looks_again() -> None:
    cluster = Cluster(5, hold_time_max=10.0)
    cluster.topic(rf=5)
    wiped(cluster, "cde")
    asks: list[str] = []
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SurvivorsRequest) and bool(asks.append(to))
    )
    keys = [cluster.submit(name, m.DeclareSurvivors(("a", "b"))) for name in "ab"]
    replies = [cluster.replies[key] for key in keys]
    assert all(isinstance(reply, m.DeclareSurvivorsReply | m.Failed) for reply in replies)
    assert any(isinstance(reply, m.DeclareSurvivorsReply) for reply in replies)
    assert trust(cluster) == "abcde"
    assert isinstance(declare(cluster, "b", "ab"), m.Failed), "it is done"


def test_learners_follow_the_last_of_two_declarations() -> None:
    """a and b are left; b is lost as well between two declarations. The first reached c only."""
    cluster = Cluster(5, hold_time_max=10.0)
    cluster.topic(rf=5)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and sender == "b"
    wiped(cluster, "cde")
    cluster.drop = lambda sender, to, message: (
        (isinstance(message, m.SurvivorsRequest) and bool(message.survivors) and to in "de")
        or (isinstance(message, m.ResyncReply) and sender == "b")
    )
    check_failed(declare(cluster, "a", "ab"), "outcome-unknown", "d, e did not answer")
    wiped(cluster, "b")
    cluster.hear_all(10.0)
    assert trust(cluster) == "a", "c was told of b, which has nothing to tell any more"
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    assert trust(cluster) == "abcde"


STEPS = ("asked", "told", "declared", "confirmed", "resynced")


@pytest.mark.parametrize(("step", "victim"), list(itertools.product(STEPS, "ab")))
def test_a_crash_at_any_step_lets_it_be_done_again(step: str, victim: str) -> None:
    """The survivor a, or the learner b, is killed at the first time of this step."""
    cluster = with_messages(10, hold_time_max=10.0)
    wiped(cluster, "bc")
    hit: list[bool] = []

    def comes(sender: str, to: str, message: object) -> bool:
        asks, tells = isinstance(message, m.SurvivorsRequest), isinstance(message, m.SurvivorsReply)
        declared = bool((asks or tells) and message.survivors)  # type: ignore[attr-defined]
        here = {
            "asked": asks and not declared,
            "told": tells and not declared,
            "declared": asks and declared,
            "confirmed": tells and declared,
            "resynced": isinstance(message, m.ResyncReply),
        }[step]
        hit.extend([True] if here else [])
        return bool(hit)  # from here on nothing arrives

    if step == "resynced":
        cluster.nodes["b"].context.resync_answers.complete.clear()  # type: ignore[union-attr]
    cluster.drop = comes
    cluster.submit("a", m.DeclareSurvivors(("a",)))
    cluster.advance(1.0)
    assert hit
    cluster.kill(victim)
    cluster.hear_all()
    cluster.start(victim, 30.0)
    if trust(cluster) != "abc":
        answer = declare(cluster, "a", trust(cluster))
        assert isinstance(answer, m.DeclareSurvivorsReply) or "nothing has to be declared" in answer.detail  # type: ignore[attr-defined]
    cluster.advance(30.0)
    assert trust(cluster) == "abc"
    assert [present(cluster, name) for name in "abc"] == [10, 10, 10]
    assert all(any(isinstance(it, Trusted) for it in cluster.journals[name]) for name in "abc")
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("c", fetch(wait=0.9), 1.0))) == 10


def test_no_hold_of_a_lost_directory_is_granted_to_another() -> None:
    cluster = with_messages(1, hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    (held,) = receipts(cluster.ask("b", fetch(hold_time=10.0), 0.5))
    until = cluster.time + 0.98 * 10.0
    cluster.hear_all()
    wipe(cluster, "bc", 0.6)
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    while cluster.time < until:
        cluster.advance(0.5)
        for name in "abc":
            key = cluster.submit(name, fetch(hold_time=1.0))
            cluster.advance(0.1)
            reply = cluster.replies.get(key)
            assert reply is None or isinstance(reply, m.Failed) or receipts(reply) == ()
    cluster.advance(2.0)
    (again,) = receipts(cluster.ask("a", fetch()))
    assert again.receipt.owner.ballot > held.receipt.owner.ballot


@pytest.mark.parametrize("then", ["goes on", "restarts", "restarts twice"])
def test_a_topic_that_is_lost_and_made_again_waits(then: str) -> None:
    """It has the same id, and the directories that were lost have voted in it."""
    cluster = Cluster(hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: "a" in (sender, to)
    topic = cluster.ask("b", m.CreateTopic("jobs", 3, 1), of=m.TopicReply).topic
    publish = m.Publish(cluster.batch(topic, ProducerId("b", 1, 7, 1), 0, [b"x"]))
    cluster.ask("b", publish, of=m.PublishReply)
    assert receipts(cluster.ask("b", fetch(hold_time=10.0)))
    until = cluster.time + 0.98 * 10.0
    cluster.hear_all()
    wipe(cluster, "bc", 0.6)
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    for _ in range(("goes on", "restarts", "restarts twice").index(then)):
        for name in "bc" if then == "restarts twice" else "":
            cluster.journals[name][:] = cluster.nodes[name].snapshot(cluster.now)
        cluster.crash("bc")
    assert cluster.topic().id == topic.id
    cluster.ask("a", publish, of=m.PublishReply)
    while cluster.time < until:
        for name in "abc":
            reply = cluster.ask(name, fetch(wait=0.1), 0.5)
            assert isinstance(reply, m.Failed) or receipts(reply) == ()
    cluster.advance(3.0)
    assert receipts(cluster.ask("a", fetch()))


def test_a_vote_of_a_lost_start_does_not_count() -> None:
    cluster = with_messages(1, hold_time_max=10.0)
    before = {name: core.state.incarnation for name, core in cluster.nodes.items()}
    wiped(cluster, "bc")
    assert isinstance(declare(cluster, "a", "a"), m.DeclareSurvivorsReply)
    for name, lost in itertools.product("abc", "bc"):
        assert cluster.nodes[name].state.superseded(lost, before[lost])
    refused = cluster.ask("c", cluster.nodes["b"].hello(cluster.now)._replace(incarnation=before["b"]))
    assert isinstance(refused, m.Failed)
    assert refused.code == "not-stored" or refused.code == "superseded"
    cluster.feed("b", HelloRefused("c", "not-stored", "", 0))
    assert cluster.nodes["b"].state.trusted


def test_a_declaration_asks_members_that_were_added_meanwhile() -> None:
    cluster = Cluster(3)
    cluster.delay = 0.05
    key = cluster.submit("a", m.DeclareSurvivors(()))
    layout = cluster.nodes["a"].catalogue.cluster.layout
    grown = with_member(layout, Member("d", "d:7401"), Stamp(1, "b"))
    hand_over(cluster, "b", "a", m.PutCluster(0, grown))
    cluster.advance(1.0)
    assert "node d cannot be reached" in cluster.replies[key].detail  # type: ignore[union-attr]

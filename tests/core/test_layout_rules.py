"""The rules of layouts that no explorer can leave out in seconds: each with the failure without it (LAYOUTS)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.topics import with_layout
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.effects import DiskFull, Effect, Persist
from quorumq.core.node import upkeep
from quorumq.core.partition.closed import number_of
from quorumq.core.partition.closing import Closing
from quorumq.core.partition.handoff import Handoff
from quorumq.core.recovery import trust
from quorumq.core.requests import answers, merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import LayoutCoordinator
from quorumq.core.requests.placing import Placing
from quorumq.core.values import limits
from quorumq.core.values.types import Now, PartitionId, Span
from tests.core import layouts
from tests.core.cluster import Cluster
from tests.core.conftest import Without
from tests.core.growing import GrowingCluster
from tests.core.layouts import ME, acked, fetched, is_voter, move, publish
from tests.core.network import Drop, begins_comparison, wipe
from tests.core.steps import check_failed, fetch, receipts
from tests.core.voting import between

made = partial(layouts.made, hold_time_max=2.0, heartbeat=2.0)


def deaf(name: str, kind: type) -> Callable[[str, str, object], bool]:
    """Lose messages of a kind to one node."""
    return lambda sender, to, message: to == name and isinstance(message, kind)


def adopts_at_once(self: LayoutCoordinator, context: Context, now: Now) -> list[Effect]:
    topic = context.catalogue.topics[self.topic.id]
    if topic.next_layout is None:
        return _start(self, context, now)
    adopted = with_layout(topic, topic.next_layout)._replace(next_layout=None)
    return merging.take_in_topic(context, adopted, now) + _start(self, context, now)


_start = LayoutCoordinator.start


@pytest.mark.parametrize("without", ["", "announce", "adopt what is chosen"])
def test_a_wiped_node_votes_in_no_set_it_may_have_left(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only slot went to d, and d has its state; it is wiped, and hears e and f, which know of no adopted layout."""
    if without == "announce":
        monkeypatch.setattr(LayoutCoordinator, "start", adopts_at_once)
    elif without:
        monkeypatch.setattr(trust, "adopt_chosen", lambda context, now: [])
        monkeypatch.setattr(upkeep, "change_layouts", lambda context, now: [])  # nor does another node go on
    cluster, topic, (old,), (new, *others) = made(rf=1, nodes=4)
    assert fetched(cluster, others[0]) == (), "this makes the group"
    spreading = (m.SyncTopics, m.PutTopic)

    def drop(sender: str, to: str, message: object) -> bool:
        """Let the two that know nothing hear of what is announced, in the round about it."""
        announced = isinstance(message, m.PutTopic) and message.topic.next_layout is not None
        return to in others and isinstance(message, spreading) and not (announced and message.round)

    cluster.drop = drop
    cluster.submit(old, m.MovePartition("jobs", 0, old, new))
    cluster.advance(0.1)
    assert is_voter(cluster, new, topic), "it has adopted the layout, and was told"
    cluster.isolated = {new}
    cluster.drop = lambda sender, to, message: new in (sender, to)
    wipe(cluster, old, 8.0)
    refused = not is_voter(cluster, old, topic)
    if refused:
        assert not without
    else:
        assert without, "it votes as if it had the slot"
    if without == "announce":
        publish(cluster, others[0], topic, 0, 1)
        assert acked(cluster, others[0], fetched(cluster, others[0])) == ["acked"]
    cluster.isolated = set()
    cluster.hear_all()
    cluster.join(new)
    cluster.advance(20.0)
    again = fetched(cluster, new)
    assert bool(again) == (without == "announce"), "what was acked is delivered again without the rule"


def test_no_set_is_proposed_while_a_present_slot_is_not_trusted(rule: bool, without: Without) -> None:
    """c's slot goes to d and back before d learned anything. b is wiped: then no node knows b's and c's promises."""
    without(LayoutCoordinator, "may_propose", lambda *args: True)
    cluster, topic, (a, b, c), (d, e) = made()
    cluster.drop = lambda sender, to, message: to in (c, d) and isinstance(message, m.ResyncReply)
    assert isinstance(move(cluster, e, c, d), m.TopicReply)
    back = move(cluster, e, d, c)
    assert isinstance(back, m.TopicReply) == (not rule), back
    if rule:
        check_failed(back, None, f"{d} says not-trusted")
    wipe(cluster, b)
    cluster.hear_all(12.0)
    members = cluster.nodes[a].topics[topic.id].replicas[0]
    assert all(is_voter(cluster, name, topic) for name in members) == rule


@pytest.mark.parametrize("answer", [m.ResyncReply, m.HoldsReply])
def test_a_node_that_slept_while_it_got_its_slot_back_tells_nothing_of_it(answer: type) -> None:
    """c's slot goes to d, back to c, which hears nothing of that, and to e. a and c lack what b and d have decided.

    That is an ACK, or a hold. b is slow, so that a and c are all that e hears.
    """
    cluster, topic, (a, b, c), (d, e) = layouts.made()
    publish(cluster, a, topic, 0, 1)
    lost: list[Drop] = [lambda *sent: begins_comparison(sent[2]) or isinstance(sent[2], m.SourceReply)]
    cluster.drop = lambda *sent: any(is_lost(*sent) for is_lost in lost)
    assert isinstance(move(cluster, b, c, d), m.TopicReply)
    cluster.advance(0.2)
    lost.append(lambda *sent: sent[:2] == (b, a) and not isinstance(sent[2], m.SlotReply))
    got = receipts(cluster.ask(b, fetch(hold_time=30.0, wait=0.3), 0.5))
    assert len(got) == 1
    if answer is m.ResyncReply:
        assert acked(cluster, b, got) == ["acked"]
    lost.append(lambda *sent: sent[:2] == (b, e) and isinstance(sent[2], answer))
    lost.append(lambda *sent: sent[1] == c)
    for source, to in ((d, c), (c, e)):
        assert isinstance(move(cluster, a, source, to, 3.0), m.TopicReply)
    lost.pop()
    cluster.advance(2.0)
    assert not receipts(cluster.ask(a, fetch(wait=0.3), 2.0)), "it is delivered again"


def test_a_move_does_not_wait_for_the_node_that_loses_its_slot() -> None:
    cluster, topic, (a, b, c), (d, e) = made()
    cluster.kill(c)
    moved = move(cluster, e, c, d, within=4.0)
    assert isinstance(moved, m.TopicReply), moved
    cluster.advance(1.0)
    assert all(is_voter(cluster, name, topic) for name in (a, b, d))


def test_a_move_waits_no_longer_because_another_topic_moves() -> None:
    """c is silent, and passed over after half of the request timeout, however many layouts are adopted meanwhile."""
    cluster, _, (a, b, c), (d, e) = made()
    partition = PartitionId(cluster.topic("others", partitions=8).id, 0)
    cluster.drop = lambda sender, to, message: c in (sender, to)
    key = cluster.submit(a, m.MovePartition("jobs", 0, c, d))
    cluster.advance(2.0)
    others = cluster.nodes[a].topics[partition.topic]
    at = next(at for at, members in enumerate(others.replicas) if c not in members)
    there, *_ = others.replicas[at]
    free = next(name for name in (a, b, d, e) if name not in others.replicas[at])
    assert isinstance(cluster.ask(a, m.MovePartition("others", at, there, free), 0.4), m.TopicReply)
    cluster.advance(0.4)
    assert isinstance(cluster.replies.get(key), m.TopicReply)


def test_a_node_that_never_knew_its_slot_says_it_promised_nothing(rule: bool, without: Without) -> None:
    """c was away when the topic was made. Its slot goes to d, and b is wiped: a and c are left to answer d."""
    without(Placing, "make_source", lambda *args: None)
    _, topic, (a, b, c), (d, e) = made()
    cluster = Cluster(5, hold_time_max=2.0, heartbeat=2.0)
    cluster.kill(c)
    assert cluster.topic(rf=3).id == topic.id
    cluster.drop = lambda sender, to, message: to == c or (to == d and isinstance(message, m.ResyncReply))
    cluster.start(c)
    assert isinstance(move(cluster, e, c, d, within=4.0), m.TopicReply)
    wipe(cluster, b)
    cluster.hear_all(12.0)
    assert [is_voter(cluster, name, topic) for name in (a, b, d)] == [True, rule, rule]


@pytest.mark.parametrize("knows", [True, False])
def test_a_node_whose_slot_moves_before_it_has_joined_says_that_it_promised_nothing(knows: bool) -> None:
    """Its directory was never lost, though it began untrusted. Its slot goes to e, and b is wiped.

    It hears of the topic and of the move while it learns the registers, or of both after that.
    """
    cluster = GrowingCluster(3, hold_time_max=2.0, heartbeat=2.0)
    cluster.add("e")
    cluster.change("d")
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and to in "de"
    cluster.enter("d")
    if not knows:
        cluster.kill("d")
    topics = (cluster.topic(f"jobs{number}") for number in range(100))
    topic = next(topic for topic in topics if {*topic.replicas[0]} == {"a", "b", "d"})
    key = cluster.submit("c", m.MovePartition(topic.name, 0, "d", "e"))
    cluster.advance(4.0)
    assert isinstance(cluster.replies[key], m.TopicReply)
    if not knows:
        cluster.start("d")
    assert not cluster.nodes["d"].state.trusted
    wipe(cluster, "b")
    cluster.drop = lambda sender, to, message: False
    cluster.advance(12.0)
    assert all(is_voter(cluster, name, topic) for name in "abe")


def test_a_new_only_replica_that_is_wiped_hears_the_node_that_left() -> None:
    """It has no other replica to hear, but the one before it had all: what was acked there stays so."""
    cluster, topic, (old,), (new, *others) = made(rf=1, nodes=4)
    publish(cluster, old, topic, 0)
    got = fetched(cluster, old, most=1)
    assert acked(cluster, old, got) == ["acked"]
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull | m.SourceRequest)
    assert isinstance(move(cluster, others[0], old, new), m.TopicReply)
    cluster.advance(1.0)
    assert is_voter(cluster, new, topic)
    wipe(cluster, new)
    cluster.hear_all(12.0)
    assert is_voter(cluster, new, topic)
    assert sum(part.receipt.span.size for part in fetched(cluster, new)) == 2


def test_a_layout_that_was_chosen_is_adopted_though_its_coordinator_dies() -> None:
    cluster, topic, (a, b, c), (d, e) = made()
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutTopic) and to not in (b, e)
    cluster.submit(e, m.MovePartition("jobs", 0, c, d))
    cluster.advance(0.1)
    assert cluster.nodes[b].topics[topic.id].next_layout is not None, "it has heard that it was chosen"
    cluster.kill(e)
    cluster.hear_all(20.0)
    assert all(is_voter(cluster, name, topic) for name in (a, b, d))
    assert all(core.topics[topic.id].layout_number >= 2 for core in cluster.nodes.values())


def test_payload_outlives_a_disk_lost_beside_a_move(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """a and b have the message, and a's slot goes to d; b is wiped before any node pulls it."""
    cluster, topic, (a, b, c), (d, e) = made()
    cluster.drop = lambda sender, to, message: to == c or isinstance(message, m.SyncPull | m.SourceRequest)
    publish(cluster, a, topic, 0, 1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull | m.SourceRequest)
    assert isinstance(move(cluster, e, a, d), m.TopicReply)
    cluster.advance(1.0)
    if not rule:
        cluster.kill(a)  # as if it had dropped what it had
    wipe(cluster, b)
    cluster.hear_all(12.0)
    assert bool(fetched(cluster, d)) == rule


def test_promises_to_close_producer_ids_are_told_to_a_new_slot() -> None:
    """Else it takes a late batch of one, with a majority, after the others have closed it."""
    cluster, topic, (a, b, c), (d, e) = made()
    partition = PartitionId(topic.id, 0)
    for name in (a, b, c):
        cluster.nodes[name].replicas[partition].closing.promise([number_of(ME)])
    assert isinstance(move(cluster, e, c, d), m.TopicReply)
    cluster.advance(1.0)
    assert cluster.nodes[d].replicas[partition].closing.has_promised(ME)
    check_failed(cluster.ask(e, m.Publish(cluster.batch(topic, ME, 0, [b"late"]))), "session-closed")


def test_a_source_that_started_again_reads_for_every_group() -> None:
    """It gets the slot back, and reclaims nothing that a group which it has no record of still needs."""
    cluster, topic, (first,), (second, other, _) = made(rf=1, nodes=4)
    assert fetched(cluster, first) == (), "this makes the group"
    publish(cluster, first, topic, 0)
    key = cluster.submit(other, m.SetGroup("jobs", "late"))
    assert isinstance(cluster.replies[key], m.GroupReply)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull | m.SourceRequest)
    assert isinstance(move(cluster, other, first, second), m.TopicReply)
    cluster.advance(0.5)
    cluster.crash(first, 3.0)
    assert isinstance(move(cluster, other, second, first), m.TopicReply)
    cluster.hear_all(1.0)
    assert sorted(cluster.nodes[first].replicas[PartitionId(topic.id, 0)].views.groups) == ["g", "late"]


def test_a_move_of_a_topic_that_is_deleted_meanwhile_ends_once() -> None:
    cluster, topic, (a, _, c), (d, e) = made()
    held: list[tuple[str, str]] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.PutTopic) and message.topic.next_layout is not None and sender == e != to:
            held.append((sender, to))
            return True
        return False

    cluster.drop = drop
    key = cluster.submit(e, m.MovePartition("jobs", 0, c, d))
    assert held
    cluster.drop = between(e)
    assert isinstance(cluster.ask(a, m.DeleteTopic("jobs", topic.id)), m.TopicReply)
    cluster.hear_all(8.0)
    assert isinstance(cluster.replies[key], m.Failed)


def test_messages_that_only_a_source_has_are_told_on() -> None:
    """The slot goes on to a third node before any payload does: that one purges what it never had."""
    cluster, topic, (first,), (second, third, other) = made(rf=1, nodes=4)
    publish(cluster, first, topic, 0)
    assert fetched(cluster, other), "this makes the group, and its holds run out"
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull | m.SourceRequest)
    assert isinstance(move(cluster, other, first, second), m.TopicReply)
    cluster.advance(0.5)
    assert isinstance(move(cluster, other, second, third), m.TopicReply)
    cluster.advance(0.5)
    assert cluster.ask(other, m.PurgeRequest("jobs", 0, "g"), of=m.PurgeReply).messages == 3
    cluster.hear_all(12.0)
    assert fetched(cluster, third) == ()


def test_a_new_slot_counts_no_answer_while_its_disk_is_full() -> None:
    cluster, topic, (old,), (new, *others) = made(rf=1, nodes=4)
    publish(cluster, old, topic, 0)
    assert acked(cluster, old, fetched(cluster, old, most=1)) == ["acked"]
    cluster.feed(new, DiskFull(Shortage.FULL))
    assert isinstance(move(cluster, others[0], old, new), m.TopicReply)
    cluster.advance(5.0)
    assert not is_voter(cluster, new, topic)
    cluster.feed(new, DiskFull(Shortage.NONE))
    cluster.advance(15.0)
    assert is_voter(cluster, new, topic)
    assert sum(part.receipt.span.size for part in fetched(cluster, new)) == 2


def test_status_shows_what_a_move_waits_for() -> None:
    cluster, topic, (a, _, c), (d, e) = made()
    publish(cluster, a, topic, 0)

    def shown(name: str) -> list[tuple[object, object]]:
        rows = cluster.nodes[name].status(cluster.now)["moves"]
        return [(row["state"], row["waits_for"]) for row in rows]  # type: ignore[attr-defined]

    cluster.drop = lambda sender, to, message: (
        (to == d and isinstance(message, m.ResyncReply) and sender != a)
        or (to == c and isinstance(message, m.SourceReply))
    )
    assert shown(d) == []
    assert isinstance(move(cluster, e, c, d), m.TopicReply)
    cluster.advance(1.0)
    assert shown(d) == [("learning", [node for node in topic.replicas[0] if node != a])]
    cluster.drop = deaf(c, m.SourceReply)
    cluster.advance(4.0)
    assert shown(d) == []
    assert shown(c) == [("leaving", [d if node == c else node for node in topic.replicas[0]])]
    cluster.hear_all(10.0)
    assert shown(c) == []


def test_two_lost_disks_beside_a_move_are_declared_as_any_others() -> None:
    """c's slot goes to d, which learned nothing. a and b are wiped: only c knows what the set had promised."""
    cluster, topic, (a, b, c), (d, e) = made()
    publish(cluster, c, topic, 0)
    assert acked(cluster, c, fetched(cluster, c, most=1)) == ["acked"]
    cluster.drop = deaf(d, m.ResyncReply)
    assert isinstance(move(cluster, e, c, d), m.TopicReply)
    wipe(cluster, a + b)
    cluster.hear_all(12.0)
    assert not any(is_voter(cluster, name, topic) for name in (a, b, d))
    remaining = tuple(sorted((c, d, e)))
    key = cluster.submit(e, m.DeclareSurvivors(remaining))
    cluster.advance(12.0)
    assert isinstance(cluster.replies[key], m.DeclareSurvivorsReply), cluster.replies[key]
    assert all(is_voter(cluster, name, topic) for name in (a, b, d))
    assert sum(part.receipt.span.size for part in fetched(cluster, a)) == 2, "not what was acked"


def test_messages_that_only_a_source_has_stay_known_over_a_restart() -> None:
    """The new slot hears of them and has none. It starts again before it pulls them, and purges all the same."""
    cluster, topic, (old,), (new, *others) = made(rf=1, nodes=4)
    publish(cluster, old, topic, 0)
    assert fetched(cluster, others[0]), "this makes the group, and its holds run out"
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull | m.SourceRequest)
    assert isinstance(move(cluster, others[0], old, new), m.TopicReply)
    cluster.advance(0.5)
    cluster.kill(new)
    cluster.drop = lambda sender, to, message: {sender, to} == {old, new}
    cluster.start(new, 3.0)
    assert cluster.ask(others[0], m.PurgeRequest("jobs", 0, "g"), of=m.PurgeReply).messages == 3
    cluster.hear_all()
    cluster.join(new)
    cluster.advance(12.0)
    assert fetched(cluster, new) == ()


@pytest.mark.parametrize("without", ["", "earlier questions", "a source's question again"])
def test_a_move_ends_though_answers_take_longer_than_the_pause_between_questions(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is repeated before the answer to the one before it: no answer would count for ever."""
    if without == "earlier questions":
        monkeypatch.setattr(answers, "QUESTIONS_MAX", 1)
    elif without:  # it is repeated at once, and each time under another number
        ask = Handoff.ask
        monkeypatch.setattr(Handoff, "is_open", lambda self, now: False)
        monkeypatch.setattr(
            Handoff, "ask", lambda self, number, spans, *rest: ask(self, number, 2 * spans, *rest)
        )
    cluster = Cluster(3, hold_time_max=1.0, heartbeat=2.0, sync_interval=0.5)
    topic = cluster.topic(rf=1)
    (old,) = topic.replicas[0]
    new, other = (name for name in cluster.names if name != old)
    publish(cluster, old, topic, 0)
    cluster.delay = 0.3
    assert isinstance(move(cluster, other, old, new, within=3.0), m.TopicReply)
    cluster.advance(9.0)
    assert is_voter(cluster, new, topic) == (without != "earlier questions")
    assert bool(cluster.nodes[old].context.sources) == bool(without)
    wipe(cluster, other, 3.0)
    assert cluster.nodes[other].state.trusted == (without != "earlier questions")


def test_a_slot_that_comes_back_drops_messages_of_ids_closed_since(rule: bool, without: Without) -> None:
    """It was not asked if it was done with them, and no other node has records of them any more."""
    without(Closing, "learn_closed", lambda self, numbers, now, new_slot: self.close(numbers))
    cluster = Cluster(3, hold_time_max=1.0, heartbeat=2.0, session_idle=3.0)
    topic = cluster.topic(rf=1)
    (first,) = topic.replicas[0]
    second, other = (name for name in cluster.names if name != first)
    partition = PartitionId(topic.id, 0)
    assert fetched(cluster, other) == (), "this makes the group"
    publish(cluster, first, topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply)
    assert isinstance(move(cluster, other, first, second, within=1.0), m.TopicReply)
    cluster.advance(6.0)
    assert set(acked(cluster, other, fetched(cluster, other))) == {"acked"}
    cluster.advance(8.0)
    assert ME in cluster.nodes[second].replicas[partition].batches.closed
    assert ME in cluster.nodes[first].context.sources[partition].batches.present.runs
    assert isinstance(move(cluster, other, second, first, within=1.0), m.TopicReply)
    cluster.hear_all(2.0)
    assert bool(fetched(cluster, first)) != rule, "acked messages are delivered again"


def test_a_slot_drops_messages_of_closed_ids_in_steps(rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has time for a few of 50 batches; the slot does not vote before the last one is dropped."""
    cluster, topic, (first,), (second, other) = made(rf=1, nodes=3)
    if not rule:
        monkeypatch.setattr(limits, "RECLAIMED_PER_STEP", 1 << 30)
    else:
        monkeypatch.setattr(limits, "RECLAIMED_PER_STEP", 20)
    partition = PartitionId(topic.id, 0)
    assert fetched(cluster, other) == (), "this makes the group"
    for start in range(0, 100, 2):
        publish(cluster, first, topic, start, 2)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply | m.SyncPull)
    assert isinstance(move(cluster, other, first, second, within=1.0), m.TopicReply)
    closed, source = (
        cluster.nodes[second].replicas[partition],
        cluster.nodes[first].context.sources[partition],
    )
    assert closed.batches.present.messages == 0
    assert closed.closing.close([number_of(ME)])
    dropped: list[int] = []
    drop, step = Closing.go_on_dropping, source.batches

    def counted(self: Closing, now: Now) -> list[Effect]:
        before = len(self.batches.stored)
        effects = drop(self, now)
        dropped.append(before - len(self.batches.stored))
        assert not source.is_trusted
        cluster.nodes[first].check(cluster.now)
        return effects

    monkeypatch.setattr(Closing, "go_on_dropping", counted)
    assert isinstance(move(cluster, other, second, first), m.TopicReply)
    cluster.advance(3.0)
    assert (sum(dropped), max(dropped) <= 11) == (50, rule)
    assert ME in step.closed
    assert is_voter(cluster, first, topic)


def test_a_batch_keeps_its_other_messages_when_one_producer_id_of_it_is_closed() -> None:
    cluster, topic, (node,), _ = made(rf=1, nodes=3)
    partition, another = PartitionId(topic.id, 0), ME._replace(k=2)
    batch = cluster.batch(topic, ME, 0, [b"0", b"1", b"2", b"3"])
    spans = (Span(ME, 0, 3), Span(another, 0, 1))
    batch = batch._replace(header=batch.header._replace(spans=spans))
    assert isinstance(cluster.ask(node, m.Publish(batch)), m.PublishReply)
    publish(cluster, node, topic, 3)
    assert sum(part.receipt.span.size for part in fetched(cluster, node)) == 7, "this makes the group"
    replica = cluster.nodes[node].replicas[partition]
    effects = replica.closing.learn_closed([number_of(ME)], cluster.now, new_slot=True)
    assert list(replica.batches.stored) == [1]
    cluster.nodes[node].check(cluster.now)
    assert [part.receipt.span for part in fetched(cluster, node)] == [Span(another, 0, 1)]
    for effect in effects:
        cluster.journals[node] += effect.records if isinstance(effect, Persist) else ()
    cluster.crash(node, 3.0)
    assert [part.receipt.span for part in fetched(cluster, node)] == [Span(another, 0, 1)]


def test_nodes_with_two_layouts_of_one_number_refuse_each_other_by_name() -> None:
    cluster, _, (a, *_), (d, e) = made()
    assert cluster.nodes[a].hello(cluster.now).layouts == (), "no partition was moved"
    assert isinstance(move(cluster, e, a, d), m.TopicReply)
    cluster.advance(8.0)
    theirs = cluster.nodes[e].hello(cluster.now)
    (mark,) = theirs.layouts
    assert isinstance(cluster.ask(a, theirs), m.Welcome)
    older = theirs._replace(layouts=(mark._replace(number=mark.number - 1, digest=bytes(16)),))
    assert isinstance(cluster.ask(a, older), m.Welcome), "only layouts of one number are compared"
    other = theirs._replace(layouts=(mark._replace(digest=bytes(16)),))
    refused = cluster.ask(a, other)
    check_failed(refused, "cluster-mismatch")
    assert (
        f"layout {mark.number} of topic 'jobs' at node '{e}' is another one than at node '{a}'"
        in refused.detail
    )
    cluster.nodes[a].state.trusted = False
    assert isinstance(cluster.ask(a, other), m.Welcome), "a node that resyncs may have an old layout"
    assert cluster.nodes[a].hello(cluster.now).layouts == ()
    cluster.nodes[a].state.trusted = True

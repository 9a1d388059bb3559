"""HOLD is piggybacked on STORE: a FETCH that waits at the publishing node gets it in one round.

See docs/protocol.md, section 3.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Votes
from quorumq.core.messages.effects import DiskFull, Gone, LinkDown, MemoryFull, Request
from quorumq.core.partition.backfill import Backfill
from quorumq.core.partition.batches import Location, Missing
from quorumq.core.partition.closed import number_of
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.holdround import HoldRound
from quorumq.core.requests.piggyback import is_new, may_choose, share_of, waiting
from quorumq.core.values.types import Batch, NodeId, PartitionId, ProducerId, Span, Topic
from quorumq.wire.batch import Message, encode_record, pack_spans
from tests.core.cluster import WALL_MS, Cluster
from tests.core.steps import fetch, outcomes, receipts
from tests.core.work import QUIET, SLACK, steps_of


class Piggyback:
    """Three nodes that know the group, and their messages. No consumer reads, and heartbeats are rare."""

    def __init__(self, **settings: object) -> None:
        self.cluster = Cluster(sync_interval=600.0, heartbeat=600.0, **settings)
        self.topic: Topic = self.cluster.topic()
        self.producer_id: ProducerId = self.cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
        for node in "abc":
            self.cluster.ask(node, fetch())
        self.cluster.advance(5.0)
        self.said: list[tuple[NodeId, NodeId, object]] = []
        self.loses: Callable[[NodeId, NodeId, object], bool] = lambda sender, to, message: False
        self.cluster.drop = self.hear

    def hear(self, sender: NodeId, to: NodeId, message: object) -> bool:
        self.said.append((sender, to, message))
        return self.loses(sender, to, message)

    def kinds(self) -> list[str]:
        return [type(message).__name__ for _, _, message in self.said]

    def rode(self) -> list[NodeId]:
        """Return the nodes that got a STORE with a piggybacked HOLD."""
        return [to for _, to, message in self.said if isinstance(message, m.Store) and message.hold]

    def waits(self, node: NodeId = "a", most: int = 100, wait: float = 1.0, **more: object) -> int:
        """The key of a FETCH that is parked."""
        key = self.cluster.submit(node, fetch(most=most, wait=wait, **more))  # type: ignore[arg-type]
        assert key not in self.cluster.replies
        return key

    def batch(self, count: int = 1, first: int = 0, **more: int) -> Batch:
        return self.cluster.batch(self.topic, self.producer_id, first, [b"x"] * count, **more)

    def publish(self, count: int = 1, node: NodeId = "a", first: int = 0, **more: int) -> int:
        return self.cluster.submit(node, m.Publish(self.batch(count, first, **more)))

    def got(self, key: int) -> list[Span]:
        return [item.receipt.span for item in receipts(self.cluster.replies[key])]

    def replica(self, node: NodeId) -> Replica:
        (replica,) = self.cluster.nodes[node].replicas.values()
        return replica

    def held(self) -> list[int]:
        return [self.replica(node).group("g").held_count for node in self.cluster.nodes]


def test_a_waiting_fetch_gets_a_publish_in_one_round() -> None:
    piggyback = Piggyback()
    key = piggyback.waits()
    published = piggyback.publish(3)
    assert sorted(piggyback.kinds()) == ["Store", "Store", "StoreReply", "StoreReply"]
    assert piggyback.got(key) == [Span(piggyback.producer_id, 0, 3)]
    assert isinstance(piggyback.cluster.replies[published], m.PublishReply)
    assert piggyback.held() == [3, 3, 3]
    (reply,) = [piggyback.cluster.replies[key]]
    assert isinstance(reply, m.FetchReply)
    assert reply.slices[0].deliveries[0].attempt == 1
    assert outcomes(piggyback.cluster.ask("c", m.AckRequest(receipts(reply)))) == ["acked"]


def test_a_client_with_nothing_in_hand_is_served_before_one_that_waits_longer() -> None:
    piggyback = Piggyback()
    first, second, third, fourth = [piggyback.waits(most=1, idle=idle) for idle in (False, False, True, True)]
    for number, key in enumerate((third, fourth, first, second)):
        piggyback.publish(first=number)
        assert len(piggyback.rode()) == 2 * (number + 1)
        assert piggyback.got(key) == [Span(piggyback.producer_id, number, number + 1)]


def test_messages_beyond_the_limit_of_the_fetch_stay_for_others() -> None:
    piggyback = Piggyback()
    key = piggyback.waits(most=2)
    piggyback.publish(3)
    assert piggyback.got(key) == [Span(piggyback.producer_id, 0, 2)]
    assert [item.receipt.span for item in receipts(piggyback.cluster.ask("b", fetch()))] == [
        Span(piggyback.producer_id, 2, 3)
    ]


def test_a_fetch_that_waits_for_more_has_so_much_less_space() -> None:
    piggyback = Piggyback()
    key = piggyback.waits(most=3, least=3)
    piggyback.publish(2)
    assert len(piggyback.rode()) == 2
    piggyback.publish(2, first=2)
    assert len(piggyback.rode()) == 4
    assert sum(span.size for span in piggyback.got(key)) == 3
    assert piggyback.held() == [3, 3, 3]


def test_a_batch_that_is_too_large_for_the_fetch_does_not_ride_but_one_message_may() -> None:
    piggyback = Piggyback()
    small = fetch(wait=1.0)._replace(max_bytes=1)
    piggyback.cluster.submit("a", small)
    piggyback.publish(2)
    assert piggyback.rode() == []
    key = piggyback.cluster.submit("a", small)
    assert len(piggyback.got(key)) == 1, "the second message of them"
    key = piggyback.cluster.submit("a", small)
    piggyback.publish(1, first=2)
    assert piggyback.rode() == ["b", "c"]
    assert piggyback.got(key) == [Span(piggyback.producer_id, 2, 3)]


Change = Callable[[Piggyback], object]


def parked_elsewhere(piggyback: Piggyback) -> None:
    piggyback.waits("b")
    (partition,) = piggyback.cluster.nodes["a"].replicas
    piggyback.cluster.nodes["a"].state.parked[(partition, "g", "b")] = piggyback.cluster.time


def skipped(piggyback: Piggyback) -> None:
    later = m.SetGroup("jobs", "g", "time", WALL_MS + 10_000_000, rewind=True)
    piggyback.cluster.ask("b", later)


def unwritten(piggyback: Piggyback) -> None:
    (partition,) = piggyback.cluster.nodes["a"].replicas
    piggyback.cluster.nodes["a"].state.unwritten[10_000] = partition


def recorded(piggyback: Piggyback) -> None:
    """The message was acked before it was here: only the record is."""
    piggyback.loses = lambda sender, to, message: to == "a" and isinstance(message, m.Store)
    piggyback.publish(node="b")
    got = receipts(piggyback.cluster.ask("b", fetch()))
    piggyback.cluster.ask("b", m.AckRequest(got))
    piggyback.said.clear()


def held_elsewhere(piggyback: Piggyback) -> None:
    """It is not here; another node has it."""
    piggyback.loses = lambda sender, to, message: to == "a" and isinstance(message, m.Store)
    piggyback.publish(node="b")
    piggyback.cluster.ask("b", fetch())
    piggyback.said.clear()


def in_quarantine(piggyback: Piggyback) -> None:
    piggyback.replica("a").quarantine_until = piggyback.cluster.time + 5.0


NOT_FOR: dict[str, tuple[dict[str, object], dict[str, int], Change]] = {
    "one that may not wait": ({}, {}, lambda piggyback: piggyback.cluster.advance(1.5)),
    "what is published with a delay": ({}, {"delay_ms": 60_000}, lambda piggyback: None),
    "the group where another node may have it": ({}, {}, parked_elsewhere),
    "what the generation does not cover": ({}, {}, skipped),
    "what comes behind something that waits for the disk": ({}, {}, unwritten),
    "what was acked": ({}, {}, recorded),
    "a replica that may not vote": ({}, {}, in_quarantine),
    "a full disk": ({}, {}, lambda piggyback: piggyback.cluster.feed("a", DiskFull(True))),
    "a full memory": ({}, {}, lambda piggyback: piggyback.cluster.feed("a", MemoryFull("no room"))),
    "what somebody has": ({}, {}, held_elsewhere),
    "the group of dead letters": ({"group": "g!dead"}, {}, lambda piggyback: None),
}


@pytest.mark.parametrize("case", NOT_FOR)
def test_a_hold_is_piggybacked_for_no_one_else(case: str) -> None:
    more, batch, change = NOT_FOR[case]
    piggyback = Piggyback()
    piggyback.waits(**more)
    change(piggyback)
    piggyback.publish(**batch)
    assert any(isinstance(message, m.Store) for _, _, message in piggyback.said)
    assert piggyback.rode() == []


def test_a_full_node_that_refuses_a_store_still_delivers() -> None:
    """A HOLD that was piggybacked would be lost with it, and followed by a pause."""
    piggyback = Piggyback()
    piggyback.publish()
    (item,) = receipts(piggyback.cluster.ask("b", fetch()))
    piggyback.cluster.advance(3.0)
    key = piggyback.waits()
    for node in "abc":
        piggyback.cluster.feed(node, DiskFull(True))
    for number in (1, 2, 3):
        assert isinstance(piggyback.cluster.replies[piggyback.publish(first=number)], m.Failed)
    piggyback.cluster.ask("b", m.ReleaseRequest((item,)))
    assert piggyback.got(key) == [item.receipt.span]


def test_a_fetch_of_named_messages_does_not_wait_for_others() -> None:
    piggyback = Piggyback()
    named = fetch(wait=1.0)._replace(partitions=(0,), spans=(Span(piggyback.producer_id, 5, 6),))
    piggyback.cluster.submit("a", named)
    piggyback.publish()
    assert piggyback.rode() == []


def closed(replica: Replica, span: Span) -> None:
    producer_id = span.producer_id
    replica.batches.close([Span(producer_id._replace(k=0), producer_id.k, producer_id.k + 1)])


KNOWN: dict[str, Callable[[Replica, Span], object]] = {
    "here": lambda replica, span: replica.batches.put(span, Location(1, 0)),
    "reclaimed": lambda replica, span: replica.batches.reclaimed.add(span),
    "absent": lambda replica, span: replica.batches.absent.set(span, Missing(0.0)),
    "of a closed producer id": closed,
}


@pytest.mark.parametrize("how", KNOWN)
def test_a_known_batch_gets_no_piggybacked_hold(how: str) -> None:
    piggyback = Piggyback()
    context, replica, span = (
        piggyback.cluster.nodes["a"].context,
        piggyback.replica("a"),
        Span(piggyback.producer_id, 0, 1),
    )
    assert is_new(context, replica, span)
    KNOWN[how](replica, span)
    assert not is_new(context, replica, span)


def test_a_group_that_has_not_looked_at_all_that_there_is_takes_nothing_newer() -> None:
    piggyback = Piggyback()
    view, header = piggyback.replica("a").group("g"), piggyback.batch().header
    assert may_choose(view, header)
    view.backfill = Backfill(0, ever=True)
    assert not may_choose(view, header)


def test_it_is_piggybacked_for_who_waits_for_just_that_and_for_nothing_else() -> None:
    piggyback = Piggyback()
    piggyback.waits()
    context, replica = piggyback.cluster.nodes["a"].context, piggyback.replica("a")
    (it,) = context.requests.values()
    assert isinstance(it, FetchCoordinator)
    assert waiting(context, replica, replica.group("g")) is it
    of_named = it.request._replace(spans=(Span(piggyback.producer_id, 0, 1),))
    for name, value in (("rounds", {1: None}), ("request", of_named)):
        before = getattr(it, name)
        setattr(it, name, value)
        assert waiting(context, replica, replica.group("g")) is None, name
        setattr(it, name, before)
    it._unpark(context)
    assert waiting(context, replica, replica.group("g")) is None


def test_messages_won_already_count_against_the_bytes_of_a_fetch() -> None:
    piggyback = Piggyback()
    piggyback.waits(least=2)
    piggyback.publish()
    (it,) = piggyback.cluster.nodes["a"].context.requests.values()
    assert isinstance(it, FetchCoordinator)
    header = piggyback.batch(1, 1).header
    assert share_of(it, header) == Span(piggyback.producer_id, 1, 2)
    it.won_bytes = it.request.max_bytes
    assert share_of(it, header) is None


@pytest.mark.parametrize(
    ("answers_take", "hold_time", "usual"), [(0.001, 60.0, 1.0), (0.001, 5.0, 0.5), (0.9, 60.0, None)]
)
def test_it_is_waited_for_as_long_as_a_disk_may_take(
    answers_take: float, hold_time: float, usual: float | None
) -> None:
    piggyback = Piggyback()
    piggyback.waits(hold_time=hold_time)
    context = piggyback.cluster.nodes["a"].context
    for _ in range(1000):
        context.hold_times.note(answers_take)
    piggyback.loses = lambda sender, to, message: True
    piggyback.publish()
    (it,) = [it for it in context.requests.values() if isinstance(it, FetchCoordinator)]
    (round_,) = it.rounds.values()
    assert isinstance(round_, HoldRound)
    by_answers = it.patience(context, piggyback.replica("a"))
    assert (by_answers[0] < 0.1) is (usual is not None)
    assert (round_.usual, round_.until - round_.started) == pytest.approx(
        (usual, usual) if usual else by_answers
    )


def test_a_batch_of_several_spans_is_not_piggybacked() -> None:
    piggyback = Piggyback()
    piggyback.waits()
    other = piggyback.cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    spans = (Span(piggyback.producer_id, 0, 1), Span(other, 0, 1))
    records = [encode_record(Message(b"x"))] * 2
    batch = pack_spans(PartitionId(piggyback.topic.id, 0), spans, piggyback.cluster.now.wall_ms, records)
    piggyback.cluster.submit("a", m.Publish(batch))
    assert any(isinstance(message, m.Store) for _, _, message in piggyback.said)
    assert piggyback.rode() == []


def test_several_batches_do_not_ride() -> None:
    piggyback = Piggyback()
    piggyback.waits()
    requests = [m.Publish(piggyback.batch(1, first)) for first in (0, 1)]
    other = piggyback.cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    requests[1] = m.Publish(piggyback.cluster.batch(piggyback.topic, other, 0, [b"y"]))
    piggyback.cluster.keys += 2
    keys = (piggyback.cluster.keys - 1, piggyback.cluster.keys)
    events = [Request(key, request) for key, request in zip(keys, requests, strict=True)]
    piggyback.cluster.drivers["a"].feed(*events)
    piggyback.cluster.run()
    assert piggyback.rode() == []


def test_a_retry_of_what_was_acked_meets_the_tombstone() -> None:
    """a has neither the message nor the record, and its disk was not lost: nothing here says that it is not new."""
    piggyback = Piggyback()
    piggyback.loses = lambda sender, to, message: to == "a" and sender != "a"
    piggyback.publish(node="b")
    got = receipts(piggyback.cluster.ask("b", fetch()))
    assert outcomes(piggyback.cluster.ask("b", m.AckRequest(got))) == ["acked"]
    piggyback.loses = lambda sender, to, message: False
    key = piggyback.waits()
    assert isinstance(piggyback.cluster.replies[piggyback.publish()], m.PublishReply)
    assert piggyback.rode() == ["b", "c"]
    assert key not in piggyback.cluster.replies
    piggyback.cluster.advance(2.0)
    assert piggyback.got(key) == []
    assert piggyback.held() == [0, 0, 0]


def test_a_retry_through_another_node_is_delivered_once() -> None:
    """a's STORE reaches no other node. The client publishes the same through b, at which a FETCH waits, too."""
    piggyback = Piggyback()
    piggyback.loses = lambda sender, to, message: sender == "a"
    first, second = (
        piggyback.waits("a", hold_time=60.0, wait=20.0),
        piggyback.waits("b", wait=20.0, hold_time=60.0),
    )
    piggyback.publish()
    piggyback.loses = lambda sender, to, message: False
    piggyback.publish(node="b")
    assert piggyback.got(second) == [Span(piggyback.producer_id, 0, 1)]
    piggyback.cluster.advance(6.0)
    assert isinstance(piggyback.cluster.replies[first], m.Failed)
    assert piggyback.held() == [0, 1, 1]


@pytest.mark.parametrize("node", ["a", "b"])
def test_no_one_holds_what_it_refuses_to_store(node: NodeId) -> None:
    piggyback = Piggyback()
    if node == "a":
        piggyback.replica("a").closing.promise((number_of(piggyback.producer_id),))
    else:
        piggyback.cluster.feed(node, DiskFull(True))
    key = piggyback.waits()
    piggyback.publish()
    assert piggyback.rode() == ["b", "c"]
    if node == "b":
        assert piggyback.got(key) == [Span(piggyback.producer_id, 0, 1)]
        assert piggyback.held() == [1, 0, 1]
    else:  # without our own vote nothing is won, and what others have granted is given back
        assert key not in piggyback.cluster.replies
        assert piggyback.held() == [0, 0, 0]
        assert sorted(to for _, to, message in piggyback.said if isinstance(message, m.Release)) == ["b", "c"]


def test_a_replica_that_abstains_stores_all_the_same() -> None:
    piggyback = Piggyback()
    piggyback.replica("c").quarantine_until = piggyback.cluster.time + 5.0
    key = piggyback.waits(hold_time=30.0, wait=20.0)
    piggyback.loses = lambda sender, to, message: isinstance(message, m.StoreReply) and sender == "b"
    assert isinstance(piggyback.cluster.replies[piggyback.publish()], m.PublishReply)
    assert key not in piggyback.cluster.replies
    piggyback.loses = lambda sender, to, message: False
    piggyback.cluster.advance(1.1)
    assert piggyback.got(key) == [Span(piggyback.producer_id, 0, 1)], "it is asked for again, and b votes"


def test_a_node_that_lacks_the_topic_gets_it_and_both_requests() -> None:
    piggyback = Piggyback()
    piggyback.loses = lambda sender, to, message: to == "b"
    piggyback.topic = piggyback.cluster.topic("other")
    key = piggyback.cluster.submit("a", fetch(wait=1.0)._replace(topics=("other",)))
    assert key not in piggyback.cluster.replies
    piggyback.said.clear()
    piggyback.loses = lambda sender, to, message: sender == "c"
    published = piggyback.publish()
    assert [type(it) for _, to, it in piggyback.said if to == "b"] == [
        m.Store, m.PutTopic, m.Store, m.PutTopic, m.Hold,
    ]  # fmt: skip
    assert isinstance(piggyback.cluster.replies[published], m.PublishReply)
    assert piggyback.got(key) == [Span(piggyback.producer_id, 0, 1)]


def test_a_silent_voter_does_not_keep_the_fetch_open() -> None:
    piggyback = Piggyback()
    for _ in range(40):  # HOLDs are answered fast here
        piggyback.cluster.nodes["a"].context.hold_times.note(0.001)
    key = piggyback.waits(hold_time=30.0, wait=20.0)
    piggyback.loses = lambda sender, to, message: isinstance(message, m.StoreReply)
    piggyback.publish()
    assert piggyback.held() == [1, 1, 1]
    piggyback.cluster.advance(0.9)
    assert piggyback.held() == [1, 1, 1]
    piggyback.cluster.advance(0.2)
    assert len(piggyback.got(key)) == 1, "won by a HOLD of its own"
    assert [type(it) for _, to, it in piggyback.said if to == "b"] == [m.Store, m.Release, m.Hold]


def test_a_piggybacked_hold_is_no_sample_of_hold_latency() -> None:
    """Its answers wait for disks: rounds of HOLD that do not would be waited for longer."""
    piggyback = Piggyback()
    piggyback.waits()
    before = piggyback.cluster.nodes["a"].context.hold_times.total
    piggyback.publish()
    assert piggyback.cluster.nodes["a"].context.hold_times.total == before


def test_a_client_that_goes_gives_back_what_is_piggybacked() -> None:
    piggyback = Piggyback()
    key = piggyback.waits()
    piggyback.loses = lambda sender, to, message: isinstance(message, m.StoreReply)
    piggyback.publish()
    piggyback.cluster.feed("a", Gone(key))
    assert piggyback.held() == [0, 0, 0]
    assert [item.receipt.span for item in receipts(piggyback.cluster.ask("b", fetch()))] == [
        Span(piggyback.producer_id, 0, 1)
    ]


def test_a_coordinator_that_dies_has_an_attempt_that_ran_out() -> None:
    piggyback = Piggyback()
    piggyback.waits(hold_time=5.0)
    piggyback.loses = lambda sender, to, message: isinstance(message, m.StoreReply)
    piggyback.publish()
    piggyback.cluster.kill("a")
    assert piggyback.held() == [1, 1]
    assert receipts(piggyback.cluster.ask("b", fetch())) == ()
    piggyback.cluster.advance(5.1)
    reply = piggyback.cluster.ask("b", fetch())
    assert isinstance(reply, m.FetchReply)
    (delivery,) = reply.slices[0].deliveries
    assert (delivery.attempt, delivery.suspect) == (2, False)


def test_an_unreachable_node_is_not_waited_for() -> None:
    piggyback = Piggyback()
    piggyback.cluster.feed("a", LinkDown("c"))
    piggyback.cluster.feed("b", DiskFull(True))
    key = piggyback.waits()
    piggyback.publish()
    assert piggyback.rode() == ["b"]
    assert key not in piggyback.cluster.replies
    assert piggyback.held() == [0, 0, 0], "with b's no it is lost, and not a second later"


def test_a_hold_that_is_piggybacked_says_whether_another_one_waits_here() -> None:
    piggyback = Piggyback()
    for more in (True, False):
        piggyback.waits()
        if more:
            piggyback.waits("a")
        piggyback.publish(first=int(more))
        holds = [
            message.hold for _, _, message in piggyback.said if isinstance(message, m.Store) and message.hold
        ]
        assert [hold.parked for hold in holds[-2:]] == [more, more]
        piggyback.cluster.advance(2.0)


def test_each_group_has_its_own_and_one_of_them_is_piggybacked() -> None:
    piggyback = Piggyback()
    piggyback.cluster.ask("a", fetch("other"))
    keys = [piggyback.waits(), piggyback.cluster.submit("a", fetch("other", wait=1.0))]
    piggyback.publish()
    assert len(piggyback.rode()) == 2
    assert [piggyback.got(key) for key in keys] == [[Span(piggyback.producer_id, 0, 1)]] * 2
    assert sum(isinstance(message, m.Hold) for _, _, message in piggyback.said) == 2
    assert sum(isinstance(message, m.HoldReply) for _, _, message in piggyback.said) == 2


# ---------------------------------------------------------------------------- what it costs

CALLS, STEPS, SAID = 827, 15, 8
"""Counts for one message that is published, delivered and acked through one node while a client waits there: Python
calls in the steps of the three cores, steps, and messages between nodes."""


def test_one_message_at_a_time_costs_one_round_less(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(heartbeat=600.0, checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    said: list[object] = []

    def one(seq: int) -> None:
        waiting = cluster.submit("a", fetch(wait=1.0))
        cluster.advance(0.001)
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])), of=m.PublishReply)
        assert outcomes(cluster.ask("a", m.AckRequest(receipts(cluster.replies[waiting])))) == ["acked"]
        cluster.advance(0.001)

    one(0)
    cluster.advance(0.1)
    cluster.drop = lambda sender, to, message: said.append(message) is not None
    count = 20
    steps = steps_of(monkeypatch, lambda: [*map(one, range(1, 1 + count))], builtins=False)
    assert sum(steps) <= SLACK * CALLS * count
    assert len(steps) <= STEPS * count
    assert len(said) <= SAID * count


def test_a_round_ahead_of_the_own_disk_waits_for_it() -> None:
    """If our own vote is the last, nothing is lost for want of it until then."""
    piggyback = Piggyback()
    piggyback.loses = lambda sender, to, message: isinstance(message, m.StoreReply)
    piggyback.waits()
    piggyback.publish()
    core = piggyback.cluster.nodes["a"]
    (it,) = [one for one in core.context.requests.values() if isinstance(one, FetchCoordinator)]
    (round_,) = it.rounds.values()
    assert isinstance(round_, HoldRound)
    round_.answered_by.clear()
    round_.votes = Votes()
    it._decide(core.context, round_, piggyback.cluster.now, timed_out=False)
    assert round_.pending.covers(Span(piggyback.producer_id, 0, 1))

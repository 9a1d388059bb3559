"""Some are asked later: a majority at once, the others within 20 ms, joined (docs/protocol.md, section 3).

In these clusters ``a`` asks ``b`` first, ``b`` asks ``c``, and ``c`` asks ``a``.
"""

from __future__ import annotations

import pytest

from quorumq.core import limits
from quorumq.core.effects import LinkDown
from quorumq.core.hedge import EVERYONE_EACH
from quorumq.core.messages import (
    Ack,
    AckRequest,
    ExtendRequest,
    Failed,
    Hold,
    HoldReply,
    OpenSession,
    Owned,
    Publish,
    PublishReply,
    ReceiptPart,
    RejectRequest,
    Release,
    SetGroup,
    Store,
    StoreReply,
    Want,
)
from quorumq.core.partition.replica import Replica
from quorumq.core.types import Kind, NodeId, Origin, Span, Topic
from tests.core.cluster import Cluster
from tests.core.test_cluster_smoke import fetch, outcomes, receipts
from tests.core.test_groups import LETTER

LATE_S = 0.02


class Hedged:
    """Three nodes that ask a majority at once, and what was said between them."""

    def __init__(self, **settings: object) -> None:
        self.cluster = Cluster(sync_interval=600.0, heartbeat=600.0, late_after=LATE_S, **settings)
        self.topic: Topic = self.cluster.topic()
        self.origin: Origin = self.cluster.ask("a", OpenSession()).origin  # type: ignore[union-attr]
        self.seq = 0
        for node in "abc":  # each has registered the group, and nobody reads any more
            self.cluster.ask(node, fetch())
        self.cluster.advance(5.0)
        self.said: list[tuple[NodeId, NodeId, object]] = []
        self.deaf: set[NodeId] = set()
        self.cluster.drop = self.hear

    def hear(self, sender: NodeId, to: NodeId, message: object) -> bool:
        self.said.append((sender, to, message))
        return bool({sender, to} & self.deaf)

    def publish(self, node: NodeId = "a", count: int = 1, delay_ms: int = 0) -> int:
        """The key of the request."""
        batch = self.cluster.batch(self.topic, self.origin, self.seq, [b"x"] * count, delay_ms=delay_ms)
        self.seq += count
        return self.cluster.submit(node, Publish(batch))

    def published(self, node: NodeId = "a", count: int = 1) -> None:
        assert isinstance(self.cluster.replies.get(self.publish(node, count)), PublishReply)

    def spread(self, count: int = 1) -> None:
        """Publish, and let everyone have it."""
        self.published(count=count)
        self.cluster.advance(LATE_S)
        self.said.clear()

    def fetched(self, node: NodeId = "a", group: str = "g") -> tuple[ReceiptPart, ...]:
        return receipts(self.cluster.ask(node, fetch(group)))

    def replica(self, node: NodeId) -> Replica:
        (found,) = self.cluster.nodes[node].replicas.values()
        return found

    def held(self, node: NodeId) -> int:
        return self.replica(node).group("g").held_count

    def to(self, node: NodeId, kind: type) -> list[object]:
        """What was said to a node, of one kind."""
        return [message for _, to, message in self.said if to == node and isinstance(message, kind)]


def test_a_majority_is_asked_at_once_and_the_others_20_ms_later() -> None:
    hedged = Hedged()
    hedged.published()
    assert [to for sender, to, message in hedged.said if isinstance(message, Store)] == ["b"]
    hedged.cluster.advance(LATE_S - 0.001)
    assert not hedged.to("c", Store)
    hedged.cluster.advance(0.001)
    assert len(hedged.to("c", Store)) == 1
    assert hedged.replica("c").batches.present == hedged.replica("a").batches.present


def test_what_waits_for_one_node_is_joined_and_what_was_acked_is_not_held_there() -> None:
    hedged = Hedged()
    for _ in range(5):
        hedged.published()
        got = hedged.fetched()
        assert outcomes(hedged.cluster.ask("a", AckRequest(got))) == ["acked"]
        hedged.cluster.advance(0.003)
    hedged.cluster.advance(LATE_S)
    (store,), (ack,) = hedged.to("c", Store), hedged.to("c", Ack)
    assert isinstance(store, Store)
    assert isinstance(ack, Ack)
    assert (len(store.parts), len(ack.entries)) == (5, 5)
    assert not hedged.to("c", Hold)
    assert len(hedged.said) <= 9 * 5
    records = hedged.replica("c").group("g").records.within(Span(hedged.origin, 0, 5))
    assert [(span.size, record.kind) for span, record in records] == [(5, Kind.ACKED)]


def test_a_hold_that_lasts_reaches_everyone_and_is_not_answered() -> None:
    hedged = Hedged()
    hedged.spread()
    assert len(hedged.fetched()) == 1
    assert (hedged.held("b"), hedged.held("c")) == (1, 0)
    hedged.cluster.advance(LATE_S)
    assert hedged.held("c") == 1
    assert [sender for sender, _, message in hedged.said if isinstance(message, HoldReply)] == ["b"]


def test_acks_of_other_groups_are_other_acks() -> None:
    hedged = Hedged()
    hedged.cluster.ask("a", SetGroup("jobs", "other"))
    hedged.spread()
    for group in ("g", "other"):
        assert outcomes(hedged.cluster.ask("a", AckRequest(hedged.fetched(group=group)))) == ["acked"]
    hedged.cluster.advance(LATE_S)
    assert sorted(ack.group for ack in hedged.to("c", Ack)) == ["g", "other"]  # type: ignore[attr-defined]


# --------------------------------------------------------------- the coordinator or a voter dies


def test_what_was_confirmed_outlives_a_coordinator_that_dies_before_it_asks_the_others() -> None:
    hedged = Hedged()
    hedged.published()
    hedged.cluster.kill("a")
    assert [item.receipt.span.size for item in hedged.fetched("b")] == [1]


def test_a_delivery_of_a_coordinator_that_dies_so_is_nobody_elses() -> None:
    """c has not heard of the hold, and b has."""
    hedged = Hedged()
    hedged.spread()
    assert hedged.fetched("a")
    hedged.cluster.kill("a")
    for _ in range(4):
        assert not receipts(hedged.cluster.replies[hedged.cluster.submit("c", fetch())])
        hedged.cluster.advance(0.5)


@pytest.mark.parametrize("request_of", ["extend", "reject", "bury"])
@pytest.mark.parametrize("after", [0.0, LATE_S])
def test_a_delivery_is_settled_though_one_of_two_granters_died(request_of: str, after: float) -> None:
    hedged = Hedged()
    hedged.spread()
    got = hedged.fetched("a")
    hedged.cluster.advance(after)
    hedged.cluster.kill("b")
    request = {
        "extend": ExtendRequest(got, 20.0, 0.0),
        "reject": RejectRequest(got, 1.0, None),
        "bury": RejectRequest(got, 0.0, LETTER),
    }[request_of]
    assert outcomes(hedged.cluster.ask("a", request)) == ["ok"]


def test_a_hold_that_is_given_back_elsewhere_before_it_reaches_everyone_never_does() -> None:
    """A REJECT that overtakes its HOLD would leave that behind."""
    hedged = Hedged()
    hedged.spread()
    (got,) = hedged.fetched("a")
    assert outcomes(hedged.cluster.ask("b", RejectRequest((got,), 0.0, None))) == ["ok"]
    hedged.cluster.advance(LATE_S)
    assert not any(map(hedged.held, "abc"))
    assert not hedged.to("c", Hold)


def test_a_release_goes_to_those_that_were_sent_the_hold() -> None:
    hedged = Hedged()
    hedged.spread()
    key = hedged.cluster.submit("a", fetch(wait=0.0))
    assert key in hedged.cluster.replies
    core = hedged.cluster.nodes["a"]
    hedged.said.clear()
    hedged.cluster.drivers["a"].carry_out(core.context.take_back(key, hedged.cluster.now))
    hedged.cluster.run()
    assert [to for _, to, message in hedged.said if isinstance(message, Release)] == ["b"]
    hedged.cluster.advance(LATE_S)
    assert not hedged.to("c", Hold)
    assert not any(map(hedged.held, "abc"))


# -------------------------------------------------------------------------- asked at once, hedged


def test_who_does_not_answer_keeps_one_publish_waiting_and_is_asked_last() -> None:
    hedged = Hedged()
    hedged.deaf = {"b"}
    first = hedged.publish()
    assert first not in hedged.cluster.replies
    hedged.cluster.advance(LATE_S)
    assert isinstance(hedged.cluster.replies[first], PublishReply)
    for _ in range(5):
        hedged.published()
    hedged.deaf = set()
    hedged.cluster.ask("b", fetch())  # it says something
    hedged.said.clear()
    hedged.published()
    assert not hedged.to("b", Store), "it is asked last until another one has to be hedged"
    hedged.deaf = {"c"}
    hedged.publish()
    hedged.cluster.advance(LATE_S)
    hedged.published()


def test_where_nobody_answers_all_are_asked_at_once() -> None:
    hedged = Hedged()
    hedged.deaf = {"b", "c"}
    hedged.publish()
    hedged.cluster.advance(LATE_S)
    hedged.publish()
    hedged.cluster.advance(LATE_S)
    hedged.deaf = {"b"}
    hedged.published()


def test_a_store_that_is_refused_goes_to_the_others_at_once() -> None:
    hedged = Hedged()
    hedged.cluster.nodes["b"].state.disk_full = True
    hedged.published()
    assert hedged.to("c", Store)


@pytest.mark.parametrize("why", ["abstains", "held", "unseen"])
def test_an_answer_that_decides_nothing_has_the_others_asked_at_once(why: str) -> None:
    hedged = Hedged()
    if why == "unseen":
        hedged.publish("c", delay_ms=50)  # which asks a first
        hedged.cluster.nodes["c"].context.hedge.later.pop("b")
        hedged.cluster.advance(0.05)
    else:
        hedged.spread()
    if why == "abstains":
        hedged.replica("b").quarantine_until = 1e9
    if why == "held":
        replica, other = hedged.replica("b"), hedged.cluster.nodes["b"].state
        wants = (Want(Span(hedged.origin, 0, 1), 0),)
        ballot = other.clock.fresh(hedged.cluster.now)
        hold = Hold(0, replica.partition, replica.topic.epoch, "g", 0, ballot, 10.0, wants)
        replica.on_hold("b", other.incarnation, hold, hedged.cluster.now)
    hedged.said.clear()
    got = hedged.cluster.submit("a", fetch(wait=1.0))
    if why == "held":  # the ballot was the higher one, and the next attempt has one above it
        hedged.cluster.advance(0.2)
    assert len(receipts(hedged.cluster.replies[got])) == 1
    assert hedged.to("c", Hold)


def test_who_reads_is_asked_at_once_to_store_and_who_waits_to_hold() -> None:
    hedged = Hedged(steal_after=600.0)
    core, driver = hedged.cluster.nodes["c"], hedged.cluster.drivers["c"]
    waiting = hedged.cluster.submit("c", fetch(wait=1.0))
    driver.carry_out(core.context.heartbeats(hedged.cluster.now))
    hedged.cluster.run()
    hedged.published()
    assert [to for _, to, message in hedged.said if isinstance(message, Store)] == ["c"], "that is a majority"
    assert receipts(hedged.cluster.replies[waiting])
    hedged.cluster.advance(0.1)
    hedged.published()  # c has fetched just now
    assert len(hedged.to("c", Store)) == 2
    hedged.cluster.advance(0.1)
    hedged.said.clear()
    hedged.cluster.nodes["a"].state.parked[(hedged.replica("a").partition, "g", "c")] = hedged.cluster.time
    assert len(hedged.fetched("a")) == 1
    assert [to for sender, to, message in hedged.said if isinstance(message, Hold)] == ["c"]


def test_who_answers_first_where_all_were_asked_is_asked_first() -> None:
    hedged = Hedged()
    state = hedged.cluster.nodes["a"].state
    state.round_count = EVERYONE_EACH - 1
    hedged.deaf = {"b"}
    hedged.published()
    assert hedged.cluster.nodes["a"].context.hedge.order == ["c", "b"]
    hedged.said.clear()
    hedged.published()
    assert hedged.to("c", Store)


# ------------------------------------------------------------------------------------ what is said


def test_what_was_published_with_a_delay_has_aged_while_it_waited() -> None:
    hedged = Hedged()
    hedged.publish(delay_ms=1000)
    hedged.cluster.advance(LATE_S)
    ages = [store.age_ms for store in hedged.to("c", Store)]  # type: ignore[attr-defined]
    assert ages in ([19], [20])


def test_a_late_hold_repairs_where_it_meets_a_tombstone() -> None:
    hedged = Hedged()
    hedged.spread()
    message = Span(hedged.origin, 0, 1)
    owner = hedged.fetched("c")[0].receipt.owner
    replica = hedged.replica("c")
    ack = Ack(0, replica.partition, replica.topic.epoch, "g", 0, (Owned(message, owner),))
    replica.on_ack("c", ack, hedged.cluster.now)
    hedged.cluster.advance(11.0)  # the hold runs out; a and b have not heard of the ACK
    assert hedged.fetched("a")
    hedged.cluster.advance(LATE_S)
    ((_, record),) = hedged.replica("a").group("g").records.within(message)
    assert record.kind == Kind.ACKED


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LATE_MESSAGES_MAX", 10)
    hedged = Hedged()
    for _ in range(9):
        hedged.published()
    assert not hedged.to("c", Store)
    hedged.published()
    assert sum(len(store.parts) for store in hedged.to("c", Store)) == 10  # type: ignore[attr-defined]
    hedged.said.clear()
    large = hedged.cluster.batch(hedged.topic, hedged.origin, hedged.seq, [b"x" * (1 << 19)] * 2)
    assert not isinstance(hedged.cluster.ask("a", Publish(large)), Failed)
    assert len(hedged.to("c", Store)) == 1


def test_what_waits_goes_with_its_link_and_before_a_clean_stop() -> None:
    hedged = Hedged()
    hedged.published()
    hedged.cluster.feed("a", LinkDown("c"))
    assert not hedged.cluster.nodes["a"].context.hedge.later
    hedged.cluster.link("a", "c")
    hedged.said.clear()
    hedged.published()
    hedged.cluster.stop("a")
    assert len(hedged.to("c", Store)) == 1


def test_a_store_is_answered_so_that_its_position_is_known() -> None:
    hedged = Hedged()
    hedged.spread()
    hedged.published()
    hedged.cluster.advance(LATE_S)
    assert [sender for sender, _, message in hedged.said if isinstance(message, StoreReply)] == ["b", "c"]

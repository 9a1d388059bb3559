"""Suspects, which may have ended their consumers, are delivered in lots, and only to a client with nothing in hand.

Most tests have two deliveries a message: who expired once has one left, and so is alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import NO_ATTEMPTS, is_exhausted, lot_of
from quorumq.core.partition.choice import Terms
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.lease import FREE, NO_OWNER, Held
from quorumq.core.partition.ready import ReadyMessages
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Span
from tests.core.cluster import Cluster
from tests.core.steps import (
    fetch,
    many,
    opened,
    publish,
    receipts,
    replica_of,
    seqs,
    with_messages,
    with_session,
)


def suspects(reply: object) -> list[bool]:
    assert isinstance(reply, m.FetchReply), reply
    return [delivery.suspect for part in reply.slices for delivery in part.deliveries]


def expired(cluster: Cluster, count: int, via: str = "a") -> None:
    """Have the hold of the oldest messages run out."""
    assert len(seqs(cluster.ask(via, fetch(most=count, hold_time=5.0)))) == count
    cluster.advance(5.1)


def test_a_fetch_brings_first_timers_or_one_suspect() -> None:
    cluster, topic, producer_id = with_session(5, max_deliveries=2)
    expired(cluster, 3)
    reply = cluster.ask("b", fetch())
    assert (seqs(reply), suspects(reply)) == ([3, 4], [False])
    publish(cluster, topic, producer_id, 5, 3)  # younger ones
    for expected in ([0], [1], [2]):
        reply = cluster.ask("b", fetch())
        assert (seqs(reply), suspects(reply)) == (expected, [True])
    assert seqs(cluster.ask("b", fetch())) == [5, 6, 7]


def test_a_suspect_comes_only_to_a_client_with_nothing_in_hand_and_blocks_no_one_else() -> None:
    cluster = with_messages(5, max_deliveries=2)
    expired(cluster, 3)
    assert seqs(cluster.ask("a", fetch(idle=False))) == [3, 4]
    assert seqs(cluster.ask("c", fetch(idle=False))) == []
    assert seqs(cluster.ask("c", fetch())) == [0]


def test_an_older_first_timer_goes_before_a_suspect() -> None:
    cluster, topic, producer_id = with_session(2, max_deliveries=2)
    old = receipts(cluster.ask("a", fetch()))
    cluster.advance(1.0)
    publish(cluster, topic, producer_id, 2, 2)
    assert seqs(cluster.ask("a", fetch(hold_time=3.0))) == [2, 3]
    cluster.ask("a", m.ReleaseRequest(old))
    cluster.advance(3.1)
    assert seqs(cluster.ask("b", fetch(most=1))) == [0]
    assert seqs(cluster.ask("b", fetch(most=1))) == [1]
    assert seqs(cluster.ask("b", fetch())) == [2]


def test_only_expiry_makes_a_suspect_and_a_reject_unmakes_it() -> None:
    cluster = with_messages(2, max_deliveries=9)
    cluster.ask("a", m.ReleaseRequest(receipts(cluster.ask("a", fetch()))))
    assert len(seqs(cluster.ask("a", fetch(hold_time=5.0)))) == 2, "LEAVE counts nothing"
    cluster.advance(5.1)
    expired(cluster, 2)
    reply = cluster.ask("b", fetch(most=1))
    assert suspects(reply) == [True]
    cluster.ask("b", m.RejectRequest(receipts(reply)))
    again = cluster.ask("c", fetch(idle=False))
    assert (seqs(again), suspects(again)) == ([0], [False])
    assert again.slices[0].deliveries[0].attempt == 4


ENDINGS = {
    # max_deliveries, how deliveries ended (e: expired, r: rejected): size of the lot of the next one (0: with any
    # others), or that none is left
    (5, ""): 0, (5, "e"): 0, (5, "ee"): 4, (5, "eee"): 2, (5, "eeee"): 1, (5, "eeeee"): None,
    (5, "r"): 0, (5, "rr"): 0, (5, "re"): 0, (5, "ere"): 2, (5, "er"): 0, (5, "eer"): 0, (5, "eere"): 1,
    (5, "rrrre"): 1, (5, "rrrree"): None, (5, "rrrrer"): None, (5, "rrrrr"): None, (5, "errre"): None,
    (1, ""): 0, (1, "e"): None, (1, "r"): None,
    (2, "e"): 1, (2, "ee"): None, (2, "r"): 0, (2, "re"): 1, (2, "rer"): None, (2, "er"): None,
    (3, "e"): 0, (3, "ee"): 1, (3, "re"): 1, (3, "rre"): 1,
    (20, "eee"): 2, (20, "eeee"): 1, (20, "e" * 19): 1, (20, "ee"): 4,
}  # fmt: skip


@pytest.mark.parametrize(("most", "endings"), ENDINGS)
def test_the_more_often_a_message_expired_the_less_company_it_has(most: int, endings: str) -> None:
    lease = FREE
    for end in endings:
        known = lease.attempts or NO_ATTEMPTS
        held = Held(NO_OWNER, 0.0, 0, 0, known)
        lease = fate.count_attempt(lease, held, expired=end == "e")
    attempts = lease.attempts or NO_ATTEMPTS
    is_left = not is_exhausted(attempts, most)
    assert (lot_of(attempts, most) if is_left else None) == ENDINGS[most, endings]


def test_messages_of_a_crash_come_together_then_in_smaller_lots_then_alone_then_no_more() -> None:
    cluster = with_messages(9, max_deliveries=5)
    expired(cluster, 9)
    expired(cluster, 9)
    for lots in ([4, 4, 1], [2, 2, 2, 2, 1], [1] * 9):
        first = 0
        for size in lots:
            reply = cluster.ask("b", fetch(hold_time=30.0))
            assert (seqs(reply), set(suspects(reply))) == ([*range(first, first + size)], {True})
            first += size
        cluster.advance(30.1)
    assert seqs(cluster.ask("b", fetch())) == []
    cluster.advance(6.0)
    assert len(seqs(cluster.ask("b", fetch(group="g!dead")))) == 9


def test_a_lot_is_of_several_batches_and_partitions_and_no_larger_than_each_of_it_may_have() -> None:
    cluster = Cluster()
    topic = cluster.topic(partitions=2, max_deliveries=9)
    for partition in (0, 1):
        producer_id = cluster.ask("a", m.OpenSession()).producer_id
        for seq in range(3):
            cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"], partition)))
    expired(cluster, 6)
    expired(cluster, 6)
    expired(cluster, 4)  # a lot: three of one partition, one of the other
    lots = [receipts(cluster.ask("a", fetch())) for _ in range(4)]
    assert [sum(part.receipt.span.size for part in lot) for lot in lots] == [2, 2, 2, 0]


@pytest.mark.parametrize("expiries", [0, 2])
def test_messages_that_are_won_do_not_wait_for_a_partition_that_has_not_answered_for_long(
    expiries: int,
) -> None:
    cluster = Cluster(hold_time_max=30.0)
    topic = cluster.topic(partitions=2, max_deliveries=9)
    for partition in (0, 1):
        producer_id = cluster.ask("a", m.OpenSession()).producer_id
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], partition)))
    for _ in range(expiries):
        expired(cluster, 2)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.HoldReply) and message.partition.number == 1 and sender != to
    )
    for _ in range(3):  # each round without answers doubles the time of the next one
        cluster.submit("a", fetch(group="other", hold_time=30.0))
        cluster.advance(40.0)
    key = cluster.submit("a", fetch(hold_time=30.0))
    cluster.advance(1.2)
    assert suspects(cluster.replies[key]) == [expiries > 0]


def test_an_expiry_after_rejects_alone_gets_one_more_delivery_alone() -> None:
    cluster = with_messages(2, max_deliveries=3)
    for _ in range(2):
        cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", fetch()))))
    expired(cluster, 2)
    for seq in (0, 1):
        reply = cluster.ask("b", fetch(hold_time=5.0))
        assert (seqs(reply), suspects(reply)) == ([seq], [True])
    cluster.advance(5.1)
    assert seqs(cluster.ask("b", fetch())) == []
    cluster.advance(6.0)
    assert len(seqs(cluster.ask("b", fetch(group="g!dead")))) == 2


def test_a_client_that_had_a_suspect_gets_first_deliveries_next() -> None:
    cluster, topic, producer_id = with_session(3, max_deliveries=2)
    expired(cluster, 3)
    assert seqs(cluster.ask("a", fetch(had_lot=True))) == [0], "there is nobody else"
    publish(cluster, topic, producer_id, 3, 3)
    assert seqs(cluster.ask("a", fetch(had_lot=True))) == [3, 4, 5]
    assert seqs(cluster.ask("a", fetch())) == [1]


def test_with_more_deliveries_a_suspect_may_have_company_and_with_fewer_it_may_not() -> None:
    cluster = with_messages(3, max_deliveries=2)
    expired(cluster, 3)
    cluster.ask("b", m.AlterTopic("jobs", max_deliveries=5))
    reply = cluster.ask("c", fetch(hold_time=5.0))
    assert (seqs(reply), suspects(reply)) == ([0, 1, 2], [False])
    cluster.advance(5.1)
    cluster.ask("b", m.AlterTopic("jobs", max_deliveries=3))
    assert seqs(cluster.ask("c", fetch())) == [0]


def test_a_rewind_makes_a_first_timer_of_a_suspect() -> None:
    cluster = with_messages(3, max_deliveries=2)
    expired(cluster, 3)
    cluster.ask("a", m.SetGroup("jobs", "g", rewind=True))
    assert seqs(cluster.ask("a", fetch(idle=False))) == [0, 1, 2]


def drop_counts(cluster: Cluster, node: str, count: int) -> GroupView:
    """Have a node take the first ``count`` messages for first-timers, as one that was away does."""
    replica = replica_of(cluster, node)
    view = replica.group("g")
    view.leases = SpanMap()
    view.compare_anew()
    replica.views.refresh_all(cluster.now)
    assert (view.available.messages, view.suspects.messages) == (count, 0)
    return view


@pytest.mark.parametrize("idle", [False, True])
def test_a_suspect_known_to_the_voters_alone_is_released_and_learned(idle: bool) -> None:
    cluster = with_messages(5, max_deliveries=2)
    expired(cluster, 3)
    view = drop_counts(cluster, "a", 5)
    assert seqs(cluster.ask("a", fetch(idle=idle))) == [3, 4]
    assert view.suspects.messages == 3
    assert seqs(cluster.ask("a", fetch(idle=False))) == []
    assert (seqs(cluster.ask("b", fetch())), view.held_count) == ([0], 3)


def test_an_idle_client_gets_one_of_several_suspects_in_the_votes() -> None:
    cluster = with_messages(3, max_deliveries=2)
    expired(cluster, 3)
    drop_counts(cluster, "a", 3)
    reply = cluster.ask("a", fetch())
    assert (seqs(reply), suspects(reply)) == ([0], [True])
    assert seqs(cluster.ask("a", fetch())) == [1], "the others were given back"


def test_a_parked_fetch_of_an_idle_client_wakes_for_a_suspect_and_is_served_first() -> None:
    cluster, topic, producer_id = with_session(1, max_deliveries=2)
    assert seqs(cluster.ask("a", fetch(hold_time=5.0))) == [0]
    cluster.advance(4.5)
    busy = cluster.submit("a", fetch(wait=3.0, hold_time=30.0, idle=False))
    assert seqs(cluster.ask("a", fetch(wait=3.0, hold_time=30.0), 1.0)) == [0]
    assert busy not in cluster.replies
    other = cluster.submit("a", fetch(wait=3.0, hold_time=30.0, most=1))
    publish(cluster, topic, producer_id, 1, 1)
    cluster.advance(0.1)
    assert seqs(cluster.replies[other]) == [1], "it came later, and has nothing in hand"
    assert busy not in cluster.replies


def told(cluster: Cluster, via: str = "a", **options: Any) -> bool:
    """Return True if a FETCH of a client with messages in hand gets the hint to settle them."""
    reply = cluster.ask(via, fetch(idle=False, **options), of=m.FetchReply)
    return reply.suspects


def test_one_client_at_a_time_is_told_that_suspects_wait_and_has_its_hold_time_to_come() -> None:
    cluster = Cluster()
    publish(cluster, *opened(cluster, partitions=2, max_deliveries=9), 0, 2)  # one has none
    expired(cluster, 2)
    assert not told(cluster, most=1, hold_time=5.0)
    assert not told(cluster, most=1, hold_time=5.0)
    cluster.advance(5.1)
    assert told(cluster, hold_time=20.0)
    assert not told(cluster), "one is enough"
    cluster.advance(20.1)
    assert told(cluster, hold_time=20.0), "the first did not come"
    reply = cluster.ask("b", fetch(hold_time=3.0))
    assert (seqs(reply), reply.suspects) == ([0, 1], False), "an idle client gets them instead"
    assert not told(cluster)
    cluster.advance(3.1)
    assert told(cluster), "those that it was told of were handed over; these are others"


def test_a_client_is_told_with_what_it_gets_but_not_where_older_first_timers_wait() -> None:
    cluster, topic, producer_id = with_session(2, max_deliveries=2)
    old = receipts(cluster.ask("a", fetch(hold_time=30.0)))
    cluster.advance(1.0)
    publish(cluster, topic, producer_id, 2, 1)
    expired(cluster, 1)
    publish(cluster, topic, producer_id, 3, 1)
    cluster.ask("a", m.ReleaseRequest(old))
    replies = [cluster.ask("a", fetch(most=1, idle=False)) for _ in range(3)]
    assert [(seqs(reply), reply.suspects) for reply in replies] == [([0], False), ([1], True), ([3], False)]


def test_a_parked_fetch_that_only_suspects_keep_waiting_is_answered_at_once_and_once() -> None:
    cluster = with_messages(1, max_deliveries=2)
    expired(cluster, 1, via="b")
    asked = [cluster.submit("a", fetch(wait=3.0, hold_time=30.0, idle=False)) for _ in range(2)]
    cluster.advance(0.1)
    assert [key in cluster.replies for key in asked] == [True, False]
    assert (seqs(cluster.replies[asked[0]]), cluster.replies[asked[0]].suspects) == ([], True)
    cluster.advance(3.0)
    assert (seqs(cluster.replies[asked[1]]), cluster.replies[asked[1]].suspects) == ([], False)


def test_a_parked_fetch_hears_of_a_suspect_as_soon_as_there_is_one() -> None:
    cluster = with_messages(1, max_deliveries=2)
    assert len(seqs(cluster.ask("b", fetch(hold_time=5.0)))) == 1
    cluster.advance(4.0)
    parked = cluster.submit("a", fetch(wait=3.0, hold_time=30.0, idle=False))
    cluster.advance(0.5)
    assert parked not in cluster.replies
    cluster.advance(1.0)
    assert cluster.replies[parked].suspects


def test_a_suspect_is_one_after_a_restart_and_where_anti_entropy_brings_it() -> None:
    cluster = with_messages(3, hold_time_max=10.0, max_deliveries=2)
    expired(cluster, 3)
    drop_counts(cluster, "c", 3)
    cluster.crash("ab", 30.0)
    for name in "abc":
        view = replica_of(cluster, name).group("g")
        assert (view.available.messages, view.suspects.messages) == (0, 3), name


class Counting(SpanMap[int]):
    """Counts how often it is asked about a section."""

    __slots__ = ("asked",)

    def within(self, span: Span) -> list[tuple[Span, int]]:
        self.asked += 1
        return super().within(span)


@contextmanager
def counting(ready: ReadyMessages) -> Iterator[Counting]:
    plain, ready.spans = ready.spans, Counting()
    for span, lot in plain.items():
        ready.spans.set(span, lot)
    ready.spans.asked = 0
    yield ready.spans
    ready.spans = plain


def test_a_choice_among_100_000_suspects_looks_at_one_section() -> None:
    cluster = Cluster(1)
    topic = cluster.topic(rf=1, max_deliveries=2)
    many(cluster, topic, 100, 1000)
    for _ in range(100):
        cluster.ask("a", fetch(most=1000, hold_time=9.0))
    cluster.advance(9.1)
    replica = replica_of(cluster, "a")
    view = replica.group("g")
    assert (view.suspects.messages, view.available.messages) == (100_000, 0)
    with counting(view.suspects) as spans:
        for company in (0, None):
            replica.choice.choose(view, cluster.now, Terms(100, 1 << 20, 100, float("inf")), company)
            assert spans.asked == 1, "and none for first-timers"

"""If a clean stop interrupts messages, they are redelivered at once, count no attempt and are no suspects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts, greater, is_exhausted, lot_of, with_another
from quorumq.core.values.limits import INTERRUPTIONS_MAX, TOPIC_BACKOFF_S
from quorumq.core.values.types import STAMP_ZERO, Death, Kind
from tests.core.cluster import Cluster
from tests.core.steps import check_failed, fetch, outcomes, receipts, with_messages


def got(
    cluster: Cluster, via: str = "a", **options: object
) -> tuple[tuple[m.ReceiptPart, ...], list[tuple[int, int]]]:
    """Return the receipts of a FETCH, and of each delivery the attempt and the interruptions before it."""
    reply = cluster.ask(via, fetch(**options), of=m.FetchReply)  # type: ignore[arg-type]
    deliveries = [delivery for part in reply.slices for delivery in part.deliveries]
    return receipts(reply), [(delivery.attempt, delivery.interruptions) for delivery in deliveries]


def interrupt(cluster: Cluster, items: tuple[m.ReceiptPart, ...], via: str = "b") -> list[str]:
    return outcomes(cluster.ask(via, m.RejectRequest(items, interrupted=True)))


def counts(cluster: Cluster) -> dict[str, list[tuple[int, int]]]:
    """Return each node's counts for each run: attempts and interruptions."""
    return {
        name: [
            (lease.attempts.ended, lease.attempts.interruptions)
            for replica in core.replicas.values()
            for _, lease in replica.views.groups["g"].leases.items()
            if lease.attempts is not None
        ]
        for name, core in cluster.nodes.items()
    }


def on_all(attempts: list[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    return dict.fromkeys("abc", attempts)


def deaths(cluster: Cluster) -> list[Death]:
    reply = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10), of=m.PeekReply)
    return [item.record.death for item in reply.items if item.record.death is not None]


@pytest.mark.parametrize("via", "abc")
def test_it_comes_again_at_once_with_the_attempt_that_it_had(via: str) -> None:
    cluster = with_messages(3)
    cluster.ask("a", m.AlterTopic("jobs", backoff=(60.0,)))
    first, attempts = got(cluster)
    assert attempts == [(1, 0)]
    assert interrupt(cluster, first, via) == ["ok"]
    assert counts(cluster) == on_all([(0, 1)])
    _, attempts = got(cluster, "c")
    assert attempts == [(1, 1)]


@pytest.mark.parametrize("max_deliveries", [1, 3])
def test_the_eleventh_interruption_counts_and_the_dead_letter_has_both_counts(max_deliveries: int) -> None:
    cluster = with_messages(1, max_deliveries=max_deliveries)
    for count in range(INTERRUPTIONS_MAX):
        items, attempts = got(cluster, "abc"[count % 3])
        assert attempts == [(1, count)]
        assert interrupt(cluster, items) == ["ok"]
    for count in range(max_deliveries):
        items, attempts = got(cluster)
        assert attempts == [(1 + count, INTERRUPTIONS_MAX)]
        assert interrupt(cluster, items) == ["ok"]
    cluster.advance(1.0)
    attempts = [(death.reason, death.attempts, death.interruptions) for death in deaths(cluster)]
    assert attempts == [("max-deliveries", max_deliveries, INTERRUPTIONS_MAX)]


def test_a_retry_of_it_is_ok_anywhere_and_counts_once() -> None:
    cluster = with_messages(1)
    items, _ = got(cluster)
    for via in "abc":
        assert interrupt(cluster, items, via) == ["ok"]
    assert counts(cluster) == on_all([(0, 1)])


def test_an_interruption_after_the_hold_counts_nothing() -> None:
    cluster = with_messages(1)
    items, _ = got(cluster, hold_time=5.0)
    cluster.advance(5.1)
    assert interrupt(cluster, items) == ["hold-lost"]
    assert counts(cluster) == on_all([(1, 0)])


def test_a_coordinator_that_missed_it_learns_of_it_from_the_voters() -> None:
    cluster = with_messages(1)
    assert interrupt(cluster, got(cluster)[0]) == ["ok"]
    views = cluster.nodes["c"].replicas.values()
    for view in [replica.views.groups["g"] for replica in views]:
        ((span, lease),) = view.leases.items()
        view.leases.set(span, lease._replace(attempts=None))
    items, attempts = got(cluster, "c")
    assert attempts == [(1, 1)]
    assert interrupt(cluster, items) == ["ok"]
    assert counts(cluster) == on_all([(0, 2)])


def test_a_replica_that_it_does_not_reach_counts_an_expiry_as_of_any_reject() -> None:
    cluster = with_messages(1)
    items, _ = got(cluster, hold_time=5.0)
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.Reject)
    assert interrupt(cluster, items) == ["ok"]
    assert got(cluster, hold_time=1.0)[1] == [(1, 1)]
    cluster.advance(30.0)
    assert counts(cluster) == on_all([(1, 1)])


def test_it_is_counted_across_a_crash_of_all_nodes() -> None:
    cluster = with_messages(1)
    assert interrupt(cluster, got(cluster)[0]) == ["ok"]
    cluster.advance(1.0)
    cluster.crash("abc")
    for dialler, acceptor in ("ab", "ac", "bc"):
        cluster.link(dialler, acceptor)
    cluster.advance(80.0)  # quarantine
    assert counts(cluster) == on_all([(0, 1)])
    assert got(cluster)[1] == [(1, 1)]


def test_a_rewind_and_a_redrive_begin_anew() -> None:
    cluster = with_messages(1)
    assert interrupt(cluster, got(cluster)[0]) == ["ok"]
    cluster.ask("a", m.SetGroup("jobs", "g", "earliest", rewind=True))
    items, attempts = got(cluster)
    assert attempts == [(1, 0)]
    assert interrupt(cluster, items) == ["ok"]
    items, attempts = got(cluster)
    assert attempts == [(1, 1)]
    cluster.ask("a", m.RejectRequest(items, 0.0, Death(STAMP_ZERO, "rejected")))
    reply = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10), of=m.PeekReply)
    entries = tuple(m.SpanRecord(item.span, item.record._replace(death=None)) for item in reply.items)
    assert entries[0].record.kind == Kind.DEAD
    assert outcomes(cluster.ask("a", m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"]
    assert got(cluster)[1] == [(1, 0)]


def test_a_suspect_stays_one_and_who_is_none_becomes_none() -> None:
    cluster = with_messages(1, max_deliveries=5)
    for expiries in range(2):
        items, _ = got(cluster)
        assert interrupt(cluster, items) == ["ok"]
        reply = cluster.ask("a", fetch(idle=False, hold_time=5.0))
        assert receipts(reply), f"after {expiries} expiries it comes beside others"
        cluster.advance(5.1)
    assert receipts(cluster.ask("a", fetch(idle=False))) == ()
    assert interrupt(cluster, got(cluster)[0]) == ["ok"]
    assert receipts(cluster.ask("a", fetch(idle=False))) == ()
    assert got(cluster)[1] == [(3, 3)]


@pytest.mark.parametrize(
    "more", [{"delay": 1.0}, {"delay": TOPIC_BACKOFF_S}, {"death": Death(STAMP_ZERO, "no")}]
)
def test_with_a_delay_or_a_dead_letter_it_is_refused(more: dict[str, object]) -> None:
    cluster = with_messages(1)
    items, _ = got(cluster)
    reply = cluster.ask("a", m.RejectRequest(items, interrupted=True)._replace(**more))
    check_failed(reply, "usage", "interrupted")
    assert interrupt(cluster, items) == ["ok"]


def ended(how: str) -> Attempts:
    """Return the count after deliveries that expired (e), were rejected (r) or interrupted (i)."""
    known = NO_ATTEMPTS
    for end in how:
        known = with_another(known, expired=end == "e", interrupted=end == "i")
    return known


@given(how=st.text("eri", max_size=25), most=st.integers(1, 6))
def test_wherever_up_to_ten_interruptions_are_nothing_else_is_told_of_the_message(
    how: str, most: int
) -> None:
    known, without = ended(how), ended(how.replace("i", ""))
    if how.count("i") <= INTERRUPTIONS_MAX:
        assert known == without._replace(interruptions=how.count("i"))
        assert (lot_of(known, most), is_exhausted(known, most)) == (
            lot_of(without, most),
            is_exhausted(without, most),
        )
    else:
        assert known.interruptions == INTERRUPTIONS_MAX
        assert known.ended == len(how) - INTERRUPTIONS_MAX


@given(st.lists(st.text("eri", max_size=12), min_size=2, max_size=4), st.randoms())
def test_counts_merge_alike_in_any_order_and_none_is_lost(histories: list[str], random: object) -> None:
    all_known = [ended(how) for how in histories]
    merged = all_known[0]
    for known in all_known[1:]:
        merged = greater(merged, known)
    random.shuffle(all_known)  # type: ignore[attr-defined]
    again = all_known[0]
    for known in [*all_known[1:], *all_known]:
        again = greater(again, known)
    assert again == merged
    assert merged.interruptions == max(known.interruptions for known in all_known)
    assert merged.ended == max(known.ended for known in all_known)

"""Records merge by one order, in any order of arrival (docs/protocol.md, "record, hold key")."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.values.types import Death, Kind, Record, Stamp, merge_records, record_rank
from tests.core.network import hand_over, held_back
from tests.core.steps import DEATH, fetch, outcomes, receipts, spans, with_session


def record(generation: int, n: int, kind: Kind, ballot: int = 0) -> Record:
    death = Death(Stamp(ballot, "a"), "rejected") if kind == Kind.DEAD else None
    return Record(generation, 0 if kind == Kind.ACKED else n, kind, death)


RECORDS = st.builds(record, st.integers(0, 2), st.integers(0, 2), st.sampled_from(Kind), st.integers(0, 2))


def test_the_order_is_the_documented_one() -> None:
    rising = [
        record(0, 0, Kind.OPEN), record(0, 0, Kind.SKIPPED), record(0, 0, Kind.DEAD),
        record(0, 0, Kind.PURGED), record(0, 1, Kind.OPEN), record(0, 7, Kind.PURGED),
        record(0, 0, Kind.ACKED), record(1, 0, Kind.OPEN),
    ]  # fmt: skip
    for lower, higher in itertools.combinations(rising, 2):
        assert merge_records(lower, higher) == merge_records(higher, lower) == higher


@given(RECORDS, RECORDS, RECORDS)
def test_merging_is_commutative_associative_and_idempotent(a: Record, b: Record, c: Record) -> None:
    assert merge_records(a, a) == a
    assert merge_records(a, b) == merge_records(b, a)
    assert merge_records(a, merge_records(b, c)) == merge_records(merge_records(a, b), c)
    assert record_rank(merge_records(a, b)) == max(record_rank(a), record_rank(b))


def test_the_lower_ballot_of_two_equal_dead_records_stays() -> None:
    first, second = record(0, 0, Kind.DEAD, 1), record(0, 0, Kind.DEAD, 2)
    assert merge_records(second, first).death == first.death


def test_a_fetch_that_waits_for_more_does_not_deliver_a_message_that_became_a_dead_letter() -> None:
    """Its hold is still there: a record that a replica learns ends no hold."""
    cluster, *_ = with_session(1)
    late = held_back(cluster, lambda sender, to, message: to == "b" and isinstance(message, m.Hold))
    got = receipts(cluster.ask("c", fetch(hold_time=30.0)))
    cluster.advance(5.0)
    hand_over(cluster, *late[0])  # so b's hold ends 5 s after those of a and c
    cluster.hear_all(26.0)
    key = cluster.submit("a", fetch(most=2, least=2, hold_time=60.0, wait=5.9))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, death=DEATH))) == ["outcome-unknown"]
    cluster.advance(3.0)  # b's record reaches the others
    assert outcomes(cluster.ask("b", m.RejectRequest(got, death=DEATH))) == ["outcome-unknown"], (
        "a grant is later"
    )
    assert key not in cluster.replies
    cluster.advance(6.0)
    assert spans(cluster.replies[key]) == []

"""Proofs behind a benchmark's numbers: the ledger, and payloads that prove themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.values.errors import UsageError
from quorumq.lab.bench_ledger import (
    PAYLOAD_BYTES_MIN,
    Ledger,
    Payloads,
    VerificationFailed,
    percentiles,
    runs_of,
)


def ledger(published: dict[int, int], settled: list[list[int]]) -> Ledger:
    made = Ledger()
    for producer, count in published.items():
        made.add_published(producer, count)
    made.add_settled(settled)
    return made


def test_once_each_is_right() -> None:
    made = ledger({0: 3, 1: 2}, [[1, 0, 2], [0, 1, 3], [0, 0, 1]])
    made.check()
    assert made.settled == made.published == 5


@pytest.mark.parametrize(
    ("settled", "said"),
    [
        ([[0, 0, 2]], "1 published and never acked (producer/number 0/2)"),
        ([[0, 0, 3], [0, 1, 2]], "1 acked more than once (producer/number 0/1)"),
        ([[0, 0, 4]], "1 acked and never published (producer/number 0/3)"),
        ([[0, 0, 3], [7, 0, 1]], "1 acked and never published (producer/number 7/0)"),
        ([], "3 published and never acked"),
    ],
)
def test_anything_else_is_named(settled: list[list[int]], said: str) -> None:
    with pytest.raises(VerificationFailed) as caught:
        ledger({0: 3}, settled).check()
    assert said in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60))
def test_the_ledger_counts_as_a_plain_count_would(acks: list[tuple[int, int]]) -> None:
    made = ledger({0: 20, 1: 5}, runs_of(acks))
    published = [(0, number) for number in range(20)] + [(1, number) for number in range(5)]
    assert made.settled == len(set(acks))
    if sorted(acks) == published:
        made.check()
    else:
        with pytest.raises(VerificationFailed):
            made.check()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9))))
def test_runs_name_every_number_as_often_as_it_came(pairs: list[tuple[int, int]]) -> None:
    assert [(p, number) for p, start, stop in runs_of(pairs) for number in range(start, stop)] == pairs


@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MIN, 100, 1024])
def test_a_payload_says_who_published_it_as_what(size: int) -> None:
    payloads = Payloads(7, size)
    made = payloads.make(2, 99, 123_456)
    assert len(made) == size
    stamped = payloads.check(made)
    assert (stamped.producer, stamped.number, stamped.published_ns) == (2, 99, 123_456)


@given(st.integers(0, 99), st.integers(1, 255))
def test_a_payload_with_any_byte_changed_is_refused(at: int, flip: int) -> None:
    payloads = Payloads(7, 100)
    made = bytearray(payloads.make(0, 1, 2))
    made[at] ^= flip
    with pytest.raises(VerificationFailed):
        payloads.check(bytes(made))


def test_a_payload_of_another_run_or_size_is_refused() -> None:
    with pytest.raises(VerificationFailed, match="another run"):
        Payloads(7, 100).check(Payloads(8, 100).make(0, 1, 2))
    with pytest.raises(VerificationFailed, match="99 bytes"):
        Payloads(7, 100).check(Payloads(7, 100).make(0, 1, 2)[:99])
    with pytest.raises(UsageError, match=f"--size {PAYLOAD_BYTES_MIN - 1}"):
        Payloads(7, PAYLOAD_BYTES_MIN - 1)


def test_percentiles_are_nearest_rank_in_milliseconds() -> None:
    figures = percentiles([number / 1000 for number in range(1000, 0, -1)])
    assert figures == {"count": 1000, "p50": 500.0, "p99": 990.0, "p999": 999.0, "max": 1000.0}
    assert percentiles([0.0015]) == {"count": 1, "p50": 1.5, "p99": 1.5, "p999": 1.5, "max": 1.5}
    assert percentiles([]) == {}

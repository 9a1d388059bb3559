"""The running percentile of HOLD reply times, and its use in a round (docs/protocol.md, FETCH, step 4)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.messages import HoldReply
from quorumq.core.values.latency import ANSWERS_MIN, HALVE_EVERY, Latency
from tests.core.network import held_back
from tests.core.steps import fetch, receipts, with_messages


@given(st.lists(st.floats(1e-4, 60.0), min_size=ANSWERS_MIN, max_size=HALVE_EVERY - 1))
def test_it_is_the_percentile_of_a_sorted_list_but_for_a_step(times: list[float]) -> None:
    latency = Latency()
    for seconds in times:
        latency.note(seconds)
        latency.check()
    exact = sorted(times)[-1 - len(times) // 100]
    p99 = latency.p99()
    assert p99 is not None
    assert exact * 0.999 <= p99 <= exact * 1.2


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_old_times_are_dropped(seed: int, thousands: int) -> None:
    rng = random.Random(seed)
    latency = Latency()
    for _ in range(thousands * 100):
        latency.note(rng.uniform(2.0, 5.0))
    for _ in range(10 * HALVE_EVERY):
        latency.note(rng.uniform(0.001, 0.002))
        latency.check()
    p99 = latency.p99()
    assert p99 is not None
    assert p99 < 0.003


def test_few_answers_say_nothing_and_strange_ones_do_no_harm() -> None:
    latency = Latency()
    for seconds in [0.0, -1.0, 1e9] * 6:
        latency.note(seconds)
    assert latency.p99() is None
    assert latency.timeout(0.05, 1.0) == 1.0
    for _ in range(2000):
        latency.note(0.0)
    assert latency.timeout(0.05, 1.0) == 0.05


def test_the_histogram_keeps_all_times_since_the_start() -> None:
    latency = Latency()
    for seconds in [0.0, 0.001, 0.003, 1e9] * HALVE_EVERY:
        latency.note(seconds)
    counts = dict(latency.up_to())
    assert [counts[bound] for bound in ("0.0001", "0.0016", "0.0032", "+Inf")] == [
        HALVE_EVERY * count for count in (1, 2, 3, 4)
    ]
    assert latency.seconds > 1e9


@pytest.mark.parametrize(
    ("delay", "timeout"), [pytest.param(0.001, 0.05, marks=pytest.mark.soak), (0.6, 1.8), (2.0, 5.0)]
)
def test_a_round_waits_three_times_the_percentile(delay: float, timeout: float) -> None:
    """Answers after their round was given up count as well: else load could never raise it. Half of the hold
    is the most: the client needs the rest."""
    cluster = with_messages(200)
    for _ in range(30):
        slow = held_back(cluster, lambda sender, to, message: isinstance(message, HoldReply) and sender != to)
        key = cluster.submit("a", fetch(most=1))
        cluster.advance(delay)
        cluster.hear_all()
        while slow:
            cluster.send(*slow.pop())
        cluster.run()
        cluster.advance(5.0)
        assert key in cluster.replies
    core = cluster.nodes["a"]
    assert core.context.hold_times.timeout(0.05, 5.0) == pytest.approx(timeout, rel=0.2)
    assert core.status(cluster.now)["hold_reply_p99_ms"] == pytest.approx(1000 * max(delay, 1e-4), rel=0.2)
    cluster.drop = lambda sender, to, message: isinstance(message, HoldReply) and sender != to
    key = cluster.submit("a", fetch(most=1))
    cluster.advance(timeout * 0.79)
    assert core.context.rounds, "the round is not given up yet"
    cluster.advance(timeout * 0.5)
    assert key in cluster.replies
    assert not receipts_or_none(cluster.replies[key])


def receipts_or_none(reply: object) -> object:
    return getattr(reply, "slices", None) and receipts(reply)

"""The hybrid clock never goes back, across restarts too (docs/protocol.md, "stamp, ballot")."""

from __future__ import annotations

import random

from quorumq.core.values.clock import RESERVE_STEP, HybridClock
from quorumq.core.values.limits import CLOCK_END, STAMP_LAST, STAMPS_END
from quorumq.core.values.types import Now

YEAR_MS = 365 * 24 * 3600 * 1000


def test_stamps_rise_and_stay_within_the_durable_reserve() -> None:
    clock = HybridClock("a", 0, 0)
    now = Now(1.0, 1000)
    assert clock.fresh(now) is None, "nothing is reserved yet"
    clock.requested_reserve = clock.request_reserve(now) or 0
    clock.on_reserve_durable(clock.requested_reserve)
    stamps = [clock.fresh(now) for _ in range(100)]
    assert stamps == sorted(stamps, key=lambda stamp: stamp.time)  # type: ignore[union-attr]
    assert all(stamp is not None and stamp.time <= clock.durable_reserve for stamp in stamps)
    clock.check()


def test_a_stamp_above_the_reserve_is_merged_only_once_a_higher_one_is_durable() -> None:
    clock = HybridClock("a", 0, 5000)
    ahead = YEAR_MS << 16
    assert not clock.merge(ahead)
    assert clock.value <= 5000
    target = clock.request_reserve(Now(0.0, 0))
    assert target is not None
    assert target > ahead
    clock.on_reserve_durable(target)
    stamp = clock.fresh(Now(0.0, 0))
    assert stamp is not None
    assert stamp.time > ahead, "a peer's clock a year ahead is counted on from"
    clock.check()


def test_a_reserve_is_asked_for_before_the_old_one_is_used_up_and_not_twice() -> None:
    clock = HybridClock("a", 0, RESERVE_STEP)
    assert clock.request_reserve(Now(0.0, 0)) is None
    clock.merge(RESERVE_STEP // 2 + 1)
    assert clock.request_reserve(Now(0.0, 0)) is not None
    assert clock.request_reserve(Now(0.0, 0)) is None, "one is under way"


def test_restarts_never_go_back() -> None:
    """The stamps of the next start are above all that were used or granted, or lost unsynced."""
    rng = random.Random(7)
    durable, highest, wall = 0, 0, 0
    for _ in range(200):
        clock = HybridClock("a", durable, durable)
        clock.requested_reserve = max(clock.requested_reserve, durable, wall << 16) + RESERVE_STEP
        clock.on_reserve_durable(clock.requested_reserve)
        durable = clock.requested_reserve
        for _ in range(rng.randrange(50)):
            wall += rng.randrange(0, 40_000)
            if rng.random() < 0.3:
                clock.merge(rng.randrange(0, (wall + 200_000) << 16))
            stamp = clock.fresh(Now(0.0, wall))
            if stamp is not None:
                assert stamp.time > highest
                highest = stamp.time
            target = clock.request_reserve(Now(0.0, wall))
            if target is not None and rng.random() < 0.7:  # else the crash is first
                clock.on_reserve_durable(target)
                durable = max(durable, target)
            clock.check()
        wall -= rng.randrange(0, 100_000)  # the time of day may be set back
        wall = max(wall, 0)


def test_a_time_of_day_that_no_right_clock_shows_makes_no_stamps() -> None:
    clock = HybridClock("a", 5000, 5000)
    wrong = Now(0.0, CLOCK_END >> 16)
    assert clock.request_first_reserve(wrong) == 5000 + RESERVE_STEP
    clock.on_reserve_durable(clock.requested_reserve)
    stamp = clock.fresh(wrong)
    assert stamp is not None
    assert stamp.time == 5001, "it counts on without it"
    assert clock.request_reserve(wrong) is None
    clock.check()


def test_stamps_end_and_a_start_after_the_last_one_is_a_start_like_any_other() -> None:
    clock = HybridClock("a", 0, 5000)
    clock.merge(STAMPS_END - 1)
    reserve = clock.request_reserve(Now(0.0, 1000))
    assert reserve == STAMP_LAST
    clock.on_reserve_durable(reserve)
    assert clock.fresh(Now(0.0, 1000)) is None
    assert clock.request_reserve(Now(0.0, 1000)) is None, "there is none above"
    assert clock.used_up
    clock.check()
    later = HybridClock("a", reserve, reserve)
    assert later.request_first_reserve(Now(0.0, 1000)) == STAMP_LAST
    assert later.fresh(Now(0.0, 1000)) is None
    assert later.used_up
    later.check()

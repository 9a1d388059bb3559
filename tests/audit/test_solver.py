"""Clocks are placed by the order of events: the truth is inside each interval, even if clocks are wrong."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import pytest

from quorumq.audit.solver import RATE_MAX, Bound, Located, locate

WIDTH_S = 0.1
LENGTH_S = 60.0

WINDOW_BYTES = 1500
"""Memory of a window while clocks are placed, about: an audit of any length has 50,000 of them at most."""


class World(NamedTuple):
    """Messages between machines.

    Attributes:
        reading: clock value of a machine at a true time.
        bounds: limits on time differences, from messages.
        windows: in which something was written.
    """

    reading: Callable[[str, float], float]
    bounds: list[Bound]
    windows: dict[str, set[int]]


def world(
    reading: Callable[[str, float], float], *, machines: int = 5, messages: int = 600, seed: int = 1
) -> World:
    """Each message takes 1 ms and some more."""
    rng = random.Random(seed)
    names = [f"m{number}" for number in range(machines)]
    tightest: dict[tuple[str, int, str, int], float] = {}
    windows: dict[str, set[int]] = {name: set() for name in names}
    for _ in range(messages):
        early, late = rng.sample(names, 2)
        at = rng.uniform(0, LENGTH_S)
        sent, got = reading(early, at), reading(late, at + 0.001 * (1 + rng.expovariate(1)))
        key = (early, window(sent), late, window(got))
        windows[early].add(key[1])
        windows[late].add(key[3])
        tightest[key] = min(tightest.get(key, math.inf), got - sent)
    return World(reading, [Bound(*key, seconds) for key, seconds in tightest.items()], windows)


def window(at: float) -> int:
    return math.floor(at / WIDTH_S)


def checked(made: World, located: Located, when: Callable[[float], bool] = lambda at: True) -> list[float]:
    """The widths of all intervals; the truth is in each of them."""
    by_window = {(it.clock, it.window): it for it in located.windows}
    widths = []
    for clock in made.windows:
        rate, wander = located.rates.get(clock, (0.0, RATE_MAX))
        for at in (LENGTH_S * number / 1000 for number in range(1000)):
            shown = made.reading(clock, at)
            it = by_window.get((clock, window(shown)))
            if it is None or not when(at):
                continue
            beside = shown - (it.window + 0.5) * WIDTH_S
            low = shown + it.low + rate * beside - wander * abs(beside)
            high = shown + it.high + rate * beside + wander * abs(beside)
            assert low - 1e-6 <= made.reading(located.reference, at) <= high + 1e-6, (clock, at)
            if clock != located.reference:
                widths.append(high - low)
    return sorted(widths)


def offset(name: str) -> float:
    return {"m0": 0.6, "m1": -5.0, "m2": 3.1e7, "m3": 0.0, "m4": -0.6}[name]


@pytest.mark.parametrize("rates", [(0, 0, 0, 0, 0), (1e-4, -5e-5, 0.01, -0.01, 0)])
@pytest.mark.parametrize("seed", range(5))
def test_the_truth_is_inside_intervals_of_a_few_round_trips(rates: tuple[float, ...], seed: int) -> None:
    made = world(lambda name, at: offset(name) + at * (1 + rates[int(name[1])]), seed=seed)
    located = locate(made.bounds, made.windows, WIDTH_S)
    assert not located.broken
    widths = checked(made, located)
    assert widths[len(widths) // 2] < 0.005
    for number, rate in enumerate(rates):
        measured_rate, doubt = located.rates[f"m{number}"]
        beside = (1 + rates[int(located.reference[1])]) / (1 + rate) - 1
        assert abs(measured_rate - beside) <= doubt + 1e-9, number
        assert doubt < 5e-4


@pytest.mark.parametrize("by", [0.6, 30.0, 3e7])
@pytest.mark.parametrize("seed", range(5))
def test_a_clock_that_jumps_is_named_with_when_and_the_others_are_located(by: float, seed: int) -> None:
    made = world(lambda name, at: offset(name) + at + (by if name == "m1" and at > 30 else 0.0), seed=seed)
    located = locate(made.bounds, made.windows, WIDTH_S)
    (broken,) = located.broken
    assert broken.clock == "m1"
    assert broken.begin <= made.reading("m1", 30) <= broken.end
    widths = checked(made, located)
    assert widths[len(widths) // 2] < 0.01
    assert {it.clock for it in located.windows} == set(made.windows)


@pytest.mark.parametrize("rate", [0.022, 0.03, 0.04, 0.05, -0.03])
def test_a_clock_that_runs_too_fast_is_named(rate: float) -> None:
    """Beside no clock at all each of them might be as wrong as is allowed, and all agree; beside one they do not."""
    made = world(lambda name, at: offset(name) + at * (1 + (rate if name == "m2" else 0.0)), machines=3)
    assert {it.clock for it in locate(made.bounds, made.windows, WIDTH_S).broken} == {"m2"}


def test_a_clock_that_is_set_back_is_named() -> None:
    made = world(lambda name, at: offset(name) + at - (2.0 if name == "m1" and at > 30 else 0.0))
    assert {it.clock for it in locate(made.bounds, made.windows, WIDTH_S).broken} == {"m1"}


def test_a_jump_between_two_clocks_is_blamed_on_neither() -> None:
    made = world(lambda name, at: offset(name) + at + (3.0 if name == "m1" and at > 30 else 0.0), machines=2)
    located = locate(made.bounds, made.windows, WIDTH_S)
    assert {it.clock for it in located.broken} == {"m0", "m1"}
    assert (located.reference, located.windows) == ("", [])


def test_a_clock_without_a_bound_on_both_sides_is_not_located() -> None:
    bounds = [Bound("a", 0, "b", 0, 0.5), Bound("b", 1, "c", 1, 0.5), Bound("c", 1, "b", 2, 0.5)]
    located = locate(bounds, {"a": [0], "b": [0, 1, 2], "c": [1]}, WIDTH_S)
    assert {it.clock for it in located.windows} == {"b", "c"}


def test_a_clock_that_is_bounded_from_one_side_is_no_reference_however_often() -> None:
    """A producer sends to all nodes and has no answer that bounds its clock; consumers and nodes know each other."""
    sent = [Bound("p", k, node, k, 0.001) for k in range(9) for node in ("m", "n", "o")]
    asked = [Bound("c", 0, node, 0, 0.001) for node in ("m", "n", "o")]
    answered = [Bound(it.late, 0, "c", 0, 0.001) for it in asked]
    windows = {"c": [0], "m": [0], "n": [0], "o": [0], "p": range(9)}
    located = locate([*sent, *asked, *answered], windows, WIDTH_S)
    assert located.reference == "c"
    assert {it.clock for it in located.windows} == {"c", "m", "n", "o"}


def test_a_producer_whose_clock_is_set_is_named_where_only_a_promise_bounds_it_from_the_other_side() -> None:
    """Confirmed messages bound it by the time of the reference, as of window 0, however far its reading is."""
    at = range(10_000, 10_200, 2)
    ahead = {k: 2.0 if k >= 10_100 else 0.0 for k in at}
    sent = [Bound("p", k + round(ahead[k] / WIDTH_S), "a", k, 0.001 - ahead[k]) for k in at]
    asked = [Bound("c", k, "a", k, 0.001) for k in at] + [Bound("a", k, "c", k, 0.001) for k in at]
    received = [Bound("a", 0, "p", k + round(ahead[k] / WIDTH_S), 0.002 + ahead[k]) for k in at]
    windows = {"a": at, "c": at, "p": [k + round(ahead[k] / WIDTH_S) for k in at]}
    located = locate([*sent, *asked, *received], windows, WIDTH_S, "a")
    assert located.reference == "a"
    assert {it.clock for it in located.broken} == {"p"}
    assert {it.clock for it in located.windows} == {"a", "c", "p"}


def test_between_bounds_and_beyond_them_a_clock_is_known_as_well_as_its_rate() -> None:
    bounds = [Bound("a", 0, "b", 0, 0.001), Bound("b", 0, "a", 0, 0.001)]
    located = locate(bounds, {"a": [0], "b": [0, 100]}, WIDTH_S)
    assert located.reference == "a"
    near, far = (it.high - it.low for it in located.windows if it.clock == "b")
    assert 0.002 < near < 0.005
    assert far == pytest.approx(near + 2 * 10 * RATE_MAX)


def test_the_memory_of_a_window_is_small() -> None:
    made = world(lambda name, at: offset(name) + at, messages=8000)
    tracemalloc.start()
    try:
        located = locate(made.bounds, made.windows, WIDTH_S)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < WINDOW_BYTES * len(located.windows)

"""Workers whose process dies on a message: nothing else dies by it, and without the rules it does."""

from __future__ import annotations

import dataclasses

import pytest

from sim.checkers.base import Checker, name
from sim.checkers.waits import NoLongWaits
from sim.clients.worker import is_poison
from sim.options import Options
from sim.rules import patched, rule_named
from sim.runner import Outcome, run_schedule
from sim.schedule import Schedule
from tests.sim.neighbours import DeathsByNeighbours

POISONED = Options(
    hold_time_max=1.0,
    hold_times=(1.0, 1.0),
    max_deliveries=3,
    poison=0.1,
    producers=1,
    batches=4,
    batch_messages=12,
    consumers=2,
    fault_time=25.0,
)


def run(seed: int, **options: object) -> tuple[list[str], list[str], list[str]]:
    """Return the messages that died, poison and good, and the violations that the checker of neighbours sees."""
    outcome = outcome_of(seed, **options)
    assert outcome.violations == []
    checker = DeathsByNeighbours()
    violations = judged(checker, outcome)
    poison = [name(key) for key in checker.dead if is_poison(key[3], POISONED.poison)]
    good = [name(key) for key in checker.dead if not is_poison(key[3], POISONED.poison)]
    return poison, good, violations


def outcome_of(seed: int, **options: object) -> Outcome:
    """One run, with its history."""
    drawn = dataclasses.replace(POISONED, **options)  # type: ignore[arg-type]
    return run_schedule(Schedule(seed, "quiet", drawn), keep=True)


def judged(checker: Checker, outcome: Outcome) -> list[str]:
    """Return the violations that a checker sees in it."""
    for row in outcome.rows:
        if row["kind"] in checker.kinds:
            checker.see(row)
    return [str(violation) for violation in checker.verdict()]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("buffer", [1, 8, 40])
def test_a_message_that_ends_its_process_ends_no_other_message(seed: int, buffer: int) -> None:
    poison, good, violations = run(seed, fetch_messages=buffer)
    assert len(poison) >= 2
    assert (good, violations) == ([], [])


@pytest.mark.parametrize("seed", range(4))
def test_nor_does_it_where_a_network_loses_much(seed: int) -> None:
    """There a good message may die of lost answers: that is no neighbour's doing."""
    _, _, violations = run(seed, loss=0.15)
    assert violations == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("buffer", [1, 8])
def test_nor_does_it_where_workers_come_and_go(seed: int, buffer: int) -> None:
    """They join late, and stop beside those that die; then some give back messages that they do not begin, too."""
    outcome = outcome_of(seed, fetch_messages=buffer, consumers=3, stops=0.2)
    assert outcome.violations == []
    assert any(row["kind"] == "reject" for row in outcome.rows)
    assert (judged(DeathsByNeighbours(), outcome), judged(NoLongWaits(1.0), outcome)) == ([], [])
    outcome = outcome_of(seed, fetch_messages=buffer, consumers=3, stops=0.2, release=0.3)
    assert outcome.violations == []
    assert any(row["kind"] == "leave" for row in outcome.rows)
    assert judged(DeathsByNeighbours(), outcome) == []


def test_without_suspects_good_messages_die() -> None:
    with patched(rule_named("suspects-are-alone").patches):
        _, good, violations = run(0)
    assert good
    assert violations


def test_a_coordinator_that_missed_a_hold_without_its_voters_delivers_a_suspect_with_others() -> None:
    with patched(rule_named("voters-name-suspects").patches):
        assert [seed for seed in range(4) if run(seed, loss=0.15)[2]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("buffer", [1, 8])
def test_no_one_idles_while_work_waits(seed: int, buffer: int) -> None:
    outcome = outcome_of(seed, fetch_messages=buffer, consumers=3)
    assert outcome.violations == []
    assert judged(NoLongWaits(1.0), outcome) == []


def test_somebody_idles_where_no_idle_client_gets_suspects() -> None:
    with patched(rule_named("idle-clients-get-suspects").patches):
        assert any(judged(NoLongWaits(1.0), outcome_of(seed, consumers=3)) for seed in range(4))

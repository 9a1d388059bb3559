"""Steps with little capacity: work of several steps meets the same faults as everything else, and breaks nothing."""

from __future__ import annotations

import dataclasses

import pytest

from quorumq.core.node import timers
from quorumq.core.partition import views
from quorumq.core.requests.settle import SettleCoordinator
from quorumq.core.values import limits
from sim.runner import run_schedule
from sim.schedule import draw
from sim.step_limits import TIMES, modules_with, small_limits


def test_every_limit_is_lowered_wherever_the_core_reads_it_and_is_back_afterwards() -> None:
    before = {
        (module.__name__, name): getattr(module, name) for name in TIMES for module in modules_with(name)
    }
    assert {name for _, name in before} == set(TIMES)
    with small_limits(2):
        assert (limits.RUNS_PER_STEP, vars(views)["RUNS_PER_STEP"], timers.TIMERS_PER_STEP) == (2, 2, 8)
        assert all(
            getattr(module, name) < before[(module.__name__, name)]
            for name in TIMES
            for module in modules_with(name)
        )
    with pytest.raises(ZeroDivisionError), small_limits(2):
        raise ZeroDivisionError
    assert before == {
        (module.__name__, name): getattr(module, name) for name in TIMES for module in modules_with(name)
    }


def test_a_third_of_the_seeds_have_little_space() -> None:
    drawn = [draw(seed).options for seed in range(300)]
    narrow = [options for options in drawn if options.runs_per_step]
    assert 60 < len(narrow) < 140
    assert {options.runs_per_step for options in narrow} == {1, 2, 3}


def settled_in_steps(seed: int, capacity: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of times that a request had more to settle than fits one step."""
    unfinished = 0
    go_on = SettleCoordinator.go_on

    def counted(self, context, now):  # type: ignore[no-untyped-def]
        nonlocal unfinished
        effects = go_on(self, context, now)
        unfinished += bool(self.asks)
        return effects

    schedule = draw(seed)
    with monkeypatch.context() as patch:
        patch.setattr(SettleCoordinator, "go_on", counted)
        options = dataclasses.replace(schedule.options, runs_per_step=capacity)
        assert run_schedule(dataclasses.replace(schedule, options=options)).violations == []
    return unfinished


def test_requests_take_several_steps_there_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled_in_steps(34, 0, monkeypatch) == 0
    assert settled_in_steps(34, 2, monkeypatch) > 20


def test_some_clients_disconnect_when_half_of_their_request_is_done() -> None:
    assert "a client left when half of its request was done" in run_schedule(draw(19)).seen

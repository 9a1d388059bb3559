"""Costs of a batch at three nodes and their client, counted exactly: one step or message more fails."""

from __future__ import annotations

import cProfile

import pytest

from quorumq.lab.bench_runs import by_tenth, cpu_by_tenth, longest_pause_s
from tests.measure.hot import calls_by_file, measure

COUNTS = {
    "publish": {"steps": 8, "messages": 4, "commits": 3},
    "fetch": {"steps": 5, "messages": 4},
    "ack": {"steps": 6, "messages": 4, "commits": 3},
}
"""Core steps of three nodes, messages between them, and commits, each with an fsync unless that is left out."""


@pytest.mark.parametrize("size", [1, 55, 500])
def test_a_batch_of_any_size_takes_the_same_steps_messages_and_commits(size: int) -> None:
    assert {row["operation"]: row["counts"] for row in measure({size: 2}, 100)} == COUNTS


def test_calls_do_not_grow_with_the_messages_of_a_batch() -> None:
    calls = {}
    for size in (100, 400):
        profiler = cProfile.Profile(builtins=False)
        measure({1: 1}, 100)  # warms caches
        measure({size: 2}, 100, profiler=profiler)
        calls[size] = sum(row["calls"] for row in calls_by_file(profiler, 1))
    assert calls[400] - calls[100] < 300, calls


def test_rates_by_tenth_and_the_longest_pause_are_read_from_reports() -> None:
    assert by_tenth([(float(second), 20 * second) for second in range(6)]) == [20] * 10
    assert by_tenth([(0.0, 0), (1.0, 50), (1.5, 50), (11.5, 100)])[4:6] == [50, 4]
    assert cpu_by_tenth([(5.0, 0), (5.0, 50), (5.5, 100)]) == [0.0] * 5 + [10_000.0] * 5
    assert longest_pause_s([(0.0, 0), (1.0, 50), (1.5, 50), (11.5, 100)]) == 10.5

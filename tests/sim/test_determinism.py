"""One schedule is one run: in one process twice, in fresh processes, with any hash seed of Python."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sim
from quorumq.core.values.spans import SpanMap
from sim.profiles import PROFILES
from sim.runner import run_schedule
from sim.schedule import Schedule, draw

SIM = Path(sim.__file__).parent

CHILD = """
import json
from sim.runner import run_schedule
from sim.schedule import draw
print(json.dumps([[run_schedule(draw(seed, profile)).trace for seed in SEEDS] for profile in ("swarm", "store")]))
"""


@pytest.mark.parametrize("seeds", [[7], pytest.param([3, 11], marks=pytest.mark.soak)])
def test_a_seed_gives_one_trace_in_every_process(seeds: list[int]) -> None:
    here = [[run_schedule(draw(seed, profile)).trace for seed in seeds] for profile in ("swarm", "store")]
    for hash_seed in ("1", "random"):
        child = subprocess.run(
            [sys.executable, "-c", CHILD.replace("SEEDS", str(seeds))],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=SIM.parent,
            capture_output=True,
            text=True,
            check=1.0,
        )
        assert json.loads(child.stdout) == here


def test_the_layout_of_span_maps_changes_nothing() -> None:
    schedule = next(s for s in map(draw, range(100)) if s.options.partial and s.options.small > 100)
    options = dataclasses.replace(schedule.options, small=2)
    small = run_schedule(dataclasses.replace(schedule, options=options), keep=True).rows[1:]
    assert small == run_schedule(schedule, keep=True).rows[1:]
    assert SpanMap.SMALL_MAX == 512


def test_checks_change_nothing() -> None:
    schedule = draw(3)
    runs = []
    for share in (0.0, 0.25, 1.0):
        options = dataclasses.replace(schedule.options, check=share, recall=share / 10)
        runs.append(run_schedule(dataclasses.replace(schedule, options=options), keep=True).rows[1:])
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) > 50


def test_seeds_differ() -> None:
    assert len({run_schedule(draw(seed)).trace for seed in range(5)}) == 5


def test_a_schedule_survives_json_and_gives_the_same_run() -> None:
    for profile in PROFILES:
        for seed in range(20):
            schedule = draw(seed, profile)
            assert Schedule.from_json(schedule.to_json()) == schedule
            assert all(fault.at <= schedule.options.fault_time for fault in schedule.faults)
    schedule = draw(5)
    assert run_schedule(Schedule.from_json(schedule.to_json())).trace == run_schedule(schedule).trace


def test_a_fault_can_be_left_out_without_reshuffling_the_workload() -> None:
    """Publishes of producers, and the clocks, are the same with other faults."""
    schedule = next(draw(seed) for seed in range(100) if len(draw(seed).faults) > 3)
    less = Schedule(schedule.seed, schedule.profile, schedule.options, schedule.faults[:1])
    first = [published(one) for one in (schedule, less)]
    assert first[0] == first[1]


def published(schedule: Schedule) -> dict[str, str]:
    """The bytes of each producer's first batch."""
    rows = run_schedule(schedule, keep=True).rows
    checksums: dict[str, str] = {}
    for row in rows:
        if row["who"].startswith("client:p") and row["kind"] == "publish" and row["outcome"] == "invoke":
            checksums.setdefault(row["who"], row["crcs"])
    return checksums


def test_no_wall_clock_and_no_hidden_randomness() -> None:
    """Only the runner and the campaign measure CPU time; nothing else reads a clock or the system's randomness."""
    allowed = {"runner.py": {"process_time"}, "campaign.py": {"perf_counter"}}
    for path in sorted([*SIM.glob("*.py"), *(SIM / "checkers").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, name = node.value.id, node.attr
                assert module not in ("uuid", "secrets", "datetime"), path
                if module == "time":
                    assert name in allowed.get(path.name, set()), f"{path.name} reads time.{name}"
                if module == "random":
                    assert name == "Random", f"{path.name} uses random.{name}"

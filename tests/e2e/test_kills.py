"""Much at once on real processes that are killed: a run of `sim real` (docs/protocol.md, section 2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from sim.fault_plan import Fault
from sim.options import Options
from sim.real.plan import draw_real
from sim.real.run import RealRun, Verdict
from sim.real.workload import workload_of
from sim.schedule import Schedule

EVENTS = (
    "published", "acked", "redelivered", "dead_letter confirmed", "reject confirmed", "read and acked as dead letters",
)  # fmt: skip


def run(schedule: Schedule) -> Verdict:
    """Run the workload of turmoil.py; every promise is kept."""
    workload = workload_of(Path(__file__).with_name("turmoil.py"))
    verdict = trio.run(RealRun(schedule, workload).run)
    assert verdict.kept, (schedule.seed, verdict)
    return verdict


def test_every_promise_is_kept_while_each_node_is_killed() -> None:
    kills = tuple(Fault(2.0 + 3.0 * number, "kill", (f"n{number + 1}",), 0.7) for number in range(3))
    options = Options(nodes=3, producers=0, consumers=0, fault_time=11.0)
    verdict = run(Schedule(0, "real", options, kills))
    assert verdict.faults == {"kill": 3}
    assert verdict.counts["acked"]


@pytest.mark.soak
def test_every_promise_is_kept_while_everything_happens_for_60_seconds() -> None:
    verdict = run(draw_real(int.from_bytes(os.urandom(4), "big"), 5, 60.0))
    assert all(verdict.counts[event] for event in EVENTS), verdict.counts

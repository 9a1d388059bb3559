# sim/runner.py: one schedule in, one outcome out.
"""Run a schedule and judge what it wrote."""

from __future__ import annotations

import gc
import time
import traceback
from dataclasses import dataclass, field

from quorumq.history import Row
from sim.checkers import judge
from sim.cluster import Cluster
from sim.schedule import Schedule


@dataclass(slots=True)
class Outcome:
    """What came of one run.

    Attributes:
        seed: of the schedule.
        violations: broken promises, and whatever the run raised, as text; empty is good.
        trace: a hash over the whole run.
        counts: messages, deliveries and so on, to be added up over a campaign.
        seen: which of sim/sometimes.py happened, and how often.
        rows: the history, if it was asked for.
    """

    seed: int
    violations: list[str]
    trace: str
    counts: dict[str, float]
    seen: dict[str, int]
    rows: list[Row] = field(default_factory=list)


def run_schedule(
    schedule: Schedule, *, full: bool = False, keep: bool = False, prepare: object = None
) -> Outcome:
    """Run it.

    Args:
        schedule: what to run.
        full: whether the nodes write lines too.
        keep: whether the outcome gets the history.
        prepare: called with the cluster before it runs; mutants use it.
    """
    began = time.process_time()
    cluster = Cluster(schedule, full=full)
    if callable(prepare):
        prepare(cluster)
    violations: list[str] = []
    try:
        cluster.run()
    except Exception as error:  # whatever a core raises is the finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        violations.append(f"raised at {cluster.world.time:.4f} s: {type(error).__name__} at {where}: {error}")
    violations += [str(violation) for violation in judge(cluster.world.rows)]
    world, tally = cluster.world, cluster.tally
    counts: dict[str, float] = {
        "messages": world.messages,
        "events": world.events,
        "sim_seconds": world.time,
        "published": tally.published,
        "delivered": tally.delivered,
        "redelivered": tally.redelivered,
        "fetched_batches": cluster.fetched_batches,
        "fetched_messages": cluster.fetched_messages,
        "hold_rounds": len(cluster.hold_rounds),
        "drain_seconds": world.time - cluster.healed_at,
        "faults": len(schedule.faults),
        "cpu": time.process_time() - began,
    }
    for name, count in world.sent.items():
        counts[f"sent {name}"] = count
    rows = world.rows if keep else []
    return Outcome(schedule.seed, violations, world.trace(), counts, world.seen, rows)


def quicken() -> None:
    """Collect cyclic garbage rarely: a run makes little of it, and one process does many runs."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

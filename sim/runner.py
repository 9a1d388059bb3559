"""One schedule in, one outcome out."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.history import Row
from sim.checkers import check_history
from sim.cluster import Cluster
from sim.packet_world import PacketWorld
from sim.packets import Packet
from sim.schedule import Schedule
from sim.step_limits import small_limits
from sim.world import SimError

CPU_LIMIT_S = 240.0
"""CPU seconds that a run may take, twice those of the longest; more for runs that simulate more time."""


BLOCK = 4096
"""Pieces of work that a pool of processes is given at once: it takes in all that it is given."""

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome:
    """Result of one run."""

    seed: int  # seed of the schedule
    violations: list[str]  # broken promises, and errors that the run raised, as text; empty is good
    trace: str  # a hash over the whole run
    counts: dict[str, float]  # messages, deliveries and so on, to be added up over a campaign
    seen: dict[str, int]  # number of times that each thing in sim/sometimes.py happened
    rows: list[Row] = field(default_factory=list)  # the history, if it was asked for
    log: list[Packet] = field(default_factory=list)  # the fate of every packet, if it was asked for


def run_schedule(
    schedule: Schedule,
    *,
    full: bool = False,
    keep: bool = False,
    traced: bool = False,
    prepare: Callable[[Cluster], None] | None = None,
    cpu_max: float = 0.0,
) -> Outcome:
    """Run it.

    Args:
        full: True if the nodes write lines too.
        keep: True if the outcome gets the history.
        traced: True if the outcome gets the fate of every packet.
        prepare: called with the cluster before it runs.
        cpu_max: CPU seconds that it may take; 0: `CPU_LIMIT_S`, more for runs that simulate more time.
    """
    began = time.process_time()
    cluster = Cluster(schedule, full=full, traced=traced)
    if prepare is not None:
        prepare(cluster)
    violations: list[str] = []
    try:
        limit = cpu_max or CPU_LIMIT_S * max(1.0, schedule.options.fault_time / 10)
        options = schedule.options
        with cpu_limit(limit), small_runs(options.small), small_limits(options.runs_per_step):
            cluster.run()
    except Exception as error:  # any error that a core raises is the finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{'/'.join(last.filename.split('/')[-2:])}:{last.lineno}"
        violations.append(f"raised at {cluster.world.time:.4f} s: {type(error).__name__} at {where}: {error}")
    violations += [str(violation) for violation in check_history(cluster.world.rows)]
    world, totals = cluster.world, cluster.around.counts
    counts: dict[str, float] = {
        "messages": world.messages,
        "events": world.events,
        "sim_seconds": world.time,
        "published": totals.published,
        "delivered": totals.delivered,
        "redelivered": totals.redelivered,
        "fetched_batches": cluster.observer.fetched_batches,
        "hold_rounds": len(cluster.observer.hold_rounds),
        "cpu": time.process_time() - began,
    }
    for name, count in world.sent.items():
        counts[f"sent {name}"] = count
    for fault in schedule.faults:
        counts[f"fault {fault.kind}"] = counts.get(f"fault {fault.kind}", 0) + 1
    rows = world.rows if keep else []
    log = world.log if isinstance(world, PacketWorld) else []
    outcome = Outcome(schedule.seed, violations, world.trace(), counts, world.seen, rows, log)
    cluster.dispose()
    return outcome


@contextlib.contextmanager
def small_runs(most: int) -> Iterator[None]:
    """Have span maps change how they keep the runs of a producer id at ``most`` of them, so that short lives see
    that."""
    before = [(cls, cls.SMALL_MAX, cls.SMALL_AGAIN) for cls in (SpanMap, SpanSet)]
    for cls, _, _ in before:
        cls.SMALL_MAX, cls.SMALL_AGAIN = most, most // 4
    try:
        yield
    finally:
        for cls, small, again in before:
            cls.SMALL_MAX, cls.SMALL_AGAIN = small, again


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `SimError` in the main thread when the body takes more CPU time: a core may loop for ever."""

    def on_signal(number: int, frame: object) -> None:
        raise SimError(
            f"the run has taken {seconds:.0f} s of CPU: a step that does not end, or a storm of messages"
        )

    before = signal.signal(signal.SIGPROF, on_signal)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def spread(
    one: Callable[[Work], Result], work: Iterable[Work], jobs: int, chunksize: int = 1
) -> Iterator[Result]:
    """Yield ``one`` of each piece of work, in order, on ``jobs`` processes; in this process alone if ``jobs`` is 1."""
    if jobs == 1:
        quicken()
        yield from map(one, work)
        return
    remaining = iter(work)
    with multiprocessing.get_context("spawn").Pool(jobs, _begin_worker) as pool:
        while block := list(islice(remaining, BLOCK)):
            yield from pool.imap(one, block, chunksize)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that adds up hears it, and ends the others
    quicken()


def quicken() -> None:
    """Look for cyclic garbage rarely: a run that is disposed of leaves little, and one process does many runs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)

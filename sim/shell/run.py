"""One run of the production shell in virtual time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from quorumq.client import Client, Message, Task, connect
from quorumq.history import HistoryWriter, Row
from sim.fault_plan import Fault, draw_damage, draw_faults, draw_losses
from sim.options import Options
from sim.real.inflict import Inflicter
from sim.real.plan import MOVE_EVERY_S, draw_moves, renamed
from sim.real.run import Trial
from sim.real.workload import Again, Workload, numbers
from sim.runner import Outcome
from sim.schedule import SHELL, Schedule
from sim.shell.cluster import ShellCluster, true_time
from sim.shell.virtual_time import VirtualTime

TOPIC = "jobs"
VIRTUAL_LIMIT_S = 600.0
HOLD_S = 2.0
LONG_S = 1.5
"""Most seconds of a slow handler: within its hold."""


def draw_shell(seed: int) -> Schedule:
    """Return the schedule of a seed: the simulator's faults, on nodes n1, n2 and so on."""
    rng = random.Random(f"{seed}/shell")
    options = Options(
        nodes=rng.choice((3, 3, 3, 5)),
        partitions=rng.choice((1, 2, 4)),
        producers=0,
        consumers=0,
        latency=rng.choice((0.0005, 0.002, 0.01)),
        fsync=rng.choice((0.0005, 0.003, 0.02)),
        fault_time=rng.choice((2.5, 3.0, 4.0)),
        slow=0.1,
    )
    losses = draw_losses(rng, options)
    faults = draw_faults(rng, options) + losses + draw_damage(rng, options, losses)
    if rng.random() < 0.4:  # a majority, or all, are back before the holds that they forgot are over
        at = round(rng.uniform(0.5, options.fault_time - 0.5), 4)
        killed = rng.sample(options.node_names, rng.choice((2, options.nodes)))
        faults += (Fault(at, "kill", tuple(sorted(killed)), 0.05),)
    moves = draw_moves(seed, options, options.fault_time * MOVE_EVERY_S)  # one in a second
    faults += tuple(dataclasses.replace(move, at=round(move.at / MOVE_EVERY_S, 4)) for move in moves)
    return Schedule(seed, SHELL, options, tuple(sorted(map(renamed, faults), key=lambda fault: fault.at)))


def workload(options: Options, rng: random.Random) -> Workload:
    """Return a workload of two producers, and two workers of one group or two."""
    pause, batch = rng.choice((0.1, 0.2)), rng.choice((1, 1, 5))
    groups = rng.choice((("g",), ("g",), ("g", "h")))
    give_up, again, slow = rng.choice((0.0, 0.05)), rng.choice((0.0, 0.1)), rng.choice((0.0, 0.02, LONG_S))

    async def prepare(client: Client) -> None:
        await client.create_topic(TOPIC, rf=options.rf, partitions=options.partitions, backoff=[0.1, 0.5])

    async def handle(message: Message) -> None:
        if rng.random() < give_up:
            raise ValueError("given up")
        if message.attempt == 1 and rng.random() < again:
            raise Again
        await trio.sleep(rng.random() * slow)

    tasks = [
        Task(TOPIC, groups[number % len(groups)], handle, retry=(Again,), concurrency=4, hold_time=HOLD_S)
        for number in range(2)
    ]
    return Workload(tasks, [numbers(TOPIC, pause * batch * 2, batch)] * 2, prepare)


class ShellRun(Trial):
    """A run on `ShellCluster`: see `Trial`."""

    cluster: ShellCluster

    def __init__(self, schedule: Schedule, workload: Workload, cluster: ShellCluster) -> None:
        super().__init__(schedule, workload, cluster)
        self.ttl_share = self.rng.random() < 0.5

    async def consume(self, name: str, task: Task) -> None:
        """Consume; in half of the runs workers die under faults with messages in hand, and ask other nodes then."""
        lives = 0
        while self.ttl_share and self.phase in ("starting", "faults"):
            lives += 1
            with trio.move_on_after(self.rng.uniform(0.2, 1.5)):
                await super().consume(f"{name}.life{lives}", task)
        await super().consume(name, task)

    def writer(self, name: str, who: str) -> HistoryWriter:
        settings = {"rf": self.schedule.options.rf} if who == "sim" else {}
        return self.cluster.history(who, **settings)

    def connect(self, addresses: list[str], writer: HistoryWriter | None) -> Any:
        return connect(
            addresses,
            history=writer,
            dial=self.cluster.dial,
            clock=lambda: true_time()[0],
            wall_ms=lambda: true_time()[1],
            rng=random.Random(self.rng.random()),
            tls_ca="",
        )

    def rows(self) -> list[Row]:
        """Return every line, in order of time."""
        rows = [json.loads(line) for file in self.cluster.files for line in file.getvalue().splitlines()]
        return sorted(rows, key=lambda row: row["at"])


def run_shell(schedule: Schedule) -> Outcome:
    """Run a schedule in virtual time."""
    began = time.process_time()
    rows: list[Row] = []
    violations: list[str] = []
    counts: dict[str, float] = {}

    async def main() -> None:
        options = schedule.options
        rng = random.Random(f"{schedule.seed}/shell-run")
        with trio.fail_after(VIRTUAL_LIMIT_S):
            async with trio.open_nursery() as nursery:
                copied = [
                    name for fault in schedule.faults if fault.kind == "restore" for name in fault.nodes
                ]
                cluster = ShellCluster(nursery, options.nodes, rng, options.latency, options.fsync, copied)
                for name in cluster.nodes:
                    cluster.spawn(name)
                await cluster.wait_ready_async()
                run = ShellRun(schedule, workload(options, random.Random(rng.random())), cluster)
                with run.writer("sim", "sim") as sim:
                    inflicter = Inflicter(cluster, sim)  # type: ignore[arg-type]
                    await run.work(sim, inflicter)
                counts.update(sim_seconds=trio.current_time(), messages=cluster.proxy.chunks)
                rows.extend(run.rows())
                verdict = run.verdict(rows, inflicter)
                violations.extend(map(str, verdict.violations))
                if not verdict.drained:
                    violations.append(
                        "live after healing: some messages were neither acked nor dead letters in the end"
                    )
                counts.update(verdict.counts)
                counts.update({f"fault {kind}": count for kind, count in verdict.faults.items()})
                nursery.cancel_scope.cancel()

    try:
        with quiet():
            deterministic(schedule.seed, main)
    except BaseException as error:  # any error that a node raises is the finding
        if isinstance(error, KeyboardInterrupt):
            raise
        violations.append(f"raised: {first_of(error)!r}")
    trace = hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()
    counts = {"messages": 0.0, **counts, "cpu": time.process_time() - began}
    return Outcome(schedule.seed, violations, trace, counts, {}, rows)


@contextmanager
def quiet() -> Iterator[None]:
    """Have the client library warn of nothing: under faults it has much to warn of."""
    log = logging.getLogger("quorumq")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def deterministic(seed: int, main: Callable[[], Any]) -> None:
    """Run in virtual time, with the scheduler's own choices drawn from the seed."""
    core = vars(trio._core._run)
    before = core["_ALLOW_DETERMINISTIC_SCHEDULING"]
    core["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    core["_r"].seed(seed)
    try:
        trio.run(main, clock=VirtualTime())
    finally:
        core["_ALLOW_DETERMINISTIC_SCHEDULING"] = before


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group, or the cause of trio's internal error."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
            error = error.__cause__
        else:
            return error

"""One run of the production shell in virtual time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from quorumq.client import Client, Message, Task, connect
from quorumq.history import HistoryWriter, Row
from sim.fault_plan import Fault, draw_damage, draw_faults, draw_losses
from sim.options import Options
from sim.real.inflict import Inflicter
from sim.real.plan import renamed
from sim.real.run import Trial, Verdict
from sim.real.workload import Again, Workload, numbers
from sim.schedule import Schedule
from sim.shell.cluster import ShellCluster, true_time
from sim.shell.targeted_faults import VirtualTime

TOPIC = "jobs"
VIRTUAL_LIMIT_S = 600.0
HOLD_S = 2.0
LONG_S = 1.5
"""Most seconds of a slow handler: within its hold."""


def draw_shell(seed: int) -> Schedule:
    """Return the schedule of a seed: the heap's faults, on nodes n1, n2 …"""
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
    return Schedule(seed, "shell", options, tuple(sorted(map(renamed, faults), key=lambda fault: fault.at)))


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


@dataclass(slots=True)
class ShellOutcome:
    """Result of one run."""

    seed: int  # seed of the schedule
    violations: list[str]  # broken promises, and errors that a node or a client raised; empty is good
    verdict: Verdict | None  # the figures; None if the run raised
    rows: list[Row]  # the history
    virtual: float  # seconds that it simulated
    cpu: float  # seconds that it took


def run_shell(schedule: Schedule) -> ShellOutcome:
    """Run a schedule in virtual time."""
    began = time.process_time()
    outcomes: list[tuple[Verdict, list[Row]]] = []
    virtual = 0.0

    async def main() -> None:
        nonlocal virtual
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
                virtual = trio.current_time()
                rows = run.rows()
                outcomes.append((run.verdict(rows, inflicter), rows))
                nursery.cancel_scope.cancel()

    violations: list[str] = []
    try:
        deterministic(schedule.seed, main)
    except BaseException as error:  # any error that a node raises is the finding
        if isinstance(error, KeyboardInterrupt):
            raise
        violations.append(f"raised: {first_of(error)!r}")
    verdict, rows = outcomes[0] if outcomes else (None, [])
    if verdict is not None:
        violations += [str(violation) for violation in verdict.violations]
        if not verdict.drained:
            violations.append(
                "live after healing: some messages were neither acked nor dead letters in the end"
            )
    return ShellOutcome(schedule.seed, violations, verdict, rows, virtual, time.process_time() - began)


def deterministic(seed: int, main: Callable[[], Any]) -> None:
    """Run in virtual time, with the scheduler's own choices drawn from the seed."""
    core = trio._core._run  # type: ignore[attr-defined]
    before = core._ALLOW_DETERMINISTIC_SCHEDULING
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)
    try:
        trio.run(main, clock=VirtualTime())
    finally:
        core._ALLOW_DETERMINISTIC_SCHEDULING = before


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group, or the cause of trio's internal error."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
            error = error.__cause__
        else:
            return error

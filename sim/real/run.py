"""One run: a cluster of processes, a workload on it, faults, healing, and the checkers' verdict."""

from __future__ import annotations

import logging
import math
import random
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from quorumq.client import Client, Task, TooFewReplicas, connect
from quorumq.core.messages import Peeked
from quorumq.core.values.errors import NotFound, QuorumqError
from quorumq.history import HistoryWriter, Row, spans_value
from quorumq.history.reader import read_history
from quorumq.lab.local import HISTORIES, NodeDied, NotReady
from sim.checkers import Violation
from sim.fault_plan import Fault
from sim.real.cluster import LONER, FaultyCluster
from sim.real.inflict import Inflicter
from sim.real.judgement import counted, judged
from sim.real.moves import Members, Moves
from sim.real.plan import MEMBERS
from sim.real.workload import Workload
from sim.schedule import Schedule

RUN = "local"
"""The name of the run in every history, nodes' too: that of the cluster."""

SETTLED = ("acked", "dead", "purged", "skipped")
STILL_S = 60.0
"""Seconds without a settled message in a healed cluster with unsettled ones: far more than the simulator's bound."""

STARTS = 10.0
"""Factor of the cluster's start time that is added: a machine may be slow."""

MET_SHARE = 0.5
"""A run shows nothing if less than this share of its faults met a node that served."""


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Send the client library's warnings to a file: under faults it has much to say."""
    log, handler = logging.getLogger("quorumq"), logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before
        handler.close()


@dataclass(slots=True)
class Verdict:
    """Result of a run."""

    violations: list[Violation]  # broken promises; empty is good
    counts: Counter[str]  # messages published, delivered and so on
    faults: Counter[str]  # number of faults of each kind
    met: Counter[str]  # number of these that met a node that served
    left_out: Counter[str]  # faults of the schedule that cannot be done to processes
    drained: bool  # True if everything was settled in the end
    own: list[str] = field(default_factory=list)  # errors of the workload's own check, or a producer
    lines: int = 0  # lines of all histories

    @property
    def kept(self) -> bool:
        """Return True if every promise was kept, and the workload is content; a run without a history shows nothing."""
        return self.drained and self.lines > 0 and not self.violations and not self.own

    @property
    def too_few(self) -> str:
        """Return the reason why the faults show nothing, though no promise was broken; "" if they do."""
        done, met = self.faults.total(), self.met.total()
        return f"too few faults met a running node: {met} of {done}" if met < MET_SHARE * done else ""

    @property
    def ok(self) -> bool:
        """Return True if every promise was kept under faults that met a serving node."""
        return self.kept and not self.too_few


class Trial:
    """Faults while clients work, then healing, then draining: on any cluster.

    Args:
        on_progress: called a few times a second: the phase, and counts so far.
    """

    def __init__(
        self,
        schedule: Schedule,
        workload: Workload,
        cluster: Any,
        on_progress: Callable[[str, Counter[str]], None] | None = None,
    ) -> None:
        self.schedule = schedule
        self.workload = workload
        self.cluster = cluster
        self.on_progress = on_progress
        self.rng = random.Random(f"{schedule.seed}/clients")
        self.counts: Counter[str] = Counter()
        self.own: list[str] = []
        self.phase = "starting"
        self.drained = False
        self.patience = STILL_S
        self.delivered = trio.Event()

    def writer(self, name: str, who: str) -> HistoryWriter:
        """Return a history of the run."""
        raise NotImplementedError

    def connect(self, addresses: list[str], writer: HistoryWriter | None) -> Any:
        """Return a client, as a context manager."""
        raise NotImplementedError

    def verdict(self, rows: list[Row], inflicter: Inflicter) -> Verdict:
        """Return the checkers' verdict on the histories' rows."""
        violations = judged(rows, self.schedule.options.rf)
        violations += [Violation("nodes go on", 0.0, text) for text in self.cluster.ended]
        done = (inflicter.counts, inflicter.met, inflicter.left_out)
        return Verdict(violations, +counted(rows), *done, self.drained, self.own, len(rows))

    async def work(self, sim: HistoryWriter, inflicter: Inflicter) -> None:
        """Do all of the run, but for the start and stop of the cluster."""
        options = self.schedule.options
        async with self.connect(self.cluster.addresses, None) as operator:
            if self.workload.prepare is not None:
                await self.workload.prepare(operator)
            inflicter.moves = Moves(operator, [topic for topic, _ in self.workload.read])
            if any(fault.kind in MEMBERS for fault in self.schedule.faults):
                inflicter.members = Members(operator, self.cluster)
            async with trio.open_nursery() as working:
                for number, task in enumerate(self.workload.tasks):
                    working.start_soon(self.consume, f"c{number}", task)
                async with trio.open_nursery() as producing:
                    for number, produce in enumerate(self.workload.producers):
                        producing.start_soon(self.live, f"p{number}", produce)
                    self.begin(sim, "faults", seconds=options.fault_time)
                    with trio.move_on_after(options.fault_time):
                        await inflicter.run(self.schedule.faults)
                        await trio.sleep_forever()
                    producing.cancel_scope.cancel()
                self.phase = "healing"
                stuck = await self.heal(inflicter)
                self.begin(sim, "healed")
                stuck = stuck or await self.drain(operator)
                self.drained = not stuck
                if stuck:
                    self.begin(sim, "end", detail=stuck)
                else:
                    self.begin(sim, "drained")
                working.cancel_scope.cancel()
            if self.drained:
                await self.list_dead_letters(operator, sim)
                if self.workload.check is not None:
                    await self.checked(operator)

    def begin(self, sim: HistoryWriter, phase: str, **more: Any) -> None:
        """Begin a part of the run."""
        self.phase = phase
        sim.write("phase", phase=phase, **more)
        sim.flush()

    # ------------------------------------------------------------------- clients

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        """Yield a client with a history, which asks nodes as clients do."""
        asks = self.rng.sample(self.cluster.front, len(self.cluster.front))
        with self.writer(name, f"client:{name}") as writer:
            async with self.connect(asks, writer) as client:
                yield client

    async def live(self, name: str, act: Callable[[Client], Any]) -> None:
        """Run a client to its end; it begins anew when its session or its nodes are gone, or no node can serve."""
        again = 0
        while True:
            try:
                async with self.client(name if not again else f"{name}.{again}") as client:
                    await act(client)
                return
            except* QuorumqError:
                again += 1
            await trio.sleep(0.2)

    async def consume(self, name: str, task: Task) -> None:
        """Run one worker, without end."""
        await self.live(name, lambda client: client.work_all([task], signals=False))

    # ------------------------------------------------------------------- the end

    async def heal(self, inflicter: Inflicter) -> str:
        """End all faults; returns why nodes do not serve all the same, or ""."""
        try:
            await inflicter.heal(self.patience)
        except (NodeDied, NotReady) as error:
            return str(error)
        return ""

    async def drain(self, client: Client) -> str:
        """Wait until all is settled, or nothing more is for `patience` seconds; return the reason why not, or ""."""
        fewest, since = math.inf, trio.current_time()
        while remaining := await self.unsettled(client):
            if remaining < fewest:
                fewest, since = remaining, trio.current_time()
            elif trio.current_time() > since + self.patience:
                return f"{remaining:,.0f} are left, and none was settled for {self.patience:.0f} s"
            await trio.sleep(0.3)
        return ""

    async def unsettled(self, client: Client) -> float:
        """Return the number of messages of the read groups that no majority has settled; infinite while unknown.

        Messages that no replica can read are left out: flipped bits may take the only copy of an unconfirmed one. Of
        confirmed ones the checker of loss says that they are gone.
        """
        remaining = 0
        try:
            for topic, group in self.workload.read:
                ready: Counter[int] = Counter()
                async for item in client.peek(topic, group, "all", complete=True):
                    if item.peeked.state == "ready":
                        ready[item.partition] += item.peeked.span.size
                    elif item.peeked.state not in SETTLED:
                        remaining += item.peeked.span.size
                if ready:
                    remaining += (ready - await self.lost(client, topic)).total()
        except (TooFewReplicas, NotFound):
            return math.inf
        return remaining

    async def lost(self, client: Client, topic: str) -> Counter[int]:
        """Return the number of messages that no replica has, by partition: the most that any node knows of."""
        by_partition: Counter[int] = Counter()
        for node in self.cluster.nodes:
            fields: dict[str, Any] = await client.status(node)
            for row in fields["partitions"]:
                if row["topic"] == topic:
                    by_partition[row["partition"]] = max(by_partition[row["partition"]], row["lost"])
        return by_partition

    async def list_dead_letters(self, client: Client, sim: HistoryWriter) -> None:
        """List each replica's dead letters, once all replicas list the same, or after a while; and those purged.

        A dead letter that was acked is purged: the answer to that ACK may be lost.
        """

        def write(who: str, topic: str, group: str, partition: int, item: Peeked) -> None:
            life = {"state": item.state, "generation": item.record.generation, "n": item.record.n}
            where = {
                "topic": topic,
                "partition": partition,
                "group": group,
                "spans": spans_value([item.span]),
            }
            sim.write("list", who=who, **where, **life)

        for topic, group in self.workload.read:
            with suppress(NotFound, TooFewReplicas):
                register = await client.topic(topic)
                for partition, members in enumerate(register.replicas):
                    pages: list[list[Peeked]] = []
                    with trio.move_on_after(self.patience / 2):
                        while True:
                            pages = [
                                await self.dead_letters(client, topic, group, partition, node)
                                for node in members
                            ]
                            names = [
                                sorted((it.span, it.record.generation, it.record.n) for it in page)
                                for page in pages
                            ]
                            if all(ids == names[0] for ids in names):
                                break
                            await trio.sleep(0.3)
                    for node, page in zip(members, pages, strict=False):
                        for item in page:
                            write(f"node:{node}", topic, group, partition, item)
                async for seen in client.peek(topic, group, "purged", complete=True):
                    write("sim", topic, group, seen.partition, seen.peeked)

    async def dead_letters(
        self, client: Client, topic: str, group: str, partition: int, node: str
    ) -> list[Peeked]:
        """Return the dead letters of one replica."""
        peeks = client.peek(topic, group, "dead", partition=partition, node=node)
        return [item.peeked async for item in peeks]

    async def checked(self, client: Client) -> None:
        """Run the workload's own check."""
        assert self.workload.check is not None
        try:
            await self.workload.check(client)
        except Exception as error:  # any error that it raises is its verdict
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.own.append(f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}")

    # ------------------------------------------------------------------- progress

    async def delivery(self) -> None:
        """Wait until a client is handed a message."""
        self.delivered = trio.Event()
        await self.delivered.wait()

    def on_fault(self, fault: Fault) -> None:
        """Note that a fault begins."""
        self.counts["faults"] += 1
        self.told()

    async def tell(self) -> None:
        """Say how it goes, twice a second."""
        while True:
            self.told()
            await trio.sleep(0.5)

    def told(self) -> None:
        """Say how it goes."""
        if self.on_progress is not None:
            self.on_progress(self.phase, self.counts)


class DeliveryWriter(HistoryWriter):
    """A history that also notes for the run when a message was handed over."""

    def __init__(self, trial: Trial, path: Path, **options: Any) -> None:
        self.trial = trial
        super().__init__(path, **options)

    def write(self, kind: str, **fields: object) -> None:
        super().write(kind, **fields)
        if kind == "deliver":
            self.trial.delivered.set()


class RealRun(Trial):
    """A run of real processes.

    Args:
        keep: a directory to leave everything in; None: it is removed.
    """

    def __init__(
        self,
        schedule: Schedule,
        workload: Workload,
        keep: Path | None = None,
        on_progress: Callable[[str, Counter[str]], None] | None = None,
    ) -> None:
        rng = random.Random(f"{schedule.seed}/disks")
        joining = any(fault.kind == "add" for fault in schedule.faults)
        cluster = FaultyCluster(schedule.options.nodes, keep=keep, rng=rng, joining=int(joining))
        cluster.copied = tuple(
            name for fault in schedule.faults if fault.kind == "restore" for name in fault.nodes
        )
        super().__init__(schedule, workload, cluster, on_progress)
        self.histories = self.cluster.directory / HISTORIES

    def writer(self, name: str, who: str) -> HistoryWriter:
        settings = {"schedule": self.schedule.to_json()} if who == "sim" else {}
        return DeliveryWriter(self, self.histories / f"{name}.jsonl", run=RUN, who=who, settings=settings)

    def connect(self, addresses: list[str], writer: HistoryWriter | None) -> Any:
        alone = writer is not None and writer.who.split(".")[0] == f"client:{LONER}"
        rng, dial = random.Random(self.rng.random()), self.cluster.dial if alone else None
        return connect(addresses, history=writer, rng=rng, dial=dial)

    async def run(self) -> Verdict:
        """Do the whole run; stop all that was started, on any end.

        Raises:
            QuorumqError: the cluster does not start, or the workload cannot be prepared.
        """
        began = trio.current_time()
        async with self.cluster:
            self.patience = STILL_S + STARTS * (trio.current_time() - began)
            with logged(self.cluster.directory / "clients.log"), self.writer("sim", "sim") as sim:
                inflicter = Inflicter(self.cluster, sim, self.on_fault)
                inflicter.delivery = self.delivery
                async with trio.open_nursery() as watching:
                    watching.start_soon(self.tell)
                    await self.work(sim, inflicter)
                    watching.cancel_scope.cancel()
            self.phase = "judging"
            self.told()
            await trio.to_thread.run_sync(self.cluster.stop)  # then nodes have written their last lines
            return self.verdict(list(read_history(sorted(self.histories.glob("*.jsonl")))), inflicter)

"""A cluster of the production shell in virtual time, with the faults that `sim.real.inflict` knows."""

from __future__ import annotations

import io
import random
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from quorumq.core.values.types import Now
from quorumq.history import HistoryWriter
from quorumq.node.commits import Finished
from quorumq.node.node import EXIT_AGAIN
from quorumq.node.serve import Service
from quorumq.storage.commit import Commit
from sim.flips import flip_bodies, flip_records
from sim.memory_disk import MemoryDisk
from sim.real.cluster import CLIENTS
from sim.real.run import RUN
from sim.shell.memory import CAPACITY, WALL_MS, Commits, MemoryTransport, World
from sim.shell.network import Line, LineStream, Network, Together
from sim.shell.virtual_time import virtual_time

RESERVE_LEFT = 1 << 20
"""Bytes that a full disk still has: the node takes nothing in any more, and goes on writing necessary records."""

START = 100.0
"""Time in seconds that monotonic clocks show at the beginning."""


def true_time() -> tuple[float, int]:
    """Return the time of clients and of the run, and time of day."""
    return START + trio.current_time(), WALL_MS + int(trio.current_time() * 1000)


class TimedCommits(Commits):
    """Commits that take no task: the clock calls them."""

    def start(self, commit: Commit, finished: Finished, *, here: bool) -> None:
        time = virtual_time()
        time.at(time.time + self.seconds, partial(self.run, commit, finished))


class ShellCluster(World):
    """Nodes n1, n2 … on memory; the same names as `FaultyCluster` has, as far as faults need them.

    Args:
        copied: nodes of whose disk each state before a start is kept, for `restore`.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        nodes: int,
        rng: random.Random,
        latency: float,
        fsync: float,
        copied: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(
            nursery, [f"n{number}" for number in range(1, nodes + 1)], hold_time_max=2.0, **settings
        )
        self.nodes = self.names
        self.clients = (CLIENTS,)
        self.ended: list[str] = []
        self.commits = {name: TimedCommits(nursery) for name in self.names}
        self.rng = rng
        self.fsync = fsync
        self.copied = copied
        self.files: list[io.StringIO] = []
        self.copies: dict[str, list[MemoryDisk]] = {}
        self.seed = rng.getrandbits(32)
        self.proxy = Network(random.Random(rng.random()), latency)
        self.controls: dict[str, dict[str, Any]] = {name: {} for name in self.nodes}
        self.front = [f"127.0.0.1:{7401 + index}" for index in range(nodes)]
        self.addresses = self.front
        self.frozen: dict[str, list[tuple[str, str]]] = {}
        for name in self.nodes:
            self.control(name)

    def clock(self, name: str) -> Now:
        wall = self.controls[name].get("wall_s", 0.0)
        return Now(START + trio.current_time(), WALL_MS + int((trio.current_time() + wall) * 1000))

    def history(self, who: str, **settings: Any) -> HistoryWriter:
        """Return a history in memory, with each line at the true time as soon as it is there."""
        self.files.append(io.StringIO())
        return HistoryWriter(
            self.files[-1], run=RUN, who=who, settings=settings, clock=true_time, buffer_bytes=1
        )

    def history_of(self, name: str) -> HistoryWriter:
        """Return a node's history on the true time, regardless of its own clock."""
        return self.history(f"node:{name}")

    def connect(self, name: str, address: str = "client", capacity: int = CAPACITY) -> MemoryTransport:
        if name not in self.services or self.services[name]._nursery is None:
            raise OSError(111, "nobody is there")
        source = address.removeprefix("node ") if address.startswith("node ") else CLIENTS
        here, there = self.proxy.connect(source, name)
        turns = self.services[name].node.turns
        assert isinstance(turns, Together)
        there.together = turns
        self.services[name].serve(there, address)
        return here

    async def dial(self, address: str) -> trio.abc.Stream:
        """Dial a node as a client does."""
        await trio.lowlevel.checkpoint()
        line = self.connect(self.nodes[self.front.index(address)])
        assert isinstance(line, Line)
        return LineStream(line)

    # ------------------------------------------------------------------- faults

    def running(self, name: str) -> bool:
        """Return True if the node's tasks run."""
        return name in self.services

    def serves(self, name: str) -> bool:
        """Return True if the node takes part: none of its tasks waits for a disk to be read."""
        return self.running(name)

    def warm(self, names: Sequence[str]) -> None:
        """Do nothing: starts take no time here."""

    def is_warm(self, name: str) -> bool:
        """Return True: starts take no time here."""
        return True

    def spawn(self, name: str) -> None:
        """Start a node that does not run."""
        if not self.running(name):
            self.start(name)

    def start(self, name: str, sockets: Sequence[socket.socket] = ()) -> Service:
        if name in self.copied:
            self.copies.setdefault(name, []).append(self.disks[name].copied())
        service = super().start(name, sockets)
        service.node.turns = Together(service.node.feed, self.proxy)
        return service

    def kill(self, name: str, **keep: Any) -> None:
        """End the process: the bytes that it wrote are there."""
        super().kill(name, **(keep or {"keep_bytes": 1 << 40, "keep_names": 1 << 30}))

    def cut_power(self, name: str) -> None:
        """Cut the machine's power: any part of its unsynced bytes is lost."""
        self.kill(name, rng=random.Random(self.rng.random()))

    async def terminate_async(self, name: str) -> int:
        """Stop cleanly."""
        return await self.stop(name)

    async def _run(self, name: str, service: Service, sockets: Sequence[socket.socket]) -> None:
        await super()._run(name, service, sockets)
        if self.codes.get(name) == EXIT_AGAIN and name not in self.services:  # the process begins anew
            self.disks[name].unlock()
            self.start(name)

    def wipe(self, name: str) -> None:
        """Lose the data directory of a node that does not run."""
        self.disks[name] = MemoryDisk()

    def restore(self, name: str, last: bool) -> None:
        """Restore it as it was before some start."""
        copies = self.copies[name]
        self.disks[name] = (copies[-1] if last else self.rng.choice(copies)).copied()

    def flip(self, name: str) -> None:
        """Flip bits of some batches' bodies, of a node that runs or not."""
        flip_bodies(self.disks[name], self.disks[name].flip, self.rng)

    def damage(self, name: str, last: int) -> None:
        """Flip bits of other records, of a node that does not run."""
        flip_records(self.disks[name], self.disks[name].flip, self.rng, last)

    def pause(self, name: str) -> None:
        """Cut the node off in both directions; its timers go on, which a frozen process's would not."""
        others = (*(other for other in self.nodes if other != name), CLIENTS)
        self.frozen[name] = [pair for other in others for pair in ((name, other), (other, name))]
        self.proxy.block(self.frozen[name])

    def resume(self, name: str) -> None:
        """End a `pause`."""
        self.proxy.unblock(self.frozen.pop(name, []))

    def control(self, name: str, **values: Any) -> None:
        """Change the behaviour of the node's disk and clock."""
        controls = self.controls[name]
        controls.update(values)
        self.commits[name].seconds = self.fsync + controls.get("fsync_s", 0.0)
        disk = self.disks[name]
        used = disk.capacity - disk.free_bytes()
        disk.capacity = used + RESERVE_LEFT if controls.get("full", False) else 1 << 40

    async def wait_ready_async(self, *, quarantine: bool = False, timeout: float = 60.0) -> None:
        """Wait until all nodes run, see each other and be trusted; with ``quarantine`` until that of each is over,
        too."""
        with trio.fail_after(timeout):
            await self.ready()
            while quarantine and any(
                service.node.core.state.quarantine_until > self.clock(name).mono
                for name, service in self.services.items()
            ):
                await trio.sleep(0.05)

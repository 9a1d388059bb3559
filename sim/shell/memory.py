"""The production shell in one process and in virtual time: real nodes, memory instead of sockets and disks.

`World` runs nodes whose connections are pairs of `MemoryTransport` and whose disks are `MemoryDisk`s; a commit takes
as long as its disk says. Time is trio's: under a virtual clock nothing waits.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

import trio

from quorumq.core.values.types import Now
from quorumq.history import HistoryWriter
from quorumq.node.commits import Finished
from quorumq.node.config import ServeConfig, make_config
from quorumq.node.serve import Service, open_node
from quorumq.node.transport import ConnectionLost, Transport
from quorumq.storage.commit import Commit
from sim.memory_disk import MemoryDisk

SECRET = b"0123456789abcdef"
WALL_MS = 1_700_000_000_000
CAPACITY = 256 * 1024
"""Bytes that a connection keeps for a reader that does not read, as a kernel does."""


def now() -> Now:
    return Now(100.0 + trio.current_time(), WALL_MS + int(trio.current_time() * 1000))


class MemoryTransport:
    """One end of a connection. ``dead`` ends take and give nothing."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.peer: MemoryTransport
        self.received = bytearray()
        self.total = 0  # bytes ever sent from here
        self.ended = False  # the other side said goodbye
        self.closed = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Wake the tasks that read or write here."""
        self._readers.unpark_all()
        self._writers.unpark_all()

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        if self.closed or self.peer.closed:
            raise ConnectionLost("closed")
        taken = 0
        for buffer in buffers:
            capacity = self.capacity - len(self.peer.received)
            self.peer.received += buffer[:capacity]
            taken += min(capacity, len(buffer))
            if capacity < len(buffer):
                break
        self.total += taken
        self.peer._readers.unpark_all()
        return taken

    @property
    def names(self) -> frozenset[str]:
        return frozenset()

    def fileno(self) -> int:
        return -1

    def receive_now(self, most: int = 0) -> bytes | None:
        raise NotImplementedError

    def hung_up(self) -> bool:
        return self.ended or self.closed

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.closed and not self.peer.closed and len(self.peer.received) >= self.capacity:
            await self._writers.park()
        if self.closed or self.peer.closed:
            raise ConnectionLost("closed")

    async def receive(self, most: int = 0) -> bytes:
        if self.received or self.ended or self.closed:
            await trio.lowlevel.checkpoint()
        while not self.received and not self.ended and not self.closed:
            await self._readers.park()
        if self.closed:
            raise ConnectionLost("closed")
        return self._taken()

    def _taken(self) -> bytes:
        data = bytes(self.received)
        self.received.clear()
        self.peer._writers.unpark_all()
        return data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.peer.ended = True
            self.wake()
            self.peer.wake()


def pair(capacity: int = CAPACITY) -> tuple[MemoryTransport, MemoryTransport]:
    one, other = MemoryTransport(capacity), MemoryTransport(capacity)
    one.peer, other.peer = other, one
    return one, other


class Commits:
    """Runs commits after ``seconds``, or not before `release` after `hold`.

    Attributes:
        at_once: True if they run on the loop when they may.
    """

    def __init__(self, nursery: trio.Nursery, seconds: float = 0.001) -> None:
        self.nursery = nursery
        self.seconds = seconds
        self.held = False
        self.at_once = False
        self.count = 0
        self._open = trio.Event()

    def hold(self) -> None:
        """Make commits that begin from now on wait for `release`."""
        self.held = True
        self._open = trio.Event()

    def release(self) -> None:
        self.held = False
        self._open.set()

    def start(self, commit: Commit, finished: Finished, *, here: bool) -> None:
        if here and self.at_once:
            self.count += 1
            commit.run()
            finished(commit, None, 0.0)
        else:
            self.nursery.start_soon(self._run, commit, finished)

    async def _run(self, commit: Commit, finished: Finished) -> None:
        if self.held:
            await self._open.wait()
        await trio.sleep(self.seconds)
        self.run(commit, finished)

    def run(self, commit: Commit, finished: Finished) -> None:
        """Run one commit, to its end."""
        error: BaseException | None = None
        try:
            self.count += 1
            commit.run()
        except Exception as exc:
            error = exc
        finished(commit, error, self.seconds)

    def close(self) -> None:
        pass


class Log:
    """Keeps every line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            self.lines.append((level, event, fields))

        return write

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, name, fields in self.lines if name == event]


class World:
    """Nodes by name. ``settings`` go into every node's configuration."""

    def __init__(self, nursery: trio.Nursery, names: Sequence[str], **settings: Any) -> None:
        self.nursery = nursery
        self.names = tuple(names)
        self.settings = {"hold_time_max": 5.0, "auto_create_topics": True, **settings}
        self.disks = {name: MemoryDisk() for name in self.names}
        self.commits = {name: Commits(nursery) for name in self.names}
        self.logs = {name: Log() for name in self.names}
        self.services: dict[str, Service] = {}
        self.codes: dict[str, int] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.seed = 0

    def config(self, name: str) -> ServeConfig:
        return make_config(
            {
                "node": name,
                "cluster_id": "test",
                "secret": SECRET.decode(),
                "data_dir": "/nonexistent",
                "nodes": {other: f"127.0.0.1:{7401 + index}" for index, other in enumerate(self.names)},
                **self.settings,
            }
        )

    def clock(self, name: str) -> Now:
        """Return both clocks of a node."""
        return now()

    def history_of(self, name: str) -> HistoryWriter | None:
        """Return the writer of the history of a node that starts; None: it goes where its configuration says."""
        return None

    def start(self, name: str, sockets: Sequence[socket.socket] = ()) -> Service:
        self.seed += 1
        node = open_node(
            self.config(name),
            self.disks[name],
            log=self.logs[name],
            commits=self.commits[name],
            clock=lambda: self.clock(name),
            rng=random.Random(self.seed),
            history=self.history_of(name),
        )

        async def dial(peer: str) -> Transport:
            await trio.lowlevel.checkpoint()
            return self.connect(peer, f"node {name}")

        service = self.services[name] = Service(node, dial)
        self.codes.pop(name, None)
        self.nursery.start_soon(self._run, name, service, sockets)
        return service

    async def _run(self, name: str, service: Service, sockets: Sequence[socket.socket]) -> None:
        with trio.CancelScope() as scope:
            self.scopes[name] = scope
            code = await service.run(list(sockets))
            self.codes[name] = code
            if self.services.get(name) is service:
                del self.services[name]

    def connect(self, name: str, address: str = "client", capacity: int = CAPACITY) -> MemoryTransport:
        if name not in self.services or self.services[name]._nursery is None:
            raise OSError(111, "nobody is there")
        ours, theirs = pair(capacity)
        self.services[name].serve(theirs, address)
        return ours

    def kill(self, name: str, **keep: Any) -> None:
        """Stop the machine: the disk first, then the tasks, whose last words go nowhere."""
        self.disks[name] = self.disks[name].crash(**keep)
        service = self.services.pop(name)
        service.node.fall_silent()
        self.scopes[name].cancel()

    async def stop(self, name: str) -> int:
        self.services[name].stop()
        while name not in self.codes:
            await trio.sleep(0.01)
        return self.codes[name]

    async def ready(self) -> None:
        """Wait until all links are up and every node is trusted."""
        while not all(
            service._nursery is not None
            and service.node.core.state.trusted
            and len(service.node.core.state.links) == len(self.names) - 1
            for service in self.services.values()
        ):
            await trio.sleep(0.05)

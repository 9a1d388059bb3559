"""A network in virtual time: connections that take their time, are cut, and carry nothing in one direction."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import trio

from quorumq.node.transport import ConnectionLost
from sim.shell.memory import MemoryTransport

Pair = tuple[str, str]

STEP_S = 0.00025
"""Everything arrives at a multiple of this."""


class Network:
    """All lines of one run.

    One task carries everything, at times in steps of `STEP_S`: what arrives together wakes its readers together.

    Args:
        nursery: where it runs.
        rng: draws how long each piece takes.
        latency: mean seconds, one way.
    """

    def __init__(self, nursery: trio.Nursery, rng: random.Random, latency: float) -> None:
        self.rng = rng
        self.latency = latency
        self.carried: Counter[Pair] = Counter()
        self.blocked: Counter[Pair] = Counter()
        self.delays: dict[Pair, float] = {}
        self.open: dict[Pair, dict[Line, None]] = {}
        self.due: list[tuple[float, int, Line]] = []  # a heap: one entry for each piece of each line
        self.stuck: list[Line] = []  # likewise, of pairs that are blocked
        self.order = 0
        self.sooner = trio.lowlevel.ParkingLot()
        nursery.start_soon(self.run)

    def connect(self, source: str, target: str) -> tuple[Line, Line]:
        """Both ends of a new connection."""
        here, there = Line(self, (source, target)), Line(self, (target, source))
        here.peer, there.peer = there, here
        for line in (here, there):
            self.open.setdefault((source, target), {})[line] = None
        return here, there

    def block(self, pairs: Iterable[Pair]) -> None:
        """These carry nothing until `unblock`; counted, as faults may overlap."""
        self.blocked.update(pairs)

    def unblock(self, pairs: Iterable[Pair]) -> None:
        """Undo one `block`."""
        self.blocked.subtract(pairs)
        self.go_on()

    def delay(self, pairs: Iterable[Pair], seconds: float) -> None:
        """What these carry takes so much longer from now on."""
        for pair in pairs:
            self.delays[pair] = seconds

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Connections that the first of a pair made to the second break, at both ends."""
        for pair in pairs:
            for line in list(self.open.get(pair, ())):
                line.end()

    def heal(self) -> None:
        """Everything is carried, as fast as ever."""
        self.blocked.clear()
        self.delays.clear()
        self.go_on()

    def go_on(self) -> None:
        """What was stuck arrives now, unless its pair is blocked still."""
        stuck, self.stuck = self.stuck, []
        for line in stuck:
            self.launch(line, trio.current_time())

    def launch(self, line: Line, due: float) -> None:
        """The next piece of a line arrives at that time."""
        self.order += 1
        heapq.heappush(self.due, (due, self.order, line))
        if self.due[0][2] is line:
            self.sooner.unpark_all()

    async def run(self) -> None:
        """Let what is under way arrive."""
        while True:
            with trio.CancelScope(deadline=self.due[0][0] if self.due else math.inf):
                await self.sooner.park()
            now = trio.current_time()
            while self.due and self.due[0][0] <= now:
                line = heapq.heappop(self.due)[2]
                if self.blocked[line.pair] > 0:
                    self.stuck.append(line)
                else:
                    line.arrive()


class Line(MemoryTransport):
    """One end of a connection, and what is under way from here.

    Args:
        network: that it is part of.
        pair: from whom, to whom.
    """

    def __init__(self, network: Network, pair: Pair) -> None:
        super().__init__()
        self.network = network
        self.pair = pair
        self.flight: deque[bytes] = deque()  # b"" is the end
        self.flying = 0
        self.due = 0.0
        self.reset = False

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        if self.closed or self.reset:
            raise ConnectionLost("closed")
        piece = b"".join(buffers)[: max(0, self._room)]
        if piece:
            self._launch(piece)
        self.total += len(piece)
        return len(piece)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.closed and not self.reset and self._room <= 0:
            await self._writers.park()
        if self.closed or self.reset:
            raise ConnectionLost("closed")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._readers.unpark_all()
            self._launch(b"")

    def end(self) -> None:
        """The connection is broken: what is under way is lost."""
        for line in (self, self.peer):
            assert isinstance(line, Line)
            line.flight.clear()
            line.flying = 0
            line.ended = line.reset = True
            line.network.open.get(line.pair, {}).pop(line, None)
            line.network.open.get((line.pair[1], line.pair[0]), {}).pop(line, None)
            line.wake()

    @property
    def _room(self) -> int:
        return self.capacity - len(self.peer.received) - self.flying

    def _launch(self, piece: bytes) -> None:
        network = self.network
        takes = network.latency * (0.3 + network.rng.expovariate(1.4)) + network.delays.get(self.pair, 0.0)
        due = math.ceil((trio.current_time() + takes) / STEP_S) * STEP_S
        self.due = max(self.due, due)
        self.flight.append(piece)
        self.flying += len(piece)
        network.launch(self, self.due)

    def arrive(self) -> None:
        """The next piece is there, unless the connection broke meanwhile."""
        if not self.flight:
            return
        piece = self.flight.popleft()
        if not piece:
            self.end()
            return
        self.flying -= len(piece)
        self.peer.received += piece
        self.network.carried[self.pair] += len(piece)
        self.peer._readers.unpark_all()


class LineStream(trio.abc.Stream):
    """A line as the client library takes it."""

    def __init__(self, line: Line) -> None:
        self.line = line

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self.line.send_some([view]) :]
                if view:
                    await self.line.wait_sendable()
            await trio.lowlevel.checkpoint()
        except ConnectionLost as error:
            raise trio.BrokenResourceError(str(error)) from None

    async def wait_send_all_might_not_block(self) -> None:
        try:
            await self.line.wait_sendable()
        except ConnectionLost as error:
            raise trio.BrokenResourceError(str(error)) from None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self.line.receive()
        except ConnectionLost as error:
            raise trio.ClosedResourceError(str(error)) from None

    async def aclose(self) -> None:
        self.line.close()
        await trio.lowlevel.checkpoint()

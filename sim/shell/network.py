"""A network in virtual time: connections that take their time, are cut, and carry nothing in one direction."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import trio

from quorumq.core.messages.effects import Event
from quorumq.node.transport import ConnectionLost
from quorumq.node.turns import Connection, Turns
from sim.shell.memory import MemoryTransport
from sim.shell.virtual_time import virtual_time

Pair = tuple[str, str]

STEP_S = 0.00025
"""Everything arrives at a multiple of this."""


class Network:
    """All lines of one run.

    Everything arrives in steps of `STEP_S`: bytes that arrive together wake their readers together.
    """

    def __init__(self, rng: random.Random, latency: float) -> None:
        self.rng = rng
        self.latency = latency
        self.time = virtual_time()
        self.chunks = 0  # that have arrived
        self.blocked: Counter[Pair] = Counter()
        self.delays: dict[Pair, float] = {}
        self.open: dict[Pair, dict[Line, None]] = {}
        self.due: dict[float, list[Line]] = {}  # by moment: one entry for each piece of each line
        self.stuck: list[Line] = []  # pieces whose pairs are blocked
        self.ready: dict[Together, None] = {}  # turns of nodes whose lines have something for them
        self.arriving = False
        self.lines = 0

    def connect(self, source: str, target: str) -> tuple[Line, Line]:
        """Return both ends of a new connection."""
        here, there = Line(self, (source, target)), Line(self, (target, source))
        here.peer, there.peer = there, here
        for line in (here, there):
            self.open.setdefault((source, target), {})[line] = None
        return here, there

    def block(self, pairs: Iterable[Pair]) -> None:
        """Block these pairs until `unblock`; counted, as faults may overlap."""
        self.blocked.update(pairs)

    def unblock(self, pairs: Iterable[Pair]) -> None:
        """Undo one `block`."""
        self.blocked.subtract(pairs)
        self.go_on()

    def delay(self, pairs: Iterable[Pair], seconds: float) -> None:
        """Delay the bytes of these pairs by ``seconds`` from now on."""
        for pair in pairs:
            self.delays[pair] = seconds

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Break connections that the first of a pair made to the second, at both ends."""
        for pair in pairs:
            for line in list(self.open.get(pair, ())):
                line.end()

    def heal(self) -> None:
        """Carry everything, as fast as ever."""
        self.blocked.clear()
        self.delays.clear()
        self.go_on()

    def go_on(self) -> None:
        """Send on the lines that were stuck, unless their pair is blocked still."""
        stuck, self.stuck = self.stuck, []
        for line in stuck:
            self.launch(line, self.time.time)

    def launch(self, line: Line, due: float) -> None:
        """Let the next piece of a line arrive at that time."""
        if due in self.due:
            self.due[due].append(line)
        else:
            self.due[due] = [line]
            self.time.at(due, partial(self.arrive, due))

    def arrive(self, due: float) -> None:
        """Deliver the bytes that are due."""
        self.arriving = True
        for line in self.due.pop(due):
            if self.blocked[line.pair] > 0:
                self.stuck.append(line)
            else:
                line.arrive()
        self.turn()

    def soon(self, together: Together) -> None:
        """Have a node read its lines when nothing else arrives or goes on at this moment."""
        if not self.ready and not self.arriving:
            self.time.at(self.time.time, self.turn)
        self.ready[together] = None

    def turn(self) -> None:
        """Have nodes read their lines."""
        self.arriving = False
        ready, self.ready = self.ready, {}
        for together in ready:
            together.turn()


class Together(Turns):
    """`Turns` of one node, for lines instead of sockets: all that arrives at one moment is one step of its core."""

    def __init__(self, feed: Callable[..., None], network: Network) -> None:
        super().__init__(feed)
        self._network = network
        self._joined: dict[int, Connection] = {}
        self._ready: dict[int, None] = {}
        self._runs = False

    async def run(self) -> None:
        self._runs = True
        try:
            await self._over.wait()
            raise self._broken or AssertionError
        finally:
            self._runs = False
            self._joined.clear()

    def wake_within(self, seconds: float) -> None:
        pass

    def join(self, descriptor: int, connection: Connection) -> bool:
        if not self._runs or descriptor < 0:
            return False
        self._joined[descriptor] = connection
        self.ready(descriptor)  # it may have something already
        return True

    def release(self, descriptor: int) -> None:
        self._joined.pop(descriptor, None)

    def ready(self, descriptor: int) -> None:
        """Note that a line has bytes: the network's next turn reads them."""
        self._ready[descriptor] = None
        self._network.soon(self)

    def turn(self) -> None:
        """Read the bytes of lines that have some."""
        events: list[Event] = []
        ready, self._ready = self._ready, {}
        try:
            for descriptor in ready:
                if descriptor in self._joined:
                    self._joined[descriptor].take_turn(events)
            if events:
                self.taken += 1
                self._feed(*events)
        except BaseException as error:  # it ends the node, not the network
            self._broken = error
            self._over.set()


class Line(MemoryTransport):
    """One end of a connection of a network, and the bytes under way from here; its pair names sender and receiver."""

    def __init__(self, network: Network, pair: Pair) -> None:
        super().__init__()
        self.network = network
        self.pair = pair
        self.flight: deque[bytes] = deque()  # b"" is the end
        self.flying = 0
        self.due = 0.0
        self.reset = False
        self.together: Together | None = None  # the turns that read this end with others of its node
        network.lines += 1
        self.number = network.lines

    def fileno(self) -> int:
        return -1 if self.together is None else self.number

    def receive_now(self, most: int = 0) -> bytes | None:
        if self.closed:
            raise ConnectionLost("closed")
        return self._taken() if self.received else b"" if self.ended else None

    def wake(self) -> None:
        super().wake()
        if self.together is not None:
            self.together.ready(self.number)

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        if self.closed or self.reset:
            raise ConnectionLost("closed")
        chunk = b"".join(buffers)[: max(0, self._capacity)]
        if chunk:
            self._launch(chunk)
        self.total += len(chunk)
        return len(chunk)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.closed and not self.reset and self._capacity <= 0:
            await self._writers.park()
        if self.closed or self.reset:
            raise ConnectionLost("closed")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._readers.unpark_all()
            self._launch(b"")

    def end(self) -> None:
        """Break the connection: bytes under way are lost."""
        for line in (self, self.peer):
            assert isinstance(line, Line)
            line.flight.clear()
            line.flying = 0
            line.ended = line.reset = True
            line.network.open.get(line.pair, {}).pop(line, None)
            line.network.open.get((line.pair[1], line.pair[0]), {}).pop(line, None)
            line.wake()

    @property
    def _capacity(self) -> int:
        return self.capacity - len(self.peer.received) - self.flying

    def _launch(self, chunk: bytes) -> None:
        network = self.network
        takes = network.latency * (0.3 + network.rng.expovariate(1.4)) + network.delays.get(self.pair, 0.0)
        due = math.ceil((trio.current_time() + takes) / STEP_S) * STEP_S
        self.due = max(self.due, due)
        self.flight.append(chunk)
        self.flying += len(chunk)
        network.launch(self, self.due)

    def arrive(self) -> None:
        """Take in the next piece, unless the connection broke meanwhile."""
        if not self.flight:
            return
        chunk = self.flight.popleft()
        if not chunk:
            self.end()
            return
        self.flying -= len(chunk)
        peer, network = self.peer, self.network
        assert isinstance(peer, Line)
        peer.received += chunk
        network.chunks += 1
        if peer._readers:
            peer._readers.unpark_all()
        if peer.together is not None:
            peer.together.ready(peer.number)


@contextmanager
def lost_as(kind: type[Exception]) -> Iterator[None]:
    """Raise trio's error for a lost connection."""
    try:
        yield
    except ConnectionLost as error:
        raise kind(str(error)) from None


class LineStream(trio.abc.Stream):
    """A line as the client library takes it."""

    def __init__(self, line: Line) -> None:
        self.line = line

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        with lost_as(trio.BrokenResourceError):
            while view:
                view = view[self.line.send_some([view]) :]
                if view:
                    await self.line.wait_sendable()
            await trio.lowlevel.checkpoint_if_cancelled()

    async def wait_send_all_might_not_block(self) -> None:
        with lost_as(trio.BrokenResourceError):
            await self.line.wait_sendable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        with lost_as(trio.ClosedResourceError):
            return await self.line.receive()

    async def aclose(self) -> None:
        self.line.close()
        await trio.lowlevel.checkpoint()

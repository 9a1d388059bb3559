"""Connections that are read together: their messages of one turn of the loop are one step of the core.

Their sockets are in one epoll, which one task waits for. A task for each would cost two system calls and a task
switch more for each message, and each would have a step of its own: of publishes at the same moment no two could go as
one STORE. A connection that has to wait for something (for the rest of a frame, for its client to read,
for room) leaves, is served by its own task, and joins again.

A single message waits for no other: a turn ends when no other socket is ready.

If nothing else is going on, a turn of trio's loop for each message would cost a good part of the message's own cost.
So with `waits_here` the epoll waits in trio's place whenever trio has nothing to do, for the sockets and the loop's
own descriptor. As soon as trio has something, a socket, a task that can run or a deadline, it goes on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

from quorumq.core.messages.effects import Event

WAIT_S: Final = 60.0
"""The longest wait for sockets in one go."""

TURN_BYTES: Final = 1024 * 1024
"""Bytes of all connections in one turn beyond the first chunk of each; the rest is left to their own tasks."""


def loop_descriptor() -> int:
    """Return the descriptor that is readable when trio's loop has something to do; -1 without one.

    Trio has no public name for it: if another version has it elsewhere, a task waits for the sockets.
    """
    runner = getattr(trio._core._run.GLOBAL_RUN_CONTEXT, "runner", None)
    epoll = getattr(getattr(runner, "io_manager", None), "_epoll", None)
    return -1 if epoll is None else int(epoll.fileno())


def _nothing() -> None:
    pass


class Connection(Protocol):
    """Something that can be read together with others."""

    def take_turn(self, events: list[Event]) -> None:
        """Add events for the core to ``events``: the socket is ready. Never raises, and never waits."""


class _Calls:
    """Connection on which threads ring to have functions called."""

    def __init__(self, calls: deque[Callable[[], None]], sock: socket.socket) -> None:
        self._calls = calls
        self._sock = sock

    def take_turn(self, events: list[Event]) -> None:
        self._sock.recv(4096)
        while self._calls:
            self._calls.popleft()()


class Turns(trio.abc.Instrument):
    """Reads connections together. Connections join only while `run` runs.

    Attributes:
        taken: number of turns so far.
        waits_here: True to wait for sockets without trio, if that can be; set before `run`. Only if trio's
            clock is the machine's.
    """

    def __init__(self, feed: Callable[..., None], begin: Callable[[], None] = _nothing) -> None:
        self._feed = feed
        self._begin = begin  # called when a turn begins
        self._selector: select.epoll | None = None
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._loop = -1  # see `loop_descriptor`
        self.taken = 0
        self.waits_here = False
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # a thread that adds to them sees if they will be called
        self._bell: socket.socket
        self._scheduled = False  # trio has something to do
        self._over = trio.Event()
        self._broken: BaseException | None = None  # error that broke it
        self._remaining = 0  # rest of `TURN_BYTES`
        self._until = 0.0  # when it has at the latest (`time.perf_counter`)

    async def run(self) -> None:
        """Read the connections that have joined. Runs until cancelled."""
        ours, self._bell = socket.socketpair()
        with select.epoll() as selector, ours, self._bell:
            ours.setblocking(False)
            self._bell.setblocking(False)
            self._loop = loop_descriptor() if self.waits_here else -1
            self._selector = selector
            self.join(ours.fileno(), _Calls(self._calls, ours))
            try:
                if self._loop >= 0:
                    selector.register(self._loop, select.EPOLLIN)
                    trio.lowlevel.add_instrument(self)
                    await self._over.wait()
                    raise self._broken or AssertionError
                while True:
                    await trio.lowlevel.wait_readable(selector.fileno())
                    self._turn()
            finally:
                if self._loop >= 0:
                    trio.lowlevel.remove_instrument(self)
                with self._lock:
                    self._selector = None
                self._connections.clear()
                while self._calls:
                    self._calls.popleft()()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Trio calls this when it has something to do."""
        self._scheduled = True

    def before_io_wait(self, timeout: float) -> None:
        """Trio calls this when it is about to wait: the next event may be ours."""
        if self._broken is not None:
            return
        self._scheduled = False
        self._until = time.perf_counter() + timeout
        wait = timeout
        try:
            while not self._turn(min(wait, WAIT_S)) and timeout:
                wait = self._until - time.perf_counter()
                if self._scheduled or wait <= 0:
                    break
            else:
                return  # trio hears of it itself
        except BaseException as error:  # trio would only log it
            self._broken = error
            self._over.set()
        trio.lowlevel.current_trio_token().run_sync_soon(_nothing)  # else it would wait for all of `timeout`

    def wake_within(self, seconds: float) -> None:
        """Give trio its turn by an earlier deadline."""
        self._until = min(self._until, time.perf_counter() + seconds)

    def _turn(self, wait: float = 0.0) -> bool:
        """Wait for ``wait`` seconds at most, and read. Return True if there is something for trio, too."""
        assert self._selector is not None
        others = False
        self._begin()
        self._remaining = TURN_BYTES
        events: list[Event] = []
        for descriptor, _ in self._selector.poll(wait, len(self._connections) + 1):
            connection = self._connections.get(descriptor)
            if connection is not None:  # else it has left in this turn
                connection.take_turn(events)
            elif descriptor == self._loop:
                others = True
        if events:
            self.taken += 1
            self._feed(*events)
        return others

    def may_go_on(self, size: int) -> bool:
        """Return True if a connection in the middle of a frame may read ``size`` more bytes of it in this turn."""
        self._remaining -= size
        return self._remaining >= 0

    def call_soon(self, call: Callable[[], None]) -> bool:
        """Have ``call`` called on the loop, as `trio.lowlevel.TrioToken.run_sync_soon` does; from any thread.

        Returns:
            whether it will be: False while `run` does not run.
        """
        with self._lock:
            if self._selector is None:
                return False
            self._calls.append(call)
            with contextlib.suppress(BlockingIOError):  # then it will be heard anyway
                self._bell.send(b"!")
            return True

    def join(self, descriptor: int, connection: Connection) -> bool:
        """Have ``connection`` take its turns from now on; False if it has to be read by itself.

        Args:
            descriptor: descriptor of its socket; -1 without one.
        """
        if self._selector is None or descriptor < 0:
            return False
        self._selector.register(descriptor, select.EPOLLIN)
        self._connections[descriptor] = connection
        return True

    def release(self, descriptor: int) -> None:
        """End a connection's turns, before its socket is closed."""
        if self._selector is not None:
            del self._connections[descriptor]
            self._selector.unregister(descriptor)

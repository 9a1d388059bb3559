"""Connections that are read together: what came on all of them by one turn of the loop is one step of the core.

Their sockets are in one selector, which one task waits for. A task for each would cost two system calls and a task
switch more for each message, and each would have a step of its own: of publishes that come at the same moment no two
could go as one STORE. A connection that has to wait for something (for the rest of a frame, for its client to read,
for room) leaves, is served by its own task, and joins again.

A message that comes alone waits for nobody: a turn ends where no other socket is ready.

Where nothing else is going on, a turn of trio's loop for each message would cost a good part of what the message does.
So with `waits_here` it is in trio's place that the sockets are waited for, and the loop's own descriptor beside them,
whenever trio has nothing to do itself: as soon as it has, a socket, a task that can run or a deadline, it goes on.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Final, Protocol

import trio

from quorumq.core.effects import Event

WAIT_S: Final = 60.0
"""The longest wait for sockets in one go."""


def loop_descriptor() -> int:
    """What is readable when trio's loop has something to do; -1 where trio has no such thing, or not here any more."""
    runner = getattr(trio._core._run.GLOBAL_RUN_CONTEXT, "runner", None)
    epoll = getattr(getattr(runner, "io_manager", None), "_epoll", None)
    return -1 if epoll is None else int(epoll.fileno())


def _nothing() -> None:
    pass


class Connection(Protocol):
    """Something that can be read together with others."""

    def take_turn(self, events: list[Event]) -> None:
        """Its socket is ready: add to ``events`` what the core is to take in. Never raises, and never waits."""


class Turns(trio.abc.Instrument):
    """Reads connections together. Only while `run` runs does anybody join.

    Args:
        feed: takes in what has come.

    Attributes:
        taken: how many turns there were.
        waits_here: whether to wait for sockets without trio, where that can be; set before `run`. Only where trio's
            clock is the machine's.
    """

    def __init__(self, feed: Callable[..., None]) -> None:
        self._feed = feed
        self._selector: selectors.BaseSelector | None = None
        self.taken = 0
        self.waits_here = False

    async def run(self) -> None:
        """Read who has joined. Runs until cancelled."""
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            loop = loop_descriptor() if self.waits_here else -1
            try:
                if loop >= 0:
                    selector.register(loop, selectors.EVENT_READ, None)
                    trio.lowlevel.add_instrument(self)
                    await trio.sleep_forever()
                while True:
                    await trio.lowlevel.wait_readable(selector)
                    self._turn(selector.select(0))
            finally:
                self._selector = None
                if loop >= 0:
                    trio.lowlevel.remove_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        """Trio calls this when it is about to wait: the next event may be ours."""
        wait = timeout
        while self._selector is not None:
            ready = self._selector.select(min(wait, WAIT_S))
            self._turn(ready)
            others = trio.lowlevel.current_statistics()
            wait = others.seconds_to_next_deadline
            if not timeout or any(key.data is None for key, _ in ready):
                return
            if not ready or others.tasks_runnable or wait <= 0:
                break
        if timeout:  # else trio would wait for so long, though there is something to do
            trio.lowlevel.current_trio_token().run_sync_soon(_nothing)

    def _turn(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        events: list[Event] = []
        for key, _ in ready:
            if key.data is not None:
                key.data.take_turn(events)
        if events:
            self.taken += 1
            self._feed(*events)

    def join(self, descriptor: int, connection: Connection) -> bool:
        """Have ``connection`` take its turns from now on; False where it has to be read by itself.

        Args:
            descriptor: of its socket; -1 where it has none.
            connection: whose.
        """
        if self._selector is None or descriptor < 0:
            return False
        self._selector.register(descriptor, selectors.EVENT_READ, connection)
        return True

    def leave(self, descriptor: int) -> None:
        """It takes no more turns. Before its socket is closed."""
        if self._selector is not None:
            self._selector.unregister(descriptor)

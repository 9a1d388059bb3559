"""Connections that are read together: what came on all of them by one turn of the loop is one step of the core.

Their sockets are in one selector, which one task waits for. A task for each would cost two system calls and a task
switch more for each message, and each would have a step of its own: of publishes that come at the same moment no two
could go as one STORE. A connection that has to wait for something (for the rest of a frame, for its client to read,
for room) leaves, is served by its own task, and joins again.

A message that comes alone waits for nobody: a turn ends where no other socket is ready.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Protocol

import trio

from quorumq.core.effects import Event


class Connection(Protocol):
    """Something that can be read together with others."""

    def take_turn(self, events: list[Event]) -> None:
        """Its socket is ready: add to ``events`` what the core is to take in. Never raises, and never waits."""


class Turns:
    """Reads connections together. Only while `run` runs does anybody join.

    Args:
        feed: takes in what has come.

    Attributes:
        taken: how many turns there were.
    """

    def __init__(self, feed: Callable[..., None]) -> None:
        self._feed = feed
        self._selector: selectors.BaseSelector | None = None
        self.taken = 0

    async def run(self) -> None:
        """Read who has joined. Runs until cancelled."""
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            try:
                while True:
                    await trio.lowlevel.wait_readable(selector)
                    self._turn(selector)
            finally:
                self._selector = None

    def _turn(self, selector: selectors.BaseSelector) -> None:
        events: list[Event] = []
        joined = selector.get_map()
        for key, _ in selector.select(0):
            if key.fd in joined:  # else one before it in this turn had it hung up on
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

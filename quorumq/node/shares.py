"""Shares of the loop: each client begins a share of its requests in one turn, and the rest stays unread.

A node has one loop. If there were no shares, a client with many connections could put thousands of small requests in
front of all others. A client is a name of the clients file, or else an address, so more connections are no larger
share. A request costs by the size of its frame, even if it is refused, because it was read as well.

When a client has used up its share, its connections wait in its line, and its bytes wait in the kernel, which slows it
down and no other client. A turn of the loop reads the requests of all others first. If a request costs more than a
share, as a large batch, it is begun whole. Its client rests afterwards: a while of that length is for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from quorumq.core.values.limits import KIB

SHARE: Final = 4
"""Share of one client in a turn if others are there, in small requests: some 1 ms."""

SHARE_ALONE: Final = 64
"""… and if no other client is there. If it were less, one producer would need more steps, and so more rounds."""

BESIDE_S: Final = 1.0
"""Seconds after its last request for which a client counts as there."""

HEADER_BYTES: Final = 512
"""Bytes of a header that cost as much as a small request: each of its items is decoded and checked."""

BODY_BYTES: Final = 16 * KIB
"""Bytes of a body that cost as much as a small request: it is written, and sent to the replicas."""

ANSWER_BYTES: Final = 64 * KIB
"""Bytes of an answer that cost as much as a small request: they are read, and sent to one client."""

SPANS: Final = 2
"""Spans of a batch that cost as much as a small request, beside their bytes: each replica looks for the producer id
of each, and keeps it."""

REST_S: Final = 250e-6
"""Seconds that a client rests for each small request's worth beyond its share, if others are there. That is some
times the time of the work, and bounds a producer of large batches to 65 MB a second then."""


def price(header: int, body: int) -> int:
    """Return the cost of a request, in small requests, by the bytes of its frame's header and body."""
    return 1 + header // HEADER_BYTES + body // BODY_BYTES


class Shares:
    """Use of this turn by each client.

    Args:
        clock: monotonic seconds.

    Attributes:
        lines: connections that wait for the next shares of their clients, by client; others wait behind them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = clock()  # when this turn began
        self._spent: dict[str, int] = {}  # by client, in this turn
        self._rests: dict[str, float] = {}  # until when, by client: it has begun more than a share
        self._there: dict[str, float] = {}  # by client, its last request; the latest is last
        self.lines: dict[str, deque[trio.Event]] = {}  # connections that wait, by client
        self._waits = trio.Event()

    @property
    def share(self) -> int:
        """Share that each client may begin in this turn, in small requests."""
        return SHARE if len(self._there) > 1 else SHARE_ALONE

    def is_spent(self, client: str) -> bool:
        """Return True if a client may begin nothing more in this turn."""
        if client in self._rests:
            return True
        return self._spent.get(client, 0) >= (SHARE if len(self._there) > 1 else SHARE_ALONE)

    def _left(self, client: str) -> int:
        return 0 if client in self._rests else self.share - self._spent.get(client, 0)

    def spend(self, client: str, cost: int) -> None:
        """Charge a client for a request that it begins."""
        self._spent[client] = self._spent.get(client, 0) + cost
        self._there.pop(client, None)
        self._there[client] = self._clock()

    def answered(self, client: str, size: int) -> None:
        """Charge a client for an answer of ``size`` bytes."""
        if size >= ANSWER_BYTES:
            self.spend(client, size // ANSWER_BYTES)

    def begin(self) -> None:
        """Begin the next turn of the loop."""
        if not (self._spent or self._rests):
            return
        now = self._now = self._clock()
        share, spent, self._spent = self.share, self._spent, {}
        oldest = now - BESIDE_S
        while self._there and next(iter(self._there.values())) < oldest:
            del self._there[next(iter(self._there))]
        if len(self._there) <= 1:
            self._rests = {}
            return
        self._rests = {client: until for client, until in self._rests.items() if until > now}
        self._rests |= {
            client: now + (cost - share) * REST_S for client, cost in spent.items() if cost > share
        }

    async def wait(self, client: str, woken: trio.Event) -> None:
        """Wait in a client's line for one of its next shares, or until another caller sets ``woken``."""
        self.lines.setdefault(client, deque()).append(woken)
        self._waits.set()
        await woken.wait()

    async def run(self) -> None:
        """Give out shares to waiting connections, once in each turn of the loop. Runs until cancelled."""
        while True:
            if not self.lines:
                self._waits = trio.Event()
                await self._waits.wait()
            if all(client in self._rests for client in self.lines):
                self._waits = trio.Event()
                with trio.move_on_after(max(0.0, min(self._rests.values()) - self._now)):
                    await self._waits.wait()
            await trio.lowlevel.checkpoint()  # all others that are ready have their turn
            self.begin()
            for client in list(self.lines):
                line = self.lines[client]
                for _ in range(min(len(line), self._left(client))):
                    line.popleft().set()
                if not line:
                    del self.lines[client]

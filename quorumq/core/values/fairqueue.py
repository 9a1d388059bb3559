"""Queue in which costly work waits for its turn, so that it delays only the clients that asked for it.

A request that looks at a thousand partitions takes two milliseconds, and a connection may have hundreds of them under
way. In one step they would be half a second in which no other client is served. So a step takes a bounded share of the
queue, from one caller after another. A client with many requests delays only itself. A client with one request waits
for one request of each of the others. Cheap requests are never queued.

Many connections give a client no more turns: the turn goes to a name or address first, then to one of its connections.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Caller = int | str | tuple[str, int]
"""Owner of a line: a client's connection, with the name or address of its client; a node; or 0."""

Whose = int | str | tuple[str]
"""Owner of a turn: all connections of one name or address together."""

NO_CALLER: Final = ""
"""Caller of work that earlier steps had no time for, done for any future request: it has a pause each time."""

Work = TypeVar("Work")


class Chunk(NamedTuple, Generic[Work]):
    """Work that has its turn, and its cost in things looked at."""

    cost: int
    work: Work


class FairQueue(Generic[Work]):
    """Chunks of work, served one from each caller in turn, those of one caller in their order.

    Attributes:
        lines: waiting work by name or address (if there is one), by caller, and by a number. The owner of the next turn
            is first. Empty if no work waits.
    """

    __slots__ = ("_count", "_keys", "lines")

    def __init__(self) -> None:
        self.lines: dict[Whose, dict[Caller, dict[int, tuple[Hashable, Chunk[Work]]]]] = {}
        self._keys: dict[Hashable, tuple[Caller, int]] = {}  # place of work that may be called off
        self._count = 0

    def put(self, caller: Caller, cost: int, work: Work, key: Hashable = None) -> None:
        """Add work at the end of the caller's line; do nothing if work with the same ``key`` waits already."""
        if key is not None and key in self._keys:
            return
        self._count += 1
        line = self.lines.setdefault(whose(caller), {}).setdefault(caller, {})
        line[self._count] = (key, Chunk(cost, work))
        if key is not None:
            self._keys[key] = (caller, self._count)

    def take(self) -> Chunk[Work]:
        """Return the next chunk of the client whose turn it is; there has to be one."""
        whose = next(iter(self.lines))
        callers = self.lines.pop(whose)
        caller = next(iter(callers))
        line = callers.pop(caller)
        key, chunk = line.pop(next(iter(line)))
        self._keys.pop(key, None)
        if line:
            callers[caller] = line
        if callers:
            self.lines[whose] = callers
        return chunk

    def waiting(self, whose: Whose) -> int:
        return sum(map(len, self.lines.get(whose, {}).values()))

    def has(self, key: Hashable) -> bool:
        return key in self._keys

    def drop(self, key: Hashable) -> None:
        """Remove the work with that key, because its caller no longer waits for it."""
        caller, number = self._keys.pop(key, (0, 0))
        if number:
            of = whose(caller)
            callers = self.lines[of]
            line = callers[caller]
            del line[number]
            if not line:
                del callers[caller]
            if not callers:
                del self.lines[of]

    def check(self) -> None:
        there = {
            key: (caller, number)
            for callers in self.lines.values()
            for caller, line in callers.items()
            for number, (key, _) in line.items()
        }
        there.pop(None, None)
        assert there == self._keys, "what waits can be called off, and nothing else"
        lines = [line for callers in self.lines.values() for line in (callers, *callers.values())]
        assert all(lines), "nobody has a turn who waits for nothing"


def whose(caller: Caller) -> Whose:
    """Return the owner of a connection's turn."""
    return (caller[0],) if isinstance(caller, tuple) else caller  # a client may be called as a node is

"""Costly work waits here for its turn, so that it keeps nobody waiting but those who asked for it.

A request that looks at a thousand partitions takes two milliseconds, and a connection may have hundreds of them under
way: in one step they would be half a second in which nobody else is served. So a step takes a bounded share of what
waits, from one asker after another: who asks for much waits for itself, and who asks for one thing waits for one thing
of each of the others. What costs little never comes here.

One who has many connections has no more turns for that: first it is the turn of one name or address, then of one of its
connections.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Asker = int | str | tuple[str, int]
"""Whose turn it is: a client's connection, with the name or address whose connection it is; a node; or 0."""

Whose = int | str | tuple[str]
"""Who has a turn: all connections of one name or address together."""

NOBODY: Final = ""
"""Whose turn it is where what earlier steps had no time for is done, for whoever may come: it has a pause each time."""

Work = TypeVar("Work")


class Piece(NamedTuple, Generic[Work]):
    """What has its turn, and what it costs, in things looked at."""

    cost: int
    work: Work


class FairQueue(Generic[Work]):
    """Pieces of work, served one from each asker in turn, those of one asker in their order.

    Attributes:
        lines: who waits, by the name or address where there is one, and for what, by a number; who has the next turn is
            first. Empty where nobody waits.
    """

    __slots__ = ("_count", "_keys", "lines")

    def __init__(self) -> None:
        self.lines: dict[Whose, dict[Asker, dict[int, tuple[Hashable, Piece[Work]]]]] = {}
        self._keys: dict[Hashable, tuple[Asker, int]] = {}  # where to find what may be called off
        self._count = 0

    def put(self, asker: Asker, cost: int, work: Work, key: Hashable = None) -> None:
        """Add work at the end of the asker's line; with a ``key`` that waits already, nothing."""
        if key is not None and key in self._keys:
            return
        self._count += 1
        line = self.lines.setdefault(whose(asker), {}).setdefault(asker, {})
        line[self._count] = (key, Piece(cost, work))
        if key is not None:
            self._keys[key] = (asker, self._count)

    def take(self) -> Piece[Work]:
        """The next piece, of whose turn it is; there has to be one."""
        whose = next(iter(self.lines))
        askers = self.lines.pop(whose)
        asker = next(iter(askers))
        line = askers.pop(asker)
        key, piece = line.pop(next(iter(line)))
        self._keys.pop(key, None)
        if line:
            askers[asker] = line
        if askers:
            self.lines[whose] = askers
        return piece

    def waiting(self, whose: Whose) -> int:
        """For how much this one waits."""
        return sum(map(len, self.lines.get(whose, {}).values()))

    def has(self, key: Hashable) -> bool:
        """Whether what has that key waits."""
        return key in self._keys

    def drop(self, key: Hashable) -> None:
        """Nobody waits for what has that key any more."""
        asker, number = self._keys.pop(key, (0, 0))
        if number:
            of = whose(asker)
            askers = self.lines[of]
            line = askers[asker]
            del line[number]
            if not line:
                del askers[asker]
            if not askers:
                del self.lines[of]

    def check(self) -> None:
        """Assert what holds between any two steps."""
        there = {
            key: (asker, number)
            for askers in self.lines.values()
            for asker, line in askers.items()
            for number, (key, _) in line.items()
        }
        there.pop(None, None)
        assert there == self._keys, "what waits can be called off, and nothing else"
        lines = [line for askers in self.lines.values() for line in (askers, *askers.values())]
        assert all(lines), "nobody has a turn who waits for nothing"


def whose(asker: Asker) -> Whose:
    """Who has the turn of a connection."""
    return (asker[0],) if isinstance(asker, tuple) else asker  # a client may be called as a node is

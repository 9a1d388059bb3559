"""Index of the present messages of one partition: the batch of each, and its position there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.rows import Rows
from quorumq.core.values.spans import Run, SpanMap

_new: Any = tuple.__new__


NOTHING: Run = (0, 0, None)


class Location(NamedTuple):
    """Location of a present message: record ``seq + shift`` of stored batch ``number``."""

    number: int
    shift: int


class LocationRuns:
    """Runs of one producer id, each with a `Location`; it has all that a `SpanMap` uses of a SortedDict.

    Attributes:
        rows: start, stop, batch number, shift.
        seen: the run that was looked at or added last: a message is mostly looked at several times in a row.
    """

    __slots__ = ("rows", "seen")

    def __init__(self, items: Iterable[tuple[int, Run]]) -> None:
        self.rows = Rows("QQQq", 1)
        self.seen: Run = NOTHING
        for _, run in items:
            self[run[0]] = run

    def __setitem__(self, start: int, run: Run) -> None:
        self.rows.put((start, run[1], *run[2]))
        self.seen = NOTHING

    def append(self, run: Run) -> bool:
        """Put a run behind all others; False if it is not behind them, or may go on with the last one."""
        last = self.rows.before((NUMBERS_END,))
        if last is None or run[0] < last[1] or run[2][0] == last[2]:
            return False
        self.rows.put((run[0], run[1], *run[2]))
        self.seen = run
        return True

    def __getitem__(self, start: int) -> Run:
        row = self.rows.get((start,))
        if row is None:
            raise KeyError(start)
        return _run(row)

    def __delitem__(self, start: int) -> None:
        self.seen = NOTHING
        if self.rows.pop((start,)) is None:
            raise KeyError(start)

    def __len__(self) -> int:
        return len(self.rows)

    def keys(self) -> list[int]:
        return [row[0] for row in self.rows]

    def values(self) -> list[Run]:
        return [_run(row) for row in self.rows]

    def items(self) -> list[tuple[int, Run]]:
        return [(row[0], _run(row)) for row in self.rows]

    def bisect_left(self, start: int) -> int:
        """Return the number of runs that begin before ``start``."""
        return bisect_left(self.keys(), start)

    def irange(
        self, minimum: int | None = None, maximum: int | None = None, reverse: bool = False
    ) -> Iterator[int]:
        """Return the starts from the one to the other, in order; in ``reverse`` the last of them alone."""
        if reverse:
            assert minimum is None
            assert maximum is not None
            row = self.rows.before((maximum + 1,))
            return iter(()) if row is None else iter((row[0],))
        assert maximum is None
        return (row[0] for row in self.rows.onward(None if minimum is None else (minimum,)))


def _run(row: Any) -> Run:
    return row[0], row[1], _new(Location, row[2:])


def _overlap(runs: LocationRuns, start: int, stop: int) -> list[Run]:
    """Return the runs that share a message with ``[start, stop)``, in order, not clipped."""
    seen = runs.seen
    if seen[0] <= start and stop <= seen[1]:
        return [seen]
    overlap: list[Run] = []
    row = runs.rows.before((start + 1,))
    if row is not None and row[1] > start:
        runs.seen = seen = row[0], row[1], _new(Location, row[2:])
        overlap.append(seen)
    if stop - start > 1:
        overlap += map(_run, runs.rows.onward((start + 1,), (stop,)))
    return overlap


class MessageIndex(SpanMap[Location]):
    """Map from messages to slots. If many messages of a producer id were published alone, they take 32 bytes each."""

    __slots__ = ()

    SMALL_MAX: ClassVar[int] = 64
    SMALL_AGAIN: ClassVar[int] = 16
    MANY: ClassVar[Any] = LocationRuns
    APPENDS: ClassVar[bool] = True
    MANY_OVERLAP: ClassVar[Any] = staticmethod(_overlap)

"""Rows of numbers in order, kept as columns: a row costs only its bytes, and no object."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

Row = tuple[Any, ...]
"""One number for each column."""

CHUNK: Final = 512
"""Rows that are kept together, at most twice as many: a change in the middle moves them."""


class Rows:
    """A map from a key, the first columns of a row, to the row; in order of the keys.

    It is nearly always appended to, and taken from the front. Rows must not change during an iteration.

    Args:
        codes: the type of each column, as of an `array`. A number that its column cannot have is the caller's mistake.
        keys: count of columns that are the key, one or two.

    Attributes:
        size: count of rows. Only written here.
    """

    __slots__ = ("_chunks", "_codes", "_keys", "_last", "size")

    def __init__(self, codes: str, keys: int) -> None:
        self._codes = codes
        self._keys = keys
        self._chunks: list[tuple[array[Any], ...]] = []
        self._last: list[Row] = []  # the last key of each chunk
        self.size = 0

    def _find(self, key: Row) -> tuple[int, int, bool]:
        """Return the chunk of the first key that is not below ``key``, its row there, and True if it is ``key``.

        If there is none: the number of chunks, and 0.
        """
        chunk = bisect_left(self._last, key)
        if chunk == len(self._last):
            return chunk, 0, False
        columns = self._chunks[chunk]
        first, value = columns[0], key[0]
        at = bisect_left(first, value)
        if first[at] != value or self._keys == 1:
            return chunk, at, first[at] == value
        stop = bisect_right(first, value, at)
        second, value = columns[1], key[1]
        at = bisect_left(second, value, at, stop)
        return chunk, at, at < stop and second[at] == value

    def get(self, key: Row) -> Row | None:
        if not self.size or key > self._last[-1]:
            return None
        chunk, at, there = self._find(key)
        return tuple(map(itemgetter(at), self._chunks[chunk])) if there else None

    def __contains__(self, key: Row) -> bool:
        return self.size > 0 and key <= self._last[-1] and self._find(key)[2]

    def put(self, row: Row) -> None:
        """Put a row in the place of the one with its key, if there is one."""
        key, last = row[: self._keys], self._last
        if not last or key > last[-1]:
            if not last or len(self._chunks[-1][0]) >= 2 * CHUNK:
                self._chunks.append(tuple(map(array, self._codes)))
                last.append(key)
            for column, value in zip(self._chunks[-1], row, strict=True):
                column.append(value)
            last[-1] = key
            self.size += 1
            return
        chunk, at, there = self._find(key)
        columns = self._chunks[chunk]
        if there:
            for column, value in zip(columns, row, strict=True):
                column[at] = value
            return
        for column, value in zip(columns, row, strict=True):
            column.insert(at, value)
        self.size += 1
        if len(columns[0]) > 2 * CHUNK:
            halves = [
                tuple([column[:CHUNK] for column in columns]),
                tuple([column[CHUNK:] for column in columns]),
            ]
            self._chunks[chunk : chunk + 1] = halves
            last.insert(chunk, self._key_at(halves[0], CHUNK - 1))

    def extend(self, rows: list[Row]) -> None:
        """Put rows, which are in order of their keys: together, if they are after all others."""
        last = self._last
        if rows and last and rows[0][: self._keys] > last[-1]:
            columns = self._chunks[-1]
            if len(columns[0]) + len(rows) <= 2 * CHUNK:
                for column, values in zip(columns, zip(*rows, strict=True), strict=True):
                    column.extend(values)
                last[-1] = rows[-1][: self._keys]
                self.size += len(rows)
                return
        for row in rows:
            self.put(row)

    def pop(self, key: Row) -> Row | None:
        if not self.size or key > self._last[-1]:
            return None
        chunk, at, there = self._find(key)
        if not there:
            return None
        columns = self._chunks[chunk]
        row = tuple(map(itemgetter(at), columns))
        for column in columns:
            del column[at]
        self.size -= 1
        remaining = len(columns[0])
        if not remaining:
            del self._chunks[chunk], self._last[chunk]
        elif at == remaining:
            self._last[chunk] = self._key_at(columns, remaining - 1)
        return row

    def before(self, key: Row) -> Row | None:
        """Return the row with the highest key that is below ``key``."""
        if self.size and key > self._last[-1]:  # mostly: the newest
            return tuple(map(itemgetter(-1), self._chunks[-1]))
        chunk, at, _ = self._find(key)
        if not at:
            if not chunk:
                return None
            chunk, at = chunk - 1, len(self._chunks[chunk - 1][0])
        return tuple(map(itemgetter(at - 1), self._chunks[chunk]))

    def _key_at(self, columns: tuple[array[Any], ...], at: int) -> Row:
        return tuple([column[at] for column in columns[: self._keys]])

    def first(self) -> Row | None:
        return tuple(map(itemgetter(0), self._chunks[0])) if self._chunks else None

    def onward(self, begin: Row | None = None, end: Row | None = None) -> Iterator[Row]:
        """Yield the rows with ``begin <= key < end``, in order; None leaves that side open."""
        chunk, at, _ = (0, 0, False) if begin is None else self._find(begin)
        last, stop, _ = (len(self._chunks), 0, False) if end is None else self._find(end)
        while chunk < last:
            yield from zip(*[column[at:] for column in self._chunks[chunk]], strict=True)
            chunk, at = chunk + 1, 0
        if at < stop and chunk == last:
            yield from zip(*[column[at:stop] for column in self._chunks[chunk]], strict=True)

    __iter__ = onward

    def __len__(self) -> int:
        return self.size

    def clone(self) -> Rows:
        twin = Rows(self._codes, self._keys)
        twin._chunks = [tuple([column[:] for column in columns]) for columns in self._chunks]
        twin._last = self._last.copy()
        twin.size = self.size
        return twin

    def state(self) -> tuple[Row, ...]:
        """Return all rows: equal content gives equal tuples."""
        return tuple(self)

    def check(self) -> None:
        rows = list(self)
        keys = [row[: self._keys] for row in rows]
        assert keys == sorted(set(keys)), "keys are unique and in order"
        assert self.size == len(rows)
        assert all({len(column) for column in columns} == {len(columns[0])} for columns in self._chunks)
        assert all(0 < len(columns[0]) <= 2 * CHUNK for columns in self._chunks)
        assert self._last == [self._key_at(columns, len(columns[0]) - 1) for columns in self._chunks]

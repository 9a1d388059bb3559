"""Positions of the batches of a directory, by number."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from quorumq.storage.segments import BatchPosition


class Index:
    """Positions by batch number, in arrays (36 bytes a batch). Numbers are nearly always added in ascending order.

    A removed batch stays in the arrays, with segment 0. When these are more than half, the arrays are rebuilt.
    """

    def __init__(self) -> None:
        self.numbers = array("Q")
        self._removed = 0
        self._segments = array("Q")
        self._records = array("Q")
        self._header_lengths = array("I")
        self._lengths = array("I")
        self._crcs = array("I")

    def _columns(self) -> tuple[array[int], ...]:
        return (self._segments, self._records, self._header_lengths, self._lengths, self._crcs)

    def __len__(self) -> int:
        return len(self.numbers) - self._removed

    def add(self, number: int, position: BatchPosition) -> bool:
        """Note a batch; return False if the number is taken."""
        if not self.numbers or number > self.numbers[-1]:
            at = len(self.numbers)
        else:
            at = bisect_left(self.numbers, number)
            if self.numbers[at] == number:
                if self._segments[at]:
                    return False
                self._removed -= 1
                self._put(at, position)
                return True
        self.numbers.insert(at, number)
        for column, value in zip(self._columns(), position, strict=True):
            column.insert(at, value)
        return True

    def _find(self, number: int) -> int:
        at = bisect_left(self.numbers, number)
        there = at < len(self.numbers) and self.numbers[at] == number and self._segments[at]
        return at if there else -1

    def get(self, number: int) -> BatchPosition | None:
        at = self._find(number)
        return None if at < 0 else BatchPosition(*(column[at] for column in self._columns()))

    def move(self, number: int, position: BatchPosition) -> None:
        at = self._find(number)
        assert at >= 0, f"batch {number} is not there"
        self._put(at, position)

    def _put(self, at: int, position: BatchPosition) -> None:
        for column, value in zip(self._columns(), position, strict=True):
            column[at] = value

    def remove(self, number: int) -> None:
        at = self._find(number)
        assert at >= 0, f"batch {number} is not there"
        self._segments[at] = 0
        self._removed += 1
        if 2 * self._removed > len(self.numbers):
            kept = [at for at, segment in enumerate(self._segments) if segment]
            for column in (self.numbers, *self._columns()):
                column[:] = array(column.typecode, [column[at] for at in kept])
            self._removed = 0

    def within(self, segment: int, start: int, stop: int, count: int) -> tuple[list[int], int]:
        """Return batch numbers of a segment in [start, stop), and the next one. It looks at ``count`` at most."""
        first = bisect_left(self.numbers, start)
        last = min(first + count, bisect_left(self.numbers, stop))
        numbers = [
            number
            for number, at in zip(self.numbers[first:last], self._segments[first:last], strict=True)
            if at == segment
        ]
        return numbers, self.numbers[last] if last < bisect_left(self.numbers, stop) else stop

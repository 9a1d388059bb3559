"""Chooses the live batches to copy next, so that their segment can be deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from quorumq.storage.index import Index
from quorumq.storage.segments import BatchPosition, Segments

LOOK: Final = 4096
"""Batches of the index that one step looks at."""


@dataclass(eq=False)
class Compaction:
    """Progress of compaction: the segment that is being emptied, and the next batch to copy."""

    _segments: Segments  # the account of all
    _index: Index  # positions of batches
    _unreadable: Mapping[int, BatchPosition]  # positions of damaged batches: they move too
    _segment: int | None = None
    _next: int = 0  # its batches from this number on were not moved yet

    @property
    def is_over(self) -> bool:
        """True if no batch is worth moving, with any amount of free space."""
        return not self._segments.has_sparse

    def numbers(self, bytes_free: int) -> Iterator[int]:
        """Yield numbers of batches to copy, in order. If the caller stops early, it gets the last one again next
        time.

        Args:
            bytes_free: a segment is begun only if its copies take no more bytes.
        """
        segment = self._segment
        low, high = (1, 0) if segment is None else self._segments.numbers_in(segment)
        if segment is None or max(low, self._next) > high:
            segment, self._next = self._segments.sparsest(bytes_free), 0
            self._segment = segment
            if segment is None:
                return
            low, high = self._segments.numbers_in(segment)
        start = max(low, self._next)
        numbers, then = self._index.within(segment, start, high + 1, LOOK)
        unreadable = [n for n, at in self._unreadable.items() if at.segment == segment and start <= n < then]
        for number in sorted((*numbers, *unreadable)):
            self._next = number
            yield number
        self._next = then

"""A span map that counts messages by the class of their values, so that no caller has to count them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from quorumq.core.values.spans import Run, SpanMap
from quorumq.core.values.types import ProducerId, Span

V = TypeVar("V")


class CountedMap(SpanMap[V]):
    """A `SpanMap` with counts.

    Args:
        kind_of: function from a value to its class: any number, which depends on the value alone.

    Attributes:
        counts: messages by class; a class without messages is not in it.
    """

    __slots__ = ("counts", "kind_of")

    def __init__(self, kind_of: Callable[[V], int]) -> None:
        super().__init__()
        self.kind_of = kind_of
        self.counts: dict[int, int] = {}

    def count(self, kind: int) -> int:
        """Return how many messages have a value of that class."""
        return self.counts.get(kind, 0)

    def put(self, span: Span, value: Any) -> None:
        """Map a span to a value, as in `SpanMap`."""
        producer_id, start, stop = span
        runs = self.runs.get(producer_id, ())
        if type(runs) is not tuple or (runs and runs[-1][1] > start):  # else it is after all others
            for run in self._overlap(producer_id, start, stop):
                self._add(run, min(run[1], stop) - max(run[0], start), -1)
        if value is not None:
            kind = self.kind_of(value)
            self.counts[kind] = self.counts.get(kind, 0) + stop - start
        super().put(span, value)

    def _write(self, producer_id: ProducerId, start: int, stop: int, chunks: Sequence[Run]) -> None:
        if producer_id in self.runs:
            for run in self._overlap(producer_id, start, stop):
                self._add(run, min(run[1], stop) - max(run[0], start), -1)
        for run in chunks:
            self._add(run, run[1] - run[0], 1)
        super()._write(producer_id, start, stop, chunks)

    def _add(self, run: Run, size: int, sign: int) -> None:
        kind = self.kind_of(run[2])
        remaining = self.counts.get(kind, 0) + sign * size
        if remaining:
            self.counts[kind] = remaining
        else:
            self.counts.pop(kind, None)

    def clone(self) -> Self:
        twin = super().clone()
        twin.kind_of, twin.counts = self.kind_of, self.counts.copy()
        return twin

    def check(self) -> None:
        super().check()
        counts: dict[int, int] = {}
        runs: list[Any] = [run for producer_id in self.runs for run in self._all(producer_id)]
        for run in runs:
            kind = self.kind_of(run[2])
            counts[kind] = counts.get(kind, 0) + run[1] - run[0]
        assert self.counts == counts, f"counted {self.counts}, there are {counts}"

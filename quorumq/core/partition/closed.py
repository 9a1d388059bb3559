"""The set of a partition's closed producer ids (core/requests/closing.py says how a producer id gets there)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from quorumq.core.partition.digests import Digests
from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.names import is_windowed, past_below
from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.core.values.types import DERIVED, NAMED, ProducerId, Span

BLOCK: Final = 4096
"""Numbers that replicas compare together; the producer id of the first one stands for them."""


def number_of(producer_id: ProducerId) -> Span:
    """Return the span of a closed producer id: its number ``k``, under the first producer id of that start of its
    node."""
    return Span(producer_id._replace(k=0), producer_id.k, producer_id.k + 1)


class ClosedSessions:
    """The producer ids of a partition that are closed, as spans of their numbers.

    Attributes:
        digests: digests by block of numbers.
    """

    __slots__ = ("digests", "numbers")

    def __init__(self) -> None:
        self.numbers = SpanSet()
        self.digests = Digests()

    def __contains__(self, producer_id: ProducerId) -> bool:
        return bool(self.numbers.runs) and self.numbers.contains(producer_id._replace(k=0), producer_id.k)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def add(self, numbers: Span) -> None:
        """Add producer ids that are over, by their numbers."""
        self.numbers.add(numbers)
        family, start, stop = numbers
        for first in range(start - start % BLOCK, stop, BLOCK):
            self.digests.stale[family._replace(k=first)] = None

    def block(self, first: ProducerId) -> list[Span]:
        """Return the numbers of a block."""
        return self.numbers.within(Span(first._replace(k=0), first.k, first.k + BLOCK))

    def blocks(self) -> list[ProducerId]:
        """Return the blocks in which some number is closed."""
        return list(
            dict.fromkeys(
                family._replace(k=first)
                for family, start, stop in self.numbers.items()
                for first in range(start - start % BLOCK, stop, BLOCK)
            )
        )

    def content(self, first: ProducerId) -> bytes:
        """Return the bytes that replicas compare for a block of numbers."""
        return b",".join([b"%d,%d" % span[1:] for span in self.block(first)])


def among(numbers: Iterable[Span], table: Mapping[ProducerId, Any]) -> list[ProducerId]:
    """Return the producer ids of a table that have one of these numbers, at the cost of the smaller of both."""
    producer_ids: list[ProducerId] = []
    for (node, n, nonce, _), start, stop in numbers:
        if stop - start <= len(table):
            named = (ProducerId(node, n, nonce, k) for k in range(start, stop))
            producer_ids += [producer_id for producer_id in named if producer_id in table]
        else:
            family = (node, n, nonce)
            producer_ids += [
                producer_id
                for producer_id in table
                if producer_id[:3] == family and start <= producer_id.k < stop
            ]
    return producer_ids


def discard(
    numbers: Iterable[Span], table: SpanSet | SpanMap[Any] | dict[ProducerId, Any]
) -> list[ProducerId]:
    """Drop the entries of the producer ids with these numbers from ``table``, and return the producer ids that it
    had."""
    if isinstance(table, dict):
        producer_ids = among(numbers, table)
        for producer_id in producer_ids:
            del table[producer_id]
        return producer_ids
    producer_ids = among(numbers, table.runs)
    for producer_id in producer_ids:
        table.put(Span(producer_id, 0, NUMBERS_END), None)
    return producer_ids


def may_close(producer_id: ProducerId) -> bool:
    """Return True if a producer id may be over: outputs may be derived from an input again at any time, and names that
    are kept for the topic's life be published again."""
    return producer_id.node != DERIVED and (producer_id.node != NAMED or producer_id.n > 0)


def past_part(numbers: Span, wall_ms: int) -> Span | None:
    """Return the producer ids of a span of numbers that may be over; of windows of names those that are past by our
    clock. None if there are none."""
    producer_id, start, stop = numbers
    if not may_close(producer_id):
        return None
    if is_windowed(producer_id):
        stop = min(stop, past_below(producer_id.n, wall_ms))
    return Span(producer_id, start, stop) if start < stop else None

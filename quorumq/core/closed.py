"""The set of a partition's closed origins (core/closing.py says how an origin gets there)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from quorumq.core.limits import NUMBERS_END
from quorumq.core.partition.digests import Digests
from quorumq.core.spans import SpanMap, SpanSet
from quorumq.core.types import DERIVED, Origin, Span

BLOCK: Final = 4096
"""Numbers that replicas compare together; the origin of the first one stands for them."""


def number_of(origin: Origin) -> Span:
    """Return the span of a closed origin: its number ``k``, under the first origin of that start of its node."""
    return Span(origin._replace(k=0), origin.k, origin.k + 1)


class ClosedOrigins:
    """The origins of a partition that are closed, as spans of their numbers.

    Attributes:
        digests: digests by block of numbers.
    """

    __slots__ = ("digests", "numbers")

    def __init__(self) -> None:
        self.numbers = SpanSet()
        self.digests = Digests()

    def __contains__(self, origin: Origin) -> bool:
        return bool(self.numbers.runs) and self.numbers.contains(origin._replace(k=0), origin.k)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def add(self, numbers: Span) -> None:
        """Add origins that are over, by their numbers."""
        self.numbers.add(numbers)
        family, start, stop = numbers
        for first in range(start - start % BLOCK, stop, BLOCK):
            self.digests.stale[family._replace(k=first)] = None

    def block(self, first: Origin) -> list[Span]:
        """Return the numbers of a block."""
        return self.numbers.within(Span(first._replace(k=0), first.k, first.k + BLOCK))

    def blocks(self) -> list[Origin]:
        """Return the blocks in which some number is closed."""
        return list(
            dict.fromkeys(
                family._replace(k=first)
                for family, start, stop in self.numbers.items()
                for first in range(start - start % BLOCK, stop, BLOCK)
            )
        )

    def content(self, first: Origin) -> bytes:
        """Return the bytes that replicas compare for a block of numbers."""
        return b",".join([b"%d,%d" % span[1:] for span in self.block(first)])


def among(numbers: Iterable[Span], table: Mapping[Origin, Any]) -> list[Origin]:
    """Return the origins of a table that have one of these numbers, at the cost of the smaller of both."""
    origins: list[Origin] = []
    for (node, n, nonce, _), start, stop in numbers:
        if stop - start <= len(table):
            named = (Origin(node, n, nonce, k) for k in range(start, stop))
            origins += [origin for origin in named if origin in table]
        else:
            family = (node, n, nonce)
            origins += [origin for origin in table if origin[:3] == family and start <= origin.k < stop]
    return origins


def forget(numbers: Iterable[Span], table: SpanSet | SpanMap[Any] | dict[Origin, Any]) -> list[Origin]:
    """Drop the entries of the origins with these numbers from ``table``, and return the origins that it had."""
    if isinstance(table, dict):
        origins = among(numbers, table)
        for origin in origins:
            del table[origin]
        return origins
    origins = among(numbers, table.runs)
    for origin in origins:
        table.put(Span(origin, 0, NUMBERS_END), None)
    return origins


def may_close(origin: Origin) -> bool:
    """Return True if an origin is a producer's session: outputs may be derived from an input again at any time."""
    return origin.node != DERIVED

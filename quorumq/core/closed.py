"""The set of a partition's closed origins (core/closing.py says how an origin gets there)."""

from __future__ import annotations

from typing import Any

from quorumq.core.limits import NUMBERS_END
from quorumq.core.spans import SpanMap, SpanSet
from quorumq.core.types import DERIVED, Origin, Span


def number_of(origin: Origin) -> Span:
    """What stands for a closed origin: its number ``k``, under the first origin of that start of its node."""
    return Span(origin._replace(k=0), origin.k, origin.k + 1)


class ClosedOrigins:
    """The origins of a partition that are closed, as spans of their numbers."""

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers = SpanSet()

    def __contains__(self, origin: Origin) -> bool:
        return bool(self.numbers.runs) and self.numbers.contains(origin._replace(k=0), origin.k)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def forget_in(self, table: SpanSet | SpanMap[Any] | dict[Origin, Any]) -> None:
        """Drop what ``table`` has of closed origins."""
        if isinstance(table, dict):
            for origin in [origin for origin in table if origin in self]:
                del table[origin]
            return
        for origin in table.origins():
            if origin in self:
                table.remove(Span(origin, 0, NUMBERS_END))


def may_close(origin: Origin) -> bool:
    """Whether an origin is a producer's session: outputs may be derived from an input again at any time."""
    return origin.node != DERIVED

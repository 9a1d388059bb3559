"""Valid values of every type of message and record, out of seeded random numbers, mostly at the limits.

tests/wire/strategies.py does the same for hypothesis, whose draws depend on other imports. These depend on
the generator alone, so that a case can be named by its number.
"""

from __future__ import annotations

import functools
import random
import typing
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.types import Batch, BatchHeader, ProducerId, Receipt, Span
from quorumq.wire.bounds import BYTES_EXACT, int_range
from quorumq.wire.receipts import sign_session, signature
from quorumq.wire.values import SignedNamed
from tests.wire.strategies import BATCHES, SECRET

KEYS: Final[Mapping[int, bytes]] = {0: SECRET}
TEXTS: Final = (
    "", "a", "jobs", "g", "*", "jo?s", "\x1b[2J", "é" * 40, "~derived", "all", "earliest", "x" * 200,
)  # fmt: skip
NODES: Final = ("a", "b", "c", "", "node-9", "~derived", "z" * 32)
FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.25, 60.0, 1e9, 1e299, -1e299, 5e-324)


def rng_of(seed: int, n: int) -> random.Random:
    """The random numbers of case ``n``."""
    return random.Random((seed << 64) + n)


@functools.cache
def fields_of(cls: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field, hints[field]) for field in cls._fields)


class Draw:
    """Draws values.

    Args:
        rng: random source.
        items: largest length of a list.
        known: values, by type, field, or class and field, to draw from in three of four cases.
    """

    def __init__(
        self, rng: random.Random, items: int = 3, known: Mapping[Any, typing.Sequence[Any]] | None = None
    ) -> None:
        self.rng = rng
        self.items = items
        self.known = known or {}

    def of(self, cls: Any) -> Any:
        """A NamedTuple of this class."""
        if cls is Batch:
            return self.rng.choice(BATCHES)
        if cls is Span:
            return self.span()
        if cls is m.Slice:
            return self.slice()
        if cls is m.ReceiptPart:
            spans = tuple(self.span() for _ in range(self.rng.randrange(3)))
            return SignedNamed(signature(self.of(Receipt), secret=SECRET), spans)
        made = cls(*[self.field(hint, cls.__name__, field) for field, hint in fields_of(cls)])
        if cls is m.Publish:
            producer_id = made.batch.header.spans[0].producer_id
            return made._replace(signature=sign_session(producer_id, secret=SECRET, key=0))
        if cls is m.CloseSession:
            return made._replace(signature=sign_session(made.producer_id, secret=SECRET, key=0))
        if cls is m.Hello:
            return made._replace(versions=(min(made.versions), max(made.versions)))
        return made

    def span(self) -> Span:
        start = self.number(0, NUMBERS_END)
        size = self.rng.choice((1, 1, 2, 100, 1 << 32))
        return Span(
            self.known_or(ProducerId, ProducerId, "Span", "producer_id"),
            start,
            min(start + size, NUMBERS_END),
        )

    def slice(self) -> m.Slice:
        number = self.rng.randrange(len(BATCHES))
        header: BatchHeader = BATCHES[number].header
        first = self.rng.randrange(header.size)
        stop = self.rng.randint(first + 1, header.size)
        deliveries = []
        for _ in range(self.rng.randint(0, stop - first)):
            delivery = self.of(m.Delivery)
            signed = signature(delivery.receipt, secret=SECRET)
            deliveries.append(delivery._replace(signed=signed, attempt=max(1, delivery.attempt)))
        return m.Slice(self.text("topic"), header.partition, number, first, stop, header, tuple(deliveries))

    def number(self, low: int, end: int) -> int:
        """An integer from ``low`` to ``end`` - 1, mostly near one of them."""
        way = self.rng.random()
        if way < 0.4:
            return min(end - 1, max(low, self.rng.choice((0, 1, 2, 3, 100, 1 << 16, 1 << 32))))
        if way < 0.8:
            return self.rng.choice((low, min(low + 1, end - 1), end - 1, max(low, end - 2)))
        return self.rng.randrange(low, end)

    def text(self, field: str) -> str:
        if field in ("node", "sender", "to", "replicas", "survivors"):
            return self.rng.choice(NODES)
        return self.rng.choice(TEXTS)

    def plain(self, depth: int = 0) -> Any:
        way = self.rng.randrange(8 if depth < 3 else 6)
        if way < 6:
            return (None, True, self.number(-(1 << 63), 1 << 64), "text", 0.5, -7)[way]
        if way == 6:
            return [self.plain(depth + 1) for _ in range(self.rng.randrange(3))]
        return {f"k{at}": self.plain(depth + 1) for at in range(self.rng.randrange(3))}

    def known_or(self, key: Any, hint: Any, owner: str, field: str) -> Any:
        known = self.known.get(key)
        if known and self.rng.random() < 0.75:
            return self.rng.choice(known)
        return self._field(hint, owner, field)

    def field(self, hint: Any, owner: str, field: str) -> Any:
        """A value for one field of ``owner``."""
        keys = (f"{owner}.{field}", field)
        return self.known_or(next((key for key in keys if key in self.known), hint), hint, owner, field)

    def _field(self, hint: Any, owner: str, field: str) -> Any:
        rng = self.rng
        if hint is int:
            return self.number(*int_range(owner, field))
        if hint is str:
            return self.text(field)
        if hint is bytes:
            size = BYTES_EXACT.get((owner, field))
            return rng.randbytes(rng.choice((0, 1, 16)) if size is None else size)
        if hint is float:
            return rng.choice(FLOATS)
        if hint is bool:
            return rng.random() < 0.5
        producer_id, args = typing.get_origin(hint), typing.get_args(hint)
        if type(None) in args:
            return None if rng.random() < 0.4 else self.known_or(args[0], args[0], owner, field)
        if producer_id is tuple and args[-1] is Ellipsis:
            return tuple(
                self.known_or(args[0], args[0], owner, field) for _ in range(rng.randint(0, self.items))
            )
        if producer_id is tuple:
            if field == "cursor":
                return tuple(self.number(-(1 << 63), 1 << 63) for _ in args)
            return tuple(self.known_or(arg, arg, owner, field) for arg in args)
        if producer_id is dict:
            return {f"k{at}": self.plain() for at in range(rng.randrange(3))}
        if isinstance(hint, type) and issubclass(hint, IntEnum):
            return rng.choice(list(hint))
        return self.of(hint)

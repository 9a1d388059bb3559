"""What a group may be given of one partition: which messages, in which batches, since when.

A group has two offers: of first-timers, and of suspects (core/partition/fate.py). They are apart so that whoever looks
for the one never passes over the other, however many there are.
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from quorumq.core.spans import SpanSet
from quorumq.core.types import Span


class Offer:
    """Messages that are available, by the batches that they are in.

    Attributes:
        spans: the messages.
        ready: the batches that they are in, oldest first: (published_ms, batch number) -> available since (mono).
        counts: how many of them each batch has, by its number.
        told_until: of suspects: until then nobody else is told that they wait (mono); 0.0 where there are none.
    """

    __slots__ = ("counts", "ready", "spans", "told_until")

    def __init__(self) -> None:
        self.spans = SpanSet()
        self.ready: SortedDict = SortedDict()
        self.counts: dict[int, int] = {}
        self.told_until = 0.0

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.spans.messages

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest batch of which something is offered was published; None where nothing is."""
        return self.ready.peekitem(0)[0][0] if self.ready else None

    def count(self, key: tuple[int, int], balance: int, now: float) -> bool:
        """Of the batch with ``key`` so many messages more are available. Returns whether any is."""
        count = self.counts.get(key[1], 0) + balance
        if not count:
            self.forget_batch(key)
            return False
        self.counts[key[1]] = count
        if key not in self.ready:
            self.ready[key] = now
        return True

    def forget_batch(self, key: tuple[int, int]) -> None:
        """Nothing of the batch with that key in `ready` is available any more."""
        self.ready.pop(key, None)
        self.counts.pop(key[1], None)
        if not self.ready:
            self.told_until = 0.0

    def withdraw(self, key: tuple[int, int], spans: list[Span]) -> None:
        """The batch with that key, which had ``spans``, is not here any more."""
        self.forget_batch(key)
        for span in spans:
            self.spans.remove(span)

"""What a group may be given of one partition, and what else it keeps there: which messages, in which batches.

A group has two offers: of first-timers, and of suspects (core/partition/fate.py). They are apart so that whoever looks
for the one never passes over the other, however many there are.
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from quorumq.core.spans import SpanMap, SpanSet
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


HELD, ELSEWHERE, DELAYED, DEAD = range(4)
"""Why a message that a group keeps is not offered: held here, held elsewhere as a NOK said, not due, a dead letter."""

Key = tuple[int, int]


class Kept:
    """Messages of batches here that a group keeps and is not offered: why, and in which batches.

    Only for who asks how much there is, and how old: whoever changes something counts, so that nobody has to look.

    Attributes:
        spans: why, by message.
        batches: by why, the batches, oldest first, as in `Offer.ready`, with how many of the messages each has.
    """

    __slots__ = ("batches", "messages", "spans")

    def __init__(self) -> None:
        self.spans: SpanMap[int] = SpanMap()
        self.batches: dict[int, SortedDict] = {}
        self.messages: dict[int, int] = {}

    def count(self, why: int) -> int:
        """How many messages are not offered for that reason."""
        return self.messages.get(why, 0)

    def oldest(self, *whys: int) -> list[Key]:
        """For each of the reasons the oldest batch with such a message, if there is one."""
        return [self.batches[why].peekitem(0)[0] for why in whys if why in self.batches]

    def put(self, key: Key, span: Span, before: int | None, why: int | None) -> None:
        """All of ``span``, in the batch with ``key``, was not offered for one reason, and is now for another."""
        self.spans.put(span, why)
        if before is not None:
            self._add(key, before, -span.size)
        if why is not None:
            self._add(key, why, span.size)

    def withdraw(self, key: Key, spans: list[Span]) -> None:
        """The batch with that key, which had ``spans``, is not here any more."""
        for span in spans:
            for part, why in self.spans.remove(span):
                self._add(key, why, -part.size)

    def _add(self, key: Key, why: int, size: int) -> None:
        counts = self.batches.get(why)
        if counts is None:
            counts = self.batches[why] = SortedDict()
        counts[key] = counts.get(key, 0) + size
        if not counts[key]:
            del counts[key]
        self.messages[why] = self.messages.get(why, 0) + size
        if not self.messages[why]:
            del self.messages[why], self.batches[why]

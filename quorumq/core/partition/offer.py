"""What a group may be given of one partition, and what else it keeps there: which messages, in which batches.

A group has two offers: of first-timers, and of suspects (core/partition/fate.py). They are apart so that whoever looks
for the one never passes over the other, however many there are.
"""

from __future__ import annotations

from heapq import heappop, heappush

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

    def count(self, key: tuple[int, int], balance: int, now: float) -> None:
        """Of the batch with ``key`` so many messages more are available, or fewer; not none."""
        before = self.counts.get(key[1], 0)
        if before + balance:
            self.counts[key[1]] = before + balance
            if not before:
                self.ready[key] = now
        else:
            self.forget_batch(key)

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


class KeptBatches:
    """How many messages of which batches, and which is the oldest.

    A heap, of which only the head has to be true: nobody but a status page asks for it.
    """

    __slots__ = ("counts", "heap")

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}
        self.heap: list[Key] = []  # every batch of `counts`, and some that are gone

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptBatches) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    def add(self, key: Key, size: int) -> None:
        """Of the batch with that key so many messages more, or fewer."""
        counts = self.counts
        before = counts.get(key, 0)
        if before + size:
            counts[key] = before + size
            if not before:
                heappush(self.heap, key)
            return
        del counts[key]
        if len(self.heap) > 2 * len(counts) + 16:
            self.heap = sorted(counts)

    def oldest(self) -> Key:
        """The oldest batch; there is one."""
        while self.heap[0] not in self.counts:
            heappop(self.heap)
        return self.heap[0]


class Kept:
    """Messages of batches here that a group keeps and is not offered: why, and in which batches.

    Only for who asks how much there is, and how old: whoever changes something counts, so that nobody has to look.

    Attributes:
        spans: why, by message.
        batches: by why, how many of the messages each batch has, by its key in `Offer.ready`.
    """

    __slots__ = ("batches", "messages", "spans")

    def __init__(self) -> None:
        self.spans: SpanMap[int] = SpanMap()
        self.batches: dict[int, KeptBatches] = {}
        self.messages: dict[int, int] = {}

    def count(self, why: int) -> int:
        """How many messages are not offered for that reason."""
        return self.messages.get(why, 0)

    def oldest(self, *whys: int) -> list[Key]:
        """For each of the reasons the oldest batch with such a message, if there is one."""
        return [self.batches[why].oldest() for why in whys if why in self.batches]

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
        batches = self.batches.get(why)
        if batches is None:
            batches = self.batches[why] = KeptBatches()
        batches.add(key, size)
        self.messages[why] = self.messages.get(why, 0) + size
        if not self.messages[why]:
            del self.messages[why], self.batches[why]

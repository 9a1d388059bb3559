"""What a group may be given of one partition, and what else it keeps there: which messages, in which batches.

A group has two offers: of what may be delivered with any others, and of suspects, which come in lots
(core/partition/attempts.py, `lot_of`). They are apart so that whoever looks for the one never passes over the other,
however many there are.
"""

from __future__ import annotations

from heapq import heappop, heappush

from quorumq.core.rows import Rows
from quorumq.core.spans import SpanMap
from quorumq.core.types import Span


class Offer:
    """Messages that are available, by the batches that they are in.

    Attributes:
        spans: the messages, and in lots of how many at most each may be delivered; 0: with any others.
        ready: the batches that they are in, oldest first: when it was made (ms of our monotonic clock), batch number
            (both are the key), available since (mono), and how many of them it has.
        told_until: of suspects: until then nobody else is told that they wait (mono); 0.0 where there are none.
    """

    __slots__ = ("ready", "spans", "told_until")

    def __init__(self) -> None:
        self.spans: SpanMap[int] = SpanMap()
        self.ready = Rows("qQdI", 2)
        self.told_until = 0.0

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.spans.messages

    @property
    def oldest_ms(self) -> int | None:
        """Return when the oldest batch that offers something was made, by this node's clock; None if none does."""
        row = self.ready.first()
        return row[0] if row is not None else None

    def count(self, key: tuple[int, int], balance: int, now: float) -> None:
        """Of the batch with ``key`` so many messages more are available, or fewer; not none."""
        row = self.ready.pop(key) if self.ready.size else None
        since, before = (now, 0) if row is None else row[2:]
        if before + balance:
            self.ready.put((*key, since, before + balance))
        elif not self.ready.size:
            self.told_until = 0.0

    def forget_batch(self, key: tuple[int, int]) -> None:
        """Nothing of the batch with that key in `ready` is available any more."""
        self.ready.pop(key)
        if not self.ready.size:
            self.told_until = 0.0

    def withdraw(self, key: tuple[int, int], spans: list[Span]) -> None:
        """The batch with that key, which had ``spans``, is not here any more."""
        self.forget_batch(key)
        for span in spans:
            self.spans.remove(span)


Key = tuple[int, int]


class Kept:
    """Messages of batches here that a group keeps and is not offered: why (`fate.standing`), and in which batches.

    Only for who asks how much there is, and how old: whoever changes something counts, so that nobody has to look.

    Attributes:
        spans: why, by message.
        batches: by why, how many of the messages each batch has, by its key in `Offer.ready`.
        messages: how many there are, by why.
    """

    __slots__ = ("_heaps", "batches", "messages", "spans")

    def __init__(self) -> None:
        self.spans: SpanMap[int] = SpanMap()
        self.batches: dict[int, dict[Key, int]] = {}
        self.messages: dict[int, int] = {}
        self._heaps: dict[int, list[Key]] = {}  # by why: all of its batches, and some that are gone

    def count(self, why: int) -> int:
        """How many messages are not offered for that reason."""
        return self.messages.get(why, 0)

    def oldest(self, *whys: int) -> list[Key]:
        """For each of the reasons the oldest batch with such a message, if there is one."""
        found: list[Key] = []
        for why in whys:
            counts = self.batches.get(why)
            if counts:
                heap = self._heaps[why]
                while heap[0] not in counts:  # a batch that is gone is taken out when it is met
                    heappop(heap)
                found.append(heap[0])
        return found

    def put(self, key: Key, span: Span, before: int | None, why: int | None) -> None:
        """All of ``span``, in the batch with ``key``, was not offered for one reason, and is now for another."""
        self.spans.put(span, why)
        size = span[2] - span[1]
        if before is not None:
            self._add(key, before, -size)
        if why is not None:
            self._add(key, why, size)

    def withdraw(self, key: Key, spans: list[Span]) -> None:
        """The batch with that key, which had ``spans``, is not here any more."""
        for span in spans:
            for part, why in self.spans.remove(span):
                self._add(key, why, -part.size)

    def _add(self, key: Key, why: int, size: int) -> None:
        counts = self.batches.get(why)
        if counts is None:
            counts, self._heaps[why] = self.batches.setdefault(why, {}), []
        before = counts.get(key, 0)
        if before + size:
            counts[key] = before + size
            self.messages[why] = self.messages.get(why, 0) + size
            if not before:
                heappush(self._heaps[why], key)
            return
        del counts[key]
        self.messages[why] += size
        if not counts:
            del self.messages[why], self.batches[why], self._heaps[why]
        elif len(self._heaps[why]) > 2 * len(counts) + 16:
            self._heaps[why] = sorted(counts)

"""Ready and not-ready messages of one group in one partition, by the batches that they are in.

A group has two tables: of messages that may be delivered with any others, and of suspects, which are delivered in lots
(core/partition/attempts.py, `lot_of`). They are separate so that a search for one kind never scans the other.
"""

from __future__ import annotations

from heapq import heappop, heappush

from quorumq.core.values.rows import Rows
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Span


class ReadyMessages:
    """Messages that are available, by the batches that they are in.

    Attributes:
        spans: the messages, each with the size of the largest lot that may deliver it; 0: with any others.
        batches: the batches that they are in, oldest first: when it was made (ms of our monotonic clock), batch number
            (both are the key), available since (mono), and the number of its messages that are available.
        hint_after: monotonic time before which no other client gets the `suspects` hint; 0.0 if no suspect is ready.
    """

    __slots__ = ("batches", "hint_after", "spans")

    def __init__(self) -> None:
        self.spans: SpanMap[int] = SpanMap()
        self.batches = Rows("qQdI", 2)
        self.hint_after = 0.0

    @property
    def messages(self) -> int:
        return self.spans.messages

    @property
    def oldest_ms(self) -> int | None:
        """Return when the oldest batch with ready messages was made, by this node's clock; None if there is none."""
        row = self.batches.first()
        return row[0] if row is not None else None

    def count(self, key: tuple[int, int], balance: int, now: float) -> None:
        """Add ``balance`` to the available messages of the batch with ``key``; it may be negative, but not 0."""
        row = self.batches.pop(key) if self.batches.size else None
        since, before = (now, 0) if row is None else row[2:]
        if before + balance:
            self.batches.put((*key, since, before + balance))
        elif not self.batches.size:
            self.hint_after = 0.0

    def drop_batch(self, key: tuple[int, int]) -> None:
        """Drop the batch with that key from `batches`: none of its messages is available any more."""
        self.batches.pop(key)
        if not self.batches.size:
            self.hint_after = 0.0

    def withdraw(self, key: tuple[int, int], spans: list[Span]) -> None:
        """Drop the batch with that key, which had ``spans``, as it is not here any more."""
        self.drop_batch(key)
        for span in spans:
            self.spans.remove(span)


Key = tuple[int, int]


class Kept:
    """Messages of batches here that a group keeps and is not offered, by reason (`fate.standing`) and batch.

    They are counted on every change, so that no request for their number, or their age, has to look through them.

    Attributes:
        spans: reason, by message.
        batches: number of the messages in each batch, by reason and by the batch's key in `ReadyMessages.batches`.
        messages: number of messages, by reason.
    """

    __slots__ = ("_heaps", "batches", "messages", "spans")

    def __init__(self) -> None:
        self.spans: SpanMap[int] = SpanMap()
        self.batches: dict[int, dict[Key, int]] = {}
        self.messages: dict[int, int] = {}
        self._heaps: dict[int, list[Key]] = {}  # by why: all of its batches, and some that are gone

    def count(self, why: int) -> int:
        """Return the number of messages that are not offered for that reason."""
        return self.messages.get(why, 0)

    def oldest(self, *whys: int) -> list[Key]:
        """Return for each of the reasons the oldest batch with such a message, if there is one."""
        keys: list[Key] = []
        for why in whys:
            counts = self.batches.get(why)
            if counts:
                heap = self._heaps[why]
                while heap[0] not in counts:  # a batch that is gone is taken out when it is met
                    heappop(heap)
                keys.append(heap[0])
        return keys

    def put(self, key: Key, span: Span, before: int | None, why: int | None) -> None:
        """Change the reason why ``span``, all in the batch with ``key``, is not offered."""
        self.spans.put(span, why)
        size = span[2] - span[1]
        if before is not None:
            self._add(key, before, -size)
        if why is not None:
            self._add(key, why, size)

    def withdraw(self, key: Key, spans: list[Span]) -> None:
        """Drop the batch with that key, which had ``spans``, as it is not here any more."""
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

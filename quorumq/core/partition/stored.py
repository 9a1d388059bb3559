"""The batches of one partition, by number; batches of one message are packed into rows of numbers, and unpacked on
access."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from quorumq.core.partition.hashing import salt_of
from quorumq.core.values.rows import Rows
from quorumq.core.values.types import BatchHeader, PartitionId, ProducerId, Span

_new: Any = tuple.__new__
"""`_new(BatchHeader, fields)` is a BatchHeader in half the time."""


class StoredBatch:
    """A batch that is on this replica's disk (or about to be).

    ``born`` is when its producer made it, on our monotonic clock, as far as its age is known. Time on the way that
    was not counted makes it look younger, so nothing is due, or expires, early. ``key`` is its place among the others,
    oldest first: when it was made, in milliseconds of our monotonic clock, and its number. It contains no producer's
    time of day, because a wrong clock would reorder messages.

    Args:
        made_ms: creation time for the key, if it differs from `born`. The key is fixed; `born` may change with the
            reports of peers.
    """

    __slots__ = ("_salt", "born", "durable", "header", "key", "number")

    def __init__(
        self, number: int, header: BatchHeader, born: float, durable: bool, made_ms: int | None = None
    ) -> None:
        self.number = number
        self.header = header
        self.born = born
        self.durable = durable
        self.key = (int(1000 * born) if made_ms is None else made_ms, number)
        self._salt = -1

    @property
    def salt(self) -> int:
        """Return the number that its chunks are ranked by, with a node's own: used if several nodes fetch."""
        if self._salt < 0:
            node, n, nonce, k = self.header.spans[0].producer_id
            # All nodes rank by this very text: it depends on no name in the code.
            self._salt = salt_of(f"Origin(node={node!r}, n={n}, nonce={nonce}, k={k})")
        return self._salt

    @property
    def due(self) -> float:
        """Return the time (monotonic seconds) before which its messages are not to be delivered."""
        return self.born + self.header.delay_ms / 1000


class StoredBatches(dict[int, StoredBatch]):
    """Batches by number.

    A batch of one message that is packed takes 60 bytes, instead of 600 as objects. Each access builds it again, so
    it must not change. A dict has the others at no extra cost.
    """

    __slots__ = ("_names", "_numbers", "_packed", "_partition", "_seen", "_used")

    def __init__(self, partition: PartitionId) -> None:
        super().__init__()
        self._partition = partition
        # number, producer id, sequence number, published_ms, born, made_ms of the key, bytes, CRC, delay_ms, ttl_ms
        self._packed = Rows("QIQqdqIIII", 1)
        self._seen: StoredBatch | None = None  # the packed batch that was looked at last
        self._numbers: dict[ProducerId, int] = {}  # numbers of the producer ids of packed batches
        self._names: dict[int, ProducerId] = {}  # the other way round
        self._used: dict[int, int] = {}  # number of packed batches by producer id

    def pack(self, *batches: StoredBatch) -> None:
        rows: list[tuple[Any, ...]] = []
        for batch in batches:
            _, spans, published_ms, offsets, crcs, crc, delay_ms, ttl_ms = batch.header
            whole = len(crcs) == 4 and int.from_bytes(crcs, "little") == crc
            if not whole or not batch.durable or max(delay_ms, ttl_ms) >= 1 << 32:
                continue
            producer_id, start, _ = spans[0]
            number = self._numbers.get(producer_id)
            if number is None:
                number = next(reversed(self._names), -1) + 1
                if number >= 1 << 32:
                    continue
                self._numbers[producer_id], self._names[number] = number, producer_id
            self._used[number] = self._used.get(number, 0) + 1
            size = int.from_bytes(offsets, "little")
            super().__delitem__(batch.number)
            times = (published_ms, batch.born, batch.key[0])
            rows.append((batch.number, number, start, *times, size, crc, delay_ms, ttl_ms))
        self._packed.extend(sorted(rows))

    def __missing__(self, number: int) -> StoredBatch:
        seen = self._seen
        if seen is None or seen.number != number:
            row = self._packed.get((number,))
            if row is None:
                raise KeyError(number)
            self._seen = seen = self._unpacked(row)
        return seen

    def _unpacked(self, row: tuple[Any, ...]) -> StoredBatch:
        number, producer_id, start, published_ms, born, made_ms, size, crc, delay_ms, ttl_ms = row
        section = _new(Span, (self._names[producer_id], start, start + 1))
        ends, crcs = size.to_bytes(4, "little"), crc.to_bytes(4, "little")
        fields = (self._partition, (section,), published_ms, ends, crcs, crc, delay_ms, ttl_ms)
        return StoredBatch(number, _new(BatchHeader, fields), born, True, made_ms)

    def __delitem__(self, number: int) -> None:
        if super().pop(number, None) is not None:
            return
        row = self._packed.pop((number,))
        if row is None:
            raise KeyError(number)
        self._seen, producer_id = None, row[1]
        self._used[producer_id] -= 1
        if not self._used[producer_id]:
            del self._numbers[self._names[producer_id]], self._names[producer_id], self._used[producer_id]

    def get(self, number: int, default: Any = None) -> Any:
        try:
            return self[number]
        except KeyError:
            return default

    def following(self, number: int) -> StoredBatch | None:
        """Return the batch with the lowest number above ``number``; packed ones are not unpacked for it."""
        above = [other for other in super().__iter__() if other > number]
        above += [row[0] for row in itertools.islice(self._packed.onward((number + 1,)), 1)]
        return self[min(above)] if above else None

    def __contains__(self, number: object) -> bool:
        return super().__contains__(number) or (number,) in self._packed

    def __iter__(self) -> Iterator[int]:
        return heapq.merge(sorted(super().__iter__()), (row[0] for row in self._packed))

    def __len__(self) -> int:
        return super().__len__() + len(self._packed)

    keys = Mapping.keys  # type: ignore[assignment]
    values = Mapping.values  # type: ignore[assignment]
    items = Mapping.items  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__

    def clone(self) -> StoredBatches:
        """Return a copy that changes on its own."""
        twin = StoredBatches(self._partition)
        for number, batch in super().items():
            twin[number] = StoredBatch(number, batch.header, batch.born, batch.durable, batch.key[0])
        twin._packed = self._packed.clone()
        twin._numbers, twin._names, twin._used = self._numbers.copy(), self._names.copy(), self._used.copy()
        return twin

    def state(self) -> tuple[Any, ...]:
        """Return everything but the headers and when batches were made: equal content gives equal tuples."""
        return tuple([(number, batch.durable) for number, batch in self.items()])

    def check(self) -> None:
        self._packed.check()
        assert not any((number,) in self._packed for number in super().__iter__()), (
            "a batch is packed, or not"
        )
        assert Counter(row[1] for row in self._packed) == self._used
        assert {number: name for name, number in self._numbers.items()} == self._names
        assert self._used.keys() == self._names.keys()

"""One node's journal while it grows: what a stream knows of it on the driver.

A position is a number of records (docs/file-format.md) that are durable: it never goes back. `Tail` reads each record
once and keeps of a death its place and a name of 16 bytes, never its text. It keeps the files open in which deaths
lie that no finished batch has, because the node may delete a file when it rolls its journal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from quorumq.core.messages.records import SessionsClosed
from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import Kind, PartitionId, ProducerId, Span
from quorumq.storage.records import FRAMING_MAX, SNAPSHOT_END, TYPE_OF, Earlier, SegmentStart
from quorumq.storage.scan import Bad, Frame
from quorumq.storage.segment import salt_of

from .causes import PUBLISHED, Rank, take_entries
from .journals import RECORDS_MERGED, OpenFile, SegmentGone, batch_of, decoded
from .planning import footer_of, segments_in, start_of, take_pages
from .reader import BATCHES
from .registers import REGISTER_TYPES, Registers

NOTHING: Final = -1
"""The position of a node before the first read of it."""

CHUNK_BYTES: Final = 256 << 10
"""Bytes of a segment whose batches are looked through at once for the message of a death."""

NAME_BYTES: Final = 16
_CLOSED: Final = TYPE_OF[SessionsClosed]

Settle = Callable[[int, PartitionId, str, Span, Rank], None]
"""Takes a record that is no death: its position, partition, group, messages, and what it says."""


class Gap(StorageError):
    """A node's journal does not reach back to the position up to which it was read."""

    code = "journal-gap"


class Entry(NamedTuple):
    """A message that died, as a record of a node says."""

    position: int
    segment: int
    offset: int
    end: int  # offset at which the record ends
    name: bytes
    key: PartitionId
    group: str
    rank: Rank
    producer_id: ProducerId
    seq: int
    ballot: tuple[int, str]
    published_ms: int


class Chunk(NamedTuple):
    """Batches of a part of a segment: their bytes, times of publish, and topic partitions."""

    segment: int
    first: int
    stop: int
    low_ms: int
    high_ms: int
    keys: frozenset[PartitionId]

    def may_have(self, lookups: Mapping[PartitionId, Sequence[int]]) -> bool:
        """Return True if a message may be here, of those with sorted times of publish; 0 is a time not known."""
        for key in self.keys:
            times = lookups.get(key, ())
            at = bisect_left(times, self.low_ms)
            if times and (not times[0] or (at < len(times) and times[at] <= self.high_ms)):
                return True
        return False


class Seen:
    """Names of deaths that were given out, at `NAME_BYTES` each."""

    def __init__(self) -> None:
        self._sorted = np.zeros(0, f"S{NAME_BYTES}")
        self._recent: set[bytes] = set()

    def __contains__(self, name: bytes) -> bool:
        if name in self._recent:
            return True
        at = int(np.searchsorted(self._sorted, np.bytes_(name)))
        return at < self._sorted.size and self._sorted[at] == np.bytes_(name)

    def add(self, name: bytes) -> None:
        self._recent.add(name)
        if len(self._recent) > max(4096, self._sorted.size // 8):
            recent = np.array(sorted(self._recent), f"S{NAME_BYTES}")
            self._sorted = np.union1d(self._sorted, recent)
            self._recent.clear()


class Tail:
    """One node's journal while it grows.

    Args:
        path: the data directory.
        since: everything behind this position is read; NOTHING reads all segments that go on from each other.
        settle: gets every record that is no death, as it is read.
        registers: takes in all registers that are read.
        newest: begin with the newest segment, if ``since`` is NOTHING.
        report: pass over damage in segments that the node has left.

    Attributes:
        node, directory, cluster_id: names of the node, its directory and its cluster.
        base: everything behind this position was read.
        position: number of records that are durable and were read.
        entries: the deaths that were read, until they are taken out.
        until: the segment and the size at which to stop, if any.

    Raises:
        Gap: the journal does not reach back so far.
    """

    def __init__(
        self,
        path: str,
        since: int,
        settle: Settle,
        registers: Registers,
        *,
        newest: bool = False,
        report: bool = False,
    ) -> None:
        self.path = path
        self.settle, self.registers, self.report = settle, registers, report
        self.until: tuple[int, int] = (1 << 62, 0)
        self.closed: list[SessionsClosed] = []
        self.entries: deque[Entry] = deque()
        self.chunks: dict[int, list[Chunk]] = {}
        self.files: dict[int, OpenFile] = {}
        self._waiting: deque[tuple[int, int, list[Entry]]] = deque()  # not durable yet
        numbers = segments_in(path)
        if since == NOTHING and not newest:
            chosen = numbers[-1]
            while chosen - 1 in numbers:
                chosen -= 1
        else:
            reaching = (
                it for it in reversed(numbers) if since == NOTHING or self._first(it).position <= since
            )
            chosen = next(reaching, -1)
        if chosen < 0:
            start = self._first(numbers[0])
            raise Gap(
                f"{path}: the journal of node {start.node!r} begins at position {start.position}, and it was read to "
                f"{since}: what came between is in its snapshot only"
            )
        self.oldest = chosen
        self._begin(chosen)
        self.base = NOTHING if since == NOTHING and not newest else self.position
        for number in numbers[: numbers.index(chosen)]:
            with suppress(SegmentGone), OpenFile(path, number) as file:
                entry = Earlier(number, file.size(), 0)
                take_pages(file, entry, self.directory, footer_of(file, entry, self.directory), registers)

    def _first(self, number: int) -> SegmentStart:
        with OpenFile(self.path, number) as file:
            return self._start_of(file)

    def _start_of(self, file: OpenFile) -> SegmentStart:
        start = start_of(file)
        if isinstance(start, str):
            raise StorageError(f"{file.name}, byte 0: {start}: a damaged journal cannot be followed")
        return start

    def _begin(self, number: int) -> SegmentStart:
        file = self.files[number] = OpenFile(self.path, number)
        start = self._start_of(file)
        self.number, self.file = number, file
        self.node, self.directory, self.cluster_id = start.node, start.directory, start.cluster_id
        self.salt = salt_of(start.directory, number)
        self.offset = self.durable = 0
        self.snapshot = True
        self.position = self._read_to = start.position
        return start

    # ------------------------------------------------------------------ reading

    def poll(self, most: int = 1 << 62) -> int:
        """Read what was appended since, at most about ``most`` bytes; return the number of bytes."""
        size = 0
        while True:
            later = [number for number in segments_in(self.path) if self.number < number <= self.until[0]]
            size += self._read(most - size, closed=bool(later))
            if not later or size >= most:
                return size
            if self.snapshot and not self.report:
                raise StorageError(
                    f"{self.file.name}: its snapshot ends early: a damaged journal cannot be followed"
                )
            self._decide(1 << 62)  # the node has gone on from here: what is valid counts
            position, directory = self.position, self.directory
            start = self._begin(later[0])
            if start.directory != directory or (start.position != position and not self.report):
                raise Gap(
                    f"{self.path}: segment {later[0]} goes on from position {start.position} of directory "
                    f"{start.directory:016x}, and {directory:016x} was read to {position}"
                )

    def _read(self, most: int, *, closed: bool) -> int:
        size = self.file.size()
        scan = self.file.scan(min(size, self.until[1]) if self.number == self.until[0] else size, self.salt)
        first, position = self.offset, self.position
        while self.offset < scan.size and (
            self.snapshot
            or (
                self.number <= self.until[0]
                and (self.offset - first < most or (self.position == position and most))
            )
        ):
            frame = scan.frame(self.offset)
            if isinstance(frame, Bad) or frame.end > scan.size:
                if not closed or not self.report:
                    break  # being written; or damage, which is in the table `problems`
                self.offset = scan.gap(frame).stop
                continue
            self.offset = frame.end
            self.durable = max(self.durable, frame.durable)
            if frame.type == SNAPSHOT_END:
                self.snapshot, self.durable = False, max(self.durable, frame.end)
            elif not self.snapshot:
                self._read_to += frame.type > FRAMING_MAX
            entries: list[Entry] = []
            if frame.type == RECORDS_MERGED:
                entries = self._take(frame)
            elif frame.type in BATCHES:
                add_to(self.chunks.setdefault(self.number, []), self.file, frame)
            elif frame.type == _CLOSED:
                self.closed.append(decoded(self.file.name, frame))
            elif frame.type in REGISTER_TYPES:
                self.registers.take(decoded(self.file.name, frame))
            self._waiting.append((frame.end, self._read_to, entries))
            if not self.snapshot:
                self._decide(self.durable)
        return self.offset - first

    def _take(self, frame: Frame) -> list[Entry]:
        where = (self._read_to, self.number, frame.offset, frame.end)

        def take(key: PartitionId, group: str, all_of: Any, causes: Iterable[Any]) -> list[Entry]:
            entries: list[Entry] = []
            head = f"{key.topic.hex()}/{key.number}/{group}/"
            for ((named, start, stop), record), cause in zip(all_of, causes, strict=True):
                generation, n, kind = record[:3]
                rank, producer_id = Rank(generation, n, Kind(kind)), ProducerId(*named)
                if kind != Kind.DEAD:
                    self.settle(self._read_to, key, group, Span(producer_id, start, stop), rank)
                    continue
                said = (tuple(record[3][0]), cause[PUBLISHED])
                for seq in range(start, stop):
                    text = f"{head}{generation}/{n}/{producer_id}/{seq}"
                    name = blake2b(text.encode(), digest_size=NAME_BYTES).digest()
                    entries.append(Entry(*where, name, key, group, rank, producer_id, seq, *said))
            return entries

        return take_entries(self.file.name, frame, take)

    def _decide(self, durable: int) -> None:
        while self._waiting and self._waiting[0][0] <= durable:
            _, self.position, entries = self._waiting.popleft()
            self.entries += entries

    def drop(self, position: int) -> Iterator[Entry]:
        """Take out the deaths up to this position, and close files without deaths."""
        while self.entries and self.entries[0].position <= position:
            yield self.entries.popleft()
        self.base = max(self.base, min(position, self.position))
        first = self.entries[0].segment if self.entries else self.number
        for number in [number for number in self.files if number < first]:
            self.files.pop(number).close()

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}

    # ------------------------------------------------------------------ bodies

    def bodies(self, lookups: Mapping[PartitionId, Sequence[int]]) -> Iterator[Chunk]:
        """Yield the parts of segments that may have messages, of these sorted times of publish."""
        there = segments_in(self.path)
        for number in there:
            if number < self.oldest and number not in self.chunks and self._may_have(number, lookups):
                self.chunks[number] = self._chunks_of(number)
            yield from (chunk for chunk in self.chunks.get(number, ()) if chunk.may_have(lookups))
        for number in set(self.chunks).difference(there):
            del self.chunks[number]

    def _may_have(self, number: int, lookups: Mapping[PartitionId, Sequence[int]]) -> bool:
        with OpenFile(self.path, number) as file:
            footer = footer_of(file, Earlier(number, file.size(), 0), self.directory)
        return footer is None or any(
            Chunk(
                number, 0, 0, part.first_published_ms, part.last_published_ms,
                frozenset((PartitionId(part.topic, part.partition),)),
            ).may_have(lookups)
            for part in footer.partitions
        )  # fmt: skip

    def _chunks_of(self, number: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        with OpenFile(self.path, number) as file:
            for frame in file.scan(file.size(), salt_of(self.directory, number)).records():
                if isinstance(frame, Frame) and frame.type in BATCHES:
                    add_to(chunks, file, frame)
        return chunks


def add_to(chunks: list[Chunk], file: OpenFile, frame: Frame) -> None:
    """Add a batch to the last chunk of a segment, or to a new one."""
    header = batch_of(file.name, frame)[0].batch.header
    at, key = header.published_ms, header.partition
    if not chunks or frame.offset - chunks[-1].first > CHUNK_BYTES:
        chunks.append(Chunk(file.number, frame.offset, frame.end, at, at, frozenset((key,))))
        return
    segment, first, _, low, high, keys = chunks[-1]
    keys = keys if key in keys else keys | {key}
    chunks[-1] = Chunk(segment, first, frame.end, min(low, at), max(high, at), keys)


def joined(chunks: list[Chunk], most: int) -> tuple[tuple[int, int, int], ...]:
    """Return the parts of segments as at most ``most`` (segment, first, stop), and a few more than were given."""
    ranges: list[list[int]] = []
    for chunk in sorted(set(chunks), key=lambda chunk: chunk[:2]):
        if ranges and ranges[-1][0] == chunk.segment and chunk.first <= ranges[-1][2]:
            ranges[-1][2] = chunk.stop
        else:
            ranges.append([*chunk[:3]])
    while len(ranges) > most:
        gaps = [
            (after[1] - before[2], at)
            for at, (before, after) in enumerate(pairwise(ranges))
            if before[0] == after[0]
        ]
        if not gaps:
            break
        _, at = min(gaps)
        ranges[at][2] = ranges.pop(at + 1)[2]
    return tuple((segment, first, stop) for segment, first, stop in ranges)

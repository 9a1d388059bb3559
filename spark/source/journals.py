"""Data directories of nodes, read by another process while the node may be writing.

docs/file-format.md is the contract. This does the work of quorumq.storage at a start, without a lock and without
changing anything. A task opens all the files it needs before it gives out its first row: an open file stays readable
when the node that rolls its journal deletes it.

Unreadable data is never left out in silence: it is a `Problem`, which ends the read (`onDamage` = fail) or is counted
and listed (report).
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quorumq.core.messages.records import BatchStored, RecordsMerged
from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import BatchHeader, PartitionId
from quorumq.storage.records import (
    BATCH_STORED,
    CLASS_OF,
    TYPE_OF,
    BatchMoved,
    PartitionRange,
    decode_record,
)
from quorumq.storage.scan import Bad, Frame, Scan
from quorumq.storage.segment import (
    CRC_START,
    HEADER_BYTES_MAX,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    salt_of,
    segment_name,
)
from quorumq.wire import cbor
from quorumq.wire.cbor import BadValue

RECORDS_MERGED: Final = TYPE_OF[RecordsMerged]
NOTHING: Final[Mapping[int, str]] = MappingProxyType({})


class SegmentGone(StorageError):
    """A file that the plan names is not there any more: the node rolled its journal. Read again."""

    code = "segment-gone"


HARMLESS: Final = ("torn",)
"""Kinds of problems that cost no data that a client was promised."""


class Problem(NamedTuple):
    """A place that cannot be read, or that does not count: a row of the table `problems`."""

    node: str
    path: str
    segment: int | None
    offset: int | None
    bytes: int | None
    kind: str
    reason: str
    impact: str

    @property
    def harmless(self) -> bool:
        """True if it costs no data that a client was promised."""
        return self.kind in HARMLESS

    def __str__(self) -> str:
        location = self.path if self.segment is None else os.path.join(self.path, segment_name(self.segment))
        at = "" if self.offset is None else f", byte {self.offset}"
        return f"{location}{at}: {self.reason}; {self.impact}"


Report = Callable[[Problem], None]
"""Receiver of a problem: raises, or takes note."""


def refuse(problem: Problem) -> None:
    """End the read at a problem that costs promised data: `onDamage` = fail."""
    if not problem.harmless:
        raise StorageError(
            f"{problem}. option('onDamage', 'report') goes on without it, and the table 'problems' lists all of them"
        )


def ignore(problem: Problem) -> None:
    """Pass over a problem: `onDamage` = report, in every table but `problems`, which lists them."""


class Numbers(NamedTuple):
    """A set of batch numbers as sorted ranges [first, stop) that do not touch."""

    firsts: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Numbers:
        """Return the set of ranges in any order, overlapping or not."""
        firsts: list[int] = []
        stops: list[int] = []
        for first, stop in sorted(ranges):
            if stops and first <= stops[-1]:
                stops[-1] = max(stops[-1], stop)
            else:
                firsts.append(first)
                stops.append(stop)
        return cls(tuple(firsts), tuple(stops))

    def __contains__(self, number: object) -> bool:
        at = bisect_right(self.firsts, number) - 1  # type: ignore[type-var, operator]
        return at >= 0 and number < self.stops[at]  # type: ignore[operator]


class SegmentPlan(NamedTuple):
    """One file of a journal, and the part of it that counts."""

    number: int
    bytes: int
    newest: bool
    state: bool  # its small state counts: the newest's, or every segment's if the newest is damaged
    dead: Numbers = Numbers()  # batches that are not needed there
    moved: Numbers = Numbers()  # batches that were copied into a younger segment
    damaged: frozenset[int] = frozenset()  # offsets of batches whose bodies are known to be damaged
    holes: tuple[tuple[int, int], ...] = ()
    footer: tuple[PartitionRange, ...] | None = None  # ranges that it says to hold; None without a footer
    parts: tuple[tuple[int, int], ...] = ()  # ranges of bytes, each of whole records; all if empty


class Directory(NamedTuple):
    """One node's data directory as it was when it was planned."""

    path: str
    node: str
    cluster_id: str
    directory: int
    segments: tuple[SegmentPlan, ...]  # oldest first; the last is the newest
    gone: Numbers  # batches that no group needs any more, in any segment
    ignored: frozenset[int]  # damaged copies of batches, whose originals are still there
    problems: tuple[Problem, ...]


class OpenFile:
    """One segment file, open for reading; ``held`` is another name of it, for the case that it was deleted.

    Raises:
        SegmentGone: it was deleted.
        StorageError: it cannot be opened.
    """

    def __init__(self, path: str, number: int, held: str = "") -> None:
        self.number, self.name = number, os.path.join(path, segment_name(number))
        name = held if held and not os.path.exists(self.name) else self.name
        try:
            self.fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SegmentGone(
                f"{self.name} is gone: the node rolled its journal and reclaimed it; read again"
            ) from None
        except OSError as error:
            raise StorageError(f"{self.name} cannot be read: {error.strerror}") from error

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return these bytes; fewer if the file ends. A page that the disk cannot read is a StorageError."""
        parts: list[bytes] = []
        while length > 0:
            try:
                data = os.pread(self.fd, length, offset)
            except OSError as error:
                raise StorageError(
                    f"{self.name}, byte {offset}: the disk cannot read it: {error.strerror}"
                ) from error
            if not data:
                break
            parts.append(data)
            offset += len(data)
            length -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def scan(self, size: int, salt: int = 0, known: Decoded | None = None) -> Scan:
        """Return a scan that passes over bodies, and over records that need not be decoded as ``known`` says."""
        if known is None:
            return Scan(self.read, size, salt, check_bodies=False)
        scan = RecordsScan(self.read, size, salt, check_bodies=False)
        scan.decoded = known
        return scan


class Decoded:
    """Records that were decoded: the same bytes in another node's journal need not be.

    Attributes:
        records, batches: the topic partitions whose records and batches are read; None for all.
        rows: numbers that the reader gave a RecordsMerged, by a hash of it, less the durable offset before it.
        latest: the hash of the last record; None if it has none.
        repeated: a segment's snapshot need not be decoded, because the segment before was read.
        again: the numbers of the records that were passed over since, because they are in ``rows``.
    """

    MOST: Final = 1 << 20

    def __init__(
        self, records: Collection[PartitionId] | None = None, batches: Collection[PartitionId] | None = None
    ) -> None:
        self.records, self.batches = key_bytes(records), key_bytes(batches)
        self.rows: dict[int, tuple[int, int]] = {}
        self.latest: int | None = None
        self.repeated = False
        self.again: list[tuple[int, int]] = []

    def note(self, first: int, stop: int) -> None:
        """Give the last record the numbers from ``first`` to ``stop``."""
        if len(self.rows) >= self.MOST:
            self.rows.clear()
        if self.latest is not None:
            self.rows[self.latest] = (first, stop)


def key_bytes(keys: Collection[PartitionId] | None) -> frozenset[bytes] | None:
    """Return topic partitions as nodes write them."""
    return None if keys is None else frozenset(cbor.blob(key.topic) + cbor.uint(key.number) for key in keys)


class RecordsScan(Scan):
    """A scan that passes over each RecordsMerged that is `Decoded`, and all that is of other topic partitions."""

    decoded: Decoded
    head: bytes = b""  # the durable offset of the record that was passed over last: they rise

    def frame(self, offset: int) -> Frame | Bad:
        """Return the next record that is to be decoded, at ``offset`` or after it."""
        self.decoded.latest = None
        frame = super().frame(self._next(offset))
        if head := self.head:
            self.durable = max(self.durable, int.from_bytes(head[len(head) > 1 :], "big"))
            self.head = b""
        return frame

    def _first(self, offset: int, accept: Callable[[Frame], bool]) -> Frame | None:
        return Scan(self.read, self.size, self.salt, check_bodies=False)._first(offset, accept)

    def _next(self, offset: int) -> int:
        """Return the offset of the next record to decode. The last record of a segment is always one.

        What equals an intact record is intact; of others the checksum says it. All is in one loop, because it takes
        most of a task's time if other tasks read most of the records.
        """
        window, at, size = self._window, offset - self._base, REFILL_BYTES
        decoded, repeated = self.decoded, self.decoded.repeated and not self.in_tail
        end, unpack = len(window), PREFIX.unpack_from
        while True:
            if at < 0 or at + size > end < self.size - self._base:
                self._base += at
                window = self._window = self.read(
                    self._base, min(max(size, WINDOW_BYTES), self.size - self._base)
                )
                at, end = 0, len(window)
            if end - at < PREFIX_BYTES + _KEY_BYTES:
                return self._base + at
            magic, crc, length, body, _ = unpack(window, at)
            first = at + PREFIX_BYTES
            stop = first + length
            is_batch = window[first + 1] == BATCH_STORED
            if magic != MAGIC or not (
                is_batch or (window[first + 1 : first + 3] == _MERGED_HEAD and not body)
            ):
                return self._base + at
            if stop > end:
                if length > HEADER_BYTES_MAX or self._base + stop > self.size or stop - at <= size:
                    return self._base + at
                size = stop - at
                continue
            durable = first + 2 if is_batch else first + 3
            key = durable_end = durable + _UINT_BYTES[window[durable] & 31]
            if is_batch:  # behind its number, and the length of the batch's own header
                key += _UINT_BYTES[window[key] & 31]
                key += _UINT_BYTES[window[key] & 31] + 1
            keys = decoded.batches if is_batch else decoded.records
            mine = not (repeated and not is_batch) and (
                keys is None
                or window[key : key + 2] != (_BATCH_HEAD if is_batch else _KEY_HEAD)
                or window[key + 1 : key + 18 + _UINT_BYTES[window[key + 18] & 31]] in keys
            )
            if self._base + stop + body >= self.size or (mine and is_batch):
                return self._base + at
            if mine:
                latest = hash(window[key:stop])
                rows = decoded.rows.get(latest)
                if rows is None:
                    decoded.latest = latest
                    return self._base + at
                decoded.again.append(rows)
            elif crc32c(window[at + CRC_START : stop], self.salt) != crc:
                return self._base + at
            self.head = window[durable:durable_end]
            at, size = stop + body, REFILL_BYTES


WINDOW_BYTES: Final = 64 << 10
"""Bytes that are read at once: records without bodies mostly follow each other."""

REFILL_BYTES: Final = 4096
"""Bytes that must be left of what was read at once: most records are shorter."""

_MERGED_HEAD: Final = bytes((0x18, RECORDS_MERGED))
_KEY_HEAD: Final = bytes((0x82, 0x50))  # an array of 2: the 16 bytes of a topic, and a number
_BATCH_HEAD: Final = bytes((0x01, 0x50))  # the version of a batch's header; then the same
_KEY_BYTES: Final = 56  # most bytes of a record's header up to the end of the key
_UINT_BYTES: Final = (*[1] * 24, 2, 3, 5, 9, *[1] * 4)
"""Bytes of a CBOR integer, by the lower five bits of its first byte."""


def frames_of(
    file: OpenFile, plan: SegmentPlan, node: str, directory: int, report: Report, known: Decoded | None = None
) -> Iterator[Frame]:
    """Yield every record in the part of a segment that counts; ``report`` gets the gaps between readable records."""
    for first, stop in plan.parts or ((0, plan.bytes),):
        if known is not None:
            known.latest = None
        scan = file.scan(stop, salt_of(directory, plan.number), None if plan.holes else known)
        for item in scan.records(holes={0: first} if first else dict(plan.holes)):
            if isinstance(item, Frame):
                if item.type not in CLASS_OF:
                    decoded(file.name, item)
                yield item
                continue
            location = (node, os.path.dirname(file.name), plan.number, item.offset, item.stop - item.offset)
            impact = "whatever was there: messages" + (", tombstones or dead letters" if plan.state else "")
            report(Problem(*location, "damage", item.reason, impact))


def decoded(name: str, frame: Frame) -> Any:
    """Return the record of a frame; StorageError for one that this version does not know."""
    try:
        return decode_record(frame.fields)
    except BadValue as error:
        raise StorageError(
            f"{name}, byte {frame.offset}: the record is intact but cannot be read: {error}. If a newer version of "
            "quorumq wrote it, read it with that one"
        ) from error


def batch_of(name: str, frame: Frame) -> tuple[BatchStored, BatchMoved | None]:
    """Return the batch of a frame that has one, and the BatchMoved that it is in."""
    record = decoded(name, frame)
    if isinstance(record, BatchMoved):
        return record.stored, record
    assert isinstance(record, BatchStored)
    return record, None


class OpenDirectory:
    """A directory's segments, all open: a node cannot delete a file under the task from here on.

    Args:
        directory: as planned.
        numbers: the numbers of the segments that are needed; None for all.
        held: other names of segments, by number, for the case that they were deleted.

    Raises:
        SegmentGone: one is not there any more.
        StorageError: too many files are open, or one cannot be read.
    """

    def __init__(
        self, directory: Directory, numbers: Collection[int] | None = None, held: Mapping[int, str] = NOTHING
    ) -> None:
        self.plan = directory
        self.files: dict[int, OpenFile] = {}
        self.scans: dict[int, Scan] = {}
        plans = [plan for plan in directory.segments if numbers is None or plan.number in numbers]
        _allow_files(len(plans))
        try:
            for plan in plans:
                self.files[plan.number] = OpenFile(directory.path, plan.number, held.get(plan.number, ""))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}

    def frames(self, plan: SegmentPlan, report: Report, known: Decoded | None = None) -> Iterator[Frame]:
        file, directory = self.files[plan.number], self.plan
        return frames_of(file, plan, directory.node, directory.directory, report, known)

    def batch(self, plan: SegmentPlan, frame: Frame) -> tuple[BatchHeader, bool] | None:
        """Return the header of a frame's batch, and True if its body is known to be damaged.

        None if another record took its place, or no group needs it.
        """
        stored, moved = batch_of(self.files[plan.number].name, frame)
        number = stored.number
        if number in self.plan.gone or number in plan.dead or number in plan.moved:
            return None
        if moved is not None and plan.newest and number in self.plan.ignored:
            return None
        damaged = frame.offset in plan.damaged or (moved is not None and moved.damaged)
        return stored.batch.header, damaged

    def frame_at(self, segment: int, offset: int) -> Frame:
        """Return a record that was read before, once more."""
        scan = self.scans.get(segment)
        if scan is None:
            plan = next(plan for plan in self.plan.segments if plan.number == segment)
            scan = self.files[segment].scan(plan.bytes, salt_of(self.plan.directory, segment))
            self.scans[segment] = scan
        frame = scan.frame(offset)
        if isinstance(frame, Bad):
            raise StorageError(
                f"{self.files[segment].name}, byte {offset}: it changed while it was read: {frame.reason}"
            )
        return frame

    def body_problem(self, segment: int, frame: Frame, reason: str = "") -> Problem:
        """Return the problem that a batch's body is damaged."""
        location = (self.plan.node, self.plan.path, segment, frame.offset, frame.body_length)
        reason = reason or "the body of the batch does not match its checksum"
        return Problem(*location, "body", reason, "this copy of its messages")


def _allow_files(more: int) -> None:
    """Raise our own limit of open files if it is too low for ``more`` files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = more + len(os.listdir("/proc/self/fd")) + 64 if os.path.isdir("/proc/self/fd") else more + 256
    if need > soft:
        if hard != resource.RLIM_INFINITY and need > hard:
            raise StorageError(
                f"{more} segments are to be read at once, and this process may open {hard} files: raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))

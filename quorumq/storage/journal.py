"""Everything a node must not forget, in one sequence of records.

Why one journal for all partitions: one fsync then commits whatever arrived meanwhile, of any partition
(group commit). Why segments that begin with a snapshot: all small state is in the newest segment, so an
older one matters for the batches in it and for nothing else.

Promises:

1. What `finish` reported durable is there after any crash, in order, and nothing that was not appended.
2. A torn tail is cut silently, because nobody was told that it was durable. Damage is never cut: that of
   a batch body is reported as `Damaged` and everything else goes on, any other is a `StorageError`.
3. After a write or a sync that failed, every call raises `StorageError`: what the disk has is then unknown,
   and a sync that succeeds later would prove nothing (the system may have dropped the pages).
   The node stops; the next start reads what is really there and writes it again.

How a segment comes to be: it is written as NAME.new, synced, renamed, and the directory is synced, before
anything behind its snapshot is written. So a segment with its final name is complete, and a snapshot in it
that cannot be read is damage, not a crash. Its first record lists the older segments that still count and how
many bytes of each: that list is what makes a missing or shortened file noticed, and what lies behind those
bytes void. After every start the first thing written is a new segment. The batches of the old one's tail
(everything behind the last durable offset it mentions) are written again into the new one, because
nobody knows whether those bytes are on the disk or only in the memory of the system.

A commit may leave the sync out: then what it wrote survives the process, and not the machine. It counts as `written`
and not as `durable`, in the journal's own frames too; the next commit that syncs makes it durable.

Threads: of a commit only `write` and `sync` run outside the node's loop. One commit writes at a time and one syncs
at a time; others may write while one syncs, if they begin no segment.
"""

from __future__ import annotations

import contextlib
import errno
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, NamedTuple, cast

from quorumq.core.errors import QuorumqError, StorageError
from quorumq.core.limits import MIB
from quorumq.core.records import BatchStored, CleanStopped, DirectoryMade, JournalRecord
from quorumq.core.types import BatchHeader
from quorumq.storage.disk import Buffer, Disk
from quorumq.storage.records import (
    BATCH_MOVED,
    BATCH_STORED,
    CLEAN_STOPPED,
    DURABLE_MARK,
    FRAMING_MAX,
    SNAPSHOT_END,
    TYPE_OF,
    BatchMoved,
    DamagedAt,
    DurableMark,
    Earlier,
    Forgotten,
    Framing,
    Hole,
    PartitionRange,
    SegmentFooter,
    SegmentStart,
    SnapshotEnd,
    decode_record,
    encode_record,
    forgotten,
    halves,
)
from quorumq.storage.segment import (
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    NEW_SUFFIX,
    PREFIX,
    Bad,
    Frame,
    Scan,
    body_crc_of,
    encode_frame,
    salt_of,
    segment_name,
    segment_number,
)
from quorumq.wire import cbor

SEGMENT_BYTES: Final = 64 * MIB
"""A segment is rolled when so much lies behind its snapshot (or as much as the snapshot has, if that is more)."""


ASIDE_SUFFIX: Final = ".damaged"
"""Behind the name of a segment file of which nothing could be read; it is nobody's from then on."""

CANNOT_VOUCH_CHARS: Final = 2_000
"""Of the reason why a directory cannot vouch for itself, as far as each segment repeats it."""

MOVED_OVERHEAD: Final = 16
"""By how many bytes at most a batch's record may grow when it is moved."""

SPARSE_SHARE: Final = 0.5
"""An older segment whose live batches take less than this share of it is worth emptying."""


class DamagedBatch(QuorumqError):
    """The body of a stored batch is not what was written. It is not served; another replica may have it.

    Args:
        text: what was found.
        number: the batch's number on this node, -1 where it is not known.
    """

    code = "damaged-batch"
    exit_code = 74

    def __init__(self, text: str, number: int = -1) -> None:
        super().__init__(text)
        self.number = number


class DamagedDirectory(StorageError):
    """Damage that is not confined to the body of a batch: `Store.open` reads past it only when it is to salvage.

    Args:
        what: what was found, and where.
        advice: what to do.
    """

    code = "damaged-directory"

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}; {advice}" if advice else what)
        self.what = what


class BatchPosition(NamedTuple):
    """Where a batch lies: its record begins at ``record`` of segment ``segment``, in bytes."""

    segment: int
    record: int
    header_length: int
    length: int  # of the body
    crc: int  # of the body

    @property
    def offset(self) -> int:
        """Where the body begins."""
        return self.record + PREFIX.size + self.header_length

    @property
    def end(self) -> int:
        """Where the record ends."""
        return self.record + PREFIX.size + self.header_length + self.length


class FoundBatch(NamedTuple):
    """Replayed: a batch, whose body is left in the segment.

    One that ``moved`` takes the place of one of the same number that came before it, if one did. One that is
    ``damaged`` is not to be served, nor counted as stored.
    """

    record: BatchStored
    position: BatchPosition
    moved: bool
    damaged: bool


class Segment:
    """A segment that counts, and what of it is still needed.

    Attributes:
        bytes: how many of its bytes count, once nothing is appended to it any more.
        batches: in it, neither forgotten nor moved; damaged ones are among them.
        live_bytes: what their records take.
        dead: the numbers of the others.
        low: no batch number in it is below.
        high: and none is above.
    """

    __slots__ = ("batches", "bytes", "dead", "high", "live_bytes", "low")

    def __init__(self, size: int = 0) -> None:
        self.bytes = size
        self.batches = 0
        self.live_bytes = 0
        self.dead = array("Q")
        self.low = 1 << 64
        self.high = 0

    def put(self, number: int, position: BatchPosition) -> None:
        self.batches += 1
        self.live_bytes += position.end - position.record
        self.low, self.high = min(self.low, number), max(self.high, number)

    @property
    def sparse(self) -> bool:
        return self.batches > 0 and self.live_bytes < SPARSE_SHARE * self.bytes


class _Newest:
    """What the newest segment says of batches, gathered while it is replayed."""

    def __init__(self) -> None:
        self.segment = Segment()
        self.batches: list[FoundBatch] = []
        self.carried: list[FoundBatch] = []  # those that may not be durable
        self.forgotten: set[int] = set()


class _NewSegment(NamedTuple):
    """A segment to be begun: its snapshot, and the files that are of no use once it is there.

    ``start`` is encoded once the file is there: it says where that lies.
    """

    start: SegmentStart
    buffers: list[Buffer]
    obsolete: tuple[str, ...]
    aside: tuple[str, ...]


class Commit:
    """What was pending when `Journal.begin_commit` was called, on its way to the disk.

    Attributes:
        syncs: whether it ends with an fsync, of all that was ever written.
        ticket: what `Journal.durable` becomes when it is finished, or `written` without a sync.
        position: what `Journal.position` becomes then.
        size: how many bytes it writes.
        written: the operating system has it.
        done: it was run, and the disk has it, or the operating system without a sync.
    """

    def __init__(
        self,
        journal: Journal,
        steps: list[list[Buffer] | _NewSegment],
        syncs: bool,
        ticket: int,
        position: int,
        segment: int,
        end: int,
        size: int,
    ) -> None:
        self._journal = journal
        self._steps = steps
        self._unsynced: int | None = None  # the file to be synced
        self.syncs = syncs
        self.ticket = ticket
        self.position = position
        self.segment = segment
        self.end = end  # of that segment, with this commit
        self.size = size
        self.written = False
        self.done = False

    def run(self) -> None:
        """`write` unless that is done, and `sync` if it does; `Journal.finish` follows always.

        Raises:
            StorageError: the disk refused; the journal is unusable from now on.
        """
        if not self.written:
            self.write()
        if self.syncs:
            self.sync()

    def write(self) -> None:
        """Write. May be called in a worker thread, while another commit is in its `sync`. Errors as of `run`."""
        assert not self.written, "a commit runs once"
        journal = self._journal
        with journal._poisoned_by_failure():
            for step in self._steps:
                if isinstance(step, _NewSegment):
                    journal._write_new_segment(step)
                else:
                    journal._write(step)
            if self.syncs:
                self._unsynced = journal._take_unsynced()
        self.written = True
        self.done = not self.syncs

    def sync(self) -> None:
        """Sync what this commit wrote, and what others wrote before. In a worker thread, too. Errors as of `run`."""
        assert self.syncs, "a commit that only writes is done"
        assert self.written, "write first"
        assert not self.done, "a commit runs once"
        journal = self._journal
        with journal._poisoned_by_failure():
            if self._unsynced is not None:
                journal._disk.sync(self._unsynced)
        self.done = True


class Journal:
    """One node's journal in one directory.

    The order of calls after `open` is fixed: exhaust `replay`, then `roll` (a new segment, with the snapshot of
    what was replayed), then commit; then `append` and `roll` as wanted, each followed by a commit at some time.

    Attributes:
        directory: the id of the data directory, 64 random bits minted when it was made.
        place: a number that another start finds again, unless the directory was copied since.
        fresh: nothing was found: the directory was made just now.
        durable: everything `append` gave a ticket not above this is durable.
        written: likewise written to the operating system: a crash of the process alone leaves it.
        position: how many records were ever appended to this directory and are durable: what a replay finds, at
            least, from now on. After `replay` it is what was found, which the first `roll` makes durable.
        notes: what a start found worth telling, in words (a cut tail, files deleted).
        cannot_vouch: why nobody is to vote from this directory; each new segment says so too.
    """

    def __init__(self, disk: Disk, node: str, cluster_id: str, segment_bytes: int) -> None:
        self._disk = disk
        self._node = node
        self._cluster_id = cluster_id
        self.segment_bytes = segment_bytes
        self.directory = 0
        self.place = 0
        self.fresh = False
        self.durable = 0
        self.written = 0
        self.position = 0
        self.notes: list[str] = []
        self._failed = ""
        self._replayed = False
        self._started = False
        self._writing: Commit | None = None
        self._syncing: Commit | None = None
        # The segment being written: appended so far, known durable, end of its snapshot.
        self._segment = 0
        self._salt = 0
        self._end = 0
        self._durable_end = 0
        self._snapshot_bytes = 0
        self._footer: dict[tuple[bytes, int], PartitionRange] = {}
        self._handle: int | None = None
        self._unsynced = False  # written to _handle since a sync began; whose turn it is to write owns both
        # Not taken by a commit yet.
        self._steps: list[list[Buffer] | _NewSegment] = []
        self._pending: list[Buffer] = []
        self.pending_bytes = 0
        self._ticket = 0
        self._appended = 0  # records since the directory was made: `position` follows
        # Segments that count, oldest first, the current one last, and what is known damaged in any.
        self._segments: dict[int, Segment] = {}
        self._sparse: dict[int, None] = {}  # those of the older ones that are worth emptying
        self._empty: dict[int, None] = {}  # those without a live batch
        self._next_number = 0
        self._damaged: dict[DamagedAt, None] = {}
        self._holes: dict[Hole, None] = {}
        self.cannot_vouch = ""
        self._vouched = False  # since the last roll
        self._obsolete: list[str] = []
        self._aside: list[str] = []  # files of which nothing can be read: renamed, not deleted
        self._last_number = 0
        self._start: SegmentStart | None = None  # of the newest segment found
        self._carried: list[FoundBatch] = []  # batches whose record may not be durable: written again

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        node: str,
        cluster_id: str,
        new_directory_id: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Journal:
        """Lock the directory and find its newest segment, or make a new journal where there is none.

        Args:
            disk: the directory; unlocked again by `close`, and when this raises.
            node: whose journal it must be.
            cluster_id: of which cluster.
            new_directory_id: asked once, when the directory is new: 64 random bits.
            segment_bytes: when `should_roll` says yes.

        Raises:
            StorageError: in use by another process, not this node's or cluster's, written by a newer version,
                or damaged where the newest segment begins.
        """
        disk.lock()
        journal = cls(disk, node, cluster_id, segment_bytes)
        try:
            journal._find(new_directory_id)
        except OSError as error:
            disk.unlock()
            raise _unreadable(disk, error) from error
        except BaseException:
            disk.unlock()
            raise
        return journal

    def _list(self) -> list[int]:
        """The numbers of the segments that are complete, in order."""
        finished: list[int] = []
        for name in self._disk.list():
            number = segment_number(name)
            if number is None:
                continue  # not ours: leave it alone
            self._last_number = max(self._last_number, number)
            if name.endswith(NEW_SUFFIX):
                self._obsolete.append(name)  # a crash while it was being written: nothing in it was durable
                self.notes.append(f"{name}: a segment that was not finished; nothing in it counts")
            else:
                finished.append(number)
        return finished

    def _find(self, new_directory_id: Callable[[], int]) -> None:
        finished = self._list()
        if not finished:
            self.fresh = True
            self.directory = self.place = new_directory_id()
            assert 0 < self.directory < 1 << 64, "a directory id is 64 bits and not 0"
            return
        newest = max(finished)
        self._start = start = self._read_start(newest)
        self.directory = start.directory
        self.place = self._place_of(start)
        self._segments = {entry.segment: Segment(entry.bytes) for entry in start.earlier}
        self._next_number = start.next_number
        self._damaged = dict.fromkeys(start.damaged)
        self._holes = dict.fromkeys(start.holes)
        self.cannot_vouch = start.cannot_vouch
        counted = {entry.segment for entry in start.earlier}
        for number in finished:
            if number != newest and number not in counted:
                self._obsolete.append(segment_name(number))
        for segment, found in self._segments.items():
            self._check_there(segment, found.bytes, newest)

    def _place_of(self, newest: SegmentStart) -> int:
        """That of the newest segment, if it lies where it was written; else one that stands for where it lies now."""
        lies = self._disk.place(segment_name(newest.segment))
        return newest.place if newest.lies == lies else int.from_bytes(lies) | 1

    def _read_start(self, number: int) -> SegmentStart:
        """The first record of a segment; `StorageError` unless it is this node's and can be read."""
        name = segment_name(number)
        scan = self._scan(name, self._disk.size(name), check_bodies=False)
        found = scan.frame(0, 0) if scan.size else Bad(0, "the file is empty")
        if isinstance(found, Bad):
            raise self._damage(name, found.offset, found.reason)
        start = self._decode(name, found)
        if not isinstance(start, SegmentStart):
            raise self._damage(name, 0, f"the first record is a {type(start).__name__}")
        if start.version > FORMAT_VERSION:
            raise StorageError(
                f"{self._disk}/{name} was written in format version {start.version} by a newer quorumq; this one reads "
                f"versions 1 to {FORMAT_VERSION}. Start this node with the release that wrote it, or a newer one. "
                "Nothing was changed: keep the directory as it is, it is this node's memory"
            )
        if (start.node, start.cluster_id) != (self._node, self._cluster_id):
            raise StorageError(
                f"{self._disk} is the data directory of node {start.node!r} of cluster {start.cluster_id!r}, and "
                f"this is node {self._node!r} of cluster {self._cluster_id!r}: point the node at its own directory"
            )
        if start.segment != number:
            raise self._damage(name, 0, f"it says that it is segment {start.segment}: the file was renamed")
        return start

    def _check_there(self, segment: int, length: int, newest: int) -> None:
        name = segment_name(segment)
        says = f"segment {segment_name(newest)} says that it counts"
        try:
            size = self._disk.size(name)
        except FileNotFoundError:
            raise DamagedDirectory(f"{self._disk}/{name} is missing, and {says}", _WHAT_TO_DO) from None
        if size < length:
            raise self._damage(name, size, f"the file ends here, and {says} up to byte {length}")

    # ------------------------------------------------------------------ replay

    def replay(self) -> Iterator[JournalRecord | FoundBatch]:
        """The durable records: what the directory is, the newest snapshot, what came since, then all batches.

        Must be exhausted before `roll`. Small state comes first and batches after it, each in the order in which
        they were appended: which batches were forgotten is known only at the end of the tail. CLEAN_STOP comes
        only as the very last record.

        Raises:
            StorageError: damage that is not confined to the body of a batch.
        """
        assert not self._started, "replay comes before the first roll"
        yield DirectoryMade(self._node, self._cluster_id, self.directory)
        if self._start is not None:
            try:
                yield from self._replay_segments(self._start)
            except OSError as error:
                raise _unreadable(self._disk, error) from error
        self.position = self._appended
        self._replayed = True

    def _replay_segments(self, start: SegmentStart) -> Iterator[JournalRecord | FoundBatch]:
        number = start.segment
        name = segment_name(number)
        salt = salt_of(self.directory, number)
        scan = self._scan(name, self._disk.size(name), check_bodies=True)
        self._appended = start.position
        newest = _Newest()

        offset, count = 0, -1
        while True:
            found = (
                scan.frame(offset, salt if offset else 0)
                if offset < scan.size
                else Bad(offset, "it ends here")
            )
            if isinstance(found, Bad):
                raise self._damage(name, found.offset, f"in the snapshot: {found.reason}")
            offset, count = found.end, count + 1
            if found.type == SNAPSHOT_END:
                break
            yield from self._given(name, found, number, newest, newest.batches)
        end = self._decode(name, found)
        if not isinstance(end, SnapshotEnd) or end.records != count - 1:
            raise self._damage(name, found.offset, f"the snapshot has {count - 1} records and says {end}")

        clean_stop = yield from self._replay_tail(scan, name, number, salt, offset, newest)
        for segment in list(self._segments):
            yield from self._replay_older(segment, newest)
        self._segments[number] = newest.segment
        for item in newest.batches:
            if item.record.number in newest.forgotten:
                self.drop(item.record.number, item.position)
            else:
                yield item
        self._judge(number)
        for item in newest.carried:
            if item.record.number not in newest.forgotten and not item.damaged:
                self._carried.append(item)
                yield item
        if clean_stop is not None:
            yield clean_stop

    def _replay_older(self, segment: int, newest: _Newest) -> Iterator[JournalRecord | FoundBatch]:
        """The batches of an older segment, headers only: a body is checked when it is read."""
        name = segment_name(segment)
        holes = {hole.first: hole.stop for hole in self._holes if hole.segment == segment}
        if 0 not in holes and self._read_start(segment).directory != self.directory:
            raise self._damage(name, 0, "it belongs to another data directory: somebody mixed their files")
        found_here = self._segments[segment]
        dead, length = set(found_here.dead), found_here.bytes
        # What it was copied from is still there, and as damaged.
        damaged = {item.record.number for item in newest.carried if item.damaged}
        scan = self._scan(name, length, check_bodies=False)
        salt = salt_of(self.directory, segment)
        offset = 0
        while offset < length:
            if offset in holes:
                offset = holes[offset]
                continue
            found = scan.frame(offset, salt if offset else 0)
            if isinstance(found, Bad):
                raise self._damage(name, found.offset, found.reason)
            if found.end > length:
                raise self._damage(
                    name, found.offset, f"a record reaches beyond byte {length}, where it must end"
                )
            offset = found.end
            if found.type not in (BATCH_STORED, BATCH_MOVED):
                continue
            item = self._batch(name, segment, found)
            if item.record.number in dead:
                continue
            found_here.put(item.record.number, item.position)
            if item.record.number in newest.forgotten:
                self.drop(item.record.number, item.position)
                continue
            if item.record.number in damaged:
                self.note_damaged(item.position)
                item = item._replace(damaged=True)
            yield item
        self._judge(segment)

    def _replay_tail(
        self, scan: Scan, name: str, number: int, salt: int, offset: int, newest: _Newest
    ) -> Generator[JournalRecord | FoundBatch, None, JournalRecord | None]:
        """What follows the snapshot. A record is let out once a younger one says that it was durable.

        Returns the CLEAN_STOP, if it counts.
        """
        durable = offset  # the snapshot was durable before the file had its name
        undecided: deque[Frame] = deque()
        clean_stop: Frame | None = None
        bad: Bad | None = None
        for found in scan.frames(offset, salt):
            if isinstance(found, Bad):
                bad = found
                break
            durable = max(durable, found.durable)
            undecided.append(found)
            self._appended += found.type > FRAMING_MAX
            while undecided and undecided[0].end <= durable:
                yield from self._given(name, undecided.popleft(), number, newest, newest.batches)
            if found.type == CLEAN_STOPPED:
                clean_stop = found
            elif found.type != DURABLE_MARK:
                clean_stop = None

        # Undecided is now what no valid record so far says was durable. Does one behind the first bad one?
        if bad is not None:
            at = bad.offset
            witness = scan.first_valid(at + 1, salt, lambda frame: frame.durable > at)
            if witness is not None:
                raise self._damage(
                    name, at, f"{bad.reason}; the record at {witness.offset} says it was durable"
                )
        for index, frame in enumerate(undecided):
            if not frame.body_ok:
                bad = Bad(
                    frame.offset, "the body of the batch does not match its checksum, or is not all there"
                )
                while len(undecided) > index:
                    self._appended -= undecided.pop().type > FRAMING_MAX
                break
        if bad is not None:
            clean_stop = None
            self.notes.append(
                f"{name}: cut at byte {bad.offset} of {scan.size}, where the last write was torn: {bad.reason}"
            )
        for frame in undecided:
            yield from self._given(name, frame, number, newest, newest.carried)
        for item in newest.batches:
            newest.segment.put(item.record.number, item.position)
        newest.segment.bytes = durable
        return None if clean_stop is None else self._record(name, clean_stop)

    def _given(
        self, name: str, frame: Frame, number: int, newest: _Newest, batches: list[FoundBatch]
    ) -> Iterator[JournalRecord]:
        """What a frame of the newest segment gives to the core now; batches, and which are forgotten, are noted."""
        if frame.type in (BATCH_STORED, BATCH_MOVED):
            batches.append(self._batch(name, number, frame))
            return
        if frame.type == CLEAN_STOPPED:
            return
        record = self._decode(name, frame)
        if isinstance(record, Forgotten):
            numbers = [number for first, stop in record.ranges for number in range(first, stop)]
            if not record.segment:
                newest.forgotten.update(numbers)
            elif record.segment in self._segments:
                self._segments[record.segment].dead.extend(numbers)
        elif frame.type > FRAMING_MAX and not isinstance(record, DirectoryMade):
            yield cast(JournalRecord, record)  # DirectoryMade was given first

    def _batch(self, name: str, number: int, frame: Frame) -> FoundBatch:
        record = self._decode(name, frame)
        assert isinstance(record, BatchStored | BatchMoved)
        position = BatchPosition(number, frame.offset, frame.header_length, frame.body_length, frame.body_crc)
        at = DamagedAt(number, frame.offset)
        if frame.body_ok is False:
            self._damaged[at] = None
        moved = record if isinstance(record, BatchMoved) else None
        stored = record.stored if isinstance(record, BatchMoved) else record
        self._next_number = max(self._next_number, stored.number + 1)
        damaged = at in self._damaged or (moved is not None and moved.damaged)
        return FoundBatch(stored, position, moved is not None, damaged)

    def _record(self, name: str, frame: Frame) -> JournalRecord:
        record = self._decode(name, frame)
        if isinstance(record, Framing):
            raise self._damage(name, frame.offset, f"a {type(record).__name__} where none belongs")
        return record

    def _decode(self, name: str, frame: Frame) -> JournalRecord | Framing:
        try:
            return decode_record(frame.fields)
        except cbor.BadValue as error:
            raise StorageError(
                f"{self._disk}/{name}, byte {frame.offset}: the record is intact but cannot be read: {error}. "
                f"If a newer version of quorumq has run here, start this node with that one"
            ) from error

    def _scan(self, name: str, size: int, *, check_bodies: bool) -> Scan:
        return Scan(
            lambda offset, length: self._disk.read(name, offset, length), size, check_bodies=check_bodies
        )

    def _damage(self, name: str, offset: int, reason: str) -> DamagedDirectory:
        return DamagedDirectory(f"{self._disk}/{name} is damaged at byte {offset}: {reason}", _WHAT_TO_DO)

    # ------------------------------------------------------------------ writing

    def append(self, record: JournalRecord | Forgotten | BatchMoved) -> BatchPosition | None:
        """Put a record behind all others, in memory; a commit brings it to the disk. Returns a batch's position.

        The body of a batch is kept as it is until then, not copied: it must not change.
        """
        self._check_usable()
        assert self._started, "the first thing after opening is roll(): a segment with a snapshot"
        position = self._encode(record, self._pending, self._durable_end)
        self._ticket += 1
        self._appended += TYPE_OF[type(record)] > FRAMING_MAX
        return position

    @property
    def ticket(self) -> int:
        """What `durable` must reach for everything appended so far to be durable."""
        return self._ticket

    def _encode(
        self,
        record: JournalRecord | Framing,
        into: list[Buffer],
        durable: int,
        salt: int | None = None,
    ) -> BatchPosition | None:
        return self._put(record, *encode_record(record, durable), into, salt)

    def _put(
        self,
        record: JournalRecord | Framing,
        header: bytes,
        body: Buffer,
        into: list[Buffer],
        salt: int | None = None,
    ) -> BatchPosition | None:
        body_crc = body_crc_of(body)
        frame = encode_frame(header, len(body), body_crc, self._salt if salt is None else salt)
        into.append(frame)
        position = None
        if isinstance(record, BatchStored | BatchMoved):
            position = BatchPosition(self._segment, self._end, len(header), len(body), body_crc)
            stored = record.stored if isinstance(record, BatchMoved) else record
            self._segments[self._segment].put(stored.number, position)
            self._next_number = max(self._next_number, stored.number + 1)
            self._count(stored.batch.header, len(body))
        if len(body):
            into.append(body)
        self._end += len(frame) + len(body)
        self.pending_bytes += len(frame) + len(body)
        return position

    def _count(self, header: BatchHeader, body_bytes: int) -> None:
        """Note a batch for the footer."""
        key = (header.partition.topic, header.partition.number)
        old = self._footer.get(key)
        at = header.published_ms
        if old is None:
            self._footer[key] = PartitionRange(*key, 1, header.size, body_bytes, at, at)
        else:
            self._footer[key] = PartitionRange(
                *key,
                old.batches + 1,
                old.messages + header.size,
                old.body_bytes + body_bytes,
                min(old.first_published_ms, at),
                max(old.last_published_ms, at),
            )

    def should_roll(self, reserve_bytes: int = 0) -> bool:
        """Whether the segment is full or a new one lets enough old ones go, and the disk has room for its snapshot.

        Args:
            reserve_bytes: with less than this free, a roll pays sooner.
        """
        if not self._started or self._vouched:
            return True
        if self._failed:
            return False
        tail, snapshot = self._end - self._snapshot_bytes, self._snapshot_bytes
        full = tail >= max(self.segment_bytes - snapshot, snapshot)
        if not full and self.reclaimable_bytes < 2 * snapshot + MIB:
            return False
        free = self.free_bytes()
        if not full and self.reclaimable_bytes < self.segment_bytes and free >= reserve_bytes + snapshot:
            return False
        return free > 2 * snapshot + MIB

    def roll(self, snapshot: Iterable[JournalRecord]) -> list[FoundBatch]:
        """Begin a new segment with this snapshot; a commit brings it to the disk.

        Args:
            snapshot: records that rebuild all state of the core but its batches, as of everything appended.

        Returns:
            Batches that were written again, with their bodies, and where they are now (only the first time).
        """
        self._check_usable()
        assert self._replayed, "replay() first, to its end"
        try:
            return self._roll(snapshot)
        except OSError as error:
            raise self._poison(error) from error
        except BaseException as error:
            self._poison(error)  # half a segment is in memory: nothing may be written after it
            raise

    def _roll(self, snapshot: Iterable[JournalRecord]) -> list[FoundBatch]:
        carried = [(item, self.read_body(item.position)) for item in self._carried]
        self._carried = []
        if self._started:
            footer = tuple(self._footer[key] for key in sorted(self._footer))
            totals = sum(entry.batches for entry in footer), sum(entry.body_bytes for entry in footer)
            self._encode(SegmentFooter(*totals, footer), self._pending, self._durable_end)
            self._segments[self._segment].bytes = self._end
        for number in [number for number, found in self._segments.items() if not found.batches]:
            del self._segments[number]
            self._obsolete.append(segment_name(number))
        self._empty.clear()
        self._damaged = {at: None for at in self._damaged if at.segment in self._segments}
        self._holes = {hole: None for hole in self._holes if hole.segment in self._segments}
        earlier = dict(self._segments)
        if self._pending:
            self._steps.append(self._pending)
            self._pending = []
        self._last_number += 1
        last, self._segment = self._segment, self._last_number
        self._end = self._durable_end = 0
        self._footer = {}
        self._segments[self._segment] = Segment()
        if last in earlier:
            self._judge(last)
        buffers: list[Buffer] = []
        start = SegmentStart(
            FORMAT_VERSION,
            self._node,
            self._cluster_id,
            self.directory,
            self._segment,
            tuple(Earlier(number, found.bytes, found.batches) for number, found in earlier.items()),
            tuple(self._damaged),
            self._appended,
            self._next_number,
            tuple(self._holes),
            self.cannot_vouch[:CANNOT_VOUCH_CHARS],
            self.place,
            bytes(8),
        )
        self._vouched = False
        self._encode(start, [], 0, salt=0)  # for its length
        self._salt = salt_of(self.directory, self._segment)
        count = 0
        for number, found in earlier.items():
            for gone in forgotten(found.dead, number):
                self._encode(gone, buffers, 0)
                count += 1
        for record in snapshot:
            assert not isinstance(record, BatchStored | CleanStopped), "neither belongs into a snapshot"
            count += self._encode_cut(record, buffers)
        moved: list[FoundBatch] = []
        for item, body in carried:
            record = item.record._replace(batch=item.record.batch._replace(body=body))
            position = self._encode(record, buffers, 0)
            assert position is not None
            moved.append(item._replace(record=record, position=position))
            count += 1
        self._encode(SnapshotEnd(count), buffers, 0)
        self._snapshot_bytes = self._durable_end = self._end
        self._steps.append(_NewSegment(start, buffers, tuple(self._obsolete), tuple(self._aside)))
        self._obsolete, self._aside = [], []
        self._ticket += 1
        self._started = True
        return moved

    def _encode_cut(self, record: JournalRecord, into: list[Buffer]) -> int:
        """Encode one record of a snapshot, in pieces where it is too large; returns how many."""
        header, body = encode_record(record, 0)
        if len(header) <= HEADER_BYTES_MAX:
            self._put(record, header, body, into)
            return 1
        return sum(self._encode_cut(half, into) for half in halves(record))

    @property
    def needs_write(self) -> bool:
        """Whether anything waits for a commit to write it."""
        return bool(self._pending or self._steps)

    @property
    def needs_sync(self) -> bool:
        """Whether anything is not durable, nor on its way."""
        return self._ticket > (self.durable if self._syncing is None else self._syncing.ticket)

    @property
    def rolling(self) -> bool:
        """Whether a segment waits to be begun, which only a commit that syncs can do."""
        return any(isinstance(step, _NewSegment) for step in self._steps)

    def begin_commit(self, sync: bool = True) -> Commit:
        """Take everything appended so far; the caller then runs `Commit.run`, in a thread, and `finish`.

        Args:
            sync: whether it makes durable what was written; no other that does may be under way then. Without, it may
                begin as soon as `note_written` was called for the last, unless `rolling`.
        """
        self._check_usable()
        assert self._writing is None, "one commit writes at a time"
        assert self._syncing is None if sync else not self.rolling, "one commit syncs, or rolls, at a time"
        steps, size = self._steps, self.pending_bytes
        if self._pending:
            steps.append(self._pending)
        self._steps, self._pending, self.pending_bytes = [], [], 0
        commit = Commit(self, steps, sync, self._ticket, self._appended, self._segment, self._end, size)
        self._writing = commit
        if sync:
            self._syncing = commit
        return commit

    def note_written(self, commit: Commit) -> None:
        """Back on the loop: what the commit held is written, if not synced. Another may begin to write.

        Raises:
            StorageError: the journal failed before.
        """
        assert commit is self._writing, "the commit that writes"
        assert commit.written, "its write() returned"
        self._writing = None
        self._check_usable()
        self.written = commit.ticket

    def finish(self, commit: Commit) -> int:
        """Back on the loop: what the commit held is durable, if it synced. Returns the new `durable`.

        Raises:
            StorageError: it did not succeed. Nothing is reported durable from now on.
        """
        assert commit is self._writing or commit is self._syncing, "finish() belongs to a commit under way"
        if commit is self._writing and commit.written:
            self.written = commit.ticket
        if not commit.done:
            self._failed = self._failed or "a commit was given up half way; the node must stop"
        self._writing = None if commit is self._writing else self._writing
        self._syncing = None if commit is self._syncing else self._syncing
        self._check_usable()
        if commit.syncs:
            self.durable = commit.ticket
            self.position = commit.position
            if commit.segment == self._segment:
                self._durable_end = commit.end
        return self.durable

    def commit(self) -> int:
        """`begin_commit`, `run` and `finish` in one, for those who may block."""
        self._check_usable()
        if self.needs_write or self.needs_sync:
            commit = self.begin_commit()
            commit.run()
            self.finish(commit)
        return self.durable

    # ------------------------------------------------------------------ the worker thread's part

    def _write(self, buffers: list[Buffer]) -> None:
        assert self._handle is not None
        self._unsynced = True
        self._disk.append(self._handle, buffers)

    def _take_unsynced(self) -> int | None:
        """The file with bytes that no sync was for, if there are any: whoever asks syncs it now."""
        unsynced, self._unsynced = self._unsynced, False
        return self._handle if unsynced else None

    def _write_new_segment(self, step: _NewSegment) -> None:
        if self._handle is not None:
            unsynced = self._take_unsynced()
            if unsynced is not None:
                self._disk.sync(unsynced)  # the new segment's start says that these bytes count
            self._disk.close(self._handle)
            self._handle = None
        name = segment_name(step.start.segment)
        handle = self._disk.create(name + NEW_SUFFIX)
        header, _ = encode_record(step.start._replace(lies=self._disk.place(name + NEW_SUFFIX)), 0)
        self._disk.append(handle, [encode_frame(header, 0, body_crc_of(b""), 0), *step.buffers])
        self._disk.sync(handle)
        self._disk.rename(name + NEW_SUFFIX, name)
        self._disk.sync_dir()
        self._handle = handle
        for obsolete in step.obsolete:
            with contextlib.suppress(FileNotFoundError):
                self._disk.delete(obsolete)
        for aside in step.aside:
            with contextlib.suppress(FileNotFoundError):
                self._disk.rename(aside, aside + ASIDE_SUFFIX)
                self._disk.sync_dir()

    def vouch(self) -> None:
        """The node has resynced: from the next segment on, which is due now, the directory is trusted again."""
        self._vouched = bool(self.cannot_vouch)
        self.cannot_vouch = ""

    @contextlib.contextmanager
    def _poisoned_by_failure(self) -> Iterator[None]:
        """What fails in here makes the journal unusable."""
        self._check_usable()
        try:
            yield
        except OSError as error:
            raise self._poison(error) from error
        except BaseException as error:
            self._poison(error)
            raise

    def _poison(self, error: BaseException) -> StorageError:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        advice = (
            "make room on the disk, then start it again" if full else "check the disk before the next start"
        )
        what = str(error) or type(error).__name__
        self._failed = (
            f"the journal in {self._disk} could not be written: {what}; nothing since then is reported durable, "
            f"and the node must stop: {advice}"
        )
        return StorageError(self._failed)

    def _check_usable(self) -> None:
        if self._failed:
            raise StorageError(self._failed)

    # ------------------------------------------------------------------ reading

    def read_body(
        self, position: BatchPosition, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> bytes:
        """Bytes [start, stop) of a batch's body, once a commit has written it.

        Args:
            position: from `append` or `replay`.
            start: the first byte wanted.
            stop: where to end; None for the end of the body.
            check: read the whole body and compare its checksum first. Without, only what is wanted is read,
                and whoever gets it has to check the records' own checksums.

        Raises:
            DamagedBatch: it is not what was written, or the disk cannot read it. The next segment says so, and
                the next start reports it.
            StorageError: the file cannot be opened.
        """
        self._check_usable()
        stop = position.length if stop is None else stop
        assert 0 <= start <= stop <= position.length, (start, stop, position)
        name = segment_name(position.segment)
        low, high = (0, position.length) if check else (start, stop)
        try:
            data = self._disk.read(name, position.offset + low, high - low)
        except OSError as error:
            if error.errno != errno.EIO:
                raise StorageError(f"{self._disk}/{name} cannot be read: {error}") from error
            data, reason = b"", str(error)
        else:
            reason = "its checksum does not match" if len(data) == high - low else "the file ends inside it"
        if len(data) != high - low or (check and body_crc_of(data) != position.crc):
            self.note_damaged(position)
            raise DamagedBatch(
                f"{self._disk}/{name}: the body of the batch at byte {position.record} is damaged: {reason}; "
                f"fetch it from another replica"
            )
        return data[start - low : stop - low]

    def read_record(self, position: BatchPosition) -> FoundBatch:
        """A batch's record, with an empty body, once a commit has written it.

        Raises:
            StorageError: the header is damaged, which is more than a replica can make good.
        """
        self._check_usable()
        name = segment_name(position.segment)
        try:
            scan = self._scan(name, position.end, check_bodies=False)
            found = scan.frame(position.record, salt_of(self.directory, position.segment))
        except OSError as error:
            raise StorageError(f"{self._disk}/{name} cannot be read: {error}") from error
        if isinstance(found, Bad):
            raise self._damage(name, found.offset, found.reason)
        if found.type not in (BATCH_STORED, BATCH_MOVED):
            raise self._damage(name, found.offset, f"a record of type {found.type} where a batch was written")
        return self._batch(name, position.segment, found)

    # ------------------------------------------------------------------ room

    def free_bytes(self) -> int:
        """Bytes that the disk still takes, less what waits for a commit."""
        try:
            return max(0, self._disk.free_bytes() - self.pending_bytes)
        except OSError as error:
            raise StorageError(
                f"the data directory {self._disk} cannot be asked for its room: {error}"
            ) from error

    @property
    def snapshot_bytes(self) -> int:
        """How much the last snapshot took: the next will take about as much."""
        return self._snapshot_bytes

    @property
    def live(self) -> dict[int, int]:
        """Live batches of each segment that has or may get any, oldest first; the last is the current one."""
        return {number: found.batches for number, found in self._segments.items()}

    @property
    def next_number(self) -> int:
        """Above every batch number that was ever used in this directory, forgotten ones included."""
        return self._next_number

    def drop(self, number: int, position: BatchPosition) -> None:
        """Batch ``number`` is not needed there any more. A segment without any goes with the next `roll`.

        Until that is committed its file stays, and what keeps the batch from coming back is the `Forgotten` or
        `BatchMoved` that the caller appended.
        """
        found = self._segments[position.segment]
        assert found.batches > 0, f"segment {position.segment} has no live batch left"
        found.batches -= 1
        found.live_bytes -= position.end - position.record
        found.dead.append(number)
        self._damaged.pop(DamagedAt(position.segment, position.record), None)
        self._judge(position.segment)

    def _judge(self, segment: int) -> None:
        """Note whether an older segment is worth emptying, or empty."""
        if segment == self._segment:
            return
        found = self._segments[segment]
        for is_so, which in ((found.sparse, self._sparse), (not found.batches, self._empty)):
            if is_so:
                which[segment] = None
            else:
                which.pop(segment, None)

    @property
    def reclaimable_bytes(self) -> int:
        """What the files that go with the next `roll` take, the current one aside."""
        return sum(self._segments[segment].bytes for segment in self._empty)

    def sparsest(self, room: int) -> int | None:
        """The older segment that is best emptied next; its live batches take at most ``room`` bytes."""
        best, least = None, SPARSE_SHARE
        for segment in self._sparse:
            found = self._segments[segment]
            share = found.live_bytes / found.bytes
            if share < least and found.live_bytes + found.batches * MOVED_OVERHEAD <= room:
                best, least = segment, share
        return best

    def numbers_in(self, segment: int) -> tuple[int, int]:
        """Lowest and highest batch number that a segment may have; (1 << 64, 0) where it is gone or has none."""
        found = self._segments.get(segment)
        return (1 << 64, 0) if found is None or not found.batches else (found.low, found.high)

    def move(self, position: BatchPosition) -> FoundBatch:
        """Append a copy of a batch, as it is, damage and all. The caller then drops the old place.

        Returns:
            The copy, with its body.

        Raises:
            StorageError: the header is damaged, or the file cannot be opened.
        """
        found = self.read_record(position)
        damaged = found.damaged
        try:
            body = self.read_body(position)
        except DamagedBatch:
            body, damaged = self._whatever_is_there(position), True
        record = found.record._replace(batch=found.record.batch._replace(body=body))
        at = self.append(BatchMoved(record, damaged))
        assert at is not None
        return FoundBatch(record, at, True, damaged)

    def _whatever_is_there(self, position: BatchPosition) -> bytes:
        """A damaged body, with zeros for what cannot be read."""
        try:
            found = self._disk.read(segment_name(position.segment), position.offset, position.length)
        except OSError:
            found = b""
        return found.ljust(position.length, b"\0")

    def note_damaged(self, position: BatchPosition) -> None:
        """The body of this batch is not what was written: the next segment says so, and every start reports it."""
        self._damaged[DamagedAt(position.segment, position.record)] = None

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Commit what is pending, say that it is durable, and give the directory back.

        After a failure, or with a commit still running, nothing is written. The directory is given back always.

        Raises:
            StorageError: the last commit failed.
        """
        try:
            if self._started and not self._failed and self._writing is None and self._syncing is None:
                self.commit()
                if self._end > self._snapshot_bytes:
                    # Not synced: if it is lost, the last commit merely cannot be told from a torn one.
                    self._encode(DurableMark(), self._pending, self._durable_end)
                    with contextlib.suppress(OSError):
                        self._write(self._pending)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the directory back and write nothing: what a crash does, and what is left after a failure."""
        self._failed = self._failed or f"the journal in {self._disk} is closed"
        self._disk.unlock()

    def check(self) -> None:
        """Assert what holds between any two calls."""
        assert 0 <= self.durable <= self.written <= self._ticket
        assert 0 <= self.position <= self._appended
        assert 0 <= self._durable_end <= self._end
        if self._started:
            assert list(self._segments) == sorted(self._segments), "oldest first"
            assert next(reversed(self._segments)) == self._segment, "and the current one last"
            assert set(self._empty) == {n for n, found in self._older() if not found.batches}
            assert set(self._sparse) == {n for n, found in self._older() if found.sparse}
        for found in self._segments.values():
            assert found.batches >= 0
            assert (found.live_bytes > 0) == (found.batches > 0)

    def _older(self) -> list[tuple[int, Segment]]:
        return [(number, found) for number, found in self._segments.items() if number != self._segment]


def _unreadable(disk: Disk, error: OSError) -> StorageError:
    what = f"the data directory {disk} cannot be read: {error}"
    return DamagedDirectory(what, _WHAT_TO_DO) if error.errno == errno.EIO else StorageError(what)


_WHAT_TO_DO: Final = (
    "do not delete files one by one: start the node with an empty data directory, so that it gets its data back "
    "from the other replicas, or restore this one as a whole (`quorumq journal inspect FILE` shows what is there)"
)

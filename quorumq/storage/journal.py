# quorumq/storage/journal.py: everything a node must not forget, in one sequence of records.
#
# Why one journal for all partitions: one fsync then commits whatever arrived meanwhile, of any partition
# (group commit). Why segments that begin with a snapshot: all small state is in the newest segment, so an
# older one matters for the batches in it and for nothing else.
#
# Promises:
#
# 1. What `finish` reported durable is there after any crash, in order, and nothing that was not appended.
# 2. A torn tail is cut silently, because nobody was told that it was durable. Damage is never cut: that of
#    a batch body is reported as `Damaged` and everything else goes on, any other is a `StorageError`.
# 3. After a write or a sync that failed, every call raises `StorageError`: what the disk has is then unknown,
#    and a sync that succeeds later would prove nothing (the system may have dropped the pages).
#    The node stops; the next start reads what is really there and writes it again.
#
# How a segment comes to be: it is written as NAME.new, synced, renamed, and the directory is synced, before
# anything behind its snapshot is written. So a segment with its final name is complete, and a snapshot in it
# that cannot be read is damage, not a crash. Its first record lists the older segments that still count and how
# many bytes of each: that list is what makes a missing or shortened file noticed, and what lies behind those
# bytes void. After every start the first thing written is a new segment. The batches of the old one's tail
# (everything behind the last durable offset it mentions) are written again into the new one, because
# nobody knows whether those bytes are on the disk or only in the memory of the system.
#
# Threads: `Commit.run` is the only thing that may run outside the node's loop, one at a time.
"""The journal: append, group commit, segments, replay."""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, cast

from quorumq.core.errors import QuorumqError, StorageError
from quorumq.core.limits import MIB
from quorumq.core.records import BatchStored, CleanStopped, DirectoryMade, JournalRecord
from quorumq.core.types import BatchHeader
from quorumq.storage.disk import Buffer, Disk
from quorumq.storage.records import (
    BATCH_STORED,
    CLEAN_STOPPED,
    DURABLE_MARK,
    FRAMING_MAX,
    SNAPSHOT_END,
    DamagedAt,
    DurableMark,
    Earlier,
    Framing,
    PartitionRange,
    SegmentFooter,
    SegmentStart,
    SnapshotEnd,
    decode_record,
    encode_record,
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


class Stored(NamedTuple):
    """Replayed: a record of the core; ``position`` where it is a batch, whose body is left in the segment."""

    record: JournalRecord
    position: BatchPosition | None


class Damaged(NamedTuple):
    """Replayed: a batch whose body is damaged. It is not to be served, nor counted as stored."""

    record: BatchStored
    position: BatchPosition


class _NewSegment(NamedTuple):
    """A segment to be begun: its snapshot, and the files that are of no use once it is there."""

    number: int
    buffers: list[Buffer]
    obsolete: tuple[str, ...]


class Commit:
    """What was pending when `Journal.begin_commit` was called, on its way to the disk.

    Attributes:
        ticket: what `Journal.durable` becomes when it is finished.
        position: what `Journal.position` becomes then.
        done: it was run, and the disk has it.
    """

    def __init__(
        self,
        journal: Journal,
        steps: list[list[Buffer] | _NewSegment],
        ticket: int,
        position: int,
        segment: int,
        end: int,
    ) -> None:
        self._journal = journal
        self._steps = steps
        self.ticket = ticket
        self.position = position
        self.segment = segment
        self.end = end  # of that segment, with this commit
        self.done = False

    def run(self) -> None:
        """Write and sync. The one call that may be made in a worker thread; `Journal.finish` follows always.

        Raises:
            StorageError: the disk refused; the journal is unusable from now on.
        """
        assert not self.done, "a commit runs once"
        journal = self._journal
        journal._check_usable()
        try:
            for step in self._steps:
                if isinstance(step, _NewSegment):
                    journal._write_new_segment(step)
                else:
                    journal._write(step)
            journal._sync()
        except OSError as error:
            raise journal._poison(error) from error
        except BaseException as error:
            journal._poison(error)
            raise
        self.done = True


class Journal:
    """One node's journal in one directory.

    The order of calls after `open` is fixed: exhaust `replay`, then `roll` (a new segment, with the snapshot of
    what was replayed), then commit; then `append` and `roll` as wanted, each followed by a commit at some time.

    Attributes:
        directory: the id of the data directory, 64 random bits minted when it was made.
        fresh: nothing was found: the directory was made just now.
        durable: everything `append` gave a ticket not above this is durable.
        position: how many records were ever appended to this directory and are durable: what a replay finds, at
            least, from now on. After `replay` it is what was found, which the first `roll` makes durable.
        notes: what a start found worth telling, in words (a cut tail, files deleted).
    """

    def __init__(self, disk: Disk, node: str, cluster_id: str, segment_bytes: int) -> None:
        self._disk = disk
        self._node = node
        self._cluster_id = cluster_id
        self.segment_bytes = segment_bytes
        self.directory = 0
        self.fresh = False
        self.durable = 0
        self.position = 0
        self.notes: list[str] = []
        self._failed = ""
        self._replayed = False
        self._started = False
        self._committing: Commit | None = None
        # The segment being written: appended so far, known durable, end of its snapshot.
        self._segment = 0
        self._salt = 0
        self._end = 0
        self._durable_end = 0
        self._snapshot_bytes = 0
        self._footer: dict[tuple[bytes, int], PartitionRange] = {}
        self._handle: int | None = None
        self._unsynced = False  # written to _handle since the last sync; the worker thread's, like _handle
        # Not taken by a commit yet.
        self._steps: list[list[Buffer] | _NewSegment] = []
        self._pending: list[Buffer] = []
        self.pending_bytes = 0
        self._ticket = 0
        self._appended = 0  # records since the directory was made: `position` follows
        # Older segments that count, oldest first, and what is known damaged in any.
        self._earlier: dict[int, int] = {}  # segment -> bytes
        self._batches: dict[int, int] = {}  # segment -> live batches, the current one included
        self._damaged: dict[DamagedAt, None] = {}
        self._obsolete: list[str] = []
        self._last_number = 0
        self._start: SegmentStart | None = None  # of the newest segment found
        self._carried: list[Stored] = []  # batches whose record may not be durable: written again

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
            raise StorageError(f"the data directory {disk} cannot be read: {error}") from error
        except BaseException:
            disk.unlock()
            raise
        return journal

    def _find(self, new_directory_id: Callable[[], int]) -> None:
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
        if not finished:
            self.fresh = True
            self.directory = new_directory_id()
            assert 0 < self.directory < 1 << 64, "a directory id is 64 bits and not 0"
            return
        newest = max(finished)
        self._start = start = self._read_start(newest)
        self.directory = start.directory
        self._earlier = {entry.segment: entry.bytes for entry in start.earlier}
        self._batches = dict.fromkeys(self._earlier, 0)
        self._damaged = dict.fromkeys(start.damaged)
        counted = {entry.segment for entry in start.earlier}
        for number in finished:
            if number != newest and number not in counted:
                self._obsolete.append(segment_name(number))
        for segment, length in self._earlier.items():
            self._check_there(segment, length, newest)

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
        if start.version != FORMAT_VERSION:
            raise StorageError(
                f"{self._disk}/{name} has format version {start.version}, this quorumq reads {FORMAT_VERSION}: "
                f"start this node with the version of quorumq that wrote it"
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
            raise StorageError(f"{self._disk}/{name} is missing, and {says}; {_WHAT_TO_DO}") from None
        if size < length:
            raise self._damage(name, size, f"the file ends here, and {says} up to byte {length}")

    # ------------------------------------------------------------------ replay

    def replay(self) -> Iterator[Stored | Damaged]:
        """The durable records: what the directory is, the newest snapshot, all older batches, then the tail.

        Must be exhausted before `roll`. Records are in the order in which they were appended, but that small
        state comes before the batches of older segments. CLEAN_STOP comes only as the very last record.

        Raises:
            StorageError: damage that is not confined to the body of a batch.
        """
        assert not self._started, "replay comes before the first roll"
        yield Stored(DirectoryMade(self._node, self._cluster_id, self.directory), None)
        if self._start is not None:
            try:
                yield from self._replay_segments(self._start)
            except OSError as error:
                raise StorageError(f"the data directory {self._disk} cannot be read: {error}") from error
        self.position = self._appended
        self._replayed = True

    def _replay_segments(self, start: SegmentStart) -> Iterator[Stored | Damaged]:
        number = start.segment
        name = segment_name(number)
        salt = salt_of(self.directory, number)
        scan = self._scan(name, self._disk.size(name), check_bodies=True)
        self._batches[number] = 0
        self._appended = start.position

        offset, count = 0, -1
        batches: list[Stored | Damaged] = []
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
            item = self._given(name, found, number)
            if item is not None and item.position is not None:
                batches.append(item)  # written again from an older segment's tail: after all older ones
            elif item is not None:
                yield item
        end = self._decode(name, found)
        if not isinstance(end, SnapshotEnd) or end.records != count - 1:
            raise self._damage(name, found.offset, f"the snapshot has {count - 1} records and says {end}")

        for segment, length in self._earlier.items():
            yield from self._replay_older(segment, length)
        yield from batches
        yield from self._replay_tail(scan, name, number, salt, offset)

    def _replay_older(self, segment: int, length: int) -> Iterator[Stored | Damaged]:
        """The batches of an older segment, headers only: a body is checked when it is read."""
        name = segment_name(segment)
        start = self._read_start(segment)
        if start.directory != self.directory:
            raise self._damage(name, 0, "it belongs to another data directory: somebody mixed their files")
        scan = self._scan(name, length, check_bodies=False)
        salt = salt_of(self.directory, segment)
        offset = 0
        while offset < length:
            found = scan.frame(offset, salt if offset else 0)
            if isinstance(found, Bad):
                raise self._damage(name, found.offset, found.reason)
            if found.end > length:
                raise self._damage(
                    name, found.offset, f"a record reaches beyond byte {length}, where it must end"
                )
            offset = found.end
            if found.type == BATCH_STORED:
                yield self._batch(name, segment, found)

    def _replay_tail(
        self, scan: Scan, name: str, number: int, salt: int, offset: int
    ) -> Iterator[Stored | Damaged]:
        """What follows the snapshot. A record is let out once a younger one says that it was durable."""
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
                item = self._given(name, undecided.popleft(), number)
                if item is not None:
                    yield item
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
            item = self._given(name, frame, number)
            if item is not None:
                if isinstance(item, Stored) and item.position is not None:
                    self._carried.append(item)
                    self._batches[number] -= 1  # it will be counted where it is written again
                yield item
        if clean_stop is not None:
            yield Stored(self._record(name, clean_stop), None)
        if self._batches[number] or any(at.segment == number for at in self._damaged):
            self._earlier[number] = durable
        else:
            del self._batches[number]
            self._obsolete.append(name)

    def _given(self, name: str, frame: Frame, number: int) -> Stored | Damaged | None:
        """What a frame gives to the core: None for the journal's own records and for CLEAN_STOP."""
        if frame.type == BATCH_STORED:
            return self._batch(name, number, frame)
        if frame.type == CLEAN_STOPPED:
            return None
        record = self._decode(name, frame)
        if frame.type <= FRAMING_MAX or isinstance(record, DirectoryMade):
            return None  # DirectoryMade was given first, from the segment's start
        return Stored(cast(JournalRecord, record), None)

    def _batch(self, name: str, number: int, frame: Frame) -> Stored | Damaged:
        record = self._record(name, frame)
        assert isinstance(record, BatchStored)
        position = BatchPosition(number, frame.offset, frame.header_length, frame.body_length, frame.body_crc)
        at = DamagedAt(number, frame.offset)
        if frame.body_ok is False:
            self._damaged[at] = None
        if at in self._damaged:
            return Damaged(record, position)
        self._batches[number] += 1
        return Stored(record, position)

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

    def _damage(self, name: str, offset: int, reason: str) -> StorageError:
        return StorageError(f"{self._disk}/{name} is damaged at byte {offset}: {reason}; {_WHAT_TO_DO}")

    # ------------------------------------------------------------------ writing

    def append(self, record: JournalRecord) -> BatchPosition | None:
        """Put a record behind all others, in memory; a commit brings it to the disk. Returns a batch's position.

        The body of a batch is kept as it is until then, not copied: it must not change.
        """
        self._check_usable()
        assert self._started, "the first thing after opening is roll(): a segment with a snapshot"
        position = self._encode(record, self._pending, self._durable_end)
        self._ticket += 1
        self._appended += 1
        return position

    @property
    def ticket(self) -> int:
        """What `durable` must reach for everything appended so far to be durable."""
        return self._ticket

    def _encode(
        self, record: JournalRecord | Framing, into: list[Buffer], durable: int, salt: int | None = None
    ) -> BatchPosition | None:
        header, body = encode_record(record, durable)
        body_crc = body_crc_of(body)
        frame = encode_frame(header, len(body), body_crc, self._salt if salt is None else salt)
        into.append(frame)
        position = None
        if isinstance(record, BatchStored):
            position = BatchPosition(self._segment, self._end, len(header), len(body), body_crc)
            self._batches[self._segment] += 1
            self._count(record.batch.header, len(body))
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

    @property
    def should_roll(self) -> bool:
        """Whether the segment is full, and the disk has room for another snapshot."""
        tail = self._end - self._snapshot_bytes
        if not self._started:
            return True
        if self._failed or tail < max(self.segment_bytes - self._snapshot_bytes, self._snapshot_bytes):
            return False
        return self.free_bytes() > 2 * self._snapshot_bytes + MIB

    def roll(self, snapshot: Iterable[JournalRecord]) -> list[Stored]:
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

    def _roll(self, snapshot: Iterable[JournalRecord]) -> list[Stored]:
        carried = [(item, self._body_of(item)) for item in self._carried]
        self._carried = []
        if self._started:
            footer = tuple(self._footer[key] for key in sorted(self._footer))
            totals = sum(entry.batches for entry in footer), sum(entry.body_bytes for entry in footer)
            self._encode(SegmentFooter(*totals, footer), self._pending, self._durable_end)
            if self._batches[self._segment]:
                self._earlier[self._segment] = self._end
            else:
                del self._batches[self._segment]
                self._obsolete.append(segment_name(self._segment))
        if self._pending:
            self._steps.append(self._pending)
            self._pending = []
        self._last_number += 1
        self._segment = self._last_number
        self._end = self._durable_end = 0
        self._footer = {}
        self._batches[self._segment] = 0
        buffers: list[Buffer] = []
        start = SegmentStart(
            FORMAT_VERSION,
            self._node,
            self._cluster_id,
            self.directory,
            self._segment,
            tuple(Earlier(number, size, self._batches[number]) for number, size in self._earlier.items()),
            tuple(at for at in self._damaged if at.segment in self._earlier),
            self._appended,
        )
        self._encode(start, buffers, 0, salt=0)
        self._salt = salt_of(self.directory, self._segment)
        count = 0
        for record in snapshot:
            assert not isinstance(record, BatchStored | CleanStopped), "neither belongs into a snapshot"
            count += self._encode_cut(record, buffers)
        moved: list[Stored] = []
        for item, body in carried:
            record = item.record
            assert isinstance(record, BatchStored)
            record = record._replace(batch=record.batch._replace(body=body))
            moved.append(Stored(record, self._encode(record, buffers, 0)))
            count += 1
        self._encode(SnapshotEnd(count), buffers, 0)
        self._snapshot_bytes = self._durable_end = self._end
        self._steps.append(_NewSegment(self._segment, buffers, tuple(self._obsolete)))
        self._obsolete = []
        self._ticket += 1
        self._started = True
        return moved

    def _encode_cut(self, record: JournalRecord, into: list[Buffer]) -> int:
        """Encode one record of a snapshot, in pieces where it is too large; returns how many."""
        header, _ = encode_record(record, 0)
        if len(header) <= HEADER_BYTES_MAX:
            self._encode(record, into, 0)
            return 1
        return sum(self._encode_cut(half, into) for half in halves(record))

    def _body_of(self, item: Stored) -> bytes:
        assert item.position is not None
        return self.read_body(item.position)

    @property
    def needs_commit(self) -> bool:
        """Whether anything waits for `begin_commit`."""
        return bool(self._pending or self._steps)

    def begin_commit(self) -> Commit:
        """Take everything appended so far; the caller then runs `Commit.run`, in a thread, and `finish`."""
        self._check_usable()
        assert self._committing is None, "one commit at a time"
        steps = self._steps
        if self._pending:
            steps.append(self._pending)
        self._steps, self._pending, self.pending_bytes = [], [], 0
        self._committing = Commit(self, steps, self._ticket, self._appended, self._segment, self._end)
        return self._committing

    def finish(self, commit: Commit) -> int:
        """Back on the loop: what the commit held is durable. Returns the new `durable`.

        Raises:
            StorageError: it did not succeed. Nothing is reported durable from now on.
        """
        assert commit is self._committing, "finish() belongs to the commit that was begun last"
        self._committing = None
        if not commit.done:
            self._failed = self._failed or "a commit was given up half way; the node must stop"
        self._check_usable()
        self.durable = commit.ticket
        self.position = commit.position
        if commit.segment == self._segment:
            self._durable_end = commit.end
        return self.durable

    def commit(self) -> int:
        """`begin_commit`, `run` and `finish` in one, for those who may block."""
        self._check_usable()
        if self.needs_commit:
            commit = self.begin_commit()
            commit.run()
            self.finish(commit)
        return self.durable

    # ------------------------------------------------------------------ the worker thread's part

    def _write(self, buffers: list[Buffer]) -> None:
        assert self._handle is not None
        self._unsynced = True
        self._disk.append(self._handle, buffers)

    def _sync(self) -> None:
        if self._unsynced:
            assert self._handle is not None
            self._disk.sync(self._handle)
            self._unsynced = False

    def _write_new_segment(self, step: _NewSegment) -> None:
        if self._handle is not None:
            self._sync()  # the new segment's start says that these bytes count
            self._disk.close(self._handle)
            self._handle = None
        name = segment_name(step.number)
        handle = self._disk.create(name + NEW_SUFFIX)
        self._disk.append(handle, step.buffers)
        self._disk.sync(handle)
        self._disk.rename(name + NEW_SUFFIX, name)
        self._disk.sync_dir()
        self._handle = handle
        for obsolete in step.obsolete:
            with contextlib.suppress(FileNotFoundError):
                self._disk.delete(obsolete)

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
            self._damaged[DamagedAt(position.segment, position.record)] = None
            raise DamagedBatch(
                f"{self._disk}/{name}: the body of the batch at byte {position.record} is damaged: {reason}; "
                f"fetch it from another replica"
            )
        return data[start - low : stop - low]

    def read_record(self, position: BatchPosition) -> BatchStored:
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
        record = self._record(name, found)
        if not isinstance(record, BatchStored):
            raise self._damage(name, found.offset, f"a {type(record).__name__} where a batch was written")
        return record

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
        return dict(self._batches)

    def drop_batch(self, position: BatchPosition) -> None:
        """Nobody needs this batch any more: its segment has one live batch less."""
        assert self._batches[position.segment] > 0, f"segment {position.segment} has no live batch left"
        self._batches[position.segment] -= 1

    def drop_segment(self, segment: int) -> None:
        """Leave an older segment without live batches out of the next one's list; its file goes after that.

        Until the next `roll` is committed a crash brings it back, with all its batches.
        """
        assert segment in self._earlier, f"segment {segment} is the current one, or not there"
        assert not self._batches[segment], f"segment {segment} has {self._batches[segment]} live batches"
        del self._earlier[segment], self._batches[segment]
        self._damaged = {at: None for at in self._damaged if at.segment != segment}
        self._obsolete.append(segment_name(segment))

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Commit what is pending, say that it is durable, and give the directory back.

        After a failure, or with a commit still running, nothing is written. The directory is given back always.

        Raises:
            StorageError: the last commit failed.
        """
        try:
            if self._started and not self._failed and self._committing is None:
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
        assert 0 <= self.durable <= self._ticket
        assert 0 <= self.position <= self._appended
        assert 0 <= self._durable_end <= self._end
        if self._started:
            assert self._segment in self._batches, "the current segment is counted"
            assert self._segment not in self._earlier, "and not among the older ones"
            assert set(self._earlier) <= set(self._batches)
            assert all(number < self._segment for number in self._earlier)
        assert all(count >= 0 for count in self._batches.values())


_WHAT_TO_DO: Final = (
    "do not delete files one by one: start the node with an empty data directory, so that it gets its data back "
    "from the other replicas, or restore this one as a whole (`quorumq journal inspect FILE` shows what is there)"
)

"""Everything a node must not forget, in one sequence of records: appended, committed, rolled.

Why one sequence for all partitions: one fsync then commits all that arrived meanwhile, of any partition (group
commit). Why segments that begin with a snapshot: all small state is in the newest segment, so an older one is needed
only for its batches.

Promises:

1. Records that `finish` reported durable are there after any crash, in order, and none that was not appended.
2. If the last write was torn, its rest is cut. Damage is never cut (replay.py).
3. If a write or a sync fails, every later one raises `StorageError` (commit.py). The node stops. The next start reads
   the disk, and writes everything again that may not be durable.

A segment's first record lists the older segments that still count, with the number of bytes of each. If a file is
missing or shorter, the list shows that. If it is longer, the rest is void. After every start the first write is a new
segment. The batches of the old one's tail (all behind the last durable offset that it mentions) are written again into
the new one, because it is unknown if those bytes are on the disk or only in the system's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from quorumq.core.messages.records import BatchStored, CleanStopped, DeletedPage, JournalRecord
from quorumq.core.values.errors import StorageError
from quorumq.core.values.limits import MIB
from quorumq.storage.commit import RESERVE_NAME, Commit, NewSegment, NoCapacity, Writer
from quorumq.storage.disk import Buffer, Disk
from quorumq.storage.files import SegmentFiles
from quorumq.storage.records import (
    FRAMING_MAX,
    TYPE_OF,
    BatchesDropped,
    BatchMoved,
    DurableMark,
    PageMoved,
    SnapshotEnd,
    dropped,
)
from quorumq.storage.replay import DirectoryReplay
from quorumq.storage.segment import FORMAT_VERSION
from quorumq.storage.segments import BatchPosition, FoundBatch
from quorumq.storage.tail import Tail

NOT_TRUSTED_CHARS: Final = 2_000
"""Most characters that each segment repeats of the reason why its directory must not vote."""

LAST_SHARE: Final = 4
"""The reserve file takes the bytes of the reserve divided by this, in addition to them."""

MARGIN_SHARE: Final = 16
"""A start writes little beside a snapshot: the reserve divided by this, and at most 1 MiB, is left for it."""


class Log:
    """The records of one directory. The first write is a `roll`: a new segment, with the snapshot of the replay.

    Args:
        disk: the directory, locked; `abandon` and `close` unlock it.
        replay: reader of the directory, exhausted.
        segment_bytes: bytes of a segment at which it is full.
        reserve_bytes: bytes of the disk to keep free: if fewer are free, segments roll earlier.

    Attributes:
        segments: the account of all segments.
        ticket: when `durable` has reached this value, everything appended so far is durable.
        durable: the highest ticket up to which everything is durable.
        position: number of durable records ever appended to this directory, at first the number found. When a node has
            reported a position, every later start finds the records up to it, unless the directory is an older copy of
            itself. Snapshots and records that are written again count nothing.
        pending_bytes: bytes in memory for the next commit; the caller bounds them by pushing back on its clients.
        unwritten: batches that no commit has written yet, by number: ticket, raw header, body.
        not_trusted: reason why a node must not vote from this directory before a resync; "" if it is sound. Each
            new segment repeats it for later starts, until `trusted` is called and a commit follows.
        rolling: True if a new segment waits for a commit.
        last_bytes: bytes of the file that is deleted if the disk is full (`RESERVE_NAME`); 0 for no such file.
    """

    def __init__(self, disk: Disk, replay: DirectoryReplay, segment_bytes: int, reserve_bytes: int) -> None:
        self._disk = disk
        self._files = SegmentFiles(disk)
        self._start = replay.start
        self._segment_bytes = segment_bytes
        self.reserve_bytes = reserve_bytes
        self.last_bytes = reserve_bytes // LAST_SHARE
        self.segments = replay.segments
        self.not_trusted = replay.not_trusted
        self._trusted = False  # since the last roll
        self._carried = replay.carried  # batches whose record may not be durable: written again
        self._writer = Writer(disk, reserved=RESERVE_NAME in disk.list())
        self._tail: Tail | None = None  # until the first roll
        # Not taken by a commit yet.
        self._steps: list[list[Buffer] | NewSegment] = []
        self.rolling = False
        self._pending: list[Buffer] = []
        self.pending_bytes = 0
        self.unwritten: dict[int, tuple[int, bytes, Buffer]] = {}
        self.ticket = self.durable = 0
        self.position = replay.position
        self._appended = replay.position  # `position` follows
        self._commit: Commit | None = None
        self._marked_end = 0  # offset in the tail up to which a mark has said that it is durable

    def check_usable(self) -> None:
        """Raise `StorageError` if a write or sync has failed, or the directory was unlocked."""
        if self._writer.failed:
            self._writer.check()

    # ------------------------------------------------------------------ appending

    def add(self, record: JournalRecord | BatchesDropped | BatchMoved | PageMoved) -> BatchPosition | None:
        """Append a record in memory; a commit writes it. Returns its position if it is a batch or a page, else None.

        The body of a batch is not copied: it must not change until it is written.
        """
        self.check_usable()
        tail = self._tail
        assert tail is not None, "the first thing after opening is roll(): a segment with a snapshot"
        before = tail.end
        position = tail.add(record, self._pending)
        self.pending_bytes += tail.end - before
        self.ticket += 1
        self._appended += TYPE_OF[type(record)] > FRAMING_MAX
        if isinstance(record, BatchStored | DeletedPage):
            self._note_unwritten(record)
        elif isinstance(record, BatchMoved) and not record.damaged:
            self._note_unwritten(record.stored)
        elif isinstance(record, PageMoved):
            self._note_unwritten(record.page)
        return position

    @property
    def is_unmarked(self) -> bool:
        """True if no record says yet that the last ones are durable: damage in them looks like a torn write then."""
        tail = self._tail
        return (
            tail is not None
            and self._commit is None
            and not self._steps
            and max(tail.snapshot_bytes, self._marked_end) < tail.end == tail.durable_end
        )

    def mark(self) -> None:
        """Append a mark that the last records are durable; a commit writes it. Call it only when `is_unmarked`."""
        self.check_usable()
        tail = self._tail
        assert tail is not None
        assert self.is_unmarked
        before = tail.end
        tail.add(DurableMark(), self._pending)
        self._marked_end = tail.end
        self.pending_bytes += tail.end - before
        self.ticket += 1

    def _note_unwritten(self, record: BatchStored | DeletedPage) -> None:
        raw, body = (record.batch.raw, record.batch.body) if isinstance(record, BatchStored) else (b"", b"")
        self.unwritten[record.number] = (self.ticket, raw, body)

    def _note_written(self, ticket: int) -> None:
        while self.unwritten:
            number = next(iter(self.unwritten))
            if self.unwritten[number][0] > ticket:
                break
            del self.unwritten[number]

    # ------------------------------------------------------------------ segments

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the last snapshot: the next will take about as much."""
        return 0 if self._tail is None else self._tail.snapshot_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that the disk still takes, less those that wait for a commit."""
        try:
            return max(0, self._disk.free_bytes() - self.pending_bytes)
        except OSError as error:
            raise StorageError(
                f"the data directory {self._disk} cannot be asked for its room: {error}"
            ) from error

    @property
    def start_bytes(self) -> int:
        """Bytes that must be free for a start: a snapshot, as large as it may be by now, and a little more."""
        return self.snapshot_bytes + self._margin + (0 if self._tail is None else self._tail.small_bytes)

    @property
    def _margin(self) -> int:
        return min(MIB, self.reserve_bytes // MARGIN_SHARE) if self.reserve_bytes else MIB

    @property
    def owed_bytes(self) -> int:
        """Bytes that the reserve file still has to take; 0 if it exists."""
        return 0 if self._writer.reserved else self.last_bytes

    def reserve(self) -> None:
        """Create the reserve file, if it does not exist and the disk has space for it."""
        if self.last_bytes and not self._writer.failed:
            self._writer.reserve(self.last_bytes)

    def trusted(self) -> None:
        """Trust the directory again, when a resync of the node is durable. The next segment, now due, says so."""
        self._trusted = bool(self.not_trusted)
        self.not_trusted = ""

    @property
    def should_roll(self) -> bool:
        """True if it is time for `Journal.roll`: nothing was written yet, or a resync has made the directory trusted.
        It is time too if the segment is full, or a roll deletes enough old ones, and the disk has space for a snapshot.

        If less than the reserve is free, segments roll earlier. When publishes are refused, they have small records
        only, which the next snapshot mostly replaces. So the next roll deletes the segment: acks never fill a disk.
        """
        tail = self._tail
        if tail is None or self._trusted:
            return True
        if self._writer.failed:
            return False
        snapshot, going = tail.snapshot_bytes, self.segments.reclaimable_bytes
        margin = self._margin
        after_snapshot = tail.end - snapshot
        full = after_snapshot >= max(self._segment_bytes - snapshot, snapshot)
        pays = going >= 2 * snapshot + margin
        if not (full or pays or after_snapshot >= max(snapshot, margin)):
            return False
        free = self.free_bytes
        tight = free < self.reserve_bytes + snapshot
        if not full and not tight and (not pays or going < self._segment_bytes):
            return False
        return free > (1 if pays else 2) * snapshot + margin

    def _begin_segment(self, snapshot: Iterable[JournalRecord]) -> list[FoundBatch]:
        """Begin a new segment with this snapshot, in memory.

        Returns:
            Batches that were written again, with their bodies and new positions (only the first time).
        """
        carried, self._carried = self._carried, []
        bodies = [self._files.body(item.position) for item in carried]
        segments = self.segments
        if self._tail is not None:
            before = self._tail.end
            self._tail.add(self._tail.footer(), self._pending)
            self.pending_bytes += self._tail.end - before
            segments.by_number[segments.current].bytes = self._tail.end
        if self._pending:
            self._steps.append(self._pending)
            self._pending = []
        earlier = segments.begin()
        start = self._start._replace(
            version=FORMAT_VERSION,
            segment=segments.current,
            earlier=earlier,
            damaged=tuple(segments.damaged),
            position=self._appended,
            next_number=segments.next_number,
            holes=tuple(segments.holes),
            not_trusted=self.not_trusted[:NOT_TRUSTED_CHARS],
            lies=bytes(8),
        )
        self._trusted = False
        self._marked_end = 0
        tail = self._tail = Tail(start.directory, segments)
        buffers: list[Buffer] = []
        count = 0
        tail.begin(start)
        for entry in earlier:
            for gone in dropped(segments.by_number[entry.segment].dead, entry.segment):
                tail.add(gone, buffers)
                count += 1
        for record in snapshot:
            assert not isinstance(record, BatchStored | DeletedPage | CleanStopped), (
                "none belongs into a snapshot"
            )
            count += tail.add_cut(record, buffers)
        moved: list[FoundBatch] = []
        for item, body in zip(carried, bodies, strict=True):
            record = item.record
            if isinstance(record, BatchStored):
                record = record._replace(batch=record.batch._replace(body=body))
            position = tail.add(record, buffers)
            assert position is not None
            moved.append(item._replace(record=record, position=position))
            count += 1
        tail.add(SnapshotEnd(count), buffers)
        tail.end_snapshot()
        self.pending_bytes += tail.end
        self.rolling = True
        self._steps.append(NewSegment(start, buffers, tuple(segments.obsolete), tuple(segments.aside)))
        segments.obsolete, segments.aside = [], []
        self.ticket += 1
        for item in moved:
            self._note_unwritten(item.record)
        return moved

    # ------------------------------------------------------------------ commits

    @property
    def needs_write(self) -> bool:
        """True if anything waits for a commit to write it."""
        return bool(self._pending or self._steps)

    @property
    def needs_sync(self) -> bool:
        """True if a record is not durable and the commit under way does not have it."""
        return self.ticket > (self.durable if self._commit is None else self._commit.ticket)

    def begin_commit(self) -> Commit:
        """Take everything appended so far. The caller runs the commit, if need be in a thread, then calls `finish`."""
        self.check_usable()
        assert self._commit is None, "one commit at a time"
        assert self._tail is not None, "roll() comes first"
        steps, size = self._steps, self.pending_bytes
        if self._pending:
            steps.append(self._pending)
        self._steps, self._pending, self.pending_bytes, self.rolling = [], [], 0, False
        self._commit = commit = Commit(
            writer=self._writer, steps=steps, ticket=self.ticket, position=self._appended, tail=self._tail,
            end=self._tail.end, size=size,
        )  # fmt: skip
        return commit

    def finish(self, commit: Commit) -> int:
        """Finish a commit that was run; return the new `durable`. If it raised `NoCapacity`, run it again before.

        Raises:
            StorageError: the commit failed: the node must stop.
        """
        assert commit is self._commit, "finish() belongs to the commit under way"
        self._commit = None
        if commit.written:
            self._note_written(commit.ticket)
        if not commit.done:
            self._writer.failed = self._writer.failed or "a commit was given up half way; the node must stop"
        self.check_usable()
        self.durable = commit.ticket
        self.position = commit.position
        commit.tail.durable_end = commit.end
        return self.durable

    def commit(self) -> int:
        """Begin, run and finish a commit if anything is not durable. It blocks for the disk."""
        self.check_usable()
        if self.needs_write or self.needs_sync:
            commit = self.begin_commit()
            commit.run()
            Log.finish(self, commit)
        return self.durable

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Commit pending records, append a mark that they are durable, and unlock the directory.

        If the journal has failed, or a commit still runs, nothing is written. The directory is unlocked in any case.
        """
        try:
            if self._tail is not None and not self._writer.failed and self._commit is None:
                self.commit()
                if self._tail.end > self._tail.snapshot_bytes:
                    # Not synced: if it is lost, the last commit merely looks like a torn one.
                    self._tail.add(DurableMark(), self._pending)
                    with contextlib.suppress(OSError, NoCapacity):
                        self._writer.write(self._pending)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Unlock the directory and write nothing, as a crash does, or after a failure."""
        self._writer.failed = self._writer.failed or f"the journal in {self._disk} is closed"
        self._disk.unlock()

    def check(self) -> None:
        assert 0 <= self.durable <= self.ticket
        assert 0 <= self.position <= self._appended
        assert self.rolling == any(isinstance(step, NewSegment) for step in self._steps)
        assert self._tail is None or 0 <= self._tail.durable_end <= self._tail.end
        self.segments.check()

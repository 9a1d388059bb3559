"""Everything a node must not forget, in one sequence of records: appended, committed, rolled.

Why one sequence for all partitions: one fsync then commits all that arrived meanwhile, of any partition (group
commit). Why segments that begin with a snapshot: all small state is in the newest segment, so an older one matters
for the batches in it and for nothing else.

Promises:

1. Records that `finish` reported durable are there after any crash, in order, and none that was not appended.
2. A torn tail is cut silently, and damage never is (replay.py).
3. After a write or a sync that failed, every call raises `StorageError` (commit.py). The node stops; the next start
   reads the disk's contents and writes them again.

A segment's first record lists the older segments that still count and how many bytes of each: that list detects
missing or truncated files, and makes anything after those bytes void. After every start the first thing written
is a new segment. The batches of the old one's tail (everything behind the last durable offset it mentions) are written
again into the new one, because it is unknown whether those bytes are on the disk or only in the system's memory.
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
"""The last reserve, a file, takes this part of the first one, beside it."""

MARGIN_SHARE: Final = 16
"""Beside a snapshot a start writes little: this part of the first reserve, and at most 1 MiB, is left for it."""


class Log:
    """The records of one directory, from the first `roll` on: a new segment, with the snapshot of the replay.

    Args:
        disk: the directory, locked; `abandon` and `close` give it back.
        replay: reader of the directory, exhausted.
        segment_bytes: bytes of a full segment.
        reserve_bytes: with less than this free, a roll is triggered earlier. A part of it is `last_bytes`.

    Attributes:
        segments: the account of all segments.
        ticket: value that `durable` must reach for everything appended so far to be durable.
        durable: everything with a ticket not above this is durable.
        position: number of durable records ever appended to this directory. Every later start finds the records
            at or below a position that was ever said, unless the directory is an older copy of itself. At first it is
            the number found. Snapshots and records that are written again count nothing.
        pending_bytes: bytes in memory for the next commit; the caller bounds them by pushing back on its clients.
        unwritten: batches that no commit has written yet, by number: ticket, raw header, body.
        not_trusted: reason why a node must not vote from this directory before a resync; "" if it is sound. Each
            new segment says so, and so every later start, until `trusted`, and a commit behind it.
        rolling: a segment waits to be begun.
        last_bytes: bytes of the file that is given up on a full disk (`RESERVE_NAME`); 0 without one.
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
        """Raise `StorageError` after a failure, or once given back."""
        if self._writer.failed:
            self._writer.check()

    # ------------------------------------------------------------------ appending

    def add(self, record: JournalRecord | BatchesDropped | BatchMoved | PageMoved) -> BatchPosition | None:
        """Put a record behind all others, in memory; a commit brings it to the disk. Returns a batch's position.

        The body of a batch is kept as it is until then, not copied: it must not change.
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
        """True if no later record says that the last durable ones are: damage in them would look like a torn write."""
        tail = self._tail
        return (
            tail is not None
            and self._commit is None
            and not self._steps
            and max(tail.snapshot_bytes, self._marked_end) < tail.end == tail.durable_end
        )

    def mark(self) -> None:
        """If `is_unmarked`, append a mark that the last records are durable. A commit brings it to the disk."""
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
        """Bytes that must be free for a start: room for a snapshot, as large as it may be by now, and a little more."""
        return self.snapshot_bytes + self._margin + (0 if self._tail is None else self._tail.small_bytes)

    @property
    def _margin(self) -> int:
        return min(MIB, self.reserve_bytes // MARGIN_SHARE) if self.reserve_bytes else MIB

    @property
    def owed_bytes(self) -> int:
        """Bytes that the last reserve takes when there is room; 0 if it is there."""
        return 0 if self._writer.reserved else self.last_bytes

    def reserve(self) -> None:
        """Make the file that is the last reserve, unless it is there, or there is no room for it."""
        if self.last_bytes and not self._writer.failed:
            self._writer.reserve(self.last_bytes)

    def trusted(self) -> None:
        """Trust the directory again, from the next segment on, now due: the node has resynced, and that is durable."""
        self._trusted = bool(self.not_trusted)
        self.not_trusted = ""

    @property
    def should_roll(self) -> bool:
        """True if it is time for `Journal.roll`: nothing was written yet, or a resync has made the directory trusted;
        or the segment is full, or a new one lets enough old ones go, and the disk has room for its snapshot.

        Within the reserve, segments roll earlier. Without publishes they have small records alone, most of them
        superseded by the next snapshot, so the following roll deletes the segment: acks never fill a disk.
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
        """True if anything is not durable, nor on its way."""
        return self.ticket > (self.durable if self._commit is None else self._commit.ticket)

    def begin_commit(self) -> Commit:
        """Take everything appended so far: one at a time. Then `Commit.run`, in a thread, then `finish`."""
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
        """Finish a commit that was run, and not only to `NoCapacity`; return the new `durable`.

        Raises:
            StorageError: it failed: the node must stop.
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
        """Do all three in one, for callers that may block."""
        self.check_usable()
        if self.needs_write or self.needs_sync:
            commit = self.begin_commit()
            commit.run()
            Log.finish(self, commit)
        return self.durable

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Commit pending records, say that they are durable, and give the directory back.

        After a failure, or with a commit still running, nothing is written. The directory is given back always.
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
        """Give the directory back and write nothing, as a crash does, or after a failure."""
        self._writer.failed = self._writer.failed or f"the journal in {self._disk} is closed"
        self._disk.unlock()

    def check(self) -> None:
        assert 0 <= self.durable <= self.ticket
        assert 0 <= self.position <= self._appended
        assert self.rolling == any(isinstance(step, NewSegment) for step in self._steps)
        assert self._tail is None or 0 <= self._tail.durable_end <= self._tail.end
        self.segments.check()

"""The node's durable memory, as the node's shell uses it.

The journal knows segments and offsets, the core knows batch numbers; the store is what lies between: an index
from number to position, in arrays (36 bytes a batch), and the batches that no commit has written yet, which are
served from memory. What is appended, when a commit happens and what a snapshot holds is the caller's business.

How room comes back: the caller says which batches nobody needs (`forget`). An older segment in which none is needed
goes with the next roll. One in which few are needed is emptied first (`reclaim`): they are appended again, a little
at a time, and their old places count no more. So a directory holds at most twice what is needed, and a few segments.
"""

from __future__ import annotations

import os
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from quorumq.core.errors import StorageError
from quorumq.core.limits import KIB, MIB
from quorumq.core.records import BatchStored, JournalRecord
from quorumq.storage.disk import Buffer, Disk, RealDisk
from quorumq.storage.journal import (
    SEGMENT_BYTES,
    BatchPosition,
    Commit,
    DamagedBatch,
    DamagedDirectory,
    FoundBatch,
    Journal,
)
from quorumq.storage.records import forgotten
from quorumq.storage.salvage import SalvagingJournal

RESERVE_BYTES: Final = 64 * MIB
"""Disk space that publishes leave alone, so that tombstones and snapshots can be written when they no longer can."""

RECLAIM_BYTES: Final = 256 * KIB
"""What `Store.reclaim` copies at least before it lets others go on; more after a large commit, to keep up with it."""

RECLAIM_BYTES_MAX: Final = 4 * MIB

RECLAIM_LOOK: Final = 4096
"""Batches of the index that one `Store.reclaim` looks at."""


def random_directory_id() -> int:
    """64 random bits that are not 0: the id of a new data directory."""
    return secrets.randbits(64) or 1


class _Index:
    """Positions by batch number. Numbers nearly always come in ascending order.

    A batch that was removed stays in the arrays, in segment 0, until half of them are such batches.
    """

    def __init__(self) -> None:
        self.numbers = array("Q")
        self._removed = 0
        self._segments = array("Q")
        self._records = array("Q")
        self._header_lengths = array("I")
        self._lengths = array("I")
        self._crcs = array("I")

    def _columns(self) -> tuple[array[int], ...]:
        return (self._segments, self._records, self._header_lengths, self._lengths, self._crcs)

    def __len__(self) -> int:
        return len(self.numbers) - self._removed

    def add(self, number: int, position: BatchPosition) -> bool:
        """Note a batch; False where the number is taken."""
        if not self.numbers or number > self.numbers[-1]:
            at = len(self.numbers)
        else:
            at = bisect_left(self.numbers, number)
            if self.numbers[at] == number:
                if self._segments[at]:
                    return False
                self._removed -= 1
                self._put(at, position)
                return True
        self.numbers.insert(at, number)
        for column, value in zip(self._columns(), position, strict=True):
            column.insert(at, value)
        return True

    def _find(self, number: int) -> int:
        at = bisect_left(self.numbers, number)
        there = at < len(self.numbers) and self.numbers[at] == number and self._segments[at]
        return at if there else -1

    def get(self, number: int) -> BatchPosition | None:
        at = self._find(number)
        return None if at < 0 else BatchPosition(*(column[at] for column in self._columns()))

    def move(self, number: int, position: BatchPosition) -> None:
        at = self._find(number)
        assert at >= 0, f"batch {number} is not there"
        self._put(at, position)

    def _put(self, at: int, position: BatchPosition) -> None:
        for column, value in zip(self._columns(), position, strict=True):
            column[at] = value

    def remove(self, number: int) -> None:
        at = self._find(number)
        assert at >= 0, f"batch {number} is not there"
        self._segments[at] = 0
        self._removed += 1
        if 2 * self._removed > len(self.numbers):
            kept = [at for at, segment in enumerate(self._segments) if segment]
            for column in (self.numbers, *self._columns()):
                column[:] = array(column.typecode, [column[at] for at in kept])
            self._removed = 0

    def within(self, segment: int, start: int, stop: int, count: int) -> tuple[list[int], int]:
        """Batches of a segment with numbers in [start, stop), looking at ``count``; and where to look next."""
        first = bisect_left(self.numbers, start)
        last = min(first + count, bisect_left(self.numbers, stop))
        found = [
            number
            for number, at in zip(self.numbers[first:last], self._segments[first:last], strict=True)
            if at == segment
        ]
        return found, self.numbers[last] if last < bisect_left(self.numbers, stop) else stop


def _replayed(journal: Journal, reserve_bytes: int) -> tuple[Journal, int, list[JournalRecord | FoundBatch]]:
    try:
        return journal, reserve_bytes, list(journal.replay())
    except BaseException:
        journal.abandon()
        raise


class Store:
    """A node's journal and the batches in it, by number. Made by `open`; one thread, but for what a `Commit` does.

    After `open`: exhaust `replayed`, build the core from it, `roll` with the core's snapshot, `commit`. Nothing
    else can be written before that.

    Attributes:
        salvaged: this start read past damage: what it gave is not all. `cannot_vouch` says of what kind, and goes on
            saying so at later starts, which have all that this one gave.
        damaged: batches whose body was found damaged by the replay: not in `replayed`, not served.
        reserve_bytes: see `kept_free`.
    """

    def __init__(
        self,
        journal: Journal,
        reserve_bytes: int,
        found: list[JournalRecord | FoundBatch] | None = None,
    ) -> None:
        self._journal = journal
        self._found = found
        self._index = _Index()
        self._unwritten: dict[int, tuple[int, bytes, Buffer]] = {}  # number -> ticket, raw header, body
        # Damaged batches, which are neither served nor forgotten.
        self._set_aside: dict[int, BatchPosition] = {}
        self._replay = self._replaying()
        self._emptying: int | None = (
            None  # a segment, and the number from which on its batches were not moved yet
        )
        self._moved_up_to = 0
        self._reclaim_bytes = RECLAIM_BYTES
        self.salvaged = False
        self.damaged: list[FoundBatch] = []
        self.reserve_bytes = reserve_bytes

    @classmethod
    def open(
        cls,
        disk: Disk | str | os.PathLike[str],
        *,
        node: str,
        cluster_id: str,
        new_directory_id: Callable[[], int] = random_directory_id,
        segment_bytes: int = SEGMENT_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        salvage: bool = False,
    ) -> Store:
        """Open a node's data directory, or make it.

        Args:
            disk: a Disk, or the path of the directory.
            node: the node's id; a directory of another is refused.
            cluster_id: the cluster's id; a directory of another is refused.
            new_directory_id: asked once for a new directory's id, 64 bits; the simulator gives its own.
            segment_bytes: when a segment is full.
            reserve_bytes: see `kept_free`.
            salvage: read past damage, and say so in `cannot_vouch`; everything is read before this returns.

        Raises:
            StorageError: as for `Journal.open`; a `DamagedDirectory` is what ``salvage`` reads past. The directory is
                free again then.
        """
        if isinstance(disk, str | os.PathLike):
            disk = RealDisk(disk)

        def opened(kind: type[Journal]) -> Journal:
            return kind.open(
                disk,
                node=node,
                cluster_id=cluster_id,
                new_directory_id=new_directory_id,
                segment_bytes=segment_bytes,
            )

        if not salvage:
            return cls(opened(Journal), reserve_bytes)
        try:
            return cls(*_replayed(opened(Journal), reserve_bytes))
        except DamagedDirectory as damage:
            journal = opened(SalvagingJournal)
            journal.cannot_vouch = damage.what
            store = cls(*_replayed(journal, reserve_bytes))
            store.salvaged = True
            return store

    # ------------------------------------------------------------------ start

    @property
    def replayed(self) -> Iterator[JournalRecord]:
        """What is durable, once: `DirectoryMade`, the newest snapshot, batches (without bodies), what came since.

        Raises, on the way:
            StorageError: damage that is not confined to the body of a batch: this directory cannot be used.
        """
        return self._replay

    def _replaying(self) -> Iterator[JournalRecord]:
        for item in self._journal.replay() if self._found is None else self._found:
            if not isinstance(item, FoundBatch):
                yield item
            elif self._take(item):
                yield item.record

    def _take(self, item: FoundBatch) -> bool:
        """Note where a batch lies; whether the core is to hear of it."""
        number = item.record.number
        there = self._index.get(number)
        if there is not None or number in self._set_aside:
            if not item.moved:
                raise StorageError(
                    f"batch number {number} is twice in the journal, in segment {item.position.segment} "
                    f"and elsewhere: this directory was written by two nodes, or files of two were mixed"
                )
            if item.damaged and there is not None:  # what it was copied from is still there, and better
                self._journal.drop(number, item.position)
                return False
            self._journal.drop(number, there or self._set_aside.pop(number))
            self.damaged = [found for found in self.damaged if found.record.number != number]
        if item.damaged:
            self.damaged.append(item)
            self._set_aside[number] = item.position
            return False
        if there is not None:
            self._index.move(number, item.position)
            return False
        self._index.add(number, item.position)
        return True

    @property
    def directory(self) -> int:
        """The id of the data directory."""
        return self._journal.directory

    @property
    def place(self) -> int:
        """Where the directory lies: every start finds the same number, until the directory is copied."""
        return self._journal.place

    @property
    def fresh(self) -> bool:
        """Whether the directory was empty at this start."""
        return self._journal.fresh

    @property
    def cannot_vouch(self) -> str:
        """Why a node must not vote from this directory before it has resynced; "" where it is sound.

        Every later start says so again until `vouch`, and a commit behind it.
        """
        return self._journal.cannot_vouch

    def vouch(self) -> None:
        """The node has resynced, and that is durable: trust the directory again. `should_roll` is true then."""
        self._journal.vouch()

    @property
    def notes(self) -> list[str]:
        """What this start found worth telling the operator, in words."""
        return self._journal.notes

    # ------------------------------------------------------------------ writing

    def append(self, records: Iterable[JournalRecord]) -> int:
        """Put records behind all others, in memory, in order.

        Bodies are kept as they are until they are written: they must not change.

        Returns:
            A ticket: they are durable once `durable` is not below it.

        Raises:
            StorageError: the journal failed before, or a record is over its limits.
        """
        journal = self._journal
        for record in records:
            position = journal.append(record)
            if position is not None:
                assert isinstance(record, BatchStored)
                new = record.number not in self._set_aside and self._index.add(record.number, position)
                assert new, f"batch number {record.number} is taken"
                self._unwritten[record.number] = (journal.ticket, record.batch.raw, record.batch.body)
        return journal.ticket

    @property
    def needs_write(self) -> bool:
        """Whether anything waits for a commit to write it."""
        return self._journal.needs_write

    @property
    def needs_sync(self) -> bool:
        """Whether anything is not durable, nor on its way."""
        return self._journal.needs_sync

    @property
    def rolling(self) -> bool:
        """Whether a segment waits to be begun, which only a commit that syncs can do."""
        return self._journal.rolling

    @property
    def pending_bytes(self) -> int:
        """What waits in memory for the next commit; the caller bounds it by pushing back on its clients."""
        return self._journal.pending_bytes

    @property
    def durable(self) -> int:
        """Everything with a ticket not above this is durable."""
        return self._journal.durable

    @property
    def written(self) -> int:
        """Likewise written to the operating system: it survives the process, and not the machine."""
        return self._journal.written

    @property
    def position(self) -> int:
        """How many records were ever appended to this directory and are durable.

        It only rises while a directory lives: what is at or below a position that was ever said is found by every
        later start, unless the directory is an older copy of itself. After ``replayed`` is exhausted it says how much
        was found. Snapshots, rolls and what is written again count nothing.
        """
        return self._journal.position

    def begin_commit(self, sync: bool = True) -> Commit:
        """Take everything appended so far. Then `Commit.run`, in a thread, then `finish`.

        Args:
            sync: whether it makes durable what was written: one such at a time. Without, it may begin once another's
                `Commit.write` is over and `note_written` was called, unless `rolling`.
        """
        return self._journal.begin_commit(sync)

    def note_written(self, commit: Commit) -> None:
        """The commit has written, and syncs. `StorageError` if the journal failed before."""
        self._journal.note_written(commit)
        self._forget_written()

    def finish(self, commit: Commit) -> int:
        """The commit was run: returns the new `durable`. `StorageError` if it failed: the node must stop."""
        durable = self._journal.finish(commit)
        self._forget_written()
        self._reclaim_bytes = min(max(RECLAIM_BYTES, commit.size), RECLAIM_BYTES_MAX)
        return durable

    def commit(self) -> int:
        """All three in one, for those who may block."""
        durable = self._journal.commit()
        self._forget_written()
        return durable

    def _forget_written(self) -> None:
        while self._unwritten:
            number = next(iter(self._unwritten))
            if self._unwritten[number][0] > self._journal.written:
                break
            del self._unwritten[number]

    @property
    def should_roll(self) -> bool:
        """Whether it is time for `roll`: the segment is full, old ones can go, or nothing was written yet."""
        return self._journal.should_roll(self.reserve_bytes)

    def roll(self, snapshot: Callable[[], Iterable[JournalRecord]] | Iterable[JournalRecord]) -> int:
        """Begin a new segment; a commit brings it to the disk.

        Args:
            snapshot: the records that rebuild everything the core has, batches aside, as of all that was
                appended; or what gives them.

        Returns:
            A ticket, as `append` does.

        Raises:
            StorageError: the journal failed, or a batch that must be written again cannot be read.
        """
        try:
            moved = self._journal.roll(snapshot() if callable(snapshot) else snapshot)
        except DamagedBatch as error:
            raise StorageError(
                f"the tail of the journal was read a moment ago and changed since: {error}"
            ) from error
        for item in moved:
            record = item.record
            self._index.move(record.number, item.position)
            self._unwritten[record.number] = (self._journal.ticket, record.batch.raw, record.batch.body)
        return self._journal.ticket

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._index)

    @property
    def unreadable(self) -> tuple[int, ...]:
        """The batches that were found damaged, by this start or since, and not forgotten."""
        return tuple(self._set_aside)

    def __contains__(self, number: int) -> bool:
        return self._index.get(number) is not None

    def _position(self, number: int) -> BatchPosition:
        position = self._index.get(number)
        if number in self._set_aside:
            raise DamagedBatch(
                f"batch number {number} was found damaged: fetch it from another replica", number
            )
        if position is None:
            raise KeyError(f"there is no batch number {number} here")
        return position

    def read_slice(
        self, number: int, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> bytes | memoryview:
        """Bytes [start, stop) of a batch's body, durable or not.

        Args:
            number: the batch, as in its `BatchStored`.
            start: the first byte.
            stop: where to end; None for the end.
            check: compare the checksum of the whole body, which reads all of it.

        Raises:
            DamagedBatch: the body is not what was written. Fetch it from another replica.
            StorageError: the disk cannot be read, or the journal failed before.
            KeyError: there is no such batch.
        """
        waiting = self._unwritten.get(number)
        if waiting is not None:
            return memoryview(waiting[2])[start:stop]
        try:
            return self._journal.read_body(self._position(number), start, stop, check=check)
        except DamagedBatch as error:
            error.number = number
            self.set_aside(number)
            raise

    def set_aside(self, number: int) -> None:
        """This batch was found damaged: it is not served any more, and every start reports it until it is forgotten."""
        position = self._index.get(number)
        if position is not None:
            self._index.remove(number)
            self._unwritten.pop(number, None)
            self._journal.note_damaged(position)
            self._set_aside[number] = position

    def raw_header(self, number: int) -> bytes:
        """The encoded header of a batch, as its producer wrote it. Errors as for `read_slice`."""
        waiting = self._unwritten.get(number)
        if waiting is not None:
            return waiting[1]
        return self._journal.read_record(self._position(number)).record.batch.raw

    # ------------------------------------------------------------------ room

    @property
    def free_bytes(self) -> int:
        """Bytes that the disk still takes, less what waits for a commit."""
        return self._journal.free_bytes()

    @property
    def kept_free(self) -> int:
        """Bytes of the disk that publishes are to leave alone: the reserve, for acks, and room for the next snapshot.

        Without room for that a start fails.
        """
        return self.reserve_bytes + self._journal.snapshot_bytes

    @property
    def live(self) -> dict[int, int]:
        """Live batches of each segment, oldest first; the last is the current one."""
        return self._journal.live

    @property
    def next_number(self) -> int:
        """Above every batch number that was ever used here: none is used twice, though its batch be forgotten."""
        return self._journal.next_number

    def forget(self, numbers: Iterable[int]) -> int:
        """Nobody needs these batches any more: they are not served, and their bytes go some time later.

        What says why must have been appended before. Where a crash takes the record that this appends, the batches
        are there again.

        Args:
            numbers: of batches, damaged ones too. Those that are not there are left out.

        Returns:
            A ticket, as `append` does: no replay returns them once that is durable.

        Raises:
            StorageError: the journal failed before.
        """
        journal = self._journal
        gone: dict[int, BatchPosition] = {}
        for number in numbers:
            position = self._index.get(number) or self._set_aside.get(number)
            if position is not None:
                gone[number] = position
        for record in forgotten(gone):
            journal.append(record)
        for number, position in gone.items():
            journal.drop(number, position)
            self._unwritten.pop(number, None)
            if self._set_aside.pop(number, None) is None:
                self._index.remove(number)
        return journal.ticket

    def reclaim(self) -> tuple[int, ...]:
        """Append a few batches of the emptiest older segment again, so that its file can go. Call it after a commit.

        It copies about as much as that commit wrote. It leaves half of the reserve and room for two snapshots free, for
        acks, and begins only with a segment whose copies fit, because what it frees comes after what it takes. When
        everything is moved, `should_roll` says when a roll pays.

        Returns:
            Batches that turned out to be damaged: they were copied as they are, and are not served any more.

        Raises:
            StorageError: damage that is not confined to the body of a batch, or the journal failed before.
        """
        journal = self._journal
        room = journal.free_bytes() - self.reserve_bytes // 2 - 2 * journal.snapshot_bytes
        segment = self._emptying
        low, high = (1, 0) if segment is None else journal.numbers_in(segment)
        if segment is None or max(low, self._moved_up_to) > high:
            segment, self._moved_up_to = journal.sparsest(room), 0
            self._emptying = segment
            if segment is None:
                return ()
            low, high = journal.numbers_in(segment)
        budget = min(self._reclaim_bytes, room)
        damaged: list[int] = []
        start = max(low, self._moved_up_to)
        numbers, then = self._index.within(segment, start, high + 1, RECLAIM_LOOK)
        aside = [n for n, at in self._set_aside.items() if at.segment == segment and start <= n < then]
        for number in sorted((*numbers, *aside)):
            if budget <= 0 or number in self._unwritten:  # before a roll that is not committed yet
                then = number
                break
            old = self._set_aside.get(number) or self._position(number)
            copy = journal.move(old)
            budget -= copy.position.end - copy.position.record
            journal.drop(number, old)
            if not copy.damaged:
                self._index.move(number, copy.position)
                self._unwritten[number] = (journal.ticket, copy.record.batch.raw, copy.record.batch.body)
                continue
            if number not in self._set_aside:
                self._index.remove(number)
                damaged.append(number)
            self._set_aside[number] = copy.position
        self._moved_up_to = then
        return tuple(damaged)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Commit what is pending and give the directory back; nothing is written after a failure."""
        self._journal.close()

    def abandon(self) -> None:
        """Give the directory back and write nothing."""
        self._journal.abandon()

    def check(self) -> None:
        """Assert what holds between any two calls."""
        self._journal.check()
        numbers = list(self._index.numbers)
        assert numbers == sorted(set(numbers)), "batch numbers are unique and in order"
        assert all(number in self for number in self._unwritten)
        assert not any(number in self for number in self._set_aside), "a damaged batch is not served"
        live = len(self._index) + len(self._set_aside)
        assert sum(self.live.values()) == live, "a batch is live in one segment, and every live one is known"

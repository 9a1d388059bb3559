"""The node's durable memory, as the node's shell uses it.

The log knows segments and offsets, and the core knows batch numbers. The journal has an index from number to position.
If no commit has written a batch yet, the journal serves it from memory. The caller decides about appends, commits and
the contents of a snapshot.

Disk space is reclaimed so: the caller names the batches that are not needed (`drop`). If an older segment has no
needed batch, the next roll deletes it. If it has few, `compact` appends these again in small steps, and their old
positions no longer count. So a directory takes at most twice the needed bytes, and a few segments.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from typing import Final

from quorumq.core.messages.records import BatchStored, DeletedPage, JournalRecord
from quorumq.core.values.errors import StorageError
from quorumq.core.values.limits import KIB, MIB
from quorumq.storage.commit import Commit
from quorumq.storage.compaction import Compaction
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.disk import Disk, RealDisk
from quorumq.storage.index import Index
from quorumq.storage.log import Log
from quorumq.storage.records import BatchMoved, PageMoved, dropped
from quorumq.storage.salvage import Directory, read_directory
from quorumq.storage.segments import SEGMENT_BYTES, BatchPosition, FoundBatch

RESERVE_BYTES: Final = 64 * MIB
"""Bytes of the disk that publishes do not use: tombstones and snapshots can be written when publishes are refused."""

COMPACT_BYTES: Final = 256 * KIB
"""Least bytes that one `Journal.compact` copies. If the last commit was larger, it copies as much, to keep up."""

COMPACT_BYTES_MAX: Final = 4 * MIB


def random_directory_id() -> int:
    """64 random bits that are not 0: the id of a new data directory."""
    return secrets.randbits(64) or 1


class Journal(Log):
    """A node's log and the batches in it, by number. `open` makes it. Another thread may only run a `Commit` of it.

    After `open`: build the core from `replayed`, `roll` with the core's snapshot, `commit`. Nothing else can be
    written before that.

    Attributes, beside those of `Log`:
        replayed: iterator of the durable records: `DirectoryMade`, the newest snapshot, later ones, batches (without
            bodies), and the CLEAN_STOP if that is the last record.
        directory: the id of the data directory, 64 random bits minted when it was made.
        location: a number that every start finds the same, until the directory is copied.
        fresh: True if the directory was empty at this start.
        salvaged: True if this start read past damage: records may be missing. `not_trusted` describes the damage, at
            later starts too, which find all records of this one.
        damaged: batches whose body was found damaged by this start: not in `replayed`, not served.
        notes: findings of this start for the operator, in words (a cut tail, files deleted).
    """

    def __init__(self, disk: Disk, read: Directory, segment_bytes: int, reserve_bytes: int) -> None:
        replay = read.replay
        super().__init__(disk, replay, segment_bytes, reserve_bytes)
        self._index = Index()
        # Damaged batches, which are neither served nor dropped.
        self._unreadable: dict[int, BatchPosition] = {}
        self._compacting = Compaction(self.segments, self._index, self._unreadable)
        self._compact_bytes = COMPACT_BYTES
        self.directory = replay.directory
        self.location = replay.start.location
        self.fresh = replay.fresh
        self.notes = replay.notes
        self.damaged: list[FoundBatch] = []
        self.salvaged = bool(read.damage)
        if read.damage:
            self.not_trusted = read.damage
        replayed: list[JournalRecord] = []
        for item in read.entries:
            if not isinstance(item, FoundBatch):
                replayed.append(item)
            elif self._take(item):
                replayed.append(item.record)
        self.replayed = iter(replayed)

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
    ) -> Journal:
        """Open a node's data directory and read all of it. If it does not exist, make it.

        Args:
            new_directory_id: function that returns 64 random bits, called if the directory is new.
            salvage: if the directory is damaged, read past the damage, and describe it in `not_trusted`.

        Raises:
            DamagedDirectory: damage that is not confined to the body of a batch, when ``salvage`` is False.
            StorageError: the directory is in use, of another node or cluster, or written by a newer version. It is
                unlocked then.
        """
        if isinstance(disk, str | os.PathLike):
            disk = RealDisk(disk)
        read = read_directory(
            disk, node=node, cluster_id=cluster_id, new_directory_id=new_directory_id, salvage=salvage
        )
        try:
            return cls(disk, read, segment_bytes, reserve_bytes)
        except BaseException:
            disk.unlock()
            raise

    # ------------------------------------------------------------------ start

    def _take(self, item: FoundBatch) -> bool:
        """Note the position of a batch. Return True if the core is to get it."""
        number = item.record.number
        there = self._index.get(number)
        if there is not None or number in self._unreadable:
            if not item.moved:
                raise StorageError(
                    f"batch number {number} is twice in the journal, in segment {item.position.segment} "
                    f"and elsewhere: this directory was written by two nodes, or files of two were mixed"
                )
            if item.damaged and there is not None:  # its source is still there, and better
                self.segments.drop(number, item.position)
                return False
            self.segments.drop(number, there or self._unreadable.pop(number))
            self.damaged = [batch for batch in self.damaged if batch.record.number != number]
        if item.damaged:
            self.damaged.append(item)
            self._unreadable[number] = item.position
            return False
        if there is not None:
            self._index.move(number, item.position)
            return False
        self._index.add(number, item.position)
        return True

    # ------------------------------------------------------------------ writing

    def append(self, records: Iterable[JournalRecord]) -> int:
        """Append records in memory, in order.

        Bodies are not copied: they must not change until they are written.

        Returns:
            A ticket: when `durable` is not below it, the records are durable.

        Raises:
            StorageError: the journal failed before, or a record is over its limits.
        """
        for record in records:
            position = self.add(record)
            if position is not None:
                assert isinstance(record, BatchStored | DeletedPage)
                new = record.number not in self._unreadable and self._index.add(record.number, position)
                assert new, f"batch number {record.number} is taken"
        return self.ticket

    def finish(self, commit: Commit) -> int:
        durable = super().finish(commit)
        self._compact_bytes = min(max(COMPACT_BYTES, commit.size), COMPACT_BYTES_MAX)
        return durable

    def roll(self, snapshot: Callable[[], Iterable[JournalRecord]] | Iterable[JournalRecord]) -> int:
        """Begin a new segment in memory; a commit writes it.

        Args:
            snapshot: the records that rebuild all that the core has after the last append, except batches; or a
                function that returns them.

        Returns:
            A ticket, as `append` does.

        Raises:
            StorageError: the journal failed, or a batch that must be written again cannot be read.
        """
        try:
            records = snapshot() if callable(snapshot) else snapshot
            with self._writer:  # with half a segment in memory nothing may be written after it
                moved = self._begin_segment(records)
        except DamagedBatch as error:
            raise StorageError(
                f"the tail of the journal was read a moment ago and changed since: {error}"
            ) from error
        for item in moved:
            self._index.move(item.record.number, item.position)
        return self.ticket

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self._index)

    @property
    def unreadable(self) -> tuple[int, ...]:
        """Numbers of the batches that were found damaged, at this start or later, and are not dropped."""
        return tuple(self._unreadable)

    def __contains__(self, number: int) -> bool:
        return self._index.get(number) is not None

    def _position(self, number: int) -> BatchPosition:
        self.check_usable()
        position = self._index.get(number)
        if number in self._unreadable:
            raise DamagedBatch(
                f"batch number {number} was found damaged: fetch it from another replica", number
            )
        if position is None:
            raise KeyError(f"there is no batch number {number} here")
        return position

    def read_slice(
        self, number: int, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> bytes | memoryview:
        """Return bytes [start, stop) of a batch's body, durable or not.

        Args:
            check: compare the checksum of the whole body, which reads all of it.

        Raises:
            DamagedBatch: the body differs from the bytes written. Fetch it from another replica.
            StorageError: the disk cannot be read, or the journal failed before.
            KeyError: there is no such batch.
        """
        waiting = self.unwritten.get(number)
        if waiting is not None:
            return memoryview(waiting[2])[start:stop]
        try:
            return self._files.body(self._position(number), start, stop, check=check)
        except DamagedBatch as error:
            error.number = number
            self.set_aside(number)
            raise

    def set_aside(self, number: int) -> None:
        """Note that a batch is damaged: it is not served any more, and every start reports it until it is dropped."""
        position = self._index.get(number)
        if position is not None:
            self._index.remove(number)
            self.unwritten.pop(number, None)
            self.segments.note_damaged(position)
            self._unreadable[number] = position

    def raw_header(self, number: int) -> bytes:
        """Return a batch's header as its producer encoded it; b"" if it is a page. Raises as `read_slice`."""
        waiting = self.unwritten.get(number)
        if waiting is not None:
            return waiting[1]
        stored = self._files.stored_at(self._position(number), self.directory)
        return stored.batch.raw if isinstance(stored, BatchStored) else b""

    # ------------------------------------------------------------------ room

    @property
    def kept_free(self) -> int:
        """Bytes of the disk that publishes do not use: the reserve, for acks, and space for the next snapshot.

        If there is no space for a snapshot, a start fails.
        """
        return self.reserve_bytes + self.snapshot_bytes

    @property
    def live(self) -> dict[int, int]:
        """Live batches of each segment, oldest first; the last is the current one."""
        return self.segments.live

    @property
    def next_number(self) -> int:
        """Greater than every batch number ever used here. When a batch is dropped, its number is not used again."""
        return self.segments.next_number

    def drop(self, numbers: Iterable[int]) -> int:
        """Drop batches that are not needed any more: they are not served, and a later roll frees their bytes.

        The caller has appended the record that gives the reason. If a crash loses the record that this appends, the
        batches are there again.

        Args:
            numbers: numbers of batches, also of damaged ones. If one is not there, it is left out.

        Returns:
            A ticket, as `append` does: when it is durable, no replay returns the batches.

        Raises:
            StorageError: the journal failed before.
        """
        gone: dict[int, BatchPosition] = {}
        for number in numbers:
            position = self._index.get(number) or self._unreadable.get(number)
            if position is not None:
                gone[number] = position
        for record in dropped(gone):
            self.add(record)
        for number, position in gone.items():
            self.segments.drop(number, position)
            self.unwritten.pop(number, None)
            if self._unreadable.pop(number, None) is None:
                self._index.remove(number)
        return self.ticket

    @property
    def needs_compaction(self) -> bool:
        """True if `compact` has anything to do."""
        return not self._compacting.is_over

    def compact(self) -> tuple[int, ...]:
        """Copy some live batches out of the sparsest segment, so that its file can be deleted. Call it after a commit.

        It copies about as much as that commit wrote. It leaves half of the reserve and space for two snapshots free,
        for acks. It begins a segment only if all copies fit, because they take space before the file is deleted. When
        everything is moved, `should_roll` returns True if a roll pays.

        Returns:
            Numbers of batches that this call found damaged: they were copied as they are, and are no longer served.

        Raises:
            StorageError: damage that is not confined to the body of a batch, or the journal failed before.
        """
        if self._compacting.is_over:
            return ()
        bytes_free = self.free_bytes - self.reserve_bytes // 2 - 2 * self.snapshot_bytes
        budget = min(self._compact_bytes, bytes_free)
        damaged: list[int] = []
        for number in self._compacting.numbers(bytes_free):
            if budget <= 0 or number in self.unwritten:  # its bytes are not in the file yet
                break
            known = number in self._unreadable
            copy = self._copy(number)
            budget -= copy.end - copy.record
            if number in self._unreadable and not known:
                damaged.append(number)
        return tuple(damaged)

    def _copy(self, number: int) -> BatchPosition:
        """Append a batch again and drop its old position. If it is damaged, the copy is too. Returns the new one."""
        damaged = number in self._unreadable
        old = self._unreadable[number] if damaged else self._position(number)
        stored = self._files.stored_at(old, self.directory)
        if isinstance(stored, DeletedPage):
            again = self.add(PageMoved(stored))
            assert again is not None
            self.segments.drop(number, old)
            self._index.move(number, again)
            return again
        try:
            body = self._files.body(old)
        except DamagedBatch:
            body, damaged = self._files.damaged_body(old), True
            self.set_aside(number)
        stored = stored._replace(batch=stored.batch._replace(body=body))
        new = self.add(BatchMoved(stored, damaged))
        assert new is not None
        self.segments.drop(number, old)
        if damaged:
            self._unreadable[number] = new
        else:
            self._index.move(number, new)
        return new

    # ------------------------------------------------------------------ the end

    def check(self) -> None:
        super().check()
        numbers = list(self._index.numbers)
        assert numbers == sorted(set(numbers)), "batch numbers are unique and in order"
        assert all(number in self for number in self.unwritten)
        assert not any(number in self for number in self._unreadable), "a damaged batch is not served"
        live = len(self._index) + len(self._unreadable)
        assert sum(self.live.values()) == live, "a batch is live in one segment, and every live one is known"

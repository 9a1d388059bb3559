# quorumq/storage/store.py: the node's durable memory, as the node's shell uses it.
#
# The journal knows segments and offsets, the core knows batch numbers; the store is what lies between: an index
# from number to position, in arrays (36 bytes a batch), and the batches that no commit has written yet, which are
# served from memory. It decides nothing: what is appended, when a commit happens and what a snapshot holds is the
# caller's business.
"""Batches by number, on top of the journal."""

from __future__ import annotations

import os
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from quorumq.core.errors import StorageError, StorageFull
from quorumq.core.limits import MIB
from quorumq.core.records import BatchStored, JournalRecord
from quorumq.storage.disk import Buffer, Disk, RealDisk
from quorumq.storage.journal import SEGMENT_BYTES, BatchPosition, Commit, Damaged, DamagedBatch, Journal

RESERVE_BYTES: Final = 64 * MIB
"""Disk space that publishes leave alone, so that tombstones and snapshots can be written when they no longer can."""


def random_directory_id() -> int:
    """64 random bits that are not 0: the id of a new data directory."""
    return secrets.randbits(64) or 1


class _Index:
    """Positions by batch number. Numbers nearly always come in ascending order."""

    def __init__(self) -> None:
        self.numbers = array("Q")
        self._segments = array("Q")
        self._records = array("Q")
        self._header_lengths = array("I")
        self._lengths = array("I")
        self._crcs = array("I")

    def _columns(self) -> tuple[array[int], ...]:
        return (self._segments, self._records, self._header_lengths, self._lengths, self._crcs)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, position: BatchPosition) -> bool:
        """Note a batch; False where the number is taken."""
        if not self.numbers or number > self.numbers[-1]:
            at = len(self.numbers)
        else:
            at = bisect_left(self.numbers, number)
            if self.numbers[at] == number:
                return False
        self.numbers.insert(at, number)
        for column, value in zip(self._columns(), position, strict=True):
            column.insert(at, value)
        return True

    def _find(self, number: int) -> int:
        at = bisect_left(self.numbers, number)
        return at if at < len(self.numbers) and self.numbers[at] == number else -1

    def get(self, number: int) -> BatchPosition | None:
        at = self._find(number)
        return None if at < 0 else BatchPosition(*(column[at] for column in self._columns()))

    def move(self, number: int, position: BatchPosition) -> None:
        at = self._find(number)
        assert at >= 0, f"batch {number} is not there"
        for column, value in zip(self._columns(), position, strict=True):
            column[at] = value

    def remove(self, number: int) -> None:
        at = self._find(number)
        del self.numbers[at]
        for column in self._columns():
            del column[at]


class Store:
    """A node's journal and the batches in it, by number. Made by `open`; one thread, but for `Commit.run`.

    After `open`: exhaust `replayed`, build the core from it, `roll` with the core's snapshot, `commit`. Nothing
    else can be written before that.

    Attributes:
        damaged: batches whose body was found damaged so far by the replay: not in `replayed`, not served.
        reserve_bytes: what `check_space` leaves free.
    """

    def __init__(self, journal: Journal, reserve_bytes: int) -> None:
        self._journal = journal
        self._index = _Index()
        self._unwritten: dict[int, tuple[int, bytes, Buffer]] = {}  # number -> ticket, raw header, body
        self._replay = self._replaying()
        self.damaged: list[Damaged] = []
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
    ) -> Store:
        """Open a node's data directory, or make it.

        Args:
            disk: a Disk, or the path of the directory.
            node: the node's id; a directory of another is refused.
            cluster_id: the cluster's id; a directory of another is refused.
            new_directory_id: asked once for a new directory's id, 64 bits; the simulator gives its own.
            segment_bytes: when a segment is full.
            reserve_bytes: see `check_space`.

        Raises:
            StorageError: as for `Journal.open`. The directory is free again then.
        """
        if isinstance(disk, str | os.PathLike):
            disk = RealDisk(disk)
        journal = Journal.open(
            disk,
            node=node,
            cluster_id=cluster_id,
            new_directory_id=new_directory_id,
            segment_bytes=segment_bytes,
        )
        return cls(journal, reserve_bytes)

    # ------------------------------------------------------------------ start

    @property
    def replayed(self) -> Iterator[JournalRecord]:
        """What is durable, once: `DirectoryMade`, the newest snapshot, batches (without bodies), what came since.

        Raises, on the way:
            StorageError: damage that is not confined to the body of a batch: this directory cannot be used.
        """
        return self._replay

    def _replaying(self) -> Iterator[JournalRecord]:
        for item in self._journal.replay():
            if isinstance(item, Damaged):
                self.damaged.append(item)
                continue
            record = item.record
            if item.position is not None:
                assert isinstance(record, BatchStored)
                if not self._index.add(record.number, item.position):
                    raise StorageError(
                        f"batch number {record.number} is twice in the journal, in segment {item.position.segment} "
                        f"and elsewhere: this directory was written by two nodes, or files of two were mixed"
                    )
            yield record

    @property
    def directory(self) -> int:
        """The id of the data directory."""
        return self._journal.directory

    @property
    def fresh(self) -> bool:
        """Whether the directory was empty at this start."""
        return self._journal.fresh

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
                new = self._index.add(record.number, position)
                assert new, f"batch number {record.number} is taken"
                self._unwritten[record.number] = (journal.ticket, record.batch.raw, record.batch.body)
        return journal.ticket

    @property
    def needs_commit(self) -> bool:
        """Whether anything waits for a commit."""
        return self._journal.needs_commit

    @property
    def pending_bytes(self) -> int:
        """What waits in memory for the next commit; the caller bounds it by pushing back on its clients."""
        return self._journal.pending_bytes

    @property
    def durable(self) -> int:
        """Everything with a ticket not above this is durable."""
        return self._journal.durable

    @property
    def position(self) -> int:
        """How many records were ever appended to this directory and are durable.

        It only rises while a directory lives: what is at or below a position that was ever said is found by every
        later start, unless the directory is an older copy of itself. After ``replayed`` is exhausted it says how much
        was found. Snapshots, rolls and what is written again count nothing.
        """
        return self._journal.position

    def begin_commit(self) -> Commit:
        """Take everything appended so far. Then `Commit.run`, in a thread, then `finish`; one at a time."""
        return self._journal.begin_commit()

    def finish(self, commit: Commit) -> int:
        """The commit was run: returns the new `durable`. `StorageError` if it failed: the node must stop."""
        durable = self._journal.finish(commit)
        self._forget_written(durable)
        return durable

    def commit(self) -> int:
        """All three in one, for those who may block."""
        durable = self._journal.commit()
        self._forget_written(durable)
        return durable

    def _forget_written(self, durable: int) -> None:
        while self._unwritten:
            number = next(iter(self._unwritten))
            if self._unwritten[number][0] > durable:
                break
            del self._unwritten[number]

    @property
    def should_roll(self) -> bool:
        """Whether it is time for `roll`: the segment is full, or nothing was written since the start."""
        return self._journal.should_roll

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
        for record, position in moved:
            assert isinstance(record, BatchStored)
            assert position is not None
            self._index.move(record.number, position)
            self._unwritten[record.number] = (self._journal.ticket, record.batch.raw, record.batch.body)
        return self._journal.ticket

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._index)

    def __contains__(self, number: int) -> bool:
        return self._index.get(number) is not None

    def _position(self, number: int) -> BatchPosition:
        position = self._index.get(number)
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
            raise

    def raw_header(self, number: int) -> bytes:
        """The encoded header of a batch, as its producer wrote it. Errors as for `read_slice`."""
        waiting = self._unwritten.get(number)
        if waiting is not None:
            return waiting[1]
        return self._journal.read_record(self._position(number)).batch.raw

    # ------------------------------------------------------------------ room

    @property
    def free_bytes(self) -> int:
        """Bytes that the disk still takes, less what waits for a commit."""
        return self._journal.free_bytes()

    def check_space(self, size: int) -> None:
        """Refuse a publish of ``size`` bytes that would eat into the reserve. Ask before appending a batch.

        The reserve, and room for a snapshot, stay free for tombstones: ACK goes on when publishing cannot.

        Raises:
            StorageFull: and what to do.
        """
        free = self._journal.free_bytes()
        reserve = self.reserve_bytes + self._journal.snapshot_bytes
        if free < size + reserve:
            raise StorageFull(
                f"{free // MIB} MiB are free on the disk and {reserve // MIB} MiB are kept for acks: {size} bytes "
                f"more are refused; let consumers ack what is there, or give the node a larger disk"
            )

    @property
    def live(self) -> dict[int, int]:
        """Live batches of each segment, oldest first; the last is the current one."""
        return self._journal.live

    def drop_batch(self, number: int) -> None:
        """Nobody needs this batch any more. Its bytes go when its whole segment does (`drop_segment`)."""
        self._journal.drop_batch(self._position(number))
        self._index.remove(number)
        self._unwritten.pop(number, None)

    def drop_segment(self, segment: int) -> None:
        """Leave out an older segment without live batches, from the next `roll` on."""
        self._journal.drop_segment(segment)

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
        assert sum(self.live.values()) >= len(numbers), "every batch in the index is live in a segment"

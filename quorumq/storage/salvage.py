"""A journal that was refused, read as far as it can be.

Why: a directory with damage that is not confined to the body of a batch must not be voted from, because what it
forgot is not known. But what it still has is worth keeping: a node that resyncs from its peers has less to fetch, and
a partition with one replica has no peers. So everything on both sides of the damage is read, the small state of the
older segments too (its newest copy may be what is damaged; records merge), the places that cannot be read are written
down as holes, and the directory says, in every segment from then on, that it cannot vouch for itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from quorumq.core.records import DirectoryMade, JournalRecord
from quorumq.storage.disk import PAGE_BYTES
from quorumq.storage.journal import DamagedDirectory, FoundBatch, Journal, Segment, _unreadable
from quorumq.storage.records import (
    BATCH_MOVED,
    BATCH_STORED,
    CLEAN_STOPPED,
    FRAMING_MAX,
    SNAPSHOT_END,
    Forgotten,
    Framing,
    Hole,
    SegmentStart,
)
from quorumq.storage.segment import PREFIX_BYTES, Frame, Scan, salt_of, segment_name


class _File:
    """One segment while it is read."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length  # what counts of it
        self.durable = 0  # the highest offset that one of its records says was durable
        self.in_tail = False  # behind the end of its snapshot
        self.counting = False  # records count for the position
        self.batches: list[FoundBatch] = []


class SalvagingJournal(Journal):
    """A `Journal` whose `replay` gives what can be read, and that can be written afterwards.

    The newest segment's tail is cut where it was torn, as ever. `replay` gives small state of all segments, oldest
    first, and never a CLEAN_STOP. ``position`` is never too low: what cannot be read counts as the most records that
    may have been there.
    """

    def _find(self, new_directory_id: Callable[[], int]) -> None:
        finished = self._list()
        starts: dict[int, SegmentStart] = {}
        for number in finished:
            try:
                starts[number] = self._read_start(number)
            except DamagedDirectory as error:
                self.notes.append(error.what)
        self._starts = starts
        self._files: list[_File] = []
        if not starts:
            self.fresh = True
            self.directory = self.place = new_directory_id()
            self._aside = [segment_name(number) for number in finished]
            return
        newest = starts[max(starts)]
        self.directory = newest.directory
        self.place = self._place_of(newest)
        counted = {entry.segment: entry.bytes for entry in newest.earlier}
        for number in finished:
            start, name = starts.get(number), segment_name(number)
            if start is not None and start.directory != self.directory:
                self._aside.append(name)
            elif number < newest.segment and number not in counted:
                self._obsolete.append(name)
            else:
                size = self._disk.size(name)
                self._files.append(_File(number, min(size, counted.get(number, size))))
        self._damaged = dict.fromkeys(newest.damaged)
        self._holes = dict.fromkeys(newest.holes)

    def replay(self) -> Iterator[JournalRecord | FoundBatch]:
        """What can be read; see `Journal.replay`. Nothing that the bytes of this directory hold is an error."""
        yield DirectoryMade(self._node, self._cluster_id, self.directory)
        forgotten: set[int] = set()
        dead: dict[int, set[int]] = {}
        for file in self._files:
            yield from self._read(file, forgotten, dead)

        best: dict[int, FoundBatch] = {}
        for file in self._files:
            found = self._segments[file.number] = Segment(file.length)
            for item in file.batches:
                number = item.record.number
                if number in forgotten or number in dead.get(file.number, ()):
                    found.dead.append(number)
                    continue
                if item.position.end <= file.length:
                    found.put(number, item.position)
                elif item.damaged:
                    continue  # a copy, and what it was copied from is still there
                before = best.get(number)
                worse: FoundBatch | None = item
                if before is None or before.damaged or not item.damaged:
                    best[number], worse = item, before
                if worse is not None and self._counts(worse):
                    self.drop(number, worse.position)
        for number in self._segments:
            self._judge(number)
        for item in best.values():
            if not self._counts(item):
                self._carried.append(item)
            yield item._replace(moved=False)
        self.position = self._appended
        self._replayed = True

    def _counts(self, item: FoundBatch) -> bool:
        """Whether a batch lies in what was durable; else it is written again."""
        return item.position.end <= self._segments[item.position.segment].bytes

    def _read(self, file: _File, forgotten: set[int], dead: dict[int, set[int]]) -> Iterator[JournalRecord]:
        """One segment's small state; its batches, and what it says of others', are noted."""
        name = segment_name(file.number)
        start = self._starts.get(file.number)
        if start is not None:
            self._appended = max(self._appended, start.position)
            self._next_number = max(self._next_number, start.next_number)
        salt = salt_of(self.directory, file.number)
        scan = self._scan(name, file.length, check_bodies=True)
        newest = file is self._files[-1]
        offset = 0
        while offset < file.length:
            found = scan.frame(offset, salt if offset else 0)
            whole = isinstance(found, Frame) and found.end <= file.length
            sound = whole and isinstance(found, Frame) and found.body_ok
            if newest and file.in_tail and not sound and not self._said_durable(scan, salt, offset):
                self.notes.append(
                    f"{name}: cut at byte {offset} of {file.length}, where the last write was torn"
                )
                break
            if not whole or not isinstance(found, Frame):
                after = scan.first_valid(offset + 1, salt, lambda frame: frame.end <= file.length)
                stop = file.length if after is None else after.offset
                self._holes[Hole(file.number, offset, stop)] = None
                self.notes.append(f"{name}: bytes {offset} to {stop} cannot be read")
                self._appended += (stop - offset) // PREFIX_BYTES
                file.counting = True  # what follows may be the tail
                offset = stop
                continue
            yield from self._frame(name, file, found, forgotten, dead)
            offset = found.end
        if newest:
            file.length = file.durable

    def _said_durable(self, scan: Scan, salt: int, offset: int) -> bool:
        return scan.first_valid(offset + 1, salt, lambda frame: frame.durable > offset) is not None

    def _frame(
        self, name: str, file: _File, frame: Frame, forgotten: set[int], dead: dict[int, set[int]]
    ) -> Iterator[JournalRecord]:
        file.durable = max(file.durable, frame.durable)
        if file.counting and frame.type > FRAMING_MAX:
            self._appended += 1
        if frame.type in (BATCH_STORED, BATCH_MOVED):
            file.batches.append(self._batch(name, file.number, frame))
        elif frame.type == SNAPSHOT_END:
            file.in_tail = file.counting = True
            file.durable = max(file.durable, frame.end)
        elif frame.type != CLEAN_STOPPED:
            record = self._decode(name, frame)
            if isinstance(record, Forgotten):
                numbers = [number for first, stop in record.ranges for number in range(first, stop)]
                (dead.setdefault(record.segment, set()) if record.segment else forgotten).update(numbers)
            elif not isinstance(record, Framing | DirectoryMade):
                yield record

    def _scan(self, name: str, size: int, *, check_bodies: bool) -> Scan:
        return Scan(
            lambda offset, length: self._read_what_can_be(name, offset, length),
            size,
            check_bodies=check_bodies,
        )

    def _read_what_can_be(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file, with zeros for the pages that the disk cannot read.

        Raises:
            StorageError: it is not the disk: no permission, or no file descriptor, says nothing of what is there.
        """
        try:
            return self._disk.read(name, offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise _unreadable(self._disk, error) from error
            if length <= PAGE_BYTES:
                return bytes(length)
        half = length // 2
        return self._read_what_can_be(name, offset, half) + self._read_what_can_be(
            name, offset + half, length - half
        )


__all__ = ["SalvagingJournal"]

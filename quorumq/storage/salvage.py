"""A directory that was refused, read as far as it can be.

Why: if damage is not confined to the body of a batch, the losses are not known, and no node may vote from the
directory. But its contents are worth keeping: when a node resyncs from its peers, it has less to fetch, and if a
partition has one replica, there are no peers. So everything on both sides of the damage is read. That includes the
small state of older segments, because its newest copy may be damaged, and records merge. Unreadable bytes are recorded
as holes. Until a resync, every later segment says that the directory is not trusted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import NamedTuple

from quorumq.core.messages.records import DirectoryMade, JournalRecord
from quorumq.storage.damage import DamagedDirectory, unreadable
from quorumq.storage.disk import PAGE_BYTES, Disk
from quorumq.storage.files import SegmentFiles
from quorumq.storage.records import (
    CLEAN_STOPPED,
    FRAMING_MAX,
    NUMBERED,
    BatchesDropped,
    Framing,
    Hole,
    SegmentStart,
)
from quorumq.storage.replay import DirectoryReplay, torn_note
from quorumq.storage.scan import Frame, Gap
from quorumq.storage.segment import PREFIX_BYTES, salt_of, segment_name
from quorumq.storage.segments import FoundBatch, Segment


class _File:
    """One segment while it is read."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length  # bytes of it that count
        self.batches: list[FoundBatch] = []


class Salvage(DirectoryReplay):
    """A `DirectoryReplay` of the readable bytes. Damage is no error. Another node's or a newer version's record is one.

    If the last write was torn, it is cut, as in every replay. `records` gives small state of all segments, oldest
    first, and never a CLEAN_STOP. ``position`` is never too low: a hole counts as the most records that may have been
    there.
    """

    def _find(self, finished: list[int], new_directory_id: Callable[[], int]) -> SegmentStart:
        self.files = SegmentFiles(self.disk, self._read_what_can_be)
        self._files: list[_File] = []
        self._dead: dict[int, set[int]] = {}
        self._starts: dict[int, SegmentStart] = {}
        segments = self.segments
        for number in finished:
            try:
                self._starts[number] = self._read_start(number)
            except DamagedDirectory as error:
                self.notes.append(error.problem)
        if not self._starts:
            segments.aside = [segment_name(number) for number in finished]
            return self._new(new_directory_id)
        newest = self._starts[max(self._starts)]
        counted = {entry.segment: entry.bytes for entry in newest.earlier}
        for number in finished:
            start, name = self._starts.get(number), segment_name(number)
            if start is not None and start.directory != newest.directory:
                segments.aside.append(name)
            elif number < newest.segment and number not in counted:
                segments.obsolete.append(name)
            else:
                size = self.disk.size(name)
                self._files.append(_File(number, min(size, counted.get(number, size))))
        segments.damaged = dict.fromkeys(newest.damaged)
        segments.holes = dict.fromkeys(newest.holes)
        return self._located(newest)

    def records(self) -> Iterator[JournalRecord | FoundBatch]:
        """Yield all that can be read; see `DirectoryReplay.records`."""
        yield DirectoryMade(self.node, self.cluster_id, self.directory)
        for file in self._files:
            yield from self._read(file)

        segments = self.segments
        best: dict[int, FoundBatch] = {}
        for file in self._files:
            segment = segments.by_number[file.number] = Segment(file.length)
            for item in file.batches:
                number = item.record.number
                if number in self._dropped or number in self._dead.get(file.number, ()):
                    segment.dead.append(number)
                    continue
                if item.position.end <= file.length:
                    segment.put(number, item.position)
                elif item.damaged:
                    continue  # a copy, and what it was copied from is still there
                before = best.get(number)
                worse: FoundBatch | None = item
                if before is None or before.damaged or not item.damaged:
                    best[number], worse = item, before
                if worse is not None and self._counts(worse):
                    segments.drop(number, worse.position)
        for number in segments.by_number:
            segments.assess(number)
        for item in best.values():
            if not self._counts(item):
                self.carried.append(item)
            yield item._replace(moved=False)

    def _counts(self, item: FoundBatch) -> bool:
        """Return True if a batch lies in the durable part; else it is written again."""
        return item.position.end <= self.segments.by_number[item.position.segment].bytes

    def _read(self, file: _File) -> Iterator[JournalRecord]:
        """Yield one segment's small state; note its batches, and the batches that it drops."""
        name = segment_name(file.number)
        start = self._starts.get(file.number)
        if start is not None:
            self.position = max(self.position, start.position)
            self.segments.next_number = max(self.segments.next_number, start.next_number)
        salt = salt_of(self.directory, file.number)
        scan = self.files.scan(name, file.length, salt, check_bodies=True)
        newest = file is self._files[-1]
        counting = False  # for the position: in the tail, or in what may be it
        for item in scan.records(newest=newest):
            if isinstance(item, Gap):
                self.segments.holes[Hole(file.number, item.offset, item.stop)] = None
                self.notes.append(f"{name}: bytes {item.offset} to {item.stop} cannot be read")
                self.position += (item.stop - item.offset) // PREFIX_BYTES
                counting = True
                continue
            counting = counting or scan.in_tail
            self.position += counting and item.type > FRAMING_MAX
            yield from self._take(name, file, item)
        if scan.torn is not None:
            self.notes.append(torn_note(name, file.length, scan.torn))
        if newest:
            file.length = scan.durable

    def _take(self, name: str, file: _File, frame: Frame) -> Iterator[JournalRecord]:
        if frame.type in NUMBERED:
            record = self.files.batch(name, frame)
            file.batches.append(self.segments.batch_of(file.number, frame, record))
        elif frame.type != CLEAN_STOPPED:
            other = self.files.decode(name, frame)
            if isinstance(other, BatchesDropped):
                gone = self._dead.setdefault(other.segment, set()) if other.segment else self._dropped
                gone.update(other.numbers())
            elif not isinstance(other, Framing | DirectoryMade):
                yield other

    def _read_what_can_be(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes of a file. If the disk cannot read a page of it, its bytes are zeros.

        Raises:
            StorageError: the disk is not at fault. If a permission is missing, that says nothing of the contents.
        """
        try:
            return self.disk.read(name, offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise unreadable(self.disk, error) from error
            if length <= PAGE_BYTES:
                return bytes(length)
        half = length // 2
        return self._read_what_can_be(name, offset, half) + self._read_what_can_be(
            name, offset + half, length - half
        )


class Directory(NamedTuple):
    """A directory as it was read."""

    replay: DirectoryReplay  # the reader, exhausted
    entries: list[JournalRecord | FoundBatch]  # records and batches that it gave
    damage: str  # description of the damage read past, "" without any


def read_directory(
    disk: Disk, *, node: str, cluster_id: str, new_directory_id: Callable[[], int], salvage: bool
) -> Directory:
    """Lock a directory and read all of it.

    Args:
        disk: the directory; it stays locked, unless this raises.
        new_directory_id: function that returns 64 random bits, called if the directory is new.

    Raises:
        DamagedDirectory: damage that ``salvage`` would read past.
        StorageError: the directory is in use, of another node or cluster, or written by a newer version.
    """

    def read(kind: type[DirectoryReplay], damage: str) -> Directory:
        try:
            replay = kind(disk, node=node, cluster_id=cluster_id, new_directory_id=new_directory_id)
            return Directory(replay, list(replay.records()), damage)
        except OSError as error:
            raise unreadable(disk, error) from error

    disk.lock()
    try:
        try:
            return read(DirectoryReplay, "")
        except DamagedDirectory as error:
            if not salvage:
                raise
            return read(Salvage, error.problem)
    except BaseException:
        disk.unlock()
        raise

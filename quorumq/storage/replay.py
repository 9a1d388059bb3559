"""Reader of a data directory at a start: its owner, and every durable record in it.

If the last write was torn, its rest is cut, because no client learned that it was durable. Damage is never cut. If it
is in the body of a batch, it is noted. Any other is a `DamagedDirectory` (docs/file-format.md, "Torn or damaged").
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import cast

from quorumq.core.messages.records import CleanStopped, DirectoryMade, JournalRecord
from quorumq.storage.damage import ADVICE, DamagedDirectory, damaged_at
from quorumq.storage.disk import Disk
from quorumq.storage.files import SegmentFiles
from quorumq.storage.records import (
    CLEAN_STOPPED,
    DURABLE_MARK,
    FRAMING_MAX,
    NUMBERED,
    SNAPSHOT_END,
    BatchesDropped,
    SegmentStart,
    SnapshotEnd,
)
from quorumq.storage.scan import Frame, Gap
from quorumq.storage.segment import FORMAT_VERSION, NEW_SUFFIX, salt_of, segment_name, segment_number
from quorumq.storage.segments import FoundBatch, Segment, Segments


def torn_note(name: str, size: int, torn: Gap) -> str:
    """Return the note for a last write that was torn."""
    return f"{name}: cut at byte {torn.offset} of {size}, where the last write was torn: {torn.reason}"


class DirectoryReplay:
    """Reader of a locked directory: it finds the newest segment when it is made, and `records` gives the records.

    The arguments are those of `read_directory`.

    Raises:
        DamagedDirectory: the begin of the newest segment is damaged, or files that count are missing or too short.
        StorageError: the directory is of another node or cluster, or written by a newer version.
        OSError: the disk refused.
    """

    def __init__(
        self, disk: Disk, *, node: str, cluster_id: str, new_directory_id: Callable[[], int]
    ) -> None:
        self.disk = disk
        self.node = node
        self.cluster_id = cluster_id
        self.files = SegmentFiles(disk)
        self.segments = Segments()  # files that count, known once `records` is exhausted
        self.carried: list[FoundBatch] = []  # batches that may not be durable: they are to be written again
        self._dropped: set[int] = set()
        # Number of records that were ever appended to the directory, up to the last one that `records` yielded.
        self.position = 0
        self.fresh = False  # nothing was found
        self.notes: list[str] = []  # findings for the operator, in words (a cut tail, files deleted)
        # The newest segment's first record, made up if the directory is new.
        self.start = self._find(self._list(), new_directory_id)
        self.not_trusted = self.start.not_trusted  # the reason if no node may vote from it

    @property
    def directory(self) -> int:
        return self.start.directory

    def _list(self) -> list[int]:
        """Return the numbers of the segments that are complete, in order."""
        finished: list[int] = []
        for name in self.disk.list():
            number = segment_number(name)
            if number is None:
                continue  # not ours: leave it alone
            self.segments.last_number = max(self.segments.last_number, number)
            if name.endswith(NEW_SUFFIX):
                self.segments.obsolete.append(name)  # a crash while it was written: nothing in it was durable
                self.notes.append(f"{name}: a segment that was not finished; nothing in it counts")
            else:
                finished.append(number)
        return finished

    def _new(self, new_directory_id: Callable[[], int]) -> SegmentStart:
        """Return the start of a directory in which nothing was found."""
        self.fresh = True
        directory = new_directory_id()
        assert 0 < directory < 1 << 64, "a directory id is 64 bits and not 0"
        return SegmentStart(
            FORMAT_VERSION, self.node, self.cluster_id, directory, 0, (), (), location=directory
        )

    def _find(self, finished: list[int], new_directory_id: Callable[[], int]) -> SegmentStart:
        """Find the newest segment, and the older ones that it counts."""
        if not finished:
            return self._new(new_directory_id)
        newest = max(finished)
        start = self._read_start(newest)
        segments = self.segments
        segments.by_number = {entry.segment: Segment(entry.bytes) for entry in start.earlier}
        segments.next_number = start.next_number
        segments.damaged = dict.fromkeys(start.damaged)
        segments.holes = dict.fromkeys(start.holes)
        for number in finished:
            if number != newest and number not in segments.by_number:
                segments.obsolete.append(segment_name(number))
        for segment, known in segments.by_number.items():
            self._check_there(segment, known.bytes, newest)
        return self._located(start)

    def _located(self, newest: SegmentStart) -> SegmentStart:
        """Return ``newest``. If the directory was copied after it was written, its ``location`` is a new one."""
        lies = self.disk.location(segment_name(newest.segment))
        return newest if newest.lies == lies else newest._replace(location=int.from_bytes(lies) | 1)

    def _read_start(self, number: int) -> SegmentStart:
        return self.files.start(number, self.node, self.cluster_id)

    def _check_there(self, segment: int, length: int, newest: int) -> None:
        name = segment_name(segment)
        says = f"segment {segment_name(newest)} says that it counts"
        try:
            size = self.disk.size(name)
        except FileNotFoundError:
            raise DamagedDirectory(f"{self.disk}/{name} is missing, and {says}", ADVICE) from None
        if size < length:
            raise damaged_at(self.disk, name, size, f"the file ends here, and {says} up to byte {length}")

    def records(self) -> Iterator[JournalRecord | FoundBatch]:
        """Yield the durable records: the directory's id, the newest snapshot, later records, then all batches.

        Small state is first and batches after it, each in the order in which they were appended, because only the end
        of the tail shows if a batch was dropped. CLEAN_STOP is yielded only if it is the very last record.

        Raises:
            DamagedDirectory: damage that is not confined to the body of a batch.
            StorageError: this version does not know a record.
            OSError: the disk refused.
        """
        yield DirectoryMade(self.node, self.cluster_id, self.directory)
        if self.fresh:
            return
        newest, number = Segment(), self.start.segment
        batches: list[FoundBatch] = []
        carried: list[FoundBatch] = []  # those that may not be durable
        clean_stop = yield from self._newest(newest, batches, carried)
        segments = self.segments
        damaged = {item.record.number for item in carried if item.damaged}
        for segment in list(segments.by_number):
            yield from self._older(segment, damaged)
        segments.by_number[number] = newest
        for item in batches:
            segments.put(item.record.number, item.position)
            if item.record.number in self._dropped:
                segments.drop(item.record.number, item.position)
            else:
                yield item
        segments.assess(number)
        for item in carried:
            if item.record.number not in self._dropped and not item.damaged:
                self.carried.append(item)
                yield item
        if clean_stop is not None:
            yield clean_stop

    def _newest(
        self, newest: Segment, batches: list[FoundBatch], carried: list[FoundBatch]
    ) -> Generator[JournalRecord, None, CleanStopped | None]:
        """Yield the records of the newest segment: its snapshot, then its tail. Return the CLEAN_STOP, if it counts."""
        number, name = self.start.segment, segment_name(self.start.segment)
        size = self.disk.size(name)
        scan = self.files.scan(name, size, salt_of(self.directory, number), check_bodies=True)
        self.position = self.start.position
        count = -1  # the first record is not of the snapshot
        clean_stop: Frame | None = None
        for item in scan.records(newest=True):
            if isinstance(item, Gap):
                witness = item.witness
                said = "" if witness is None else f"; the record at {witness.offset} says it was durable"
                where = "" if scan.in_tail else "in the snapshot: "
                raise damaged_at(self.disk, name, item.offset, f"{where}{item.reason}{said}")
            if item.type == SNAPSHOT_END:
                self._check_snapshot(name, item, count)
            count += 1
            self.position += scan.in_tail and item.type > FRAMING_MAX
            if item.type != DURABLE_MARK:
                clean_stop = item if item.type == CLEAN_STOPPED else None
            unsure = scan.in_tail and item.end > scan.durable
            yield from self._given(name, item, carried if unsure else batches)
        if not scan.in_tail:
            raise damaged_at(self.disk, name, size, "in the snapshot: it ends here")
        if scan.torn is not None:
            clean_stop = None
            self.notes.append(torn_note(name, size, scan.torn))
        newest.bytes = scan.durable
        return None if clean_stop is None else cast(CleanStopped, self.files.decode(name, clean_stop))

    def _check_snapshot(self, name: str, frame: Frame, count: int) -> None:
        end = self.files.decode(name, frame)
        if not isinstance(end, SnapshotEnd) or end.records != count:
            problem = f"the snapshot has {count} records and says {end}"
            raise damaged_at(self.disk, name, frame.offset, problem)

    def _given(self, name: str, frame: Frame, batches: list[FoundBatch]) -> Iterator[JournalRecord]:
        """Yield the record of a frame of the newest segment if it is the core's; note its batch, or those it drops."""
        if frame.type in NUMBERED:
            record = self.files.batch(name, frame)
            batches.append(self.segments.batch_of(self.start.segment, frame, record))
        elif frame.type != CLEAN_STOPPED:
            other = self.files.decode(name, frame)
            if isinstance(other, BatchesDropped):
                if not other.segment:
                    self._dropped.update(other.numbers())
                elif other.segment in self.segments.by_number:
                    self.segments.by_number[other.segment].dead.extend(other.numbers())
            elif frame.type > FRAMING_MAX and not isinstance(other, DirectoryMade):
                yield cast(JournalRecord, other)  # DirectoryMade was given first

    def _older(self, segment: int, damaged: set[int]) -> Iterator[FoundBatch]:
        """Yield the batches of an older segment, headers only: a body is checked when it is read.

        If a number is in ``damaged``, the batch's copy in the tail is damaged. So this batch is too.
        """
        name = segment_name(segment)
        segments = self.segments
        holes = {hole.first: hole.stop for hole in segments.holes if hole.segment == segment}
        if 0 not in holes and self._read_start(segment).directory != self.directory:
            problem = "it belongs to another data directory: somebody mixed their files"
            raise damaged_at(self.disk, name, 0, problem)
        dead, length = set(segments.by_number[segment].dead), segments.by_number[segment].bytes
        scan = self.files.scan(name, length, salt_of(self.directory, segment), check_bodies=False)
        for frame in scan.records(holes=holes):
            if isinstance(frame, Gap):
                raise damaged_at(self.disk, name, frame.offset, frame.reason)
            if frame.type not in NUMBERED:
                continue
            item = segments.batch_of(segment, frame, self.files.batch(name, frame))
            if item.record.number in dead:
                continue
            segments.put(item.record.number, item.position)
            if item.record.number in self._dropped:
                segments.drop(item.record.number, item.position)
                continue
            if item.record.number in damaged:
                segments.note_damaged(item.position)
                item = item._replace(damaged=True)
            yield item
        segments.assess(segment)

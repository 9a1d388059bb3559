"""Plans of a data directory, made by the driver before its tasks: the segments that count, and the part that counts.

The driver reads only the ends of older segments, because the tasks read them. A node that is running rolls its journal
meanwhile, so a directory is planned again when a file that the plan names is gone.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from crc32c import crc32c

from quorumq.core.messages.records import Reclaimed
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.types import PartitionId
from quorumq.storage.records import (
    BATCH_MOVED,
    BATCH_STORED,
    CLASS_OF,
    TYPE_OF,
    BatchesDropped,
    Earlier,
    SegmentFooter,
    SegmentStart,
)
from quorumq.storage.scan import Bad, Frame, Gap
from quorumq.storage.segment import FORMAT_VERSION, MAGIC, NEW_SUFFIX, salt_of, segment_name, segment_number

from .journals import (
    Decoded,
    Directory,
    Numbers,
    OpenFile,
    Problem,
    Report,
    SegmentGone,
    SegmentPlan,
    batch_of,
    decoded,
    frames_of,
    ignore,
)
from .registers import PAGE_TYPES, REGISTER_TYPES, Registers

PLANS_MAX: Final = 8
"""Number of times that a directory is planned, because its node rolled the journal meanwhile."""

FOOTER_LOOK: Final = (64 << 10, 1 << 20, 8 << 20)
"""Bytes at the end of a segment in which its footer is looked for, more if it was not found."""

_EFFECTS: Final = tuple(TYPE_OF[cls] for cls in (Reclaimed, BatchesDropped))


class Planned(NamedTuple):
    """The driver's plan of a directory."""

    directory: Directory
    registers: Registers
    sizes: dict[PartitionId, int]  # bytes of bodies by partition


def plan_directory(path: str, report: Report) -> Planned:
    """Plan the reading of one node's data directory.

    Args:
        path: the directory in which the `.journal` files are.
        report: receiver of everything that cannot be read.

    Raises:
        UsageError: there is no such directory, or it is no node's.
        StorageError: written by a newer quorumq, cannot be read, or ``report`` raises it.
    """
    last: SegmentGone | None = None
    for _ in range(PLANS_MAX):
        try:
            return _Planner(path, report).plan()
        except SegmentGone as error:
            last = error
    raise StorageError(
        f"{path}: the node rolls its journal faster than it can be planned ({last}): read again, or read a copy of the "
        "directory"
    )


def segments_in(path: str) -> list[int]:
    """Return the numbers of the complete segments in a directory, in order; UsageError if it is no node's."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such directory; give a node's data directory") from None
    except NotADirectoryError:
        raise UsageError(f"{path} is a file; give a node's data directory, with all its segments") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    numbers = [segment_number(name) for name in names if not name.endswith(NEW_SUFFIX)]
    segments = sorted(number for number in numbers if number is not None)
    if not segments:
        inside = os.path.join(path, "data")
        hint = f"; did you mean {inside}?" if "data" in names and os.path.isdir(inside) else ""
        raise UsageError(
            f"{path} is no node's data directory: no file in it is called NNNNNNNNNNNN.journal{hint}"
        )
    return segments


def start_of(file: OpenFile) -> SegmentStart | str:
    """Return the first record of a segment, or the reason if it cannot be read; StorageError for a newer format."""
    frame = file.scan(file.size()).frame(0)
    if isinstance(frame, Bad):
        return frame.reason
    record = decoded(file.name, frame)
    if not isinstance(record, SegmentStart):
        return f"its first record is a {type(record).__name__}"
    if record.version > FORMAT_VERSION:
        raise StorageError(
            f"{file.name} was written in format version {record.version} by a newer quorumq; this one reads "
            f"versions 1 to {FORMAT_VERSION}: read it with that release"
        )
    if record.segment != file.number:
        return f"it says that it is segment {record.segment}: the file was renamed"
    return record


class _Planner:
    """One attempt to plan one directory."""

    def __init__(self, path: str, report: Report) -> None:
        self.path = path
        self.report = report
        self.node = ""
        self.problems: list[Problem] = []
        self.registers = Registers()
        self.sizes: dict[PartitionId, int] = {}
        self.gone: list[tuple[int, int]] = []
        self.dead: dict[int, list[tuple[int, int]]] = {}
        self.moved: dict[int, list[tuple[int, int]]] = {}  # by the segment that they were moved into
        self.ignored: list[int] = []

    def note(self, segment: int, offset: int, size: int | None, kind: str, reason: str) -> None:
        problem = self.problem(segment, offset, size, kind, reason)
        self.problems.append(problem)
        self.report(problem)

    def problem(self, segment: int, offset: int, size: int | None, kind: str, reason: str) -> Problem:
        impact = {
            "torn": "nothing: nobody was told that it was written",
            "missing": "whatever was in it",
            "hole": "whatever was there when the directory was salvaged",
            "not-trusted": "nothing that can be read; what it forgot is not known",
        }.get(kind, "whatever was there: messages, tombstones or dead letters")
        return Problem(self.node, self.path, segment, offset, size, kind, reason, impact)

    def plan(self) -> Planned:
        numbers = segments_in(self.path)
        newest = numbers[-1]
        start = self._newest_start(numbers)
        self.node = start.node
        earlier = self._earlier(start, numbers)
        if start.segment != newest:
            self.note(newest, 0, None, "damage", "the first record of the newest segment cannot be read")
        for hole in start.holes:
            self.note(hole.segment, hole.first, hole.stop - hole.first, "hole", "it could not be read")
        if start.not_trusted:
            self.note(newest, 0, None, "not-trusted", start.not_trusted)
        holes: dict[int, tuple[tuple[int, int], ...]] = {}
        for entry in earlier:
            mine = (hole for hole in start.holes if hole.segment == entry.segment)
            holes[entry.segment] = tuple((hole.first, hole.stop) for hole in mine)
        end = self._scan_newest(newest, start.directory)
        # Its own state is damaged: what older segments say of topics, records and batches counts again.
        salvaging = any(problem.kind == "damage" and problem.segment == newest for problem in self.problems)
        for entry in earlier if salvaging else ():
            self._scan_older(entry, start.directory, holes[entry.segment])
        plans = []
        for entry in earlier:
            footer = None if salvaging else self._footer(entry, start.directory, holes[entry.segment])
            parts = None if footer is None else footer.partitions
            for part in parts or ():
                self._size(PartitionId(part.topic, part.partition), part.body_bytes)
                if not start.not_trusted and part.topic not in self.registers.topics:
                    self.registers.unknown.add(part.topic)
            number = entry.segment
            dead = Numbers.of(self.dead.get(number, ()))
            moved = Numbers.of(it for into, items in self.moved.items() if into > number for it in items)
            damaged = frozenset(at.offset for at in start.damaged if at.segment == number)
            plans.append(
                SegmentPlan(number, entry.bytes, False, salvaging, dead, moved, damaged, holes[number], parts)
            )
        plans.append(SegmentPlan(newest, end, newest=True, state=True))
        names = (self.path, start.node, start.cluster_id, start.directory)
        counting = (tuple(plans), Numbers.of(self.gone), frozenset(self.ignored), tuple(self.problems))
        return Planned(Directory(*names, *counting), self.registers, self.sizes)

    # ------------------------------------------------------------ the newest segment

    def _newest_start(self, numbers: list[int]) -> SegmentStart:
        """Return the first record of the newest segment; if that cannot be read, of the newest that can."""
        first = ""
        for number in reversed(numbers):
            with OpenFile(self.path, number) as file:
                start = start_of(file)
            if not isinstance(start, str):
                return start
            first = first or start
            self.report(self.problem(number, 0, None, "damage", start))  # raises, unless problems are listed
        raise StorageError(f"{self.path}: no segment in it begins with a record that can be read: {first}")

    def _earlier(self, start: SegmentStart, numbers: list[int]) -> list[Earlier]:
        """Return the older segments that count, as far as they are there."""
        entries = list(start.earlier)
        if start.segment != numbers[-1]:  # the newest one's list is not known: all segments that are there
            listed = {entry.segment for entry in entries}
            more = (it for it in numbers[:-1] if it >= start.segment and it not in listed)
            entries += [Earlier(number, 1 << 62, 0) for number in more]
        there: list[Earlier] = []
        for entry in entries:
            try:
                size = os.stat(os.path.join(self.path, segment_name(entry.segment))).st_size
            except FileNotFoundError:
                if segments_in(self.path)[-1] != numbers[-1]:
                    raise SegmentGone(f"segment {entry.segment} was reclaimed meanwhile") from None
                self.note(entry.segment, 0, entry.bytes, "missing", "the file is missing")
                continue
            if size < entry.bytes < 1 << 62:
                reason = f"the file ends here, and byte {entry.bytes} of it counts"
                self.note(entry.segment, size, entry.bytes - size, "damage", reason)
            there.append(entry._replace(bytes=min(size, entry.bytes)))
        return there

    def _scan_newest(self, number: int, directory: int) -> int:
        """Take in the newest segment's state; return the number of its bytes that count."""
        with OpenFile(self.path, number) as file:
            scan = file.scan(file.size(), salt_of(directory, number), Decoded(()))
            for item in scan.records(newest=True):
                if isinstance(item, Gap):
                    self.note(number, item.offset, item.stop - item.offset, "damage", item.reason)
                else:
                    self._take(file, number, item)
            if scan.torn is None:
                return scan.size
            self.note(number, scan.torn.offset, scan.size - scan.torn.offset, "torn", scan.torn.reason)
            return scan.torn.offset

    def _take(self, file: OpenFile, segment: int, frame: Frame) -> None:
        if frame.type in (BATCH_STORED, BATCH_MOVED):
            stored, moved = batch_of(file.name, frame)
            header = stored.batch.header
            self._size(header.partition, frame.body_length)
            if moved is not None:
                body = file.read(frame.body_offset, frame.body_length)
                if moved.damaged or crc32c(body) != frame.body_crc:
                    self.ignored.append(stored.number)
                else:
                    self.moved.setdefault(segment, []).append((stored.number, stored.number + 1))
        elif frame.type in REGISTER_TYPES:
            self.registers.take(decoded(file.name, frame))
        elif frame.type in _EFFECTS:
            record = decoded(file.name, frame)
            if isinstance(record, Reclaimed):
                self.gone += [(number, number + 1) for number in record.numbers]
            elif record.segment:
                self.dead.setdefault(record.segment, []).extend(record.ranges)
            else:
                self.gone.extend(record.ranges)
        elif frame.type not in CLASS_OF:
            decoded(file.name, frame)

    def _size(self, partition: PartitionId, size: int) -> None:
        self.sizes[partition] = self.sizes.get(partition, 0) + size

    def _footer(
        self, entry: Earlier, directory: int, holes: tuple[tuple[int, int], ...]
    ) -> SegmentFooter | None:
        with OpenFile(self.path, entry.segment) as file:
            footer = footer_of(file, entry, directory)
            take_pages(file, entry, directory, footer, self.registers, holes)
        return footer

    def _scan_older(self, entry: Earlier, directory: int, holes: tuple[tuple[int, int], ...]) -> None:
        """Take in an older segment's batches and registers, because the newest one's record of them is damaged."""
        plan = SegmentPlan(entry.segment, entry.bytes, newest=False, state=True, holes=holes)
        with OpenFile(self.path, entry.segment) as file:
            for frame in frames_of(file, plan, self.node, directory, ignore):  # it reports problems
                self._take(file, entry.segment, frame)


def take_pages(
    file: OpenFile,
    entry: Earlier,
    directory: int,
    footer: SegmentFooter | None,
    registers: Registers,
    holes: tuple[tuple[int, int], ...] = (),
) -> None:
    """Take in the pages of deleted names in an older segment, which is read for them if it may have any."""
    if footer is not None and not footer.pages:
        return
    plan = SegmentPlan(entry.segment, entry.bytes, newest=False, state=False, holes=holes)
    for frame in frames_of(file, plan, "", directory, ignore, Decoded((), ())):  # it reports damage
        if frame.type in PAGE_TYPES:
            registers.take(decoded(file.name, frame))


def footer_of(file: OpenFile, entry: Earlier, directory: int) -> SegmentFooter | None:
    """Return the footer of an older segment, if it has one: it ends where the segment does."""
    scan = file.scan(entry.bytes, salt_of(directory, entry.segment))
    for look in FOOTER_LOOK:
        base = max(0, entry.bytes - look)
        tail = file.read(base, entry.bytes - base)
        at = tail.rfind(MAGIC)
        while at >= 0:
            frame = scan.frame(base + at)
            if isinstance(frame, Frame) and frame.end == entry.bytes:
                if frame.type != TYPE_OF[SegmentFooter]:
                    return None
                footer = decoded(file.name, frame)
                assert isinstance(footer, SegmentFooter)
                return footer
            at = tail.rfind(MAGIC, 0, at)
        if not base:
            break
    return None

"""Data directories of nodes, read by somebody else while the node may be writing.

docs/file-format.md is the contract; what quorumq.storage does at a start, this does without a lock and without
changing anything. Two things differ. The driver reads of older segments only how they end, because it plans and the
tasks read. And a node that is running rolls its journal while we read: so a directory is planned again when a file
that the plan names is gone, and a task opens all the files it needs before it gives out its first row: an open
file stays readable when it is deleted.

What cannot be read is never left out in silence: it is a `Problem`, which ends the read (`onDamage` = fail) or is
counted and listed (report).
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quorumq.core.errors import StorageError, UsageError
from quorumq.core.records import BatchStored, GroupPut, Reclaimed, TopicPut
from quorumq.core.topics import merge_topics
from quorumq.core.types import Group, PartitionId, Topic, merge_groups
from quorumq.storage.records import (
    BATCH_MOVED,
    BATCH_STORED,
    CLASS_OF,
    FRAMING_MAX,
    SNAPSHOT_END,
    TYPE_OF,
    BatchMoved,
    Earlier,
    Forgotten,
    PartitionRange,
    SegmentFooter,
    SegmentStart,
    decode_record,
)
from quorumq.storage.segment import (
    FORMAT_VERSION,
    MAGIC,
    NEW_SUFFIX,
    Bad,
    Frame,
    Scan,
    salt_of,
    segment_name,
    segment_number,
)
from quorumq.wire.cbor import BadValue

PLANS_MAX: Final = 8
"""How often a directory is planned again because its node rolled the journal meanwhile."""

FOOTER_LOOK: Final = (64 << 10, 1 << 20, 8 << 20)
"""Bytes at the end of a segment in which its footer is looked for, more if it was not found."""

RECORDS_MERGED: Final = next(number for number, cls in CLASS_OF.items() if cls.__name__ == "RecordsMerged")
_EFFECTS: Final = tuple(TYPE_OF[cls] for cls in (TopicPut, GroupPut, Reclaimed, Forgotten))


class SegmentGone(StorageError):
    """A file that the plan names is not there any more: the node rolled its journal. Read again."""

    code = "segment-gone"


HARMLESS: Final = ("torn",)
"""Kinds of problems for which nothing is missing that anybody was promised."""


class Problem(NamedTuple):
    """A place that cannot be read, or that does not count: a row of the table `problems`."""

    node: str
    path: str
    segment: int | None
    offset: int | None
    bytes: int | None
    what: str
    reason: str
    impact: str

    @property
    def harmless(self) -> bool:
        """Whether nothing that anybody was promised is missing for it."""
        return self.what in HARMLESS

    def __str__(self) -> str:
        place = self.path if self.segment is None else os.path.join(self.path, segment_name(self.segment))
        at = "" if self.offset is None else f", byte {self.offset}"
        return f"{place}{at}: {self.reason}; {self.impact}"


Report = Callable[[Problem], None]
"""What is told of a problem: raises, or takes note."""


def refuse(problem: Problem) -> None:
    """`onDamage` = fail: whatever somebody was promised and cannot be read ends the read."""
    if not problem.harmless:
        raise StorageError(
            f"{problem}. option('onDamage', 'report') goes on without it, and the table 'problems' lists all of them"
        )


def ignore(problem: Problem) -> None:
    """`onDamage` = report, in every table but `problems`, which lists them."""


class Numbers(NamedTuple):
    """A set of batch numbers as sorted ranges [first, stop), no two of which touch."""

    firsts: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Numbers:
        """Ranges in any order, overlapping or not."""
        firsts: list[int] = []
        stops: list[int] = []
        for first, stop in sorted(ranges):
            if stops and first <= stops[-1]:
                stops[-1] = max(stops[-1], stop)
            else:
                firsts.append(first)
                stops.append(stop)
        return cls(tuple(firsts), tuple(stops))

    def __contains__(self, number: object) -> bool:
        at = bisect_right(self.firsts, number) - 1  # type: ignore[type-var, operator]
        return at >= 0 and number < self.stops[at]  # type: ignore[operator]


class SegmentPlan(NamedTuple):
    """One file of a journal, and what of it counts."""

    number: int
    bytes: int
    newest: bool
    state: bool  # its small state counts: the newest's, or every segment's where the newest is damaged
    dead: Numbers  # batches that are not needed there
    moved: Numbers  # batches that were copied into a younger segment
    damaged: frozenset[int]  # offsets of batches whose bodies are known to be damaged
    holes: tuple[tuple[int, int], ...]
    footer: tuple[PartitionRange, ...] | None  # what it says to hold; None where it has no footer


class Directory(NamedTuple):
    """One node's data directory as it was when it was planned."""

    path: str
    node: str
    cluster_id: str
    directory: int
    position: int  # records appended that are certainly on its disk
    segments: tuple[SegmentPlan, ...]  # oldest first; the last is the newest
    gone: Numbers  # batches that nobody needs any more, wherever they lie
    ignored: frozenset[int]  # damaged copies of batches, whose originals are still there
    problems: tuple[Problem, ...]

    @property
    def newest(self) -> SegmentPlan:
        """The segment that the node writes, or wrote last."""
        return self.segments[-1]


class Registers:
    """Topics and groups, merged from however many nodes."""

    def __init__(self) -> None:
        self.topics: dict[bytes, Topic] = {}
        self.groups: dict[tuple[bytes, str], Group] = {}

    def take(self, record: TopicPut | GroupPut) -> None:
        """Merge one register."""
        if isinstance(record, TopicPut):
            topic = record.topic
            there = self.topics.get(topic.id)
            self.topics[topic.id] = topic if there is None else merge_topics(there, topic)
        else:
            group = record.group
            old = self.groups.get((group.topic, group.name))
            self.groups[(group.topic, group.name)] = group if old is None else merge_groups(old, group)

    def update(self, other: Registers) -> None:
        """Merge all of another's."""
        for topic in other.topics.values():
            self.take(TopicPut(topic))
        for group in other.groups.values():
            self.take(GroupPut(group))


class Planned(NamedTuple):
    """What the driver learns of a directory."""

    directory: Directory
    registers: Registers
    sizes: dict[PartitionId, int]  # bytes of bodies by partition; 0 for those of which only records are known


# --------------------------------------------------------------------------- planning


def plan_directory(path: str, report: Report) -> Planned:
    """Plan the reading of one node's data directory.

    Args:
        path: the directory in which the `.journal` files are.
        report: told of everything that cannot be read.

    Raises:
        UsageError: there is no such directory, or it is no node's.
        StorageError: written by a newer quorumq, cannot be read, or what ``report`` raises.
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
    """The numbers of the complete segments in a directory, in order; UsageError where it is no node's."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such directory; give a node's data directory") from None
    except NotADirectoryError:
        raise UsageError(f"{path} is a file; give a node's data directory, with all its segments") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    numbers = [segment_number(name) for name in names if not name.endswith(NEW_SUFFIX)]
    found = sorted(number for number in numbers if number is not None)
    if not found:
        inside = os.path.join(path, "data")
        hint = f"; did you mean {inside}?" if "data" in names and os.path.isdir(inside) else ""
        raise UsageError(
            f"{path} is no node's data directory: no file in it is called NNNNNNNNNNNN.journal{hint}"
        )
    return found


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

    def note(self, problem: Problem) -> None:
        self.problems.append(problem)
        self.report(problem)

    def problem(
        self, segment: int | None, offset: int | None, size: int | None, what: str, reason: str
    ) -> Problem:
        impact = {
            "torn": "nothing: nobody was told that it was written",
            "missing": "whatever was in it",
            "hole": "whatever was there when the directory was salvaged",
            "cannot-vouch": "nothing that can be read; what it forgot is not known",
        }.get(what, "whatever was there: messages, tombstones or dead letters")
        return Problem(self.node, self.path, segment, offset, size, what, reason, impact)

    def plan(self) -> Planned:
        found = segments_in(self.path)
        newest = found[-1]
        start = self._newest_start(found)
        self.node = start.node
        earlier = self._earlier(start, found)
        if start.segment != newest:
            self.note(
                self.problem(
                    newest, 0, None, "damage", "the first record of the newest segment cannot be read"
                )
            )
        for hole in start.holes:
            self.note(
                self.problem(hole.segment, hole.first, hole.stop - hole.first, "hole", "it could not be read")
            )
        if start.cannot_vouch:
            self.note(self.problem(newest, 0, None, "cannot-vouch", start.cannot_vouch))
        holes = {
            number: tuple((hole.first, hole.stop) for hole in start.holes if hole.segment == number)
            for number in [entry.segment for entry in earlier]
        }
        damaged = {
            number: frozenset(at.offset for at in start.damaged if at.segment == number) for number in holes
        }
        end, position = self._scan_newest(newest, start)
        # Its own state is damaged: what older segments say of topics, records and batches counts again.
        salvaging = any(found.what == "damage" and found.segment == newest for found in self.problems)
        for entry in earlier if salvaging else ():
            self._scan_older(entry, start.directory, holes[entry.segment])
        plans = []
        for entry in earlier:
            footer = None if salvaging else self._footer(entry, start.directory)
            for part in footer or ():
                self._size(PartitionId(part.topic, part.partition), part.body_bytes)
            moved = [part for into, parts in self.moved.items() if into > entry.segment for part in parts]
            plans.append(
                SegmentPlan(
                    entry.segment,
                    entry.bytes,
                    False,
                    salvaging,
                    Numbers.of(self.dead.get(entry.segment, ())),
                    Numbers.of(moved),
                    damaged[entry.segment],
                    holes[entry.segment],
                    footer,
                )
            )
        plans.append(SegmentPlan(newest, end, True, True, Numbers(), Numbers(), frozenset(), (), None))
        directory = Directory(
            self.path,
            start.node,
            start.cluster_id,
            start.directory,
            position,
            tuple(plans),
            Numbers.of(self.gone),
            frozenset(self.ignored),
            tuple(self.problems),
        )
        return Planned(directory, self.registers, self.sizes)

    # ------------------------------------------------------------ the newest segment

    def _newest_start(self, found: list[int]) -> SegmentStart:
        """The first record of the newest segment; where that cannot be read, of the newest that can."""
        first = ""
        for number in reversed(found):
            start, reason = self._start_of(number)
            if start is not None:
                return start
            first = first or reason
            self.report(self.problem(number, 0, None, "damage", reason))  # raises, unless problems are listed
        raise StorageError(f"{self.path}: no segment in it begins with a record that can be read: {first}")

    def _start_of(self, number: int) -> tuple[SegmentStart | None, str]:
        with OpenFile(self.path, number) as file:
            scan = file.scan(file.size())
            found = scan.frame(0, 0) if scan.size else Bad(0, "the file is empty")
            if isinstance(found, Bad):
                return None, found.reason
            record = decoded(file.name, found)
        if not isinstance(record, SegmentStart):
            return None, f"its first record is a {type(record).__name__}"
        if record.version > FORMAT_VERSION:
            raise StorageError(
                f"{file.name} was written in format version {record.version} by a newer quorumq; this one reads "
                f"versions 1 to {FORMAT_VERSION}: read it with that release"
            )
        if record.segment != number:
            return None, f"it says that it is segment {record.segment}: the file was renamed"
        return record, ""

    def _earlier(self, start: SegmentStart, found: list[int]) -> list[Earlier]:
        """The older segments that count, as far as they are there."""
        wanted = list(start.earlier)
        if start.segment != found[-1]:  # what the newest one counts is not known: all that is there
            listed = {entry.segment for entry in wanted}
            wanted += [
                Earlier(number, 1 << 62, 0)
                for number in found[:-1]
                if number >= start.segment and number not in listed
            ]
        there: list[Earlier] = []
        for entry in wanted:
            try:
                size = os.stat(os.path.join(self.path, segment_name(entry.segment))).st_size
            except FileNotFoundError:
                if segments_in(self.path)[-1] != found[-1]:
                    raise SegmentGone(f"segment {entry.segment} was reclaimed meanwhile") from None
                self.note(self.problem(entry.segment, 0, entry.bytes, "missing", "the file is missing"))
                continue
            if size < entry.bytes < 1 << 62:
                reason = f"the file ends here, and byte {entry.bytes} of it counts"
                self.note(self.problem(entry.segment, size, entry.bytes - size, "damage", reason))
            there.append(entry._replace(bytes=min(size, entry.bytes)))
        return there

    def _scan_newest(self, number: int, start: SegmentStart) -> tuple[int, int]:
        """Take in the newest segment's state; how much of it counts, and the position that is durable."""
        with OpenFile(self.path, number) as file:
            size = file.size()
            scan = file.scan(size)
            salt = salt_of(start.directory, number)
            readable = start.segment == number
            position = start.position if readable else 0
            offset = durable = 0
            snapshot = True  # not behind its end yet
            undecided: deque[Frame] = deque()
            end = size
            while offset < size:
                found = scan.frame(offset, salt if offset else 0)
                if isinstance(found, Frame) and found.end <= size:
                    durable = max(durable, found.durable, found.end if snapshot else 0)
                    if found.type == SNAPSHOT_END:
                        snapshot = False
                    undecided.append(found)
                    offset = found.end
                    while undecided and undecided[0].end <= durable:
                        position += self._take(file, number, undecided.popleft(), snapshot)
                    continue
                reason = (
                    found.reason if isinstance(found, Bad) else "the file ends inside the body of a batch"
                )
                at = offset
                witness = None
                if not snapshot:
                    witness = scan.first_valid(at + 1, salt, lambda frame, at=at: frame.durable > at)  # type: ignore[misc]
                    if witness is None:
                        end = at
                        self.note(self.problem(number, at, size - at, "torn", reason))
                        break
                after = scan.first_valid(at + 1, salt, lambda frame: frame.end <= size)
                offset = size if after is None else after.offset
                self.note(self.problem(number, at, offset - at, "damage", reason))
                snapshot = False if not readable else snapshot
            for (
                frame
            ) in undecided:  # the last write: a body that is not all there was torn, with what follows
                if (
                    frame.body_length
                    and crc32c(file.read(frame.body_offset, frame.body_length)) != frame.body_crc
                ):
                    end = frame.offset
                    reason = "the body of the batch does not match its checksum"
                    self.note(self.problem(number, end, size - end, "torn", reason))
                    break
                self._take(file, number, frame, snapshot)
        return end, position

    def _take(self, file: OpenFile, segment: int, frame: Frame, snapshot: bool) -> int:
        """Note what a frame says of batches and registers; 1 if it counts for the position."""
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
        elif frame.type == RECORDS_MERGED:
            self._size(PartitionId(*frame.fields[2][:2]), 0)
        elif frame.type in _EFFECTS:
            record = decoded(file.name, frame)
            if isinstance(record, TopicPut | GroupPut):
                self.registers.take(record)
            elif isinstance(record, Reclaimed):
                self.gone += [(number, number + 1) for number in record.numbers]
            elif isinstance(record, Forgotten):
                (self.dead.setdefault(record.segment, []) if record.segment else self.gone).extend(
                    record.ranges
                )
        elif frame.type not in CLASS_OF:
            decoded(file.name, frame)
        return 0 if snapshot else int(frame.type > FRAMING_MAX)

    def _size(self, partition: PartitionId, size: int) -> None:
        self.sizes[partition] = self.sizes.get(partition, 0) + size

    # ------------------------------------------------------------ older segments

    def _scan_older(self, entry: Earlier, directory: int, holes: tuple[tuple[int, int], ...]) -> None:
        """What an older segment says of batches and registers: the newest one's word on that is damaged."""
        plan = SegmentPlan(
            entry.segment, entry.bytes, False, True, Numbers(), Numbers(), frozenset(), holes, None
        )
        with OpenFile(self.path, entry.segment) as file:
            for frame in frames_of(file, plan, self.node, directory, ignore):  # told of when it is read
                self._take(file, entry.segment, frame, True)

    def _footer(self, entry: Earlier, directory: int) -> tuple[PartitionRange, ...] | None:
        """The footer of an older segment, if it has one: it ends where the segment does."""
        salt = salt_of(directory, entry.segment)
        with OpenFile(self.path, entry.segment) as file:
            scan = file.scan(entry.bytes)
            for look in FOOTER_LOOK:
                base = max(0, entry.bytes - look)
                tail = file.read(base, entry.bytes - base)
                at = tail.rfind(MAGIC)
                while at >= 0:
                    found = scan.frame(base + at, salt)
                    if isinstance(found, Frame) and found.end == entry.bytes:
                        if found.type != TYPE_OF[SegmentFooter]:
                            return None
                        footer = decoded(file.name, found)
                        assert isinstance(footer, SegmentFooter)
                        return footer.partitions
                    at = tail.rfind(MAGIC, 0, at)
                if not base:
                    break
        return None


# --------------------------------------------------------------------------- reading


class OpenFile:
    """One segment file, open for reading.

    Raises:
        SegmentGone: it was deleted.
        StorageError: it cannot be opened.
    """

    def __init__(self, path: str, number: int) -> None:
        self.name = os.path.join(path, segment_name(number))
        try:
            self.fd = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SegmentGone(
                f"{self.name} is gone: the node rolled its journal and reclaimed it; read again"
            ) from None
        except OSError as error:
            raise StorageError(f"{self.name} cannot be read: {error.strerror}") from error

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        os.close(self.fd)

    def size(self) -> int:
        """Its length now."""
        return os.fstat(self.fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; fewer where the file ends. A page that the disk cannot read is a StorageError."""
        parts: list[bytes] = []
        while length > 0:
            try:
                data = os.pread(self.fd, length, offset)
            except OSError as error:
                raise StorageError(
                    f"{self.name}, byte {offset}: the disk cannot read it: {error.strerror}"
                ) from error
            if not data:
                break
            parts.append(data)
            offset += len(data)
            length -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def scan(self, size: int) -> Scan:
        """A scan of the first ``size`` bytes that jumps over bodies."""
        return Scan(self.read, size, check_bodies=False)


def frames_of(
    file: OpenFile, plan: SegmentPlan, node: str, directory: int, report: Report
) -> Iterator[Frame]:
    """Every record of what counts of a segment; ``report`` is told what lies between those that can be read."""
    salt = salt_of(directory, plan.number)
    scan = file.scan(plan.bytes)
    holes = dict(plan.holes)
    offset = 0
    while offset < plan.bytes:
        if offset in holes:
            offset = holes[offset]
            continue
        found = scan.frame(offset, salt if offset else 0)
        if isinstance(found, Frame) and found.end <= plan.bytes:
            if found.type not in CLASS_OF:
                decoded(file.name, found)
            yield found
            offset = found.end
            continue
        reason = (
            found.reason
            if isinstance(found, Bad)
            else f"a record reaches beyond byte {plan.bytes}, where it ends"
        )
        after = scan.first_valid(offset + 1, salt, lambda frame: frame.end <= plan.bytes)
        stop = plan.bytes if after is None else after.offset
        impact = "whatever was there: messages" + (", tombstones or dead letters" if plan.state else "")
        path = os.path.dirname(file.name)
        report(Problem(node, path, plan.number, offset, stop - offset, "damage", reason, impact))
        offset = stop


def decoded(name: str, frame: Frame) -> Any:
    """The record of a frame; StorageError for one that this version does not know."""
    try:
        return decode_record(frame.fields)
    except BadValue as error:
        raise StorageError(
            f"{name}, byte {frame.offset}: the record is intact but cannot be read: {error}. If a newer version of "
            "quorumq wrote it, read it with that one"
        ) from error


def batch_of(name: str, frame: Frame) -> tuple[BatchStored, BatchMoved | None]:
    """The batch of a frame that has one, and the BatchMoved that it came in."""
    record = decoded(name, frame)
    if isinstance(record, BatchMoved):
        return record.stored, record
    assert isinstance(record, BatchStored)
    return record, None


class FoundBatch(NamedTuple):
    """A batch that counts, as it lies in a segment; its body is still there."""

    stored: BatchStored
    segment: int
    frame: Frame
    damaged: bool  # known to be, whatever its body looks like


class OpenDirectory:
    """A directory's segments, all open: what a task read from here on cannot be deleted under it.

    Args:
        directory: as planned.
        wanted: the numbers of the segments that are needed.

    Raises:
        SegmentGone: one is not there any more.
        StorageError: too many files are open, or one cannot be read.
    """

    def __init__(self, directory: Directory, wanted: Collection[int] | None = None) -> None:
        self.plan = directory
        self.files: dict[int, OpenFile] = {}
        plans = [plan for plan in directory.segments if wanted is None or plan.number in wanted]
        _allow_files(len(plans))
        try:
            for plan in plans:
                self.files[plan.number] = OpenFile(directory.path, plan.number)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all files back."""
        for file in self.files.values():
            file.close()
        self.files = {}

    def frames(self, plan: SegmentPlan, report: Report) -> Iterator[Frame]:
        """Every record of a segment that is open."""
        return frames_of(self.files[plan.number], plan, self.plan.node, self.plan.directory, report)

    def batch(self, plan: SegmentPlan, frame: Frame) -> FoundBatch | None:
        """The batch of a frame, unless another record took its place or nobody needs it."""
        stored, moved = batch_of(self.files[plan.number].name, frame)
        number = stored.number
        if number in self.plan.gone or number in plan.dead or number in plan.moved:
            return None
        if moved is not None and plan.newest and number in self.plan.ignored:
            return None
        damaged = frame.offset in plan.damaged or (moved is not None and moved.damaged)
        return FoundBatch(stored, plan.number, frame, damaged)

    def body(self, segment: int, frame: Frame) -> bytes | None:
        """A batch's body; None where it is not what was written."""
        data = self.files[segment].read(frame.body_offset, frame.body_length)
        return data if len(data) == frame.body_length and crc32c(data) == frame.body_crc else None

    def frame_at(self, segment: int, offset: int) -> Frame:
        """A record that was read before, once more."""
        plan = next(plan for plan in self.plan.segments if plan.number == segment)
        scan = self.files[segment].scan(plan.bytes)
        found = scan.frame(offset, salt_of(self.plan.directory, segment) if offset else 0)
        if isinstance(found, Bad):
            raise StorageError(
                f"{self.files[segment].name}, byte {offset}: it changed while it was read: {found.reason}"
            )
        return found

    def body_problem(self, segment: int, frame: Frame, reason: str = "") -> Problem:
        """That a batch's body is damaged."""
        return Problem(
            self.plan.node,
            self.plan.path,
            segment,
            frame.offset,
            frame.body_length,
            "body",
            reason or "the body of the batch does not match its checksum",
            "this copy of its messages",
        )


def _allow_files(more: int) -> None:
    """Raise our own limit of open files where it is too low for so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = more + len(os.listdir("/proc/self/fd")) + 64 if os.path.isdir("/proc/self/fd") else more + 256
    if need > soft:
        if hard != resource.RLIM_INFINITY and need > hard:
            raise StorageError(
                f"{more} segments are to be read at once, and this process may open {hard} files: raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))

"""Following dead letters in the journals of nodes.

An offset is a position in each node's journal: its number of records (docs/file-format.md), as far as they are durable,
so that it never goes back. Between two offsets a node got some DEAD records. The same letter reaches several nodes, now
or later. So the batch in which the first node got it gives it out: a task checks if any node had it before.

The driver follows the journals as they grow, and keeps the file it reads open. So it reads a file to the end even if a
roll deletes it. Only a query that was down while a node rolled can find that the journal does not reach back. The
driver tells a task which records are new between two offsets, and which came after. A snapshot does not say when its
records came.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from quorumq.core.messages import SpanRecord
from quorumq.core.values.errors import StorageError
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Kind, PartitionId, Record, Span, record_rank
from quorumq.storage.records import FRAMING_MAX, SNAPSHOT_END, SegmentStart
from quorumq.storage.scan import Bad, Frame
from quorumq.storage.segment import salt_of

from .arrow import Batches
from .journals import RECORDS_MERGED, OpenFile, SegmentGone, SegmentPlan, decoded
from .offline import survey, wanted_keys
from .options import Options, Wanted
from .planning import segments_in
from .reader import Task
from .records import Died, LettersReader, lower_ballot

NOTHING = -1
"""The position of a node before the first read of it."""


class Gap(StorageError):
    """A node's journal does not reach back to the position up to which it was read."""

    code = "journal-gap"


class Entry(NamedTuple):
    """One DEAD record that a node got: its position in the journal, and its content."""

    position: int
    key: PartitionId
    group: str
    span: Span
    record: Record


class Tail:
    """One node's journal while it grows.

    Args:
        path: the data directory.
        since: everything behind this position is read; NOTHING begins with records appended from now on.

    Attributes:
        node, directory: names of its node and directory.
        base: the position behind which ``entries`` begin.
        position: number of records that are durable and were read.
        entries: the DEAD records among those behind ``since`` (and not dropped by `forget`).

    Raises:
        Gap: the journal does not reach back so far.
    """

    def __init__(self, path: str, since: int) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.waiting: list[tuple[int, int, list[Entry]]] = []  # not durable yet: end, position, entries
        numbers = segments_in(path)
        start = None
        for number in reversed(numbers):
            start = self._begin(number)
            if since == NOTHING or start.position <= since:
                break
            self.file.close()
        else:
            assert start is not None
            raise Gap(
                f"{path}: the journal of node {start.node!r} begins at position {start.position}, and it was read to "
                f"{since}: what came between is in its snapshot only"
            )
        self.base = start.position if since == NOTHING else since
        self.poll()

    def _begin(self, number: int) -> SegmentStart:
        """Open a segment and pass over its snapshot."""
        self.file = OpenFile(self.path, number)
        scan = self.file.scan(self.file.size())
        start: Any = None
        for item in scan.records():
            if not isinstance(item, Frame):
                problem = f"{item.reason}: a damaged journal cannot be followed"
                raise StorageError(f"{self.file.name}, byte {item.offset}: {problem}")
            if start is None:
                start = decoded(self.file.name, item)
                assert isinstance(start, SegmentStart)
                self.salt = scan.salt = salt_of(start.directory, number)
            self.offset = self.durable = item.end
            if scan.in_tail:
                break
        else:
            problem = "it ends here: a damaged journal cannot be followed"
            raise StorageError(f"{self.file.name}, byte {scan.size}: {problem}")
        self.number, self.node, self.directory = number, start.node, start.directory
        self.position = self.read_to = start.position
        return start

    def poll(self) -> None:
        """Read the records appended since, through as many segments as there are."""
        while True:
            later = [number for number in segments_in(self.path) if number > self.number]
            self._read()
            if not later:
                return
            self._decide(1 << 62)  # the node has gone on from here: what is valid counts
            before, position, directory = self.file, self.position, self.directory
            start = self._begin(later[0])
            before.close()
            if (start.directory, start.position) != (directory, position):
                raise Gap(
                    f"{self.path}: segment {later[0]} goes on from position {start.position} of directory "
                    f"{start.directory:016x}, and {directory:016x} was read to {position}"
                )

    def _read(self) -> None:
        scan = self.file.scan(self.file.size(), self.salt)
        while self.offset < scan.size:
            frame = scan.frame(self.offset)
            if isinstance(frame, Bad) or frame.end > scan.size:
                break  # being written; or damage, which the table `problems` tells from that
            self.offset = frame.end
            self.durable = max(self.durable, frame.durable)
            self.read_to += frame.type > FRAMING_MAX
            self.waiting.append((frame.end, self.read_to, list(self._entries(frame))))
            self._decide(self.durable)

    def _entries(self, frame: Frame) -> Iterator[Entry]:
        if frame.type == RECORDS_MERGED:
            merged = decoded(self.file.name, frame)
            for span, record in merged.entries:
                if record.kind == Kind.DEAD and record.letter is not None:
                    yield Entry(self.read_to, merged.partition, merged.group, span, record)

    def _decide(self, durable: int) -> None:
        count = 0
        for end, position, entries in self.waiting:
            if end > durable:
                break
            count += 1
            self.position = position
            self.entries += entries
        del self.waiting[:count]

    def forget(self, position: int) -> None:
        """Drop the entries up to here: they were given out for good."""
        self.base = max(self.base, position)
        self.entries = [entry for entry in self.entries if entry.position > position]


@dataclass(eq=False)
class StreamTask(Task):
    """A task of one micro-batch, with something of each directory, in order."""

    since: tuple[int, ...] = ()  # the position up to which it was read before
    until: tuple[int, ...] = ()  # the position up to which it is to be read now
    known: tuple[int, ...] = ()  # the position up to which the driver knows its new records
    new: tuple[tuple[Entry, ...], ...] = ()  # those records, between ``since`` and ``known``


class LettersStream(DataSourceStreamReader):
    """Follows the dead letters of some data directories."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.tails: dict[str, Tail] = {}  # by path; on the driver only

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tails": {}}

    def initialOffset(self) -> dict[str, Any]:
        if self.options.latest:
            return self.latestOffset({}, None)
        return {}

    def _since(self, start: Mapping[str, Any], node: str, directory: int) -> int:
        """Return the position up to which a node was read: NOTHING if it was not."""
        known = start.get(node)
        if known is None:
            return NOTHING
        if known["directory"] != f"{directory:016x}":
            self._gap(
                f"node {node!r} has another directory than the one that was followed ({directory:016x}, not "
                f"{known['directory']}): it was wiped or replaced"
            )
            return NOTHING
        return int(known["position"])

    def _gap(self, why: object) -> None:
        if not self.options.reread:
            raise Gap(
                f"{why}. Letters that were settled meanwhile cannot be known any more. option('onGap', 'reread') goes "
                "on: all dead letters that the node has now come again, but for those that another node proves known"
            )

    def _tail(self, path: str, start: Mapping[str, Any]) -> tuple[Tail, int]:
        """Return a directory's tail, read up to now, and the position from which it was to be read."""
        tail = self.tails.get(path)
        if tail is not None:
            try:
                tail.poll()
            except (Gap, SegmentGone):
                del self.tails[path]
                tail = None
        if tail is None:
            tail = self.tails[path] = Tail(path, NOTHING)
        since = self._since(start, tail.node, tail.directory)
        if since != NOTHING and since < tail.base:
            try:
                tail = self.tails[path] = Tail(path, since)
            except (Gap, SegmentGone) as error:
                self._gap(error)
                since = NOTHING
        if since > tail.position:
            self._gap(
                f"{path} is an older copy of itself: it was read to {since} and ends at {tail.position}"
            )
            since = NOTHING
        return tail, since

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = dict(start)
        for path in self.options.data:
            tail, _ = self._tail(path, start)
            end[tail.node] = {"directory": f"{tail.directory:016x}", "position": tail.position}
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned, registers, sizes = survey(self.options)
        directories = tuple(directory.directory for directory in planned)
        parts: list[tuple[int, int, int, tuple[Entry, ...]]] = []
        for directory in directories:
            tail, since = self._tail(directory.path, start)
            until = int(end[directory.node]["position"]) if directory.node in end else NOTHING
            new = tuple(entry for entry in tail.entries if entry.position > since)
            parts.append((since, until, tail.position, new))
        keys = wanted_keys(sizes, registers, self.options, Wanted(), deleted=False)
        if all(since != NOTHING for since, *_ in parts):
            keys &= {entry.key for _, until, _, new in parts for entry in new if entry.position <= until}
        tasks: list[InputPartition] = []
        for key in sorted(keys):
            mine = registers.only({key.topic})
            task = StreamTask(directories, frozenset((key,)), topics=mine.topics, groups=mine.groups)
            task.since, task.until, task.known, every = zip(*parts, strict=True)
            task.new = tuple(tuple(entry for entry in entries if entry.key == key) for entries in every)
            tasks.append(task)
        return tasks

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        yield from StreamReader(partition, self.options, Wanted(), Batches(self.schema)).read()

    def commit(self, end: dict[str, Any]) -> None:
        for tail in self.tails.values():
            offset = end.get(tail.node)
            if offset is not None and offset["directory"] == f"{tail.directory:016x}":
                tail.forget(int(offset["position"]))


Name = tuple[PartitionId, str, int, int]
"""A topic partition, a group, a generation and an n."""


class StreamReader(LettersReader):
    """One topic partition in one micro-batch."""

    letters = False
    task: StreamTask

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.new: list[dict[Name, SpanMap[bool]]] = []
        self.shipped: list[Entry] = []
        self.before: dict[tuple[PartitionId, str], SpanMap[tuple[int, bool, int, int]]] = {}
        for at, entries in enumerate(self.task.new):
            mine: dict[Name, SpanMap[bool]] = {}
            for entry in entries:
                name = (entry.key, entry.group, entry.record.generation, entry.record.n)
                mine.setdefault(name, SpanMap()).set(entry.span, True)
                if entry.position <= self.task.until[at]:
                    self._candidate(entry, at)
            self.new.append(mine)
        for at, directory in enumerate(self.open_directories):
            for plan in self.segments_of(directory.plan):
                self._segment(at, plan)
        for (key, group), died in self.died.items():
            before = self.before.get((key, group))
            for (generation, n), spans in died.items() if before is not None else ():
                rank = record_rank(Record(generation, n, Kind.DEAD))
                for span, _ in spans.items():
                    for part, known in before.within(span) if before is not None else ():
                        if known >= rank:
                            spans.remove(part)
        yield from self.letters_found()

    def _candidate(self, entry: Entry, at: int) -> None:
        if not self.wants(entry.key, entry.group) or not self.mine(entry.span.producer_id):
            return
        letters = self.died.setdefault((entry.key, entry.group), {}).setdefault(
            (entry.record.generation, entry.record.n), SpanMap()
        )
        assert entry.record.letter is not None
        death = Died(entry.record.letter.ballot, -1, 0, len(self.shipped), 0, 1 << at)
        self.shipped.append(entry)
        letters.update(entry.span, functools.partial(lower_ballot, death))

    def _entries(self, died: Died) -> Any:
        if died.directory == -1:
            entry = self.shipped[died.offset]
            return (SpanRecord(entry.span, entry.record),)
        return super()._entries(died)

    def _segment(self, at: int, plan: SegmentPlan) -> None:
        """Merge a segment's records, and note those that were there before or, of a node not read yet, come now."""
        directory = self.open_directories[at]
        # If its first record cannot be read, the time at which it came is not known.
        position, snapshot = 1 << 62, True
        for frame in directory.frames(plan, self.report):
            if frame.offset == 0:
                start = decoded(directory.files[plan.number].name, frame)
                position = start.position if isinstance(start, SegmentStart) else position
            elif frame.type == SNAPSHOT_END:
                snapshot = False
            elif not snapshot:
                position += frame.type > FRAMING_MAX
            self.take_record(at, plan, frame)
            if frame.type == RECORDS_MERGED:
                self._when(at, plan, frame, position, snapshot)

    def _when(self, at: int, plan: SegmentPlan, frame: Frame, position: int, snapshot: bool) -> None:
        record = decoded(self.open_directories[at].files[plan.number].name, frame)
        if not self.wants(record.partition, record.group):
            return
        since, until, known = self.task.since[at], self.task.until[at], self.task.known[at]
        for number, (span, value) in enumerate(record.entries):
            dead = value.kind == Kind.DEAD and value.letter is not None
            new = self.new[at].get((record.partition, record.group, value.generation, value.n))
            old = [span] if new is None else new.gaps(span)
            if since == NOTHING:
                if dead and position > until:
                    # A snapshot that is younger than the batch has later ones too; a node added since is in the next.
                    parts = old if snapshot and until != NOTHING else []
                else:
                    parts = [span] if dead else []
                letters = self.died.setdefault((record.partition, record.group), {}) if parts else {}
                for part in parts:
                    death = Died(value.letter.ballot, at, plan.number, frame.offset, number, 1 << at)
                    deaths = letters.setdefault((value.generation, value.n), SpanMap())
                    deaths.update(part, functools.partial(lower_ballot, death))
                continue
            if position <= since:
                parts = [span]
            else:
                parts = old if snapshot and dead and position <= known else []
            before = self.before.setdefault((record.partition, record.group), SpanMap())
            rank = record_rank(value)
            for part in parts:
                before.update(part, lambda was, rank=rank: rank if was is None else max(was, rank))  # type: ignore[misc]

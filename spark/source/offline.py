"""Tables out of data directories.

`copies` and `problems` are read segment by segment. In the others a message is one row however many nodes have it, so
one Spark task has all of a topic partition (or all of a share of its origins): it reads the headers of all batches of
all nodes, merges them by span, and then the bodies of one intact copy. What it keeps in memory is a few numbers per
batch and per run of tombstones, and per dead letter where its text lies; never a payload for longer than its batch.

A task begins with opening every file it needs and gives out its first row after it has read all headers. So a task
that is repeated gives the same rows or an error, and never some rows twice.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorumq.client.message import MessageId
from quorumq.core.closed import ClosedOrigins
from quorumq.core.errors import StorageError, UsageError
from quorumq.core.records import OriginsClosed, Reclaimed, RecordsMerged
from quorumq.core.spans import SpanMap
from quorumq.core.types import (
    BatchHeader,
    Group,
    Kind,
    Letter,
    Origin,
    PartitionId,
    Record,
    Span,
    Stamp,
    Topic,
    record_rank,
)
from quorumq.history import origin_text
from quorumq.storage.records import BATCH_MOVED, BATCH_STORED, TYPE_OF
from quorumq.storage.segment import Frame
from quorumq.wire.batch import Corrupt, HeaderValue, Message, records_of
from spark.source.arrow import Batches, Same, Values, generation_of, known_time, small, time_of
from spark.source.journals import (
    PLANS_MAX,
    RECORDS_MERGED,
    Directory,
    OpenDirectory,
    Problem,
    Registers,
    Report,
    SegmentGone,
    SegmentPlan,
    batch_of,
    decoded,
    ignore,
    plan_directory,
    refuse,
)
from spark.source.options import Options, Wanted

CONTENT: Final = ("key", "headers", "payload", "size", "digest")
"""Columns for which a batch's body is read."""

LOADED_MAX: Final = 12
"""Batches that a task keeps in memory: at most 4 MiB each."""

ROWS_AT_ONCE: Final = 256
"""Dead letters of one block of rows: each may have 16 KiB of text."""

_RECLAIMED: Final = TYPE_OF[Reclaimed]
_CLOSED: Final = TYPE_OF[OriginsClosed]
_BATCHES: Final = (BATCH_STORED, BATCH_MOVED)


class Task(InputPartition):
    """What one Spark task reads.

    Args:
        directories: of all nodes; of `copies` and `problems` one.
        keys: the topic partitions to read; None for all.
        segments: the segments to read, of `copies` and `problems`; None for all.
        bucket: (which share of the origins, of how many).
        topics: registers of the topics.
        groups: registers of the groups.
    """

    def __init__(
        self,
        directories: tuple[Directory, ...],
        *,
        keys: frozenset[PartitionId] | None = None,
        segments: frozenset[int] | None = None,
        bucket: tuple[int, int] = (0, 1),
        topics: Mapping[bytes, Topic] | None = None,
        groups: Mapping[tuple[bytes, str], Group] | None = None,
    ) -> None:
        self.directories = directories
        self.keys = keys
        self.segments = segments
        self.bucket = bucket
        self.topics = dict(topics or {})
        self.groups = dict(groups or {})


# --------------------------------------------------------------------------- planning


def reporter(options: Options) -> Report:
    """What becomes of problems: the table that lists them must not end at the first."""
    return ignore if options.report or options.table == "problems" else refuse


def plan(options: Options, wanted: Wanted) -> list[Task]:
    """The tasks of a read: on the driver.

    Raises:
        UsageError: a directory that is no node's, two of one node, or of two clusters.
        StorageError: a directory cannot be read.
    """
    report = reporter(options)
    planned = [plan_directory(path, report) for path in options.data]
    directories = tuple(found.directory for found in planned)
    check_nodes(directories)
    registers = Registers()
    sizes: dict[PartitionId, int] = {}
    for found in planned:
        registers.update(found.registers)
        for key, size in found.sizes.items():
            sizes[key] = sizes.get(key, 0) + size
        for topic in found.registers.topics.values():
            for partition in range(topic.partitions):
                sizes.setdefault(PartitionId(topic.id, partition), 0)
    if options.table == "problems":
        first = directories[0]
        directories = (
            first._replace(problems=(*first.problems, *absent(directories, registers))),
            *directories[1:],
        )
    if options.table in ("copies", "problems"):
        keys = wanted_keys(sizes, registers, options, wanted, deleted=True)
        return _segment_tasks(directories, registers, keys, options, wanted)
    keys = wanted_keys(sizes, registers, options, wanted, deleted=False)
    tasks: list[Task] = []
    for some in _together(keys, sizes, options.split_bytes):
        ids = {key.topic for key in some}
        topics = {name: topic for name, topic in registers.topics.items() if name in ids}
        groups = {name: group for name, group in registers.groups.items() if name[0] in ids}
        for number in range(options.buckets):
            tasks.append(
                Task(directories, keys=some, bucket=(number, options.buckets), topics=topics, groups=groups)
            )
    return tasks


def absent(directories: Iterable[Directory], registers: Registers) -> Iterator[Problem]:
    """The nodes whose directories are to be given too: without them a list of dead letters need not be complete."""
    given = {found.node for found in directories}
    lacking: dict[str, list[str]] = {}
    for topic in sorted(registers.topics.values(), key=lambda topic: topic.name):
        for number, members in enumerate(() if topic.deleted else topic.replicas):
            if len(given.intersection(members)) < (len(members) + 1) // 2:
                for node in sorted(set(members) - given):
                    lacking.setdefault(node, []).append(f"{topic.name}/{number}")
    for node, places in sorted(lacking.items()):
        impact = f"dead letters and messages of {len(places)} topic partitions ({places[0]} …), unless another has them"
        reason = "the data directory of this node was not given, and too few of the others were"
        yield Problem(node, "", None, None, None, "absent", reason, impact)


def check_nodes(directories: Iterable[Directory]) -> None:
    """Refuse what cannot be merged: two directories of one node, or of two clusters."""
    by_node: dict[str, Directory] = {}
    cluster: Directory | None = None
    for found in directories:
        before = by_node.get(found.node)
        if before is not None:
            raise UsageError(
                f"{before.path} and {found.path} are both of node {found.node!r}: give one of them"
                + ("" if before.directory == found.directory else ", that which the node uses now")
            )
        by_node[found.node] = found
        if cluster is not None and cluster.cluster_id != found.cluster_id:
            raise UsageError(
                f"{cluster.path} is of cluster {cluster.cluster_id!r} and {found.path} of {found.cluster_id!r}: read "
                "one cluster at a time"
            )
        cluster = cluster or found


def wanted_keys(
    sizes: Mapping[PartitionId, int], registers: Registers, options: Options, wanted: Wanted, *, deleted: bool
) -> frozenset[PartitionId]:
    """The topic partitions that options and filters leave."""
    found: list[PartitionId] = []
    for key in sizes:
        topic = registers.topics.get(key.topic)
        name = key.topic.hex() if topic is None else topic.name
        if topic is not None and topic.deleted and not deleted:
            continue
        if options.topics is not None and name not in options.topics:
            continue
        if options.partitions is not None and key.number not in options.partitions:
            continue
        if (
            wanted.may_be("topic", name)
            and wanted.may_be("topic_id", key.topic.hex())
            and wanted.may_be("partition", key.number)
        ):
            found.append(key)
    return frozenset(found)


def _together(
    keys: frozenset[PartitionId], sizes: Mapping[PartitionId, int], most: int
) -> Iterator[frozenset[PartitionId]]:
    """Topic partitions that one task reads: small ones together, as each task reads all headers."""
    some: list[PartitionId] = []
    size = 0
    for key in sorted(keys):
        if some and size + sizes[key] > most:
            yield frozenset(some)
            some, size = [], 0
        some.append(key)
        size += sizes[key]
    if some:
        yield frozenset(some)


def holds_any(segment: SegmentPlan, keys: frozenset[PartitionId] | None, column: str, wanted: Wanted) -> bool:
    """Whether a segment's footer leaves it open that there are batches of these partitions, and of the times wanted."""
    if segment.footer is None:
        return True
    return any(
        (keys is None or PartitionId(part.topic, part.partition) in keys)
        and (not column or wanted.may_be_at(column, part.first_published_ms, part.last_published_ms))
        for part in segment.footer
    )


def _segment_tasks(
    directories: tuple[Directory, ...],
    registers: Registers,
    keys: frozenset[PartitionId],
    options: Options,
    wanted: Wanted,
) -> list[Task]:
    """One task for each range of a node's segments."""
    tasks: list[Task] = []
    copies = options.table == "copies"
    for directory in directories:
        if copies and not wanted.may_be("node", directory.node):
            continue
        ranges: list[list[int]] = []
        size = options.split_bytes
        for segment in directory.segments:
            if copies and not holds_any(segment, keys, "published_at", wanted):
                continue
            if not ranges or size + segment.bytes > options.split_bytes:
                ranges.append([])
                size = 0
            ranges[-1].append(segment.number)
            size += segment.bytes
        tasks += [
            Task(
                (directory,),
                keys=keys if copies else None,
                segments=frozenset(numbers),
                bucket=(at, len(ranges)),
                topics=registers.topics,
            )
            for at, numbers in enumerate(ranges)
        ]
    return tasks


# --------------------------------------------------------------------------- a task


def read(task: Task, options: Options, wanted: Wanted, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    table = {
        "copies": CopiesReader,
        "problems": ProblemsReader,
        "messages": MessagesReader,
        "deadletters": LettersReader,
        "tombstones": TombstonesReader,
    }[options.table]
    reader = table(task, options, wanted, Batches(schema))
    try:
        reader.open()
        yield from reader.rows()
        yield from reader.out.rest()
    finally:
        reader.close()


def headers_text(headers: Mapping[str, HeaderValue]) -> dict[str, str | None]:
    """Headers as texts; bytes that are no text are written out, truth is `true` and `false`."""
    return {name: _header_text(value) for name, value in headers.items()}


def _header_text(value: HeaderValue) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def names(key: PartitionId, span: Span, topic: str) -> dict[str, Values]:
    """The columns that name messages."""
    origin, start, stop = span
    head = str(MessageId(key, origin, 0))[:-1]
    return {
        "id": lambda: [f"{head}{seq}" for seq in range(start, stop)],
        "topic": Same(topic),
        "topic_id": Same(key.topic.hex()),
        "partition": Same(key.number),
        "origin": Same(origin_text(origin)),
        "seq": lambda: list(range(start, stop)),
    }


def content(messages: list[Message | None], crcs: Values) -> dict[str, Values]:
    """The columns of keys, headers and payloads; None stands for a message of which there is no intact copy."""
    return {
        "key": lambda: [None if item is None else item.key for item in messages],
        "headers": lambda: [None if item is None else headers_text(item.headers) for item in messages],
        "payload": lambda: [None if item is None else item.payload for item in messages],
        "size": lambda: [None if item is None else len(item.payload) for item in messages],
        "crc": crcs,
        "digest": lambda: [
            None if item is None else hashlib.sha256(item.payload).hexdigest() for item in messages
        ],
    }


class Loaded(NamedTuple):
    """A batch read again: its header, and its body if it was asked for and is intact."""

    header: BatchHeader
    body: bytes | None

    def parts(self, span: Span) -> Iterator[tuple[Span, int]]:
        """The parts of a span that are in this batch, with the index of the first record of each."""
        at = 0
        for section in self.header.sections:
            start, stop = max(section.start, span.start), min(section.stop, span.stop)
            if section.origin == span.origin and start < stop:
                yield Span(span.origin, start, stop), at + start - section.start
            at += section.size

    def crcs(self, first: int, count: int) -> list[str]:
        """The CRCs of records, as in a history."""
        return [f"{self.header.crc_of(index):08x}" for index in range(first, first + count)]


class Reader:
    """One task while it reads."""

    def __init__(self, task: Task, options: Options, wanted: Wanted, out: Batches) -> None:
        self.task = task
        self.options = options
        self.wanted = wanted
        self.out = out
        self.report = reporter(options)
        self.open_directories: list[OpenDirectory] = []
        self.topics = task.topics
        self.groups = task.groups

    # ------------------------------------------------------------------ files

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        """The segments that this table needs of a directory."""
        if self.task.segments is not None:
            return [plan for plan in directory.segments if plan.number in self.task.segments]
        return [
            plan
            for plan in directory.segments
            if plan.state or holds_any(plan, self.task.keys, "", self.wanted)
        ]

    def open(self) -> None:
        """Open all files; where the node has reclaimed one since the plan was made, plan its directory again."""
        for directory in self.task.directories:
            found = directory
            for attempt in range(PLANS_MAX):
                try:
                    wanted = [segment.number for segment in self.segments_of(found)]
                    self.open_directories.append(OpenDirectory(found, wanted))
                    break
                except SegmentGone as error:
                    if self.task.segments is not None or attempt == PLANS_MAX - 1:
                        raise StorageError(
                            f"{error}. Other tasks read the journal as it was before: run the query again, or read a "
                            "copy of the directory"
                        ) from None
                    found = self._again(directory)

    def _again(self, directory: Directory) -> Directory:
        planned = plan_directory(directory.path, self.report)
        if planned.directory.directory != directory.directory:
            raise StorageError(f"{directory.path} was replaced while it was read: read it again")
        registers = Registers()
        registers.topics.update(self.topics)
        registers.groups.update(self.groups)
        registers.update(planned.registers)
        self.topics, self.groups = registers.topics, registers.groups
        return planned.directory

    def close(self) -> None:
        """Give all files back."""
        for directory in self.open_directories:
            directory.close()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Arrow batches of rows."""
        raise NotImplementedError

    # ------------------------------------------------------------------ common

    def topic_name(self, key: PartitionId) -> str:
        topic = self.topics.get(key.topic)
        return key.topic.hex() if topic is None else topic.name

    def nodes_of(self, mask: int) -> list[str]:
        """The names of nodes in a bit mask over the directories, sorted."""
        return sorted(found.plan.node for at, found in enumerate(self.open_directories) if mask >> at & 1)

    def mine(self, origin: Origin) -> bool:
        """Whether this task's share of the origins has this one."""
        number, of = self.task.bucket
        return of == 1 or zlib.crc32(origin_text(origin).encode()) % of == number

    def messages_in(
        self, directory: OpenDirectory, segment: int, frame: Frame, loaded: Loaded, first: int, count: int
    ) -> list[Message | None]:
        """Records of an intact body; None for one that its producer wrote so that nobody can read it."""
        header, body = loaded
        if body is None:
            return [None] * count
        try:
            return list(
                records_of(
                    header,
                    first,
                    first + count,
                    body[header.end_of(first - 1) : header.end_of(first + count - 1)],
                )
            )
        except Corrupt:
            return [
                self._message(directory, segment, frame, loaded, index)
                for index in range(first, first + count)
            ]

    def _message(
        self, directory: OpenDirectory, segment: int, frame: Frame, loaded: Loaded, index: int
    ) -> Message | None:
        header, body = loaded
        assert body is not None
        try:
            return records_of(
                header, index, index + 1, body[header.end_of(index - 1) : header.end_of(index)]
            )[0]
        except Corrupt as error:
            problem = directory.body_problem(segment, frame, str(error))
            self.report(problem._replace(what="record", impact="key, headers and payload of this message"))
            return None


# --------------------------------------------------------------------------- copies, problems


class CopiesReader(Reader):
    """`copies`: every batch that counts, as it lies in one node's journal."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        (directory,) = self.open_directories
        bodies = (self.options.bodies and self.out.wants(*CONTENT)) or (
            self.options.verify and self.out.wants("intact")
        )
        for plan in self.segments_of(directory.plan):
            for frame in directory.frames(plan, self.report):
                if frame.type in _BATCHES:
                    yield from self._batch(directory, plan, frame, bodies)

    def _batch(
        self, directory: OpenDirectory, plan: SegmentPlan, frame: Frame, bodies: bool
    ) -> Iterator[pa.RecordBatch]:
        found = directory.batch(plan, frame)
        if found is None:
            return
        stored = found.stored
        header = stored.batch.header
        key = header.partition
        if self.task.keys is not None and key not in self.task.keys:
            return
        if not self.wanted.may_be_at("published_at", header.published_ms, header.published_ms):
            return
        body = directory.body(plan.number, frame) if bodies and not found.damaged else None
        intact = not found.damaged and (body is not None or not bodies)
        if not intact:
            self.report(directory.body_problem(plan.number, frame))
        loaded = Loaded(header, body)
        at = 0
        for section in header.sections:
            first, count = at, section.size
            at += count
            messages: list[Message | None] = [None] * count
            if self.options.bodies and self.out.wants(*CONTENT):
                messages = self.messages_in(directory, plan.number, frame, loaded, first, count)
            yield from self.out.add(
                count,
                header.end_of(first + count - 1) - header.end_of(first - 1),
                {
                    "node": Same(directory.plan.node),
                    **names(key, section, self.topic_name(key)),
                    **content(messages, functools.partial(loaded.crcs, first, count)),
                    "published_at": Same(time_of(header.published_ms)),
                    "received_at": Same(known_time(stored.received_ms)),
                    "delay_ms": Same(header.delay_ms),
                    "ttl_ms": Same(header.ttl_ms),
                    "intact": Same(intact),
                    "batch": Same(stored.number),
                    "segment": Same(plan.number),
                    "offset": Same(frame.offset),
                },
            )


class ProblemsReader(Reader):
    """`problems`: everything that cannot be read or does not count. Reads every body."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        (directory,) = self.open_directories
        found: list[Problem] = list(directory.plan.problems) if self.task.bucket[0] == 0 else []
        told = {(problem.segment, problem.offset) for problem in directory.plan.problems}

        def note(problem: Problem) -> None:
            if (problem.segment, problem.offset) not in told:
                found.append(problem)

        self.report = note
        for plan in self.segments_of(directory.plan):
            for frame in directory.frames(plan, note):
                if frame.type in _BATCHES:
                    self._check(directory, plan, frame)
                    yield from self._give(found)
        yield from self._give(found)

    def _check(self, directory: OpenDirectory, plan: SegmentPlan, frame: Frame) -> None:
        found = directory.batch(plan, frame)
        if found is None:
            return
        header = found.stored.batch.header
        body = None if found.damaged else directory.body(plan.number, frame)
        if body is None:
            self.report(directory.body_problem(plan.number, frame))
            return
        self.messages_in(directory, plan.number, frame, Loaded(header, body), 0, header.size)

    def _give(self, found: list[Problem]) -> Iterator[pa.RecordBatch]:
        for problem in found:
            values: dict[str, Values] = {name: Same(value) for name, value in problem._asdict().items()}
            yield from self.out.add(1, 0, values)
        found.clear()


# --------------------------------------------------------------------------- batches, merged


class Place(NamedTuple):
    """Where a batch lies, and what of its header is needed before it is read again."""

    directory: int  # which of the directories
    segment: int
    offset: int
    published_ms: int
    delay_ms: int
    ttl_ms: int
    damaged: bool


class Index:
    """Which batches have which messages: per topic partition a map from spans to numbers of places."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.spans: dict[PartitionId, SpanMap[tuple[int, ...]]] = {}

    def add(self, key: PartitionId, place: Place, spans: Iterable[Span]) -> None:
        """A batch that has these messages."""
        number = len(self.places)
        self.places.append(place)
        found = self.spans.setdefault(key, SpanMap())
        for span in spans:
            found.update(span, lambda old: (*(old or ()), number))


class MergingReader(Reader):
    """What the tables that merge replicas have in common."""

    def __init__(self, task: Task, options: Options, wanted: Wanted, out: Batches) -> None:
        super().__init__(task, options, wanted, out)
        self.index = Index()
        self.closed: dict[PartitionId, ClosedOrigins] = {}
        self.load = functools.lru_cache(maxsize=LOADED_MAX)(self._load)

    def scan(
        self,
        take: Callable[[int, SegmentPlan, Frame], None],
        *,
        state_only: bool = False,
    ) -> None:
        """Give every record of every segment that is open to ``take``, with the number of its directory."""
        for at, directory in enumerate(self.open_directories):
            for plan in self.segments_of(directory.plan):
                if plan.state or not state_only:
                    for frame in directory.frames(plan, self.report):
                        take(at, plan, frame)

    def take_batch(
        self,
        at: int,
        plan: SegmentPlan,
        frame: Frame,
        within: Mapping[PartitionId, SpanMap[Any]] | None = None,
    ) -> None:
        """Note a batch, or what of it is ``within`` spans."""
        found = self.open_directories[at].batch(plan, frame)
        if found is None:
            return
        header = found.stored.batch.header
        key = header.partition
        if self.task.keys is not None and key not in self.task.keys:
            return
        spans = [section for section in header.sections if self.mine(section.origin)]
        if within is not None:
            known = within.get(key)
            spans = [] if known is None else [part for span in spans for part, _ in known.within(span)]
        if spans:
            place = Place(
                at,
                plan.number,
                frame.offset,
                header.published_ms,
                header.delay_ms,
                header.ttl_ms,
                found.damaged,
            )
            self.index.add(key, place, spans)

    def take_closed(self, frame: Frame, record: OriginsClosed) -> None:
        """Note origins that are over: what else is said of them is void."""
        if self.task.keys is None or record.partition in self.task.keys:
            closed = self.closed.setdefault(record.partition, ClosedOrigins())
            for span in record.spans:
                closed.numbers.add(span)

    def is_closed(self, key: PartitionId, origin: Origin) -> bool:
        """Whether an origin is over, as any node says."""
        closed = self.closed.get(key)
        return closed is not None and origin in closed

    def frame_of(self, number: int) -> tuple[OpenDirectory, Place, Frame]:
        """A batch's place and its record, read again."""
        place = self.index.places[number]
        directory = self.open_directories[place.directory]
        return directory, place, directory.frame_at(place.segment, place.offset)

    def _load(self, number: int, with_body: bool) -> Loaded:
        directory, place, frame = self.frame_of(number)
        stored, _ = batch_of(directory.files[place.segment].name, frame)
        body = None
        if with_body and not place.damaged:
            body = directory.body(place.segment, frame)
        if place.damaged or (with_body and body is None):
            self.report(directory.body_problem(place.segment, frame))
        return Loaded(stored.batch.header, body)


class MessagesReader(MergingReader):
    """`messages`: one row for each message, wherever it is stored."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.reclaimed: dict[PartitionId, SpanMap[int]] = {}
        self.scan(self._take)
        content_wanted = self.options.bodies and self.out.wants(*CONTENT)
        self.bodies = content_wanted or (self.options.verify and self.out.wants("replicas", "damaged"))
        self.content = content_wanted
        self.whole: dict[int, bool] = {}  # by place: whether its body is intact
        for key in sorted(self.index.spans):
            runs = self.index.spans[key].items()
            runs.sort(key=lambda run: (run[1][0], run[0]))  # batch by batch of the first node that has it
            for span, numbers in runs:
                places = [self.index.places[number] for number in numbers]
                published = min(place.published_ms for place in places)
                if self.wanted.may_be_at("published_at", published, published):
                    yield from self._run(key, span, numbers, published)
            self.index.spans[key] = SpanMap()

    def _take(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        if frame.type in _BATCHES:
            self.take_batch(at, plan, frame)
        elif frame.type == _RECLAIMED and plan.state:
            record = self._decoded(at, plan, frame)
            if record.partition in self.task.keys:
                found = self.reclaimed.setdefault(record.partition, SpanMap())
                for span in record.spans:
                    if self.mine(span.origin):
                        found.update(span, lambda old: (old or 0) | 1 << at)

    def _decoded(self, at: int, plan: SegmentPlan, frame: Frame) -> Any:
        return decoded(self.open_directories[at].files[plan.number].name, frame)

    def _intact(self, number: int) -> bool:
        found = self.whole.get(number)
        if found is None:
            found = not self.index.places[number].damaged
            if found and self.bodies:
                found = self.load(number, True).body is not None
            elif not found:
                self.load(number, self.bodies)  # reports it
            self.whole[number] = found
        return found

    def _run(
        self, key: PartitionId, span: Span, numbers: tuple[int, ...], published: int
    ) -> Iterator[pa.RecordBatch]:
        intact = [number for number in numbers if self._intact(number)]
        there = sum({1 << self.index.places[number].directory for number in intact})
        spoilt = sum({1 << self.index.places[number].directory for number in numbers}) & ~there
        chosen = intact[0] if intact else numbers[0]
        first_made = min(
            (self.index.places[number] for number in numbers), key=lambda place: place.published_ms
        )
        topic = self.topics.get(key.topic)
        members = (
            sorted(topic.replicas[key.number]) if topic is not None and key.number < topic.partitions else []
        )
        asked = [name for name in members if name in {found.plan.node for found in self.open_directories}]
        loaded = self.load(chosen, self.bodies)
        for piece, index in loaded.parts(span):
            for part, gone in self.reclaimed.get(key, SpanMap()).split(piece):
                first, count = index + part.start - piece.start, part.size
                messages: list[Message | None] = [None] * count
                if self.content and intact:
                    directory, place, frame = self.frame_of(chosen)
                    messages = self.messages_in(directory, place.segment, frame, loaded, first, count)
                yield from self.out.add(
                    count,
                    loaded.header.end_of(first + count - 1) - loaded.header.end_of(first - 1),
                    {
                        **names(key, part, self.topic_name(key)),
                        **content(messages, functools.partial(loaded.crcs, first, count)),
                        "published_at": Same(time_of(published)),
                        "delay_ms": Same(first_made.delay_ms),
                        "ttl_ms": Same(first_made.ttl_ms),
                        "replicas": Same(self.nodes_of(there)),
                        "damaged": Same(self.nodes_of(spoilt)),
                        "reclaimed": Same(self.nodes_of((gone or 0) & ~there & ~spoilt)),
                        "asked": Same(asked),
                        "replica_set": Same(members),
                    },
                )


# --------------------------------------------------------------------------- records, merged


class Held(NamedTuple):
    """What is known of a message for a group: the highest record, and a bit mask of the nodes that have it."""

    generation: int
    n: int
    kind: Kind
    nodes: int

    def rank(self) -> tuple[int, bool, int, int]:
        return record_rank(Record(self.generation, self.n, self.kind))


class Died(NamedTuple):
    """Where the letter of a DEAD record is: entry ``entry`` of the record at ``offset``."""

    ballot: Stamp
    directory: int
    segment: int
    offset: int
    entry: int
    nodes: int


Key = tuple[PartitionId, str]
"""A topic partition and the name of a group."""


class RecordsReader(MergingReader):
    """What `tombstones` and `deadletters` have in common: the merged records of each group."""

    letters = False

    def __init__(self, task: Task, options: Options, wanted: Wanted, out: Batches) -> None:
        super().__init__(task, options, wanted, out)
        self.records: dict[Key, SpanMap[Held]] = {}
        self.died: dict[Key, dict[tuple[int, int], SpanMap[Died]]] = {}

    def wants_group(self, name: str) -> bool:
        return (self.options.groups is None or name in self.options.groups) and self.wanted.may_be(
            "group", name
        )

    def take_record(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        """Merge a RecordsMerged, or note closed origins."""
        if frame.type not in (RECORDS_MERGED, _CLOSED):
            return
        record = decoded(self.open_directories[at].files[plan.number].name, frame)
        if isinstance(record, OriginsClosed):
            if plan.state:
                self.take_closed(frame, record)
            return
        assert isinstance(record, RecordsMerged)
        key = (record.partition, record.group)
        if (self.task.keys is not None and record.partition not in self.task.keys) or not self.wants_group(
            record.group
        ):
            return
        merged = self.records.setdefault(key, SpanMap())
        died = self.died.setdefault(key, {})
        for entry, (span, value) in enumerate(record.entries):
            if not self.mine(span.origin):
                continue
            held = Held(value.generation, value.n, value.kind, 1 << at)
            merged.update(span, functools.partial(_higher, held))
            if self.letters and value.kind == Kind.DEAD and value.letter is not None:
                letters = died.setdefault((value.generation, value.n), SpanMap())
                this = Died(value.letter.ballot, at, plan.number, frame.offset, entry, 1 << at)
                letters.update(span, functools.partial(lower_ballot, this))


def _higher(new: Held, old: Held | None) -> Held:
    if old is None or new.rank() > old.rank():
        return new
    return old._replace(nodes=old.nodes | new.nodes) if new.rank() == old.rank() else old


def lower_ballot(new: Died, old: Died | None) -> Died:
    """Which of two letters of one DEAD record stays, with the nodes that have either."""
    if old is None:
        return new
    return (old if old.ballot <= new.ballot else new)._replace(nodes=old.nodes | new.nodes)


class TombstonesReader(RecordsReader):
    """`tombstones`: what became of messages for each group, as spans."""

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        return [plan for plan in directory.segments if plan.state]

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.scan(self.take_record)
        for (key, group), merged in sorted(self.records.items()):
            for span, held in merged.items():
                kind = held.kind.name.lower()
                if self.is_closed(key, span.origin) or not self.wanted.may_be("kind", kind):
                    continue
                yield from self.out.add(
                    1,
                    0,
                    {
                        "topic": Same(self.topic_name(key)),
                        "topic_id": Same(key.topic.hex()),
                        "partition": Same(key.number),
                        "group": Same(group),
                        "origin": Same(origin_text(span.origin)),
                        "start": Same(span.start),
                        "stop": Same(span.stop),
                        "generation": Same(generation_of(held.generation)),
                        "n": Same(small(held.n)),
                        "kind": Same(kind),
                        "replicas": Same(self.nodes_of(held.nodes)),
                    },
                )


def letter_columns(letter: Letter) -> dict[str, Values]:
    """The columns that come from a dead letter's history."""
    values = {
        "reason": letter.reason,
        "error_class": letter.error_class,
        "message": letter.message,
        "stack": letter.stack,
        "fingerprint": letter.fingerprint,
        "attempts": small(letter.attempts),
        "first_delivered_at": known_time(letter.first_delivered_ms),
        "last_delivered_at": known_time(letter.last_delivered_ms),
        "died_at": known_time(letter.died_ms),
        "consumer": letter.consumer,
        "consumer_version": letter.consumer_version,
        "host": letter.host,
        "node": letter.node,
    }
    return {name: Same(value) for name, value in values.items()}


class LettersReader(RecordsReader):
    """`deadletters`: every letter that the journals have, and what became of its message."""

    letters = True

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        # Older segments have letters of what was settled since, and footers do not say of which partition.
        return list(directory.segments)

    @property
    def settled_too(self) -> bool:
        """Whether letters of what is no longer a dead letter are wanted."""
        only = self.wanted.values.get("resolution")
        return self.options.resolved and (only is None or bool(only - {"dead"}))

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.scan(self._take_letter, state_only=not self.settled_too)
        yield from self.letters_found()

    def _take_letter(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        self.take_record(at, plan, frame)

    def letters_found(self) -> Iterator[pa.RecordBatch]:
        """Rows of what `died` has: a second pass over the batches, then over the letters, in the order of the files."""
        if self.out.wants(*CONTENT, "crc", "published_at"):
            within: dict[PartitionId, SpanMap[bool]] = {}
            for (key, _), letters in self.died.items():
                found = within.setdefault(key, SpanMap())
                for spans in letters.values():
                    for span, _died in spans.items():
                        found.set(span, True)
            self.scan(functools.partial(self._take_body, within))
        for (key, group), letters in sorted(self.died.items()):
            for (generation, n), spans in sorted(letters.items()):
                found_here = spans.items()
                found_here.sort(key=lambda item: (*item[1][1:5], item[0]))
                at: tuple[int, int, int] | None = None
                entries: Any = ()
                for span, died in found_here:
                    if at != died[1:4]:
                        at = died[1:4]
                        entries = self._entries(died)
                    letter = entries[died.entry].record.letter
                    yield from self._letter(key, group, generation, n, span, died.nodes, letter)

    def _take_body(
        self, within: Mapping[PartitionId, SpanMap[bool]], at: int, plan: SegmentPlan, frame: Frame
    ) -> None:
        if frame.type in _BATCHES and holds_any(plan, frozenset(within), "", self.wanted):
            self.take_batch(at, plan, frame, within)

    def _entries(self, died: Died) -> Any:
        directory = self.open_directories[died.directory]
        frame = directory.frame_at(died.segment, died.offset)
        return decoded(directory.files[died.segment].name, frame).entries

    def resolution(
        self, key: PartitionId, group: str, generation: int, n: int, now: Held, published_ms: int
    ) -> str:
        """What became of a message that died at (generation, n), of which the record is ``now``."""
        if now.generation == generation:
            if now.kind == Kind.ACKED:
                return "acked"
            if now.n > n:
                return "redriven"
            if now.kind == Kind.PURGED:
                return "purged"
        register = self.groups.get((key.topic, group))
        if register is not None and register.generation > generation and published_ms >= register.from_ms:
            return "reopened"  # whatever became of it since, in the new generation
        if now.generation > generation:
            return "redriven" if now.n > n else "reopened"
        return "dead"

    def _letter(
        self, key: PartitionId, group: str, generation: int, n: int, span: Span, nodes: int, letter: Letter
    ) -> Iterator[pa.RecordBatch]:
        closed = self.is_closed(key, span.origin)
        for part, found in self.records.get((key, group), SpanMap()).split(span):
            now = found or Held(generation, n, Kind.DEAD, nodes)
            for piece, numbers in self.index.spans.get(key, SpanMap()).split(part):
                published = letter.published_ms
                if not published and numbers:
                    published = min(self.index.places[number].published_ms for number in numbers)
                what = "closed" if closed else self.resolution(key, group, generation, n, now, published)
                if what != "dead" and not self.options.resolved:
                    continue
                if not self.wanted.may_be("resolution", what):
                    continue
                for start in range(piece.start, piece.stop, ROWS_AT_ONCE):
                    some = piece._replace(start=start, stop=min(piece.stop, start + ROWS_AT_ONCE))
                    messages, crcs, size = self._contents(some, numbers or ())
                    yield from self.out.add(
                        some.size,
                        size + some.size * 2 * (len(letter.message) + len(letter.stack)),
                        {
                            **names(key, some, self.topic_name(key)),
                            "group": Same(group),
                            "generation": Same(generation_of(generation)),
                            "n": Same(small(n)),
                            "resolution": Same(what),
                            "published_at": Same(known_time(published)),
                            **letter_columns(letter),
                            **content(messages, crcs),
                            "replicas": Same(self.nodes_of(nodes)),
                        },
                    )

    def _contents(
        self, span: Span, numbers: tuple[int, ...]
    ) -> tuple[list[Message | None], list[str | None], int]:
        """What is left of these messages, each from the first copy whose own checksum matches."""
        messages: list[Message | None] = [None] * span.size
        crcs: list[str | None] = [None] * span.size
        if not numbers or not self.out.wants(*CONTENT, "crc"):
            return messages, crcs, 0
        bodies = self.options.bodies and self.out.wants(*CONTENT)
        size = 0
        bad: dict[int, Problem] = {}
        for number in numbers:
            loaded = self.load(number, False)
            directory, place, frame = self.frame_of(number)
            for part, first in loaded.parts(span):
                for index in range(first, first + part.size):
                    at = part.start - span.start + index - first
                    crcs[at] = f"{loaded.header.crc_of(index):08x}"
                    if not bodies or messages[at] is not None:
                        continue
                    low, high = loaded.header.end_of(index - 1), loaded.header.end_of(index)
                    data = directory.files[place.segment].read(frame.body_offset + low, high - low)
                    try:
                        messages[at] = records_of(loaded.header, index, index + 1, data)[0]
                        size += high - low
                    except Corrupt as error:
                        bad[at] = directory.body_problem(place.segment, frame, str(error))
        for problem in bad.values():
            self.report(problem)
        return messages, crcs, size

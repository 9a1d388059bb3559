"""One Spark task over data directories: its input, and the common part of all readers."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql.datasource import InputPartition

from quorumq.client.base.message import MessageId
from quorumq.core.values.errors import StorageError
from quorumq.core.values.types import BatchHeader, PartitionId, ProducerId, Span
from quorumq.history import producer_id_text
from quorumq.storage.records import BATCH_MOVED, BATCH_STORED
from quorumq.storage.scan import Frame
from quorumq.wire.batch import Corrupt, HeaderValue, Message, readable_records

from .arrow import Batches, Same, Values
from .journals import Directory, OpenDirectory, Report, SegmentGone, SegmentPlan, batch_of, ignore, refuse
from .options import Options, Wanted
from .planning import PLANS_MAX, plan_directory
from .registers import Registers

CONTENT: Final = ("key", "headers", "payload", "size", "digest")
"""Columns for which a batch's body is read."""

BATCHES: Final = (BATCH_STORED, BATCH_MOVED)

LOADED_MAX: Final = 12
"""Batches that a task keeps in memory: at most 4 MiB each."""


@dataclass(eq=False)
class Task(InputPartition):
    """Input of one Spark task."""

    directories: tuple[Directory, ...]  # those of all nodes; one for `problems`
    keys: frozenset[PartitionId] | None = None  # the topic partitions to read; None for all
    share: tuple[int, int] = (0, 1)  # number of its share of producer ids or segments, and of all
    registers: Registers = field(default_factory=Registers)


def reporter(options: Options) -> Report:
    """Return the receiver of problems: the table that lists them must not end at the first."""
    return ignore if options.report or options.table == "problems" else refuse


def headers_text(headers: Mapping[str, HeaderValue]) -> dict[str, str | None]:
    """Return headers as texts; bytes that are no text are written out, truth is `true` and `false`."""
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
    producer_id, start, stop = span
    head = str(MessageId(key, producer_id, 0))[:-1]
    return {
        "id": lambda: [f"{head}{seq}" for seq in range(start, stop)],
        "topic": Same(topic),
        "topic_id": Same(key.topic.hex()),
        "partition": Same(key.number),
        "producer_id": Same(producer_id_text(producer_id)),
        "seq": lambda: list(range(start, stop)),
    }


def content(messages: list[Message | None], crcs: Values) -> dict[str, Values]:
    """Return the columns of keys, headers and payloads; None stands for a message without an intact copy."""

    def each(value: Callable[[Message], Any]) -> Callable[[], list[Any]]:
        return lambda: [None if item is None else value(item) for item in messages]

    return {
        "key": each(lambda item: item.key),
        "headers": each(lambda item: headers_text(item.headers)),
        "payload": each(lambda item: item.payload),
        "size": each(lambda item: len(item.payload)),
        "crc": crcs,
        "digest": each(lambda item: hashlib.sha256(item.payload).hexdigest()),
    }


class Loaded(NamedTuple):
    """A batch read again: its header, and its body, as it is, if it was asked for."""

    opened: OpenDirectory
    segment: int
    frame: Frame
    header: BatchHeader
    body: bytes | None

    def parts(self, span: Span) -> Iterator[tuple[Span, int]]:
        """Yield the parts of a span that are in this batch, with the index of the first record of each."""
        at = 0
        for section in self.header.spans:
            start, stop = max(section.start, span.start), min(section.stop, span.stop)
            if section.producer_id == span.producer_id and start < stop:
                yield Span(span.producer_id, start, stop), at + start - section.start
            at += section.size

    @property
    def intact(self) -> bool:
        """True if the body was read, and is what was written."""
        return self.body is not None and crc32c(self.body) == self.frame.body_crc

    def crcs(self, first: int, count: int) -> list[str]:
        """Return the CRCs of records, as in a history."""
        return [f"{self.header.crc_of(index):08x}" for index in range(first, first + count)]


class Reader:
    """One task while it reads.

    Attributes:
        plans: plans that it makes of a directory at most, if the node deletes segments meanwhile.
    """

    plans = PLANS_MAX

    def __init__(self, task: Task, options: Options, selection: Wanted, out: Batches) -> None:
        self.task = task
        self.options = options
        self.selection = selection
        self.out = out
        self.report = reporter(options)
        self.content = out.wants(*CONTENT)
        self.open_directories: list[OpenDirectory] = []
        self.registers = task.registers
        self.load = functools.lru_cache(LOADED_MAX)(self._load)

    # ------------------------------------------------------------------ files

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        """Return the segments that this task needs of a directory."""
        raise NotImplementedError

    def open(self) -> None:
        """Open all files; if the node has reclaimed one since the plan was made, plan its directory again."""
        for directory in self.task.directories:
            opened = directory
            for attempt in range(self.plans):
                try:
                    numbers = [segment.number for segment in self.segments_of(opened)]
                    self.open_directories.append(OpenDirectory(opened, numbers))
                    break
                except SegmentGone as error:
                    if attempt == self.plans - 1:
                        raise StorageError(
                            f"{error}: run the query again, or read a copy of the directory"
                        ) from None
                    opened = self._again(directory)

    def _again(self, directory: Directory) -> Directory:
        planned = plan_directory(directory.path, self.report)
        if planned.directory.directory != directory.directory:
            raise StorageError(f"{directory.path} was replaced while it was read: read it again")
        self.registers.update(planned.registers)
        return planned.directory

    def close(self) -> None:
        for directory in self.open_directories:
            directory.close()

    def read(self) -> Iterator[pa.RecordBatch]:
        try:
            self.open()
            yield from self.rows()
            yield from self.out.rest()
        finally:
            self.close()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of rows."""
        raise NotImplementedError

    # ------------------------------------------------------------------ common

    def _load(self, at: int, segment: int, offset: int, with_body: bool) -> Loaded:
        """Read a batch of directory number ``at`` again, its body as it is."""
        opened = self.open_directories[at]
        file, frame = opened.files[segment], opened.frame_at(segment, offset)
        header = batch_of(file.name, frame)[0].batch.header
        body = file.read(frame.body_offset, frame.body_length) if with_body else None
        return Loaded(opened, segment, frame, header, body)

    def counts_at(self, key: PartitionId, at: int) -> bool:
        """Return True if this task reads a partition, and directory number ``at`` has records of it that count."""
        if self.task.keys is not None and key not in self.task.keys:
            return False
        return self.registers.counts_at(key, self.open_directories[at].plan.node)

    def nodes_of(self, mask: int) -> list[str]:
        return sorted(opened.plan.node for at, opened in enumerate(self.open_directories) if mask >> at & 1)

    def mine(self, producer_id: ProducerId) -> bool:
        """Return True if this task's share of the producer ids has this one."""
        number, of = self.task.share
        return of == 1 or zlib.crc32(producer_id_text(producer_id).encode()) % of == number

    def messages_in(self, loaded: Loaded, first: int, count: int) -> list[Message | None]:
        """Return the records of an intact body; None for one that its producer wrote unreadable."""
        header, body = loaded.header, loaded.body
        if body is None or not self.content:
            return [None] * count

        part = body[header.end_of(first - 1) : header.end_of(first + count - 1)]
        messages: list[Message | None] = []
        for record in readable_records(header, first, first + count, part):
            if isinstance(record, Corrupt):
                problem = loaded.opened.body_problem(loaded.segment, loaded.frame, str(record))
                self.report(
                    problem._replace(kind="record", impact="key, headers and payload of this message")
                )
            messages.append(None if isinstance(record, Corrupt) else record)
        return messages

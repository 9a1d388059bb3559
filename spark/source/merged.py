"""Batches of all nodes, merged: a message is one row however many nodes have it.

One task has all of a topic partition, or all of a share of its producer ids: it reads the headers of all batches of all
nodes, merges them by span, and then the bodies of one intact copy. What it keeps in memory is a few numbers per batch;
never a payload for longer than its batch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from quorumq.core.messages.records import Reclaimed
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import PartitionId, Span
from quorumq.storage.records import TYPE_OF
from quorumq.storage.scan import Frame

from .arrow import Same, time_of
from .journals import Decoded, Directory, SegmentPlan, decoded
from .reader import BATCHES, Loaded, Reader, content, names

_RECLAIMED: Final = TYPE_OF[Reclaimed]


class Location(NamedTuple):
    """Place of a batch, and the fields of its header that are needed before it is read again."""

    directory: int  # index of the directory
    segment: int
    offset: int
    published_ms: int
    delay_ms: int
    ttl_ms: int
    damaged: bool


class Index:
    """Batches of each message: per topic partition a map from spans to numbers of places."""

    def __init__(self) -> None:
        self.locations: list[Location] = []
        self.spans: dict[PartitionId, SpanMap[tuple[int, ...]]] = {}

    def add(self, key: PartitionId, location: Location, spans: Iterable[Span]) -> None:
        number = len(self.locations)
        self.locations.append(location)
        of_partition = self.spans.setdefault(key, SpanMap())
        for span in spans:
            of_partition.update(span, lambda old: (*(old or ()), number))


class MessagesReader(Reader):
    """`messages`: one row for each message, wherever it is stored."""

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        keys = self.task.keys or frozenset()
        return [
            plan
            for plan in directory.segments
            if plan.state
            or plan.footer is None
            or any(PartitionId(part.topic, part.partition) in keys for part in plan.footer)
        ]

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.index = Index()
        self.reclaimed: dict[PartitionId, SpanMap[int]] = {}
        mine = Decoded((), self.task.keys)
        for at, directory in enumerate(self.open_directories):
            for plan in self.segments_of(directory.plan):
                for frame in directory.frames(plan, self.report, mine):
                    self._take(at, plan, frame)
        self.bodies = self.content or (self.options.verify and self.out.wants("replicas", "damaged"))
        self.whole: dict[int, bool] = {}  # by place: whether its body is intact
        for key in sorted(self.index.spans):
            runs = self.index.spans[key].items()
            runs.sort(key=lambda run: (run[1][0], run[0]))  # batch by batch of the first node that has it
            for span, numbers in runs:
                locations = [self.index.locations[number] for number in numbers]
                published = min(location.published_ms for location in locations)
                if self.selection.may_be_at("published_at", published, published):
                    yield from self._run(key, span, numbers, published)
            self.index.spans[key] = SpanMap()

    def _take(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        if frame.type in BATCHES:
            self._take_batch(at, plan, frame)
        elif frame.type == _RECLAIMED and plan.state:
            record = decoded(self.open_directories[at].files[plan.number].name, frame)
            if self.counts_at(record.partition, at):
                reclaimed = self.reclaimed.setdefault(record.partition, SpanMap())
                for span in record.spans:
                    if self.mine(span.producer_id):
                        reclaimed.update(span, lambda old: (old or 0) | 1 << at)

    def _take_batch(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        batch = self.open_directories[at].batch(plan, frame)
        if batch is None:
            return
        header, damaged = batch
        key = header.partition
        if not self.counts_at(key, at):
            return
        spans = [section for section in header.spans if self.mine(section.producer_id)]
        if spans:
            times = (header.published_ms, header.delay_ms, header.ttl_ms)
            self.index.add(key, Location(at, plan.number, frame.offset, *times, damaged), spans)

    def _at(self, number: int) -> Loaded:
        location = self.index.locations[number]
        return self.load(location.directory, location.segment, location.offset, self.bodies)

    def _intact(self, number: int) -> bool:
        """Return True if a batch's body is not known to be damaged; report it otherwise, once."""
        intact = self.whole.get(number)
        if intact is None:
            loaded = self._at(number)
            intact = not self.index.locations[number].damaged and (loaded.intact or not self.bodies)
            if not intact:
                self.report(loaded.opened.body_problem(loaded.segment, loaded.frame))
            self.whole[number] = intact
        return intact

    def _run(
        self, key: PartitionId, span: Span, numbers: tuple[int, ...], published: int
    ) -> Iterator[pa.RecordBatch]:
        intact = [number for number in numbers if self._intact(number)]
        there = sum({1 << self.index.locations[number].directory for number in intact})
        spoilt = sum({1 << self.index.locations[number].directory for number in numbers}) & ~there
        chosen = intact[0] if intact else numbers[0]
        first_made = min(
            (self.index.locations[number] for number in numbers), key=lambda location: location.published_ms
        )
        topic = self.registers.topics.get(key.topic)
        members = (
            sorted(topic.replicas[key.number]) if topic is not None and key.number < topic.partitions else []
        )
        asked = [name for name in members if name in {opened.plan.node for opened in self.open_directories}]
        loaded = self._at(chosen)
        if not intact:
            loaded = loaded._replace(body=None)
        for chunk, index in loaded.parts(span):
            for part, gone in self.reclaimed.get(key, SpanMap()).split(chunk):
                first, count = index + part.start - chunk.start, part.size
                messages = self.messages_in(loaded, first, count)
                yield from self.out.add(
                    count,
                    loaded.header.end_of(first + count - 1) - loaded.header.end_of(first - 1),
                    {
                        **names(key, part, self.registers.name_of(key.topic)),
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

"""The records of groups of all nodes, merged: tombstones, and dead letters with their fates.

Memory holds a few numbers per run of tombstones, and per dead letter the place of its text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quorumq.core.messages.records import RecordsMerged, SessionsClosed
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Kind, Letter, PartitionId, Record, Span, Stamp, record_rank
from quorumq.storage.records import TYPE_OF
from quorumq.storage.scan import Frame
from quorumq.wire.batch import Corrupt, Message, records_of

from .arrow import Batches, Same, Values, known_time, small
from .journals import RECORDS_MERGED, Directory, Problem, SegmentPlan, decoded
from .merged import MergingReader
from .options import Options, Wanted
from .reader import BATCHES, CONTENT, Task, content, holds_any, names, span_columns

ROWS_AT_ONCE: Final = 256
"""Dead letters of one block of rows: each may have 16 KiB of text."""

_CLOSED: Final = TYPE_OF[SessionsClosed]


class Held(NamedTuple):
    """State of a message for a group: the highest record, and a bit mask of the nodes that have it."""

    generation: int
    n: int
    kind: Kind
    nodes: int

    def rank(self) -> tuple[int, bool, int, int]:
        return record_rank(Record(self.generation, self.n, self.kind))


class Died(NamedTuple):
    """Place of the letter of a DEAD record: entry ``entry`` of the record at ``offset``."""

    ballot: Stamp
    directory: int
    segment: int
    offset: int
    entry: int
    nodes: int


Key = tuple[PartitionId, str]
"""A topic partition and the name of a group."""


class RecordsReader(MergingReader):
    """Common part of `tombstones` and `deadletters`: the merged records of each group."""

    letters = False

    def __init__(self, task: Task, options: Options, selection: Wanted, out: Batches) -> None:
        super().__init__(task, options, selection, out)
        self.records: dict[Key, SpanMap[Held]] = {}
        self.died: dict[Key, dict[tuple[int, int], SpanMap[Died]]] = {}

    def wants(self, key: PartitionId, group: str) -> bool:
        """Return True if a group's records of a topic partition are to be read."""
        return (
            (self.task.keys is None or key in self.task.keys)
            and (self.options.groups is None or group in self.options.groups)
            and self.selection.may_be("group", group)
        )

    def take_record(self, at: int, plan: SegmentPlan, frame: Frame) -> None:
        """Merge a RecordsMerged, or note closed producer ids."""
        if frame.type not in (RECORDS_MERGED, _CLOSED):
            return
        record = decoded(self.open_directories[at].files[plan.number].name, frame)
        if isinstance(record, SessionsClosed):
            if plan.state:
                self.take_closed(frame, record)
            return
        assert isinstance(record, RecordsMerged)
        key = (record.partition, record.group)
        if not self.wants(*key):
            return
        merged = self.records.setdefault(key, SpanMap())
        died = self.died.setdefault(key, {})
        for entry, (span, value) in enumerate(record.entries):
            if not self.mine(span.producer_id):
                continue
            held = Held(value.generation, value.n, value.kind, 1 << at)
            merged.update(span, functools.partial(higher, held))
            if self.letters and value.kind == Kind.DEAD and value.letter is not None:
                letters = died.setdefault((value.generation, value.n), SpanMap())
                death = Died(value.letter.ballot, at, plan.number, frame.offset, entry, 1 << at)
                letters.update(span, functools.partial(lower_ballot, death))


def higher(new: Held, old: Held | None) -> Held:
    """Return the record of two that wins, with the nodes that have it."""
    if old is None or new.rank() > old.rank():
        return new
    return old._replace(nodes=old.nodes | new.nodes) if new.rank() == old.rank() else old


def lower_ballot(new: Died, old: Died | None) -> Died:
    """Return the letter of two of one DEAD record that stays, with the nodes that have either."""
    if old is None:
        return new
    return (old if old.ballot <= new.ballot else new)._replace(nodes=old.nodes | new.nodes)


class TombstonesReader(RecordsReader):
    """`tombstones`: fates of messages for each group, as spans."""

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        return [plan for plan in directory.segments if plan.state]

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.scan(self.take_record)
        for (key, group), merged in sorted(self.records.items()):
            for span, held in merged.items():
                kind = held.kind.name.lower()
                if self.is_closed(key, span.producer_id) or not self.selection.may_be("kind", kind):
                    continue
                yield from self.out.add(
                    1,
                    0,
                    {
                        **span_columns(key, self.topic_name(key), group, span),
                        "generation": Same(Decimal(held.generation)),
                        "n": Same(small(held.n)),
                        "kind": Same(kind),
                        "replicas": Same(self.nodes_of(held.nodes)),
                    },
                )


def blocks(span: Span) -> Iterator[Span]:
    """Yield a span in parts of ROWS_AT_ONCE."""
    for start in range(span.start, span.stop, ROWS_AT_ONCE):
        yield span._replace(start=start, stop=min(span.stop, start + ROWS_AT_ONCE))


def letter_columns(
    letter: Letter,
    group: str,
    generation: int,
    n: int,
    resolution: str,
    published_ms: int,
    replicas: list[str],
) -> dict[str, Values]:
    """Return the columns of a dead letter that are not of its message; ``published_ms`` is 0 if it is not known."""
    values = {
        "group": group,
        "generation": Decimal(generation),
        "n": small(n),
        "resolution": resolution,
        "published_at": known_time(published_ms),
        "replicas": replicas,
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
    """`deadletters`: every letter that the journals have, and the fate of its message."""

    letters = True

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        # Older segments have letters of messages that were settled since, and footers do not name their partitions.
        return list(directory.segments)

    @property
    def settled_too(self) -> bool:
        """True if letters of messages that are no longer dead letters are wanted."""
        only = self.selection.values.get("resolution")
        return self.options.settled and (only is None or bool(only - {"dead"}))

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.scan(self.take_record, state_only=not self.settled_too)
        yield from self.letters_found()

    def letters_found(self) -> Iterator[pa.RecordBatch]:
        """Yield rows of the letters in `died`: a second pass over the batches, then over the letters, in file order."""
        if self.out.wants(*CONTENT, "crc", "published_at"):
            within: dict[PartitionId, SpanMap[bool]] = {}
            for (key, _), letters in self.died.items():
                covered = within.setdefault(key, SpanMap())
                for spans in letters.values():
                    for span, _died in spans.items():
                        covered.set(span, True)
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
        if frame.type in BATCHES and holds_any(plan, frozenset(within), "", self.selection):
            self.take_batch(at, plan, frame, within)

    def _entries(self, died: Died) -> Any:
        directory = self.open_directories[died.directory]
        frame = directory.frame_at(died.segment, died.offset)
        return decoded(directory.files[died.segment].name, frame).entries

    def resolution(
        self, key: PartitionId, group: str, generation: int, n: int, now: Held, published_ms: int
    ) -> str:
        """Return the fate of a message that died at (generation, n), and whose record is ``now``."""
        if now.generation == generation:
            if now.kind == Kind.ACKED:
                return "acked"
            if now.n > n:
                return "redriven"
            if now.kind == Kind.PURGED:
                return "purged"
        register = self.groups.get((key.topic, group))
        if register is not None and register.generation > generation and published_ms >= register.from_ms:
            return "reopened"  # even if it was settled since, in the new generation
        if now.generation > generation:
            return "redriven" if now.n > n else "reopened"
        return "dead"

    def _letter(
        self, key: PartitionId, group: str, generation: int, n: int, span: Span, nodes: int, letter: Letter
    ) -> Iterator[pa.RecordBatch]:
        closed = self.is_closed(key, span.producer_id)
        for part, held in self.records.get((key, group), SpanMap()).split(span):
            now = held or Held(generation, n, Kind.DEAD, nodes)
            for piece, numbers in self.index.spans.get(key, SpanMap()).split(part):
                published = letter.published_ms
                if not published and numbers:
                    published = min(self.index.places[number].published_ms for number in numbers)
                resolution = (
                    "closed" if closed else self.resolution(key, group, generation, n, now, published)
                )
                if resolution != "dead" and not self.options.settled:
                    continue
                if not self.selection.may_be("resolution", resolution):
                    continue
                columns = letter_columns(
                    letter, group, generation, n, resolution, published, self.nodes_of(nodes)
                )
                for block in blocks(piece):
                    messages, crcs, size = self._contents(block, numbers or ())
                    size += block.size * 2 * (len(letter.message) + len(letter.stack))
                    named = names(key, block, self.topic_name(key))
                    yield from self.out.add(block.size, size, {**named, **columns, **content(messages, crcs)})

    def _contents(self, span: Span, numbers: tuple[int, ...]) -> tuple[list[Message | None], Values, int]:
        """Return the contents left of these messages, each from the first copy whose own checksum matches."""
        messages: list[Message | None] = [None] * span.size
        crcs: list[str | None] = [None] * span.size
        if not numbers or not self.out.wants(*CONTENT, "crc"):
            return messages, crcs, 0
        size = 0
        bad: dict[int, Problem] = {}
        for number in numbers:
            loaded = self.load(number, False)
            directory, place, frame = self.frame_of(number)
            for part, first in loaded.parts(span):
                for index in range(first, first + part.size):
                    at = part.start - span.start + index - first
                    crcs[at] = f"{loaded.header.crc_of(index):08x}"
                    if not self.content or messages[at] is not None:
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

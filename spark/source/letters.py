"""`deadletters`: every letter that the journals have, and the fate of its message.

A task reads each segment once (`fragments`), merges the nodes as columns of numbers, and reads the texts and payloads
of the deaths that are wanted, in the order of the files. Memory holds some 200 bytes per death and section, and the
texts of one block of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quorumq.client.base.message import MessageId
from quorumq.core.values.names import begins_ms
from quorumq.core.values.types import DERIVED, NAMED, BatchHeader, Group, Kind, Letter, PartitionId
from quorumq.history import producer_id_text
from quorumq.storage.scan import Frame
from quorumq.wire.batch import Corrupt, Message, record_of

from .arrow import BYTES_MAX, Batches, Values, known_time, small
from .fragments import SECTION, Fragments, Numbers, Place, Rank, deaths, fates, pairs, take
from .journals import RECORDS_MERGED, Copies, Directory, OpenDirectory, SegmentPlan, batch_of, decoded
from .merged import LOADED_MAX, MergingReader
from .reader import BATCHES, CONTENT, content
from .records import CLOSED

NEVER: Final = 1 << 62
"""Milliseconds since 1970 that no message is published at or after."""

ROWS: Final = 2048
"""Deaths of one block of rows."""

Copy = tuple[int, int, int, int, bool]
"""A copy of a message: directory, segment, offset of the batch, index in it, and True if it is known to be damaged."""

_TEXTS: Final = (
    "reason", "error_class", "message", "stack", "fingerprint", "consumer", "consumer_version", "host", "node",
)  # fmt: skip
"""Fields of a letter that are columns under their own names."""

_DEFAULTS: Final = tuple(Letter._field_defaults[name] for name in Letter._fields[2:])
RESOLUTIONS: Final = ("dead", "redriven", "acked", "purged", "reopened", "closed")


class Death(NamedTuple):
    """A dead letter to give out: the message, and what is known besides its letter."""

    key: PartitionId
    topic: str
    head: str  # the id of the message, up to its number
    producer_id: str
    seq: int
    group: str
    generation: int
    n: int
    resolution: str
    published_ms: int
    nodes: list[str]


def resolved(own: Rank, now: Rank, register: Group | None, covered: bool) -> str:
    """Return the fate of a message that died as ``own``, and whose record is ``now``.

    Args:
        own, now: the two records.
        register: the group's.
        covered: the generation of the register covers the message.
    """
    if now.generation == own.generation:
        if now.kind == Kind.ACKED:
            return "acked"
        if now.n > own.n:
            return "redriven"
        if now.kind == Kind.PURGED:
            return "purged"
    if register is not None and register.generation > own.generation and covered:
        return "reopened"  # even if it was settled since, in the new generation
    if now.generation > own.generation:
        return "redriven" if now.n > own.n else "reopened"
    return "dead"


def raw_letters(name: str, frame: Frame) -> Sequence[Any]:
    """Return the letter of each entry of a RecordsMerged, as a tuple of the fields of `Letter`; None without one."""
    try:
        entries, *rest = frame.fields[4:]
        letters = [record[3] if len(record) > 3 else None for _, record in entries]
        for at, first in rest[0] if rest else ():
            letters[at] = letters[first]
        return [
            letter
            if letter is None or len(letter) == len(Letter._fields)
            else (*letter, *_DEFAULTS[len(letter) - 2 :])
            for letter in letters
        ]
    except (TypeError, ValueError, IndexError):
        return [entry.record.letter for entry in decoded(name, frame).entries]


class Bodies:
    """Contents of messages, from the first copy of each whose own checksum matches."""

    def __init__(self, reader: MergingReader) -> None:
        self.reader = reader
        self.batch = functools.lru_cache(LOADED_MAX)(self._batch)

    def _batch(
        self, directory: int, segment: int, offset: int
    ) -> tuple[OpenDirectory, Frame, BatchHeader, bytes]:
        opened = self.reader.open_directories[directory]
        file, frame = opened.files[segment], opened.frame_at(segment, offset, "batches")
        header = batch_of(file.name, frame)[0].batch.header
        return opened, frame, header, file.read(frame.body_offset, frame.body_length)

    def message(self, copy: Copy) -> tuple[Message | None, str]:
        """Return a message and the CRC of its record; None, and the problem is reported, if the copy is damaged."""
        directory, segment, offset, index, damaged = copy
        opened, frame, header, body = self.batch(directory, segment, offset)
        if damaged:
            self.reader.report(opened.body_problem(segment, frame))
        crc = header.crc_of(index)
        message = None
        if self.reader.content:
            try:
                message = record_of(header, index, body[header.end_of(index - 1) : header.end_of(index)])
            except Corrupt as error:
                self.reader.report(opened.body_problem(segment, frame, str(error)))
        return message, f"{crc:08x}"

    def first_whole(self, copies: Iterable[Copy]) -> tuple[Message | None, str | None]:
        """Return a message and the CRC of its record, from the first copy that has it."""
        crc = None
        for copy in copies:
            message, crc = self.message(copy)
            if message is not None or not self.reader.content:
                return message, crc
        return None, crc


class LettersReader(MergingReader):
    """The dead letters of some topic partitions, or of a share of their producer ids."""

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        # Older segments have letters of messages that were settled since, and footers do not name their partitions.
        return list(directory.segments)

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.bodies = Bodies(self)
        self.fragments = Fragments()
        self.with_bodies = self.out.wants(*CONTENT, "crc", "published_at")
        self._scan()
        dead = deaths(self.fragments)
        now = fates(self.fragments, dead)
        messages, sections, copies = self._copies(dead)
        published = dead["published"]
        if (published == 0).any():
            dated = np.full(published.size, np.iinfo(np.int64).max)
            np.minimum.at(dated, messages, copies["published"][sections])
            published = np.where((published == 0) & (dated < np.iinfo(np.int64).max), dated, published)
            dead["published"] = published
        resolution = self._resolutions(dead, now)
        shown = [name for name in RESOLUTIONS if self._shown(name)]
        chosen = np.flatnonzero(np.isin(resolution, [RESOLUTIONS.index(name) for name in shown]))
        keys = ("start", "entry", "offset", "segment", "directory")
        chosen = chosen[np.lexsort([dead[name][chosen] for name in keys])]
        self.copies = take(copies, sections)
        self.copies["index"] = dead["start"][messages] - self.copies["start"] + self.copies["first"]
        firsts = np.searchsorted(messages, np.arange(published.size + 1))
        dead["copy"], dead["copies"] = firsts[:-1], np.diff(firsts)
        for at in range(0, chosen.size, ROWS):
            rows = chosen[at : at + ROWS]
            yield from self._block(take(dead, rows), resolution[rows])

    # ------------------------------------------------------------------ reading

    def _scan(self) -> None:
        copies = Copies()
        settled = self.options.settled and self._any_settled()
        most = max((len(opened.plan.segments) for opened in self.open_directories), default=0)
        for back in range(
            most, 0, -1
        ):  # about the same time in all nodes, so that they have the same records
            for at, opened in enumerate(self.open_directories):
                plans = self.segments_of(opened.plan)
                if len(plans) >= back:
                    self._segment(at, opened, plans[-back], copies, settled)

    def _any_settled(self) -> bool:
        only = self.selection.values.get("resolution")
        return only is None or bool(only - {"dead"})

    def _segment(
        self, at: int, opened: OpenDirectory, plan: SegmentPlan, copies: Copies, settled: bool
    ) -> None:
        records = plan.state or settled
        if not records and not self.with_bodies:
            return
        for frame in opened.frames(plan, self.report, copies):
            if frame.type == RECORDS_MERGED:
                if records:
                    self._entries(at, opened, plan, frame, copies)
            elif frame.type in BATCHES:
                if self.with_bodies:
                    self._sections(at, opened, plan, frame)
            elif frame.type == CLOSED and plan.state:
                self.take_closed(frame, decoded(opened.files[plan.number].name, frame))

    def _entries(
        self, at: int, opened: OpenDirectory, plan: SegmentPlan, frame: Frame, copies: Copies
    ) -> None:
        fragments = self.fragments
        if len(frame.fields) == 3:  # met before
            first, stop = frame.fields[2]
            fragments.add_node(first, stop, at)
            return
        first = fragments.count
        try:
            (topic, number), group, entries = frame.fields[2:5]
            key = PartitionId(topic, number)
            if self.wants(key, group):
                fragments.add_entries(key, group, entries, (at, plan.number, frame.offset), self.mine)
        except (TypeError, ValueError):
            decoded(opened.files[plan.number].name, frame)  # says what is wrong with it
            raise
        copies.note(first, fragments.count)

    def _sections(self, at: int, opened: OpenDirectory, plan: SegmentPlan, frame: Frame) -> None:
        batch = opened.batch(plan, frame)
        if batch is None:
            return
        header, first = batch.stored.batch.header, 0
        if self.task.keys is not None and header.partition not in self.task.keys:
            return
        for span in header.sections:
            if self.mine(span.producer_id):
                where = (at, plan.number, frame.offset)
                self.fragments.add_section(
                    header.partition, span, where, first, header.published_ms, batch.damaged
                )
            first += span.size

    # ------------------------------------------------------------------ merging

    def _copies(self, dead: Mapping[str, Numbers]) -> tuple[Numbers, Numbers, dict[str, Numbers]]:
        """Return pairs of deaths and sections that have the message, sorted by death, and the sections."""
        rows = self.fragments.rows(SECTION)
        order = np.lexsort((dead["start"], dead["place"]))
        messages, sections = pairs(
            dead["place"][order], dead["start"][order], rows["place"], rows["start"], rows["stop"]
        )
        messages = order[messages]
        by = np.lexsort((sections, messages))
        return messages[by], sections[by], rows

    def _resolutions(self, dead: Mapping[str, Numbers], now: Numbers) -> Numbers:
        """Return the number of each death's resolution in RESOLUTIONS."""
        ranks, groups = self.fragments.ranks.values, self.fragments.groups.values
        places = self.fragments.places.values
        kinds, which = np.unique(
            np.stack([dead["place"], dead["group"], dead["rank"], now]), axis=1, return_inverse=True
        )
        outcomes = np.zeros((2, kinds.shape[1]), np.int64)
        borders = np.zeros(kinds.shape[1], np.int64)
        for at, (place, group, own, then) in enumerate(kinds.T.tolist()):
            key, producer_id = places[place]
            register = self.groups.get((key.topic, groups[group]))
            borders[at] = 0 if register is None else register.from_ms
            if producer_id.node in (NAMED, DERIVED):  # their ids alone decide
                borders[at] = NEVER if begins_ms(producer_id, 0) < borders[at] else -NEVER
            for covered in (False, True):
                outcome = resolved(ranks[own], ranks[then], register, covered)
                if self.is_closed(key, producer_id):
                    outcome = "closed"
                outcomes[int(covered), at] = RESOLUTIONS.index(outcome)
        which = which.reshape(-1)
        return outcomes[(dead["published"] >= borders[which]).astype(np.int64), which]

    def _shown(self, resolution: str) -> bool:
        return (resolution == "dead" or self.options.settled) and self.selection.may_be(
            "resolution", resolution
        )

    # ------------------------------------------------------------------ rows

    def _block(self, dead: Mapping[str, Numbers], resolution: Numbers) -> Iterator[pa.RecordBatch]:
        fragments = self.fragments
        masks = {mask: self.nodes_of(mask) for mask in np.unique(dead["nodes"]).tolist()}
        named = {
            at: (place.key, self.topic_name(place.key), *named_by(place))
            for at in np.unique(dead["place"]).tolist()
            if (place := fragments.places.values[at])
        }
        names = ("place", "start", "group", "rank", "published", "nodes")
        each = zip(*(dead[name].tolist() for name in names), resolution.tolist(), strict=True)
        groups, ranks = fragments.groups.values, fragments.ranks.values
        rows = [
            Death(
                *named[place], seq, groups[group], ranks[rank].generation, ranks[rank].n, RESOLUTIONS[fate], published,
                masks[mask],
            )
            for place, seq, group, rank, published, mask, fate in each
        ]  # fmt: skip
        block: list[tuple[Death, Any, Message | None, str | None]] = []
        size = 0
        for row, letter, (message, crc) in zip(rows, self._letters(dead), self._messages(dead), strict=True):
            block.append((row, letter, message, crc))
            size += len(letter[3]) + len(letter[4]) + (0 if message is None else len(message.payload))
            if size > BYTES_MAX:
                yield from add_letters(self.out, block)
                block, size = [], 0
        yield from add_letters(self.out, block)

    def _messages(self, dead: Mapping[str, Numbers]) -> Iterator[tuple[Message | None, str | None]]:
        """Yield the message of each death, and the CRC of its record."""
        if not self.out.wants(*CONTENT, "crc"):
            yield from repeat((None, None), dead["start"].size)
            return
        firsts = self._copies_at(dead["copy"])
        for at, count, first in zip(dead["copy"].tolist(), dead["copies"].tolist(), firsts, strict=True):
            others = (self._copies_at(np.array([more]))[0] for more in range(at + 1, at + count))
            yield self.bodies.first_whole(chain((first,), others)) if count else (None, None)

    def _copies_at(self, numbers: Numbers) -> list[Copy]:
        """Return copies by their numbers; any copy for a number that there is not."""
        last = self.copies["index"].size - 1
        if last < 0:
            return [(0, 0, 0, 0, False)] * numbers.size
        names = ("directory", "segment", "offset", "index", "damaged")
        return list(
            zip(*(self.copies[name][np.minimum(numbers, last)].tolist() for name in names), strict=True)
        )

    def _letters(self, dead: Mapping[str, Numbers]) -> Iterator[Any]:
        at: tuple[int, int, int] | None = None
        entries: Sequence[Any] = ()
        for *where, entry in zip(
            *(dead[name].tolist() for name in ("directory", "segment", "offset", "entry")), strict=True
        ):
            if at != tuple(where):
                at = directory, segment, offset = tuple(where)  # type: ignore[assignment]
                opened = self.open_directories[directory]
                entries = raw_letters(opened.files[segment].name, opened.frame_at(segment, offset))
            yield entries[entry]


def named_by(place: Place) -> tuple[str, str]:
    """Return the id of a place's messages, up to their number, and its producer id as text."""
    return str(MessageId(place.key, place.producer_id, 0))[:-1], producer_id_text(place.producer_id)


def add_letters(
    out: Batches, block: Sequence[tuple[Death, Any, Message | None, str | None]]
) -> Iterator[pa.RecordBatch]:
    """Add rows of `deadletters`: deaths, each with the fields of its letter, its message and the CRC of that.

    Yields the rows before, if they are full.
    """
    if not block:
        return
    rows, letters, messages, crcs = zip(*block, strict=True)
    columns = dict(zip(Letter._fields, zip(*letters, strict=True), strict=True))
    death = dict(zip(Death._fields, zip(*rows, strict=True), strict=True))
    values: dict[str, Values] = {
        "id": lambda: [f"{head}{seq}" for head, seq in zip(death["head"], death["seq"], strict=True)],
        "topic_id": lambda: [key.topic.hex() for key in death["key"]],
        "partition": lambda: [key.number for key in death["key"]],
        "generation": lambda: list(map(Decimal, death["generation"])),
        "n": lambda: list(map(small, death["n"])),
        "published_at": lambda: list(map(known_time, death["published_ms"])),
        "replicas": lambda: list(death["nodes"]),
        "attempts": lambda: list(map(small, columns["attempts"])),
        **content(list(messages), list(crcs)),
    }
    for name in ("topic", "producer_id", "seq", "group", "resolution"):
        values[name] = list(death[name])
    for name in ("first_delivered", "last_delivered", "died"):
        values[f"{name}_at"] = functools.partial(_times, columns[f"{name}_ms"])
    for name in _TEXTS:
        values[name] = list(columns[name])
    size = sum(map(len, columns["message"])) + sum(map(len, columns["stack"]))
    size += sum(len(item.payload) for item in messages if item is not None)
    yield from out.add(len(rows), size, values)


def _times(times: Sequence[int]) -> list[int | None]:
    return list(map(known_time, times))

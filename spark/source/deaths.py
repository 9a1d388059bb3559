"""`deadletters`: every death in the journals, and the fate of its message.

A task reads each segment once (`fragments`), merges the nodes as columns of numbers, and adds the causes (`causes`) and
the payloads of the deaths that are asked for. Memory holds some 200 bytes per death and section, and the texts of one
block of rows; the temporary file of causes has all their texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumq.core.messages.records import SessionsClosed
from quorumq.core.partition.closed import ClosedSessions
from quorumq.core.values.names import begins_ms
from quorumq.core.values.types import DERIVED, NAMED, Group, Kind, PartitionId, ProducerId
from quorumq.storage.records import TYPE_OF
from quorumq.storage.scan import Frame
from quorumq.wire.batch import Message

from .arrow import BYTES_MAX, small
from .causes import FIELDS, Causes, Rank, named_by, take_entries, times
from .fragments import SECTION, Fragments, Numbers, deaths, fates, pairs, take
from .journals import (
    RECORDS_MERGED,
    Decoded,
    Directory,
    OpenDirectory,
    Problem,
    SegmentPlan,
    decoded,
)
from .reader import BATCHES, CONTENT, Reader, content

CLOSED: Final = TYPE_OF[SessionsClosed]
NEVER: Final = 1 << 62
"""Milliseconds since 1970 that no message is published at or after."""

Copy = tuple[int, int, int, int, bool]
"""A copy of a message: directory, segment, offset of the batch, index in it, and True if it is known to be damaged."""

RESOLUTIONS: Final = ("dead", "redriven", "acked", "purged", "reopened", "closed")


def resolution_of(own: Rank, now: Rank, register: Group | None, covered: bool) -> str:
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


class Closed:
    """Producer ids that are over, as any node says: other records of them are void."""

    def __init__(self) -> None:
        self._of: defaultdict[PartitionId, ClosedSessions] = defaultdict(ClosedSessions)

    def take(self, record: SessionsClosed) -> None:
        for span in record.spans:
            self._of[record.partition].numbers.add(span)

    def __contains__(self, name: tuple[PartitionId, ProducerId]) -> bool:
        return name[0] in self._of and name[1] in self._of[name[0]]


class DeathsReader(Reader):
    """The dead letters of some topic partitions, or of a share of their producer ids."""

    def wants(self, group: str) -> bool:
        """Return True if a group's records are to be read."""
        return (self.options.groups is None or group in self.options.groups) and self.selection.may_be(
            "group", group
        )

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        # Older segments have deaths of messages that were settled since, and footers do not name their partitions.
        return list(directory.segments)

    def rows(self) -> Iterator[pa.RecordBatch]:
        self.closed = Closed()
        self.fragments = Fragments(Causes(self.out.schema))
        self.with_bodies = self.out.wants(*CONTENT, "crc", "published_at")
        self.whole: dict[int, int] = {}  # by directory, the last segment whose records were all read
        self._scan()
        dead = self._dead()
        messages, spans, copies = self._copies(dead)
        published = dead["published"]
        if (published == 0).any():
            dated = np.full(published.size, np.iinfo(np.int64).max)
            np.minimum.at(dated, messages, copies["published"][spans])
            published = np.where((published == 0) & (dated < np.iinfo(np.int64).max), dated, published)
            dead["published"] = published
        chosen = self._chosen(dead)
        chosen = chosen[np.lexsort((dead["start"][chosen], dead["cause"][chosen]))]
        self.copies = take(copies, spans)
        self.copies["index"] = dead["start"][messages] - self.copies["start"] + self.copies["first"]
        firsts = np.searchsorted(messages, np.arange(published.size + 1))
        dead["copy"], dead["copies"] = firsts[:-1], np.diff(firsts)
        masks, dead["nodes"] = np.unique(dead["nodes"], return_inverse=True)
        names = self._names(masks.tolist())
        first = 0
        for causes in self.fragments.causes.batches():
            low, high = np.searchsorted(dead["cause"][chosen], (first, first + causes.num_rows))
            yield from self._blocks(take(dead, chosen[low:high]), first, causes, names)
            first += causes.num_rows

    def _dead(self) -> dict[str, Numbers]:
        """Return the deaths, with the rank that each message has now."""
        self.fragments.keep(self._masks())
        dead = deaths(self.fragments)
        return {**dead, "now": fates(self.fragments, dead)}

    def _chosen(self, dead: dict[str, Numbers]) -> Numbers:
        """Return the indices of the deaths to show, and note their resolutions."""
        dead["resolution"] = self._resolutions(dead, dead["now"])
        shown = [at for at, name in enumerate(RESOLUTIONS) if self.selection.may_be("resolution", name)]
        return np.flatnonzero(np.isin(dead["resolution"], shown))

    # ------------------------------------------------------------------ reading

    def _scan(self) -> None:
        known = Decoded(self.task.keys, self.task.keys if self.with_bodies else ())
        settled = self._any_settled()
        most = max((len(opened.plan.segments) for opened in self.open_directories), default=0)
        for back in range(most, 0, -1):  # about one time in all nodes, so that they have the same records
            for at, opened in enumerate(self.open_directories):
                plans = self.segments_of(opened.plan)
                if len(plans) >= back:
                    self._segment(at, opened, plans[-back], known, settled)

    def _masks(self) -> list[int]:
        """Return for each producer id a bit mask of the directories with records of its partition that count."""
        masks = {
            key: sum(1 << at for at in range(len(self.open_directories)) if self.counts_at(key, at))
            for key in dict.fromkeys(producer.key for producer in self.fragments.producers)
        }
        return [masks[producer.key] for producer in self.fragments.producers]

    def _any_settled(self) -> bool:
        only = self.selection.values.get("resolution")
        return only is None or bool(only - {"dead"})

    def _segment(
        self, at: int, opened: OpenDirectory, plan: SegmentPlan, known: Decoded, settled: bool
    ) -> None:
        records = plan.state or settled
        if not records and not self.with_bodies:
            return
        whole = records and not any(problem.segment == plan.number for problem in opened.plan.problems)

        def report(problem: Problem) -> None:
            nonlocal whole
            whole = False
            self.report(problem)

        known.repeated = self.whole.get(at) == plan.number - 1
        for frame in opened.frames(plan, report, known):
            if frame.type == RECORDS_MERGED:
                if records:
                    first = self.fragments.count
                    self._entries(at, opened, plan, frame)
                    known.note(first, self.fragments.count)
            elif frame.type in BATCHES:
                if self.with_bodies:
                    self._spans(at, opened, plan, frame)
            elif frame.type == CLOSED and plan.state:
                record = decoded(opened.files[plan.number].name, frame)
                if self.task.keys is None or record.partition in self.task.keys:
                    self.closed.take(record)
        if records:
            self.fragments.add_node(known.again, at)
        known.again.clear()
        if whole:
            self.whole[at] = plan.number

    def _entries(self, at: int, opened: OpenDirectory, plan: SegmentPlan, frame: Frame) -> None:
        def take(key: PartitionId, group: str, entries: Any, causes: Iterable[Any]) -> None:
            if (self.task.keys is None or key in self.task.keys) and self.wants(group):
                self.fragments.add_entries(key, group, entries, causes, at, self.mine)

        take_entries(opened.files[plan.number].name, frame, take)

    def _spans(self, at: int, opened: OpenDirectory, plan: SegmentPlan, frame: Frame) -> None:
        batch = opened.batch(plan, frame)
        if batch is None:
            return
        (header, damaged), first = batch, 0
        if self.task.keys is not None and header.partition not in self.task.keys:
            return
        for span in header.spans:
            if self.mine(span.producer_id):
                where = (at, plan.number, frame.offset)
                self.fragments.add_section(header.partition, span, where, first, header.published_ms, damaged)
            first += span.size

    # ------------------------------------------------------------------ merging

    def _copies(self, dead: Mapping[str, Numbers]) -> tuple[Numbers, Numbers, dict[str, Numbers]]:
        """Return pairs of deaths and sections that have the message, sorted by death, and the sections."""
        rows = self.fragments.rows(SECTION)
        order = np.lexsort((dead["start"], dead["producer"]))
        messages, spans = pairs(
            dead["producer"][order], dead["start"][order], rows["producer"], rows["start"], rows["stop"]
        )
        messages = order[messages]
        by = np.lexsort((spans, messages))
        return messages[by], spans[by], rows

    def _resolutions(self, dead: Mapping[str, Numbers], now: Numbers) -> Numbers:
        """Return the number of each death's resolution in RESOLUTIONS; -1 if its group was deleted since."""
        ranks, groups = list(self.fragments.ranks), list(self.fragments.groups)
        producers = list(self.fragments.producers)
        kinds, which = np.unique(
            np.stack([dead["producer"], dead["group"], dead["rank"], now]), axis=1, return_inverse=True
        )
        outcomes = np.zeros((2, kinds.shape[1]), np.int64)
        borders = np.zeros(kinds.shape[1], np.int64)
        for at, (producer, group, own, then) in enumerate(kinds.T.tolist()):
            key, producer_id = producers[producer]
            register = self.registers.groups.get((key.topic, groups[group]))
            borders[at] = 0 if register is None else register.from_ms
            if producer_id.node in (NAMED, DERIVED):  # their ids alone decide
                borders[at] = NEVER if begins_ms(producer_id, 0) < borders[at] else -NEVER
            for covered in (False, True):
                outcome = resolution_of(ranks[own], ranks[then], register, covered)
                if (key, producer_id) in self.closed:
                    outcome = "closed"
                outcomes[int(covered), at] = RESOLUTIONS.index(outcome)
            if ranks[own].generation < self.registers.buried(key.topic, groups[group]):
                outcomes[:, at] = -1
        which = which.reshape(-1)
        return outcomes[(dead["published"] >= borders[which]).astype(np.int64), which]

    # ------------------------------------------------------------------ rows

    def _names(self, masks: list[int]) -> dict[str, tuple[str, pa.Array]]:
        """Return columns that are wanted as values by number, each with the name of the column of numbers."""
        columns = self._columns(masks)
        return {
            column.name: (columns[column.name][0], pa.array(columns[column.name][1], column.type))
            for column in self.out.schema
            if column.name in columns
        }

    def _columns(self, masks: list[int]) -> dict[str, tuple[str, list[Any]]]:
        fragments = self.fragments
        keys = [producer.key for producer in fragments.producers]
        named = [named_by(producer) for producer in fragments.producers]
        ranks = list(fragments.ranks)
        return {
            "id": ("producer", [head for head, _ in named]),
            "topic": ("producer", [self.registers.name_of(key.topic) for key in keys]),
            "topic_id": ("producer", [key.topic.hex() for key in keys]),
            "partition": ("producer", [key.number for key in keys]),
            "producer_id": ("producer", [text for _, text in named]),
            "group": ("group", list(fragments.groups)),
            "generation": ("rank", [Decimal(rank.generation) for rank in ranks]),
            "n": ("rank", [small(rank.n) for rank in ranks]),
            "resolution": ("resolution", list(RESOLUTIONS)),
            "replicas": ("nodes", list(map(self.nodes_of, masks))),
        }

    def _blocks(
        self,
        dead: dict[str, Numbers],
        first: int,
        causes: pa.RecordBatch,
        names: Mapping[str, tuple[str, pa.Array]],
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of deaths whose causes are in one batch, which begins with number ``first``."""
        columns = {name: values.take(pa.array(dead[by])) for name, (by, values) in names.items()}
        columns["seq"], columns["published_at"] = pa.array(dead["start"]), times(dead["published"])
        if "id" in columns:
            columns["id"] = pc.binary_join_element_wise(columns["id"], columns["seq"].cast(pa.string()), "")
        causes = causes.take(pa.array(dead["cause"] - first))
        begin, size, count = 0, 0, dead["start"].size
        messages: list[Message | None] = []
        crcs: list[str | None] = []
        for at, (message, crc) in enumerate(self._messages(dead), 1):
            messages.append(message)
            crcs.append(crc)
            size += 0 if message is None else len(message.payload)
            if size > BYTES_MAX or at == count:
                part = {name: values[begin:at] for name, values in columns.items()}
                yield self._batch({**part, **content(messages, crcs)}, causes[begin:at])
                begin, size, messages, crcs = at, 0, [], []

    def _batch(self, columns: Mapping[str, Any], causes: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column in self.out.schema:
            values = causes.column(column.name) if column.name in FIELDS else columns[column.name]
            values = values() if callable(values) else values
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.out.schema)

    def _messages(self, dead: Mapping[str, Numbers]) -> Iterator[tuple[Message | None, str | None]]:
        """Yield the message of each death, and the CRC of its record."""
        if not self.out.wants(*CONTENT, "crc"):
            yield from repeat((None, None), dead["start"].size)
            return
        firsts = self._copies_at(dead["copy"])
        for at, count, first in zip(dead["copy"].tolist(), dead["copies"].tolist(), firsts, strict=True):
            others = (self._copies_at(np.array([more]))[0] for more in range(at + 1, at + count))
            yield self._first_whole(chain((first,), others)) if count else (None, None)

    def _first_whole(self, copies: Iterable[Copy]) -> tuple[Message | None, str | None]:
        """Return a message and the CRC of its record, from the first copy whose own checksum matches."""
        crc = None
        for directory, segment, offset, index, damaged in copies:
            loaded = self.load(directory, segment, offset, self.content)
            if damaged:
                self.report(loaded.opened.body_problem(segment, loaded.frame))
            (message,), crc = self.messages_in(loaded, index, 1), f"{loaded.header.crc_of(index):08x}"
            if message is not None or not self.content:
                return message, crc
        return None, crc

    def _copies_at(self, numbers: Numbers) -> list[Copy]:
        """Return copies by their numbers; any copy for a number that there is not."""
        last = self.copies["index"].size - 1
        if last < 0:
            return [(0, 0, 0, 0, False)] * numbers.size
        names = ("directory", "segment", "offset", "index", "damaged")
        return list(
            zip(*(self.copies[name][np.minimum(numbers, last)].tolist() for name in names), strict=True)
        )

"""Parts of journals that dead letters are made of, as numbers: a row for each entry of a record and each batch section.

A segment is read once. A record that another node's journal has in the same bytes is not decoded again: its rows get
one node more. Names (of messages, groups, ranks) are numbers here, and `merged` works on whole columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from quorumq.core.values.types import Kind, PartitionId, ProducerId, Span

from .causes import PUBLISHED, Causes, Producer, Rank

Numbers = NDArray[np.int64]
T = TypeVar("T", bound=Hashable)

RECORD: Final = (
    "producer", "group", "start", "stop", "rank", "nodes", "cause", "ballot", "by", "published",
)  # fmt: skip
"""Columns of an entry of a RecordsMerged. ``cause`` is the number of its cause in `Causes`; -1 if it has none.
``by`` is the node of the cause's ballot."""

SECTION: Final = (
    "producer", "start", "stop", "directory", "segment", "offset", "first", "published", "damaged",
)  # fmt: skip
"""Columns of a section of a batch. ``first`` is the index of its first message in the batch."""

NODES: Final = RECORD.index("nodes")
INT64_MAX: Final = (1 << 63) - 1


class Names(dict[T, int]):
    """Numbers for values, in the order of their first use: a new value gets the next one."""

    def __missing__(self, value: T) -> int:
        return self.setdefault(value, len(self))


class Fragments:
    """Rows of what journals say of dead letters, added in any order."""

    def __init__(self, causes: Causes) -> None:
        self.causes = causes
        self.producers: Names[Producer] = Names()
        self.groups: Names[str] = Names()
        self.ranks: Names[Rank] = Names()
        self.ballots: Names[str] = Names()
        self.records = array("q")
        self.spans = array("q")
        self.count = 0
        # By names as they stand in records; -1 for those of others.
        self._producers: dict[tuple[Any, ...], int] = {}
        self._ranks: dict[tuple[int, int, int], int] = {}

    def add_entries(
        self,
        key: PartitionId,
        group: str,
        entries: Any,
        causes: Iterable[Any],
        directory: int,
        mine: Callable[[ProducerId], bool],
    ) -> None:
        """Add the entries of a RecordsMerged as they stand in its header, and the cause of each, or None."""
        rows = array("q")  # those of a record that cannot be read whole are dropped
        add, group_number, node = rows.extend, self.groups[group], 1 << directory
        producers, ranks = self._producers, self._ranks
        for ((named, start, stop), record), cause in zip(entries, causes, strict=True):
            producer = producers.get((key, named))
            if producer is None:
                producer_id = ProducerId(*named)
                producer = self.producers[Producer(key, producer_id)] if mine(producer_id) else -1
                producers[key, named] = producer
            if producer < 0:
                continue
            rank = ranks.get(record[:3])
            if rank is None:
                generation, n, kind = record[:3]
                rank = ranks[record[:3]] = self.ranks[Rank(generation, n, Kind(kind))]
            number, ballot, by, published = -1, 0, 0, 0
            if record[2] == Kind.DEAD:
                ballot, name = record[3][0]
                ballot, by = min(ballot, INT64_MAX), self.ballots[name]
                number, published = self.causes.add(cause), cause[PUBLISHED]
            add((producer, group_number, start, stop, rank, node, number, ballot, by, published))
        self.records += rows
        self.count += len(rows) // len(RECORD)

    def add_node(self, rows: Sequence[tuple[int, int]], directory: int) -> None:
        """Note that another node has the entries of these rows."""
        if not rows:
            return
        first, stop = np.array(rows, np.int64).T
        lengths = stop - first
        each = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        table = np.frombuffer(self.records, np.int64).reshape(-1, len(RECORD))
        table[each, NODES] |= 1 << directory

    def add_section(
        self,
        key: PartitionId,
        span: Span,
        where: tuple[int, int, int],
        first: int,
        published: int,
        damaged: bool,
    ) -> None:
        """Add a section of a batch at ``where``, from its message number ``first`` on."""
        producer = self.producers[Producer(key, span.producer_id)]
        self.spans.extend((producer, span.start, span.stop, *where, first, published, damaged))

    def keep(self, masks: Sequence[int]) -> None:
        """Drop what directories have that are not in the bit mask of a row's producer id."""
        mask = np.array(masks, np.int64)
        table = np.frombuffer(self.records, np.int64).reshape(-1, len(RECORD)).copy()
        table[:, NODES] &= mask[table[:, 0]]
        self.records = array("q", table[table[:, NODES] != 0].tobytes())
        table = np.frombuffer(self.spans, np.int64).reshape(-1, len(SECTION))
        there = mask[table[:, 0]] >> table[:, SECTION.index("directory")] & 1
        self.spans = array("q", table[there == 1].tobytes())

    def rows(self, columns: tuple[str, ...]) -> dict[str, Numbers]:
        flat = self.records if columns is RECORD else self.spans
        table = np.frombuffer(flat, np.int64).reshape(-1, len(columns))
        return {name: table[:, at].copy() for at, name in enumerate(columns)}


def take(rows: dict[str, Numbers], chosen: Any) -> dict[str, Numbers]:
    return {name: column[chosen] for name, column in rows.items()}


def _grouped(rows: dict[str, Numbers], order: Numbers) -> dict[str, Numbers]:
    """Return one row for each death of a span: the cause with the lowest ballot, and the nodes that have any."""
    same = ("producer", "group", "rank", "start", "stop")
    by = np.lexsort((order[rows["by"]], rows["ballot"], *(rows[name] for name in reversed(same))))
    rows = take(rows, by)
    if not by.size:
        return rows
    new = np.zeros(by.size, bool)
    new[0] = True
    for name in same:
        new[1:] |= np.diff(rows[name]) != 0
    first = np.flatnonzero(new)
    nodes = np.bitwise_or.reduceat(rows["nodes"], first)
    return {**take(rows, first), "nodes": nodes}


def expanded(rows: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return a row for each message of each row's span."""
    sizes = rows["stop"] - rows["start"]
    rows = take(rows, np.repeat(np.arange(sizes.size), sizes))
    rows["start"] = rows["start"] + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return {**rows, "stop": rows["start"] + 1}


def deaths(fragments: Fragments) -> dict[str, Numbers]:
    """Return one row for each death of each message: RECORD, sorted by place, group and ``start``."""
    rows = fragments.rows(RECORD)
    rows = take(rows, rows["cause"] >= 0)
    names = list(fragments.ballots)
    order = np.argsort(np.argsort(np.array(names, object))) if names else np.zeros(0, np.int64)
    rows = _grouped(rows, order)
    if (rows["stop"] - rows["start"] > 1).any():
        rows = _grouped(expanded(rows), order)
    return take(rows, np.lexsort((rows["start"], rows["group"], rows["producer"])))


def pairs(
    owners: Numbers, seqs: Numbers, of: Numbers, start: Numbers, stop: Numbers
) -> tuple[Numbers, Numbers]:
    """Return which messages lie in which spans, as two columns of numbers.

    Args:
        owners, seqs: of each message its producer id, as a number, and its own number; sorted.
        of, start, stop: the same of each span.
    """
    known = np.unique(seqs)
    width = known.size + 1
    keys = owners * width + np.searchsorted(known, seqs)
    low = np.searchsorted(keys, of * width + np.searchsorted(known, start))
    high = np.searchsorted(keys, of * width + np.searchsorted(known, stop))
    counts = high - low
    spans = np.repeat(np.arange(counts.size), counts)
    ends = np.cumsum(counts)
    messages = np.arange(spans.size) + np.repeat(low - (ends - counts), counts)
    return messages, spans


def fates(fragments: Fragments, dead: dict[str, Numbers]) -> Numbers:
    """Return the rank of the record that each death's message has now, as a number of `Fragments.ranks`."""
    ranks = list(fragments.ranks)
    by_rank = sorted(range(len(ranks)), key=lambda at: ranks[at].order())
    order = np.empty(len(ranks), np.int64)
    order[by_rank] = np.arange(len(ranks))
    rows, groups = fragments.rows(RECORD), len(fragments.groups)
    messages, spans = pairs(
        dead["producer"] * groups + dead["group"], dead["start"],
        rows["producer"] * groups + rows["group"], rows["start"], rows["stop"],
    )  # fmt: skip
    highest = np.full(dead["start"].size, -1, np.int64)
    np.maximum.at(highest, messages, order[rows["rank"][spans]])
    return np.array(by_rank, np.int64)[highest]

"""Lines about messages as a table of numbers, with a small list of names for each column that has names.

A row is one span of one line. All rows of one message, of any group, lie in one part however the table is cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

ROW: Final = np.dtype([
    ("writer", "i4"), ("space", "i4"), ("call", "i4"), ("more", "i4"), ("owner", "i4"), ("token", "i4"),
    ("attempt", "i4"), ("lead", "?"), ("start", "i8"), ("stop", "i8"), ("at", "f8"), ("until", "f8"), ("asked", "f8"),
    ("made", "i8"), ("op", "i8"), ("retries", "i8"), ("crc", "i8"),
])  # fmt: skip
"""Columns: `lead` is true if the row is the first of its line, `crc` is the index of the first checksum. If absent,
numbers are -1 and times NaN."""

BLOCK: Final = 1024
"""Number of messages of one producer id, from a multiple of it on, that are in one part."""


class Writer(NamedTuple):
    """Writer of a line: the run, its name, and the error of `at` in seconds."""

    run: str
    who: str
    within: float


class Space(NamedTuple):
    """Place in which messages are numbered."""

    run: str
    topic: str
    partition: int
    producer_id: str


class Call(NamedTuple):
    """Content of a line, but for its messages and times."""

    kind: str
    outcome: str | None
    group: str | None
    state: str | None
    generation: int | None
    n: int | None
    interrupted: bool | None
    conflict: bool


class More(NamedTuple):
    """Facts of few lines: when a delay is over and a life ends, in seconds from the line; an output of the message."""

    due: float | None = None
    dies: float | None = None
    into: tuple[str, int, str, int, int] | None = None
    """Topic, partition, producer id, number and index."""


class Table(NamedTuple):
    """Rows, and the names for which their numbers stand."""

    rows: NDArray[Any]
    writers: Sequence[Writer]
    spaces: Sequence[Space]
    calls: Sequence[Call]
    mores: Sequence[More]
    owners: Sequence[str]
    tokens: Sequence[str]
    crcs: NDArray[np.uint32]

    def taken(self, rows: NDArray[Any]) -> Table:
        """Return a table of these rows of it, or of parts of them, with the names that they use."""
        rows = rows.copy()
        names = []
        for column, values in zip(NAMED, self[1:7], strict=True):
            used = np.zeros(len(values) + 1, bool)  # -1, no name, is the last one
            used[rows[column]] = True
            rows[column] = np.append(np.cumsum(used[:-1]) - 1, -1)[rows[column]]
            names.append([values[it] for it in np.flatnonzero(used[:-1]).tolist()])
        has = rows["crc"] >= 0
        sizes = np.where(has, rows["stop"] - rows["start"], 0)
        crcs = self.crcs[spread(rows["crc"], sizes)]
        rows["crc"] = np.where(has, np.cumsum(sizes) - sizes, -1)
        return Table._make((rows, *names, crcs))

    def parts(self, count: int) -> dict[int, Table]:
        """Return the table in at most ``count`` parts. The part of a message depends on its name alone."""
        rows = by_block(self.rows)
        salts = np.array([zlib.crc32(repr(it).encode()) for it in self.spaces], dtype=np.int64)
        mixed = (salts[rows["space"]] + rows["start"] // BLOCK * 2654435761) % 2147483647
        of = mixed % count
        order = np.argsort(of, kind="stable")
        rows, of = rows[order], of[order]
        edges = np.flatnonzero(np.diff(of, prepend=-1, append=count))
        return {
            int(of[a]): self.taken(rows[a:b])
            for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        }


NAMED: Final = ("writer", "space", "call", "more", "owner", "token")
"""The columns that have names, in the order of `Table`."""


def spread(starts: NDArray[Any], sizes: NDArray[Any]) -> Numbers:
    """Return for each start as many numbers from it on as its size, one after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    first: Numbers = np.repeat(starts - (ends - sizes), sizes)
    return np.arange(total, dtype=np.int64) + first


def by_block(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows, those that reach over the end of a block cut there."""
    first = rows["start"] // BLOCK
    counts = (rows["stop"] - 1) // BLOCK - first + 1
    if not len(rows) or counts.max() == 1:
        return rows
    cut = rows[np.repeat(np.arange(len(rows)), counts)]
    block = spread(first, counts)
    begin, inner = cut["start"].copy(), block != np.repeat(first, counts)
    cut["start"] = np.where(inner, block * BLOCK, begin)
    cut["stop"] = np.minimum(cut["stop"], (block + 1) * BLOCK)
    cut["crc"] = np.where(cut["crc"] >= 0, cut["crc"] + cut["start"] - begin, -1)
    cut["lead"] &= ~inner
    return cut


def joined(tables: Sequence[Table]) -> Table:
    """Return the rows of all, in order, each name once."""
    if len(tables) == 1:
        return tables[0]
    names: list[list[Any]] = []
    parts = [it.rows.copy() for it in tables]
    for at, column in enumerate(NAMED, start=1):
        codes: dict[Any, int] = {}
        for part, table in zip(parts, tables, strict=True):
            new = np.array([codes.setdefault(it, len(codes)) for it in table[at]] + [-1], dtype=np.int32)
            part[column] = new[part[column]]  # -1 is the last one
        names.append(list(codes))
    begin = 0
    for part, table in zip(parts, tables, strict=True):
        part["crc"] = np.where(part["crc"] >= 0, part["crc"] + begin, -1)
        begin += len(table.crcs)
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    crcs = np.concatenate([it.crcs for it in tables]) if tables else np.empty(0, np.uint32)
    return Table._make((rows, *names, crcs))

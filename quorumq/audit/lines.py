"""Lines of histories into numbers, each checked against the schema; one that does not fit is reported, not dropped.

An audit that passed over a line in silence could call a run good that is not. Lines are decoded by msgspec into a
struct for each kind, made of the tables of quorumq/history. A line that it refuses is looked at once more, slowly, for
the reason.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from quorumq.audit.reasons import (
    PRODUCER_ID,
    ROLES,
    SPAN_MESSAGES_MAX,
    TOKEN,
    WHO,
    Unread,
    refused,
    torn,
    type_of,
)
from quorumq.audit.solver import RATE_MAX, without_collection
from quorumq.audit.table import ROW, Call, Floats, More, Numbers, Space, Table, Writer, spread
from quorumq.history import COMMON, FIELDS, KINDS, LINE_BYTES_MAX, VERSION, Row

DUE_SLACK_S: Final = 0.05
"""Seconds that a delay may end too early without a remark: times of day are in milliseconds, and are read twice."""

TICK_S: Final = 0.1
"""The least width of a window of a clock."""

OF_MESSAGES: Final = frozenset(
    [
        "publish",
        "store",
        "hold_won",
        "deliver",
        "ack",
        "reject",
        "dead_letter",
        "extend",
        "redrive",
        "list",
        "leave",
        "release",
        "derive",
    ]
)
"""Kinds of lines about single messages: the others are about a run, a topic, a group or a place."""

LEFT_OUT: Final = frozenset(
    ("hold_lost", "expire", "claim", "labels", "set_labels", "pause_group", "limit_group")
)
"""Kinds that clients tell better, and those that no promise of the audit is about."""


def _structs() -> dict[type[msgspec.Struct], str]:
    """Return the struct of each kind, with the fields that it may have."""
    result = {}
    for kind, spec in KINDS.items():
        types = {
            name: type_of(name, field)
            for name, field in (COMMON | FIELDS).items()
            if name != "kind" and (name in COMMON or name in _FIELDS_OF[kind])
        }
        if spec.outcomes and "outcome" in types:
            types["outcome"] = Literal[spec.outcomes]
        must = [name for name in types if name in COMMON or name in spec.required]
        fields: list[Any] = [(name, types[name]) for name in must]
        fields += [(name, types[name] | None, None) for name in types if name not in must]
        result[msgspec.defstruct(kind, fields, tag_field="kind", tag=kind, gc=False)] = kind
    return result


_FIELDS_OF: Final = {kind: frozenset(spec.required + spec.optional) for kind, spec in KINDS.items()}
_STRUCTS: Final = _structs()
_UNION: Any = None
for _one in _STRUCTS:
    _UNION = _one if _UNION is None else _UNION | _one
_DECODER: Final = msgspec.json.Decoder(_UNION)


class Stretch(NamedTuple):
    """Summary of some lines of one writer.

    Attributes:
        lines: number of lines.
        first, last: the least and the greatest `at`.
        day: seconds that the time of day was ahead of `at`, as the median of all lines but `settings`; None without.
        least, most: the least and the greatest of these seconds.
        ticks: the windows of `TICK_S` in which anything was written, as starts and stops of runs of them.
    """

    writer: Writer
    lines: int
    first: float
    last: float
    day: float | None
    least: float
    most: float
    ticks: tuple[Numbers, Numbers]


class Summary(NamedTuple):
    """Summary of some lines about runs as a whole: small beside the lines.

    Attributes:
        lines: lines about a run, topic, group or place, as they are.
        stretches: the stretches, by writer.
        calls: run, topic and call of each call.
        lists: run, topic, partition, group and writer of each listing of dead letters.
        stores: run, topic, partition and writer of each place with stored messages.
        producer_ids: run and producer id of published messages.
        into: run and topic of derived outputs.
        unread: lines that could not be read.
        files: the runs of each file, at most two.
    """

    lines: list[Row]
    stretches: list[Stretch]
    calls: set[tuple[str, str, Call]]
    lists: set[tuple[str, str, int, str, str]]
    stores: set[tuple[str, str, int, str]]
    producer_ids: set[tuple[str, str]]
    into: set[tuple[str, str]]
    unread: list[Unread]
    files: dict[str, set[str]]


class Lines:
    """Lines as they are read: `add` them, then take `table` and `summary`.

    Lines of one kind are taken together, a column at a time: that costs a quarter of taking them one by one.
    """

    def __init__(self) -> None:
        self._count = 0
        self._rows: list[NDArray[Any]] = []
        self._writers: dict[Any, int] = {}
        self._spaces: dict[Any, int] = {}
        self._calls: dict[Call, int] = {}
        self._known: dict[str, dict[Any, int]] = {}
        self._mores: dict[More, int] = {More(): 0}
        self._owners: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._crcs: list[bytes] = []
        self._crc = 0
        self._stats: list[tuple[Numbers, Floats, Numbers, bool]] = []
        self._context: list[Row] = []
        self._unread: list[Unread] = []
        self._files: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, file: str, text: bytes) -> None:
        """Take whole lines of a file, the last one with its newline."""
        with without_collection():
            self._add(file, text)

    def _add(self, file: str, text: bytes) -> None:
        result: list[Any] = []
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            result = _DECODER.decode_lines(text) if len(text) <= LINE_BYTES_MAX else []
        if len(result) != text.count(b"\n"):
            result = self._one_by_one(file, text[:-1].split(b"\n"))
        by_kind: dict[type[Any], list[Any]] = defaultdict(list)
        for line in result:
            by_kind[type(line)].append(line)
        for of, items in by_kind.items():
            kind = _STRUCTS[of]
            if (columns := _columns(kind, items)) is None:  # one of them is not of the schema after all
                for line in items:
                    if _columns(kind, [line]) is None:
                        self._unread.append(refused(file, msgspec.json.encode(line)))
                items = [line for line in items if _columns(kind, [line]) is not None]
                columns = _columns(kind, items)
            if items and columns is not None:
                self._taken(kind, items, columns)
        self._files.setdefault(file, set()).update(map(attrgetter("run"), result))

    def torn(self, file: str, line: bytes) -> None:
        """Take the last line of a file, which has no newline."""
        self._unread.append(torn(file, line))

    def _one_by_one(self, file: str, lines: Sequence[bytes]) -> list[Any]:
        result = []
        for line in lines:
            try:
                if len(line) > LINE_BYTES_MAX:
                    raise msgspec.DecodeError
                result.append(_DECODER.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._unread.append(refused(file, line))
        return result

    def _taken(self, kind: str, lines: Sequence[Any], columns: _Columns) -> None:
        """Take lines of one kind, all of the schema."""
        number = self._count + np.arange(len(lines))
        self._count += len(lines)
        writer = _codes(self._writers, columns.writers)
        self._stats.append((writer, columns.at, np.array([it.wall_ms for it in lines]), kind == "settings"))
        if kind in OF_MESSAGES:
            self._of_messages(kind, lines, columns, writer, number)
        if (kind not in OF_MESSAGES and kind not in LEFT_OUT) or kind == "list":
            names = _CONTEXT[kind]
            for line in lines:
                if kind != "list" or not line.spans:
                    row = {name: value for name in names if (value := getattr(line, name)) is not None}
                    self._context.append({**row, "kind": kind})

    def _of_messages(
        self, kind: str, lines: Sequence[Any], columns: _Columns, writer: Numbers, number: Numbers
    ) -> None:
        flat, of, has = columns.spans, columns.of, _FIELDS_OF[kind]
        rows = np.zeros(len(flat), _NUMBERED)
        rows["lead"] = np.diff(of, prepend=-1) != 0
        rows["number"], rows["writer"] = number[of], writer[of]
        whole = lines if len(flat) == len(lines) else [lines[it] for it in of.tolist()]
        keys = [(it.run, it.topic, it.partition, span[0]) for it, span in zip(whole, flat, strict=True)]
        rows["space"] = _codes(self._spaces, keys)
        rows["start"], rows["stop"] = columns.starts, columns.stops
        rows["call"] = self._called(kind, lines)[of]
        rows["more"] = self._more(kind, lines)[of] if has & {"delay", "ttl"} else 0
        rows["at"] = columns.at[of]
        for name, default in (
            ("until", math.nan),
            ("asked", math.nan),
            ("attempt", -1),
            ("op", -1),
            ("retries", -1),
        ):
            rows[name] = _filled(lines, name, default)[of] if name in has else default
        rows["made"] = _filled(lines, "published_ms", -1)[of] if "published_ms" in has else -1
        for name, codes in (("owner", self._owners), ("token", self._tokens)):
            rows[name] = _named(codes, list(map(attrgetter(name), lines)))[of] if name in has else -1
        rows["crc"] = self._checksums(columns.crcs, rows, of) if columns.crcs else -1
        self._rows.append(self._derived(lines, rows, of) if kind == "derive" else rows)

    def _called(self, kind: str, lines: Sequence[Any]) -> Numbers:
        """Return the number of each line's call, by the fields of it that the kind has."""
        names = [it for it in Call._fields[1:-1] if it in _FIELDS_OF[kind]]
        keys: list[tuple[Any, ...]]
        if kind == "publish":
            names.append("conflict")
            keys = [(it.outcome, (it.detail or "").startswith("conflict")) for it in lines]
        elif len(names) > 1:
            keys = list(map(attrgetter(*names), lines))
        else:
            keys = [tuple(getattr(it, name) for name in names) for it in lines]
        known = self._known.setdefault(kind, {})
        for key in dict.fromkeys(keys):
            if key not in known:
                fields = {
                    **dict.fromkeys(Call._fields),
                    "kind": kind,
                    "conflict": False,
                    **dict(zip(names, key, strict=True)),
                }
                known[key] = self._calls.setdefault(Call(**fields), len(self._calls))
        return np.array([known[it] for it in keys], np.int64)

    def _checksums(self, crcs: Sequence[bytes | None], rows: NDArray[Any], of: Numbers) -> Numbers:
        has = np.array([it is not None for it in crcs])[of]
        sizes = np.where(has, rows["stop"] - rows["start"], 0)
        begin = self._crc + np.cumsum(sizes) - sizes
        self._crcs += [it for it in crcs if it is not None]
        self._crc += int(sizes.sum())
        return np.where(has, begin, -1)

    def _more(self, kind: str, lines: Sequence[Any]) -> Numbers:
        result = np.zeros(len(lines), np.int64)
        for at, line in enumerate(lines):
            delay, ttl = line.delay, getattr(line, "ttl", None)
            if delay is None and ttl is None:
                continue
            due = dies = None
            if delay is not None and delay > 0 and line.outcome == "invoke":
                # Counted from when the batch was made, by the producer's own clocks; a fast clock is over sooner.
                made = kind == "publish" and line.published_ms is not None
                waited = max(0.0, (line.wall_ms - line.published_ms) / 1000) if made else 0.0
                due = delay / (1 + RATE_MAX / 2) - waited - DUE_SLACK_S
            if ttl is not None and ttl > 0:
                dies = ttl * (1 + RATE_MAX) + DUE_SLACK_S
            result[at] = self._mores.setdefault(More(due, dies), len(self._mores))
        return result

    def _derived(self, lines: Sequence[Any], rows: NDArray[Any], of: Numbers) -> NDArray[Any]:
        """Return a row for each input with its output."""
        sizes = rows["stop"] - rows["start"]
        each = rows[np.repeat(np.arange(len(rows)), sizes)]
        each["crc"] = np.where(
            each["crc"] >= 0, each["crc"] + spread(np.zeros(len(rows), np.int64), sizes), -1
        )
        each["start"] = spread(rows["start"], sizes)
        each["stop"] = each["start"] + 1
        kept, mores = [], []
        counts = np.bincount(np.repeat(of, sizes), minlength=len(lines)).tolist()
        begin = 0
        for line, count in zip(lines, counts, strict=True):
            outputs = _outputs(line.into) or []
            for at, output in enumerate(outputs[:count]):
                kept.append(begin + at)
                mores.append(self._mores.setdefault(More(into=output), len(self._mores)))
            begin += count
        result = each[kept]
        result["more"] = mores
        return result

    def table(self) -> Table:
        """Return the table of the lines about messages."""
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, _NUMBERED)
        order = np.argsort(rows["number"], kind="stable")
        result = np.empty(len(rows), ROW)
        for name in ROW.names or ():
            result[name] = rows[name][order]
        return Table(
            result, [Writer(*it) for it in self._writers], [Space(*it) for it in self._spaces],
            list(self._calls), list(self._mores), list(self._owners), list(self._tokens),
            np.frombuffer(b"".join(self._crcs), ">u4").astype(np.uint32),
        )  # fmt: skip

    def summary(self, table: Table) -> Summary:
        """Return the summary of the lines about runs as a whole."""
        rows, spaces = table.rows, table.spaces
        stated = {
            (spaces[space].run, spaces[space].topic, table.calls[call])
            for space, call in _pairs(rows["space"], rows["call"])
        }
        calls = np.array([_index_of(it) for it in table.calls], dtype=np.int8)[rows["call"]]
        lists, stores = set(), set()
        listed = rows[calls == 1]
        for space, writer, call in _pairs(listed["space"], listed["writer"], listed["call"]):
            who = table.writers[writer].who
            if who.startswith("node:"):
                run, topic, partition, _ = spaces[space]
                lists.add((run, topic, partition, table.calls[call].group or "", who))
        stored = rows[calls == 2]
        for space, writer in _pairs(stored["space"], stored["writer"]):
            stores.add((*spaces[space][:3], table.writers[writer].who))
        made = np.unique(rows["space"][calls == 3]).tolist()
        producer_ids = {(spaces[it].run, spaces[it].producer_id) for it in made}
        inputs = rows[rows["more"] > 0]
        into = {
            (spaces[space].run, output[0])
            for space, more in _pairs(inputs["space"], inputs["more"])
            if (output := table.mores[more].into) is not None
        }
        return Summary(
            self._context,
            list(self._stretches()),
            stated,
            lists,
            stores,
            producer_ids,
            into,
            self._unread,
            self._files,
        )

    def _stretches(self) -> Iterator[Stretch]:
        if not self._stats:
            return
        writers = [Writer(*it) for it in self._writers]
        by, at, wall = (np.concatenate([it[column] for it in self._stats]) for column in range(3))
        first = np.concatenate([np.full(len(it[0]), it[3]) for it in self._stats])
        order = np.argsort(by, kind="stable")
        edges = np.flatnonzero(np.diff(by[order], prepend=-1, append=-1))
        for a, b in itertools.pairwise(edges):
            mine = order[a:b]
            times, days = at[mine], (wall[mine] / 1000 - at[mine])[~first[mine]]
            day = float(np.median(days)) if len(days) else None
            least, most = (float(days.min()), float(days.max())) if len(days) else (math.inf, -math.inf)
            yield Stretch(
                writers[by[mine[0]]], len(mine), float(times.min()), float(times.max()), day, least, most,
                runs_of(np.unique(np.floor(times / TICK_S).astype(np.int64))),
            )  # fmt: skip


class _Columns(NamedTuple):
    """Columns of some lines of one kind, once these are checked.

    Attributes:
        writers: writer of each line.
        at: time of each line, in seconds of the writer's clock.
        spans: spans of all lines, one after the other, with ``starts`` and ``stops``; ``of`` has the line of each.
        crcs: checksums of each line; empty if no line has any.
    """

    writers: list[tuple[str, str, float]]
    at: Floats
    spans: list[tuple[str, int, int]]
    of: Numbers
    starts: Numbers
    stops: Numbers
    crcs: list[bytes | None]


_WRITTEN_BY: Final = attrgetter("run", "who", "within")


def _columns(kind: str, lines: Sequence[Any]) -> _Columns | None:
    """Check the rules that a struct does not state; None if a line is not of the schema.

    No number is beyond all others: msgspec refuses those.
    """
    writers = list(map(_WRITTEN_BY, lines))
    for _, who, _ in dict.fromkeys(writers):
        if not WHO.fullmatch(who) or ROLES[who[0]] not in KINDS[kind].writers:
            return None
    of_lines = [it.spans or () for it in lines] if "spans" in _FIELDS_OF[kind] else []
    spans = [span for items in of_lines for span in items]
    of = (
        np.arange(len(spans))
        if len(spans) == len(of_lines)
        else np.repeat(np.arange(len(lines)), list(map(len, of_lines)))
    )
    starts, stops = (np.array([it[which] for it in spans], np.int64) for which in (1, 2))
    if ((starts < 0) | (stops <= starts) | (stops - starts > SPAN_MESSAGES_MAX)).any():
        return None
    if not all(map(PRODUCER_ID.fullmatch, {it[0] for it in spans})):
        return None
    if kind == "settings" and any(it.history > VERSION for it in lines):
        return None
    if kind == "derive" and any(_outputs(it.into) is None for it in lines):
        return None
    if "token" in _FIELDS_OF[kind] and not all(
        TOKEN.fullmatch(it.token) for it in lines if it.token is not None
    ):
        return None
    crcs = _bits(lines, of, stops - starts) if "crcs" in _FIELDS_OF[kind] else []
    if crcs is None:
        return None
    return _Columns(writers, np.array([it.at for it in lines], float), spans, of, starts, stops, crcs)


def _bits(lines: Sequence[Any], of: Numbers, sizes: Numbers) -> list[bytes | None] | None:
    """Return the checksums of lines; empty if none has any, None if one has others than its messages."""
    if not any(it.crcs for it in lines):
        return []
    try:
        result = [bytes.fromhex(it.crcs) if it.crcs else None for it in lines]
    except ValueError:
        return None
    expected = np.bincount(of, sizes, len(lines)) * 4
    has = np.array([-1 if it is None else len(it) for it in result])
    return None if ((has >= 0) & (has != expected)).any() else result


def _codes(codes: dict[Any, int], keys: Sequence[Any]) -> Numbers:
    """Return the numbers of these names, of new ones too."""
    try:
        return np.array([codes[it] for it in keys], np.int64)
    except KeyError:
        return np.array([codes.setdefault(it, len(codes)) for it in keys], np.int64)


def _named(codes: dict[str, int], names: Sequence[str | None]) -> Numbers:
    return np.array([-1 if it is None else codes.setdefault(it, len(codes)) for it in names], np.int64)


def _filled(lines: Sequence[Any], name: str, default: float) -> NDArray[Any]:
    """Return a column, with a number in place of an absent one."""
    values = list(map(attrgetter(name), lines))
    return np.array([default if it is None else it for it in values] if None in values else values)


def _outputs(into: Mapping[str, Any]) -> list[tuple[str, int, str, int, int]] | None:
    """Return the outputs that a line names, each with the index among those of its input."""
    try:
        return [
            (str(into["topic"]), int(into["partition"]), str(producer_id), seq, int(into.get("index") or 0))
            for producer_id, start, stop in into["spans"]
            for seq in range(int(start), min(int(stop), int(start) + SPAN_MESSAGES_MAX))
        ]
    except (KeyError, TypeError, ValueError):
        return None


_NUMBERED: Final = np.dtype([*ROW.descr, ("number", "i8")])
_NOT_READ: Final = frozenset(("kind", "via", "links", "wall_ms"))
_CONTEXT: Final = {
    kind: [name for name in (*COMMON, *sorted(has)) if name not in _NOT_READ]
    for kind, has in _FIELDS_OF.items()
}
"""Fields of the lines about a run, topic or group, by kind."""


def _index_of(call: Call) -> int:
    """Return 1 for a listing of dead letters, 2 for a copy, 3 for a publish."""
    if call.kind == "list":
        return int(call.state == "dead")
    return {"store": 2, "publish": 3}.get(call.kind, 0)


def _pairs(*columns: Any) -> Iterable[tuple[int, ...]]:
    """Return the rows of numbers from 0 on, each once."""
    if not len(columns[0]):
        return []
    sizes = [int(it.max()) + 1 for it in columns]
    key = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(columns, sizes, strict=True):
        key = key * size + column
    keys, result = np.unique(key), []
    for size in reversed(sizes):
        result.append((keys % size).tolist())
        keys = keys // size
    return list(zip(*reversed(result), strict=True))


def runs_of(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return sorted numbers as starts and stops of runs of them."""
    gaps = np.flatnonzero(np.diff(numbers) > 1)
    starts = numbers[np.concatenate((np.array([0], dtype=np.int64), gaps + 1))] if len(numbers) else numbers
    stops = numbers[np.concatenate((gaps, np.array([-1])))] + 1 if len(numbers) else numbers
    return starts, stops

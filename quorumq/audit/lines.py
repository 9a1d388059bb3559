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
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
    reason_of,
    refused,
    torn,
    type_of,
)
from quorumq.audit.solver import RATE_MAX, without_collection
from quorumq.audit.table import ROW, Call, Floats, More, Numbers, Space, Table, Writer, spread
from quorumq.history import COMMON, FIELDS, KINDS, VERSION, Row
from quorumq.history.reader import LINE_BYTES_MAX

WRONG: Final = "a wrong value: "

DUE_SLACK_S: Final = 0.05
"""Seconds that a delay may end too early without a remark: times of day are in milliseconds, and are read twice."""

TICK_S: Final = 0.1
"""The least width of a window of a clock."""

OF_MESSAGES: Final = frozenset((
    "publish", "store", "hold_won", "deliver", "ack", "reject", "dead_letter", "extend", "redrive", "list", "leave",
    "release", "derive",
))  # fmt: skip
"""Kinds of lines about single messages: the others are about a run, a topic, a group or a place."""

LEFT_OUT: Final = frozenset(
    ("hold_lost", "expire", "claim", "labels", "set_labels", "pause_group", "limit_group")
)
"""Kinds that clients know better, and those that no promise of the audit is about."""


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
_NAMES: Final = {kind: of.__struct_fields__ for of, kind in _STRUCTS.items()}
_UNION: Any = None
for _one in _STRUCTS:
    _UNION = _one if _UNION is None else _UNION | _one
_DECODER: Final = msgspec.json.Decoder(_UNION)


class Stretch(NamedTuple):
    """Summary of some lines of one writer.

    Attributes:
        lines: number of lines.
        first, last: the least and the greatest `at`.
        day: seconds that the time of day was ahead of `at`, by the median of lines but `settings`; None if none are.
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
        producer_ids: run, producer id and writer of published messages.
        into: run and topic of derived outputs.
        unread: lines that could not be read.
        files: the runs of each file, at most two.
    """

    lines: list[Row]
    stretches: list[Stretch]
    calls: set[tuple[str, str, Call]]
    lists: set[tuple[str, str, int, str, str]]
    stores: set[tuple[str, str, int, str]]
    producer_ids: set[tuple[str, str, str]]
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
        self._numbers: list[Numbers] = []
        self._writers: dict[Any, int] = {}
        self._spaces: dict[Any, int] = {}
        self._calls: dict[Call, int] = {}
        self._known: dict[str, dict[Any, int]] = defaultdict(dict)
        self._writers_of: dict[str, dict[Any, int]] = defaultdict(dict)
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
        runs = self._files.setdefault(file, set())
        for of, items in by_kind.items():
            kind = _STRUCTS[of]
            checked: _Checked | str = self._checked(kind, items)
            if isinstance(checked, str):  # one of them is not of the schema after all
                each = [self._checked(kind, [line]) for line in items]
                wrong = [(line, it) for line, it in zip(items, each, strict=True) if isinstance(it, str)]
                self._unread += [refused(file, msgspec.json.encode(line), why) for line, why in wrong]
                runs.update(map(attrgetter("run"), items))
                fit = [line for line, it in zip(items, each, strict=True) if not isinstance(it, str)]
                checked = self._checked(kind, fit) if fit else ""
            if not isinstance(checked, str):
                runs.update(checked.fields["run"])
                self._taken(kind, checked)

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
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._unread.append(refused(file, line, reason_of(line, error)))
        return result

    def _checked(self, kind: str, lines: Sequence[Any]) -> _Checked | str:
        """Check the rules that a struct does not state; the reason if a line is not of the schema."""
        fields = dict(zip(_NAMES[kind], zip(*map(msgspec.structs.astuple, lines), strict=True), strict=True))
        of_lines = fields.get("spans", ())
        flat = list(itertools.chain.from_iterable(filter(None, of_lines)))
        each_one = len(flat) == len(lines) and all(of_lines)
        of = np.arange(len(lines))
        if not each_one:
            of = np.repeat(np.arange(len(of_lines)), [len(it or ()) for it in of_lines])
        producers, *ends = zip(*flat, strict=True) if flat else ((), (), ())
        starts, stops = (np.fromiter(it, np.int64, len(flat)) for it in ends)
        if ((starts < 0) | (stops <= starts) | (stops - starts > SPAN_MESSAGES_MAX)).any():
            return f"{WRONG}spans"
        if kind == "settings" and (newest := max(fields["history"])) > VERSION:
            return f"a history of version {newest}; this reads {VERSION}"
        if kind == "derive" and any(_outputs(it) is None for it in fields["into"]):
            return f"{WRONG}into"
        if any(it is not None and not TOKEN.fullmatch(it) for it in fields.get("token", ())):
            return f"{WRONG}token"
        crcs = _bits(fields.get("crcs", ()), of, stops - starts)
        if crcs is None:
            return f"{WRONG}crcs"
        # Names are numbered once all else is checked: a table has none of a line that was refused.
        writers = list(zip(fields["run"], fields["who"], fields["within"], strict=True))
        writer = _numbers(self._writers_of[kind], writers)
        if writer is None and not all(_may_write(kind, who) for _, who, _ in dict.fromkeys(writers)):
            return f"{WRONG}who"
        space: Numbers | None = None
        names: list[Any] = []
        if kind in OF_MESSAGES:
            where: list[Sequence[Any]] = [fields[name] for name in ("run", "topic", "partition")]
            if not each_one:
                where = [[it[line] for line in of.tolist()] for it in where]
            names = list(zip(*where, producers, strict=True))
            space = _numbers(self._spaces, names)
        if space is None:
            if not all(map(PRODUCER_ID.fullmatch, set(producers))):
                return f"{WRONG}spans"
            space = _new_numbers(self._spaces, names)
        if writer is None:
            number = _new_numbers(self._writers, writers)
            self._writers_of[kind].update(zip(writers, number.tolist(), strict=True))
            writer = number
        return _Checked(fields, writer, space, of, starts, stops, crcs)

    def _taken(self, kind: str, checked: _Checked) -> None:
        """Take lines of one kind, all of the schema."""
        fields, writer = checked.fields, checked.writer
        number = np.arange(self._count, self._count + len(writer))
        self._count += len(writer)
        at = np.fromiter(fields["at"], float, len(writer))
        wall_ms = np.fromiter(fields["wall_ms"], np.int64, len(writer))
        self._stats.append((writer, at, wall_ms, kind == "settings"))
        if kind in OF_MESSAGES:
            self._of_messages(kind, checked, at, number)
        if (kind not in OF_MESSAGES and kind not in LEFT_OUT) or kind == "list":
            for values in zip(*fields.values(), strict=True):
                row = dict(zip(fields, values, strict=True))
                if kind != "list" or not row["spans"]:
                    said = {name: it for name, it in row.items() if it is not None and name not in _NOT_READ}
                    self._context.append({**said, "kind": kind})

    def _of_messages(self, kind: str, checked: _Checked, at: Floats, number: Numbers) -> None:
        fields, writer, space, of, starts, stops, crcs = checked
        rows = np.zeros(len(of), ROW)
        rows["lead"] = np.diff(of, prepend=-1) != 0
        rows["writer"], rows["space"], rows["at"] = writer[of], space, at[of]
        rows["start"], rows["stop"] = starts, stops
        rows["call"] = self._called(kind, fields)[of]
        for name, absent in _ABSENT.items():
            column = "made" if name == "published_ms" else name
            rows[column] = _filled(fields[name], absent)[of] if name in fields else absent
        for name, codes in (("owner", self._owners), ("token", self._tokens)):
            rows[name] = _named(codes, fields[name])[of] if name in fields else -1
        if any(map(any, (fields.get(name, ()) for name in ("delay", "ttl")))):
            rows["more"] = self._more(kind, fields)[of]
        rows["crc"] = self._checksums(crcs, rows, of) if crcs else -1
        if kind == "derive":
            rows, each = self._derived(fields["into"], rows, of)
            of = of[each]
        self._rows.append(rows)
        self._numbers.append(number[of])

    def _called(self, kind: str, fields: _Fields) -> Numbers:
        """Return the number of each line's call, by the fields of it that the kind has."""
        names = [it for it in Call._fields[1:-1] if it in fields]
        columns = [fields[it] for it in names]
        if kind == "publish":
            names.append("conflict")
            columns.append([(it or "").startswith("conflict") for it in fields["detail"]])
        size = len(fields["run"])
        keys = list(zip(*columns, strict=True)) if columns else [()] * size
        known = self._known[kind]
        result = _numbers(known, keys)
        if result is None:
            for key in dict.fromkeys(keys):
                said = {**dict.fromkeys(Call._fields), "kind": kind, "conflict": False}
                call = Call(**{**said, **dict(zip(names, key, strict=True))})
                known[key] = self._calls.setdefault(call, len(self._calls))
            result = _new_numbers(known, keys)
        return result

    def _checksums(self, crcs: Sequence[bytes | None], rows: NDArray[Any], of: Numbers) -> Numbers:
        has = np.array([it is not None for it in crcs])[of]
        sizes = np.where(has, rows["stop"] - rows["start"], 0)
        begin = self._crc + np.cumsum(sizes) - sizes
        self._crcs += [it for it in crcs if it is not None]
        self._crc += int(sizes.sum())
        return np.where(has, begin, -1)

    def _more(self, kind: str, fields: _Fields) -> Numbers:
        result = np.zeros(len(fields["run"]), np.int64)
        ttls = fields.get("ttl", itertools.repeat(None))
        for at, (delay, ttl) in enumerate(zip(fields["delay"], ttls, strict=False)):
            due = dies = None
            if delay is not None and delay > 0 and fields["outcome"][at] == "invoke":
                # Counted from when the batch was made, by the producer's own clocks; a fast clock is over sooner.
                made = fields["published_ms"][at] if kind == "publish" else None
                waited = 0.0 if made is None else max(0.0, (fields["wall_ms"][at] - made) / 1000)
                due = delay / (1 + RATE_MAX / 2) - waited - DUE_SLACK_S
            if ttl is not None and ttl > 0:
                dies = ttl * (1 + RATE_MAX) + DUE_SLACK_S
            result[at] = self._mores.setdefault(More(due, dies), len(self._mores))
        return result

    def _derived(
        self, into: Sequence[Mapping[str, Any]], rows: NDArray[Any], of: Numbers
    ) -> tuple[NDArray[Any], Numbers]:
        """Return a row for each input with its output, and the index of the row that it was made of."""
        sizes = rows["stop"] - rows["start"]
        source = np.repeat(np.arange(len(rows)), sizes)
        each = rows[source]
        each["crc"] = np.where(
            each["crc"] >= 0, each["crc"] + spread(np.zeros(len(rows), np.int64), sizes), -1
        )
        each["start"] = spread(rows["start"], sizes)
        each["stop"] = each["start"] + 1
        kept, mores = [], []
        begin = 0
        for line, count in zip(into, np.bincount(of[source], minlength=len(into)).tolist(), strict=True):
            for at, output in enumerate((_outputs(line) or [])[:count]):
                kept.append(begin + at)
                mores.append(self._mores.setdefault(More(into=output), len(self._mores)))
            begin += count
        result = each[kept]
        result["more"] = mores
        return result, source[kept]

    def table(self) -> Table:
        rows = np.concatenate([np.empty(0, ROW), *self._rows])
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *self._numbers]), kind="stable")
        return Table(
            rows[order], [Writer(*it) for it in self._writers], [Space(*it) for it in self._spaces],
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
        made = rows[calls == 3]
        producer_ids = {
            (spaces[space].run, spaces[space].producer_id, table.writers[writer].who)
            for space, writer in _pairs(made["space"], made["writer"])
        }
        inputs = rows[rows["more"] > 0]
        into = {
            (spaces[space].run, output[0])
            for space, more in _pairs(inputs["space"], inputs["more"])
            if (output := table.mores[more].into) is not None
        }
        of_runs = (stated, lists, stores, producer_ids, into)
        return Summary(self._context, list(self._stretches()), *of_runs, self._unread, self._files)

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


_Fields: TypeAlias = Mapping[str, Sequence[Any]]
"""Columns of some lines, by the name of the field."""


class _Checked(NamedTuple):
    """Some lines of one kind, once these are checked.

    Attributes:
        fields: their columns.
        writer: the number of each line's writer.
        space: the number of the place of each span, if they are about messages.
        of: the line of each span, all spans one after the other; ``starts`` and ``stops`` are theirs.
        crcs: checksums of each line; empty if no line has any.
    """

    fields: _Fields
    writer: Numbers
    space: Numbers
    of: Numbers
    starts: Numbers
    stops: Numbers
    crcs: list[bytes | None]


def _may_write(kind: str, who: str) -> bool:
    return WHO.fullmatch(who) is not None and ROLES[who[0]] in KINDS[kind].writers


def _bits(crcs: Sequence[str | None], of: Numbers, sizes: Numbers) -> list[bytes | None] | None:
    """Return the checksums of lines; empty if none has any, None if one has others than its messages."""
    if not any(crcs):
        return []
    try:
        result = [bytes.fromhex(it) if it else None for it in crcs]
    except ValueError:
        return None
    expected = np.bincount(of, sizes, len(crcs)) * 4
    has = np.array([-1 if it is None else len(it) for it in result])
    return None if ((has >= 0) & (has != expected)).any() else result


def _numbers(codes: Mapping[Any, int], keys: Sequence[Any]) -> Numbers | None:
    """Return the numbers of these names; None if one has none yet."""
    try:
        return np.fromiter(map(codes.__getitem__, keys), np.int64, len(keys))
    except KeyError:
        return None


def _new_numbers(codes: dict[Any, int], keys: Sequence[Any]) -> Numbers:
    """Return the same, with numbers for those that have none."""
    return np.fromiter((codes.setdefault(it, len(codes)) for it in keys), np.int64, len(keys))


def _named(codes: dict[str, int], names: Sequence[str | None]) -> Numbers:
    each = (-1 if it is None else codes.setdefault(it, len(codes)) for it in names)
    return np.fromiter(each, np.int64, len(names))


def _filled(values: Sequence[Any], absent: float) -> NDArray[Any]:
    """Return a column, with a number in place of an absent one."""
    if None in values:
        values = [absent if it is None else it for it in values]
    return np.fromiter(values, type(absent), len(values))


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


_NOT_READ: Final = frozenset(("kind", "via", "links", "wall_ms"))
_ABSENT: Final = {
    "until": math.nan, "asked": math.nan, "attempt": -1, "op": -1, "retries": -1, "published_ms": -1,
}  # fmt: skip
"""Numbers of a line about messages that stand in a column of the table, each with that of an absent one."""


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

"""Options of the data source, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql import datasource as ds

from quorumq.core.values.errors import UsageError

from ..schemas import TABLES
from .arrow import shown_ms

_BOTH: Final = ("table", "data", "path", "columns", "topic", "group", "onDamage")
READ: Final = (*_BOTH, "nodes", "verify", "since", "tasks", "timeout")
STREAM: Final = (*_BOTH, "maxBytesPerTrigger", "from", "onGap")
WRITE: Final = ("nodes", "action", "topic", "job", "group", "timeout")
"""Options of `read`, `readStream` and `write`: docs/spark.md says what each means."""

TIMEOUT_S: Final = 30.0
TASKS: Final = 4
"""Most tasks that read data directories: each passes over the records of the others, too."""

BATCH_BYTES: Final = 256 << 20
"""Bytes of journals that a micro-batch reads if no option says how many."""


class Options(NamedTuple):
    """A checked request to read."""

    table: str
    data: tuple[str, ...]
    nodes: tuple[str, ...]
    columns: tuple[str, ...]
    topics: frozenset[str] | None
    groups: frozenset[str] | None
    verify: bool
    report: bool
    tasks: int
    timeout: float
    latest: bool
    reread: bool
    max_bytes: int
    since: Mapping[str, Mapping[str, Any]] | None

    def chooses(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics


def names_in(value: str) -> tuple[str, ...]:
    """Return the names in an option: a JSON list, or separated by commas."""
    text = value.strip()
    if text.startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if isinstance(names, list) and all(isinstance(item, str) for item in names):
            return tuple(names)
        raise UsageError(f"{value!r} begins like a JSON list and is no list of texts")
    return tuple(name.strip() for name in text.split(",") if name.strip())


def known_only(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the options by their own names, given in any case; UsageError for an unknown one."""
    by_lower = {name.lower(): name for name in [*known, "paths"]}
    for name in given:
        if name.lower() not in by_lower:
            raise UsageError(f"there is no option {name!r}; there are: {', '.join(known)}")
    return {by_lower[name.lower()]: value for name, value in given.items()}


def number(options: Mapping[str, str], name: str, default: float, least: float) -> float:
    value = options.get(name, "")
    if not value:
        return default
    try:
        parsed = float(value)
    except ValueError:
        parsed = least - 1
    if not least <= parsed < 1e15:
        raise UsageError(f"option {name} is {value!r}: it must be a number from {least:g} on")
    return parsed


def one_of(options: Mapping[str, str], name: str, *allowed: str) -> str:
    """Return an option with a few values; the first is the default."""
    value = options.get(name, allowed[0])
    if value not in allowed:
        raise UsageError(f"option {name} is {value!r}: it must be {' or '.join(allowed)}")
    return value


def read_options(given: Mapping[str, str], *, stream: bool | None = False) -> Options:
    """Check the options of a read; None for ``stream`` takes either's: the schema is asked for before that is known.

    Raises:
        UsageError: one that there is not, a value that cannot be, or not exactly one place to read from.
    """
    options = known_only(
        given, tuple(dict.fromkeys(READ + STREAM)) if stream is None else STREAM if stream else READ
    )
    table = options.get("table", "")
    if table not in TABLES:
        problem = f"there is no table {table!r}" if table else "option table is missing"
        raise UsageError(f"{problem}: it must be one of {', '.join(TABLES)}")
    data = sum((names_in(options.get(name, "")) for name in ("data", "path", "paths")), ())
    nodes = names_in(options.get("nodes", ""))
    _check_location(table, data, nodes, bool(stream))
    columns = names_in(options.get("columns", ""))
    there = [column.name for column in TABLES[table]]
    for name in columns:
        if name not in there:
            raise UsageError(f"table {table} has no column {name!r}; it has {', '.join(there)}")
    if len(set(columns)) != len(columns):
        raise UsageError(f"option columns is {options['columns']!r}: it names a column twice")
    topics, groups = names_in(options.get("topic", "")), names_in(options.get("group", ""))
    if groups and not any(column.name == "group" for column in TABLES[table]):
        raise UsageError(f"table {table} has no groups: leave out option group")
    return Options(
        table=table,
        data=data,
        nodes=nodes,
        columns=columns,
        topics=frozenset(topics) or None,
        groups=frozenset(groups) or None,
        verify=one_of(options, "verify", "true", "false") == "true",
        report=one_of(options, "onDamage", "fail", "report") == "report",
        tasks=int(number(options, "tasks", TASKS, 1)),
        timeout=number(options, "timeout", TIMEOUT_S, 0.1),
        latest=one_of(options, "from", "earliest", "latest") == "latest",
        reread=one_of(options, "onGap", "fail", "reread") == "reread",
        max_bytes=int(number(options, "maxBytesPerTrigger", BATCH_BYTES, 1)),
        since=_positions(options.get("since", ""), table, bool(data)),
    )


def _positions(text: str, table: str, offline: bool) -> Mapping[str, Mapping[str, Any]] | None:
    if not text:
        return None
    if table == "messages" or not offline:
        raise UsageError("option since is for dead letters and problems of data directories: leave it out")
    try:
        positions = json.loads(text)
        if all(bytes.fromhex(it["directory"]) and it["position"] + 0 >= 0 for it in positions.values()):
            return dict(positions)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise UsageError(f"option since is {text!r:.100}: it must be `positions` of the summary.json of a run")


def _check_location(table: str, data: tuple[str, ...], nodes: tuple[str, ...], stream: bool) -> None:
    if stream and table != "deadletters":
        raise UsageError(f"only table deadletters can be followed, not {table}")
    if bool(data) == bool(nodes):
        problem = "both are given" if data else "none is given"
        raise UsageError(
            f"give either option data (directories of nodes) or option nodes (a running cluster): {problem}"
        )
    if nodes and table == "problems":
        raise UsageError(
            f"table {table} cannot be read from a running cluster: a node that is asked does not show its journal; "
            "give option data"
        )


# --------------------------------------------------------------------------- filters


def micros(value: object) -> int | None:
    """Return a timestamp that Spark pushed down, in microseconds since 1970; None if it is none."""
    if not isinstance(value, datetime):
        return None
    at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Wanted:
    """Conditions of filters on rows, as far as they help to read less. Spark applies every filter again itself.

    Attributes:
        values: values that each column may have; a column that is not there may have any.
        times: least and greatest value of each column, in microseconds since 1970.
    """

    def __init__(self) -> None:
        self.values: dict[str, frozenset[Any]] = {}
        self.times: dict[str, tuple[int, int]] = {}

    def push(self, filters: Iterable[ds.Filter]) -> None:
        """Take in the conditions of filters; those without use are left to Spark."""
        for condition in filters:
            column = getattr(condition, "attribute", ())
            if len(column) != 1:
                continue
            name = column[0]
            at = micros(getattr(condition, "value", None))
            if isinstance(condition, ds.EqualTo | ds.EqualNullSafe):
                if at is not None:
                    self._between(name, at, at)
                elif condition.value is not None:
                    self._among(name, frozenset((condition.value,)))
            elif isinstance(condition, ds.In):
                self._among(name, frozenset(condition.value))
            elif at is not None and isinstance(condition, ds.GreaterThan | ds.GreaterThanOrEqual):
                self._between(name, at, 1 << 63)
            elif at is not None and isinstance(condition, ds.LessThan | ds.LessThanOrEqual):
                self._between(name, -(1 << 63), at)

    def _among(self, name: str, values: frozenset[Any]) -> None:
        self.values[name] = self.values.get(name, values) & values

    def _between(self, name: str, low: int, high: int) -> None:
        before = self.times.get(name, (-(1 << 63), 1 << 63))
        self.times[name] = (max(before[0], low), min(before[1], high))

    def may_be(self, name: str, value: object) -> bool:
        """Return True if a row whose column has this value may be wanted."""
        values = self.values.get(name)
        return values is None or value in values

    def may_be_at(self, name: str, first_ms: int, last_ms: int) -> bool:
        """Return True if a row whose column is a time between these, in milliseconds, may be wanted."""
        low, high = self.times.get(name, (-(1 << 63), 1 << 63))
        return shown_ms(first_ms) * 1000 <= high and shown_ms(last_ms) * 1000 >= low

"""Places the clocks of a run, by the order of events.

No time of day of one machine is compared with that of another. The effect of a request is not there before the request
was sent, and an answer is not heard before it was given. Each such pair of lines on two clocks is a bound, and
`quorumq.audit.solver` makes intervals of them. Only the tightest bound for each pair of clocks and windows of them is
kept, so the memory does not grow with the lines.

There are two kinds of bounds. The first hold by the nature of a computer, even if the queue breaks its promises. The
second hold only as long as a promise does: a publish is confirmed after a majority has it. They serve if no other bound
does: nothing else says how far ahead a clock may be that only ever published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quorumq.audit.lines import TICK_S, Stretch
from quorumq.audit.moment import FAR_S, NOWHERE, Moment
from quorumq.audit.solver import RATE_MAX, Bound, Located, Window, locate
from quorumq.audit.table import Floats, Numbers, Table, Writer, spread
from quorumq.history import Row

WINDOWS: Final = 50_000
"""Number of windows that are placed, or a few more, of all runs and clocks together."""

BOUNDS: Final = 1 << 17
"""Bounds that wait to be merged with those before."""

DAY_TURNED_S: Final = 1.0
"""Seconds by which a time of day may move against its own clock without a remark."""

_BOUND: Final = np.dtype(
    [("early", "i8"), ("early_window", "i8"), ("late", "i8"), ("late_window", "i8"), ("seconds", "f8")]
)
_RUN: Final = -2
"""Instead of a clock: the time of the run."""

_SENT, _DONE, _ANSWER = 0, 1, 2


class Clock(NamedTuple):
    """The clock by which a writer wrote.

    Attributes:
        several: True if its run has several.
        clock: its number; NOWHERE if lines of two clocks cannot be separated, or if it broke.
        base, rate, wander: by `base` and `rate` alone each reading has a time in the order of the clock; NaN of one
            that is not placed. `wander` is the doubt about the rate.
    """

    several: bool
    clock: int
    machine: int
    base: float = np.nan
    rate: float = 0.0
    wander: float = 0.0


class Times:
    """Times of a run from the readings of its writers' clocks."""

    def __init__(
        self,
        of: Mapping[tuple[str, str], Clock],
        width: float = TICK_S,
        windows: Sequence[tuple[int, int, float, float]] = (),
    ) -> None:
        """Take the clock of each run and writer, and of windows: machine, window, the offset's low and high."""
        self.of = dict(of)
        self.runs = {run: number for number, run in enumerate(sorted({run for run, _ in of}))}
        self.width = width
        result = np.array([(machine, window) for machine, window, _, _ in windows], np.int64).reshape(-1, 2)
        keys = _window_key(result[:, 0], result[:, 1])
        order = np.argsort(keys)
        self._keys = keys[order]
        self._ends = np.array([it[2:] for it in windows], float).reshape(-1, 2)[order]

    def clock_rows(self, writers: Sequence[Writer]) -> NDArray[Any]:
        """Return a row of numbers for each writer, as `Clock`, with `within` behind."""
        rows = [(*self.of[(it.run, it.who)], it.within) for it in writers]
        return np.array(rows, float).reshape(-1, 7)

    def instants(
        self, clock_rows: NDArray[Any], at: Floats, *others: Floats
    ) -> list[tuple[Floats, Floats, Floats]]:
        """Return (t, low, high) of the readings of lines, then of other times that the lines name.

        Args:
            clock_rows: the result of `clock_rows`, for each line.
            at: times at which the lines were written, by their own clocks.
            others: the other times; NaN if a line names none.
        """
        several, machine = clock_rows[:, 0] > 0, clock_rows[:, 2].astype(np.int64)
        base, rate, wander, within = (clock_rows[:, it] for it in (3, 4, 5, 6))
        located = ~np.isnan(base)

        def common(time: Floats) -> Floats:
            return np.where(located, time * (1 + rate) + np.where(located, base, 0.0), time)

        t = common(at)
        low, high = t - within, t + within
        if several.any():
            mine = several & located
            least, most = np.full(len(at), -FAR_S), np.full(len(at), FAR_S)
            if mine.any() and len(self._keys):
                window = np.floor(at[mine] / self.width)
                keys = _window_key(machine[mine], window.astype(np.int64))
                spot = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
                known = self._keys[spot] == keys
                apart = rate[mine] * (at[mine] - (window + 0.5) * self.width)
                doubt = wander[mine] * self.width / 2
                ends = self._ends[spot]
                least[mine] = np.where(known, at[mine] + ends[:, 0] + apart - doubt - within[mine], -FAR_S)
                most[mine] = np.where(known, at[mine] + ends[:, 1] + apart + doubt + within[mine], FAR_S)
            low, high = np.where(several, least, low), np.where(several, most, high)
        result = [(t, low, high)]
        for other in others:
            later, unsure = common(other) - t, np.abs(other - at) * wander
            result.append((common(other), low + later - unsure, high + later + unsure))
        return result

    def each(
        self, lines: Sequence[tuple[Writer, float]], others: Sequence[float] | None = None
    ) -> list[Moment]:
        """Return when lines were written, by writer and reading, or other times that they name."""
        if not lines:
            return []
        clock_rows = self.clock_rows([writer for writer, _ in lines])
        more = [] if others is None else [np.array(others, float)]
        t, low, high = self.instants(clock_rows, np.array([at for _, at in lines], float), *more)[-1]
        return instants_of(t, low, high, clock_rows[:, 1])


def instants_of(t: Floats, low: Floats, high: Floats, clock: NDArray[Any]) -> list[Moment]:
    return list(map(Moment, high.tolist(), t.tolist(), low.tolist(), clock.astype(np.int64).tolist()))


def _window_key(machine: Numbers, window: Numbers) -> Numbers:
    return (machine << 40) + window + (1 << 39)


def clocks_of(
    stretches: Iterable[Stretch], settings: Iterable[Row]
) -> tuple[dict[tuple[str, str], Clock], list[tuple[str, str]]]:
    """Return the clock on which each writer wrote, and the run and name of each clock by its number.

    Writers that say the same start of a machine (`boot` in their settings) share one clock, as all of a simulated run
    do. A writer that went on after its machine was started again has two, and its lines do not say on which they are.
    """
    boots: dict[tuple[str, str], set[str]] = defaultdict(set)
    simulated = set()
    for row in settings:
        if row.get("clock") == "simulated":
            simulated.add(row["run"])
        boot = row["settings"].get("boot")
        if boot is not None:
            boots[(row["run"], row["who"])].add(str(boot))
    writers = sorted({(it.writer.run, it.writer.who) for it in stretches})
    names: dict[tuple[str, str], int] = {}
    of: dict[tuple[str, str], tuple[int, int]] = {}
    for run, who in writers:
        mine = boots.get((run, who), set())
        name = "simulated" if run in simulated else next(iter(mine)) if len(mine) == 1 else who
        number = names.setdefault((run, name), len(names))
        of[(run, who)] = (NOWHERE if len(mine) > 1 and run not in simulated else number, number)
    count: dict[str, int] = defaultdict(int)
    for run, _ in names:
        count[run] += 1
    clocks = {key: Clock(count[key[0]] > 1, clock, machine) for key, (clock, machine) in of.items()}
    return clocks, list(names)


# --------------------------------------------------------------------------- bounds


class Part:
    """The lines of a part about requests and deliveries, of runs with several clocks."""

    def __init__(self, table: Table, times: Times) -> None:
        clock_rows = times.clock_rows(table.writers)
        several = (clock_rows[:, 0] > 0) & (clock_rows[:, 1] >= 0)
        names = {it: at for at, it in enumerate(sorted({it.who for it in table.writers}))}
        self._table, self._machine = table, clock_rows[:, 2]
        self._rows = table.rows[several[table.rows["writer"]]] if len(table.rows) else table.rows
        self._who = np.array([names[it.who] for it in table.writers], np.int64)
        self._run = np.array([times.runs[it.run] for it in table.writers], np.int64)

    def made(self, smallest: Mapping[tuple[str, str, int], int] | None = None) -> NDArray[Any]:
        """Return the lines about the batches: rows of `_REQUEST`. A batch is known by its first message.

        Args:
            smallest: slots of the smallest replica set of each partition that was moved, by run, topic and partition.
        """
        # A role for each call, which are few, and not for each row.
        said = {"store": _ANSWER, "publish invoke": _SENT, "publish ok": _DONE}
        names = [it.kind if it.kind == "store" else f"{it.kind} {it.outcome}" for it in self._table.calls]
        role = np.array([said.get(it, 3) for it in names], np.int64)[self._rows["call"]]
        mine = self._rows["lead"] & (role < 3)
        batch, known = self._rows[mine], smallest or {}
        slots = np.array([known.get(it[:3], EVERY) for it in self._table.spaces], np.int64)
        key = batch["space"].astype(np.int64) << 40 | batch["start"]
        return self._requests(key, role[mine], batch, batch["at"], slots[batch["space"]])

    def got(self) -> NDArray[Any]:
        """Return the lines about deliveries, asked of each message: a FETCH is known by the owner."""
        calls, rows = self._table.calls, self._rows
        handed = np.array([it.kind in ("hold_won", "deliver") for it in calls], bool)
        delivered = np.array([it.kind == "deliver" for it in calls], bool)
        fetched = rows[handed[rows["call"]] & (rows["owner"] >= 0)]
        # Message by message: so it does not matter how a history is cut.
        sizes = fetched["stop"] - fetched["start"]
        each, seq = fetched[np.repeat(np.arange(len(fetched)), sizes)], spread(fetched["start"], sizes)
        fetch = self._run[each["writer"]] << 32 | each["owner"]
        order = np.lexsort((seq, each["space"], fetch))
        each, seq, fetch = each[order], seq[order], fetch[order]
        new = np.zeros(len(each), bool)
        for column in (seq, each["space"], fetch):
            new |= np.diff(column, prepend=-1) != 0
        role = np.where(delivered[each["call"]], _SENT, _ANSWER)
        return self._requests(np.cumsum(new), role, each, each["asked"], np.full(len(each), EVERY))

    def _requests(
        self, key: Numbers, role: Numbers, rows: NDArray[Any], asked: Floats, slots: Numbers
    ) -> NDArray[Any]:
        writer = rows["writer"]
        columns = (self._machine[writer], self._who[writer], rows["at"], asked, self._run[writer], slots)
        return _requests(key, role, *columns)


_REQUEST: Final = np.dtype([
    ("key", "i8"), ("role", "i8"), ("machine", "i8"), ("who", "i8"), ("at", "f8"), ("asked", "f8"), ("run", "i8"),
    ("slots", "i8"),
])  # fmt: skip

EVERY: Final = 1 << 40
"""Slots of a set that did not change: all nodes that say that they have something are in it."""


def _requests(*columns: Any) -> NDArray[Any]:
    result = np.empty(len(columns[0]), _REQUEST)
    for name, values in zip(_REQUEST.names or (), columns, strict=True):
        result[name] = values
    return result[np.argsort(result["key"], kind="stable")]


def requests_in_context(rows: Sequence[Row], times: Times) -> NDArray[Any]:
    """Return the creations of topics, and the generations of groups that were confirmed, as requests.

    Nodes that join name more nodes than those that were there before. A majority of the latter confirms them.
    """
    voters: dict[str, int] = {}
    for row in rows:
        named = row["settings"].get("nodes") if row["kind"] == "settings" else None
        if isinstance(named, list):
            voters[row["run"]] = min(voters.get(row["run"], EVERY), len(named))
    result, keys, names = [], {}, {}  # type: ignore[var-annotated]
    for row in rows:
        kind, outcome = row["kind"], row.get("outcome")
        clock = times.of[(row["run"], row["who"])]
        key: tuple[Any, ...]
        if not clock.several or clock.clock == NOWHERE:
            continue
        if kind in ("set_topic", "topic"):
            key = (row["run"], row["topic"], None, None)
        elif row.get("generation") is not None and (
            kind == "register" or (kind == "set_group" and outcome == "ok")
        ):
            key = (row["run"], row["topic"], row["group"], row["generation"])
        else:
            continue
        asked = {"invoke": _SENT, "ok": _DONE}.get(outcome or "", 3)
        role = _ANSWER if kind in ("topic", "register") else asked
        numbers = (
            keys.setdefault(key, len(keys)),
            role,
            clock.machine,
            names.setdefault(row["who"], len(names)),
        )
        run, at = row["run"], row["at"]
        result.append((*numbers, at, at, times.runs[run], voters.get(run, EVERY)))
    return _requests(*zip(*result, strict=True)) if result else np.empty(0, _REQUEST)


class _Firsts(NamedTuple):
    """First time of each request, and its clock; NOWHERE if there are several, because the first is not known."""

    at: Floats
    clock: Numbers


def _firsts(
    rows: NDArray[Any], starts: Numbers, which: NDArray[np.bool_], value: Any, reduce: Any = np.minimum
) -> _Firsts:
    if not len(rows):
        return _Firsts(np.empty(0), np.empty(0, np.int64))
    worst = np.inf if reduce is np.minimum else -np.inf
    at = reduce.reduceat(np.where(which, value, worst), starts)
    least = np.minimum.reduceat(np.where(which, rows["machine"], 1 << 60), starts)
    most = np.maximum.reduceat(np.where(which, rows["machine"], -1), starts)
    return _Firsts(at, np.where(least == most, least, NOWHERE))


def _groups(rows: NDArray[Any]) -> tuple[Numbers, Numbers]:
    """Return the index of the first row of each request, and the number of the request of each row."""
    new = np.diff(rows["key"], prepend=-1 if not len(rows) else rows["key"][0] - 1) != 0
    return np.flatnonzero(new), np.cumsum(new) - 1


def bounds(made: NDArray[Any], got: NDArray[Any], width: float) -> NDArray[Any]:
    """Return the tightest bounds that hold even if every promise is broken.

    Args:
        made: requests with the lines of nodes about them.
        got: deliveries, with the times at which they were won.
        width: width of a window, in seconds.
    """
    result = []
    starts, of = _groups(made)
    sent = _firsts(made, starts, made["role"] == _SENT, made["at"])
    late = np.flatnonzero(made["role"] == _ANSWER)
    result.append((sent.clock[of[late]], sent.at[of[late]], made["machine"][late], made["at"][late]))
    starts, _ = _groups(got)
    is_got, is_won = got["role"] == _SENT, got["role"] == _ANSWER
    first, last = (_firsts(got, starts, is_won, got["at"], it) for it in (np.minimum, np.maximum))
    asked = _firsts(got, starts, is_got, got["asked"], np.maximum)
    answer = _firsts(got, starts, is_got, got["at"])
    result.append((asked.clock, asked.at, last.clock, last.at))
    result.append((first.clock, first.at, answer.clock, answer.at))
    columns = [np.concatenate(it) for it in zip(*result, strict=True)]
    early, late_by = columns[0], columns[2]
    return _tightest([it[(early >= 0) & (late_by >= 0) & (early != late_by)] for it in columns], width)


def promised(made: NDArray[Any], times: Times, silent: Mapping[str, int | None]) -> NDArray[Any]:
    """Return bounds that hold as long as a request is confirmed only once a majority has what it asks for.

    They are from the time of the run to the clock of the request. The nodes that confirmed it are among those that have
    it, the silent ones aside. So if k nodes wrote that they have it, k // 2 + 1, less the silent ones, had it by then.
    Nodes that got it later, as learners or with a slot that was moved, are no reason for more than a majority of the
    smallest set.
    One of these may be the earliest, on a clock that is not placed.

    Args:
        made: requests with the lines of nodes about them.
        times: times of the clocks that are placed.
        silent: number of nodes without a history, by run; None if no node names the nodes of the run.
    """
    starts, of = _groups(made)
    done = _firsts(made, starts, made["role"] == _DONE, made["at"])
    by_machine = {clock.machine: clock for clock in times.of.values()}
    rows = np.flatnonzero((made["role"] == _ANSWER) & (done.clock[of] >= 0))
    items = made[rows]
    clock_rows = np.array([(*by_machine[it], 0.0) for it in items["machine"].tolist()], float).reshape(-1, 7)
    low = times.instants(clock_rows, items["at"])[0][1]
    low = np.where(low <= -FAR_S, -np.inf, low)
    order = np.lexsort((low, items["who"], of[rows]))
    request, who, low = of[rows][order], items["who"][order], low[order]
    first = (np.diff(request, prepend=-1) != 0) | (np.diff(who, prepend=-1) != 0)
    request, low, run, slots = (
        request[first],
        low[first],
        items["run"][order][first],
        items["slots"][order][first],
    )
    order = np.lexsort((low, request))
    request, low, run, slots = request[order], low[order], run[order], slots[order]
    begin = np.flatnonzero(np.diff(request, prepend=-1) != 0)
    count = np.minimum(np.diff(np.append(begin, len(request))), slots[begin])
    counts = [EVERY if (it := silent.get(name)) is None else it for name in times.runs]
    less = np.array(counts, np.int64)[run[begin]]
    nth = begin + np.maximum(count // 2 + 1 - less, 1) - 1
    ids, early_at = request[begin], low[nth]
    known = early_at > -np.inf
    columns = [np.full(len(ids), _RUN), early_at, done.clock[ids], done.at[ids]]
    return _tightest([it[known] for it in columns], times.width)


def _tightest(columns: Sequence[Any], width: float) -> NDArray[Any]:
    early, early_at, late, late_at = columns
    result = np.empty(len(early), _BOUND)
    result["early"], result["late"], result["seconds"] = early, late, late_at - early_at
    result["early_window"] = np.where(early == _RUN, 0, np.floor(early_at / width))
    result["late_window"] = np.floor(late_at / width)
    return tightest([result])


def tightest(tables: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Return of each pair of clocks and windows the tightest bound.

    Tables are merged a few at a time: each part of a history has some bounds of nearly all windows.
    """
    result, waiting = np.empty(0, _BOUND), list[NDArray[Any]]()
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) > max(BOUNDS, len(result)):
            result, waiting = _merged([result, *waiting]), []
    return _merged([result, *waiting])


def _merged(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    result = np.concatenate(tables)
    order = np.lexsort([result[name] for name in ("seconds", "late_window", "late", "early_window", "early")])
    result = result[order]
    new = np.zeros(len(result), bool)
    new[:1] = True
    for name in ("early", "early_window", "late", "late_window"):
        new[1:] |= np.diff(result[name]) != 0
    return result[new]


# -------------------------------------------------------------------------- placed


class Clocks:
    """The clocks of all runs that have several."""

    def __init__(
        self,
        stretches: Sequence[Stretch],
        of: Mapping[tuple[str, str], Clock],
        names: Sequence[tuple[str, str]],
    ) -> None:
        self._of, self._names, self._stretches = dict(of), names, stretches
        self.several = any(it.several for it in of.values())
        ticks: dict[int, list[Numbers]] = defaultdict(list)
        for it in stretches:
            clock = of[(it.writer.run, it.writer.who)]
            if clock.several and clock.clock != NOWHERE:
                ticks[clock.machine].append(spread(it.ticks[0], it.ticks[1] - it.ticks[0]))
        every = {machine: np.unique(np.concatenate(items)) for machine, items in ticks.items()}
        # Seconds in which a clock was read at all: a run that pauses, or a clock that jumps, makes no more windows.
        seconds = sum(len(np.unique(items // round(1 / TICK_S))) for items in every.values())
        ticks_each = max(1, -(-seconds // round(WINDOWS * TICK_S)))
        self.width = ticks_each * TICK_S
        self._windows: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for machine, items in every.items():
            run, name = names[machine]
            self._windows[run][name] = np.unique(items // ticks_each).tolist()
        self._bounds = np.empty(0, _BOUND)
        self._located: dict[str, Located] = {}

    @property
    def times(self) -> Times:
        of, windows = dict(self._of), []
        numbers = {name: number for number, name in enumerate(self._names)}
        clock_rows: dict[int, tuple[bool, float, float, float]] = {}
        for run, located in self._located.items():
            broken = {it.clock for it in located.broken}
            items: dict[str, list[Window]] = defaultdict(list)
            for it in located.windows:
                items[it.clock].append(it)
                windows.append((numbers[(run, it.clock)], it.window, it.low, it.high))
            for clock in {*items, *broken}:
                rate, wander = located.rates.get(clock, (0.0, 0.0)) if items[clock] else (0.0, 0.0)
                bases = [
                    (it.low + it.high) / 2 - rate * (it.window + 0.5) * self.width for it in items[clock]
                ]
                base = median(bases) if bases else np.nan
                clock_rows[numbers[(run, clock)]] = (clock in broken, base, rate, wander)
        for key, was in of.items():
            if was.machine in clock_rows and was.clock != NOWHERE:
                broke, base, rate, wander = clock_rows[was.machine]
                of[key] = Clock(was.several, NOWHERE if broke else was.clock, was.machine, base, rate, wander)
        return Times(of, self.width, windows)

    def locate(self, result: NDArray[Any]) -> None:
        """Place the clocks by the result of `bounds`."""
        self._bounds = result
        bounds = self._read(result)
        for run in sorted(self._windows):
            self._located[run] = locate(bounds.pop(run, ()), self._windows[run], self.width)

    @property
    def unplaced(self) -> dict[str, set[str]]:
        return {
            run: missing
            for run, located in self._located.items()
            if located.reference and (missing := set(self._windows[run]) - _said(located))
        }

    def trust(self, result: NDArray[Any]) -> None:
        """Place those as well by the result of `promised`."""
        expected, known = self.unplaced, self._read(self._bounds)
        for run, items in self._read(result).items():
            by = self._located[run].reference
            trusted = [it._replace(early=by) for it in items if it.late in expected.get(run, ())]
            if not trusted:
                continue
            located = locate(known.pop(run, []) + trusted, self._windows[run], self.width, by)
            if located.reference == by:  # those bounds are to this clock
                self._located[run] = located

    def _read(self, result: NDArray[Any]) -> dict[str, list[Bound]]:
        """Return bounds by run."""
        bounds: dict[str, list[Bound]] = defaultdict(list)
        for at in range(0, len(result), BOUNDS):
            for early, early_window, late, late_window, seconds in result[at : at + BOUNDS].tolist():
                run, name = self._names[late]
                before = "" if early == _RUN else self._names[early][1]
                bounds[run].append(Bound(before, early_window, name, late_window, seconds))
        return bounds

    def shown(self) -> list[dict[str, Any]]:
        mine: dict[tuple[str, str], list[Stretch]] = defaultdict(list)
        for it in self._stretches:
            clock = self._of[(it.writer.run, it.writer.who)]
            if clock.several:
                run, name = self._names[clock.machine]
                mine[(run, it.writer.who if clock.clock == NOWHERE else name)].append(it)
        return [self._shown(run, clock, mine) for run, clock in sorted(mine) if run in self._located]

    def _shown(
        self, run: str, clock: str, mine: Mapping[tuple[str, str], Sequence[Stretch]]
    ) -> dict[str, Any]:
        located = self._located[run]
        items = [it for it in located.windows if it.clock == clock]
        expected = len(self._windows[run].get(clock, ())) or 1
        widths = [(it.high - it.low) / 2 for it in items]
        ahead = -median((it.low + it.high) / 2 for it in items) if items else None
        rate, wander = located.rates.get(clock, (None, None)) if items else (None, None)
        day, turned = _day(mine[(run, clock)])
        other, _ = _day(mine.get((run, located.reference), ()))
        apart = None if day is None or other is None or ahead is None else day - other + ahead
        said = [
            f"jumped, or ran wrong, between {it.begin:.1f} s and {it.end:.1f} s of it"
            for it in located.broken if it.clock == clock
        ]  # fmt: skip
        if not items and not said:
            said = ["is not to be placed: no line says what came before and what after"]
        if not self._windows[run].get(clock):
            said = ["went on after its machine was started again: which lines are of which clock is not told"]
        if turned > DAY_TURNED_S:
            said.append(f"had its time of day turned by {turned:,.1f} s meanwhile, which changes no verdict")
        return {
            "run": run, "clock": clock, "writers": ", ".join(sorted({it.writer.who for it in mine[(run, clock)]})),
            "reference": clock == located.reference, "placed": len(items) / expected, "ahead": ahead,
            "within": median(widths) if widths else None, "rate": None if rate is None else -rate,
            "rate_within": wander, "day_ahead": apart, "findings": "; ".join(said),
        }  # fmt: skip


def _said(located: Located) -> set[str]:
    return {it.clock for it in located.windows} | {it.clock for it in located.broken}


def _day(items: Sequence[Stretch]) -> tuple[float | None, float]:
    """Return the median seconds that the time of day is ahead of the clock, and the seconds by which that changed more
    than rates may explain."""
    days = sorted(it.day for it in items for _ in range(min(it.lines, 100)) if it.day is not None)
    if not days:
        return None, 0.0
    changed = max(it.most for it in items) - min(it.least for it in items)
    return days[len(days) // 2], changed - RATE_MAX * (
        max(it.last for it in items) - min(it.first for it in items)
    )

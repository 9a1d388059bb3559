"""How a run's clocks stand to each other, from the order of events.

No time of day of one machine is compared with that of another. What a request asks for is not there before the
request was sent, and an answer is not heard before it was given: each such pair of lines on two clocks is a bound,
and `spark.clocks` makes intervals of them. Spark only keeps the tightest bound for each pair of clocks and windows
of them, so what reaches the driver does not grow with the lines.

Two kinds of bounds: those that hold by what a computer is, whatever breaks; and those that hold only as long as a
promise does, that a publish is confirmed after a majority has it. These serve where no other bound does: of a clock
that only ever published nothing else says how far ahead it may be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from ..clocks import RATE_MAX, Bound, Placed, Window, place

WINDOWS: Final = 50_000
"""Of all runs and clocks together: so much is kept on the driver."""

WIDTH_S: Final = 0.1
"""The width of a window; more where that would make too many of them."""

DAY_TURNED_S: Final = 1.0
"""A time of day that moves by so much against its own clock is remarked on."""

WRITERS: Final = "run STRING, who STRING, domain STRING, several BOOLEAN"
"""Per writer: whose clock its `at` is, null where lines of two are not told apart; and whether its run has several."""

TIMED: Final = f"{WRITERS}, machine STRING, width DOUBLE, base DOUBLE, rate DOUBLE, wander DOUBLE"
"""The same, with what OFFSETS has of the clock as a whole. `domain` is null where the clock broke, too."""

OFFSETS: Final = (
    "run STRING, domain STRING, window BIGINT, width DOUBLE, low DOUBLE, high DOUBLE, base DOUBLE, rate DOUBLE, "
    "wander DOUBLE"
)
"""Per window of a clock: what to add to a reading in its middle to have the time of the run, from `low` to `high`. By
`base` and `rate` alone every reading gets a time in the order of the clock itself."""

CLOCKS: Final = (
    "run STRING, clock STRING, writers STRING, reference BOOLEAN, placed DOUBLE, ahead DOUBLE, within DOUBLE, "
    "rate DOUBLE, rate_within DOUBLE, day_ahead DOUBLE, findings STRING"
)
"""What is shown of each clock, where a run has several."""


def writers(rows: DataFrame) -> DataFrame:
    """On which clock each writer wrote: HISTORY in, WRITERS out.

    Writers that say the same start of a machine (`boot` in their settings) share one clock, as all of a simulated run
    do. One that went on after its machine was started again has two, and which line is of which is not told.
    """
    boot = F.when(F.col("kind") == "settings", F.get_json_object("settings", "$.boot"))
    found = rows.groupBy("run", "who").agg(
        F.max((F.col("clock") == "simulated").cast("int")).alias("simulated"),
        F.min(boot).alias("boot"),
        F.countDistinct(boot).alias("boots"),
    )
    simulated = (
        found.where(F.col("simulated") == 1).select("run", F.lit("simulated").alias("_all")).distinct()
    )
    own = F.when(F.col("boots") == 1, F.col("boot")).when(F.col("boots") == 0, F.col("who"))
    domain = F.coalesce("_all", own)
    several = F.size(F.collect_set(F.coalesce(domain, "who")).over(Over.partitionBy("run"))) > 1
    return found.join(F.broadcast(simulated), on="run", how="left").select(
        "run", "who", domain.alias("domain"), several.alias("several")
    )


def of_several(rows: DataFrame, of_writers: DataFrame) -> DataFrame:
    """The lines of runs with several clocks, with `domain` and `width`, that of their windows."""
    some = of_writers.where(F.col("several") & F.col("domain").isNotNull())
    lines = rows.join(F.broadcast(some), on=["run", "who"])
    # Seconds in which a clock was read at all: a run that pauses, or a clock that jumps, makes no more windows.
    seconds = lines.select("run", "domain", F.floor("at").alias("second")).distinct()
    total = seconds.agg(F.count("*").alias("seconds"))
    width = total.select(F.greatest(F.lit(WIDTH_S), F.col("seconds") / WINDOWS).alias("width"))
    return lines.crossJoin(F.broadcast(width))


def windows(lines: DataFrame) -> DataFrame:
    """The windows of clocks in which something was written: run, domain, window, width."""
    return lines.select("run", "domain", _window("at").alias("window"), "width").distinct()


def _window(at: str | Column) -> Column:
    return F.floor((F.col(at) if isinstance(at, str) else at) / F.col("width"))


def requests(lines: DataFrame) -> DataFrame:
    """Requests with what nodes wrote of them: when each was first sent and first confirmed, and the nodes' lines.

    Of a batch, of a topic's creation, and of a generation of a group, which is only said when it was confirmed.
    ``silent``: how many nodes of the run have no history; null where no node says which there are.
    """
    kind, outcome = F.col("kind"), F.col("outcome")
    batch = F.concat_ws("/", F.col("spans")[0]["origin"], F.col("spans")[0]["start"], "partition", "topic")
    group = F.concat_ws("/", "generation", "group", "topic")
    key = (
        F.when(kind.isin("publish", "store"), F.concat(F.lit("batch "), batch))
        .when(kind.isin("set_topic", "topic"), F.concat(F.lit("topic "), F.col("topic")))
        .when(
            (kind == "register") | ((kind == "set_group") & (outcome == "ok")),
            F.concat(F.lit("group "), group),
        )
    )
    made = (
        lines.where(kind.isin("publish", "store", "set_topic", "topic", "set_group", "register"))
        .select("run", "width", "domain", "who", "at", "kind", "outcome", key.alias("key"))
        .where(F.col("key").isNotNull())
    )
    sent, done = F.coalesce(outcome == "invoke", F.lit(False)), F.coalesce(outcome == "ok", F.lit(False))
    answer = kind.isin("store", "topic", "register")
    named = F.from_json(F.get_json_object("settings", "$.nodes"), "ARRAY<STRING>")
    nodes = F.array_distinct(F.flatten(F.collect_list(named)))
    wrote = F.collect_set(F.regexp_extract("who", "^node:(.*)$", 1))
    silent = lines.groupBy("run").agg(
        F.when(F.size(nodes) > 0, F.size(F.array_except(nodes, wrote))).alias("silent")
    )
    return (
        made.join(F.broadcast(silent), on="run")
        .groupBy("run", "width", "silent", "key")
        .agg(
            *_first(sent, "sent"),
            *_first(done, "done"),
            F.collect_set(F.when(answer, F.struct("domain", "at", "who"))).alias("answers"),
        )
        .where(F.size("answers") > 0)
        .drop("key")
    )


def _first(when: Column, name: str) -> list[Column]:
    """When that was first, and on which clock; null where it was on several, as nobody knows which was first."""
    clock = F.when(when, F.col("domain"))
    return [
        F.min(F.when(when, F.col("at"))).alias(name),
        F.when(F.min(clock) == F.max(clock), F.min(clock)).alias(f"{name}_by"),
    ]


def bounds(lines: DataFrame, of_requests: DataFrame) -> DataFrame:
    """The tightest bounds that hold whatever is broken: run, and what `spark.clocks.Bound` has."""
    asked = (
        of_requests.where(F.col("sent_by").isNotNull())
        .select(
            "run",
            "width",
            F.col("sent_by").alias("early"),
            F.col("sent").alias("early_at"),
            F.inline("answers"),
        )
        .drop("who")
    )
    asked = asked.withColumnsRenamed({"domain": "late", "at": "late_at"})
    won, got = F.col("kind") == "hold_won", F.col("kind") == "deliver"
    # One owner is one round of one FETCH: its lines may be several, and in any order where the clocks differ.
    fetched = (
        lines.where(won | got)
        .groupBy("run", "width", "owner")
        .agg(
            F.min(F.when(won, F.col("domain"))).alias("node"),
            F.max(F.when(won, F.col("domain"))).alias("other_node"),
            F.min(F.when(won, F.col("at"))).alias("won_first"),
            F.max(F.when(won, F.col("at"))).alias("won_last"),
            F.min(F.when(got, F.col("domain"))).alias("client"),
            F.max(F.when(got, F.col("domain"))).alias("other_client"),
            F.max(F.when(got, F.col("asked"))).alias("asked"),
            F.min(F.when(got, F.col("at"))).alias("got"),
        )
        .where((F.col("node") == F.col("other_node")) & (F.col("client") == F.col("other_client")))
    )

    def pair(early: str, early_at: str, late: str, late_at: str) -> Column:
        return F.struct(
            F.col(early).alias("early"), F.col(early_at).alias("early_at"),
            F.col(late).alias("late"), F.col(late_at).alias("late_at"),
        )  # fmt: skip

    both = F.array(pair("client", "asked", "node", "won_last"), pair("node", "won_first", "client", "got"))
    every = asked.unionByName(fetched.select("run", "width", F.inline(both)))
    return _tightest(every.where(F.col("early") != F.col("late")), _window("early_at"), _window("late_at"))


def promised(of_requests: DataFrame, offsets: DataFrame) -> DataFrame:
    """Bounds that hold as long as a request is confirmed only once a majority has what it asks for: as `bounds`, from
    the time of the run, which is called "", to the clock of the request.

    Who confirmed it is among the nodes that have it, but for the silent ones. So where k nodes wrote that they have it,
    k // 2 + 1, less the silent ones, had it by then: the earliest of which one may be on a clock that is not placed.
    """
    answers = (
        of_requests.where(F.col("done_by").isNotNull())
        .withColumn("_request", F.monotonically_increasing_id())
        .select("run", "width", "silent", "_request", "done", "done_by", F.inline("answers"))
        .withColumn("window", _window("at"))
        .join(F.broadcast(offsets.drop("width", "base")), on=["run", "domain", "window"], how="left")
    )
    low = earliest(F.col("at"))
    request = ("run", "width", "silent", "_request", "done", "done_by")
    of_nodes = answers.groupBy(*request, "who").agg(F.min(F.coalesce(low, F.lit(float("-inf")))).alias("low"))
    found = of_nodes.groupBy(*request).agg(F.sort_array(F.collect_list("low")).alias("lows"))
    sure = F.coalesce(F.floor(F.size("lows") / 2) + 1 - F.col("silent"), F.lit(1))
    found = found.withColumn("early_at", F.element_at("lows", F.greatest(sure, F.lit(1)).cast("int")))
    every = found.where(F.col("early_at") > float("-inf")).select(
        "run", "width", "early_at", F.lit("").alias("early"), F.col("done_by").alias("late"),
        F.col("done").alias("late_at"),
    )  # fmt: skip
    return _tightest(every, F.lit(0).cast("bigint"), _window("late_at"))


def earliest(at: Column) -> Column:
    """The least time of the run that a reading may be, of a row joined with OFFSETS."""
    return at + F.col("low") + _from_middle(at) - F.col("wander") * F.col("width") / 2


def latest(at: Column) -> Column:
    """The greatest."""
    return at + F.col("high") + _from_middle(at) + F.col("wander") * F.col("width") / 2


def _from_middle(at: Column) -> Column:
    return F.col("rate") * (at - (F.col("window") + 0.5) * F.col("width"))


def _tightest(every: DataFrame, early_window: Column, late_window: Column) -> DataFrame:
    place_ = ("run", "early", "early_window", "late", "late_window")
    return (
        every.withColumns({"early_window": early_window, "late_window": late_window})
        .groupBy(*place_)
        .agg(F.min(F.col("late_at") - F.col("early_at")).alias("seconds"))
    )


# ------------------------------------------------------------------------- on the driver


class Clocks:
    """The clocks of all runs that have several, by what `bounds` and `windows` give."""

    def __init__(self, found: DataFrame, of_windows: DataFrame) -> None:
        self._session = of_windows.sparkSession
        self._bounds: dict[str, list[Bound]] = defaultdict(list)
        self._windows: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.width = WIDTH_S  # of all windows, in seconds
        for row in of_windows.collect():
            self._windows[row["run"]][row["domain"]].append(row["window"])
            self.width = row["width"]
        for run, bound in _read(found):
            self._bounds[run].append(bound)
        self._placed = {run: self._place(run) for run in sorted(self._windows)}

    def _place(self, run: str, reference: str = "") -> Placed:
        return place(self._bounds[run], self._windows[run], self.width, reference)

    @property
    def unplaced(self) -> dict[str, set[str]]:
        """By run the clocks that nothing says enough of."""
        return {
            run: missing
            for run, placed in self._placed.items()
            if placed.reference and (missing := set(self._windows[run]) - _said(placed))
        }

    def trust(self, found: DataFrame) -> None:
        """Place those as well, by what `promised` gives."""
        wanted, more = self.unplaced, set()
        for run, bound in _read(found):
            if bound.late in wanted.get(run, ()):
                self._bounds[run].append(bound._replace(early=self._placed[run].reference))
                more.add(run)
        for run in more:
            by = self._placed[run].reference
            if (placed := self._place(run, by)).reference == by:  # whose time those bounds tell
                self._placed[run] = placed

    def offsets(self) -> DataFrame:
        """OFFSETS of what was placed."""
        rows = []
        for run, placed in self._placed.items():
            by: dict[str, list[Window]] = defaultdict(list)
            for it in placed.windows:
                by[it.clock].append(it)
            for clock, some in by.items():
                rate, wander = placed.rates.get(clock, (0.0, 0.0))
                base = self._base(some, rate)
                rows += [
                    (run, clock, it.window, self.width, it.low, it.high, base, rate, wander) for it in some
                ]
        return self._session.createDataFrame(rows, OFFSETS)

    def _base(self, some: list[Window], rate: float) -> float:
        return median((it.low + it.high) / 2 - rate * (it.window + 0.5) * self.width for it in some)

    def broken(self) -> DataFrame:
        """The clocks of which nothing is exact any more: run, domain."""
        rows = {(run, it.clock) for run, placed in self._placed.items() for it in placed.broken}
        return self._session.createDataFrame(sorted(rows), "run STRING, domain STRING")

    def shown(self, of_writers: DataFrame, days: DataFrame) -> DataFrame:
        """CLOCKS: WRITERS, and what `times_of_day` gives, in."""
        names: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in of_writers.where(
            F.col("run").isin(*self._windows) if self._windows else F.lit(False)
        ).collect():
            names[(row["run"], row["domain"] or row["who"])].append(row["who"])
        told_days = days.collect()
        day = {(row["run"], row["domain"]): row["day"] for row in told_days}
        turned = {(row["run"], row["domain"]): row["turned"] for row in told_days}
        rows = []
        for (run, clock), mine in sorted(names.items()):
            placed = self._placed[run]
            some = [it for it in placed.windows if it.clock == clock]
            wanted = len(self._windows[run].get(clock, ())) or 1
            reference = clock == placed.reference
            widths = [(it.high - it.low) / 2 for it in some]
            ahead = -median((it.low + it.high) / 2 for it in some) if some else None
            rate, wander = placed.rates.get(clock, (None, None)) if some else (None, None)
            told = (day.get((run, clock)), day.get((run, placed.reference)))
            apart = told[0] - told[1] + ahead if None not in (*told, ahead) else None  # type: ignore[operator]
            said = [
                f"jumped, or ran wrong, between {it.begin:.1f} s and {it.end:.1f} s of it"
                for it in placed.broken if it.clock == clock
            ]  # fmt: skip
            if not some and not said:
                said = ["is not to be placed: no line says what came before and what after"]
            if not self._windows[run].get(clock):
                said = [
                    "went on after its machine was started again: which lines are of which clock is not told"
                ]
            if (by := turned.get((run, clock)) or 0.0) > DAY_TURNED_S:
                said.append(f"had its time of day turned by {by:,.1f} s meanwhile, which changes no verdict")
            rows.append((
                run, clock, ", ".join(sorted(mine)), reference, len(some) / wanted, ahead,
                median(widths) if widths else None, -rate if rate is not None else None, wander, apart,
                "; ".join(said),
            ))  # fmt: skip
        return self._session.createDataFrame(rows, CLOCKS)


def _said(placed: Placed) -> set[str]:
    return {it.clock for it in placed.windows} | {it.clock for it in placed.broken}


def times_of_day(lines: DataFrame) -> DataFrame:
    """How far each clock's time of day is ahead of the clock itself, in the middle, and by how much more that changed
    than rates may explain: run, domain, day, turned.
    """
    ahead = F.when(F.col("kind") != "settings", F.col("wall_ms") / 1000 - F.col("at"))
    turned = F.max(ahead) - F.min(ahead) - RATE_MAX * (F.max("at") - F.min("at"))
    return lines.groupBy("run", "domain").agg(
        F.percentile_approx(ahead, 0.5).alias("day"), turned.alias("turned")
    )


def _read(found: DataFrame) -> list[tuple[str, Bound]]:
    return [(row[0], Bound(*row[1:])) for row in found.collect()]


def clocks(
    rows: DataFrame, step: Callable[[str, DataFrame], DataFrame]
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """HISTORY in; TIMED, OFFSETS (of each window what is its own) and CLOCKS out.

    ``step`` writes a table and reads it back.
    """
    every = step("writers", writers(rows))
    lines = of_several(rows, every)
    of_windows = step("windows", windows(lines))
    asked = step("requests", requests(lines))
    found = Clocks(step("bounds", bounds(lines, asked)), of_windows)
    if found.unplaced:
        found.trust(promised(asked, found.offsets()))
    shown = found.shown(every, times_of_day(lines))
    offsets = found.offsets()
    of_clocks = offsets.groupBy("run", "domain").agg(
        *(F.first(it).alias(it) for it in ("base", "rate", "wander"))
    )
    broken = found.broken().withColumn("_broken", F.expr("true"))
    timed = (
        every.join(of_clocks, on=["run", "domain"], how="left")
        .join(broken, on=["run", "domain"], how="left")
        .select(
            "run", "who", F.when(F.col("_broken").isNull(), F.col("domain")).alias("domain"), "several",
            F.col("domain").alias("machine"), F.lit(found.width).alias("width"), "base", "rate", "wander",
        )
    )  # fmt: skip
    return step("timed", timed), step("offsets", offsets.drop("width", "base", "rate", "wander")), shown

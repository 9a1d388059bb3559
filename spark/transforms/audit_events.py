"""The lines of a history as events, one for each message and group that they concern.

Everything that the audit asks is asked of one message for one group, so spans are unfolded once, here, and what
concerns every group (a publish, a copy that became durable) is given to each of them. The key has the message's
number in it: no hot topic, partition or producer makes a hot key. A group of dead letters shares the key of the
group that it is of (`dead` tells them apart), because its promises are about both.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..clocks import RATE_MAX
from .audit_clocks import earliest, latest

MESSAGE: Final = ("run", "topic", "partition", "grp", "origin", "seq")
"""A message as one group sees it; `grp` is the group's name without `!dead`."""

KEY: Final = ("hash", *MESSAGE)
"""The same behind a hash of it: sorting then looks at eight bytes that differ, not at names that mostly agree."""

DUE_SLACK_S: Final = 0.05
"""By so much a delay may be over too early without a remark: times of day are in milliseconds, and are read twice."""

FAR_S: Final = 1e15
"""Further than any clock goes: the ends of an interval of which nothing is known."""

KINDS: Final = (
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
)
"""What the audit asks about messages."""

AS_WRITTEN: Final = (
    "kind", "outcome", "dead", "who", "op", "owner", "attempt", "token", "published_ms", "state", "domain", "within",
)  # fmt: skip
"""What an event has of its line as it is."""


def timed(rows: DataFrame, of_writers: DataFrame, offsets: DataFrame) -> DataFrame:
    """Lines with times common to their run: HISTORY in, and what `audit_clocks.clocks` gives.

    `t` is in the order of the clock itself, and exact among lines of one `domain`, which is null where a writer's
    lines are on no clock that is known. Of lines on two clocks only `low` and `high` say which came first: between
    them the line was written. `until` and `asked` are as `t`, each with its `_low` and `_high`.
    """
    placed = (
        rows.join(F.broadcast(of_writers), on=["run", "who"], how="inner")
        .withColumn("window", F.floor(F.col("at") / F.col("width")))
        .join(
            F.broadcast(offsets.withColumnRenamed("domain", "machine")),
            on=["run", "machine", "window"],
            how="left",
        )
    )
    at, within = F.col("at"), F.col("within")
    low = F.when(F.col("several"), F.coalesce(earliest(at) - within, F.lit(-FAR_S)))
    high = F.when(F.col("several"), F.coalesce(latest(at) + within, F.lit(FAR_S)))

    def common(time: Column) -> Column:
        return F.when(F.col("base").isNull(), time).otherwise(time * (1 + F.col("rate")) + F.col("base"))

    def later(name: str) -> list[Column]:
        """A time that the line names, which is `apart` from when it was written."""
        apart = common(F.col(name)) - F.col("t")
        unsure = F.abs(F.col(name) - at) * F.coalesce("wander", F.lit(0.0))
        return [
            common(F.col(name)).alias(name),
            (F.col("low") + apart - unsure).alias(f"{name}_low"),
            (F.col("high") + apart + unsure).alias(f"{name}_high"),
        ]

    plain = [name for name in rows.columns if name not in ("until", "asked")]
    return placed.withColumns(
        {
            "t": common(at),
            "low": F.coalesce(low, common(at) - within),
            "high": F.coalesce(high, common(at) + within),
        }
    ).select(
        *plain,
        *("domain", "several", "t", "low", "high"),
        *later("until"),
        *later("asked"),
        F.regexp_replace("group", "!dead$", "").alias("grp"),
        F.coalesce(F.endswith("group", F.lit("!dead")), F.expr("false")).alias("dead"),
    )


def groups(lines: DataFrame) -> DataFrame:
    """The groups of each topic: run, topic, groups.

    A group that somebody asked for, and of which nothing else is said, may never have been there.
    """
    there = F.col("kind").isin(*KINDS, "register") | (
        F.col("kind").isin("set_group") & (F.col("outcome") == "ok")
    )
    return (
        lines.where(there & F.col("grp").isNotNull())
        .groupBy("run", "topic")
        .agg(F.sort_array(F.collect_set("grp")).alias("groups"))
    )


def events(lines: DataFrame) -> DataFrame:
    """One row for each message, group and line: what `timed` gives in."""
    kind = F.col("kind")
    asked = lines.where(kind.isin(*KINDS) & F.col("spans").isNotNull())
    everyone = F.coalesce(
        F.expr("transform(groups, (g, i) -> named_struct('grp', g, 'turn', i))"),
        F.expr("array(named_struct('grp', '', 'turn', 0))"),
    )
    mine = F.expr("array(named_struct('grp', grp, 'turn', 0))")
    placed = (
        asked.join(F.broadcast(groups(lines)), on=["run", "topic"], how="left")
        .withColumn("_group", F.explode(F.when(F.col("grp").isNull(), everyone).otherwise(mine)))
        .withColumn(
            "_span",
            F.explode(
                F.expr(
                    "transform(spans, (s, i) -> named_struct('origin', s.origin, 'start', s.start, 'stop', s.stop, "
                    "'skip', aggregate(slice(spans, 1, i), 0L, (sum, x) -> sum + x.stop - x.start)))"
                )
            ),
        )
        .withColumn("seq", F.explode(F.expr("sequence(_span.start, _span.stop - 1)")))
    )
    place = 8 * (F.col("_span.skip") + F.col("seq") - F.col("_span.start")) + 1
    made = F.when(
        F.col("kind") == "publish", F.greatest(F.lit(0.0), (F.col("wall_ms") - F.col("published_ms")) / 1000)
    )
    # Counted from when the batch was made, by the producer's own clocks; a fast clock is over sooner.
    due = F.when(
        (F.col("delay") > 0) & (F.col("outcome") == "invoke"),
        F.col("delay") / (1 + RATE_MAX / 2) - F.coalesce(made, F.lit(0.0)) - DUE_SLACK_S,
    )
    life = F.coalesce("generation", F.lit(0).cast("decimal(20,0)"))
    grp, origin = F.col("_group.grp"), F.col("_span.origin")
    return placed.select(
        F.xxhash64("run", "topic", "partition", grp, origin, "seq").alias("hash"),
        "run",
        "topic",
        "partition",
        grp.alias("grp"),
        origin.alias("origin"),
        "seq",
        F.col("_group.turn").alias("turn"),
        *AS_WRITTEN,
        life.alias("generation"),
        F.coalesce("n", F.lit(0)).alias("n"),
        F.when(F.col("crcs").isNotNull(), F.substr("crcs", place, F.lit(8))).alias("crc"),
        due.alias("due"),
        F.when(F.col("ttl") > 0, F.col("ttl") * (1 + RATE_MAX) + DUE_SLACK_S).alias("dies"),
        F.coalesce(F.startswith("detail", F.lit("conflict")), F.expr("false")).alias("conflict"),
        *(f"{time}{end}" for time in ("until", "asked") for end in ("", "_low", "_high")),
        *("t", "low", "high"),
    )


def moment(time: str = "t", *more: str) -> Column:
    """When something was, as a struct: the earliest by the end of its interval is the least."""
    low, high = ("low", "high") if time == "t" else (f"{time}_low", f"{time}_high")
    return F.struct(
        F.col(high).alias("high"), F.col(time).alias("t"), F.col(low).alias("low"), "domain", *more
    )  # fmt: skip


def due(when: Column) -> Column:
    """When a delay that a line names is over, at the earliest: as `moment`."""
    times = [(F.col(it) + F.col("due")).alias(it) for it in ("high", "t", "low")]
    return F.when(when & F.col("due").isNotNull(), F.struct(*times, "domain"))


def sure(early: str, late: str, than: str = "<") -> str:
    """Whether one moment is before another for certain, in SQL, both by the names of structs.

    Exactly on one clock, else beyond all doubt; null where either is.
    """
    return _compared(early, late, f"{early}.high {than} {late}.low", than)


def maybe(early: str, late: str, than: str = "<") -> str:
    """Whether it may be."""
    return _compared(early, late, f"{early}.low {than} {late}.high", than)


def apart(early: str, late: str) -> str:
    """The seconds between two moments, in SQL: exact on one clock, else by the middles of their intervals.

    Null where a clock is not placed: its readings say nothing of another's.
    """
    middles = f"(({late}.low + {late}.high) - ({early}.low + {early}.high)) / 2"
    placed = f"{early}.low > -{FAR_S} AND {early}.high < {FAR_S} AND {late}.low > -{FAR_S} AND {late}.high < {FAR_S}"
    exact = f"if({early}.domain = {late}.domain, {late}.t - {early}.t, NULL)"
    return f"coalesce({exact}, if({placed}, {middles}, NULL))"


def _compared(early: str, late: str, elsewhere: str, than: str) -> str:
    exact = f"if({early}.domain = {late}.domain, {early}.t {than} {late}.t, NULL)"
    return f"coalesce({exact}, {elsewhere})"

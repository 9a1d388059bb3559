# spark/transforms/audit_events.py: the lines of a history as events, one for each message and group that they concern.
#
# Everything that the audit asks is asked of one message for one group, so spans are unfolded once, here, and what
# concerns every group (a publish, a copy that became durable) is given to each of them. The key has the message's
# number in it: no hot topic, partition or producer makes a hot key. A group of dead letters shares the key of the
# group that it is of (`dead` tells them apart), because its promises are about both.
"""Clocks, and events per message and group."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

MESSAGE: Final = ("run", "topic", "partition", "grp", "origin", "seq")
"""A message as one group sees it; `grp` is the group's name without `!dead`."""

KEY: Final = ("hash", *MESSAGE)
"""The same behind a hash of it: sorting then looks at eight bytes that differ, not at names that mostly agree."""

CLOCKS: Final = "run STRING, who STRING, domain STRING, offset DOUBLE, error DOUBLE"
"""Per writer: whose clock its `at` is, what to add to have a time common to the run, and how wrong that may be."""

KINDS: Final = ("publish", "store", "deliver", "ack", "reject", "dead_letter", "extend", "redrive", "list")
"""What the audit asks about messages."""


def clocks(rows: DataFrame, clock_error: float) -> DataFrame:
    """On which clock each writer wrote: HISTORY in, CLOCKS out.

    Writers that say the same start of a machine (`boot` in their settings) share one clock, as all of a simulated run
    do, and are compared exactly. Between others the times of day decide, give or take `clock_error` seconds on
    either side, and however far a writer's time of day went from its own clock while it wrote.

    Args:
        rows: of the schema HISTORY.
        clock_error: how far a machine's time of day may be from the truth, in seconds.
    """
    said = F.col("kind") == "settings"
    ahead = F.when(~said, F.col("wall_ms") / 1000 - F.col("at"))
    boot = F.when(said, F.get_json_object("settings", "$.boot"))
    writer = (
        rows.groupBy("run", "who")
        .agg(
            F.max((F.col("clock") == "simulated").cast("int")).alias("simulated"),
            F.min(boot).alias("boot"),
            F.countDistinct(boot).alias("boots"),
            F.percentile_approx(ahead, 0.5).alias("ahead"),
            (F.max(ahead) - F.min(ahead)).alias("spread"),
        )
        .withColumn("simulated", F.max("simulated").over(_by("run")))
    )
    # A writer that went on after its machine was started again has two clocks: then nothing of it is exact.
    domain = (
        F.when(F.col("simulated") == 1, F.lit("simulated"))
        .when(F.col("boots") == 1, F.col("boot"))
        .when(F.col("boots") == 0, F.col("who"))
    )
    found = writer.select("run", "who", domain.alias("domain"), "ahead", "spread")
    several = F.size(F.collect_set(F.coalesce("domain", "who")).over(_by("run"))) > 1
    offset = F.median("ahead").over(_by("run", "domain"))
    error = F.max("spread").over(_by("run", "domain")) + F.lit(clock_error)
    return found.select(
        "run",
        "who",
        "domain",
        F.when(several, F.coalesce(offset, F.lit(0.0))).otherwise(0.0).alias("offset"),
        F.when(several, F.coalesce(error, F.lit(clock_error))).otherwise(0.0).alias("error"),
    )


def _by(*names: str) -> WindowSpec:

    return Window.partitionBy(*names)


def timed(rows: DataFrame, writers: DataFrame) -> DataFrame:
    """Lines with `t`, a time common to the run, `u`, how wrong it may be, and `domain`: HISTORY and CLOCKS in."""
    offset = F.col("offset")
    return rows.join(F.broadcast(writers), on=["run", "who"], how="inner").select(
        *rows.columns,
        "domain",
        offset,
        (F.col("at") + offset).alias("t"),
        (F.col("within") + F.col("error")).alias("u"),
        F.regexp_replace("group", "!dead$", "").alias("grp"),
        F.coalesce(F.endswith("group", F.lit("!dead")), F.expr("false")).alias("dead"),
    )


def groups(lines: DataFrame) -> DataFrame:
    """The groups of each topic: run, topic, groups."""
    return (
        lines.where(F.col("grp").isNotNull())
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
        "kind",
        "outcome",
        "dead",
        "who",
        "op",
        "owner",
        life.alias("generation"),
        F.coalesce("n", F.lit(0)).alias("n"),
        "attempt",
        "token",
        F.when(F.col("crcs").isNotNull(), F.substr("crcs", place, F.lit(8))).alias("crc"),
        "published_ms",
        "state",
        F.coalesce(F.startswith("detail", F.lit("conflict")), F.expr("false")).alias("conflict"),
        "domain",
        "at",
        "within",
        "t",
        "u",
        (F.col("until") + F.col("offset")).alias("until"),
        (F.col("asked") + F.col("offset")).alias("asked"),
    )


def surely_before(early: Column, late_t: Column, late_u: Column, late_domain: Column) -> Column:
    """Whether a struct with t, u and domain is certainly before a time: exactly on one clock, else beyond all doubt."""
    exact = early["t"] < late_t
    beyond = early["t"] + early["u"] < late_t - late_u
    same = F.coalesce(early["domain"] == late_domain, F.expr("false"))
    return F.when(same, exact).otherwise(beyond)

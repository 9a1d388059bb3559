"""Each output of an input is there once (docs/protocol.md, end of section 2).

Publishing what is derived from a message, then acking it, promises two things to be asked of a history: whoever
derives an output, and however often, it has one name and one content; and once the input is acked, it is there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .audit_events import MESSAGE
from .audit_findings import finding, findings, say, true

DERIVED: Final = "derived"
PREFIX: Final = "~derived."
"""What the origin of an output begins with."""

ASKED: Final = (*MESSAGE, "guarantee", "checked", "pending", "findings")
"""Columns of what is asked beyond deliveries, holds and messages: `checked` and `pending` count, as in `tallies`."""

OUTPUT: Final = ("run", "topic", "partition", "origin", "seq")

_INTO: Final = "topic STRING, partition INT, spans ARRAY<ARRAY<STRING>>, index INT"
_ONE_BY_ONE: Final = (
    "flatten(transform({0}, s -> transform(sequence(CAST(s[1] AS BIGINT), CAST(s[2] AS BIGINT) - 1), "
    "q -> named_struct('origin', s[0], 'seq', q))))"
)


def derived(lines: DataFrame, events: DataFrame, of_runs: DataFrame) -> DataFrame:
    """A row for each output of an input, and for each message with an output's name: ASKED.

    Args:
        lines: what `audit_events.timed` gives.
        events: what `audit_events.events` gives.
        of_runs: what `audit_context.runs` gives, with `lossy`.
    """
    made = _made(lines)
    fate = (
        events.where(F.startswith("origin", F.lit(PREFIX)) & F.col("kind").isin("deliver", "list"))
        .where((F.col("kind") == "deliver") | (F.col("state") == "dead"))
        .groupBy(*OUTPUT)
        .agg(
            F.min(F.when(F.col("kind") == "deliver", F.col("t"))).alias("delivered"),
            F.collect_set(F.when(F.col("kind") == "deliver", F.col("crc"))).alias("got"),
        )
    )
    runs = F.broadcast(of_runs.select("run", "drained_at", "ends_at", "lossy", "simulated"))
    return _places(made, fate, events, runs).unionByName(_outputs(made, fate, runs))


def _made(lines: DataFrame) -> DataFrame:
    """A row for each output that a line says to be derived of an input."""
    crc = F.substr("crcs", 8 * F.col("place") + 1, F.lit(8))
    return (
        lines.where(F.col("kind") == "derive")
        .withColumn("_into", F.from_json("into", _INTO))
        .select(
            "*",
            F.posexplode(
                F.arrays_zip(
                    F.expr(
                        _ONE_BY_ONE.format(
                            "transform(spans, s -> array(s.origin, string(s.start), string(s.stop)))"
                        )
                    ).alias("of"),
                    F.expr(_ONE_BY_ONE.format("_into.spans")).alias("out"),
                )
            ).alias("place", "pair"),
        )
        .select(
            *MESSAGE[:4],
            *("pair.of.origin", "pair.of.seq"),
            F.col("_into.topic").alias("into"),
            F.coalesce("_into.index", F.lit(0)).alias("index"),
            F.struct(
                F.col("_into.partition").alias("partition"),
                F.col("pair.out.origin").alias("origin"),
                F.col("pair.out.seq").alias("seq"),
            ).alias("output"),
            F.nullif(F.coalesce(crc, F.lit("")), F.lit("")).alias("crc"),
            "t",
        )
    )


def _places(made: DataFrame, fate: DataFrame, events: DataFrame, runs: DataFrame) -> DataFrame:
    """Each output of each input: under one name, with one content, and there once the input is acked."""
    places = made.groupBy(*MESSAGE, "into", "index").agg(
        F.min_by("output", "t").alias("output"),
        F.collect_set(F.struct("output", F.coalesce("crc", F.lit("")).alias("crc"))).alias("seen"),
        F.max("t").alias("last"),
    )
    groups = ("run", "topic", "partition", "grp")  # of which anything was derived: mostly none
    acked = (
        events.where((F.col("kind") == "ack") & F.startswith("outcome", F.lit("acked")) & ~F.col("dead"))
        .join(F.broadcast(made.select(*groups).distinct()), on=list(groups), how="left_semi")
        .groupBy(*MESSAGE)
        .agg(F.min("t").alias("acked"))
    )
    read = (
        events.where(F.col("kind").isin("deliver", "list"))
        .select("run", F.col("topic").alias("into"), F.expr("true").alias("read"))
        .distinct()
    )
    of_output = fate.select(
        "run",
        F.col("topic").alias("into"),
        F.struct("partition", "origin", "seq").alias("output"),
        F.expr("true").alias("there"),
    )
    known = (
        places.join(acked, on=list(MESSAGE), how="left")
        .join(of_output, on=["run", "into", "output"], how="left")
        .join(F.broadcast(read), on=["run", "into"], how="left")
        .join(runs, on="run", how="left")
    )
    is_output = true(F.startswith("output.origin", F.lit(PREFIX)))
    # In other runs nobody told who reads the outputs.
    readers = F.col("simulated") | true(F.col("read"))
    absent = is_output & readers & F.col("acked").isNotNull() & F.col("there").isNull()
    drained = F.col("drained_at").isNotNull()
    output = "{output.origin}[{output.seq}] of partition {output.partition}"
    changed = "its output {index} in {into} was derived as {to_json(seen)}"
    unnamed = f"is said to have the output {output}, which is no name of one"
    lost = f"was acked at {{acked:s}}, and its output {{index}}, {output} of {{into}}, was never delivered"
    return known.select(
        *MESSAGE,
        *_asked(
            is_output & readers,
            absent & ~drained,
            (F.size("seen") > 1, changed, F.col("last"), None),
            (~is_output, unnamed, F.col("last"), F.expr("false")),
            (absent & drained, lost, F.col("drained_at"), ~F.col("lossy")),
        ),
    )


def _asked(
    checked: Column, pending: Column, *some: tuple[Column, str | Column, Column, Column | None]
) -> list[Column]:
    """The columns of ASKED behind those of a message; ``some`` findings as `finding` takes them."""
    found = (finding(when, DERIVED, text, at, sure=sure) for when, text, at, sure in some)
    guarantee = F.lit(DERIVED).alias("guarantee")
    return [guarantee, checked.alias("checked"), pending.alias("pending"), findings(*found)]


def _outputs(made: DataFrame, fate: DataFrame, runs: DataFrame) -> DataFrame:
    """Each message that is an output by its name: somebody derived it, with the bytes that were delivered."""
    into = F.broadcast(made.select("run", F.col("into").alias("topic")).distinct())
    outputs = (
        made.select("run", F.col("into").alias("topic"), "output.*", "crc", "t")
        .groupBy(*OUTPUT)
        .agg(
            F.sort_array(F.collect_set("crc")).alias("derived"),
            F.max("t").alias("last"),
            F.expr("true").alias("known"),
        )
    )
    there = fate.where(F.col("delivered").isNotNull()).join(into, on=["run", "topic"], how="left_semi")
    both = outputs.join(there, on=list(OUTPUT), how="full").join(runs, on="run", how="left")
    other = F.array_except("got", "derived")
    several = "was derived as {array_join(derived, ' and as ')}"
    nobody = "was delivered at {delivered:s}, and nobody derived it"
    differs = say("was derived as {derived[0]} and delivered as {other}", other=F.array_join(other, ", "))
    return both.select(
        *OUTPUT,
        F.lit("").alias("grp"),
        *_asked(
            F.col("delivered").isNotNull(),
            F.expr("false"),
            (F.size("derived") > 1, several, F.col("last"), None),
            (F.col("known").isNull(), nobody, F.col("delivered"), ~F.col("lossy") & F.col("simulated")),
            ((F.size("derived") > 0) & (F.size(other) > 0), differs, F.col("delivered"), None),
        ),
    )

"""Each output of an input is there once (docs/protocol.md, end of section 2).

Publishing what is derived from a message, then acking it, promises two things to be asked of a history: whoever
derives an output, and however often, it has one name and one content; and once the input is acked, it is there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .audit_events import MESSAGE
from .audit_findings import Check, asked
from .letters import with_facts

DERIVED: Final = "derived"
PREFIX: Final = "~derived."
"""What the origin of an output begins with."""

OUTPUT: Final = ("run", "topic", "partition", "origin", "seq")

_INTO: Final = "topic STRING, partition INT, spans ARRAY<ARRAY<STRING>>, index INT"
_ONE_BY_ONE: Final = (
    "flatten(transform({0}, s -> transform(sequence(CAST(s[1] AS BIGINT), CAST(s[2] AS BIGINT) - 1), "
    "q -> named_struct('origin', s[0], 'seq', q))))"
)


def derived(lines: DataFrame, events: DataFrame, of_runs: DataFrame) -> DataFrame:
    """A row for each output of an input, and for each message with an output's name: `audit_findings.asked`.

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
    spans = "transform(spans, s -> array(s.origin, string(s.start), string(s.stop)))"
    of, out = (F.expr(_ONE_BY_ONE.format(it)) for it in (spans, "_into.spans"))
    pairs = F.posexplode(F.arrays_zip(of.alias("of"), out.alias("out")))
    return (
        lines.where(F.col("kind") == "derive")
        .withColumn("_into", F.from_json("into", _INTO))
        .select("*", pairs.alias("place", "pair"))
        .select(
            *MESSAGE[:4],
            *("pair.of.origin", "pair.of.seq"),
            F.col("_into.topic").alias("into"),
            F.coalesce("_into.index", F.lit(0)).alias("index"),
            F.struct("_into.partition", "pair.out.origin", "pair.out.seq").alias("output"),
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
    return asked(
        with_facts(known, FACTS_OF_PLACES), DERIVED, "is_output AND readers", "absent AND drained_at IS NULL",
        CHECKS_OF_PLACES, at="last",
    )  # fmt: skip


FACTS_OF_PLACES: Final = {
    "is_output": f"coalesce(startswith(output.origin, '{PREFIX}'), false)",
    # In other runs nobody told who reads the outputs.
    "readers": "simulated OR coalesce(read, false)",
    "absent": "is_output AND readers AND acked IS NOT NULL AND there IS NULL",
    "said": "concat(output.origin, '[', output.seq, '] of partition ', output.partition)",
}
CHECKS_OF_PLACES: Final = (
    Check(DERIVED, "size(seen) > 1", "its output {index} in {into} was derived as {to_json(seen)}"),
    Check(DERIVED, "NOT is_output", "is said to have the output {said}, which is no name of one", "false"),
    Check(DERIVED, "absent AND drained_at IS NOT NULL",
          "was acked at {acked:s}, and its output {index}, {said} of {into}, was never delivered",
          "NOT lossy", "drained_at"),
)  # fmt: skip


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
    both = both.withColumns({"grp": F.lit(""), "other": F.array_except("got", "derived")})
    return asked(both, DERIVED, "delivered IS NOT NULL", "false", CHECKS_OF_OUTPUTS, at="delivered")


CHECKS_OF_OUTPUTS: Final = (
    Check(DERIVED, "size(derived) > 1", "was derived as {array_join(derived, ' and as ')}", at="last"),
    Check(DERIVED, "known IS NULL", "was delivered at {delivered:s}, and nobody derived it",
          "NOT lossy AND simulated"),
    Check(DERIVED, "size(derived) > 0 AND size(other) > 0",
          "was derived as {derived[0]} and delivered as {array_join(other, ', ')}"),
)  # fmt: skip

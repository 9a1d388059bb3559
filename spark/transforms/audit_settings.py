"""Settings of topics are as they were written (docs/protocol.md, section 1).

In the end all nodes have one register of a topic; each setting in it was written by somebody, and no confirmed write
of it began after that one had ended. A write of unknown outcome never ends. Partitions only become more.

What a CREATE leaves to the node is written where the topic is new, which nobody is told: it may have been written.
Of a real run not all that was asked for is in the history, and a node may have been away: what does not fit decides
nothing there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from .audit_context import deletions
from .audit_events import maybe, moment, sure
from .audit_findings import Check, asked

SETTINGS: Final = "settings"

_PLACE: Final = ("run", "topic")


def settings(lines: DataFrame, of_runs: DataFrame) -> DataFrame:
    """A row for each topic and setting that nodes have in the end, and one for each topic: `audit_findings.asked`.

    A topic is asked about where both a change of it and a node's register are there.

    Args:
        lines: what `audit_events.timed` gives.
        of_runs: what `audit_context.runs` gives, with `lossy`.
    """
    writes = _writes(lines)
    registers = (
        lines.where(F.col("kind") == "topic")
        .groupBy(*_PLACE, "who")
        .agg(_pairs(F.max_by("settings", "t")).alias("pairs"))
        .join(F.broadcast(writes.select(*_PLACE).distinct()), on=list(_PLACE), how="left_semi")
    )
    runs = F.broadcast(of_runs.select("run", "drained_at", "lossy", "simulated"))
    gone = deletions(lines, "delete_topic", "topic").join(
        runs.where("NOT simulated"), on="run", how="left_semi"
    )
    registers = registers.join(F.broadcast(gone), on=list(_PLACE), how="left_anti")
    of_registers, of_settings = (
        asked(rows, SETTINGS, "drained_at IS NOT NULL", "drained_at IS NULL", checks, at="drained_at")
        for rows, checks in (
            (_agreed(registers, runs), OF_REGISTERS),
            (_written(registers, writes, runs), OF_SETTINGS),
        )
    )
    return of_registers.unionByName(of_settings)


def _pairs(text: Column) -> Column:
    """The settings of a line in the order of their names; 3 and 3.0 are one number."""
    entries = F.map_entries(F.from_json(text, "MAP<STRING, STRING>"))
    pairs = F.transform(
        entries, lambda e: F.struct(e["key"].alias("name"), _number(e["value"]).alias("value"))
    )
    return F.array_sort(pairs)


def _number(value: Column) -> Column:
    return F.coalesce(F.regexp_replace(value.try_cast("double").cast("string"), "[.]0$", ""), value)


def _writes(lines: DataFrame) -> DataFrame:
    """A row for each setting of each request that may have changed it: when it was sent, and confirmed or never."""
    invoked, outcome = F.col("outcome") == "invoke", F.col("outcome")
    calls = (
        lines.where(F.col("kind") == "set_topic")
        .groupBy(*_PLACE, "who", "op")
        .agg(
            F.min(F.when(invoked, moment())).alias("sent"),
            _pairs(F.max(F.when(invoked, F.col("settings")))).alias("pairs"),
            _pairs(F.max(F.when(invoked, F.col("defaults")))).alias("defaults"),
            F.max(F.when(outcome == "ok", moment())).alias("done"),
            F.count_if(outcome == "fail").alias("failed"),
        )
        .where((F.col("failed") == 0) & F.col("sent").isNotNull())
    )
    never = F.when(F.expr("false"), F.col("sent")).alias("done")
    named = calls.select(*_PLACE, "sent", "done", F.inline("pairs"))
    return named.unionByName(calls.select(*_PLACE, "sent", never, F.inline("defaults")))


def _agreed(registers: DataFrame, runs: DataFrame) -> DataFrame:
    """One register of a topic at all nodes."""
    seen = F.sort_array(F.collect_set("pairs"))
    return registers.groupBy(*_PLACE).agg(seen.alias("seen")).join(runs, on="run", how="left")


def _written(registers: DataFrame, writes: DataFrame, runs: DataFrame) -> DataFrame:
    """Each setting, with the last write of it, and whether that of its value had ended."""
    by_name, by_value = [*_PLACE, "name"], [*_PLACE, "name", "value"]
    done = F.col("done").isNotNull()
    values = writes.groupBy(*by_value).agg(
        F.max(F.col("done").isNull()).alias("never"), F.max("done").alias("ended")
    )
    lasts = writes.groupBy(*by_name).agg(
        F.max(F.when(done, F.struct("sent", "value"))).alias("last"),
        F.max(F.when(done, F.col("value").try_cast("int"))).alias("least"),
    )
    return (
        registers.select(*_PLACE, F.inline("pairs"))
        .distinct()
        .join(values, on=by_value, how="left")
        .join(lasts, on=by_name, how="left")
        .join(runs, on="run", how="left")
    )


# Of a real run nothing is sure.
OF_REGISTERS: Final = (
    Check(SETTINGS, "drained_at IS NOT NULL AND size(seen) > 1",
          "nodes have different settings: {to_json(seen)}", "simulated"),
)  # fmt: skip

OF_SETTINGS: Final = (
    Check(SETTINGS, "drained_at IS NOT NULL AND never IS NULL",
          "{name} is {value}, and nobody wrote that", "simulated AND NOT lossy"),
    Check(SETTINGS, "drained_at IS NOT NULL AND name != 'partitions' AND value != last.value AND NOT never "
          f"AND {maybe('ended', 'last.sent')}",
          "{name} is {value}, confirmed at {ended.t:s}, and was written again at {last.sent.t:s}",
          f"simulated AND {sure('ended', 'last.sent')}"),
    # There are the most that were ever confirmed.
    Check(SETTINGS, "drained_at IS NOT NULL AND name = 'partitions' AND try_cast(value AS INT) < least",
          "{name} is {value}, and {least} were confirmed", "simulated"),
)  # fmt: skip

"""Summary of the tables of dead letters: summary.json, and the plain values that the report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from ..source.journals import HARMLESS
from ..transforms.deaths import RESOLUTIONS, summed
from ..transforms.plan import VERDICTS
from .deaths_input import OUTPUT, Input

TOP: Final = 500
"""Rows of each table that the report shows, at most."""

SUMMARY_TOP: Final = 20
SAMPLES_SHOWN: Final = 100
TEXT_SHOWN: Final = 4000
PAYLOAD_SHOWN: Final = 2000
SERIES: Final = 7
STATUSES: Final = ("new", "regressed", "ongoing", "gone")
TOP_COLUMNS: Final = (
    "topic", "group", "failure", "status", "deaths", "dead", "share", "error_class", "first_died_at", "last_died_at",
    "sample_ids",
)  # fmt: skip


def tops_of(frames: Mapping[str, DataFrame], payloads: bool) -> dict[str, Any]:
    """Return the values that the report shows besides the summary: tops of the tables, as plain values."""
    many = F.col("deaths").desc()
    tops: dict[str, Any] = {
        "failures": _top(frames["failures"], many, "topic", "group", "failure"),
        "bursts": _top(frames["bursts"], F.col("score").desc(), "from_at", "topic", "group"),
        "ages": _top(frames["ages"], many, "topic", "group"),
        "deploys": _top(
            frames["deploys"], F.col("regression").desc_nulls_last(), F.col("score").desc_nulls_last(), "version",
            "topic", "group",
        ),
        "places": [
            row
            for kind in ("version", "host", "consumer", "node")
            for row in _top(frames["places"].where(F.col("kind") == kind), many, "topic", "group", "name", most=100)
        ],
        "poison": _top(frames["poison"], many, "kind", "name"),
        "decisions": _top(frames["decisions"], "rank"),
        "period": plain(frames["period"].first()),
        "payloads": payloads,
    }  # fmt: skip
    tops.update(series(frames, tops["failures"]))
    tops["samples"] = shown_samples(frames, tops["failures"])
    return tops


def _top(rows: DataFrame, *order: Column | str, most: int = TOP) -> list[dict[str, Any]]:
    return [plain(row) for row in rows.orderBy(*order).limit(most).collect()]


def summarised(
    frames: Mapping[str, DataFrame],
    tops: Mapping[str, Any],
    inputs: Input,
    now: datetime,
    previous: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the content of summary.json; ``previous`` is the summary of an earlier run, with its place as `out`."""
    kinds = frames["failures"].agg(
        F.count("*").alias("kinds"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("deaths", *RESOLUTIONS)),
        *(F.count_if(F.col("status") == name).alias(name) for name in STATUSES),
        F.min("first_died_at").alias("first_died_at"),
        F.max("last_died_at").alias("last_died_at"),
    )  # fmt: skip
    totals = plain(kinds.first())
    aged = plain(
        frames["ages"].agg(
            F.min("oldest_published_at").alias("oldest_published_at"),
            F.min("oldest_died_at").alias("oldest_died_at"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("undated", "skewed")),
        ).first()
    )  # fmt: skip
    by_verdict = frames["decisions"].groupBy("verdict")
    counted = by_verdict.agg(F.count("*").alias("failures"), F.sum("messages").alias("messages")).collect()
    verdicts = {row["verdict"]: {"failures": row["failures"], "messages": row["messages"]} for row in counted}
    return {
        **OUTPUT.mark,
        "as_of": iso(now),
        "source": inputs.source,
        "cluster": inputs.cluster,
        "nodes": inputs.nodes,
        "only": {"topics": list(inputs.topics), "groups": list(inputs.groups)},
        "previous": {name: previous[name] for name in ("out", "as_of")} if previous is not None else None,
        "since": inputs.since,
        "positions": inputs.positions,
        **{name: totals[name] for name in ("deaths", *RESOLUTIONS)},
        "failures": totals["kinds"],
        "status": {name: totals[name] for name in STATUSES} if previous is not None else None,
        **{name: iso(totals[name]) for name in ("first_died_at", "last_died_at")},
        **{name: iso(cell) for name, cell in aged.items()},
        "bucket_seconds": tops["period"]["seconds"],
        "bursts": frames["bursts"].count(),
        "regressions": frames["deploys"].where("regression").count(),
        "poison": frames["poison"].count(),
        "plan": {name: verdicts.get(name, {"failures": 0, "messages": 0}) for name in VERDICTS},
        "groups": [{name: row[name] for name in ("topic", "group", "deaths", "dead")} for row in tops["ages"]],
        "top": [{name: iso(row[name]) for name in TOP_COLUMNS} for row in tops["failures"][:SUMMARY_TOP]],
        "problems": unreadable(frames.get("problems")),
    }  # fmt: skip


def unreadable(rows: DataFrame | None) -> dict[str, Any]:
    """Return the counts and the first rows of the table `problems`."""
    if rows is None:
        return {"count": 0, "harmless": 0, "rows": []}
    counts = rows.agg(
        F.count("*").alias("all"), F.count_if(F.col("kind").isin(*HARMLESS)).alias("harmless")
    ).first()
    tops = _top(rows, "path", F.col("segment").asc_nulls_first(), most=100)
    assert counts is not None
    return {
        "count": counts["all"],
        "harmless": counts["harmless"],
        "rows": [{name: iso(it) for name, it in row.items()} for row in tops],
    }


def series(frames: Mapping[str, DataFrame], failures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return deaths over time: of the largest kinds of failures and the rest, of each group, and of each version.

    `sparks` are those of each kind that is shown, `by_failure` the sums over the groups.
    """
    counts = frames["counts"]
    sparks, by_failure = over_kinds(counts, failures)

    def over_time(name: str, column: Any) -> list[dict[str, Any]]:
        grouped = counts.groupBy(column.alias(name), "from_at").agg(*summed("deaths"))
        return [plain(row) for row in grouped.orderBy("from_at", name).collect()]

    largest = counts.groupBy("consumer_version").agg(F.sum("deaths").alias("all"))
    versions = [
        row["consumer_version"] for row in _top(largest, F.col("all").desc(), "consumer_version", most=SERIES)
    ]
    version = F.when(F.col("consumer_version").isin(versions), F.col("consumer_version")).otherwise(
        F.lit("others")
    )
    groups = frames["rates"].groupBy("topic", "group").agg(F.sum("deaths").alias("all"))
    groups = groups.orderBy(F.col("all").desc(), "topic", "group").limit(SERIES + 1)
    rates = frames["rates"].join(F.broadcast(groups.select("topic", "group")), ["topic", "group"])
    return {
        "by_failure": by_failure,
        "sparks": sparks,
        "by_version": over_time("version", version if versions else F.lit("")),
        "rates": [plain(row) for row in rates.orderBy("topic", "group", "from_at").collect()],
    }


def over_kinds(
    counts: DataFrame, failures: list[dict[str, Any]]
) -> tuple[dict[tuple[str, str, str], list[tuple[datetime, int]]], list[dict[str, Any]]]:
    """Return deaths over time by kind, of those with a sample; and by failure, of the largest, the rest as ``""``."""
    names = list(dict.fromkeys(row["failure"] for row in failures if row["deaths"]))[:SERIES]
    kinds = [
        (row["topic"], row["group"], row["failure"]) for row in failures[:SAMPLES_SHOWN] if row["deaths"]
    ]
    shown = counts.sparkSession.createDataFrame(kinds, "topic string, `group` string, failure string")
    each = counts.join(
        F.broadcast(shown.withColumn("shown", F.lit(True))), ["topic", "group", "failure"], "left"
    )
    columns = [
        F.when(F.col("shown"), F.col(name)).otherwise("").alias(name)
        for name in ("topic", "group", "failure")
    ]
    rows = each.groupBy(*columns, "from_at").agg(*summed("deaths")).collect()
    sparks: dict[tuple[str, str, str], list[tuple[datetime, int]]] = {}
    totals: Counter[tuple[datetime, str]] = Counter()
    for row in rows:
        at = utc(row["from_at"])
        sparks.setdefault((row["topic"], row["group"], row["failure"]), []).append((at, row["deaths"]))
        totals[at, row["failure"] if row["failure"] in names else ""] += row["deaths"]
    by_failure = [
        {"failure": name, "from_at": at, "deaths": died} for (at, name), died in sorted(totals.items())
    ]
    return sparks, by_failure


def shown_samples(
    frames: Mapping[str, DataFrame], failures: list[dict[str, Any]]
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return a message for each of the largest kinds of failures, long texts cut; with key and payload if wanted."""
    session = frames["fetched"].sparkSession
    kinds = [(row["topic"], row["group"], row["failure"]) for row in failures[:SAMPLES_SHOWN]]
    chosen = session.createDataFrame(kinds, "topic string, `group` string, failure string")
    rows = frames["fetched"].where("rank = 1").join(F.broadcast(chosen), ["topic", "group", "failure"])
    rows = rows.withColumns({
        "message": F.substring("message", 1, TEXT_SHOWN),
        # The end of a traceback is what was raised.
        "stack": F.expr(f"right(stack, {TEXT_SHOWN})"),
    })  # fmt: skip
    return {(row["topic"], row["group"], row["failure"]): plain(row) for row in rows.collect()}


def plain(row: Row | None) -> dict[str, Any]:
    """Return a row as a dictionary; times with their zone."""
    assert row is not None
    return {name: utc(cell) for name, cell in row.asDict().items()}


def utc(cell: Any) -> Any:
    """Return a time in UTC; Spark gives times in the zone of this process, without saying so."""
    return cell.astimezone(UTC) if isinstance(cell, datetime) else cell


def iso(cell: Any) -> Any:
    """Return a time as JSON has it: text, to the millisecond; any other value as it is."""
    if not isinstance(cell, datetime):
        return cell
    return cell.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

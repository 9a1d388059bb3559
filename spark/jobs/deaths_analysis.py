"""The analysis of dead letters: tables, the plan, and the files of both.

The source is read once, into the table `deaths`. A few passes over that table make a cube and sketches, and all other
tables are made of these. Only tops and totals reach the driver. The plan's messages pass through it one by one, in
order, on their way into a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pyarrow.parquet import ParquetFile
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from quorumq.core.values.errors import UsageError

from ..folders import Folder
from ..report.deadletters import page
from ..schemas import TABLES
from ..session import exactly, interruptible, written
from ..transforms import deaths as t
from ..transforms import plan, rates
from .deaths_input import KNOWN, OUTPUT, Input, check_previous, death_hash, only, read_previous_head
from .deaths_summary import PAYLOAD_SHOWN, iso, summarised, tops_of
from .deaths_table import into_table
from .output import SUMMARY

PLAN: Final = "plan.jsonl"
REPORT: Final = "report.html"
STEPS: Final = "steps"
"""The directory in OUT, while it is made, of tables that only serve others."""


class Settings(NamedTuple):
    """Settings of an analysis.

    Attributes:
        now: time of the analysis; ages and "still happening" count from here.
        previous: an OUT of an earlier run.
        payloads: keep keys, headers and payloads.
        overwrite: replace OUT if a job wrote it.
        table: a table of a catalog that gets the dead letters too; none if empty.
        limits: the numbers in the rules of the plan.
        decide: verdicts by failure that win over the rules.
    """

    now: datetime
    previous: Folder | None = None
    payloads: bool = False
    overwrite: bool = False
    table: str = ""
    limits: plan.Limits = plan.DEFAULTS
    decide: Mapping[str, str] = {}


def run(inputs: Input, out: Folder, settings: Settings) -> dict[str, Any]:
    """Analyse dead letters, and write OUT.

    Returns:
        the summary, as it is in OUT/summary.json (docs/spark.md).
    """
    previous = read_previous_head(settings.previous) if settings.previous is not None else None
    if previous is not None:
        check_previous(previous, settings.previous, inputs)
    with OUTPUT.staged(out, settings.overwrite) as new, interruptible():
        frames = analyse(inputs, new, settings)
        tops = tops_of(frames, settings.payloads)
        before = {**previous, "out": str(settings.previous)} if previous is not None else None
        summary = summarised(frames, tops, inputs, settings.now, before)
        redrive = write_plan(frames, new, inputs, settings)
        assert redrive == summary["plan"]["redrive"]["messages"], (
            "the plan must have every message that it counts"
        )
        (new / SUMMARY).local.write_text(
            json.dumps(summary, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
        (new / REPORT).local.write_text(page(summary, tops), encoding="utf-8")
        (new / STEPS).remove()
        if settings.table:
            into_table(frames["deaths"], settings.table, inputs.since["as_of"] if inputs.since else None)
    return summary


def analyse(inputs: Input, out: Folder, settings: Settings) -> dict[str, DataFrame]:
    """Write every table of TABLES under ``tables``, what serves them under ``steps``, and return all, read from there.

    ``period`` besides: one row with the first and the last plausible time of death and the width of a bucket.
    """
    session = inputs.deadletters.sparkSession
    now, limits = settings.now, settings.limits
    frames: dict[str, DataFrame] = {}

    def store(name: str, frame: DataFrame, folder: str = "tables") -> DataFrame:
        by = [column for column in ("date", "of") if column in frame.columns]
        target = out / folder / name if folder else out / name
        written(frame, target, *by)
        stored = session.read.schema(frame.schema).parquet(exactly(target.uri))
        frames[name] = stored.select(*frame.columns)
        return frames[name]

    rows = t.deaths(inputs.deadletters, now, payloads=settings.payloads)
    if inputs.known is not None:
        known = store(KNOWN, inputs.known, "")
        rows = rows.withColumn("hash", death_hash()).join(known, "hash", "left_anti").select(*rows.columns)
    seen = written(by_date(rows), out / "tables" / "deaths", "date", observed=observed())
    stored = session.read.schema(rows.schema).parquet(exactly((out / "tables" / "deaths").uri))
    deaths = frames["deaths"] = stored.select(*rows.columns)
    if seen.get("incomplete"):
        refuse_incomplete(deaths, inputs.source)
    begin, end = period(seen, now)
    seconds = rates.bucket_seconds((end - begin).total_seconds())
    frames["period"] = session.createDataFrame(
        [(begin, end, seconds)], "begin timestamp, end timestamp, seconds bigint"
    )

    before = failures_before(inputs, settings.previous)
    counted = {"quiet_s": limits.quiet_s, "redrives_max": limits.redrives_max}
    cube = store("cube", t.cube(deaths, seconds, now, before, **counted), STEPS)
    sketches = store("sketches", t.sketches(deaths, now), STEPS)
    again = store("again", t.again(deaths, store("repeated", t.repeated(deaths), STEPS)), STEPS)

    locations = store("places", t.locations(cube, now))
    proof = plan.evidence(cube, again, locations)
    decisions = store("decisions", plan.decisions(proof, now, limits, settings.decide))
    payload_bytes = PAYLOAD_SHOWN if settings.payloads else 0
    fetched = store("fetched", t.fetched(deaths, sketches, decisions, payload_bytes=payload_bytes), STEPS)
    samples = store("samples", t.shaped(fetched.where("rank IS NOT NULL"), t.SAMPLES_OF))
    store("failures", t.failures(cube, samples, locations, now, before))
    counts = store("counts", rates.counts(cube))
    over_time = store("rates", rates.rates(counts, begin, end, seconds))
    store("bursts", rates.bursts(over_time, counts, seconds))
    store("ages", t.ages(cube, sketches, now))
    store("deploys", rates.deploys(counts, begin, end, seconds, now))
    store("poison", t.poison(again, cube, now))
    if inputs.problems is not None:
        store("problems", inputs.problems)
    return frames


def by_date(deaths: DataFrame) -> DataFrame:
    """Return the rows so that their files are as many as their size and their days need, not their tasks.

    Of small input there are few tasks. Without adaptive execution, Spark would make as many pieces as its setting says.
    """
    if deaths.sparkSession.conf.get("spark.sql.adaptive.enabled") != "true":
        return deaths
    return deaths.hint("rebalance", "date")


NEEDED: Final = tuple(
    column.name for column in TABLES["deadletters"]
    if not column.nullable and column.name not in ("message", "stack")
)  # fmt: skip
"""Columns that every row must have, because something is counted by them."""


def observed() -> dict[str, Column]:
    """Return aggregates of deaths that are taken while they are written."""
    at = F.when(F.col("dated"), F.unix_micros("died_at"))
    incomplete = reduce(or_, (F.col(name).isNull() for name in NEEDED))
    return {"begin": F.min(at), "end": F.max(at), "incomplete": F.count_if(incomplete)}


def refuse_incomplete(deaths: DataFrame, source: str) -> NoReturn:
    """Refuse deaths without a value that every dead letter has: they would be in no group, kind or plan."""
    counts = deaths.agg(*(F.count_if(F.col(name).isNull()).alias(name) for name in NEEDED)).collect()[0]
    name = next(name for name in NEEDED if counts[name])
    raise UsageError(f"{source} has {counts[name]:,} rows without {name}, which every dead letter has")


def failures_before(inputs: Input, previous: Folder | None) -> DataFrame | None:
    if previous is None:
        return None
    path = exactly((previous / "tables" / "failures").uri)
    before = inputs.deadletters.sparkSession.read.schema(t.PREVIOUS).parquet(path)
    return only(before, inputs.topics, inputs.groups)


def period(seen: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    """Return the first and the last plausible time of death, in UTC, of the result of `observed`."""
    if seen.get("begin") is None:
        return now, now
    begin, end = (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=seen[name]) for name in ("begin", "end")
    )
    return begin, end


PLANNED: Final = ("planned", "id", "generation", "n")
"""Columns of the plan about a message, and the rank of its decision."""


DECIDED: Final = (
    "verdict", "topic", "topic_id", "group", "failure", "error_class", "rule", "reason", "messages", "rate",
)  # fmt: skip
"""Columns of the plan about a decision."""


def in_order(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the messages of a redrive plan in their order, from the files that Spark wrote there, one by one.

    They are passed in files, because rows from a task to the driver go through Java's memory. If they find no room
    there, they are lost, and the job with them.
    """
    for part in sorted(folder.glob("part-*"), key=lambda path: int(path.name.split("-")[1])):
        with ParquetFile(part) as file:
            for batch in file.iter_batches(columns=list(PLANNED)):
                yield from zip(*(batch.column(name).to_pylist() for name in PLANNED), strict=True)


def write_plan(frames: Mapping[str, DataFrame], out: Folder, inputs: Input, settings: Settings) -> int:
    """Write the redrive plan as JSON Lines (docs/spark.md, "The redrive plan"); return its number of messages."""
    decisions = frames["decisions"].orderBy("rank").toLocalIterator()
    chosen = frames["decisions"].where("verdict = 'redrive'").agg(F.sum("messages").alias("count")).first()
    total = int(chosen["count"] or 0) if chosen is not None else 0
    folder = out / STEPS / "plan"
    plan.messages(frames["fetched"], total).write.parquet(folder.uri)
    count = 0
    head = {
        "quorumq_plan": 1,
        "cluster": inputs.cluster,
        "made_at": iso(settings.now),
        "source": inputs.source,
    }
    with (out / PLAN).local.open("w", encoding="utf-8") as lines:
        messages = in_order(folder.fetch())
        waiting = next(messages, None)

        def write(value: dict[str, Any]) -> None:
            lines.write(json.dumps(value, ensure_ascii=False) + "\n")

        write(head)
        for decision in decisions:
            write({name: decision[name] for name in DECIDED if decision[name] is not None})
            while waiting is not None and waiting[0] == decision["rank"]:
                write(dict(zip(PLANNED[1:], (waiting[1], int(waiting[2]), waiting[3]), strict=True)))
                count += 1
                waiting = next(messages, None)
        lines.flush()
        os.fsync(lines.fileno())
    assert waiting is None, f"a message to redrive without a decision: {waiting}"
    return count

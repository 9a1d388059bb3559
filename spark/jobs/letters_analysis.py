"""The analysis of dead letters: tables, the plan, and the files of both.

The source is read once, into the table `letters`; all else is computed from that table, column by column. Only tops
and totals come to the driver; the plan's messages pass through it one by one, in order, on their way into a file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyarrow.parquet import ParquetFile
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..report.deadletters import page
from ..session import exactly, file_path, interruptible, written
from ..transforms import letters as t
from ..transforms import plan, rates
from .letters_input import OUTPUT, Input, check_previous, only, read_previous_head, with_topics
from .letters_summary import facts_of, iso, summarised, utc
from .output import SUMMARY

PLAN: Final = "plan.jsonl"
REPORT: Final = "report.html"


class Settings(NamedTuple):
    """Settings of an analysis.

    Attributes:
        now: time of the analysis; ages and "still happening" count from here.
        previous: an OUT of an earlier run.
        payloads: keep keys, headers and payloads.
        overwrite: replace OUT if a job wrote it.
        limits: the numbers in the rules of the plan.
        decide: verdicts by failure that win over the rules.
    """

    now: datetime
    previous: Path | None = None
    payloads: bool = False
    overwrite: bool = False
    limits: plan.Limits = plan.DEFAULTS
    decide: Mapping[str, str] = {}


def run(inputs: Input, out: Path, settings: Settings) -> dict[str, Any]:
    """Analyse dead letters, and write OUT.

    Returns:
        the summary, as it is in OUT/summary.json (docs/spark.md).
    """
    previous = read_previous_head(settings.previous) if settings.previous is not None else None
    if previous is not None:
        check_previous(previous, settings.previous, inputs)
    with OUTPUT.staged(out, settings.overwrite) as new, interruptible():
        frames = analyse(inputs, new / "tables", settings)
        facts = facts_of(frames, settings.payloads)
        before = {**previous, "out": str(settings.previous)} if previous is not None else None
        summary = summarised(frames, facts, inputs, settings.now, before)
        redrive = write_plan(frames, new / PLAN, inputs, settings)
        assert redrive == summary["plan"]["redrive"]["messages"], (
            "the plan must have every message that it counts"
        )
        (new / SUMMARY).write_text(json.dumps(summary, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        (new / REPORT).write_text(page(summary, facts), encoding="utf-8")
    return summary


def analyse(inputs: Input, tables: Path, settings: Settings) -> dict[str, DataFrame]:
    """Write every table of TABLES under ``tables``, and return them read back from there.

    ``period`` besides: one row with the first and the last plausible time of death and the width of a bucket.
    """
    session = inputs.deadletters.sparkSession
    now, limits = settings.now, settings.limits
    frames: dict[str, DataFrame] = {}
    pieces = int(session.conf.get("spark.sql.shuffle.partitions") or 0)
    large = pieces > session.sparkContext.defaultParallelism

    def store(name: str, frame: DataFrame, *, small: bool = True) -> DataFrame:
        path = file_path(tables / name)
        by = [column for column in ("date", "topic") if column in frame.columns]
        # A small table is one file a day and topic, not one for each task. Of large input, all tasks compute it.
        one = frame.repartition(1) if large else frame.coalesce(1)
        written(one if small else frame, tables / name, *by)
        stored = with_topics(session.read.schema(frame.schema).parquet(exactly(path)))
        frames[name] = stored.select(*frame.columns)
        return frames[name]

    rows = t.letters(inputs.deadletters, now, payloads=settings.payloads)
    letters = store("letters", rows, small=False)
    begin, end = period(letters, now)
    seconds = rates.bucket_seconds((end - begin).total_seconds())
    frames["period"] = session.createDataFrame(
        [(begin, end, seconds)], "begin timestamp, end timestamp, seconds bigint"
    )

    samples = store("samples", t.samples(letters))
    places = store("places", t.places(letters, now))
    store("failures", t.failures(letters, samples, places, now, failures_before(inputs, settings.previous)))
    counts = store("counts", rates.counts(letters, seconds))
    over_time = store("rates", rates.rates(counts, begin, end, seconds))
    store("bursts", rates.bursts(over_time, counts, seconds))
    store("ages", t.ages(letters, now))
    store("deploys", rates.deploys(counts, begin, end, seconds, now))
    with tempfile.TemporaryDirectory(dir=tables.parent, prefix="steps-") as steps:
        path = file_path(Path(steps, "repeated"))
        t.repeated(letters).write.parquet(path)
        repeated = session.read.schema(t.REPEATED).parquet(exactly(path))
        store("poison", t.poison(letters, repeated, now))
    store("attempts", t.attempts(letters, now))
    store("sizes", t.sizes(letters, now))
    store("to_death", t.to_death(letters, now))
    proof = plan.evidence(letters, places, now, limits)
    store("decisions", plan.decisions(proof, now, limits, settings.decide))
    if inputs.problems is not None:
        store("problems", inputs.problems)
    return frames


def failures_before(inputs: Input, previous: Path | None) -> DataFrame | None:
    """Return the table `failures` of an earlier run; None without one."""
    if previous is None:
        return None
    path = exactly(file_path(previous / "tables" / "failures"))
    before = with_topics(inputs.deadletters.sparkSession.read.schema(t.PREVIOUS).parquet(path))
    return only(before, inputs.topics, inputs.groups)


def period(letters: DataFrame, now: datetime) -> tuple[datetime, datetime]:
    """The first and the last plausible time of death, in UTC: an hour that a clock shows twice a year is one of two."""
    times = letters.where("dated").agg(F.min("died_at").alias("begin"), F.max("died_at").alias("end")).first()
    bounds = (times["begin"], times["end"]) if times is not None and times["begin"] else (now, now)
    return utc(bounds[0]), utc(bounds[1])


PLANNED: Final = ("rank", "id", "generation", "n")
"""Columns of the plan about a message, and the rank of its decision."""


DECIDED: Final = (
    "verdict", "topic", "topic_id", "group", "failure", "error_class", "rule", "reason", "messages", "rate",
)  # fmt: skip
"""Columns of the plan about a decision."""


def in_order(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the messages of a redrive plan in their order, from the files that Spark wrote there, one by one.

    They come by way of files, because rows from a task to the driver go through Java's memory. If they find no room
    there, they are lost, and the job with them.
    """
    for part in sorted(folder.glob("part-*"), key=lambda path: int(path.name.split("-")[1])):
        with ParquetFile(part) as file:
            for batch in file.iter_batches(columns=list(PLANNED)):
                yield from zip(*(batch.column(name).to_pylist() for name in PLANNED), strict=True)


def write_plan(frames: Mapping[str, DataFrame], path: Path, inputs: Input, settings: Settings) -> int:
    """Write the redrive plan as JSON Lines (docs/spark.md, "The redrive plan"); return its number of messages."""
    decisions = frames["decisions"].orderBy("rank").toLocalIterator()
    chosen = frames["decisions"].where("verdict = 'redrive'").agg(F.sum("messages").alias("count")).first()
    total = int(chosen["count"] or 0) if chosen is not None else 0
    count = 0
    head = {
        "quorumq_plan": 1,
        "cluster": inputs.cluster,
        "made_at": iso(settings.now),
        "source": inputs.source,
    }
    with (
        # Interrupted, Spark may write there yet: that must not take the place of the interrupt.
        tempfile.TemporaryDirectory(dir=path.parent, prefix="steps-", ignore_cleanup_errors=True) as steps,
        path.open("w", encoding="utf-8") as lines,
    ):
        folder = Path(steps, "messages")
        plan.messages(frames["letters"], frames["decisions"], total).write.parquet(file_path(folder))
        messages = in_order(folder)
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

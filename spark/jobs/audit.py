"""`python -m spark audit`: every guarantee as a query over histories, and what came of it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from quorumq.core.errors import UsageError

from ..histories import Histories, read
from ..report.audit import named, page
from ..report.page import counted
from ..session import exactly, file_path, fit, interruptible, job_session
from ..transforms import audit as t
from ..transforms import (
    audit_clocks,
    audit_context,
    audit_deliveries,
    audit_derived,
    audit_events,
    audit_holds,
    audit_messages,
    audit_settings,
)
from ..transforms.letters import summed
from .output import SUMMARY, Output

OUTPUT: Final = Output("audit", 1)


def audited(histories: Histories, out: Path, *, drained: bool = False) -> dict[str, DataFrame]:
    """Audit histories, and write the tables.

    Each step is written as it is made and read back for the next: so no plan has more than one step in it, which
    would take longer to plan than to run, and no row is kept in memory for later.

    Args:
        histories: what `spark.histories.read` gives.
        out: a directory: the tables come under `tables`, and what only serves them is removed in the end.
        drained: whether runs that do not say so are over, with nothing left to deliver.

    Returns:
        The tables `verdicts`, `violations`, `remainder`, `unread`, `latency`, `redeliveries`, `faults`, `divergence`,
        `runs` and `clocks`.
    """
    session = histories.judged.sparkSession
    steps = out / "steps"

    def step(name: str, frame: DataFrame, folder: Path = steps) -> DataFrame:
        path = file_path(folder / name)
        frame.write.parquet(path)
        return session.read.schema(frame.schema).parquet(exactly(path))

    def table(name: str, frame: DataFrame) -> DataFrame:
        return step(name, frame, out / "tables")

    read_once = histories._replace(judged=step("lines", histories.judged))
    of_doubled = step("doubled", t.doubled(read_once.rows))
    rows, unread = t.once(read_once.rows, of_doubled), table("unread", read_once.unread)
    of_writers, offsets, found_clocks = audit_clocks.clocks(rows, step)
    clocks = table("clocks", found_clocks)
    lines = audit_events.timed(rows, of_writers, offsets)
    rest = table("remainder", t.remainder(rows, unread, of_doubled))
    of_runs = table("runs", t.with_remainder(audit_context.runs(lines, drained=drained), rest))
    of_groups = step("groups", audit_context.group_facts(lines))
    of_places = step("places", audit_context.purges(lines, of_groups))
    of_replicas = step("replicas", audit_context.replicas(lines))
    of_inventories = step("inventories", audit_context.inventories(lines))
    of_origins = step("origins", audit_context.origins(lines))
    events = step("events", audit_events.events(lines))
    deliveries = step(
        "deliveries", audit_deliveries.deliveries(events, of_groups, of_places, of_runs, of_origins)
    )
    held = step("holds", audit_holds.holds(events, of_runs))
    messages = step(
        "messages",
        audit_messages.messages(events, of_groups, of_places, of_runs, of_replicas, of_inventories),
    )
    overlaps = step("overlaps", audit_holds.overlaps(held))
    asked = audit_derived.derived(lines, events, of_runs)
    asked = step(
        "asked", asked.unionByName(audit_settings.settings(lines, of_runs), allowMissingColumns=True)
    )
    found = table("violations", t.violations(deliveries, messages, held, overlaps, asked, of_runs))
    tally = step("tallies", t.tallies(deliveries, messages, held, asked, of_runs))
    tables = {
        "verdicts": table("verdicts", t.verdicts(tally, found)),
        "violations": found,
        "remainder": rest,
        "unread": unread,
        "latency": table("latency", t.latency(deliveries)),
        "redeliveries": table("redeliveries", t.redeliveries(held)),
        "faults": table("faults", t.per_fault(lines, audit_context.faults(lines), found)),
        "divergence": table("divergence", t.divergence(lines, events)),
        "runs": of_runs,
        "clocks": clocks,
    }
    shutil.rmtree(steps)
    return tables


# ------------------------------------------------------------------------ the command

STRICT_CODE: Final = 3
"""The exit code of --strict where nothing is broken and not everything holds."""

PAGE: Final = "audit.html"

SHOWN: Final = 50
"""So many violations of each guarantee and rows of each other table are in the summary; the Parquet tables have all."""


def summarised(tables: Mapping[str, DataFrame], paths: Sequence[str]) -> dict[str, Any]:
    """What summary.json says: the verdicts, and the first rows of each table.

    Raises:
        UsageError: the files have no line at all.
    """
    order = list(t.GUARANTEES)
    verdicts = [row.asDict() for row in t.overall(tables["verdicts"]).collect()]
    verdicts.sort(key=lambda row: order.index(row["guarantee"]))
    counts = (
        tables["runs"]
        .agg(F.count("*").alias("runs"), F.coalesce(F.sum("lines"), F.lit(0)).alias("lines"))
        .head()
    )
    remainder = tables["remainder"]
    unread = remainder.where("lossy").agg(F.sum("count").alias("count")).head()
    assert counts is not None
    assert unread is not None
    if not counts["lines"] and not unread["count"]:
        raise UsageError(f"{', '.join(paths)}: there is no line in it: an empty history proves nothing")
    for row in t.GUARANTEES:
        if row not in {found["guarantee"] for found in verdicts}:
            verdicts.append(
                {"guarantee": row, "verdict": "not checked", "checked": 0, "broken": 0, "undecidable": 0,
                 "runs": 0, "runs_checked": 0, "runs_broken": 0}
            )  # fmt: skip
    found = tables["violations"]
    latency = (
        tables["latency"]
        .groupBy("topic", "group")
        .agg(
            *summed("messages", "deliveries", "redelivered", "untimed"),
            *(F.max(name).alias(name) for name in ("p50", "p99", "max")),
        )
    )
    redeliveries = tables["redeliveries"].groupBy("topic", "group", "after").agg(*summed("deliveries"))
    counts_of_faults = (F.count("*").alias("times"), *summed(*t.COUNTED))
    faults = tables["faults"].groupBy("fault").agg(*counts_of_faults)
    others = {
        "remainder": remainder.orderBy(F.desc("count"), "run", "what"),
        "latency": latency.orderBy("topic", "group"),
        "redeliveries": redeliveries.orderBy("topic", "group", "after"),
        "faults": faults.orderBy("fault"),
        "clocks": tables["clocks"].orderBy(F.col("findings") == "", "run", F.desc("reference"), "clock"),
    }
    broken = _violations(found.where(F.col("verdict") == "broken"), verdicts, "broken")
    undecided = _violations(found.where(F.col("verdict") != "broken"), verdicts, "undecidable")
    tops = {"broken": broken, "undecided": undecided, **{name: _top(table) for name, table in others.items()}}
    return {
        **OUTPUT.mark,
        "paths": list(paths),
        "runs": counts["runs"],
        "lines": counts["lines"],
        "unread": unread["count"] or 0,
        "conclusion": conclusion(verdicts, unread["count"] or 0),
        "verdicts": verdicts,
        "counts": {name: count for name, (count, _) in tops.items()},
        **{name: rows for name, (_, rows) in tops.items()},
    }


def _top(table: DataFrame) -> tuple[int, list[dict[str, Any]]]:
    """How many rows there are, and the first."""
    rows = [row.asDict() for row in table.limit(SHOWN).collect()]
    return (table.count() if len(rows) == SHOWN else len(rows)), rows


def _violations(
    found: DataFrame, verdicts: Sequence[Mapping[str, Any]], some: str
) -> tuple[int, list[dict[str, Any]]]:
    """How many violations there are, and the first of each guarantee: so that many of one hide none of another."""
    count, shown = 0, []
    for row in verdicts:
        if row[some]:
            mine = found.where(F.col("guarantee") == row["guarantee"]).orderBy("run", "at", "id", "text")
            of_it, rows = _top(mine)
            count, shown = count + of_it, shown + rows
    return count, shown


def conclusion(verdicts: Sequence[Mapping[str, Any]], remainder: int) -> str:
    """The verdicts in one sentence, which says no more than they do."""
    by: dict[str, list[str]] = {}
    for row in verdicts:
        by.setdefault(row["verdict"], []).append(row["guarantee"])
    parts = [
        f"{what}: {', '.join(by[what])}"
        for what in ("broken", "not decidable", "not checked", "holds")
        if what in by
    ]
    if remainder:
        parts.append(f"{remainder:,} lines or writers were not read, or are missing")
    return "; ".join(parts) + "."


def exit_code(summary: Mapping[str, Any], *, strict: bool) -> int:
    """1 where a guarantee is broken; with ``strict`` 3 where one is not decided or something was not read."""
    said = {row["verdict"] for row in summary["verdicts"]}
    if "broken" in said:
        return 1
    nothing = "holds" not in said
    unread = any(row["lossy"] for row in summary["remainder"])
    return STRICT_CODE if strict and ("not decidable" in said or unread or nothing) else 0


def shown(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the verdicts, and what is broken."""
    colours = {"holds": "green", "broken": "red", "not decidable": "yellow", "not checked": "dim"}
    table = Table(title=f"{counted(summary['runs'], 'run')}, {counted(summary['lines'], 'line')}")
    counts = {
        "checked": "checked",
        "in runs": "runs_checked",
        "broken": "broken",
        "not decidable": "undecidable",
    }
    if summary["runs"] < 2:
        del counts["in runs"]
    for column in ("guarantee", "verdict", *counts):
        table.add_column(column, justify="left" if column in ("guarantee", "verdict") else "right")
    for row in summary["verdicts"]:
        (name, promise), verdict = named(row["guarantee"], t.GUARANTEES), row["verdict"]
        table.add_row(
            f"{name}: {promise}",
            f"[{colours[verdict]}]{verdict}[/]",
            *(f"{row[what]:,}" for what in counts.values()),
        )
    console.print(table)
    for row in summary["remainder"]:
        console.print(f"{row['count']:,} × {row['what']}: {row['detail']}", soft_wrap=True, markup=False)
    for row in summary["clocks"]:
        if row["findings"]:
            console.print(
                f"clock of {row['writers']} ({row['run']}) {row['findings']}", soft_wrap=True, markup=False
            )
    for row in summary["broken"]:
        where = " ".join(str(row[what]) for what in ("run", "group", "id") if row[what] is not None)
        console.print(f"BROKEN {row['guarantee']} {where}: {row['text']}", soft_wrap=True, markup=False)
    more = summary["counts"]["broken"] - len(summary["broken"])
    if more:
        console.print(f"BROKEN {more:,} times more, in tables/violations", soft_wrap=True, markup=False)
    console.print(summary["conclusion"], soft_wrap=True, markup=False)


@click.command("audit")
@click.option(
    "--history", "paths", multiple=True, required=True,
    help="A file, a directory with *.jsonl or *.jsonl.gz below it, or a pattern; again for more.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where to write."
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier run left in OUT, once all is done.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json and nothing else.")
@click.option(
    "--strict", is_flag=True, help=f"End with {STRICT_CODE} where not everything is decided or was read."
)
@click.option(
    "--drained", is_flag=True, help="Take runs that do not say so to be over: what is not settled is lost."
)
def command(
    paths: tuple[str, ...], out: Path, overwrite: bool, as_json: bool, strict: bool, drained: bool
) -> None:
    """Check every guarantee of docs/protocol.md against what nodes and clients wrote (docs/history.md).

    Each guarantee holds, is broken, is not decidable (with how often), or was not checked. Writes Parquet tables,
    summary.json and audit.html to OUT. Exits with 1 where a guarantee is broken, and prints the messages.
    """
    OUTPUT.check(out, overwrite)
    spark = job_session("quorumq audit")
    histories = read(spark, paths)
    fit(spark, histories.bytes)
    with OUTPUT.staged(out, overwrite) as new, interruptible():
        tables = audited(histories, new, drained=drained)
        summary = summarised(tables, paths)
        (new / SUMMARY).write_text(json.dumps(summary, indent=1, default=float) + "\n")
        (new / PAGE).write_text(page(summary, t.GUARANTEES), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(summary, default=float))
    else:
        console = Console(highlight=False)
        shown(console, summary)
        console.print(f"{out / PAGE}", soft_wrap=True, markup=False)
    sys.exit(exit_code(summary, strict=strict))

"""`python -m spark audit`: every guarantee asked of histories of any size, and the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

import click
import pyarrow as pa
from pyarrow.parquet import write_table
from rich.console import Console
from rich.table import Table

from quorumq.audit.audit import STRICT_CODE, Audit, audit, exit_code, summarised
from quorumq.audit.files import check_not_empty
from quorumq.audit.words import lines_of, rows_of
from quorumq.core.values.printable import plural, printable

from ..folders import Folder, folders_of
from ..histories import Histories, Parts, arrow_schema, read
from ..report.audit import page
from ..session import bytes_in, check_shared, fit, interruptible, job_session, written
from .output import SUMMARY, Output, options_of_out

OUTPUT: Final = Output("audit", 1)

SCHEMAS: Final = {
    "verdicts": "run STRING, guarantee STRING, verdict STRING, checked BIGINT, broken BIGINT, undecidable BIGINT",
    "remainder": "run STRING, kind STRING, detail STRING, count BIGINT, gap BOOLEAN, lossy BOOLEAN",
    "unread": "file STRING, run STRING, who STRING, kind STRING, reason STRING, harmless BOOLEAN, line STRING",
    "latency": "run STRING, topic STRING, group STRING, deliveries BIGINT, messages BIGINT, redelivered BIGINT, "
    "untimed BIGINT, p50 DOUBLE, p90 DOUBLE, p99 DOUBLE, max DOUBLE, attempts_p50 INT, attempts_p99 INT, "
    "attempts_max INT",
    "redeliveries": "run STRING, topic STRING, group STRING, after STRING, deliveries BIGINT",
    "faults": "run STRING, fault STRING, begin DOUBLE, end DOUBLE, nodes STRING, published BIGINT, unknown BIGINT, "
    "delivered BIGINT, acked BIGINT, broken BIGINT",
    "divergence": "run STRING, topic STRING, partition INT, group STRING, producer_id STRING, seq BIGINT, "
    "listed_by STRING, missing_at STRING",
    "runs": "run STRING, healed_at DOUBLE, healed_high DOUBLE, bound DOUBLE, drained_at DOUBLE, ended_at DOUBLE, "
    "ends_at DOUBLE, begins_at DOUBLE, rf DOUBLE, hold_min DOUBLE, simulated BOOLEAN, unstopped BOOLEAN, "
    "steady BOOLEAN, truncated BIGINT, lines BIGINT, writers BIGINT, clocks BIGINT, day_asked BOOLEAN, gaps BIGINT, "
    "lossy BOOLEAN",
    "clocks": "run STRING, clock STRING, writers STRING, reference BOOLEAN, placed DOUBLE, ahead DOUBLE, "
    "within DOUBLE, rate DOUBLE, rate_within DOUBLE, day_ahead DOUBLE, findings STRING",
}  # fmt: skip
"""The tables but `violations`, which alone grow with the input (spark/histories.py)."""


def audited(histories: Histories, out: Folder, *, drained: bool = False) -> Audit:
    """Audit histories, and write the tables.

    Lines are read once and written in parts, so that no row is kept in memory for later.

    Args:
        histories: the result of `spark.histories.read`.
        out: a directory. The tables, those of `SCHEMAS` and `violations`, are under `tables`; files that only serve
            them are removed in the end.
        drained: True if runs that do not say so are over, with nothing left to deliver.
    """
    steps, tables = out / "steps", out / "tables"
    parts = Parts(histories, steps)
    result = audit(parts.summary(), parts, drained=drained)
    written(parts.findings(result.judged.findings), tables / "violations")
    for name, rows in result.tables().items():
        folder = (tables / name).local
        folder.mkdir(parents=True)
        schema = arrow_schema(SCHEMAS[name])
        columns = {column: [row[column] for row in rows] for column in schema.names}
        write_table(pa.table(columns, schema), folder / "part-00000.parquet")
    steps.remove()
    return result


def compared(summary: Mapping[str, Any], before: Mapping[str, Any] | None, out: str) -> dict[str, Any]:
    """Return a summary with what changed since an earlier run, whose summary is ``before``, in ``out``.

    Each verdict gets ``was``, the verdict before, and each cause ``status``: `new` or `ongoing`. ``gone`` are the
    causes of that run that are not in this one. Without that run all are null.
    """
    if before is None:
        rows = {name: [{**row, key: None} for row in summary[name]] for name, key in _COMPARED.items()}
        return {**summary, **rows, "previous": None, "gone": None}
    was = {row["guarantee"]: row["verdict"] for row in before["verdicts"]}
    verdicts = [{**row, "was": was.get(row["guarantee"])} for row in summary["verdicts"]]
    named = itemgetter("verdict", "guarantee", "cause")
    known, now = (set(map(named, run["causes"])) for run in (before, summary))
    causes = [{**row, "status": "ongoing" if named(row) in known else "new"} for row in summary["causes"]]
    gone = [{name: row[name] for name in GONE} for row in before["causes"] if named(row) not in now]
    previous = {"out": out, **{name: before[name] for name in ("runs", "lines")}}
    return {**summary, "verdicts": verdicts, "causes": causes, "previous": previous, "gone": gone}


_COMPARED: Final = {"verdicts": "was", "causes": "status"}
GONE: Final = ("verdict", "guarantee", "cause", "count")


# ------------------------------------------------------------------------ the command

PAGE: Final = "audit.html"


def shown(console: Console, summary: Mapping[str, Any]) -> None:
    colours = {"holds": "green", "broken": "red", "not decidable": "yellow", "not checked": "dim"}
    table = Table(title=f"{plural(summary['runs'], 'run')}, {plural(summary['lines'], 'line')}")
    columns, rows = rows_of(summary)
    for column in columns:
        table.add_column(column.lstrip(">|"), justify="right" if column.startswith(">") else "left")
    for name, verdict, *counts in rows:
        table.add_row(name, f"[{colours[verdict]}]{verdict}[/]", *counts)
    console.print(table)
    for line in lines_of(summary):
        console.print(printable(line), soft_wrap=True, markup=False)
    if summary["previous"]:
        new = sum(row["status"] == "new" for row in summary["causes"])
        line = f"since {summary['previous']['out']}: {plural(new, 'cause')} new, {len(summary['gone'])} gone"
        console.print(line, soft_wrap=True, markup=False)


@click.command("audit")
@click.option(
    "--history", "paths", multiple=True, required=True,
    help="A file, a directory with *.jsonl or *.jsonl.gz below it, or a pattern; again for more.",
)  # fmt: skip
@options_of_out
@click.option(
    "--strict", is_flag=True, help=f"End with {STRICT_CODE} where not everything is decided or was read."
)
@click.option(
    "--drained", is_flag=True, help="Treat every run as over: a message that is not settled is lost."
)
def command(
    paths: tuple[str, ...],
    out: str,
    master: str | None,
    shared: bool,
    previous: str | None,
    overwrite: bool,
    as_json: bool,
    strict: bool,
    drained: bool,
) -> None:
    """Check every guarantee of docs/protocol.md against what nodes and clients wrote (docs/history.md).

    Each guarantee holds, is broken, is not decidable (with how often), or was not checked. Writes Parquet tables,
    summary.json and audit.html to OUT. Exits with 1 if a guarantee is broken, and prints the messages.
    """
    session = partial(job_session, "quorumq audit", size=bytes_in(*paths), master=master)
    spark, target, earlier = folders_of(session, out, previous)
    OUTPUT.check(target, overwrite)
    check_shared(target, shared, master)
    before = None if earlier is None else OUTPUT.read_head(earlier)
    spark = spark or session()
    check_shared(target, shared, spark.sparkContext.master)
    histories = read(spark, paths)
    fit(spark, histories.bytes)
    with OUTPUT.staged(target, overwrite) as new, interruptible():
        summary = {**OUTPUT.mark, **summarised(audited(histories, new, drained=drained), paths)}
        check_not_empty(summary["lines"], summary["unread"], paths)
        summary = compared(summary, before, previous or "")
        (new / SUMMARY).local.write_text(json.dumps(summary, indent=1, default=float) + "\n")
        (new / PAGE).local.write_text(page(summary), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(summary, default=float))
    else:
        console = Console(highlight=False)
        shown(console, summary)
        console.print(f"{target / PAGE}", soft_wrap=True, markup=False)
    sys.exit(exit_code(summary, strict=strict))

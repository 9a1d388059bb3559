"""`python -m spark deadletters`: from dead letters to tables, a summary, a plan and a report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..folders import Folder, folders_of
from ..session import bytes_in, check_shared, fit, job_session
from ..transforms.plan import VERDICTS, Limits
from .deaths_analysis import PLAN, REPORT, Settings, run
from .deaths_input import OUTPUT, head_since, read, read_previous_head
from .deaths_table import check_table
from .output import options_of_out


def _decide(ctx: click.Context, param: click.Parameter, value: Iterable[str]) -> dict[str, str]:
    decisions = {}
    for text in value:
        failure, _, verdict = text.rpartition("=")
        if not failure or verdict not in VERDICTS:
            raise click.BadParameter(f"{text!r} is not FAILURE=VERDICT, with {', '.join(VERDICTS)}")
        decisions[failure] = verdict
    return decisions


def _time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-11-22T09:00:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@click.command("deadletters")
@click.option("--data", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
              help="A node's data directory, read offline; give those of all nodes.")  # fmt: skip
@click.option("--nodes", default="", metavar="HOST:PORT,…", help="A running cluster, read by peeking.")
@click.option("--parquet", metavar="DIR", help="Rows of the table `deadletters` in Parquet.")
@options_of_out
@click.option(
    "--since",
    metavar="OUT",
    help="An earlier run's OUT, of --data: read only the dead letters that came since.",
)
@click.option("--table", default="", metavar="NAME",
              help="A table of a catalog, as catalog.db.deaths: write the table `deaths` there too.")  # fmt: skip
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; may be repeated.")
@click.option(
    "--payloads", is_flag=True, help="Keep keys, headers and payloads, and show some of them in the report."
)
@click.option("--decide", multiple=True, callback=_decide, metavar="FAILURE=VERDICT",
              help="The plan's verdict (redrive, hold, discard) for a failure, whatever the rules say.")  # fmt: skip
@click.option("--quiet", "quiet_s", default=3600, show_default=True, type=click.IntRange(1), metavar="SECONDS",
              help="A failure not seen for so long is not happening any more.")  # fmt: skip
@click.option("--rate", "rate_max", default=100.0, show_default=True, type=click.FloatRange(0, min_open=True),
              metavar="N", help="Redrive at most so many messages a second.")  # fmt: skip
@click.option("--as-of", callback=_time, metavar="TIME", help="Analyse as if it were this time, not now.")
@click.option(
    "--strict",
    is_flag=True,
    help="End with 1 if something could not be read that may be missing for it: all but a torn last write, which a "
    "running node mostly has. All is reported anyway.",
)
def command(
    data: tuple[Path, ...],
    nodes: str,
    parquet: str | None,
    out: str,
    overwrite: bool,
    previous: str | None,
    since: str | None,
    table: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    payloads: bool,
    decide: dict[str, str],
    quiet_s: int,
    rate_max: float,
    as_of: datetime | None,
    strict: bool,
    master: str | None,
    shared: bool,
    as_json: bool,
) -> None:
    """Analyse dead letters: tables in Parquet, summary.json, a redrive plan and one HTML file to look at.

    They are read from the data directories of all nodes (running or not), or from a running cluster. Without --payloads
    no key, header or payload is kept anywhere in OUT; what consumers reported (error, text, stack) is.

    The plan is carried out by `quorumq deadletters redrive --plan OUT/plan.jsonl`.
    """
    if sum(map(bool, (data, nodes, parquet))) != 1:
        raise click.UsageError(
            "say what to read: --data DIR for each node, or --nodes HOST:PORT,…, or --parquet DIR"
        )
    if since is not None and previous is not None:
        raise click.UsageError("--since reads a part only, and --previous compares all: give one of them")
    size = None if nodes else bytes_in(*data, *([] if parquet is None else [parquet]))
    session = partial(job_session, "quorumq deadletters", size=size, master=master)
    spark, target, before, after, rows = folders_of(session, out, previous, since, parquet)
    OUTPUT.check(target, overwrite)
    check_shared(target, shared, master)
    if before is not None:
        read_previous_head(before)
    if after is not None:
        head_since(after, bool(data))
    spark = spark or session()
    check_shared(target, shared, spark.sparkContext.master)
    fit(spark, size or 0)
    if table:
        check_table(spark, table)
    inputs = read(spark, data=data, nodes=nodes, parquet=rows, topics=topics, groups=groups, since=after)
    settings = Settings(
        now=as_of or datetime.now(UTC),
        previous=before,
        payloads=payloads,
        overwrite=overwrite,
        table=table,
        limits=Limits(quiet_s=quiet_s, rate_max=rate_max),
        decide=decide,
    )
    summary = run(inputs, target, settings)
    show(summary, target, as_json=as_json, strict=strict)


def show(summary: dict[str, Any], target: Folder, *, as_json: bool, strict: bool) -> None:
    """Print a summary; exit with 1 if it is strict and something was not read."""
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
    else:
        for line in told(summary, target):
            click.echo(line)
    problems = summary["problems"]["count"]
    if problems:
        click.echo(f"{problems:,} places could not be read: see {target / REPORT}", err=True)
        if strict and problems > summary["problems"]["harmless"]:
            raise click.exceptions.Exit(1)


def told(summary: dict[str, Any], out: Folder) -> list[str]:
    """Return the lines for the operator at the end."""
    if not summary["deaths"]:
        return [f"no dead letters in {summary['source']}", f"report: {out / REPORT}"]
    plan = summary["plan"]
    lines = [
        f"{summary['deaths']:,} dead letters of {summary['failures']:,} kinds, {summary['dead']:,} of them unresolved",
        f"plan: redrive {plan['redrive']['messages']:,}, hold {plan['hold']['messages']:,}, "
        f"discard {plan['discard']['messages']:,}",
        f"report: {out / REPORT}",
    ]
    if plan["redrive"]["messages"]:
        lines.append(f"next: quorumq deadletters redrive --plan {out / PLAN} --dry-run")
    if summary["status"] is not None:
        status = ", ".join(f"{count:,} {name}" for name, count in summary["status"].items())
        lines.insert(1, f"since {summary['previous']['as_of']}: {status}")
    return lines

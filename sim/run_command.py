"""`python -m sim run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from quorumq.history import HistoryWriter, Row
from sim.campaign import Report, commit, run_campaign
from sim.profiles import PROFILES
from sim.replay import replay
from sim.runner import Outcome
from sim.schedule import Schedule, draw


@click.command("run")
@click.option(
    "--seeds", default=100, show_default=True, type=click.IntRange(1), help="How many seeds to run."
)
@click.option("--seed", default=None, type=int, help="Run this one, or start here with --seeds.")
@click.option(
    "--profile",
    default="swarm",
    show_default=True,
    type=click.Choice(sorted(PROFILES)),
    help="What the runs are like.",
)
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1, 256), help="Processes to run on."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option(
    "--history",
    "history_path",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the history of one seed to this file (docs/history.md).",
)
@click.option(
    "--schedule",
    "schedule_path",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the schedule in this file (JSON, as printed for one seed).",
)
@click.option(
    "--without",
    "rule",
    default=None,
    metavar="RULE",
    help="Leave out one rule of the protocol (names of sim/rules); with --seed or --schedule.",
)
@click.option("--keep-going", is_flag=True, help="Do not stop at the tenth seed that fails.")
def run(
    seeds: int,
    seed: int | None,
    profile: str,
    jobs: int,
    as_json: bool,
    history_path: Path | None,
    schedule_path: Path | None,
    rule: str | None,
    keep_going: bool,
) -> None:
    """Run whole clusters of the real node core under random faults, and judge what happened.

    One seed and one commit give one run. With one seed (or --schedule) its schedule is printed in full first.
    Exits with 1 when a promise was broken, or when a campaign of 1,000 seeds or more missed something that it must see.
    """
    source = click.get_current_context().get_parameter_source("seeds")
    single = schedule_path is not None or history_path is not None
    single = single or (seed is not None and source == click.core.ParameterSource.DEFAULT)
    if single:
        if schedule_path is not None:
            try:
                schedule = Schedule.from_json(schedule_path.read_text())
            except ValueError as error:
                raise click.ClickException(f"{schedule_path}: {error}") from None
        else:
            schedule = draw(seed or 0, profile)
        sys.exit(_run_one(schedule, as_json, history_path, rule))
    if rule is not None:
        raise click.UsageError("--without goes with one run: say --seed N")
    first = seed or 0
    console = Console(stderr=as_json, highlight=False)
    console.print(f"commit {commit()}, profile {profile}, seeds {first} to {first + seeds - 1}, {jobs} jobs")

    def on_outcome(outcome: Outcome, report: Report) -> bool:
        if outcome.violations:
            console.print(f"[red]seed {outcome.seed}[/]: {outcome.violations[0]}", soft_wrap=True)
            console.print(f"  python -m sim run --profile {profile} --seed {outcome.seed}", soft_wrap=True)
        if report.seeds % 1000 == 0:
            console.print(f"{report.seeds} seeds, {report.failed} failed, {report.seconds:.0f} s")
        return report.failed >= 10 and not keep_going

    report = run_campaign(profile, first, seeds, jobs, on_outcome)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        _print_report(console, report)
    sys.exit(0 if report.ok else 1)


def _run_one(schedule: Schedule, as_json: bool, history_path: Path | None, rule: str | None) -> int:
    if not as_json:
        click.echo(f"commit {commit()}")
        click.echo(schedule.to_json())
    wanted = history_path is not None
    try:
        outcome = replay(schedule, rule, full=wanted, keep=wanted)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from None
    if history_path is not None:
        try:
            write_rows(history_path, outcome.rows)
        except OSError as error:
            raise click.ClickException(f"{history_path} cannot be written: {error.strerror}") from None
    if as_json:
        facts = {
            "commit": commit(),
            "schedule": json.loads(schedule.to_json()),
            "ok": not outcome.violations,
            "violations": outcome.violations,
            "trace": outcome.trace,
            "seen": outcome.seen,
            "counts": outcome.counts,
        }
        click.echo(json.dumps(facts))
    else:
        for violation in outcome.violations:
            click.echo(f"BROKEN {violation}")
        click.echo(f"seen: {', '.join(sorted(outcome.seen)) or 'nothing'}")
        messages, cpu = outcome.counts["messages"], outcome.counts["cpu"]
        click.echo(f"{messages:.0f} messages in {cpu:.2f} s of CPU; trace {outcome.trace}")
        click.echo("ok" if not outcome.violations else f"{len(outcome.violations)} broken promises")
    return 1 if outcome.violations else 0


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write a run's history to a new file; every line is checked against the schema."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        run_name = rows[0]["run"]
        first = rows[0]
        at = (first["at"], first["wall_ms"])
        writer = HistoryWriter(file, run=run_name, who="sim", settings=first["settings"], clock=lambda: at)
        for row in rows[1:]:
            writer.append(row)
        writer.flush()


def _print_report(console: Console, report: Report) -> None:
    table = Table(title=f"{report.seeds} seeds, {report.failed} failed")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report.rates().items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    seen = Table(title="seen in how many seeds")
    seen.add_column("what")
    seen.add_column("seeds", justify="right")
    for name, count in sorted(report.seen.items()):
        seen.add_row(name, f"{count:,}")
    console.print(seen)
    for title, what in (("messages", "sent"), ("faults", "fault")):
        kinds = ", ".join(f"{kind} {count:g}" for kind, count in report.per_seed(what).items())
        console.print(f"{title} per seed: {kinds}")
    for name in report.never_seen:
        console.print(f"[red]never seen[/]: {name}")
    console.print("ok" if report.ok else "[red]FAILED[/]")

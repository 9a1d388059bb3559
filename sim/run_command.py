"""`python -m sim run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sim import command_line
from sim.campaign import Report, commit, run_campaign
from sim.replay import drawn, replay
from sim.rules import Rule
from sim.runner import Outcome
from sim.schedule import Schedule

FAILURES_MAX = 10
"""Failed seeds after which a campaign ends."""


@click.command("run")
@command_line.seeds(100)
@click.option("--seed", default=None, type=int, help="Run this one, or start here with --seeds.")
@command_line.profile
@command_line.jobs
@command_line.as_json
@command_line.file(
    "--history", "history_path", text="Write the history of one seed to this file (docs/history.md)."
)
@command_line.schedule("Run the schedule in this file (JSON, as printed for one seed).")
@command_line.without
def run(
    seeds: int,
    seed: int | None,
    profile: str,
    jobs: int,
    as_json: bool,
    history_path: Path | None,
    path: Path | None,
    rule: Rule | None,
) -> None:
    """Run whole clusters of the real node core under random faults, and check the histories.

    One seed and one commit give one run. With one seed (or --schedule) its schedule is printed in full first.
    Exits with 1 when a promise was broken, or when a campaign of 1,000 seeds or more missed something that it must see.
    """
    source = click.get_current_context().get_parameter_source("seeds")
    one_seed = seed is not None and source == click.core.ParameterSource.DEFAULT
    if path is not None or history_path is not None or one_seed:
        schedule = command_line.schedule_from(path) if path is not None else drawn(seed or 0, profile)
        sys.exit(_run_one(schedule, as_json, history_path, rule))
    if rule is not None:
        raise click.UsageError("--without goes with one run: say --seed N")
    first = seed or 0
    console = Console(stderr=as_json, highlight=False)
    console.print(f"commit {commit()}, profile {profile}, seeds {first} to {first + seeds - 1}, {jobs} jobs")
    report, ended = _run_many(console, profile, first, seeds, jobs)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        print_report(console, report)
    sys.exit(130 if not ended else 0 if report.ok else 1)


def repeats(profile: str, seed: int) -> list[str]:
    """Return the commands that run a seed again, and make it small."""
    return [f"python -m sim {command} --profile {profile} --seed {seed}" for command in ("run", "shrink")]


def _run_many(console: Console, profile: str, first: int, seeds: int, jobs: int) -> tuple[Report, bool]:
    """Run the campaign, with its progress; return its results, and False if Ctrl-C stopped it."""
    latest = Report(profile)
    with command_line.progress(console, False, seeds) as progress:
        task = progress.add_task("seeds", total=seeds)

        def on_outcome(outcome: Outcome, report: Report) -> bool:
            nonlocal latest
            latest = report
            if outcome.violations:
                console.print(f"[red]seed {outcome.seed}[/]: {outcome.violations[0]}", soft_wrap=True)
                for again in repeats(profile, outcome.seed):
                    console.print(f"  {again}", soft_wrap=True)
            if report.seeds % 1000 == 0:
                console.print(f"{report.seeds} seeds, {report.failed} failed, {report.seconds:.0f} s")
            rate = report.seeds / max(report.seconds, 1e-9)
            description = f"{report.failed} failed, {rate:.1f} seeds/s"
            progress.update(task, completed=report.seeds, description=description)
            return report.failed >= FAILURES_MAX

        try:
            return run_campaign(profile, first, seeds, jobs, on_outcome), True
        except KeyboardInterrupt:
            console.print(f"stopped: --seed {first + latest.seeds} --seeds N goes on", soft_wrap=True)
            return latest, False


def _run_one(schedule: Schedule, as_json: bool, history_path: Path | None, rule: Rule | None) -> int:
    if not as_json:
        click.echo(f"commit {commit()}")
        click.echo(schedule.to_json())
    full = history_path is not None
    outcome = replay(schedule, rule, full=full, keep=full)
    if history_path is not None:
        command_line.write_rows(history_path, outcome.rows)
    if as_json:
        fields = {
            "commit": commit(),
            "schedule": json.loads(schedule.to_json()),
            "ok": not outcome.violations,
            "violations": outcome.violations,
            "trace": outcome.trace,
            "seen": outcome.seen,
            "counts": outcome.counts,
        }
        click.echo(json.dumps(fields))
    else:
        for violation in outcome.violations:
            click.echo(f"BROKEN {violation}")
        click.echo(f"seen: {', '.join(sorted(outcome.seen)) or 'nothing'}")
        messages, cpu = outcome.counts["messages"], outcome.counts["cpu"]
        click.echo(f"{messages:.0f} messages in {cpu:.2f} s of CPU; trace {outcome.trace}")
        click.echo("ok" if not outcome.violations else f"{len(outcome.violations)} broken promises")
    return 1 if outcome.violations else 0


def print_report(console: Console, report: Report) -> None:
    """Print a campaign's results, and its counts per seed."""
    table = Table(
        "count", "per seed", title=f"{report.seeds} seeds, {report.failed} failed, {report.seconds:.0f} s"
    )
    for name, count in sorted(report.counts.items()):
        table.add_row(name, f"{count / max(1, report.seeds):,.2f}")
    console.print(table)
    for name in report.never_seen:
        console.print(f"[red]never seen[/]: {name}")
    console.print("ok" if report.ok else "[red]FAILED[/]")

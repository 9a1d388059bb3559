"""`python -m sim run`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sim import command_line
from sim.campaign import OtherCampaign, Report, commit, resumed, run_campaign, saved
from sim.replay import replay
from sim.runner import Outcome
from sim.schedule import Schedule, draw

SAVE_EVERY_S = 10.0
"""Seconds between two saves of a campaign that can be resumed."""


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
@click.option("--keep-going", is_flag=True, help="Do not stop at the tenth seed that fails.")
@click.option(
    "--until-failure", is_flag=True, help="Run seed after seed until one fails; --seeds is not looked at."
)
@command_line.file(
    "--resume",
    "resume_path",
    text="Keep what the campaign has come to in this file, and go on from there if it is there already.",
)
def run(
    seeds: int,
    seed: int | None,
    profile: str,
    jobs: int,
    as_json: bool,
    history_path: Path | None,
    path: Path | None,
    rule: str | None,
    keep_going: bool,
    until_failure: bool,
    resume_path: Path | None,
) -> None:
    """Run whole clusters of the real node core under random faults, and check what happened.

    One seed and one commit give one run. With one seed (or --schedule) its schedule is printed in full first.
    Exits with 1 when a promise was broken, or when a campaign of 1,000 seeds or more missed something that it must see.
    """
    source = click.get_current_context().get_parameter_source("seeds")
    single = path is not None or history_path is not None
    one_seed = seed is not None and source == click.core.ParameterSource.DEFAULT
    single = single or (one_seed and not until_failure and resume_path is None)
    if single:
        schedule = command_line.schedule_from(path) if path is not None else draw(seed or 0, profile)
        sys.exit(_run_one(schedule, as_json, history_path, rule))
    if rule is not None:
        raise click.UsageError("--without goes with one run: say --seed N")
    first = seed or 0
    console = Console(stderr=as_json, highlight=False)
    report = Report(profile)
    if resume_path is not None and resume_path.exists():
        try:
            report = resumed(resume_path.read_text(), profile, first)
        except (OtherCampaign, OSError) as error:
            raise click.ClickException(f"{resume_path}: {error}") from None
        console.print(f"{report.seeds:,} seeds of it are in {resume_path}")
    last = "until one fails" if until_failure else f"to {first + seeds - 1}"
    console.print(f"commit {commit()}, profile {profile}, seeds {first} {last}, {jobs} jobs")
    ended = _run_many(console, report, first, None if until_failure else seeds, jobs, keep_going, resume_path)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        print_report(console, report)
    sys.exit(130 if not ended else 0 if report.ok else 1)


def repeats(profile: str, seed: int) -> list[str]:
    """Return the commands that run a seed again, and make it small."""
    return [f"python -m sim {command} --profile {profile} --seed {seed}" for command in ("run", "shrink")]


def _run_many(
    console: Console,
    report: Report,
    first: int,
    seeds: int | None,
    jobs: int,
    keep_going: bool,
    resume_path: Path | None,
) -> bool:
    """Run the campaign, with its progress; return True if it came to its end, and was not stopped by Ctrl-C."""
    saved_at = report.seconds
    failures_max = 1 if seeds is None else 10

    def save() -> None:
        nonlocal saved_at
        saved_at = report.seconds
        if resume_path is not None:
            beside = resume_path.with_name(resume_path.name + ".new")
            command_line.written(beside, saved(report, first))
            beside.replace(resume_path)

    save()  # if it cannot be kept, nothing is run
    try:
        with command_line.progress(console, False, seeds) as progress:
            task = progress.add_task("seeds", total=seeds, completed=report.seeds)

            def on_outcome(outcome: Outcome, report: Report) -> bool:
                if outcome.violations:
                    console.print(f"[red]seed {outcome.seed}[/]: {outcome.violations[0]}", soft_wrap=True)
                    for again in repeats(report.profile, outcome.seed):
                        console.print(f"  {again}", soft_wrap=True)
                if report.seeds % 1000 == 0:
                    console.print(f"{report.seeds} seeds, {report.failed} failed, {report.seconds:.0f} s")
                rate = report.seeds / max(report.seconds, 1e-9)
                description = f"{report.failed} failed, {rate:.1f} seeds/s"
                progress.update(task, completed=report.seeds, description=description)
                if report.seconds - saved_at > SAVE_EVERY_S:
                    save()
                return report.failed >= failures_max and (seeds is None or not keep_going)

            run_campaign(report.profile, first, seeds, jobs, on_outcome, report)
    except KeyboardInterrupt:
        go_on = f"--resume {resume_path} goes on" if resume_path else "with --resume FILE it could go on"
        console.print(f"stopped after {report.seeds:,} seeds; {go_on}", soft_wrap=True)
        return False
    finally:
        save()
    return True


def _run_one(schedule: Schedule, as_json: bool, history_path: Path | None, rule: str | None) -> int:
    if not as_json:
        click.echo(f"commit {commit()}")
        click.echo(schedule.to_json())
    full = history_path is not None
    try:
        outcome = replay(schedule, rule, full=full, keep=full)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from None
    if history_path is not None:
        command_line.write_rows(history_path, outcome.rows)
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


def print_report(console: Console, report: Report) -> None:
    """Print a campaign's results, and its content."""
    table = Table(title=f"{report.seeds} seeds, {report.failed} failed")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report.rates().items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    console.print(bars("seen in how many seeds", report.seen, report.seeds, sorted(report.seen)))
    kinds = sorted(report.with_fault, key=lambda kind: (-report.with_fault[kind], kind))
    console.print(bars("seeds with this kind of fault", report.with_fault, report.seeds, kinds))
    counts = {f"{number} faults": seeds for number, seeds in report.faults.items()}
    numbers = [f"{number} faults" for number in sorted(report.faults)]
    console.print(bars("seeds with so many faults", counts, report.seeds, numbers))
    for title, prefix in (("messages", "sent"), ("faults", "fault")):
        kinds_of = ", ".join(f"{kind} {count:g}" for kind, count in report.per_seed(prefix).items())
        console.print(f"{title} per seed: {kinds_of}")
    for name in report.never_seen:
        console.print(f"[red]never seen[/]: {name}")
    console.print("ok" if report.ok else "[red]FAILED[/]")


def bars(title: str, counts: Mapping[str, int], total: int, order: Iterable[str]) -> Table:
    """Return a histogram."""
    table = Table(title=title)
    table.add_column("what")
    table.add_column("seeds", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True)
    for name in order:
        share = counts[name] / max(1, total)
        table.add_row(name, f"{counts[name]:,}", f"{100 * share:.1f} %", "█" * round(20 * share))
    return table

"""`python -m sim shell`."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from pathlib import Path

import click
from rich.console import Console

from sim import command_line
from sim.campaign import commit
from sim.runner import spread
from sim.schedule import Schedule
from sim.shell.run import ShellOutcome, draw_shell, run_shell


@click.command("shell")
@command_line.seeds(100)
@click.option("--seed", default=0, show_default=True, type=int, help="The first.")
@command_line.schedule("Run this one schedule (JSON, as a failing seed's is printed).")
@command_line.jobs
@command_line.file(
    "--history", text="Write the history of the last run to this file; `sim diagram` draws it."
)
@command_line.as_json
def shell(seeds: int, seed: int, path: Path | None, jobs: int, history: Path | None, as_json: bool) -> None:
    """Run the production shell in virtual time under random faults: nodes, wire, journals and the client library.

    Nothing waits, and one seed and one commit give one run. What each node is asked, and the checkers, are those of
    `sim real`. Exits with 1 when a promise was broken, or something raised.
    """
    drawn = range(seed, seed + seeds)
    schedules = [command_line.schedule_from(path)] if path else [draw_shell(number) for number in drawn]
    console = Console(stderr=True, highlight=False)
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failures: list[ShellOutcome] = []
    cpu = virtual = 0.0
    with command_line.progress(console, as_json, len(schedules)) as progress:
        task = progress.add_task("runs", total=len(schedules))
        for outcome in spread(run_quietly, schedules, jobs):
            cpu += outcome.cpu
            virtual += outcome.virtual
            if outcome.verdict is not None:
                counts += outcome.verdict.counts
                faults += outcome.verdict.faults
            if outcome.violations:
                failures.append(outcome)
                console.print(f"[red]seed {outcome.seed}[/]: {outcome.violations[0]}", soft_wrap=True)
                console.print(f"  python -m sim shell --seed {outcome.seed} --seeds 1 --history h.jsonl")
            progress.update(task, advance=1, description=f"{len(failures)} failed")
    if history is not None:
        command_line.written(history, "".join(json.dumps(row) + "\n" for row in outcome.rows))
    facts = {
        "commit": commit(),
        "runs": len(schedules),
        "failed": len(failures),
        "failures": [{"seed": failed.seed, "violations": failed.violations} for failed in failures[:100]],
        "counts": dict(sorted(counts.items())),
        "faults": dict(sorted(faults.items())),
        "cpu_seconds": round(cpu, 2),
        "virtual_seconds": round(virtual, 1),
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(
            f"commit {commit()}, {len(schedules)} runs of {virtual / len(schedules):.1f} virtual seconds"
        )
        click.echo(", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())) or "no faults")
        click.echo(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
        click.echo(f"{len(schedules) / cpu:.1f} runs per CPU second")
        click.echo("ok" if not failures else f"{len(failures)} of them failed")
    sys.exit(1 if failures else 0)


def run_quietly(schedule: Schedule) -> ShellOutcome:
    """Run once, quietly: under faults the client library has much to warn of."""
    logging.getLogger("quorumq").setLevel(logging.CRITICAL)
    return run_shell(schedule)

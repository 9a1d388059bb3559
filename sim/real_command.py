"""`python -m sim real`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import click
import trio
from rich.console import Console

from sim import command_line
from sim.campaign import commit
from sim.real.plan import KINDS, draw_real
from sim.real.run import RealRun, Verdict
from sim.real.workload import workload_of
from sim.schedule import Schedule


@click.command("real")
@click.option("--nodes", default=5, show_default=True, type=click.IntRange(3, 9), help="How many nodes.")
@click.option(
    "--minutes",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.05, 1440),
    help="How long faults go on.",
)
@click.option(
    "--seed", default=0, show_default=True, type=int, help="Of the faults; processes' timing is not in it."
)
@command_line.schedule("Take nodes, time and faults from this file (JSON, as --print writes it).")
@click.option("--print", "only_print", is_flag=True, help="Print the schedule and do nothing.")
@command_line.file(
    "--workload", text="A Python file with TASKS and PRODUCERS of your own (docs/verification.md)."
)
@click.option(
    "--keep",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave data directories, logs and histories here; a new or empty directory.",
)
@command_line.as_json
def real(
    nodes: int,
    minutes: float,
    seed: int,
    path: Path | None,
    only_print: bool,
    workload: Path | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Run a cluster of real processes on this machine under faults, and check the history.

    Nodes are killed, lose power, are stopped and frozen; one node's directory is lost, restored or damaged; links
    between them and to clients are cut, in one direction or both, and delayed; disks are full or slow; times of day
    jump. Then all is healed, and every message must be settled. With
    --workload it is your producers and handlers that run. Ctrl-C stops everything. Exits with 1 when a promise was
    broken, or the workload's own check failed, and with 3 when too few faults met a node that had started.
    """
    schedule = command_line.schedule_from(path) if path is not None else draw_real(seed, nodes, 60 * minutes)
    if only_print:
        click.echo(schedule.to_json())
        return
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: it is not empty")
    console = Console(stderr=True, highlight=False)
    seconds = schedule.options.fault_time
    with command_line.progress(console, as_json, round(seconds), counted=False) as progress:
        task = progress.add_task("starting", total=seconds)

        def on_progress(phase: str, counts: Counter[str]) -> None:
            description = f"{phase}: {counts['faults']} of {len(schedule.faults)} faults"
            since = next(one.elapsed for one in progress.tasks if one.id == task) or 0.0
            progress.update(task, description=description, completed=min(since, seconds))

        run = RealRun(schedule, workload_of(workload), keep, on_progress)
        verdict: Verdict | None = None
        try:
            verdict = trio.run(run.run)
        except* KeyboardInterrupt:
            pass
    if verdict is None:
        click.echo("stopped, and everything that was started with it", err=True)
        sys.exit(130)
    if as_json:
        click.echo(json.dumps(fields_of(schedule, verdict, keep)))
    else:
        show(schedule, verdict, keep)
    sys.exit(0 if verdict.ok else 3 if verdict.kept else 1)


def fields_of(schedule: Schedule, verdict: Verdict, keep: Path | None) -> dict[str, object]:
    """Return the report as plain values."""
    return {
        "commit": commit(),
        "ok": verdict.ok,
        "drained": verdict.drained,
        "violations": [str(violation) for violation in verdict.violations],
        "workload": verdict.own,
        "counts": dict(sorted(verdict.counts.items())),
        "faults": dict(sorted(verdict.faults.items())),
        "met": dict(sorted(verdict.met.items())),
        "too_few": verdict.too_few,
        "left_out": dict(sorted(verdict.left_out.items())),
        "lines": verdict.lines,
        "histories": str(keep / "histories") if keep else None,
        "schedule": json.loads(schedule.to_json()),
    }


def show(schedule: Schedule, verdict: Verdict, keep: Path | None) -> None:
    """Print the report in words."""
    done = ", ".join(
        f"{kind} {verdict.met[kind]} of {verdict.faults[kind]}" for kind in KINDS if verdict.faults[kind]
    )
    click.echo(f"commit {commit()}, seed {schedule.seed}, {schedule.options.nodes} nodes")
    total = f"{verdict.met.total()} of {verdict.faults.total()}"
    click.echo(f"faults in {schedule.options.fault_time:g} s: {done or 'none'}")
    click.echo(f"met a running node: {total}")
    if verdict.left_out:
        click.echo(f"left out, as processes cannot have them: {', '.join(verdict.left_out)}")
    click.echo(", ".join(f"{name} {number:,}" for name, number in sorted(verdict.counts.items())))
    for violation in verdict.violations[:20]:
        click.echo(f"BROKEN {violation}")
    for text in verdict.own:
        click.echo(f"YOUR CHECK {text}")
    if not verdict.drained:
        click.echo("NOT SETTLED: some messages were neither acked nor dead letters in the end")
    if keep is not None:
        click.echo(f"  python -m sim diagram {keep / 'histories'} -o {keep / 'diagram.html'}")
    count = len(verdict.violations) + len(verdict.own)
    click.echo(f"{count} broken promises" if not verdict.kept else verdict.too_few or "ok")

"""`python -m sim shrink`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from sim import command_line
from sim.campaign import commit
from sim.replay import drawn, replay
from sim.rules import Rule
from sim.schedule import SHELL
from sim.shrink.shrinker import Found, NothingFails, Shrinker

ROWS = {
    "faults": "faults",
    "special": "packets lost, late or doubled",
    "packets": "packets",
    "messages": "messages published",
    "nodes": "nodes",
    "clients": "clients",
    "options": "options that are not plain",
    "seconds": "simulated seconds",
}


@click.command("shrink")
@click.option("--seed", default=None, type=int, help="The seed that fails.")
@command_line.profile
@command_line.schedule("The schedule that fails, in a file; one that was shrunk before goes on from there.")
@command_line.without
@click.option(
    "--seconds", default=60.0, show_default=True, type=click.FloatRange(1.0), help="How long it may take."
)
@command_line.file("-o", "--output", text="Where the schedule goes; shrunk-SEED.json if not given.")
@command_line.as_json
def shrink(
    seed: int | None,
    profile: str,
    path: Path | None,
    rule: Rule | None,
    seconds: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Make a failing run as small as it gets, while the same checker still sees it fail.

    The result is one file: `sim run --schedule` replays it, `sim diagram --schedule` draws it. In it each packet that
    is not named arrives after the mean delay. Exits with 1 when nothing fails.
    """
    if (seed is None) == (path is None):
        raise click.UsageError("say --seed N or --schedule FILE")
    schedule = drawn(seed or 0, profile) if path is None else command_line.schedule_from(path)
    if schedule.profile == SHELL:
        raise click.UsageError("runs of the shell are not shrunk: their packets have no names")
    with command_line.progress(Console(stderr=True), as_json, None) as progress:
        task = progress.add_task("the first run")

        def on_step(doing: str, runs: int, best: Found) -> None:
            size = best.size
            description = f"{size.faults} faults, {size.special:,} packets, {size.messages} messages left"
            progress.update(task, description=f"{doing}: {runs:,} runs, {description}")

        shrinker = Shrinker(rule, seconds, on_step)
        try:
            result = shrinker.shrink(schedule)
        except NothingFails as error:
            raise click.ClickException(str(error)) from None
    output = output or Path(f"shrunk-{schedule.seed}.json")
    command_line.written(output, result.schedule.to_json() + "\n")
    without = f" --without {rule.name}" if rule is not None else ""
    kept = not replay(result.schedule).violations if rule is not None else None
    if as_json:
        fields = {
            "commit": commit(),
            "checker": shrinker.checker,
            "violation": result.violation,
            "before": asdict(shrinker.first.size),
            "after": asdict(result.size),
            "runs": shrinker.runs,
            "seconds": round(shrinker.took, 2),
            "finished": shrinker.done,
            "kept_with_all_rules": kept,
            "schedule": json.loads(result.schedule.to_json()),
            "file": str(output),
        }
        click.echo(json.dumps(fields))
        sys.exit(0)
    before, after = asdict(shrinker.first.size), asdict(result.size)
    for name, title in ROWS.items():
        click.echo(f"{title:32} {before[name]:>9,} -> {after[name]:,}")
    for fault in result.schedule.faults:
        who = ", ".join(fault.nodes) or ", ".join(f"{one}→{two}" for one, two in fault.links)
        click.echo(f"  {fault.at:g} s: {fault.kind} of {who} for {fault.seconds:g} s")
    for packet in result.schedule.packets or ():
        late = " and ".join(f"{delay:g} s" for delay in packet.delays) or "never arrives"
        name = f"{packet.kind} {packet.number} {packet.source}→{packet.target}"
        click.echo(f"  {name}: {packet.fate}, {late}")
    click.echo(f"BROKEN {result.violation}")
    if kept is False:
        click.echo("Note: it breaks a promise with all rules, too.")
    end = (
        "as small as it gets" if shrinker.done else f"the {seconds:g} s are over; --schedule {output} goes on"
    )
    click.echo(f"{shrinker.runs:,} runs in {shrinker.took:.1f} s: {end}")
    click.echo(f"  python -m sim run --schedule {output}{without}")
    click.echo(f"  python -m sim diagram --schedule {output}{without} -o {output.with_suffix('.html')}")

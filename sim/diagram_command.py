"""`python -m sim diagram`."""

from __future__ import annotations

from pathlib import Path

import click

from quorumq.core.values.errors import NotFound
from quorumq.history.reader import histories_of
from sim import command_line
from sim.diagram.follow import follow
from sim.diagram.from_history import story_of_history
from sim.diagram.from_run import story_of_run
from sim.diagram.page import page_of
from sim.replay import drawn
from sim.rules import Rule
from sim.schedule import SHELL


@click.command("diagram")
@click.argument("history", nargs=-1, type=click.Path(path_type=Path), metavar="[HISTORY]...")
@click.option("--seed", default=None, type=int, help="Draw the run of this seed.")
@command_line.profile
@command_line.schedule("Draw the run of the schedule in this file, such as `sim shrink` leaves.")
@command_line.without
@click.option(
    "--follow", "message", default="", metavar="MESSAGE", help="Tell one message's story, such as 'a.1.1[0]'."
)
@command_line.file("-o", "--output", text="The page to write; diagram.html if not given.")
@click.option(
    "--items",
    default=6000,
    show_default=True,
    type=click.IntRange(100, 50_000),
    help="Draw so many things at most, those near to what broke first.",
)
def diagram(
    history: tuple[Path, ...],
    seed: int | None,
    profile: str,
    path: Path | None,
    rule: Rule | None,
    message: str,
    output: Path | None,
    items: int,
) -> None:
    """Draw a run as one HTML file, or print the story of one message.

    HISTORY is files or directories of docs/history.md: of `sim run --history`, of `quorumq demo --keep`, of your own
    cluster. --seed and --schedule run a simulation and draw its packets too.
    """
    if sum((bool(history), seed is not None, path is not None)) != 1:
        raise click.UsageError("say one of HISTORY, --seed N and --schedule FILE")
    if history:
        if rule is not None:
            raise click.UsageError("--without goes with --seed or --schedule")
        story = story_of_history(histories_of(history))
    else:
        schedule = drawn(seed or 0, profile) if path is None else command_line.schedule_from(path)
        if schedule.profile == SHELL:
            raise click.UsageError("draw a run of the shell from its history: sim run --history FILE")
        story = story_of_run(schedule, rule)
    try:
        if message:
            producer_id, number = story.find(message)
            story.focus = f"{producer_id}[{number}]"
            for line in follow(story, message):
                click.echo(line)
            if output is None:
                return
    except ValueError as error:
        raise NotFound(str(error)) from None
    total = len(story.items)
    story.shown(items)
    output = output or Path("diagram.html")
    command_line.written(output, page_of(story))
    size = output.stat().st_size / 1e6
    click.echo(
        f"{output}: {len(story.items):,} of {total:,} things that happened, {size:.1f} MB", err=bool(message)
    )

"""Parts that the commands share: options, progress, and the files that they read and write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from quorumq.core.values.errors import StorageError
from quorumq.history import HistoryWriter, Row
from sim.profiles import PROFILES
from sim.schedule import SHELL, Schedule

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)

FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
jobs = click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1, 256), help="Processes to run on."
)
profile = click.option(
    "--profile",
    default="swarm",
    show_default=True,
    type=click.Choice(sorted((*PROFILES, SHELL))),
    help="What the runs are like.",
)


def rule_of(_: click.Context, __: click.Parameter, name: str | None) -> Any:
    """Return the rule of that name, None for none."""
    from sim.rules import rule_named  # not every command needs them

    try:
        return None if name is None else rule_named(name)
    except KeyError as error:
        raise click.BadParameter(str(error.args[0])) from None


without = click.option(
    "--without",
    "rule",
    metavar="RULE",
    callback=rule_of,
    help="Leave out one rule of the protocol (`sim explore --list` has their names).",
)


def seeds(default: int, text: str = "How many seeds to run.") -> Callable[[Command], Command]:
    """Return the option ``--seeds``."""
    return click.option("--seeds", default=default, show_default=True, type=click.IntRange(1), help=text)


def schedule(text: str) -> Callable[[Command], Command]:
    """Return the option ``--schedule``, a file that is there."""
    return click.option("--schedule", "path", type=EXISTING, help=text)


def file(*names: str, text: str) -> Callable[[Command], Command]:
    """Return an option that is a file to write."""
    return click.option(*names, type=FILE, help=text)


def progress(console: Console, as_json: bool, total: int | None, *, counted: bool = True) -> Progress:
    """Make a bar if there is a terminal and a total; a spinner if the amount of work is unknown."""
    shows: tuple[Any, ...] = (TextColumn("{task.description}"),)
    if total is None:
        shows = (SpinnerColumn(), *shows)
    else:
        shows += (BarColumn(), *((MofNCompleteColumn(), TimeRemainingColumn()) if counted else ()))
    quiet = as_json or not console.is_terminal
    return Progress(*shows, TimeElapsedColumn(), console=console, transient=True, disable=quiet)


def schedule_from(path: Path) -> Schedule:
    """Return the schedule in a file.

    Raises:
        ClickException: there is none.
    """
    try:
        return Schedule.from_json(path.read_text())
    except (ValueError, OSError) as error:
        raise click.ClickException(f"{path}: {error}") from None


def written(path: Path, text: str) -> None:
    """Write a file. Raises `StorageError` if that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write a run's history to a new file; every line is checked against the schema. Raises as `written`."""
    first = rows[0]
    at = (first["at"], first["wall_ms"])
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            writer = HistoryWriter(
                file, run=first["run"], who="sim", settings=first["settings"], clock=lambda: at
            )
            for row in rows[1:]:
                writer.append(row)
            writer.flush()
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None

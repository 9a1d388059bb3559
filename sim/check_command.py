"""`python -m sim check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from quorumq.core.errors import NotFound, StorageError
from quorumq.history import HistoryError, Row, histories_of, read_history
from sim import command_line
from sim.checkers import judge


@click.command("check")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@command_line.as_json
def check(paths: tuple[Path, ...], as_json: bool) -> None:
    """Judge histories (docs/history.md): files, or directories with *.jsonl in them.

    All lines of a run are held in memory and put in order of time, so it is for what fits there; `python -m spark
    audit` has no such limit, knows the clocks of several machines, and reports what it could not read.
    Exits with 1 when a promise was broken.
    """
    runs = runs_in(files(paths))
    broken = {}
    for run, rows in runs.items():
        if violations := judge(rows):
            broken[run] = [(violation.promise, str(violation)) for violation in violations]
    lines = sum(map(len, runs.values()))
    if as_json:
        click.echo(json.dumps({"lines": lines, "runs": len(runs), "broken": broken}))
    else:
        for run, found in broken.items():
            for _, text in found:
                click.echo(f"BROKEN {run}: {text}")
        total = sum(map(len, broken.values()))
        click.echo(
            f"{lines:,} lines of {len(runs):,} runs: {f'{total:,} broken promises' if total else 'ok'}"
        )
    sys.exit(1 if broken else 0)


def runs_in(paths: Iterable[Path]) -> dict[str, list[Row]]:
    """The lines of each run in these histories, in order of time.

    Raises:
        StorageError: a file cannot be read, or is no history.
    """
    runs: dict[str, list[Row]] = {}
    try:
        for row in read_history(paths):
            runs.setdefault(row["run"], []).append(row)
    except (HistoryError, OSError) as error:
        raise StorageError(str(error)) from None
    for rows in runs.values():
        rows.sort(key=lambda row: row["at"])  # lines of one writer are in order, and the sort keeps them so
    return runs


def files(paths: tuple[Path, ...]) -> list[Path]:
    """The histories that these paths name.

    Raises:
        NotFound: a path names none.
    """
    found: list[Path] = []
    for path in paths:
        mine = histories_of(path)
        if not mine:
            raise NotFound(
                f"{path}: there is no history here; name a file, or a directory with *.jsonl or *.jsonl.gz in it"
            )
        found += mine
    return found

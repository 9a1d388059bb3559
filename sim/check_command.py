"""`python -m sim check`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from quorumq.core.values.errors import StorageError, UsageError
from quorumq.history import HistoryError, Row
from quorumq.history.reader import histories_of, read_history
from sim import command_line
from sim.checkers import check_history


@click.command("check")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@command_line.as_json
def check(paths: tuple[Path, ...], as_json: bool) -> None:
    """Checker histories (docs/history.md): files, or directories with *.jsonl in them.

    All lines of a run must be by one clock: the simulator's, or that of one machine. They are held in memory and put
    in order of time. `quorumq audit` has neither limit, and reports lines that it could not read. Lines of kinds
    that this version does not know are not judged, and counted. Exits with 1 when a promise was broken.
    """
    others: Counter[str] = Counter()
    runs = runs_in(histories_of(paths), others)
    for run, rows in runs.items():
        refuse_several_clocks(run, rows)
    broken = {}
    for run, rows in runs.items():
        if violations := check_history(rows):
            broken[run] = [(violation.promise, str(violation)) for violation in violations]
    lines = sum(map(len, runs.values()))
    if as_json:
        click.echo(json.dumps({"lines": lines, "runs": len(runs), "broken": broken, "not_judged": others}))
    else:
        for run, problems in broken.items():
            for _, text in problems:
                click.echo(f"BROKEN {run}: {text}")
        for kind, count in sorted(others.items()):
            click.echo(f"not judged: {count:,} lines of kind {kind!r}, which this version does not know")
        total = sum(map(len, broken.values()))
        click.echo(
            f"{lines:,} lines of {len(runs):,} runs: {f'{total:,} broken promises' if total else 'ok'}"
        )
    sys.exit(1 if broken else 0)


def refuse_several_clocks(run: str, rows: Sequence[Row]) -> None:
    """Refuse a run whose lines are not all by one clock: the checkers compare times of any two lines.

    Writers of a real run share a clock if their `settings` name the same start of a machine (`boot`).

    Raises:
        UsageError: with the writers, and the remedy.
    """
    settings = [row for row in rows if row["kind"] == "settings"]
    if any(row.get("clock") == "simulated" for row in settings):
        return
    clocks: dict[str, str] = {}  # one writer of each clock
    for row in settings:
        clocks.setdefault(str(row["settings"].get("boot", row["who"])), row["who"])
    said = {row["who"] for row in settings}
    for row in rows if clocks else ():
        if row["who"] not in said:  # its first line is not there
            clocks.setdefault(row["who"], row["who"])
    if len(clocks) > 1:
        names = ", ".join(sorted(clocks.values())[:3])
        raise UsageError(
            f"run {run!r} has lines by {len(clocks)} clocks (those of {names}{' …' if len(clocks) > 3 else ''}): `sim "
            "check` compares times of one clock only. Use `quorumq audit`, which places clocks"
        )


def runs_in(paths: Iterable[Path], others: Counter[str] | None = None) -> dict[str, list[Row]]:
    """Return the lines of each run in these histories, in order of time.

    Raises:
        StorageError: a file cannot be read, or is no history.
    """
    runs: dict[str, list[Row]] = {}
    try:
        for row in read_history(paths, others):
            runs.setdefault(row["run"], []).append(row)
    except (HistoryError, OSError) as error:
        raise StorageError(str(error)) from None
    for rows in runs.values():
        rows.sort(key=lambda row: row["at"])  # lines of one writer are in order, and the sort keeps them so
    return runs

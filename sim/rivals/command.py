"""`python -m sim rivals`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table as RichTable

from sim import command_line
from sim.campaign import commit
from sim.options import Options
from sim.rivals.campaign import Settings, Table, parts, run_all
from sim.rivals.designs import DESIGNS, start
from sim.rivals.figures import Figures, measure
from sim.rivals.harness import Knobs
from sim.rivals.page import page
from sim.rivals.plan import KINDS, draw
from sim.schedule import Schedule

COMPOUND = ("hold_times", "auto_create_groups", "disk")
"""Options that are not set from the command line: several values, or of no meaning here."""

CELLS = (
    ("lost per 10,000", None),
    ("duplicates per 10,000", None),
    ("after ack per 10,000", "all"),
    ("overlaps per 10,000", "all"),
    ("gap after a loss, mean s", "crash"),
    ("gap after a loss, worst s", "crash"),
    ("behind poison, mean s", "poison"),
    ("messages per delivery", "none"),
    ("messages per delivery", "crash"),
    ("hold messages per delivery", "none"),
    ("syncs per delivery", "none"),
    ("p50 s", "none"),
    ("p50 s", "network"),
    ("p99 s", "none"),
    ("fairness", "none"),
    ("received of asked", "none"),
    ("lost holds per delivery", "none"),
    ("unwon per 10,000", "network"),
    ("tombstone reads per message", "none"),
)
"""Rows of the table: a figure, and a kind of fault; None: each kind; all: all together."""


def table_rows(table: Table) -> list[tuple[str, list[float]]]:
    """Return the table as it is printed: a row's title, and a figure for each design."""
    rows: list[tuple[str, list[float]]] = []
    kinds = list(next(iter(table.values())))
    totals = {design: _total(cells) for design, cells in table.items()}
    for figure, wanted in CELLS:
        for kind in kinds if wanted is None else [wanted]:
            if kind == "all":
                found = [totals[design].rates()[figure] for design in table]
            elif kind in kinds:
                found = [cells[kind].rates()[figure] for cells in table.values()]
            else:
                continue
            rows.append((f"{figure} · {kind}", found))
    return rows


def _total(cells: dict[str, Figures]) -> Figures:
    total = Figures()
    for figures in cells.values():
        total.add(figures)
    return total


@click.command("rivals")
@command_line.seeds(20, "How many, of each kind of fault.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@command_line.jobs
@click.option(
    "--design", "designs", multiple=True, type=click.Choice(list(DESIGNS)), help="Only this; may be repeated."
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these faults; likewise."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of a design or of the runs: docs/rivals.md.",
)
@command_line.as_json
@command_line.file("--html", text="Write the table as a page with plots.")
@command_line.file("--keep", text="Keep what is done here; go on from it.")
@command_line.schedule("Run this schedule, once.")
@command_line.file("--history", text="One run: its history (docs/history.md).")
def rivals(
    seeds: int,
    first: int,
    jobs: int,
    designs: tuple[str, ...],
    kinds: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
    html: Path | None,
    keep: Path | None,
    path: Path | None,
    history: Path | None,
) -> None:
    """Compare quorumq with the design note's other approaches and with a log, under the same faults (docs/rivals.md).

    With --schedule or --history one design is run once: of the seed --first, or as the file says.
    """
    chosen = parse_settings(settings)
    if path is not None or history is not None:
        if len(designs) != 1 or (path is None and len(kinds) != 1):
            raise click.UsageError("one run needs one --design, and one --kind or a --schedule")
        plan = command_line.schedule_from(path) if path else draw(first, kinds[0], **chosen[1])
        _run_one(designs[0], plan, chosen[0], history, as_json)
        return
    work = parts(designs or tuple(DESIGNS), kinds or tuple(KINDS), first, seeds)
    console = Console(stderr=True, highlight=False)
    with command_line.progress(console, False, len(work)) as progress:
        task = progress.add_task("runs of up to 25 seeds", total=len(work))
        try:
            table = run_all(work, chosen, jobs, keep, lambda: progress.advance(task))
        except ValueError as error:
            raise click.ClickException(str(error)) from None
    if html is not None:
        html.write_text(page(table, table_rows(table), commit(), seeds))
    if as_json:
        found = {
            design: {kind: {**figures.rates(), "runs": figures.runs} for kind, figures in cells.items()}
            for design, cells in table.items()
        }
        click.echo(json.dumps({"commit": commit(), "seeds": seeds, "first": first, "designs": found}))
        return
    printed = RichTable(title=f"{seeds} seeds of each kind of fault, commit {commit()}")
    printed.add_column("figure · fault")
    for design in table:
        printed.add_column(design, justify="right")
    for title, found_ in table_rows(table):
        printed.add_row(title, *(f"{value:,.4g}" for value in found_))
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(printed)


def parse_settings(settings: tuple[str, ...]) -> Settings:
    """Return settings of designs and options of runs as they are given; ``true``, ``false`` and numbers are JSON."""
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    defaults = [
        {field.name: field.default for field in dataclasses.fields(of) if field.name not in COMPOUND}
        for of in (Knobs, Options)
    ]
    for setting in settings:
        name, _, text = setting.partition("=")
        of = next((i for i, names in enumerate(defaults) if name in names), None)
        if of is None:
            known = f"{', '.join(defaults[0])}, or an option of sim/options.py"
            raise click.UsageError(f"--set {setting}: {name!r} must be one of {known}")
        kind: Any = type(defaults[of][name])
        try:
            found[of][name] = text if kind is str else kind(json.loads(text))
        except (ValueError, TypeError):
            raise click.UsageError(f"--set {setting}: the value must be a {kind.__name__}") from None
    return Knobs(**found[0]), found[1]


def _run_one(design: str, plan: Schedule, knobs: Knobs, history: Path | None, as_json: bool) -> None:
    run = start(design, plan, knobs)
    rows = run.run()
    figures = measure(run)
    if history is not None:
        command_line.write_rows(history, rows)
    found = {**figures.rates(), "deliveries": figures.deliveries, "trace": run.world.trace()}
    if as_json:
        click.echo(json.dumps({"design": design, "schedule": json.loads(plan.to_json()), **found}))
        return
    click.echo(plan.to_json())
    for name, value in found.items():
        click.echo(f"{name}: {value}")

"""Many seeds of every design under every kind of fault, on several processes; finished parts are kept in a file."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sim.campaign import commit
from sim.rivals.designs import compare
from sim.rivals.figures import Figures
from sim.rivals.harness import Knobs
from sim.rivals.plan import draw
from sim.runner import spread

CHUNK = 25
"""Seeds that one process runs in one go; the unit in which a campaign is resumed."""

Part = tuple[str, str, int, int]
"""Design, kind of fault, and the seeds from the first up to the last but one."""

Settings = tuple[Knobs, dict[str, Any]]
"""Settings of the designs, and of the runs."""

Table = dict[str, dict[str, Figures]]
"""By design and kind."""


def parts(designs: Iterable[str], kinds: Iterable[str], first: int, seeds: int) -> list[Part]:
    """Return the work, in an order in which all cells fill alike."""
    last = first + seeds
    return [
        (design, kind, start, min(start + CHUNK, last))
        for start in range(first, last, CHUNK)
        for kind in kinds
        for design in designs
    ]


def run_part(work: tuple[Part, Settings]) -> tuple[Part, Figures]:
    """Run one process's share."""
    (design, kind, start, stop), (knobs, options) = work
    total = Figures()
    for seed in range(start, stop):
        total.add(compare(design, draw(seed, kind, **options), knobs))
    return (design, kind, start, stop), total


def run_all(
    work: list[Part], settings: Settings, jobs: int, kept: Path | None, on_part: Callable[[], None]
) -> Table:
    """Run the parts that are not in the file yet, and add all up; ``on_part`` is called when a part is done.

    Args:
        settings: settings of the designs, and options of the runs that differ.
        kept: a file of JSON lines, which a campaign that was broken off goes on with.

    Raises:
        ValueError: the file is from another commit or other settings.
    """
    header = {"commit": commit(), "settings": [dataclasses.asdict(settings[0]), settings[1]]}
    done = dict(read(kept, header)) if kept is not None and kept.exists() else {}
    left = [(part, settings) for part in work if part not in done]
    with kept.open("a") if kept is not None else io.StringIO() as file:  # the latter: discarded
        if not done and not file.tell():
            file.write(json.dumps(header) + "\n")
        for part, figures in spread(run_part, left, jobs):
            file.write(json.dumps({"part": part, "figures": dataclasses.asdict(figures)}) + "\n")
            file.flush()
            done[part] = figures
            on_part()
    table: Table = {}
    for part in work:
        design, kind, *_ = part
        table.setdefault(design, {}).setdefault(kind, Figures()).add(done[part])
    return table


def read(path: Path, header: dict[str, Any]) -> Iterator[tuple[Part, Figures]]:
    """Yield the parts that a file has; a last line that was not finished is cut off."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    lines = whole.splitlines()
    if lines and json.loads(lines[0]) != json.loads(json.dumps(header)):
        raise ValueError(f"{path} is of another commit or other settings: {lines[0].strip()}")
    for line in lines[1:]:
        found = json.loads(line)
        design, kind, start, stop = found["part"]
        waits = {int(class_): count for class_, count in found["figures"].pop("waits").items()}
        yield (design, kind, start, stop), Figures(**found["figures"], waits=waits)

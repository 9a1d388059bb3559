"""A story out of histories: of simulated runs, or of real processes, whose packets are not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from quorumq.core.values.errors import NotFound, StorageError
from quorumq.history import HistoryError, Row
from quorumq.history.reader import read_history
from sim.checkers import check_history
from sim.diagram.rows import items_of
from sim.diagram.story import MESSAGE, Story


def story_of_history(paths: Sequence[Path]) -> Story:
    """Return the story of these files' lines. If they hold several runs, it is the longest one.

    Raises:
        StorageError: a file cannot be read, or is no history.
        NotFound: there is no line.
    """
    runs = _runs_in(paths)
    if not runs:
        raise NotFound(f"{', '.join(map(str, paths))}: no line is here")
    run, rows = max(runs.items(), key=lambda item: len(item[1]))
    broken = [str(violation) for violation in check_history(rows)]
    focus = next((match[0] for text in broken if (match := MESSAGE.search(text))), "")
    title = broken[0].split(" at ")[0] if broken else "every promise is kept"
    about = [f"run {run}: {len(rows):,} lines of {len(paths)} files"]
    if len(runs) > 1:
        about.append(f"{len(runs) - 1} shorter runs in these files are not drawn")
    story = Story(f"A history: {title}", about, items_of(rows, broken, calls=True), broken, focus=focus)
    owners = dict.fromkeys(row["owner"] for row in rows if "owner" in row)
    story.rename({owner: f"#{number} of {owner.split('.', 1)[0]}" for number, owner in enumerate(owners, 1)})
    return story


def _runs_in(paths: Iterable[Path]) -> dict[str, list[Row]]:
    """Return the lines of each run in these histories, in order of time."""
    runs: dict[str, list[Row]] = {}
    try:
        for row in read_history(paths):
            runs.setdefault(row["run"], []).append(row)
    except (HistoryError, OSError) as error:
        raise StorageError(str(error)) from None
    for rows in runs.values():
        rows.sort(key=lambda row: row["at"])  # lines of one writer are in order, and the sort keeps them so
    return runs

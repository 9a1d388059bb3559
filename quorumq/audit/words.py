"""Result of an audit in words, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quorumq.audit.findings import GUARANTEES
from quorumq.core.values.printable import plural


def titled(guarantee: str) -> str:
    """Return a guarantee in words, which begin with its name."""
    text = GUARANTEES[guarantee]
    return text if text.startswith(guarantee) else f"{guarantee} {text}"


def rows_of(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of the table of guarantees; ``>`` in front of a head is for numbers."""
    in_runs = {"in runs": "runs_checked"} if summary["runs"] > 1 else {}
    counts = {"checked": "checked", **in_runs, "broken": "broken", "not decidable": "undecidable"}
    rows = [
        [titled(row["guarantee"]), row["verdict"], *(f"{row[it]:,}" for it in counts.values())]
        for row in summary["verdicts"]
    ]
    return ["guarantee", "|verdict", *(f">{it}" for it in counts)], rows


def lines_of(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the unread lines, the faults of clocks, and the findings: each cause once, with the first story."""
    for row in summary["remainder"]:
        yield f"{row['count']:,} × {row['kind']}: {row['detail']}"
    for row in summary["clocks"]:
        if row["findings"]:
            yield f"clock of {row['writers']} ({row['run']}) {row['findings']}"
    for cause in summary["causes"]:
        first, of = cause["first"], plural(cause["runs"], "run")
        times = "" if cause["count"] == 1 else f", {cause['count']:,} times in {of}, the first"
        yield f"{cause['verdict'].upper()} {cause['guarantee']}: {cause['cause']}{times}:"
        where = " ".join(str(first[it]) for it in ("run", "group", "id") if first[it])
        yield f"  {where}: {first['text']}"
        yield from (f"    {line}" for line in first["story"])
    yield summary["conclusion"]

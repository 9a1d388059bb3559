"""Verdicts of the checkers on histories of real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from quorumq.history import Row
from sim.checkers import Violation, check_history
from sim.checkers.clocks import OneWrongClock


def judged(rows: Iterable[Row], rf: int) -> list[Violation]:
    """Return the checkers' violations. A batch's times begin when it was made, which is before it was first sent.

    Listings of clients on the way say nothing of the end, however often they do.
    """
    made = [
        {**row, "at": row["at"] - (row["wall_ms"] - row["published_ms"]) / 1000}
        if row["kind"] == "publish" and row["outcome"] == "invoke"
        else row
        for row in rows
        if row["kind"] != "list" or not row["who"].startswith("client:")
    ]
    made.sort(key=lambda row: row["at"])
    clocks = OneWrongClock()
    for row in ({"kind": "settings", "at": 0.0, "settings": {"rf": rf}}, *made):
        if row["kind"] in clocks.kinds:
            clocks.see(row)
    return [*check_history(made), *clocks.verdict()]


def counted(rows: Sequence[Row]) -> Counter[str]:
    """Count the messages that were published, delivered and so on."""
    counts: Counter[str] = Counter()
    seen: dict[tuple[object, ...], None] = {}
    for row in rows:
        size = sum(stop - start for _, start, stop in row.get("spans", ()))
        kind, outcome = row["kind"], row.get("outcome", "")
        if kind == "deliver":
            counts["delivered"] += size
            for name in named(row):
                counts["redelivered"] += name in seen
                seen[name] = None
        elif kind == "publish" and outcome in ("ok", "unknown", "fail"):
            counts["published" if outcome == "ok" else f"publishes {outcome}"] += size
        elif kind == "ack" and outcome.startswith("acked"):
            counts[outcome] += size
            counts["read and acked as dead letters"] += size if row["group"].endswith("!dead") else 0
        elif kind in ("reject", "dead_letter") and outcome == "ok" and row["who"].startswith("client:"):
            counts[f"{kind} confirmed"] += size
    return counts


def named(row: Row) -> Iterator[tuple[object, ...]]:
    """Yield each message of a line, as its group reads it in its generation."""
    for producer_id, start, stop in row["spans"]:
        for number in range(start, stop):
            yield row["topic"], row["group"], row["generation"], row["partition"], producer_id, number

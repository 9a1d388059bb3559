"""What the judges say of histories of real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from quorumq.history import Row
from sim.checkers import Violation, judge
from sim.checkers.clocks import OneWrongClock


def judged(rows: Iterable[Row], rf: int) -> list[Violation]:
    """What the judges say. A batch's times begin when it was made, which is before it was first sent.

    Args:
        rows: of all clients and nodes on one clock, in any order.
        rf: replicas of each partition.
    """
    made = [
        {**row, "at": row["at"] - (row["wall_ms"] - row["published_ms"]) / 1000}
        if row["kind"] == "publish" and row["outcome"] == "invoke"
        else row
        for row in rows
    ]
    made.sort(key=lambda row: row["at"])
    clocks = OneWrongClock()
    for row in ({"kind": "settings", "at": 0.0, "settings": {"rf": rf}}, *made):
        if row["kind"] in clocks.kinds:
            clocks.see(row)
    return [*judge(made), *clocks.verdict()]


def counted(rows: Sequence[Row]) -> Counter[str]:
    """How many messages were published, delivered and so on."""
    found: Counter[str] = Counter()
    seen: dict[tuple[object, ...], None] = {}
    for row in rows:
        size = sum(stop - start for _, start, stop in row.get("spans", ()))
        kind, outcome = row["kind"], row.get("outcome", "")
        if kind == "deliver":
            found["delivered"] += size
            for origin, start, stop in row["spans"]:
                for number in range(start, stop):
                    name = (row["topic"], row["group"], row["generation"], row["partition"], origin, number)
                    found["redelivered"] += name in seen
                    seen[name] = None
        elif kind == "publish" and outcome in ("ok", "unknown", "fail"):
            found["published" if outcome == "ok" else f"publishes {outcome}"] += size
        elif kind == "ack" and outcome.startswith("acked"):
            found[outcome] += size
            found["read and acked as dead letters"] += size if row["group"].endswith("!dead") else 0
        elif kind in ("reject", "dead_letter") and outcome == "ok":
            found[f"{kind} confirmed"] += size
    return found

"""Values of each option that the seeds of a campaign had."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sim.options import Options

FEW = 6
"""Most values of an option that are counted one by one. If it has more, 0 is counted, and the others are a range."""


def coverage(drawn: Iterable[Options]) -> dict[str, list[tuple[str, int]]]:
    """Return each option's values, the least first, and the number of runs that had them."""
    counts: dict[str, Counter[Any]] = {field.name: Counter() for field in dataclasses.fields(Options)}
    for options in drawn:
        for name, counter in counts.items():
            counter[getattr(options, name)] += 1
    return {name: parts(counter) for name, counter in counts.items()}


def parts(counter: Counter[Any]) -> list[tuple[str, int]]:
    """Return the values of one option."""
    if len(counter) <= FEW:
        return [(said(value), counter[value]) for value in sorted(counter)]
    others = [value for value in counter if value != 0]
    merged = [(f"{said(min(others))} to {said(max(others))}", sum(counter[value] for value in others))]
    return [("0", counter[0]), *merged] if counter[0] else merged


def said(value: Any) -> str:
    """Return a value as a page shows it."""
    if isinstance(value, tuple):
        return "–".join(map(said, value))
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return str(value)

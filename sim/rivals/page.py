"""The comparison as one HTML file that needs nothing else: bars as inline SVG, and the whole table."""

from __future__ import annotations

from html import escape

from sim.pages import document
from sim.rivals.campaign import Table
from sim.rivals.designs import DESIGNS
from sim.rivals.plan import KINDS

COLORS = {
    "quorumq": "#0b6e4f",
    "literal": "#b5651d",
    "provider": "#35609c",
    "earliest": "#a23b4a",
    "log": "#6b5b95",
}

PLOTS = (
    ("duplicates per 10,000", "Duplicates per 10,000 messages", tuple(KINDS)),
    ("lost per 10,000", "Lost per 10,000 messages", tuple(KINDS)),
    ("overlaps per 10,000", "Delivered inside another delivery's hold, per 10,000", tuple(KINDS)),
    (
        "gap after a loss, mean s",
        "Seconds without deliveries after a node's loss",
        ("crash", "freeze", "partition"),
    ),
    ("behind poison, mean s", "Seconds that messages waited behind a poison message", ("poison",)),
    ("p99 s", "99th percentile of the seconds to deliver", ("none", "crash", "partition", "consumer")),
    ("messages per delivery", "Network messages per delivery", ("none", "crash", "partition")),
    ("syncs per delivery", "Disk syncs per delivery", ("none",)),
)
"""Drawings: a figure, its title, and its kinds of fault."""


def page(table: Table, rows: list[tuple[str, list[float]]], commit: str, seeds: int) -> str:
    """Return the whole page."""
    key = "".join(
        f'<span><i style="background:{COLORS[d]}"></i>{escape(DESIGNS[d][1])}</span>' for d in table
    )
    kinds = list(next(iter(table.values())))
    plots = "".join(
        f"<h2>{escape(title)}</h2>{bars(table, figure, [kind for kind in shown if kind in kinds])}"
        for figure, title, shown in PLOTS
        if any(kind in kinds for kind in shown)
    )
    head = "".join(f"<th>{escape(design)}</th>" for design in table)
    body = "".join(
        f"<tr><td>{escape(title)}</td>{''.join(f'<td>{value:,.4g}</td>' for value in found)}</tr>"
        for title, found in rows
    )
    about = "".join(f"<li><b>{escape(kind)}</b>: {escape(KINDS[kind][2])}</li>" for kind in kinds)
    return document(
        "quorumq and its rivals",
        f"<p>{seeds} seeds of each kind of fault, commit {escape(commit)}. "
        "Every design ran the same workloads on the same network, disks and clocks, under the same faults, and the "
        "same checkers read the histories. docs/rivals.md says what each is.</p>"
        f'<p class="key">{key}</p>{plots}'
        f"<h2>Faults</h2><ul>{about}</ul><h2>All figures</h2>"
        f"<table><tr><th>figure · fault</th>{head}</tr>{body}</table>",
    )


def short(value: float) -> str:
    """Return a figure as it stands over its bar."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(table: Table, figure: str, kinds: list[str]) -> str:
    """Return groups of bars, one group for each kind of fault."""
    values = {(d, kind): table[d][kind].rates()[figure] for d in table for kind in kinds}
    top = max(values.values()) or 1.0
    width, left, height, base = 1000, 10, 190, 155
    group = (width - left) / len(kinds)
    bar = min(34.0, (group - 16) / len(table))
    parts = [f'<line x1="{left}" x2="{width}" y1="{base}" y2="{base}" stroke="#999"/>']
    for at, kind in enumerate(kinds):
        begin = left + at * group + (group - bar * len(table)) / 2
        parts.append(
            f'<text x="{left + (at + 0.5) * group:.1f}" y="{height - 12}" text-anchor="middle">{escape(kind)}</text>'
        )
        for index, design in enumerate(table):
            value = values[(design, kind)]
            tall = 130 * value / top
            x = begin + index * bar
            parts.append(
                f'<rect x="{x:.1f}" y="{base - tall:.1f}" width="{bar - 2:.1f}" height="{tall:.1f}" '
                f'fill="{COLORS[design]}">'
                f"<title>{escape(DESIGNS[design][1])}, {escape(kind)}: {value:,.4g}</title></rect>"
                f'<text x="{x + bar / 2 - 1:.1f}" y="{base - tall - 3:.1f}" text-anchor="middle" '
                'style="font-size:9px">'
                f"{short(value)}</text>"
            )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(figure)}">{"".join(parts)}</svg>'
    )

# spark/jobs/audit_page.py: the audit as one HTML file that needs nothing else: no script, no font, no network.
"""The audit's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1c1c1e;background:#fff}
table{border-collapse:collapse;width:100%;margin:.5rem 0 2rem}th,td{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}
.holds{color:#17692b}.broken{color:#b3261e;font-weight:600}.open{color:#8a5a00}.none{color:#666}
code{font-size:13px;overflow-wrap:anywhere}h1{font-size:1.6rem}h2{font-size:1.15rem}
@media(prefers-color-scheme:dark){body{background:#16171a;color:#e6e6e6}th,td{border-color:#3a3a3a}
.holds{color:#6fd28a}.broken{color:#ff8a80}.open{color:#f0b84f}.none{color:#999}}
"""
COLOURS: Final = {"holds": "holds", "broken": "broken", "not decidable": "open", "not checked": "none"}


def page(summary: Mapping[str, Any], guarantees: Mapping[str, str]) -> str:
    """The page.

    Args:
        summary: what summary.json says.
        guarantees: what each guarantee promises.
    """
    verdicts = [
        [_verdict(row), f"<b>{escape(row['guarantee'])}</b> {escape(guarantees[row['guarantee']])}", row["checked"],
         row["broken"], row["undecidable"], row["runs"]]
        for row in summary["verdicts"]
    ]  # fmt: skip
    body = [
        "<h1>Delivery audit</h1>",
        f"<p>{escape(summary['conclusion'])}</p>",
        f"<p>{summary['runs']:,} runs, {summary['lines']:,} lines, {len(summary['paths'])} paths.</p>",
        "<h2>Guarantees</h2>",
        _table(("verdict", "guarantee", "checked", "broken", "not decidable", "runs"), verdicts),
    ]
    for title, key, columns in (
        ("Broken", "broken", ("guarantee", "run", "group", "id", "at", "text")),
        (
            "Not decidable, the first of each guarantee",
            "undecided",
            ("guarantee", "run", "group", "id", "at", "text"),
        ),
        ("What was not read, or is not there", "remainder", ("run", "what", "detail", "count")),
        (
            "Delivery",
            "latency",
            ("topic", "group", "messages", "deliveries", "redelivered", "p50", "p99", "max"),
        ),
        (
            "Deliveries after the first, by what came before",
            "redeliveries",
            ("topic", "group", "after", "deliveries"),
        ),
        (
            "During faults",
            "faults",
            ("fault", "times", "published", "unknown", "delivered", "acked", "broken"),
        ),
    ):
        rows = [[_cell(row.get(column)) for column in columns] for row in summary[key]]
        body.append(f"<h2>{title}</h2>")
        body.append(_table(columns, rows) if rows else "<p class=none>Nothing.</p>")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Delivery audit</title><style>{STYLE}</style><body>{''.join(body)}</body></html>\n"
    )


def _verdict(row: Mapping[str, Any]) -> str:
    return f"<span class={COLOURS[row['verdict']]}>{row['verdict']}</span>"


def _cell(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4)
    return value if isinstance(value, int) else f"<code>{escape(str(value or ''))}</code>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}" for column in columns)
    lines = []
    for row in rows:
        cells = "".join(
            f"<td class=n>{value:,}" if isinstance(value, int | float) else f"<td>{value}" for value in row
        )
        lines.append(f"<tr>{cells}")
    return f"<table><thead><tr>{head}</thead><tbody>{''.join(lines)}</tbody></table>"

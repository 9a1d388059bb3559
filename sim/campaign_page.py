"""A campaign as one HTML file that needs nothing else: its failures, and its content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from sim.campaign import Report, commit
from sim.coverage import coverage
from sim.pages import document
from sim.schedule import draw
from sim.sometimes import SOMETIMES

SHOWN = 3
"""Most broken promises that the page lists for a seed that failed; its run lists all."""

COLORS = ("#0b6e4f", "#b5651d", "#35609c", "#a23b4a", "#6b5b95", "#8a8a2b")
"""Colours of an option's values, one after the other."""

STYLE = """
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}.bad{color:#b3261e}.good{color:#0b6e4f}
.wide{width:100%}.wide td{white-space:nowrap}.wide td:first-child,.wide td.text{white-space:normal}
td.text{text-align:left;font-size:.85rem}td.bar{width:45%;min-width:8rem}
.bar div{display:flex;height:.9em;background:#8882}.bar i{min-width:1px}
@media(prefers-color-scheme:dark){.bad{color:#f2a19b}.good{color:#8fd3aa}}
"""


def repeats(profile: str, seed: int) -> list[str]:
    """Return the commands that run a seed again, and make it small."""
    return [f"python -m sim {command} --profile {profile} --seed {seed}" for command in ("run", "shrink")]


def page(report: Report, first: int) -> str:
    """Return a campaign from its first seed on, as a whole page."""
    seeds = range(first, first + report.seeds)
    verdict = '<b class="good">ok</b>' if report.ok else '<b class="bad">FAILED</b>'
    parts = [
        f"<p>{verdict}: {report.seeds:,} seeds from {first} on, {report.failed:,} failed. "
        f"Commit {escape(commit())}, profile {escape(report.profile)}.</p>",
        failures(report),
        f"<h2>Rates</h2><table>{''.join(map(figure, report.rates().items()))}</table>",
        "<h2>Seeds with so many faults</h2>",
        columns(report.faults),
        "<h2>Seeds with this kind of fault</h2>",
        bars(report.with_fault, most_first(report.with_fault), report.seeds),
        "<h2>Faults of this kind per seed</h2>",
        means(report.per_seed("fault")),
        f"<h2>Seen in how many seeds: {sum(name in report.seen for name in SOMETIMES)} of {len(SOMETIMES)}</h2>",
        bars(report.seen, [*most_first(report.seen), *unseen(report)], report.seeds),
        "<h2>Options: how many seeds had which value</h2>",
        options(coverage(draw(seed, report.profile).options for seed in seeds), report.seeds),
        "<h2>Messages of this kind per seed</h2>",
        means(report.per_seed("sent")),
    ]
    return document("What a campaign contained", "".join(parts), STYLE)


def failures(report: Report) -> str:
    """Return each seed that failed, with its violations and the commands to repeat it."""
    if not report.failed:
        return ""
    items = []
    for seed, violations in report.failures:
        lines = [f"<code>{escape(command)}</code>" for command in repeats(report.profile, seed)]
        lines += [f'<span class="bad">{escape(violation)}</span>' for violation in violations[:SHOWN]]
        if len(violations) > SHOWN:
            lines.append(f"and {len(violations) - SHOWN} more")
        items.append(f"<li>{'<br>'.join(lines)}</li>")
    more = report.failed - len(report.failures)
    unlisted = f"<p>And {more:,} more seeds.</p>" if more else ""
    return f"<h2>Failures</h2><ul>{''.join(items)}</ul>{unlisted}"


def figure(item: tuple[str, float]) -> str:
    """Return a row of a table of figures."""
    return f"<tr><td>{escape(item[0].replace('_', ' '))}</td><td>{item[1]:,.12g}</td></tr>"


def most_first(counts: Mapping[str, int]) -> list[str]:
    """Return the names, in the order of their counts."""
    return sorted(counts, key=lambda name: (-counts[name], name))


def unseen(report: Report) -> list[str]:
    """Return the sightings that this campaign lacks, even if it was not large enough for them."""
    return [name for name in SOMETIMES if name not in report.seen]


def bar(shares: Iterable[tuple[float, str, str]]) -> str:
    """Return a cell with a bar of these parts: share, colour, name."""
    inside = "".join(
        f'<i style="width:{100 * share:.2f}%;background:{color}" title="{escape(said)}"></i>'
        for share, color, said in shares
        if share
    )
    return f'<td class="bar"><div>{inside}</div></td>'


def bars(counts: Mapping[str, int], order: Iterable[str], total: int) -> str:
    """Draw, for each name, the number of seeds that have it."""
    rows = []
    for name in order:
        count = counts.get(name, 0)
        share = count / max(1, total)
        cells = f"<td>{count:,}</td><td>{100 * share:.1f} %</td>{bar([(share, COLORS[0], name)])}"
        never = "" if count else ' class="bad"'
        rows.append(f"<tr{never}><td>{escape(name)}</td>{cells}</tr>")
    return f'<table class="wide">{"".join(rows)}</table>'


def means(counts: Mapping[str, float]) -> str:
    """Draw the average of each kind in a seed."""
    top = max(counts.values(), default=1.0) or 1.0
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{count:,}</td>{bar([(count / top, COLORS[2], name)])}</tr>"
        for name, count in counts.items()
    )
    return f'<table class="wide">{rows}</table>'


def options(values_of: Mapping[str, list[tuple[str, int]]], total: int) -> str:
    """Draw each option's values; those with one value only are named at the end."""
    rows, same = [], []
    for name, values in values_of.items():
        if len(values) == 1 and " to " not in values[0][0]:
            same.append(f"{escape(name)} {escape(values[0][0])}")
            continue
        shares = [
            (count / max(1, total), COLORS[at % len(COLORS)], f"{value}: {count:,}")
            for at, (value, count) in enumerate(values)
        ]
        said = " · ".join(f"{escape(value)}: {count:,}" for value, count in values)
        rows.append(f'<tr><td>{escape(name)}</td>{bar(shares)}<td class="text">{said}</td></tr>')
    return f'<table class="wide">{"".join(rows)}</table><p>The same in all: {", ".join(same) or "none"}.</p>'


def columns(counts: Mapping[int, int]) -> str:
    """Draw a histogram over whole numbers, with empty ones in between."""
    width, height, base = 1000, 190, 155
    numbers = range(min(counts, default=0), max(counts, default=0) + 1)
    step, top = width / len(numbers), max(counts.values(), default=1)
    parts = [f'<line x1="0" x2="{width}" y1="{base}" y2="{base}" stroke="#999"/>']
    for at, number in enumerate(numbers):
        count, middle = counts.get(number, 0), (at + 0.5) * step
        tall, wide = 130 * count / top, min(60.0, 0.8 * step)
        parts.append(
            f'<rect x="{middle - wide / 2:.1f}" y="{base - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
            f'fill="{COLORS[0]}"><title>{number} faults: {count:,} seeds</title></rect>'
            f'<text x="{middle:.1f}" y="{base - tall - 4:.1f}" text-anchor="middle">{count:,}</text>'
            f'<text x="{middle:.1f}" y="{base + 18}" text-anchor="middle">{number}</text>'
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="seeds by faults">{"".join(parts)}</svg>'
    )

"""Plots as SVG inside the page.

Text stays text, so that it is small, can be searched, and takes the page's font. Colours are the page's: matplotlib
draws with placeholders, which become CSS variables, so one drawing serves light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from .page import Html, duration, esc, number, tag, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = {
    "--fg": "#010101", "--soft": "#020202", "--line": "#030303", "--grid": "#040404", "--card": "#050505",
    "--burst": "#060606", **{f"--s{index}": f"#0707{index:02x}" for index in range(8)},
}  # fmt: skip
"""The page's colours, and the values that stand for them while matplotlib draws."""

OTHERS: Final = 7
"""The colour of all that has none of its own."""


def colour(index: int) -> str:
    """Return the placeholder of a series' colour."""
    return COLOURS[f"--s{min(index, OTHERS)}"]


def draw(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of this size in pixels with one plot in it, quiet axes and a horizontal grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
    axes = figure.add_subplot()
    style(axes)
    return figure, axes


def style(axes: Axes) -> None:
    """Make the axes quiet."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["--line"])
    axes.tick_params(colors=COLOURS["--soft"], length=0, labelsize=10, pad=5)
    axes.grid(axis="y", color=COLOURS["--grid"], linewidth=1)
    axes.set_axisbelow(True)


def whole(axes: Axes) -> None:
    """Set the counts on the y axis: from 0, whole numbers, few."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def svg(figure: Figure, name: str, label: str) -> Html:
    """Return the figure as SVG for a page.

    Args:
        figure: the drawn figure.
        name: a word in a to z, different for each plot of a page: definitions inside are named after it.
        label: description of the plot, for readers who do not see it.
    """
    import matplotlib

    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)  # type: ignore[attr-defined]
    out = io.StringIO()
    with matplotlib.rc_context({
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    }):  # fmt: skip
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None,
                                                                       "Type": None})  # fmt: skip
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    box = re.match(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', text)
    assert box is not None
    text = f'<svg viewBox="{box[1]}" role="img" aria-label="{esc(label)}">{text[box.end() :]}'
    text = re.sub(r'id="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{name}-", text)
    text = text.replace("xlink:href", "href")
    for variable, placeholder in COLOURS.items():
        text = text.replace(placeholder, f"var({variable})")
    return Html(re.sub(r"\n\s*", "\n", text))


def stacked(
    name: str,
    label: str,
    times: Sequence[datetime],
    seconds: int,
    series: Sequence[tuple[str, Sequence[int], int]],
) -> Html:
    """Return counts per bucket, one series on the other: for each its name, counts and colour."""
    figure, axes = draw(900, 260)
    starts = [at.replace(tzinfo=None) for at in times]
    days = seconds / 86400
    stack(axes, starts, series, width=days * 0.92, align="edge")
    timed(axes, starts, days)
    whole(axes)
    return svg(figure, name, label)


def stack(
    axes: Axes, positions: Sequence[Any], series: Sequence[tuple[str, Sequence[int], int]], **how: Any
) -> list[int]:
    """Draw the bars of each series on those of the ones before; return their heights together."""
    below = [0] * len(positions)
    for _, heights, index in series:
        axes.bar(positions, heights, bottom=below, color=colour(index), linewidth=0, **how)
        below = [low + value for low, value in zip(below, heights, strict=True)]
    return below


def timed(axes: Axes, starts: Sequence[datetime], days: float) -> None:
    """Set the times on the x axis, few and short, from the first bucket to the end of the last."""
    from datetime import timedelta

    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, show_offset=True)
    formatter.formats = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
    formatter.zero_formats = ["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"]
    formatter.offset_formats = ["", "%Y", "%b %Y", "%d %b %Y", "%d %b %Y", "%d %b %Y %H:%M"]
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.get_offset_text().set_color(COLOURS["--soft"])
    axes.xaxis.get_offset_text().set_size(10)
    if starts:
        axes.set_xlim(starts[0], starts[-1] + timedelta(days=days))  # type: ignore[arg-type]


def bars(
    name: str,
    label: str,
    labels: Sequence[str],
    series: Sequence[tuple[str, Sequence[int], int]],
) -> Html:
    """Return counts side by side: names below, numbers on top if there are few."""
    figure, axes = draw(380, 210)
    below = stack(axes, range(len(labels)), series, width=0.8)
    step = max(1, -(-len(labels) // 7))
    axes.set_xticks(range(0, len(labels), step), list(labels)[::step])
    axes.set_xlim(-0.6, max(len(labels), 3) - 0.4)
    if len(labels) <= 12:
        for index, total in enumerate(below):
            if total:
                axes.annotate(number(total), (index, total), (0, 3), textcoords="offset points", ha="center", size=9,
                              color=COLOURS["--soft"])  # fmt: skip
        axes.margins(y=0.12)
    whole(axes)
    return svg(figure, name, label)


def small_multiples(
    name: str,
    label: str,
    rows: Sequence[tuple[str, Sequence[datetime], Sequence[int], Sequence[bool], float]],
    seconds: int,
) -> Html:
    """Draw a line of bars for each name over the same time, bursts in red: name, times, counts, bursts, the usual."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(900 / 72, (34 + 74 * len(rows)) / 72), layout="constrained")
    shared: Any = None
    for index, (title, times, heights, burst, usual) in enumerate(rows):
        axes = figure.add_subplot(len(rows), 1, index + 1, sharex=shared)
        shared = shared or axes
        style(axes)
        starts = [at.astimezone(UTC).replace(tzinfo=None) for at in times]
        days = seconds / 86400
        colours = [COLOURS["--burst"] if high else colour(0) for high in burst]
        axes.bar(starts, heights, width=days * 0.92, align="edge", color=colours, linewidth=0)
        axes.axhline(usual, color=COLOURS["--soft"], linewidth=1, linestyle=(0, (3, 3)))
        whole(axes)
        axes.set_ylim(0, max([*heights, 1]) * 1.08)
        axes.set_title(title, loc="left", size=10, color=COLOURS["--fg"], pad=4)
        timed(axes, starts, days)
        if index < len(rows) - 1:
            axes.tick_params(labelbottom=False)
            axes.xaxis.get_offset_text().set_visible(False)
    return svg(figure, name, label)


def ranges(name: str, label: str, rows: Sequence[tuple[str, float, float, float]]) -> Html:
    """Draw seconds on one logarithmic axis, a line for each name: p50 to p99 as a bar, a dot for the longest."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure, axes = draw(900, 60 + 26 * len(rows))
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=COLOURS["--grid"], linewidth=1)
    axes.set_xscale("log")
    # A wait of nothing, or of less by two clocks, has no place on such an axis: it is drawn at its left end.
    least = min(value for row in rows for value in row[1:] if value > 0)
    for index, (_, *values) in enumerate(rows):
        middle, high, longest = (max(value, least) for value in values)
        axes.plot((high, longest), (index, index), color=COLOURS["--line"], linewidth=2, zorder=1)
        axes.plot(
            (middle, high), (index, index), color=colour(0), linewidth=7, solid_capstyle="butt", zorder=2
        )
        axes.plot((middle, middle), (index - 0.3, index + 0.3), color=colour(0), linewidth=3, zorder=3)
        axes.plot((longest,), (index,), marker="o", markersize=6, color=colour(1), zorder=3)
    axes.set_yticks(range(len(rows)), [title for title, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", colors=COLOURS["--fg"])
    low, high = axes.get_xlim()
    if high < 100 * low:
        axes.set_xlim(low / 3, high * 3)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    return svg(figure, name, label)


def tick(seconds: float) -> str:
    """Return a power of ten of seconds below an axis."""
    return (
        f"{seconds:,.0f} s"
        if seconds >= 1
        else f"{seconds * 1e3:g} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:g} µs"
    )


def legend(series: Sequence[tuple[str, int]]) -> Html:
    """Return the meaning of each colour."""
    items = (
        Html(f'<li><i style="background:var(--s{min(index, OTHERS)})"></i>{tag("span", name)}</li>')
        for name, index in series
    )
    return Html(f'<ul class="legend">{"".join(items)}</ul>')


def short(text: str, most: int = 28) -> str:
    """Return text that fits below a plot."""
    text = visible(text).replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def width_of(seconds: int) -> str:
    """Return the width of a bucket in words: "per 15 min"."""
    return f"per {duration(seconds)}"

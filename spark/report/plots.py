"""Plots as SVG inside the page.

Text stays text, so that it is small, can be searched, and takes the page's font. Colours are the page's: matplotlib
draws with placeholders, which become CSS variables, so one drawing serves light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from .page import duration, number, visible

COLOURS: Final = {
    "--fg": "#010101", "--soft": "#020202", "--line": "#030303", "--grid": "#040404", "--card": "#050505",
    "--burst": "#060606", **{f"--s{index}": f"#0707{index:02x}" for index in range(8)},
}  # fmt: skip
"""The page's colours, and the values that stand for them while matplotlib draws."""

OTHERS: Final = 7
"""The colour of all that has none of its own."""

STYLE: Final = {
    "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
    "axes.edgecolor": COLOURS["--line"], "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "axes.titlecolor": COLOURS["--fg"], "axes.titlelocation": "left", "axes.titlesize": 10, "axes.titlepad": 4,
    "grid.color": COLOURS["--grid"], "grid.linewidth": 1, "date.interval_multiples": True,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in {
        "color": COLOURS["--soft"], "labelcolor": COLOURS["--soft"], "labelsize": 10, "major.size": 0, "minor.size": 0,
        "major.pad": 5}.items()},
    "svg.fonttype": "none", "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "text.parse_math": False, "figure.constrained_layout.use": True,
}  # fmt: skip
"""Settings of matplotlib: quiet axes and a horizontal grid."""


def colour(index: int) -> str:
    return COLOURS[f"--s{min(index, OTHERS)}"]


class Panel(NamedTuple):
    """Bars over time.

    Attributes:
        title: text above; none if empty.
        times: the beginning of each bucket.
        series: heights, and a colour or one of each bar; each series stands on the one before.
        usual: height of a dashed line, if any.
    """

    title: str
    times: Sequence[datetime]
    series: Sequence[tuple[Sequence[int], Any]]
    usual: float | None = None


def over_time(name: str, label: str, panels: Sequence[Panel], seconds: int, height: int) -> Markup:
    """Return panels below each other, over the same time, as SVG for a page.

    Args:
        name: a word in a to z, different for each plot of a page: definitions inside are named after it.
        label: description of the plot, for readers who do not see it.
        panels: bars.
        seconds: width of a bucket.
        height: pixels of a panel.
    """
    import matplotlib
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    width, out = timedelta(seconds=seconds), io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(900 / 72, (34 * (len(panels) > 1) + height * len(panels)) / 72))
        for axes, panel in zip(
            figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0], panels, strict=True
        ):
            starts = [at.astimezone(UTC).replace(tzinfo=None) for at in panel.times]
            below = [0] * len(starts)
            for heights, colours in panel.series:
                axes.bar(starts, heights, width * 0.92, below, align="edge", color=colours, linewidth=0)
                below = [low + more for low, more in zip(below, heights, strict=True)]
            if panel.usual is not None:
                axes.axhline(panel.usual, color=COLOURS["--soft"], linewidth=1, linestyle=(0, (3, 3)))
            axes.set(
                title=panel.title, ylim=(0, max([*below, 1]) * 1.08), xlim=(starts[0], starts[-1] + width)
            )
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        locator = AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(
            locator,
            formats=["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"],
            zero_formats=["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"],
            offset_formats=["", "%Y", "%b %Y", "%d %b %Y", "%d %b %Y", "%d %b %Y %H:%M"],
        ))  # fmt: skip
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return Markup(in_page(out.getvalue(), name, label))


def in_page(text: str, name: str, label: str) -> str:
    """Return an SVG of matplotlib as an element of a page, in the page's colours."""
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    box = re.match(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', text)
    assert box is not None
    text = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(label)}">{text[box.end() :]}'
    text = re.sub(r'id="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{name}-", text).replace("xlink:href", "href")
    for variable, placeholder in COLOURS.items():
        text = text.replace(placeholder, f"var({variable})")
    return re.sub(r"\n\s*", "\n", text)


def short(text: str, most: int = 28) -> str:
    text = visible(text).replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def width_of(seconds: int) -> str:
    return f"per {duration(seconds)}"

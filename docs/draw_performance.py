"""Draw the figures of docs/performance.md: `python docs/draw_performance.py` makes performance.svg beside this.

All that is drawn is read from the page, which `docs/make_performance.py` writes. Needs matplotlib (extra `spark`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = Path(__file__).with_name("performance.md")
BESIDE = {"quorumq": "#2c6fbb", "RabbitMQ 4.0.5": "#b0b7bf"}
PHASES = ("publish", "consume\nand ack", "drain\n(both)", "stream")
LEGS = {"publish": "#2c6fbb", "deliver": "#8fb8e0", "ack": "#e0a03c"}


def numbers(cell: str) -> list[float]:
    """What stands in a cell, "1,200 / 0.5" say."""
    return [float(each.replace(",", "")) for each in re.findall(r"[\d,]*\d(?:\.\d+)?", cell)]


def beside(page: str) -> dict[str, tuple[list[float], list[float]]]:
    """For each queue: messages a second by phase, and milliseconds by leg."""
    found = {}
    for name in BESIDE:
        row = re.search(rf"^\| {re.escape(name)}[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|", page, re.MULTILINE)
        assert row, f"docs/performance.md has no row of {name}"
        found[name] = ([*numbers(row[1]), *numbers(row[2])], numbers(row[3])[: len(LEGS)])
    return found


def sizes(page: str) -> dict[int, float]:
    """Messages a second through publish and consume, by their size in bytes."""
    rows = re.findall(r"`sizes \(size ([\d,]+)\)` \|.*stream ([\d,]+)/s", page)
    return {int(size.replace(",", "")): numbers(rate)[0] for size, rate in rows}


def draw_rates(axes: Axes, found: dict[str, tuple[list[float], list[float]]]) -> None:
    for index, (name, colour) in enumerate(BESIDE.items()):
        places = [place + 0.4 * index for place in range(len(PHASES))]
        bars = axes.bar(places, found[name][0], 0.38, color=colour, label=name)
        axes.bar_label(bars, [f"{rate / 1000:,.0f}" for rate in found[name][0]], fontsize=8)
    axes.set_xticks([place + 0.2 for place in range(len(PHASES))], PHASES)
    axes.set_yticks([])
    axes.legend(frameon=False)
    axes.set_title("Batches of 500: thousand messages a second")


def draw_legs(axes: Axes, found: dict[str, tuple[list[float], list[float]]]) -> None:
    for name in reversed(BESIDE):
        left = 0.0
        for (leg, colour), ms in zip(LEGS.items(), found[name][1], strict=True):
            axes.barh(name, ms, 0.5, left=left, color=colour, label=leg if name == "quorumq" else None)
            left += ms
    axes.set_xlabel("ms, p50")
    axes.legend(frameon=False, loc="lower right")
    axes.set_title("One message at a time")


def draw_sizes(axes: Axes, found: dict[int, float]) -> None:
    axes.loglog(list(found), list(found.values()), marker="o", color=BESIDE["quorumq"])
    for size, rate in found.items():
        axes.annotate(
            f"{rate:,.0f}/s\n{size * rate / 1e6:,.0f} MB/s",
            (size, rate),
            (6, 2),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xlabel("bytes a message")
    axes.set_xlim(50, max(found) * 8)
    axes.set_ylim(min(found.values()) / 2, max(found.values()) * 3)
    axes.set_title("quorumq bench sizes: stream")


def main() -> None:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "quorumq", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(11, 3.6), layout="constrained", facecolor="white")
    rates, legs, by_size = figure.subplots(1, 3, width_ratios=(1.3, 1, 1.1))
    page = PAGE.read_text()
    draw_rates(rates, beside(page))
    draw_legs(legs, beside(page))
    draw_sizes(by_size, sizes(page))
    for axes in (rates, legs, by_size):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PAGE.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()

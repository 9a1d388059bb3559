"""Make the pictures of docs/protocol.md from text: each `*.txt` beside this file becomes an `*.svg`.

    python docs/pictures/draw.py

A line of a source is one thing; `|` begins a new line of its text, and `#` a comment.

    size WIDTH HEIGHT                 of the picture in pixels, its first line
    box X Y W H KIND : text           KIND: plain, good, wait, bad
    arrow X1 Y1 X2 Y2 … : text        level and upright parts; text above or right of the longest
    note X Y : text                   text alone, from its left edge

    lanes NAME | NAME …               or else, instead of boxes and arrows, a sequence: who takes part
    NAME > NAME : text                a message
    NAME : text                       something that one does by itself
    -- text                           what begins here

Text that does not fit where it stands is refused. The result has its own background, so that it can be read on dark and
light pages, and turns dark with the reader's system.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
FONT_PX = 13
LINE_PX = 17
CHAR_PX = 7.3
"""Width of a character, on the safe side of common sans-serif fonts."""

LANE_BOX_PX = 150
STYLE = """
  text { font: 13px "DejaVu Sans", Verdana, Helvetica, Arial, sans-serif; fill: #1c2430; }
  .page { fill: #ffffff; stroke: #c9d1da; }
  .title { font-weight: bold; font-size: 15px; }
  .plain { fill: #eef2f7; stroke: #5b6b7f; }
  .good { fill: #dcf3e1; stroke: #2c7a3f; }
  .wait { fill: #fdf1d0; stroke: #946a00; }
  .bad { fill: #fbdfdd; stroke: #a8352b; }
  .line { fill: none; stroke: #3c4a5c; stroke-width: 1.4; }
  .life { stroke: #9aa7b5; stroke-dasharray: 4 4; }
  .head { fill: #3c4a5c; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6ebf1; }
    .page { fill: #12181f; stroke: #35404c; }
    .plain { fill: #222c38; stroke: #8fa1b5; }
    .good { fill: #173a22; stroke: #63b97a; }
    .wait { fill: #40330b; stroke: #d9ac3a; }
    .bad { fill: #46201d; stroke: #e0837a; }
    .line { stroke: #b4c0cd; }
    .life { stroke: #5d6b7a; }
    .head { fill: #b4c0cd; }
  }
"""

Point = tuple[float, float]


class Picture:
    """One picture while it is drawn: its parts, and which text does not fit."""

    def __init__(self, title: str, width: float, height: float) -> None:
        self.title = title
        self.width = width
        self.height = height
        self.parts: list[str] = []
        self.text(20, 28, [title], "start", "title", width - 40)

    def text(self, x: float, y: float, lines: list[str], anchor: str, style: str, room: float) -> None:
        """``lines`` from baseline ``y`` down, in ``room`` pixels."""
        for number, line in enumerate(lines):
            if len(line) * CHAR_PX > room:
                raise ValueError(
                    f"{self.title}: {line!r} needs {len(line) * CHAR_PX:.0f} of {room:.0f} pixels"
                )
            kind = f' class="{style}"' if style else ""
            at = f'x="{x:g}" y="{y + number * LINE_PX:g}"'
            self.parts.append(f'<text {at} text-anchor="{anchor}"{kind}>{escape(line)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, lines: list[str]) -> None:
        if len(lines) * LINE_PX > height:
            raise ValueError(f"{self.title}: a box of {height:g} pixels is too low for {lines}")
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
        self.parts.append(f'<rect {shape} class="{kind}"/>')
        top = y + height / 2 - (len(lines) - 1) * LINE_PX / 2 + FONT_PX / 2 - 2
        self.text(x + width / 2, top, lines, "middle", "", width - 8)

    def arrow(self, points: list[Point], lines: list[str]) -> None:
        """Through ``points``, each part level or upright; the text stands at the longest part."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" class="line" marker-end="url(#head)"/>')
        parts = list(itertools.pairwise(points))
        (x1, y1), (x2, y2) = max(
            parts, key=lambda part: abs(part[0][0] - part[1][0]) + abs(part[0][1] - part[1][1])
        )
        if y1 == y2:
            above = y1 - 6 - (len(lines) - 1) * LINE_PX
            self.text((x1 + x2) / 2, above, lines, "middle", "", abs(x1 - x2) - 12)
        else:
            middle = (y1 + y2) / 2 - (len(lines) - 1) * LINE_PX / 2 + 4
            self.text(x1 + 8, middle, lines, "start", "", self.width - x1 - 16)

    def svg(self) -> str:
        """The whole file."""
        shown = "\n".join(f"  {part}" for part in self.parts)
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
  <title>{escape(self.title)}</title>
  <style>{STYLE}  </style>
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
      <path d="M0,0 L10,5 L0,10 z" class="head"/>
    </marker>
  </defs>
  <rect x="0.5" y="0.5" width="{self.width - 1:g}" height="{self.height - 1:g}" rx="8" class="page"/>
{shown}
</svg>
"""


def split(text: str) -> list[str]:
    return [line.strip() for line in text.split("|")]


def lines_of(source: str) -> Iterator[tuple[str, list[str]]]:
    """(what stands before the colon, the lines of text behind it) of each line of a source."""
    for line in source.splitlines():
        if line.strip() and not line.startswith("#"):
            words, _, text = line.partition(" : ")
            yield words.strip(), split(text) if text else []


def draw_plan(picture: Picture, things: list[tuple[str, list[str]]]) -> None:
    """Boxes and arrows where the source says."""
    for words, text in things:
        name, *values = words.split()
        if name == "box":
            x, y, width, height = map(float, values[:4])
            picture.box(x, y, width, height, values[4], text)
        elif name == "arrow":
            numbers = [float(value) for value in values]
            picture.arrow(list(zip(numbers[::2], numbers[1::2], strict=True)), text)
        elif name == "note":
            x, y = map(float, values)
            picture.text(x, y, text, "start", "", picture.width - x - 10)
        else:
            raise ValueError(f"{picture.title}: {words!r} is neither box, arrow nor note")


def draw_sequence(picture: Picture, names: list[str], things: list[tuple[str, list[str]]]) -> None:
    """Lanes from left to right, time from top to bottom."""
    pitch = (picture.width - 40) / len(names)
    lanes = {name: 20 + pitch * (place + 0.5) for place, name in enumerate(names)}
    for x in lanes.values():
        life = f'x1="{x:g}" y1="76" x2="{x:g}" y2="{picture.height - 14:g}"'
        picture.parts.append(f'<line {life} class="life"/>')
    for name, x in lanes.items():
        picture.box(x - LANE_BOX_PX / 2, 46, LANE_BOX_PX, 30, "plain", [name])
    y = 90.0
    for words, text in things:
        if words.startswith("-- "):
            y += 14
            picture.box(20, y, picture.width - 40, 24, "wait", [words[3:]])
            y += 34
            continue
        height = len(text) * LINE_PX
        sender, _, receiver = (part.strip() for part in words.partition(">"))
        if receiver:
            y += height + 8
            toward = 2 if lanes[receiver] < lanes[sender] else -2
            picture.arrow([(lanes[sender], y), (lanes[receiver] + toward, y)], text)
            y += 8
        else:
            width = max(len(line) for line in text) * CHAR_PX + 20
            if width > pitch - 4:
                raise ValueError(f"{picture.title}: {text} is wider than a lane")
            picture.box(lanes[sender] - width / 2, y, width, height + 8, "good", text)
            y += height + 14
    if y > picture.height - 10:
        raise ValueError(f"{picture.title} needs {y + 10:g} pixels of height")


def draw(title: str, source: str) -> str:
    """The SVG that ``source`` makes."""
    (size, _), *things = lines_of(source)
    width, height = map(float, size.removeprefix("size ").split())
    picture = Picture(title, width, height)
    first = things[0][0]
    if first.startswith("lanes "):
        draw_sequence(picture, split(first.removeprefix("lanes ")), things[1:])
    else:
        draw_plan(picture, things)
    return picture.svg()


def svg_of(path: Path) -> str:
    """The SVG that a source file makes: its first line, a comment, is the title."""
    source = path.read_text()
    return draw(source.splitlines()[0].lstrip("# "), source)


def main() -> int:
    for path in sorted(FOLDER.glob("*.txt")):
        path.with_suffix(".svg").write_text(svg_of(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())

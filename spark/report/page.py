"""The frame of a report: one file, nothing loaded from anywhere, everything escaped.

A report shows text of any client that made a message fail. So text becomes HTML in one way only: `Html` is text that
is HTML already, and `esc` makes it out of anything else. Functions here take text and values and give Html.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final, NamedTuple


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


EMPTY: Final = Html("")


def esc(value: Any) -> Html:
    """Return ``value`` as HTML; characters that no document may contain, or that reorder text, are written out."""
    if isinstance(value, Html):
        return value
    if value is None:
        return EMPTY
    return Html(html.escape(visible(str(value))))


def visible(text: str) -> str:
    """Return ``text`` with invisible characters written out; the caller escapes it."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in "\n\t" or (char.isprintable() and char not in _REORDER):
        return char
    return "\n" if char == "\r" else f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


_REORDER: Final = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def tag(name: str, content: Any = "", **attributes: Any) -> Html:
    """Return an element; ``class_`` is class, and attributes that are None are left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{esc(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{said}>{esc(content)}</{name}>")


def join(parts: Iterable[Any], between: str = "\n") -> Html:
    """Return the parts together, escaped if they are not HTML."""
    return Html(between.join(esc(part) for part in parts))


def page(title: str, body: Html) -> str:
    """Return a whole document. Its policy forbids loading anything and running any script but ours."""
    here = files(__package__)
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{esc(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{esc(body)}\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def section(name: str, title: str, *parts: str) -> Html:
    """Return a part of a page below its head; text that is no HTML yet is a paragraph, and nothing if it is empty."""
    made = (part if isinstance(part, Html) else tag("p", part) for part in parts if part)
    return join((tag("h2", title, id=name), *made))


# ---------------------------------------------------------------------------------- values


def number(value: float | None) -> str:
    """Return a number for people: 1,234; 12.3; 0.04; nothing if it is not known."""
    if value is None:
        return ""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """Return a share: 12 %, 0.3 %."""
    if share is None:
        return ""
    size = 100 * share
    return f"{size:.0f} %" if size >= 9.95 or size == 0 else "<0.1 %" if size < 0.05 else f"{size:.1f} %"


def duration(seconds: float | None) -> str:
    """Return a time for people, two units at most: 350 ms, 4.2 s, 3 min 20 s, 2 h, 5 d 3 h."""
    if seconds is None:
        return ""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + " s"
    remaining = round(seconds)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    at = next(index for index, (size, _) in enumerate(units) if remaining >= size)
    parts = []
    for size, name in units[at : at + 2]:
        parts.append(f"{remaining // size} {name}" if remaining // size else "")
        remaining %= size
    return " ".join(filter(None, parts))


def size(count: float | None) -> str:
    """Return a size: 900 B, 1.5 KiB, 2 MiB."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def time(at: datetime | None) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


# ---------------------------------------------------------------------------------- tables


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: its head.
        kind: "n" number, "t" time, "w" long text, "i" a name that may be long, "" short text.
        hint: its meaning, shown when pointed at.
        of: its value in a row: the name of a field, its title in lower case if not given, or a function that gives
            the value, or a pair of that and the number to sort by.
    """

    title: str
    kind: str = ""
    hint: str = ""
    of: str | Callable[[Mapping[str, Any]], Any] = ""


def table(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    empty: str,
    more: int = 0,
    whole: bool = False,
) -> Html:
    """Return a table to sort and filter.

    Args:
        columns: heads, and the value below each.
        rows: rows with the fields that the columns show.
        empty: text if there are no rows.
        more: number of rows besides these.
        whole: True if it is short enough to be shown at full height and without a filter.
    """
    if not rows:
        return tag("p", empty, class_="empty")
    heads = join(
        (
            tag("th", tag("button", column.title, type="button"), class_=column.kind or None, scope="col",
                title=column.hint or None)
            for column in columns
        ),
        "",
    )  # fmt: skip
    body = join(tag("tr", join((_cell(column, row) for column in columns), "")) for row in rows)
    inner = tag(
        "div", tag("table", join((tag("thead", tag("tr", heads)), tag("tbody", body)), "")), class_="scroll"
    )
    if whole:
        return tag("div", inner, class_="table whole")
    count = f"{len(rows)} of {len(rows)}"
    text = tag("span", join((tag("span", count, data_shown=""), f" · {more:,} more in the tables" if more else ""), ""),
               class_="soft")  # fmt: skip
    search = Html('<input type="search" placeholder="Filter" aria-label="Filter rows">')
    bar = tag("div", join((search, text), ""), class_="bar")
    return tag("div", join((bar, inner), ""), class_="table")


def _cell(column: Column, row: Mapping[str, Any]) -> Html:
    content = column.of(row) if callable(column.of) else row[column.of or column.title.lower()]
    shown, by = content if isinstance(content, tuple) else (content, None)
    if by is None and column.kind in ("n", "t"):
        by = "" if shown in (None, "") else shown
    if isinstance(by, datetime):
        by = by.timestamp()
    if isinstance(shown, datetime):
        shown = time(shown)
    elif column.kind == "n" and isinstance(shown, int | float):
        shown = number(shown)
    return tag("td", shown, class_=column.kind or None, data_v=by)


def soft(text: str) -> Html:
    return tag("span", text, class_="soft")


def share(count: int, every: int) -> Any:
    return (percent(count / every), count / every) if every else ""


def shared(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: (percent(row[name]), row[name])


def took(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a duration for a column, to sort by; nothing if it is not known."""
    return lambda row: "" if row[name] is None else (duration(row[name]), row[name])


def tables_beside(names: Iterable[str]) -> Html:
    """Return the tables beside the page, each with the line that reads it."""
    lines = "\n".join(f'{name} = spark.read.parquet("tables/{name}")' for name in names)
    text = (
        "All rows are in tables beside this file, in Parquet (docs/spark.md). From this directory, in Spark:"
    )
    return section("tables", "Tables", text, tag("pre", lines))


def figure(caption: str, hint: str, svg: Html, *, legend: Html = EMPTY) -> Html:
    head = tag("figcaption", join((caption, tag("small", hint)), ""))
    return tag("figure", join((head, svg, legend)))


def note(level: str, content: Any, *, class_: str = "") -> Html:
    """Return a box: "bad", "warn", "good" or "plain"."""
    return tag("div", content, class_=" ".join(filter(None, ("note", level, class_))))


def cards(figures: Iterable[tuple[str, str]]) -> Html:
    each = (
        tag("div", join((tag("b", big), tag("span", small)), ""), class_="card") for big, small in figures
    )
    return tag("div", join(each), class_="cards")

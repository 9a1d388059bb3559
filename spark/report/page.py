"""The frame of a report: one file, nothing loaded from anywhere, everything escaped.

A report shows text of any client that made a message fail. So everything that a template shows goes through `visible`
and Jinja's escapes; only a `Markup` is HTML already.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from quorumq.core.values.printable import plural


def rendered(template: str, **contents: Any) -> str:
    """Return a page: a template of this package, filled. Functions among the contents serve as filters, too."""
    pages = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=visible,
    )  # fmt: skip
    pages.filters.update(
        number=number, percent=percent, duration=duration, size=size, time=time, plural=plural
    )
    pages.filters.update({name: it for name, it in contents.items() if callable(it)})
    return pages.get_template(template).render(contents)


def visible(value: Any) -> Any:
    """Return a value as a text that a template may escape: nothing for None, invisible characters written out."""
    if value is None or isinstance(value, Markup):
        return "" if value is None else value
    text = str(value)
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in "\n\t" or (char.isprintable() and char not in _REORDER):
        return char
    return "\n" if char == "\r" else f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


_REORDER: Final = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


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

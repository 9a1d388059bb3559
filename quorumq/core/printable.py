"""What others wrote, for a terminal: it shows it, and obeys none of it."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with all that a terminal would obey as an escape: names and texts come from others. Lines stay."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text])

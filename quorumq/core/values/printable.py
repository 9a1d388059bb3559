"""Text for people: counts with their nouns; and text from others, which a terminal shows and obeys none of."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return ``text`` with escapes for all that a terminal would obey, because others wrote it. Lines stay."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text])


def plural(count: int, noun: str, several: str = "") -> str:
    """Return "1 message", "2,000 messages"; ``several``: the noun of other counts if an s is not enough."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"

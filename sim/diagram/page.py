"""The page of a story: one file, nothing loaded from anywhere, all text put there as text."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from sim.diagram.story import Story


def visible(text: str) -> str:
    """Return the text with characters that cannot be seen, or that reorder others, written out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text)


def cleaned(value: Any) -> Any:
    """Return a plain value with all its text made `visible`."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list | tuple):
        return [cleaned(part) for part in value]
    if isinstance(value, dict):
        return {key: cleaned(part) for key, part in value.items()}
    return value


def page_of(story: Story) -> str:
    """Return the page as text."""
    here = files("sim.diagram")
    value = json.dumps(cleaned(story.to_value()), separators=(",", ":"))
    for char in "<>&":  # in a script element no text is markup but the end of it
        value = value.replace(char, f"\\u{ord(char):04x}")
    page = here.joinpath("page.html").read_text()
    for name in ("css", "js"):
        page = page.replace(f"{{{name}}}", here.joinpath(f"page.{name}").read_text(), 1)
    before, _, after = page.partition("{story}")
    return before + value + after

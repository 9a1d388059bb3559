"""Shell-style patterns of topics' names."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Final

NO_TOPIC: Final = "[*]"
"""A pattern that no topic's name matches: METADATA of it has the nodes alone, that of all topics may have megabytes."""


def is_pattern(name: str) -> bool:
    """Return True if a topic argument is a shell-style pattern: no topic's name has such a character."""
    return "*" in name or "?" in name or "[" in name


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return names that match a pattern, sorted: ``*`` any text, ``?`` one, ``[ab]`` one of these, ``[!ab]`` not."""
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))

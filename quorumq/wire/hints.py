"""Answers to a name that does not exist: the closest one that does, if the caller may see it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

from quorumq.core.values.limits import MEANT_MAX

ADDED_MAX = 3
"""Most characters that a mistyped name has too many or too few. If there are more, it is another name."""
COMPARED_MAX = 160_000
"""Most cost of the names that one is compared with, some 3 ms. Each costs `COMPARED` and the product of both lengths,
which it takes if they have equal characters in another order."""
COMPARED = 600
LISTED_MAX = 20
"""Most groups that an answer names if another one is asked for."""


def meant(name: str, names: Iterable[str]) -> str:
    """Return a question if ``name`` may be one of ``names``, mistyped, else "".

    It looks at the first `MEANT_MAX` of them, and compares those that begin or end alike, up to `COMPARED_MAX`.
    """
    half = max(1, len(name) // 2 - 1)
    alike: list[str] = []
    cost = 0
    for other in islice(names, MEANT_MAX):
        if abs(len(other) - len(name)) > ADDED_MAX:
            continue
        if other[:half] == name[:half] or other[-half:] == name[-half:]:
            cost += COMPARED + len(name) * len(other)
            if cost > COMPARED_MAX:
                break
            alike.append(other)
    close = difflib.get_close_matches(name, alike, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def unknown_topic(topic: str, known: Iterable[str]) -> str:
    """Return the text of the answer if a topic does not exist. ``known``: names of those that do."""
    hint = meant(topic, known)
    return (
        f"there is no topic {topic!r}: {f'{hint} ' if hint else ''}`quorumq topics create {topic}` makes it, and so "
        "does publishing on nodes with auto_create_topics"
    )


def unknown_group(topic: str, group: str, known: Sequence[str]) -> str:
    """Return the text of the answer if a group does not read a topic. ``known``: names of those that do."""
    hint = meant(group, known)
    return (
        f"no group {group!r} reads topic {topic!r}: {', '.join(known[:LISTED_MAX]) or 'none'} "
        f"do{'es' if len(known) == 1 else ''}; {f'{hint} ' if hint else ''}`quorumq groups create` makes one"
    )

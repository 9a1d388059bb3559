"""Delta debugging: a smallest part of a list for which something still holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], holds: Callable[[list[T]], bool]) -> list[T]:
    """Return a part of ``items``, in order, for which ``holds`` is true, and which no single item can be taken from.

    Args:
        holds: asked of parts. It may say no to all when its time is over.
    """
    kept = list(items)
    if not kept or holds([]):
        return []
    size = (len(kept) + 1) // 2
    while size:
        at, removed = 0, False
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if rest and holds(rest):
                kept, removed = rest, True
            else:
                at += size
        if size > 1:
            size = min((size + 1) // 2, max(1, len(kept) // 2))
        elif not removed or len(kept) == 1:
            return kept
    return kept

"""Delta debugging: a smallest part of a list for which something still holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], holds: Callable[[list[T]], bool]) -> list[T]:
    """Return a part of ``items``, in order, for which ``holds`` is true, and which no single item can be taken from.

    Args:
        items: for which it holds.
        holds: asked of parts; what it does when its time is over, such as saying no to all, is its own matter.

    Returns:
        the smallest part that it was true of.
    """
    left = list(items)
    if not left or holds([]):
        return []
    size = (len(left) + 1) // 2
    while size:
        at, removed = 0, False
        while at < len(left):
            rest = left[:at] + left[at + size :]
            if rest and holds(rest):
                left, removed = rest, True
            else:
                at += size
        if size > 1:
            size = min((size + 1) // 2, max(1, len(left) // 2))
        elif not removed or len(left) == 1:
            return left
    return left

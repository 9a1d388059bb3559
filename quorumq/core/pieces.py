"""What is too much for one message, one record or one step goes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def pieces_of(items: Sequence[T], most: int) -> list[tuple[T, ...]]:
    """``items``, in their order, in pieces of ``most`` at most; no piece where there are none."""
    return [tuple(items[at : at + most]) for at in range(0, len(items), most)]

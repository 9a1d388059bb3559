"""Chunks of sequences that are too long for one message, one record or one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks_of(items: Sequence[T], most: int) -> list[tuple[T, ...]]:
    """Return ``items``, in their order, in chunks of ``most`` at most; no chunk if there are no items."""
    return [tuple(items[at : at + most]) for at in range(0, len(items), most)]

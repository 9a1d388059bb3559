"""Values that an exploration meets again and again: each is kept once, and has a number from then on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Numbered(Generic[T]):
    """Values of one kind; ``all[number]`` is the value."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: T, key: Hashable = None) -> int:
        """Return the number of ``value``: of the first one with this key, which is the value itself if None."""
        if key is None:
            key = value
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.all)
            self.all.append(value)
        return number

"""Speed at which an application uses messages, and so the number worth fetching before it asks."""

from __future__ import annotations

from collections import deque
from typing import Final

AHEAD_S: Final = 0.5
"""Seconds ahead for which messages are worth fetching. Another consumer could work on those that lie longer."""

WEIGHT: Final = 0.25
"""Weight of the last hand-over in the averages."""

CYCLE_MIN_S: Final = 1e-4


class Pace:
    """Averages over hand-overs, and over the tasks that ask again; several tasks may ask.

    A task that asks again is taken for the one that has been away longest. The averages are right for any task, and if
    one never asks again, it only counts as slow.
    """

    def __init__(self) -> None:
        self._away: deque[tuple[float, int]] = (
            deque()
        )  # when, and how much: as long as tasks ask at once, at most
        self._cycle = 0.0  # seconds from a hand-over to the next request of its task, on average
        self._size = 0.0  # messages of a hand-over, on average
        self._used = 0  # since the last time that it slowed down

    def handed(self, now: float, count: int) -> None:
        """Note that a task was handed ``count`` messages."""
        self._away.append((now, count))

    def asked(self, now: float) -> None:
        """Note that a task asks for messages: those it had are used up."""
        if not self._away:
            return
        since, count = self._away.popleft()
        weight = WEIGHT if self._size else 1.0
        self._cycle += weight * (now - since - self._cycle)
        self._size += weight * (count - self._size)
        self._used += count

    def slowed(self) -> None:
        """Begin anew with little, because messages fetched ahead lay too long."""
        self._used = 0

    def ahead(self, now: float, waiting: int) -> int:
        """Return the number of messages that would be used up within `AHEAD_S`, while ``waiting`` tasks wait.

        At most as many as were used since it slowed down. 0 until a task has asked again.
        """
        if not self._used:
            return 0
        cycle = max(self._cycle, CYCLE_MIN_S)
        if self._away:
            cycle = max(cycle, now - self._away[0][0])
        tasks = len(self._away) + waiting
        return min(self._used, int(tasks * self._size * AHEAD_S / cycle))

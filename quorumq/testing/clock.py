"""Virtual time: a clock that jumps to the next deadline when nothing else is to do."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import trio
from trio.testing import active_thread_count

T = TypeVar("T")

LONG_S: Final = 3600.0
"""Real seconds that the event loop may sleep; any event ends them."""


class Clock(trio.abc.Clock):
    """A clock of trio that stands still while tasks or threads work, and jumps over the time that all of them wait.

    Args:
        is_still: asked before a jump; time stands still while it returns True. If None, time stands still while a
            thread of `trio.to_thread` runs.
    """

    def __init__(self, is_still: Callable[[], bool] | None = None) -> None:
        self._now = 0.0
        self._is_still = is_still or active_thread_count

    def start_clock(self) -> None:
        """Begin; time is that of the last run."""

    def current_time(self) -> float:
        """Return the seconds that have passed in virtual time."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the real seconds until a deadline: none, since trio asks only if no task can run."""
        if deadline > self._now:
            if deadline == math.inf or self._is_still():
                return LONG_S
            self._now = deadline
        return 0.0

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._now += seconds


def run(
    test: Callable[..., Awaitable[T]],
    *args: Any,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """Run an async function like `trio.run`, in virtual time: sleeps, delays and timeouts take no time.

    With pytest-trio: ``@pytest.mark.trio(run=quorumq.testing.run)``.
    """
    return trio.run(test, *args, clock=clock or Clock(), instruments=instruments)

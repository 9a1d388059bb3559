"""Virtual time: when nothing can happen now, it is the next moment at which something does."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import trio


class VirtualTime(trio.abc.Clock):
    """A clock for trio that jumps, and makes the calls that are due then.

    Trio asks how long it may sleep only when no task can run: so that is when time goes on. A call needs no
    task, no scope with a deadline and no turn of trio's loop, which together would take a third of a run.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []  # the queue of events, as `heapq` has it
        self.order = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have ``call`` called at that time; not from a task, so it must not raise."""
        self.order += 1
        heapq.heappush(self.due, (when, self.order, call))

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.time

    def deadline_to_sleep_time(self, deadline: float) -> float:
        due = self.due
        when = min(deadline, due[0][0]) if due else deadline
        if when == math.inf:
            return math.inf
        self.time = max(self.time, when)
        while due and due[0][0] <= self.time:
            heapq.heappop(due)[2]()
        return 0.0


def virtual_time() -> VirtualTime:
    """Return the clock of this run."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualTime)
    return clock

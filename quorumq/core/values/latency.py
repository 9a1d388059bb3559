"""Times that something takes, such as peers to answer a HOLD.

Why not a list of the last answers: the time is read once per round and fed once per reply, on the path of every
delivery. Why in steps of 19 %: the question is "when has it become pointless to wait", and three times the answer is
used. Nothing here reads a clock, and equal replies give equal answers: the simulator replays it.
"""

from __future__ import annotations

import math
from bisect import bisect_left

STEPS_PER_DOUBLING = 4
SHORTEST_S = 1e-4
STEPS_MAX = 4 * 20
"""Number of steps. The longest measured time is SHORTEST_S * 2**20, about 100 s."""

STEPS = [SHORTEST_S * 2.0 ** (step / STEPS_PER_DOUBLING) for step in range(STEPS_MAX)]
"""The longest time of each step but the last one, which has no end."""

HALVE_EVERY = 500
"""Answers after which older ones count half: an hour of quiet, or of load, fades within thousands of answers."""

ANSWERS_MIN = 20
"""Answers below which there is no percentile to speak of."""

ASKED_MAX = 1024
"""Requests whose answers are timed; an answer to an older one is too late to matter."""


class Latency:
    """Times in steps that grow with the time, older ones counting less and less.

    Attributes:
        ever: number of answers in each step since the start, none counting less.
        seconds: sum of all these times.
    """

    __slots__ = ("counts", "ever", "seconds", "since_halving", "total")

    def __init__(self) -> None:
        self.counts: dict[int, float] = {}  # step -> number of answers, weighted
        self.total = 0.0
        self.since_halving = 0
        self.ever = [0] * (STEPS_MAX + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        step = bisect_left(STEPS, seconds)
        self.counts[step] = self.counts.get(step, 0.0) + 1.0
        self.ever[step] += 1
        self.seconds += seconds
        self.total += 1.0
        self.since_halving += 1
        if self.since_halving >= HALVE_EVERY:
            self._halve()

    def _halve(self) -> None:
        self.since_halving = 0
        self.counts = {step: count / 2 for step, count in self.counts.items() if count > 1.0}
        self.total = sum(self.counts.values())

    def p99(self) -> float | None:
        """Return the 99th percentile in seconds, up to 19 % too high; None while there are too few answers."""
        if self.total < ANSWERS_MIN:
            return None
        above = self.total / 100  # answers that may have taken longer
        for step in sorted(self.counts, reverse=True):
            above -= self.counts[step]
            if above < 0:
                return float(SHORTEST_S * 2.0 ** (step / STEPS_PER_DOUBLING))
        raise AssertionError("more than all answers took longer")

    def up_to(self) -> list[tuple[str, float]]:
        """Return doubling bounds in seconds, as text, each with the number of answers within it since the start."""
        rows = [
            (f"{SHORTEST_S * 2**doubling:g}", float(sum(self.ever[: STEPS_PER_DOUBLING * doubling + 1])))
            for doubling in range(STEPS_MAX // STEPS_PER_DOUBLING)
        ]
        return [*rows, ("+Inf", float(sum(self.ever)))]

    def timeout(self, shortest: float, longest: float, unknown: float | None = None) -> float:
        """Return seconds, three times the percentile, within bounds; ``unknown``, or ``longest``, without one."""
        known = self.p99()
        seconds = 3 * known if known is not None else longest if unknown is None else unknown
        return max(shortest, min(longest, seconds))

    def check(self) -> None:
        assert 0 <= self.since_halving < HALVE_EVERY
        assert math.isclose(self.total, sum(self.counts.values()), abs_tol=1e-6)
        assert len(self.counts) <= STEPS_MAX + 1


class ReplyTimes(Latency):
    """Times from a request to each of its answers, also those received when it is over."""

    __slots__ = ("_asked_at",)

    def __init__(self) -> None:
        super().__init__()
        self._asked_at: dict[int, float] = {}

    def begin(self, number: int, at: float) -> None:
        """Time the answers to request ``number``, which is sent now."""
        self._asked_at[number] = at
        if len(self._asked_at) > ASKED_MAX:
            del self._asked_at[next(iter(self._asked_at))]

    def end(self, number: int, at: float) -> None:
        """Note the time of an answer."""
        if number in self._asked_at:
            self.note(at - self._asked_at[number])

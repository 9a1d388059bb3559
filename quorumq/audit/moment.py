"""Points in time of several clocks, and their order.

Two readings of one clock are compared exactly. Readings of two clocks are intervals, and if these overlap, the order is
not known. So there are two questions, `sure` and `maybe`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FAR_S: Final = 1e15
"""Seconds beyond any clock: the ends of an interval about which nothing is known."""

NOWHERE: Final = -1
"""The clock of a line whose clock is not known: no other line is on it."""


class Moment(NamedTuple):
    """A point in time, in seconds of the run: the earliest by the end of its interval is the least.

    Attributes:
        high: the latest that it may be.
        t: in the order of the clock itself.
        low: the earliest that it may be.
        clock: number of the clock; `NOWHERE` if it is not known.
    """

    high: float
    t: float
    low: float
    clock: int

    def later(self, seconds: float) -> Moment:
        """Return the moment that many seconds later on the same clock."""
        return Moment(self.high + seconds, self.t + seconds, self.low + seconds, self.clock)

    @property
    def located(self) -> bool:
        """Return True if the interval has ends."""
        return self.low > -FAR_S and self.high < FAR_S


def sure(early: Moment | None, late: Moment | None) -> bool:
    """Return True if ``early`` was before ``late`` beyond doubt; False if either is None."""
    if early is None or late is None:
        return False
    if early.clock == late.clock != NOWHERE:
        return early.t < late.t
    return early.high < late.low


def maybe(early: Moment | None, late: Moment | None) -> bool:
    """Return True if ``early`` may have been before ``late``; False if either is None."""
    if early is None or late is None:
        return False
    if early.clock == late.clock != NOWHERE:
        return early.t < late.t
    return early.low < late.high


def sure_by(early: Moment | None, late: Moment | None) -> bool:
    """Return True if ``early`` was not after ``late`` beyond doubt."""
    if early is None or late is None:
        return False
    if early.clock == late.clock != NOWHERE:
        return early.t <= late.t
    return early.high <= late.low


def maybe_by(early: Moment | None, late: Moment | None) -> bool:
    """Return True if ``early`` may have been before ``late``, or at the same time."""
    if early is None or late is None:
        return False
    if early.clock == late.clock != NOWHERE:
        return early.t <= late.t
    return early.low <= late.high


def apart(early: Moment | None, late: Moment | None) -> float | None:
    """Return the seconds from one to the other: exact on one clock, else between the middles of their intervals.

    Returns:
        None if either is None, or on a clock that is not placed: its readings say nothing of another's.
    """
    if early is None or late is None:
        return None
    if early.clock == late.clock != NOWHERE:
        return late.t - early.t
    if early.located and late.located:
        return ((late.low + late.high) - (early.low + early.high)) / 2
    return None


def seconds(value: float | None) -> str:
    """Return a time as evidence shows it: to 0.1 ms, and a time of day without an exponent."""
    return "nothing" if value is None else f"{value:.4f} s"

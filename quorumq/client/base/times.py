"""Delays and times to live of messages: the application's times, as durations.

Only durations leave this process: a time of day that the application names is turned into one by this machine's
clock, at once, and no other clock is asked (docs/protocol.md, TIMES).
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime, timedelta

from quorumq.core.values.errors import UsageError
from quorumq.core.values.limits import DELAY_MAX_S, TOPIC_TIME_MAX_S

Duration = float | timedelta
"""Seconds, or a timedelta."""


def number_of(name: str, value: Duration) -> float:
    """Return ``value`` in seconds, whether or not it makes sense; UsageError, about ``name``, if it is no time."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float | int):
        with suppress(OverflowError):  # a huge integer
            return float(value)
    raise UsageError(f"{name} is {value!r:.60}: give seconds or a timedelta")


def timeout_of(value: Duration, name: str = "timeout") -> float:
    """Return a time to wait in seconds, which may be infinite; UsageError, about ``name``, if it is none."""
    seconds = number_of(name, value)
    if not seconds >= 0.0:
        raise UsageError(f"{name} is {seconds:g} s: it must be at least 0")
    return seconds


def positive_of(name: str, value: int) -> int:
    """Return ``value``, a number of things; UsageError, about ``name``, if it is no integer above 0."""
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is {value!r}: it must be an integer, at least 1")
    return value


def flag_of(name: str, value: bool) -> bool:
    """Return ``value``, a flag; UsageError, about ``name``, if it is neither True nor False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r:.60}: give True or False")
    return value


def seconds_of(name: str, value: Duration, most: float) -> float:
    """Return ``value`` in seconds; UsageError, about ``name``, unless it is a time from 0 to ``most`` seconds."""
    seconds = number_of(name, value)
    if not 0.0 <= seconds <= most:
        raise UsageError(
            f"{name} is {seconds:.12g} s: it must be from 0 to {most:.0f} s ({most / 86400:.0f} days)"
        )
    return seconds


def delay_ms(delay: Duration | None, not_before: datetime | None, wall_ms: int) -> int:
    """Return the delay of a message in milliseconds, rounded up; 0 if the time is over.

    Args:
        delay: seconds or a timedelta, or
        not_before: time before which it is not delivered, with a time zone.
        wall_ms: this machine's time of day, in milliseconds.

    Raises:
        UsageError: both are given, or the delay is out of bounds, or the datetime has no time zone.
    """
    if not_before is None:
        return math.ceil(1000 * seconds_of("delay", delay or 0.0, DELAY_MAX_S))
    if delay is not None:
        raise UsageError(f"delay is {delay} and not_before {not_before}: give one of them")
    if not isinstance(not_before, datetime):
        raise UsageError(f"not_before is {not_before!r}: give a datetime, or seconds as delay=")
    if not_before.tzinfo is None:
        raise UsageError(
            f"not_before is {not_before}, without a time zone: say datetime.now(timezone.utc) + …"
        )
    seconds = max(0.0, not_before.timestamp() - wall_ms / 1000)
    return math.ceil(1000 * seconds_of(f"not_before is {not_before}, and the delay", seconds, DELAY_MAX_S))


def check_order(delay_ms: int, ttl_ms: int, topic_ttl_s: float) -> None:
    """Refuse a message that would expire before any consumer may have it.

    Args:
        ttl_ms: time to live, in milliseconds; 0 leaves it to the topic.
        topic_ttl_s: the topic's, in seconds; 0 for none, or if it is not known.

    Raises:
        UsageError: the delay is as long or longer.
    """
    most = ttl_ms or 1000 * topic_ttl_s
    if delay_ms and most and delay_ms >= most:
        whose = "ttl" if ttl_ms else "the topic's ttl"
        raise UsageError(
            f"the delay is {delay_ms / 1000:g} s and {whose} {most / 1000:g} s, both from now on: nobody would ever "
            "get the message; give a longer ttl="
        )


def ttl_ms(ttl: Duration | None) -> int:
    """Return the time to live of a message in milliseconds, rounded up; 0, which leaves it to the topic, for None.

    Raises:
        UsageError: it is not above 0, or out of bounds.
    """
    if ttl is None:
        return 0
    seconds = seconds_of("ttl", ttl, TOPIC_TIME_MAX_S)
    if not seconds:
        raise UsageError("ttl is 0 s: it must be above 0; None leaves it to the topic")
    return math.ceil(1000 * seconds)

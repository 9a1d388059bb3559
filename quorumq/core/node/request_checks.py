"""Checks of clients' requests that need nothing but the request: each returns the error, or ""."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_LETTER_TOPIC, DEAD_SUFFIX
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.printable import plural


def check_hold_time(hold_time: float, most: float, of: str = "") -> str:
    """Return why a hold time cannot be granted, or "". ``of``: text in front of the limit."""
    if limits.HOLD_TIME_MIN_S <= hold_time <= most:
        return ""
    return f"hold_time is {hold_time} s: it must be from {limits.HOLD_TIME_MIN_S} s to {of}{most} s"


def check_fetch(request: m.Fetch, hold_time_max: float) -> str:
    """Return the error of a FETCH, or ""."""
    problem = check_hold_time(request.hold_time, hold_time_max, "this cluster's hold_time_max, ")
    if problem:
        return problem
    if not request.topics:
        return "no topic is named"
    if any(name.endswith(DEAD_LETTER_TOPIC) for name in request.topics):
        return "topics and their dead letters cannot be fetched in one request: make one for each"
    problem = check_group_name(request.group.removesuffix(DEAD_SUFFIX))
    if problem:
        return problem
    if request.start not in ("earliest", "latest"):
        return f"start is {request.start[:50]!r}: it must be 'earliest' or 'latest'"
    if request.max_messages < 1 or request.max_bytes < 1:
        return "max_messages and max_bytes must be at least 1"
    if not 0 <= request.max_wait <= limits.LONG_POLL_MAX_S:
        return f"max_wait is {request.max_wait} s: it must be from 0 to {limits.LONG_POLL_MAX_S} s"
    return check_named(request) if request.spans else ""


def check_named(request: m.Fetch) -> str:
    """Return the error of a FETCH that names messages, or ""."""
    named = sum(span.size for span in request.spans)
    if named > limits.FETCH_NAMED_MAX:
        return (
            f"{plural(named, 'message')} are named: at most {limits.FETCH_NAMED_MAX}; send several requests"
        )
    if len(request.topics) != 1 or is_pattern(request.topics[0]) or len(set(request.partitions)) != 1:
        return "messages are named: name their topic and their partition, and no other one"
    if request.max_wait:
        return f"messages are named, and max_wait is {request.max_wait} s: it must be 0"
    return ""


def check_group_name(group: str) -> str:
    """Return the error of a group's name, or ""."""
    if not group or len(group.encode()) > limits.NAME_BYTES_MAX or "!" in group:
        return (
            f"group is {group[:50]!r}: it must have 1 to {limits.NAME_BYTES_MAX} bytes and no '!', but for the "
            f"{DEAD_SUFFIX!r} of a group's dead letters"
        )
    if not group.isprintable():
        return f"group is {group[:50]!r}: it must be printable"
    return ""

"""Producer ids of messages that their publishers name (docs/protocol.md, NAMES): slots, windows, and their numbers.

Number k of a window of n seconds is the time from k n to (k + 1) n, in seconds since 1970. Each node counts by its own
time of day. The clocks of two nodes are taken to differ by less than a window. So a caller finds a name that another
one was given within the last n seconds in one of `LOOKED_IN`.
"""

from __future__ import annotations

from typing import Final

from quorumq.core.values.limits import AGES_END, NAME_NUMBERS, NAME_WINDOW_SLOTS, NAME_WINDOWS
from quorumq.core.values.types import DERIVED, NAMED, ProducerId, Span

LOOKED_IN: Final = (0, -1, -2, 1)
"""Windows in which a name is looked for, counted from the current one. Between two questions at most n seconds pass,
and the clocks differ by less than n: the second number is above the first by two at most, or below it by one."""

AHEAD_MAX: Final = 2
"""Windows by which an id may be ahead of a node's clock: one that `LOOKED_IN` reaches, and one for the clocks."""

PAST: Final = 4
"""Windows from the begin of one until no node looks in it: the third is the last, and one more is for the clocks."""


def slots_of(window_s: int) -> int:
    """Return the number of producer ids of each window of this length; 0 stands for the topic's life."""
    return next(slots for least, slots in NAME_WINDOW_SLOTS if window_s >= least and (least or not window_s))


def window_from(seconds: float) -> int:
    """Return the shortest window that is not below ``seconds``, which are at most those of the longest."""
    return next(window for window in NAME_WINDOWS if window >= seconds)


def number_at(window_s: int, wall_ms: int) -> int:
    """Return the number of the window of a time of day, in milliseconds since 1970."""
    return max(0, wall_ms // (1000 * window_s))


def is_windowed(producer_id: ProducerId) -> bool:
    """Return True if it is of names that are kept for a window."""
    return producer_id.node == NAMED and producer_id.n > 0


def past_below(window_s: int, wall_ms: int) -> int:
    """Return the number of the first window that is not past by this time of day: one that a caller may be given, or
    look in."""
    return max(0, number_at(window_s, wall_ms) - PAST + 1)


def problem_with(span: Span) -> str:
    """Return the reason why messages under a named producer id have the id of no name; "" if they may have."""
    (_, window_s, slot, number), _, stop = span
    if window_s not in (0, *NAME_WINDOWS):
        return f"names are kept for {window_s} s: it must be 0 or one of {', '.join(map(str, NAME_WINDOWS))}"
    if slot >= slots_of(window_s):
        return f"the slot of a name is {slot}: with a window of {window_s} s there are {slots_of(window_s)}"
    if stop > NAME_NUMBERS:
        return f"the number of a name is {stop - 1}: it must be below {NAME_NUMBERS}"
    if number and not window_s:
        return f"the number of a window is {number}: without a window it must be 0"
    return ""


def early(span: Span, wall_ms: int) -> str:
    """Return the reason why this node takes no names of a window yet; "" if that is not ahead of its clock."""
    _, window_s, _, number = span.producer_id
    if not window_s or number <= number_at(window_s, wall_ms) + AHEAD_MAX:
        return ""
    ahead_s = number * window_s - wall_ms // 1000
    return (
        f"window {number} of {window_s} s begins in {ahead_s} s by this node's time of day: the node that was asked "
        "for the name has another. Set the clocks of the nodes right, and publish it anew"
    )


def begins_ms(producer_id: ProducerId, published_ms: int) -> int:
    """Return the time of day, in milliseconds, that the beginning of a generation is compared with.

    Messages that are derived or named may be published by several clients, each at its own time, and replicas may keep
    copies of either. Their time therefore is a function of the id alone: of a name the end of its window. Without a
    window, and of what is derived, it is later than any beginning.
    """
    node, window_s, _, number = producer_id
    if node == NAMED and window_s:
        return 1000 * window_s * (number + 1)
    return AGES_END if node in (NAMED, DERIVED) else published_ms


def begins_ms_of(producer_id: str, published_ms: int) -> int:
    """Return the same of a producer id as histories have it."""
    if not producer_id.startswith("~"):
        return published_ms
    node, n, _, k = producer_id.split(".")
    return begins_ms(ProducerId(node, int(n), 0, int(k)), published_ms)

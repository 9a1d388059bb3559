"""Cost in bytes of a request and its reply while they are under way."""

from __future__ import annotations

from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.values.limits import KIB, SPANS_PER_REQUEST_MAX
from quorumq.wire.values import WireSlice

STALE_S: Final = 0.1
"""Seconds, or a tenth of its hold time, that a FETCH's reply may wait for the client to read."""


def stale_after(reply: m.FetchReply) -> float:
    """Return the seconds that a FETCH's reply may wait for the client to read."""
    return min(STALE_S, reply.hold_time / 10)


def foreign_bytes(reply: m.ClientReply) -> int:
    """Return the bytes of records that a reply keeps in memory: those from another node. Ours are read later."""
    if not isinstance(reply, m.FetchReply | m.PeekReply | m.ShowReply):
        return 0
    parts: tuple[object, ...] = reply.slices
    return sum(len(part.body) for part in parts if isinstance(part, WireSlice))


def weight_of(request: Any, frame_bytes: int) -> int:
    """Return the bytes that a request may cost while it is under way, its answer's values included."""
    match request:
        case m.Fetch():
            return frame_bytes + KIB + 32 * min(max(0, request.max_messages), 1 << 16)
        case m.PeekRequest():
            return frame_bytes + KIB + 256 * min(max(0, request.limit), SPANS_PER_REQUEST_MAX)
        case m.Metadata() | m.StatusRequest() | m.ShowRequest() | m.DescribeGroups():
            return frame_bytes + 256 * KIB
    return 2 * frame_bytes + KIB

"""Maps whose keys the protocol does not know: the facts of a status."""

from __future__ import annotations

from typing import Any

from quorumq.wire.bounds import STATUS_DEPTH_MAX
from quorumq.wire.cbor import bad


def plain(where: str, value: object, depth: int = 0) -> Any:
    """Plain CBOR data as dicts and lists, however it was nested; keys are text."""
    if depth > STATUS_DEPTH_MAX:
        bad(where, value, f"nested deeper than {STATUS_DEPTH_MAX}")
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return value
    if type(value) is tuple:
        return [plain(where, item, depth + 1) for item in value]
    if hasattr(value, "items"):
        result = {}
        for key, item in value.items():
            if type(key) is not str:
                bad(where, key, "keys are text")
            result[key] = plain(where, item, depth + 1)
        return result
    return bad(where, value, "must be plain data")


def plain_map(where: str, value: object) -> Any:
    """Return the `plain` form of a map."""
    if not hasattr(value, "items"):
        bad(where, value, "must be a map")
    return plain(where, value)

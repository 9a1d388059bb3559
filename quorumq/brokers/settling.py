"""A rule for all brokers: the errors after which a verdict on a message is sent again."""

from __future__ import annotations

from typing import Any

from quorumq.client import HoldLost, QuorumqError, Transient, Unauthorized


def is_passing(error: QuorumqError, message: Any) -> bool:
    """Return True if a verdict that failed is to be sent again: settled twice is settled once.

    If a client has lost its rights, it may get them back when the file of clients has changed. It asks again while the
    message is held.
    """
    if isinstance(error, Unauthorized):
        return bool(message.is_live)
    return isinstance(error, Transient) and not isinstance(error, HoldLost)

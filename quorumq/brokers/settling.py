"""A rule for all brokers: the errors after which a verdict on a message is sent again."""

from __future__ import annotations

from typing import Any

from quorumq.client import HoldLost, QuorumqError, Transient, Unauthorized


def is_passing(error: QuorumqError, message: Any) -> bool:
    """Return True if a verdict that failed is to be sent again: settled twice is settled once.

    The task is done, and that is worth more than one question. A client that has lost its rights may get them back, as
    the file of clients may be in change, for as long as the message is held.

    Args:
        error: why it failed.
        message: the message, of any of the clients.
    """
    if isinstance(error, Unauthorized):
        return bool(message.is_live)
    return isinstance(error, Transient) and not isinstance(error, HoldLost)

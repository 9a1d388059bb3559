"""Rules for all brokers: when a verdict on a message is sent again, and how a worker that stops gives messages back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from quorumq.client import HoldLost, QuorumqError, Transient, Unauthorized, blocking

LAST_WORD_S: Final = 2.0
"""Seconds that messages may take to be given back at the end."""

log = logging.getLogger("quorumq.brokers")


def is_passing(error: QuorumqError, message: Any) -> bool:
    """Return True if a verdict that failed is to be sent again: settled twice is settled once.

    If a client has lost its rights, it may get them back when the file of clients has changed. It asks again while the
    message is held.
    """
    if isinstance(error, Unauthorized):
        return bool(message.is_live)
    return isinstance(error, Transient) and not isinstance(error, HoldLost)


def give_back(client: blocking.Client, messages: Sequence[blocking.Message]) -> None:
    """Give back all messages that a worker has in hand when it stops, in one call. That counts no attempt.

    Why: a supervisor kills a worker some seconds after it has stopped it, and each call may take the client's timeout.
    """
    if not messages:
        return
    try:
        client.reject(messages, interrupted=True, timeout=LAST_WORD_S)
    except QuorumqError as error:
        warn_of_rest(len(messages), error)


def warn_of_rest(count: int, error: QuorumqError) -> None:
    """Log that messages were not given back."""
    log.warning(
        "of %d messages some were not given back, and come again when their holds are over: %s", count, error
    )

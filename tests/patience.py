"""Waiting in tests for events that must come."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 900.0
"""Limit for a test that hangs. No test takes as long, at a quarter of a machine's speed and beside other work. Tests
assert the order of events, and not how soon they come."""

POLL_S = 0.05


def until(true: Callable[[], object], description: str | Callable[[], object]) -> None:
    """Wait until something is so; AssertionError with ``description``, or its result, when patience is over."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, description() if callable(description) else description
        time.sleep(POLL_S)

"""Waiting in tests for events that must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 900.0
"""Limit for a test that hangs. No test takes as long, at a quarter of a machine's speed and beside other work. Tests
assert the order of events, and not how soon they happen."""

POLL_S = 0.05


def until(true: Callable[[], object], description: str | Callable[[], object], process: Any = None) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: when patience is over, or if ``process`` ends before; with ``description``, or its result.
    """
    end = time.monotonic() + PATIENCE_S
    while not true():
        ended = process is not None and process.poll() is not None
        assert time.monotonic() < end and not ended, description() if callable(description) else description  # noqa: PT018
        time.sleep(POLL_S)

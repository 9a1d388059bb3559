"""The two clocks of a machine, read once per event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from quorumq.core.values.types import Now

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_BOOTTIME goes on while the machine is suspended, as holds do (docs/protocol.md, G2)."""

_new_now: Final[Callable[[type[Now], tuple[float, int]], Now]] = tuple.__new__


def real_now() -> Now:
    """Return both clocks now: monotonic seconds, suspended time included if the system counts it, and time of day."""
    return _new_now(Now, (time.clock_gettime(_MONOTONIC), time.time_ns() // 1_000_000))

"""Limits of a core's step and of a message: little, so that a short life sees work that takes several.

In production a step votes on 128 runs of messages, which no run here ever has. With room for two of them, most of what
a client asks goes in several steps: a client that leaves, a crash, a cut and a retry are in between.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

STEP_S = 0.01
"""Most seconds that a step takes if it leaves something to the next one, with little room."""

CORE = "quorumq.core."

TIMES = {
    "RUNS_PER_STEP": 1, "REPLICA_LIST_LIMIT": 1, "CHEAP": 1, "COSTLY_PER_STEP": 8, "REFRESHED_PER_STEP": 1,
    "LOOKS_PER_STEP": 1, "COMPARED_PER_STEP": 16, "RECLAIMED_PER_STEP": 4, "GROUPS_MADE_PER_STEP": 1,
    "TIMERS_PER_STEP": 4, "STORE_BATCHES_MAX": 1, "RECLAIM_BATCHES_MAX": 1, "PEEK_ITEMS_MAX": 4, "PEEK_SCAN_MAX": 8,
    "DEATHS_PER_CHUNK": 1, "GROUPS_PER_CHUNK": 1, "REGISTERS_PER_CHUNK": 1, "HOLDS_PER_CHUNK": 1,
    "DIGESTS_MAX": 16, "LISTED_MAX": 1, "PULL_BATCHES_MAX": 1, "BALLOTS_AT_STOP_MAX": 2, "BEGIN_RUNS_MAX": 2,
    "REPLICA_LIST_SCAN_MAX": 1,
}  # fmt: skip
"""Limits of one step, or of one piece of many, by name, each with its value per run that a step votes on."""


def modules_with(name: str) -> list[Any]:
    """Return the modules of the core that know a limit by this name."""
    core = [module for path, module in sorted(sys.modules.items()) if path.startswith(CORE)]
    return [module for module in core if name in vars(module)]


@contextlib.contextmanager
def small_limits(runs: int) -> Iterator[None]:
    """Have a step vote on ``runs`` runs, and do as little of everything else; 0: as in production."""
    before = [
        (module, name, getattr(module, name))
        for name in (TIMES if runs else ())
        for module in modules_with(name)
    ]
    unknown = [name for name in TIMES if runs and all(name != known for _, known, _ in before)]
    assert not unknown, f"no module of the core has {', '.join(unknown)}: it was renamed"
    for module, name, most in before:
        setattr(module, name, min(most, TIMES[name] * runs))
    try:
        yield
    finally:
        for module, name, most in before:
            setattr(module, name, most)

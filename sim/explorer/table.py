"""One exploration, with all rules or without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quorumq.core.partition import hold_recovery
from quorumq.core.requests import creation, fetch, groups, membership, moving, registers, registration, remote
from sim.explorer.scenario import NEVER, Scenario
from sim.explorer.search import Result, search
from sim.explorer.steps import Explorer
from sim.explorer.trace import explain
from sim.rules import Rule, patched

Progress = Callable[[Result], None]

BOUNDS = (
    (fetch, "ROUND_TIMEOUT_MIN_S", NEVER),
    (remote, "SUB_FETCH_MARGIN_S", NEVER),
    (remote, "looks_of", lambda context, partition: 1),
    (hold_recovery, "ASK_FIRST_S", NEVER),
    (registers, "WRITES_MAX", 4),
    (creation, "PROPOSALS_MAX", 4),
    (groups, "PROPOSALS_MAX", 4),
    (registration, "PROPOSALS_MAX", 4),
    (membership, "PROPOSALS_MAX", 4),
    (moving, "PROPOSALS_MAX", 4),
)
"""Rounds of FETCH time out when the explorer says so, like all others, with any hold time. Two proposers that
outbid each other give up sooner than in production. A FETCH without a message asks no other replica by itself:
that would be an attempt, and scenarios say how many there are."""


@contextmanager
def left_out(rule: Rule | None) -> Iterator[dict[str, None]]:
    """Leave ``rule`` out while the context lasts; None keeps all.

    Yields the names of the patches of the rule that were not called yet.
    """
    before = [getattr(owner, name) for owner, name, _ in BOUNDS]
    try:
        for owner, name, bound in BOUNDS:
            setattr(owner, name, bound)
        with patched(rule.patches if rule is not None else ()) as unused:
            yield unused
    finally:
        for (owner, name, _), old in zip(BOUNDS, before, strict=True):
            setattr(owner, name, old)


def explore(
    scenario: Scenario,
    without: Rule | None = None,
    states_max: int = 1_000_000,
    seconds: float = 3600.0,
    on_progress: Progress | None = None,
) -> Result:
    """Explore one scenario; bounds and progress as in `search`.

    Args:
        without: the rule to leave out; None keeps all.
    """
    with left_out(without) as unused:
        explorer = Explorer(scenario)
        result, path = search(explorer, states_max, seconds, on_progress)
        result.trace = explain(explorer, path)
        result.steps = len(path)
        result.without = without.name if without is not None else None
        result.unused = list(unused)
    return result

"""One exploration, and the table of them all."""

from __future__ import annotations

from collections.abc import Callable

from sim.explorer.rules import RULES, Rule, left_out
from sim.explorer.scenario import Scenario
from sim.explorer.search import Explorer, Result, search
from sim.explorer.trace import explain

Progress = Callable[[Result], None]


def explore(
    scenario: Scenario,
    without: Rule | None = None,
    states_max: int = 1_000_000,
    seconds: float = 3600.0,
    on_progress: Progress | None = None,
) -> Result:
    """Explore one scenario.

    Args:
        scenario: the bounds.
        without: the rule to leave out; None keeps all.
        states_max: states to find at most.
        seconds: processor time to take at most.
        on_progress: called every few thousand states.

    Returns:
        what was found, with a readable trace if a promise was broken.
    """
    with left_out(without) as switches:
        explorer = Explorer(scenario, switches)
        result, path = search(explorer, states_max, seconds, on_progress)
        result.trace = explain(explorer, path)
        result.steps = len(path)
        result.without = without.name if without is not None else None
    return result


def table(
    rules: tuple[Rule, ...] = RULES,
    states_max: int = 60_000,
    seconds: float = 3600.0,
    on_row: Callable[[Rule, Result, Result], None] | None = None,
    on_progress: Progress | None = None,
) -> list[tuple[Rule, Result, Result]]:
    """Both columns of docs/protocol.md, section 4: each rule's scenario with all rules, and without this one."""
    rows: list[tuple[Rule, Result, Result]] = []
    for rule in rules:
        kept = explore(rule.scenario, None, states_max, seconds, on_progress)
        broken = explore(rule.scenario, rule, states_max, seconds, on_progress)
        rows.append((rule, kept, broken))
        if on_row is not None:
            on_row(rule, kept, broken)
    return rows

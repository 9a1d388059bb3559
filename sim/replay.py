"""One schedule, run with all rules or with one left out."""

from __future__ import annotations

from typing import Any

from sim.rules import HUNTED, Rule, patched, prepared, rule_named
from sim.runner import Outcome, run_schedule
from sim.schedule import Schedule


def replay(schedule: Schedule, without: Rule | str | None = None, **how: Any) -> Outcome:
    """Run it.

    Args:
        how: as for `run_schedule`; ``prepare`` is called after what leaves the rule out.

    Raises:
        KeyError: there is no such rule. The text names those that there are.
    """
    if without is None:
        return run_schedule(schedule, **how)
    rule = rule_named(without, HUNTED) if isinstance(without, str) else without
    leave_out, then = prepared(rule), how.pop("prepare", None)

    def prepare(cluster: object) -> None:
        leave_out(cluster)
        if then is not None:
            then(cluster)

    with patched(rule.patches):
        return run_schedule(schedule, prepare=prepare, **how)

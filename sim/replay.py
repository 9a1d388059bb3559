"""One schedule, run with all rules or with one left out."""

from __future__ import annotations

from typing import Any

from sim.rules import Rule, patched
from sim.runner import Outcome, run_schedule
from sim.schedule import SHELL, Schedule, draw


def drawn(seed: int, profile: str) -> Schedule:
    """Return the schedule of a seed.

    Raises:
        ValueError: there is no such profile.
    """
    if profile != SHELL:
        return draw(seed, profile)
    from sim.shell.run import draw_shell  # most runs need nothing of it

    return draw_shell(seed)


def run(schedule: Schedule, **how: Any) -> Outcome:
    """Run it with all rules; ``how`` as for `run_schedule`, which a run of the shell leaves out."""
    if schedule.profile != SHELL:
        return run_schedule(schedule, **how)
    from sim.shell.run import run_shell

    return run_shell(schedule)


def replay(schedule: Schedule, without: Rule | None = None, **how: Any) -> Outcome:
    """Run it, perhaps without a rule; ``how`` as for `run`."""
    with patched(without.patches if without is not None else ()):
        return run(schedule, **how)

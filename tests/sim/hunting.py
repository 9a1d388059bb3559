"""Looks for a seed that shows that a rule is left out: the simulator passes if it finds one."""

from __future__ import annotations

from collections.abc import Iterable

from sim.replay import replay
from sim.rules import Rule, patched
from sim.runner import Outcome, run_schedule
from sim.schedule import draw

BOUND = 800
"""Seeds within which every rule that is hunted is found missing, but for those whose `survives` says why not."""


def run_without(rule: Rule, seed: int, profile: str = "swarm", *, keep: bool = False) -> Outcome:
    """Run one seed with the rule left out."""
    return replay(draw(seed, profile), rule, keep=keep)


def find_seed(rule: Rule, first: int, seeds: int, profile: str = "swarm") -> tuple[int, str] | None:
    """Return the first seed in which a checker sees that the rule is left out, and its violation; None if none does.

    Raises:
        AssertionError: the stand-in for the rule does not fit the core any more.
    """
    for seed in range(first, first + seeds):
        outcome = run_without(rule, seed, profile)
        if outcome.violations:
            seen = outcome.violations[0]
            if "Error at rules/" in seen:
                raise AssertionError(f"what stands in for {rule.name} does not fit the core any more: {seen}")
            return seed, seen
    return None


def unused(rule: Rule, seeds: Iterable[int], among: Iterable[str] | None = None) -> list[str]:
    """Return the patches of the rule that nothing calls in these seeds: they leave nothing out.

    Args:
        among: names of patches that have to be called; all if None. One at least has to be in any case.
    """
    with patched(rule.patches) as uncalled:
        patches = len(uncalled)
        required = set(uncalled if among is None else among)
        for seed in seeds:
            run_schedule(draw(seed))
            if required.isdisjoint(uncalled) and len(uncalled) < max(patches, 1):
                break
        return list(uncalled)

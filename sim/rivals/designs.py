"""The designs that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable

from sim.rivals import earliest, literal, majority, provider
from sim.rivals.figures import Figures, measure
from sim.rivals.harness import Knobs, Run
from sim.rivals.log import clients as log
from sim.schedule import Schedule

DESIGNS: dict[str, tuple[Callable[[Run], None], str]] = {
    "quorumq": (majority.build, "quorumq: majority holds"),
    "literal": (literal.build, "approach C to the letter"),
    "provider": (provider.build, "approach B: a provider per partition"),
    "earliest": (earliest.build, "approach A: the earliest request"),
    "log": (log.build, "the log consumer"),
}


def start(design: str, schedule: Schedule, knobs: Knobs | None = None) -> Run:
    """Return a run of a design, filled and not yet run."""
    run = Run(design, schedule, knobs or Knobs())
    DESIGNS[design][0](run)
    return run


def compare(design: str, schedule: Schedule, knobs: Knobs | None = None) -> Figures:
    """Run it, and measure."""
    run = start(design, schedule, knobs)
    run.run()
    figures = measure(run)
    run.dispose()
    return figures

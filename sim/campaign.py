"""Many seeds, on several processes, added up."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sim.replay import drawn, run
from sim.runner import Outcome, spread
from sim.sometimes import ENOUGH_SEEDS, SOMETIMES


@dataclass(slots=True)
class Report:
    """A campaign, added up."""

    profile: str
    seeds: int = 0
    failures: list[tuple[int, list[str]]] = field(
        default_factory=list
    )  # (seed, violations), in order of the seeds
    counts: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # number of seeds that saw each of sim/sometimes.py
    # A seed's trace hash, of the first ten, so that two campaigns can be compared.
    traces: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one run."""
        self.seeds += 1
        for name, count in outcome.counts.items():
            self.counts[name] = self.counts.get(name, 0.0) + count
        for name in outcome.seen:
            self.seen[name] = self.seen.get(name, 0) + 1
        if len(self.traces) < 10:
            self.traces[outcome.seed] = outcome.trace
        if outcome.violations:
            self.failures.append((outcome.seed, outcome.violations))

    @property
    def failed(self) -> int:
        """Return how many seeds failed."""
        return len(self.failures)

    @property
    def never_seen(self) -> list[str]:
        """Return the sightings that a campaign of this size must have and has not."""
        if self.seeds < ENOUGH_SEEDS or self.profile != "swarm":
            return []
        return [name for name in SOMETIMES if name not in self.seen]

    @property
    def ok(self) -> bool:
        """Return True if every seed passed and everything was seen."""
        return not self.failed and not self.never_seen

    def to_json(self) -> dict[str, object]:
        """Return everything, as plain values."""
        return {
            "profile": self.profile,
            "ok": self.ok,
            "seeds": self.seeds,
            "failed": self.failed,
            "failures": [{"seed": seed, "violations": texts} for seed, texts in self.failures],
            "never_seen": self.never_seen,
            "seen_in_seeds": dict(sorted(self.seen.items())),
            "seconds": round(self.seconds, 2),
            "counts": {name: round(count, 3) for name, count in sorted(self.counts.items())},
            "traces": {str(seed): trace for seed, trace in self.traces.items()},
        }


def run_seed(seed: int, profile: str) -> Outcome:
    """Run one seed of a profile."""
    return run(drawn(seed, profile))


def run_campaign(
    profile: str,
    first: int,
    seeds: int,
    jobs: int,
    on_outcome: Callable[[Outcome, Report], bool] | None = None,
) -> Report:
    """Run seeds ``first`` up to ``first + seeds``; the report is the same for any number of jobs, but for the times.

    Args:
        on_outcome: called after each run, in order of the seeds; True ends the campaign.
    """
    report, began = Report(profile), time.perf_counter()
    for outcome in spread(partial(run_seed, profile=profile), range(first, first + seeds), jobs, chunksize=8):
        report.add(outcome)
        report.seconds = time.perf_counter() - began
        if on_outcome is not None and on_outcome(outcome, report):
            break
    return report


def commit() -> str:
    """Return the commit checked out beside this file, marked if files differ from it; "unknown" without git."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.strip()

"""Many seeds, on several processes, added up."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sim.replay import drawn, run
from sim.runner import Outcome, spread
from sim.sometimes import ENOUGH_SEEDS, SOMETIMES

FAILURES_KEPT = 100


@dataclass(slots=True)
class Report:
    """A campaign, added up."""

    profile: str
    seeds: int = 0
    failed: int = 0  # seeds that failed
    # (seed, violations) of up to `FAILURES_KEPT` seeds that failed, in order of the seeds.
    failures: list[tuple[int, list[str]]] = field(default_factory=list)
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
            self.failed += 1
            if len(self.failures) < FAILURES_KEPT:
                self.failures.append((outcome.seed, outcome.violations))

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

    def rates(self) -> dict[str, float]:
        """Return the figures that people watch; fewer of runs of the shell."""
        counts = defaultdict(int, self.counts)
        seeds, delivered = max(1, self.seeds), max(1, counts["delivered"])
        cpu = counts["cpu"] or 1e-9
        rates = {
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(cpu, 2),
            "seeds_per_cpu_hour": round(3600 * self.seeds / cpu),
            "messages_per_cpu_second": round(counts["messages"] / cpu),
            "messages_per_seed": round(counts["messages"] / seeds, 1),
            "deliveries": counts["delivered"],
            "redelivered_share": round(counts["redelivered"] / delivered, 4),
        }
        if counts["fetched_batches"]:
            rates |= {
                "messages_per_delivery": round(counts["messages"] / counts["fetched_messages"], 2),
                "hold_rounds_per_delivered_batch": round(
                    counts["hold_rounds"] / counts["fetched_batches"], 2
                ),
                "mean_drain_seconds": round(counts["drain_seconds"] / seeds, 3),
            }
        return rates

    def per_seed(self, kind: str) -> dict[str, float]:
        """Return the average of each kind in a seed, the largest first: ``sent`` messages, or ``fault``s."""
        kinds = {
            name.removeprefix(f"{kind} "): round(count / max(1, self.seeds), 2)
            for name, count in self.counts.items()
            if name.startswith(f"{kind} ")
        }
        return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))

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
            "rates": self.rates(),
            "messages_per_seed": self.per_seed("sent"),
            "faults_per_seed": self.per_seed("fault"),
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

"""Shrinks one failing schedule."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from sim.fault_plan import Fault
from sim.packets import Packet
from sim.replay import replay
from sim.rules import Rule
from sim.runner import Outcome
from sim.schedule import Schedule
from sim.shrink.minimal import minimal
from sim.shrink.simpler import richness, smaller, smaller_faults, with_only

OTHER_SEEDS = 4
"""Other random streams that each simpler run is tried with, as long as packets are drawn."""

PLAIN_SEEDS = 12
"""Other random streams, when packets get nothing but the mean delay for the first time."""

DRAWN_SHARE = 0.5
"""Share of the time that runs with drawn packets may take."""

CPU_FACTOR = 10.0
"""Most CPU seconds of a run, as a multiple of the first run's."""


def checker_of(violation: str) -> str:
    """Return a violation's checker and promise, or the place that raised, without times and names of messages."""
    raised = re.match(r"raised at [\d.]+ s: (\w+ at [^:]+):\d+: ", violation)
    return f"raised {raised[1]}" if raised else violation.split(" at ")[0]


def time_of(violation: str) -> float:
    """Return the time when it showed, in simulated seconds."""
    match = re.search(r"\bat ([\d.]+) s:", violation)
    return float(match[1]) if match else 0.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a failing run."""

    faults: int  # in its schedule
    packets: int  # sent in it, to nodes and to clients
    special: int  # packets that the schedule names; all if they are drawn
    messages: int  # that producers had confirmed
    nodes: int  # nodes of the cluster
    clients: int  # clients of the run
    options: int  # that are not at their plainest
    seconds: float  # that it simulates


@dataclass(slots=True)
class Found:
    """A failing run."""

    schedule: Schedule
    outcome: Outcome
    violation: str

    @property
    def size(self) -> Size:
        """Return the size of the run."""
        options, packets = self.schedule.options, self.schedule.packets
        sent = sum(packet.fate != "drawn" for packet in self.outcome.log)
        named = sent if packets is None else len(packets)
        return Size(
            len(self.schedule.faults),
            sent,
            named,
            int(self.outcome.counts["published"]),
            options.nodes,
            len(options.client_names),
            len(richness(options)),
            round(self.outcome.counts["sim_seconds"], 3),
        )


class NothingFails(Exception):
    """The schedule keeps every promise."""


class Shrinker:
    """Shrinks one failing schedule.

    Args:
        seconds: most seconds that it may take; the last run may end a little later.
        on_step: called after each run: the current trial, the number of runs, the smallest that fails.

    Attributes:
        first: the one that it began with.
        done: True if it completed before its time was over.
    """

    def __init__(
        self,
        rule: Rule | None = None,
        seconds: float = 60.0,
        on_step: Callable[[str, int, Found], None] | None = None,
    ) -> None:
        self.rule = rule
        self.seconds = seconds
        self.on_step = on_step
        self.runs = 0
        self.checker = ""
        self.cpu_max = 0.0
        self.tried: dict[str, None] = {}
        self.doing = ""
        self.first: Found
        self.best: Found
        self.done = False
        self.began = time.monotonic()

    def shrink(self, schedule: Schedule) -> Found:
        """Return the smallest schedule found in time that fails before the checker that saw it first, and its run.

        Raises:
            NothingFails: it keeps every promise.
        """
        self.began = time.monotonic()
        outcome = self.run(schedule)
        if not outcome.violations:
            raise NothingFails(f"seed {schedule.seed} keeps every promise: there is nothing to shrink")
        self.checker = checker_of(outcome.violations[0])
        self.cpu_max = CPU_FACTOR * outcome.counts["cpu"] + 0.5
        self.first = self.best = Found(schedule, outcome, outcome.violations[0])
        self.shorten()
        if schedule.packets is None:
            self.shrink_drawn()
            self.write_out()
        while not self.over:
            before = self.best.schedule.to_json()
            self.packets()
            self.faults()
            self.options(1)
            self.shorten()
            if self.best.schedule.to_json() == before:
                self.numbers()
                self.done = not self.over
                break
        return self.best

    # ------------------------------------------------------------------- one run

    @property
    def took(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self.began

    @property
    def over(self) -> bool:
        """Return True if the time is over."""
        return self.took > self.seconds

    @property
    def half_over(self) -> bool:
        """Return True if the time for runs with drawn packets is over."""
        return self.took > DRAWN_SHARE * self.seconds

    def run(self, schedule: Schedule) -> Outcome:
        """Run once."""
        self.runs += 1
        return replay(schedule, self.rule, traced=True, cpu_max=self.cpu_max)

    def seen_by(self, outcome: Outcome) -> str | None:
        """Return the violation of the checker that matters."""
        return next((text for text in outcome.violations if checker_of(text) == self.checker), None)

    def fails(self, schedule: Schedule) -> bool:
        """Return True if it still fails before that checker; then it is the best one."""
        key = schedule.to_json()
        if self.over or key in self.tried:
            return False
        self.tried[key] = None
        outcome = self.run(schedule)
        seen = self.seen_by(outcome)
        if seen is not None:
            self.best = Found(schedule, outcome, seen)
        if self.on_step is not None:
            self.on_step(self.doing, self.runs, self.best)
        return seen is not None

    def fails_somehow(self, schedule: Schedule, seeds: int) -> bool:
        """Return True if it fails with its own random streams, or with one of ``seeds`` - 1 others."""
        if self.fails(schedule):
            return True
        if schedule.packets is not None and seeds <= 1:
            return False
        first = schedule.seed
        return any(
            not self.half_over and self.fails(dataclasses.replace(schedule, seed=first + other))
            for other in range(1, seeds)
        )

    # ------------------------------------------------------------------- what is tried

    def shrink_drawn(self) -> None:
        """Shrink options and faults, while packets are drawn; best of all, packets need not be drawn."""
        if self.plain_packets():
            return
        before = ""
        while before != self.best.schedule.to_json() and not self.half_over:
            before = self.best.schedule.to_json()
            self.options(OTHER_SEEDS)
            self.faults(OTHER_SEEDS)
            self.shorten()
            if self.plain_packets():
                return

    def plain_packets(self) -> bool:
        """Give every packet the mean delay."""
        self.doing = "packets: all of the mean delay"
        return self.fails_somehow(dataclasses.replace(self.best.schedule, packets=()), PLAIN_SEEDS)

    def write_out(self) -> None:
        """Name every packet of the run."""
        if self.best.schedule.packets is None:
            self.doing = "packets: written out"
            self.only_packets(self.best.outcome.log)

    def options(self, seeds: int) -> None:
        """Try fewer options that are not plain, fewer nodes, clients and messages, less time."""
        self.doing = "options"

        def only(names: list[str]) -> bool:
            schedule = self.best.schedule
            options = with_only(schedule.options, names)
            return self.fails_somehow(dataclasses.replace(schedule, options=options), seeds)

        minimal(richness(self.best.schedule.options), only)
        self.doing = "nodes, clients and messages"
        again = True
        while again and not self.over:
            again = any(self.fails_somehow(candidate, seeds) for candidate in smaller(self.best.schedule))

    def faults(self, seeds: int = 1) -> None:
        """Try fewer faults, each with fewer nodes."""
        self.doing = "faults"

        def only(faults: list[Fault]) -> bool:
            return self.fails_somehow(dataclasses.replace(self.best.schedule, faults=tuple(faults)), seeds)

        minimal(self.best.schedule.faults, only)
        if seeds > 1:
            return
        at = 0
        while at < len(self.best.schedule.faults):
            faults = self.best.schedule.faults
            if not any(
                self.fails(
                    dataclasses.replace(self.best.schedule, faults=(*faults[:at], less, *faults[at + 1 :]))
                )
                for less in smaller_faults(faults[at])
            ):
                at += 1

    def packets(self) -> None:
        """Try fewer packets with a fate of their own: lost, doubled or late ones first."""
        self.doing = "packets"
        packets = self.best.schedule.packets
        if not packets:
            return
        self.only_packets([packet for packet in packets if packet.fate != "late"])
        minimal(self.best.schedule.packets or (), self.only_packets)

    def only_packets(self, packets: list[Packet]) -> bool:
        """Return True if it fails with these special packets, and no others."""
        return self.fails(dataclasses.replace(self.best.schedule, packets=tuple(packets)))

    def shorten(self) -> None:
        """End the run as soon as it is broken, if it is broken before it is healed and drained."""
        self.doing = "time"
        at = time_of(self.best.violation)
        if at and (not self.best.schedule.ends or at + 0.001 < self.best.schedule.ends):
            self.fails(dataclasses.replace(self.best.schedule, ends=round(at + 0.0006, 3)))

    def numbers(self) -> None:
        """Shorten numbers."""
        self.doing = "numbers"
        packets = self.best.schedule.packets or ()
        self.only_packets([packet._replace(delays=tuple(map(short, packet.delays))) for packet in packets])


def short(seconds: float) -> float:
    """Return three digits of it."""
    return float(f"{seconds:.3g}")

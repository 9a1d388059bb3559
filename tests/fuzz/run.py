"""Runs cases one after another, and says which failed. Case n of a seed is always the same one."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

SAID_EVERY_S: Final = 10.0
FAILURES_MAX: Final = 20
"""Failures after which a run ends: they are mostly one bug."""

CASE_MAX_S: Final = 5.0
"""Seconds of processor time that one case may take. Ten times the longest on a slow machine."""


class Fuzzer(NamedTuple):
    """A generator with its checker.

    ``case`` makes case n of a seed, runs it, and returns its outcome, in a word for each thing that was tried;
    anything that must not be is raised.
    """

    name: str
    summary: str
    case: Callable[[int, int], Iterable[str]]
    unit: str


class Report(NamedTuple):
    """Result of a run. ``outcomes`` counts units: a case has one or several."""

    fuzzer: str
    seed: int
    first: int
    cases: int
    unit: str
    outcomes: dict[str, int]
    seconds: float
    cpu_seconds: float
    slowest_s: float
    slowest: int
    peak_mib: int
    failures: list[dict[str, Any]]

    @property
    def units(self) -> int:
        return sum(self.outcomes.values())


def run(
    fuzzer: Fuzzer,
    seed: int,
    *,
    first: int = 0,
    count: int | None = None,
    seconds: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Run cases from ``first`` on, until there were ``count``, or for ``seconds``."""
    began, cpu_began = time.monotonic(), time.thread_time()
    outcomes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest, slowest_s, said, n = first, 0.0, began, first
    while count is None or n < first + count:
        case_began = time.thread_time()
        try:
            outcomes.update(fuzzer.case(seed, n))
            if time.thread_time() - case_began > CASE_MAX_S:
                raise AssertionError(f"took {time.thread_time() - case_began:.1f} s of processor time")
        except Exception as error:
            again = f"python -m tests.fuzz {fuzzer.name} --seed {seed} --first {n} --count 1"
            text = "".join(traceback.format_exception(error, limit=-12))
            failures.append({"n": n, "error": f"{type(error).__name__}: {error}"[:500], "again": again})
            outcomes["FAILED"] += 1
            if say is not None:
                say(f"{text}FAILED: {again}")
            if len(failures) >= FAILURES_MAX:
                n += 1
                break
        took, now = time.thread_time() - case_began, time.monotonic()
        if took > slowest_s:
            slowest, slowest_s = n, took
        n += 1
        if say is not None and now - said > SAID_EVERY_S:
            said = now
            say(f"{fuzzer.name}: case {n}, {sum(outcomes.values())} {fuzzer.unit}, {len(failures)} failed")
        if seconds is not None and now - began > seconds:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (
        1 << (20 if sys.platform == "darwin" else 10)
    )
    return Report(
        fuzzer.name,
        seed,
        first,
        n - first,
        fuzzer.unit,
        dict(sorted(outcomes.items())),
        round(time.monotonic() - began, 3),
        round(time.thread_time() - cpu_began, 3),
        round(slowest_s, 4),
        slowest,
        peak,
        failures,
    )

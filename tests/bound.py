"""The bound on simultaneous tests: those that start clusters or Java are in few groups, each in one process of pytest.

Node processes and Java need a core when they start, and a test that waits for them waits for the cores. So all tests
of tests/e2e are one group, all others that start processes of a cluster (marker `e2e`) another, and those of
Spark, which share one session, a third: three clusters and one Java start at a time, however many processes pytest has.
The programs of `LONG`, which start clusters too, run in the third, so that the three take about as long.
Every other file is a group of its own.

A test outside of the three that starts such a process fails: `refuse` looks at every process that is started.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent
PROCESSES, COMMANDS, SPARK = BOUNDED = ("processes", "commands", "spark")

EXPLORER, RULES = (str(TESTS / "sim" / name) for name in ("test_explorer.py", "test_rules.py"))
FIRST = (PROCESSES, SPARK, COMMANDS, EXPLORER, RULES)
"""The longest groups begin first, so that the short ones fill the gaps at the end."""

HEAVY = re.compile(r"quorumq\.node\b|LocalCluster|\bjava\b|\bspark-|-m\0spark\b|\0(dev|demo|real)\b")
"""Texts in the command of a node, of a program that starts nodes, or of Java, its arguments joined by NUL."""


MARK = "mark.e2e"
"""Text in a file with such tests."""

LONG = ("lab", "sim")
"""Folders whose tests with that marker run in the group of Spark."""

LESS_THAN_BOUNDED = 5
"""Niceness of all other tests: a bounded group is one long chain, and would be the last to end."""


class OutOfBounds(AssertionError):
    """A test outside of the bound started a cluster or Java."""


@functools.cache
def group_of(path: Path) -> str:
    """The group of a file of tests."""
    folder = path.relative_to(TESTS).parts[0]
    if folder == "spark":
        return SPARK
    if folder == "e2e":
        return PROCESSES
    if MARK not in path.read_text():
        return str(path)
    return SPARK if folder in LONG else COMMANDS


def refuse(command: str | bytes | os.PathLike[str] | Sequence[object], group: str | None) -> None:
    """Refuse to start a process of a cluster, or Java, in a test that is not of a bounded group.

    Args:
        command: as `subprocess.Popen` has it.
        group: group of the running test, or None between tests.

    Raises:
        OutOfBounds: names the command and the remedy.
    """
    words = [command] if isinstance(command, (str, bytes, os.PathLike)) else command
    text = "\0".join(map(os.fsdecode, words))  # type: ignore[arg-type]
    if group is not None and group not in BOUNDED and HEAVY.search(text):
        raise OutOfBounds(
            f"a test of {group} starts {text!r}, and not in one of the groups {', '.join(BOUNDED)}, which bound how "
            "many clusters run at once: mark it with pytest.mark.e2e"
        )


def workers(cores: int) -> int:
    """Return the number of pytest processes that a machine bears.

    The bounded groups wait for their processes most of the time, and have one of pytest's each; the rest computes.

    Args:
        cores: that this process may use.
    """
    return max(3, min(cores + 2, 12))

"""Which tests may run beside each other: `make test` runs pytest on six processes.

Files with tests that start processes (marker `e2e`) run one after another in two processes of pytest, those of
tests/e2e and the others, so that there are few clusters at a time; those of Spark share two sessions, one for the
audit, and so two processes, too. All of them wait much, so that six processes have work for two cores. pytest-xdist
has groups by a mark, but reads them in a way that pytest 9 ended.
"""

from __future__ import annotations

import functools
import inspect
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from quorumq.lab.leash import Leashed
from tests import virtual

settings.register_profile("quorumq", deadline=None)
settings.load_profile("quorumq")

# Whatever a test starts ends with the tests, also where those are killed.
subprocess.Popen = Leashed  # type: ignore[misc]

SIM = Path(__file__).parent / "sim"
EXPLORER, RULES = str(SIM / "test_explorer.py"), str(SIM / "test_rules.py")
FIRST = ("audit", "processes", EXPLORER, "spark", "commands", RULES)
"""The longest groups begin first, so that the short ones fill the gaps at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=900.0,
        help="how long each generator of tests/fuzz runs in a soak",
    )


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Have Ctrl-C do what it does in a program of its own, whatever ran in this process before.

    A shell ignores it for what it starts in the background, and PySpark takes it when a session begins.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def group_of(path: Path) -> str:
    """The group of a file of tests."""
    folder = path.relative_to(Path(__file__).parent).parts[0]
    if folder == "spark":
        return "audit" if path.stem == "test_audit" else "spark"
    if folder == "e2e":
        return "processes"
    return "commands" if "mark.e2e" in path.read_text() else str(path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        test = getattr(item.obj, "hypothesis", None)
        if inspect.iscoroutinefunction(test.inner_test if test is not None else item.obj):
            threads = "node" in item.path.parts
            run = virtual.run_beside_threads if threads else virtual.run
            in_real_time = item.get_closest_marker("e2e") is not None
            item.add_marker(pytest.mark.trio() if in_real_time else pytest.mark.trio(run=run))
    order = {group: place for place, group in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(group_of(item.path), len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.partition("::")[0])

    config.option.loadscopereorder = False
    return ByGroup(config, log)

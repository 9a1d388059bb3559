"""Grouping (bound.py), virtual time (virtual.py) and clean-up of tests."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from quorumq.lab import local
from quorumq.lab.leash import Leashed
from tests import bound, forked, virtual
from tests.browser import CHROMIUM, Browser

SLOW = (HealthCheck.too_slow,)  # a machine may be busy
settings.register_profile("quorumq", deadline=None, max_examples=50, suppress_health_check=SLOW)
settings.register_profile("soak", deadline=None, max_examples=500, suppress_health_check=SLOW)
settings.load_profile("quorumq")

# A process that a test starts ends with the tests, also if these are killed.
subprocess.Popen = Leashed  # type: ignore[misc]

START = Leashed.__init__
GROUP: list[str] = []
"""Group of the running test."""

LESS: list[int] = []
"""Niceness that this process of pytest takes, once it does."""


@functools.wraps(START)
def within_the_bound(self: Leashed, args: Any, *more: Any, **options: Any) -> None:
    bound.refuse(args, GROUP[0] if GROUP else None)
    START(self, args, *more, **options)


Leashed.__init__ = within_the_bound  # type: ignore[method-assign]


def logged(command: Sequence[str], log: Path, cwd: Path | None = None) -> Any:
    """Start a process of a `LocalCluster`, within the bound: a node by a fork."""
    bound.refuse(command, GROUP[0] if GROUP else None)
    return forked.logged(command, log, cwd)


local.logged = logged


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=900.0,
        help="how long each generator of tests/fuzz runs in a soak",
    )
    parser.addoption(
        "--mixed-seconds",
        type=float,
        default=600.0,
        help="how long nodes and gateways are killed under clients of all protocols in a soak",
    )


@pytest.fixture(autouse=True)
def ctrl_c() -> None:
    """Have Ctrl-C act as in a separate program, even if other tests changed that.

    A shell ignores it for processes in the background, and PySpark takes it when a session begins.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page of a browser, which all tests use one after another."""
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with closing(Browser(tmp_path_factory.mktemp("browser"))) as page:
        yield page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    GROUP[:] = [bound.group_of(item.path)]
    if GROUP[0] not in bound.BOUNDED and not LESS:
        LESS.append(os.nice(bound.LESS_THAN_BOUNDED))
    try:
        return (yield)
    finally:
        GROUP.clear()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return bound.workers(len(os.sched_getaffinity(0)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the collector of garbage, and keep it from looking at the tests later.

    It takes a quarter of the time of a collection, which every process of pytest repeats.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        test = getattr(item.obj, "hypothesis", None)
        if inspect.iscoroutinefunction(test.inner_test if test is not None else item.obj):
            threads = "node" in item.path.parts
            run = virtual.run_beside_threads if threads else virtual.run
            in_real_time = item.get_closest_marker("e2e") is not None
            item.add_marker(pytest.mark.trio() if in_real_time else pytest.mark.trio(run=run))
    order = {group: location for location, group in enumerate(bound.FIRST)}
    items.sort(key=lambda item: order.get(bound.group_of(item.path), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return bound.group_of(config.rootpath / nodeid.partition("::")[0])

    config.option.loadscopereorder = False
    return ByGroup(config, log)

"""Clusters for the commands, one for each hold time that a file of tests asks for by its `HOLD_S`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quorumq.lab.local import LocalCluster
from tests.cli.shell import Running, Shell


@pytest.fixture(scope="session")
def shells() -> Iterator[Callable[[float], Shell]]:
    with ExitStack() as stack:

        @functools.cache
        def of(hold_time_max: float) -> Shell:
            return Shell(stack.enter_context(LocalCluster(3, hold_time_max=hold_time_max)))

        yield of


@pytest.fixture(scope="module")
def shell(request: pytest.FixtureRequest, shells: Callable[[float], Shell]) -> Shell:
    return shells(getattr(request.module, "HOLD_S", 2.0))


@pytest.fixture
def start(shell: Shell, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start commands in processes of their own."""
    started: list[Running] = []

    def one(*arguments: str, before: Callable[[], None] | None = None, out: int | None = None) -> Running:
        started.append(Running(shell, tmp_path, arguments, out, before))
        return started[-1]

    yield one
    for running in started:
        running.process.kill()
        running.process.communicate()

"""Async tests run under trio in virtual time: a sleep takes none, and what would hang fails."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

VIRTUAL_LIMIT_S = 3600.0
SEED = int(os.environ.get("QUORUMQ_TEST_SEED", "7"))
"""Of trio's scheduler, which else shuffles differently in every run: another seed is another run."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or "e2e" in pyfuncitem.keywords:
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    run_virtual(functools.partial(pyfuncitem.obj, **arguments))
    return True


def run_virtual(test: Callable[[], Any]) -> None:
    """Run an async function in virtual time; one that is still running after an hour of it hangs."""

    async def main() -> None:
        with trio.fail_after(VIRTUAL_LIMIT_S):
            await test()

    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio._core._run._r.seed(SEED)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

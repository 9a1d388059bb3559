"""Async tests run under trio in virtual time (pytest-trio): a sleep takes none, and a test that would hang fails.

A test that is marked `e2e` runs in real time, as the processes do that it talks to; and one that is `in_real_time`, for
sockets of the system or threads, which take as long as they take: virtual time would be over before them.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec

import pytest
import trio
import trio.testing

from tests.patience import PATIENCE_S

Args = ParamSpec("Args")

VIRTUAL_LIMIT_S = 3600.0
SEED = int(os.environ.get("QUORUMQ_TEST_SEED", "7"))
"""Seed of trio's scheduler, which else shuffles differently in every run: another seed is another run."""


def run(
    test: Callable[[], Awaitable[object]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
    limit: float = VIRTUAL_LIMIT_S,
) -> None:
    """Run an async test; one that is still running after ``limit`` seconds of virtual time hangs.

    One with a limit starts no thread: it would end before or after the next deadline, as the machine likes.
    """

    async def main() -> None:
        with trio.fail_after(limit), pytest.MonkeyPatch.context() as patch:
            if limit < math.inf:
                patch.setattr(trio.to_thread, "run_sync", no_thread)
            await test()

    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio._core._run._r.seed(SEED)
    trio.run(main, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


async def no_thread(*args: object, **more: object) -> None:
    pytest.fail(f"a thread of {args[0]} in virtual time, which does not wait for it: see in_real_time")


run_beside_threads = functools.partial(run, limit=math.inf)
"""For nodes that commit in a thread: virtual time goes on while trio waits for one, to the next deadline there is."""


def in_real_time(test: Callable[Args, Awaitable[None]]) -> Callable[Args, None]:
    """The async test as one that runs by the machine's clock."""

    @functools.wraps(test)
    def run_test(*args: Args.args, **more: Args.kwargs) -> None:
        async def main() -> None:
            with trio.fail_after(PATIENCE_S):
                await test(*args, **more)

        trio.run(main)

    return run_test

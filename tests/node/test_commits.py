"""Commits are waited for on the loop if the node is idle and the disk fast, else in the thread."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import trio

from quorumq.core import messages as m
from quorumq.node.commits import HERE_BYTES, HERE_S, REST, CommitThread
from quorumq.node.committer import WRITTEN_HERE_BYTES, Committer
from tests.node.memory import fetch, outcomes, payloads, publish, receipts, world

FAST, SLOW = HERE_S / 10, HERE_S * 20


@dataclass
class Work:
    """A commit as its runner sees it: bytes, seconds, or a failure."""

    clock: list[float]
    seconds: float = FAST
    size: int = 100
    error: OSError | None = None

    def run(self) -> None:
        self.clock[0] += self.seconds
        if self.error is not None:
            raise self.error


@dataclass
class Bench:
    """Runs commits one after the other, and notes of each whether the loop waited for it."""

    thread: CommitThread
    clock: list[float]
    errors: list[BaseException | None] = field(default_factory=list)

    async def on_loop(self, work: Work, *, after: float = 10 * HERE_S, here: bool = True) -> bool:
        self.clock[0] += after
        done = trio.Event()

        def finished(commit: object, error: BaseException | None, seconds: float) -> None:
            assert commit is work
            assert threading.current_thread() is threading.main_thread()
            assert abs(seconds - work.seconds) < 1e-9
            self.errors.append(error)
            done.set()

        self.thread.start(work, finished, here=here)  # type: ignore[arg-type]
        waited = done.is_set()
        await done.wait()
        return waited


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    clock = [0.0]
    thread = CommitThread(lambda: clock[0])
    try:
        yield Bench(thread, clock)
    finally:
        thread.close()


async def test_an_idle_node_with_a_fast_disk_waits_itself_once_it_knows_that_it_is_fast() -> None:
    async with bench() as it:
        assert [await it.on_loop(Work(it.clock)) for _ in range(4)] == [False, True, True, True]


async def test_in_a_burst_the_thread_waits_so_that_commits_are_shared() -> None:
    async with bench() as it:
        for _ in range(40):
            await it.on_loop(Work(it.clock))
        assert not await it.on_loop(Work(it.clock), after=REST * FAST * 0.9)
        assert await it.on_loop(Work(it.clock), after=REST * FAST * 1.1)


async def test_a_disk_that_becomes_slow_is_waited_for_on_the_loop_once() -> None:
    async with bench() as it:
        for _ in range(5):
            await it.on_loop(Work(it.clock))
        assert await it.on_loop(Work(it.clock, SLOW))
        assert not any([await it.on_loop(Work(it.clock, SLOW)) for _ in range(20)])
        again = [await it.on_loop(Work(it.clock)) for _ in range(40)]
        assert not again[0]
        assert again[-1], "and it may become fast again"


async def test_after_one_slow_commit_the_thread_waits_for_the_next() -> None:
    async with bench() as it:
        for _ in range(5):
            await it.on_loop(Work(it.clock))
        assert await it.on_loop(Work(it.clock, HERE_S * 1.1))
        assert [await it.on_loop(Work(it.clock)) for _ in range(2)] == [False, True]


async def test_large_and_unawaited_commits_are_left_to_the_thread() -> None:
    async with bench() as it:
        await it.on_loop(Work(it.clock))
        assert not await it.on_loop(Work(it.clock, size=HERE_BYTES + 1))
        assert not await it.on_loop(Work(it.clock), here=False)


async def test_a_failure_is_told_wherever_it_happens() -> None:
    async with bench() as it:
        failures = [OSError(5, "in the thread"), OSError(5, "on the loop")]
        for error in failures:
            await it.on_loop(Work(it.clock, error=error))
        assert it.errors == failures


async def test_nothing_waits_for_a_timer_where_the_loop_itself_has_waited_for_the_disk() -> None:
    async with world("abc") as cluster:
        client = await cluster.client("a")
        reply = await client.ask(m.CreateTopic("jobs", 3, 1))
        assert isinstance(reply, m.TopicReply), reply
        producer_id = await client.session()
        for commits in cluster.commits.values():
            commits.at_once = True
        began = trio.current_time()
        for seq in range(10):
            assert isinstance(
                await client.ask(publish(reply.topic, producer_id, seq, b"%d" % seq)), m.PublishReply
            )
            given = await client.ask(fetch())
            assert payloads(given) == [b"%d" % seq]
            assert outcomes(await client.ask(m.AckRequest(receipts(given)))) == ["acked"]
        assert trio.current_time() - began < 0.3, "a hundredth of a second each, on this network"


@pytest.mark.parametrize(("size", "here"), [(WRITTEN_HERE_BYTES, True), (WRITTEN_HERE_BYTES + 1, False)])
def test_a_large_commit_is_written_in_the_thread(size: int, here: bool) -> None:
    """The loop would stand for as long as the copy takes, and so would all other clients."""
    written: list[bool] = []
    started: list[bool] = []
    commit = SimpleNamespace(size=size, write=lambda: written.append(True))
    store = SimpleNamespace(rolling=False, durable=0, begin_commit=lambda: commit)
    runner = SimpleNamespace(start=lambda commit, finished, here: started.append(here))
    shell = SimpleNamespace(wrote=lambda: None)
    Committer(store, runner, tuple, shell, None).begin_sync(here=True)  # type: ignore[arg-type]
    assert (written, started) == ([True] * here, [here])

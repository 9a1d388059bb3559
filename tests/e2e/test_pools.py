"""Pools of workers that are killed, on real processes: no job waits long for it, and none dies for another.

Counts hold on any machine. Times are of processes that run while nothing else does, so all of it is left to
`make soak`; each test prints its figures.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio

from quorumq.client import Backlog, Client, connect
from quorumq.lab.local import LocalCluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak

SIZE = 16
HOLD_S = 2.0


class Begun(NamedTuple):
    """A job that a worker has begun, and when, by the machine's monotonic clock."""

    payload: str
    attempt: int
    at: float


class Pool:
    """One process of workers, and its output."""

    def __init__(self, cluster: LocalCluster, topic: str, job_s: float, size: int = SIZE) -> None:
        address = cluster.address(cluster.nodes[0])
        words = (address, topic, str(size), str(job_s), str(HOLD_S))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.pool_worker", *words], stdout=subprocess.PIPE, text=True
        )
        self.jobs: list[Begun] = []
        self.ready_at = float("inf")

    async def listen(self) -> None:
        """Read its output until it ends."""
        assert self.process.stdout is not None
        while line := await trio.to_thread.run_sync(self.process.stdout.readline):
            if line == "ready\n":
                self.ready_at = time.monotonic()
            else:
                payload, attempt, at = line.split()
                self.jobs.append(Begun(payload, int(attempt), float(at)))

    async def until_begun(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while len(self.jobs) < count and self.process.poll() is None:
                await trio.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Scene(NamedTuple):
    """A topic with a group on a cluster, a client of it, and the files of the pools' output."""

    cluster: LocalCluster
    client: Client
    topic: str
    nursery: trio.Nursery
    pools: list[Pool]

    def pool(self, job_s: float, size: int = SIZE) -> Pool:
        made = Pool(self.cluster, self.topic, job_s, size)
        self.pools.append(made)
        self.nursery.start_soon(made.listen)
        return made

    async def publish(self, payloads: Iterable[str]) -> None:
        await self.client.producer(self.topic).publish_many(payload.encode() for payload in payloads)

    async def settled(self) -> Backlog:
        """Wait until nothing is left to do but dead letters."""
        with trio.fail_after(PATIENCE_S):
            while True:
                backlog = await self.client.backlog(self.topic, "g")
                if backlog.ready + backlog.held + backlog.delayed + backlog.dying == 0:
                    return backlog
                await trio.sleep(0.1)

    @property
    def jobs(self) -> list[Begun]:
        return [job for pool in self.pools for job in pool.jobs]


@asynccontextmanager
async def location(cluster: LocalCluster, topic: str, max_deliveries: int = 5) -> AsyncIterator[Scene]:
    """A topic of that name, for tests of one cluster; its pools end with it."""
    address = cluster.address(cluster.nodes[1])
    async with connect([address], timeout=60.0) as client, trio.open_nursery() as nursery:
        await client.create_topic(topic, max_deliveries=max_deliveries)
        await client.create_group(topic, "g")
        here = Scene(cluster, client, topic, nursery, [])
        try:
            yield here
        finally:
            for pool in here.pools:
                pool.kill()


async def killed(here: Scene, times: int, job_s: float, in_hand: int = SIZE) -> float:
    """Start and kill a pool ``times`` times, with the oldest jobs in hand again each time; then start one more at once.

    Returns:
        seconds from when the last one was ready until all is done.
    """
    for number in range(times):
        pool = here.pool(job_s)
        await pool.until_begun(1 if number else in_hand)
        pool.kill()
        if number + 1 < times:
            await trio.sleep(HOLD_S + 0.5)
    pool = here.pool(job_s)
    await pool.until_begun(1)
    await here.settled()
    return time.monotonic() - pool.ready_at


@pytest.mark.parametrize(("times", "bar"), [(1, 1.3), (2, 2.0), (3, 3.0)])
def test_a_killed_pool_is_done_when_it_would_have_been(shared: LocalCluster, times: int, bar: float) -> None:
    async def main() -> None:
        async with location(shared, f"killed{times}") as here:
            await here.publish(str(number) for number in range(4 * SIZE))
            took, ideal = await killed(here, times, 1.0), 4.0 + HOLD_S
            print(f"killed {times} times: done after {took:.1f} s, ideal {ideal:g}")
            assert (await here.settled()).dead == 0
            assert {job.payload for job in here.pools[-1].jobs} >= {str(number) for number in range(SIZE)}
            assert took <= bar * ideal

    trio.run(main)


def test_messages_rejected_before_one_kill_are_as_fast(shared: LocalCluster) -> None:
    async def main() -> None:
        async with location(shared, "rejected") as here:
            await here.publish(str(number) for number in range(200))
            remaining = 200
            while remaining:
                came = await here.client.fetch(here.topic, "g", max_messages=remaining, max_wait=1.0)
                await here.client.reject(came, delay=HOLD_S)
                remaining -= len(came)
            await trio.sleep(HOLD_S)
            took, ideal = await killed(here, 1, 0.3), 200 / SIZE * 0.3 + HOLD_S
            print(f"200 rejected once, killed once: done after {took:.1f} s, ideal {ideal:.1f}")
            assert (await here.settled()).dead == 0
            assert took <= 1.3 * ideal

    trio.run(main)


def test_one_poison_among_sixty_dies_alone_after_a_few_crashes(shared: LocalCluster) -> None:
    async def main() -> None:
        async with location(shared, "poison") as here:
            await here.publish("poison" if number == 20 else str(number) for number in range(61))
            crashes = 0

            async def supervise() -> None:
                nonlocal crashes
                while True:
                    pool = here.pool(0.05)
                    await trio.to_thread.run_sync(pool.process.wait)
                    crashes += pool.process.returncode == 9

            here.nursery.start_soon(supervise)
            backlog = await here.settled()
            print(f"poison among 60: {crashes} crashes, {backlog.dead} dead")
            assert backlog.dead == 1
            assert crashes <= 6
            assert {job.payload for job in here.jobs} == {"poison", *map(str, range(61))} - {"20"}
            here.nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("max_deliveries", [1, 2])
def test_with_few_deliveries_no_neighbour_of_a_kill_dies(shared: LocalCluster, max_deliveries: int) -> None:
    async def main() -> None:
        async with location(shared, f"few{max_deliveries}", max_deliveries) as here:
            await here.publish(str(number) for number in range(40))
            took = await killed(here, max_deliveries, 0.3)
            dead = (await here.settled()).dead
            print(f"max_deliveries {max_deliveries}: done after {took:.1f} s, {dead} dead")
            if max_deliveries == 1:
                assert dead == SIZE, "what was in hand at the kill, and no more"
            else:
                assert dead <= 1, "what the second kill met alone"

    trio.run(main)


def test_two_healthy_pools_go_on_with_what_is_new_while_a_crash_is_made_good(shared: LocalCluster) -> None:
    """200 messages of a killed client, two pools of 16 jobs of 0.3 s, and 20 messages a second for 40 s."""

    async def main() -> None:
        async with location(shared, "crashed") as here:
            await here.publish(f"old{number}" for number in range(200))
            victim = here.pool(600.0, size=200)
            await victim.until_begun(200)
            pools = [here.pool(0.3), here.pool(0.3)]
            while not all(pool.ready_at < float("inf") for pool in pools):
                await trio.sleep(0.05)
            victim.kill()
            began = time.monotonic()
            for number in range(800):
                await trio.sleep(max(0.0, began + number / 20 - time.monotonic()))
                here.nursery.start_soon(here.client.publish, here.topic, f"{time.monotonic()}".encode())
            backlog = await here.settled()
            waits: dict[int, list[float]] = {}
            for job in pools[0].jobs + pools[1].jobs:
                if not job.payload.startswith("old"):
                    at = float(job.payload)
                    waits.setdefault(int(at - began) // 10, []).append(job.at - at)
            medians = {
                10 * window: round(statistics.median(window_waits), 2)
                for window, window_waits in waits.items()
            }
            print(f"median wait by seconds after the kill: {medians}; {backlog.dead} dead")
            assert backlog.dead == 0
            assert max(medians.values()) < 2.0

    trio.run(main)


def test_five_deploys_keep_a_healthy_job_at_its_first_attempt(shared: LocalCluster) -> None:
    async def main() -> None:
        async with location(shared, "deployed", max_deliveries=1) as here:
            await here.publish(["long"])
            for _ in range(5):
                pool = here.pool(600.0)
                await pool.until_begun(1)
                for _ in range(2):  # the second does not wait for the grace
                    pool.process.send_signal(signal.SIGTERM)
                    await trio.sleep(0.5)
                assert await trio.to_thread.run_sync(pool.process.wait) == 0
            assert [job.attempt for job in here.jobs] == [1] * 5
            (message,) = await here.client.fetch(here.topic, "g", max_wait=5.0)
            assert (message.attempt, message.interruptions) == (1, 5)
            await message.ack()

    trio.run(main)

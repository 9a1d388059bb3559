"""Consume, publish, ack, by workers that are killed in between: every input has exactly its outputs."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import trio

from quorumq.client import connect
from quorumq.lab.local import LocalCluster
from tests.e2e.groups import drained
from tests.e2e.processor import POINTS, outputs_of

INPUTS = 100
WORKERS = 2
PASSES_MAX = 10
"""A worker has at most 4 more inputs in hand, so there are at least 7 kills, and each point is one of them."""

RUNS_MAX = 120


async def run_workers(addresses: list[str], number: int, points: Counter[str]) -> None:
    """Start a worker again whenever it was killed, until one finds nothing left to do."""
    rng = random.Random(number)
    for run in range(RUNS_MAX):
        point, passes = POINTS[(run + 2 * number) % len(POINTS)], str(rng.randint(4, PASSES_MAX))
        worker = await trio.run_process(
            [sys.executable, "-m", "tests.e2e.processor", point, passes, "in", "out", *addresses],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if worker.returncode == 0:
            return
        assert worker.returncode == -9, worker.stdout.decode()
        points[point] += 1
    raise AssertionError(f"{RUNS_MAX} workers were killed, and there is still work")


def test_workers_that_are_killed_anywhere_have_each_output_exactly_once(shared: LocalCluster) -> None:
    points: Counter[str] = Counter()

    async def main() -> list[bytes]:
        async with connect(shared.addresses) as client:
            await client.create_topic("in", partitions=2, max_deliveries=1000)
            await client.create_topic("out", partitions=3)
            async with client.producer("in") as producer:
                for number in range(INPUTS):
                    await producer.send(b"input %d" % number, partition=number % 2)
            async with trio.open_nursery() as nursery:
                for number in range(WORKERS):
                    nursery.start_soon(run_workers, shared.addresses, number, points)
                await trio.sleep(1.0)
                await client.alter_topic("out", partitions=5)  # meanwhile an operator adds capacity
            return [message.payload for message in await drained(client, "out", "reader")]

    outputs = trio.run(main)
    expected = [output for number in range(INPUTS) for output in outputs_of(b"input %d" % number)]
    assert sorted(outputs) == sorted(expected)
    assert all(points[point] for point in POINTS), (
        f"killed at {points}: each point once, or nothing was tried"
    )

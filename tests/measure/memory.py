"""Resident memory of three nodes while messages pass one by one: `python -m tests.measure.memory [SECONDS] [RATE]`.

Tasks of four clients each publish one message, fetch one and ack it, at RATE messages a second together (2,000), or
as many as the machine bears. Every thirtieth of the time a line tells the messages acked so far, and for each node its
resident memory and the bytes of its journal.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any, Final

import trio

from quorumq.client.client import Client, connect
from quorumq.lab.local import LocalCluster

CLIENTS: Final = 4
TASKS: Final = 16
"""Tasks of each client."""
LINES: Final = 30
MIB: Final = 1024 * 1024


class Load:
    """Tasks that publish, fetch and ack, and the number of their acks."""

    def __init__(self, rate: float) -> None:
        self.acked = 0
        self._rate = rate
        self._began = time.monotonic()
        self._tickets = 0

    async def work(self, client: Client) -> None:
        """Let messages pass one by one, for good."""
        producer = client.producer("memory")
        await producer.open()
        while True:
            due = self._began + self._tickets / self._rate
            self._tickets += 1
            await trio.sleep(max(0.0, due - time.monotonic()))
            await (await producer.send(b"x" * 100)).wait()
            messages = await client.fetch("memory", "readers", max_messages=1, max_wait=5.0)
            for message in messages:
                await message.ack()
            self.acked += len(messages)


def told(status: dict[str, Any]) -> str:
    return f"{status['rss'] / MIB:.1f} MB ({status['journal_bytes'] / MIB:.0f} MB journal)"


async def main(seconds: float = 3600.0, rate: float = 2000.0) -> None:
    async with LocalCluster(3, settings={"log_level": "warning"}) as cluster, trio.open_nursery() as nursery:
        load = Load(rate)
        for number in range(CLIENTS):
            client = await nursery.start(
                kept, cluster.addresses[number % 3 :] + cluster.addresses[: number % 3]
            )
            for _ in range(TASKS):
                nursery.start_soon(load.work, client)
        began = time.monotonic()
        for line in range(LINES + 1):
            await trio.sleep_until(
                trio.current_time() + max(0.0, began + line * seconds / LINES - time.monotonic())
            )
            nodes = [await trio.to_thread.run_sync(cluster.status, name, 30.0) for name in cluster.nodes]
            print(
                f"{time.monotonic() - began:.0f} s, {load.acked:,} acked:",
                *map(told, nodes),
                sep="  ",
                flush=True,
            )
        nursery.cancel_scope.cancel()


async def kept(addresses: list[str], *, task_status: trio.TaskStatus[Client]) -> None:
    """Keep a client open."""
    async with connect(addresses) as client:
        task_status.started(client)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(partial(main, *map(float, sys.argv[1:])))

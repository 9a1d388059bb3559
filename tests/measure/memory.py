"""Resident memory of three nodes while messages pass: `python -m tests.measure.memory`.

Tasks of four clients each publish a batch of messages, fetch as many and ack each, at a common rate, or as many as the
machine bears. Every thirtieth of the time a line has the messages acked so far, and for each node its resident memory
and the bytes of its journal.
"""

from __future__ import annotations

import argparse
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

    def __init__(self, rate: float, batch: int) -> None:
        self.acked = 0
        self._pause = batch / rate
        self._batch = batch
        self._began = time.monotonic()
        self._tickets = 0

    async def work(self, client: Client) -> None:
        """Let batches pass, for good."""
        async with client.producer("memory") as producer:
            while True:
                due = self._began + self._tickets * self._pause
                self._tickets += 1
                await trio.sleep(max(0.0, due - time.monotonic()))
                await producer.publish_many([b"x" * 100] * self._batch)
                messages = await client.fetch("memory", "readers", max_messages=self._batch, max_wait=5.0)
                async with trio.open_nursery() as nursery:
                    for message in messages:
                        nursery.start_soon(message.ack)
                self.acked += len(messages)


def told(status: dict[str, Any]) -> str:
    return f"{status['rss'] / MIB:.1f} MB ({status['journal_bytes'] / MIB:.0f} MB journal)"


async def main(seconds: float, rate: float, batch: int) -> None:
    async with LocalCluster(3, settings={"log_level": "warning"}) as cluster, trio.open_nursery() as nursery:
        load = Load(rate, batch)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", type=float, default=2000.0, help="messages a second")
    parser.add_argument(
        "--batch", type=int, default=1, help="messages that a task publishes, fetches and acks at once"
    )
    args = parser.parse_args()
    trio.run(partial(main, args.seconds, args.rate, args.batch))

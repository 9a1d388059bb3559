"""A process of a pool, for tests that kill it: prints each message that it begins, and ends itself on a poison message.

python -m tests.e2e.pool_worker ADDRESS TOPIC CONCURRENCY JOB_S HOLD_S
"""

from __future__ import annotations

import os
import sys
import time

import trio

from quorumq.client import Message, connect


async def main(address: str, topic: str, concurrency: str, job_s: str, hold_s: str) -> None:
    async def handle(message: Message) -> None:
        print(f"{message.payload.decode()} {message.attempt} {time.monotonic()}", flush=True)
        if message.payload == b"poison":
            os._exit(9)
        await trio.sleep(float(job_s))

    async with connect([address], timeout=60.0) as client:
        print("ready", flush=True)
        await client.work(topic, "g", handle, concurrency=int(concurrency), hold_time=float(hold_s))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])

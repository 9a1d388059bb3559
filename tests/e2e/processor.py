"""A worker that makes outputs of inputs and kills itself in the middle: run by test_derived.py as a process.

    python -m tests.e2e.processor POINT PASSES INPUT OUTPUT ADDRESS...

It kills itself when it passes POINT for the last of PASSES times, and ends cleanly once every input is settled.
"""

from __future__ import annotations

import os
import signal
import sys

import trio

from quorumq.client import Message, Producer, connect
from tests.e2e.groups import open_of

GROUP = "workers"
HOLD_S = 1.0
LOOK_S = 1.0
"""An input that another worker held is redelivered after that time. The end is an answer, not a pause."""

POINTS = ("fetched", "taken", "stored", "acked")
"""Before a publish, while it is under way, before the ack, after it."""


def outputs_of(payload: bytes) -> list[bytes]:
    """Return the outputs of an input: a function of it alone."""
    return [b"%s: output %d" % (payload, index) * (1 + index) for index in range(2)]


async def main(last: str, passes: int, source: str, target: str, addresses: list[str]) -> None:
    remaining = passes

    def pass_by(point: str) -> None:
        nonlocal remaining
        remaining -= point == last
        if not remaining:
            os.kill(os.getpid(), signal.SIGKILL)

    capacity = trio.Semaphore(4)

    async def handle(message: Message, producer: Producer) -> None:
        pass_by("fetched")
        pendings = [
            await producer.send(payload, derived_from=message, index=index)
            for index, payload in enumerate(outputs_of(message.payload))
        ]
        pass_by("taken")
        for pending in pendings:
            await pending.wait()
        pass_by("stored")
        await message.ack()
        pass_by("acked")
        capacity.release()

    async with (
        connect(addresses) as client,
        client.producer(target) as producer,
        client.consumer(source, group=GROUP, hold_time=HOLD_S, prefetch=8) as consumer,
        trio.open_nursery() as nursery,
    ):
        while True:
            await capacity.acquire()
            message = None
            while message is None:
                with trio.move_on_after(LOOK_S):
                    message = await anext(consumer)
                if message is None and not await open_of(client, source, GROUP):
                    return
            nursery.start_soon(handle, message, producer)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])

"""A limit of deliveries a second on real nodes while one is killed."""

from __future__ import annotations

import time

import pytest
import trio

from quorumq.client import connect
from quorumq.lab.local import LocalCluster

RATE = 20.0


@pytest.mark.soak
def test_three_consumers_get_what_the_limit_lets_through_also_while_a_node_is_down(own: LocalCluster) -> None:
    times: list[float] = []

    async def consume(name: str) -> None:
        async with connect([own.address(name)]) as client, client.consumer("calls", "hooks") as consumer:
            async for message in consumer:
                times.append(time.monotonic())
                await message.ack()

    async def main() -> None:
        async with connect(own.addresses) as client:
            async with client.producer("calls") as producer:
                await producer.publish_many([b"%d" % number for number in range(600)])
            await client.create_group("calls", "hooks")
            await client.limit_group("calls", "hooks", RATE)
        async with trio.open_nursery() as nursery:
            for name in own.nodes:
                nursery.start_soon(consume, name)
            await trio.sleep(5.0)
            own.kill("n3")
            await trio.sleep(5.0)
            nursery.cancel_scope.cancel()

    trio.run(main)
    seconds = times[-1] - times[0]
    assert len(times) <= 1.5 * (RATE * seconds + 3)
    assert len(times) >= 0.5 * RATE * seconds

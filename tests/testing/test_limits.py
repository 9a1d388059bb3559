"""A limit of deliveries a second, seen by a client: in one process, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from quorumq.client import NotFound, UsageError
from quorumq.testing import cluster, run


def test_consumers_share_the_limit_of_their_group_and_wait_by_themselves() -> None:
    async def main() -> list[float]:
        async with cluster() as client:
            for number in range(40):
                await client.publish("calls", b"%d" % number)
            await client.create_group("calls", "webhooks")
            group = await client.limit_group("calls", "webhooks", 5, burst=2)
            assert group.limited is not None
            assert (group.limited.per_second, group.limited.burst) == (5.0, 2)
            began = trio.current_time()
            times: list[float] = []

            async def consume() -> None:
                async with client.consumer("calls", "webhooks") as consumer:
                    async for message in consumer:
                        times.append(trio.current_time() - began)
                        await message.ack()

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(consume)
                await trio.sleep(6.0)
                nursery.cancel_scope.cancel()
            return times

    times = run(main)
    assert 25 <= len(times) <= 33
    for first in times:
        assert sum(first <= at <= first + 1.0 for at in times) <= 5 + 2 + 1


@pytest.mark.parametrize(
    ("rate", "burst"), [(0, None), (-1, None), (float("nan"), None), (1e9, None), (5, 0)]
)
def test_a_limit_that_cannot_be_is_refused(rate: float, burst: Any) -> None:
    async def main() -> None:
        async with cluster() as client:
            await client.create_topic("calls")
            await client.create_group("calls", "webhooks")
            with pytest.raises(UsageError, match="burst" if burst is not None else "per_second"):
                await client.limit_group("calls", "webhooks", rate, burst=burst)

    run(main)


def test_a_limit_of_an_unknown_group_is_refused() -> None:
    async def main() -> None:
        async with cluster() as client:
            await client.create_topic("calls")
            with pytest.raises(NotFound, match="webhooks"):
                await client.limit_group("calls", "webhooks", None)

    run(main)

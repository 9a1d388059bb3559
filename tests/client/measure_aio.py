"""What the client for asyncio costs beside the one of trio: `python -m tests.client.measure_aio`.

Both publish to a cluster of three processes on this machine, in turns, so that whatever else the machine does slows
both. Rates are messages a second; ratios are of the best and of the medians. No test: machines are too noisy for that.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import trio

from quorumq.client import aio, blocking, connect
from quorumq.lab.local import LocalCluster

AT_ONCE = 500
ALONE = 100
TURNS = 15


async def on_trio(addresses: list[str]) -> tuple[float, float]:
    """Rates of publishes at once, and of publishes one after the other."""
    async with connect(addresses) as client:
        await client.publish("jobs", b"warm")
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(client.publish, "jobs", b"x" * 100)
        at_once = AT_ONCE / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(ALONE):
            await client.publish("jobs", b"x" * 100)
        return at_once, ALONE / (time.perf_counter() - began)


async def on_asyncio(addresses: list[str]) -> tuple[float, float]:
    """The same on asyncio."""
    async with aio.connect(addresses) as client:
        await client.publish("jobs", b"warm")
        began = time.perf_counter()
        await asyncio.gather(*(client.publish("jobs", b"x" * 100) for _ in range(AT_ONCE)))
        at_once = AT_ONCE / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(ALONE):
            await client.publish("jobs", b"x" * 100)
        return at_once, ALONE / (time.perf_counter() - began)


def main() -> None:
    rates: dict[str, list[tuple[float, float]]] = {"trio": [], "asyncio": []}
    with LocalCluster(3) as cluster:
        with blocking.connect(cluster.addresses) as client:
            client.create_topic("jobs")
        for _ in range(TURNS):
            rates["trio"].append(trio.run(on_trio, cluster.addresses))
            rates["asyncio"].append(asyncio.run(on_asyncio(cluster.addresses)))
    for place, what in enumerate((f"{AT_ONCE} publishes at once", f"{ALONE} publishes one after the other")):
        found = {name: [turn[place] for turn in turns] for name, turns in rates.items()}
        for name, turns in found.items():
            print(f"{what}, {name}: {', '.join(f'{rate:,.0f}/s' for rate in turns)}")
        best, usual = (kind(found["asyncio"]) / kind(found["trio"]) for kind in (max, statistics.median))
        print(f"{what}: asyncio has {best:.2f} of trio's rate (best of {TURNS}), {usual:.2f} (medians)")


if __name__ == "__main__":
    main()

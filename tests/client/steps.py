"""Steps that several tests of the client share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import trio

from quorumq.client import Client, Consumer, Message
from quorumq.client.aio import Bridge
from quorumq.client.aio import Client as AsyncioClient
from quorumq.client.blocking import Client as BlockingClient
from quorumq.client.portal import Portal
from tests.client.fake import FakeCluster, connected, fake_cluster

RUNS_OUT_S = 3.0
"""Seconds for which the messages of `with_suspects` are held."""


async def publish(client: Client, count: int, topic: str = "jobs", size: int = 0, **more: object) -> None:
    async with client.producer(topic, **more) as producer:  # type: ignore[arg-type]
        for i in range(count):
            await producer.send(b"%d" % i + b"." * size)


@asynccontextmanager
async def jobs(count: int = 0, *, nodes: int = 3, **topic: Any) -> AsyncIterator[tuple[FakeCluster, Client]]:
    """A cluster with a topic "jobs", in which ``count`` messages wait, and a client of it."""
    async with fake_cluster(nodes) as cluster, connected(cluster) as client:
        await client.create_topic("jobs", **topic)
        if count:
            await publish(client, count)
        yield cluster, client


@asynccontextmanager
async def with_suspects(
    count: int, good: int, **settings: object
) -> AsyncIterator[tuple[FakeCluster, Client]]:
    """A client of a cluster whose messages are held for `RUNS_OUT_S`, and others wait that are younger."""
    async with fake_cluster(**settings) as cluster, connected(cluster) as client:
        await client.create_topic("jobs", max_deliveries=2)
        if count:
            await publish(client, count)
            assert len(await client.fetch("jobs", "g", max_messages=count, hold_time=RUNS_OUT_S)) == count
        await trio.sleep(1.0)
        await publish(client, good)
        yield cluster, client


async def take(consumer: Consumer, count: int) -> list[Message]:
    messages = []
    async for message in consumer:
        messages.append(message)
        if len(messages) == count:
            break
    return messages


async def payloads(client: Client, topic: str = "jobs", group: str = "reader") -> list[bytes]:
    """Everything that is stored and was not fetched before, by a group."""
    messages = await client.fetch(topic, group, max_messages=10_000, max_wait=0.5)
    return [message.payload for message in messages]


@asynccontextmanager
async def faked(clusters: list[FakeCluster] | None = None) -> AsyncIterator[Client]:
    async with fake_cluster() as cluster, connected(cluster) as client:
        if clusters is not None:
            clusters.append(cluster)
        yield client


@asynccontextmanager
async def in_a_loop(clusters: list[FakeCluster] | None = None) -> AsyncIterator[AsyncioClient]:
    """A client for asyncio, of a fake cluster that runs in the client's own thread, and is appended to ``clusters``."""
    making = partial(faked, clusters)
    bridge = Bridge(asyncio.get_running_loop())
    try:
        yield AsyncioClient(bridge, await asyncio.wrap_future(bridge.begin(making)))
    finally:
        await bridge.aclose()


@contextmanager
def in_a_thread(clusters: list[FakeCluster] | None = None) -> Iterator[BlockingClient]:
    """A client of a fake cluster that runs in the client's own thread, and is appended to ``clusters``."""
    portal = Portal()
    inner = portal.open(partial(faked, clusters))
    try:
        yield BlockingClient(portal, inner)
    finally:
        portal.close()

"""What tests of topics and groups on five nodes do through a client of one node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from quorumq.client import Client, Message, Topic, connect
from quorumq.lab.local import LocalCluster
from tests.e2e.load import First

HOLD_S = 1.0
PATIENCE_S = 60.0
KEPT_S = 3600.0
"""Retention of the topics: what all groups have acked stays, to be read again and listed."""


@asynccontextmanager
async def through(cluster: LocalCluster, node: str, **more: object) -> AsyncIterator[Client]:
    """A client that asks ``node`` first."""
    at = cluster.nodes.index(node)
    addresses = cluster.addresses[at:] + cluster.addresses[:at]
    async with connect(addresses, rng=First(), **more) as client:  # type: ignore[arg-type]
        yield client


def outsider(cluster: LocalCluster, topic: Topic) -> str:
    """A node that is replica of none of the topic's partitions."""
    homes = {node for members in topic.replicas for node in members}
    return next(node for node in cluster.nodes if node not in homes)


def payloads(messages: list[Message]) -> list[int]:
    return sorted(int(message.payload) for message in messages)


async def publish(client: Client, topic: str, numbers: range) -> None:
    async with client.producer(topic) as producer:
        for number in numbers:
            await producer.send(b"%d" % number)


async def drained(
    client: Client, topic: str, group: str, node: str | None = None, least: int = 0
) -> list[Message]:
    """Everything that there is, acked; `least` messages are waited for, as those of nodes that were killed may be."""
    found: list[Message] = []
    with trio.fail_after(PATIENCE_S):
        while True:
            messages = await client.fetch(
                topic, group, max_messages=5000, max_wait=0.5, hold_time=HOLD_S, node=node
            )
            if not messages and len(found) >= least:
                return found
            await client.ack(messages)
            found += messages

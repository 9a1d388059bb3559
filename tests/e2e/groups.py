"""Steps for tests of topics and groups on five nodes, through a client of one node."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from quorumq.client import Client, Message, Topic, connect
from quorumq.core.values.errors import Unanswered
from quorumq.lab.local import LocalCluster
from quorumq.wire.batch import SEQ_MAX
from tests.patience import PATIENCE_S

HOLD_S = 1.0
OPEN = ("ready", "held", "delayed")
KEPT_S = 3600.0
"""Retention of the topics: messages that all groups have acked stay, to be read again and listed."""


class First(random.Random):
    """Prefers the first item, so that it is known at which node a client begins."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


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


async def drained(client: Client, topic: str, group: str, node: str | None = None) -> list[Message]:
    """Everything that there is, acked: until a majority of each partition's replicas says that nothing is open.

    An answer without messages is not the end: a replica may be late, or a hold not over.
    """
    received: list[Message] = []
    with trio.fail_after(PATIENCE_S):
        while True:
            messages = await client.fetch(
                topic, group, max_messages=5000, max_wait=0.5, hold_time=HOLD_S, node=node
            )
            await client.ack(messages)
            received += messages
            if not messages and not await open_of(client, topic, group):
                return received


async def open_of(client: Client, topic: str, group: str) -> int:
    """Return the number of messages that are neither settled nor dead; too high if replicas are missing."""
    try:
        look = client.peek(topic, group, "all", complete=True)
        return sum([item.peeked.span.size async for item in look if item.peeked.state in OPEN])
    except Unanswered:
        return SEQ_MAX


async def taken(
    client: Client, topic: str, group: str, count: int, hold_time: float, node: str | None = None
) -> list[Message]:
    """``count`` messages, with as many FETCHes as needed."""
    received: list[Message] = []
    with trio.fail_after(PATIENCE_S):
        while len(received) < count:
            received += await client.fetch(
                topic, group, max_messages=count - len(received), max_wait=0.5, hold_time=hold_time, node=node
            )
    return received

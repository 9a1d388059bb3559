"""Much at once, as a workload of `sim real`: three groups, times, rejects, dead letters and their readers, rewinds."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count

import trio

from quorumq.client import Client, Message, Task
from quorumq.core.values.errors import QuorumqError

TOPIC = "turmoil"
HOLD_S = 2.0
RETENTION_S = 600.0
"""Longer than a run: if a message were reclaimed before a rewind, it would not be redelivered, as if it was lost."""

REWIND_EVERY_S = 15.0
PAUSE_S = 1 / 40
"""Seconds between two messages of a producer."""

RNG = random.Random(1)


class Again(Exception):
    """The message is to be delivered once more."""


async def prepare(client: Client) -> None:
    await client.create_topic(
        TOPIC, partitions=6, max_deliveries=3, retention=RETENTION_S, backoff=[0.1, 0.5]
    )
    for group in ("early", "back"):
        await client.create_group(TOPIC, group)


async def produce(client: Client) -> None:
    """Publish numbers; some are delayed, and some expire, nearly as soon as they are due."""
    async with client.producer(TOPIC) as producer, trio.open_nursery() as nursery:

        async def publish(number: int) -> None:
            delay, ttl = {5: (1.0, None), 7: (0.69, 0.7), 9: (None, 600.0)}.get(number % 50, (None, None))
            with suppress(QuorumqError):  # the history has it
                await producer.publish(b"%d" % number, delay=delay, ttl=ttl)

        for number in count(1):
            nursery.start_soon(publish, number)
            await trio.sleep(PAUSE_S)


async def handle(message: Message) -> None:
    """Give up some messages. Others are redelivered once, or until they die; some take longer than a hold when new."""
    kind = int(message.payload) % 40
    if kind == 0:
        raise ValueError("no")
    if (kind == 1 and not message.delivery.receipt.n) or (kind == 2 and message.attempt == 1):
        raise Again
    if kind == 3 and message.attempt == 1:
        await trio.sleep(1.5 * HOLD_S)


async def read_dead_letters(client: Client) -> None:
    """Ack some of one group's dead letters, reject others, and leave the rest to their holds."""
    while True:
        with suppress(QuorumqError):
            for message in await client.fetch(TOPIC, "early!dead", max_messages=10, hold_time=HOLD_S):
                choice = RNG.random()
                if choice < 0.3:
                    await message.ack()
                elif choice < 0.7:
                    await message.reject(delay=0.3)
        await trio.sleep(0.1)


async def redrive(client: Client) -> None:
    """Redrive some dead letters, as two operators do at once."""
    while True:
        for group in ("early", "back"):
            with suppress(QuorumqError):
                peeks = [item async for item in client.peek(TOPIC, group, "dead")]
                await client.redrive(TOPIC, group, [item for item in peeks if RNG.random() < 0.5])
        await trio.sleep(RNG.uniform(0.3, 1.0))


async def rewind(client: Client) -> None:
    """Rewind one group to the middle of the time since the last rewind, again and again."""
    while True:
        await trio.sleep(REWIND_EVERY_S / 2)
        middle = datetime.now(UTC)
        await trio.sleep(REWIND_EVERY_S / 2)
        with suppress(QuorumqError):
            await client.rewind(TOPIC, "back", middle)


TASKS = [
    Task(TOPIC, group, handle, retry=(Again,), concurrency=20, hold_time=HOLD_S, start=start)
    for group, start in (("early", "earliest"), ("back", "earliest"), ("late", "latest"))
    for _ in range(2)
]
PRODUCERS = [produce, produce, read_dead_letters, redrive, redrive, rewind]

"""Counts of Python calls that the client makes for each of many messages."""

from __future__ import annotations

import cProfile
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from quorumq.core.values.types import PartitionId, ProducerId, Span
from quorumq.wire.batch import encode_records, pack_spans, records_of
from tests.client.fake import connected, fake_cluster, serving
from tests.core.work import SLACK

MANY = 4000
FOLDERS = ("/quorumq/client/", "/quorumq/wire/batch.py")
TRIO = ("/trio/_core/",)


class Calls:
    """Numbers of calls: all, and those inside of trio's core."""

    count = 0
    of_trio = 0


@contextmanager
def counted() -> Iterator[Calls]:
    calls = Calls()
    profiler = cProfile.Profile(builtins=False)
    profiler.enable()
    try:
        yield calls
    finally:
        profiler.disable()
        for entry in profiler.getstats():
            name = getattr(entry.code, "co_filename", "")
            if any(folder in name for folder in FOLDERS):
                calls.count += entry.callcount
            elif any(folder in name for folder in TRIO):
                calls.of_trio += entry.callcount


async def test_many_messages_are_published_and_read_and_acked_with_few_calls_for_each() -> None:
    """So a message costs a client its bytes and a share of its batch."""
    async with fake_cluster() as cluster, connected(cluster) as client, client.producer("jobs") as producer:
        cluster.checks = False
        await producer.publish(b"the first opens a session, and learns of the topic")
        with counted() as publish:
            ids = await producer.publish_many([b"%01000d" % number for number in range(MANY)])
        assert len(ids) == len(set(ids)) == MANY
        async with client.consumer("jobs", "g", prefetch=MANY) as consumer:
            await trio.testing.wait_all_tasks_blocked()
            with counted() as consume:
                messages = []
                while len(messages) <= MANY:
                    messages += await consumer.take(MANY)
            with counted() as ack:
                await client.ack(messages)
            assert consumer.unsettled == 0
        assert [message.id for message in messages[1:]] == ids
    assert publish.count <= SLACK * 930
    assert consume.count <= SLACK * 700
    assert ack.count <= SLACK * 163


async def test_a_message_alone_costs_few_calls_and_few_of_trios() -> None:
    """Trio's are for both sides of the connections, and for the fake nodes; each turn of its loop costs some ten."""
    async with (
        serving("jobs") as (_, client),
        client.producer("jobs") as producer,
        client.consumer("jobs", "g", prefetch=1) as consumer,
    ):

        async def one() -> None:
            pending = await producer.send(b"x")
            message = await anext(consumer)
            await pending.wait()
            await message.ack()

        for _ in range(3):
            await one()
        with counted() as calls:
            for _ in range(20):
                await one()
    assert calls.count <= SLACK * 20 * 275
    assert calls.of_trio <= SLACK * 20 * 1057


def test_records_are_made_and_read_without_a_call_for_each() -> None:
    payloads = [b"%d" % number * (1 + number % 7) for number in range(1000)]
    with counted() as calls:
        batch = pack_spans(
            PartitionId(b"t" * 16, 0),
            (Span(ProducerId("a", 1, 2, 3), 0, len(payloads)),),
            0,
            encode_records(payloads),
        )
        messages = records_of(batch.header, 0, 1000, batch.body)
    assert [message.payload for message in messages] == payloads
    assert calls.count < SLACK * 100

"""Clusters for users' tests: three styles, virtual time, and faults."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import trio
import trio.testing

from quorumq.client import NotFound, NotStored, TooFewReplicas, UsageError
from quorumq.core.messages import Fetch, FetchReply, PeekRequest
from quorumq.testing import Clock, Cluster, aio, blocking, cluster, run
from quorumq.wire.codec import decode_message
from quorumq.wire.frames import FrameReader

START_CPU_S = 0.05
"""Seconds of CPU that a cluster may take to start."""


@pytest.fixture
def threads() -> Any:
    with (nodes := blocking.cluster()):
        yield nodes


class Flaky:
    """A handler that fails until its third attempt, in any style."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def __call__(self, message: Any) -> None:
        self.attempts.append(message.attempt)
        if message.attempt < 3:
            raise ConnectionError("not yet")

    async def awaited(self, message: Any) -> None:
        await asyncio.sleep(0)
        self(message)


async def flaky_on_trio(nodes: Cluster) -> Any:
    flaky = Flaky()

    async def handler(message: Any) -> None:
        flaky(message)

    await nodes.client.publish("jobs", b"", delay=300.0)
    worked = await nodes.work("jobs", "g", handler, retry=ConnectionError)
    return flaky.attempts, worked.done, worked.retried


def test_delays_and_backoff_pass_at_once_in_each_style(threads: blocking.Cluster) -> None:
    async def on_trio() -> Any:
        async with (nodes := cluster()):
            return await flaky_on_trio(nodes)

    async def on_asyncio() -> Any:
        async with (nodes := aio.cluster()) as client:
            flaky = Flaky()
            await client.publish("jobs", b"", delay=300.0)
            worked = await nodes.work("jobs", "g", flaky.awaited, retry=ConnectionError)
            return flaky.attempts, worked.done, worked.retried

    flaky = Flaky()
    threads.client.publish("jobs", b"", delay=300.0)
    worked = threads.work("jobs", "g", flaky, retry=ConnectionError)
    in_threads = flaky.attempts, worked.done, worked.retried
    assert [in_threads, run(on_trio), asyncio.run(on_asyncio())] == [([1, 2, 3], 1, 2)] * 3


def test_a_cluster_starts_fast() -> None:
    async def start() -> float:
        began = time.process_time()
        async with cluster():
            return time.process_time() - began

    assert min(run(start) for _ in range(3)) < START_CPU_S


def test_time_stands_still_between_calls_and_while_a_handler_runs(threads: blocking.Cluster) -> None:
    threads.client.publish("jobs", b"")
    (message,) = threads.client.fetch("jobs", "g", max_wait=1, hold_time=5)
    before = threads.client.inner.clock()
    time.sleep(0.05)  # real time
    assert message.is_live
    assert threads.client.inner.clock() == before
    message.reject()

    def work(message: Any) -> None:
        clock = threads.client.inner.clock
        began = clock()
        time.sleep(0.05)  # real time
        assert clock() == began

    assert threads.work("jobs", "g", work).done == 1


def test_time_stands_still_while_an_asyncio_handler_runs() -> None:
    async def test() -> None:
        async with (nodes := aio.cluster()) as client:

            async def work(message: Any) -> None:
                began = client.clock()
                await asyncio.sleep(0.05)
                assert client.clock() == began
                await client.publish("more", b"")

            await client.publish("jobs", b"")
            assert (await nodes.work("jobs", "g", work)).done == 1

    asyncio.run(test())


def test_time_stands_still_while_a_thread_works_for_trio() -> None:
    async def test() -> None:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1000.0)
            await trio.to_thread.run_sync(time.sleep, 0.05)  # real time
            assert trio.current_time() == began
        assert trio.current_time() == began + 1000.0

    run(test)


def test_a_clock_jumps() -> None:
    clock = Clock()
    clock.jump(5.0)

    async def read() -> float:
        return trio.current_time()

    assert run(read, clock=clock) == 5.0


def test_a_hold_passes_at_once(threads: blocking.Cluster) -> None:
    threads.client.publish("jobs", b"")
    (first,) = threads.client.fetch("jobs", "g", max_wait=1, hold_time=30)
    threads.sleep(31.0)
    (second,) = threads.client.fetch("jobs", "g", max_wait=1)
    assert (first.is_live, second.attempt) == (False, 2)


def test_nodes_are_killed_cut_and_started(threads: blocking.Cluster) -> None:
    client = threads.client
    client.publish("jobs", b"1")
    threads.kill("a")
    client.publish("jobs", b"2")
    threads.cut("b")
    with pytest.raises((NotStored, TooFewReplicas)):
        client.publish("jobs", b"3", timeout=5)
    threads.mend("b")
    client.publish("jobs", b"4")
    threads.start("a")
    threads.stop("c")
    client.publish("jobs", b"5")
    threads.start("c")
    seen: list[bytes] = []
    threads.work("jobs", "g", lambda message: seen.append(message.payload))
    assert set(seen) - {b"3"} == {b"1", b"2", b"4", b"5"}


def test_a_second_client_reads_what_the_first_publishes(threads: blocking.Cluster) -> None:
    threads.client.publish("jobs", b"x")
    with threads.connect() as other:
        assert [one.payload for one in other.fetch("jobs", "g", max_wait=1)] == [b"x"]

    async def test() -> None:
        async with (nodes := aio.cluster()) as client, nodes.connect() as other:
            await client.publish("jobs", b"x")
            assert [one.payload for one in await other.fetch("jobs", "g", max_wait=1)] == [b"x"]

    asyncio.run(test())


def test_a_wrong_call_is_refused_by_name(threads: blocking.Cluster) -> None:
    with pytest.raises(UsageError, match=r"'d'.*a, b, c"):
        threads.kill("d")
    with pytest.raises(UsageError, match="'a' runs already"):
        threads.start("a")
    with pytest.raises(UsageError, match="used before"), threads:
        pass
    with pytest.raises(UsageError, match="not run yet"):
        _ = cluster().client
    with pytest.raises(UsageError, match="10 nodes"), blocking.cluster(10):
        pass
    with pytest.raises(NotFound, match="nothing"):
        threads.work("nothing", "g", print)


def test_a_request_with_a_field_that_cannot_be_is_refused_as_by_a_node(threads: blocking.Cluster) -> None:
    """It ended the whole cluster, and with it the test of a user."""
    with pytest.raises(UsageError, match="must be a finite number"):
        threads.client.create_topic("odd", retention=float("inf"))
    threads.client.publish("jobs", b"x")


def test_a_handler_that_ends_the_program_ends_the_work(threads: blocking.Cluster) -> None:
    def end(message: Any) -> None:
        raise SystemExit(3)

    threads.client.publish("jobs", b"")
    with pytest.raises(SystemExit):
        threads.work("jobs", "g", end)


async def asked(nodes: Cluster, name: str, request: Any) -> Any:
    """Return a node's answer to a request on a connection of its own."""
    ours, theirs = trio.testing.memory_stream_pair()
    connection = nodes.network.connection(name, theirs)
    connection.take(request, 1)
    while not connection.outbox:
        await trio.sleep(0.01)
    await ours.send_eof()
    await connection.run()
    reader = FrameReader()
    reader.feed(await ours.receive_some())
    return decode_message(next(iter(reader))).message


def test_a_node_answers_for_partitions_of_other_nodes_with_their_bytes() -> None:
    """It read other bytes, from its own batch of the same number."""

    async def test() -> None:
        async with (nodes := cluster(6)) as client:
            for number in range(6):
                await client.publish(f"jobs{number}", b"x" * number)
            for number in range(6):
                for name in nodes.names:
                    fetch = Fetch(
                        (f"jobs{number}",), name, 1, 1, 1, max_wait=1.0, hold_time=30.0, sent_at=0.0
                    )
                    fetched = await asked(nodes, name, fetch)
                    assert fetched.slices[0].messages()[0].payload == b"x" * number
                    peeked = await asked(
                        nodes, name, PeekRequest(f"jobs{number}", 0, name, "all", (0, 0), 1, bodies=True)
                    )
                    assert peeked.slices[0].messages()[0].payload == b"x" * number

    run(test)


def test_answers_that_a_node_has_begun_come_though_the_client_sends_no_more() -> None:
    """A client that leaves reads on, and gives back messages that it gets. Others stay held until their holds end."""

    async def test() -> list[Any]:
        replies: list[Any] = []
        async with (nodes := cluster()) as client:
            for _ in range(20):  # trio decides which of two tasks runs first
                await client.publish("jobs", b"")
                ours, theirs = trio.testing.memory_stream_pair()
                connection = nodes.network.connection("a", theirs)
                connection.take(Fetch(("jobs",), "g", 1, 1, 1, max_wait=0.0, hold_time=30.0, sent_at=0.0), 1)
                await ours.send_eof()
                await connection.run()
                reader = FrameReader()
                reader.feed(await ours.receive_some())
                replies += [decode_message(frame).message for frame in reader]
        return replies

    replies = run(test)
    assert [isinstance(reply, FetchReply) and len(reply.slices) for reply in replies] == [1] * 20

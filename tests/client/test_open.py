"""A client that is opened and closed by two calls, as frameworks with a start and a stop need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from quorumq.client import Busy, Client, Closed, NotStored, TooFewReplicas, blocking
from quorumq.core import messages as m
from quorumq.core.messages import Publish
from tests.client.fake import FakeCluster, ask_first, connected, failing, fake_cluster
from tests.client.steps import faked, jobs, payloads


async def opened(cluster: FakeCluster, nursery: trio.Nursery, **options: Any) -> Client:
    return await Client.open(
        cluster.addresses, nursery=nursery, dial=cluster.dial, wall_ms=cluster.wall_ms, **options
    )


async def test_sent_messages_are_stored_when_client_and_nursery_end() -> None:
    async with fake_cluster() as cluster:
        with trio.fail_after(5.0):
            async with trio.open_nursery() as nursery:
                client = await opened(cluster, nursery)
                producer = client.producer("jobs", linger=60.0)
                for number in range(100):
                    await producer.send(b"%d" % number)
                await client.close()
                with pytest.raises(Closed):
                    await client.publish("jobs", b"x")
                await client.close()
        async with connected(cluster) as client:
            assert len(await payloads(client)) == 100


async def test_closing_raises_what_no_one_waited_for_and_closes_all_the_same() -> None:
    async with fake_cluster() as cluster, trio.open_nursery() as nursery:
        client = await opened(cluster, nursery, timeout=2.0)
        producer = client.producer("jobs")
        await producer.publish(b"0")
        cluster.answer = failing("not-stored", times=10_000, of=Publish)
        await producer.send(b"1")
        with pytest.raises(NotStored):
            await client.close()
        with pytest.raises(Closed):
            await client.status()


async def test_closing_that_is_cancelled_ends_it_at_once() -> None:
    async with fake_cluster() as cluster:
        async with trio.open_nursery() as nursery:
            client = await opened(cluster, nursery)
            producer = client.producer("jobs")
            await producer.publish(b"0")
            cluster.mute.update("abc")
            await producer.send(b"1")
            began = trio.current_time()
            with trio.move_on_after(1.0) as scope:
                await client.close()
            assert scope.cancelled_caught
        assert trio.current_time() == began + 1.0


async def test_it_ends_with_its_nursery() -> None:
    async with fake_cluster() as cluster:
        async with trio.open_nursery() as nursery:
            client = await opened(cluster, nursery)
            await client.publish("jobs", b"0")
            nursery.cancel_scope.cancel()
        with pytest.raises(Closed):
            await client.publish("jobs", b"1")


async def test_a_failed_open_raises_as_connect_does() -> None:
    async with fake_cluster() as cluster, trio.open_nursery() as nursery:
        cluster.refuse.update(cluster.addresses)
        with pytest.raises(TooFewReplicas, match="connecting"):
            await opened(cluster, nursery, timeout=1.0)


async def test_a_client_of_a_with_may_be_closed_inside_of_it() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.publish("jobs", b"0")
        await client.close()
        with pytest.raises(Closed):
            await client.publish("jobs", b"1")


@contextmanager
def dialled(monkeypatch: pytest.MonkeyPatch) -> Iterator[blocking.Client]:
    monkeypatch.setattr("quorumq.client.client.connect", lambda addresses: faked())
    client = blocking.Client.open("a:1")
    try:
        yield client
    finally:
        client.portal.close()


def test_without_async_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with dialled(monkeypatch) as client:
        producer = client.producer("jobs", linger=60.0)
        pendings = [producer.send(b"x") for _ in range(100)]
        client.close()
        assert all(pending.inner._outcome() for pending in pendings)
        with pytest.raises(Closed):
            client.publish("jobs", b"x")
        client.close()


def test_leaving_a_blocking_client_flushes_and_leaving_it_by_an_exception_does_not() -> None:
    connect = blocking._connecting(lambda: faked())
    with connect() as client:
        kept = client.producer("jobs", linger=60.0)
        pendings = [kept.send(b"x") for _ in range(100)]
    assert all(pending.inner._outcome() for pending in pendings)
    with pytest.raises(ZeroDivisionError), connect() as client:  # noqa: PT012
        producer = client.producer("jobs", linger=60.0)
        assert producer.publish(b"x")
        client.portal.call(hold_up, producer)
        pending = producer.send(b"x")
        raise ZeroDivisionError
    with pytest.raises(NotStored):
        pending.inner._outcome()


async def hold_up(producer: blocking.Producer) -> None:
    producer.inner._in_flight_max = 0


async def test_a_client_beyond_its_quota_waits_as_long_as_it_is_told_and_asks_the_same_node_again() -> None:
    async with jobs() as (cluster, client):
        ask_first(client, "a")
        asked = len(cluster.asked)
        refusals = [2]

        def answer(node: str, request: object) -> m.Failed | None:
            if not refusals[0]:
                return None
            refusals[0] -= 1
            return m.Failed("busy", "slower", delay=0.7)

        cluster.answer = answer
        began = trio.current_time()
        await client.metadata()
        assert trio.current_time() - began == pytest.approx(1.4, abs=0.05)
        assert {node for node, _ in cluster.asked[asked:]} == {"a"}
        refusals[0] = 1_000
        began = trio.current_time()
        with pytest.raises(Busy, match="slower"):
            await client.metadata(timeout=1.0)
        assert trio.current_time() - began < 0.8, "the next turn would be too late"

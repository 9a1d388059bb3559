"""A node that stands still with its connections open, as under SIGSTOP: requests go to another node soon."""

from __future__ import annotations

import pytest
import trio

from quorumq.client import NotFound, Outcome
from quorumq.core.messages import AckRequest, Fetch, Metadata, Publish, RejectRequest
from tests.client.fake import ask_first, connected, fake_cluster
from tests.client.steps import jobs


async def test_a_publish_and_an_ack_wait_less_than_a_second_and_the_next_ones_not_at_all() -> None:
    async with jobs() as (cluster, client):
        async with client.producer("jobs") as producer:
            await producer.publish(b"before")
            messages = await client.fetch("jobs", "g")
            cluster.mute.add("a")
            began = trio.current_time()
            pending = await producer.send(b"meanwhile")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pending.wait)
                nursery.start_soon(client.ack, messages)
            assert trio.current_time() - began < 1.0
            assert messages[0].outcome is Outcome.ACKED
            silent, other = [node for node, _ in cluster.of(AckRequest)]
            assert (silent, other != "a") == ("a", True)
            began = trio.current_time()
            for _ in range(20):
                await producer.publish(b"later")
            assert trio.current_time() == began
            assert {node for node, _ in cluster.of(Publish)[-20:]} == {other}
        assert len(await client.fetch("jobs", "g", max_messages=100, max_wait=0.5)) == 21


async def test_a_node_that_gave_no_sign_of_life_is_asked_last_until_a_while_has_passed() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        cluster.mute.add("a")
        await client.metadata()
        ask_first(client, "a")
        await client.metadata()
        first, other, again = [node for node, _ in cluster.of(Metadata)]
        assert first == "a"
        assert other == again != "a"
        cluster.mute.clear()
        await trio.sleep(4.0)
        ask_first(client, "a")
        await client.metadata()
        assert cluster.of(Metadata)[-1][0] == "a"


async def test_a_fetch_and_a_reject_are_not_doubled_when_the_connection_is_given_up() -> None:
    async with jobs(2) as (cluster, client):
        (message,) = await client.fetch("jobs", "g", max_messages=1)
        cluster.mute.add("a")
        began = trio.current_time()
        await message.reject(delay=30.0)
        assert 1.0 < trio.current_time() - began < 4.0, "well before the attempt's timeout of 5.5 s"
        assert len(cluster.of(RejectRequest)) == 2
        seen = len(cluster.of(Fetch))
        async with client.consumer("jobs", "g") as consumer:
            began = trio.current_time()
            await anext(consumer)
            assert trio.current_time() - began < 0.1, "what was silent just now is asked last"
        assert "a" not in [node for node, _ in cluster.of(Fetch)[seen:]]


async def test_a_node_that_was_silent_once_does_not_hide_that_there_is_no_such_topic() -> None:
    """A read that a node has not answered changes nothing, so a later answer of that node counts."""
    async with fake_cluster() as cluster, connected(cluster) as client:
        lost: list[str] = []

        def lose(node: str, request: object) -> bool:
            if isinstance(request, Metadata) and not lost:
                lost.append(node)
                return True
            return False

        cluster.lose = lose
        began = trio.current_time()
        with pytest.raises(NotFound):
            await client.topic("jobs")
        assert lost
        assert trio.current_time() - began < 2.0
        assert len(cluster.of(Metadata)) <= 3 * 2, "each node is asked at most twice"

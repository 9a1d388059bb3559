"""Addresses of nodes that a client knows: learned from METADATA, and dropped when their nodes have left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from quorumq.client.transport.nodes import DOUBT_S, REFRESH_S
from quorumq.core.messages import ClientReply, Metadata, MetadataReply, NodeInfo
from tests.client.fake import connected, fake_cluster

GIVEN = ["a:1", "b:1", "c:1"]


def members(names: str, layout: int) -> MetadataReply:
    """Return METADATA of a cluster with these nodes."""
    nodes = tuple(NodeInfo(name, f"{name}:1", True) for name in names)
    return MetadataReply("", names[0], nodes, (), (), 1 << 20, 1 << 20, 60.0, layout)


def saying(names: str, layout: int) -> Callable[[str, object], ClientReply | None]:
    """Return an `answer` to each METADATA."""
    return lambda node, request: members(names, layout) if isinstance(request, Metadata) else None


async def test_addresses_of_nodes_that_left_are_dropped_and_given_ones_stay() -> None:
    async with fake_cluster(6) as cluster, connected(cluster, addresses=GIVEN) as client:
        nodes = client.nodes
        nodes.learn(members("abcd", 1))
        assert nodes.addresses == [*GIVEN, "d:1"]
        nodes.learn(members("cde", 3))
        nodes.learn(members("abcd", 2))  # a node that does not know the newest layout yet
        assert nodes.addresses == [*GIVEN, "d:1", "e:1"]
        nodes._first = "d:1"
        nodes.learn(members("ef", 4))
        assert nodes.addresses == [*GIVEN, "e:1", "f:1"]
        assert nodes._first in nodes.addresses
        assert nodes.addresses_of(("d", "e")) == ("e:1",)
        for number in range(5, 300):
            nodes.learn(members("abc" if number % 2 else "def", number))
        assert len(nodes.addresses) <= 6


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_client_knows_the_nodes_after_all_first_ones_were_replaced(is_idle: bool) -> None:
    """One that has nothing to do asks once a minute; another one as soon as a node does not answer."""
    async with fake_cluster(6) as cluster, connected(cluster, addresses=GIVEN) as client:
        cluster.answer = saying("def", 7)
        if is_idle:
            await trio.sleep(REFRESH_S + 1.0)
        else:
            cluster.refuse.add("a:1")
            cluster.hang_up("a")
            await client.create_topic("jobs")
            await trio.sleep(DOUBT_S)
        cluster.answer = lambda node, request: None
        for name in "abc":
            cluster.refuse.add(f"{name}:1")
            cluster.hang_up(name)
        await client.create_topic("other", timeout=5.0)


async def test_a_client_whose_nodes_are_all_away_asks_seldom() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await cluster.cut_off()
        dialled = 0
        dial = client.nodes.dial

        async def count(address: str) -> trio.abc.Stream:
            nonlocal dialled
            dialled += 1
            return await dial(address)

        client.nodes.dial = count
        await trio.sleep(10 * REFRESH_S)
        assert 0 < dialled < 1000

"""Addresses of nodes that a client knows: learned from METADATA, and dropped when their nodes have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import trio

from quorumq.client import Client
from quorumq.client.base.context import PRODUCED_S
from quorumq.client.transport.nodes import DOUBT_S, REFRESH_S
from quorumq.core.cluster.members import Members
from quorumq.core.messages import (
    ChangeMembers,
    ClientReply,
    Failed,
    Fetch,
    Metadata,
    MetadataReply,
    NodeInfo,
)
from quorumq.core.messages.effects import LinkDown
from quorumq.core.node.status import metadata
from quorumq.core.values.errors import Code, NotFound
from quorumq.core.values.limits import LONG_POLL_MAX_S
from quorumq.core.values.patterns import NO_TOPIC
from quorumq.testing.network import running
from tests.client.fake import FakeCluster, connected, fake_cluster
from tests.core.growing import GrowingCluster

GIVEN = ["a:1", "b:1", "c:1"]


def members(names: str, layout: int) -> MetadataReply:
    """Return METADATA of a cluster with these nodes."""
    nodes = tuple(NodeInfo(name, f"{name}:1", True) for name in names)
    return MetadataReply("", names[0], nodes, (), (), 60.0, layout)


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


class Exchanged(FakeCluster, GrowingCluster):
    """A cluster whose first three nodes are replaced by three others. The first ones are not stopped."""

    tells = False  # whether nodes tell clients that members have changed, as those of quorumq/node do

    def __init__(self, count: int) -> None:
        self.announced: dict[str, Members] = {}
        super().__init__(count)

    def run(self) -> None:
        super().run()
        for name, core in self.nodes.items() if self.tells else ():
            if self.announced.get(name) is not core.catalogue.cluster:
                self.announced[name] = core.catalogue.cluster
                for connection in self.open.get(name, []):
                    connection.send(metadata(core.context, Metadata((NO_TOPIC,)), self.clocks(name)), 0)

    def advance(self, seconds: float) -> None:
        """Let no time pass: it passes for clients and nodes together."""

    def enter(self, name: str, through: str = "a", *, journal: bool = False) -> None:
        self.by_address[f"{name}:7401"] = name
        super().enter(name, through, journal=journal)

    async def exchange(self) -> None:
        """Replace the nodes, as the commands do."""
        for name in "def":
            self.add(name)
        self.relink()
        async with connected(self, first="d") as client:
            for name, to in zip("abc", "def", strict=True):
                await self.replace(client, name, to)

    async def replace(self, client: Client, name: str, to: str) -> None:
        """Have one node leave, so that its links end, and another one have its slot as a voter."""
        for change in ("move-voter", "drain", "remove"):
            request = ChangeMembers(change, name, to=to if change == "move-voter" else "")
            await client.nodes.ask(lambda it=request: it, action=change, timeout=5.0, writes=True)
        for peer in [peer for peer in self.nodes if peer != name]:
            self.feed(peer, LinkDown(name))
            self.feed(name, LinkDown(peer))
        self.relink()


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_client_that_is_idle_while_all_nodes_are_replaced_knows_the_others(stopped: bool) -> None:
    """It hears of them from a node that is about to be removed, or that was."""
    async with running(lambda: Exchanged(3)) as cluster, connected(cluster, addresses=GIVEN) as client:
        await client.metadata()
        await cluster.exchange()
        await trio.sleep(REFRESH_S + 2 * DOUBT_S)
        if stopped:
            for name in "abc":
                cluster.kill(name)
        began = trio.current_time()
        await client.create_topic("jobs", timeout=5.0)
        assert trio.current_time() - began < 0.5
        assert set(client.nodes.addresses) == {*GIVEN, "d:7401", "e:7401", "f:7401"}


@pytest.mark.parametrize("stopped", [True, False])
async def test_an_idle_client_follows_nodes_that_are_replaced_within_a_minute(stopped: bool) -> None:
    """Its node tells it about each change. If that node is removed, or hangs up, the client asks another one."""
    async with running(lambda: Exchanged(3)) as cluster, connected(cluster, addresses=GIVEN) as client:
        cluster.tells = True
        for name, to in zip("bcade", "defgh", strict=True):
            cluster.add(to, through="a" if name in "bca" else "f")
            cluster.relink()
            async with connected(cluster, addresses=[f"{to}:7401"]) as operator:
                await cluster.replace(operator, name, to)
            if stopped:
                cluster.kill(name)
            await trio.sleep(2 * DOUBT_S)
        assert set(client.nodes.addresses) == {*GIVEN, "f:7401", "g:7401", "h:7401"}
        await client.create_topic("jobs", timeout=5.0)


async def test_a_client_with_old_addresses_alone_is_sent_to_the_present_nodes() -> None:
    async with running(lambda: Exchanged(3)) as cluster:
        await cluster.exchange()
        async with connected(cluster) as present:
            await present.create_topic("jobs", timeout=5.0)
        began = trio.current_time()
        async with connected(cluster, addresses=GIVEN) as client, client.producer("jobs") as producer:
            assert (await client.topic("jobs")).name == "jobs", "a removed node does not know it"
            pending = await producer.send(b"x")
            await pending.wait()
            assert [message.payload for message in await client.fetch("jobs", "g", max_messages=1)] == [b"x"]
        assert trio.current_time() - began < 1.0


def asked_first(clients: list[Client]) -> Counter[str]:
    return Counter(client.nodes._first for client in clients)


async def test_clients_spread_over_all_nodes_again_after_each_was_restarted() -> None:
    """All went to the same next node, and stayed there: one node had all clients after a restart of each."""
    async with fake_cluster() as cluster, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.connect()) for _ in range(60)]
        before = asked_first(clients)
        for name in "abc":
            cluster.kill(name)
            for client in clients:
                await client.metadata()
            assert min(asked_first(clients)[f"{other}:1"] for other in "abc" if other != name) >= 20
            cluster.revive(name)
            await trio.sleep(REFRESH_S + 2 * DOUBT_S)
        assert asked_first(clients) == before


async def test_consumers_fetch_from_all_nodes_again_after_each_was_restarted() -> None:
    """A consumer stayed at the node that it had gone to, so the one that was restarted last had none."""
    async with fake_cluster() as cluster, AsyncExitStack() as stack:
        consumers = []
        for _ in range(30):
            client = await stack.enter_async_context(cluster.connect())
            await client.create_topic("jobs")
            consumers.append(await stack.enter_async_context(client.consumer("jobs", "g")))

        async def served() -> Counter[str]:
            cluster.asked.clear()
            await trio.sleep(3 * LONG_POLL_MAX_S)
            return Counter(node for node, request in cluster.asked if isinstance(request, Fetch))

        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(consumer.__anext__)
            before = await served()
            for name in "abc":
                cluster.kill(name)
                await trio.sleep(1.0)
                cluster.revive(name)
                await trio.sleep(2 * DOUBT_S)
            await served()
            after = await served()
            nursery.cancel_scope.cancel()
        assert all(after[node] > 0.8 * before[node] > 0 for node in "abc")


async def test_nodes_that_are_added_get_their_share_of_the_clients_that_are_there() -> None:
    async with running(lambda: Exchanged(3)) as cluster, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.connect(addresses=GIVEN)) for _ in range(60)]
        for client in clients:
            await client.metadata()
        before = {client: client.nodes._first for client in clients}
        for name in "def":
            cluster.add(name)
        cluster.relink()
        await trio.sleep(2 * REFRESH_S + DOUBT_S)
        new = {f"{name}:7401" for name in "def"}
        assert all(asked_first(clients)[address] >= 3 for address in new)
        assert all(client.nodes._first in (before[client], *new) for client in clients)


async def test_a_client_with_many_idle_producers_asks_for_metadata_once_a_minute() -> None:
    """Each producer asked each 5 s once. A deleted topic does not hide the others from the one request of all."""
    minutes = 10
    async with (
        fake_cluster() as cluster,
        connected(cluster) as client,
        connected(cluster) as other,
        AsyncExitStack() as stack,
    ):
        producers = []
        for number in range(40):
            await other.create_topic(f"jobs{number}")
            producers.append(await stack.enter_async_context(client.producer(f"jobs{number}", create=False)))
            await producers[-1].publish(b"")
        cluster.asked.clear()
        await trio.sleep(60.0 * minutes)
        asked = [request.topics for _, request in cluster.asked if isinstance(request, Metadata)]
        looks = [topics for topics in asked if "jobs0" in topics]
        assert minutes <= len(looks) <= 60 * minutes / PRODUCED_S
        assert all(len(topics) == 40 for topics in looks)
        assert len(asked) - len(looks) <= minutes, "the other client asks for addresses"

        await other.delete_topic("jobs17")
        await other.alter_topic("jobs18", partitions=2)
        await trio.sleep(PRODUCED_S + 1.0)
        used = {(await producers[18].publish(b"")).partition.number for _ in range(256)}
        assert used == {0, 1}
        with pytest.raises(NotFound):
            await producers[17].publish(b"")
        await client.alter_topic("jobs19", partitions=2)
        used = {(await producers[19].publish(b"")).partition.number for _ in range(256)}
        assert used == {0, 1}, "its own call tells a client at once"


async def test_a_topic_that_is_not_there_is_named_at_once_though_an_address_is_of_a_removed_node() -> None:
    """The client took that node's answer for one that may change, and asked all for 30 s."""
    async with fake_cluster(4) as cluster, connected(cluster, addresses=[*GIVEN, "d:1"]) as client:
        reply = members("abc", 1)._replace(node="d")
        cluster.answer = lambda node, request: (
            reply if node == "d" and isinstance(request, Metadata) else None
        )
        began = trio.current_time()
        for _ in range(8):
            client.nodes._first = "d:1"
            with pytest.raises(NotFound, match="there is no topic 'absent'"):
                await client.topic("absent")
        assert trio.current_time() - began < 2.0


async def test_a_topic_is_not_missing_while_a_node_that_may_know_it_says_nothing() -> None:
    async with fake_cluster() as cluster, connected(cluster) as client:
        await client.create_topic("jobs")
        missing = Failed(Code.NOT_FOUND, "there is no topic 'jobs'")
        cluster.answer = lambda node, request: (
            missing if node != "a" and isinstance(request, Metadata) else None
        )
        cluster.mute.add("a")

        async def wake() -> None:
            await trio.sleep(1.0)
            cluster.wake("a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wake)
            assert (await client.topic("jobs")).name == "jobs"


async def test_a_consumer_of_several_topics_looks_at_all_of_them_in_one_request() -> None:
    """Five nodes, so that each topic has several replica sets, which may become others."""
    names = [f"jobs{number}" for number in range(10)]
    async with fake_cluster(5) as cluster, connected(cluster) as client:
        for name in names:
            await client.create_topic(name, partitions=4)
        async with client.consumer(names, "g") as consumer:
            with trio.move_on_after(2.0):
                await consumer.__anext__()
            cluster.asked.clear()
            with trio.move_on_after(60.0):
                await consumer.__anext__()
        asked = [request.topics for _, request in cluster.asked if isinstance(request, Metadata)]
        assert len(asked) <= 13
        assert all(set(topics) == set(names) for topics in asked)

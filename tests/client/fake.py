"""A cluster for the client's tests: real node cores behind the real wire protocol, in one process, in virtual time.

Nothing is mocked: it is the cluster of `quorumq.testing`, with the checks of `tests.core.cluster`. Faults are what can
happen to a client: no listener, a connection that ends, a node that says nothing, an answer that is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count as numbers
from typing import Any

import trio
import trio.testing

from quorumq.client import Client, connect
from quorumq.core.messages import ClientReply, Failed, Hello, Metadata
from quorumq.core.values.patterns import NO_TOPIC
from quorumq.core.values.types import Now
from quorumq.testing.network import Connection, Network, running
from tests.core.cluster import Cluster


class FakeCluster(Cluster, Network):
    """Nodes a, b, c … at addresses "a:1", "b:1", "c:1" …, to be dialled by `dial`.

    Attributes:
        refuse: addresses without a listener.
        mute: nodes that read everything and answer nothing.
        lose: called with (node, request) of each request that was carried out; if it returns true the connection ends
            instead of the reply being sent.
        answer: called with (node, request) of each request; its result is answered instead of carrying it out.
        asked: every request received, with its node.
    """

    tick_s = None
    port = 1
    lag = 0.0
    """Seconds that a node's answer is under way."""

    def __init__(self, count: int = 3, **settings: object) -> None:
        self.shown: dict[str, Now] = {}
        self.refuse: set[str] = set()
        self.mute: set[str] = set()
        self.lose: Callable[[str, object], bool] = lambda node, request: False
        self.answer: Callable[[str, object], ClientReply | None] = lambda node, request: None
        self.asked: list[tuple[str, Any]] = []
        super().__init__(count, **{"heartbeat": 1.0, "sync_interval": 10.0, **settings})

    @property
    def now(self) -> Now:
        return Network.clocks(self, "")

    def clocks(self, name: str) -> Now:
        self.shown[name] = super().clocks(name)
        return self.shown[name]

    def checked_at(self, name: str) -> Now:
        """That of its last step: in real time the clock goes on meanwhile, and something may have become due."""
        return self.shown[name]

    def of(self, kind: type) -> list[tuple[str, Any]]:
        """The requests of one type, with their nodes, but for those with which clients refresh what they know."""
        refresh = Metadata((NO_TOPIC,))
        return [(node, it) for node, it in self.asked if isinstance(it, kind) and it != refresh]

    # ------------------------------------------------------------------------- faults

    def revive(self, name: str) -> None:
        """Start the node again from its journal."""
        self.start(name)

    async def cut_off(self) -> None:
        """Make every node unreachable from now on."""
        self.refuse.update(self.addresses)
        for name in self.names:
            self.hang_up(name)
        await trio.testing.wait_all_tasks_blocked()

    def wake(self, names: str) -> None:
        """No node is mute any more. Requests sent to them meanwhile are lost with their connections."""
        self.mute.clear()
        for name in names:
            self.hang_up(name)

    async def dial(self, address: str) -> trio.abc.Stream:
        if address in self.refuse:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(111, "Connection refused")
        return await super().dial(address)

    def connection(self, name: str, stream: trio.abc.Stream) -> Connection:
        return FakeConnection(self, name, stream)


class FakeConnection(Connection):
    """The node's end of one connection, which may be mute, lag, or lose its answers."""

    network: FakeCluster

    async def send_all(self, data: bytes) -> None:
        with trio.CancelScope(shield=self.network.lag > 0):  # the node has sent it, even if the client goes
            if self.network.lag:
                await trio.sleep(self.network.lag)
            await super().send_all(data)

    def take(self, message: object, number: int) -> None:
        cluster = self.network
        cluster.asked.append((self.node, message))
        if self.node in cluster.mute and not isinstance(message, Hello):
            return
        instead = cluster.answer(self.node, message)
        if instead is not None:
            self.send(instead, number)
        else:
            super().take(message, number)

    def reply(self, message: object, reply: ClientReply, number: int) -> None:
        if self.network.lose(self.node, message):
            self.drop()
        else:
            super().reply(message, reply, number)


def fake_cluster(count: int = 3, **settings: object) -> AbstractAsyncContextManager[FakeCluster]:
    """A running fake cluster."""
    return running(lambda: FakeCluster(count, **settings))


@asynccontextmanager
async def connected(cluster: FakeCluster, first: str = "a", **more: Any) -> AsyncIterator[Client]:
    """A client that asks node ``first`` first."""
    options: dict[str, Any] = {
        "dial": cluster.dial, "wall_ms": cluster.wall_ms, "timeout": 20.0, "rng": cluster.rng, **more,
    }  # fmt: skip
    addresses = options.pop("addresses", cluster.addresses)
    async with connect(addresses, **options) as client:
        ask_first(client, first)
        yield client


@asynccontextmanager
async def serving(*topics: str, **more: Any) -> AsyncIterator[tuple[FakeCluster, Client]]:
    """A running fake cluster with these topics, and a client; options of the client as of `connected`."""
    async with fake_cluster() as cluster, connected(cluster, **more) as client:
        for topic in topics:
            await client.create_topic(topic)
        yield cluster, client


def ask_first(client: Client, node: str) -> None:
    """Make this node the client's home, and asked first; nothing happens if the client does not know it."""
    nodes, address = client.nodes, f"{node}:1"
    if address in nodes.addresses:
        for number in numbers():
            nodes._key = number.to_bytes(2, "big")
            if nodes._choose(nodes.addresses) == address:
                break
        nodes._home = nodes._first = address


def failing(code: str, *, times: int, of: type) -> Callable[[str, object], ClientReply | None]:
    """An `answer` that fails ``times`` requests of one type and lets later ones through."""
    remaining = times

    def answer(node: str, request: object) -> ClientReply | None:
        nonlocal remaining
        if isinstance(request, of) and remaining > 0:
            remaining -= 1
            return Failed(code, f"as the test asked {node}", 2, 1)
        return None

    return answer

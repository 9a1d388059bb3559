"""A cluster for the client's tests: real node cores behind the real wire protocol, in one process, in virtual time.

Nothing is mocked: `tests.core.cluster.Cluster` drives the cores on a perfect network, connections are trio memory
streams that carry frames, receipts are signed and opened as a node does it. Faults are what can happen to a
client: nobody there, a connection that ends, a node that says nothing, an answer that is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from quorumq.client import Client, connect
from quorumq.core.messages import ClientReply, Failed, FetchReply, Hello, Slice
from quorumq.core.messages.effects import Gone, Request
from quorumq.core.messages.records import BatchStored
from quorumq.core.values.errors import BadReceipt
from quorumq.core.values.types import Now
from quorumq.wire.codec import decode_message, encode_message, failed, open_request
from quorumq.wire.frames import FrameReader
from quorumq.wire.receipts import sign_fetched
from quorumq.wire.rights import visible
from tests.core.cluster import WALL_MS, Cluster

SECRET = b"a secret of the fake cluster"


class FakeCluster(Cluster):
    """Nodes a, b, c … at addresses "a:1", "b:1", "c:1" …, to be dialled by `dial`.

    Attributes:
        refuse: addresses where nobody answers.
        mute: nodes that read everything and answer nothing.
        lose: told (node, request) of each request that was carried out; where it is true the connection ends instead
            of the reply being sent.
        answer: told (node, request) of each request; what it returns is answered instead of carrying it out.
        asked: every request that came, with its node.
    """

    def __init__(self, count: int = 3, **settings: object) -> None:
        names = tuple("abcdefghi"[:count])
        addresses = tuple((name, f"{name}:1") for name in names)
        quiet = {"hold_time_max": 60.0, "heartbeat": 1.0, "sync_interval": 10.0}
        self.shown: dict[str, Now] = {}
        super().__init__(count, **{**quiet, "addresses": addresses, **settings})
        self.refuse: set[str] = set()
        self.mute: set[str] = set()
        self.lose: Callable[[str, object], bool] = lambda node, request: False
        self.answer: Callable[[str, object], ClientReply | None] = lambda node, request: None
        self.asked: list[tuple[str, Any]] = []
        self.open: dict[str, list[FakeConnection]] = {}
        self.waiting: dict[int, Callable[[ClientReply], None]] = {}
        self.nursery: trio.Nursery | None = None
        self.changed = trio.Event()

    @property
    def now(self) -> Now:
        return Now(100.0 + trio.current_time(), self.wall_ms())

    def clocks(self, name: str) -> Now:
        self.shown[name] = super().clocks(name)
        return self.shown[name]

    def checked_at(self, name: str) -> Now:
        """That of its last step: in real time the clock goes on meanwhile, and something may have become due."""
        return self.shown[name]

    def wall_ms(self) -> int:
        return WALL_MS + int(trio.current_time() * 1000)

    @property
    def addresses(self) -> list[str]:
        return [f"{name}:1" for name in self.names]

    def of(self, kind: type) -> list[tuple[str, Any]]:
        """The requests of one type, with their nodes."""
        return [(node, request) for node, request in self.asked if isinstance(request, kind)]

    # ------------------------------------------------------------------------ driving

    async def tick(self) -> None:
        """Wake every core at each of its deadlines."""
        while True:
            self.changed = trio.Event()
            deadlines = [core.next_deadline() for core in self.nodes.values()]
            first = min((found for found in deadlines if found is not None), default=float("inf"))
            with trio.move_on_at(first - 100.0):
                await self.changed.wait()
                continue
            for driver in list(self.drivers.values()):
                driver.feed()
            self.run()

    def run(self) -> None:
        super().run()
        if not hasattr(self, "waiting"):
            return  # still being made
        for key in list(self.replies):
            reply = self.replies.pop(key)
            waiting = self.waiting.pop(key, None)
            if waiting is not None:
                waiting(reply)
            else:
                self.answers[key] = reply
        self.changed.set()

    answers: dict[int, ClientReply]

    lag = 0.0
    """Seconds for which what a node sends is on its way."""

    def ask(self, name: str, request: object) -> ClientReply:
        if not hasattr(self, "waiting"):
            return super().ask(name, request)
        found: list[ClientReply] = []
        self.keys += 1
        self.waiting[self.keys] = found.append
        self.feed(name, Request(self.keys, request))  # type: ignore[arg-type]
        assert found, f"{request} was not answered"
        return found[0]

    # ------------------------------------------------------------------------- faults

    def kill(self, name: str) -> None:
        """kill -9: connections end, what was in memory is gone."""
        self.refuse.add(f"{name}:1")
        for connection in self.open.pop(name, []):
            connection.drop()
        super().kill(name)

    def revive(self, name: str) -> None:
        """Start the node again from its journal."""
        self.refuse.discard(f"{name}:1")
        self.start(name)

    def hang_up(self, name: str) -> None:
        """End the connections to a node that goes on running."""
        for connection in self.open.pop(name, []):
            connection.drop()

    async def cut_off(self) -> None:
        """From now on there is no node that can be reached."""
        self.refuse.update(self.addresses)
        for name in self.names:
            self.hang_up(name)
        await trio.testing.wait_all_tasks_blocked()

    def wake(self, names: str) -> None:
        """No node is mute any more; what these were asked meanwhile is lost with their connections."""
        self.mute.clear()
        for name in names:
            self.hang_up(name)

    # ---------------------------------------------------------------------- the client

    async def dial(self, address: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if address in self.refuse or address not in self.addresses:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        connection = FakeConnection(self, address[0], theirs)
        self.open.setdefault(address[0], []).append(connection)
        assert self.nursery is not None
        self.nursery.start_soon(connection.run)
        return ours

    def read(self, node: str) -> Callable[[Slice], bytes]:
        def read(part: Slice) -> bytes:
            for record in self.journals[node]:
                if isinstance(record, BatchStored) and record.number == part.batch:
                    header = record.batch.header
                    return bytes(record.batch.body)[
                        header.end_of(part.first - 1) : header.end_of(part.stop - 1)
                    ]
            raise AssertionError(f"{node} has no batch {part.batch}")

        return read


class FakeConnection:
    """The node's end of one connection."""

    def __init__(self, cluster: FakeCluster, node: str, stream: trio.abc.Stream) -> None:
        self.cluster = cluster
        self.node = node
        self.stream = stream
        self.keys: dict[int, None] = {}
        self.scope = trio.CancelScope()
        self.outbox: list[bytes] = []
        self.wake = trio.Event()

    def drop(self) -> None:
        """End the connection as a broken network does."""
        self.scope.cancel()

    async def run(self) -> None:
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.write)
                    await self.read()
                    nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(self.stream)
            if self.node in self.cluster.nodes and self.keys:
                self.cluster.feed(self.node, *[Gone(key) for key in self.keys])

    async def read(self) -> None:
        reader = FrameReader()
        while data := await self.receive():
            reader.feed(data)
            for frame in reader:
                message, number, _ = decode_message(frame)
                self.take(message, number)

    async def receive(self) -> bytes:
        try:
            return bytes(await self.stream.receive_some(65536))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def write(self) -> None:
        while True:
            self.wake = trio.Event()
            while self.outbox:
                data = b"".join(self.outbox)
                self.outbox.clear()
                with trio.CancelScope(shield=self.cluster.lag > 0):  # the node has sent it, whatever comes
                    if self.cluster.lag:
                        await trio.sleep(self.cluster.lag)
                    try:
                        await self.stream.send_all(data)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        return
            await self.wake.wait()

    def take(self, message: object, number: int) -> None:
        cluster = self.cluster
        cluster.asked.append((self.node, message))
        if self.node in cluster.mute and not isinstance(message, Hello):
            return
        instead = cluster.answer(self.node, message)
        if instead is not None:
            self.send(instead, number)
            return
        try:
            request = open_request(message, keys={0: SECRET})  # type: ignore[arg-type]
        except BadReceipt as exc:
            self.send(failed(exc), number)
            return
        cluster.keys += 1
        key = cluster.keys

        def answer(reply: ClientReply) -> None:
            self.keys.pop(key, None)
            if cluster.lose(self.node, message):
                self.drop()
            else:
                catalogue = cluster.nodes[self.node].catalogue
                self.send(visible(None, reply, catalogue, request), number)

        self.keys[key] = None
        cluster.waiting[key] = answer
        cluster.feed(self.node, Request(key, request))  # type: ignore[arg-type]

    def send(self, reply: ClientReply, number: int) -> None:
        if isinstance(reply, FetchReply):
            reply = sign_fetched(reply, secret=SECRET)
        read = self.cluster.read(self.node)
        self.outbox.append(b"".join(encode_message(reply, request=number, stamp=1, read=read)))
        self.wake.set()


@asynccontextmanager
async def fake_cluster(count: int = 3, **settings: object) -> AsyncIterator[FakeCluster]:
    """A running fake cluster."""
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(count, **settings)
        cluster.answers = {}
        cluster.nursery = nursery
        nursery.start_soon(cluster.tick)
        yield cluster
        nursery.cancel_scope.cancel()


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


def ask_first(client: Client, node: str) -> None:
    """Have a client ask this node first, for as long as it answers; nothing happens where it does not know it."""
    if f"{node}:1" in client.nodes.addresses:
        client.nodes._first = f"{node}:1"


def failing(code: str, *, times: int, of: type) -> Callable[[str, object], ClientReply | None]:
    """An `answer` that fails so many requests of one type, then lets them through."""
    left = times

    def answer(node: str, request: object) -> ClientReply | None:
        nonlocal left
        if isinstance(request, of) and left > 0:
            left -= 1
            return Failed(code, f"as the test asked {node}", 2, 1)
        return None

    return answer

"""Streams in memory between clients and nodes of one process, with real frames and signed receipts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import trio

from quorumq.client import Client, connect
from quorumq.core.messages import (
    ClientReply,
    Failed,
    FetchReply,
    RemoteFetchReply,
    ReplicaPeekReply,
    Slice,
)
from quorumq.core.messages.effects import Gone, Received, Request
from quorumq.core.values.errors import BadReceipt, Code
from quorumq.core.values.types import NodeId, Now
from quorumq.testing.nodes import NAMES, Nodes
from quorumq.wire.codec import BadFields, decode_message, encode_message, failed, open_request
from quorumq.wire.frames import FrameReader
from quorumq.wire.receipts import sign_fetched
from quorumq.wire.rights import visible

SECRET: Final = b"a secret of a cluster in one process"
MONO_S: Final = 100.0
"""Time of a node's monotonic clock, in seconds, when that of trio shows 0."""

WALL_MS: Final = 1_700_000_000_000
"""Time of day when the clock of trio shows 0, in milliseconds since 1970."""

QUIET: Final = {"heartbeat": 60.0, "sync_interval": 120.0}
"""Seconds between the regular work of nodes. Each is an event that virtual time stops at."""

TICK_S: Final = 30.0
"""Seconds between two looks of a client at a connection, which loses nothing here."""


class Network(Nodes):
    """Nodes at addresses "a:7401", "b:7401", "c:7401" …, dialled by `dial`.

    Attributes:
        tick_s: seconds between two looks of a client at a connection; the client's own if None.
    """

    tick_s: float | None = TICK_S
    port = 7401

    def __init__(self, count: int, rng: random.Random, **settings: object) -> None:
        self.seconds = trio.lowlevel.current_clock().current_time  # from any thread
        self.nursery: trio.Nursery | None = None
        self.changed = trio.Event()
        self.waiting: dict[int, Callable[[ClientReply], None]] = {}
        self.open: dict[NodeId, list[Connection]] = {}
        names = tuple(NAMES[:count])
        self.by_address = {f"{name}:{self.port}": name for name in names}
        addresses = tuple(zip(names, self.by_address, strict=True))
        super().__init__(count, rng, **{"addresses": addresses, **settings})

    @property
    def addresses(self) -> list[str]:
        return list(self.by_address)

    def clocks(self, name: NodeId) -> Now:
        return Now(MONO_S + self.seconds(), self.wall_ms())

    def wall_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""
        return WALL_MS + int(self.seconds() * 1000)

    # ---------------------------------------------------------------------- driving

    async def tick(self) -> None:
        """Wake each node at its deadlines."""
        while True:
            self.changed = trio.Event()
            deadlines = [core.next_deadline() for core in self.nodes.values()]
            first = min((deadline for deadline in deadlines if deadline is not None), default=float("inf"))
            with trio.move_on_at(first - MONO_S):
                await self.changed.wait()
                continue
            self.wake_due()
            self.run()

    def run(self) -> None:
        super().run()
        self.changed.set()

    def take_reply(self, key: int, reply: ClientReply) -> None:
        if (answer := self.waiting.pop(key, None)) is None:
            super().take_reply(key, reply)
        else:
            answer(reply)

    def envelope(self, sender: NodeId, to: NodeId, message: object) -> Received | None:
        """Return a message as its receiver gets it. Messages for a client of another node have their bytes."""
        if isinstance(message, (RemoteFetchReply, ReplicaPeekReply)):
            if isinstance(message, RemoteFetchReply):
                message = sign_fetched(message, secret=SECRET)
            reader = FrameReader()
            reader.feed(b"".join(encode_message(message, read=self.read(sender))))
            message = decode_message(next(iter(reader))).message
        return super().envelope(sender, to, message)

    # ----------------------------------------------------------------------- faults

    def kill(self, name: NodeId) -> None:
        self.hang_up(name)
        super().kill(name)

    def cut(self, name: NodeId) -> None:
        super().cut(name)
        self.hang_up(name)

    def hang_up(self, name: NodeId) -> None:
        """End the connections of clients to a node."""
        for connection in self.open.pop(name, []):
            connection.drop()

    # ---------------------------------------------------------------------- clients

    async def dial(self, address: str) -> trio.abc.Stream:
        """Open a stream to a node."""
        await trio.lowlevel.checkpoint()
        name = self.by_address.get(address)
        if name not in self.nodes or self.unreachable(name) or self.nursery is None:
            raise ConnectionRefusedError(111, "Connection refused")
        from trio.testing import memory_stream_pair  # not imported by programs that need none

        ours, theirs = memory_stream_pair()
        if self.tick_s is not None:
            ours.tick_s = self.tick_s  # type: ignore[attr-defined]
        connection = self.connection(name, theirs)
        self.open.setdefault(name, []).append(connection)
        self.nursery.start_soon(connection.run)
        return ours

    def connection(self, name: NodeId, stream: trio.abc.Stream) -> Connection:
        """Return a node's end of a new connection."""
        return Connection(self, name, stream)

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Return another client of the cluster, to be used by ``async with``; options are those of `connect`."""
        return connect(**self.client_options(options))

    async def open_client(self, **options: Any) -> Client:
        """Return another client of the cluster, to be closed."""
        assert self.nursery is not None
        return await Client.open(nursery=self.nursery, **self.client_options(options))

    def client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `connect` for a client in the same time."""
        return {
            "addresses": self.addresses,
            "dial": self.dial,
            "clock": self.seconds,
            "wall_ms": self.wall_ms,
            "rng": self.rng,
            **options,
        }

    def read(self, name: NodeId) -> Callable[[Slice], bytes]:
        """Return the function that reads messages of a node's batches."""

        def read(part: Slice) -> bytes:
            batch = self.batch_of(name, part.batch).batch
            header = batch.header
            return bytes(batch.body)[header.end_of(part.first - 1) : header.end_of(part.stop - 1)]

        return read


class Connection:
    """A node's end of one connection."""

    def __init__(self, network: Network, node: NodeId, stream: trio.abc.Stream) -> None:
        self.network = network
        self.node = node
        self.stream = stream
        self.keys: dict[int, None] = {}
        self.scope = trio.CancelScope()
        self.outbox: list[bytes] = []
        self.wake = trio.Event()
        self.is_leaving = False  # True once the client sends no more

    def drop(self) -> None:
        """End the connection as a broken network does."""
        self.scope.cancel()

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.write)
                    await self.receive()
                    self.give_up()
                    self.is_leaving = True
                    self.wake.set()
        finally:
            self.give_up()
            await trio.aclose_forcefully(self.stream)
            if self in (connections := self.network.open.get(self.node, [])):
                connections.remove(self)

    def give_up(self) -> None:
        """Give up the requests that are not answered yet."""
        keys, self.keys = self.keys, {}
        if self.node in self.network.nodes and keys:
            self.network.feed(self.node, *[Gone(key) for key in keys])

    async def receive(self) -> None:
        reader = FrameReader()
        while data := await self.receive_some():
            reader.feed(data)
            for frame in reader:
                try:
                    message, number, _ = decode_message(frame)
                except BadFields as error:  # a node answers so, too
                    self.send(Failed(Code.USAGE, str(error)), error.request)
                    continue
                self.take(message, number)

    async def receive_some(self) -> bytes:
        """Return bytes of the client; none if it is gone."""
        try:
            return bytes(await self.stream.receive_some(65536))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def write(self) -> None:
        """Send the messages in the outbox, until the client has left.

        A client that leaves reads on, and gives back messages that it receives. The outbox's messages would stay held.
        """
        while True:
            self.wake = trio.Event()
            while self.outbox:
                data = b"".join(self.outbox)
                self.outbox.clear()
                await self.send_all(data)
            if self.is_leaving:
                return
            await self.wake.wait()

    async def send_all(self, data: bytes) -> None:
        """Send bytes; end the connection if the client is gone."""
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.drop()

    def take(self, message: object, number: int) -> None:
        """Give a request to the node."""
        network = self.network
        try:
            request = open_request(message, keys={0: SECRET})  # type: ignore[arg-type]
        except BadReceipt as error:
            self.send(failed(error), number)
            return
        network.keys += 1
        key = network.keys

        def answer(reply: ClientReply) -> None:
            self.keys.pop(key, None)
            catalogue = network.nodes[self.node].catalogue
            self.reply(message, visible(None, reply, catalogue, request), number)

        self.keys[key] = None
        network.waiting[key] = answer
        network.feed(self.node, Request(key, request))  # type: ignore[arg-type]

    def reply(self, message: object, reply: ClientReply, number: int) -> None:
        self.send(reply, number)

    def send(self, reply: ClientReply, number: int) -> None:
        """Put an answer into the outbox."""
        if isinstance(reply, FetchReply):
            reply = sign_fetched(reply, secret=SECRET)
        frames = encode_message(reply, request=number, stamp=1, read=self.network.read(self.node))
        self.outbox.append(b"".join(frames))
        self.wake.set()


Running = TypeVar("Running", bound=Network)


@asynccontextmanager
async def running(network: Callable[[], Running]) -> AsyncIterator[Running]:
    """Run a cluster for the length of an ``async with``."""
    async with trio.open_nursery() as nursery:
        made = network()
        made.nursery = nursery
        nursery.start_soon(made.tick)
        yield made
        nursery.cancel_scope.cancel()

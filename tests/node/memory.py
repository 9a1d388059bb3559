"""Nodes in one process and in virtual time: real shell, real core, memory instead of sockets and disks.

`World` runs nodes whose connections are pairs of `MemoryTransport` and whose disks are `MemoryDisk`s; a commit takes
as long as the test says. Time is trio's, and virtual (tests/virtual.py), so nothing waits.
"""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from quorumq.core import messages as m
from quorumq.core.types import Now, Origin, PartitionId, Topic
from quorumq.node.commits import Finished
from quorumq.node.config import ServeConfig, make_config
from quorumq.node.serve import Service, open_node
from quorumq.node.transport import ConnectionLost, Transport
from quorumq.storage.commit import Commit
from quorumq.storage.memory import MemoryDisk
from quorumq.wire.batch import Message, build_batch
from quorumq.wire.codec import decode_message, encode_message, error_of, sealed_items
from quorumq.wire.frames import PREFIX_BYTES, FrameReader
from quorumq.wire.hello import client_hello
from quorumq.wire.proofs import DIALLER, LISTENER, Handshake, fresh_nonce
from quorumq.wire.receipts import key_number, seal_session
from quorumq.wire.values import SealedNamed

SECRET = b"0123456789abcdef"
WALL_MS = 1_700_000_000_000
CAPACITY = 256 * 1024
"""What a connection keeps for a reader that does not read, as a kernel does."""


def now() -> Now:
    return Now(100.0 + trio.current_time(), WALL_MS + int(trio.current_time() * 1000))


class MemoryTransport:
    """One end of a connection. ``dead`` ends take and give nothing."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.peer: MemoryTransport
        self.received = bytearray()
        self.total = 0  # bytes ever sent from here
        self.ended = False  # the other side said goodbye
        self.closed = False
        self._lot = trio.lowlevel.ParkingLot()

    def _wake(self) -> None:
        self._lot.unpark_all()
        self.peer._lot.unpark_all()

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        if self.closed or self.peer.closed:
            raise ConnectionLost("closed")
        taken = 0
        for buffer in buffers:
            room = self.capacity - len(self.peer.received)
            self.peer.received += buffer[:room]
            taken += min(room, len(buffer))
            if room < len(buffer):
                break
        self.total += taken
        self._wake()
        return taken

    @property
    def names(self) -> frozenset[str]:
        return frozenset()

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.closed and not self.peer.closed and len(self.peer.received) >= self.capacity:
            await self._lot.park()
        if self.closed or self.peer.closed:
            raise ConnectionLost("closed")

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.received and not self.ended and not self.closed:
            await self._lot.park()
        if self.closed:
            raise ConnectionLost("closed")
        data = bytes(self.received)
        self.received.clear()
        self._wake()
        return data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.peer.ended = True
            self._wake()


def pair(capacity: int = CAPACITY) -> tuple[MemoryTransport, MemoryTransport]:
    one, other = MemoryTransport(capacity), MemoryTransport(capacity)
    one.peer, other.peer = other, one
    return one, other


class Commits:
    """Runs commits after ``seconds``, or not before `release` after `hold`.

    Attributes:
        count: how many have run.
        at_once: whether they run on the loop where they may.
    """

    def __init__(self, nursery: trio.Nursery, seconds: float = 0.001) -> None:
        self.nursery = nursery
        self.seconds = seconds
        self.held = False
        self.at_once = False
        self.count = 0
        self._open = trio.Event()

    def hold(self) -> None:
        """Commits that begin from now on wait for `release`."""
        self.held = True
        self._open = trio.Event()

    def release(self) -> None:
        self.held = False
        self._open.set()

    def start(self, commit: Commit, finished: Finished, *, here: bool) -> None:
        if here and self.at_once:
            self.count += 1
            commit.run()
            finished(commit, None, 0.0)
        else:
            self.nursery.start_soon(self._run, commit, finished)

    async def _run(self, commit: Commit, finished: Finished) -> None:
        error: BaseException | None = None
        try:
            if self.held:
                await self._open.wait()
            await trio.sleep(self.seconds)
            self.count += 1
            commit.run()
        except Exception as exc:
            error = exc
        finished(commit, error, self.seconds)

    def close(self) -> None:
        pass


class Log:
    """Keeps every line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            self.lines.append((level, event, fields))

        return write

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, found, fields in self.lines if found == event]


class World:
    """Nodes by name. ``settings`` go into every node's configuration."""

    def __init__(self, nursery: trio.Nursery, names: str, **settings: Any) -> None:
        self.nursery = nursery
        self.names = tuple(names)
        self.settings = {"hold_time_max": 5.0, "auto_create_topics": True, **settings}
        self.disks = {name: MemoryDisk() for name in self.names}
        self.commits = {name: Commits(nursery) for name in self.names}
        self.logs = {name: Log() for name in self.names}
        self.services: dict[str, Service] = {}
        self.codes: dict[str, int] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.seed = 0

    def config(self, name: str) -> ServeConfig:
        return make_config(
            {
                "node": name,
                "cluster_id": "test",
                "secret": SECRET.decode(),
                "data_dir": "/nonexistent",
                "nodes": {other: f"127.0.0.1:{7401 + index}" for index, other in enumerate(self.names)},
                **self.settings,
            }
        )

    def start(self, name: str, sockets: Sequence[socket.socket] = ()) -> Service:
        self.seed += 1
        node = open_node(
            self.config(name),
            self.disks[name],
            log=self.logs[name],
            commits=self.commits[name],
            clock=now,
            rng=random.Random(self.seed),
        )

        async def dial(peer: str) -> Transport:
            await trio.lowlevel.checkpoint()
            return self.connect(peer, f"node {name}")

        service = self.services[name] = Service(node, dial)
        self.codes.pop(name, None)
        self.nursery.start_soon(self._run, name, service, sockets)
        return service

    async def _run(self, name: str, service: Service, sockets: Sequence[socket.socket]) -> None:
        with trio.CancelScope() as scope:
            self.scopes[name] = scope
            code = await service.run(list(sockets))
            self.codes[name] = code
            if self.services.get(name) is service:
                del self.services[name]

    def connect(self, name: str, address: str = "client", capacity: int = CAPACITY) -> MemoryTransport:
        if name not in self.services or self.services[name]._nursery is None:
            raise OSError(111, "nobody is there")
        ours, theirs = pair(capacity)
        self.services[name].serve(theirs, address)
        return ours

    async def client(self, name: str, token: str = "", **more: Any) -> Client:
        client = Client(self.connect(name, **more))
        await client.hello(token)
        return client

    def kill(self, name: str, **keep: Any) -> None:
        """The machine stops: the disk first, then the tasks, whose last words go nowhere."""
        self.disks[name] = self.disks[name].crash(**keep)
        service = self.services.pop(name)
        service.node.fall_silent()
        self.scopes[name].cancel()

    async def stop(self, name: str) -> int:
        self.services[name].stop()
        while name not in self.codes:
            await trio.sleep(0.01)
        return self.codes[name]

    async def ready(self) -> None:
        """Until all links are up and everyone can vouch."""
        while not all(
            service._nursery is not None
            and service.node.core.state.vouched
            and len(service.node.core.state.links) == len(self.names) - 1
            for service in self.services.values()
        ):
            await trio.sleep(0.05)


@asynccontextmanager
async def world(names: str = "abc", **settings: Any) -> AsyncIterator[World]:
    """A running cluster; its nodes are gone when the block ends."""
    async with trio.open_nursery() as nursery:
        found = World(nursery, names, **settings)
        for name in names:
            found.start(name)
            await trio.sleep(0)
        await found.ready()
        yield found
        nursery.cancel_scope.cancel()


class Client:
    """The wire, without manners."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self.reader = FrameReader()
        self.number = 0
        self.replies: dict[int, Any] = {}

    async def hello(self, token: str = "") -> None:
        reply = await self.ask(client_hello("test", now().wall_ms, token=token))
        if isinstance(reply, m.Failed):
            raise error_of(reply)
        assert isinstance(reply, m.Welcome), reply

    async def greet(self, hello: m.Hello, listener: str, secret: bytes = SECRET) -> Any:
        """The answer to HELLO as a node of the cluster that has ``secret``."""
        number = await self.send(hello)
        challenge = await self.receive(0)
        assert isinstance(challenge, m.Challenge), challenge
        header = bytes(encode_message(hello, request=number)[0])[PREFIX_BYTES:]
        said = Handshake(header, listener, challenge.nonce, fresh_nonce())
        await self.push(b"".join(encode_message(m.Proof(said.answer, said.prove(secret, DIALLER)))))
        reply = await self.receive(number)
        if not isinstance(reply, m.Failed) or reply.code != "unauthorized":
            assert said.proven(self.replies.pop(0).digest, (secret,), LISTENER)
        return reply

    async def push(self, data: bytes) -> None:
        """Send bytes as they are."""
        view = memoryview(data)
        while view:
            taken = self.transport.send_some([view])
            view = view[taken:]
            if view:
                await self.transport.wait_sendable()

    async def send(self, message: Any) -> int:
        self.number += 1
        await self.push(b"".join(encode_message(message, request=self.number)))
        return self.number

    async def receive(self, number: int) -> Any:
        while number not in self.replies:
            frame = self.reader.next_frame()
            if frame is None:
                data = await self.transport.receive()
                if not data:
                    raise ConnectionLost("closed by the node")
                self.reader.feed(data)
                continue
            decoded = decode_message(frame)
            self.replies[decoded.request] = decoded.message
        return self.replies.pop(number)

    async def ask(self, message: Any) -> Any:
        return await self.receive(await self.send(message))

    async def closed(self, within: float) -> bool:
        """Whether the node hangs up within so many seconds."""
        with trio.move_on_after(within):
            while True:
                try:
                    if not await self.transport.receive():
                        return True
                except ConnectionLost:
                    return True
        return False

    # ------------------------------------------------------------------ conveniences

    async def topic(self, name: str = "jobs", rf: int = 3, partitions: int = 1) -> Topic:
        reply = await self.ask(m.CreateTopic(name, rf, partitions))
        assert isinstance(reply, m.CreateTopicReply), reply
        return reply.topic

    async def session(self) -> Origin:
        reply = await self.ask(m.OpenSession())
        assert isinstance(reply, m.OpenSessionReply), reply
        return reply.origin

    async def ack(self, *items: SealedNamed) -> Any:
        return await self.ask(m.AckRequest(sealed_items(items)))


def publish(topic: Topic, origin: Origin, first: int, *payloads: bytes) -> m.Publish:
    batch = build_batch(PartitionId(topic.id, 0), origin, first, WALL_MS, [Message(p) for p in payloads])
    return m.Publish(batch, seal=sealed_session(origin))


def sealed_session(origin: Origin) -> bytes:
    """What comes with the session, of whatever origin."""
    return seal_session(origin, secret=SECRET, key=key_number(SECRET))


def fetch(most: int = 100, wait: float = 0.0, hold_time: float = 4.0, size: int = 1 << 20) -> m.Fetch:
    return m.Fetch(("jobs",), "g", most, size, 1, 0, wait, hold_time, 0.0, idle=True)


def payloads(reply: Any) -> list[bytes]:
    assert isinstance(reply, m.FetchReply), reply
    return [message.payload for part in reply.slices for message in part.messages()]


def receipts(reply: Any) -> list[SealedNamed]:
    assert isinstance(reply, m.FetchReply), reply
    return [SealedNamed(delivery.sealed) for part in reply.slices for delivery in part.deliveries]


def outcomes(reply: Any) -> list[str]:
    assert isinstance(reply, m.SettleReply), reply
    return [verdict.outcome for verdict in reply.verdicts]

"""The wire in one process and in virtual time, without manners: clients of the nodes of sim/shell/memory.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

import sim.shell.memory
from quorumq.core import messages as m
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from quorumq.node.transport import ConnectionLost
from quorumq.wire.batch import Message, build_batch
from quorumq.wire.codec import decode_message, encode_message, error_of, signed_items
from quorumq.wire.frames import PREFIX_BYTES, FrameReader
from quorumq.wire.hello import client_hello
from quorumq.wire.proofs import DIALLER, LISTENER, Handshake, fresh_nonce
from quorumq.wire.receipts import key_number, sign_session
from quorumq.wire.values import SignedNamed
from sim.shell.memory import SECRET, WALL_MS, MemoryTransport, now
from tests.core.steps import outcomes as outcomes
from tests.e2e.raw import receipts as receipts


class World(sim.shell.memory.World):
    """Nodes that clients of the bare wire can ask."""

    async def client(self, name: str, token: str = "", on_behalf: str = "", **more: Any) -> Client:
        client = Client(self.connect(name, **more))
        await client.hello(token, on_behalf)
        return client


@asynccontextmanager
async def world(names: str = "abc", **settings: Any) -> AsyncIterator[World]:
    """A running cluster; its nodes are gone when the block ends."""
    async with trio.open_nursery() as nursery:
        new_world = World(nursery, names, **settings)
        for name in names:
            new_world.start(name)
            await trio.sleep(0)
        await new_world.ready()
        yield new_world
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(
    names: str = "abc", *, rf: int = 0, **settings: Any
) -> AsyncIterator[tuple[World, Client, Topic, ProducerId]]:
    """A running cluster, a client of its first node, a topic on all nodes (or ``rf`` of them), and a session."""
    async with world(names, **settings) as cluster:
        client = await cluster.client(names[0])
        yield cluster, client, await client.topic(rf=rf or len(names)), await client.session()


class Quiet:
    """Rights of a new client: all."""

    silent = False


class Client:
    """The wire, without manners."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self.reader = FrameReader()
        self.number = 0
        self.replies: dict[int, Any] = {}

    async def hello(self, token: str = "", on_behalf: str = "") -> None:
        reply = await self.ask(client_hello("test", now().wall_ms, token=token, on_behalf=on_behalf))
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
        """Return True if the node disconnects ``within`` seconds."""
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
        assert isinstance(reply, m.TopicReply), reply
        return reply.topic

    async def session(self) -> ProducerId:
        reply = await self.ask(m.OpenSession())
        assert isinstance(reply, m.OpenSessionReply), reply
        return reply.producer_id

    async def ack(self, *items: SignedNamed) -> Any:
        return await self.ask(m.AckRequest(signed_items(items)))


def publish(topic: Topic, producer_id: ProducerId, first: int, *payloads: bytes) -> m.Publish:
    batch = build_batch(PartitionId(topic.id, 0), producer_id, first, WALL_MS, [Message(p) for p in payloads])
    return m.Publish(batch, signature=signed_session(producer_id))


def signed_session(producer_id: ProducerId) -> bytes:
    """Return the signed session of any producer id."""
    return sign_session(producer_id, secret=SECRET, key=key_number(SECRET))


def fetch(most: int = 100, wait: float = 0.0, hold_time: float = 4.0, size: int = 1 << 20) -> m.Fetch:
    return m.Fetch(("jobs",), "g", most, size, 1, wait, hold_time, 0.0, idle=True)


def payloads(reply: Any) -> list[bytes]:
    assert isinstance(reply, m.FetchReply), reply
    return [message.payload for part in reply.slices for message in part.messages()]

"""A client without manners: the wire itself on a blocking socket, with none of the client library's checks."""

from __future__ import annotations

import socket
import time
from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.types import PartitionId, ProducerId, Topic
from quorumq.wire.batch import Message, build_batch
from quorumq.wire.codec import decode_message, encode_message, signed_items
from quorumq.wire.frames import FrameReader
from quorumq.wire.hello import client_hello
from quorumq.wire.values import SignedNamed
from tests.core.steps import outcomes
from tests.patience import PATIENCE_S

SEALS: dict[ProducerId, bytes] = {}
"""Signatures of the sessions that were opened here."""


class Raw:
    """One connection. ``hello`` False leaves HELLO to the test; ``source`` is an address of this machine."""

    def __init__(
        self, address: str, *, hello: bool = True, timeout: float = PATIENCE_S, source: str = ""
    ) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout, (source, 0) if source else None)
        self.reader = FrameReader()
        self.number = 0
        self.replies: dict[int, Any] = {}
        if hello:
            reply = self.ask(client_hello("raw", int(time.time() * 1000)))
            assert isinstance(reply, m.Welcome), reply

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, message: Any) -> int:
        """Send one request; its number."""
        self.number += 1
        self.sock.sendall(b"".join(encode_message(message, request=self.number)))
        return self.number

    def receive(self, number: int) -> Any:
        """The reply to request ``number``; replies to others are kept. ConnectionError if it was closed."""
        while number not in self.replies:
            frame = self.reader.next_frame()
            if frame is None:
                data = self.sock.recv(1 << 18)
                if not data:
                    raise ConnectionResetError("closed by the node")
                self.reader.feed(data)
                continue
            decoded = decode_message(frame)
            self.replies[decoded.request] = decoded.message
        return self.replies.pop(number)

    def ask(self, message: Any) -> Any:
        return self.receive(self.send(message))

    def is_closed(self) -> bool:
        """Return True if the node closes the connection; earlier bytes are thrown away."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    # ------------------------------------------------------------------------ conveniences

    def topic(self, name: str, **settings: Any) -> Topic:
        reply = self.ask(m.CreateTopic(name, **settings))
        assert isinstance(reply, m.TopicReply), reply
        return reply.topic

    def session(self) -> ProducerId:
        reply = self.ask(m.OpenSession())
        assert isinstance(reply, m.OpenSessionReply), reply
        SEALS[reply.producer_id] = reply.signature
        return reply.producer_id

    def publish(
        self, topic: Topic, producer_id: ProducerId, first: int, payloads: list[bytes], partition: int = 0
    ) -> Any:
        return self.ask(publish(topic, producer_id, first, payloads, partition))

    def fetch(self, topic: str, group: str, most: int = 1000, hold_time: float = 2.0, **more: Any) -> Any:
        settings: dict[str, Any] = {"max_bytes": 1 << 20, "max_wait": 0.0, **more}
        return self.ask(
            m.Fetch(
                (topic,),
                group,
                most,
                settings["max_bytes"],
                1,
                settings["max_wait"],
                hold_time,
                time.monotonic(),
                idle=True,
            )
        )

    def take(self, topic: str, group: str, count: int, hold_time: float = 2.0) -> list[SignedNamed]:
        """The receipts of ``count`` messages, with as many FETCHes as needed.

        A FETCH brings nothing, or is refused, if replicas are late or in quarantine, or a hold is not over yet.
        """
        taken: list[SignedNamed] = []
        came, end = 0, time.monotonic() + PATIENCE_S
        while came < count:
            reply = self.fetch(topic, group, count - came, hold_time, max_wait=min(0.1 * hold_time, 1.0))
            if isinstance(reply, m.FetchReply):
                taken += receipts(reply)
                came += size_of(reply)
            assert came >= count or time.monotonic() < end, f"{came} of {count} have come: {reply}"
        return taken

    def drain(self, topic: str, group: str, count: int) -> None:
        """Take and ack ``count`` messages, and see that no other is there."""
        remaining = count
        while remaining:
            reply = self.fetch(topic, group, max_wait=0.2)
            if isinstance(reply, m.FetchReply) and size_of(reply):
                assert set(outcomes(self.ack(*receipts(reply)))) == {"acked"}
                remaining -= size_of(reply)
            assert remaining >= 0, f"{count - remaining} messages, and not {count}"

    def ack(self, *items: SignedNamed) -> Any:
        return self.ask(m.AckRequest(signed_items(items)))


def publish(
    topic: Topic, producer_id: ProducerId, first: int, payloads: list[bytes], partition: int = 0
) -> m.Publish:
    where = PartitionId(topic.id, partition)
    messages = [Message(payload) for payload in payloads]
    batch = build_batch(where, producer_id, first, int(time.time() * 1000), messages)
    return m.Publish(batch, signature=SEALS.get(producer_id, b""))


def receipts(reply: Any) -> list[SignedNamed]:
    assert isinstance(reply, m.FetchReply), reply
    return [SignedNamed(delivery.signed) for part in reply.slices for delivery in part.deliveries]


def size_of(reply: Any) -> int:
    """Return the number of messages in a Fetched."""
    assert isinstance(reply, m.FetchReply), reply
    return sum(part.header.size for part in reply.slices)

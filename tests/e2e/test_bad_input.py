"""Bytes and habits of strangers: they are disconnected or cost little, and no other client notices."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

import pytest

from quorumq.core import messages as m
from quorumq.core.values.limits import MIB
from quorumq.lab.local import LocalCluster
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import MAGIC
from quorumq.wire.hello import client_hello
from tests.e2e.conftest import rss_of
from tests.e2e.raw import Raw

RSS_GROWTH_MAX_MIB = 64


@pytest.fixture
def bystander(shared: LocalCluster) -> Iterator[Raw]:
    """Another client's connection, which must go on as if nothing had happened."""
    with Raw(shared.addresses[0]) as other:
        topic = other.topic("bystander")
        producer_id = other.session()
        yield other
        assert isinstance(other.publish(topic, producer_id, 0, [b"still here"]), m.PublishReply)
        for name in shared.nodes:
            assert shared.running(name)


def prefix(header: int, body: int) -> bytes:
    return MAGIC + struct.pack(">II", header, body)


HELLO = b"".join(encode_message(client_hello("raw", 0), request=1))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(random.Random(7).randbytes(4096), id="noise"),
        pytest.param(prefix(0xFFFF_FFFF, 0), id="4 GiB header"),
        pytest.param(prefix(10, 0xFFFF_FFFF), id="4 GiB body"),
        pytest.param(prefix(4, 0) + b"\xff\xff\xff\xff", id="no cbor"),
        pytest.param(HELLO + prefix(1, 0xFFFF_FFFF), id="4 GiB after hello"),
        pytest.param(HELLO + prefix(3, 0) + b"\x83\x00\x00", id="short header after hello"),
        pytest.param(b"".join(encode_message(m.StatusRequest(), request=1)), id="a request before hello"),
    ],
)
def test_unknown_bytes_close_their_own_connection(shared: LocalCluster, bystander: Raw, data: bytes) -> None:
    with Raw(shared.addresses[0], hello=False) as stranger:
        stranger.sock.sendall(data)
        assert stranger.is_closed()


# ------------------------------------------------------------------------------- memory


def grown(shared: LocalCluster, before: dict[str, int]) -> dict[str, float]:
    return {name: (rss_of(shared.pid(name) or 0) - was) / MIB for name, was in before.items()}


def sizes(shared: LocalCluster) -> dict[str, int]:
    return {name: rss_of(shared.pid(name) or 0) for name in shared.nodes}


def filled(raw: Raw, name: str, mib: int) -> None:
    """A topic with ``mib`` MiB in messages of 256 KiB."""
    topic = raw.topic(name)
    producer_id = raw.session()
    for first in range(0, 4 * mib, 8):
        reply = raw.publish(topic, producer_id, first, [bytes(256 * 1024)] * 8)
        assert isinstance(reply, m.PublishReply), reply


def test_a_client_that_sends_and_never_reads_costs_little(shared: LocalCluster, bystander: Raw) -> None:
    with Raw(shared.addresses[0]) as raw:
        filled(raw, "unread", 24)
    before = sizes(shared)
    rude = [Raw(shared.addresses[0]) for _ in range(4)]
    try:
        # Each request asks for megabytes; the client reads no answers and sends until the node accepts no more.
        frame = b"".join(
            encode_message(m.PeekRequest("unread", 0, "", "all", (0, 0), 1000, True), request=7)
            + encode_message(
                m.Fetch(("unread",), "g", 1000, 8 * MIB, 1, 0.0, 0.2, time.monotonic()), request=8
            )
        )
        end = time.monotonic() + 4
        while time.monotonic() < end:
            for raw in rude:
                raw.sock.setblocking(False)
                try:
                    while raw.sock.send(frame * 50):
                        pass
                except OSError:  # full, or hung up on: either is an answer
                    pass
            now = grown(shared, before)
            assert max(now.values()) < RSS_GROWTH_MAX_MIB, now
            time.sleep(0.05)  # the nodes need the cores, too
        with Raw(shared.addresses[0]) as polite:
            assert isinstance(polite.ask(m.StatusRequest()), m.StatusReply), "the others are served meanwhile"
    finally:
        for raw in rude:
            raw.sock.close()


def test_a_thousand_idle_connections_cost_little(shared: LocalCluster, bystander: Raw) -> None:
    before = sizes(shared)
    idle: list[Raw] = []
    try:
        for _ in range(1000):
            idle.append(Raw(shared.addresses[1]))
        assert max(grown(shared, before).values()) < RSS_GROWTH_MAX_MIB
        with Raw(shared.addresses[1]) as raw:
            assert isinstance(raw.ask(m.Metadata()), m.MetadataReply), "one more is served beside them"
        assert isinstance(idle[500].ask(m.Metadata()), m.MetadataReply)
    finally:
        for raw in idle:
            raw.sock.close()

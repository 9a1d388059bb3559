"""One connection: a request was sent or not, which decides between NotStored and OutcomeUnknown."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from quorumq.client.transport.connection import INFLIGHT_MAX, Connection, Lost, open_connection
from quorumq.client.transport.tls import Authorities, TlsStream
from quorumq.core import messages as m
from quorumq.core.values.types import Incarnation, ProducerId
from quorumq.wire.codec import Decoded, decode_message, encode_message
from quorumq.wire.frames import FrameReader
from quorumq.wire.tls import Tunnel
from tests.node.certificates import Files

PRODUCER_ID = ProducerId("a", 1, 2, 3)
WELCOME = m.Welcome(1, "cluster", "a", Incarnation(1, 2), 3, 4, 5, ())


class Node:
    """The other end, by hand: takes and answers when a test says so."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.reader = FrameReader()

    async def take(self) -> Decoded:
        while (frame := self.reader.next_frame()) is None:
            data = await self.stream.receive_some(65536)
            assert data, "the client closed"
            self.reader.feed(bytes(data))
        return decode_message(frame)

    async def answer(self, reply: m.ClientReply, number: int) -> None:
        await self.stream.send_all(b"".join(encode_message(reply, request=number)))


def tls_ends(one: trio.SocketStream, other: trio.SocketStream) -> tuple[TlsStream, trio.SSLStream[Any]]:
    """A client's end in TLS, and a node's, which is not ours."""
    authority = trustme.CA()
    here, there = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(here)
    authority.issue_cert("node").configure_cert(there)
    return TlsStream(one, here, "node"), trio.SSLStream(other, there, server_side=True, https_compatible=True)


@asynccontextmanager
async def started(
    *, lockstep: bool = False, sockets: bool = False, tls: bool = False
) -> AsyncIterator[tuple[trio.Nursery, Connection, Node]]:
    pair: tuple[trio.abc.Stream, trio.abc.Stream] = (
        trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
    )
    if sockets:
        one, other = trio.socket.socketpair()
        pair = trio.SocketStream(one), trio.SocketStream(other)
        if tls:
            pair = tls_ends(*pair)
    ours, theirs = pair
    node = Node(theirs)

    async def dial(address: str) -> trio.abc.Stream:
        if isinstance(ours, TlsStream):
            await ours.handshake()
        return ours

    async def welcome() -> None:
        await node.answer(WELCOME, (await node.take()).request)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(welcome)
        connection = await open_connection("a:1", dial=dial, cluster_id="", wall_ms=0, timeout=5.0)
        nursery.start_soon(connection.run)
        yield nursery, connection, node
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["close", "loss", "garbage"])
async def test_a_connection_ends_by_itself(how: str) -> None:
    async with started() as (_, connection, node):
        if how == "close":
            connection.close()
        elif how == "loss":
            await node.stream.aclose()
        else:
            await node.stream.send_all(bytes(100))
        with trio.fail_after(1):
            await connection.ended.wait()


async def test_a_request_that_was_never_written_is_not_sent_later() -> None:
    async with started(lockstep=True) as (nursery, connection, node):
        received: dict[str, Lost] = {}

        async def ask(name: str, timeout: float) -> None:
            with pytest.raises(Lost) as caught:
                await connection.ask(m.Metadata((name,)), timeout=timeout)
            received[name] = caught.value

        nursery.start_soon(ask, "begun", 5.0)
        await trio.testing.wait_all_tasks_blocked()  # the node reads nothing: the write stands
        nursery.start_soon(ask, "timed out", 0.5)
        nursery.start_soon(ask, "lost", 10.0)
        await trio.sleep(0.6)
        assert not received["timed out"].sent
        first = await node.take()
        second = await node.take()
        asked = [message.message.topics for message in (first, second)]  # type: ignore[union-attr]
        assert asked == [("begun",), ("lost",)], "the one in between was withdrawn"
        connection.close()
        await connection.ended.wait()
        assert received["begun"].sent
        assert received["lost"].sent
        with pytest.raises(Lost) as caught:
            await connection.ask(m.StatusRequest(), timeout=1.0)
        assert not caught.value.sent


async def test_a_socket_is_given_a_request_at_once_and_the_rest_as_it_takes_it() -> None:
    async with started(sockets=True) as (_, connection, node):
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(node.stream, trio.SocketStream)
        asked = [connection.post(m.Metadata(("first",)))]
        assert asked[0].sent
        node.reader.feed(os.read(node.stream.socket.fileno(), 65536))
        assert (await node.take()).request == asked[0].number, "and no task had its turn before it came"
        names = tuple(f"{number:0200}" for number in range(100))
        asked = [connection.post(m.Metadata(names)) for _ in range(200)]
        sent = [waiter.sent for waiter in asked]
        assert sent == sorted(sent, reverse=True)
        assert sent[0]
        assert not sent[-1], "more than a socket takes"
        assert [(await node.take()).request for _ in asked] == [waiter.number for waiter in asked]
        await trio.testing.wait_all_tasks_blocked()
        connection.post(m.Metadata(names))
        await node.stream.aclose()
        await connection.ended.wait()
        with pytest.raises(Lost):
            connection.post(m.Metadata(names))


async def test_in_tls_a_socket_is_given_what_is_said_in_order_and_long_answers_arrive() -> None:
    async with started(sockets=True, tls=True) as (nursery, connection, node):
        await trio.testing.wait_all_tasks_blocked()
        names = tuple(f"{number:0200}" for number in range(100))
        asked = [connection.post(m.Metadata(names)) for _ in range(200)]
        sent = [waiter.sent for waiter in asked]
        assert sent == sorted(sent, reverse=True)
        assert sent[0], "no task had its turn"
        assert not sent[-1], "more than a socket takes"
        assert [(await node.take()).request for _ in asked] == [waiter.number for waiter in asked]
        answer = m.StatusReply({"text": "x" * 700_000})
        nursery.start_soon(node.answer, answer, connection._protocol._count + 1)
        assert await connection.ask(m.StatusRequest(), timeout=5.0) == answer
        nursery.start_soon(connection.finish)
        assert isinstance((await node.take()).message, m.StatusRequest)
        with pytest.raises(AssertionError, match="the client closed"):
            await node.take()
        await node.stream.aclose()
        await connection.ended.wait()


async def test_requests_queued_on_a_lost_connection_were_not_sent() -> None:
    async with started(lockstep=True) as (nursery, connection, node):
        received: dict[str, bool] = {}

        async def ask(name: str) -> None:
            with pytest.raises(Lost) as caught:
                await connection.ask(m.Metadata((name,)), timeout=10.0)
            received[name] = caught.value.sent

        for name in ("begun", "queued"):
            nursery.start_soon(ask, name)
            await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(node.stream)
        await connection.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert received == {"begun": True, "queued": False}


async def test_replies_find_who_asked_in_any_order_and_late_ones_are_orphans() -> None:
    async with started() as (nursery, connection, node):
        replies: dict[int, m.ClientReply] = {}
        orphans: list[m.ClientReply] = []

        async def ask(index: int) -> None:
            replies[index] = await connection.ask(m.StatusRequest(), timeout=5.0)

        for index in range(3):
            nursery.start_soon(ask, index)
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1.0):
            await connection.ask(
                m.StatusRequest(), timeout=5.0, orphan=lambda _, reply: orphans.append(reply)
            )
        numbers = [(await node.take()).request for _ in range(4)]
        for index in (3, 1, 0, 2):
            await node.answer(m.StatusReply({"n": index}), numbers[index])
        await trio.testing.wait_all_tasks_blocked()
        assert replies == {index: m.StatusReply({"n": index}) for index in range(3)}
        assert orphans == [m.StatusReply({"n": 3})]


class AtOnce(trio.abc.Stream):
    """A stream that, once ``reply`` is set, has its reader cancel ``scope`` and get ``reply`` in the same moment."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.reply = b""
        self.scope = trio.CancelScope()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self.stream.receive_some(max_bytes)
        if self.reply:
            self.scope.cancel()
        return data

    async def aclose(self) -> None:
        await self.stream.aclose()


async def test_a_reply_that_comes_with_the_cancellation_is_an_orphan() -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        node, stream = Node(theirs), AtOnce(ours)

        async def dial(address: str) -> trio.abc.Stream:
            return stream

        async def serve() -> None:
            await node.answer(WELCOME, (await node.take()).request)
            number = (await node.take()).request
            stream.reply = b"".join(encode_message(m.StatusReply({}), request=number))
            await node.stream.send_all(stream.reply)

        nursery.start_soon(serve)
        connection = await open_connection("a:1", dial=dial, cluster_id="", wall_ms=0, timeout=5.0)
        nursery.start_soon(connection.run)
        orphans: list[m.ClientReply] = []
        with stream.scope:
            await connection.ask(
                m.StatusRequest(), timeout=5.0, orphan=lambda _, reply: orphans.append(reply)
            )
        assert stream.scope.cancelled_caught
        assert orphans == [m.StatusReply({})]
        connection.close()


async def test_a_silent_node_loses_first_what_may_be_done_twice_and_then_everything() -> None:
    async with started() as (nursery, connection, _):
        received: dict[str, tuple[float, Lost, bool]] = {}

        async def ask(name: str, request: m.ClientRequest) -> None:
            with pytest.raises(Lost) as caught:
                await connection.ask(request, timeout=20.0)
            received[name] = (trio.current_time(), caught.value, bool(connection.lost))

        began = trio.current_time()
        nursery.start_soon(ask, "metadata", m.Metadata())
        nursery.start_soon(ask, "status", m.StatusRequest())
        await connection.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        at, lost, gone = received["metadata"]
        assert 0.5 < at - began < 0.9
        assert (lost.cause, lost.sent, gone) == ("no sign of life for 0.6 s", True, False)
        at, lost, gone = received["status"]
        assert 2.0 < at - began < 4.0
        assert (lost.sent, gone) == (True, True)


async def test_a_fetch_alone_is_in_no_hurry() -> None:
    async with started() as (nursery, connection, node):
        began = trio.current_time()
        nursery.start_soon(answer_pings, node, [])
        request = m.Fetch(("t",), "g", 1, 1, 1, 3.0, 30.0, 0.0)
        with pytest.raises(Lost, match="no answer within 8 s"):
            await connection.ask(request, timeout=8.0)
        assert trio.current_time() - began == 8.0
        assert not connection.lost


async def answer_pings(node: Node, others: list[int]) -> None:
    """Give signs of life, and nothing else."""
    while True:
        decoded = await node.take()
        if decoded.message == m.ReleaseRequest(()):
            await node.answer(m.NotedReply(), decoded.request)
        else:
            others.append(decoded.request)


async def test_a_node_that_is_slow_and_alive_keeps_its_requests() -> None:
    async with started() as (nursery, connection, node):
        waiting: list[int] = []
        nursery.start_soon(answer_pings, node, waiting)

        async def answer_late() -> None:
            await trio.sleep(5.0)
            await node.answer(m.OpenSessionReply(PRODUCER_ID), waiting.pop())

        nursery.start_soon(answer_late)
        assert await connection.ask(m.OpenSession(), timeout=10.0) == m.OpenSessionReply(PRODUCER_ID)
        assert not connection.silent


async def test_a_client_that_stood_still_itself_does_not_blame_the_node() -> None:
    async with started() as (nursery, connection, node):
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)

        async def answer_after_a_pause() -> None:
            number = (await node.take()).request
            clock.jump(50.0)
            await node.answer(m.OpenSessionReply(PRODUCER_ID), number)

        nursery.start_soon(answer_after_a_pause)
        assert await connection.ask(m.OpenSession(), timeout=100.0) == m.OpenSessionReply(PRODUCER_ID)
        assert not connection.lost


async def test_each_request_has_its_own_time_to_the_moment_however_short() -> None:
    async with started() as (nursery, connection, node):
        over: dict[float, float] = {}

        async def ask(timeout: float) -> None:
            began = trio.current_time()
            with pytest.raises(Lost, match="no answer within") as caught:
                await connection.ask(m.StatusRequest(), timeout=timeout)
            assert caught.value.sent
            over[timeout] = trio.current_time() - began

        nursery.start_soon(answer_pings, node, [])
        times = (0.05, 0.2, 0.25, 0.31, 0.33, 1.0, 1.07)
        for timeout in times:
            nursery.start_soon(ask, timeout)
            await trio.sleep(0.013)
        await trio.sleep(2.0)
        assert over == {timeout: pytest.approx(timeout) for timeout in times}


async def test_requests_under_way_are_bounded() -> None:
    async with started() as (nursery, connection, node):
        for _ in range(INFLIGHT_MAX + 10):
            nursery.start_soon(lambda: connection.ask(m.StatusRequest(), timeout=60.0))
        await trio.testing.wait_all_tasks_blocked()
        assert len(connection._waiters) == INFLIGHT_MAX
        for _ in range(INFLIGHT_MAX + 10):
            await node.answer(m.StatusReply({}), (await node.take()).request)
        await trio.testing.wait_all_tasks_blocked()
        assert not connection._waiters


async def test_bytes_that_are_not_the_protocol_end_it() -> None:
    async with started() as (nursery, connection, node):

        async def garbage() -> None:
            await node.take()
            await node.stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        nursery.start_soon(garbage)
        with pytest.raises(Lost, match="HTTP"):
            await connection.ask(m.StatusRequest(), timeout=5.0)


async def test_a_node_that_says_nothing_to_hello_is_left() -> None:
    ours, _ = trio.testing.memory_stream_pair()

    async def dial(address: str) -> trio.abc.Stream:
        if address == "b:1":
            await trio.sleep_forever()
        return ours

    for address, cause in (
        ("a:1", "no answer to HELLO within 2 s: it accepts"),
        ("b:1", "no connection within 2 s"),
    ):
        with pytest.raises(Lost, match=cause):
            await open_connection(address, dial=dial, cluster_id="", wall_ms=0, timeout=2.0)


def test_authorities_that_are_renewed_count_for_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that ran on through a change of authorities lost all nodes with their next certificates."""
    old, new = Files(tmp_path), Files(tmp_path, "new")
    authorities = Authorities(old.ca)
    first = authorities.context()
    assert authorities.context() is first
    for data, is_new, text in (
        (b"half a cert", False, "stay those of before"),
        (Path(new.ca).read_bytes(), True, "count for new connections"),
    ):
        Path(old.ca).write_bytes(data)
        caplog.clear()
        assert (authorities.context() is not first) == is_new
        authorities.context()
        assert [text in record.getMessage() for record in caplog.records] == [True]
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    new.authority.issue_cert("node").configure_cert(served)
    above, below = Tunnel(authorities.context(), host="node"), Tunnel(served, server_side=True)
    data = b""
    while not above.handshake(data):
        below.handshake(above.unsent())
        data = below.unsent()

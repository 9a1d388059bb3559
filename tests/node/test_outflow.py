"""Outflow: every byte once, in order, however little the connection takes at a time."""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorumq.node.transport import (
    RECEIVE_BYTES,
    SENT_PER_TURN,
    ConnectionLost,
    Outflow,
    SocketTransport,
    connect,
    listen,
)
from sim.shell.memory import MemoryTransport, pair
from tests.node.memory import Quiet
from tests.virtual import in_real_time


class Meagre(MemoryTransport):
    """Takes as many bytes at a time as the test says, and then none until it is waited for."""

    def __init__(self, takes: list[int]) -> None:
        super().__init__()
        self.takes = takes
        self.got = bytearray()

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        most = self.takes.pop() if self.takes else 1 << 30
        data = b"".join(buffers)[:most]
        self.got += data
        return len(data)

    def fileno(self) -> int:
        return -1

    def receive_now(self, most: int = 0) -> bytes | None:
        raise NotImplementedError

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()


@given(
    st.lists(st.lists(st.binary(max_size=20), max_size=6), max_size=10),
    st.lists(st.integers(0, 30), max_size=20),
    st.lists(st.booleans(), min_size=10, max_size=10),
)
async def test_every_byte_once_and_in_order(
    frames: list[list[bytes]], takes: list[int], pauses: list[bool]
) -> None:
    transport = Meagre(takes)
    drained: list[int] = []
    async with trio.open_nursery() as nursery:
        out = Outflow(
            transport, nursery, 1.0, Quiet(), pytest.fail, lambda: drained.append(len(transport.got))
        )
        for chunks, pause in zip(frames, pauses, strict=False):
            before = out.waiting
            out.put(chunks)
            assert out.waiting == before + sum(map(len, chunks))
            out.flush()
            if pause:
                await trio.sleep(0)
        while out.draining:
            await trio.sleep(0)
        everything = b"".join(chunk for chunks in frames for chunk in chunks)
        assert bytes(transport.got) == everything
        assert (out.waiting, out.sent) == (0, len(everything))
        for at in drained:
            assert at <= len(everything)


async def test_a_large_frame_goes_in_chunks_and_others_have_their_turn() -> None:
    transport = Meagre([])
    data = bytes(range(256)) * (SENT_PER_TURN // 64)
    async with trio.open_nursery() as nursery:
        out = Outflow(transport, nursery, 1.0, Quiet(), pytest.fail)
        out.put([b"head", data])
        out.flush()
        turns = [len(transport.got)]
        while out.draining:
            await trio.sleep(0)
            turns.append(len(transport.got))
    assert bytes(transport.got) == b"head" + data
    assert all(after - before <= SENT_PER_TURN for before, after in zip([0, *turns], turns, strict=False))
    assert turns[0] == SENT_PER_TURN


async def test_a_connection_that_takes_nothing_is_given_up_after_its_time() -> None:
    lost: list[tuple[float, str]] = []
    ours, _ = pair(capacity=10)
    async with trio.open_nursery() as nursery:
        out = Outflow(ours, nursery, 3.0, Quiet(), lambda reason: lost.append((trio.current_time(), reason)))
        out.put([b"x" * 100])
        out.flush()
        assert out.draining
    ((at, reason),) = lost
    assert at == 3.0
    assert "90" in reason
    assert out.waiting == 0


async def test_nothing_is_sent_once_the_node_is_quiet() -> None:
    quiet = Quiet()
    lost: list[str] = []
    ours, theirs = pair(capacity=10)
    async with trio.open_nursery() as nursery:
        out = Outflow(ours, nursery, 3.0, quiet, lost.append)
        out.put([b"x" * 30])
        out.flush()
        quiet.silent = True
        await theirs.receive()  # makes room
    assert not theirs.received
    assert len(lost) == 1


@in_real_time
async def test_real_sockets_carry_bytes_both_ways_and_end() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        listener.listen(1)
        ours = await connect("127.0.0.1", listener.getsockname()[1], 20.0, 20.0)
        await trio.lowlevel.wait_readable(listener)
        theirs = SocketTransport(listener.accept()[0])
        data = bytes(range(256)) * 40_000
        got = bytearray()

        async def read() -> None:
            while chunk := await theirs.receive():
                got.extend(chunk)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            async with trio.open_nursery() as senders:
                out = Outflow(ours, senders, 20.0, Quiet(), pytest.fail)
                out.put([data[:7], memoryview(data)[7:]])
                out.flush()
                assert out.draining, "more than a socket takes at once"
            ours.close()
        assert bytes(got) == data
        theirs.close()
        with pytest.raises(ConnectionLost):
            theirs.send_some([memoryview(b"x")])
        with pytest.raises(ConnectionLost):
            await theirs.receive()
    with pytest.raises(ConnectionRefusedError):
        await connect("127.0.0.1", 1, 20.0)


class Resolver(trio.abc.HostnameResolver):
    """Knows one host, with several addresses."""

    def __init__(self, *locations: tuple[str, int]) -> None:
        self.locations = locations

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", location) for location in self.locations]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise AssertionError("nobody asks for names")


@in_real_time
async def test_an_address_that_swallows_what_is_sent_keeps_no_one_from_the_next() -> None:
    (full,), (good,) = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    with full, good, contextlib.ExitStack() as stack:
        full.listen(0)
        good.listen()
        for _ in range(4):  # connections beyond the backlog are not even refused
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        trio.socket.set_custom_hostname_resolver(Resolver(full.getsockname(), good.getsockname()))
        transport = await connect("node.example", 7401, 20.0)
        await trio.lowlevel.wait_readable(good)
        good.accept()[0].close()
        assert await transport.receive() == b""
        transport.close()


@in_real_time
async def test_closing_wakes_the_reader() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        listener.listen(1)
        ours = await connect("127.0.0.1", listener.getsockname()[1], 20.0)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                with pytest.raises(ConnectionLost):
                    await ours.receive()

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            ours.close()


def test_small_chunks_are_received_without_a_buffer_each() -> None:
    """Cut to a chunk's size in place, such buffers leave holes in the process's memory between chunks that stay."""
    ours, theirs = socket.socketpair()
    transport = SocketTransport(ours)
    with ours, theirs:
        tracemalloc.start()
        try:
            for chunk in (b"a" * 100, b"b" * 50):
                theirs.send(chunk)
                assert transport.receive_now() == chunk
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        theirs.send(b"c" * RECEIVE_BYTES)
        assert transport.receive_now(2 * RECEIVE_BYTES) == b"c" * RECEIVE_BYTES
    assert peak < RECEIVE_BYTES

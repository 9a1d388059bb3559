"""A connection as the node sees it: take bytes now, or say when there is room again.

Why not trio's streams: a reply and the messages of a quorum round leave from inside one synchronous step of the
node, and most of the time the socket takes them at once. Handing each to a task that awaits `send_all` would
cost a task switch or two per message, which is a fifth of a round trip on one machine.

A transport never holds bytes: `Outflow` does, counts them, and keeps every bound on memory.
"""

from __future__ import annotations

import errno
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import trio

RECEIVE_BYTES: Final = 64 * 1024
"""Asked of a connection at once. Nothing is allocated while it is silent."""

RECEIVE_BYTES_MAX: Final = 256 * 1024
"""Asked of a connection at once in the middle of a larger frame. Less takes more turns of the loop for one frame; with
more, others wait longer if many connections send such frames."""

BUFFERS_PER_SEND: Final = 512
"""Well below IOV_MAX."""

SENT_PER_TURN: Final = 512 * 1024
"""Bytes that a connection gives to the system in one turn of the loop: each is copied. Others have their turn then."""


_received: Final = memoryview(bytearray(RECEIVE_BYTES))
"""Receives for all connections, one after another. A buffer of its own for each piece would be cut to the piece's size
in place: the C library leaves holes between pieces that stay, which doubled the growth of a process."""


class ConnectionLost(Exception):
    """The other side is gone, or the connection was closed. Ordinary."""


class Transport(Protocol):
    """A connected stream of bytes. Every method but `close` may raise `ConnectionLost`."""

    @property
    def names(self) -> frozenset[str]:
        """Names in the certificate of the other side."""

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        """Send a prefix of ``buffers`` without waiting. Returns its number of bytes; 0 when there is no room."""

    async def wait_sendable(self) -> None:
        """Return when `send_some` may have room."""

    async def receive(self, most: int = RECEIVE_BYTES) -> bytes:
        """Return the next bytes, about ``most`` of them; b"" at the end of the stream."""

    def fileno(self) -> int:
        """Return the descriptor that is readable if `receive_now` has data; -1 if only `receive` can be called."""

    def receive_now(self, most: int = RECEIVE_BYTES) -> bytes | None:
        """Receive without waiting: None if nothing is there."""

    def hung_up(self) -> bool:
        """Return True if the other side is known to be gone. Bytes that it sent before do not matter."""

    def close(self) -> None:
        """Hang up. May be called twice; wakes the tasks that wait here with `ConnectionLost`."""


class SocketTransport:
    """A TCP socket.

    Args:
        sock: connected; it belongs to the transport from now on.
        user_timeout: seconds after which unacknowledged bytes end the connection; None leaves it to the system.
    """

    def __init__(self, sock: socket.socket, user_timeout: float | None = None) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if user_timeout is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout * 1000))
        self._sock = sock
        self._closed = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset()

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        if self._closed:
            raise ConnectionLost("closed")
        try:
            return self._sock.send(buffers[0]) if len(buffers) == 1 else self._sock.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None

    async def wait_sendable(self) -> None:
        await self._wait(trio.lowlevel.wait_writable)

    async def receive(self, most: int = RECEIVE_BYTES) -> bytes:
        while True:
            # Waiting first makes a connection with much to say take turns with the others.
            await self._wait(trio.lowlevel.wait_readable)
            data = self.receive_now(most)
            if data is not None:
                return data

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive_now(self, most: int = RECEIVE_BYTES) -> bytes | None:
        try:
            if most > RECEIVE_BYTES:
                return self._sock.recv(most)
            return bytes(_received[: self._sock.recv_into(_received, most)])
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None

    def hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self._sock, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    async def _wait(self, wait: Callable[[socket.socket], object]) -> None:
        if self._closed:
            raise ConnectionLost("closed")
        try:
            await wait(self._sock)  # type: ignore[misc]
        except (trio.ClosedResourceError, OSError):
            raise ConnectionLost("closed") from None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def first_bytes(views: Sequence[memoryview], most: int) -> list[memoryview]:
    """Return the first ``most`` bytes of these."""
    first: list[memoryview] = []
    for view in views:
        if most <= 0:
            break
        first.append(view[:most])
        most -= view.nbytes
    return first


class Quiet(Protocol):
    """Node that may not send anything any more, from a moment on.

    Attributes:
        silent: True from that moment on.
    """

    silent: bool


@dataclass(slots=True, eq=False)
class Outflow:
    """The bytes that wait in front of a transport, in order.

    `put` and then `flush`: bytes that the transport does not take at once are sent by a task, started for that and gone
    when it is done. A connection that takes nothing for ``stall_timeout`` seconds is ended.
    """

    transport: Transport
    nursery: trio.Nursery  # for the task
    stall_timeout: float  # seconds
    quiet: Quiet  # looked at before every send; the connection is over once that is silent
    on_lost: Callable[[str], None]  # called once, from `flush` or from the task, when the connection is lost
    on_drained: Callable[[], None] | None = None  # called by the task when nothing is left
    waiting: int = 0  # bytes put and not sent
    sent: int = 0  # bytes sent since the beginning
    draining: bool = False  # the task runs, so the transport had no room
    _buffers: deque[memoryview] = field(default_factory=deque)
    _lost: bool = False

    def put(self, chunks: Sequence[bytes | memoryview]) -> None:
        for chunk in chunks:
            view = memoryview(chunk)
            if view.nbytes:
                self._buffers.append(view)
                self.waiting += view.nbytes

    def flush(self) -> None:
        """Send the bytes that the transport takes now; the rest follows by itself."""
        if self.draining or self._lost or not self.waiting:
            return
        try:
            self._send()
        except ConnectionLost as lost:
            self._lose(str(lost))
            return
        if self.waiting:
            self.draining = True
            self.nursery.start_soon(self._drain)

    def _send(self) -> int:
        """Send until the transport takes no more, or this turn is over. Returns the number of bytes."""
        if self.quiet.silent:
            raise ConnectionLost("the node has stopped")
        total = 0
        buffers = self._buffers
        while buffers and total < SENT_PER_TURN:
            views = list(islice(buffers, BUFFERS_PER_SEND))
            if self.waiting > SENT_PER_TURN:
                views = first_bytes(views, SENT_PER_TURN - total)
            taken = remaining = self.transport.send_some(views)
            total += taken
            self.sent += taken
            self.waiting -= taken
            if not self.waiting:  # mostly
                buffers.clear()
                break
            asked = sum(view.nbytes for view in views)
            while remaining and remaining >= buffers[0].nbytes:
                remaining -= buffers.popleft().nbytes
            if remaining:
                buffers[0] = buffers[0][remaining:]
            if taken < asked:
                break
        return total

    async def _drain(self) -> None:
        try:
            while self.waiting and not self._lost:
                with trio.move_on_after(self.stall_timeout) as stalled:
                    await self.transport.wait_sendable()
                if stalled.cancelled_caught:
                    raise ConnectionLost(
                        f"took no bytes for {self.stall_timeout:g} s, {self.waiting} are waiting"
                    )
                self._send()
        except ConnectionLost as lost:
            self._lose(str(lost))
            return
        finally:
            self.draining = False
        if self.on_drained is not None and not self._lost:
            self.on_drained()

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self.drop()
            self.on_lost(reason)

    def drop(self) -> None:
        """Drop the bytes that wait; nothing is sent from now on."""
        self._lost = True
        self._buffers.clear()
        self.waiting = 0


async def connect(host: str, port: int, timeout: float, user_timeout: float | None = None) -> SocketTransport:
    """Dial a TCP address.

    Args:
        host: a name or an address; if the name has several addresses, the first that answers counts.
        timeout: seconds for everything.
        user_timeout: see `SocketTransport`.

    Raises:
        OSError: no node answers; TimeoutError if that took too long.
    """
    with trio.move_on_after(timeout):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except UnicodeError as error:
            raise OSError(f"{host!r} is not the name of a host: {error}") from None
        except OSError as error:
            if isinstance(error.__cause__, BaseExceptionGroup):  # one for each of its addresses
                raise error.__cause__.exceptions[0] from None
            raise
        return SocketTransport(socket.socket(fileno=stream.socket.detach()), user_timeout)
    raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout:g} s")


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to every address of ``host``, to call `socket.listen` on; OSError if one is taken."""
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            sock = socket.socket(family, kind, protocol)
            bound.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.setblocking(False)
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound

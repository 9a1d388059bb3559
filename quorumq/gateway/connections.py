"""Connections of HTTP clients: bounded in number, closed as soon as their clients close them, and of known users."""

from __future__ import annotations

import logging
import resource
import socket
from collections import Counter
from typing import Any, Final

import h11
import hypercorn.protocol
import hypercorn.trio.run
import trio
from hypercorn.events import Closed, Event
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer

from quorumq.gateway.requests import BODY_BYTES_MAX, length_of
from quorumq.wire.frames import MAGIC

CONNECTIONS_MAX: Final = 10_000
"""Connections of clients at once, some 35 KB each while they are idle."""

OTHER_FILES: Final = 1_000
"""Files for everything else: 9 to each node for each client of the cluster."""

ADDRESS_SHARE: Final = 2
"""Divisor of all connections: one address may have that share of them."""

NO_NODE: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"
"""Answer to a client of nodes. If it had none it would wait, as its first message may begin a line of HTTP."""

log = logging.getLogger("quorumq.gateway")


def file_limit() -> int:
    """Take as many files as `CONNECTIONS_MAX` needs, if the system gives them; return how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS_MAX + OTHER_FILES
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return needed if soft == resource.RLIM_INFINITY else soft


class Connections:
    """Number of connections by address.

    Args:
        files: files that the process may have open.
    """

    def __init__(self, files: int) -> None:
        self.most = min(CONNECTIONS_MAX, max(files - OTHER_FILES, files // 2))
        self.by_address: Counter[str] = Counter()
        self.ending = trio.Lock()
        self._silent: dict[trio.CancelScope, None] = {}
        self._stopped = False

    def enter(self, address: str) -> bool:
        """Count a connection; return False if there are too many."""
        if self.by_address.total() >= self.most or self.by_address[address] >= self.most // ADDRESS_SHARE:
            return False
        self.by_address[address] += 1
        return True

    def release(self, address: str) -> None:
        """Count a connection that has ended."""
        self.by_address[address] -= 1
        if not self.by_address[address]:
            del self.by_address[address]

    async def first_byte(self, stream: trio.SocketStream, seconds: float) -> bytes:
        """Return the first byte of a connection without consuming it, or b"" if none is received within ``seconds``.

        Why: hypercorn's tasks and parsers for a connection are five times the work of accepting it. Balancers that ask
        for ``/ready`` waited for those of all connections before theirs in the system's queue.
        """
        with trio.move_on_after(seconds) as scope:
            if self._stopped:
                return b""
            self._silent[scope] = None
            try:
                return await stream.socket.recv(1, socket.MSG_PEEK)
            except OSError:
                return b""
            finally:
                del self._silent[scope]
        return b""

    def stop(self) -> None:
        """End connections that have sent nothing: no answer is due."""
        self._stopped = True
        for scope in self._silent:
            scope.cancel()


class Connection(TCPServer):
    """A connection of hypercorn, which by itself has no bound, and waits after its client's end until it is idle."""

    async def run(self) -> None:
        """Serve a connection, or close it if there are too many."""
        connections: Connections = self.config.connections  # type: ignore[attr-defined]
        stream: Any = getattr(self.stream, "transport_stream", self.stream)
        try:
            address = str(stream.socket.getpeername()[0])
        except OSError:  # the client is gone
            address = ""
        if not connections.enter(address):
            return  # the listener closes it
        try:
            first = await connections.first_byte(stream, self.config.keep_alive_timeout)
            if first == MAGIC[:1] and stream is self.stream:  # without TLS
                await stream.receive_some()
                await stream.send_all(NO_NODE)
            elif first:
                self.config.shares.pay(None, serves=True)  # type: ignore[attr-defined]
                try:
                    await super().run()
                except* Exception:  # it would end the process
                    log.exception("a connection of %s met a bug, and is closed", address)
        finally:
            connections.release(address)

    async def protocol_send(self, event: Event) -> None:
        """Send a part of an answer, unless another task is closing the connection, as after a bad request behind it."""
        try:
            await super().protocol_send(event)
        except trio.BusyResourceError:
            await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        await super()._read_data()
        async with self.config.connections.ending:  # type: ignore[attr-defined]
            pass  # one after another: an end takes some eight passes of the loop, which else are long with many ends
        await self.idle_task.stop()  # else the file stays open until the keep-alive timeout


class Head(h11.Connection):
    """The protocol of a connection, by which a client waits in vain for leave to send a body that is too long.

    It is HTTP/1.1 alone. Under HTTP/2 and web sockets hypercorn's tasks raise what a client wants them to raise, and no
    limit here counts streams.
    """

    _is_too_long = False

    def receive_data(self, data: bytes) -> None:
        if not data or self.their_state is not h11.MUST_CLOSE:
            super().receive_data(data)

    def next_event(self) -> Any:
        if self.their_state is h11.MUST_CLOSE and self.trailing_data[0]:
            return h11.NEED_DATA  # bytes behind the last request, whose answer an error would cut off
        event = super().next_event()
        if isinstance(event, h11.Request):
            if event.http_version > b"1.1":
                raise h11.RemoteProtocolError("HTTP/1.1 is the only version", error_status_hint=505)
            if any(name == b"upgrade" for name, _ in event.headers):
                headers = [pair for pair in event.headers if pair[0] != b"upgrade"]
                event = h11.Request(
                    method=event.method, target=event.target, headers=headers, http_version=event.http_version
                )
            self._is_too_long = length_of(event.headers) > BODY_BYTES_MAX
        return event

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        return not self._is_too_long and super().they_are_waiting_for_100_continue


class Protocol(H11Protocol):
    """The protocol of hypercorn, which by itself sends ``100 Continue`` before its application sees a request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection = Head(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)


hypercorn.protocol.H11Protocol = Protocol  # type: ignore[misc, attr-defined]
hypercorn.trio.run.TCPServer = Connection  # type: ignore[misc, attr-defined]

"""HTTP for those that watch a node: /live, /ready and /metrics. It reads; nothing can be changed through it.

It has bounds of its own. If connections are slow, many or wrong here, they end, and no client or peer of the node
notices. If there are too many, the oldest ends: mute connections must not keep out the probe that decides on a restart.
"""

from __future__ import annotations

import socket
from typing import Final

import h11
import trio

from quorumq.node.metrics import CONTENT_TYPE, Metrics, not_ready
from quorumq.node.node import Node

CONNECTIONS_MAX: Final = 16
DEADLINE_S: Final = 5.0
"""Seconds from the first byte to the last one of the answer."""

HEADER_BYTES_MAX: Final = 8 * 1024
RECEIVE_BYTES: Final = 4 * 1024
TEXT: Final = "text/plain; charset=utf-8"

WAITS: Final = "waits to be added to its cluster: the log has the command"
WAITS_METRICS: Final = b"quorumq_up 1.0\nquorumq_ready 0.0\n"

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class HttpServer:
    """Serves one node. If that is None, it waits to be added."""

    def __init__(self, node: Node | None) -> None:
        self._node = node
        self._metrics = None if node is None else Metrics(node)
        self._open: dict[trio.CancelScope, None] = {}  # the oldest first

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serve until cancelled; the listening ``sockets`` are closed then."""
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            scope = trio.move_on_after(DEADLINE_S)
            self._open[scope] = None
            try:
                with scope:
                    await self._talk(stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                pass  # it has gone
            except Exception as error:  # it is about this answer alone
                if self._node is not None:
                    self._node.log.error("http_failed", reason=repr(error), exc_info=error)
            finally:
                self._open.pop(scope, None)

    async def _talk(self, stream: trio.SocketStream) -> None:
        """Take one request and give one answer."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        method = b""
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(RECEIVE_BYTES))
            if not isinstance(event, h11.Request):
                return  # it said goodbye
            method = event.method
            status, kind, body = await self._answer(method, event.target)
        except h11.RemoteProtocolError as error:
            status, kind, body = error.error_status_hint, TEXT, f"{error}\n".encode()
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")]
        if status == 405:
            headers.append(("Allow", "GET, HEAD"))
        parts = (
            h11.Response(status_code=status, headers=headers, reason=b""),
            h11.Data(data=b"" if method == b"HEAD" else body),
            h11.EndOfMessage(),
        )
        await stream.send_all(b"".join(connection.send(part) or b"" for part in parts))

    async def _answer(self, method: bytes, target: bytes) -> Answer:
        if method not in (b"GET", b"HEAD"):
            return 405, TEXT, b"only GET and HEAD\n"
        node = self._node
        match target.partition(b"?")[0]:
            case b"/live":
                failed = node is not None and node.has_failed
                return (503, TEXT, b"stopping\n") if failed else (200, TEXT, b"live\n")
            case b"/ready":
                reason = WAITS if node is None else not_ready(node)
                return (503, TEXT, f"{reason}\n".encode()) if reason else (200, TEXT, b"ready\n")
            case b"/metrics":
                page = WAITS_METRICS if self._metrics is None else await self._metrics.page()
                return 200, CONTENT_TYPE, page
        return 404, TEXT, b"there are /live, /ready and /metrics\n"

"""A client's end of a connection in TLS."""

from __future__ import annotations

import ssl
from typing import Final

import trio

from quorumq.wire.tls import Tunnel

RECEIVE_BYTES: Final = 64 * 1024


class TlsStream(trio.abc.HalfCloseableStream):
    """A stream in TLS over another one, which its owner may use itself for what is signed.

    Why not `trio.SSLStream`: it gives out one record of 16 KiB at a time, with a turn of the loop for each.

    ``inner`` is connected, and closed with this; ``host`` is the name that the other side has to have.
    """

    def __init__(self, inner: trio.abc.HalfCloseableStream, context: ssl.SSLContext, host: str) -> None:
        self.inner = inner
        self._tunnel = Tunnel(context, host=host)

    async def shake(self) -> None:
        """Do the handshake; ssl.SSLError or OSError if it fails."""
        data: bytes | bytearray = b""
        done = False
        while not done:
            done = self._tunnel.shake(data)
            await self.inner.send_all(self._tunnel.unsent())
            if not done and not (data := await self.inner.receive_some(RECEIVE_BYTES)):
                raise ConnectionError("the connection was closed during the TLS handshake")

    def signature(self, data: bytes) -> bytes:
        """Return the bytes that say ``data``; to be sent next."""
        view, signed = memoryview(data), []
        while view:
            view = view[self._tunnel.say((view,)) :]
            signed.append(self._tunnel.unsent())
        return signed[0] if len(signed) == 1 else b"".join(signed)

    def hear(self, data: bytes | bytearray) -> bytes:
        """Decrypt the bytes that were received next; b"" while a record is not complete."""
        return self._tunnel.hear(data) or b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(self.signature(bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive all that the next bytes say, also more than ``max_bytes``; b"" at the end of the stream below."""
        while data := await self.inner.receive_some(max_bytes):
            if said := self.hear(data):
                return said
        return b""

    async def aclose(self) -> None:
        await self.inner.aclose()

"""A client's end of a connection in TLS."""

from __future__ import annotations

import ssl
from typing import Final

import trio

from quorumq.client.transport.log import LOGGER
from quorumq.core.values.errors import UsageError
from quorumq.wire.tls import Tunnel, client_context, look_at

RECEIVE_BYTES: Final = 64 * 1024


class Authorities:
    """Authorities of the nodes' certificates, as their file has them when a connection begins.

    Args:
        ca: a PEM file.

    Raises:
        UsageError: it cannot be used.
    """

    def __init__(self, ca: str) -> None:
        self._ca = ca
        self._seen = look_at(ca)
        self._context = client_context(ca)

    def context(self) -> ssl.SSLContext:
        """Return the context of a connection that begins now. The old one stays if a new file cannot be used."""
        seen = look_at(self._ca)
        if seen != self._seen:
            self._seen = seen
            try:
                self._context = client_context(self._ca)
            except UsageError as error:
                LOGGER.error("%s; the authorities stay those of before", error)
            else:
                LOGGER.warning("the authorities in %s have changed, and count for new connections", self._ca)
        return self._context


class TlsStream(trio.abc.HalfCloseableStream):
    """A stream in TLS over another one, which its owner may use itself for encrypted bytes.

    Why not `trio.SSLStream`: it gives out one record of 16 KiB at a time, with a turn of the loop for each.

    ``inner`` is connected, and closed with this; ``host`` is the name that the other side has to have.
    """

    def __init__(self, inner: trio.abc.HalfCloseableStream, context: ssl.SSLContext, host: str) -> None:
        self.inner = inner
        self._tunnel = Tunnel(context, host=host)

    async def handshake(self) -> None:
        """Do the handshake; ssl.SSLError or OSError if it fails."""
        data: bytes | bytearray = b""
        done = False
        while not done:
            done = self._tunnel.handshake(data)
            await self.inner.send_all(self._tunnel.unsent())
            if not done and not (data := await self.inner.receive_some(RECEIVE_BYTES)):
                raise ConnectionError("the connection was closed during the TLS handshake")

    def encrypt(self, data: bytes) -> bytes:
        """Return ``data`` encrypted; to be sent next."""
        view, encrypted = memoryview(data), []
        while view:
            view = view[self._tunnel.encrypt((view,)) :]
            encrypted.append(self._tunnel.unsent())
        return encrypted[0] if len(encrypted) == 1 else b"".join(encrypted)

    def decrypt(self, data: bytes | bytearray) -> bytes:
        """Decrypt the bytes that were received next; b"" while a record is not complete."""
        return self._tunnel.decrypt(data) or b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(self.encrypt(bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive the decrypted next bytes, also more than ``max_bytes``; b"" at the end of the stream below."""
        while data := await self.inner.receive_some(max_bytes):
            if decrypted := self.decrypt(data):
                return decrypted
        return b""

    async def aclose(self) -> None:
        await self.inner.aclose()

"""TLS behind the node's transports, and certificates that change while it runs.

`TlsTransport` is one more transport, around another. Encrypted bytes may wait for space below it:
that is one chunk at most, and its last byte counts as not sent until all of it is, so that `Outflow` tries again. So a
frame counts as begun no later than its second byte, and one byte is no frame.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

import trio

from quorumq.core.values.errors import PeerError, UsageError
from quorumq.node.transport import RECEIVE_BYTES, ConnectionLost, Transport
from quorumq.wire.tls import Tunnel, look_at, peer_context, reason_of, server_context

REREAD_S: Final = 1.0
"""Least seconds between looks for changed certificates, which happen when a connection begins."""


class TlsTransport:
    """A transport that speaks TLS over another one. The task that receives does the handshake.

    Args:
        server_side: True if the other side has dialled.
    """

    def __init__(self, inner: Transport, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._inner = inner
        self._tunnel = Tunnel(context, server_side=server_side)
        self._encrypted: memoryview = memoryview(b"")
        self._owed = 0  # bytes of the chunk in `_encrypted` that were not counted yet
        self._established = trio.Event()
        self._closed = False

    @property
    def names(self) -> frozenset[str]:
        """Names in the certificate of the other side; none before the handshake is done."""
        return self._tunnel.names() if self._established.is_set() else frozenset()

    def send_some(self, buffers: Sequence[memoryview]) -> int:
        if self._closed:
            raise ConnectionLost("closed")
        if not self._established.is_set() or not self._push():
            return 0
        if self._owed:
            owed, self._owed = self._owed, 0
            return owed
        try:
            total = self._tunnel.encrypt(buffers)
        except ssl.SSLError as error:
            raise ConnectionLost(reason_of(error)) from None
        if self._push():
            return total
        self._owed = 1
        return total - 1

    def _push(self) -> bool:
        """Pass on encrypted bytes, as far as there is room; return True if none are left."""
        while True:
            if not self._encrypted:
                self._encrypted = memoryview(self._tunnel.unsent())
                if not self._encrypted:
                    return True
            taken = self._inner.send_some([self._encrypted])
            self._encrypted = self._encrypted[taken:]
            if self._encrypted:
                return False

    async def wait_sendable(self) -> None:
        await self._established.wait()
        if self._closed:
            raise ConnectionLost("closed")
        await self._inner.wait_sendable()

    async def receive(self, most: int = RECEIVE_BYTES) -> bytes:
        try:
            decrypted = None if self._established.is_set() else await self._handshake()
            while decrypted is None:
                data = await self._inner.receive(most)
                if not data:
                    return b""
                decrypted = self._decrypt(data)
            return decrypted
        except ssl.SSLError as error:
            # OpenSSL's alert goes to the other side, so that it learns the reason.
            if not self._closed:
                self._push()
            if not self._established.is_set():
                raise PeerError(reason_of(error)) from None
            raise ConnectionLost(reason_of(error)) from None

    async def _handshake(self) -> bytes | None:
        """Do the handshake; return the data received with its last bytes."""
        data, done = b"", False
        while not done:
            done = self._tunnel.handshake(data)
            while not self._push():
                await self._inner.wait_sendable()
            if not done and not (data := await self._inner.receive()):
                raise ConnectionLost("closed during the TLS handshake")
        self._established.set()
        return self._decrypt(b"")

    def fileno(self) -> int:
        return self._inner.fileno()

    def receive_now(self, most: int = RECEIVE_BYTES) -> bytes | None:
        """Return all received bytes, because decrypted bytes make no socket ready."""
        data = self._inner.receive_now(most)
        if not data:
            return data
        try:
            return self._decrypt(data)
        except ssl.SSLError as error:
            raise ConnectionLost(reason_of(error)) from None

    def _decrypt(self, data: bytes) -> bytes | None:
        decrypted = self._tunnel.decrypt(data)
        self._push()  # messages of TLS itself; if the buffer is full they go with the next data
        return decrypted

    def hung_up(self) -> bool:
        return self._inner.hung_up()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.close()
            self._established.set()  # wakes the tasks that wait to send


class Certificates:
    """Certificates of a node or a gateway, as the files are when a connection begins.

    Args:
        cert, key, ca: PEM files, as of `quorumq.wire.tls.server_context`.
        protocols: names of protocols (ALPN) from which dialling sides may choose, the best first.

    Raises:
        UsageError: they cannot be used.
    """

    def __init__(self, cert: str, key: str, ca: str, log: Any, protocols: Sequence[str] = ()) -> None:
        self._files = (cert, key, ca)
        self._log = log
        self._protocols = protocols
        self._seen = self._look()
        self._looked = trio.current_time()
        self._contexts = self._read()

    def _look(self) -> list[tuple[int, ...]]:
        return [look_at(path) for path in self._files if path]

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = server_context(*self._files)
        if self._protocols:
            server.set_alpn_protocols(self._protocols)
        return server, peer_context(*self._files)

    def _refresh(self) -> None:
        """Read the files again if they have changed; the old ones stay if the new ones cannot be used."""
        now = trio.current_time()
        if now < self._looked + REREAD_S:
            return
        self._looked = now
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._contexts = self._read()
        except UsageError as error:
            self._log.error("certificates_ignored", reason=f"{error}; those of before stay")
        else:
            self._log.info("certificates_read")

    def listening(self) -> ssl.SSLContext:
        """Return the context of a connection that is accepted now."""
        self._refresh()
        return self._contexts[0]

    def accepted(self, inner: Transport) -> TlsTransport:
        """Return a connection that was accepted."""
        return TlsTransport(inner, self.listening(), server_side=True)

    def dialled(self, inner: Transport) -> TlsTransport:
        """Return a connection to another node."""
        self._refresh()
        return TlsTransport(inner, self._contexts[1], server_side=False)

"""TLS on top of any stream of bytes: the common part of both ends of a connection.

The work is done by `ssl.SSLObject`, which knows bytes and no sockets, so that a step of a node stays synchronous.
Each of its calls takes a microsecond or two at any size, and one that reads brings one record, of 16 KiB at most.
So data that is sent together is joined first, and all received records are read at once: a turn of a loop for each
record would cost more than the cipher.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from quorumq.core.values.errors import UsageError
from quorumq.core.values.limits import KIB

CA_VARIABLE: Final = "QUORUMQ_TLS_CA"
"""The environment variable that names a client's file of authorities if the program does not."""

CHUNK_BYTES: Final = 256 * KIB
"""Most bytes that are encrypted at once."""

RECORD_BYTES: Final = 16 * KIB
"""Most bytes that a record of TLS carries."""


class Tunnel:
    """One side of a connection in TLS, without a socket: it encrypts data to send, and decrypts received bytes.

    Args:
        host: name that the other side must have; None if it has dialled, or is checked later (`names`).
        server_side: True if the other side has dialled.
    """

    def __init__(
        self, context: ssl.SSLContext, *, host: str | None = None, server_side: bool = False
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )

    def names(self) -> frozenset[str]:
        """Return the names in the certificate of the other side, once the handshake is done."""
        return names_in(self._tls.getpeercert())

    def handshake(self, data: bytes | bytearray = b"") -> bool:
        """Take in more of the handshake, and go on with it; return True if it is done. Send `unsent` after each call.

        Raises:
            ssl.SSLError: it failed.
        """
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def unsent(self) -> bytes:
        """Return the bytes to send now."""
        return self._outgoing.read()

    def encrypt(self, chunks: Sequence[bytes | memoryview]) -> int:
        """Encrypt chunks, up to `CHUNK_BYTES` together, into `unsent`; return the number of bytes that were taken."""
        size = 0
        taken: list[bytes | memoryview] = []
        for chunk in chunks:
            taken.append(chunk[: CHUNK_BYTES - size] if size + len(chunk) > CHUNK_BYTES else chunk)
            size += len(taken[-1])
            if size == CHUNK_BYTES:
                break
        return self._tls.write(taken[0] if len(taken) == 1 else b"".join(taken))

    def decrypt(self, data: bytes | bytearray) -> bytes | None:
        """Return the data in received bytes. Send `unsent` then: TLS may have messages of its own.

        Returns:
            None if no record is complete; b"" if the other side ended the connection.

        Raises:
            ssl.SSLError: it differs from the bytes sent.
        """
        incoming, read = self._incoming, self._tls.read
        incoming.write(data)
        chunks: list[bytes] = []
        try:
            while incoming.pending:
                chunk = read(RECORD_BYTES)
                chunks.append(chunk)
                if not chunk:
                    break
        except ssl.SSLWantReadError:  # the rest of a record is missing
            if not chunks:
                return None
        if len(chunks) == 1:
            return chunks[0]
        return b"".join(chunks) if chunks else None


def look_at(path: str) -> tuple[int, ...]:
    """Return time, size, inode and mode of a file, which differ when it is replaced; () if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def own_ca() -> str:
    """Return the file of authorities that the environment names; "" if none."""
    return os.environ.get(CA_VARIABLE, "").strip()


def client_context(ca: str) -> ssl.SSLContext:
    """Return a context that takes certificates of ``ca`` for the dialled address; UsageError if it cannot be read."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"tls_ca {ca}: {reason_of(error)}: give a PEM file of the authorities to trust"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def server_context(cert: str, key: str, ca: str) -> ssl.SSLContext:
    """Return the context of a listening side. A dialling side may show a certificate: it must be one of ``ca``.

    Args:
        cert: a PEM file: its certificate, and those between it and the authority.
        key: PEM file of the certificate's key; "" if that stands in ``cert``.
        ca: a PEM file of authorities; "" to ask for no certificate.

    Raises:
        UsageError: they cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, cert, key, ca)
    if ca:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def peer_context(cert: str, key: str, ca: str) -> ssl.SSLContext:
    """Return the context of a node that dials another: both show a certificate. The caller checks `names_in`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # a node is known by its id, not by its address
    _load(context, cert, key, ca)
    return context


def _load(context: ssl.SSLContext, cert: str, key: str, ca: str) -> None:
    try:
        context.load_cert_chain(
            cert, key or None, password=lambda: ""
        )  # a key with a password cannot be used
    except (OSError, ValueError) as error:
        raise UsageError(
            f"tls_cert {cert} with tls_key {key or cert}: {reason_of(error)}: give PEM files of a certificate and its "
            "key, without a password"
        ) from None
    if ca:
        try:
            context.load_verify_locations(ca)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"tls_ca {ca}: {reason_of(error)}: give a PEM file of the authorities to trust"
            ) from None


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the DNS names of a certificate that `ssl.SSLObject.getpeercert` gave, and no other of its names."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(value for kind, value in names if kind == "DNS")


def plain_hint(tls: bool) -> str:
    """Return a hint at a wrong use of TLS, for an answer that is not understood. ``tls``: TLS was used."""
    if not tls:
        return f" (where nodes speak TLS, give tls_ca= or {CA_VARIABLE})"
    return f" (TLS is used because {CA_VARIABLE} is set: unset it where nodes speak none)" if own_ca() else ""


def reason_of(error: BaseException) -> str:
    """Return the reason of an error, in words that a person can search for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        hint = (
            ": does the other side speak TLS?"
            if "wrong version" in reason or "http request" in reason
            else ""
        )
        return f"TLS: {reason}{hint}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


UTC_TIME: Final = 0x17
"""The tag of a time with a year of two digits; from 2050 on certificates have one of four."""


def expiry_of(path: str) -> float:
    """Return when the first certificate of a PEM file ends, in seconds since 1970; ValueError if there is none."""
    with open(path, encoding="latin-1") as file:
        text = file.read()
    begin, end = text.find("-----BEGIN CERTIFICATE-----"), text.find("-----END CERTIFICATE-----")
    if begin < 0 or end < begin:
        raise ValueError(f"{path} has no certificate")
    der = ssl.PEM_cert_to_DER_cert(text[begin:end] + "-----END CERTIFICATE-----")
    at, _ = _inside(der, _inside(der, 0)[0])  # Certificate, TBSCertificate
    if der[at] == 0xA0:  # its version
        at = _inside(der, at)[1]
    for _ in range(3):  # serial number, algorithm, issuer
        at = _inside(der, at)[1]
    not_before, _ = _inside(der, at)
    not_after = _inside(der, not_before)[1]
    start, stop = _inside(der, not_after)
    digits = der[start : stop - 1].decode()
    if der[not_after] == UTC_TIME:
        digits = ("19" if digits >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()


def _inside(der: bytes, at: int) -> tuple[int, int]:
    """Return the begin and the end of a DER value's content."""
    size, begin = der[at + 1], at + 2
    if size >= 0x80:
        count = size - 0x80
        size, begin = int.from_bytes(der[begin : begin + count]), begin + count
    return begin, begin + size

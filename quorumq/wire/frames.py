"""Boundaries between messages in a stream of bytes.

A frame is a fixed prefix, a CBOR header and a raw body:

    magic AB 51 51 01 | header length u32 | body length u32 | header | body        (big-endian)

The body (records of batches) stays outside the CBOR, so that it is copied at most once on its way in and
not at all on its way out. TCP already checks frames against line noise; batch bodies carry CRCs of their
own.

Promise: `FrameReader` never holds more than one frame and one chunk that was fed to it. It checks both lengths
against core/values/limits.py. Its buffer grows with the received bytes and not with those that a prefix
announces. If a byte cannot be the protocol's, the connection ends with an error that shows the bytes.
Nothing here reads or writes a socket.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from quorumq.core.values.errors import PeerError, TooLarge
from quorumq.core.values.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

MAGIC: Final = b"\xabQQ\x01"
"""First bytes of every frame. The first is not ASCII, as it is in text protocols. The last is the format, 1."""

PREFIX_BYTES: Final = 12
_PREFIX: Final = struct.Struct(">4sII")

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Most bytes of the first frame of a connection, prefix, header and body together: it is from a stranger."""

assert PREFIX_BYTES + HANDSHAKE_BYTES_MAX < HEADER_BYTES_MAX < FRAME_BYTES_MAX


class Frame(NamedTuple):
    """One frame, not yet decoded. The views are read-only and stay valid as long as they are referenced."""

    header: memoryview
    body: memoryview


_new_frame: Final[Callable[[type[Frame], tuple[memoryview, memoryview]], Frame]] = tuple.__new__


def encode_frame(
    header: bytes, bodies: Sequence[bytes | memoryview] = (), name: str = "a message"
) -> list[bytes | memoryview]:
    """Return the chunks of one frame, for one ``b"".join`` or ``sendmsg``. Bodies are not copied.

    Raises:
        TooLarge: over `HEADER_BYTES_MAX` or `FRAME_BYTES_MAX`; nothing may be sent.
    """
    body_bytes = sum(map(len, bodies))
    if len(header) > HEADER_BYTES_MAX:
        raise TooLarge(
            f"{name} has a header of {len(header)} bytes: at most {HEADER_BYTES_MAX}; ask for less at once"
        )
    if PREFIX_BYTES + len(header) + body_bytes > FRAME_BYTES_MAX:
        raise TooLarge(
            f"{name} has {len(header)} + {body_bytes} bytes: a frame has at most {FRAME_BYTES_MAX}"
        )
    return [_PREFIX.pack(MAGIC, len(header), body_bytes) + header, *bodies]


class FrameReader:
    """Cuts a stream of bytes into frames.

    Feed a chunk, then take frames until there are none::

        reader.feed(chunk)
        for frame in reader:
            ...

    If a frame lies within one chunk, it is not copied. If it spans chunks, it is copied once, into a buffer.
    A view of a frame keeps its chunk or buffer alive.

    Args:
        frame_bytes_max: most bytes of a frame, prefix included. Raise it after HELLO by `open_up`.

    Attributes:
        frames: number of frames given out.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX)
        self._chunk = memoryview(b"")
        self._prefix = b""  # prefix of the next frame, while it is incomplete
        self._lengths: tuple[int, int] | None = None  # lengths of the frame in `_buffer`
        self._buffer = bytearray()
        self._broken: str | None = None
        self.frames = 0

    def open_up(self) -> None:
        """Take frames of the full size from now on: the other side has shown its identity."""
        self.frame_bytes_max = FRAME_BYTES_MAX

    @property
    def pending_bytes(self) -> int:
        """Bytes that were fed and are in no frame that was given out."""
        prefix = PREFIX_BYTES if self._lengths is not None else len(self._prefix)
        return len(self._chunk) + prefix + len(self._buffer)

    @property
    def expected_bytes(self) -> int:
        """Bytes of the frame that was begun; those of a prefix if its own is not complete."""
        return PREFIX_BYTES + (sum(self._lengths) if self._lengths is not None else 0)

    @property
    def missing_bytes(self) -> int:
        """Bytes missing from the frame that was begun; 0 if that is not known."""
        return sum(self._lengths) - len(self._buffer) if self._lengths is not None else 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes of the stream. Take all frames out before feeding again.

        ``data`` must not change afterwards: frames are views of it.

        Raises:
            RuntimeError: frames of the previous chunk have not been taken out.
        """
        if self._chunk:
            raise RuntimeError("FrameReader.feed: take the frames of the previous chunk first (next_frame)")
        self._chunk = memoryview(data).toreadonly()

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.next_frame()) is not None:
            yield frame

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None when more bytes are needed.

        Raises:
            PeerError: the bytes are not a frame, or one over a limit. Every later call raises again: end the
                connection.
        """
        if self._broken is not None:
            raise PeerError(self._broken)
        chunk = self._chunk
        if not chunk:
            return None
        if self._lengths is None:
            if len(chunk) >= PREFIX_BYTES and not self._prefix:  # mostly: a frame within one chunk
                magic, header_bytes, body_bytes = _PREFIX.unpack_from(chunk)
                stop = PREFIX_BYTES + header_bytes + body_bytes
                if (
                    magic == MAGIC
                    and 1 <= header_bytes <= HEADER_BYTES_MAX
                    and stop <= min(len(chunk), self.frame_bytes_max)
                ):
                    self._chunk = chunk[stop:]
                    self.frames += 1
                    middle = PREFIX_BYTES + header_bytes
                    return _new_frame(Frame, (chunk[PREFIX_BYTES:middle], chunk[middle:stop]))
            if not self._take_prefix():
                return None
            assert self._lengths is not None
            need = sum(self._lengths)
            if len(self._chunk) >= need:
                whole, self._chunk = self._chunk[:need], self._chunk[need:]
                return self._cut(whole)
        need = sum(self._lengths) - len(self._buffer)
        self._buffer += self._chunk[:need]
        come, self._chunk = len(self._chunk), self._chunk[need:]
        if come < need:
            return None
        whole = memoryview(self._buffer).toreadonly()
        self._buffer = bytearray()
        return self._cut(whole)

    def close(self) -> None:
        """End the stream; PeerError if a frame is not complete."""
        if self._broken is None and self.pending_bytes:
            of_expected = f" of {self.expected_bytes}" if self._lengths is not None else ""
            self._break(f"the connection ended inside a frame, after {self.pending_bytes}{of_expected} bytes")

    def _cut(self, whole: memoryview) -> Frame:
        assert self._lengths is not None
        header_bytes, _ = self._lengths
        self._lengths = None
        self.frames += 1
        return Frame(whole[:header_bytes], whole[header_bytes:])

    def _take_prefix(self) -> bool:
        """Complete the prefix and check it. Returns False if bytes are missing."""
        missing = PREFIX_BYTES - len(self._prefix)
        self._prefix += bytes(self._chunk[:missing])
        if not MAGIC.startswith(self._prefix[: len(MAGIC)]):
            seen = (self._prefix + bytes(self._chunk[missing : missing + 16]))[:16]
            self._break(f"the connection began a frame with {seen.hex()}, not {MAGIC.hex()}{_hint(seen)}")
        self._chunk = self._chunk[missing:]
        if len(self._prefix) < PREFIX_BYTES:
            return False
        _, header_bytes, body_bytes = _PREFIX.unpack(self._prefix)
        if not 1 <= header_bytes <= HEADER_BYTES_MAX:
            self._break(f"a frame header of {header_bytes} bytes: 1 to {HEADER_BYTES_MAX} are allowed")
        if PREFIX_BYTES + header_bytes + body_bytes > self.frame_bytes_max:
            first = "" if self.frame_bytes_max == FRAME_BYTES_MAX else " before HELLO was accepted"
            self._break(
                f"a frame of {header_bytes} + {body_bytes} bytes: at most {self.frame_bytes_max} are allowed{first}"
            )
        self._prefix = b""
        self._lengths = header_bytes, body_bytes
        return True

    def _break(self, reason: str) -> None:
        self._broken = reason
        self._chunk = memoryview(b"")
        self._prefix = b""
        self._buffer = bytearray()
        self._lengths = None
        raise PeerError(reason)


_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PRI ")


def _hint(seen: bytes) -> str:
    """Return the protocol that the bytes look like, and the remedy."""
    if seen.startswith(b"HTTP"):
        return ": this looks like HTTP, as a gateway speaks it; give the address of a node"
    if seen.startswith(_HTTP):
        return ": this looks like HTTP; the other side wants another port"
    if seen[:2] == b"\x16\x03":
        return ": this looks like TLS; quorumq's port speaks plain TCP, put TLS in front of it"
    if seen[:3] == MAGIC[:3]:
        return ": this is another format of quorumq's frames; upgrade the older side"
    if seen[:4] == b"SSH-":
        return ": this looks like SSH; the other side wants another port"
    return ": this is not quorumq; check host and port"

"""One file of the journal, as frames. docs/file-format.md is its contract.

Why the frame looks as it does: after a crash, a reader has to tell three things apart.

  torn      the last write did not reach the disk in full. Nobody was told that it was durable: cut it.
  damaged   bytes that were durable have changed. Never cut those: somebody was promised that they stay.
  body      damage inside the body of a batch only. The header still says which batch it was, so this
            one batch can be fetched again from another replica while everything else goes on.

So header and body have checksums of their own, and every header carries the offset below which the
segment was known to be durable when the record was written: an invalid record below an offset that any
valid record of the segment claims is damage, one above is a torn tail. The header's checksum covers
the directory's id and the segment's number too, so that a record in the payload of a message, a record
copied from another file, or an old block that comes back is not taken for a record of this segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from crc32c import crc32c

from quorumq.core.errors import StorageError
from quorumq.core.limits import BATCH_BYTES_MAX, MIB
from quorumq.storage.disk import Buffer
from quorumq.wire import cbor

FORMAT_VERSION = 1
"""In every segment header, of what this software writes. It reads all versions up to this one and refuses newer ones.
docs/file-format.md says when it has to be raised."""

MAGIC = b"qjR1"
PREFIX = struct.Struct("<4sIIII")  # magic, header CRC, header length, body length, body CRC
PREFIX_BYTES = PREFIX.size
CRC_START = 8  # the header CRC covers the prefix from here on, then the header
CRC = struct.Struct("<I")
LENGTHS = struct.Struct("<III")
SALT = struct.Struct("<QQ")  # directory id, segment number: in front of what the header CRC covers

HEADER_BYTES_MAX = 16 * MIB
"""The CBOR header of one record."""

WINDOW_BYTES = 1 * MIB
"""What a scan that checks bodies reads at once."""

SKIP_WINDOW_BYTES = 16 * 1024
"""What a scan that jumps over bodies reads at once."""

assert BATCH_BYTES_MAX < 2**32
assert HEADER_BYTES_MAX < 2**32

SEGMENTS_END = 10**12
"""Segment numbers are below: names have twelve digits."""

NEW_SUFFIX = ".new"
NAME_SUFFIX = ".journal"


def segment_name(number: int) -> str:
    """The file name of a segment. Names sort as numbers do.

    Raises:
        StorageError: the number has more digits than a name: no start would find the file.
    """
    if number >= SEGMENTS_END:
        raise StorageError(
            f"there is no segment {number}: the last one is {SEGMENTS_END - 1}, and a file of the data directory has "
            "its name; if that file is not quorumq's, move it out of the directory"
        )
    return f"{number:012d}{NAME_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, finished or not; None for any other name."""
    stem = name.removesuffix(NEW_SUFFIX).removesuffix(NAME_SUFFIX)
    if not name.removesuffix(NEW_SUFFIX).endswith(NAME_SUFFIX) or len(stem) != 12 or not stem.isascii():
        return None
    return int(stem) if stem.isdigit() else None


def salt_of(directory: int, segment: int) -> int:
    """What the header CRC of every record but the first of a segment starts from."""
    return int(crc32c(SALT.pack(directory, segment)))


class Frame(NamedTuple):
    """One record as it lies in a segment.

    ``fields`` is the whole decoded header, type and durable offset included. ``body_ok`` is None where the
    body was not looked at.
    """

    offset: int
    type: int
    durable: int
    fields: tuple[Any, ...]
    header_length: int
    body_length: int
    body_crc: int
    body_ok: bool | None
    end: int  # where the next record begins

    @property
    def body_offset(self) -> int:
        """Where the body begins in the file."""
        return self.end - self.body_length


class Bad(NamedTuple):
    """No valid record begins at ``offset``; ``reason`` says what is wrong with it."""

    offset: int
    reason: str


def encode_frame(header: bytes, body_length: int, body_crc: int, salt: int) -> bytes:
    """Prefix and header of a record; its body follows in the file as it is.

    Raises:
        StorageError: the header or the body is over its limit; nothing was written.
    """
    if len(header) > HEADER_BYTES_MAX or body_length > BATCH_BYTES_MAX:
        raise StorageError(
            f"a record of {len(header)} header and {body_length} body bytes is over the journal's limits "
            f"({HEADER_BYTES_MAX} and {BATCH_BYTES_MAX}): write it as several"
        )
    covered = LENGTHS.pack(len(header), body_length, body_crc) + header
    return MAGIC + CRC.pack(crc32c(covered, salt)) + covered


def body_crc_of(body: Buffer) -> int:
    """The checksum of a body; 0 for an empty one."""
    return int(crc32c(body))


class Scan:
    """Reads the frames of one segment file in order.

    Args:
        read: (offset, length) -> up to that many bytes; fewer at the end of the file only.
        size: where to stop, in bytes: the length of the file, or of the part of it that counts.
        check_bodies: read bodies and compare their checksums, else jump over them.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, *, check_bodies: bool) -> None:
        self.size = size
        self.read = read
        self._check_bodies = check_bodies
        self._window = b""
        self._base = 0

    def _bytes(self, offset: int, length: int) -> bytes:
        """Exactly these bytes if the file has them (the caller compared with ``size``), else fewer."""
        start = offset - self._base
        if start < 0 or start + length > len(self._window):
            window = WINDOW_BYTES if self._check_bodies else SKIP_WINDOW_BYTES
            self._window = self.read(offset, min(max(window, length), self.size - offset))
            self._base, start = offset, 0
        return self._window[start : start + length]

    def frame(self, offset: int, salt: int) -> Frame | Bad:
        """The record at ``offset``, or why there is none. ``offset`` is below ``size``."""
        left = self.size - offset
        if left < PREFIX_BYTES:
            return Bad(offset, f"only {left} bytes are left, a record has at least {PREFIX_BYTES}")
        prefix = self._bytes(offset, PREFIX_BYTES)
        if len(prefix) < PREFIX_BYTES:
            return Bad(offset, "the file ends inside a record")
        magic, header_crc, header_length, body_length, body_crc = PREFIX.unpack(prefix)
        if magic != MAGIC:
            return Bad(offset, f"no record begins here (found {prefix[:4]!r} instead of {MAGIC!r})")
        if header_length > HEADER_BYTES_MAX or body_length > BATCH_BYTES_MAX:
            return Bad(offset, f"lengths {header_length} and {body_length} are over the limits")
        size = PREFIX_BYTES + header_length
        if size > left:
            return Bad(offset, "the file ends inside the header of a record")
        head = self._bytes(offset, size)
        if crc32c(head[CRC_START:], salt) != header_crc:
            return Bad(offset, "the checksum of the record's header does not match")
        try:
            fields = cbor.load(head[PREFIX_BYTES:], "the record's header")
        except cbor.BadValue as error:
            return Bad(offset, str(error))
        if (
            type(fields) is not tuple
            or len(fields) < 2
            or type(fields[0]) is not int
            or type(fields[1]) is not int
        ):
            return Bad(offset, "the record's header does not begin with a type and a durable offset")
        body_ok: bool | None = True
        if body_length:
            if size + body_length > left:
                body_ok = False  # the header says which batch it was: whoever scans decides, torn or damaged
            elif self._check_bodies:
                body = self._bytes(offset + size, body_length)
                body_ok = len(body) == body_length and crc32c(body) == body_crc
            else:
                body_ok = None
        end = offset + size + body_length
        return Frame(offset, fields[0], fields[1], fields, header_length, body_length, body_crc, body_ok, end)

    def frames(self, offset: int, salt: int) -> Iterator[Frame | Bad]:
        """Every record from ``offset`` on. A `Bad`, or a frame that reaches past ``size``, is the last."""
        while offset < self.size:
            found = self.frame(offset, salt)
            yield found
            if isinstance(found, Bad):
                return
            offset = found.end

    def first_valid(self, offset: int, salt: int, accept: Callable[[Frame], bool]) -> Frame | None:
        """The first frame at ``offset`` or anywhere behind it that has a valid header and is accepted."""
        step = max(WINDOW_BYTES, len(MAGIC))
        while offset < self.size:
            window = self.read(offset, min(step, self.size - offset))
            hit = window.find(MAGIC)
            if hit < 0:
                offset += max(1, len(window) - len(MAGIC) + 1)
                continue
            found = self.frame(offset + hit, salt)
            if isinstance(found, Frame):
                if accept(found):
                    return found
                offset = max(found.offset + len(MAGIC), min(found.end, self.size))
            else:
                offset += hit + len(MAGIC)
        return None

    def said_durable(self, offset: int, salt: int) -> Frame | None:
        """The first valid frame behind ``offset`` that says that something was durable there, if there is one."""
        return self.first_valid(offset + 1, salt, lambda frame: frame.durable > offset)

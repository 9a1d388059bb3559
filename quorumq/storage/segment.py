"""Framing of a record in a file of the journal. docs/file-format.md is its contract.

Why the frame looks as it does: after a crash, a reader has to distinguish three cases.

  torn      the last write did not reach the disk in full. No client learned that it was durable: cut it.
  damaged   bytes that were durable have changed. Never cut those: clients were promised that they stay.
  body      damage inside the body of a batch only. The header still says which batch it was, so this
            one batch can be fetched again from another replica while everything else goes on.

So header and body have checksums of their own, and every header carries the offset below which the
segment was known to be durable when the record was written. If an invalid record lies below such an
offset of any valid record of the segment, it is damage, else a torn tail. The header's checksum covers
the directory's id and the segment's number too, so that a record in the payload of a message, a record
copied from another file, or an old block of the disk is not taken for a record of this segment.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from quorumq.core.values.errors import StorageError
from quorumq.core.values.limits import BATCH_BYTES_MAX, MIB
from quorumq.storage.disk import Buffer

FORMAT_VERSION = 1
"""Version in every segment header that is written. Versions up to this one are read, and newer ones refused.
docs/file-format.md says when it has to be raised."""

MAGIC = b"qjR1"
PREFIX = struct.Struct("<4sIIII")  # magic, header CRC, header length, body length, body CRC
PREFIX_BYTES = PREFIX.size
CRC_START = 8  # the header CRC covers the prefix from here on, then the header
CRC = struct.Struct("<I")
LENGTHS = struct.Struct("<III")
SALT = struct.Struct("<QQ")  # directory id, segment number: in front of what the header CRC covers

HEADER_BYTES_MAX = 16 * MIB
"""Most bytes of the CBOR header of one record."""

assert BATCH_BYTES_MAX < 2**32
assert HEADER_BYTES_MAX < 2**32

SEGMENTS_END = 10**12
"""Segment numbers are below: names have twelve digits."""

NEW_SUFFIX = ".new"
NAME_SUFFIX = ".journal"


def segment_name(number: int) -> str:
    """Return the file name of a segment, which sorts as its number; StorageError if that has too many digits."""
    if number >= SEGMENTS_END:
        raise StorageError(
            f"there is no segment {number}: the last one is {SEGMENTS_END - 1}, and a file of the data directory has "
            "its name; if that file is not quorumq's, move it out of the directory"
        )
    return f"{number:012d}{NAME_SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name, finished or not; None for any other name."""
    stem = name.removesuffix(NEW_SUFFIX).removesuffix(NAME_SUFFIX)
    if not name.removesuffix(NEW_SUFFIX).endswith(NAME_SUFFIX) or len(stem) != 12 or not stem.isascii():
        return None
    return int(stem) if stem.isdigit() else None


def salt_of(directory: int, segment: int) -> int:
    """Return the start value of the header CRC of every record but the first of a segment."""
    return int(crc32c(SALT.pack(directory, segment)))


def encode_frame(header: bytes, body_length: int, body_crc: int, salt: int) -> bytes:
    """Return prefix and header of a record, whose body follows as it is; StorageError above a limit."""
    if len(header) > HEADER_BYTES_MAX or body_length > BATCH_BYTES_MAX:
        raise StorageError(
            f"a record of {len(header)} header and {body_length} body bytes is over the journal's limits "
            f"({HEADER_BYTES_MAX} and {BATCH_BYTES_MAX}): write it as several"
        )
    covered = LENGTHS.pack(len(header), body_length, body_crc) + header
    return MAGIC + CRC.pack(crc32c(covered, salt)) + covered


def body_crc_of(body: Buffer) -> int:
    """Return the checksum of a body; 0 for an empty one."""
    return int(crc32c(body))

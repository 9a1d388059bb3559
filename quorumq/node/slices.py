"""Slices of batches, read from the journal and checked."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from quorumq.core.messages import Slice
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal
from quorumq.wire.batch import Corrupt

CHECKED_WHOLE_BYTES: Final = 256 * 1024
"""Batches up to this size are checked as a whole whenever a part of one is read."""


def read_slice(store: Journal, part: Slice) -> bytes | memoryview:
    """Return the bytes of a slice, checked against the CRCs of the batch or of its records.

    Raises:
        DamagedBatch: they differ from the bytes published.
        StorageError: the disk cannot be read.
    """
    header = part.header
    start, stop = header.end_of(part.first - 1), header.end_of(part.stop - 1)
    size = header.end_of(header.size - 1)
    whole = size <= CHECKED_WHOLE_BYTES or 2 * (stop - start) >= size
    data = store.read_slice(part.batch, start, stop, check=whole)
    if not whole:
        try:
            check_records(part, data)
        except Corrupt as error:
            raise DamagedBatch(str(error), part.batch) from None
    return data


def check_records(part: Slice, data: bytes | memoryview) -> None:
    """Check that ``data`` is records [first, stop) of a batch as published; Corrupt if a CRC-32C differs."""
    header = part.header
    at, view = header.end_of(part.first - 1), memoryview(data)
    for index in range(part.first, part.stop):
        size = header.end_of(index) - at
        if crc32c(view[:size]) != header.crc_of(index):
            raise Corrupt(f"batch {header.key()}: record {index} is damaged on disk")
        at, view = at + size, view[size:]

"""Records of one segment, and the gaps between them.

Torn, damaged and counting bytes are distinguished here for all readers of a journal: a start, a salvage, and Spark.
Each reader decides the consequences.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quorumq.core.values.limits import BATCH_BYTES_MAX, MIB
from quorumq.storage.records import SNAPSHOT_END, SegmentStart, decode_record
from quorumq.storage.segment import CRC_START, HEADER_BYTES_MAX, MAGIC, PREFIX, PREFIX_BYTES
from quorumq.wire import cbor

WINDOW_BYTES: Final = 1 * MIB
"""Bytes that a scan reads at once if it checks bodies."""

SKIP_WINDOW_BYTES: Final = 16 * 1024
"""Bytes that a scan reads at once if it jumps over bodies."""

NO_HOLES: Final[Mapping[int, int]] = MappingProxyType({})


class Frame(NamedTuple):
    """One record as it lies in a segment.

    ``fields`` is the whole decoded header, type and durable offset included. ``body_ok`` is None if the
    body was not read.
    """

    offset: int
    type: int
    durable: int
    fields: tuple[Any, ...]
    header_length: int
    body_length: int
    body_crc: int
    body_ok: bool | None
    end: int  # offset of the next record

    @property
    def body_offset(self) -> int:
        return self.end - self.body_length


class Bad(NamedTuple):
    """No valid record begins at ``offset``; ``reason`` names the fault."""

    offset: int
    reason: str


class Gap(NamedTuple):
    """Bytes [offset, stop) without a record that counts.

    ``frame`` is the record that begins there, if its header is valid and its body is cut off or does not match its
    checksum. ``witness`` is a later record of a tail, if one says that bytes at ``offset`` were durable.
    """

    offset: int
    stop: int
    reason: str
    frame: Frame | None = None
    witness: Frame | None = None


@dataclass(eq=False)
class Scan:
    """Reads one segment in order."""

    read: Callable[[int, int], bytes]  # (offset, length) -> bytes; fewer at the end of the file only
    size: int  # bytes to read: the length of the file, or of the part of it that counts
    salt: int = 0  # `salt_of` the segment. It may be set later: the first record is read without it
    _: KW_ONLY
    check_bodies: bool  # read bodies and compare their checksums, else jump over them
    durable: int = 0  # the records read so far say that everything below this offset was durable
    in_tail: bool = False  # the end of the snapshot was read
    # The last write if it was torn, once `records` is exhausted. The bytes that count end at its offset.
    torn: Gap | None = None
    _window: bytes = b""
    _base: int = 0

    def records(self, *, newest: bool = False, holes: Mapping[int, int] = NO_HOLES) -> Iterator[Frame | Gap]:
        """Yield everything in the segment, from its beginning.

        Args:
            newest: it has no successor, so its last write may be torn. A record of the tail is yielded when a younger
                one says that it was durable, or at the end. If it was torn, it is left out.
            holes: bytes to pass over, as {first: stop}.
        """
        undecided: deque[Frame] = deque()
        offset = 0
        while offset < self.size:
            if offset in holes:
                offset = holes[offset]
                continue
            item = self.frame(offset)
            if isinstance(item, Frame):
                if item.durable > self.durable:
                    self.durable = item.durable
                if item.end <= self.size:
                    offset = item.end
                    if item.type == SNAPSHOT_END:
                        self.in_tail = True
                        self.durable = max(self.durable, offset)
                    if newest and self.in_tail:
                        undecided.append(item)
                        while undecided and undecided[0].end <= self.durable:
                            yield undecided.popleft()
                    else:
                        yield item
                    continue
            gap = self.gap(item)
            if newest and self.in_tail:
                witness = self.said_durable(offset, gap.stop)
                if witness is None:
                    self.torn = gap
                    break
                gap = gap._replace(witness=witness)
                self.durable = max(self.durable, witness.durable)
                yield from undecided  # they lie below what the witness says was durable
                undecided.clear()
            yield gap
            offset = gap.stop
        for frame in undecided:
            if frame.end > self.durable and not self.has_body(frame):
                reason = "the body of the batch does not match its checksum"
                self.torn = Gap(frame.offset, self.size, reason, frame)
                return
            yield frame

    def has_body(self, frame: Frame) -> bool:
        """Return True if a record's body is the one written."""
        if frame.body_ok is None:
            body = self.read(frame.body_offset, frame.body_length)
            return len(body) == frame.body_length and crc32c(body) == frame.body_crc
        return frame.body_ok

    def gap(self, item: Frame | Bad) -> Gap:
        """Return the bytes from an invalid record, or from one that reaches too far, to the next record."""
        after = self._first(item.offset + 1, lambda frame: True)
        stop = self.size if after is None else after.offset
        if isinstance(item, Bad):
            return Gap(item.offset, stop, item.reason)
        return Gap(item.offset, stop, f"a record reaches beyond byte {self.size}, where it must end", item)

    def _bytes(self, offset: int, length: int) -> bytes:
        """Return these bytes if the file has them (the caller compared with ``size``), else fewer."""
        start = offset - self._base
        if start < 0 or start + length > len(self._window):
            window = WINDOW_BYTES if self.check_bodies else SKIP_WINDOW_BYTES
            self._window = self.read(offset, min(max(window, length), self.size - offset))
            self._base, start = offset, 0
        return self._window[start : start + length]

    def frame(self, offset: int) -> Frame | Bad:
        """Return the record at ``offset``, or why there is none."""
        remaining = self.size - offset
        if remaining < PREFIX_BYTES:
            problem = f"only {remaining} bytes are left, a record has at least {PREFIX_BYTES}"
            return Bad(offset, problem if self.size else "the file is empty")
        prefix = self._bytes(offset, PREFIX_BYTES)
        if len(prefix) < PREFIX_BYTES:
            return Bad(offset, "the file ends inside a record")
        magic, header_crc, header_length, body_length, body_crc = PREFIX.unpack(prefix)
        if magic != MAGIC:
            return Bad(offset, f"no record begins here (found {prefix[:4]!r} instead of {MAGIC!r})")
        if header_length > HEADER_BYTES_MAX or body_length > BATCH_BYTES_MAX:
            return Bad(offset, f"lengths {header_length} and {body_length} are over the limits")
        size = PREFIX_BYTES + header_length
        if size > remaining:
            return Bad(offset, "the file ends inside the header of a record")
        head = self._bytes(offset, size)
        if crc32c(head[CRC_START:], self.salt if offset else 0) != header_crc:
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
            if size + body_length > remaining:
                body_ok = False  # the header names the batch: the caller decides, torn or damaged
            elif self.check_bodies:
                body = self._bytes(offset + size, body_length)
                body_ok = len(body) == body_length and crc32c(body) == body_crc
            else:
                body_ok = None
        end = offset + size + body_length
        return Frame(offset, fields[0], fields[1], fields, header_length, body_length, body_crc, body_ok, end)

    def _first(self, offset: int, accept: Callable[[Frame], bool]) -> Frame | None:
        """Return the first frame at ``offset`` or anywhere behind it that has a valid header and is accepted."""
        while offset < self.size:
            window = self.read(offset, min(WINDOW_BYTES, self.size - offset))
            hit = window.find(MAGIC)
            if hit < 0:
                offset += max(1, len(window) - len(MAGIC) + 1)
                continue
            frame = self.frame(offset + hit)
            if isinstance(frame, Frame):
                if accept(frame):
                    return frame
                offset = max(frame.offset + len(MAGIC), min(frame.end, self.size))
            else:
                offset += hit + len(MAGIC)
        return None

    def said_durable(self, offset: int, start: int = 0) -> Frame | None:
        """Return the first valid frame behind ``offset`` that says that something was durable there, if there is one.

        Args:
            start: before this there is no valid frame behind ``offset``.
        """
        return self._first(max(offset + 1, start), lambda frame: frame.durable > offset)


def start_of(path: Path) -> SegmentStart | None:
    """Return the first record of a segment file; None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            fd = file.fileno()
            size = os.fstat(fd).st_size
            frame = Scan(lambda at, length: os.pread(fd, length, at), size, check_bodies=False).frame(0)
            record = decode_record(frame.fields) if isinstance(frame, Frame) else None
    except (OSError, cbor.BadValue):
        return None
    return record if isinstance(record, SegmentStart) else None

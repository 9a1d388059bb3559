"""The segment that is being written, in memory."""

from __future__ import annotations

from quorumq.core.messages.records import BatchStored, DeletedPage, JournalRecord
from quorumq.core.values.types import BatchHeader
from quorumq.storage.disk import Buffer
from quorumq.storage.records import (
    BatchMoved,
    Framing,
    PageMoved,
    PartitionRange,
    SegmentFooter,
    encode_record,
    halves,
)
from quorumq.storage.segment import HEADER_BYTES_MAX, body_crc_of, encode_frame, salt_of
from quorumq.storage.segments import BatchPosition, Segments


class Tail:
    """The segment that records are appended to: begun just now in the account of all segments."""

    def __init__(self, directory: int, segments: Segments) -> None:
        self._segments = segments
        self._number = segments.current
        self._salt = salt_of(directory, self._number)
        self._ranges: dict[tuple[bytes, int], PartitionRange] = {}
        self._pages = 0
        self.end = 0  # bytes appended so far
        self.durable_end = 0  # number of them that are known to be durable
        self.snapshot_bytes = 0  # end of its snapshot
        self.small_bytes = 0  # bytes of records behind it that are no batches

    def add(
        self, record: JournalRecord | Framing, into: list[Buffer], encoded: tuple[bytes, Buffer] | None = None
    ) -> BatchPosition | None:
        """Append a record. Return its position, if it is kept by its number; else None.

        Args:
            into: list that gets its bytes. The body of a batch is not copied.
            encoded: its header and body, if they are known.

        Raises:
            StorageError: it is over its limits; nothing was appended.
        """
        header, body = encoded or encode_record(record, self.durable_end)
        body_crc = body_crc_of(body)
        frame = encode_frame(header, len(body), body_crc, self._salt)
        into.append(frame)
        position = None
        stored = record.stored if isinstance(record, BatchMoved) else record
        stored = stored.page if isinstance(stored, PageMoved) else stored
        if not isinstance(stored, BatchStored | DeletedPage):
            self.small_bytes += len(frame)
        else:
            position = BatchPosition(self._number, self.end, len(header), len(body), body_crc)
            self._segments.put(stored.number, position)
            self._segments.use(stored.number)
            if isinstance(stored, BatchStored):
                self._count(stored.batch.header, len(body))
            else:
                self._pages += 1
        if len(body):
            into.append(body)
        self.end += len(frame) + len(body)
        return position

    def add_cut(self, record: JournalRecord, into: list[Buffer]) -> int:
        """Append one record of a snapshot, in chunks if it is too large; return the number of chunks."""
        encoded = encode_record(record, 0)
        if len(encoded[0]) <= HEADER_BYTES_MAX:
            self.add(record, into, encoded)
            return 1
        return sum(self.add_cut(half, into) for half in halves(record))

    def begin(self, start: Framing) -> None:
        """Leave room for the segment's first record, which is written once its file is there."""
        header, _ = encode_record(start, 0)
        self.end = len(encode_frame(header, 0, 0, 0))

    def end_snapshot(self) -> None:
        """End the snapshot: it is durable before the file has its name."""
        self.snapshot_bytes = self.durable_end = self.end
        self.small_bytes = 0

    def _count(self, header: BatchHeader, body_bytes: int) -> None:
        """Note a batch for the footer."""
        key = (header.partition.topic, header.partition.number)
        at = header.published_ms
        old = self._ranges.get(key) or PartitionRange(*key, 0, at, at)
        first, last = min(old.first_published_ms, at), max(old.last_published_ms, at)
        self._ranges[key] = PartitionRange(*key, old.body_bytes + body_bytes, first, last)

    def footer(self) -> SegmentFooter:
        """Return the footer with the content of the segment."""
        return SegmentFooter(tuple(self._ranges[key] for key in sorted(self._ranges)), self._pages)

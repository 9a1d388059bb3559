"""Records read from the segment files of one directory.

Every reader uses it: the replay of a start, the salvage, and the readers of one batch.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from quorumq.core.messages.records import BatchStored, DeletedPage, JournalRecord
from quorumq.core.values.errors import StorageError
from quorumq.storage.damage import DamagedBatch, damaged_at
from quorumq.storage.disk import Disk
from quorumq.storage.records import NUMBERED, BatchMoved, Framing, PageMoved, SegmentStart, decode_record
from quorumq.storage.scan import Bad, Frame, Scan
from quorumq.storage.segment import FORMAT_VERSION, body_crc_of, salt_of, segment_name
from quorumq.storage.segments import BatchPosition
from quorumq.wire import cbor


class SegmentFiles:
    """The segments in a directory, as records. If ``read`` is given, scans call it instead of `Disk.read`."""

    def __init__(self, disk: Disk, read: Callable[[str, int, int], bytes] | None = None) -> None:
        self.disk = disk
        self._read = read or disk.read

    def scan(self, name: str, size: int, salt: int, *, check_bodies: bool) -> Scan:
        """Return a scan of the first ``size`` bytes of a segment file."""
        return Scan(partial(self._read, name), size, salt, check_bodies=check_bodies)

    def decode(self, name: str, frame: Frame) -> JournalRecord | Framing:
        """Return the record of a frame; StorageError if a newer version wrote it."""
        try:
            return decode_record(frame.fields)
        except cbor.BadValue as error:
            raise StorageError(
                f"{self.disk}/{name}, byte {frame.offset}: the record is intact but cannot be read: {error}. "
                f"If a newer version of quorumq has run here, start this node with that one"
            ) from error

    def batch(self, name: str, frame: Frame) -> BatchStored | BatchMoved | DeletedPage:
        """Return the record of a frame of a `NUMBERED` type. If it is a batch, its body is empty."""
        record = self.decode(name, frame)
        if isinstance(record, PageMoved):
            return record.page
        assert isinstance(record, BatchStored | BatchMoved | DeletedPage)
        return record

    def start(self, number: int, node: str, cluster_id: str) -> SegmentStart:
        """Return the first record of a segment, if this node of this cluster wrote it.

        Raises:
            DamagedDirectory: the record cannot be read, or is of another segment.
            StorageError: another node or cluster wrote it, or it has a newer format.
        """
        name = segment_name(number)
        frame = self.scan(name, self.disk.size(name), 0, check_bodies=False).frame(0)
        if isinstance(frame, Bad):
            raise damaged_at(self.disk, name, frame.offset, frame.reason)
        start = self.decode(name, frame)
        if not isinstance(start, SegmentStart):
            raise damaged_at(self.disk, name, 0, f"the first record is a {type(start).__name__}")
        if start.version > FORMAT_VERSION:
            raise StorageError(
                f"{self.disk}/{name} was written in format version {start.version} by a newer quorumq; this one reads "
                f"versions 1 to {FORMAT_VERSION}. Start this node with the release that wrote it, or a newer one. "
                "Nothing was changed: keep the directory as it is, it is this node's memory"
            )
        if (start.node, start.cluster_id) != (node, cluster_id):
            raise StorageError(
                f"{self.disk} is the data directory of node {start.node!r} of cluster {start.cluster_id!r}, and "
                f"this is node {node!r} of cluster {cluster_id!r}: point the node at its own directory"
            )
        if start.segment != number:
            raise damaged_at(
                self.disk, name, 0, f"it says that it is segment {start.segment}: the file was renamed"
            )
        return start

    def stored_at(self, position: BatchPosition, directory: int) -> BatchStored | DeletedPage:
        """Return the record at a position. Only its header is read: if it is a batch, its body is empty.

        Raises:
            StorageError: the file cannot be read. It is `DamagedDirectory` if the header is damaged.
        """
        name = segment_name(position.segment)
        scan = Scan(
            lambda offset, length: self.disk.read(name, offset, min(length, position.offset - offset)),
            position.end,
            salt_of(directory, position.segment),
            check_bodies=False,
        )
        try:
            frame = scan.frame(position.record)
        except OSError as error:
            raise StorageError(f"{self.disk}/{name} cannot be read: {error}") from error
        if isinstance(frame, Bad):
            raise damaged_at(self.disk, name, frame.offset, frame.reason)
        if frame.type not in NUMBERED:
            problem = f"a record of type {frame.type} where a batch was written"
            raise damaged_at(self.disk, name, frame.offset, problem)
        record = self.batch(name, frame)
        return record.stored if isinstance(record, BatchMoved) else record

    def body(
        self, position: BatchPosition, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> bytes:
        """Return bytes [start, stop) of a batch's body, when a commit has written it.

        Args:
            check: read the whole body and compare its checksum first. If False, only the requested bytes are read,
                and the caller has to check the records' own checksums.

        Raises:
            DamagedBatch: it differs from the bytes written, or the disk itself failed.
            StorageError: the file cannot be read for another reason.
        """
        stop = position.length if stop is None else stop
        assert 0 <= start <= stop <= position.length, (start, stop, position)
        name = segment_name(position.segment)
        low, high = (0, position.length) if check else (start, stop)
        try:
            data = self.disk.read(name, position.offset + low, high - low)
        except OSError as error:
            if error.errno != errno.EIO:
                raise StorageError(f"{self.disk}/{name} cannot be read: {error}") from error
            data, reason = b"", str(error)
        else:
            reason = "its checksum does not match" if len(data) == high - low else "the file ends inside it"
        if len(data) != high - low or (check and body_crc_of(data) != position.crc):
            raise DamagedBatch(
                f"{self.disk}/{name}: the body of the batch at byte {position.record} is damaged: {reason}; "
                f"fetch it from another replica"
            )
        return data[start - low : stop - low]

    def damaged_body(self, position: BatchPosition) -> bytes:
        """Return a damaged body as it is, filled up with zeros. If the disk cannot read it, all bytes are zero."""
        try:
            data = self.disk.read(segment_name(position.segment), position.offset, position.length)
        except OSError:
            data = b""
        return data.ljust(position.length, b"\0")

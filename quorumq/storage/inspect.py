"""Content of a segment, for a person with a broken disk.

The journal refuses damage; this shows it. It reads one file, locks and changes nothing, and goes on behind
unreadable places. It says the offset and length of each, and whether it looks like a torn tail (which a start
cuts) or like damage (for which a start refuses the directory).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from quorumq.core.messages.records import BatchStored
from quorumq.core.values.errors import StorageError
from quorumq.storage.records import TYPE_OF, BatchMoved, SegmentStart, decode_record
from quorumq.storage.scan import NO_HOLES, Frame, Scan
from quorumq.storage.segment import FORMAT_VERSION, NAME_SUFFIX, salt_of, segment_number
from quorumq.wire.cbor import BadValue

UNREADABLE: Final = "(unreadable)"
"""Type name of a place without a readable record."""


class Inspected(NamedTuple):
    """One record, or one unreadable place.

    ``type`` is the record's name or `UNREADABLE`; ``fields`` its fields by name (for a batch: those of its header,
    without offsets and checksums; for an unreadable place: ``bytes``, its length). ``notes`` is empty if nothing is
    wrong.
    """

    offset: int
    type: str
    fields: dict[str, Any]
    notes: tuple[str, ...]


def inspect_segment(path: str | os.PathLike[str]) -> Iterator[Inspected]:
    """Return everything in a segment file, in the order of the file.

    Args:
        path: the file; one that is being written by a running node can be read too, and ends where it ends.

    Raises:
        StorageError: there is no such file, or it cannot be opened.
    """
    path = Path(path)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below, by a generator that may be left early
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}; give the path of a segment file"
        ) from error
    return _inspect(path, file.fileno(), file)


def _inspect(path: Path, fd: int, file: Any) -> Iterator[Inspected]:
    with file:
        size = os.fstat(fd).st_size
        scan = Scan(lambda offset, length: os.pread(fd, length, offset), size, check_bodies=True)
        if not size:
            yield Inspected(0, UNREADABLE, {"bytes": 0}, ("the file is empty",))
            return
        first = scan.frame(0)
        offset = 0
        if isinstance(first, Frame) and first.type == TYPE_OF[SegmentStart]:
            shown, start = _start(path, first)
            yield shown
            offset = first.end
            salt: int | None = None if start is None else salt_of(start.directory, start.segment)
        else:
            salt = _salt_from_neighbours(path)
        if salt is None:
            note = (
                "without the directory's id, which stands in the first record, no other record can be checked"
            )
            yield Inspected(offset, UNREADABLE, {"bytes": size - offset}, (note,))
            return
        scan.salt = salt
        for item in scan.records(holes={0: offset} if offset else NO_HOLES):
            if isinstance(item, Frame):
                yield _record(item, scan)
            elif item.frame is not None:
                yield _record(item.frame, scan)
            else:
                notes = (item.reason, _verdict(scan, item.offset))
                yield Inspected(item.offset, UNREADABLE, {"bytes": item.stop - item.offset}, notes)


def _verdict(scan: Scan, offset: int) -> str:
    """Torn or damaged (docs/file-format.md, "Torn or damaged")."""
    if offset == 0:
        return "damaged: every segment begins with a record that says whose it is"
    witness = scan.said_durable(offset)
    if witness is None:
        return "a torn tail, unless the segment has a successor whose first record counts these bytes"
    return f"damaged: the record at byte {witness.offset} says that everything below {witness.durable} was durable"


def _start(path: Path, frame: Frame) -> tuple[Inspected, SegmentStart | None]:
    try:
        start = decode_record(frame.fields)
    except BadValue as error:
        return Inspected(0, UNREADABLE, {"bytes": frame.end}, (str(error),)), None
    assert isinstance(start, SegmentStart)
    notes = []
    if start.version > FORMAT_VERSION:
        notes.append(f"format version {start.version}; this program reads up to {FORMAT_VERSION}")
    if segment_number(path.name) not in (start.segment, None):
        notes.append(f"the file was renamed: it is segment {start.segment}")
    return Inspected(0, type(start).__name__, start._asdict(), tuple(notes)), start


def _record(frame: Frame, scan: Scan) -> Inspected:
    try:
        record = decode_record(frame.fields)
    except BadValue as error:
        extent = {"type": frame.type, "bytes": frame.end - frame.offset}
        return Inspected(frame.offset, UNREADABLE, extent, (f"intact, but {error}",))
    notes: tuple[str, ...] = ()
    fields: dict[str, Any] = record._asdict()
    if isinstance(record, BatchStored | BatchMoved):
        stored = record.stored if isinstance(record, BatchMoved) else record
        header = stored.batch.header
        fields = {
            "number": stored.number,
            "partition": str(header.partition),
            "sections": ", ".join(map(str, header.spans)),
            "messages": header.size,
            "body_bytes": frame.body_length,
            "published_ms": header.published_ms,
            "received_ms": stored.received_ms,
        }
        if isinstance(record, BatchMoved) and record.damaged:
            notes = ("the body was damaged already when the batch was moved here",)
        if frame.body_ok is False:
            notes = (_damaged_body(stored, frame, scan),)
    fields["durable"] = frame.durable
    return Inspected(frame.offset, type(record).__name__, fields, notes)


def _damaged_body(record: BatchStored, frame: Frame, scan: Scan) -> str:
    header = record.batch.header
    body = scan.read(frame.body_offset, frame.body_length)
    bad = [
        index
        for index in range(header.size)
        if crc32c(body[header.end_of(index - 1) : header.end_of(index)]) != header.crc_of(index)
    ]
    which = f"messages {', '.join(map(str, bad[:10]))}{', …' if len(bad) > 10 else ''} of {header.size}"
    return f"the body is damaged ({which}); {_verdict(scan, frame.offset)}"


def _salt_from_neighbours(path: Path) -> int | None:
    """Return the salt of a segment with an unreadable start, by the number in its name and the id in other segments."""
    number = segment_number(path.name)
    if number is None:
        return None
    for other in sorted(path.parent.glob(f"*{NAME_SUFFIX}")):
        if other == path:
            continue
        start = start_of(other)
        if start is not None:
            return salt_of(start.directory, number)
    return None


def start_of(path: Path) -> SegmentStart | None:
    """Return the first record of a segment file, if it can be read."""
    try:
        for first in inspect_segment(path):
            return SegmentStart(**first.fields) if first.type == SegmentStart.__name__ else None
    except StorageError:
        pass
    return None

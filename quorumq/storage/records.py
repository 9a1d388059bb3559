"""Type numbers of a journal's records on disk.

Numbers below 16 are for the journal's own records (the begin of a segment, the end of its snapshot, its contents), and
the others for the core's (core/messages/records.py). A number is never used for another type, and fields are only
appended. docs/file-format.md lists them all; a test compares that list with this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from quorumq.core.messages import SpanRecord
from quorumq.core.messages import records as core
from quorumq.core.messages.records import BatchStored, DeletedPage, JournalRecord
from quorumq.core.values.types import STAMP_ZERO, Death, NodeId
from quorumq.storage.disk import Buffer
from quorumq.wire import cbor
from quorumq.wire.bodies import Lift
from quorumq.wire.values import Decoders, encode_value


class Earlier(NamedTuple):
    """An older segment that still counts: its first ``bytes`` bytes, which hold ``batches`` needed batches.

    Bytes behind these were never reported durable, or were written again into a younger segment.
    """

    segment: int
    bytes: int
    batches: int


class DamagedAt(NamedTuple):
    """A batch record of an older segment whose body is known to be damaged: it is not served any more."""

    segment: int
    offset: int


class Hole(NamedTuple):
    """Bytes [first, stop) of an older segment that could not be read when the directory was salvaged."""

    segment: int
    first: int
    stop: int


class SegmentStart(NamedTuple):
    """The first record of a segment: its owner, and the older segments that still count, oldest first.

    ``position`` is the number of records of the core that were appended to this directory before this segment.
    ``next_number`` is above every batch number that was ever used in it. If ``not_trusted`` is not empty, the node must
    not vote from it: it was damaged for this reason, without a resync since. ``lies`` is `Disk.location` of this file,
    8 bytes: if the file has another one, the directory was copied. ``location`` is the same in all segments that were
    written since the last copy.
    """

    version: int
    node: NodeId
    cluster_id: str
    directory: int
    segment: int
    earlier: tuple[Earlier, ...]
    damaged: tuple[DamagedAt, ...]
    position: int = 0
    next_number: int = 0
    holes: tuple[Hole, ...] = ()
    not_trusted: str = ""
    location: int = 0
    lies: bytes = b""


class SnapshotEnd(NamedTuple):
    """End of the snapshot, with the number of records between the segment's start and this one."""

    records: int


class PartitionRange(NamedTuple):
    """Content of a segment for one partition. Times by the producers' clocks, in milliseconds since 1970."""

    topic: bytes
    partition: int
    body_bytes: int
    first_published_ms: int
    last_published_ms: int


class SegmentFooter(NamedTuple):
    """The last record of a segment if a running node rolled it: its batches and its pages, for offline readers."""

    partitions: tuple[PartitionRange, ...]
    pages: int = 0


class DurableMark(NamedTuple):
    """Says nothing but its durable offset. If it follows CLEAN_STOP, the CLEAN_STOP still counts."""


class BatchesDropped(NamedTuple):
    """Batches that are not needed any more, as ranges [first, stop) of their numbers.

    If ``segment`` is 0, in a tail, it drops every record of these batches so far. Else, in a snapshot, it drops those
    in that older segment alone, because the batch was dropped or moved from there.
    """

    ranges: tuple[tuple[int, int], ...]
    segment: int

    def numbers(self) -> Iterator[int]:
        return (number for first, stop in self.ranges for number in range(first, stop))


class BatchMoved(NamedTuple):
    """A batch copied out of an older segment, so that its file can be deleted. This record replaces the one there.

    If it was found ``damaged``, it is copied as it was. It is still not served, and every start reports it.
    """

    stored: BatchStored
    damaged: bool


class PageMoved(NamedTuple):
    """A page of deleted names copied out of an older segment. Why a type of its own: it counts in no position."""

    page: DeletedPage


Framing = SegmentStart | SnapshotEnd | SegmentFooter | DurableMark | BatchesDropped | BatchMoved | PageMoved

TYPE_OF: Final[dict[type, int]] = {
    SegmentStart: 1,
    SnapshotEnd: 2,
    SegmentFooter: 3,
    DurableMark: 4,
    BatchesDropped: 5,
    BatchMoved: 6,
    PageMoved: 7,
    core.DirectoryMade: 16,
    core.Started: 17,
    core.Trusted: 18,
    core.PeerSeen: 19,
    core.Reserved: 20,
    core.TopicPut: 21,
    core.GroupPut: 22,
    core.BatchStored: 23,
    core.RecordsMerged: 24,
    core.AttemptsCounted: 25,
    core.DelaysSet: 26,
    core.CleanStopped: 27,
    core.DecisionPut: 33,
    core.PartitionTrusted: 34,
    core.PartitionDropped: 35,
    core.AbsentNoted: 37,
    core.DeletedNoted: 44,
    DeletedPage: 45,
    core.TrustLost: 40,
    core.PeerPosition: 41,
    core.ClusterMade: 42,
    core.ClusterPut: 46,
    core.DirectoryLocation: 43,
    core.Reclaimed: 30,
    core.SessionsPromised: 31,
    core.SessionsClosed: 32,
}

CLASS_OF: Final[dict[int, type[Any]]] = {number: cls for cls, number in TYPE_OF.items()}
_DECODERS: Final = Decoders(CLASS_OF)
BATCH_STORED: Final = TYPE_OF[BatchStored]
BATCH_MOVED: Final = TYPE_OF[BatchMoved]
NUMBERED: Final = frozenset({BATCH_STORED, BATCH_MOVED, TYPE_OF[DeletedPage], TYPE_OF[PageMoved]})
"""Records that are kept by their number in any segment."""
SNAPSHOT_END: Final = TYPE_OF[SnapshotEnd]
DURABLE_MARK: Final = TYPE_OF[DurableMark]
CLEAN_STOPPED: Final = TYPE_OF[core.CleanStopped]
FRAMING_MAX: Final = 15
"""Types up to this one are the journal's own. The core does not get them."""

RANGES_MAX: Final = 65_536
"""Ranges in one `BatchesDropped`. If there are more, several are written."""

assert len(CLASS_OF) == len(TYPE_OF), "two record types share a number"


def encode_record(record: JournalRecord | Framing, durable: int) -> tuple[bytes, Buffer]:
    """Return the header of a record, as [type, durable, *fields], and its body, which is not copied.

    Args:
        durable: the offset up to which the segment is known to be durable now.
    """
    if type(record) is core.RecordsMerged and len(record.entries) > 1:
        record = _deaths_once(record)
    lift = Lift()
    header = encode_value(record, (TYPE_OF[type(record)], durable), lift)
    return header, lift.bodies[0] if lift.bodies else b""


def decode_record(fields: tuple[Any, ...]) -> JournalRecord | Framing:
    """Return the record of a decoded header. If it is a batch, its body is empty: it stays in the segment.

    Raises:
        BadValue: this version does not know the type, or the fields do not fit it.
    """
    decode = _DECODERS[fields[0]]
    if decode is None:
        raise cbor.BadValue(f"a record of type {fields[0]}, which this version of quorumq does not know")
    record: JournalRecord | Framing = decode(fields[2:], None)
    return _deaths_again(record) if type(record) is core.RecordsMerged and record.again else record


def _deaths_once(record: core.RecordsMerged) -> core.RecordsMerged:
    """Return the record with each death once. If more entries have it, they keep only their ballots and redrives."""
    there: dict[Death, int] = {}
    entries, again = list(record.entries), []
    for at, (span, merged) in enumerate(entries):
        if merged.death is None:
            continue
        ballot, redrives = merged.death.ballot, merged.death.redrives
        first = there.setdefault(merged.death._replace(ballot=STAMP_ZERO, redrives=0), at)
        if first != at:
            again.append((at, first))
            entries[at] = SpanRecord(span, merged._replace(death=Death(ballot, "", redrives=redrives)))
    return record._replace(entries=tuple(entries), again=tuple(again)) if again else record


def _deaths_again(record: core.RecordsMerged) -> core.RecordsMerged:
    """Undo `_deaths_once`.

    Raises:
        BadValue: an entry that ``again`` names is not there, or has no death.
    """
    entries = list(record.entries)
    for at, first in record.again:
        abridged, other = (
            entries[number].record.death if number < len(entries) else None for number in (at, first)
        )
        if abridged is None or other is None:
            raise cbor.BadValue(f"entry {at} is said to have the death of {first}: one of them has none")
        death = other._replace(ballot=abridged.ballot, redrives=abridged.redrives)
        entries[at] = SpanRecord(entries[at].span, entries[at].record._replace(death=death))
    return record._replace(entries=tuple(entries), again=())


def dropped(numbers: Iterable[int], segment: int = 0) -> Iterator[BatchesDropped]:
    """Yield the records that say that these batches are dropped; ``numbers`` in any order."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    for at in range(0, len(ranges), RANGES_MAX):
        yield BatchesDropped(tuple(ranges[at : at + RANGES_MAX]), segment)


def halves(record: JournalRecord) -> Iterator[JournalRecord]:
    """Yield the two halves of a record that is too large to be written as one.

    Raise `ValueError` if the record is no list of entries to merge, or has only one.
    """
    if not isinstance(record, core.RecordsMerged | core.AttemptsCounted | core.DelaysSet):
        raise ValueError(f"a {type(record).__name__} is too large for the journal and cannot be cut in two")
    entries: Any = record.entries
    middle = len(entries) // 2
    if not middle:
        raise ValueError(f"one entry of a {type(record).__name__} is too large for the journal")
    yield record._replace(entries=entries[:middle])
    yield record._replace(entries=entries[middle:])

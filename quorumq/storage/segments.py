"""Bookkeeping of segment files: the valid ones, the number of live batches in each, and the bodies known to be
damaged.

Why: an older segment is needed only for the batches in it. If none of them is needed, the next roll deletes it. If few
are, it is worth compaction.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumq.core.messages.records import BatchStored, DeletedPage
from quorumq.core.values.limits import MIB
from quorumq.storage.records import BatchMoved, DamagedAt, Earlier, Hole
from quorumq.storage.scan import Frame
from quorumq.storage.segment import PREFIX, segment_name

SEGMENT_BYTES: Final = 64 * MIB
"""Bytes of a segment, its snapshot included, at which it is rolled; more if its tail is shorter than the snapshot."""

MOVED_OVERHEAD: Final = 16
"""Most bytes by which a batch's record may grow when it is moved."""

SPARSE_SHARE: Final = 0.5
"""An older segment whose live batches take less than this share of it is worth compaction."""


class BatchPosition(NamedTuple):
    """Position of a batch: its record begins at ``record`` of segment ``segment``, in bytes."""

    segment: int
    record: int
    header_length: int
    length: int  # bytes of the body
    crc: int  # CRC of the body

    @property
    def offset(self) -> int:
        """Offset of the body."""
        return self.record + PREFIX.size + self.header_length

    @property
    def end(self) -> int:
        """Offset of the record's end."""
        return self.offset + self.length


class FoundBatch(NamedTuple):
    """A batch that was read from a segment without its body, or a page of deleted names, which is kept alike.

    If it was ``moved``, it replaces an earlier one of the same number. If it is ``damaged``, it is not to be served,
    nor counted as stored.
    """

    record: BatchStored | DeletedPage
    position: BatchPosition
    moved: bool
    damaged: bool


@dataclass(slots=True, eq=False)
class Segment:
    """A segment that counts, and its batches that are still needed."""

    bytes: int = 0  # number of its bytes that count, when nothing is appended to it any more
    batches: int = 0  # live batches: neither dropped nor moved, damaged ones included
    live_bytes: int = 0  # bytes of their records
    dead: array[int] = field(
        default_factory=lambda: array("Q")
    )  # numbers of batches that were dropped or moved
    low: int = 1 << 64  # no batch number in it is below
    high: int = 0  # and none is above

    def put(self, number: int, position: BatchPosition) -> None:
        self.batches += 1
        self.live_bytes += position.end - position.record
        self.low, self.high = min(self.low, number), max(self.high, number)

    @property
    def sparse(self) -> bool:
        """True if it is worth compaction."""
        return self.batches > 0 and self.live_bytes < SPARSE_SHARE * self.bytes


@dataclass(eq=False)
class Segments:
    """All segments that count, oldest first; the one being written is the last."""

    by_number: dict[int, Segment] = field(default_factory=dict)
    current: int = 0  # the number of the one being written; 0 before the first
    last_number: int = 0  # no file has a higher number, finished or not
    next_number: int = 0  # above every batch number that was ever used in this directory
    damaged: dict[DamagedAt, None] = field(default_factory=dict)  # batches whose body is known to be damaged
    holes: dict[Hole, None] = field(default_factory=dict)  # ranges that could not be read at a salvage
    obsolete: list[str] = field(default_factory=list)  # files of no use once the next segment is there
    aside: list[str] = field(default_factory=list)  # files to rename then (`ASIDE_SUFFIX`)
    _sparse: dict[int, None] = field(default_factory=dict)  # older ones that are worth compaction
    _empty: dict[int, None] = field(default_factory=dict)  # those without a live batch

    def batch_of(
        self, segment: int, frame: Frame, record: BatchStored | BatchMoved | DeletedPage
    ) -> FoundBatch:
        """Return a batch whose record was read; note damage of its body. A page of deleted names counts as moved."""
        moved = isinstance(record, BatchMoved | DeletedPage)
        stored, copied_damage = (
            (record.stored, record.damaged) if isinstance(record, BatchMoved) else (record, False)
        )
        self.use(stored.number)
        position = BatchPosition(
            segment, frame.offset, frame.header_length, frame.body_length, frame.body_crc
        )
        if frame.body_ok is False:
            self.note_damaged(position)
        damaged = copied_damage or DamagedAt(segment, frame.offset) in self.damaged
        return FoundBatch(stored, position, moved, damaged)

    def use(self, number: int) -> None:
        """Note that a batch number is taken, even if its batch is not kept."""
        self.next_number = max(self.next_number, number + 1)

    def put(self, number: int, position: BatchPosition) -> None:
        """Count a batch that is needed at its position."""
        self.by_number[position.segment].put(number, position)

    def drop(self, number: int, position: BatchPosition) -> None:
        """Count a batch as not needed there any more. If its segment has no needed batch, the next roll deletes it.

        Until that is committed, its file stays. Because of the `BatchesDropped` or `BatchMoved` that the caller
        appended, a replay does not restore the batch.
        """
        state = self.by_number[position.segment]
        assert state.batches > 0, f"segment {position.segment} has no live batch left"
        state.batches -= 1
        state.live_bytes -= position.end - position.record
        state.dead.append(number)
        self.damaged.pop(DamagedAt(position.segment, position.record), None)
        self.assess(position.segment)

    def note_damaged(self, position: BatchPosition) -> None:
        """Note that the body of this batch is damaged: the next segment says so, and every start reports it."""
        self.damaged[DamagedAt(position.segment, position.record)] = None

    def assess(self, segment: int) -> None:
        """Note if an older segment is worth compaction, or empty."""
        if segment == self.current:
            return
        state = self.by_number[segment]
        for belongs, table in ((state.sparse, self._sparse), (not state.batches, self._empty)):
            if belongs:
                table[segment] = None
            else:
                table.pop(segment, None)

    def begin(self) -> tuple[Earlier, ...]:
        """Begin a new segment. If an older one has no live batch, it is obsolete. Return the others."""
        for number in [number for number, state in self.by_number.items() if not state.batches]:
            del self.by_number[number]
            self.obsolete.append(segment_name(number))
        self._empty.clear()
        self.damaged = {at: None for at in self.damaged if at.segment in self.by_number}
        self.holes = {hole: None for hole in self.holes if hole.segment in self.by_number}
        earlier = tuple(
            Earlier(number, state.bytes, state.batches) for number, state in self.by_number.items()
        )
        self.last_number += 1
        last, self.current = self.current, self.last_number
        self.by_number[self.current] = Segment()
        if last in self.by_number:
            self.assess(last)
        return earlier

    @property
    def live(self) -> dict[int, int]:
        """Number of live batches of each segment that counts, oldest first; the last is the current one."""
        return {number: state.batches for number, state in self.by_number.items()}

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes of the files that the next roll deletes."""
        return sum(self.by_number[segment].bytes for segment in self._empty) if self._empty else 0

    @property
    def has_sparse(self) -> bool:
        """True if any older segment is worth compaction."""
        return bool(self._sparse)

    def sparsest(self, bytes_free: int) -> int | None:
        """Return the sparsest older segment whose live batches fit into ``bytes_free`` bytes; None if there is none."""
        best, least = None, SPARSE_SHARE
        for segment in self._sparse:
            state = self.by_number[segment]
            share = state.live_bytes / state.bytes
            if share < least and state.live_bytes + state.batches * MOVED_OVERHEAD <= bytes_free:
                best, least = segment, share
        return best

    def numbers_in(self, segment: int) -> tuple[int, int]:
        """Return the lowest and highest batch number that a segment may have; (1 << 64, 0) if gone or without any."""
        state = self.by_number.get(segment)
        return (1 << 64, 0) if state is None or not state.batches else (state.low, state.high)

    def check(self) -> None:
        assert list(self.by_number) == sorted(self.by_number), "oldest first"
        if self.current:
            assert next(reversed(self.by_number)) == self.current, "and the current one last"
            older = [(number, state) for number, state in self.by_number.items() if number != self.current]
            assert set(self._empty) == {n for n, state in older if not state.batches}
            assert set(self._sparse) == {n for n, state in older if state.sparse}
        for state in self.by_number.values():
            assert state.batches >= 0
            assert (state.live_bytes > 0) == (state.batches > 0)

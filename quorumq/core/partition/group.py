"""One group's view of one partition on one replica.

A group is a reader. Here is everything that a replica knows on its behalf: the record of each message (its
tombstone, where it has one), the holds, the attempts that ended, the delays, and, derived from those, what is
available. "Available" is never a cursor: it is present - tombstones - holds - delays, worked out again for just
the spans that changed, so that nothing can be skipped by moving past it.
"""

from __future__ import annotations

from typing import NamedTuple

from sortedcontainers import SortedDict

from quorumq.core.closed import ClosedOrigins
from quorumq.core.messages import Counted, Digest, NotDue
from quorumq.core.partition.holds import Held, HoldTable
from quorumq.core.spans import SpanMap, SpanSet
from quorumq.core.types import (
    OPEN_ZERO,
    Kind,
    Letter,
    Origin,
    Record,
    Span,
    Stamp,
    merge_records,
    record_rank,
)


class Attempts(NamedTuple):
    """How many attempts at (generation, redrive number ``n``) have ended by expiry or REJECT."""

    generation: int
    n: int
    ended: int


class Delay(NamedTuple):
    """A REJECT's delay: the message is not due before ``due`` (monotonic seconds).

    It delays (generation, n) alone. The higher (generation, n, ballot) wins.
    """

    n: int
    ballot: Stamp
    due: float
    generation: int = 0


DEAD_SUFFIX = "!dead"
"""The dead letters of group ``g`` are read as group ``g!dead``."""

DEAD_LETTER_TOPIC = ".deadletters"
"""The dead letters of topic ``t`` have the name ``t.deadletters`` too."""


class GroupView:
    """One group in one partition of one replica.

    Args:
        name: the group's name.
        floor: for the hold table: stamps up to here may have been granted and forgotten.
        closed: the partition's closed origins: all of their messages are settled, and nothing is kept of them.

    Attributes:
        generation: the current one: records of older ones are void where ``from_ms`` covers the message.
        from_ms: the start predicate: the generation reads batches published at or after this time of day.
        dead: the group of this group's dead letters, where somebody reads it.
    """

    __slots__ = (
        "attempts",
        "available",
        "closed",
        "dead",
        "delays",
        "digests",
        "from_ms",
        "generation",
        "hints",
        "holds",
        "name",
        "offered",
        "ready",
        "records",
    )

    def __init__(self, name: str, floor: int, closed: ClosedOrigins) -> None:
        self.name = name
        self.closed = closed
        self.generation = 0
        self.from_ms = 0
        self.dead: DeadView | None = None
        self.records: SpanMap[Record] = SpanMap()
        self.holds = HoldTable(floor)
        self.attempts: SpanMap[Attempts] = SpanMap()
        self.delays: SpanMap[Delay] = SpanMap()
        self.hints: SpanMap[float] = SpanMap()  # held elsewhere until then, as a NOK said: for choosing only
        self.available = SpanSet()
        self.digests: dict[Origin, Digest] = {}  # of records, attempts and delays; dropped where those change
        self.ready: SortedDict = SortedDict()  # (published_ms, batch number) -> available since (mono)
        self.offered: dict[int, int] = {}  # batch number -> how many of its messages are available

    # ------------------------------------------------------------------ records

    @property
    def home(self) -> GroupView:
        """The view that keeps the records: this one, or the source of a dead-letter group."""
        return self

    def covers(self, published_ms: int) -> bool:
        """Whether the generation's start predicate holds for a batch published then, by its producer's clock."""
        return published_ms >= self.from_ms

    def record_pieces(self, span: Span, generation: int | None = None) -> list[tuple[Span, Record]]:
        """``span`` in pieces of one record each, as ``generation`` reads them (the current one if None).

        Ask it of messages that the generation covers: what an older one recorded of them is void, and they are
        OPEN at n = 0 (docs/protocol.md, "group, generation").
        """
        current = self.generation if generation is None else generation
        fresh = Record(current, 0, Kind.OPEN)
        return [
            (part, fresh if record is None or record.generation < current else record)
            for part, record in self.records.split(span)
        ]

    def readable(self, span: Span, covered: bool) -> list[tuple[Span, Record]]:
        """The parts of ``span`` that may be delivered but for holds and delays, with their records.

        Args:
            span: messages of one batch.
            covered: whether the start predicate holds for that batch. Where it does not, a message is read only
                if it was redriven in this very generation.
        """
        if covered:
            return [item for item in self.record_pieces(span) if item[1].kind == Kind.OPEN]
        return [
            (part, record)
            for part, record in self.records.within(span)
            if record.kind == Kind.OPEN and record.generation == self.generation
        ]

    def shown(self, span: Span, covered: bool) -> list[tuple[Span, Record]]:
        """``span`` with its records as PEEK shows them; arguments as for `readable`."""
        return self.record_pieces(span) if covered else self.record_pieces(span, 0)

    def asked(self, generation: int, n: int) -> Record:
        """What the record must be for a HOLD that names ``generation`` and ``n``."""
        return Record(generation, n, Kind.OPEN)

    def on_asked(self, span: Span, asked: Record) -> list[tuple[Span, Record, bool]]:
        """A HOLD names ``asked``: it is merged, as a redrive that we have not heard of may be behind it."""
        return self.merge(span, asked)

    def settled(self, generation: int, n: int) -> Record:
        """What an ACK of a delivery at (generation, n) writes."""
        return Record(generation, 0, Kind.ACKED)

    def letters(self, span: Span) -> list[tuple[Span, Letter | None]]:
        """``span`` in pieces with the letter that goes with a delivery: in a dead-letter group, why it died."""
        return [(span, None)]

    def is_stale(self, generation: int) -> bool:
        """Whether ``generation`` was rewound since: what names it is refused."""
        return generation < self.generation

    def merge(self, span: Span, record: Record) -> list[tuple[Span, Record, bool]]:
        """Merge ``record`` into ours; per piece what it is now, and whether it changed.

        OPEN at n = 0 is never written down: it is what a covered message is without a record of its generation.
        ACKED ends the message's attempts and its delay. No record ends a hold: another delivery than the one that was
        acked, or died, may be live, and a rewind or a redrive may open the message again before its hold has run out
        (docs/protocol.md, "record, hold key").
        """
        if span.origin in self.closed:
            return [(span, max(record, Record(record.generation, 0, Kind.ACKED), key=record_rank), False)]
        result: list[tuple[Span, Record, bool]] = []
        implicit = record.kind == Kind.OPEN and record.n == 0
        for part, ours in self.records.split(span):
            merged = merge_records(ours or OPEN_ZERO, record)
            changed = merged != (ours or OPEN_ZERO) and not implicit
            if changed:
                self.records.set(part, merged)
                self.digests.pop(part.origin, None)
                if merged.kind == Kind.ACKED:
                    self.on_acked(part)
                    if not self.is_stale(merged.generation):
                        self.attempts.remove(part)
                        self.delays.remove(part)
                elif merged.kind == Kind.DEAD:
                    self.on_learned_dead(part)
            result.append((part, merged, changed))
        return result

    def is_acked(self, span: Span, generation: int) -> bool:
        """Whether ``span`` (of one record) is ACKED in ``generation`` or a newer one."""
        record = self.records.get(span.origin, span.start)
        return record is not None and record.kind == Kind.ACKED and record.generation >= generation

    def on_acked(self, span: Span) -> None:
        """ACKED was merged for ``span``. It ends no hold; the explorer has a version of this rule that does."""

    def on_learned_dead(self, span: Span) -> None:
        """A DEAD was merged for ``span``. It ends no hold; the explorer has a version of this rule that does."""

    # ------------------------------------------------------- attempts and delays

    def count_attempt(self, span: Span, held: Held) -> list[Counted]:
        """A hold ended by time or by REJECT; the new counts.

        They are by one more than when it was granted: a peer's count of the same hold may be here already.
        """
        counted: list[Counted] = []
        new = Attempts(held.generation, held.n, held.ended + 1)
        for part, old in self.attempts.split(span) if span.origin not in self.closed else ():
            if old is None or old < new:
                self.attempts.set(part, new)
                self.digests.pop(part.origin, None)
                counted.append(Counted(part, new.n, new.ended, new.generation))
        return counted

    def merge_attempts(self, counted: Counted) -> bool:
        """Merge a count by maximum; whether anything changed."""
        changed = False
        new = Attempts(counted.generation, counted.n, counted.ended)
        for open_part in self._not_acked(counted.span, new.generation):
            for part, old in self.attempts.split(open_part):
                if old is None or old < new:
                    self.attempts.set(part, new)
                    self.digests.pop(part.origin, None)
                    changed = True
        return changed

    def _not_acked(self, span: Span, generation: int) -> list[Span]:
        """The parts of ``span`` whose attempts and delays in ``generation`` count: an ACK ended those of the others."""
        if span.origin in self.closed:
            return []
        return [
            part
            for part, record in self.records.split(span)
            if record is None or record.kind != Kind.ACKED or record.generation < generation
        ]

    def attempts_at(self, span: Span, generation: int, n: int) -> list[tuple[Span, int]]:
        """``span`` in pieces with the count of attempts ended at (generation, n)."""
        return [
            (part, old.ended if old is not None and old[:2] == (generation, n) else 0)
            for part, old in self.attempts.split(span)
        ]

    def merge_delay(self, span: Span, delay: Delay) -> list[Span]:
        """Keep the delay with the higher (generation, n, ballot), ours where they are equal; where it was taken."""
        taken: list[Span] = []
        for open_part in self._not_acked(span, delay.generation):
            for part, ours in self.delays.split(open_part):
                if ours is None or (ours.generation, *ours[:2]) < (delay.generation, *delay[:2]):
                    self.delays.set(part, delay)
                    self.digests.pop(part.origin, None)
                    taken.append(part)
        return taken

    def not_due(self, span: Span, generation: int, n: int, now: float) -> list[tuple[Span, Delay | None]]:
        """``span`` in pieces with the delay that keeps (generation, n) from being delivered, or None."""
        return [
            (
                part,
                delay
                if delay is not None and (delay.generation, delay.n) == (generation, n) and delay.due > now
                else None,
            )
            for part, delay in self.delays.split(span)
        ]

    def delays_to_send(self, span: Span, now: float) -> list[NotDue]:
        """The delays within ``span`` as a peer hears them: durations, never times."""
        return [
            NotDue(part, delay.n, delay.ballot, max(0.0, delay.due - now), delay.generation)
            for part, delay in self.delays.within(span)
        ]

    def keeps_times(self, n: int) -> bool:
        """Whether a batch's delay and TTL count at redrive number ``n``: a redriven message has had its time."""
        return n == 0

    # ------------------------------------------------------------- availability

    def free_parts(self, span: Span, covered: bool, now: float) -> list[Span]:
        """Which parts of ``span`` (present here, of one batch) could be held now; ``covered`` as in `readable`."""
        parts: list[Span] = []
        for part, record in self.readable(span, covered):
            for gap in self.holds.holds.gaps(part):
                due = self.not_due(gap, record.generation, record.n, now) if self.delays else ((gap, None),)
                for piece, delay in due:
                    if delay is None:
                        parts.extend(self._unhinted(piece, now))
        return parts

    def _unhinted(self, span: Span, now: float) -> list[Span]:
        if not self.hints:
            return [span]
        return [part for part, until in self.hints.split(span) if until is None or until <= now]

    def wakeups(self, span: Span, now: float) -> list[float]:
        """The times at which something in ``span`` becomes free by itself: delays due and hints over."""
        times = [delay.due for _, delay in self.delays.within(span) if delay.due > now]
        times += [until for _, until in self.hints.within(span) if until > now]
        return times

    def forget_batch(self, key: tuple[int, int]) -> None:
        """Nothing of the batch with that key in `ready` is available any more."""
        self.ready.pop(key, None)
        self.offered.pop(key[1], None)

    def check(self) -> None:
        """Assert what holds between any two events."""
        self.records.check()
        self.holds.check()
        self.attempts.check()
        self.delays.check()
        self.available.check()
        for span, record in self.records.items():
            assert (record.kind == Kind.DEAD) == (record.letter is not None), f"{span}: {record}"
            assert record.kind != Kind.ACKED or record.n == 0, f"{span}: {record}"
            assert record.kind != Kind.OPEN or record.n > 0, f"{span}: {record} is written down"
        for span in self.available.items():
            assert not self.holds.holds.within(span), f"{span} is available and held"


class DeadView(GroupView):
    """The dead letters of a group, read as a group of its own: ``<group>!dead``.

    It has holds, ballots, attempts and delays of its own. The records are the source's: a message is available
    here where its record is DEAD, and ACK writes PURGED at that (generation, n). A DEAD record is never made here, so
    nothing dies twice (docs/protocol.md, REJECT).

    Args:
        source: the group whose dead letters these are.
        floor: as for `GroupView`.
        closed: likewise.
    """

    __slots__ = ("source",)

    def __init__(self, source: GroupView, floor: int, closed: ClosedOrigins) -> None:
        super().__init__(source.name + DEAD_SUFFIX, floor, closed)
        self.source = source

    @property
    def home(self) -> GroupView:
        return self.source

    def record_pieces(self, span: Span, generation: int | None = None) -> list[tuple[Span, Record]]:
        return [(part, record or OPEN_ZERO) for part, record in self.source.records.split(span)]

    def readable(self, span: Span, covered: bool) -> list[tuple[Span, Record]]:
        """The dead letters within ``span``; those of an older generation only where the new one leaves them."""
        return [
            (part, record)
            for part, record in self.source.records.within(span)
            if record.kind == Kind.DEAD and not (covered and record.generation < self.source.generation)
        ]

    def shown(self, span: Span, covered: bool) -> list[tuple[Span, Record]]:
        return self.source.shown(span, covered)

    def covers(self, published_ms: int) -> bool:
        return self.source.covers(published_ms)

    def asked(self, generation: int, n: int) -> Record:
        return Record(generation, n, Kind.DEAD)

    def on_asked(self, span: Span, asked: Record) -> list[tuple[Span, Record, bool]]:
        """Granted only where the record is DEAD at exactly that n: a HOLD carries no letter to merge."""
        return [(part, record, False) for part, record in self.record_pieces(span)]

    def settled(self, generation: int, n: int) -> Record:
        return Record(generation, n, Kind.PURGED)

    def letters(self, span: Span) -> list[tuple[Span, Letter | None]]:
        return [(part, record.letter) for part, record in self.source.records.within(span)]

    def keeps_times(self, n: int) -> bool:
        """Never: a dead letter is due at once, and has no TTL."""
        return False

    def is_stale(self, generation: int) -> bool:
        """Never: a dead letter of an older generation stands where the newer one does not cover it."""
        return False

    def merge(self, span: Span, record: Record) -> list[tuple[Span, Record, bool]]:
        return self.source.merge(span, record)


def dead_letter_names(topics: tuple[str, ...], group: str) -> tuple[tuple[str, ...], str]:
    """Topics and group as they are known: ``orders.deadletters`` of group g are g!dead's messages of ``orders``."""
    if not topics or not all(name.endswith(DEAD_LETTER_TOPIC) for name in topics):
        return topics, group
    group = group if group.endswith(DEAD_SUFFIX) else group + DEAD_SUFFIX
    return tuple(name.removesuffix(DEAD_LETTER_TOPIC) for name in topics), group

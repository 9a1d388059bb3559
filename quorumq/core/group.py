# quorumq/core/group.py: one group's view of one partition on one replica.
#
# A group is a reader. Here is everything that a replica knows on its behalf: the record of each message (its
# tombstone, where it has one), the holds, the attempts that ended, the delays, and, derived from those, what is
# available. "Available" is never a cursor: it is present - tombstones - holds - delays, worked out again for just
# the spans that changed, so that nothing can be skipped by moving past it.
"""What one replica knows of one group: records, holds, attempts, delays, and what is available."""

from __future__ import annotations

from typing import NamedTuple

from sortedcontainers import SortedDict

from quorumq.core.holds import HoldTable
from quorumq.core.messages import Digest, NotDue
from quorumq.core.spans import SpanMap, SpanSet
from quorumq.core.types import Kind, Origin, Record, Span, Stamp, merge_records


class Attempts(NamedTuple):
    """How many attempts at redrive number ``n`` have ended by expiry or REJECT."""

    n: int
    ended: int


class Delay(NamedTuple):
    """A REJECT's delay: the message is not due before ``due`` (monotonic seconds). Higher (n, ballot) wins."""

    n: int
    ballot: Stamp
    due: float


class GroupView:
    """One group in one partition of one replica.

    Args:
        name: the group's name.
        floor: for the hold table: stamps up to here may have been granted and forgotten.
    """

    __slots__ = (
        "attempts",
        "available",
        "delays",
        "digests",
        "from_ms",
        "generation",
        "hints",
        "holds",
        "name",
        "ready",
        "records",
    )

    def __init__(self, name: str, floor: int) -> None:
        self.name = name
        self.generation = 0
        self.from_ms = 0
        self.records: SpanMap[Record] = SpanMap()
        self.holds = HoldTable(floor)
        self.attempts: SpanMap[Attempts] = SpanMap()
        self.delays: SpanMap[Delay] = SpanMap()
        self.hints: SpanMap[float] = SpanMap()  # held elsewhere until then, as a NOK said: for choosing only
        self.available = SpanSet()
        self.digests: dict[Origin, Digest] = {}  # of records, attempts and delays; dropped where those change
        self.ready: SortedDict = SortedDict()  # (published_ms, batch number) -> available since (mono)

    # ------------------------------------------------------------------ records

    def record_pieces(self, span: Span) -> list[tuple[Span, Record]]:
        """``span`` in pieces of one record each; OPEN at n = 0 where nothing is recorded."""
        fresh = Record(self.generation, 0, Kind.OPEN)
        return [(part, record or fresh) for part, record in self.records.split(span)]

    def is_open(self, record: Record) -> bool:
        """Whether the record lets the message be delivered."""
        return record.kind == Kind.OPEN

    def merge(self, span: Span, record: Record) -> list[tuple[Span, Record, bool]]:
        """Merge ``record`` into ours; per piece what it is now, and whether it changed.

        ACKED ends the holds on the message, its attempts and its delay. No other record that is merged does: a
        DEAD learned from a peer leaves the hold of a live delivery alone (docs/protocol.md, "record, hold key").
        """
        result: list[tuple[Span, Record, bool]] = []
        for part, ours in self.record_pieces(span):
            merged = merge_records(ours, record)
            changed = merged != ours
            if changed:
                self.records.set(part, merged)
                self.digests.pop(part.origin, None)
                if merged.kind == Kind.ACKED:
                    self.holds.end(part)
                    self.attempts.remove(part)
                    self.delays.remove(part)
                elif merged.kind == Kind.DEAD:
                    self.on_learned_dead(part)
            result.append((part, merged, changed))
        return result

    def on_learned_dead(self, span: Span) -> None:
        """A DEAD was merged for ``span``. It ends no hold; the explorer has a version of this rule that does."""

    # ------------------------------------------------------- attempts and delays

    def count_attempt(self, span: Span, n: int) -> list[tuple[Span, int, int]]:
        """An attempt at redrive number ``n`` ended; the new counts as (span, n, count)."""
        counted: list[tuple[Span, int, int]] = []
        for part, old in self.attempts.split(span):
            if old is None or old.n < n:
                new = Attempts(n, 1)
            elif old.n == n:
                new = Attempts(n, old.ended + 1)
            else:
                continue
            self.attempts.set(part, new)
            self.digests.pop(part.origin, None)
            counted.append((part, new.n, new.ended))
        return counted

    def merge_attempts(self, span: Span, n: int, count: int) -> bool:
        """Merge a count by maximum; whether anything changed."""
        changed = False
        for part, old in self.attempts.split(span):
            if old is None or (old.n, old.ended) < (n, count):
                self.attempts.set(part, Attempts(n, count))
                self.digests.pop(part.origin, None)
                changed = True
        return changed

    def attempts_at(self, span: Span, n: int) -> list[tuple[Span, int]]:
        """``span`` in pieces with the count of attempts ended at redrive number ``n``."""
        return [
            (part, old.ended if old is not None and old.n == n else 0)
            for part, old in self.attempts.split(span)
        ]

    def merge_delay(self, span: Span, delay: Delay) -> list[Span]:
        """Keep the delay with the higher (n, ballot), ours where they are equal; where it was taken."""
        taken: list[Span] = []
        for part, ours in self.delays.split(span):
            if ours is None or (ours.n, ours.ballot) < (delay.n, delay.ballot):
                self.delays.set(part, delay)
                self.digests.pop(part.origin, None)
                taken.append(part)
        return taken

    def not_due(self, span: Span, n: int, now: float) -> list[tuple[Span, Delay | None]]:
        """``span`` in pieces with the delay that keeps redrive number ``n`` from being delivered, or None."""
        return [
            (part, delay if delay is not None and delay.n == n and delay.due > now else None)
            for part, delay in self.delays.split(span)
        ]

    def delays_to_send(self, span: Span, now: float) -> list[NotDue]:
        """The delays within ``span`` as a peer hears them: durations, never times."""
        return [
            NotDue(part, delay.n, delay.ballot, max(0.0, delay.due - now))
            for part, delay in self.delays.within(span)
        ]

    def keeps_times(self, n: int) -> bool:
        """Whether a batch's delay and TTL count at redrive number ``n``: a redriven message has had its time."""
        return n == 0

    # ------------------------------------------------------------- availability

    def free_parts(self, span: Span, now: float) -> list[Span]:
        """Which parts of ``span`` (present here) could be held now."""
        parts: list[Span] = []
        for part, record in self.record_pieces(span):
            if self.is_open(record):
                for gap in self.holds.holds.gaps(part):
                    for piece, delay in self.not_due(gap, record.n, now) if self.delays else ((gap, None),):
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
            if record.kind == Kind.ACKED:
                assert not self.holds.holds.within(span), f"{span} is ACKED and held"
        for span in self.available.items():
            assert not self.holds.holds.within(span), f"{span} is available and held"
            for part, record in self.record_pieces(span):
                assert self.is_open(record), f"{part} is available and {record.kind.name}"

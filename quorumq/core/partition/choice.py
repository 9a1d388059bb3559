"""FETCH, step 1: choice of the available messages that a coordinator asks for.

Several coordinators that fetch for one group begin with different chunks of the backlog, so that they seldom meet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from quorumq.core.cluster.state import NodeState
from quorumq.core.messages import Want
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.hashing import MASK, mix
from quorumq.core.partition.message_index import Location
from quorumq.core.partition.ready import ReadyMessages
from quorumq.core.partition.stored import StoredBatch
from quorumq.core.values.limits import FETCH_MESSAGES_MAX
from quorumq.core.values.types import NodeId, Now, Span

CHUNK = 64
"""Messages that are ranked together to one coordinator, so that several can drain one large batch."""

SCAN_MAX = 1024
"""Batches that one choice looks at before it settles for what it has."""

OVERDUE: Final = -1
"""A reason beside `fate.EXHAUSTED`: expired by our clock. Such messages are still offered, because our clock may be
wrong."""


class Terms(NamedTuple):
    """Limits of one choice, and the manner in which its FETCH waits.

    Attributes:
        messages: messages to choose at most.
        size: their bytes at most, but for a first one that is larger.
        runs: cost at most, in runs of messages: each is voted on by itself.
        parked_since: when the FETCH found nothing and was parked (monotonic); infinity if it has not been.
        patient: True if the FETCH can wait for ``steal_after``; else what ranks for others is taken at once.
        named: only these messages, whichever coordinator they rank for.
        spare: number of tokens, at least one for each message; None if the group has no limit.
    """

    messages: int
    size: int
    runs: int
    parked_since: float
    patient: bool = True
    named: tuple[Span, ...] = ()
    spare: int | None = None


@dataclass(slots=True)
class Picked:
    """Messages that a choice has so far, and the room that is left in it."""

    messages_left: int
    bytes_left: int
    runs_max: int
    generation: int  # the generation of everything picked: one HOLD names one
    wants: list[Want] = field(default_factory=list)
    batches: int = 0  # batches, and parts of them
    messages: int = 0  # messages in `wants`
    bytes: int = 0
    extra: int = (
        0  # messages that are expired by our clock: no limit counts them, as most will be dead-lettered
    )
    company: int = 0  # messages of other partitions that are in the lot already
    limited: bool = (
        False  # each message takes a token of the group's limit, so that expired ones count as well
    )
    look_again: float = float("inf")  # when messages that were passed over may be chosen (monotonic)

    @property
    def runs(self) -> int:
        """Return the cost of a vote on this, in runs of messages: one that crosses a border of batches is several."""
        return max(len(self.wants), self.batches)

    @property
    def full(self) -> bool:
        return (
            self.messages_left <= 0
            or self.bytes_left <= 0
            or max(len(self.wants), self.batches) >= self.runs_max
        )

    def share(self, lot: int) -> None:
        """Limit the lot: its messages, those of other partitions included, are ``lot`` at most."""
        self.messages_left = min(self.messages_left, lot - self.company - self.messages)

    def append(self, want: Want) -> None:
        """Append, joined to the last one if it goes on."""
        if self.wants:
            last = self.wants[-1]
            if (last.n, last.span.producer_id, last.span.stop) == (
                want.n,
                want.span.producer_id,
                want.span.start,
            ):
                self.wants[-1] = Want(Span(want.span.producer_id, last.span.start, want.span.stop), want.n)
                return
        self.wants.append(want)


class Choice:
    """Chooses from the batches of one partition."""

    __slots__ = ("batches", "node", "salts", "ttl_s")

    def __init__(self, node: NodeState, batches: Batches, ttl_s: float) -> None:
        self.node = node
        self.batches = batches
        self.ttl_s = ttl_s  # the topic's; 0: for ever
        self.salts: dict[NodeId, int] = {}  # by node of the replica set

    def choose(self, view: GroupView, now: Now, terms: Terms, company: int | None = None) -> Picked:
        """FETCH, step 1: return the oldest available messages within the limits, and when to look again.

        With several coordinators fetching, what ranks first for this one is chosen first; the rest only if it has been
        available for ``steal_after`` seconds. At least one message is chosen if one may be, however large. A suspect is
        never among first-timers.

        Args:
            company: number of messages of other partitions in the lot of suspects to choose; None: choose first-timers.
        """
        ready = view.available if company is None else view.suspects
        limited = terms.spare is not None
        most = terms.messages if terms.spare is None else min(terms.messages, terms.spare)
        picked = Picked(most, terms.size, terms.runs, view.generation, company=company or 0, limited=limited)
        if terms.named:
            self._pick_named(view, ready, terms.named, picked, now)
            return picked
        for batch, chunk in self._candidates(view, ready, terms, picked, now):
            for parts, lot in chunk:
                if lot:
                    picked.share(lot)
                if parts:
                    self._pick(view, batch, parts, picked, now)
            if picked.full:
                break
        return picked

    def _candidates(
        self, view: GroupView, ready: ReadyMessages, terms: Terms, picked: Picked, now: Now
    ) -> Iterator[tuple[StoredBatch, list[tuple[list[Span], int]]]]:
        """Yield ready messages in chunks of one batch, in parts to pick, each with its lot (0: first-timers)."""
        for batch, fetchers, mine in self._batches(view, ready, terms, picked, now):
            several = len(fetchers) > 1
            for section in batch.header.spans:
                for chunk, _ in ready.spans.cut(section, terms.runs):
                    parts = [
                        (self._ranked(batch, span, fetchers, mine) if several else [span] * mine, lot)
                        for span, lot in ready.spans.within(chunk)
                    ]
                    yield batch, parts

    def _batches(
        self, view: GroupView, ready: ReadyMessages, terms: Terms, picked: Picked, now: Now
    ) -> Iterator[tuple[StoredBatch, list[NodeId], bool]]:
        """Yield ready batches, the oldest first, and their fetchers; once more for the rest, if nothing is picked."""
        batches, steal_after = self.batches, self.node.config.steal_after
        parked, active = self.node.fetchers(batches.partition, view.name, batches.members, now)
        end = view.backfill.end if view.backfill is not None else None
        mature = now.mono - steal_after if terms.patient else float("inf")
        for mine in (True, False) if len(active) > 1 else (True,):
            for made_ms, number, since, _ in islice(ready.batches, SCAN_MAX):
                if end is not None and (made_ms, number) >= end:
                    break
                if mine or since <= mature:
                    yield batches.stored[number], parked if since >= terms.parked_since else active, mine
                else:
                    picked.look_again = min(picked.look_again, since + steal_after)
            if picked.wants:
                break

    def choose_dying(self, view: GroupView, now: Now, why: int, runs_max: int) -> Picked:
        """Choose messages that no client may get any more, as `EXHAUSTED` or `OVERDUE`, in ``runs_max`` runs."""
        picked = Picked(FETCH_MESSAGES_MAX, 1 << 40, runs_max, view.generation)
        spans = view.kept.spans
        batches = [key[1] for key in islice(view.kept.batches.get(why, ()), SCAN_MAX)]
        for number in batches if why != OVERDUE else self.overdue(view, now):
            batch = self.batches.stored[number]
            for part in self.batches.parts_of(batch):
                covered = view.covers(part.producer_id, batch.header.published_ms)
                offered = [ready.spans.within(part) for ready in (view.available, view.suspects)]
                for span, kept in itertools.chain(*offered) if why == OVERDUE else spans.within(part):
                    if why == OVERDUE or kept == why:
                        self._pick_dying(view, span, covered, why, picked)
                    if picked.full:
                        return picked
        return picked

    def _pick_dying(self, view: GroupView, span: Span, covered: bool, why: int, picked: Picked) -> None:
        picked.batches += 1
        for part, record in view.readable(span, covered):
            # the time to live does not apply to redriven messages
            if why == OVERDUE and record.n:
                continue
            if not picked.wants:
                picked.generation = record.generation
            if record.generation == picked.generation:
                picked.append(Want(part, record.n))
                picked.messages += part.stop - part.start
                picked.messages_left -= part.stop - part.start

    def overdue(self, view: GroupView, now: Now) -> list[int]:
        """List the batches, of the oldest ones with ready messages, whose time to live is over by our clock."""
        numbers: list[int] = []
        if not self.ttl_s and not self.batches.with_ttl:
            return numbers
        for ready in (view.available, view.suspects):
            for _, number, _, _ in islice(ready.batches, SCAN_MAX):
                if self.is_overdue(self.batches.stored[number], now):
                    numbers.append(number)
                elif self._is_by_age(now):
                    break  # all others are younger
        return numbers

    def cost_of_overdue(self, view: GroupView, now: Now) -> int:
        """Return the cost of `overdue`: 1, and 1 more for each 8 batches that it may look at."""
        if self._is_by_age(now):
            return 1
        return 1 + sum(min(ready.batches.size, SCAN_MAX) for ready in (view.available, view.suspects)) // 8

    def _is_by_age(self, now: Now) -> bool:
        return not (self.batches.with_ttl or self.batches.ages_moved or self.node.is_uncertain(now))

    def is_overdue(self, batch: StoredBatch, now: Now) -> bool:
        """Return True if a batch's time to live is over by our clock, which is certain."""
        ttl = batch.header.ttl_ms / 1000 or self.ttl_s
        return ttl > 0 and now.mono >= batch.born + ttl and not self.node.is_uncertain(now, batch.number)

    def _pick_named(
        self, view: GroupView, ready: ReadyMessages, named: tuple[Span, ...], picked: Picked, now: Now
    ) -> None:
        for span in named:
            for part, lot in ready.spans.within(span):
                if lot:
                    picked.share(lot)
                for chunk, location in self.batches.index.within(part):
                    if picked.full:
                        return
                    self._pick(view, self.batches.stored[location.number], [chunk], picked, now)

    def _pick(self, view: GroupView, batch: StoredBatch, parts: list[Span], picked: Picked, now: Now) -> None:
        """Take as much of ``parts`` as the limits let in; only messages in this very batch."""
        timed = (self.ttl_s or batch.header.ttl_ms) and not picked.limited
        overdue = timed and self.is_overdue(batch, now)
        for part in parts:
            for chunk, location in self.batches.index.within(part):
                if picked.full:
                    return
                if location.number != batch.number:
                    continue
                cut, size = (chunk, 0) if overdue else cut_to_fit(batch, location, chunk, picked)
                if cut is None:
                    picked.bytes_left = 0
                    return
                picked.batches += 1
                if overdue:
                    picked.extra += cut.size
                else:
                    picked.messages_left -= cut.size
                    picked.bytes_left -= size
                covered = view.covers(cut.producer_id, batch.header.published_ms)
                for span, record in view.readable(cut, covered):
                    if not picked.wants:
                        picked.generation = record.generation
                    if record.generation == picked.generation:  # messages left out may stand in several
                        picked.append(Want(span, record.n))
                        picked.messages += span.stop - span.start
                        picked.bytes += size if span == cut or overdue else self.batches.bytes_of(span)

    def _ranked(self, batch: StoredBatch, span: Span, fetchers: list[NodeId], mine: bool) -> list[Span]:
        """Return the parts of ``span`` whose chunk ranks first for this node among ``fetchers`` (or does not)."""
        parts: list[Span] = []
        me = self.node.me
        start = span.start
        while start < span.stop:
            chunk = start // CHUNK
            stop = min(span.stop, (chunk + 1) * CHUNK)
            key = batch.salt ^ (chunk * 0x9E3779B97F4A7C15 & MASK)
            first = max(fetchers, key=lambda node: mix(self.salts[node] ^ key))
            if (first == me) == mine:
                if parts and parts[-1].stop == start:
                    parts[-1] = Span(span.producer_id, parts[-1].start, stop)
                else:
                    parts.append(Span(span.producer_id, start, stop))
            start = stop
        return parts


def cut_to_fit(batch: StoredBatch, location: Location, span: Span, picked: Picked) -> tuple[Span | None, int]:
    """Return the longest head of ``span`` within the limits, and its bytes; None if enough is picked."""
    header = batch.header
    first = span.start + location.shift
    begin = header.end_of(first - 1)
    low, high = 0, min(span.size, picked.messages_left)
    if header.end_of(first + high - 1) - begin <= picked.bytes_left:
        low = high
    while low < high:
        middle = (low + high + 1) // 2
        if header.end_of(first + middle - 1) - begin <= picked.bytes_left:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        if picked.wants:
            return None, 0
        low = 1
    return Span(span.producer_id, span.start, span.start + low), header.end_of(first + low - 1) - begin

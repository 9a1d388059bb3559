"""Producer ids that are over, at one replica: its part in closing them (core/requests/closing.py says how all replicas
agree)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quorumq.core.messages.effects import DropBatches, Effect, Persist
from quorumq.core.messages.records import SessionsClosed, SessionsPromised
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.closed import among, discard, may_close, number_of, past_part
from quorumq.core.partition.component import PartitionComponent
from quorumq.core.partition.views import Views
from quorumq.core.values import limits
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.names import is_windowed
from quorumq.core.values.spanlists import merge_spans, subtract
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import Now, ProducerId, Span

UNUSED_MAX: Final = 2048
"""Windows of names that one round closes because nothing is known of them."""


class Closing(PartitionComponent):
    """One replica's part in closing producer ids.

    Attributes:
        promised: no more STOREs of these are taken from clients, as spans of their numbers.
        dropping: numbers of producer ids that are closed once their messages are dropped here; None but in a new slot.
    """

    __slots__ = ("dropping", "promised")

    def __init__(self, batches: Batches, views: Views) -> None:
        super().__init__(batches, views)
        self.promised = SpanSet()
        self.dropping: SpanSet | None = None

    def has_promised(self, producer_id: ProducerId) -> bool:
        """Return True if no STORE of a producer id is taken from clients."""
        return bool(self.promised.runs) and self.promised.contains(producer_id._replace(k=0), producer_id.k)

    def candidates(self, idle_s: float, now: Now, most: int) -> tuple[Span, ...]:
        """Return some producer ids to ask all replicas about, by their numbers: done with here, and either promised, or
        idle for ``idle_s``, or a window of names that is past."""
        numbers: list[Span] = []
        unused = 0
        idle_since = self.batches.idle_since
        for producer_id, since in list(itertools.islice(idle_since.items(), 4 * most)):
            del idle_since[producer_id]
            if not may_close(producer_id):
                continue  # nor is it asked about again until something of it is reclaimed
            idle_since[producer_id] = since  # behind the others, for the next time
            over = is_windowed(producer_id) or self.has_promised(producer_id) or since + idle_s <= now.mono
            over = over and past_part(number_of(producer_id), now.wall_ms) is not None
            if over and len(numbers) < most and not self._unfinished(number_of(producer_id)):
                span = self._with_unused(producer_id)
                if unused + span.size <= UNUSED_MAX:
                    unused += span.size
                    numbers.append(span)
        return merge_spans(numbers)

    def _with_unused(self, producer_id: ProducerId) -> Span:
        """Return the number of a producer id; of a window of names also those before it, up to the last closed one.

        Names are few and windows many: without those between, each closed window would be a run for good.
        """
        family, k, stop = number_of(producer_id)
        if is_windowed(producer_id):
            before = Span(family, max(0, stop - UNUSED_MAX), stop)
            gaps = self.batches.closed.numbers.gaps(before)
            if gaps and gaps[-1].start > before.start:
                return gaps[-1]
        return Span(family, k, stop)

    def promise(self, numbers: Iterable[Span]) -> list[SessionsPromised]:
        """Take no more STOREs of these from clients; the record that makes it durable."""
        closed = self.batches.closed.numbers
        fresh = [part for span in numbers for gap in self.promised.gaps(span) for part in closed.gaps(gap)]
        for part in fresh:
            self.promised.add(part)
        return [SessionsPromised(self.batches.partition, merge_spans(fresh))] if fresh else []

    def _unfinished(self, numbers: Span) -> list[ProducerId]:
        """Return the producer ids that have more here than the knowledge of their numbers: payload, or a hold."""
        batches = self.batches
        unfinished = [*among((numbers,), batches.present.runs), *among((numbers,), batches.absent.runs)]
        for view in self.views.with_holds():
            unfinished += [one for one in among((numbers,), view.leases.runs) if view.holds_any(one)]
        return [one for one in unfinished if one not in batches.closed]

    def on_ask(self, asked: Iterable[Span], now: Now) -> tuple[list[SessionsPromised], tuple[Span, ...]]:
        """Promise; return the records of that, and the producer ids that are done with, those closed here among
        them."""
        closed, present = self.batches.closed, self.batches.present.runs
        numbers: list[Span] = []
        most = 2 * UNUSED_MAX
        for span in asked:
            part = past_part(span, now.wall_ms)
            if part is not None and part.size <= most:
                most -= part.size
                numbers.append(part)
        records = self.promise(numbers)
        done: list[Span] = []
        for span in numbers:
            done += subtract(span, map(number_of, self._unfinished(span)))
            if not is_windowed(span.producer_id):  # a known window is listed already
                for k in range(span.start, span.stop):
                    producer_id = span.producer_id._replace(k=k)
                    if producer_id not in closed and producer_id not in present:
                        self.batches.idle_since.setdefault(producer_id, now.mono)
        return records, tuple(done)

    def close(self, numbers: Iterable[Span]) -> list[Effect]:
        """Drop all but the numbers of these producer ids, which are over everywhere. One with a present message
        stays."""
        fresh = self.batches.close(numbers)
        if not fresh:
            return []
        for span in fresh:
            self.promised.remove(span)
        for view in self.views.with_holds():
            discard(fresh, view.ballots)
            view.digests.stale.update(dict.fromkeys(discard(fresh, view.records)))
            for producer_id in among(fresh, view.leases.runs):
                view.keep_holds(producer_id)
        return [Persist((SessionsClosed(self.batches.partition, fresh),))]

    def learn_closed(self, numbers: Sequence[Span], now: Now, *, new_slot: bool) -> list[Effect]:
        """Close producer ids that a peer has closed. In a new slot, messages of them are dropped first.

        Why: this node had left the set when all replicas of it were done with them, and was not asked.
        """
        if not new_slot:
            return self.close(numbers)
        self.dropping = self.dropping or SpanSet()
        for span in numbers:
            self.dropping.add(span)
        return self.go_on_dropping(now)

    def go_on_dropping(self, now: Now) -> list[Effect]:
        """Drop messages of producer ids that are closed elsewhere, as many as one step has time for, and close these.

        The rest has its turn later; until then the slot does not vote.
        """
        batches, stored, node = self.batches, self.batches.stored, self.node
        dropping = self.dropping or SpanSet()
        numbers = dropping.items()
        gone: list[int] = []
        for number in self._to_drop(numbers):
            if node.reclaims_left <= 0:
                node.reclaim_later(batches.partition)
                break
            batch = stored[number]
            parts = batches.parts_of(batch)
            node.reclaims_left -= len(parts) * (1 + len(self.views.groups))
            self.views.withdraw(batch, parts)
            batches.drop_closed(batch, numbers)
            if number in stored:
                self.views.refresh_batch(batch, now)
            else:
                gone.append(number)
        effects = self.close(numbers)
        for span in numbers:
            for part in batches.closed.numbers.within(span):
                dropping.remove(part)
        return effects + [DropBatches(chunk) for chunk in chunks_of(gone, limits.RECLAIM_BATCHES_MAX)]

    def _to_drop(self, numbers: Sequence[Span]) -> Iterator[int]:
        """Yield the batches with messages of producer ids with these numbers, while they are dropped."""
        index = self.batches.index
        for producer_id in among(numbers, self.batches.present.runs):
            for span in self.batches.present.spans_of(producer_id):
                for start in range(span.start, span.stop, limits.RECLAIM_BATCHES_MAX):
                    stop = min(span.stop, start + limits.RECLAIM_BATCHES_MAX)
                    part = Span(producer_id, start, stop)
                    yield from dict.fromkeys(location.number for _, location in index.within(part))


class ClosingComponent(PartitionComponent):
    """One that goes by which producer ids are to be closed."""

    __slots__ = ("closing",)

    def __init__(self, closing: Closing) -> None:
        super().__init__(closing.batches, closing.views)
        self.closing = closing

"""Producer ids that are over, at one replica: its part in closing them (core/requests/closing.py says how all replicas
agree)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from quorumq.core.messages.effects import Effect, Persist
from quorumq.core.messages.records import SessionsClosed, SessionsPromised
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.closed import among, forget, is_past, may_close
from quorumq.core.partition.component import PartitionComponent
from quorumq.core.partition.views import Views
from quorumq.core.values.types import Now, ProducerId, Span


class Closing(PartitionComponent):
    """One replica's part in closing producer ids.

    Attributes:
        promised: no more STOREs of these are taken from clients.
    """

    __slots__ = ("promised",)

    def __init__(self, batches: Batches, views: Views) -> None:
        super().__init__(batches, views)
        self.promised: dict[ProducerId, None] = {}

    def candidates(self, idle_s: float, now: Now, most: int) -> list[ProducerId]:
        """Return some producer ids to ask all replicas about: promised, or idle for ``idle_s``, and done with here."""
        found: list[ProducerId] = []
        idle_since = self.batches.idle_since
        for producer_id, since in list(itertools.islice(idle_since.items(), 4 * most)):
            over = producer_id in self.promised or since + idle_s <= now.mono
            over = over and is_past(producer_id, now.wall_ms)
            if over and len(found) < most and self.is_done(producer_id):
                found.append(producer_id)
            del idle_since[producer_id]
            idle_since[producer_id] = since  # behind the others, for the next time
        return found

    def promise(self, producer_ids: Iterable[ProducerId]) -> list[SessionsPromised]:
        """Take no more STOREs of these from clients; the record that makes it durable."""
        closed = self.batches.closed
        fresh = [
            producer_id
            for producer_id in producer_ids
            if producer_id not in self.promised and producer_id not in closed
        ]
        self.promised.update(dict.fromkeys(fresh))
        return [SessionsPromised(self.batches.partition, tuple(fresh))] if fresh else []

    def is_done(self, producer_id: ProducerId) -> bool:
        """Return True if only the knowledge of a producer id's numbers is left: no payload, no hold."""
        batches = self.batches
        if (
            not may_close(producer_id)
            or batches.present.spans_of(producer_id)
            or batches.absent.spans_of(producer_id)
        ):
            return False
        return not any(view.holds_any(producer_id) for view in self.views.with_holds())

    def on_ask(
        self, asked: tuple[ProducerId, ...], now: Now
    ) -> tuple[list[SessionsPromised], tuple[ProducerId, ...]]:
        """Promise; return the records of that, and the producer ids that are done with, those closed here among
        them."""
        closed = self.batches.closed
        producer_ids = [one for one in asked if may_close(one) and is_past(one, now.wall_ms)]
        records = self.promise(producer_ids)
        for producer_id in producer_ids:
            if producer_id not in closed and not self.batches.present.spans_of(producer_id):
                self.batches.idle_since.setdefault(producer_id, now.mono)
        return records, tuple(
            producer_id for producer_id in producer_ids if producer_id in closed or self.is_done(producer_id)
        )

    def close(self, numbers: Iterable[Span]) -> list[Effect]:
        """Drop all but the numbers of these producer ids, which are over everywhere. One with a present message
        stays."""
        fresh = self.batches.close(numbers)
        if not fresh:
            return []
        forget(fresh, self.promised)
        for view in self.views.with_holds():
            forget(fresh, view.ballots)
            view.digests.stale.update(dict.fromkeys(forget(fresh, view.records)))
            for producer_id in among(fresh, view.leases.runs):
                view.keep_holds(producer_id)
        return [Persist((SessionsClosed(self.batches.partition, fresh),))]


class ClosingComponent(PartitionComponent):
    """One that goes by which producer ids are to be closed."""

    __slots__ = ("closing",)

    def __init__(self, closing: Closing) -> None:
        super().__init__(closing.batches, closing.views)
        self.closing = closing

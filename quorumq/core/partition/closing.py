"""Origins that are over, at one replica: its part in closing them (core/closing.py says how all replicas agree)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from quorumq.core.closed import among, forget, may_close
from quorumq.core.effects import Effect, Persist
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.duty import Duty
from quorumq.core.partition.views import Views
from quorumq.core.records import OriginsClosed, OriginsPromised
from quorumq.core.types import Now, Origin, Span


class Closing(Duty):
    """One replica's part in closing origins.

    Attributes:
        promised: no more STOREs of these are taken from clients.
    """

    __slots__ = ("promised",)

    def __init__(self, batches: Batches, views: Views) -> None:
        super().__init__(batches, views)
        self.promised: dict[Origin, None] = {}

    def candidates(self, idle_s: float, now: Now, most: int) -> list[Origin]:
        """Return some origins to ask all replicas about: promised, or idle for ``idle_s``, and done with here."""
        found: list[Origin] = []
        idle_since = self.batches.idle_since
        for origin, since in list(itertools.islice(idle_since.items(), 4 * most)):
            over = origin in self.promised or since + idle_s <= now.mono
            if over and len(found) < most and self.is_done(origin):
                found.append(origin)
            del idle_since[origin]
            idle_since[origin] = since  # behind the others, for the next time
        return found

    def promise(self, origins: Iterable[Origin]) -> list[OriginsPromised]:
        """Take no more STOREs of these from clients; the record that makes it durable."""
        closed = self.batches.closed
        fresh = [origin for origin in origins if origin not in self.promised and origin not in closed]
        self.promised.update(dict.fromkeys(fresh))
        return [OriginsPromised(self.batches.partition, tuple(fresh))] if fresh else []

    def is_done(self, origin: Origin) -> bool:
        """Return True if only the knowledge of an origin's numbers is left: no payload, no hold."""
        batches = self.batches
        if not may_close(origin) or batches.present.spans_of(origin) or batches.absent.spans_of(origin):
            return False
        return not any(view.holds_any(origin) for view in self.views.with_holds())

    def on_ask(self, asked: tuple[Origin, ...], now: Now) -> tuple[list[OriginsPromised], tuple[Origin, ...]]:
        """Promise; return the records of that, and the origins that are done with, those closed here among them."""
        closed = self.batches.closed
        origins = [origin for origin in asked if may_close(origin)]
        records = self.promise(origins)
        for origin in origins:
            if origin not in closed and not self.batches.present.spans_of(origin):
                self.batches.idle_since.setdefault(origin, now.mono)
        return records, tuple(origin for origin in origins if origin in closed or self.is_done(origin))

    def close(self, numbers: Iterable[Span]) -> list[Effect]:
        """Drop all but the numbers of these origins, which are over everywhere. One with a present message stays."""
        fresh = self.batches.close(numbers)
        if not fresh:
            return []
        forget(fresh, self.promised)
        for view in self.views.with_holds():
            forget(fresh, view.ballots)
            view.digests.stale.update(dict.fromkeys(forget(fresh, view.records)))
            for origin in among(fresh, view.leases.runs):
                view.keep_holds(origin)
        return [Persist((OriginsClosed(self.batches.partition, fresh),))]


class ClosingDuty(Duty):
    """One that goes by which origins are to be closed."""

    __slots__ = ("closing",)

    def __init__(self, closing: Closing) -> None:
        super().__init__(closing.batches, closing.views)
        self.closing = closing

"""Records that a partition of a node learns from the answers of others, and those it sends to peers that lag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorumq.core.messages import Counted, GroupState, Merge, NotDue, SpanRecord
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.component import PartitionComponent
from quorumq.core.partition.delays import delay_from
from quorumq.core.partition.group import Changes, GroupView
from quorumq.core.values.limits import DEATHS_PER_CHUNK
from quorumq.core.values.types import STAMP_ZERO, Kind, NodeId, Now, Owner, Span


class Learning(PartitionComponent):
    """Merges knowledge of other nodes into the groups of one partition."""

    __slots__ = ()

    def repair(self, name: str, tombs: tuple[SpanRecord, ...], now: Now) -> list[Effect]:
        """Read repair: merge records that a peer answered a HOLD with. No caller waits for the disk."""
        kept = [(span, self.node.fitted(record)) for span, record in tombs]
        return self._learn(self.views.named(name).home, fate.on_merge, kept, now)

    def adopt_delays(self, name: str, delays: tuple[NotDue, ...], now: Now) -> list[Effect]:
        """Adopt delays that a peer has sent: the higher (generation, n, ballot) wins, at equality ours stays."""
        items = [
            (item.span, delay_from(item, now.mono))
            for item in delays
            if item.ballot != STAMP_ZERO  # else of the batch, by the peer's clock: ours has its own
        ]
        return self._learn(self.views.named(name), fate.on_delay, items, now)

    def adopt_won(self, name: str, owner: Owner, won: Counted, now: Now) -> list[Effect]:
        """Adopt attempts that this coordinator missed, from the voters for a hold of its own."""
        ask = (owner, Attempts(won.generation, won.n, won.ended, *won[4:]))
        return self._learn(self.views.named(name), fate.on_won, [(won.span, ask)], now)

    def adopt_attempts(self, name: str, attempts: tuple[Counted, ...], now: Now) -> list[Effect]:
        """Adopt counts of attempts; the greater count stays."""
        items = [(item.span, Attempts(item.generation, item.n, item.ended, *item[4:])) for item in attempts]
        return self._learn(self.views.named(name), fate.on_counted, items, now)

    def merge_state(self, state: GroupState, now: Now) -> list[Effect]:
        """Anti-entropy: merge a peer's state of a group. If there is no room for it, it is sent again later."""
        if self.node.no_capacity(Kind.ACKED):
            return []
        name = state.group
        effects = self.repair(name, state.records, now) + self.adopt_delays(name, state.delays, now)
        return effects + self.adopt_attempts(name, state.attempts, now)

    def defer(self, name: str, span: Span, until: float, now: Now) -> None:
        """Leave ``span`` out of our choices until then, and of no vote: it is held elsewhere, or not due."""
        self._learn(self.views.named(name), fate.on_defer, [(span, until)], now)

    def _learn(
        self, view: GroupView, rule: fate.Rule, items: Iterable[tuple[Span, Any]], now: Now
    ) -> list[Effect]:
        """Have ``rule`` decide about the spans of ``items``, each with its request. No caller waits for the disk."""
        changes = Changes()
        for span, ask in items:
            self.views.apply(view, span, rule, ask, now, changes)
        records = self.views.finish(view, changes, now)
        return [Persist(records)] if records else []

    def send_records(self, peer: NodeId, name: str, spans: list[Span], epoch: int) -> list[Effect]:
        """Send a few of our records to ``peer``, which answered a HOLD with lower ones; more with its next answer."""
        home = self.views.named(name).home
        known = [SpanRecord(part, record) for span in spans for part, record in home.records.within(span)]
        if not known:
            return []
        return [
            Send(peer, Merge(0, self.batches.partition, epoch, home.name, tuple(known[:DEATHS_PER_CHUNK])))
        ]

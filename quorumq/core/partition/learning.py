"""What one partition of a node learns of its messages from the answers of others, and what it tells those that lag."""

from __future__ import annotations

from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.messages import GroupState, Merge, NotDue, Resolved
from quorumq.core.partition.group import Delay, GroupView
from quorumq.core.partition.sync import LETTERS_MAX
from quorumq.core.partition.views import Views
from quorumq.core.records import AttemptsCounted, DelaysSet, RecordsMerged
from quorumq.core.types import STAMP_ZERO, NodeId, Now, PartitionId, Span


class Learning:
    """Merges into the groups of one partition what others know.

    Args:
        partition: which partition.
        views: its groups.
    """

    __slots__ = ("partition", "views")

    def __init__(self, partition: PartitionId, views: Views) -> None:
        self.partition = partition
        self.views = views

    def repair(self, name: str, resolved: tuple[Resolved, ...], now: Now) -> list[Effect]:
        """Read repair: merge records that a peer answered a HOLD with. Nobody waits for the disk."""
        view = self.views.named(name)
        changes: list[Resolved] = []
        for span, record in resolved:
            changes += [
                Resolved(part, merged) for part, merged, changed in view.merge(span, record) if changed
            ]
            self.views.refresh(view, span, now)
        return [Persist((merged_record(self.partition, view, changes),))] if changes else []

    def adopt_delays(self, name: str, delays: tuple[NotDue, ...], now: Now) -> list[Effect]:
        """NOT_DUE, adopted by the asker: the higher (generation, n, ballot) wins, at equality ours stays."""
        view = self.views.named(name)
        taken: list[NotDue] = []
        for span, n, ballot, remaining, generation in delays:
            if ballot == STAMP_ZERO:  # of the batch, by the peer's clock: ours has its own
                continue
            for part in view.merge_delay(span, Delay(n, ballot, now.mono + remaining, generation)):
                taken.append(NotDue(part, n, ballot, remaining, generation))
            self.views.refresh(view, span, now)
        return [Persist((DelaysSet(self.partition, name, now.wall_ms, tuple(taken)),))] if taken else []

    def merge_state(self, state: GroupState, now: Now) -> list[Effect]:
        """Anti-entropy: merge what a peer keeps of a group."""
        name = state.group.name
        view = self.views.named(name)
        effects = self.repair(name, state.records, now) + self.adopt_delays(name, state.delays, now)
        counted = tuple(item for item in state.attempts if view.merge_attempts(item))
        if counted:
            effects.append(Persist((AttemptsCounted(self.partition, name, counted),)))
        return effects

    def hint(self, name: str, span: Span, until: float, now: Now) -> None:
        """A NOK said that another owner holds ``span``: leave it out of our choices until then."""
        view = self.views.named(name)
        view.hints.set(span, until)
        self.views.refresh(view, span, now)

    def tell(self, peer: NodeId, name: str, spans: list[Span], epoch: int) -> list[Effect]:
        """``peer`` answered a HOLD with records lower than ours: send it a few of ours, more with its next answer."""
        home = self.views.named(name).home
        known = [Resolved(part, record) for span in spans for part, record in home.records.within(span)]
        if not known:
            return []
        return [Send(peer, Merge(0, self.partition, epoch, home.name, tuple(known[:LETTERS_MAX])))]


def merged_record(partition: PartitionId, view: GroupView, entries: list[Resolved]) -> RecordsMerged:
    """The journal's record of records that changed; those of dead letters are their source's."""
    return RecordsMerged(partition, view.home.name, tuple(entries))

"""RECLAIM of one partition: dropping the payload of batches that no group needs (docs/protocol.md, RECLAIM).

Disk space is reclaimed in these steps:

1. A rule, such as that of ACK or HOLD, leaves a batch without available messages. `GroupView.apply` lists it in
   `Changes.unavailable`, and `Views.finish` queues it (`Views.to_reclaim`).
2. A timer sweeps (`Upkeep.regular_work`, `Reclaim.sweep`), and notes the queued batches that no group needs.
3. Once a majority has listed its groups after that, and retention is over, `Reclaim.drop` returns a `Reclaimed` record
   and `DropBatches`.
4. `Journal.drop` appends a `BatchesDropped`, and counts one live batch less in each batch's segment.
5. After each fsync the node begins a new segment if it is time for it (`Log.should_roll`): the current one is full,
   enough older ones are without live batches, or the disk has little space. Then `Journal.compact` copies some live
   batches of sparse segments.
6. `Segments.begin` makes the segments without live batches obsolete. `Writer.begin` deletes their files once the new
   segment is durable.
"""

from __future__ import annotations

import itertools

from quorumq.core.messages.effects import DropBatches, Effect, Persist
from quorumq.core.messages.records import Reclaimed
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.component import PartitionComponent
from quorumq.core.partition.stored import StoredBatch
from quorumq.core.partition.views import Views
from quorumq.core.values import limits
from quorumq.core.values.spanlists import merge_spans
from quorumq.core.values.types import Kind, Now, Span


class Reclaim(PartitionComponent):
    """RECLAIM of one partition.

    Attributes:
        unneeded: batches that no group needs, with the time since when, the oldest first.
        more: True if the last step had no time for all of it.
    """

    __slots__ = ("more", "unneeded")

    def __init__(self, batches: Batches, views: Views) -> None:
        super().__init__(batches, views)
        self.unneeded: dict[int, float] = {}
        self.more = False

    def messages_if_unneeded(self, batch: StoredBatch) -> list[Span] | None:
        """Return the messages in a durable batch that no group needs; None if one does, or if there is no group.

        A group does not need it if it has a tombstone for each message, or begins after it, and has no hold and no dead
        letter in it.
        """
        node, readers = self.node, self.views.main_groups()
        if not readers or not batch.durable:
            return None
        parts = self.batches.parts_of(batch)
        node.reclaims_left -= len(parts)
        for view in readers:
            for part in parts:
                covered = not view.home.from_ms or view.covers(part.producer_id, batch.header.published_ms)
                node.reclaims_left -= 1
                if view.readable(part, covered):
                    return None
                if any(record.kind == Kind.DEAD for _, record in view.shown(part, covered)):
                    return None
                if any(each.held(part) for each in (view, view.dead) if each is not None):
                    return None
        return parts

    def sweep(self, now: Now) -> None:
        """Look at the queued batches; note those that no group needs, and since when.

        It ends when the step has used up its share of such work (`reclaims_left` of the node's state).
        """
        self.more = False
        if self.views.unmade:  # a group reads here that has no view to ask yet
            return
        for number in list(itertools.islice(self.views.to_reclaim, limits.RECLAIM_BATCHES_MAX)):
            if self.node.reclaims_left <= 0:
                self.more = True
                return
            del self.views.to_reclaim[number]
            batch = self.batches.stored.get(number)
            if batch is None or number in self.unneeded or self.messages_if_unneeded(batch) is None:
                continue
            self.unneeded[number] = now.mono

    @property
    def unneeded_last(self) -> float:
        """Return the time since which no group needs the newest batch to reclaim; minus infinity if there is none."""
        return next(reversed(self.unneeded.values()), float("-inf"))

    def drop(self, listed_at: float, retention_s: float, now: Now) -> list[Effect]:
        """RECLAIM: drop the payload of batches that no group needs, once their retention is over.

        Args:
            listed_at: latest time (monotonic seconds) such that a majority of the replica set, this node included, has
                listed its groups in answer to a question asked then or later. A group that was there when the batch
                was noted has a majority too, so it is known here by now (docs/protocol.md, RECLAIM).
            retention_s: for how long the topic keeps a batch that no group needs.
        """
        dropped: list[StoredBatch] = []
        spans: list[Span] = []
        if self.views.unmade:
            return []
        for number, since in list(itertools.islice(self.unneeded.items(), limits.RECLAIM_BATCHES_MAX)):
            if since > listed_at or since + retention_s > now.mono:
                break
            if self.node.reclaims_left <= 0:
                self.more = True
                break
            del self.unneeded[number]
            batch = self.batches.stored.get(number)
            parts = None if batch is None else self.messages_if_unneeded(batch)
            if batch is None or parts is None:  # there may be a new group or a redrive since
                continue
            self.node.reclaims_left -= len(parts) * (1 + len(self.views.groups))
            self.views.withdraw(batch, parts)
            dropped.append(batch)
            spans += parts
        if not dropped:
            return []
        gone = merge_spans(spans)
        self.batches.drop(dropped, gone)
        self.views.discard(gone)
        for producer_id in dict.fromkeys(span.producer_id for span in spans):
            if not self.batches.present.spans_of(producer_id):
                self.batches.idle_since[producer_id] = now.mono
        numbers = tuple(batch.number for batch in dropped)
        return [Persist((Reclaimed(self.batches.partition, gone, numbers),)), DropBatches(numbers)]

    def check(self) -> None:
        times = list(self.unneeded.values())
        assert times == sorted(times), "batches to be reclaimed are out of order"

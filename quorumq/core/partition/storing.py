"""Batches come and go at one replica, and what is available follows: STORE, the journal at start, due, damaged."""

from __future__ import annotations

from quorumq.core.effects import Done, Effect, Persist, Send
from quorumq.core.errors import Code
from quorumq.core.messages import Store, StoreReply
from quorumq.core.partition.batches import AGE_UNKNOWN, Batches, Slot, StoredBatch
from quorumq.core.partition.closing import Closing
from quorumq.core.partition.views import Views
from quorumq.core.records import BatchStored
from quorumq.core.state import NodeState
from quorumq.core.types import NodeId, Now, Span, Topic


class Storing:
    """Stores the batches of one partition.

    Args:
        node: the state that all replicas of the node share.
        batches: of the partition.
        views: its groups.
        closing: its origins that are to be closed.
    """

    __slots__ = ("batches", "closing", "node", "views")

    def __init__(self, node: NodeState, batches: Batches, views: Views, closing: Closing) -> None:
        self.node = node
        self.batches = batches
        self.views = views
        self.closing = closing

    def on_store(self, sender: NodeId, message: Store, topic: Topic, now: Now) -> list[Effect]:
        """STORE: keep what of the batch is not here yet. STORED, once durable, for anything that is.

        A batch that is present already is answered behind whatever may not be durable yet, so a retry that
        overtakes its own fsync is not promised early.
        """
        new, error, detail = self._new_of(message, topic)
        if error:
            return [self._stored(sender, message, error, detail)] if message.round else []
        answer = (self._stored(sender, message),) if message.round else ()
        if not new:
            return [Persist((), answer)] if message.round else []
        number = self.node.next_batch
        self.node.next_batch += 1
        self.node.unwritten[number] = self.batches.partition
        age_ms = max(0, message.age_ms) if message.round else AGE_UNKNOWN
        born = now.mono - max(0, age_ms) / 1000
        batch = StoredBatch(number, message.batch.header, born, durable=False)
        self.batches.add(batch, now)
        if age_ms == AGE_UNKNOWN:
            self.batches.doubt(batch, topic.ttl_s)
            if message.age_ms >= 0:
                self.batches.told_age(sender, number, message.age_ms, now)
        for part, shift in new:
            back = self.batches.put(part, Slot(number, shift))
            if back:
                self.views.raise_floors(back)
        record = BatchStored(number, message.batch, now.wall_ms, age_ms)
        return [Persist((record,), (*answer, Done(number)))]

    def _new_of(self, message: Store, topic: Topic) -> tuple[list[tuple[Span, int]], str, str]:
        """What of a batch is to be stored, with its shift in the batch; or the error, and what to tell of it."""
        header = message.batch.header
        if message.epoch != topic.epoch:
            detail = f"the replica set of {header.partition} has epoch {topic.epoch}, not {message.epoch}"
            return [], Code.WRONG_EPOCH, detail
        error = detail = ""
        new: list[tuple[Span, int]] = []
        at = 0
        for section in header.sections:
            shift = at - section.start
            at += section.size
            if section.origin in self.batches.closed:
                error, detail = Code.ORIGIN_CLOSED, f"the session {section.origin} is closed: open another"
                continue
            for part, slot in self.batches.index.split(section):
                if slot is None:
                    new += [(gap, shift) for gap in self.batches.worth_storing(part)]
                elif not self.batches.same_records(header, shift, part, slot):
                    error, detail = Code.CONFLICT, f"other bytes are stored under {part}"
            if message.round and section.origin in self.closing.promised and new:
                error = Code.ORIGIN_CLOSED
                detail = f"the session {section.origin} is being closed: open another"
        if not message.round:
            error = ""  # anti-entropy brings what else is in the batch
        if not error and new and self.node.disk_full:
            advice = "let consumers ack what is there, or give it a larger disk"
            error = Code.STORAGE_FULL
            detail = f"node {self.node.me} has only its reserve of disk space left: {advice}"
        if not error and new and self.node.memory_full:
            error, detail = Code.STORAGE_FULL, self.node.memory_full
        return new, error, detail

    def _stored(self, sender: NodeId, message: Store, error: str = "", detail: str = "") -> Send:
        known = self.node.vector(self.batches.members)
        return Send(sender, StoreReply(message.round, error, detail, known))

    def load(self, record: BatchStored, ttl_s: float, now: Now) -> None:
        """Take from a batch of the journal what nothing else here has, at start; `Views.refresh_all` follows."""
        self.views.raise_floors(self.batches.load(record, ttl_s, now))

    def on_durable(self, number: int, now: Now) -> None:
        """Batch ``number`` is on disk: its messages are available now."""
        batch = self.batches.stored.get(number)
        if batch is not None:  # else it was found damaged meanwhile
            batch.durable = True
            self.views.refresh_batch(batch, now)

    def on_due(self, number: int, now: Now) -> None:
        """Batch ``number`` is due by our clock: its messages are available from now on."""
        self.batches.waiting.pop(number, None)
        batch = self.batches.stored.get(number)
        if batch is not None and batch.durable:
            self.views.refresh_batch(batch, now)

    def on_damaged(self, number: int, now: Now) -> None:
        """Batch ``number`` cannot be read: its messages are absent here from now on, and pulled from a peer.

        Their records and holds stay: a vote needs no payload.
        """
        batch = self.batches.stored[number]
        self.views.withdraw(batch, self.batches.damage(batch, now))

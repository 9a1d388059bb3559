"""Adds and removes batches at one replica, and updates availability: STORE, the journal at start, due, damaged."""

from __future__ import annotations

from quorumq.core.messages import Part, Store
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.batches import AGE_UNKNOWN
from quorumq.core.partition.closing import ClosingComponent
from quorumq.core.partition.message_index import Location
from quorumq.core.partition.stored import StoredBatch
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import (
    NAMES_PER_PARTITION_MAX,
    NAMES_PER_TOPIC_MAX,
    PRODUCER_IDS_PER_TOPIC_MAX,
    SESSIONS_PER_PARTITION_MAX,
)
from quorumq.core.values.types import NAMED, NodeId, Now, ProducerId, Span, Topic


class Storing(ClosingComponent):
    """Stores the batches of one partition."""

    __slots__ = ()

    def take(
        self, sender: NodeId, part: Store | Part, topic: Topic, now: Now, *, asked: bool
    ) -> tuple[BatchStored | None, str, str]:
        """Keep the messages of one batch of a STORE that are not here yet.

        Args:
            part: the STORE itself stands for its first one.
            asked: True if a coordinator asked for it; else it is one of anti-entropy.

        Returns:
            the record to journal, None if all of it is here; or the error, and its detail.
        """
        new, error, detail = self._new_of(part, topic, asked=asked)
        if error or not new:
            return None, error, detail
        number = self.node.next_batch
        self.node.next_batch += 1
        self.node.unwritten[number] = self.batches.partition
        age_ms = max(0, part.age_ms) if asked else AGE_UNKNOWN
        born = now.mono - max(0, age_ms) / 1000
        # A peer's report of the age alone decides where the batch stands; all else takes the reports of several peers.
        made_ms = int(1000 * now.mono) - max(0, part.age_ms)
        batch = StoredBatch(number, part.batch.header, born, False, made_ms)
        self.batches.add(batch, now)
        if age_ms == AGE_UNKNOWN:
            self.batches.doubt(batch, topic.ttl_s)
            if part.age_ms >= 0:
                self.batches.told_age(sender, number, part.age_ms, now)
        for span, shift in new:
            back = self.batches.put(span, Location(number, shift))
            if back:
                self.views.raise_min_ballots(back)
        mono_ms = int(1000 * now.mono)
        return BatchStored(number, part.batch, now.wall_ms, age_ms, self.node.incarnation.n, mono_ms), "", ""

    def _new_of(
        self, part: Store | Part, topic: Topic, *, asked: bool
    ) -> tuple[list[tuple[Span, int]], str, str]:
        """Return the parts of a batch to store, with their shift in the batch; or the error, and its detail."""
        header = part.batch.header
        if part.epoch != self.batches.epoch:
            self.batches.refused = self.batches.refused or part.epoch > self.batches.epoch
            detail = f"the replica set of {header.partition} has epoch {self.batches.epoch}, not {part.epoch}"
            return [], Code.WRONG_EPOCH, detail
        error = detail = ""
        new: list[tuple[Span, int]] = []
        at, closed, named = 0, self.batches.closed, False
        for section in header.spans:
            named = named or section.producer_id.node == NAMED
            shift = at - section.start
            at += section.stop - section.start
            if closed.numbers.runs and section.producer_id in closed:
                error, detail = Code.SESSION_CLOSED, why_closed(section.producer_id)
                continue
            for span, location in self.batches.index.split(section):
                if location is None and not self.batches.reclaimed.runs:
                    new.append((span, shift))
                elif location is None:
                    new += [(gap, shift) for gap in self.batches.worth_storing(span)]
                elif not self.batches.same_records(header, shift, span, location):
                    error, detail = Code.CONFLICT, f"other bytes are stored under {span}"
            if (
                asked
                and new
                and self.closing.promised.runs
                and self.closing.has_promised(section.producer_id)
            ):
                error, detail = Code.SESSION_CLOSED, why_closed(section.producer_id)
        if not asked:
            error = ""  # anti-entropy brings what else is in the batch
        if (self.node.disk_shortage or self.node.memory_full) and new and not error:
            error, detail = Code.STORAGE_FULL, self.node.no_capacity(BatchStored)
        if new and not error:
            in_all = self.node.producer_ids.get(header.partition.topic, 0)
            full = in_all >= PRODUCER_IDS_PER_TOPIC_MAX or self.batches.sessions >= SESSIONS_PER_PARTITION_MAX
            detail = self._no_sessions(new, in_all) if full else ""
            if named and asked and not detail:
                detail = self._no_names(new)
            error = Code.STORAGE_FULL if detail else ""
        return new, error, detail

    def _no_sessions(self, new: list[tuple[Span, int]], in_all: int) -> str:
        """Return the reason why no messages of other sessions are taken; "" if these are of none."""
        partition, there = self.batches.partition, self.batches.present.runs
        if all(span.producer_id.node == NAMED or span.producer_id in there for span, _ in new):
            return ""
        where = f"{partition} has messages of {SESSIONS_PER_PARTITION_MAX}"
        if in_all >= PRODUCER_IDS_PER_TOPIC_MAX:
            where = f"the whole topic of {partition} has messages of {PRODUCER_IDS_PER_TOPIC_MAX}"
        return (
            f"{where} producers' sessions, and takes none of others: let consumers ack what is there, and let "
            "producers send more messages each"
        )

    def _no_names(self, new: list[tuple[Span, int]]) -> str:
        """Return the reason why no messages under other names are taken; "" if these are.

        A name counts until its window is closed, with payload or without. Peers' copies are taken all the same: they
        were counted at the first replica.
        """
        partition, batches = self.batches.partition, self.batches
        more = sum([span.size for span, _ in new if span.producer_id.node == NAMED])
        if more and self.node.names.get(partition.topic, 0) + more > NAMES_PER_TOPIC_MAX:
            where = f"the whole topic of {partition} keeps {NAMES_PER_TOPIC_MAX}"
        elif more and batches.names + more > NAMES_PER_PARTITION_MAX:
            where = f"{partition} keeps {NAMES_PER_PARTITION_MAX}"
        else:
            return ""
        return (
            f"{where} names of messages, and takes no more: name them for a short window, and let consumers ack "
            "them, or publish without a name"
        )

    def load(self, record: BatchStored, ttl_s: float, now: Now) -> None:
        """Take new messages from a batch of the journal, at start; `Views.refresh_all` follows."""
        self.views.raise_min_ballots(self.batches.load(record, ttl_s, now))

    def on_durable(self, number: int, now: Now) -> None:
        """Make the messages of batch ``number``, which is on disk, available now."""
        batch = self.batches.stored.get(number)
        if batch is not None:  # else it was found damaged meanwhile
            batch.durable = True
            self.views.refresh_batch(batch, now)

    def refresh_rest(self, number: int, first: int, now: Now) -> None:
        """Make the next spans of batch ``number`` available, from index ``first`` on: a step has time for some."""
        batch = self.batches.stored.get(number)
        if batch is not None:
            self.views.refresh_batch(batch, now, first)

    def on_due(self, number: int, now: Now) -> None:
        """Make the messages of batch ``number``, which is due by our clock, available from now on."""
        self.batches.waiting.pop(number, None)
        batch = self.batches.stored.get(number)
        if batch is not None and batch.durable:
            self.views.refresh_batch(batch, now)

    def on_damaged(self, number: int, now: Now) -> None:
        """Make the messages of batch ``number``, which cannot be read, absent; they are pulled from a peer.

        Their records and holds stay: a vote needs no payload.
        """
        batch = self.batches.stored[number]
        self.views.withdraw(batch, self.batches.damage(batch, now))


def why_closed(producer_id: ProducerId) -> str:
    """Return the reason why no batch of a producer id is taken any more, and the remedy."""
    if producer_id.node == NAMED:
        return (
            f"window {producer_id.k} of {producer_id.n} s is past by the clocks of the replicas: set the clocks of the "
            "nodes right, and publish it anew"
        )
    return f"the session {producer_id} is closed, or being closed: open another"

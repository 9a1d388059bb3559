"""Batches of one partition on one node, and the messages that are present, absent or reclaimed.

A table: it knows neither groups nor the requests between nodes. A message is known here once it is present, absent
or reclaimed; of a closed producer id only its number is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from quorumq.core.cluster.rounds import majority_of
from quorumq.core.cluster.state import NodeState
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.closed import ClosedSessions, among, discard, number_of
from quorumq.core.partition.digests import Digests
from quorumq.core.partition.message_index import Location, MessageIndex
from quorumq.core.partition.stored import StoredBatch, StoredBatches
from quorumq.core.values import limits
from quorumq.core.values.counted import CountedMap
from quorumq.core.values.names import is_windowed
from quorumq.core.values.rows import Rows
from quorumq.core.values.spanlists import merge_spans, subtract
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import NAMED, BatchHeader, NodeId, Now, PartitionId, ProducerId, Span

LOOKED_AT = 2048
"""Batches or producer ids that are examined for one request to a peer, at most."""

AGE_UNKNOWN = -1
"""Age of a batch that was copied from a peer: it is known by the peer's clock alone."""


class Missing(NamedTuple):
    """Knowledge about messages that are known and not present here."""

    since: float  # monotonic seconds
    # The other replicas that said since then that they do not have them, sorted.
    denied: tuple[NodeId, ...] = ()
    noted: bool = False  # in the journal, because a vote from here may have confirmed it


ALL_WANTED: Final = b"wanted"
"""The content of a producer id whose messages were all reclaimed and are wanted again."""


class Batches:
    """The batches of one partition on one node.

    Attributes:
        fresh: the newest batches of one message, which are not packed yet.
        stored: the batches by their number.
        members: the replica set, of ``epoch``.
        keepers: the nodes that may have payload, this one included: the set, and those that left and keep theirs.
        partners: the nodes whose contents are compared, this one included: the set, and those that copy its payload.
        order: keys of the stored batches, oldest first.
        with_ttl: number of batches that have a time to live of their own.
        refused: True if STOREs of a later layout than the adopted one were refused.
        pulling_all_until: time until which all that a peer has is pulled at once: STOREs were refused here before.
        ages_moved: True if a batch turned out to be older than its position in `order` implies.
        index: batch and position of each present message.
        present: runs of messages that the index covers.
        absent: known, and not present here.
        reclaimed: known, and their payload was dropped here.
        wanted_again: reclaimed messages that a later group still has to read. They count as absent.
        closed: the producer ids that are over.
        idle_since: time since which a producer id has had no present message, by producer id.
        sessions: number of producer ids with present messages, those of names aside.
        names: number of names: messages that their publishers named, present or reclaimed.
        damaged: batches that cannot be read here, and their content.
        waiting: batches that are not due yet by our clock.
        uncertain: batches of unknown age, and the times when peers say they were made.
        digests: digests of the known messages.
        lacking: producer ids, by peer, with absent messages that are still to be asked for in this pass.
        listed: the producer ids, as a listing goes through them (core/partition/listing.py).
    """

    __slots__ = (
        "absent",
        "ages_moved",
        "closed",
        "damaged",
        "digests",
        "epoch",
        "fresh",
        "idle_since",
        "index",
        "keepers",
        "lacking",
        "listed",
        "members",
        "names",
        "node",
        "order",
        "partition",
        "partners",
        "present",
        "pulling_all_until",
        "reclaimed",
        "refused",
        "sessions",
        "stored",
        "uncertain",
        "unlisted",
        "waiting",
        "wanted_again",
        "with_ttl",
    )  # fmt: skip

    def __init__(self, node: NodeState, partition: PartitionId) -> None:
        self.node = node
        self.partition = partition
        self.members: tuple[NodeId, ...] = ()
        self.keepers: tuple[NodeId, ...] = ()
        self.partners: tuple[NodeId, ...] = ()
        self.epoch = 0
        self.stored = StoredBatches(partition)
        self.order = Rows("qQ", 2)
        self.with_ttl = 0
        self.refused = False
        self.pulling_all_until = 0.0
        self.ages_moved = False
        self.index = MessageIndex()
        self.present = SpanSet()
        self.absent: CountedMap[Missing] = CountedMap(denials)
        self.reclaimed = SpanSet()
        self.wanted_again = SpanSet()
        self.closed = ClosedSessions()
        self.idle_since: dict[ProducerId, float] = {}
        self.sessions = 0
        self.names = 0
        self.damaged: dict[int, tuple[Span, ...]] = {}
        self.fresh: dict[int, None] = {}
        self.waiting: dict[int, None] = {}
        self.uncertain: dict[int, dict[NodeId, float]] = {}
        self.digests = Digests()
        self.lacking: dict[NodeId, list[ProducerId]] = {}
        self.listed: SortedList[ProducerId] | None = None
        self.unlisted: list[ProducerId] = []

    # ------------------------------------------------------------- questions

    def parts_of(self, batch: StoredBatch) -> list[Span]:
        """Return the messages that are in this very batch; others of its sections may stand in another one."""
        return [
            part
            for section in batch.header.spans
            for part, location in self.index.within(section)
            if location.number == batch.number
        ]

    def known_of(self, span: Span) -> list[Span]:
        """Return the parts of ``span`` that are present, absent or reclaimed here."""
        absent = [part for part, _ in self.absent.within(span)]
        return [*self.present.within(span), *absent, *self.reclaimed.within(span)]

    def bytes_of(self, span: Span) -> int:
        """Return the number of bytes of the present messages of ``span``."""
        total = 0
        for chunk, location in self.index.within(span):
            header = self.stored[location.number].header
            total += header.end_of(chunk.stop + location.shift - 1) - header.end_of(
                chunk.start + location.shift - 1
            )
        return total

    def same_records(self, header: BatchHeader, shift: int, part: Span, location: Location) -> bool:
        """Return True if the batch's records for ``part`` are the ones stored, by their CRCs."""
        ours = self.stored[location.number].header
        theirs = header.crcs[4 * (part.start + shift) : 4 * (part.stop + shift)]
        return ours.crcs[4 * (part.start + location.shift) : 4 * (part.stop + location.shift)] == theirs

    def worth_storing(self, span: Span) -> list[Span]:
        """Return the parts of ``span``, which is not present, to store: all but reclaimed ones that no group wants."""
        if not self.reclaimed.runs:
            return [span]
        return subtract(span, self._not_wanted(self.reclaimed.within(span)))

    def _not_wanted(self, spans: list[Span]) -> list[Span]:
        """Return ``spans``, reclaimed here, without the parts that a later group would read."""
        if not self.wanted_again:
            return spans
        return [part for span in spans for part in subtract(span, self.wanted_again.within(span))]

    def content(self, producer_id: ProducerId) -> bytes:
        """Return a producer id's content for comparison: messages that are present, or reclaimed and not wanted again.

        A producer id with all reclaimed messages wanted again has a content too, so that every replica learns it.
        """
        if producer_id not in self.reclaimed.runs:
            return self.present.content(producer_id)
        gone = self._not_wanted(self.reclaimed.spans_of(producer_id))
        here = merge_spans([*self.present.spans_of(producer_id), *gone])
        return SpanSet.from_spans(here).content(producer_id) or ALL_WANTED

    @property
    def lost(self) -> int:
        """Return the number of known messages that each other replica has reported missing, too."""
        return self.absent.count(len(self.keepers) - 1)

    def discard_denials(self) -> None:
        """Count no more what nodes that keep no payload any more have reported missing."""
        for span, entry in list(self.absent.items()):
            counted = tuple(node for node in entry.denied if node in self.keepers)
            if counted != entry.denied:
                self.absent.set(span, entry._replace(denied=counted))

    # ------------------------------------------------ batches are stored and dropped

    def add(self, batch: StoredBatch, now: Now) -> None:
        """List a batch; until it is due by our clock it is left out of every choice. `put` its messages next."""
        self.stored[batch.number] = batch
        self.order.put(batch.key)
        self.with_ttl += batch.header.ttl_ms > 0
        if batch.header.delay_ms and batch.due > now.mono:
            self.waiting[batch.number] = None
            self.node.at(batch.due, ("due", self.partition, batch.number))
        if len(batch.header.crcs) == 4:
            self.fresh[batch.number] = None
            if len(self.fresh) > self.node.config.packed_above:
                self.pack()

    def put(self, span: Span, location: Location) -> list[Span]:
        """Note that ``span`` is present from now on, at ``location``; return the parts that were reclaimed before."""
        self.index.put(span, location)
        if span.producer_id not in self.present.runs:
            self._count_session(span.producer_id, 1)
        if span.producer_id.node == NAMED:
            self._count_names(span, 1)
        self.present.put(span, True)
        self.idle_since.pop(span.producer_id, None)
        self.digests.stale[span.producer_id] = None
        if self.absent.runs:
            self.absent.remove(span)
        back = self.reclaimed.remove(span) if self.reclaimed.runs else []
        for part in back:
            self._count_names(part, -1)
        if back:
            self.wanted_again.remove(span)
        return back

    def _count_session(self, producer_id: ProducerId, more: int) -> None:
        if producer_id.node != NAMED:
            topic, in_all = self.partition.topic, self.node.producer_ids
            self.sessions += more
            in_all[topic] = in_all.get(topic, 0) + more

    def _count_names(self, span: Span, times: int) -> None:
        if span.producer_id.node == NAMED:
            topic, in_all = self.partition.topic, self.node.names
            self.names += times * span.size
            in_all[topic] = in_all.get(topic, 0) + times * span.size

    def note_reclaimed(self, span: Span) -> None:
        """Note that the payload of ``span``, which is not present, was dropped."""
        for part in self.reclaimed.add(span):
            self._count_names(part, 1)

    def pack(self) -> None:
        """Pack the older half of the fresh batches together, which is cheap for each.

        Most batches are dropped before that. One that may still change stays fresh.
        """
        packable: list[StoredBatch] = []
        for number in list(self.fresh)[: len(self.fresh) - self.node.config.packed_above // 2]:
            del self.fresh[number]
            batch = self.stored[number]
            if not batch.durable or number in self.waiting or number in self.uncertain:
                self.fresh[number] = None
            else:
                packable.append(batch)
        self.stored.pack(*packable)

    def load(self, record: BatchStored, ttl_s: float, now: Now) -> list[Span]:
        """Take new messages from a batch of the journal, at start; return those that had been reclaimed.

        It has aged as `NodeState.passed_s` says.
        """
        header = record.batch.header
        passed_ms = int(1000 * self.node.passed_s(record, record.received_ms, now))
        age_ms = min(limits.AGES_END, max(0, record.age_ms) + passed_ms)
        batch = StoredBatch(record.number, header, now.mono - age_ms / 1000, durable=True)
        back: list[Span] = []
        at = 0
        for section in header.spans:
            for part in self.index.gaps(section) if section.producer_id not in self.closed else ():
                if record.number not in self.stored:
                    if record.age_ms == AGE_UNKNOWN:  # before it could be packed
                        self.doubt(batch, ttl_s)
                    self.add(batch, now)
                back += self.put(part, Location(record.number, at - section.start))
            at += section.size
        return back

    def load_damaged(self, record: BatchStored, now: Now) -> None:
        """Note that a start found this batch damaged: messages that no other batch has become absent.

        It is called after the rest of the journal was replayed.
        """
        lost = [
            part
            for section in record.batch.header.spans
            if section.producer_id not in self.closed
            for gap in self.index.gaps(section)
            for part in self.worth_storing(gap)
        ]
        self._lose(record.number, lost, now)

    def damage(self, batch: StoredBatch, now: Now) -> list[Span]:
        """Note that a batch cannot be read; return its messages, which are absent here from now on."""
        lost = self._unlist(batch)
        self._lose(batch.number, lost, now)
        return lost

    def _lose(self, number: int, lost: list[Span], now: Now) -> None:
        for part in lost:
            self.absent.set(part, Missing(now.mono - self.node.config.sync_grace))
        self.damaged[number] = tuple(lost)

    def take_mended(self) -> list[int]:
        """Take out damaged batches that are not needed: their messages are present, reclaimed, or of a closed producer
        id."""
        numbers = [
            number
            for number, spans in self.damaged.items()
            if not any(self.absent.within(span) for span in spans)
        ]
        for number in numbers:
            del self.damaged[number]
        return numbers

    def drop(self, batches: Iterable[StoredBatch], gone: Iterable[Span]) -> None:
        """Drop the payload of batches; ``gone`` are all their messages, which stay known, as reclaimed.

        Why together: messages that were published alone, and follow each other, are one span.
        """
        for part in gone:
            self._take_out(part)
            self.note_reclaimed(part)
        for batch in batches:
            self._remove(batch)

    def _unlist(self, batch: StoredBatch) -> list[Span]:
        """Take a batch out; return the messages that were in it."""
        parts = self.parts_of(batch)
        for part in parts:
            self._take_out(part)
        self._remove(batch)
        return parts

    def _remove(self, batch: StoredBatch) -> None:
        """Take out a batch whose messages were taken out."""
        self.order.pop(batch.key)
        self.with_ttl -= batch.header.ttl_ms > 0
        del self.stored[batch.number]
        for table in (self.fresh, self.waiting, self.uncertain):
            table.pop(batch.number, None)

    def _take_out(self, part: Span) -> None:
        self.index.remove(part)
        self.present.remove(part)
        self._count_names(part, -1)
        if part.producer_id not in self.present.runs:
            self._count_session(part.producer_id, -1)
        self.digests.stale[part.producer_id] = None

    def drop_closed(self, batch: StoredBatch, numbers: Iterable[Span]) -> None:
        """Drop the messages in a batch of producer ids with these numbers. A batch that has others, too, stays.

        When that one is loaded again, those of closed producer ids are left out.
        """
        over = among(numbers, dict.fromkeys(section.producer_id for section in batch.header.spans))
        for part in self.parts_of(batch):
            if part.producer_id in over:
                self._take_out(part)
        if not self.parts_of(batch):
            self._unlist(batch)

    def learn_reclaimed(self, spans: Iterable[Span], now: Now) -> list[Span]:
        """Note that a peer has reclaimed these; return those without payload here, which are not pulled any more."""
        learned: list[Span] = []
        for span in [span for span in spans if span.producer_id not in self.closed]:
            for gap in self.index.gaps(span):
                learned += subtract(gap, self.reclaimed.within(gap))
        for part in learned:
            self.idle_since.setdefault(part.producer_id, now.mono)
            self.note_reclaimed(part)
            self.absent.remove(part)
            self.digests.stale[part.producer_id] = None
        return learned

    def want_again(self, span: Span) -> None:
        """Note that some group would read ``span``, which was reclaimed."""
        self.wanted_again.add(span)
        self.digests.stale[span.producer_id] = None

    def unwant(self, span: Span) -> None:
        """Note that no group would read ``span``, which was reclaimed."""
        if self.wanted_again.remove(span):
            self.digests.stale[span.producer_id] = None

    def close(self, numbers: Iterable[Span]) -> tuple[Span, ...]:
        """Keep only the numbers of these producer ids, which are over; return the new ones. Producer ids with messages
        stay."""
        fresh: list[Span] = []
        for span in numbers:
            for gap in self.closed.numbers.gaps(span):
                for part in subtract(gap, map(number_of, among((gap,), self.present.runs))):
                    self.closed.add(part)  # at once: the numbers may name it again
                    fresh.append(part)
        for producer_id in among(
            [span for span in fresh if is_windowed(span.producer_id)], self.reclaimed.runs
        ):
            for part in self.reclaimed.spans_of(producer_id):
                self._count_names(part, -1)
        self.digests.stale.update(dict.fromkeys(discard(fresh, self.reclaimed)))
        for table in (self.wanted_again, self.absent, self.idle_since):
            discard(fresh, table)
        return merge_spans(fresh)

    # ------------------------------------------------------------- due and ages

    def doubt(self, batch: StoredBatch, ttl_s: float) -> None:
        """Mark the age of a batch from a peer as uncertain, and count it from now until enough peers have reported one.

        Otherwise one wrong clock could reach a majority through the replicas that copied it.
        """
        if batch.header.delay_ms or batch.header.ttl_ms or ttl_s:
            self.uncertain[batch.number] = {}

    def ages_wanted(self, peer: NodeId, ttl_s: float) -> tuple[Span, ...]:
        """Return a message of each batch whose age to ask ``peer`` for: of some batches at a time."""
        asked: list[Span] = []
        for number in list(islice(self.uncertain, LOOKED_AT)):
            ages = self.uncertain.pop(number)
            self.uncertain[number] = ages  # move to the end: the next call begins with others
            batch = self.stored[number]
            if number not in self.waiting and not batch.header.ttl_ms and not ttl_s:
                del self.uncertain[number]  # due by now: its age matters no more
            elif peer not in ages and len(asked) < limits.SPANS_PER_REQUEST_MAX:
                part = self.parts_of(batch)[0]
                asked.append(part._replace(stop=part.start + 1))
        return tuple(asked)

    def told_age(self, sender: NodeId, number: int, age_ms: int, now: Now) -> bool:
        """Note a peer's age of a batch; return True if the batch was waiting and turns out to be due.

        Once RF - majority + 1 peers have answered, at least one of their clocks is right: believed is the youngest age.
        """
        ages = self.uncertain.get(number)
        if ages is None:
            return False
        ages[sender] = now.mono - max(0, age_ms) / 1000
        wrong = len(self.members) - majority_of(len(self.members))  # the most clocks that are wrong
        if len(ages) <= wrong:
            return False
        del self.uncertain[number]
        batch = self.stored[number]
        born = sorted(ages.values())[wrong]
        if born < batch.born:
            batch.born, self.ages_moved = born, True
        if number not in self.waiting:
            return False
        if batch.due <= now.mono:
            del self.waiting[number]
            return True
        self.node.at(batch.due, ("due", self.partition, number))
        return False

    def age_ms(self, number: int, now: Now) -> int:
        """Return the age of a batch in milliseconds, by our clock."""
        if number in self.uncertain:
            return AGE_UNKNOWN
        return max(0, int(1000 * (now.mono - self.stored[number].born)))

    # --------------------------------------------------------- what is missing

    def note_offered(self, sender: NodeId, spans: Iterable[Span], now: Now) -> list[Span]:
        """Note that ``sender`` has these; return those that have been missing here for a while."""
        missing: list[Span] = []
        for span in spans:
            if span.producer_id in self.closed:
                continue
            for gap in [gap for whole in self.index.gaps(span) for gap in self.worth_storing(whole)]:
                for part, entry in self.absent.split(gap):
                    if entry is None or sender in entry.denied:  # it has them now
                        entry = without(entry, sender) if entry is not None else Missing(now.mono)
                        self.absent.set(part, entry)
                    if self._is_overdue(entry, now):
                        missing.append(part)
        return missing

    def note_absent(self) -> tuple[Span, ...]:
        """Mark all absent messages as those that the journal names, and return them."""
        for span, entry in list(self.absent.items()):
            if not entry.noted:
                self.absent.set(span, entry._replace(noted=True))
        return self.noted()

    def noted(self) -> tuple[Span, ...]:
        """Return the absent messages that the journal names."""
        return merge_spans(span for span, entry in self.absent.items() if entry.noted)

    def pull_all(self, now: Now) -> None:
        """Pull at once what peers have: STOREs were refused here until now, and a client may wait here alone."""
        self.refused = False
        self.pulling_all_until = now.mono + self.node.config.sync_grace

    def _is_overdue(self, entry: Missing, now: Now) -> bool:
        """Return True if a message is not on its way: it was heard of as an old one, or is missing for a while."""
        if entry.noted or now.mono < self.pulling_all_until:
            return True
        return entry.since + self.node.config.sync_grace <= now.mono

    def note_nowhere(self, sender: NodeId, spans: Iterable[Span]) -> None:
        """Note that ``sender``, if it may have payload, does not have these."""
        for span in spans if sender in self.keepers else ():
            for part, entry in self.absent.within(span):
                denied = (*without(entry, sender).denied, sender)
                self.absent.set(part, entry._replace(denied=tuple(sorted(denied))))

    def absent_for_long(self, peer: NodeId, now: Now) -> tuple[Span, ...]:
        """Return messages, missing for longer than `sync_grace`, that ``peer`` has not reported missing: of a few
        producer ids at a time."""
        producer_ids = self.lacking.get(peer) or list(self.absent.runs)
        few, self.lacking[peer] = producer_ids[-LOOKED_AT:], producer_ids[:-LOOKED_AT]
        spans = [
            span
            for producer_id in sorted(few)
            for span, entry in self.absent.spans_of(producer_id)
            if peer not in entry.denied and self._is_overdue(entry, now)
        ]
        return tuple(spans[: limits.SPANS_PER_REQUEST_MAX])

    # -------------------------------------------------------------- invariants

    def check(self, now: Now) -> None:
        self.index.check()
        self.stored.check()
        self.order.check()
        assert set(self.order) == {batch.key for batch in self.stored.values()}
        self.present.check()
        self.absent.check()
        for span, entry in self.absent.items():
            assert {*entry.denied} < {*self.keepers}, f"{span} is missing at a node that keeps nothing"
        assert merge_spans(span for span, _ in self.index.items()) == tuple(self.present.items())
        for producer_id in [*self.present.runs, *self.reclaimed.runs, *self.absent.runs]:
            assert producer_id not in self.closed, f"{producer_id} is closed, and something is kept of it"
        for span in self.reclaimed.items():
            assert not self.present.within(span), f"{span} is present, and listed as reclaimed"
        for span in self.wanted_again.items():
            assert self.reclaimed.covers(span), f"{span} is wanted again and was not reclaimed"
        for span, location in self.index.items():
            assert not self.absent.within(span), f"{span} is present, and listed as absent"
            assert location.number in self.stored, f"{span} is in batch {location.number}, which is not here"
        assert self.sessions == sum(producer_id.node != NAMED for producer_id in self.present.runs)
        known = (*self.present.items(), *self.reclaimed.items())
        assert self.names == sum(span.size for span in known if span.producer_id.node == NAMED)
        for number in self.waiting:
            assert self.stored[number].due > now.mono, f"batch {number} is due, and waits"
        for number in self.fresh:
            assert number in self.stored, f"batch {number} is fresh, and is not here"
        for number in self.uncertain:
            assert dict.__contains__(self.stored, number), (
                f"the age of batch {number} is asked for, and it is not here, or packed"
            )


def denials(entry: Missing) -> int:
    """Return the number of replicas that have said that they do not have it."""
    return len(entry.denied)


def without(entry: Missing, node: NodeId) -> Missing:
    """Return the entry without the denial of ``node``."""
    return entry._replace(denied=tuple(member for member in entry.denied if member != node))

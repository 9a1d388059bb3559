"""One partition on one node: what it answers to STORE, HOLD, RELEASE, EXTEND, ACK, REJECT, MERGE, PEEK and
anti-entropy.

Methods are named after the steps of docs/protocol.md, section 3. Each takes one message and the time, changes
this replica, and returns effects; an answer that promises something durable is inside a Persist. Nothing here
knows of quorums: counting is the coordinators' work (core/rounds.py).

Invariants are in `check`. The shortest way to see why a rule exists is to switch it off in the explorer
(docs/verification.md) and read the counterexample.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from quorumq.core import limits
from quorumq.core.closed import ClosedOrigins, may_close, number_of
from quorumq.core.effects import Done, Effect, Forget, Persist, Send, SendStored
from quorumq.core.messages import (
    Ack,
    Acked,
    Aged,
    CloseAsk,
    CloseTold,
    Counted,
    Digest,
    Extend,
    Extended,
    Freed,
    Granted,
    GroupDigest,
    GroupState,
    HeldThere,
    Hold,
    HoldReply,
    Merge,
    Merged,
    NotDue,
    Peeked,
    PeekReply,
    PeekRequest,
    Refused,
    Reject,
    Rejected,
    Resolved,
    Slice,
    Store,
    Stored,
    Survey,
    Surveyed,
    SyncOffer,
    SyncPull,
    SyncState,
    Tombed,
    Want,
)
from quorumq.core.partition.group import DEAD_SUFFIX, DeadView, Delay, GroupView
from quorumq.core.partition.holds import Held
from quorumq.core.records import (
    AttemptsCounted,
    BatchStored,
    DelaysSet,
    HeldAtStop,
    JournalRecord,
    MemoryAtStop,
    OriginsClosed,
    OriginsPromised,
    Reclaimed,
    RecordsMerged,
)
from quorumq.core.rounds import majority_of
from quorumq.core.spans import SpanMap, SpanSet, merge_spans, subtract
from quorumq.core.state import NodeState
from quorumq.core.types import (
    STAMP_ZERO,
    BatchHeader,
    Group,
    Incarnation,
    Kind,
    NodeId,
    Now,
    Origin,
    Owner,
    PartitionId,
    Record,
    Span,
    Stamp,
    Topic,
)

PartitionRecord = RecordsMerged | AttemptsCounted | DelaysSet | Reclaimed | OriginsPromised | OriginsClosed
"""Records of one partition, batches aside."""

CHUNK = 64
"""Messages that are ranked together to one coordinator, so that several can drain one large batch."""

SCAN_MAX = 4096
"""Batches that one choice looks at before it settles for what it has."""

PEEK_BYTES_MAX = limits.MIB
PULL_BATCHES_MAX = 64
PULL_BYTES_MAX = 4 * limits.MIB

AGE_UNKNOWN = -1
"""Of a batch that a peer brought: its age is by the peer's clock."""

SEQ_END = 1 << 63
"""Above every sequence number."""

CLOSED_SALT = 0x9E3779B97F4A7C15
"""Sets the digest of closed origins apart from that of present ones."""

SURVEY_WINDOW = 1 << 16
"""Sequence numbers of an origin that a survey looks at in one go."""

SYNC_BUCKETS = 64
LETTERS_MAX = 64
"""Records with letters in one message."""

SYNC_DIGESTS_MAX = 4000
"""Digests in one piece of a full offer."""

MASK = (1 << 64) - 1


class Reported(NamedTuple):
    """A hold as a peer reported it, with the deadline by our own clock."""

    hold: HeldThere
    deadline: float


class Slot(NamedTuple):
    """Where a present message is: record ``seq + shift`` of stored batch ``number``."""

    number: int
    shift: int


class Missing(NamedTuple):
    """What we know of messages that are known and not present here."""

    since: float  # monotonic seconds
    # The other replicas that said since then that they have not got them, sorted.
    denied: tuple[NodeId, ...] = ()


class Picked:
    """What a choice has so far, and how much room is left in it."""

    __slots__ = ("bytes_left", "generation", "messages_left", "wants")

    def __init__(self, messages_max: int, bytes_max: int, generation: int) -> None:
        self.messages_left = messages_max
        self.bytes_left = bytes_max
        self.generation = generation  # of everything picked: one HOLD names one
        self.wants: list[Want] = []

    @property
    def full(self) -> bool:
        """Whether there is no room left."""
        return self.messages_left <= 0 or self.bytes_left <= 0

    def append(self, want: Want) -> None:
        """Append, joined to the last one where it goes on."""
        if self.wants:
            last = self.wants[-1]
            if (last.n, last.span.origin, last.span.stop) == (want.n, want.span.origin, want.span.start):
                self.wants[-1] = Want(Span(want.span.origin, last.span.start, want.span.stop), want.n)
                return
        self.wants.append(want)


class StoredBatch:
    """A batch that is on this replica's disk (or about to be).

    ``born`` is when its producer made it, on our monotonic clock, as far as its age is known: what was not counted
    on the way makes it younger, so that nothing is due, or expires, too early.
    """

    __slots__ = ("born", "durable", "header", "number", "salt")

    def __init__(self, number: int, header: BatchHeader, born: float, durable: bool) -> None:
        self.number = number
        self.header = header
        self.born = born
        self.durable = durable
        self.salt = salt_of(repr(header.sections[0].origin))

    @property
    def due(self) -> float:
        """Before then (monotonic seconds) its messages are not to be delivered."""
        return self.born + self.header.delay_ms / 1000

    def is_expired(self, ttl_s: float, now: float) -> bool:
        """Whether its own TTL, or else the topic's, ``ttl_s``, is over."""
        ttl = self.header.ttl_ms / 1000 or ttl_s
        return ttl > 0 and now >= self.born + ttl

    def key(self) -> tuple[int, int]:
        """Oldest first, by publish time; best effort, as producers' clocks differ."""
        return (self.header.published_ms, self.number)


def salt_of(text: str) -> int:
    """64 bits that depend on ``text`` alone (never on Python's hash seed)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(value: int) -> int:
    """Spread 64 bits (the finaliser of splitmix64): ranks must not follow patterns in the numbers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class Replica:
    """One partition of one topic on this node.

    Args:
        node: the state that all replicas of the node share.
        topic: the topic's register: replica set, epoch and settings come from it.
        partition: which partition.
    """

    __slots__ = (
        "absent",
        "batches",
        "closable",
        "closed",
        "damaged",
        "digests",
        "doubtful",
        "groups",
        "index",
        "members",
        "mortal",
        "node",
        "order",
        "partition",
        "present",
        "promised",
        "pulling_until",
        "quarantine_until",
        "reclaimed",
        "salts",
        "settled",
        "topic",
        "touched",
        "unanswered",
        "waiting",
        "wanted",
    )

    def __init__(self, node: NodeState, topic: Topic, partition: PartitionId) -> None:
        self.node = node
        self.topic = topic
        self.partition = partition
        self.members: tuple[NodeId, ...] = topic.replicas[partition.number]
        self.salts = {member: salt_of(member) for member in self.members}
        self.index: SpanMap[Slot] = SpanMap()
        self.present = SpanSet()  # what the index covers, in runs
        self.digests: dict[Origin, Digest] = {}  # of `present`; dropped where it changes
        self.absent: SpanMap[Missing] = SpanMap()  # known, not present here
        # Batches that cannot be read here, and what is in them.
        self.damaged: dict[int, tuple[Span, ...]] = {}
        self.pulling_until = 0.0  # a pull is under way until then
        self.closed = ClosedOrigins()
        self.promised: dict[Origin, None] = {}  # no more STOREs of these are taken from clients
        self.closable: dict[Origin, float] = {}  # nothing is present of these, and since when
        self.reclaimed = SpanSet()  # known, and their payload was dropped here
        self.wanted = SpanSet()  # of those, what a group that came later would read
        self.touched: dict[int, None] = {}  # batches of which something was settled since the last sweep
        self.settled: dict[int, float] = {}  # batches that no group needs, and since when, the first first
        self.batches: dict[int, StoredBatch] = {}
        self.waiting: dict[int, None] = {}  # batches that are not due yet by our clock
        self.doubtful: dict[int, dict[NodeId, float]] = {}  # batches of unknown age: when made, as peers say
        self.mortal = False  # whether a batch with a TTL of its own was ever here
        self.order: SortedList = SortedList()  # keys of the batches, oldest first
        self.groups: dict[str, GroupView] = {}
        self.quarantine_until = node.quarantine_until
        self.unanswered = 0  # rounds of HOLD in a row that ended without a majority's answers

    # ------------------------------------------------------------------ helpers

    def may_vote(self, now: Now) -> bool:
        """Whether this replica may grant and coordinate holds: it can vouch, and no forgotten grant can live."""
        return self.node.vouched and not self.in_quarantine(now)

    def in_quarantine(self, now: Now) -> bool:
        """Whether a hold granted before this start may be live and unknown here (docs/protocol.md, RECOVERY)."""
        return now.mono < self.quarantine_until

    def group(self, name: str) -> GroupView:
        """The view of group ``name``; made when first named, at the generation that the group's register names.

        What it then finds here has been available ever since, hence the time 0.
        """
        view = self.groups.get(name)
        if view is not None:
            return view
        if name.endswith(DEAD_SUFFIX):
            self.group(name.removesuffix(DEAD_SUFFIX))
        view = self.groups[name] = self._view(name)
        if isinstance(view, DeadView):
            view.source.dead = view
        else:
            self._want_again(view, self.reclaimed.items())
        for span, _ in self.index.items():
            self._refresh_one(view, span, Now(0.0, 0))
        return view

    def _view(self, name: str) -> GroupView:
        """The view of a group, made up where nobody reads it: looking at a group does not create it."""
        found = self.groups.get(name)
        if found is not None:
            return found
        floor = self.node.clock.floor
        if name.endswith(DEAD_SUFFIX):
            return DeadView(self._view(name.removesuffix(DEAD_SUFFIX)), floor, self.closed)
        view = GroupView(name, floor, self.closed)
        register = self.node.catalogue.groups.get((self.partition.topic, name))
        if register is not None:
            view.generation, view.from_ms = register.generation, register.from_ms
        return view

    def on_register(self, register: Group, now: Now) -> None:
        """The group was created, or rewound: what the new generation covers is open again."""
        view = self.group(register.name)
        if view.generation >= register.generation:
            return
        view.generation, view.from_ms = register.generation, register.from_ms
        for span, _ in self.index.items():
            self.refresh(view, span, now)
        self._want_again(view, self.reclaimed.items())

    def is_stale(
        self, view: GroupView, generation: int, spans: Sequence[Span], *, unseen: bool = False
    ) -> bool:
        """Whether ``generation`` was rewound since, for these messages: what names it is refused.

        A dead letter is void only where the newer generation covers the message.

        Args:
            view: the group, of dead letters or not.
            generation: as a HOLD, ACK or REJECT names it.
            spans: the messages that it names.
            unseen: what to take a message for whose payload, and so its time, is not here.
        """
        if view.home is view or generation >= view.home.generation:
            return view.is_stale(generation)
        return any(
            unseen if slot is None else view.covers(self.batches[slot.number].header.published_ms)
            for span in spans
            for _, slot in self.index.split(span)
        )

    def vector(self) -> tuple[Incarnation, ...]:
        """What this node knows of the replica set's incarnations; goes with every reply."""
        return self.node.vector(self.members)

    def wrong_epoch(self, epoch: int) -> str:
        """The error for a request that was made for another replica set, or ""."""
        return "" if epoch == self.topic.epoch else "wrong-epoch"

    # -------------------------------------------------------------------- STORE

    def on_store(self, sender: NodeId, message: Store, now: Now) -> list[Effect]:
        """STORE: keep what of the batch is not here yet. STORED, once durable, for anything that is.

        A batch that is present already is answered behind whatever may not be durable yet, so a retry that
        overtakes its own fsync is not promised early. With durability "os", read "written" for "durable".
        """
        header = message.batch.header
        error = self.wrong_epoch(message.epoch)
        detail = f"the replica set of {self.partition} has epoch {self.topic.epoch}, not {message.epoch}"
        new: list[tuple[Span, Slot]] = []
        if not error:
            detail = ""
            at = 0
            for section in header.sections:
                shift = at - section.start
                at += section.size
                if section.origin in self.closed:
                    error, detail = "origin-closed", f"the session {section.origin} is closed: open another"
                    continue
                for part, slot in self.index.split(section):
                    if slot is None:
                        new += [(gap, Slot(0, shift)) for gap in self._worth_storing(part)]
                    elif not self.same_records(header, shift, part, slot):
                        error, detail = "conflict", f"other bytes are stored under {part}"
                if message.round and section.origin in self.promised and new:
                    error = "origin-closed"
                    detail = f"the session {section.origin} is being closed: open another"
        if not message.round and error in ("conflict", "origin-closed"):
            error = ""  # anti-entropy brings what else is in the batch
        if not error and new and self.node.disk_full:
            advice = "let consumers ack what is there, or give it a larger disk"
            error = "storage-full"
            detail = f"node {self.node.me} has only its reserve of disk space left: {advice}"
        if error:
            return [self._stored(sender, message, error, detail)] if message.round else []
        if not new:
            answer = self._stored(sender, message, "", "")
            return [Persist((), (answer,), self.syncs)] if message.round else []
        number = self.node.next_batch
        self.node.next_batch += 1
        age_ms = max(0, message.age_ms) if message.round else AGE_UNKNOWN
        batch = StoredBatch(number, header, now.mono - max(0, age_ms) / 1000, durable=False)
        self._add_batch(batch, now)
        if age_ms == AGE_UNKNOWN:
            self._doubt(batch)
            if message.age_ms >= 0:
                self._told_age(sender, number, message.age_ms, now)
        for part, slot in new:
            self.index.set(part, Slot(number, slot.shift))
            self._now_present(part)
        record = BatchStored(number, message.batch, now.wall_ms, age_ms)
        then: tuple[Send | Done, ...] = (Done(number),)
        if message.round:
            then = (self._stored(sender, message, "", ""), Done(number))
        return [Persist((record,), then, self.syncs)]

    @property
    def syncs(self) -> bool:
        """Whether what is published here waits for an fsync: not where the topic trusts the page cache."""
        return self.topic.durability != "os"

    def _worth_storing(self, span: Span) -> list[Span]:
        """What of ``span``, which is not present, is to be stored: not what was reclaimed and nobody would read."""
        if not self.reclaimed:
            return [span]
        return subtract(span, self._not_wanted(self.reclaimed.within(span)))

    def _not_wanted(self, spans: list[Span]) -> list[Span]:
        """``spans``, reclaimed here, without what a group that came later would read."""
        if not self.wanted:
            return spans
        return [part for span in spans for part in subtract(span, self.wanted.within(span))]

    def _now_present(self, span: Span) -> None:
        self.present.add(span)
        self.closable.pop(span.origin, None)
        self.digests.pop(span.origin, None)
        if self.absent:
            self.absent.remove(span)
        if self.reclaimed:
            for part in self.reclaimed.remove(span):
                for view in self.groups.values():
                    view.holds.raise_floor(part, self.node.clock.value)
            self.wanted.remove(span)

    def _stored(self, sender: NodeId, message: Store, error: str, detail: str) -> Send:
        return Send(sender, Stored(message.round, error, detail, self.vector()))

    def same_records(self, header: BatchHeader, shift: int, part: Span, slot: Slot) -> bool:
        """Whether the batch's records for ``part`` are the ones stored, by their CRCs."""
        ours = self.batches[slot.number].header
        theirs = header.crcs[4 * (part.start + shift) : 4 * (part.stop + shift)]
        return ours.crcs[4 * (part.start + slot.shift) : 4 * (part.stop + slot.shift)] == theirs

    def on_durable(self, number: int, now: Now) -> None:
        """Batch ``number`` is on disk, or as far as its topic waits for that: its messages are available now."""
        batch = self.batches.get(number)
        if batch is None:  # found damaged meanwhile
            return
        batch.durable = True
        for section in batch.header.sections:
            for view in self.groups.values():  # those of dead letters among them
                self._refresh_one(view, section, now)

    def _add_batch(self, batch: StoredBatch, now: Now) -> None:
        """List a batch; until it is due by our clock it is left out of every choice."""
        self.batches[batch.number] = batch
        self.order.add(batch.key())
        self.mortal = self.mortal or batch.header.ttl_ms > 0
        if batch.due > now.mono:
            self.waiting[batch.number] = None
            self.node.at(batch.due, "due", self.partition, batch.number)

    def _doubt(self, batch: StoredBatch) -> None:
        """A peer brought this batch, and its age is by the peer's clock: ours begins now, until enough have told.

        Else a wrong clock would decide together with whoever has copied it.
        """
        if batch.header.delay_ms or batch.header.ttl_ms or self.topic.ttl_s:
            self.doubtful[batch.number] = {}

    def ages_wanted(self, peer: NodeId) -> tuple[Span, ...]:
        """A message of each batch whose age we want to hear from ``peer``, as many as one request may have."""
        wanted: list[Span] = []
        for number in list(self.doubtful):
            batch = self.batches[number]
            if number not in self.waiting and not batch.header.ttl_ms and not self.topic.ttl_s:
                del self.doubtful[number]  # due by now: its age matters no more
            elif peer not in self.doubtful[number] and len(wanted) < limits.SPANS_PER_REQUEST_MAX:
                wanted.append(self._part_of(batch))
        return tuple(wanted)

    def _part_of(self, batch: StoredBatch) -> Span:
        """A message that is in this very batch."""
        return next(
            Span(part.origin, part.start, part.start + 1)
            for section in batch.header.sections
            for part, slot in self.index.within(section)
            if slot.number == batch.number
        )

    def _told_age(self, sender: NodeId, number: int, age_ms: int, now: Now) -> None:
        """A peer says how old a batch is; believed is what enough of them say for one right clock to be among them."""
        told = self.doubtful.get(number)
        if told is None:
            return
        told[sender] = now.mono - max(0, age_ms) / 1000
        wrong = len(self.members) - majority_of(len(self.members))  # at most so many clocks
        if len(told) <= wrong:
            return
        del self.doubtful[number]
        batch = self.batches[number]
        batch.born = min(batch.born, sorted(told.values())[wrong])
        if number not in self.waiting:
            return
        if batch.due <= now.mono:
            self.on_due(number, now)
        else:
            self.node.at(batch.due, "due", self.partition, number)

    def on_due(self, number: int, now: Now) -> None:
        """Batch ``number`` is due by our clock: its messages are available from now on."""
        self.waiting.pop(number, None)
        if number in self.batches and self.batches[number].durable:
            self.on_durable(number, now)

    def on_damaged(self, number: int, now: Now) -> None:
        """Batch ``number`` cannot be read: its messages are absent here from now on, and pulled from a peer.

        Their records and holds stay: a vote needs no payload.
        """
        batch = self.batches.pop(number)
        self.waiting.pop(number, None)
        self.doubtful.pop(number, None)
        self.order.remove(batch.key())
        for view in self.groups.values():
            view.forget_batch(batch.key())
        lost: list[Span] = []
        for section in batch.header.sections:
            for part, slot in self.index.within(section):
                if slot.number != number:
                    continue
                lost.append(part)
                self.index.remove(part)
                self.present.remove(part)
                self.digests.pop(part.origin, None)
                self.absent.set(part, Missing(now.mono - self.node.config.sync_grace))
                for view in self.groups.values():
                    view.available.remove(part)
        self.damaged[number] = tuple(lost)

    def load_damaged(self, record: BatchStored, now: Now) -> None:
        """A start found this batch damaged: what nothing else here has of it is known, and absent.

        All else in the journal comes first.
        """
        lost = [
            part
            for section in record.batch.header.sections
            if section.origin not in self.closed
            for gap in self.index.gaps(section)
            for part in self._worth_storing(gap)
        ]
        for part in lost:
            self.absent.set(part, Missing(now.mono - self.node.config.sync_grace))
        self.damaged[record.number] = tuple(lost)

    def mended(self) -> list[int]:
        """Damaged batches that nobody needs: what was in them is present again, reclaimed, or of a closed origin."""
        found = [
            number
            for number, spans in self.damaged.items()
            if not any(self.absent.within(span) for span in spans)
        ]
        for number in found:
            del self.damaged[number]
        return found

    def load_batch(self, record: BatchStored, now: Now) -> None:
        """Take from a batch of the journal what nothing else here has, at start; `refresh_all` follows.

        It has aged by the time of day; where that was set back, not at all, so that no delay grows.
        """
        header = record.batch.header
        age_ms = max(0, record.age_ms) + max(0, now.wall_ms - record.received_ms)
        batch = StoredBatch(record.number, header, now.mono - age_ms / 1000, durable=True)
        at = 0
        for section in header.sections:
            for part in self.index.gaps(section) if section.origin not in self.closed else ():
                if record.number not in self.batches:
                    self._add_batch(batch, now)
                    if record.age_ms == AGE_UNKNOWN:
                        self._doubt(batch)
                self.index.set(part, Slot(record.number, at - section.start))
                self._now_present(part)
            at += section.size

    # ------------------------------------------------------------- availability

    def refresh(self, view: GroupView, span: Span, now: Now) -> None:
        """Work out again which of ``span`` is available to the group; called wherever that may have changed.

        A group and the group of its dead letters have their records in common, so both are looked at.
        """
        home = view.home
        self._refresh_one(home, span, now)
        if home.dead is not None:
            self._refresh_one(home.dead, span, now)

    def _refresh_one(self, view: GroupView, span: Span, now: Now) -> None:
        for piece, slot in self.index.within(span):
            batch = self.batches[slot.number]
            if not batch.durable or slot.number in self.waiting:
                continue
            before = sum(part.size for part in view.available.remove(piece))
            after = 0
            covered = view.covers(batch.header.published_ms)
            for part in view.free_parts(piece, covered, now.mono):
                view.available.add(part)
                after += part.size
            if after > before:
                self.node.stirred = True
            for time in view.wakeups(piece, now.mono):
                self.node.at(time, "refresh", self.partition, view.name, piece)
            key = batch.key()
            count = view.offered.get(slot.number, 0) + after - before
            if count:
                view.offered[slot.number] = count
                if key not in view.ready:
                    view.ready[key] = now.mono
            else:
                view.forget_batch(key)
                self.touched[slot.number] = None

    def refresh_all(self, now: Now) -> None:
        """After the journal was read."""
        self._want_anew(self.reclaimed.items())
        for view in self.groups.values():
            for span, _ in self.index.items():
                self._refresh_one(view, span, now)

    def choose(
        self,
        view: GroupView,
        now: Now,
        messages_max: int,
        bytes_max: int,
        parked_since: float,
        patient: bool = True,
    ) -> tuple[list[Want], int, float | None]:
        """FETCH, step 1: the oldest available messages within the limits, their generation, and when to look again.

        With several coordinators fetching, what ranks first for this one comes first; the rest only where it
        has been available for ``steal_after`` seconds, which is the time returned where it was passed over.
        At least one message is chosen where one may be, however large.

        Args:
            view: the group.
            now: the clocks.
            messages_max: messages to choose at most.
            bytes_max: their bytes at most, but for a first one that is larger.
            parked_since: when the FETCH found nothing and was parked (monotonic); infinity if it has not been.
            patient: whether the FETCH can wait for ``steal_after``; else what ranks for others is taken at once.
        """
        picked = Picked(messages_max, bytes_max, view.generation)
        look_again: float | None = None
        parked, active = self.node.fetchers(self.partition, view.name, self.members, now)
        mature = now.mono - self.node.config.steal_after if patient else float("inf")
        for mine in (True, False) if len(active) > 1 else (True,):
            scanned = 0
            for (_, number), since in view.ready.items():
                scanned += 1
                if picked.full or scanned > SCAN_MAX:
                    break
                fetchers = parked if since >= parked_since else active
                if not mine and since > mature:
                    again = since + self.node.config.steal_after
                    look_again = again if look_again is None else min(look_again, again)
                    continue
                batch = self.batches[number]
                for section in batch.header.sections:
                    for span in view.available.within(section):
                        parts = [span] if len(fetchers) == 1 else self._ranked(batch, span, fetchers, mine)
                        if mine or len(fetchers) > 1:
                            self._pick(view, batch, parts, picked)
            if picked.wants:
                break
        return picked.wants, picked.generation, look_again

    def _pick(self, view: GroupView, batch: StoredBatch, parts: list[Span], picked: Picked) -> None:
        """Take as much of ``parts`` as the limits let in; only what is in this very batch."""
        for part in parts:
            for piece, slot in self.index.within(part):
                if picked.full:
                    return
                if slot.number != batch.number:
                    continue
                cut, size = self._cut(batch, slot, piece, picked)
                if cut is None:
                    picked.bytes_left = 0
                    return
                picked.messages_left -= cut.size
                picked.bytes_left -= size
                for span, record in view.readable(cut, view.covers(batch.header.published_ms)):
                    if not picked.wants:
                        picked.generation = record.generation
                    if record.generation == picked.generation:  # dead letters may stand in several
                        picked.append(Want(span, record.n))

    def _ranked(self, batch: StoredBatch, span: Span, fetchers: list[NodeId], mine: bool) -> list[Span]:
        """The parts of ``span`` whose chunk ranks first for this node among ``fetchers`` (or does not)."""
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
                    parts[-1] = Span(span.origin, parts[-1].start, stop)
                else:
                    parts.append(Span(span.origin, start, stop))
            start = stop
        return parts

    def _cut(self, batch: StoredBatch, slot: Slot, span: Span, picked: Picked) -> tuple[Span | None, int]:
        """The longest head of ``span`` within the limits, and its bytes; None where what is picked is enough."""
        header = batch.header
        first = span.start + slot.shift
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
        return Span(span.origin, span.start, span.start + low), header.end_of(first + low - 1) - begin

    def bytes_of(self, span: Span) -> int:
        """How many bytes the present messages of ``span`` have."""
        total = 0
        for piece, slot in self.index.within(span):
            header = self.batches[slot.number].header
            total += header.end_of(piece.stop + slot.shift - 1) - header.end_of(piece.start + slot.shift - 1)
        return total

    # --------------------------------------------------------------------- HOLD

    def on_hold(
        self, sender: NodeId, incarnation: Incarnation, message: Hold, now: Now
    ) -> tuple[HoldReply, list[Effect]]:
        """ON HOLD: vote on each message. The reply goes out at once: holds are in no journal."""
        error = self.wrong_epoch(message.epoch)
        if error or self.abstains(message.ballot, now):
            return HoldReply(
                message.round, self.partition, message.group, True, (), (), (), (), error, self.vector()
            ), []
        view = self.group(message.group)
        wanted = [want.span for want in message.wants]
        if self.is_stale(view, message.generation, wanted, unseen=True):
            return HoldReply(
                message.round,
                self.partition,
                message.group,
                True,
                (),
                (),
                (),
                (),
                "stale-generation",
                self.vector(),
            ), []
        effects: list[Effect] = []
        owner = Owner(sender, incarnation, message.ballot)
        granted: list[Granted] = []
        resolved: list[Resolved] = []
        not_due: list[NotDue] = []
        refused: list[Refused] = []
        for span, n in message.wants:
            asked = view.asked(message.generation, n)
            before = len(granted)
            for part, record, changed in view.on_asked(span, asked):
                if changed:  # a redrive that we had not heard of
                    effects.append(self._journal(view, [Resolved(part, record)]))
                if record[:3] != asked[:3]:
                    resolved.append(Resolved(part, record))
                    continue
                for piece, delay in view.not_due(part, message.generation, n, now.mono):
                    if delay is not None:
                        not_due += view.delays_to_send(piece, now.mono)
                        continue
                    due, early = self.due_parts(view, piece, n, now)
                    not_due += early
                    for ripe in due:
                        for atom, ended in view.attempts_at(ripe, message.generation, n):
                            yes, no = view.holds.vote(
                                atom, n, owner, now.mono, message.hold_time, message.generation, ended
                            )
                            refused += no
                            for held in yes:
                                granted += self.grants(view, held, asked, now)
            if len(granted) > before:
                self.node.at(now.mono + message.hold_time, "expire", self.partition, view.name, span)
                self.refresh(view, span, now)
        reply = HoldReply(
            message.round,
            self.partition,
            message.group,
            False,
            tuple(granted),
            tuple(resolved),
            tuple(not_due),
            tuple(refused),
            "",
            self.vector(),
        )
        return reply, effects

    def due_parts(self, view: GroupView, span: Span, n: int, now: Now) -> tuple[list[Span], list[NotDue]]:
        """``span`` without the batches that are not due by our clock, and those: NOT_DUE for a first life only."""
        if not self.waiting or not view.keeps_times(n):
            return [span], []
        early = [
            NotDue(part, 0, STAMP_ZERO, self.batches[slot.number].due - now.mono)
            for part, slot in self.index.within(span)
            if slot.number in self.waiting
        ]
        return subtract(span, [item.span for item in early]), early

    def delayed_parts(self, span: Span) -> list[Span]:
        """The parts of ``span`` that were published with a delay, whether it is over or not."""
        return [part for part, slot in self.index.within(span) if self.batches[slot.number].header.delay_ms]

    def grants(self, view: GroupView, span: Span, asked: Record, now: Now) -> list[Granted]:
        """The OKs for ``span``, with what the coordinator looks at once it has won."""
        mortal = self.mortal or self.topic.ttl_s > 0
        timed = view.keeps_times(asked.n) and (mortal or not self.present.covers(span))
        found: list[Granted] = []
        for part, count in view.attempts_at(span, asked.generation, asked.n):
            exhausted = count >= self.topic.max_deliveries and asked.kind == Kind.OPEN
            if not timed:
                found.append(Granted(part, count, exhausted, False))
                continue
            for piece, slot in self.index.split(part):
                expired = slot is not None and self.batches[slot.number].is_expired(
                    self.topic.ttl_s, now.mono
                )
                item = Granted(piece, count, exhausted, expired, slot is None)
                last = found[-1] if found else None
                if last is not None and last[1:] == item[1:] and last.span.stop == piece.start:
                    found[-1] = item._replace(span=Span(piece.origin, last.span.start, piece.stop))
                else:
                    found.append(item)
        return found

    def abstains(self, ballot: Stamp, now: Now) -> bool:
        """Whether this replica has no vote: in quarantine, unable to vouch, or asked for a ballot above its
        durable reserve (after a crash it would not know that it had granted it)."""
        return not self.may_vote(now) or not self.node.clock.merge(ballot.time)

    def on_expire(self, name: str, span: Span, now: Now) -> list[Effect]:
        """A hold's time may have run out: remove it, count the attempt, and make the message available."""
        view = self.groups.get(name)
        if view is None:
            return []
        counted: list[Counted] = []
        for part, held in view.holds.expired(span, now.mono):
            for piece, _ in view.records.split(part):
                if not view.is_acked(piece, held.generation):
                    counted += view.count_attempt(piece, held)
            self.refresh(view, part, now)
        for part, held in view.holds.holds.within(span):  # extended since the timer was set
            self.node.at(held.deadline, "expire", self.partition, name, part)
        if not counted:
            return []
        return [Persist((AttemptsCounted(self.partition, name, tuple(counted)),))]

    # ---------------------------------------------------------- RELEASE, LEAVE

    def on_release(self, freed: Freed, now: Now) -> None:
        """RELEASE or LEAVE: remove holds where the owner matches exactly. Counts no attempt."""
        view = self.groups.get(freed.group)
        if view is None:
            return
        theirs = freed.owner.node != self.node.me  # our own, of a lost round, says nothing of who has it
        for span in freed.spans:
            view.holds.release(span, freed.owner)
            if theirs:
                view.hints.remove(span)
            self.refresh(view, span, now)

    # ------------------------------------------------------------------- EXTEND

    def on_extend(self, message: Extend, now: Now) -> Extended:
        """EXTEND: only where exactly this owner holds now."""
        error = self.wrong_epoch(message.epoch)
        view = self.groups.get(message.group)
        granted: list[Span] = []
        refused: list[Span] = []
        if error or not self.may_vote(now):
            return Extended(message.round, (), (), error, self.vector())
        for span in message.spans:
            if view is None:
                refused.append(span)
                continue
            yes: list[Span] = []
            for part, held in view.holds.holds.split(span):
                for piece, _ in view.records.split(part):
                    if held is not None and view.is_acked(piece, held.generation):  # by another delivery
                        refused.append(piece)
                        continue
                    more, no = view.holds.extend(piece, message.owner, now.mono + message.hold_time)
                    yes += more
                    refused += no
            granted += yes
            if yes:
                self.node.at(now.mono + message.hold_time, "expire", self.partition, view.name, span)
                self.refresh(view, span, now)
        return Extended(message.round, tuple(granted), tuple(refused), "", self.vector())

    # ---------------------------------------------------------------------- ACK

    def on_ack(self, sender: NodeId, message: Ack, now: Now) -> list[Effect]:
        """ACK: ACKED, durable, for messages known or not; TOMBED says where this replica is exclusive.

        In a dead-letter group it is PURGED at the entry's n, which anything newer stands above.
        """
        error = self.wrong_epoch(message.epoch)
        view = self.group(message.group)
        if not error and self.is_stale(view, message.generation, [item.span for item in message.entries]):
            error = "stale-generation"
        if error:
            return [Send(sender, Tombed(message.round, (), (), error, self.vector()))]
        exclusive: list[Acked] = []
        higher: list[Acked] = []
        merged: list[Resolved] = []
        resolved: list[Resolved] = []
        for span, owner, n in message.entries:
            yes, no = view.holds.exclusivity(span, owner)
            if not self.reclaimed.within(span) and span.origin not in self.closed:
                exclusive += [Acked(part, owner, n) for part in yes]
            higher += [Acked(part, owner, n) for part in no]
            settled = view.settled(message.generation, n)
            for part, record, changed in view.merge(span, settled):
                if changed:
                    merged.append(Resolved(part, record))
                if settled.kind == Kind.PURGED and record[:3] != settled[:3]:  # nothing stands above ACKED
                    resolved.append(Resolved(part, record))
            view.holds.release(span, owner)  # of this delivery alone: another one may be live
            view.hints.remove(span)
            self.refresh(view, span, now)
        records = (self._record(view, merged),) if merged else ()
        reply = Tombed(message.round, tuple(exclusive), tuple(higher), "", self.vector(), tuple(resolved))
        return [Persist(records, (Send(sender, reply),))]

    # ------------------------------------------------------------------- REJECT

    def on_reject(self, sender: NodeId, message: Reject, now: Now) -> list[Effect]:
        """REJECT: a compare-and-set on the hold; requeue with a delay, or DEAD, in one step with the release."""
        error = self.wrong_epoch(message.epoch)
        view = self.group(message.group)
        if not error and self.is_stale(view, message.generation, message.spans):
            error = "stale-generation"
        if error:
            return [Send(sender, Rejected(message.round, (), (), (), error, self.vector()))]
        applied: list[Span] = []
        refused: list[Span] = []
        resolved: list[Resolved] = []
        merged: list[Resolved] = []
        delays: list[NotDue] = []
        counted: list[Counted] = []
        for span in message.spans:
            for part, held in view.holds.holds.split(span):
                if held is None or not view.holds.is_owner(held, message.owner):
                    done, other = self._already_rejected(view, part, message)
                    applied += done
                    refused += other
                    continue
                view.holds.release(part, message.owner)
                if message.letter is not None:
                    dead = Record(message.generation, message.n, Kind.DEAD, message.letter)
                    for piece, record, changed in view.merge(part, dead):
                        if changed:
                            merged.append(Resolved(piece, record))
                        if record[:3] == dead[:3]:
                            applied.append(piece)
                        else:
                            resolved.append(Resolved(piece, record))
                    continue
                asked = view.asked(message.generation, message.n)
                for open_part, record in view.record_pieces(part, message.generation):
                    if record[:3] != asked[:3]:  # settled by another delivery, or purged
                        resolved.append(Resolved(open_part, record))
                        continue
                    counted += view.count_attempt(open_part, held)
                    for atom, seconds in self.delays_of(view, open_part, message):
                        delay = Delay(message.n, message.owner.ballot, now.mono + seconds, message.generation)
                        for piece in view.merge_delay(atom, delay):
                            delays.append(NotDue(piece, delay.n, delay.ballot, seconds, delay.generation))
                    applied.append(open_part)
            view.hints.remove(span)
            self.refresh(view, span, now)
        records: list[JournalRecord] = []
        if merged:
            records.append(self._record(view, merged))
        if delays:
            records.append(DelaysSet(self.partition, view.name, now.wall_ms, tuple(delays)))
        if counted:
            records.append(AttemptsCounted(self.partition, view.name, tuple(counted)))
        reply = Rejected(message.round, tuple(applied), tuple(refused), tuple(resolved), "", self.vector())
        return [Persist(tuple(records), (Send(sender, reply),))]

    def delays_of(self, view: GroupView, span: Span, message: Reject) -> list[tuple[Span, float]]:
        """How long each part of a rejected ``span`` waits: as it says, or the topic's backoff by our own count."""
        if message.delay != limits.TOPIC_BACKOFF_S:
            return [(span, message.delay)]
        steps = self.topic.backoff or (0.0,)
        return [
            (part, steps[max(1, min(count, len(steps))) - 1])
            for part, count in view.attempts_at(span, message.generation, message.n)
        ]

    def _already_rejected(
        self, view: GroupView, span: Span, message: Reject
    ) -> tuple[list[Span], list[Span]]:
        """No such hold: a retry that finds its own ballot in the record counts as applied."""
        ballot = message.owner.ballot
        if message.letter is not None:
            marks = [
                (part, record.n == message.n and record.letter is not None and record.letter.ballot == ballot)
                for part, record in view.record_pieces(span)
            ]
        else:
            marks = [
                (part, delay is not None and delay.ballot == ballot)
                for part, delay in view.delays.split(span)
            ]
        return [part for part, ours in marks if ours], [part for part, ours in marks if not ours]

    # ---------------------------------------------------- MERGE (REDRIVE, repair)

    def on_merge(self, sender: NodeId, message: Merge, now: Now) -> list[Effect]:
        """Merge records; say, once durable, where ours is now exactly what was asked and where it is higher."""
        error = self.wrong_epoch(message.epoch)
        if error:
            return [Send(sender, Merged(message.round, (), (), error, self.vector()))]
        view = self.group(message.group)
        if message.round and any(
            record.generation < view.generation for _, record in message.entries if record.kind == Kind.OPEN
        ):
            # A redrive through a node that has not heard of a rewind would open the message for nobody.
            return [Send(sender, Merged(message.round, (), (), "stale-generation", self.vector()))]
        exact: list[Span] = []
        higher: list[Resolved] = []
        changes: list[Resolved] = []
        for span, asked in message.entries:
            for part, record, changed in view.merge(span, asked):
                if changed:
                    changes.append(Resolved(part, record))
                if record[:3] == asked[:3]:
                    exact.append(part)
                else:
                    higher.append(Resolved(part, record))
            self.refresh(view, span, now)
        reply = Merged(message.round, tuple(exact), tuple(higher), "", self.vector())
        records = (self._record(view, changes),) if changes else ()
        return [Persist(records, (Send(sender, reply),) if message.round else ())]

    def repair(self, name: str, resolved: tuple[Resolved, ...], now: Now) -> list[Effect]:
        """Read repair: merge records that a peer answered a HOLD with. Nobody waits for the disk."""
        view = self.group(name)
        changes: list[Resolved] = []
        for span, record in resolved:
            changes += [
                Resolved(part, merged) for part, merged, changed in view.merge(span, record) if changed
            ]
            self.refresh(view, span, now)
        return [self._journal(view, changes)] if changes else []

    def tell(self, peer: NodeId, name: str, spans: list[Span]) -> list[Effect]:
        """``peer`` answered a HOLD with records lower than ours: send it a few of ours, more with its next answer."""
        view = self.group(name)
        known = [Resolved(part, record) for span in spans for part, record in view.home.records.within(span)]
        entries = tuple(known[:LETTERS_MAX])
        return (
            [Send(peer, Merge(0, self.partition, self.topic.epoch, view.home.name, entries))]
            if entries
            else []
        )

    def adopt_delays(self, name: str, delays: tuple[NotDue, ...], now: Now) -> list[Effect]:
        """NOT_DUE, adopted by the asker: the higher (generation, n, ballot) wins, at equality ours stays."""
        view = self.group(name)
        taken: list[NotDue] = []
        for span, n, ballot, remaining, generation in delays:
            if ballot == STAMP_ZERO:  # of the batch, by the peer's clock: ours has its own
                continue
            for part in view.merge_delay(span, Delay(n, ballot, now.mono + remaining, generation)):
                taken.append(NotDue(part, n, ballot, remaining, generation))
            self.refresh(view, span, now)
        if not taken:
            return []
        return [Persist((DelaysSet(self.partition, name, now.wall_ms, tuple(taken)),))]

    def hint(self, name: str, span: Span, until: float, now: Now) -> None:
        """A NOK said that another owner holds ``span``: leave it out of our choices until then."""
        view = self.group(name)
        view.hints.set(span, until)
        self.refresh(view, span, now)

    def _record(self, view: GroupView, entries: list[Resolved]) -> RecordsMerged:
        return RecordsMerged(self.partition, view.home.name, tuple(entries))

    def _journal(self, view: GroupView, entries: list[Resolved]) -> Persist:
        return Persist((self._record(view, entries),))

    # --------------------------------------------------------------------- PEEK

    def on_peek(self, message: PeekRequest, now: Now) -> PeekReply:
        """PEEK: a page of what this replica sees, oldest first, holding nothing and counting nothing.

        A page ends at its limit, at a megabyte of dead letters, or after many batches with nothing to show; the
        cursor says at which record of which batch to go on. Where that batch was reclaimed meanwhile, it goes on from
        the beginning: what is shown twice can be told by its id, and nothing is left out.
        """
        page = self._peek_page(message, now)
        return page._replace(slices=self._slices_of(page.items)) if message.bodies else page

    def _slices_of(self, items: tuple[Peeked, ...]) -> tuple[Slice, ...]:
        """Where the bytes of the first items are, as many as one answer may bring."""
        slices: list[Slice] = []
        room = limits.FETCH_BYTES_MAX
        for item in items:
            room -= self.bytes_of(item.span)
            if room < 0:
                break
            for part, (number, shift) in self.index.within(item.span):
                header = self.batches[number].header
                first, stop = part.start + shift, part.stop + shift
                slices.append(Slice(self.topic.name, self.partition, number, first, stop, header, ()))
        return tuple(slices)

    def _peek_page(self, message: PeekRequest, now: Now) -> PeekReply:
        view = self._view(message.group)
        items: list[Peeked] = []
        limit = min(message.limit, limits.SPANS_PER_REQUEST_MAX)
        room = PEEK_BYTES_MAX
        at = self.batches.get(message.cursor[0])
        scanned = 0
        for _, number in self.order.irange(at.key() if at is not None else None):
            scanned += 1
            if scanned > SCAN_MAX:
                return PeekReply(message.round, tuple(items), (number, 0), "")
            begin = message.cursor[1] if number == message.cursor[0] else 0
            for section in self.batches[number].header.sections:
                for part, slot in self.index.within(section):
                    start = max(part.start, begin - slot.shift)
                    if slot.number != number or start >= part.stop:
                        continue
                    batch = self.batches[number]
                    for item in self._peek_span(view, Span(part.origin, start, part.stop), batch, now):
                        if not is_shown(item, message.group, message.which):
                            continue
                        if len(items) >= limit or room <= 0:
                            cursor = (number, item.span.start + slot.shift)
                            return PeekReply(message.round, tuple(items), cursor, "")
                        items.append(item)
                        letter = item.record.letter
                        room -= 4 * (len(letter.message) + len(letter.stack)) if letter is not None else 0
        return PeekReply(message.round, tuple(items), None, "")

    def _peek_span(self, view: GroupView, span: Span, batch: StoredBatch | None, now: Now) -> list[Peeked]:
        """What the group makes of ``span``, of one batch; None where its payload is not here.

        What a start predicate says of a message without payload is not known: it is taken for covered.
        """
        covered, early = True, 0.0
        if batch is not None:
            covered = view.covers(batch.header.published_ms)
            early = batch.due - now.mono if batch.number in self.waiting else 0.0
        items: list[Peeked] = []
        readable = SpanSet.from_spans(part for part, _ in view.readable(span, covered))
        for whole, record in view.shown(span, covered):
            for part, held in view.holds.holds.split(whole):
                for piece, delay in view.not_due(part, record.generation, record.n, now.mono):
                    for atom, count in view.attempts_at(piece, record.generation, record.n):
                        state, remaining, owner = record.kind.name.lower(), 0.0, None
                        if readable.covers(atom):
                            state = "ready"
                            if early > 0 and view.keeps_times(record.n):
                                state, remaining = "delayed", early
                            if delay is not None:
                                state, remaining = "delayed", delay.due - now.mono
                            if held is not None and held.deadline > now.mono:
                                state, remaining, owner = "held", held.deadline - now.mono, held.owner
                        elif record.kind == Kind.OPEN and view.home is view:
                            state = "skipped"  # before the start of the generation
                        items.append(Peeked(atom, state, record, count, remaining, owner))
        return items

    def on_survey(self, message: Survey, now: Now) -> Surveyed:
        """Survey: what the group makes of every message known here, payload or not, in the order of ids."""
        error = self.wrong_epoch(message.epoch)
        if error:
            return Surveyed(message.round, (), None, error, self.vector())
        view = self._view(message.group)
        items: list[Peeked] = []
        room, scanned = PEEK_BYTES_MAX, 0
        limit = max(1, min(message.limit, limits.SPANS_PER_REQUEST_MAX))
        last = message.after
        for part, batch in self._known_after(last):
            if len(items) >= limit or room <= 0 or scanned > SCAN_MAX:
                return Surveyed(message.round, tuple(items), last, "", self.vector())
            scanned += 1
            last = part
            for item in self._peek_span(view, part, batch, now):
                before = items[-1] if items else None
                if (
                    before is not None
                    and before[1:] == item[1:]
                    and (before.span.origin, before.span.stop) == (item.span.origin, item.span.start)
                ):
                    items[-1] = item._replace(span=item.span._replace(start=before.span.start))
                    continue
                items.append(item)
                letter = item.record.letter
                room -= 4 * (len(letter.message) + len(letter.stack)) if letter is not None else 0
        return Surveyed(message.round, tuple(items), None, "", self.vector())

    def _known_after(self, after: Span | None) -> Iterator[tuple[Span, StoredBatch | None]]:
        """Every message known here behind ``after``, in order, with its batch where the payload is here."""
        for origin in sorted({*self.present.origins(), *self.absent.origins()}):
            if after is not None and origin < after.origin:
                continue
            ends = [*self.present.spans_of(origin), *(span for span, _ in self.absent.spans_of(origin))]
            start = min(span.start for span in ends)
            stop = max(span.stop for span in ends)
            if after is not None and origin == after.origin:
                start = max(start, after.stop)
            while start < stop:
                window = Span(origin, start, min(stop, start + SURVEY_WINDOW))
                known: list[tuple[Span, StoredBatch | None]] = [
                    (part, None) for part, _ in self.absent.within(window)
                ]
                known += [(part, self.batches[slot.number]) for part, slot in self.index.within(window)]
                yield from sorted(known, key=lambda item: item[0])
                start = window.stop

    # ------------------------------------------------------------- anti-entropy

    def sync_offer(self) -> SyncOffer:
        """Anti-entropy, step 1: a digest of all that we have, by bucket."""
        buckets = [0] * SYNC_BUCKETS
        for origin in self._known_origins():
            buckets[bucket_of(origin)] ^= mix(self._digest(origin).digest)
        for family in self.closed.numbers.origins():
            buckets[bucket_of(family)] ^= mix(self.closed.numbers.digest(family) ^ CLOSED_SALT)
        for view in self.groups.values():
            salt = salt_of(view.name)
            for origin in view_origins(view):
                buckets[bucket_of(origin)] ^= mix(self._view_digest(view, origin).digest ^ salt)
        return SyncOffer(self.partition, self.topic.epoch, tuple(buckets))

    def sorted_groups(self) -> list[GroupView]:
        """The groups by name, so that two nodes list them alike."""
        return [self.groups[name] for name in sorted(self.groups)]

    def _digest(self, origin: Origin) -> Digest:
        known = self.digests.get(origin)
        if known is None:
            spans = self._known_spans(origin)
            known = Digest(origin, sum(span.size for span in spans), SpanSet.from_spans(spans).digest(origin))
            self.digests[origin] = known
        return known

    def _view_digest(self, view: GroupView, origin: Origin) -> Digest:
        known = view.digests.get(origin)
        if known is None:
            records = view.records.digest(origin, encode_record)
            attempts = view.attempts.digest(origin, lambda item: repr(tuple(item)).encode())
            delays = view.delays.digest(
                origin, lambda item: repr((item.generation, item.n, tuple(item.ballot))).encode()
            )
            digest = records ^ mix(attempts) ^ mix(mix(delays))
            known = Digest(origin, view.records.messages_of(origin), digest)
            view.digests[origin] = known
        return known

    def _full_offers(self, buckets: list[int]) -> list[SyncOffer]:
        """By origin, for these buckets, in pieces that fit a frame."""
        present: dict[int, list[Digest]] = {bucket: [] for bucket in buckets}
        for origin in self._known_origins():
            if bucket_of(origin) in present:
                present[bucket_of(origin)].append(self._digest(origin))
        views: list[tuple[GroupView, dict[int, list[Digest]]]] = []
        for view in self.sorted_groups():
            found: dict[int, list[Digest]] = {bucket: [] for bucket in buckets}
            for origin in view_origins(view):
                if bucket_of(origin) in found:
                    found[bucket_of(origin)].append(self._view_digest(view, origin))
            views.append((view, found))
        pieces: list[list[int]] = [[]]
        size = 0
        for bucket in buckets:
            size += len(present[bucket]) + sum(len(found[bucket]) for _, found in views)
            if size > SYNC_DIGESTS_MAX and pieces[-1]:
                pieces.append([])
                size = 0
            pieces[-1].append(bucket)
        closed = [self._closed_digest(family) for family in self.closed.numbers.origins()]
        return [
            SyncOffer(
                self.partition,
                self.topic.epoch,
                (),
                tuple(some),
                tuple(digest for bucket in some for digest in present[bucket]),
                tuple(
                    GroupDigest(
                        view.name,
                        view.generation,
                        tuple(digest for bucket in some for digest in found[bucket]),
                    )
                    for view, found in views
                ),
                tuple(digest for digest in closed if bucket_of(digest.origin) in some),
            )
            for some in pieces
        ]

    def on_sync_offer(self, sender: NodeId, message: SyncOffer, now: Now) -> list[Effect]:
        """Anti-entropy, step 2: where we differ, offer ours in full; to a full offer, send what differs of ours."""
        if self.wrong_epoch(message.epoch):
            return []
        if not message.buckets:
            ours = self.sync_offer().digests
            if len(message.digests) != len(ours):
                return []
            differing = [at for at in range(SYNC_BUCKETS) if ours[at] != message.digests[at]]
            return [Send(sender, offer) for offer in self._full_offers(differing)] if differing else []
        covered = dict.fromkeys(message.buckets)
        theirs = {digest.origin: digest for digest in message.origins}
        spans: list[Span] = []
        gone: list[Span] = []
        for origin in self._known_origins():
            if bucket_of(origin) in covered and theirs.get(origin) != self._digest(origin):
                spans += self.present.spans_of(origin)
                gone += self.reclaimed.spans_of(origin)
        shut = {digest.origin: digest for digest in message.closed}
        over = [
            span
            for family in self.closed.numbers.origins()
            if bucket_of(family) in covered and shut.get(family) != self._closed_digest(family)
            for span in self.closed.numbers.spans_of(family)
        ]
        offered = {group.group: group for group in message.groups}
        states: list[GroupState] = []
        for view in self.sorted_groups():
            other = offered.get(view.name)
            heard = {digest.origin: digest for digest in other.origins} if other is not None else {}
            origins = [
                origin
                for origin in view_origins(view)
                if bucket_of(origin) in covered and heard.get(origin) != self._view_digest(view, origin)
            ]
            if origins:
                states += self._group_states(view, origins, now)
        messages = [SyncState(self.partition, self.topic.epoch, (), (state,)) for state in states]
        limit = limits.SPANS_PER_REQUEST_MAX // 2
        for at in range(0, len(over), limit):
            shut_here = tuple(over[at : at + limit])
            messages.append(SyncState(self.partition, self.topic.epoch, (), (), False, (), shut_here))
        for at in range(0, len(spans), limit):
            messages.append(SyncState(self.partition, self.topic.epoch, tuple(spans[at : at + limit]), ()))
        for at in range(0, len(gone), limit):
            some = tuple(gone[at : at + limit])
            messages.append(SyncState(self.partition, self.topic.epoch, (), (), False, some))
        return [Send(sender, state) for state in messages]

    def everything(self, start: int, most: int, now: Now) -> tuple[list[SyncState], int]:
        """All that this replica has, from bucket ``start`` on, in some ``most`` pieces; and the bucket to go on from.

        It is what anti-entropy sends to a replica that has nothing. 0 stands for the end.
        """
        states: list[SyncState] = []
        for bucket in range(start, SYNC_BUCKETS):
            nothing = SyncOffer(self.partition, self.topic.epoch, (), (bucket,), (), ())
            for effect in self.on_sync_offer("", nothing, now):
                if isinstance(effect, Send) and isinstance(effect.message, SyncState):
                    states.append(effect.message)
            if len(states) >= most and bucket + 1 < SYNC_BUCKETS:
                return states, bucket + 1
        return states, 0

    def _group_states(self, view: GroupView, origins: list[Origin], now: Now) -> list[GroupState]:
        """Everything of ``view`` for ``origins``, in pieces that fit a frame."""
        records = [Resolved(*item) for origin in origins for item in view.records.spans_of(origin)]
        attempts = [
            Counted(span, item.n, item.ended, item.generation)
            for origin in origins
            for span, item in view.attempts.spans_of(origin)
        ]
        delays = [
            delay
            for origin in origins
            for span, _ in view.delays.spans_of(origin)
            for delay in view.delays_to_send(span, now.mono)
        ]
        register = Group(self.partition.topic, view.name, view.generation, view.from_ms)
        limit = LETTERS_MAX if any(item.record.letter is not None for item in records) else 2048
        pieces = max(1, *(-(-len(items) // limit) for items in (records, attempts, delays)))
        return [
            GroupState(
                register,
                tuple(records[at * limit : (at + 1) * limit]),
                tuple(attempts[at * limit : (at + 1) * limit]),
                tuple(delays[at * limit : (at + 1) * limit]),
            )
            for at in range(pieces)
        ]

    def on_sync_state(self, sender: NodeId, message: SyncState, now: Now) -> list[Effect]:
        """Anti-entropy, step 3: merge the records, then pull what has been missing here for a while."""
        if self.wrong_epoch(message.epoch):
            return []
        effects: list[Effect] = []
        for state in message.groups:
            effects += self._merge_group_state(state, now)
        effects += self._learn_reclaimed(message.reclaimed, now)
        self._want_anew([*message.reclaimed, *message.spans])
        effects += self.close(message.closed)
        for span, age_ms in message.ages:
            for _, slot in self.index.within(span):
                self._told_age(sender, slot.number, age_ms, now)
        missing: list[Span] = []
        for span in message.spans:
            if span.origin in self.closed:
                continue
            for gap in [gap for whole in self.index.gaps(span) for gap in self._worth_storing(whole)]:
                for part, entry in self.absent.split(gap):
                    if entry is None or sender in entry.denied:  # it has them now
                        entry = without(entry, sender) if entry is not None else Missing(now.mono)
                        self.absent.set(part, entry)
                    if entry.since + self.node.config.sync_grace <= now.mono:
                        missing.append(part)
        if sender in self.members:
            for span in message.nowhere:
                for part, entry in self.absent.within(span):
                    denied = (*without(entry, sender).denied, sender)
                    self.absent.set(part, entry._replace(denied=tuple(sorted(denied))))
        if message.rest or self.pulling_until <= now.mono:
            self.pulling_until = now.mono + self.node.config.request_timeout if missing else 0.0
            if missing:
                few = tuple(missing[: limits.SPANS_PER_REQUEST_MAX])
                effects.append(Send(sender, SyncPull(self.partition, few)))
        return effects

    def _merge_group_state(self, state: GroupState, now: Now) -> list[Effect]:
        view = self.group(state.group.name)
        effects = self.repair(view.name, state.records, now)
        effects += self.adopt_delays(view.name, state.delays, now)
        counted = [item for item in state.attempts if view.merge_attempts(item)]
        if counted:
            effects.append(Persist((AttemptsCounted(self.partition, view.name, tuple(counted)),)))
        return effects

    def on_sync_pull(self, sender: NodeId, message: SyncPull, now: Now) -> list[Effect]:
        """A peer lacks these: send it the batches, as many as one go may have, and then which are left.

        What is left starts the next pull, so a replica that was away for long catches up at full speed, and
        only one pull of a partition is under way at a time.
        """
        effects: list[Effect] = []
        numbers: dict[int, None] = {}
        rest: list[Span] = []
        size = 0
        for span in message.spans:
            for part, slot in self.index.within(span):
                batch = self.batches[slot.number]
                if slot.number in numbers or not batch.durable:
                    continue
                if len(numbers) >= PULL_BATCHES_MAX or (numbers and size >= PULL_BYTES_MAX):
                    rest.append(part)
                    continue
                numbers[slot.number] = None
                size += batch.header.end_of(batch.header.size - 1)
                age_ms = self._age_ms(slot.number, now)
                effects.append(SendStored(sender, self.topic.epoch, slot.number, age_ms))
        ages = [
            Aged(part, self._age_ms(slot.number, now))
            for span in message.ages
            for part, slot in self.index.within(span)
            if slot.number not in self.doubtful
        ]
        gaps = [
            gap for span in message.spans if span.origin not in self.closed for gap in self.index.gaps(span)
        ]
        nowhere = [part for gap in gaps for part in subtract(gap, self.reclaimed.within(gap))]
        reclaimed = [part for gap in gaps for part in self.reclaimed.within(gap)]
        left = SyncState(
            self.partition,
            self.topic.epoch,
            merge_spans(rest),
            (),
            bool(message.spans),
            merge_spans(reclaimed[: limits.SPANS_PER_REQUEST_MAX]),
            nowhere=merge_spans(nowhere[: limits.SPANS_PER_REQUEST_MAX]),
            ages=tuple(ages),
        )
        return [*effects, Send(sender, left)]

    def ask_absent(self, peer: NodeId, now: Now) -> list[Effect]:
        """What has been missing for a while, and ``peer`` has not said that it has not got it: ask it.

        Mostly a peer says by itself what it has, and that is pulled; this finds out what nobody has.
        """
        if not self.absent or self.pulling_until > now.mono:
            return []
        spans = [
            span
            for span, entry in self.absent.items()
            if peer not in entry.denied and entry.since + self.node.config.sync_grace <= now.mono
        ][: limits.SPANS_PER_REQUEST_MAX]
        if not spans:
            return []
        self.pulling_until = now.mono + self.node.config.request_timeout
        return [Send(peer, SyncPull(self.partition, tuple(spans)))]

    @property
    def lost(self) -> int:
        """Messages that are known here and that no replica has, as each of the others has said."""
        others = len(self.members) - 1
        return sum(span.size for span, entry in self.absent.items() if len(entry.denied) == others)

    def _age_ms(self, number: int, now: Now) -> int:
        """How old a batch is, by our clock."""
        if number in self.doubtful:
            return AGE_UNKNOWN
        return max(0, int(1000 * (now.mono - self.batches[number].born)))

    def _known_origins(self) -> list[Origin]:
        return sorted({*self.present.origins(), *self.reclaimed.origins()})

    def _known_spans(self, origin: Origin) -> list[Span]:
        """What counts as here when replicas compare: present, or reclaimed and not wanted again."""
        return [*self.present.spans_of(origin), *self._not_wanted(self.reclaimed.spans_of(origin))]

    # ------------------------------------------------------------------ RECLAIM

    def batch_settled(self, batch: StoredBatch) -> bool:
        """Whether no group needs the batch: each has a tombstone for each message, or begins after it."""
        readers = [view for view in self.groups.values() if view.home is view]
        if not readers or not batch.durable or batch.number in self.waiting:
            return False
        parts = [
            part
            for section in batch.header.sections
            for part, slot in self.index.within(section)
            if slot.number == batch.number
        ]
        for view in readers:
            covered = view.covers(batch.header.published_ms)
            for part in parts:
                if view.readable(part, covered):
                    return False
                if any(record.kind == Kind.DEAD for _, record in view.shown(part, covered)):
                    return False
                if any(each.holds.holds.within(part) for each in (view, view.dead) if each is not None):
                    return False
        return True

    def sweep(self, now: Now) -> None:
        """Look at the batches of which something was settled; note those that no group needs, and since when."""
        for number in list(itertools.islice(self.touched, limits.RECLAIM_BATCHES_MAX)):
            del self.touched[number]
            batch = self.batches.get(number)
            if batch is not None and number not in self.settled and self.batch_settled(batch):
                self.settled[number] = now.mono

    @property
    def settled_last(self) -> float:
        """Since when no group needs the newest of the batches to be reclaimed; minus infinity where there is none."""
        return next(reversed(self.settled.values()), float("-inf"))

    def reclaim(self, heard: float, now: Now) -> list[Effect]:
        """RECLAIM: drop the payload of batches that no group needs, once their retention is over.

        Args:
            heard: a majority of the replica set, this node included, has said which groups there are in answer to a
                question of then or later (monotonic seconds). A group that was there when the batch was settled has
                a majority too, so it is known here by now (docs/protocol.md, RECLAIM).
            now: the clocks.
        """
        numbers: list[int] = []
        spans: list[Span] = []
        for number, since in list(itertools.islice(self.settled.items(), limits.RECLAIM_BATCHES_MAX)):
            if since > heard or since + self.topic.retention_s > now.mono:
                break
            del self.settled[number]
            batch = self.batches.get(number)
            if batch is not None and self.batch_settled(batch):  # a group or a redrive may have come since
                spans += self._drop(batch)
                numbers.append(number)
        for origin in dict.fromkeys(span.origin for span in spans):
            if not self.present.spans_of(origin):
                self.closable[origin] = now.mono
        if not numbers:
            return []
        record = Reclaimed(self.partition, merge_spans(spans), tuple(numbers))
        return [Persist((record,)), Forget(tuple(numbers))]

    def _drop(self, batch: StoredBatch) -> list[Span]:
        """Take a batch out: its messages stay known, as reclaimed. Which they are."""
        spans: list[Span] = []
        for section in batch.header.sections:
            for part, slot in self.index.within(section):
                if slot.number == batch.number:
                    spans.append(part)
        for part in spans:
            self.index.remove(part)
            self.present.remove(part)
            self.reclaimed.add(part)
            self.digests.pop(part.origin, None)
            for view in self.groups.values():
                view.available.remove(part)
                view.holds.forget(part)
                view.hints.remove(part)
        for view in self.groups.values():
            view.forget_batch(batch.key())
        self.order.remove(batch.key())
        del self.batches[batch.number]
        self.doubtful.pop(batch.number, None)
        self.touched.pop(batch.number, None)
        return spans

    def _learn_reclaimed(self, spans: tuple[Span, ...], now: Now) -> list[Effect]:
        """A peer has reclaimed these: where their payload never came here, it need not come any more."""
        learned: list[Span] = []
        for span in [span for span in spans if span.origin not in self.closed]:
            for gap in self.index.gaps(span):
                learned += subtract(gap, self.reclaimed.within(gap))
        if not learned:
            return []
        for part in learned:
            self.closable.setdefault(part.origin, now.mono)
            self.reclaimed.add(part)
            self.absent.remove(part)
            self.digests.pop(part.origin, None)
        return [Persist((Reclaimed(self.partition, merge_spans(learned)),))]

    # --------------------------------------------------------- closing origins

    def closing(self, now: Now, most: int) -> list[Origin]:
        """Some origins to ask all replicas about: promised, or idle for long, and done with here."""
        found: list[Origin] = []
        for origin, since in list(itertools.islice(self.closable.items(), 4 * most)):
            over = origin in self.promised or since + self.node.config.origin_idle <= now.mono
            if over and len(found) < most and self.is_done(origin):
                found.append(origin)
            del self.closable[origin]
            self.closable[origin] = since  # behind the others, for the next time
        return found

    def promise(self, origins: tuple[Origin, ...]) -> list[OriginsPromised]:
        """Take no more STOREs of these from clients; the record that makes it durable."""
        fresh = [origin for origin in origins if origin not in self.promised and origin not in self.closed]
        self.promised.update(dict.fromkeys(fresh))
        return [OriginsPromised(self.partition, tuple(fresh))] if fresh else []

    def is_done(self, origin: Origin) -> bool:
        """Whether nothing is left of an origin but the knowledge of what there was: no payload, no hold."""
        if not may_close(origin) or self.present.spans_of(origin) or self.absent.spans_of(origin):
            return False
        return not any(view.holds.holds.spans_of(origin) for view in self.groups.values())

    def on_close_ask(self, sender: NodeId, message: CloseAsk, now: Now) -> list[Effect]:
        """Promise, and say with which of the origins we are done. An origin that is closed here is both."""
        error = self.wrong_epoch(message.epoch)
        if error:
            return [Send(sender, CloseTold(message.round, (), error, self.vector()))]
        origins = tuple(origin for origin in message.origins if may_close(origin))
        records = self.promise(origins)
        for origin in origins:
            if origin not in self.closed and not self.present.spans_of(origin):
                self.closable.setdefault(origin, now.mono)
        done = tuple(origin for origin in origins if origin in self.closed or self.is_done(origin))
        reply = Send(sender, CloseTold(message.round, done, "", self.vector()))
        return [Persist(tuple(records), (reply,) if message.round else ())]

    def close(self, numbers: Iterable[Span]) -> list[Effect]:
        """These are over everywhere: forget all about them but that. One of which something is present is not."""
        fresh = [gap for span in numbers for gap in self.closed.numbers.gaps(span)]
        if not fresh:
            return []
        alive = [number_of(origin) for origin in self.present.origins()]
        fresh = [part for span in fresh for part in subtract(span, alive)]
        for span in fresh:
            self.closed.numbers.add(span)
        for table in (self.reclaimed, self.wanted, self.absent):
            self._forget_closed(table)
        for view in self.groups.values():
            for kept in (
                view.records,
                view.attempts,
                view.delays,
                view.hints,
                view.holds.ballots,
                view.holds.floors,
            ):
                self._forget_closed(kept)
            view.digests = {
                found: digest for found, digest in view.digests.items() if found not in self.closed
            }
        for known in (self.promised, self.closable, self.digests):
            for origin in [origin for origin in known if origin in self.closed]:
                del known[origin]
        return [Persist((OriginsClosed(self.partition, merge_spans(fresh)),))] if fresh else []

    def _forget_closed(self, table: SpanSet | SpanMap[Any]) -> None:
        for origin in table.origins():
            if origin in self.closed:
                table.remove(Span(origin, 0, SEQ_END))

    def _closed_digest(self, family: Origin) -> Digest:
        numbers = self.closed.numbers
        return Digest(family, numbers.messages_of(family), numbers.digest(family))

    def _want_again(self, view: GroupView, spans: Iterable[Span]) -> None:
        """What ``view``, new or rewound, would read of ``spans``, reclaimed here, counts as absent again."""
        for span in spans:
            for part, record in view.record_pieces(span):
                if record.kind in (Kind.OPEN, Kind.DEAD):
                    self.wanted.add(part)
                    self.digests.pop(part.origin, None)

    def _want_anew(self, spans: Sequence[Span]) -> None:
        """Work out again what is wanted of ``spans``, which were reclaimed before or after their records came.

        Only so does it follow from what replicas exchange: else those that agree in all of that would differ for ever.
        """
        gone = [part for span in spans for part in self.reclaimed.within(span)]
        for part in gone:
            if self.wanted.remove(part):
                self.digests.pop(part.origin, None)
        for view in self.groups.values():
            if view.home is view:
                self._want_again(view, gone)

    # -------------------------------------------------------- journal and start

    def snapshot(self, now: Now) -> list[JournalRecord]:
        """The small state of every group, for the head of a journal segment. Holds are never in it."""
        records: list[JournalRecord] = []
        limit = limits.SPANS_PER_REQUEST_MAX
        promised, closed = list(self.promised), self.closed.numbers.items()
        for at in range(0, len(promised), limit):
            records.append(OriginsPromised(self.partition, tuple(promised[at : at + limit])))
        for at in range(0, len(closed), limit):
            records.append(OriginsClosed(self.partition, tuple(closed[at : at + limit])))
        gone = self.reclaimed.items()
        for at in range(0, len(gone), limit):
            records.append(Reclaimed(self.partition, tuple(gone[at : at + limit])))
        for view in self.sorted_groups():
            for state in self._group_states(view, view_origins(view), now):
                if state.records:
                    records.append(RecordsMerged(self.partition, view.name, state.records))
                if state.attempts:
                    records.append(AttemptsCounted(self.partition, view.name, state.attempts))
                if state.delays:
                    records.append(DelaysSet(self.partition, view.name, now.wall_ms, state.delays))
        return records

    def replay(self, record: PartitionRecord, now: Now) -> None:
        """Merge a record of the journal at start."""
        if isinstance(record, Reclaimed):
            for span in record.spans:
                self.reclaimed.add(span)
                self.closable.setdefault(span.origin, now.mono)
            return
        if isinstance(record, OriginsPromised):
            self.promise(record.origins)
            return
        if isinstance(record, OriginsClosed):
            self.close(record.spans)
            return
        view = self.group(record.group)
        if isinstance(record, RecordsMerged):
            for span, value in record.entries:
                view.merge(span, value)
        elif isinstance(record, AttemptsCounted):
            for counted in record.entries:
                view.merge_attempts(counted)
        else:
            gone = (now.wall_ms - record.at_ms) / 1000
            for span, n, ballot, remaining, generation in record.entries:
                left = min(remaining, max(0.0, remaining - gone))
                view.merge_delay(span, Delay(n, ballot, now.mono + left, generation))

    def holds_at_stop(self, now: Now) -> list[HeldAtStop]:
        """What CLEAN_STOP keeps: every hold with its remaining time and the highest ballot granted."""
        kept: list[HeldAtStop] = []
        for view in self.sorted_groups():
            for span, held in view.holds.holds.items():
                for part, ballot in view.holds.ballots.split(span):
                    kept.append(
                        HeldAtStop(
                            self.partition,
                            view.name,
                            part,
                            held.owner,
                            held.n,
                            max(0.0, held.deadline - now.mono),
                            ballot or (0, ""),
                            held.generation,
                        )
                    )
        return kept

    def holds_to_tell(self, now: Now) -> list[HeldThere]:
        """Every live hold, for a replica that was started again (core/recovery.py)."""
        return [
            HeldThere(view.name, span, held.owner, held.n, held.deadline - now.mono, held.generation)
            for view in self.sorted_groups()
            for span, held in view.holds.holds.items()
            if held.deadline > now.mono
        ]

    def end_quarantine(self, reported: list[Reported], now: Now) -> None:
        """All other replicas have told their holds: keep the union, and vote from now on.

        Whatever our record says: the delivery that was acked may be another one than the hold that is reported, and
        no record ends a hold.
        """
        for (name, span, owner, n, _, generation), deadline in reported:
            if deadline > now.mono:
                view = self.group(name)
                for part, ended in view.attempts_at(span, generation, n):
                    view.holds.learn(part, Held(owner, deadline, n, generation, ended))
                self.node.at(deadline, "expire", self.partition, name, span)
                self.refresh(view, span, now)
        self.quarantine_until = now.mono

    def memory_at_stop(self, most: int) -> list[MemoryAtStop]:
        """The ballots that CLEAN_STOP keeps: of each group all of them, or none where they are too many.

        Args:
            most: ballots, of all groups together.
        """
        kept: list[MemoryAtStop] = []
        for view in self.sorted_groups():
            ballots = view.holds.memory_at_stop()
            if len(ballots) <= most:
                most -= len(ballots)
                kept.append(MemoryAtStop(self.partition, view.name, view.holds.floor, ballots))
        return kept

    def restore_hold(self, held: HeldAtStop, now: Now) -> None:
        """Take back a hold of CLEAN_STOP: its remaining time starts again in full."""
        view = self.group(held.group)
        deadline = now.mono + held.remaining
        for part, ended in view.attempts_at(held.span, held.generation, held.n):
            kept = Held(held.owner, deadline, held.n, held.generation, ended)
            view.holds.restore(part, kept, Stamp(*held.ballot))
        self.node.at(deadline, "expire", self.partition, view.name, held.span)

    # ---------------------------------------------------------------- invariants

    def check(self, now: Now) -> None:
        """Assert what holds between any two events; `available` is compared with its definition."""
        self.index.check()
        self.present.check()
        self.absent.check()
        assert merge_spans(span for span, _ in self.index.items()) == tuple(self.present.items())
        for origin in [*self.present.origins(), *self.reclaimed.origins(), *self.absent.origins()]:
            assert origin not in self.closed, f"{origin} is closed, and something is kept of it"
        for span in self.reclaimed.items():
            assert not self.present.within(span), f"{span} is present, and listed as reclaimed"
        for span in self.wanted.items():
            assert self.reclaimed.covers(span), f"{span} is wanted again and was not reclaimed"
        for span, slot in self.index.items():
            assert not self.absent.within(span), f"{span} is present, and listed as absent"
            assert slot.number in self.batches, f"{span} is in batch {slot.number}, which is not here"
        times = list(self.settled.values())
        assert times == sorted(times), "batches to be reclaimed are out of order"
        for number in self.waiting:
            assert self.batches[number].due > now.mono, f"batch {number} is due, and waits"
        for number in self.doubtful:
            assert number in self.batches, f"the age of batch {number} is asked for, and it is not here"
        for view in self.groups.values():
            view.check()
            for span, slot in self.index.items():
                if not self.batches[slot.number].durable or slot.number in self.waiting:
                    assert not view.available.within(span), f"{span} is available too early"
                    continue
                covered = view.covers(self.batches[slot.number].header.published_ms)
                free = merge_spans(view.free_parts(span, covered, now.mono))
                have = tuple(view.available.within(span))
                assert have == free, f"{view.name}: available is {have}, should be {free}"
            offered: dict[int, int] = {}
            for span in view.available.items():
                for part, slot in self.index.within(span):
                    offered[slot.number] = offered.get(slot.number, 0) + part.size
            assert offered == view.offered, f"{view.name}: offers {view.offered}, should offer {offered}"
            ready = {number for _, number in view.ready}
            assert ready == set(offered), f"{view.name}: batches {ready} are ready, should be {offered}"


def without(entry: Missing, node: NodeId) -> Missing:
    """As if ``node`` had not said that it has not got them."""
    return entry._replace(denied=tuple(member for member in entry.denied if member != node))


def is_shown(item: Peeked, group: str, which: str) -> bool:
    """Whether a PEEK of ``group`` for ``which`` shows this. Of a dead-letter group only its dead letters are shown."""
    if which == "open" or group.endswith(DEAD_SUFFIX):
        return item.state in ("ready", "held", "delayed") and which in ("open", "dead", "all", item.state)
    return which in ("all", item.state)


def view_origins(view: GroupView) -> list[Origin]:
    """The origins of which the group has any state that outlives a restart."""
    return sorted({*view.records.origins(), *view.attempts.origins(), *view.delays.origins()})


@functools.lru_cache(maxsize=1 << 17)
def bucket_of(origin: Origin) -> int:
    """The bucket of anti-entropy that an origin falls into, the same on every node."""
    return salt_of(repr(tuple(origin))) % SYNC_BUCKETS


def encode_record(record: Record) -> bytes:
    """A record as bytes for a digest; of a letter only its ballot, which decides which of two stays."""
    ballot = tuple(record.letter.ballot) if record.letter is not None else ()
    return repr((record.generation, record.n, int(record.kind), ballot)).encode()

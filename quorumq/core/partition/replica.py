"""One partition on one node: what it answers to HOLD, RELEASE, EXTEND, ACK, REJECT and MERGE.

Methods are named after the steps of docs/protocol.md, section 3. Each takes one message and the time, changes
this replica, and returns effects; an answer that promises something durable is inside a Persist. Nothing here
knows of quorums: counting is the coordinators' work (core/rounds.py).

Below are the tables: `Batches` and `Views`. Anti-entropy, RECLAIM and the other duties are classes of their own, which
the node calls where they need nothing else of the replica.

The shortest way to see why a rule exists is to switch it off in the explorer (docs/verification.md) and read the
counterexample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorumq.core import limits
from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.messages import (
    Ack,
    Acked,
    CloseAsk,
    CloseTold,
    Counted,
    Extend,
    Extended,
    Freed,
    Granted,
    Hold,
    HoldReply,
    Merge,
    Merged,
    NotDue,
    PeekReply,
    PeekRequest,
    Refused,
    Reject,
    Rejected,
    Resolved,
    Store,
    Survey,
    Surveyed,
    SyncOffer,
    SyncPull,
    SyncState,
    Tombed,
)
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.choice import Choice
from quorumq.core.partition.closing import Closing
from quorumq.core.partition.group import Delay, GroupView
from quorumq.core.partition.learning import Learning, merged_record
from quorumq.core.partition.listing import page_of, slices_of, survey_of
from quorumq.core.partition.recall import Recall, Reported
from quorumq.core.partition.reclaim import Reclaim
from quorumq.core.partition.storing import Storing
from quorumq.core.partition.sync import Sync
from quorumq.core.partition.views import Views
from quorumq.core.records import (
    AttemptsCounted,
    DelaysSet,
    JournalRecord,
    Reclaimed,
)
from quorumq.core.spans import merge_spans, subtract
from quorumq.core.state import NodeState
from quorumq.core.types import (
    STAMP_ZERO,
    Incarnation,
    Kind,
    NodeId,
    Now,
    Owner,
    PartitionId,
    Record,
    Span,
    Stamp,
    Topic,
)


class Replica:
    """One partition of one topic on this node.

    Args:
        node: the state that all replicas of the node share.
        topic: the topic's register: replica set, epoch and settings come from it.
        partition: which partition.
    """

    __slots__ = (
        "batches",
        "choice",
        "closing",
        "learning",
        "members",
        "node",
        "partition",
        "quarantine_until",
        "recall",
        "reclaim",
        "storing",
        "sync",
        "topic",
        "unanswered",
        "views",
    )

    def __init__(self, node: NodeState, topic: Topic, partition: PartitionId) -> None:
        self.node = node
        self.topic = topic
        self.partition = partition
        self.members: tuple[NodeId, ...] = topic.replicas[partition.number]
        self.batches = Batches(node, partition, self.members)
        self.views = Views(node, partition, self.batches)
        self.choice = Choice(node, self.batches)
        self.sync = Sync(node, self.batches, self.views)
        self.reclaim = Reclaim(self.batches, self.views)
        self.closing = Closing(self.batches, self.views)
        self.storing = Storing(node, self.batches, self.views, self.closing)
        self.learning = Learning(partition, self.views)
        self.recall = Recall(node, self.batches, self.views, self.closing)
        self.quarantine_until = node.quarantine_until
        self.unanswered = 0  # rounds of HOLD in a row that ended without a majority's answers

    # ------------------------------------------------------------------ helpers

    def may_vote(self, now: Now) -> bool:
        """Whether this replica may grant and coordinate holds: it can vouch, and no forgotten grant can live."""
        return self.node.vouched and not self.in_quarantine(now)

    def in_quarantine(self, now: Now) -> bool:
        """Whether a hold granted before this start may be live and unknown here (docs/protocol.md, RECOVERY)."""
        return now.mono < self.quarantine_until

    def end_quarantine(self, reported: Iterable[Reported], now: Now) -> None:
        """All other replicas have told their holds: keep the union, and vote from now on."""
        self.recall.learn_holds(reported, now)
        self.quarantine_until = now.mono

    def group(self, name: str) -> GroupView:
        """The view of group ``name``; made when first named."""
        return self.views.named(name)

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
            unseen if slot is None else view.covers(self.batches.stored[slot.number].header.published_ms)
            for span in spans
            for _, slot in self.batches.index.split(span)
        )

    def vector(self) -> tuple[Incarnation, ...]:
        """What this node knows of the replica set's incarnations; goes with every reply."""
        return self.node.vector(self.members)

    def wrong_epoch(self, epoch: int) -> str:
        """The error for a request that was made for another replica set, or ""."""
        return "" if epoch == self.topic.epoch else "wrong-epoch"

    # --------------------------------------------------------------------- STORE

    def on_store(self, sender: NodeId, message: Store, now: Now) -> list[Effect]:
        """STORE: keep what of the batch is not here yet. STORED, once durable, for anything that is."""
        return self.storing.on_store(sender, message, self.topic, now)

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
                    effects.append(Persist((merged_record(self.partition, view, [Resolved(part, record)]),)))
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
                self.views.refresh(view, span, now)
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
        if not self.batches.waiting or not view.keeps_times(n):
            return [span], []
        early = [
            NotDue(part, 0, STAMP_ZERO, self.batches.stored[slot.number].due - now.mono)
            for part, slot in self.batches.index.within(span)
            if slot.number in self.batches.waiting
        ]
        return subtract(span, [item.span for item in early]), early

    def delayed_parts(self, span: Span) -> list[Span]:
        """The parts of ``span`` that were published with a delay, whether it is over or not."""
        return [
            part
            for part, slot in self.batches.index.within(span)
            if self.batches.stored[slot.number].header.delay_ms
        ]

    def grants(self, view: GroupView, span: Span, asked: Record, now: Now) -> list[Granted]:
        """The OKs for ``span``, with what the coordinator looks at once it has won."""
        mortal = self.batches.mortal or self.topic.ttl_s > 0
        timed = view.keeps_times(asked.n) and (mortal or not self.batches.present.covers(span))
        found: list[Granted] = []
        for part, count in view.attempts_at(span, asked.generation, asked.n):
            exhausted = count >= self.topic.max_deliveries and asked.kind == Kind.OPEN
            if not timed:
                found.append(Granted(part, count, exhausted, False))
                continue
            for piece, slot in self.batches.index.split(part):
                expired = slot is not None and self.batches.stored[slot.number].is_expired(
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
        view = self.views.groups.get(name)
        if view is None:
            return []
        counted: list[Counted] = []
        for part, held in view.holds.expired(span, now.mono):
            for piece, _ in view.records.split(part):
                if not view.is_acked(piece, held.generation):
                    counted += view.count_attempt(piece, held)
            self.views.refresh(view, part, now)
        for part, held in view.holds.holds.within(span):  # extended since the timer was set
            self.node.at(held.deadline, "expire", self.partition, name, part)
        if not counted:
            return []
        return [Persist((AttemptsCounted(self.partition, name, tuple(counted)),))]

    # -------------------------------------------------------- RELEASE, LEAVE

    def on_release(self, freed: Freed, now: Now) -> None:
        """RELEASE or LEAVE: remove holds where the owner matches exactly. Counts no attempt."""
        view = self.views.groups.get(freed.group)
        if view is None:
            return
        theirs = freed.owner.node != self.node.me  # our own, of a lost round, says nothing of who has it
        for span in freed.spans:
            view.holds.release(span, freed.owner)
            if theirs:
                view.hints.remove(span)
            self.views.refresh(view, span, now)

    # ---------------------------------------------------------------- EXTEND

    def on_extend(self, message: Extend, now: Now) -> Extended:
        """EXTEND: only where exactly this owner holds now."""
        error = self.wrong_epoch(message.epoch)
        view = self.views.groups.get(message.group)
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
                self.views.refresh(view, span, now)
        return Extended(message.round, tuple(granted), tuple(refused), "", self.vector())

    # ------------------------------------------------------------------- ACK

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
            if not self.batches.reclaimed.within(span) and span.origin not in self.batches.closed:
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
            self.views.refresh(view, span, now)
        records = (merged_record(self.partition, view, merged),) if merged else ()
        reply = Tombed(message.round, tuple(exclusive), tuple(higher), "", self.vector(), tuple(resolved))
        return [Persist(records, (Send(sender, reply),))]

    # ---------------------------------------------------------------- REJECT

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
            self.views.refresh(view, span, now)
        records: list[JournalRecord] = []
        if merged:
            records.append(merged_record(self.partition, view, merged))
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

    # ----------------------------------------------- MERGE (REDRIVE, repair)

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
            self.views.refresh(view, span, now)
        reply = Merged(message.round, tuple(exact), tuple(higher), "", self.vector())
        records = (merged_record(self.partition, view, changes),) if changes else ()
        return [Persist(records, (Send(sender, reply),) if message.round else ())]

    # ------------------------------------------- PEEK, anti-entropy, closing origins

    def on_peek(self, message: PeekRequest, now: Now) -> PeekReply:
        """PEEK: a page of what this replica sees, with bodies where they are asked for."""
        page = page_of(self.batches, self.views.look(message.group), message, now)
        if not message.bodies:
            return page
        return page._replace(slices=slices_of(self.batches, self.topic.name, page.items))

    def on_survey(self, message: Survey, now: Now) -> Surveyed:
        """Survey: what the group makes of every message known here."""
        error = self.wrong_epoch(message.epoch)
        if error:
            return Surveyed(message.round, (), None, error, self.vector())
        items, upto = survey_of(self.batches, self.views.look(message.group), message, now)
        return Surveyed(message.round, items, upto, "", self.vector())

    def sync_offer(self) -> SyncOffer:
        """Anti-entropy, step 1: a digest of all that we have."""
        return self.sync.offer(self.topic.epoch)

    def on_sync_offer(self, sender: NodeId, message: SyncOffer, now: Now) -> list[Effect]:
        """Anti-entropy, step 2: offer or tell what differs."""
        if self.wrong_epoch(message.epoch):
            return []
        return [Send(sender, answer) for answer in self.sync.answer(message, now)]

    def on_sync_state(
        self, sender: NodeId, message: SyncState, now: Now, *, pull: bool = True
    ) -> list[Effect]:
        """Anti-entropy, step 3: merge the records, then pull what has been missing here for a while.

        Args:
            sender: who says so.
            message: what it has.
            now: the clocks.
            pull: whether to ask for payload; else, in a resync, it counts as asked for, so that nothing else asks soon.
        """
        if self.wrong_epoch(message.epoch):
            return []
        effects: list[Effect] = []
        for state in message.groups:
            effects += self.learning.merge_state(state, now)
        learned = self.batches.learn_reclaimed(message.reclaimed, now)
        if learned:
            effects.append(Persist((Reclaimed(self.partition, merge_spans(learned)),)))
        self.views.want_anew([*message.reclaimed, *message.spans])
        effects += self.closing.close(message.closed)
        for span, age_ms in message.ages:
            for _, slot in self.batches.index.within(span):
                if self.batches.told_age(sender, slot.number, age_ms, now):
                    self.storing.on_due(slot.number, now)
        missing = self.batches.note_offered(sender, message.spans, now)
        self.batches.note_nowhere(sender, message.nowhere)
        pulled = self.sync.pull(sender, missing, message.rest, now)
        return effects + pulled if pull else effects

    def on_sync_pull(self, sender: NodeId, message: SyncPull, now: Now) -> list[Effect]:
        """A peer lacks these: send it the batches, and say which are left."""
        return self.sync.on_pull(sender, message, self.topic.epoch, now)

    def on_close_ask(self, sender: NodeId, message: CloseAsk, now: Now) -> list[Effect]:
        """Promise, and say with which of the origins we are done. An origin that is closed here is both."""
        error = self.wrong_epoch(message.epoch)
        if error:
            return [Send(sender, CloseTold(message.round, (), error, self.vector()))]
        records, done = self.closing.on_ask(message.origins, now)
        reply = Send(sender, CloseTold(message.round, done, "", self.vector()))
        return [Persist(tuple(records), (reply,) if message.round else ())]

    def check(self, now: Now) -> None:
        """Assert what holds between any two events."""
        self.batches.check(now)
        self.views.check(now)
        self.reclaim.check()

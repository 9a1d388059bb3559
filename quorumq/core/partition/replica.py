"""One partition on one node: its answers to HOLD, RELEASE, EXTEND, ACK, REJECT and MERGE.

Methods are named after the steps of docs/protocol.md, section 3. Each takes one message and the time, and returns
its answer, effects, or both; an answer that promises something durable is inside a Persist. Nothing here
knows of quorums: counting is the coordinators' work (core/cluster/rounds.py).

Below are the tables: `Batches` and `Views`. Anti-entropy, RECLAIM and the other duties are classes of their own, which
the node calls if they need nothing else of the replica.

The shortest way to see why a rule exists is to switch it off in the explorer (docs/verification.md) and read the
counterexample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quorumq.core import messages as m
from quorumq.core.cluster.state import NodeState
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import Reclaimed
from quorumq.core.partition import attempts as counts
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.choice import Choice
from quorumq.core.partition.closing import Closing
from quorumq.core.partition.counting import count_of
from quorumq.core.partition.delays import claim_of
from quorumq.core.partition.fate import AckAsk, ExtendAsk, HoldAsk, RejectAsk, ReleaseAsk
from quorumq.core.partition.group import Changes, GroupView
from quorumq.core.partition.handoff import Handoff
from quorumq.core.partition.hashing import salt_of
from quorumq.core.partition.learning import Learning
from quorumq.core.partition.listing import page_of, replica_list_of, slices_of, unsettled_of
from quorumq.core.partition.recall import Recall, Reported
from quorumq.core.partition.reclaim import Reclaim
from quorumq.core.partition.storing import Storing
from quorumq.core.partition.sync import Sync
from quorumq.core.partition.views import Views
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.spanlists import merge_spans, subtract
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    OPEN_ZERO,
    Incarnation,
    Kind,
    Latest,
    NodeId,
    Now,
    Owner,
    PartitionId,
    Placement,
    Record,
    Span,
    Stamp,
    Topic,
    record_rank,
)


class Replica:
    """One partition of one topic on this node.

    Args:
        topic: the topic's register, with replica set, epoch and settings.

    Attributes:
        members: the replica set, as of the layout that this node has adopted.
        epoch: number of the layout that the replica set is from.
        slot_layout: layout since which this node has its slot; 0 if it has none.
        learns: this node copies the payload, and is to get a slot.
        former: while a new slot is in quarantine, the node that had it, or the set before if it was added; else ().
        tellers: the nodes that may know the promises of the slot: of the set, and of the one before a new slot. This
            node may be one.
        survivors: the nodes that an operator has declared to be all that is left, since the slot is new here.
        handoff: question of a source to the slots of the set, or of a slot to learners; None if there is none yet.
        is_trusted: all promises of the slot are known here, so far as the directory is trusted.
        registered_by: count of durable registers (`NodeState`) at which the topic's record of this partition is one.
    """

    __slots__ = (
        "batches", "choice", "closing", "epoch", "former", "handoff", "is_trusted", "learning", "learns", "members",
        "node", "partition", "placement", "quarantine_until", "recall", "reclaim", "registered_by", "slot_layout",
        "storing", "survivors", "sync", "tellers", "topic", "trusted_slot_layout", "unanswered", "views",
    )  # fmt: skip

    def __init__(self, node: NodeState, topic: Topic, partition: PartitionId) -> None:
        self.node = node
        self.topic = topic
        self.partition = partition
        self.batches = Batches(node, partition)
        self.views = Views(node, partition, self.batches, topic.max_deliveries)
        self.choice = Choice(node, self.batches, topic.ttl_s)
        self.sync = Sync(self.batches, self.views, topic.digest_key)
        self.reclaim = Reclaim(self.batches, self.views)
        self.closing = Closing(self.batches, self.views)
        self.storing = Storing(self.closing)
        self.learning = Learning(self.batches, self.views)
        self.recall = Recall(self.closing)
        earlier = node.earlier
        # No earlier start has voted in a partition that it did not know (docs/protocol.md, RECOVERY, (c)).
        new = earlier is not None and (topic.id not in earlier or partition.number >= earlier[topic.id])
        self.quarantine_until = 0.0 if new else node.quarantine_until
        self.registered_by = node.registers_put
        self.trusted_slot_layout = 0
        self.former: tuple[NodeId, ...] = ()
        self.epoch = 0
        self.use_set(topic)

    # ------------------------------------------------------------------ helpers

    def trust_slot(self, layout: int) -> None:
        """Note the layout of the slot whose promises are all known here; 0 if there is none."""
        self.trusted_slot_layout = layout
        self.is_trusted = self.slot_layout == FIRST_LAYOUT or 0 < self.slot_layout == layout

    def use_set(self, topic: Topic) -> None:
        """Take over the replica set of a layout that is durable here."""
        number, me, batches = self.partition.number, self.node.me, self.batches
        members, epoch = topic.replicas[number], FIRST_LAYOUT
        sources: tuple[NodeId, ...] = ()
        learners = sources
        placement = topic.placement(number) if topic.layout is not None else None
        self.placement: Placement | None = placement
        self.slot_layout = FIRST_LAYOUT if me in members else 0
        if placement is not None:
            self.slot_layout, epoch = placement.since_of(me), placement.epoch
            sources, learners = placement.sources, placement.learners
        self.learns = me in learners
        self.is_trusted = self.slot_layout == FIRST_LAYOUT or 0 < self.slot_layout == self.trusted_slot_layout
        partners = (*members, *learners)
        if epoch != self.epoch or partners != batches.partners:  # else the answers of these nodes stand
            self.handoff: Handoff | None = None
        batches.partners, batches.keepers = partners, (*members, *sources, *([me] if self.learns else ()))
        self.members, self.epoch = batches.members, batches.epoch = members, epoch
        if batches.absent.runs:
            batches.discard_denials()
        self.tellers = (*members, *sources)
        if placement is not None and self.slot_layout == epoch:
            self.tellers = tuple(dict.fromkeys((*placement.nodes_before, *members)))
        self.survivors: tuple[NodeId, ...] = ()
        self.choice.salts = {member: salt_of(member) for member in members}
        self.unanswered = 0  # rounds of HOLD in a row that ended without a majority's answers

    def begin_to_vote(self, min_ballot: int, former: tuple[NodeId, ...], until: float) -> None:
        """Begin to vote in a slot above a ballot, in quarantine ``until`` then or ``former`` report their holds."""
        self.trust_slot(self.slot_layout)
        self.quarantine_until = until
        self.former = former
        self.views.raise_min_ballot(min_ballot)

    def alter(self, topic: Topic, now: Now) -> None:
        """Take over a changed register of the topic: its settings, its epoch."""
        self.topic = topic
        self.sync.rekey(topic.digest_key)
        self.choice.ttl_s = topic.ttl_s
        self.views.limit_deliveries(topic.max_deliveries, now)

    def may_vote(self, now: Now) -> bool:
        """Return True if this replica may grant and coordinate holds: trusted, and out of quarantine."""
        trusted = self.node.trusted and self.is_trusted
        # The comparison saves a call. The simulator replaces the method.
        return trusted and (now.mono >= self.quarantine_until or not self.in_quarantine(now))

    def in_quarantine(self, now: Now) -> bool:
        """Return True while an unknown hold may be live: of an earlier start, or of the node that had the slot."""
        return now.mono < self.quarantine_until

    def end_quarantine(self, reported: Iterable[Reported], now: Now) -> None:
        """Vote from now on, with the union of the reported holds: none, if a clean stop kept this replica's own."""
        self.recall.learn_holds(reported, now)
        self.quarantine_until = now.mono
        self.former = ()

    def group(self, name: str) -> GroupView:
        """Return the view of group ``name``; made when first named."""
        return self.views.groups.get(name) or self.views.named(name)

    def is_stale(
        self, view: GroupView, generation: int, asked: Sequence[tuple[Span, int]], *, unseen: bool = False
    ) -> bool:
        """Return True if ``generation`` was rewound since, for these messages: requests that name it are refused.

        A dead letter, or a redriven message, is void only if the newer generation covers the message.

        Args:
            generation: the generation that a HOLD, ACK or REJECT names.
            asked: the messages, with their redrive numbers.
            unseen: True if a message counts as covered when its payload, and so its time, is not here.
        """
        home = view.home
        if generation >= home.generation or generation < home.last_deletion:
            return view.is_stale(generation)
        if home is view and not all(n for _, n in asked):
            return view.is_stale(generation)
        return any(
            unseen
            if location is None
            else view.covers(span.producer_id, self.batches.stored[location.number].header.published_ms)
            for span, _ in asked
            for _, location in self.batches.index.split(span)
        )

    def lot_of(self, group: str, attempts: Attempts) -> int:
        """Return in a lot of how many at most a message is delivered that has had these attempts; 0: any."""
        if not attempts.last_expired:
            return 0
        dead = self.group(group).source is not None
        return counts.lot_of(attempts, limits.NUMBERS_END if dead else self.topic.max_deliveries)

    def vector(self) -> m.Starts:
        """Return the replica set's incarnations that this node knows; goes with every reply."""
        return self.node.vector(self.members)

    # --------------------------------------------------------------------- HOLD

    def on_hold(
        self, sender: NodeId, incarnation: Incarnation, message: m.Hold, now: Now
    ) -> tuple[m.HoldReply, list[Effect]]:
        """HOLD: vote on each message. No journal has holds, so the reply waits for the topic's record alone."""
        if self.abstains(message.ballot, now):
            return m.refusal(message, "", self.vector()), []
        view = self.group(message.group)
        if view.paused:
            return m.refusal(message, "", self.vector()), self._news(sender, view)
        if message.generation != view.home.generation:
            items = [(want.span, want.n) for want in message.wants]
            if self.is_stale(view, message.generation, items, unseen=True):
                return m.refusal(message, Code.STALE_GENERATION, self.vector()), self._news(sender, view)
        votes: dict[type, list[Any]] = {m.Granted: [], m.SpanRecord: [], m.NotDue: [], m.Refused: []}
        changes = Changes()
        owner = Owner(sender, incarnation, message.ballot)
        until = now.mono + message.hold_time
        bucket = self.node.bucket_of(self.partition.topic, view.name) if self.node.buckets else None
        spans = [want.span for want in message.wants] if bucket is not None else []
        charged = view.charged(spans, owner) if bucket is not None else 0
        for want in message.wants:
            before = len(votes[m.Granted])
            ask = HoldAsk(
                owner,
                view.asked(message.generation, want.n),
                until,
                self.topic.max_deliveries,
                self.topic.ttl_s,
                *want[2:],
                limited=bucket is not None,
            )
            for part, (kind, *fields) in self.views.apply(view, want.span, fate.on_hold, ask, now, changes):
                votes[kind].append(kind(part, *fields))
            for vote in votes[m.Granted][before:]:  # no more than that: timers show what was granted
                self.node.at(until, ("expire", self.partition, view.name, vote.span, owner))
        granted, tombs, not_due, refused = map(tuple, votes.values())
        known = self.node.vector(self.members)
        taken = view.charged(spans, owner) - charged if bucket is not None else 0
        tokens = bucket.take(taken, now.mono) if bucket is not None else None
        reply = m.HoldReply(
            message.round,
            self.partition,
            message.group,
            False,
            granted,
            tombs,
            not_due,
            refused,
            "",
            known,
            tokens,
        )
        records = self.views.finish(view, changes, now)  # redrives that we had not heard of
        return reply, [Persist(records)] if records else []

    def _news(self, sender: NodeId, view: GroupView) -> list[Effect]:
        """Send a coordinator the register that it has not heard of: of a pause, or of a rewind."""
        register = self.node.catalogue.group(self.partition.topic, view.home.name)
        known = register is None or sender == self.node.me
        return [] if known else [Send(sender, m.PutGroup(0, register))]  # type: ignore[arg-type]

    def delayed_parts(self, span: Span) -> list[Span]:
        """Return the parts of ``span`` that were published with a delay, whether it is over or not."""
        return [
            part
            for part, location in self.batches.index.within(span)
            if self.batches.stored[location.number].header.delay_ms
        ]

    def abstains(self, ballot: Stamp, now: Now) -> bool:
        """Return True if this replica has no vote: in quarantine, not trusted, or asked for too high a ballot.

        Too high is above its durable reserve: after a crash it would not know that it had granted the ballot.
        """
        return not self.may_vote(now) or not self.node.clock.merge(ballot.time)

    def on_expire(self, name: str, span: Span, owner: Owner, now: Now) -> list[Effect]:
        """Remove a hold if its time has run out, count the attempt, and make the message available."""
        view = self.views.find(name)
        if view is None:
            return []
        (span, _), *rest = view.cut(span)
        if rest:  # if every second message was acked, each is a run
            remainder = span._replace(start=span.stop, stop=rest[-1][0].stop)
            self.node.at(now.mono, ("expire", self.partition, name, remainder, owner))
        changes = Changes()
        for part, held in self.views.apply(view, span, fate.on_expire, None, now, changes):
            # Extended since the timer was set, or another one.
            self.node.at(held.deadline, ("expire", self.partition, name, part, held.owner))
        records = self.views.finish(view, changes, now)
        return [Persist(records)] if records else []

    # ---------------------------------------------------------- RELEASE, LEAVE

    def on_release(self, released: m.Released, now: Now) -> None:
        """RELEASE or LEAVE: remove holds if the owner matches exactly. Counts no attempt."""
        view = self.views.find(released.group)
        if view is None:
            return
        changes = Changes()
        ask = ReleaseAsk(released.owner, theirs=released.owner.node != self.node.me)
        if self.node.buckets:
            self._give_back(view, released.spans, released.owner, now)
        for span in released.spans:
            view.give_up(span, released.owner, now.mono, rivals=True)
            self.views.apply(view, span, fate.on_release, ask, now, changes)
        records = self.views.finish(view, changes, now)
        assert not records, "RELEASE changes nothing that outlasts a restart"

    def _give_back(self, view: GroupView, spans: Iterable[Span], owner: Owner, now: Now) -> None:
        """Give back the tokens of holds that end without a delivery."""
        bucket = self.node.bucket_of(self.partition.topic, view.name)
        if bucket is not None:
            bucket.give_back(view.charged(spans, owner), now.mono)

    # ------------------------------------------------------------------- EXTEND

    def on_extend(self, message: m.Extend, now: Now) -> tuple[m.ExtendReply, Persist | None]:
        """EXTEND: prolong holds, or claims, that exactly this owner has. Return the reply, and what it waits for."""
        if not self.may_vote(now):
            return m.ExtendReply(message.round, (), (), "", self.vector()), None
        view = self.views.groups.get(message.group)
        if view is None:
            return m.ExtendReply(message.round, (), message.entries, "", self.vector()), None
        claims = message.hold_time > self.node.config.hold_time_max
        if self.node.no_capacity("delay") and (claims or self._has_claimed(view, message.entries, now)):
            return m.refusal(message, Code.STORAGE_FULL, self.vector()), None
        votes: dict[int, list[m.Owned]] = {fate.LOST: [], fate.HOLD: [], fate.CLAIM: []}
        changes = Changes()
        until = now.mono + message.hold_time
        for span, owner, n in message.entries:
            before = len(votes[fate.HOLD])
            ask = ExtendAsk(owner, until, claims)
            for part, answer in self.views.apply(view, span, fate.on_extend, ask, now, changes):
                votes[answer].append(m.Owned(part, owner, n))
            for extended in votes[fate.HOLD][before:]:
                self.node.at(until, ("expire", self.partition, view.name, extended.span, owner))
        # Attempts of holds that ran out before their timers had a turn.
        records = self.views.finish(view, changes, now)
        lost, held, claimed = (tuple(votes[answer]) for answer in (fate.LOST, fate.HOLD, fate.CLAIM))
        reply = m.ExtendReply(message.round, (*held, *claimed), lost, "", self.vector())
        return reply, Persist(records) if records or claimed else None  # a promise of a claim waits

    def _has_claimed(self, view: GroupView, entries: Iterable[m.Owned], now: Now) -> bool:
        """Return True if an entry's owner has a claim there whose hold has run out: prolonged, it is written."""
        return view.claims and any(
            claim_of(lease.claim, owner.ballot) is not None
            and (lease.held is None or lease.held.owner != owner or lease.held.deadline <= now.mono)
            for span, owner, _ in entries
            for _, lease in view.leases.within(span)
        )

    def _end_stale(
        self, sender: NodeId, view: GroupView, message: m.Ack | m.Reject, now: Now
    ) -> list[Effect]:
        """Refuse to settle deliveries of before a rewind, and end their claims, durably."""
        changes = Changes()
        for span, owner, _ in message.entries:
            self.views.apply(view, span, fate.on_stale, owner, now, changes)
        refusal = Send(sender, m.refusal(message, Code.STALE_GENERATION, self.vector()))
        return [Persist(self.views.finish(view, changes, now), (refusal,))]

    # ---------------------------------------------------------------------- ACK

    def on_ack(self, sender: NodeId, message: m.Ack, now: Now) -> list[Effect]:
        """ACK: write ACKED, durable, for messages known or not; TOMBED says for which this replica is exclusive.

        In a dead-letter group it is PURGED at the entry's n, which anything newer stands above.
        """
        view = self.group(message.group)
        if message.generation != view.home.generation and self.is_stale(
            view, message.generation, [(span, n) for span, _, n in message.entries]
        ):
            return self._end_stale(sender, view, message, now)
        if self.node.disk_shortage and self.node.no_capacity(Kind.ACKED):
            return [Send(sender, m.refusal(message, Code.STORAGE_FULL, self.vector()))]
        exclusive: list[m.Owned] = []
        higher: list[m.Owned] = []
        settled: list[m.SpanRecord] = []
        changes = Changes()
        for span, owner, n in message.entries:
            # Reclaimed or closed messages have no memory of ballots.
            producer_id = span.producer_id
            reclaimed = producer_id in self.batches.reclaimed.runs and self.batches.reclaimed.within(span)
            remembered = not reclaimed and producer_id not in self.batches.closed
            ask = AckAsk(owner, view.ack_record(message.generation, n))
            for part, (proof, record) in self.views.apply(view, span, fate.on_ack, ask, now, changes):
                if proof is False:
                    higher.append(m.Owned(part, owner, n))
                elif proof and remembered:
                    exclusive.append(m.Owned(part, owner, n))
                if view.home is not view and record[:3] != ask.record[:3]:  # nothing stands above ACKED
                    settled.append(m.SpanRecord(part, record))
        reply = m.AckReply(
            message.round, tuple(exclusive), tuple(higher), "", self.node.vector(self.members), tuple(settled)
        )
        return [Persist(self.views.finish(view, changes, now), (Send(sender, reply),))]

    # ------------------------------------------------------------------- REJECT

    def on_reject(self, sender: NodeId, message: m.Reject, now: Now) -> list[Effect]:
        """REJECT: a compare-and-set on the hold; requeue with a delay, or DEAD, in one step with the release.

        Without a delay of its own, the message waits as the topic's backoff says for our own count of attempts.
        """
        view = self.group(message.group)
        if self.is_stale(view, message.generation, [(span, n) for span, _, n in message.entries]):
            return self._end_stale(sender, view, message, now)
        if self.no_capacity_for(message):
            return [Send(sender, m.refusal(message, Code.STORAGE_FULL, self.vector()))]
        applied: list[m.Owned] = []
        refused: list[m.Owned] = []
        settled: list[m.SpanRecord] = []
        backoff = (message.delay,) if message.delay != limits.TOPIC_BACKOFF_S else self.topic.backoff
        changes = Changes()
        undelivered = message.drop or (message.death is not None and message.death.reason != "rejected")
        for span, owner, n in message.entries:
            asked = view.asked(message.generation, n)
            if undelivered and self.node.buckets:
                self._give_back(view, (span,), owner, now)
            if message.death is not None:
                death = message.death._replace(ballot=owner.ballot, redrives=n)
                asked = self.node.fitted(Record(message.generation, n, Kind.DEAD, death))
            elif message.drop:
                asked = Record(message.generation, n, Kind.SKIPPED)
            ask = RejectAsk(owner, asked, backoff or (0.0,), message.interrupted)
            view.give_up(span, owner, now.mono, rivals=False)
            for part, (done, record) in self.views.apply(view, span, fate.on_reject, ask, now, changes):
                if record is not None:
                    settled.append(m.SpanRecord(part, record))
                else:
                    (applied if done else refused).append(m.Owned(part, owner, n))
                    view.dropped += part.size if done and message.drop else 0
        reply = m.RejectReply(
            message.round, tuple(applied), tuple(refused), tuple(settled), "", self.vector()
        )
        return [Persist(self.views.finish(view, changes, now), (Send(sender, reply),))]

    def no_capacity_for(self, message: m.Reject) -> str:
        """Return the reason why there is no room for the records of a REJECT; "" if there is room.

        A dead letter that the topic's limits make is written as an ACK is: else the message would never be settled.
        """
        death = message.death
        if death is None:
            return self.node.no_capacity(Kind.SKIPPED if message.drop else "delay")
        return self.node.no_capacity(Kind.DEAD if death.reason == "rejected" else Kind.ACKED)

    # ---------------------------------------------------- MERGE (REDRIVE, repair)

    def on_merge(self, sender: NodeId, message: m.Merge, now: Now) -> list[Effect]:
        """Merge records; say, once durable, for which messages ours equals the asked one, and for which it is higher.

        If most of the request is alike, and all is done, the answer names nothing.
        """
        view = self.group(message.group)
        opened = (record.generation for _, record in message.entries if record.kind == Kind.OPEN)
        if message.round and any(generation < view.home.last_deletion for generation in opened):
            # A redrive through a node that has not heard that the group was deleted, and created again.
            return [Send(sender, m.refusal(message, Code.STALE_GENERATION, self.vector()))]
        if any(self.node.no_capacity(record.kind) for _, record in message.entries):
            refusal = Send(sender, m.refusal(message, Code.STORAGE_FULL, self.vector()))
            return [refusal] if message.round else []  # anti-entropy sends it again
        exact: list[Span] = []
        higher: list[m.SpanRecord] = []
        not_dead: list[Span] = []
        changes = Changes()
        entries: Iterable[tuple[Span, Record]] = message.entries
        if message.alike:
            asked = message.entries[-1].record
            slow = [
                span for span in message.alike if not self.views.begin_backfill(view, span, asked, changes)
            ]
            entries = (*message.entries, *((span, asked) for span in slow))
        for span, entry in entries:
            asked = self.node.fitted(entry)
            lacking: list[Span] = []
            if message.redrive:
                for part, ours in view.home.records.split(span):
                    if is_not_dead(ours, asked):
                        lacking.append(part)
                    elif ours is not None and record_rank(ours) < record_rank(asked):
                        lacking += self.batches.reclaimed.within(part)
                not_dead += lacking
            for whole in subtract(span, lacking):
                for part, record in self.views.apply(view.home, whole, fate.on_merge, asked, now, changes):
                    if record[:3] == asked[:3]:
                        # An open message counts if its payload is here: peers that have it may bring it back here.
                        gone = self.batches.reclaimed.within(part) if asked.kind == Kind.OPEN else ()
                        exact += subtract(part, gone)
                    else:
                        higher.append(m.SpanRecord(part, record))
        records = self.views.finish(view.home, changes, now)
        all_exact = bool(message.alike) and not (higher or not_dead)
        reply = m.MergeReply(
            message.round,
            tuple(exact) if not all_exact else (),
            tuple(higher),
            "",
            self.vector(),
            merge_spans(not_dead),
            all_exact,
        )
        return [Persist(records, (Send(sender, reply),) if message.round else ())]

    # ------------------------------------------- PEEK, anti-entropy, closing producer ids

    def on_peek(self, request: m.PeekRequest, now: Now) -> m.PeekReply:
        """PEEK: send a page of what this replica sees, with bodies if they are asked for."""
        if request.counted:
            return count_of(self.batches, self.views.look(request.group), request, now)
        page = page_of(self.batches, self.views.look(request.group), request, now)
        if not request.bodies:
            return page
        return page._replace(
            slices=slices_of(self.batches, self.topic.name, (item.span for item in page.items))
        )

    def on_replica_list(self, message: m.ReplicaList, now: Now) -> m.ReplicaListReply:
        """ReplicaList: send the group's state of every message known here."""
        if message.named:
            known = [part for span in message.named for part in self.batches.known_of(span)]
            return m.ReplicaListReply(message.round, (), None, "", self.vector(), False, tuple(known))
        view = self.views.look(message.group)
        unsettled: tuple[Span, ...] = ()
        if message.reclaimed:
            items, unsettled, upto = unsettled_of(self.batches, view, message)
        else:
            items, upto = replica_list_of(self.batches, view, message, now)
        register = self.node.catalogue.group(self.partition.topic, message.group)
        has_begun = register is not None and (
            register.generation > message.generation
            or (register.generation == message.generation and register.latest != Latest.SKIPPING)
        )
        return m.ReplicaListReply(message.round, items, upto, "", self.vector(), has_begun, unsettled)

    def on_sync_state(
        self, sender: NodeId, message: m.SyncState, now: Now, *, pull: bool = True
    ) -> list[Effect]:
        """Anti-entropy, step 3: merge the records, then pull messages that have been missing here for a while.

        Args:
            pull: True to ask for payload. In a resync it is asked for when all records are here.
        """
        if message.epoch != self.epoch:
            return []
        effects: list[Effect] = []
        for state in message.groups:
            effects += self.learning.merge_state(state, now)
        learned = self.batches.learn_reclaimed(message.reclaimed, now)
        if learned:
            effects.append(Persist((Reclaimed(self.partition, merge_spans(learned)),)))
        self.views.want_anew([*message.reclaimed, *message.spans])
        effects += self.closing.learn_closed(message.closed, now, new_slot=not self.is_trusted)
        effects += [Persist((record,)) for record in self.closing.promise(message.promised)]
        for span, age_ms in message.ages:
            for _, location in self.batches.index.within(span):
                if self.batches.told_age(sender, location.number, age_ms, now):
                    self.storing.on_due(location.number, now)
        missing = self.batches.note_offered(sender, message.spans, now)
        self.batches.note_nowhere(sender, message.nowhere)
        return effects + self.sync.pull(sender, missing, message.rest, now) if pull else effects

    def on_close_ask(self, sender: NodeId, message: m.CloseRequest, now: Now) -> list[Effect]:
        """Promise, and say with which of the producer ids we are done. A producer id that is closed here is both."""
        records, done = self.closing.on_ask(message.numbers, now)
        reply = Send(sender, m.CloseReply(message.round, done, "", self.vector()))
        return [Persist(tuple(records), (reply,) if message.round else ())]

    def check(self, now: Now) -> None:
        self.batches.check(now)
        self.views.check(now)
        self.reclaim.check()
        self.sync.check()


def is_not_dead(ours: Record | None, redriven: Record) -> bool:
    """Return True if a replica with this record has not heard of a dead or purged message that may be redriven so."""
    ours = ours or OPEN_ZERO
    was_dead = ours.kind in (Kind.DEAD, Kind.PURGED) and ours[:2] == (redriven.generation, redriven.n - 1)
    return not was_dead and record_rank(ours) < record_rank(redriven)

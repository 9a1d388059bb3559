"""FETCH: win a majority hold on the oldest available messages, and deliver them.

Why a file of its own: this is where a message is given to a consumer, so this is where exclusivity could be
broken from the coordinator's side. The clock of a hold starts before anything is sent; a message is won only with
our own vote; and hold, record and deadline are looked at again in the step that replies.

A FETCH goes round: choose (core/partition), hold here, HOLD to the others, count, and then answer, try again after
a random pause, or park until something becomes available. What is lost is released everywhere, whatever the others
answered. Nothing in a reply that comes late is believed, except that a TOMB still repairs.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core import limits
from quorumq.core.context import Context
from quorumq.core.coordinator import Coordinator, too_few
from quorumq.core.effects import Effect, Send
from quorumq.core.messages import (
    ClientReply,
    Delivery,
    Fetch,
    Fetched,
    Freed,
    Hold,
    HoldReply,
    PeerMessage,
    Put,
    Reject,
    Rejected,
    Slice,
    Want,
)
from quorumq.core.partition.group import DEAD_SUFFIX
from quorumq.core.partition.replica import Replica
from quorumq.core.rounds import Round, Votes, majority_of
from quorumq.core.spans import SpanMap, SpanSet, subtract
from quorumq.core.types import (
    STAMP_ZERO,
    Group,
    Incarnation,
    Letter,
    NodeId,
    Now,
    Owner,
    PartitionId,
    Receipt,
    Record,
    Span,
    Stamp,
    Topic,
    record_rank,
)

ROUND_TIMEOUT_MIN_S = 0.05
ROUND_TIMEOUT_UNKNOWN_S = 1.0
"""How long the first rounds take at most, or a tenth of their hold: later ones go by the answers, or their lack."""

ROUND_TIMEOUT_SHARE = 0.5
"""Of its hold, how much a round may use up at most: its client needs the rest for its work."""

DOUBLINGS_MAX = 10
NOT_DUE_HINT_MAX_S = 5.0
"""A node whose clock alone says that a message is due asks the others again after so long at the latest."""
BACKOFF_S = (0.002, 0.02)


class Won(NamedTuple):
    """Messages won in one round."""

    partition: PartitionId
    span: Span
    n: int
    generation: int
    owner: Owner
    attempt: int
    expires: float  # the coordinator's deadline, monotonic seconds


class HoldRound(Round):
    """One HOLD round in one partition.

    Args:
        number: of the round.
        members: the replica set.
        partition: where.
        owner: this attempt.
        started: monotonic seconds, taken before anything was sent.
        hold_time: seconds.
        usual: for how many seconds answers are waited for that may not come at all.
    """

    __slots__ = (
        "answered",
        "attempts",
        "exhausted",
        "expired",
        "expires",
        "generation",
        "no",
        "not_due",
        "owner",
        "partition",
        "pending",
        "redrives",
        "started",
        "until",
        "usual",
        "yes",
    )

    def __init__(
        self,
        number: int,
        members: tuple[NodeId, ...],
        partition: PartitionId,
        generation: int,
        owner: Owner,
        started: float,
        hold_time: float,
        usual: float,
    ) -> None:
        super().__init__(number, members)
        self.partition = partition
        self.generation = generation
        self.owner = owner
        self.started = started
        self.usual = usual
        self.until = started + usual
        self.answered = started  # when the last answer came
        self.expires = started + limits.DEADLINE_SHARE * hold_time
        self.pending = SpanSet()  # neither won nor lost yet
        self.redrives: SpanMap[int] = SpanMap()
        self.yes = Votes()
        self.no = Votes()
        self.exhausted = Votes()
        self.expired = Votes()
        self.not_due: SpanMap[float] = SpanMap()  # seconds left of a batch's delay, the least of the replies
        self.attempts: SpanMap[int] = SpanMap()  # the maximum over the replies

    def flags(self, span: Span, valid: int) -> list[tuple[Span, int, int]]:
        """``span`` in pieces with the bits of those that say: no deliveries left, and: no time left."""
        return [
            (bit, dead & valid, late & valid)
            for part, dead in self.exhausted.pieces(span)
            for bit, late in self.expired.pieces(part)
        ]


class FetchCoordinator(Coordinator):
    """One FETCH, from the client's request until it is answered.

    Args:
        key: the client's request.
        request: its limits and times; ``hold_time`` is within the cluster's.
        partitions: those that this node has a replica of, to be looked at in turn from ``first``.
        first: which of them to begin with.
        now: when it came.
    """

    __slots__ = (
        "conflict",
        "first",
        "group_rounds",
        "held_until",
        "look_at",
        "park_until",
        "parked",
        "parked_since",
        "partitions",
        "request",
        "tried",
        "unanswered",
        "unregistered",
        "won",
        "won_bytes",
        "won_messages",
    )

    def __init__(
        self, key: int, request: Fetch, partitions: tuple[PartitionId, ...], first: int, now: Now
    ) -> None:
        super().__init__(key)
        self.request = request
        self.partitions = partitions
        self.first = first
        self.park_until = now.mono + min(request.max_wait, request.hold_time / 10)
        self.held_until = self.park_until  # when the oldest won hold has used 10 % of its time
        self.look_at = 0.0  # not before then: a pause after a conflict
        self.won: list[Won] = []
        self.won_messages = 0
        self.won_bytes = 0
        self.conflict = False
        self.parked = False
        self.parked_since = float("inf")
        self.unanswered = False  # a round ran out of time without a majority's answers
        self.unregistered = False  # too few replicas can vouch to have the group registered now
        self.tried = False  # a FETCH that may not wait looks once all the same
        # Round number -> topic id, and whether it only asks.
        self.group_rounds: dict[int, tuple[bytes, bool]] = {}

    # --------------------------------------------------------------- going round

    def start(self, context: Context, now: Now) -> list[Effect]:
        context.state.at(self.park_until, "advance", self.key)
        new = self._unsettled(context)
        return self._register(context, new, now) if new else self.advance(context, now)

    def advance(self, context: Context, now: Now) -> list[Effect]:
        """Go on: answer if there is enough or the time is over, else start rounds on what is available."""
        effects: list[Effect] = []
        while not self.done and not self.rounds:
            if not all(context.replicas[partition].may_vote(now) for partition in self.partitions):
                return effects + self._refuse(context, now)
            over = now.mono >= min(self.park_until, self.held_until)
            if self._satisfied() or (over and self.won):
                return effects + self.answer(context, now)
            answers = over and (self.tried or self.unregistered)
            # What is left of a short pause is the client's; after a long one it is to ask again, and not at once.
            wait = self.park_until if self.unregistered else self.look_at
            if now.mono < wait - (BACKOFF_S[1] if answers else 0.0):
                return effects
            if answers:
                return effects + self.answer(context, now)
            began = context.state.round_count
            self.tried = True
            effects += self._start_rounds(context, now)
            if context.state.round_count == began and not over:
                return effects
        return effects

    def _satisfied(self) -> bool:
        request = self.request
        enough = self.won_messages >= request.min_messages and self.won_bytes >= request.min_bytes
        full = self.won_messages >= request.max_messages or self.won_bytes >= request.max_bytes
        return self.won_messages > 0 and (enough or full)

    def _start_rounds(self, context: Context, now: Now) -> list[Effect]:
        """Choose from each partition in turn until the limits are reached; hold there, and ask the others."""
        effects: list[Effect] = []
        began = context.state.round_count
        messages = self.request.max_messages - self.won_messages
        size = self.request.max_bytes - self.won_bytes
        again: float | None = None
        for offset in range(len(self.partitions)):
            if messages <= 0 or size <= 0:
                break
            partition = self.partitions[(self.first + offset) % len(self.partitions)]
            replica = context.replicas[partition]
            view = replica.group(self.request.group)
            patient = self.request.max_wait >= context.config.steal_after
            wants, generation, later = replica.choose(view, now, messages, size, self.parked_since, patient)
            if later is not None:
                again = later if again is None else min(again, later)
            if wants:
                ballot = context.state.clock.fresh(now)
                if ballot is None:  # a higher reserve must become durable first
                    again = now.mono + BACKOFF_S[0]
                    continue
                messages -= sum(want.span.size for want in wants)
                size -= sum(replica.bytes_of(want.span) for want in wants)
                effects += self._hold(context, replica, wants, generation, ballot, now)
        if context.state.round_count == began:
            if again is not None:
                context.state.at(again, "advance", self.key)
            effects += self._park(context, now)
        return effects

    def _park(self, context: Context, now: Now) -> list[Effect]:
        """Nothing to be had: wait here, and tell the peers if they do not know."""
        if self.parked:
            return []
        self.parked = True
        self.parked_since = min(self.parked_since, now.mono)
        return context.park(self.partitions, self.request.group, now)

    def _unpark(self, context: Context) -> None:
        if self.parked:
            self.parked = False
            context.unpark(self.partitions, self.request.group)

    # ----------------------------------------------------------------- one round

    def _hold(
        self, context: Context, replica: Replica, wants: list[Want], generation: int, ballot: Stamp, now: Now
    ) -> list[Effect]:
        """Hold here for the full time, then ask the others. The round's clock starts here."""
        hold_time = self.request.hold_time
        self._unpark(context)
        owner = Owner(context.state.me, context.state.incarnation, ballot)
        view = replica.group(self.request.group)
        usual, longest = self.patience(context, replica)
        this = HoldRound(
            context.state.next_round(),
            replica.members,
            replica.partition,
            generation,
            owner,
            now.mono,
            hold_time,
            usual,
        )
        this.until = now.mono + longest
        self.adopt(context, this, now, longest)
        for span, n in wants:
            this.pending.add(span)
            this.redrives.set(span, n)
        message = Hold(
            this.number,
            replica.partition,
            replica.topic.epoch,
            view.name,
            generation,
            ballot,
            hold_time,
            tuple(wants),
            (),
            context.parks(replica.partition, view.name),
        )
        reply, effects = replica.on_hold(context.state.me, context.state.incarnation, message, now)
        granted = SpanSet.from_spans(item.span for item in reply.granted)
        self._count(context, this, replica, context.state.me, context.state.incarnation, reply, now)
        asked = tuple(Want(span, n) for want in granted.items() for span, n in this.redrives.within(want))
        if asked and len(this.members) > 1:
            context.note_asked(this.number, now)
            message = message._replace(wants=asked)
            self.requests[this.number] = (replica.partition, message)
            for member in this.members:
                if member in context.state.links:
                    owed = context.state.releases_owed(member, now)
                    effects.append(Send(member, message._replace(freed=owed) if owed else message))
                elif member != context.state.me:
                    this.unasked |= 1 << this.members.index(member)
        effects += self._settle(context, this, replica, now, timed_out=False)
        self._hurry(context, now)
        return effects

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, Put):
            return self._on_registered(context, sender, incarnation, message, now)
        assert isinstance(message, HoldReply)
        this = self.rounds[message.round]
        assert isinstance(this, HoldRound)
        context.state.learn_vector(this.members, message.known)
        if message.error == "unknown-topic":
            return self.teach(context, message.round, sender)
        replica = context.replicas[this.partition]
        effects = self._count(context, this, replica, sender, incarnation, message, now)
        effects += self._settle(context, this, replica, now, timed_out=False)
        self._hurry(context, now)
        return effects + self.advance(context, now)

    def patience(self, context: Context, replica: Replica) -> tuple[float, float]:
        """For how many seconds answers are waited for: usually, and while no majority has answered."""
        hold_time = self.request.hold_time
        longest = max(
            ROUND_TIMEOUT_MIN_S, min(ROUND_TIMEOUT_SHARE * hold_time, context.config.request_timeout)
        )
        unknown = min(ROUND_TIMEOUT_UNKNOWN_S, hold_time / 10)
        usual = context.hold_times.timeout(ROUND_TIMEOUT_MIN_S, longest, unknown)
        return usual, min(longest, usual * 2**replica.unanswered)

    def _hurry(self, context: Context, now: Now) -> None:
        """No round is waited for longer than usual once a majority has answered, or while something won waits, too."""
        for this in self.rounds.values():
            if isinstance(this, HoldRound) and (self.won or this.is_majority(this.valid(context.state))):
                until = max(now.mono, this.started + this.usual)
                if until < this.until:
                    this.until = until
                    context.state.at(until, "round", this.number)

    def _count(
        self,
        context: Context,
        this: HoldRound,
        replica: Replica,
        sender: NodeId,
        incarnation: Incarnation,
        reply: HoldReply,
        now: Now,
    ) -> list[Effect]:
        """Take a reply into the round: votes, and everything else that it teaches."""
        effects: list[Effect] = []
        bit = this.hear(sender, incarnation)
        if bit:
            this.answered = now.mono
            for span, attempts, exhausted, expired, unseen in reply.granted:
                blind = replica.delayed_parts(span) if unseen else []  # it cannot tell whether they are due
                this.yes.add(subtract(span, blind), bit)
                this.no.add(blind, bit)
                this.attempts.update(span, lambda old, new=attempts: max(old or 0, new))  # type: ignore[misc]
                if exhausted:
                    this.exhausted.add((span,), bit)
                if expired:
                    this.expired.add((span,), bit)
            for span, _, ballot, remaining, _ in reply.not_due:
                if ballot == STAMP_ZERO:
                    for part, old in this.not_due.split(span):
                        this.not_due.set(part, remaining if old is None else min(old, remaining))
            if reply.abstained:
                this.no.add(this.pending.items(), bit)
                self.conflict = True  # asked again at once it would abstain again
            this.no.add([item.span for item in reply.resolved], bit)
            this.no.add([item.span for item in reply.not_due], bit)
            this.no.add([item.span for item in reply.refused], bit)
        for span, highest, remaining in reply.refused:
            context.state.clock.merge(highest.time)
            self.conflict = True
            if remaining > 0 and sender != context.state.me:
                self._hint(replica, span, remaining, now)
        if sender != context.state.me:
            effects += replica.repair(self.request.group, reply.resolved, now)
            effects += replica.adopt_delays(self.request.group, reply.not_due, now)
        asked = replica.group(self.request.group).asked(this.generation, 0)
        for item in reply.resolved:
            behind: list[Span] = []
            for part, n in this.redrives.within(item.span):
                if record_rank(item.record) > record_rank(asked._replace(n=n)):
                    # A TOMB loses it, whoever else said OK.
                    this.no.add((part,), (1 << len(this.members)) - 1)
                else:
                    behind.append(part)
            if behind and sender != context.state.me:  # it has not heard of the dead letter, and is told
                effects += replica.tell(sender, self.request.group, behind)
        return effects

    def _hint(self, replica: Replica, span: Span, remaining: float, now: Now) -> None:
        """A hint is used in choosing only: it changes no vote and no hold."""
        replica.hint(self.request.group, span, now.mono + remaining, now)

    def _settle(
        self, context: Context, this: HoldRound, replica: Replica, now: Now, *, timed_out: bool
    ) -> list[Effect]:
        """Decide what is won and what is lost; close the round when nothing is pending."""
        effects: list[Effect] = []
        valid = this.valid(context.state)
        mine = 1 << this.members.index(context.state.me)
        lost: list[Span] = []
        buried: list[tuple[Span, int, str]] = []
        for span in this.pending.items():
            for part, yes in this.yes.pieces(span):
                for piece, no in this.no.pieces(part):
                    for bit, dead, late in this.flags(piece, valid):
                        for atom, attempts in this.attempts.split(bit):
                            if self.is_won(this, yes & valid & ~no, mine):
                                if this.is_majority(dead):
                                    buried.append((atom, attempts or 0, "max-deliveries"))
                                elif self.is_over(this, late):
                                    buried.append((atom, attempts or 0, "expired"))
                                elif late and not timed_out and not this.everyone:
                                    continue  # clocks differ: the others decide, if they answer in time
                                else:
                                    self._win(context, this, replica, atom, (attempts or 0) + 1)
                            elif timed_out or this.is_out_of_reach(no) or not yes & mine:
                                lost.append(atom)
                            else:
                                continue
                            this.pending.remove(atom)
        if this.is_majority(valid):
            replica.unanswered = 0
        elif timed_out:
            replica.unanswered = min(replica.unanswered + 1, DOUBLINGS_MAX)
            self.unanswered = True
        if lost:
            effects += self._lose(context, this, replica, lost, now)
            for span in lost:
                for part, remaining in this.not_due.within(span):
                    self._hint(replica, part, min(remaining, NOT_DUE_HINT_MAX_S), now)
        for span, attempts, reason in buried:
            burial = Burial(this, span, attempts, reason, self.request)
            effects += burial.start(context, now)
        if not this.pending:
            self.close_round(context, this.number)
            if lost and this.is_out_of_reach(0):  # too few to ask: another node may have links to them
                self.unanswered = True
                self.park_until = now.mono
            elif lost and self.conflict and not self.done:
                # Who asked for the same at the same time pauses, too: one is ahead of the others if the pauses differ
                # by more than messages take.
                self.conflict = False
                longest = max(BACKOFF_S[1], 2 * (this.answered - this.started))
                self.look_at = now.mono + context.rng.uniform(BACKOFF_S[0], longest)
                context.state.at(self.look_at, "advance", self.key)
        return effects

    def is_over(self, this: HoldRound, late: int) -> bool:
        """A majority of the clocks says that the message's time to live is over."""
        return this.is_majority(late)

    def is_won(self, this: HoldRound, yes: int, mine: int) -> bool:
        """A majority said OK, ours included."""
        return this.is_majority(yes) and bool(yes & mine)

    def _win(self, context: Context, this: HoldRound, replica: Replica, span: Span, attempt: int) -> None:
        for part, n in this.redrives.within(span):
            self.won.append(Won(this.partition, part, n, this.generation, this.owner, attempt, this.expires))
            self.won_messages += part.size
            self.won_bytes += replica.bytes_of(part)
        used = this.expires - limits.DEADLINE_SHARE * self.request.hold_time + self.request.hold_time / 10
        if used < self.held_until:
            self.held_until = used
            context.state.at(used, "advance", self.key)

    def _lose(
        self, context: Context, this: HoldRound, replica: Replica, spans: list[Span], now: Now
    ) -> list[Effect]:
        """Drop our hold, and RELEASE at all others whatever they answered."""
        freed = Freed(this.partition, self.request.group, this.owner, tuple(spans))
        return context.free(freed, now)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        this = self.rounds[number]
        if number in self.group_rounds:
            return self._refuse_unregistered(context, this)
        assert isinstance(this, HoldRound)
        effects = self._settle(context, this, context.replicas[this.partition], now, timed_out=True)
        return effects + self.advance(context, now)

    # -------------------------------------------------------------------- answer

    def answer(self, context: Context, now: Now) -> list[Effect]:
        """Reply with what is won and is still ours at this very moment."""
        slices: list[Slice] = []
        given: list[Freed] = []
        for won in self.won:
            replica = context.replicas[won.partition]
            for span in self.still_ours(replica, won, now):
                add_slices(slices, context, replica, won, self.request.group, span)
                given.append(Freed(won.partition, self.request.group, won.owner, (span,)))
        if not slices and self.unanswered:
            detail = f"no majority of the replicas answered {context.state.me} in time: ask another node"
            return self.finish(context, too_few("too-few-replicas", detail, 2, 1))
        context.remember_given(self.key, given, max((won.expires for won in self.won), default=now.mono))
        return self.finish(context, Fetched(self.request.sent_at, self.request.hold_time, tuple(slices)))

    def still_ours(self, replica: Replica, won: Won, now: Now) -> list[Span]:
        """Which parts may be delivered now: the deadline is ahead, the hold is this one, no tombstone has come."""
        if now.mono >= won.expires:
            return []
        view = replica.group(self.request.group)
        if replica.is_stale(view, won.generation, (won.span,)):  # rewound since
            return []
        asked = view.asked(won.generation, won.n)
        parts: list[Span] = []
        for part, record in view.record_pieces(won.span, won.generation):
            if self.is_deliverable(record, asked):
                for piece, held in view.holds.holds.within(part):
                    if view.holds.is_owner(held, won.owner):
                        parts.append(piece)
        return parts

    def is_deliverable(self, record: Record, asked: Record) -> bool:
        """Our own record still says what the HOLD asked for: open (or dead), at the redrive it was won at."""
        return record[:3] == asked[:3]

    def concerns(self, topic: bytes) -> bool:
        return any(partition.topic == topic for partition in self.partitions)

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        """Answer with what is won elsewhere; if nothing else was asked for, say why."""
        self._unpark(context)
        self.partitions = tuple(found for found in self.partitions if found.topic != topic.id)
        self.won = [won for won in self.won if won.partition.topic != topic.id]
        for number, this in list(self.rounds.items()):
            if isinstance(this, HoldRound):
                about = this.partition.topic
            else:
                about, _ = self.group_rounds[number]
            if about == topic.id:
                self.close_round(context, number)
        if not self.partitions and topic.name in self.request.topics:
            return super().on_deleted(context, topic, now)
        self.park_until, self.tried = now.mono, True
        return self.advance(context, now)

    def finish(self, context: Context, reply: ClientReply | None) -> list[Effect]:
        self._unpark(context)
        return super().finish(context, reply)

    def on_gone(self, context: Context, now: Now) -> list[Effect]:
        """The client is gone and no reply was begun: give back what was won or asked for (LEAVE)."""
        effects: list[Effect] = []
        for won in self.won:
            effects += context.free(Freed(won.partition, self.request.group, won.owner, (won.span,)), now)
        for this in list(self.rounds.values()):
            if isinstance(this, HoldRound):
                spans = this.pending.items()
                effects += context.free(
                    Freed(this.partition, self.request.group, this.owner, tuple(spans)), now
                )
        return effects + self.finish(context, None)

    def _refuse(self, context: Context, now: Now) -> list[Effect]:
        """In quarantine, or unable to vouch: another node can serve this at once."""
        if self.won:
            return self.on_gone(context, now)
        wait = context.quarantine_left(now)
        detail = f"node {context.state.me} is in quarantine for {wait:.1f} s: ask another node"
        return self.finish(context, too_few("too-few-replicas", detail, 1, 0))

    # --------------------------------------------------------- the group's register

    def _unsettled(self, context: Context) -> list[PartitionId]:
        """Where it is not known that a majority of the replica set has the group's register."""
        settled, name = context.catalogue.settled_groups, self.register_name
        return [partition for partition in self.partitions if (partition, name) not in settled]

    def _register(self, context: Context, new: list[PartitionId], now: Now) -> list[Effect]:
        """A group is read in a partition once a majority of its replica set has the group's register.

        Where a group is to begin with what is published from now on, and it is not known here, the others are asked
        first: one that exists is not rewound by a FETCH.
        """
        effects: list[Effect] = []
        for topic in dict.fromkeys(partition.topic for partition in new):
            known = (topic, self.register_name) in context.catalogue.groups
            effects += self._put(context, topic, self.request.start == "latest" and not known, now)
        return effects

    @property
    def register_name(self) -> str:
        """The group whose register this FETCH needs: of a dead-letter group, its source."""
        return self.request.group.removesuffix(DEAD_SUFFIX)

    def _put(self, context: Context, topic: bytes, ask: bool, now: Now) -> list[Effect]:
        group = context.catalogue.groups.get((topic, self.register_name)) or Group(
            topic, self.register_name, 0, 0
        )
        this, effects = self.put_group(context, group, now, ask=ask)
        self.group_rounds[this.number] = (topic, ask)
        return effects

    def _on_registered(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: Put, now: Now
    ) -> list[Effect]:
        this = self.rounds[message.round]
        topic, ask = self.group_rounds[message.round]
        effects = context.take_in_group(message.group, now) if message.group is not None else []
        this.hear(sender, incarnation)
        partitions = [partition for partition in self.partitions if partition.topic == topic]
        sets = [context.catalogue.members_of(partition) for partition in partitions]
        if not this.is_majority_of_each(this.valid(context.state), sets):
            return effects
        self.close_round(context, message.round)
        del self.group_rounds[message.round]
        if ask:
            if (topic, self.register_name) not in context.catalogue.groups:
                group = context.next_generation(Group(topic, self.register_name, 0, 0), now.wall_ms, now)
                if group is None:
                    return effects + self.refuse_unstamped(context)
                effects += context.take_in_group(group, now)
            return effects + self._put(context, topic, False, now)
        for partition in partitions:
            context.catalogue.settled_groups[(partition, self.register_name)] = None
        return effects + self.advance(context, now)

    def on_cannot_vouch(self, context: Context, number: int, sender: NodeId, now: Now) -> list[Effect]:
        """Where no majority can register the group now, nobody can deliver either: there is nothing to be had."""
        this = self.rounds[number]
        topic, _ = self.group_rounds[number]
        this.unasked |= 1 << this.members.index(sender)
        left = 0
        for at, member in enumerate(this.members):
            if member == context.state.me or member in context.state.links:
                left |= 1 << at
        sets = [
            context.catalogue.members_of(partition)
            for partition in self.partitions
            if partition.topic == topic
        ]
        if this.is_majority_of_each(left & ~this.unasked, sets):
            return []
        self.close_round(context, number)
        del self.group_rounds[number]
        self.unregistered = True
        return self.advance(context, now)

    def _refuse_unregistered(self, context: Context, this: Round) -> list[Effect]:
        needed = max(
            majority_of(len(context.catalogue.members_of(partition))) for partition in self.partitions
        )
        detail = f"group {self.request.group!r} could not be registered through {context.state.me}: ask another node"
        return self.finish(context, too_few("too-few-replicas", detail, needed, len(this.heard)))


def add_slices(
    slices: list[Slice], context: Context, replica: Replica, won: Won, group: str, span: Span
) -> None:
    """Append the deliveries of ``span``, going on with the last slice and receipt where they go on."""
    topic = context.catalogue.topics[won.partition.topic].name
    for piece, slot, letter in [
        (piece, slot, letter)
        for part, letter in replica.group(group).letters(span)
        for piece, slot in replica.index.within(part)
    ]:
        first, stop = piece.start + slot.shift, piece.stop + slot.shift
        receipt = Receipt(won.partition, group, won.generation, won.n, piece, won.owner)
        delivery = Delivery(receipt, won.attempt, b"", letter)
        last = slices[-1] if slices else None
        if last is None or (last.partition, last.batch, last.stop) != (won.partition, slot.number, first):
            header = replica.batches[slot.number].header
            slices.append(Slice(topic, won.partition, slot.number, first, stop, header, (delivery,)))
            continue
        before = last.deliveries[-1]
        ours = before.receipt
        if (
            before.attempt == won.attempt
            and before.letter == letter
            and (ours.span.origin, ours.span.stop) == (piece.origin, piece.start)
            and (ours._replace(span=piece) == receipt)
        ):
            joined = Span(piece.origin, ours.span.start, piece.stop)
            delivery = delivery._replace(receipt=receipt._replace(span=joined))
            slices[-1] = last._replace(stop=stop, deliveries=(*last.deliveries[:-1], delivery))
        else:
            slices[-1] = last._replace(stop=stop, deliveries=(*last.deliveries, delivery))


class Burial(Coordinator):
    """What was won but has no deliveries or no time left: REJECT it to the dead letters, as its owner. Nobody waits.

    If no majority applies it, the hold runs out and the next coordinator that wins the message tries again.
    """

    __slots__ = ("attempts", "reason", "request", "span", "won")

    def __init__(self, won: HoldRound, span: Span, attempts: int, reason: str, request: Fetch) -> None:
        super().__init__(0)
        self.won = won
        self.span = span
        self.attempts = attempts
        self.reason = reason
        self.request = request

    def start(self, context: Context, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        replica = context.replicas[self.won.partition]
        message = f"{self.attempts} deliveries ended without an ack"
        if self.reason == "expired":
            message = f"its time to live was over, after {self.attempts} deliveries"
        for part, n in self.won.redrives.within(self.span):
            for piece, slot in replica.index.within(part):
                letter = Letter(
                    ballot=self.won.owner.ballot,
                    reason=self.reason,
                    message=message,
                    fingerprint=self.reason,
                    attempts=self.attempts,
                    published_ms=replica.batches[slot.number].header.published_ms,
                    died_ms=now.wall_ms,
                    node=context.state.me,
                    redrives=n,
                )
                this = self.open_round(context, self.won.members, now)
                reject = Reject(
                    this.number,
                    self.won.partition,
                    replica.topic.epoch,
                    self.request.group,
                    self.won.generation,
                    n,
                    self.won.owner,
                    (piece,),
                    0.0,
                    letter,
                )
                effects += self.ask(context, this, self.won.partition, reject)
        return effects

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, Rejected)
        if message.error == "unknown-topic":
            return self.teach(context, message.round, sender)
        this = self.rounds[message.round]
        this.hear(sender, incarnation)
        if this.everyone:
            self.close_round(context, message.round)
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        self.close_round(context, number)
        return []

"""FETCH: win a majority hold on the oldest available messages, and deliver them.

Three rules keep a message exclusive on the coordinator's side. The clock of a hold starts before anything is sent. A
message is won only with our own vote. Hold, record and deadline are looked at again in the step that replies.

A FETCH loops over rounds: choose messages (core/partition), grant them here, send HOLD to the other replicas, count
votes. Then it answers, tries again after a random pause, or parks until something becomes available. Lost messages are
released everywhere, regardless of the others' answers. An answer has first-timers or one lot of suspects (attempts.py),
never both. A late reply is not believed, except that a TOMB still repairs.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts, is_exhausted
from quorumq.core.partition.choice import Picked, Terms
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import lots
from quorumq.core.requests.context import Context
from quorumq.core.requests.dead_lettering import DeadLettering
from quorumq.core.requests.deliveries import Won, add_slices
from quorumq.core.requests.groupreader import GroupReader
from quorumq.core.requests.holdround import BACKOFF_S, HoldRound, wants_of
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, Owner, PartitionId, Record, Span, Stamp, Topic

ROUND_TIMEOUT_MIN_S = 0.05
ROUND_TIMEOUT_UNKNOWN_S = 1.0
"""Seconds that the first rounds take at most, or a tenth of their hold: later ones go by the answers, or their lack."""

ROUND_TIMEOUT_SHARE = 0.5
"""Share of its hold that a round may use up at most: its client needs the rest for its work."""

DOUBLINGS_MAX = 10


class FetchCoordinator(GroupReader):
    """One FETCH, from the client's request until it is answered.

    Args:
        request: its limits and times; ``hold_time`` is within the cluster's.
        partitions: partitions that this node has a replica of, to be looked at in turn from ``first``.
        first: index of the partition to begin with.
    """

    __slots__ = (
        "abstained", "blocked", "conflict", "first", "held_until", "look_at", "lot", "parked", "parked_since", "tried",
        "unanswered", "won",
    )  # fmt: skip

    def __init__(
        self, key: int, request: m.Fetch, partitions: tuple[PartitionId, ...], first: int, now: Now
    ) -> None:
        super().__init__(key, request, partitions, now)
        self.first = first
        self.held_until = self.park_until  # when the oldest won hold has used 10 % of its time
        self.look_at = 0.0  # not before then: a pause after a conflict
        self.won: list[Won] = []
        self.lot: list[Won] = []  # suspects, until all rounds are over
        self.conflict = False
        self.abstained = 0  # rounds in a row that members abstained from
        self.blocked = False  # no majority was left to vote in the last of them
        self.parked = False
        self.parked_since = float("inf")
        self.unanswered = False  # a round ran out of time without a majority's answers
        self.tried = False  # a FETCH that may not wait looks once all the same

    # --------------------------------------------------------------- going round

    def start(self, context: Context, now: Now) -> list[Effect]:
        context.state.at(self.park_until, ("advance", self.key))
        for topic in dict.fromkeys([partition.topic for partition in self.partitions]):
            if context.catalogue.is_group_deleted(topic, self.register_name):
                return self.on_group_deleted(context, context.catalogue.topics[topic], now)
        new = self.unregistered_partitions(context)
        return self.register(context, new, now) if new else self.advance(context, now)

    def advance(self, context: Context, now: Now) -> list[Effect]:
        """Go on: answer if the messages suffice or the time is over, else start rounds on available messages."""
        effects: list[Effect] = []
        while not (self.done or self.rounds or self.awaited):
            effects += self._set_apart(context, now)
            for replica in map(context.replicas.__getitem__, self.partitions):
                if not replica.may_vote(now):
                    return effects + self._refuse(context, replica, now)
            over = now.mono >= min(self.park_until, self.held_until)
            if self._satisfied() or (over and self.won):
                return effects + self.answer(context, now)
            answers = over and (self.tried or self.unregistered or self.unanswered)
            # If no time is left, answer at most BACKOFF_S[1] before the pause ends: the client asks again at once.
            wait = self.park_until if self.unregistered else self.look_at
            if now.mono < wait - (BACKOFF_S[1] if answers else 0.0):
                return effects
            if answers:
                return effects + self.answer(context, now)
            began, self.tried = context.state.round_count, True
            effects += self._start_rounds(context, now)
            if context.state.round_count == began and not (over and self.tried):
                self.hinted = not self.won and self._is_hinted(context, now)
                return effects + self.answer(context, now) if self.hinted else effects
        return effects

    def _satisfied(self) -> bool:
        request = self.request
        enough = self.won_messages >= request.min_messages
        full = self.won_messages >= request.max_messages or self.won_bytes >= request.max_bytes
        return self.won_messages > 0 and (enough or full or self.won[0].lot > 0)

    def _set_apart(self, context: Context, now: Now) -> list[Effect]:
        """Keep first-timers, or else one lot of suspects if the client is idle. Give back the others (RELEASE).

        The voters said which they are. Our own replica has learned it, and will not take them for first-timers again.
        """
        effects: list[Effect] = []
        if self.lot:
            idle = self.request.idle and not self.won
            kept, others = lots.divide(self.lot, self.request.max_messages if idle else 0)
            self.lot = []
            for won in kept:
                self._keep(context, won)
            for won in others:
                effects += context.releases.everywhere([won.released(self.request.group)], now)
        if self.won and self.won[0].lot:  # a client with the hint has fetched, or need not
            lots.end_hint(context, self.request, self.partitions)
        return effects

    def _start_rounds(self, context: Context, now: Now) -> list[Effect]:
        """Choose first-timers from each partition in turn until the limits are reached, or one lot of suspects.

        They are held here, and the others are asked.
        """
        effects: list[Effect] = []
        began = context.state.round_count
        messages = self.request.max_messages - self.won_messages
        size = self.request.max_bytes - self.won_bytes
        runs = limits.RUNS_PER_STEP
        again = float("inf")
        company: int | None = None  # messages in the lot that is being chosen
        idle = self.request.idle and not self.won
        for partition, suspects in lots.turns(context, self.request, self.partitions, self.first, idle=idle):
            kind_changes = context.state.round_count != began and suspects != (company is not None)
            if min(messages, size, runs) <= 0 or kind_changes:
                break
            replica = context.replicas[partition]
            view = replica.group(self.request.group)
            if view.backfill is not None:
                replica.views.catch_up(view, now)
            if view.paused or (
                not (view.suspects if suspects else view.available).batches.size and not view.begins
            ):
                continue
            spare = None
            if context.state.buckets:
                spare = context.limiting.spare(partition, self.request.group, now, context.rng)
                if spare == 0:
                    continue
            patient = self.request.max_wait >= context.config.steal_after
            terms = Terms(messages, size, runs, self.parked_since, patient, self.request.spans, spare)
            picked = replica.choice.choose(view, now, terms, (company or 0) if suspects else None)
            again = min(again, picked.look_again)
            if not picked.wants and view.begins:
                self.tried = False  # the group has not looked at all that there is
                again = min(again, now.mono)
            if picked.wants:
                ballot = context.state.clock.fresh(now)
                if ballot is None:  # a higher reserve must become durable first
                    again = now.mono + BACKOFF_S[0]
                    continue
                runs -= picked.runs + limits.ROUND_RUNS
                messages -= picked.messages - picked.extra
                size -= picked.bytes
                if suspects:
                    company = (company or 0) + picked.messages
                    messages = min(messages, picked.messages_left)
                effects += self._hold(context, replica, picked, ballot, now)
        if context.state.round_count == began:
            if again < float("inf"):
                context.state.at(again, ("advance", self.key))
            effects += self._park(context, now)
        return effects

    def _park(self, context: Context, now: Now) -> list[Effect]:
        """Wait here, because nothing is available, and announce that to the peers if they do not know."""
        self.blocked = False
        if self.parked:
            return []
        self.parked = True
        self.parked_since = min(self.parked_since, now.mono)
        return context.park(self.key, self.partitions, self.request, now)

    def _unpark(self, context: Context) -> None:
        if self.parked:
            self.parked = False
            context.parking.unpark(self.key, self.partitions, self.request)

    # ----------------------------------------------------------------- one round

    def _hold(
        self, context: Context, replica: Replica, picked: Picked, ballot: Stamp, now: Now
    ) -> list[Effect]:
        """Hold here for the full time, then ask the others."""
        patience, wants = self.patience(context, replica), picked.wants
        round_, message = self.open_hold(context, replica, wants, picked.generation, ballot, patience, now)
        reply, effects = replica.on_hold(context.state.me, context.state.incarnation, message, now)
        self._count(context, round_, context.state.me, context.state.incarnation, reply, now)
        asked = wants_of(reply.granted, round_.redrives)
        if asked and len(round_.members) > 1:
            context.hold_times.begin(round_.number, now.mono)
            if asked != message.wants:
                message = message._replace(wants=asked)
            self.requests[round_.number] = (replica.partition, message)
            for member in round_.mark_unreachable(context.state):
                if member != context.state.me:
                    owed = context.state.releases_owed(member, now)
                    effects.append(Send(member, message._replace(released=owed) if owed else message))
        effects += self._decide(context, round_, now, timed_out=False)
        self._hurry(context, now)
        return effects

    def open_hold(
        self,
        context: Context,
        replica: Replica,
        wants: list[m.Want],
        generation: int,
        ballot: Stamp,
        patience: tuple[float, float],
        now: Now,
    ) -> tuple[HoldRound, m.Hold]:
        """Open a round of HOLD, whose clock starts here, and build its message. ``patience``: result of that method."""
        state, group, hold_time = context.state, self.request.group, self.request.hold_time
        self._unpark(context)
        parks = context.parking.is_parked_still((replica.partition, group))
        number, epoch = state.next_round(), replica.epoch
        hold = m.Hold(
            number, replica.partition, epoch, group, generation, ballot, hold_time, tuple(wants), (), parks
        )
        owner = Owner(state.me, state.incarnation, ballot)
        round_ = HoldRound(replica, hold, owner, now.mono, patience[0])
        round_.until = now.mono + patience[1]
        self.adopt(context, round_, now, patience[1])
        return round_, hold

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.HoldReply)
        round_ = self.rounds[message.round]
        assert isinstance(round_, HoldRound)
        context.state.learn_vector(round_.members, message.known)
        if message.error and (message.error == Code.UNKNOWN_TOPIC or self.is_ahead(message, sender)):
            return self.teach(context, message.round, sender)
        effects = self._count(context, round_, sender, incarnation, message, now)
        effects += self._decide(context, round_, now, timed_out=False)
        self._hurry(context, now)
        return effects + self.advance(context, now)

    def patience(self, context: Context, replica: Replica) -> tuple[float, float]:
        """Return the seconds for which answers are awaited: usually, and while no majority has answered."""
        hold_time = self.request.hold_time
        share = min(ROUND_TIMEOUT_SHARE * hold_time, context.config.request_timeout)
        longest = max(ROUND_TIMEOUT_MIN_S, share)
        unknown = min(ROUND_TIMEOUT_UNKNOWN_S, hold_time / 10)
        usual = context.hold_times.timeout(ROUND_TIMEOUT_MIN_S, longest, unknown)
        return usual, min(longest, usual * 2**replica.unanswered)

    def _hurry(self, context: Context, now: Now) -> None:
        """End rounds after their usual time once a majority has answered, or while a won message waits, too."""
        for round_ in self.rounds.values():
            has_messages = self.won or self.lot
            if isinstance(round_, HoldRound) and (
                has_messages or round_.is_majority(round_.valid(context.state))
            ):
                until = max(now.mono, round_.started + round_.usual)
                if until < round_.until:
                    round_.until = until
                    context.state.at(until, ("round", round_.number))

    def _count(
        self,
        context: Context,
        round_: HoldRound,
        sender: NodeId,
        incarnation: Incarnation,
        reply: m.HoldReply,
        now: Now,
    ) -> list[Effect]:
        """Count a reply's votes in the round, and learn everything else that it says."""
        replica, group = round_.replica, self.request.group
        effects: list[Effect] = []
        bit = round_.hear(sender, incarnation)
        if bit:
            round_.count(bit, reply, now)
            if reply.tokens is not None:
                tokens = round_.tokens_of_majority
                effects += context.limiting.learn(sender, round_.partition, group, tokens, now)
            self.conflict = self.conflict or reply.abstained  # asked again at once it would abstain again
        for span, highest, remaining in reply.refused:
            context.state.clock.merge(highest.time)
            self.conflict = True
            if remaining > 0 and sender != context.state.me:
                round_.note_held(span, remaining)
        if sender != context.state.me:
            if reply.tombs:
                effects += replica.learning.repair(group, reply.tombs, now)
            delays = tuple(item for item in reply.not_due if not item.claimed)
            if delays:
                effects += replica.learning.adopt_delays(group, delays, now)
        for item in reply.tombs:
            stale = round_.count_tomb(item, replica.group(group).asked(round_.generation, 0))
            if stale and sender != context.state.me:  # it does not know of the dead letter, and gets it
                effects += replica.learning.send_records(sender, group, stale, replica.epoch)
        return effects

    def _decide(self, context: Context, round_: HoldRound, now: Now, *, timed_out: bool) -> list[Effect]:
        """Decide which messages are won and which are lost; close the round when nothing is pending."""
        effects: list[Effect] = []
        replica = round_.replica
        most = replica.topic.max_deliveries
        valid = round_.valid(context.state)
        mine = 1 << round_.members.index(context.state.me)
        lost: list[Span] = []
        buried: list[tuple[Span, Attempts, str]] = []
        for span, yes, no, exhausted, expired, attempts in round_.atoms(valid):
            if round_.is_won(yes, mine):
                if exhausted and round_.is_majority(exhausted):
                    buried.append((span, attempts, "max-deliveries"))
                elif exhausted & ~mine and not exhausted & mine and is_exhausted(attempts, most):
                    effects += round_.learn(self.request.group, span, attempts, now)
                    lost.append(span)  # to be asked for again, with the count that others know of
                elif expired and round_.is_expired(expired):
                    buried.append((span, attempts, "expired"))
                elif expired and not timed_out and not round_.everyone:
                    continue  # clocks differ: the others decide, if they answer in time
                else:
                    effects += self._win(context, round_, span, attempts, now)
            elif (
                timed_out
                or round_.cannot_win(no | (no and round_.silent(context.peers, now)))
                or (context.state.me in round_.answered_by and not yes & mine)
            ):
                lost.append(span)
            else:
                continue
            round_.pending.remove(span)
        if round_.is_majority(valid):
            replica.unanswered = 0
        elif timed_out:
            replica.unanswered = min(replica.unanswered + 1, DOUBLINGS_MAX)
            self.unanswered = True
        if lost:
            # RELEASE at all others, regardless of their answers.
            given = m.Released(round_.partition, self.request.group, round_.owner, tuple(lost))
            effects += context.releases.everywhere([given], now)
            for part, remaining in round_.deferrals(lost):
                replica.learning.defer(self.request.group, part, now.mono + remaining, now)
        for span, attempts, reason in buried:
            dead_lettering = DeadLettering(round_, span, attempts, reason, self.request)
            effects += dead_lettering.start(context, now)
        if not round_.pending.runs:
            self.close_round(context, round_.number)
            self.blocked = False
            if lost and round_.cannot_win(0):  # too few to ask: another node may have links to them
                self.unanswered = True
                self.park_until = now.mono
            elif lost and (self.conflict or round_.short) and not self.done:
                self.conflict = False
                self.abstained = self.abstained + 1 if round_.abstained else 0
                paused = replica.group(self.request.group).paused  # as those that abstained say
                # One that abstained once may have raised its reserve.
                self.blocked = not paused and self.abstained > 1 and round_.is_blocked_by(round_.abstained)
                if self.abstained > 1:  # else its messages alone may take up the limits every time
                    self.first = self.partitions.index(round_.partition) + 1
                self.look_at = now.mono + round_.pause(self.abstained, context.rng)
                if self.park_until > now.mono:
                    self.look_at = min(self.look_at, self.park_until)
                context.state.at(self.look_at, ("advance", self.key))
        return effects

    def _win(
        self, context: Context, round_: HoldRound, span: Span, attempts: Attempts, now: Now
    ) -> list[Effect]:
        """Keep a first-timer; keep a suspect apart until all rounds are over."""
        effects: list[Effect] = []
        lot = round_.replica.lot_of(self.request.group, attempts) if attempts[3] else 0
        for part, n in round_.redrives.within(span):
            won = round_.win(part, n, attempts, lot)
            if lot:
                self.lot.append(won)
                continue
            # A message that is overdue here alone may be delivered beside the requested ones.
            capacity = self.request.max_messages - self.won_messages
            producer_id, start, stop = part
            if stop - start <= capacity:
                self._keep(context, won)
                continue
            capacity = max(capacity, 0)
            if capacity:
                self._keep(context, won._replace(span=Span(producer_id, start, start + capacity)))
            if stop - start > capacity:
                rest = won._replace(span=Span(producer_id, start + capacity, stop))
                effects += context.releases.everywhere([rest.released(self.request.group)], now)
        if attempts != NO_ATTEMPTS:
            effects += round_.learn(self.request.group, span, attempts, now)
        return effects

    def _keep(self, context: Context, won: Won) -> None:
        """Add messages to the answer, if they are still ours then."""
        self.won.append(won)
        self.won_messages += won.span.size
        self.won_bytes += context.replicas[won.partition].batches.bytes_of(won.span)
        used = won.expires - limits.DEADLINE_SHARE * self.request.hold_time + self.request.hold_time / 10
        if used < self.held_until:
            self.held_until = used
            context.state.at(used, ("advance", self.key))

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        round_ = self.rounds[number]
        assert isinstance(round_, HoldRound)
        effects = self._decide(context, round_, now, timed_out=True)
        return effects + self.advance(context, now)

    # -------------------------------------------------------------------- answer

    def answer(self, context: Context, now: Now) -> list[Effect]:
        """Reply with the won messages that are still ours at this very moment."""
        slices: list[m.Slice] = []
        given: list[m.Released] = []
        for won in self.won:
            replica = context.replicas[won.partition]
            for span in self.still_ours(replica, won, now):
                add_slices(slices, replica, won, self.request.group, span)
                given.append(m.Released(won.partition, self.request.group, won.owner, (span,)))
        if not slices and self.unanswered:
            detail = f"no majority of the replicas answered {context.state.me} in time: ask another node"
            return self.fail(context, Code.TOO_FEW_REPLICAS, detail, 2, 1)
        if not slices and self.is_unbegun(context):
            detail = f"group {self.request.group!r} has not begun, and too few replicas are trusted: ask another node"
            return self.fail(context, Code.TOO_FEW_REPLICAS, detail, 2, 1)
        if not slices and self.blocked:
            detail = (
                "messages wait, and a majority of their replicas is in quarantine after a start: it ends within "
                f"{context.config.hold_time_max * limits.QUARANTINE_SHARE:g} s (`quorumq status`)"
            )
            return self.fail(context, Code.TOO_FEW_REPLICAS, detail, 2, 1)
        until = max([won.expires for won in self.won], default=now.mono)
        context.releases.note_unsent(self.key, given, until)
        hinted = self.hinted or self._is_hinted(context, now)
        reply = m.FetchReply(self.request.sent_at, self.request.hold_time, tuple(slices), hinted)
        return self.finish(context, reply) if slices or hinted else self.answer_empty(context, reply, now)

    def answer_empty(self, context: Context, reply: m.FetchReply, now: Now) -> list[Effect]:
        """Answer that nothing is ready here."""
        return self.finish(context, reply)

    def _is_hinted(self, context: Context, now: Now) -> bool:
        return not self.unregistered and lots.take_hint(context, self.request, self.partitions, now)

    def still_ours(self, replica: Replica, won: Won, now: Now) -> list[Span]:
        """Return the parts to deliver now: the deadline is ahead, the hold is this one, there is no tombstone."""
        if now.mono >= won.expires:
            return []
        view = replica.group(self.request.group)
        if replica.is_stale(view, won.generation, ((won.span, won.n),)):  # rewound since
            return []
        asked = view.asked(won.generation, won.n)
        parts: list[Span] = []
        for part, record in view.record_chunks(won.span, won.generation):
            if self.is_deliverable(record, asked):
                for chunk, held in view.held(part):
                    if fate.is_owner(held, won.owner):
                        parts.append(chunk)
        return parts

    def is_deliverable(self, record: Record, asked: Record) -> bool:
        """Return True if our own record still is as the HOLD asked: open (or dead), at the redrive it was won at."""
        return record[:3] == asked[:3]

    def on_left(self, context: Context, partition: PartitionId, now: Now) -> list[Effect]:
        """Release what is held of a partition whose replica set this node leaves, and answer with the rest."""
        if partition not in self.partitions:
            return []
        context.releases.here(tuple(it for it in self._held() if it.partition == partition), now)
        effects = self._abandon(context, lambda one: one == partition, now)
        if self.partitions:
            return effects + self.advance(context, now)
        if self.awaited:  # an empty answer would say that its group is made, and has begun
            detail = f"{partition} was moved away from {context.state.me} meanwhile: ask again"
            return effects + self.fail(context, Code.TOO_FEW_REPLICAS, detail, 1)
        return effects + self.answer(context, now)

    def quit_topic(self, context: Context, topic: Topic, why: m.Failed, now: Now) -> list[Effect]:
        effects = self._abandon(context, lambda one: one.topic == topic.id, now)
        self.awaited.pop(topic.id, None)
        if not self.partitions and topic.name in self.request.topics:
            return effects + self.finish(context, why)
        return effects + self.advance(context, now)

    def _abandon(self, context: Context, over: Callable[[PartitionId], bool], now: Now) -> list[Effect]:
        """Give back all of some partitions, go on without them, and wait no longer."""
        self._unpark(context)
        effects = context.releases.everywhere([it for it in self._held() if over(it.partition)], now)
        self.partitions = tuple(one for one in self.partitions if not over(one))
        self.lot = [it for it in self.lot if not over(it.partition)]
        if any(over(it.partition) for it in self.won):
            self.won = [it for it in self.won if not over(it.partition)]
            self.won_messages = sum(it.span.size for it in self.won)
            self.won_bytes = sum(context.replicas[it.partition].batches.bytes_of(it.span) for it in self.won)
        for number, each in list(self.rounds.items()):
            if isinstance(each, HoldRound) and over(each.partition):
                self.close_round(context, number)
        self.park_until, self.tried = now.mono, True
        return effects

    def finish(self, context: Context, reply: m.ClientReply | None) -> list[Effect]:
        self._unpark(context)
        return super().finish(context, reply)

    def on_gone(self, context: Context, now: Now) -> list[Effect]:
        """Give all back, because the client is gone and no reply was begun."""
        return context.releases.everywhere(self._held(), now) + self.finish(context, None)

    def _held(self) -> list[m.Released]:
        """Return the won and the requested messages: no reply was begun."""
        group = self.request.group
        held = [won.released(group) for won in self.won + self.lot]
        for each in self.rounds.values():
            if isinstance(each, HoldRound):
                held.append(m.Released(each.partition, group, each.owner, tuple(each.pending.items())))
        return held

    def _refuse(self, context: Context, replica: Replica, now: Now) -> list[Effect]:
        """Give all back and refuse, as our replica may not vote now: another node can serve this at once."""
        trusted = context.state.trusted and replica.is_trusted
        why = f"in quarantine for {context.quarantine_left(now):.1f} s" if trusted else "not trusted yet"
        effects = context.releases.everywhere(self._held(), now)
        why = f"node {context.state.me} is {why}: ask another node"
        return effects + self.fail(context, Code.TOO_FEW_REPLICAS, why, 1)

"""ACK, REJECT, EXTEND and REDRIVE: rounds that ask one thing about many messages.

Each asks the replica set of each partition it touches, and answers with a verdict per span. They differ in the
answers that count as yes. The one with an argument of its own is ACK: see `AckCoordinator`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round, Votes
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.lease import NO_OWNER
from quorumq.core.requests import costs
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values import limits
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.errors import Code
from quorumq.core.values.printable import plural
from quorumq.core.values.spanlists import overlap
from quorumq.core.values.spans import across
from quorumq.core.values.types import Kind, NodeId, Now, Owner, PartitionId, Record, Span, Topic

ADVICE = "let consumers ack what is there, delete topics that are not needed, or give the nodes larger disks"
"""Advice if the disks of nodes have no room for a request."""

VERDICT_WAIT_S = 0.5
"""Seconds that an ACK which is durable on a majority waits for a replica that could make its verdict `acked`."""


@dataclass(slots=True)
class Ask:
    """Messages that one round asks about, by the index of the request's item, with their owners.

    ``runs``: count of runs of messages. ``again``: True if a REDRIVE asks replicas that had not heard of the deaths.
    """

    partition: PartitionId
    group: str
    generation: int
    again: bool = False
    items: list[tuple[int, m.Owned]] = field(default_factory=list)
    runs: int = 0

    @property
    def entries(self) -> tuple[m.Owned, ...]:
        """Return the messages alone."""
        return tuple([entry for _, entry in self.items])


class VoteCount:
    """One round's votes: yes and no by span, and bits of the replicas that answered.

    If it asks ``again``, the request may have been written before this round, in ways that no replica votes on.
    """

    __slots__ = ("answered", "ask", "errors", "no", "round", "settled", "stood", "yes")

    def __init__(self, round_: Round, ask: Ask) -> None:
        self.round = round_
        self.ask = ask
        self.yes: dict[Owner, Votes] = {}
        self.no: dict[Owner, Votes] = {}
        self.answered = 0  # bits of replicas that did it, or looked at it
        self.errors: dict[NodeId, str] = {}
        self.settled: list[m.SpanRecord] = []
        self.stood = Votes()  # a higher record stood: the record asked for was not written
        for _, (_, owner, _) in ask.items:
            self.yes.setdefault(owner, Votes())
            self.no.setdefault(owner, Votes())

    def count(self, yes: tuple[m.Owned, ...], no: tuple[m.Owned, ...], bit: int) -> None:
        """Count a replica's yes and no. It says nothing of owners that were not asked for."""
        for votes, entries in ((self.yes, yes), (self.no, no)):
            for span, owner, _ in entries:
                if owner in votes:
                    votes[owner].add((span,), bit)

    def chunks(self, span: Span, owner: Owner) -> list[tuple[Span, int, int, int]]:
        """Return ``span`` in chunks with the bits of yes, of no, and of replicas in which something higher stood."""
        return [
            (part, yes or 0, no or 0, stood or 0)
            for part, (yes, no, stood) in across(span, (self.yes[owner], self.no[owner], self.stood))
        ]


class SettleCoordinator(Coordinator):
    """A coordinator with one count of votes per round; it gives verdicts once all are decided.

    Attributes:
        asks: questions that one step had no room for: the next ones ask them.
        refusals: outcomes that say that nothing was done, and that no replica's answer makes true by itself. They are
            given only if every replica that was asked has answered, and none has done it.
    """

    __slots__ = ("asks", "request", "verdicts", "votes")

    refusals: ClassVar[tuple[str, ...]] = ()

    def __init__(self, key: int, request: Any) -> None:
        super().__init__(key)
        self.request = request
        self.asks: list[Ask] = []
        self.votes: dict[int, VoteCount] = {}
        self.verdicts: list[m.Verdict] = []

    def start(self, context: Context, now: Now) -> list[Effect]:
        self.asks = asks_of(context, self.request.items)
        return self.go_on(context, now)

    @property
    def cost(self) -> int:
        return (
            costs.runs(limits.RUNS_PER_STEP if len(self.asks) > 1 else self.asks[0].runs) if self.asks else 0
        )

    def go_on(self, context: Context, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        capacity = limits.RUNS_PER_STEP
        while self.asks and capacity > 0:
            ask = self.asks.pop(0)
            capacity -= ask.runs + limits.ROUND_RUNS
            effects += self.put(context, ask, now)
        if self.asks:
            context.state.at(now.mono, ("again", self.key))
        return effects or self.answer(context)

    def put(self, context: Context, ask: Ask, now: Now) -> list[Effect]:
        """Begin a round among the partition's replicas; give verdicts if there is no such partition."""
        members = context.catalogue.members_of(ask.partition)
        if not members:
            text = context.catalogue.why_not_here(ask.partition)
            self.verdicts += [m.Verdict(item, entry.span, Code.NOT_FOUND, text) for item, entry in ask.items]
            return []
        round_ = self.open_round(context, members, now)
        self.votes[round_.number] = VoteCount(round_, ask)
        epoch = context.catalogue.epoch_of(ask.partition)
        message = self.message(round_.number, epoch, ask)
        return self.ask(context, round_, ask.partition, message, now)

    def message(self, number: int, epoch: int, ask: Ask) -> m.PeerMessage:
        """Return the message that round ``number`` sends to each replica of ``epoch``."""
        raise NotImplementedError

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.AckReply | m.RejectReply | m.ExtendReply | m.MergeReply)
        votes = self.votes[message.round]
        if message.error:
            votes.errors[sender] = message.error
        elif bit:
            votes.answered |= bit
            self.count(votes, message, bit)
        return self.decide(context, message.round, now, last=False)

    def count(self, votes: VoteCount, reply: Any, bit: int) -> None:
        """Count a replica that has done it, or looked at it."""
        raise NotImplementedError

    def outcome_of(
        self, votes: VoteCount, span: Span, yes: int, no: int, valid: int, *, last: bool
    ) -> str | None:
        """Return the outcome for a chunk, or None while it is open; not None when ``last``."""
        raise NotImplementedError

    def detail(self, votes: VoteCount, span: Span, outcome: str) -> str:
        """Return the text beside the outcome for ``span``."""
        full = sorted([node for node, code in votes.errors.items() if code == Code.STORAGE_FULL])
        if outcome == Code.STORAGE_FULL:
            return (
                f"{', '.join(full)} of {plural(len(votes.round.members), 'replica')} have no room: {ADVICE}"
            )
        if outcome == Code.OUTCOME_UNKNOWN:
            answered = votes.answered.bit_count()
            why = f"; {', '.join(full)} have no room: {ADVICE}" if full else ""
            needed = plural(votes.round.majority, "replica")
            return f"needed {needed}, {answered} answered: retry it, through any node{why}"
        if outcome == Code.NOT_FOUND:
            return "the group was deleted"
        if outcome == Code.ALREADY_SETTLED:
            stands = [item.record for item in votes.settled if overlap(item.span, span)]
            kinds = sorted({f"{record.kind.name} at n={record.n}" for record in stands})
            return f"its record is now {', '.join(kinds)}" if kinds else "it is no dead letter"
        return ""

    def decide(self, context: Context, number: int, now: Now, *, last: bool) -> list[Effect]:
        """Close the round if every chunk has its outcome; answer when no round is left."""
        votes = self.votes[number]
        valid = votes.round.valid(context.state)
        last = last or votes.round.everyone
        verdicts: list[m.Verdict] = []
        for item, (span, owner, _) in votes.ask.items:
            for part, yes, no, stood in votes.chunks(span, owner):
                wrote = valid & ~stood
                outcome = self.outcome_of(votes, part, yes & wrote, no & wrote, wrote, last=last)
                if stood and votes.round.is_blocked_by(stood & valid):
                    outcome = Code.ALREADY_SETTLED
                if outcome in self.refusals and (yes or not votes.round.everyone):
                    # An effect at one replica, in any start of it, spreads.
                    outcome = Code.OUTCOME_UNKNOWN if last else None
                if outcome is None:
                    self.on_open(context, votes, valid, now)
                    return []
                verdicts.append(m.Verdict(item, part, outcome, self.detail(votes, part, outcome)))
        self.verdicts += verdicts
        del self.votes[number]
        self.close_round(context, number)
        return self.answer(context)

    def on_open(self, context: Context, votes: VoteCount, valid: int, now: Now) -> None:
        """Note that the answers so far, with the ``valid`` ones counted, do not decide the round."""

    def on_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        for number, (partition, _) in list(self.requests.items()):
            if partition.topic == topic.id:
                text = f"topic {topic.name!r} was deleted"
                items = self.votes.pop(number).ask.items
                self.verdicts += [m.Verdict(item, entry.span, Code.NOT_FOUND, text) for item, entry in items]
                self.close_round(context, number)
        return self.answer(context)

    def answer(self, context: Context) -> list[Effect]:
        """Answer if there is nothing more to ask, and every round is decided."""
        if self.votes or self.asks:
            return []
        echo = self.request.sent_at if isinstance(self.request, m.ExtendRequest) else 0.0
        return self.finish(context, m.SettleReply(join_verdicts(self.verdicts), echo))

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self.decide(context, number, now, last=True)

    def unknown(self, votes: VoteCount) -> str:
        """Return the outcome if no majority did it: an error that all replicas asked agree on, or unknown. It is
        unknown, too, if none of them votes yet: the client asks again then.

        A deletion takes all that was written for it along: there a majority that says so is enough.
        """
        errors, round_ = list(dict.fromkeys(votes.errors.values())), votes.round
        if len(errors) == 1 and round_.is_blocked_by(round_.bits_of(votes.errors)):
            by_all = round_.everyone and votes.errors.keys() == round_.answered_by.keys()
            final = errors[0] != Code.NOT_TRUSTED and by_all and not votes.ask.again
            if errors[0] == Code.NOT_FOUND or final:
                return errors[0]
        return Code.OUTCOME_UNKNOWN


class AckCoordinator(SettleCoordinator):
    """ACK: ACKED, durable on a majority; and the verdict (docs/protocol.md, ACK).

    ``acked`` is said once a majority is *exclusive*: such a replica has granted no higher ballot and, its record
    being ACKED, never will. Any delivery under a higher ballot would have needed a majority, which shares a replica
    with this one. So at most one receipt of a message ever hears ``acked``.

    ``acked_after_expiry`` takes a majority, too: one that has granted more, as a grant is not a delivery yet. The two
    exclude each other, and each is waited for while it is possible, so no order of answers makes another verdict.
    """

    __slots__ = ()

    def message(self, number: int, epoch: int, ask: Ask) -> m.Ack:
        return m.Ack(number, ask.partition, epoch, ask.group, ask.generation, ask.entries)

    def count(self, votes: VoteCount, reply: m.AckReply, bit: int) -> None:
        votes.count(reply.exclusive, reply.higher, bit)
        if reply.settled:
            votes.stood.add([item.span for item in reply.settled], bit)
            votes.settled += reply.settled

    def on_open(self, context: Context, votes: VoteCount, valid: int, now: Now) -> None:
        if votes.round.is_majority(votes.answered & valid):
            # It is durable; only the certainty of the verdict is open. That is not worth the whole timeout.
            context.state.at(now.mono + VERDICT_WAIT_S, ("round", votes.round.number))

    def outcome_of(
        self, votes: VoteCount, span: Span, yes: int, no: int, valid: int, *, last: bool
    ) -> str | None:
        round_ = votes.round
        durable = votes.answered & valid
        if round_.is_majority(durable):
            if round_.is_majority(yes):
                return "acked"
            if round_.is_majority(no):
                return "acked_after_expiry"
            if last or (round_.cannot_win(durable & ~yes) and round_.cannot_win(durable & ~no)):
                return "acked_unproven"
        return self.unknown(votes) if last else None


class RejectCoordinator(SettleCoordinator):
    """REJECT: a majority applied it: ok. A majority refused, and no replica applied it: hold-lost. Else unknown.

    An effect at one replica spreads: then the message is delayed, or a dead letter, whichever way the others answered.
    But if a majority held it and has a higher record, that replaces it: already-settled.
    """

    __slots__ = ()

    refusals = (Code.HOLD_LOST,)
    request: m.RejectRequest

    def message(self, number: int, epoch: int, ask: Ask) -> m.Reject:
        how = (self.request.delay, self.request.death, self.request.interrupted)
        return m.Reject(number, ask.partition, epoch, ask.group, ask.generation, ask.entries, *how)

    def count(self, votes: VoteCount, reply: m.RejectReply, bit: int) -> None:
        votes.count(reply.applied, reply.refused, bit)
        votes.settled += reply.settled

    def outcome_of(
        self, votes: VoteCount, span: Span, yes: int, no: int, valid: int, *, last: bool
    ) -> str | None:
        round_ = votes.round
        if round_.is_majority(yes):
            return "ok"
        if round_.is_majority(no):
            return Code.HOLD_LOST
        if round_.is_majority(votes.answered & valid & ~yes & ~no):
            return Code.ALREADY_SETTLED
        return self.unknown(votes) if last else None


class ExtendCoordinator(SettleCoordinator):
    """EXTEND: granted at a majority: ok. Not granted: nothing changes, and nothing is released."""

    __slots__ = ()

    request: m.ExtendRequest

    def message(self, number: int, epoch: int, ask: Ask) -> m.Extend:
        return m.Extend(number, ask.partition, epoch, ask.group, ask.entries, self.request.hold_time)

    def count(self, votes: VoteCount, reply: m.ExtendReply, bit: int) -> None:
        votes.count(reply.granted, reply.refused, bit)

    def outcome_of(
        self, votes: VoteCount, span: Span, yes: int, no: int, valid: int, *, last: bool
    ) -> str | None:
        round_ = votes.round
        if round_.is_majority(yes):
            return "ok"
        if round_.is_blocked_by(no):
            return Code.HOLD_LOST
        return self.unknown(votes) if last else None


NOT_DEAD = "not_dead"
"""Some have the dead letter, and the others that answered have not heard of it."""


class RedriveCoordinator(SettleCoordinator):
    """REDRIVE: OPEN at n + 1 for a dead letter at n. Done twice, it is done once.

    It is opened in the generation that it died in. A client names message, generation and n, and nothing is believed:
    a replica votes only if it has just this dead letter. If some have and others have not heard of it, these learn
    what becomes of it, in a round of its own.
    """

    __slots__ = ("partition",)

    request: m.RedriveRequest

    def __init__(self, key: int, request: m.RedriveRequest, partition: PartitionId) -> None:
        super().__init__(key, request)
        self.partition = partition

    def start(self, context: Context, now: Now) -> list[Effect]:
        group = context.catalogue.group(self.partition.topic, self.request.group)
        items: dict[int, list[tuple[int, m.Owned]]] = {}  # by the generation that they died in
        for index, (span, record) in enumerate(self.request.entries):
            if record.kind != Kind.DEAD:
                text = f"{span} is {record.kind.name}, not a dead letter"
                self.verdicts.append(m.Verdict(index, span, Code.USAGE, text))
            elif record.n + 1 >= limits.NUMBERS_END:
                text = f"n is {record.n}: a dead letter's n is below {limits.NUMBERS_END - 1}"
                self.verdicts.append(m.Verdict(index, span, Code.USAGE, text))
            elif group is not None and record.generation < group.buried:
                text = "the group was deleted since, with its dead letters"
                self.verdicts.append(m.Verdict(index, span, Code.NOT_FOUND, text))
            else:
                items.setdefault(record.generation, []).append((index, m.Owned(span, NO_OWNER, record.n + 1)))
        for generation in items:
            self.will_ask(generation, items[generation], again=False)
        return self.go_on(context, now)

    def will_ask(self, generation: int, items: list[tuple[int, m.Owned]], *, again: bool) -> None:
        """Plan rounds that open these again: for replicas with the dead letters, or, ``again``, for those without."""
        for chunk in chunks_of(items, limits.RUNS_PER_STEP):
            self.asks.append(
                Ask(self.partition, self.request.group, generation, again, list(chunk), len(chunk))
            )

    def message(self, number: int, epoch: int, ask: Ask) -> m.Merge:
        entries = tuple(
            m.SpanRecord(entry.span, Record(ask.generation, entry.n, Kind.OPEN)) for _, entry in ask.items
        )
        return m.Merge(number, ask.partition, epoch, ask.group, entries, redrive=not ask.again)

    def count(self, votes: VoteCount, reply: m.MergeReply, bit: int) -> None:
        votes.yes[NO_OWNER].add(reply.exact, bit)
        votes.no[NO_OWNER].add([item.span for item in reply.higher], bit)
        votes.stood.add(reply.not_dead, bit)
        votes.settled += reply.higher

    def decide(self, context: Context, number: int, now: Now, *, last: bool) -> list[Effect]:
        """Close the round if every chunk has its outcome, or waits for replicas that have not heard of it; ask them."""
        votes = self.votes[number]
        valid = votes.round.valid(context.state)
        last = last or votes.round.everyone
        verdicts: list[m.Verdict] = []
        waiting: list[tuple[int, m.Owned]] = []
        for item, entry in votes.ask.items:
            for part, yes, no, not_dead in votes.chunks(entry.span, NO_OWNER):
                outcome = self.outcome(votes, yes, no, not_dead, valid, last=last)
                if outcome is None:
                    return []
                if outcome == NOT_DEAD:
                    waiting.append((item, entry._replace(span=part)))
                else:
                    verdicts.append(m.Verdict(item, part, outcome, self.detail(votes, part, outcome)))
        self.verdicts += verdicts
        del self.votes[number]
        self.close_round(context, number)
        self.will_ask(votes.ask.generation, waiting, again=True)
        return self.go_on(context, now)

    def outcome(
        self, votes: VoteCount, yes: int, no: int, not_dead: int, valid: int, *, last: bool
    ) -> str | None:
        """Return a chunk's outcome; None while it is open; NOT_DEAD if the outcome depends on replicas that have not
        heard of the dead letter.

        A majority with higher records decides it, because the higher record replaces all others. Else it is
        refused only if no replica wrote anything.

        Args:
            yes: bits of replicas that opened it, in any start.
            no: bits of replicas whose record is higher.
            not_dead: bits of replicas that have not heard of the dead letter, and wrote nothing.
            valid: bits of replicas whose answers count.
        """
        round_ = votes.round
        if round_.is_majority(yes & valid):
            return "ok"
        if round_.is_blocked_by(no & valid):
            return Code.ALREADY_SETTLED
        against = (no | not_dead) & valid
        if yes & valid and not_dead & valid and (last or round_.cannot_win(against)):
            return NOT_DEAD
        if not last:
            return None
        if round_.is_blocked_by(against) and round_.everyone and not (yes or votes.ask.again):
            return Code.ALREADY_SETTLED
        return self.unknown(votes)


def asks_of(context: Context, items: tuple[m.ReceiptPart, ...]) -> list[Ask]:
    """Return the request's messages by partition, group and generation, in chunks for one step of a replica each.

    Redriven messages are apart: a newer generation may leave them open, and refuse the rest of its own.
    """
    last: dict[tuple[PartitionId, str, int, bool], Ask] = {}
    asks: list[Ask] = []
    for index, (receipt, spans) in enumerate(items):
        key = (receipt.partition, receipt.group, receipt.generation, receipt.n > 0)
        for span in spans:
            for part, runs in context.cut(receipt.partition, receipt.group, span):
                ask = last.get(key)
                if ask is None or ask.runs + runs > limits.RUNS_PER_STEP:
                    ask = last[key] = Ask(receipt.partition, receipt.group, receipt.generation)
                    asks.append(ask)
                ask.runs += runs
                ask.items.append((index, m.Owned(part, receipt.owner, receipt.n)))
    return asks


def join_verdicts(verdicts: list[m.Verdict]) -> tuple[m.Verdict, ...]:
    """Return the verdicts in the order asked for, with neighbours of one outcome joined."""
    joined: list[m.Verdict] = []
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.item, verdict.span)):
        if joined:
            last = joined[-1]
            if (last.item, last.outcome, last.detail) == (verdict.item, verdict.outcome, verdict.detail) and (
                last.span.producer_id == verdict.span.producer_id and last.span.stop == verdict.span.start
            ):
                joined[-1] = last._replace(
                    span=Span(last.span.producer_id, last.span.start, verdict.span.stop)
                )
                continue
        joined.append(verdict)
    return tuple(joined)

"""One HOLD round: who voted for which messages, what is won and what is lost."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from quorumq.core import limits
from quorumq.core.messages import Granted, Hold, HoldReply, Resolved, Want
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts, greater
from quorumq.core.partition.replica import Replica
from quorumq.core.rounds import Round, Votes
from quorumq.core.spans import SpanMap, SpanSet, across, subtract
from quorumq.core.types import NODES_MAX, STAMP_ZERO, Now, Owner, Record, Span, record_rank

BACKOFF_S = (0.002, 0.02)
QUIET_S = (0.05, 0.2)

NO, DEAD, LATE = 64, 128, 192
"""Where the bits of those begin who said so of a message (see `Atom`); of those who said OK they are the lowest."""
assert NODES_MAX <= NO


class Atom(NamedTuple):
    """Messages of which each member said one thing, as bits of the members."""

    span: Span
    yes: int  # of those that count, without those that said no as well
    no: int
    dead: int  # no deliveries left
    late: int  # no time left
    attempts: Attempts  # that ended before


class HoldRound(Round):
    """One HOLD round in one partition.

    Args:
        replica: our own.
        hold: what is asked, at first of our own replica.
        started: monotonic seconds, taken before anything was sent.
        usual: for how many seconds answers are waited for that may not come at all.
    """

    __slots__ = (
        "abstained",
        "answered",
        "attempts",
        "expires",
        "generation",
        "not_due",
        "owner",
        "partition",
        "pending",
        "redrives",
        "replica",
        "started",
        "until",
        "usual",
        "votes",
    )

    def __init__(self, replica: Replica, hold: Hold, owner: Owner, started: float, usual: float) -> None:
        super().__init__(hold.round, replica.members)
        self.replica = replica
        self.partition = hold.partition
        self.generation = hold.generation
        self.owner = owner
        self.started = started
        self.usual = usual
        self.until = started + usual
        self.answered = started  # when the last answer came
        self.abstained = False  # a member has
        self.expires = started + limits.DEADLINE_SHARE * hold.hold_time
        self.pending = SpanSet()  # neither won nor lost yet
        self.redrives: SpanMap[int] = SpanMap()
        for span, n, *_ in hold.wants:
            self.pending.put(span, True)
            self.redrives.put(span, n)
        self.votes = Votes()  # bits of the members, in a lane for each thing that they may say
        self.not_due: SpanMap[float] = SpanMap()  # seconds left of a batch's delay, the least of the replies
        self.attempts: SpanMap[Attempts] = SpanMap()  # that ended before: the greatest of the replies

    def pause(self, abstained: int, rng: random.Random) -> float:
        """Seconds to wait after this round was lost, before the next one.

        Who asked for the same at the same time pauses, too: one is ahead of the others if the pauses differ by more
        than messages take. Who abstained because of a reserve is ready within one fsync; who did so twice is in
        quarantine, for seconds.

        Args:
            abstained: rounds in a row that members abstained from, this one included.
        """
        if abstained > 1:
            return rng.uniform(*QUIET_S)
        return rng.uniform(BACKOFF_S[0], max(BACKOFF_S[1], 2 * (self.answered - self.started)))

    # ------------------------------------------------------------------- counting

    def count(self, bit: int, reply: HoldReply, now: Now) -> None:
        """Take the votes of a member that has not voted yet, and what it says of deliveries and times left."""
        self.answered = now.mono
        for item in reply.granted:
            span, attempts, exhausted, expired, unseen = item[:5]
            if unseen:
                blind = self.replica.delayed_parts(span)  # it cannot tell whether they are due
                self.votes.add(subtract(span, blind), bit)
                self.votes.add(blind, bit << NO)
                said = 0
            else:
                said = bit
            ended = Attempts(0, 0, attempts, *item[5:])
            if ended != NO_ATTEMPTS:
                self.attempts.update(span, lambda old, new=ended: greater(old or new, new))  # type: ignore[misc]
            said |= (bit << DEAD if exhausted else 0) | (bit << LATE if expired else 0)
            if said:
                self.votes.add((span,), said)
        for span, _, ballot, remaining, _ in reply.not_due:
            if ballot == STAMP_ZERO:
                for part, old in self.not_due.split(span):
                    self.not_due.set(part, remaining if old is None else min(old, remaining))
        if reply.abstained:
            self.abstained = True
            self.votes.add(self.pending.items(), bit << NO)
        for items in (reply.resolved, reply.not_due, reply.refused):
            if items:
                self.votes.add([item.span for item in items], bit << NO)

    def lose_resolved(self, item: Resolved, asked: Record) -> list[Span]:
        """A TOMB loses what was asked for, whoever else said OK. Where its record is behind that, it loses nothing.

        Args:
            item: what a member has.
            asked: the record that the HOLD asked for, at any redrive.

        Returns:
            where the member has not heard of the dead letter that was asked for.
        """
        behind: list[Span] = []
        for part, n in self.redrives.within(item.span):
            if record_rank(item.record) > record_rank(asked._replace(n=n)):
                self.votes.add((part,), ((1 << len(self.members)) - 1) << NO)
            else:
                behind.append(part)
        return behind

    # ------------------------------------------------------------ winning and losing

    def atoms(self, valid: int) -> list[Atom]:
        """What is pending, in pieces of which each member said one thing; ``valid`` are those whose votes count."""
        lane = (1 << NO) - 1
        return [
            Atom(
                part,
                votes & valid & ~(votes >> NO),
                votes >> NO & lane,
                votes >> DEAD & valid,
                votes >> LATE & valid,
                attempts or NO_ATTEMPTS,
            )
            for span in self.pending.items()
            for part, (said, attempts) in across(span, (self.votes, self.attempts))
            for votes in (said or 0,)
        ]

    def is_won(self, yes: int, mine: int) -> bool:
        """A majority said OK, ours included."""
        return self.is_majority(yes) and bool(yes & mine)

    def is_over(self, late: int) -> bool:
        """A majority of the clocks says that the message's time to live is over."""
        return self.is_majority(late)


def wants_of(granted: tuple[Granted, ...], redrives: SpanMap[int]) -> tuple[Want, ...]:
    """What the others are asked for: what is held here, in runs of as many attempts, of one redrive number each."""
    if len(granted) == 1:
        (one,) = granted
        return tuple([Want(part, n, one.attempts, *one[5:]) for part, n in redrives.within(one.span)])
    runs: dict[tuple[Any, ...], SpanSet] = {}  # by how many attempts have ended, and how
    for item in granted:
        runs.setdefault((item.attempts, *item[5:]), SpanSet()).add(item.span)
    return tuple(
        Want(part, n, *ended)
        for ended, spans in runs.items()
        for span in spans.items()
        for part, n in redrives.within(span)
    )

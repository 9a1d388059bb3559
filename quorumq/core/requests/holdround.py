"""One HOLD round: its votes, its won and its lost messages.

A HOLD is won in these steps:

1. `FetchCoordinator.open_hold` starts the clock. `FetchCoordinator._hold` grants the chosen messages at this node's
   replica, and sends HOLD to the others. A HOLD that is piggybacked on a STORE has all replicas vote with STORED
   (`piggyback.piggyback_hold`).
2. Each replica decides its vote on each message by `fate.on_hold`, and answers with a `HoldReply`. docs/protocol.md
   calls its parts OK (`Granted`), TOMB (`SpanRecord`), NOK (`Refused`), NOT_DUE (`NotDue`) and ABSTAIN (`abstained`).
3. `HoldRound.count` adds the votes of one reply. `HoldRound.atoms` returns the messages in runs of equal votes.
4. `FetchCoordinator._decide` asks `HoldRound.is_won` about each run, and releases lost messages at all replicas.
5. `FetchCoordinator.still_ours` looks at hold, record and deadline again in the step that answers the client.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from quorumq.core.cluster.buckets import suffice
from quorumq.core.cluster.peers import Peers
from quorumq.core.cluster.rounds import Round, Votes
from quorumq.core.messages import Counted, Granted, Hold, HoldReply, SpanRecord, Want
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts, greater
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.deliveries import Won
from quorumq.core.values import limits
from quorumq.core.values.spanlists import subtract
from quorumq.core.values.spans import SpanMap, SpanSet, across
from quorumq.core.values.types import NODES_MAX, STAMP_ZERO, Now, Owner, Record, Span, record_rank

BACKOFF_S = (0.002, 0.02)
QUIET_S = (0.05, 0.2)
NOT_DUE_DEFERRAL_MAX_S = 5.0
"""Seconds until a node whose clock alone says that a message is due asks the others again, at most."""

HELD_DEFERRAL_MAX_S = 0.5
"""Seconds after its round until a node asks again for messages that another one holds, at most: their RELEASE may have
been received before the news of the hold, or not at all."""

NO, EXHAUSTED, EXPIRED = 64, 128, 192
"""Offsets of the bits of the members that voted NO, EXHAUSTED or EXPIRED (see `Atom`). OK has offset 0."""
assert NODES_MAX <= NO


class Atom(NamedTuple):
    """Messages with the same vote of each member, as bits of the members."""

    span: Span
    yes: int  # valid members that said OK and did not say no as well
    no: int
    exhausted: int  # members that see no deliveries left
    expired: int  # members that see no time left
    attempts: Attempts  # attempts that ended before


class HoldRound(Round):
    """One HOLD round in one partition.

    Args:
        hold: the HOLD, at first as our own replica gets it.
        started: monotonic seconds, taken before anything was sent.
        usual: timeout in seconds once a majority has answered.
    """

    __slots__ = (
        "abstained", "answered", "attempts", "expires", "generation", "held", "not_due", "owner", "partition",
        "pending", "redrives", "replica", "short", "started", "tokens", "until", "usual", "votes",
    )  # fmt: skip

    def __init__(self, replica: Replica, hold: Hold, owner: Owner, started: float, usual: float) -> None:
        super().__init__(hold.round, replica.members)
        self.replica = replica
        self.partition = hold.partition
        self.generation = hold.generation
        self.owner = owner
        self.started = started
        self.usual = usual
        self.until = started + usual
        self.answered = started  # time of the last answer
        self.abstained = 0  # bits of members that abstained
        self.expires = started + limits.DEADLINE_SHARE * hold.hold_time
        self.pending = SpanSet()  # neither won nor lost yet
        self.redrives: SpanMap[int] = SpanMap()
        for span, n, *_ in hold.wants:
            self.pending.put(span, True)
            self.redrives.put(span, n)
        self.votes = Votes()  # bits of the members, in a lane for each possible vote
        self.not_due: SpanMap[float] = SpanMap()  # seconds left of a delay or a claim: the least in any reply
        self.held: SpanMap[float] = SpanMap()  # seconds left of another owner's hold: the most in any reply
        self.short = False  # a member had too few tokens
        self.tokens: list[float] = []  # those of other members, if the group is limited
        self.attempts: SpanMap[Attempts] = SpanMap()  # attempts ended before: the greatest of the replies

    def repeated(self, message: Hold) -> Hold:
        """Return the HOLD for the messages that are neither won nor lost yet.

        Why: after the RELEASE of a lost message, it would hold that for no client.
        """
        wants = [
            want._replace(span=part) for want in message.wants for part in self.pending.within(want.span)
        ]
        return message._replace(wants=tuple(wants))

    def pause(self, abstained: int, rng: random.Random) -> float:
        """Return the seconds to wait after this round was lost, before the next one.

        Competing coordinators pause, too. One gets ahead of the others if the random pauses differ by more than the
        network delay. A member that abstained while its reserve is raised is ready after one fsync. One that
        abstained twice in a row is in quarantine for seconds.

        Args:
            abstained: rounds in a row that members abstained from, this one included.
        """
        if abstained > 1:
            return rng.uniform(*QUIET_S)
        return rng.uniform(BACKOFF_S[0], max(BACKOFF_S[1], 2 * (self.answered - self.started)))

    # ------------------------------------------------------------------- counting

    def count(self, bit: int, reply: HoldReply, now: Now) -> None:
        """Take the votes of a member that has not voted yet, and its report of deliveries and times left."""
        self.answered = now.mono
        for item in reply.granted:
            span, attempts, exhausted, expired, unseen = item[:5]
            if unseen:
                blind = self.replica.delayed_parts(span)  # it does not know whether they are due
                self.votes.add(subtract(span, blind), bit)
                self.votes.add(blind, bit << NO)
                said = 0
            else:
                said = bit
            ended = Attempts(0, 0, attempts, *item[5:])
            if ended != NO_ATTEMPTS:
                self.attempts.update(span, lambda old, new=ended: greater(old or new, new))  # type: ignore[misc]
            said |= (bit << EXHAUSTED if exhausted else 0) | (bit << EXPIRED if expired else 0)
            if said:
                self.votes.add((span,), said)
        for span, _, ballot, remaining, _, claimed, *_ in reply.not_due:
            if ballot == STAMP_ZERO or claimed:  # else it is adopted
                for part, old in self.not_due.split(span):
                    self.not_due.set(part, remaining if old is None else min(old, remaining))
        if reply.abstained:
            self.abstained |= 0 if reply.error else bit  # a rewound group is no quarantine
            self.votes.add(self.pending.items(), bit << NO)
        for items in (reply.tombs, reply.not_due, reply.refused):
            if items:
                self.votes.add([item.span for item in items], bit << NO)
        if reply.tokens is not None:
            self._count_tokens(bit, reply, reply.tokens)

    def note_held(self, span: Span, remaining: float) -> None:
        """Note that another owner holds messages for some seconds, as a member says."""
        for part, old in self.held.split(span):
            self.held.set(part, max(remaining, old or 0.0))

    def deferrals(self, lost: Iterable[Span]) -> Iterator[tuple[Span, float]]:
        """Yield lost messages that are not due or held, and the seconds for which they need not be chosen.

        Why from the end of the round: a member that does not answer may make it longer than that. The same messages
        would be chosen and lost again, and none behind them delivered.
        """
        for span in lost:
            for messages, most in ((self.not_due, NOT_DUE_DEFERRAL_MAX_S), (self.held, HELD_DEFERRAL_MAX_S)):
                for part, remaining in messages.within(span):
                    yield part, min(remaining, most)

    def _count_tokens(self, bit: int, reply: HoldReply, tokens: float) -> None:
        """Void the votes of a member that had fewer tokens than they cost."""
        taken = sum(item.span.size for item in reply.granted if not (item.exhausted or item.expired))
        if taken and not suffice(tokens, taken):
            self.short = True
            self.votes.add(self.pending.items(), bit << NO)
        if bit != 1 << self.members.index(self.owner.node):
            self.tokens.append(tokens - taken)

    @property
    def tokens_of_majority(self) -> float | None:
        """Return the tokens that are left at the member that completes a majority; None if too few have answered."""
        others = self.majority - 1
        return sorted(self.tokens, reverse=True)[others - 1] if 0 < others <= len(self.tokens) else None

    def count_tomb(self, item: SpanRecord, asked: Record) -> list[Span]:
        """Count a TOMB as a veto, even if a majority granted its messages, and return those that it lacks.

        A record that is older than the requested one is no veto: the member lacks the requested dead letter.

        Args:
            asked: the record that the HOLD asked for, at any redrive.

        Returns:
            spans whose requested dead letter the member does not know.
        """
        dead_letters_gone: list[Span] = []
        for part, n in self.redrives.within(item.span):
            if record_rank(item.record) > record_rank(asked._replace(n=n)):
                self.votes.add((part,), ((1 << len(self.members)) - 1) << NO)
            else:
                dead_letters_gone.append(part)
        return dead_letters_gone

    # ------------------------------------------------------------ winning and losing

    def atoms(self, valid: int) -> list[Atom]:
        """Return pending messages in chunks of equal votes; ``valid`` are the members whose votes count."""
        lane = (1 << NO) - 1
        return [
            Atom(
                part,
                votes & valid & ~(votes >> NO),
                votes >> NO & lane,
                votes >> EXHAUSTED & valid,
                votes >> EXPIRED & valid,
                attempts or NO_ATTEMPTS,
            )
            for span in self.pending.items()
            for part, (said, attempts) in across(span, (self.votes, self.attempts))
            for votes in (said or 0,)
        ]

    def win(self, span: Span, n: int, attempts: Attempts, lot: int) -> Won:
        """Return messages of the round as won; ``lot`` as in `Won`."""
        attempt, before = attempts.ended + 1, attempts.interruptions
        return Won(self.partition, span, n, self.generation, self.owner, attempt, self.expires, lot, before)

    def learn(self, group: str, span: Span, attempts: Attempts, now: Now) -> list[Effect]:
        """Teach our own replica how many attempts have ended: it may have missed some."""
        effects: list[Effect] = []
        for part, n in self.redrives.within(span):
            counted = Counted(part, n, attempts.ended, self.generation, *attempts[3:])
            effects += self.replica.learning.adopt_won(group, self.owner, counted, now)
        return effects

    def is_won(self, yes: int, mine: int) -> bool:
        """Return True if a majority said OK (``yes``), this node (``mine``) included."""
        return self.is_majority(yes) and bool(yes & mine)

    def silent(self, peers: Peers, now: Now) -> int:
        """Return the bits of members that are not waited for once another one has said no.

        Why: each message that they alone could vote for would cost the round's timeout, and others wait behind it.
        """
        return self.bits_of(
            member for member in self.members if self.awaits(member) and peers.is_silent(member, now)
        )

    def is_expired(self, expired: int) -> bool:
        """Return True if a majority of the clocks says that the message's time to live is over.

        Why a method: the simulator leaves this rule out.
        """
        return self.is_majority(expired)


def wants_of(granted: tuple[Granted, ...], redrives: SpanMap[int]) -> tuple[Want, ...]:
    """Return the question to the others: spans held here, in runs of equal attempts and redrive number."""
    if len(granted) == 1:
        (one,) = granted
        return tuple([Want(part, n, one.attempts, *one[5:]) for part, n in redrives.within(one.span)])
    runs: dict[tuple[Any, ...], SpanSet] = {}  # by number and manner of the attempts that ended
    for item in granted:
        runs.setdefault((item.attempts, *item[5:]), SpanSet()).add(item.span)
    return tuple(
        Want(part, n, *ended)
        for ended, spans in runs.items()
        for span in spans.items()
        for part, n in redrives.within(span)
    )

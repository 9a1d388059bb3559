"""Rules of HOLD, RELEASE and EXTEND: one attempt at a time has a message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorumq.core.context import Context
from quorumq.core.effects import Effect
from quorumq.core.fetch import FetchCoordinator
from quorumq.core.holdround import HoldRound
from quorumq.core.messages import Extended, Freed, HoldReply, RemoteFetched
from quorumq.core.nodecore import NodeCore
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.holds import Held, HoldTable
from quorumq.core.partition.replica import Replica
from quorumq.core.settle import ExtendCoordinator
from quorumq.core.types import Incarnation, NodeId, Now, Owner, Span
from sim.explorer.scenario import Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import DEAD_AT_ONE, DELIVERED_AND_EXPIRED, DELIVERED_LATE, A, B, C, D

# ----------------------------------------------------------------------- what is held

_vote = HoldTable.vote


def vote_by_node(
    self: HoldTable, span: Span, n: int, owner: Owner, now: float, hold_time: float, *more: int
) -> tuple[list[Span], list[Any]]:
    granted: list[Span] = []
    refused: list[Any] = []
    for part, held in self.holds.split(span):
        if held is not None and held.owner.node == owner.node:
            self.holds.set(part, Held(owner, max(held.deadline, now + hold_time), n))
            self.ballots.set(part, max(owner.ballot, held.owner.ballot))
            granted.append(part)
        else:
            yes, no = _vote(self, part, n, owner, now, hold_time, *more)
            granted += yes
            refused += no
    return granted, refused


def owned_by_incarnation(self: HoldTable, held: Held, owner: Owner) -> bool:
    return held.owner[:2] == owner[:2]


def release_by_node(self: HoldTable, span: Span, owner: Owner) -> list[tuple[Span, Held]]:
    gone = [(part, held) for part, held in self.holds.within(span) if held.owner.node == owner.node]
    for part, _ in gone:
        self.holds.remove(part)
    return gone


def vote_by_n(self: HoldTable, span: Span, n: int, *more: Any) -> Any:
    for part, held in self.holds.within(span):
        if held.n != n:
            self.holds.remove(part)
    return _vote(self, span, n, *more)


def half_the_time(
    self: HoldTable, span: Span, n: int, owner: Owner, now: float, hold_time: float, *more: int
) -> Any:
    return _vote(self, span, n, owner, now, hold_time / 2, *more)


# -------------------------------------------------------------------------- who counts


def a_tenth_of_the_hold(self: FetchCoordinator, context: Context, replica: Replica) -> tuple[float, float]:
    longest = max(0.05, min(1.0, self.request.hold_time / 10))
    usual = context.hold_times.timeout(0.05, longest)
    return usual, usual


def hints_vote(
    self: NodeCore, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
) -> list[Effect]:
    if isinstance(message, HoldReply) and sender != self.state.me:
        replica = self.replicas[message.partition]
        view = replica.group(message.group)
        for span, highest, remaining in message.refused:
            if remaining > 0:
                owner = Owner(highest.node, self.state.known[highest.node], highest)
                view.holds.holds.set(span, Held(owner, now.mono + remaining, 0))
                view.holds.ballots.set(span, highest)
                replica.views.refresh(view, span, now)
    return _on_reply(self, sender, incarnation, message, now)


_on_reply = NodeCore._on_reply


def no_hint(self: FetchCoordinator, replica: Replica, span: Span, remaining: float, now: Now) -> None:
    """Hints are elsewhere (see `hints_vote`)."""


def count_for_any_round(
    self: NodeCore, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
) -> list[Effect]:
    if message.round not in self.context.rounds and isinstance(message, HoldReply | Extended):
        for number, coordinator in self.context.rounds.items():
            this = coordinator.rounds[number]
            fits = isinstance(this, HoldRound) == isinstance(message, HoldReply) and (
                isinstance(message, HoldReply) or isinstance(coordinator, ExtendCoordinator)
            )
            if fits:
                return _on_reply(self, sender, incarnation, message._replace(round=number), now)
    return _on_reply(self, sender, incarnation, message, now)


def give_back_every_late_answer(
    self: NodeCore, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
) -> list[Effect]:
    if isinstance(message, RemoteFetched) and message.round not in self.context.rounds:
        return [effect for part in message.slices for effect in self.context.free_slice(part, now)]
    return _on_reply(self, sender, incarnation, message, now)


# ------------------------------------------------------------------------------ EXTEND


def revive(self: HoldTable, span: Span, owner: Owner, deadline: float) -> tuple[list[Span], list[Span]]:
    granted: list[Span] = []
    refused: list[Span] = []
    for part, held in self.holds.split(span):
        if held is not None and not self.is_owner(held, owner):
            refused.append(part)
            continue
        self.holds.set(part, Held(owner, deadline, held.n if held is not None else 0))
        for piece, highest in self.ballots.split(part):
            self.ballots.set(piece, max(owner.ballot, highest or owner.ballot))
        granted.append(part)
    return granted, refused


def extend_to_less(self: HoldTable, span: Span, owner: Owner, deadline: float) -> Any:
    granted, refused = _extend(self, span, owner, deadline)
    for part in granted:
        for piece, held in self.holds.within(part):
            self.holds.set(piece, held._replace(deadline=deadline))
    return granted, refused


_extend = HoldTable.extend


def release_on_failed_extend(self: ExtendCoordinator, context: Context) -> list[Effect]:
    effects: list[Effect] = []
    if not self.ballots:
        now = Now(context.state.timers[0][0] if context.state.timers else 0.0, 0)
        for verdict in self.verdicts:
            if verdict.outcome != "ok":
                receipt = self.request.items[verdict.item].receipt
                freed = Freed(receipt.partition, receipt.group, receipt.owner, (verdict.span,))
                effects += context.free(freed, now)
    return effects + _extend_answer(self, context)


_extend_answer = ExtendCoordinator.answer

# --------------------------------------------------------------------------- the rules

TWO_NODES = Scenario("release", "3 attempts through 2 nodes", attempts=3, coordinators=(A, C))

RULES: tuple[Rule, ...] = (
    Rule(
        "owner-is-an-attempt",
        "a hold belongs to one ballot of one incarnation; the same node asking again gets nothing",
        ((HoldTable, "vote", vote_by_node),),
        off="a HOLD from the node that holds is granted",
        scenario=Scenario(
            "same-node",
            "2 attempts through one node, 1 EXTEND",
            extends=1,
            ticks=2,
            give_up=False,
            coordinators=(A,),
            via=(B,),
        ),
    ),
    Rule(
        "release-carries-ballot",
        "RELEASE removes the hold of exactly the ballot that it names",
        ((HoldTable, "release", release_by_node),),
        off="it removes whatever its node holds",
        scenario=TWO_NODES,
        hunted=True,
    ),
    Rule(
        "replies-for-their-round",
        "a reply counts for the round that asked, and no other",
        ((NodeCore, "_on_reply", count_for_any_round),),
        off="a late reply counts for the next round of its kind",
        switch="late_replies",
        scenario=replace(TWO_NODES, name="late-reply"),
    ),
    Rule(
        "no-replacing",
        "no hold is replaced, whatever the ballot",
        ((HoldTable, "may_replace", lambda self, held, owner: True),),
        off="a higher ballot replaces",
        scenario=Scenario("two", "2 attempts through 2 nodes", ticks=2, coordinators=(A, C)),
        hunted=True,
    ),
    Rule(
        "hints-never-vote",
        "what a NOK says of another's hold is used in choosing, and changes no hold",
        ((NodeCore, "_on_reply", hints_vote), (FetchCoordinator, "_hint", no_hint)),
        off="it overwrites the hold here, whenever it comes",
        switch="late_replies",
        scenario=replace(TWO_NODES, name="hints"),
    ),
    Rule(
        "ballots-only-rise",
        "a HOLD is granted only above the highest ballot ever granted for the message",
        ((HoldTable, "is_above", lambda self, ballot, highest, floor: True),),
        off="any ballot is granted",
        scenario=Scenario(
            "late-hold",
            "2 attempts, the later one rejected at once",
            rejects=1,
            reject_as=("now",),
            coordinators=(A, C),
            via=(C,),
        ),
        hunted=True,
        survives="a HOLD that is late at two replicas, then an ACK of that age: too rare a chain",
    ),
    Rule(
        "holds-by-message",
        "holds belong to the message, whatever its redrive number",
        ((HoldTable, "vote", vote_by_n),),
        off="a HOLD at another n does not see them",
        scenario=Scenario(
            "redrive-beside",
            "a minority's DEAD is redriven beside a live delivery",
            attempts=3,
            rejects=1,
            redrives=1,
            offers=1,
            ticks=3,
            coordinators=(A, B),
            via=(B,),
            script=DEAD_AT_ONE,
        ),
    ),
    Rule(
        "leave-only-undelivered",
        "LEAVE gives back only what certainly nobody works on",
        off="a connection that dies leaves what was delivered over it",
        switch="leave_delivered",
        scenario=Scenario("leave", "2 attempts, 1 LEAVE", leaves=1, coordinators=(A, C)),
    ),
    Rule(
        "give-back-only-called-off",
        "what another node won for us is given back only if its leg was called off, and once",
        ((NodeCore, "_on_reply", give_back_every_late_answer),),
        off="it is given back whenever its round is over, so also when a second copy of the answer comes",
        scenario=Scenario(
            "relay",
            "FETCH through a node without a replica, and through one with",
            nodes=(A, B, C, D),
            coordinators=(D, A),
        ),
    ),
    Rule(
        "failed-extend-releases-nothing",
        "an EXTEND that misses the majority changes nothing",
        ((ExtendCoordinator, "answer", release_on_failed_extend),),
        off="it releases the hold",
        scenario=Scenario(
            "failed-extend", "2 attempts, 1 EXTEND", extends=1, ticks=1, coordinators=(A, C), via=(C,)
        ),
    ),
    Rule(
        "extend-never-revives",
        "EXTEND is granted only where exactly this owner still holds",
        ((HoldTable, "extend", revive),),
        off="it is granted where nobody holds",
        scenario=Scenario(
            "revive",
            "an EXTEND comes after the hold ran out and another delivery was made",
            extends=1,
            ticks=4,
            coordinators=(A, C),
            via=(A,),
            script=DELIVERED_AND_EXPIRED,
        ),
        hunted=True,
    ),
    Rule(
        "extend-looks-at-acked",
        "an EXTEND is refused where the message was acked, by whatever delivery",
        ((GroupView, "is_acked", lambda self, span, generation: False),),
        off="the hold is extended",
        scenario=Scenario(
            "extend-acked",
            "an expired delivery is acked beside a live one, which is extended",
            acks=1,
            extends=1,
            ticks=2,
            coordinators=(A,),
            via=(B,),
            give_up=False,
            script=DELIVERED_LATE,
        ),
    ),
    Rule(
        "extend-shortens",
        "an EXTEND by less than is left shortens no hold",
        ((HoldTable, "extend", extend_to_less),),
        hunted=True,
    ),
    Rule(
        "owner-without-ballot",
        "an owner is one attempt",
        ((HoldTable, "is_owner", owned_by_incarnation),),
        hunted=True,
    ),
    Rule(
        "hold-majority-1",
        "a hold needs a majority",
        ((HoldRound, "is_won", lambda self, yes, mine: bool(yes & mine)),),
        hunted=True,
    ),
    Rule(
        "own-vote-not-needed",
        "a majority, ours included",
        ((HoldRound, "is_won", lambda self, yes, mine: self.is_majority(yes)),),
        hunted=True,
        survives="nothing is missing: the reply looks at our own hold again, so it needs our vote",
    ),
    Rule(
        "hold-half-the-time",
        "a grant outlives the coordinator's deadline",
        ((HoldTable, "vote", half_the_time),),
        hunted=True,
    ),
    Rule(
        "hold-round-tenth",
        "a round may take up to half of its hold where answers do",
        ((FetchCoordinator, "patience", a_tenth_of_the_hold),),
        hunted=True,
    ),
    Rule(
        "deadline-from-reply",
        "a client's deadline counts from its request",
        prepare="around.late_clients",
        hunted=True,
    ),
)

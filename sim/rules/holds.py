"""Rules of HOLD, RELEASE and EXTEND: one attempt at a time has a message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorumq.core.messages import ExtendReply, Granted, HoldReply, Refused, Released, RemoteFetchReply
from quorumq.core.messages.effects import Effect
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.partition import fate
from quorumq.core.partition.fate import ExtendAsk, Fate, HoldAsk, RuleContext
from quorumq.core.partition.group import Changes
from quorumq.core.partition.lease import NO_BALLOTS, Ballots, Held, Lease, with_hold
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.holdround import HoldRound
from quorumq.core.requests.settle import ExtendCoordinator
from quorumq.core.values.types import Incarnation, NodeId, Now, Owner, Record
from sim.clients.consumer import Consumer
from sim.explorer.nodes import Nodes
from sim.explorer.scenario import Budget, Scenario
from sim.rules.piggyback import UNSYNCED
from sim.rules.rule import Rule
from sim.rules.scripts import DEAD_AT_ONE, DELIVERED_AND_EXPIRED, DELIVERED_LATE, A, B, C, D
from sim.rules.stand_ins import Before, around

# ----------------------------------------------------------------------- what is held


def vote_by_node(
    before: Before[Fate], record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: HoldAsk
) -> Fate:
    held = lease.held
    if held is None or held.owner.node != ask.owner.node:
        return before(record, lease, ballots, context, ask)
    free = with_hold(lease, None)
    merged, _, _, answer = before(record, free, NO_BALLOTS, context, ask)
    if answer[0] is not Granted:
        return merged, lease, ballots, answer
    again = Held(ask.owner, max(held.deadline, ask.until), ask.record.n)
    highest = max(ask.owner.ballot, held.owner.ballot)
    return merged, with_hold(lease, again), ballots._replace(highest=highest), answer


def release_by_node(lease: Lease, owner: Owner) -> Lease:
    if lease.held is None or lease.held.owner.node != owner.node:
        return lease
    return with_hold(lease, None)


def vote_by_n(
    before: Before[Fate], record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: HoldAsk
) -> Fate:
    if lease.held is None or lease.held.n == ask.record.n:
        return before(record, lease, ballots, context, ask)
    voted = before(record, with_hold(lease, None), ballots, context, ask)
    return voted if voted[3][0] in (Granted, Refused) else (voted[0], lease, ballots, voted[3])


def half_the_time(
    before: Before[Fate], record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: HoldAsk
) -> Fate:
    until = ask.until - (ask.until - context.now) / 2
    return before(record, lease, ballots, context, ask._replace(until=until))


# -------------------------------------------------------------------------- who counts


def a_tenth_of_the_hold(self: FetchCoordinator, context: Context, replica: Replica) -> tuple[float, float]:
    longest = max(0.05, min(1.0, self.request.hold_time / 10))
    usual = context.hold_times.timeout(0.05, longest)
    return usual, usual


def overwrite(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Held) -> Fate:
    return record, with_hold(lease, ask), ballots._replace(highest=ask.owner.ballot), None


def hints_vote(
    before: Before[list[Effect]],
    self: NodeCore,
    sender: NodeId,
    incarnation: Incarnation,
    message: Any,
    now: Now,
) -> list[Effect]:
    if isinstance(message, HoldReply) and sender != self.state.me:
        replica = self.replicas[message.partition]
        view = replica.group(message.group)
        for span, highest, remaining in message.refused:
            if remaining > 0:
                owner = Owner(highest.node, self.state.known[highest.node], highest)
                changes = Changes()
                held = Held(owner, now.mono + remaining, 0)
                replica.views.apply(view, span, overwrite, held, now, changes)
                replica.views.finish(view, changes, now)
    return before(self, sender, incarnation, message, now)


def count_for_any_round(
    before: Before[list[Effect]],
    self: NodeCore,
    sender: NodeId,
    incarnation: Incarnation,
    message: Any,
    now: Now,
) -> list[Effect]:
    if message.round not in self.context.rounds and isinstance(message, HoldReply | ExtendReply):
        for number, coordinator in self.context.rounds.items():
            round_ = coordinator.rounds[number]
            fits = isinstance(round_, HoldRound) == isinstance(message, HoldReply) and (
                isinstance(message, HoldReply) or isinstance(coordinator, ExtendCoordinator)
            )
            if fits:
                return before(self, sender, incarnation, message._replace(round=number), now)
    return before(self, sender, incarnation, message, now)


def give_back_every_late_answer(
    before: Before[list[Effect]],
    self: NodeCore,
    sender: NodeId,
    incarnation: Incarnation,
    message: Any,
    now: Now,
) -> list[Effect]:
    if isinstance(message, RemoteFetchReply) and message.round not in self.context.rounds:
        return self.context.releases.of_slices(message.slices, now)
    return before(self, sender, incarnation, message, now)


# ------------------------------------------------------------------------------ EXTEND


def revive(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: ExtendAsk) -> Fate:
    held = lease.held
    if held is not None and (
        fate.is_acked(record, context, held.generation) or not fate.is_owner(held, ask.owner)
    ):
        return record, lease, ballots, False
    revived = Held(ask.owner, ask.until, held.n if held is not None else 0)
    highest = max(ask.owner.ballot, ballots.highest or ask.owner.ballot)
    return record, with_hold(lease, revived), ballots._replace(highest=highest), True


def extend_to_less(
    before: Before[Fate], record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: ExtendAsk
) -> Fate:
    record, lease, ballots, granted = before(record, lease, ballots, context, ask)
    if granted and lease.held is not None:
        lease = with_hold(lease, lease.held._replace(deadline=ask.until))
    return record, lease, ballots, granted


def release_on_failed_extend(
    before: Before[list[Effect]], self: ExtendCoordinator, context: Context
) -> list[Effect]:
    effects: list[Effect] = []
    if not (self.votes or self.asks):
        now = Now(context.state.timers[0][0] if context.state.timers else 0.0, 0)
        for verdict in self.verdicts:
            if verdict.outcome != "ok":
                receipt = self.request.items[verdict.item].receipt
                released = Released(receipt.partition, receipt.group, receipt.owner, (verdict.span,))
                effects += context.releases.everywhere([released], now)
    return effects + before(self, context)


# --------------------------------------------------------------------------- the rules

TWO_NODES = Scenario("release", "3 attempts through 2 nodes", budget=Budget(attempts=3), coordinators=(A, C))

RULES: tuple[Rule, ...] = (
    Rule(
        "owner-is-an-attempt",
        "a hold belongs to one ballot of one incarnation; the same node asking again gets nothing",
        (around(fate, "on_hold", vote_by_node),),
        scenario=Scenario(
            "same-node",
            "2 attempts through one node, 1 EXTEND",
            budget=Budget(extends=1, ticks=2),
            give_up=False,
            coordinators=(A,),
            via=(B,),
        ),
    ),
    Rule(
        "release-carries-ballot",
        "RELEASE removes the hold of exactly the ballot that it names",
        ((fate, "release", release_by_node),),
        scenario=TWO_NODES,
        hunted=True,
    ),
    Rule(
        "replies-for-their-round",
        "a reply counts for the round that asked, and no other",
        (around(NodeCore, "_on_reply", count_for_any_round), (Nodes, "late_replies", True)),
        scenario=replace(TWO_NODES, name="late-reply"),
    ),
    Rule(
        "no-replacing",
        "no hold is replaced, whatever the ballot",
        ((fate, "may_replace", lambda held, owner: True),),
        scenario=Scenario("two", "2 attempts through 2 nodes", budget=Budget(ticks=2), coordinators=(A, C)),
        hunted=True,
    ),
    Rule(
        "hints-never-vote",
        "what a NOK says of another's hold is used in choosing, and changes no hold",
        (
            around(NodeCore, "_on_reply", hints_vote),
            (HoldRound, "deferrals", lambda self, lost: []),
            (Nodes, "late_replies", True),
        ),
        scenario=replace(TWO_NODES, name="hints"),
    ),
    Rule(
        "ballots-only-rise",
        "a HOLD needs a ballot above all that were granted for the message",
        ((fate, "is_above", lambda ballot, ballots, context: True),),
        scenario=Scenario(
            "late-hold",
            "2 attempts, the later one rejected at once",
            budget=Budget(rejects=1),
            reject_as=("now",),
            coordinators=(A, C),
            via=(C,),
        ),
        hunted=True,
        survives="a HOLD that is late at two replicas, then an ACK of that age",
    ),
    Rule(
        "holds-by-message",
        "holds belong to the message, whatever its redrive number",
        (around(fate, "on_hold", vote_by_n),),
        scenario=Scenario(
            "redrive-beside",
            "a minority's DEAD is redriven beside a live delivery",
            budget=Budget(attempts=3, rejects=1, redrives=1, comparisons=1, ticks=3),
            coordinators=(A, B),
            via=(B,),
            script=DEAD_AT_ONE,
        ),
    ),
    Rule(
        "leave-only-undelivered",
        "LEAVE gives back only what certainly nobody works on",
        ((Nodes, "release_delivered", True),),
        scenario=Scenario("leave", "2 attempts, 1 LEAVE", budget=Budget(releases=1), coordinators=(A, C)),
    ),
    Rule(
        "give-back-only-called-off",
        "what another node won for us is given back only if its sub-fetch was called off, and once",
        (around(NodeCore, "_on_reply", give_back_every_late_answer),),
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
        (around(ExtendCoordinator, "answer", release_on_failed_extend),),
        scenario=Scenario(
            "failed-extend",
            "2 attempts, 1 EXTEND",
            budget=Budget(extends=1, ticks=1),
            coordinators=(A, C),
            via=(C,),
        ),
    ),
    Rule(
        "extend-never-revives",
        "EXTEND is granted only where exactly this owner still holds",
        ((fate, "on_extend", revive),),
        scenario=Scenario(
            "revive",
            "an EXTEND comes after the hold ran out and another delivery was made",
            budget=Budget(extends=1, ticks=4),
            coordinators=(A, C),
            via=(A,),
            script=DELIVERED_AND_EXPIRED,
        ),
        hunted=True,
    ),
    Rule(
        "extend-looks-at-acked",
        "an EXTEND is refused where the message was acked, by whatever delivery",
        ((fate, "is_acked", lambda record, context, generation: False),),
        scenario=Scenario(
            "extend-acked",
            "an expired delivery is acked beside a live one, which is extended",
            budget=Budget(acks=1, extends=1, ticks=2),
            coordinators=(A,),
            via=(B,),
            give_up=False,
            script=DELIVERED_LATE,
        ),
    ),
    Rule(
        "extend-shortens",
        "an EXTEND by less than is left shortens no hold",
        (around(fate, "on_extend", extend_to_less),),
    ),
    Rule(
        "owner-without-ballot",
        "an owner is one attempt",
        ((fate, "is_owner", lambda held, owner: held.owner[:2] == owner[:2]),),
    ),
    Rule(
        "hold-majority-1",
        "a hold needs a majority",
        ((HoldRound, "is_won", lambda self, yes, mine: bool(yes & mine)),),
    ),
    Rule(
        "own-vote-not-needed",
        "a majority includes our own vote",
        ((HoldRound, "is_won", lambda self, yes, mine: self.is_majority(yes)),),
        scenario=replace(
            UNSYNCED,
            name="piggyback-own",
            about="1 attempt waits where the message is published, whose own vote waits for its fsync",
        ),
        hunted=True,
        survives="a checker of disks; our own hold is checked again before the reply",
    ),
    Rule(
        "hold-half-the-time",
        "a grant outlives the coordinator's deadline",
        (around(fate, "on_hold", half_the_time),),
    ),
    Rule(
        "hold-round-tenth",
        "a round may take up to half of its hold where answers do",
        ((FetchCoordinator, "patience", a_tenth_of_the_hold),),
    ),
    Rule(
        "deadline-from-reply",
        "a client's deadline counts from its request",
        ((Consumer, "counts_from", lambda self, reply: self.clock.mono(self.world.time)),),
    ),
)

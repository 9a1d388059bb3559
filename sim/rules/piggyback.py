"""Rules of the HOLD that is piggybacked on a STORE: it is a HOLD like any other."""

from __future__ import annotations

from quorumq.core.messages import Granted, Hold, HoldReply, refusal
from quorumq.core.messages.effects import Effect, Send
from quorumq.core.node.vote_router import VoteRouter
from quorumq.core.partition.group import GroupView
from quorumq.core.requests import piggyback
from quorumq.core.values.types import BatchHeader, Incarnation, NodeId, Now
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C
from sim.rules.stand_ins import Before, around, given

Voted = tuple[HoldReply, list[Effect]]


def stored_is_a_vote(
    before: Before[Voted],
    self: VoteRouter,
    sender: NodeId,
    incarnation: Incarnation,
    hold: Hold,
    now: Now,
    refused: str,
) -> Voted:
    if refused or sender == self.context.state.me:  # without a hold of our own nothing is delivered
        return before(self, sender, incarnation, hold, now, refused)
    granted = tuple(Granted(want.span, want.ended, exhausted=False, expired=False) for want in hold.wants)
    nothing = refusal(hold, "", self.context.state.vector(self.context.catalogue.members_of(hold.partition)))
    return nothing._replace(abstained=False, granted=granted), []


def vote_at_once(
    before: Before[Voted],
    self: VoteRouter,
    sender: NodeId,
    incarnation: Incarnation,
    hold: Hold,
    now: Now,
    refused: str,
) -> Voted:
    votes, effects = before(self, sender, incarnation, hold, now, refused)
    return votes, [*effects, Send(sender, votes)]


def as_if_covered(view: GroupView, header: BatchHeader) -> tuple[GroupView, BatchHeader]:
    return view, header._replace(published_ms=view.home.from_ms)


UNSYNCED = Scenario(
    "piggyback-unsynced",
    "1 attempt waits where the message is published, and the fsync there is a step of its own",
    budget=Budget(attempts=1, publishes=1),
    give_up=False,
    coordinators=(A,),
    publish_via=(A,),
    restart_nodes=(A,),
    unsynced=True,
)

RULES: tuple[Rule, ...] = (
    Rule(
        "piggyback-is-voted-on",
        "a HOLD that is piggybacked on a STORE is voted on as any HOLD",
        (around(VoteRouter, "on_piggybacked", stored_is_a_vote),),
        scenario=Scenario(
            "piggyback-twice",
            "2 attempts wait; the same is published through both of their nodes",
            budget=Budget(publishes=2),
            coordinators=(A, C),
            publish_via=(A, C),
            give_up=False,
        ),
        hunted=True,
    ),
    Rule(
        "piggyback-is-covered",
        "a HOLD is piggybacked only for a generation that covers the message: who votes does not ask",
        (given(piggyback, "may_choose", as_if_covered),),
    ),
    Rule(
        "piggyback-is-durable",
        "the votes on a piggybacked HOLD wait for the fsync",
        (around(VoteRouter, "on_piggybacked", vote_at_once),),
        scenario=UNSYNCED,
        hunted=True,
        survives="a checker of disks: a delivery may precede the OK of its publish",
    ),
    Rule(
        "piggyback-not-where-refused",
        "a piggybacked HOLD is not granted if the STORE is refused",
        (given(VoteRouter, "on_piggybacked", lambda *args: (*args[:-1], "")),),
        scenario=Scenario(
            "piggyback-full",
            "1 attempt waits where the message is published; b has no room for it",
            budget=Budget(attempts=1, publishes=1),
            give_up=False,
            coordinators=(A,),
            publish_via=(A,),
            full=(B,),
        ),
        hunted=True,
        survives="nothing that a client sees: a replica may vote on a message that it lacks",
    ),
)

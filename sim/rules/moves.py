"""Rules of layouts: a partition's slot goes from one node to another while everything goes on."""

from __future__ import annotations

from quorumq.core.messages.effects import Effect, Persist
from quorumq.core.node.vote_router import VoteRouter
from quorumq.core.partition.hold_recovery import HoldRecovery
from quorumq.core.partition.replica import Replica
from quorumq.core.recovery import joining, resync
from quorumq.core.requests.context import Context
from quorumq.core.requests.placing import Placing
from quorumq.core.values.types import NodeId, Topic
from sim.explorer.scenario import NO_FETCH, Budget, Scenario, Script
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, acked_at, answered, links, ran_out, won
from sim.rules.stand_ins import Before, around, given

TICK: Script = (("tick",),)
QUARANTINE_OVER: Script = TICK * 3


def hears_one(context: Context, replica: Replica) -> bool:
    return any(partition == replica.partition for _, partition in context.resync_answers.complete)


def hears_the_present_set(context: Context, replica: Replica) -> bool:
    answered = [node for node, partition in context.resync_answers.complete if partition == replica.partition]
    return sum(node in answered for node in replica.members) > len(replica.members) // 2


def adopts_before_it_is_durable(before: Before[list[Effect]], self: Placing, merged: Topic) -> list[Effect]:
    (put,) = before(self, merged)
    assert isinstance(put, Persist)
    return [Persist((), put.then), Persist(put.records)]


def adopt(*names: NodeId) -> Script:
    """Return steps in which these nodes adopt the layout."""
    return tuple(("adopt", name) for name in names)


def asked(question: str, answer: str, name: NodeId, *others: NodeId) -> Script:
    """Return steps that bring a question to each of the others, and their answers back, as far as there are any."""
    steps: list[tuple[object, ...]] = []
    for other in others:
        steps.append(("may", "deliver", question, name, other))
        steps += [("may", "deliver", answer, other, name)] * 2
    return tuple(steps)


def told(name: NodeId, *others: NodeId) -> Script:
    """Return steps in which a new slot learns from these others the promises before."""
    return asked("ResyncRequest", "ResyncReply", name, *others)


def joined(name: NodeId, *others: NodeId) -> Script:
    """Return steps in which a new slot learns from these others, and gets their holds."""
    return *told(name, *others), *asked("HoldsRequest", "HoldsReply", name, *others)


DELIVERED_AFTER: Script = (
    *adopt(A, B, D),
    *joined(D, A, B),
    ("fetch", B),
    ("may", "deliver", "Hold", B, D),
    ("may", "deliver", "HoldReply", D, B),
)
"""c's slot goes to d, which has the state of a and b; a0 is delivered by the votes of b and d."""


def moving(name: str, about: str, script: Script, **more: object) -> Scenario:
    """Return a scenario in which c's slot goes to d."""
    fixed = {"nodes": (A, B, C, D), "move": (C, D), "give_up": False, "via": (B,)}
    return Scenario(name, about, script=script, **{**fixed, **more})  # type: ignore[arg-type]


def told_by_one(self: HoldRecovery, replica: Replica, awaited: dict[NodeId, None]) -> bool:
    return any(node not in awaited for node in replica.former)


def raising(name: str, about: str, script: Script, **more: object) -> Scenario:
    """Return a scenario in which c and d get slots beside a, b and e."""
    fixed = {"nodes": (A, B, C, D, E), "added": (C, D), "give_up": False, "via": (B,)}
    return Scenario(name, about, script=script, **{**fixed, **more})  # type: ignore[arg-type]


RULES = (
    Rule(
        "raise-hears-the-set-before",
        "an added slot votes once `n - majority + 1` of the n slots of the set before have told",
        ((joining, "may_join", hears_one),),
        scenario=raising(
            "raise-told",
            "a0 is acked by b and e, and c and d, which a tells, get slots beside a, b and e",
            (*ran_out(A), *acked_at(B, E), *adopt(A, C, D), *told(C, A), *told(D, A), *QUARANTINE_OVER),
            budget=Budget(acks=1, ticks=5),
            coordinators=(A,),
        ),
    ),
    Rule(
        "raise-the-set-before-tells",
        "a slot that is added beside the only one hears that one alone",
        ((joining, "may_join", hears_the_present_set),),
        scenario=Scenario(
            "raise-only-slot",
            "the only slot is c's, and a and b get slots, too",
            nodes=(A, B, C),
            rf=1,
            added=(A, B),
            budget=NO_FETCH,
            script=adopt(C),
            give_up=False,
            goal="every slot votes",
        ),
    ),
    Rule(
        "raise-tellers-have-adopted",
        "each that tells an added slot has adopted the layout before it answers",
        ((resync, "may_answer_resync", lambda replica, message, sender: True),),
        scenario=Scenario(
            "raise-told-early",
            "the only slot is c's, which tells a and b; they get slots, too, and c acks a0 by itself after that",
            nodes=(A, B, C),
            rf=1,
            added=(A, B),
            give_up=False,
            via=(C,),
            budget=Budget(acks=1, ticks=5),
            coordinators=(A, C),
            script=(
                *ran_out(C),
                *adopt(A, B),
                *told(A, C),
                *told(B, C),
                ("ask", C, "ack", 0),
                *QUARANTINE_OVER,
            ),
        ),
    ),
    Rule(
        "raise-holds-of-the-set-before",
        "an added slot is in quarantine until `n - majority + 1` slots of the set before have told their holds",
        ((HoldRecovery, "has_enough_answers", told_by_one),),
        scenario=raising(
            "raise-hold",
            "a0 is live by the votes of a and e, and c and d get slots beside a, b and e",
            (
                *won(A, E),
                *adopt(A, B, C, D),
                *told(C, A, B),
                *told(D, A, B),
                *asked("HoldsRequest", "HoldsReply", C, B),
                *asked("HoldsRequest", "HoldsReply", D, B),
            ),
            budget=Budget(ticks=1),
            coordinators=(A, B),
        ),
    ),
    Rule(
        "move-hears-the-set-before",
        "a new slot votes once `RF - majority + 1` slots of the set before have told, or as many of its own set",
        ((joining, "may_join", hears_one),),
        scenario=moving(
            "move-told",
            "a0 is acked by b and c, and c's slot goes to d, which a tells",
            (*ran_out(A), *acked_at(B, C), *adopt(A, D), *told(D, A), *QUARANTINE_OVER),
            budget=Budget(acks=1, ticks=5),
            coordinators=(A, D),
        ),
    ),
    Rule(
        "move-the-leaver-tells",
        "the node that leaves a set may be one of those that a new slot hears",
        ((joining, "may_join", hears_the_present_set),),
        scenario=Scenario(
            "move-only-slot",
            "the only slot goes from a to b; 1 attempt",
            nodes=(A, B),
            rf=1,
            move=(A, B),
            budget=Budget(attempts=1, ticks=1),
            coordinators=(B,),
            give_up=False,
            goal="every slot votes",
        ),
    ),
    Rule(
        "move-tellers-have-adopted",
        "each that tells a new slot has adopted the layout before it answers",
        ((resync, "may_answer_resync", lambda replica, message, sender: True),),
        scenario=moving(
            "move-told-early",
            "c's slot goes to d, which a and b tell, b before it adopts; a0 is acked by b and c after that",
            (
                *ran_out(A),
                *adopt(A, D),
                *told(D, A, B),
                ("ask", B, "ack", 0),
                *answered("Ack", "AckReply", B, C),
                *QUARANTINE_OVER,
            ),
            budget=Budget(acks=1, ticks=5),
            coordinators=(A,),
        ),
    ),
    Rule(
        "move-epoch-counts",
        "what a set counts carries its layout, and who has adopted another one does not count",
        ((VoteRouter, "is_refused", lambda self, message: False),),
        scenario=moving(
            "move-old-coordinator",
            "c's slot goes to d, a0 is delivered by b and d, and c fetches as if it still had the slot",
            DELIVERED_AFTER,
            budget=Budget(ticks=1),
            coordinators=(B, C),
        ),
    ),
    Rule(
        "move-quarantine",
        "a new slot grants no hold until those that its former node may have granted are known, or have run out",
        (given(Replica, "begin_to_vote", lambda self, ballot, former, until: (self, ballot, former, 0.0)),),
        scenario=moving(
            "move-hold",
            "a0 is live by the votes of a and c, and c's slot goes to d",
            (*won(A, C), *adopt(A, B, D), *told(D, A, B)),
            budget=Budget(ticks=1),
            coordinators=(A, B),
        ),
    ),
    Rule(
        "move-adoption-durable",
        "adopting a layout is durable before it is told or acted upon",
        (around(Placing, "put_layout", adopts_before_it_is_durable),),
        scenario=moving(
            "move-adoption-lost",
            "c's slot goes to d, which a and b tell; a0 is delivered and acked by b and d, and a crashes",
            (
                *DELIVERED_AFTER,
                ("may", "ask", B, "ack", 0),
                *asked("Ack", "AckReply", B, D),
                ("crash", A),
                *links(A, C),
                *QUARANTINE_OVER,
            ),
            budget=Budget(acks=1, ticks=3, restarts=1),
            restart_nodes=(A,),
            unsynced=True,
            coordinators=(B, C),
        ),
    ),
)

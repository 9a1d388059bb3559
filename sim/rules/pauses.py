"""Rules of paused groups."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster import catalogue
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.pausing import PauseCoordinator
from quorumq.core.requests.registration import Registration
from quorumq.core.values.types import Group, Incarnation, NodeId, Now
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, answered, links, promised
from sim.rules.stand_ins import after, at_a_majority_of_nodes, say_at_once


def vote_all_the_same(
    self: Replica, sender: NodeId, incarnation: Incarnation, message: m.Hold, now: Now
) -> tuple[m.HoldReply, list[Effect]]:
    """Vote as if the group were not paused; a FETCH here still chooses nothing of it."""
    view = self.group(message.group)
    paused, view.paused = view.paused, False
    try:
        return _on_hold(self, sender, incarnation, message, now)
    finally:
        view.paused = paused


_on_hold = Replica.on_hold


def answer_what_was_written(self: PauseCoordinator, context: Context, topic: bytes, now: Now) -> list[Effect]:
    """Answer once the register is at a majority, without a look at the pauses that the answers brought."""
    newest = self.known(context)
    assert newest is not None
    return self.finish(context, m.GroupReply(newest))


def write_at_once(self: PauseCoordinator, context: Context, now: Now) -> list[Effect]:
    """Write without a question, as far as this node knows of nothing later."""
    known = self.known(context)
    problem, stamp = self.check(context, known), context.state.clock.fresh(now)
    if problem is not None or known is None or stamp is None:
        return self.fail_unknown(context)
    self.stamp = stamp
    changed = self.with_setting(known, stamp)
    self.written = self.setting(changed)
    return context.take_in_group(changed, now) + self.write(context, now)


def later_as_a_whole(ours: Group, theirs: Group) -> Group:
    """Take the pause of the later change, too."""
    return max(ours, theirs, key=lambda group: (group.generation, group.made, group.latest, group.pause))


RULES = (
    Rule(
        "pause-voters",
        "voters that know of a pause refuse the HOLDs of the group",
        ((Replica, "on_hold", vote_all_the_same),),
        scenario=Scenario(
            "pause",
            "a pause through one node, 1 attempt through the others",
            budget=Budget(attempts=1, rewinds=1),
            rewind_to=("pause",),
            rewind_via=(B,),
            coordinators=(A, C),
            give_up=False,
        ),
    ),
    Rule(
        "pause-of-each-set",
        "a pause is OK when a majority of each partition's replica set has it, too",
        ((Registration, "_is_there", at_a_majority_of_nodes),),
        scenario=Scenario(
            "pause-of-five",
            "five nodes, three replicas: a pause through one of the others, 1 attempt",
            nodes=(A, B, C, D, E),
            budget=Budget(attempts=1, rewinds=1),
            rewind_to=("pause",),
            rewind_via=(C,),
            give_up=False,
            script=(("ask", C, "pause"), *promised(C, A, B), *answered("PutGroup", "PutReply", C, D)),
        ),
    ),
    Rule(
        "settings-above-promises",
        "a change of settings is OK only at voters that have promised, and know, no later one",
        ((PauseCoordinator, "on_registered", answer_what_was_written),),
        scenario=Scenario(
            "pause-again",
            "b promises a resumption through c, whose writes are under way; a pause through a, 1 attempt",
            budget=Budget(attempts=1, rewinds=2, ticks=1),
            rewind_to=("late resume", "pause"),
            rewind_via=(A, C),
            coordinators=(A,),
            give_up=False,
            script=(
                ("ask", C, "late resume"),
                *promised(C, B),
                ("ask", A, "pause"),
                *promised(A, B),
                *answered("PutGroup", "PutReply", A, B),
            ),
        ),
    ),
    Rule(
        "settings-as-seen",
        "a change of settings does nothing to later ones than its client saw",
        ((PauseCoordinator, "is_overtaken", lambda self, known: False),),
        scenario=Scenario(
            "pause-late",
            "a pause, and a resumption that was made before and comes through another node, 1 attempt",
            budget=Budget(attempts=1, rewinds=2),
            rewind_to=("pause", "late resume"),
            rewind_via=(A, C),
            coordinators=(A,),
            give_up=False,
            script=(("ask", A, "pause"), *promised(A, B), *answered("PutGroup", "PutReply", A, B)),
        ),
    ),
    Rule(
        "settings-are-asked-first",
        "a change of settings is written once voters of every majority have promised its stamp",
        ((PauseCoordinator, "start", write_at_once),),
        scenario=Scenario(
            "pause-unasked",
            "the same",
            budget=Budget(attempts=1, rewinds=2),
            rewind_to=("pause", "late resume"),
            rewind_via=(A, C),
            coordinators=(A,),
            give_up=False,
            script=(
                ("ask", A, "pause"),
                ("may", "deliver", "RegistersRequest", A, B),
                ("may", "deliver", "RegistersReply", B, A),
                *answered("PutGroup", "PutReply", A, B),
            ),
        ),
    ),
    Rule(
        "pause-outlasts-changes",
        "of two registers of a group the later pause stands, whichever of them is the later change",
        ((catalogue, "merge_groups", later_as_a_whole),),
        scenario=Scenario(
            "pause-rewind",
            "a pause and a rewind at two of three nodes, 1 attempt",
            budget=Budget(attempts=1, rewinds=2),
            rewind_to=("pause", "rewind"),
            rewind_via=(A,),
            coordinators=(A, C),
            give_up=False,
            script=(
                ("ask", A, "pause"),
                *promised(A, B),
                *answered("PutGroup", "PutReply", A, B),
                ("ask", A, "rewind"),
                *answered("Prepare", "ProposalReply", A, B),
                *answered("Accept", "ProposalReply", A, B),
            ),
        ),
    ),
    Rule(
        "pause-is-durable",
        "a pause is on disk before it is answered for",
        ((Context, "put_group", after(Context.put_group, say_at_once)),),
        scenario=Scenario(
            "pause-restart",
            "a pause, 1 crash, 1 attempt through a node that has not heard of it",
            budget=Budget(attempts=1, rewinds=1, restarts=1),
            rewind_to=("pause",),
            rewind_via=(A,),
            coordinators=(C,),
            restart_nodes=(B,),
            unsynced=True,
            give_up=False,
            # b has crashed before its fsync; its answer is still under way.
            script=(
                ("ask", A, "pause"),
                *promised(A, C),
                ("deliver", "PutGroup", A, B),
                ("crash", B),
                *links(B, C),
                *answered("HoldsRequest", "HoldsReply", B, C),
            ),
        ),
    ),
)

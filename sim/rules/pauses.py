"""Rules of paused groups."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.cluster import catalogue
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.pausing import PauseCoordinator
from quorumq.core.values.types import Group, Incarnation, NodeId, Now
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, answered, chosen, links, promised
from sim.rules.stand_ins import AT_A_MAJORITY_OF_NODES, Before, after, around, say_at_once


def vote_all_the_same(
    before: Before[tuple[m.HoldReply, list[Effect]]],
    self: Replica,
    sender: NodeId,
    incarnation: Incarnation,
    message: m.Hold,
    now: Now,
) -> tuple[m.HoldReply, list[Effect]]:
    """Vote as if the group were not paused; a FETCH here still chooses nothing of it."""
    view = self.group(message.group)
    paused, view.paused = view.paused, False
    try:
        return before(self, sender, incarnation, message, now)
    finally:
        view.paused = paused


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
    return merging.take_in_group(context, changed, now) + self.write(context, now)


def later_as_a_whole(ours: Group, theirs: Group) -> Group:
    """Take the pause of the later change, too."""
    return max(ours, theirs, key=lambda group: (group.generation, group.made, group.latest, group.pause))


def of_settings(
    name: str, about: str, *changes: str, ticks: int = 0, restarts: int = 0, **bounds: Any
) -> Scenario:
    """Return a scenario of these changes of the group, each once, and 1 attempt; no round gives up."""
    budget = Budget(attempts=1, rewinds=len(changes), ticks=ticks, restarts=restarts)
    return Scenario(name, about, budget=budget, rewind_to=changes, give_up=False, **bounds)


RULES = (
    Rule(
        "pause-voters",
        "voters that know of a pause refuse the HOLDs of the group",
        (around(Replica, "on_hold", vote_all_the_same),),
        scenario=of_settings(
            "pause",
            "a pause through one node, 1 attempt through the others",
            "pause",
            rewind_via=(B,),
            coordinators=(A, C),
        ),
    ),
    Rule(
        "pause-of-each-set",
        "a pause is OK when a majority of each partition's replica set has it, too",
        (AT_A_MAJORITY_OF_NODES,),
        scenario=of_settings(
            "pause-of-five",
            "five nodes, three replicas: a pause through one of the others, 1 attempt",
            "pause",
            nodes=(A, B, C, D, E),
            rewind_via=(C,),
            script=(("ask", C, "pause"), *promised(C, A, B), *answered("PutGroup", "PutReply", C, D)),
        ),
    ),
    Rule(
        "settings-above-promises",
        "a change of settings is OK only at voters that have promised, and know, no later one",
        ((PauseCoordinator, "on_registered", answer_what_was_written),),
        scenario=of_settings(
            "pause-again",
            "b promises a resumption through c, whose writes are under way; a pause through a, 1 attempt",
            "late resume",
            "pause",
            ticks=1,
            rewind_via=(A, C),
            coordinators=(A,),
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
        scenario=of_settings(
            "pause-late",
            "a pause, and a resumption that was made before and comes through another node, 1 attempt",
            "pause",
            "late resume",
            rewind_via=(A, C),
            coordinators=(A,),
            script=(("ask", A, "pause"), *promised(A, B), *answered("PutGroup", "PutReply", A, B)),
        ),
    ),
    Rule(
        "settings-are-asked-first",
        "a change of settings is written once voters of every majority have promised its stamp",
        ((PauseCoordinator, "start", write_at_once),),
        scenario=of_settings(
            "pause-unasked",
            "the same",
            "pause",
            "late resume",
            rewind_via=(A, C),
            coordinators=(A,),
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
        scenario=of_settings(
            "pause-rewind",
            "a pause and a rewind at two of three nodes, 1 attempt",
            "pause",
            "rewind",
            rewind_via=(A,),
            coordinators=(A, C),
            script=(
                ("ask", A, "pause"),
                *promised(A, B),
                *answered("PutGroup", "PutReply", A, B),
                ("ask", A, "rewind"),
                *chosen(A, B),
            ),
        ),
    ),
    Rule(
        "pause-is-durable",
        "a pause is on disk before it is answered for",
        (after(merging, "put_group", say_at_once),),
        scenario=of_settings(
            "pause-restart",
            "a pause, 1 crash, 1 attempt through a node that has not heard of it",
            "pause",
            restarts=1,
            rewind_via=(A,),
            coordinators=(C,),
            restart_nodes=(B,),
            unsynced=True,
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

"""Rules of voters: a voter's slot goes to another member, or members are added to the voters."""

from __future__ import annotations

from typing import Any

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.rounds import RegisterRound, majority_of
from quorumq.core.messages.effects import Effect
from quorumq.core.recovery import voterslots
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.values.types import ClusterLayout, NodeId, Now
from sim.explorer.scenario import NO_FETCH, Budget, Scenario, Script
from sim.rules.moves import adopt, told
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, answered, chosen, links, registered
from sim.rules.stand_ins import Before, around


def hears_the_present_set(context: Context) -> bool:
    answered = [node for node, partition in context.resync_answers.complete if partition is None]
    voters = context.catalogue.cluster.voters
    return sum(node in answered for node in voters) >= majority_of(len(voters))


def adopts_before_it_is_durable(
    before: Before[list[Effect]], self: Context, layout: ClusterLayout, now: Now
) -> list[Effect]:
    effects = before(self, layout, now)
    merging.use_cluster(self, layout, now)
    self.join_soon(now)
    return effects


def made(through: NodeId, voter: NodeId, index: int = 0) -> Script:
    """Return steps in which a topic is made through a node, by the vote of one other."""
    return (
        ("ask", through, "create", index),
        *registered("PutTopic", through, voter),
    )


def changing(name: str, about: str, script: Script, *through: NodeId, **more: Any) -> Scenario:
    """Return a scenario in which c's slot goes to d, while topics of one name are made through these nodes."""
    operators = tuple(("create", node) for node in through)
    fixed = {"nodes": (A, B, C, D), "later": (D,), "voters": (A, B, D), "budget": NO_FETCH, "give_up": False}
    return Scenario(name, about, script=script, **{"operators": operators, **fixed, **more})


def raising(name: str, about: str, script: Script, *through: NodeId) -> Scenario:
    """Return a scenario in which d and e are voters beside a, b and c."""
    five = (A, B, C, D, E)
    return changing(name, about, script, *through, nodes=five, later=(D, E), voters=five)


RULES = (
    Rule(
        "voters-before-tell",
        "a new voter votes once a majority of the voters before has told",
        ((voterslots, "majority_of", lambda size: 1),),
        scenario=changing(
            "voters-told",
            "a topic is made at a and c; c's slot goes to d, which b tells",
            (*made(A, C), *adopt(B, D), *told(D, B)),
            A,
            B,
        ),
    ),
    Rule(
        "voters-tell-once-they-have-adopted",
        "each voter that tells a new one has adopted the layout before",
        ((voterslots, "may_tell", lambda context, epoch: True),),
        scenario=changing(
            "voters-told-early",
            "c's slot goes to d, which a and b tell, b before it adopts; b and c make a topic",
            (*adopt(A, D), *told(D, A, B), *made(B, C)[:-1]),
            B,
            A,
        ),
    ),
    Rule(
        "voters-count-in-one-epoch",
        "an answer about registers counts in the epoch of its round",
        ((RegisterRound, "check_epoch", lambda self, sender, epoch: None),),
        scenario=changing(
            "voters-of-two-epochs",
            "c's slot goes to d, which a and b tell; a and d make a topic, and c, which does not know, asks b",
            (*adopt(A, B, D), *told(D, A, B), *made(A, D)),
            A,
            C,
        ),
    ),
    Rule(
        "voters-are-adopted-once-durable",
        "other voters are adopted once that is durable",
        (around(merging, "take_in_cluster", adopts_before_it_is_durable),),
        scenario=changing(
            "voters-crash",
            "c's slot goes to d, which a and b tell; b crashes, and topics are made through c and d",
            (*adopt(A, D, B), *told(D, A, B), ("crash", B), *links(B, C)),
            C,
            D,
            budget=Budget(attempts=0, restarts=1),
            restart_nodes=(B,),
            unsynced=True,
        ),
    ),
    Rule(
        "new-voters-learn-what-was-accepted",
        "a new voter learns promises and accepted values",
        ((Catalogue, "take_decision", lambda self, decision: False),),
        scenario=changing(
            "voters-accepted",
            "a and c have accepted a topic, and no node knows that; c's slot goes to d, which b and c tell",
            (
                ("ask", A, "create", 0),
                *answered("Prepare", "ProposalReply", A, C),
                ("deliver", "Accept", A, C),
                *adopt(B, C, D),
                *told(D, B, C),
            ),
            A,
            B,
        ),
    ),
    Rule(
        "added-voters-hear-those-before",
        "each voter that is added beside the others hears a majority of these",
        ((voterslots, "majority_of", lambda size: 1),),
        scenario=raising(
            "voters-added",
            "a topic is made at a and b; d and e, which c tells, are voters beside a, b and c",
            (*made(A, B), *adopt(C, D, E), *told(D, C), *told(E, C)),
            A,
            C,
        ),
    ),
    Rule(
        "added-voters-hear-adopters",
        "each voter that tells an added one has adopted the layout before",
        ((voterslots, "may_tell", lambda context, epoch: True),),
        scenario=raising(
            "voters-added-early",
            "d and e are voters beside a, b and c, which tell them, a alone having adopted; b and c make a topic",
            (*adopt(A, D, E), *told(D, A, B), *told(E, A, B), *made(B, C)[:-1]),
            B,
            A,
        ),
    ),
    Rule(
        "resync-awaits-undecided-voters",
        "a resync waits until other voters that were accepted are chosen or not",
        ((Catalogue, "undecided_voters", lambda self, decisions: None),),
        scenario=changing(
            "voters-undecided",
            "a has c's slot go to d, which it tells, and is emptied; b, which has accepted that, and c tell a",
            (
                ("ask", A, "voter c d", 2),
                *answered("PutCluster", "PutReply", A, B, C, D),
                *chosen(A, B),
                ("deliver", "PutCluster", A, D),
                *told(D, A),
                ("lose", A),
                *links(A, B, C),
                *told(A, B, C),
                *(("may", *step) for step in made(A, C)),
                ("deliver", "PutCluster", D, B),
            ),
            operators=(("create", A), ("create", B), ("voter c d", A)),
            voters=(),
            budget=Budget(attempts=0, resyncs=1),
            restart_nodes=(A,),
        ),
    ),
    Rule(
        "added-voters-hear-the-set-before",
        "voters that are added beside the only one hear that one alone",
        ((voterslots, "has_enough", hears_the_present_set),),
        scenario=changing(
            "voters-only-one",
            "a is the only voter; b and c are voters, too",
            adopt(A),
            A,
            nodes=(A, B, C),
            later=(B, C),
            voters=(A, B, C),
            rf=1,
            goal="every voter votes",
        ),
    ),
)

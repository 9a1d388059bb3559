"""Rules of members: nodes are added to a running cluster, drained and removed."""

from __future__ import annotations

from quorumq.core.cluster import drained
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.drained import contradiction
from quorumq.core.cluster.rounds import RegisterRound, Round
from quorumq.core.recovery import voterslots
from quorumq.core.requests import merging, proposing
from quorumq.core.requests.proposing import Proposer
from quorumq.core.values.types import ClusterLayout, NodeId, Value
from sim.explorer.scenario import Budget, Script
from sim.rules.creation import propose_ours
from sim.rules.rule import Patch, Rule
from sim.rules.scripts import A, B, C, D, E, answered, links, of_operators, promised, registered
from sim.rules.stand_ins import after, around, given, nothing, resync_without


def removes_in_use(catalogue: Catalogue, value: Value, *, stands: bool) -> str:
    return "" if isinstance(value, ClusterLayout) else contradiction(catalogue, value, stands=stands)


def puts_on_removed(catalogue: Catalogue, value: Value, *, stands: bool) -> str:
    return contradiction(catalogue, value) if isinstance(value, ClusterLayout) else ""


UNGUARDED: tuple[Patch, ...] = (
    (drained, "has_already", lambda catalogue, node, value: True),
    (voterslots, "undecided_on", lambda catalogue, nodes: []),
)
"""Two rules that keep removals and placements apart as well: a drained node gets nothing new, and voters are asked."""


def possibly(steps: Script) -> Script:
    """Return steps that are taken if they are possible: a rule may prevent them."""
    return tuple(("may", *step) for step in steps)


def others_asked(coordinator: NodeId, *voters: NodeId) -> Script:
    """Return steps in which a removal is asked for at these other voters, all of them, before it is proposed."""
    return possibly(answered("PutCluster", "PutReply", coordinator, *voters))


def changed(kind: str, index: int, coordinator: NodeId, voter: NodeId, *asked: NodeId) -> Script:
    """Return steps in which the members are changed, known to the coordinator and one other voter."""
    return (
        ("ask", coordinator, kind, index),
        *others_asked(coordinator, *asked),
        *registered("PutCluster", coordinator, voter),
    )


RULES = (
    Rule(
        "members-are-chosen",
        "of two changes of the members at once, the second finishes the first, and is the next layout",
        (around(Proposer, "accept", propose_ours),),
        scenario=of_operators(
            "members-at-once",
            "two nodes are added, through two nodes",
            ("add d", A),
            ("add e", C),
            script=(
                ("ask", A, "add d", 0),
                *answered("Prepare", "ProposalReply", A, B),
                ("deliver", "Accept", A, B),
            ),
        ),
    ),
    Rule(
        "members-are-durable",
        "a layout of the members is durable before a node says that it has it",
        (after(merging, "take_in_cluster", nothing),),
        scenario=of_operators(
            "members-restart",
            "a node is added at two of three nodes, one of which crashes",
            ("add d", A),
            budget=Budget(attempts=0, restarts=1),
            restart_nodes=(B,),
        ),
    ),
    Rule(
        "resync-brings-members",
        "a resync brings the newest layout of the members",
        (resync_without(cluster=None),),
        scenario=of_operators(
            "members-resync",
            "a node is added at a and b, b's disk is lost, and another one is added through c",
            ("add d", A),
            ("add e", C),
            budget=Budget(attempts=0, resyncs=1),
            restart_nodes=(B,),
            script=(
                *changed("add d", 0, A, B),
                ("lose", B),
                *links(B, A, C),
                *answered("ResyncRequest", "ResyncReply", B, A, C),
            ),
        ),
    ),
    Rule(
        "removal-of-a-node-in-use",
        "an acceptor refuses a removal while it knows of a partition on that node, or has accepted one there",
        ((proposing, "contradiction", removes_in_use), *UNGUARDED),
        scenario=of_operators(
            "members-removed",
            "a partition is moved to d, which is drained, through a, and d removed through c",
            ("drain d", C),
            ("move c d", A),
            ("drop d", C),
            nodes=(A, B, C, D),
            later=(D,),
            script=(
                *changed("drain d", 0, C, B),
                ("ask", A, "move c d", 1),
                *answered("SlotRequest", "SlotReply", A, B, C),
                *answered("Prepare", "ProposalReply", A, B),
                ("deliver", "Accept", A, B),
                ("ask", C, "drop d", 2),
                *others_asked(C, A, B),
            ),
        ),
    ),
    Rule(
        "placing-on-a-removed-node",
        "an acceptor that has accepted a removal refuses values that place a partition there",
        ((proposing, "contradiction", puts_on_removed), *UNGUARDED[1:]),
        scenario=of_operators(
            "members-placed",
            "d, which is drained, is removed through c, and a partition moved to d through a",
            ("drain d", C),
            ("move c d", A),
            ("drop d", C),
            nodes=(A, B, C, D),
            later=(D,),
            script=(
                *changed("drain d", 0, C, B),
                ("ask", A, "move c d", 1),
                *answered("SlotRequest", "SlotReply", A, B, C),
                *answered("Prepare", "ProposalReply", A, B),
                ("ask", C, "drop d", 2),
                *others_asked(C, A, B),
                *possibly(answered("Prepare", "ProposalReply", C, B)),
            ),
        ),
    ),
    Rule(
        "removed-nodes-are-not-waited-for",
        "a deletion waits for no node of a set that was removed",
        (given(Round, "is_majority_of_each", lambda self, bits, sets, gone=(): (self, bits, sets)),),
        scenario=of_operators(
            "members-deleted",
            "the only replica is g, which is down; the topic is deleted, g drained and removed; a DELETE through c",
            ("delete", A),
            ("drain g", B),
            ("drop g", B),
            ("delete", C),
            later=("g",),
            rf=1,
            goal="the last operation is done",
            script=(
                ("ask", A, "delete", 0),
                *answered("PutTopic", "PutReply", A, B, C),
                *changed("drain g", 1, B, C),
                *changed("drop g", 2, B, C, A, C),
            ),
        ),
    ),
    Rule(
        "only-voters-count",
        "of members that were added later none counts for a register",
        ((RegisterRound, "is_majority", lambda self, bits: 2 * bits.bit_count() > len(self.members)),),
        scenario=of_operators(
            "members-voters",
            "five members, three of them voters: a topic is told to make no groups, and a first FETCH",
            ("forbid", A),
            ("read", B),
            nodes=(A, B, C, D, E),
            later=(D, E),
            script=(
                ("ask", A, "forbid", 0),
                *promised(A, C),
                *answered("PutTopic", "PutReply", A, D),
                ("may", "deliver", "PutTopic", A, E),
                ("may", "deliver", "PutReply", E, A),
            ),
        ),
    ),
)

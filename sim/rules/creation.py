"""Rules of CREATE: of one name there is one topic, chosen once."""

from __future__ import annotations

from dataclasses import replace

from quorumq.core.cluster.rounds import Round
from quorumq.core.messages import Accept, Failed, PeerMessage, Prepare, ProposalReply
from quorumq.core.messages.effects import Effect, Persist
from quorumq.core.messages.records import DecisionPut, TopicPut
from quorumq.core.node import nodecore
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.creation import CreateTopicCoordinator
from quorumq.core.requests.proposing import Proposer, vote
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, Topic
from sim.explorer.scenario import Budget
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, answered, of_operators
from sim.rules.stand_ins import Before, after, around, but, say_at_once, unwritten


def propose_ours(
    before: Before[list[Effect]], self: Proposer, owner: Coordinator, context: Context, now: Now
) -> list[Effect]:
    self.accepted = None
    return before(self, owner, context, now)


def serve_ours(
    before: Before[list[Effect]], self: Proposer, owner: Coordinator, context: Context, now: Now
) -> list[Effect]:
    effects = before(self, owner, context, now)
    assert isinstance(self.value, Topic)
    return merging.take_in_topic(context, self.value, now) + effects


def refuse_outbid(
    before: Before[list[Effect]],
    self: CreateTopicCoordinator,
    context: Context,
    sender: NodeId,
    incarnation: Incarnation,
    message: PeerMessage,
    now: Now,
) -> list[Effect]:
    """Take a higher ballot for the end of a proposal, which others may have accepted."""
    theirs = message.decision if isinstance(message, ProposalReply) else None
    ours = self.proposer
    if ours is not None and theirs is not None and theirs.promised > ours.ballot and ours.value is not None:
        return self.finish(context, Failed(Code.CONFLICT, "somebody else creates it"))
    return before(self, context, sender, incarnation, message, now)


def count_refusals(
    before: Before[list[Effect]],
    self: Proposer,
    owner: Coordinator,
    context: Context,
    sender: NodeId,
    incarnation: Incarnation,
    message: ProposalReply,
    now: Now,
) -> list[Effect]:
    """Count every answer to the round that is open, with any content."""
    if message.error == Code.NOT_TRUSTED and self.round is not None and message.round == self.round.number:
        self.round.hear(sender, incarnation)
    return before(self, owner, context, sender, incarnation, message, now)


def accept_below_promise(
    context: Context, sender: NodeId, message: Prepare | Accept, now: Now
) -> list[Effect]:
    if isinstance(message, Accept):
        ours = context.catalogue.decisions.get(message.instance)
        if ours is not None and ours.promised > message.ballot:
            context.catalogue.decisions[message.instance] = ours._replace(promised=message.ballot)
    return vote(context, sender, message, now)


def serve_accepted(context: Context, sender: NodeId, message: Prepare | Accept, now: Now) -> list[Effect]:
    effects = vote(context, sender, message, now)
    if isinstance(message, Accept) and message.topic is not None:
        mine = context.catalogue.decisions.get(message.instance)
        if mine is not None and mine.topic == message.topic:
            context.catalogue.take_topic(message.topic)
            effects.append(Persist((TopicPut(message.topic),)))
    return effects


def vote_again(context: Context, sender: NodeId, message: Prepare | Accept, now: Now) -> list[Effect]:
    decided, context.catalogue.names = context.catalogue.names, {}
    try:
        return vote(context, sender, message, now)
    finally:
        context.catalogue.names = decided


# --------------------------------------------------------------------------- the rules

TWO_CREATIONS = of_operators("creations", "2 creations of one name", ("create", A), ("create", C))

FORGETFUL_ACCEPTOR = replace(
    TWO_CREATIONS,
    name="creations-unsynced",
    about="2 creations of one name, 1 crash of a node whose fsyncs are steps of their own",
    budget=Budget(attempts=0, restarts=1),
    restart_nodes=(B,),
    unsynced=True,
    # c0, through a, is promised by a and b and accepted by a; b has accepted it, and not synced that.
    script=(
        ("ask", A, "create", 0),
        ("deliver", "Prepare", A, B),
        ("fsync", B),
        ("deliver", "ProposalReply", B, A),
        ("deliver", "Accept", A, B),
    ),
)

WIPED_ACCEPTOR = replace(
    TWO_CREATIONS,
    name="creations-wipe",
    about="2 creations of one name, and a disk lost meanwhile",
    budget=Budget(attempts=0, wipes=1),
    restart_nodes=(B,),
)

WIPED_OF_FIVE = replace(
    WIPED_ACCEPTOR,
    name="creations-wipe-of-five",
    about="2 creations of one name, and one of five disks lost meanwhile, whose node hears three of the others",
    nodes=(A, B, C, D, E),
    operators=(("create", A), ("create", E)),
    wiped_hears=(C, D, E),
    # c0, through a, is promised by a, b and c; b accepts it and is wiped; b, d and e promise c1, through e.
    script=(
        ("ask", A, "create", 0),
        *answered("Prepare", "ProposalReply", A, B, C),
        ("deliver", "Accept", A, B),
        ("wipe", B),
        ("ask", E, "create", 1),
        *answered("Prepare", "ProposalReply", E, B, D),
    ),
)

RULES: tuple[Rule, ...] = (
    Rule(
        "creation-takes-over",
        "what was accepted under the highest ballot heard of is proposed, whoever asked for it",
        (around(Proposer, "accept", propose_ours),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        "creation-keeps-promise",
        "an acceptor accepts nothing under a ballot below its promise",
        ((nodecore, "vote", accept_below_promise),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        "decided-is-told",
        "who knows what was chosen answers with that, and votes no more",
        # A node then knows both what was chosen and what it has promised since, which its check does not allow.
        ((nodecore, "vote", vote_again), (NodeCore, "check", lambda self, now: None)),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        "accepted-is-not-served",
        "what is accepted is no register before it is chosen",
        ((nodecore, "vote", serve_accepted),),
        scenario=TWO_CREATIONS,
        hunted=True,
    ),
    Rule(
        "proposed-is-not-served",
        "nor is what is proposed: a creation that loses leaves nothing behind",
        (around(Proposer, "accept", serve_ours),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        "conflict-once-chosen",
        "`conflict` is answered only once another topic was chosen",
        (around(CreateTopicCoordinator, "on_reply", refuse_outbid),),
        scenario=TWO_CREATIONS,
    ),
    Rule(
        "votes-are-durable",
        "what is promised or accepted is on disk before it is said",
        (after(nodecore, "vote", say_at_once),),
        scenario=FORGETFUL_ACCEPTOR,
    ),
    Rule(
        "vote-not-journaled",
        "what is promised and accepted of a creation is in the journal",
        (after(nodecore, "vote", unwritten(DecisionPut)),),
    ),
    Rule(
        "registers-are-durable",
        "a register is on disk before it is answered for",
        (after(merging, "put_topic", say_at_once),),
        scenario=FORGETFUL_ACCEPTOR,
    ),
    Rule(
        "resync-brings-votes",
        "a resync brings what others have promised and accepted",
        (after(NodeCore, "snapshot", but(DecisionPut)),),
        scenario=WIPED_ACCEPTOR,
    ),
    Rule(
        "refusals-are-no-votes",
        "a node that is not trusted has no vote: its answer is no part of a majority",
        (around(Proposer, "on_reply", count_refusals),),
        survives="a refusal that comes before a vote, and a rival creation during the same resync",
        test="test_creation::test_a_refusal_before_a_vote_is_no_vote",
    ),
    Rule(
        "superseded-votes",
        "votes of a start that is known to be superseded do not count",
        ((Round, "is_superseded", lambda self, state, sender, incarnation: False),),
        scenario=WIPED_OF_FIVE,
    ),
)

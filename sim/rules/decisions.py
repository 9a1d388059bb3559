"""Rules of a group's register: it is decided, change by change, and a group from latest begins once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sortedcontainers import SortedDict

from quorumq.core.messages import Accept, Prepare, PutReply, ReplicaListReply
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.node import nodecore
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests import merging, proposing, skipping
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.proposing import Proposer, vote
from quorumq.core.requests.registers import ChangeCoordinator
from quorumq.core.requests.registration import Registration
from quorumq.core.requests.skipping import SkippedPartition, Skipping, Wanted
from quorumq.core.values.types import Group, NodeId, Now, Span
from sim.explorer.scenario import Budget
from sim.rules.creation import propose_ours
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, D, E, answered, of_operators, registered
from sim.rules.stand_ins import Before, after, around, say_at_once


def read_ours(
    before: Before[list[Effect]], self: Proposer, owner: Coordinator, context: Context, now: Now
) -> list[Effect]:
    effects = before(self, owner, context, now)
    return (
        merging.take_in_group(context, self.value, now) + effects
        if isinstance(self.value, Group)
        else effects
    )


def propose_of_zero(
    before: Before[list[Effect]], self: Proposer, owner: Coordinator, context: Context, now: Now
) -> list[Effect]:
    self.alike = True
    return before(self, owner, context, now)


def vote_again(context: Context, sender: NodeId, message: Prepare | Accept, now: Now) -> list[Effect]:
    decided, context.catalogue.groups = context.catalogue.groups, SortedDict()
    try:
        return vote(context, sender, message, now)
    finally:
        context.catalogue.groups.update(decided)


def skip_and_go_on(
    before: Before[list[Effect]],
    self: Skipping,
    context: Context,
    part: SkippedPartition,
    items: Wanted,
    alike: tuple[Span, ...],
    now: Now,
) -> list[Effect]:
    """Send SKIPPED, and do not wait for it."""
    effects = before(self, context, part, items, alike, now)
    for number in list(part.merging):
        del part.merging[number]
        self._close(context, number)
    return effects


def _silent(effect: Effect) -> Effect:
    if isinstance(effect, Persist):
        return effect._replace(
            then=tuple(_shown(then) if isinstance(then, Send) else then for then in effect.then)
        )
    return _shown(effect) if isinstance(effect, Send) else effect


def _shown(send: Send) -> Send:
    if isinstance(send.message, PutReply):
        return send._replace(message=send.message._replace(topic=None))
    return send


# --------------------------------------------------------------------------- the rules


LATEST_AND_EARLIEST = of_operators(
    "groups-created", "a group is created from latest and from earliest", ("set latest", A), ("set", C)
)
FIRST_FETCHES = of_operators(
    "groups-fetched",
    "first FETCHes of a group, from latest and from earliest",
    ("read latest", A),
    ("read", C),
)
MISSED = of_operators(
    "groups-missed",
    "a group is created from latest, through a replica that has not got the message",
    ("set latest", C),
    stored_on=(A, B),
)
BEGUN_TWICE = of_operators(
    "groups-begun-twice",
    "a group is created from latest, twice at once, and a message is published",
    ("set latest", A),
    ("read latest", C),
    ("send", B),
    # a and c have chosen the group, and each has asked what there is; a has heard that there is nothing, and c that the
    # group has begun, before an answer to what it has asked.
    script=(
        ("ask", A, "set latest", 0),
        *registered("PutGroup", A, C),
        ("ask", C, "read latest", 1),
        *answered("PutGroup", "PutReply", C, A),
        *answered("ReplicaList", "ReplicaListReply", A, C),
        *answered("PutGroup", "PutReply", A, C),
    ),
)
A_CRASH: dict[str, Any] = {"budget": Budget(attempts=0, restarts=1), "restart_nodes": (B,), "unsynced": True}
MADE_AND_A_CRASH = of_operators("group-made-restart", "a group is created, 1 crash", ("set", A), **A_CRASH)
CREATED_AND_A_CRASH = replace(
    LATEST_AND_EARLIEST,
    name="groups-created-restart",
    about="a group is created from latest and from earliest, 1 crash",
    **A_CRASH,
)
FORBIDDEN = of_operators(
    "groups-forbidden",
    "a topic is told to make no groups, and a first FETCH",
    ("forbid", A),
    ("read", C),
)
MORE_PARTITIONS = of_operators(
    "groups-carried",
    "one more partition, and a group is created",
    ("alter", A),
    ("set", B),
    rf=1,
)

CARRIED_OF_FIVE = of_operators(
    "groups-carried-of-five",
    "one more partition of five nodes' topic, and a group is created",
    ("alter", A),
    ("set", C),
    nodes=(A, B, C, D, E),
    rf=1,
    # b, c and e have chosen the group, and b has its register; then a, b and d have the proposal.
    script=(
        ("ask", C, "set", 1),
        *answered("Accept", "ProposalReply", C, B, E),
        *answered("PutGroup", "PutReply", C, B),
        ("ask", A, "alter", 0),
        *answered("PutTopic", "PutReply", A, B, D),
    ),
)

RULES: tuple[Rule, ...] = (
    Rule(
        "group-is-chosen",
        "what a creation of a group proposes is no register until it is chosen",
        (around(Proposer, "accept", read_ours),),
        scenario=FIRST_FETCHES,
    ),
    Rule(
        "group-takes-over",
        "what was accepted under the highest ballot heard of is the group's register, whoever asked for it",
        (around(Proposer, "accept", propose_ours),),
        scenario=LATEST_AND_EARLIEST,
    ),
    Rule(
        "ballot-zero-is-for-one",
        "the ballot zero is for the one register that everybody proposes alike",
        (around(Proposer, "propose", propose_of_zero),),
        scenario=LATEST_AND_EARLIEST,
    ),
    Rule(
        "decided-group-is-told",
        "who knows the register of a change, or of a later one, answers with that, and votes no more",
        ((nodecore, "vote", vote_again), (NodeCore, "check", lambda self, now: None)),
        scenario=LATEST_AND_EARLIEST,
    ),
    Rule(
        "group-votes-are-durable",
        "what is promised or accepted of a group is on disk before it is said",
        (after(nodecore, "vote", say_at_once),),
        scenario=CREATED_AND_A_CRASH,
    ),
    Rule(
        "group-registers-are-durable",
        "a group's register is on disk before it is answered for",
        (after(merging, "put_group", say_at_once),),
        scenario=MADE_AND_A_CRASH,
    ),
    Rule(
        "voters-make-no-group",
        "a FETCH's proposal is refused where the topic makes no groups",
        ((proposing, "is_refused", lambda message, topic: False),),
        scenario=FORBIDDEN,
    ),
    Rule(
        "latest-asks-enough",
        "what RF - majority + 1 replicas know is skipped for a group from latest",
        ((skipping, "majority_of", lambda count: count),),
        scenario=MISSED,
    ),
    Rule(
        "latest-begins-once",
        "what is found while another node is done with a group's beginning is thrown away",
        ((ReplicaListReply, "has_begun", False),),
        scenario=BEGUN_TWICE,
    ),
    Rule(
        "latest-at-a-majority",
        "a group begins once what is there is SKIPPED at a majority",
        (around(Skipping, "_skip", skip_and_go_on),),
        scenario=MISSED,
    ),
    Rule(
        "begun-at-a-majority",
        "a creation is OK once the register that has begun is at a majority",
        ((Registration, "_is_there", lambda self, context, topic, round_, items, bits: bool(bits)),),
        scenario=MISSED,
    ),
    Rule(
        "alter-reads-its-own",
        "an ALTER asks for groups only nodes that have its proposal",
        ((ChangeCoordinator, "has_read", lambda self, message: True),),
        scenario=CARRIED_OF_FIVE,
    ),
    Rule(
        "group-hears-of-partitions",
        "who takes a group's register in tells of partitions that its sender does not know",
        (after(merging, "put_group", lambda effects: [_silent(effect) for effect in effects]),),
        scenario=MORE_PARTITIONS,
    ),
)

"""Rules of layouts beside other work: registers, RECLAIM, restarts, lost disks and a second move."""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core.cluster import catalogue, peer_groups
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.topics import merge_topics, required_sets, with_layout
from quorumq.core.messages import GroupsRequest
from quorumq.core.messages.effects import Effect
from quorumq.core.partition import hold_recovery
from quorumq.core.partition.closing import Closing
from quorumq.core.recovery import joining, resync, trust
from quorumq.core.recovery.resync import Resync
from quorumq.core.requests import merging, registers, registration
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import LayoutCoordinator
from quorumq.core.values.types import Machines, NodeId, Now, PartitionId, Topic
from sim.explorer.scenario import Budget, Scenario, Script
from sim.rules.moves import QUARANTINE_OVER, adopt, asked, joined, moving, told
from sim.rules.rule import Rule
from sim.rules.scripts import (
    A,
    B,
    C,
    D,
    E,
    acked_at,
    answered,
    chosen,
    links,
    of_operators,
    promised,
    ran_out,
    registered,
    restarted,
    won,
)
from sim.rules.stand_ins import Before, around
from sim.rules.topics import newer


def present_sets(
    topic: Topic, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> list[tuple[tuple[NodeId, ...], ...]]:
    """Return the present set of each partition, without those before and after it."""
    return [sets[:1] for sets in required_sets(topic, nodes, machines)]


def all_present(
    topic: Topic, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> tuple[tuple[NodeId, ...], ...]:
    return tuple(members for sets in present_sets(topic, nodes, machines) for members in sets)


def adopts_at_once(
    before: Before[list[Effect]], self: LayoutCoordinator, context: Context, now: Now
) -> list[Effect]:
    topic = context.catalogue.topics[self.topic.id]
    if topic.next_layout is None:
        return before(self, context, now)
    adopted = with_layout(topic, topic.next_layout)._replace(next_layout=None)
    return merging.take_in_topic(context, adopted, now) + before(self, context, now)


def tells_all(
    before: Before[list[Effect]],
    known: Catalogue,
    joining: Iterable[bytes],
    sender: NodeId,
    message: GroupsRequest,
) -> list[Effect]:
    layouts = peer_groups.layouts_of(known, message.topics)
    return before(known, (), sender, message._replace(layouts=layouts))


def layout_by_stamp(ours: Topic, theirs: Topic) -> Topic:
    last, merged = newer(ours, theirs), merge_topics(ours, theirs)
    if ours.stamp == theirs.stamp:
        return merged
    return merged._replace(replicas=last.replicas, layout=last.layout, next_layout=last.next_layout)


def lacks_of_either_set(
    before: Before[int],
    self: Resync,
    context: Context,
    members: tuple[NodeId, ...],
    partition: PartitionId | None,
    needed: int | None = None,
) -> int:
    replica = context.replicas.get(partition) if partition is not None else None
    if needed is None and replica is not None and joining.may_join(context, replica):
        return 0
    return before(self, context, members, partition, needed)


FIVE = (A, B, C, D, E)


def told_and_emptied(name: str, about: str, steps: Script) -> Scenario:
    """Return a scenario: c moves the only slot to d, by these steps, and loses its disk once d has its state."""
    return Scenario(
        name,
        about,
        nodes=(A, B, C, D),
        later=(D,),
        rf=1,
        budget=Budget(attempts=0, resyncs=1),
        operators=(("move c d", C),),
        restart_nodes=(C,),
        give_up=False,
        script=(("ask", C, "move c d", 0), *steps, *told(D, C), ("lose", C), *links(C, A, B)),
    )


CLOSED_BESIDE_A_RETRY = Scenario(
    "move-close",
    "the only slot goes from a to b; a closes the producer id, and a batch of it comes late, through b",
    nodes=(A, B),
    rf=1,
    move=(A, B),
    budget=Budget(attempts=0, publishes=1, closes=1),
    coordinators=(A,),
    publish_via=(B,),
    give_up=False,
)

RULES = (
    Rule(
        "move-deletion-of-each-set",
        "a deletion needs a majority of the set before a move, too",
        ((registers, "all_sets", all_present),),
        scenario=of_operators(
            "move-delete",
            "c's slot goes to d, and the topic is deleted through d",
            ("delete", D),
            nodes=FIVE,
            move=(C, D),
            stored_on=(A, B, C),
            script=(*adopt(A, D), ("ask", D, "delete", 0), *answered("PutTopic", "PutReply", D, A, E)),
        ),
    ),
    Rule(
        "move-group-of-each-set",
        "a group is there once a majority of the set before a move has it, too",
        ((registration, "required_sets", present_sets),),
        scenario=of_operators(
            "move-group",
            "c's slot goes to d; a first FETCH through d",
            ("read", A),
            nodes=FIVE,
            move=(C, D),
            script=(*adopt(A, D), ("ask", A, "read", 0), *answered("Accept", "ProposalReply", A, D, E)),
        ),
    ),
    Rule(
        "move-groups-of-its-layout",
        "a node tells its groups for RECLAIM only to those with its layout, and not while its slot is new",
        (around(peer_groups, "answer_groups", tells_all),),
        scenario=Scenario(
            "move-reclaim",
            "c's slot goes to d; a0 runs out, a rewind is OK at a and c, b gets the ACK of a0, and reclaims",
            nodes=(A, B, C, D),
            later=(D,),
            operators=(("move c d", C),),
            give_up=False,
            via=(B,),
            coordinators=(B,),
            rewind_via=(A,),
            budget=Budget(attempts=1, acks=1, rewinds=1, reclaims=2, ticks=2),
            script=(
                *ran_out(B),
                ("ask", A, "rewind"),
                *registered("PutGroup", A, C),
                ("ask", B, "ack", 0),
                ("ask", C, "move c d", 0),
                *answered("SlotRequest", "SlotReply", C, A, B),
                *registered("PutTopic", C, A),
                ("deliver", "PutTopic", C, B),
                ("deliver", "PutTopic", C, D),
                ("reclaim", B),
                ("may", "deliver", "GroupsRequest", B, D),
            ),
        ),
    ),
    Rule(
        "move-is-announced",
        "a layout is adopted only once a majority of the voters has it as chosen",
        (around(LayoutCoordinator, "start", adopts_at_once),),
        scenario=told_and_emptied(
            "move-announced",
            "the only slot goes from c to d, which c tells before it loses its disk and hears a and b",
            (*chosen(C, A), ("may", "deliver", "PutTopic", C, D)),
        ),
    ),
    Rule(
        "resync-adopts-what-is-chosen",
        "a resync adopts a layout that is only chosen, and asks the nodes of that set",
        ((trust, "adopt_chosen", lambda context, now: []),),
        scenario=told_and_emptied(
            "move-chosen",
            "the only slot goes from c to d, which c tells before it loses its disk; a has the layout as chosen",
            (*registered("PutTopic", C, A), ("deliver", "PutTopic", C, D)),
        ),
    ),
    Rule(
        "move-waits-for-the-last-one",
        "the next set is proposed only when every slot is trusted",
        ((LayoutCoordinator, "may_propose", lambda self, context, round_, nodes: True),),
        scenario=Scenario(
            "move-back",
            "c's slot goes to d, which hears nothing, and back; b loses its disk",
            nodes=(A, B, C, D),
            later=(D,),
            move=(C, D),
            budget=Budget(attempts=0, resyncs=1),
            operators=(("move d c", A),),
            restart_nodes=(B,),
            give_up=False,
            goal="every slot votes",
            script=(
                *adopt(A, B, C, D),
                ("ask", A, "move d c", 0),
                ("may", "deliver", "SlotRequest", A, D),
                ("may", "deliver", "SlotReply", D, A),
                *asked("Prepare", "ProposalReply", A, C),
                *asked("Accept", "ProposalReply", A, C),
                *asked("PutTopic", "PutReply", A, C),
                *asked("PutTopic", "PutReply", A, C, D),
                ("lose", B),
                *links(B, A, C, D),
            ),
        ),
    ),
    Rule(
        "layout-outlives-changes",
        "a layout wins by its number, whatever the settings' stamps are",
        ((catalogue, "merge_topics", layout_by_stamp),),
        scenario=of_operators(
            "move-alter",
            "c's slot goes to d, which a and b tell; an ALTER through c, which began before and does not know",
            ("forbid", C),
            nodes=(A, B, C, D),
            later=(D,),
            move=(C, D),
            script=(("ask", C, "forbid", 0), *promised(C, A), *adopt(A, B, D), *told(D, A, B)),
        ),
    ),
    Rule(
        "move-holds-out-of-quarantine",
        "the node that had a slot tells its holds once it is out of quarantine itself",
        ((hold_recovery, "may_answer_holds", lambda replica, epoch, now: replica.epoch == epoch),),
        scenario=moving(
            "move-restart",
            "a0 is live by the votes of a and c, c is started again, and its slot goes to d",
            (
                *won(A, C),
                *restarted(C, A, B, D),
                *adopt(A, B, C, D),
                *told(D, A, B),
            ),
            budget=Budget(restarts=1, ticks=1),
            restart_nodes=(C,),
            coordinators=(A, B),
        ),
    ),
    Rule(
        "move-wiped-hears-the-present-set",
        "a new slot that loses its disk learns from the present set, not from the set before alone",
        (around(Resync, "lacking", lacks_of_either_set),),
        scenario=moving(
            "move-wiped",
            "c's slot goes to d, which a and c tell; b and d get the ACK of a0; d loses its disk, and hears a and c",
            (
                *adopt(A, B, C, D),
                *joined(D, A, C),
                *ran_out(B),
                *acked_at(B, D),
                ("lose", D),
                *links(D, A, C),
                *told(D, A, C) * 2,
                *QUARANTINE_OVER,
            ),
            later=(D,),
            budget=Budget(resyncs=1, acks=1, ticks=5),
            restart_nodes=(D,),
            coordinators=(B, A),
        ),
    ),
    Rule(
        "move-tells-no-more-closing",
        "who leaves has adopted the layout before it tells: it closes no producer id in the old one after that",
        ((resync, "may_answer_resync", lambda replica, message, sender: True),),
        scenario=CLOSED_BESIDE_A_RETRY,
    ),
    Rule(
        "move-tells-what-is-closed",
        "a new slot learns of the closed producer ids",
        ((Closing, "learn_closed", lambda self, numbers, now, new_slot: []),),
        scenario=CLOSED_BESIDE_A_RETRY,
    ),
)

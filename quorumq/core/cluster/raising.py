"""Raises of the replication factor: the next placement of a partition whose set has fewer slots than its topic wants.

The number wanted stands in the topic's layout. Each partition gets there by itself: nodes copy its payload as learners,
then all of them get slots in one layout, then the set before is dropped (docs/layouts.md, RAISE).
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumq.core.cluster.topics import named, rendezvous
from quorumq.core.messages import AlterTopic
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    STAMP_ZERO,
    Layout,
    Machines,
    NodeId,
    Placement,
    ReplicaSlot,
    Topic,
)


def check_raise(request: AlterTopic, topic: Topic, nodes: tuple[NodeId, ...], machines: Machines = ()) -> str:
    """Return the error in a change of a topic's replication factor, or ""; ``nodes`` are those that may get slots."""
    assert request.rf is not None
    if named(request) or request.partitions is not None:
        return f"rf is {request.rf}, beside other settings: change it by itself, because it takes time"
    has = max(len(members) for members in topic.replicas)
    if request.rf < has:
        return (
            f"rf is {request.rf}: topic {topic.name!r} has {has} replicas of a partition, which cannot become fewer; "
            "two sets of which one has fewer replicas need not share one that knows each ack"
        )
    most = len({machine for _, machine in machines} or nodes)
    if request.rf % 2 == 0 or request.rf > most:
        kind = "machines, as no machine has two replicas of a partition" if machines else "nodes"
        return (
            f"rf is {request.rf}: it must be odd (an even one tolerates no more failures than the odd one below it) "
            f"and at most {most}, the number of {kind} that are in the cluster and not drained"
        )
    return ""


def check_space(
    topic: Topic, rf: int, nodes: tuple[NodeId, ...], machines: Machines, full: Mapping[NodeId, str]
) -> str:
    """Return why too few nodes can take payload for a raise, or ""; ``full`` has those that take none, and why."""
    target = topic._replace(layout=(topic.layout or Layout(topic.id, 0, STAMP_ZERO, ()))._replace(rf=rf))
    able = tuple(node for node in nodes if node not in full)
    for partition, members in enumerate(topic.replicas if full and topic.target_rf != rf else ()):
        if len(members) + len(learners_of(target, partition, able, machines)) < rf:
            return (
                f"rf is {rf}: too few nodes can take the messages of partition {partition} of topic {topic.name!r}. "
                f"{'; '.join(why for node, why in full.items() if node in nodes)}"
            )
    return ""


def present_placement(topic: Topic, partition: int) -> Placement:
    """Return the placement of a partition, also of one that was never moved."""
    first = tuple(ReplicaSlot(node, FIRST_LAYOUT) for node in topic.replicas[partition])
    return topic.placement(partition) or Placement(partition, FIRST_LAYOUT, first)


def learners_of(
    topic: Topic, partition: int, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> tuple[NodeId, ...]:
    """Return the nodes that are to copy a partition, in the order of their rank: fewer if there are no more.

    Present learners stay as long as they may have a slot.
    """
    members, on = topic.replicas[partition], dict(machines)
    taken = [on.get(node, node) for node in members]
    chosen: dict[str, NodeId] = {}
    for node in (*topic.learners_of(partition), *rendezvous(nodes, topic.id, partition)):
        if node in nodes and on.get(node, node) not in taken:
            chosen.setdefault(on.get(node, node), node)
    return tuple(chosen.values())[: max(0, topic.target_rf - len(members))]


def next_placement(
    topic: Topic, partition: int, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> Placement | None:
    """Return the next placement of a partition on its way to the topic's replication factor; None if there is none now.

    The set before is dropped once every slot is trusted, and slots are added once each learner has the payload: who
    proposes that asks the slots first.
    """
    present = present_placement(topic, partition)
    if topic.layout is None or not topic.layout.rf or present.sources:
        return None  # a move is under way
    if present.before:
        return present._replace(before=())
    lacking = topic.layout.rf - len(present.slots)
    learners = learners_of(topic, partition, nodes, machines)
    if learners != present.learners:
        return present._replace(learners=learners)
    if lacking <= 0 or len(learners) < lacking:
        return None
    added = tuple(ReplicaSlot(node, 0) for node in learners)
    return present._replace(slots=present.slots + added, learners=())


def raised(
    layout: Layout, topic: Topic, rf: int, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> Layout:
    """Return a layout with another replication factor, and with the learners of each partition that waits for none.

    Args:
        layout: the layout, with the placements of the adopted one.
        topic: the register that has adopted the one before.
    """
    topic = topic._replace(layout=layout._replace(rf=rf))
    placements = {each.partition: each for each in layout.placements}
    for partition in range(topic.partitions):
        present = present_placement(topic, partition)
        learners = learners_of(topic, partition, nodes, machines)
        if not (present.sources or present.before) and learners != present.learners:
            placements[partition] = present._replace(learners=learners)
    return layout._replace(rf=rf, placements=tuple(placements[each] for each in sorted(placements)))

"""Promises that a state of the cluster itself can break, without a look at its clients."""

from __future__ import annotations

from quorumq.core.messages import FetchReply, StoreReply
from quorumq.core.values.types import Kind, Latest, NodeId, PartitionId
from sim.explorer.members import unaware
from sim.explorer.nodes import Local
from sim.explorer.observations import Observations, is_asked_for
from sim.explorer.requests import DEAD_GROUP, SPAN, creation
from sim.explorer.world import World

Locals = tuple[int, ...]


def handed_out(world: World, local: int, reply: int) -> str:
    """Check G3, seen from the node: it wins and delivers nothing that its own record says is settled. And FETCH: it
    brings nothing but the named messages, if some were named."""
    answer = world.nodes.traffic.replies.all[reply]
    if isinstance(answer, FetchReply) and answer.slices:
        if world.scenario.by_id and world.scenario.beside:
            return "named: the message is delivered, and only another one was named"
        node_state = world.nodes.locals[local]
        (delivery,) = answer.slices[0].deliveries
        _, _, n, kind = node_state.rank
        receipt = delivery.receipt
        expected = Kind.DEAD if receipt.group == DEAD_GROUP else Kind.OPEN
        if node_state.node == receipt.owner.node and node_state.rank != (
            receipt.generation,
            False,
            receipt.n,
            expected,
        ):
            return (
                f"G3 final: node {node_state.node} delivers at n={receipt.n} "
                f"what its own record calls {Kind(kind).name} at n={n}"
            )
        if node_state.node == receipt.owner.node:
            stored = node_state.core.replicas[receipt.partition].batches.stored.values()
            if not all(batch.durable for batch in stored):
                return f"G1 durable: node {node_state.node} delivers what is not on its disk"
    return ""


def granted_in_vain(world: World, sent: tuple[int, ...]) -> str:
    """Check that no replica holds messages that it refuses to store: HOLD is piggybacked on STORE."""
    for number in sent:
        envelope = world.nodes.traffic.messages.all[number]
        message = envelope.message
        if isinstance(message, StoreReply) and message.problems and message.votes and message.votes.granted:
            return f"piggyback: node {envelope.sender} holds what it has refused to store"
    return ""


def conserved(world: World, locals_: Locals, observed: Observations) -> str:
    """Check G7: what said OK as a dead letter is one at a majority, until something is done about it; and what was
    redriven is open there, in the generation that it died in."""
    for (generation, n), kind in ((observed.dead, Kind.DEAD), (observed.redriven, Kind.OPEN)):
        if n < 0:
            continue
        replicas = [world.nodes.locals[local] for local in locals_]
        members = [node_state for node_state in replicas if node_state.node in world.members]
        least = (generation, False, n, int(kind))
        having = [
            node_state
            for node_state in members
            if node_state.rank > least or (node_state.rank == least and is_kept(node_state, kind))
        ]
        if len(having) < len(members) // 2 + 1:
            messages = "the dead letter" if kind == Kind.DEAD else "the redriven message"
            return f"G7 dead letters: only {len(having)} of {len(members)} replicas have {messages} at n={n}"
    return ""


def is_kept(node_state: Local, kind: Kind) -> bool:
    """Return True if the group has the message open, holds and delays aside, or keeps its dead letter."""
    return kind == Kind.DEAD or all(
        view.readable(SPAN, view.covers(SPAN.producer_id, batch.header.published_ms))
        for replica in node_state.core.replicas.values()
        for view in replica.views.main_groups()
        for batch in replica.batches.stored.values()
    )


def unnamed(world: World, locals_: Locals) -> str:
    """Check PURGE: a message that no purge named stays as it is."""
    for node_state in (world.nodes.locals[local] for local in locals_):
        if node_state.rank[3] == Kind.SKIPPED:
            return f"purge: node {node_state.node} has settled the message, and only another one was named"
    return ""


def spared(world: World, locals_: Locals) -> str:
    """Check ATTEMPTS: a message that was only interrupted, and had no time to expire, is no dead letter."""
    for node_state in (world.nodes.locals[local] for local in locals_):
        if node_state.rank[3] == Kind.DEAD:
            return f"interrupted: node {node_state.node} has a dead letter whose delivery was given back as interrupted"
    return ""


def one_topic(world: World, locals_: Locals, observed: Observations) -> str:
    """Check CREATE: all nodes serve the same topic of that name; none serves one answered `conflict`; and a majority
    serves what was answered with success, so that a client that looks for it finds it."""
    served = [world.nodes.locals[local].served for local in locals_]
    everything = sorted({topic for topics in served for topic in topics})
    if len(everything) > 1:
        texts = [
            f"{name} the one with rf {', '.join(str(rf) for rf, _ in topics)}"
            for name, topics in zip(world.scenario.nodes, served, strict=True)
            if topics
        ]
        return f"one topic: of one name {'; '.join(texts)} is served"
    for index, (phase, made, *_) in enumerate(observed.operations):
        kind = world.scenario.operators[index][0]
        if kind == "delete" and phase == "done":
            return deleted(world, locals_)
        if kind != "create":
            continue
        rf = creation(world.scenario, index).rf
        if phase == "conflict" and any(topic[0] == rf for topic in everything):
            return f"conflict: c{index} (rf {rf}) was answered `conflict`, and a node serves it"
        both = zip(world.scenario.nodes, served, strict=True)
        having = [name for name, topics in both if any(topic[1] == made for topic in topics)]
        if phase == "done" and (lacking := unaware(world, locals_, having)):
            return f"created: c{index} is not served by the voters {lacking}"
    return ""


def deleted(world: World, locals_: Locals) -> str:
    """Check DELETE: no partition has a majority of replicas any more that would take a message."""
    for local in locals_:
        for partition, replica in world.nodes.locals[local].core.replicas.items():
            cores = [world.nodes.locals[locals_[world.scenario.index[name]]].core for name in replica.members]
            having = sum(partition in core.replicas for core in cores)
            if having > len(cores) // 2:
                return f"DELETE: partition {partition.number} takes messages after the topic's deletion had said OK"
    return ""


def voting_sets(world: World, locals_: Locals) -> list[tuple[NodeId, ...]]:
    """Return the sets of the first partition, by the layouts that nodes have adopted, in which a majority votes."""
    voting: dict[tuple[NodeId, ...], int] = {}
    for local in locals_:
        core = world.nodes.locals[local].core
        replica = core.replicas.get(PartitionId(world.topic, 0))
        if replica is not None and core.config.node in replica.members:
            voting.setdefault(replica.members, 0)
            voting[replica.members] += replica.is_trusted and core.state.trusted
    return [members for members, nodes in voting.items() if nodes > len(members) // 2]


def one_set(world: World, locals_: Locals) -> str:
    """Check LAYOUTS: never do the majorities of two sets of a partition vote at once."""
    sets = voting_sets(world, locals_)
    both = " and of ".join(", ".join(members) for members in sets)
    return f"one set: majorities of {both} vote" if len(sets) > 1 else ""


def not_closed(world: World, locals_: Locals, observed: Observations) -> str:
    """Check RECLAIM, closing: no node counts a message as one of a closed producer id that was OK, and not settled."""
    if observed.published:
        for node in (world.nodes.locals[local] for local in locals_):
            kept = (*node.core.replicas.values(), *node.core.context.sources.values())
            if any(SPAN.producer_id in replica.batches.closed for replica in kept):
                return f"G1 durable: node {node.node} has closed the producer id of a message that was OK"
    return ""


def kept_payload(world: World, locals_: Locals) -> str:
    """Check RECLAIM: no payload goes that the group reads anew, as a rewind had said OK before any sweep."""
    for node in (world.nodes.locals[local] for local in locals_):
        if any(replica.batches.reclaimed.messages for replica in node.core.replicas.values()):
            return f"RECLAIM: node {node.node} has dropped what the group reads since a rewind that was OK"
    return ""


def group_stands(world: World, locals_: Locals, observed: Observations) -> str:
    """Check SETGROUP, BEGIN: the OK creation of the group is at a majority, of the nodes and of each replica
    set; and of a group from latest what was there before is skipped, and no later message."""
    every = [world.nodes.locals[local] for local in locals_]
    if not is_asked_for(observed) and any(node_state.group is not None for node_state in every):
        return "forbidden: a group is there that only a FETCH has asked for, after none was to make one"
    stands = observed.stands
    if stands is None:
        return ""
    mark = (stands.generation, stands.made)
    having = {
        node_state.node
        for node_state in every
        if node_state.group is not None
        and (node_state.group.generation, node_state.group.made) == mark
        and node_state.group.latest != Latest.SKIPPING
    }
    topics = [node_state.core.catalogue.topics.get(world.topic) for node_state in every]
    sets = max((topic.replicas for topic in topics if topic is not None), key=len)
    if len({topic.layout_number for topic in topics if topic is not None}) > 1:
        sets = (*voting_sets(world, locals_), *sets[1:])
    if lacking := unaware(world, locals_, having):
        return f"stands: voters {lacking} do not have the group as its creation was OK"
    for members in sets:
        there = len(having.intersection(members))
        if there <= len(members) // 2:
            return f"stands: of {', '.join(members)} only {there} have the group as its creation was OK"
    if not stands.latest:
        return ""
    skipped = [node_state.node for node_state in every if node_state.rank[3] == Kind.SKIPPED]
    late = any(operation.after and operation.phase == "done" for operation in observed.operations)
    if late and skipped:
        return f"latest: node {skipped[0]} skips what was published after the group was OK"
    if observed.before and len(skipped) <= len(every) // 2:
        return (
            f"latest: {len(skipped)} of {len(every)} nodes skip what was there before the group was asked for"
        )
    return ""

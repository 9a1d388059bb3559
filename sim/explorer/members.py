"""Promises about members of the cluster and layouts of a topic."""

from __future__ import annotations

from quorumq.core.values.types import ClusterLayout, NodeId, Topic
from sim.explorer.facts import Facts
from sim.explorer.world import World


def members_broken(world: World, locals_: tuple[int, ...], facts: Facts) -> str:
    """Return the broken promise of MEMBERS, or "": a layout of the cluster is one; a change that was OK is known to a
    majority of the voters; and a removed node has no partition."""
    scenario = world.scenario
    cores = [world.nodes.locals[local].core for local in locals_]
    layouts: dict[int, ClusterLayout] = {}
    for core in cores:
        layout = core.catalogue.cluster.layout
        if layouts.setdefault(layout.number, layout) != layout:
            return f"one layout: layout {layout.number} of the cluster is two"
    voters = [core for core in cores if core.config.node in core.config.nodes]
    for (kind, _), operation in zip(scenario.operators, facts.operations, strict=True):
        if operation.phase == "done" and kind.split()[0] in ("add", "drop"):
            node, there = kind.split()[1], kind.startswith("add")
            having = sum(core.catalogue.cluster.is_member(node) is there for core in voters)
            if having <= len(voters) // 2 and all(core.state.trusted for core in voters):
                return f"members: of {len(voters)} voters {having} know of {kind!r}, which was OK"
    gone = sorted({node for core in cores for node in core.catalogue.cluster.gone})
    for core in cores:
        for topic in core.catalogue.live():
            kept = [node for node in gone if node in nodes_of_topic(topic)]
            if kept:
                return f"removed: node {kept[0]} was removed, and node {core.config.node} places a partition there"
    return ""


def nodes_of_topic(topic: Topic) -> list[NodeId]:
    """Return the nodes that have a partition of a topic, will have one, or keep its payload."""
    nodes = [node for members in topic.replicas for node in members]
    for layout in (topic.layout, topic.next_layout):
        for placement in layout.placements if layout is not None else ():
            nodes += [*placement.nodes, *placement.sources]
    return nodes

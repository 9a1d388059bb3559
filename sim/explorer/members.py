"""Promises about members of the cluster and layouts of a topic."""

from __future__ import annotations

from collections.abc import Collection

from quorumq.core.cluster.rounds import majority_of
from quorumq.core.values.types import ClusterLayout, NodeId, Topic
from sim.explorer.observations import Observations
from sim.explorer.world import World


def members_broken(world: World, locals_: tuple[int, ...], observed: Observations) -> str:
    """Return the broken promise of MEMBERS, or "": a layout of the cluster is one; a change that was OK is known to a
    majority of the voters; and a removed node has no partition."""
    scenario = world.scenario
    cores = [world.nodes.locals[local].core for local in locals_]
    layouts: dict[int, ClusterLayout] = {}
    for core in cores:
        layout = core.catalogue.cluster.layout
        if layouts.setdefault(layout.number, layout) != layout:
            return f"one layout: layout {layout.number} of the cluster is two"
    for (kind, _), operation in zip(scenario.operators, observed.operations, strict=True):
        if operation.phase == "done" and kind.split()[0] in ("add", "drop"):
            node, there = kind.split()[1], kind.startswith("add")
            having = {it.config.node for it in cores if it.catalogue.cluster.is_member(node) is there}
            if lacking := unaware(world, locals_, having):
                return f"members: voters {lacking} do not know of {kind!r}, which was OK"
    gone = sorted({node for core in cores for node in core.catalogue.cluster.gone})
    for core in cores:
        for topic in core.catalogue.live():
            kept = [node for node in gone if node in nodes_of_topic(topic)]
            if kept:
                return f"removed: node {kept[0]} was removed, and node {core.config.node} places a partition there"
    return ""


def unaware(world: World, locals_: tuple[int, ...], having: Collection[NodeId]) -> str:
    """Return voters without what was OK that could answer a read by themselves, in any epoch; "" if none could."""
    cores = [world.nodes.locals[local].core for local in locals_]
    for cluster in {core.catalogue.cluster.epoch: core.catalogue.cluster for core in cores}.values():
        voting = [it for it in cores if it.state.trusted and it.state.voting_epoch == cluster.epoch]
        lacking = [it.config.node for it in voting if it.config.node in cluster.voters]
        lacking = [node for node in lacking if node not in having]
        size = len(cluster.voters)
        if len(lacking) > size - majority_of(size):
            return ", ".join(lacking)
    return ""


def nodes_of_topic(topic: Topic) -> list[NodeId]:
    """Return the nodes that have a partition of a topic, will have one, or keep its payload."""
    nodes = [node for members in topic.replicas for node in members]
    for layout in (topic.layout, topic.next_layout):
        for placement in layout.placements if layout is not None else ():
            nodes += [*placement.nodes, *placement.sources]
    return nodes

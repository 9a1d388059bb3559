"""Values that an acceptor refuses because of nodes that are drained or removed (docs/layouts.md, MEMBERS 12).

A removed node has no partition. Each majority that removes it meets each that places something on it, so an acceptor
of both refuses the second one. If each of two acceptors refused the other's value, and the third had lost its directory
and learned both values, none would ever be chosen. So a drained node gets nothing new, unless that may have been chosen
already, and its removal is proposed only once no voter has accepted anything that places something on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.members import Members, kept_on, nodes_of
from quorumq.core.values.types import ClusterLayout, Instance, Layout, NodeId, Value, instance_of


def undecided_on(catalogue: Catalogue, nodes: Sequence[NodeId]) -> list[Value]:
    """Return accepted values that are undecided here, and place a partition on one of these nodes."""
    accepted = [it.value for it in catalogue.decisions.values() if it.value is not None] if nodes else []
    return [value for value in accepted if any(node in nodes for node in nodes_of(value))]


def contradiction(catalogue: Catalogue, value: Value, *, stands: bool = False) -> str:
    """Return why an acceptor must not accept a value beside what it knows or has accepted, or "".

    Args:
        stands: True if the value may have been chosen, as the proposer says: a drained node may get it.
    """
    cluster = catalogue.cluster
    if isinstance(value, ClusterLayout):
        gone = [node for node in Members(value).gone if node not in cluster.gone]
        in_use = [node for other in undecided_on(catalogue, gone) for node in nodes_of(other)]
        topics = catalogue.live()
        kept = [
            node for node in gone if node in in_use or any(kept_on(node, it, cluster.first) for it in topics)
        ]
        return f"{', '.join(kept)} has partitions" if kept else ""
    nodes = dict.fromkeys(nodes_of(value))
    chosen = Instance(b"", "", cluster.layout.number)
    following = catalogue.decisions.irange(chosen, Instance(b"", "\0", 0)) if nodes else ()
    layouts = [catalogue.decisions[instance].cluster for instance in following]
    gone = [*cluster.gone, *(node for it in layouts if it is not None for node in Members(it).gone)]
    if removed := [node for node in nodes if node in gone]:
        return f"{', '.join(removed)} was removed from the cluster"
    drained = cluster.drained if not stands else ()
    new = [node for node in nodes if node in drained and not has_already(catalogue, node, value)]
    return f"{', '.join(new)} is drained" if new else ""


def has_already(catalogue: Catalogue, node: NodeId, value: Value) -> bool:
    """Return True if a value places nothing new on a node: the topic has it, or the value may have been chosen."""
    ours = catalogue.decisions.get(instance_of(value))
    if ours is not None and ours.value == value:
        return True
    topic = catalogue.topics.get(value.topic) if isinstance(value, Layout) else None
    return topic is not None and bool(kept_on(node, topic, catalogue.cluster.first))

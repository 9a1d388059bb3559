"""Clusters whose voters change: what tests ask of them, and the messages that they lose."""

from __future__ import annotations

from collections.abc import Callable

from quorumq.core import messages as m
from quorumq.core.values.types import ClusterLayout, NodeId
from tests.core.growing import GrowingCluster
from tests.core.network import wipe


def grown(*added: NodeId, nodes: int = 3) -> GrowingCluster:
    """Return a cluster of the nodes a, b, c … and these members."""
    cluster = GrowingCluster(nodes, hold_time_max=2.0)
    for name in added:
        cluster.add(name)
    return cluster


def move(cluster: GrowingCluster, node: NodeId, to: NodeId = "", through: NodeId = "a") -> object:
    """Have the voter's slot of a node go to another one."""
    return cluster.ask(through, m.ChangeMembers("move-voter", node, to=to), 6.0)


def moved(cluster: GrowingCluster, node: NodeId, to: NodeId = "", through: NodeId = "a") -> ClusterLayout:
    reply = move(cluster, node, to, through)
    assert isinstance(reply, m.ChangeMembersReply), reply
    return reply.layout


def voters(cluster: GrowingCluster, name: NodeId) -> tuple[NodeId, ...]:
    return cluster.nodes[name].catalogue.cluster.voters


def votes(cluster: GrowingCluster, name: NodeId) -> bool:
    """Return True if answers of this node about registers count."""
    state = cluster.nodes[name].state
    return state.trusted and state.voting_epoch >= 0 and name in state.catalogue.cluster.voters


def create(cluster: GrowingCluster, name: str, through: NodeId = "a", rf: int = 1) -> None:
    """Make a topic through a node."""
    key = cluster.submit(through, m.CreateTopic(name, rf, 1))
    cluster.advance(6.0)
    assert isinstance(cluster.replies[key], m.TopicReply), cluster.replies[key]


def restart(cluster: GrowingCluster, *names: NodeId) -> None:
    cluster.crash(names)
    cluster.relink()


def empty(cluster: GrowingCluster, name: NodeId) -> None:
    """Have a node lose its directory, and dial the others again until all know its new start."""
    wipe(cluster, name)
    for _ in range(3):
        cluster.advance(2.0)
        cluster.relink()


def between(*names: NodeId) -> Callable[[NodeId, NodeId, object], bool]:
    """Cut these nodes off from all others, and let them talk to each other."""
    return lambda sender, to, message: (sender in names) != (to in names)


NEWS = (m.SyncRegisters, m.SyncTopics)


def quiet(sender: NodeId, to: NodeId, message: object) -> bool:
    """Return True for registers that travel outside of rounds: no rule depends on them."""
    return isinstance(message, NEWS) or (isinstance(message, m.PutTopic) and not message.round)


def losing(*drops: Callable[[NodeId, NodeId, object], bool]) -> Callable[[NodeId, NodeId, object], bool]:
    """Lose what one of these says, and registers outside of rounds."""
    return lambda sender, to, message: any(drop(sender, to, message) for drop in (quiet, *drops))


def to_nodes(kind: type, *names: NodeId) -> Callable[[NodeId, NodeId, object], bool]:
    """Lose messages of a kind from other nodes to these."""
    return lambda sender, to, message: isinstance(message, kind) and to in names and sender != to


def unaware(*names: NodeId) -> Callable[[NodeId, NodeId, object], bool]:
    """Lose layouts with other voters on their way to these nodes."""

    def drop(sender: NodeId, to: NodeId, message: object) -> bool:
        layout = message.layout if isinstance(message, m.PutCluster) else None
        layout = message.cluster if isinstance(message, m.ProposalReply) else layout
        return to in names and layout is not None and layout.epoch > 0

    return drop


def made(cluster: GrowingCluster, through: NodeId, deliveries: int) -> bool:
    """Create the topic jobs with a number of deliveries through a node, and return True if that is OK."""
    return isinstance(cluster.ask(through, m.CreateTopic("jobs", 1, deliveries), 6.0), m.TopicReply)

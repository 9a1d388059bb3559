"""Faults of the network and of disks in a cluster of cores."""

from __future__ import annotations

from quorumq.core.messages import (
    Envelope,
    PutGroup,
    SyncTopics,
)
from quorumq.core.messages.effects import LinkDown, Received
from tests.core.cluster import Cluster


def nothing(sender: str, to: str, message: object) -> bool:
    """Drop no message: the value of `Cluster.drop` on a healthy network."""
    return False


def hand_over(cluster: Cluster, sender: str, to: str, message: object) -> None:
    """Deliver a message of an earlier moment now."""
    core, peer = cluster.nodes[sender], cluster.nodes[to]
    envelope = Envelope(
        sender, core.state.incarnation, to, peer.state.incarnation, core.state.clock.value, message
    )  # type: ignore[arg-type]
    cluster.feed(to, Received(envelope))


def hears_all(cluster: Cluster) -> None:
    """Drop no message from now on."""
    cluster.drop = lambda sender, to, message: False


def deaf_to_registers(cluster: Cluster, name: str) -> None:
    """Drop all registers of groups on their way to node ``name``."""
    cluster.drop = lambda sender, to, message: to == name and isinstance(message, PutGroup | SyncTopics)


def wipe(cluster: Cluster, name: str, kept: list[object] | None = None) -> None:
    """Kill a node, and start it with an empty journal, or with the records ``kept``."""
    cluster.kill(name)
    cluster.journals[name] = list(kept or [])  # type: ignore[arg-type]
    cluster.start(name)


def cut(cluster: Cluster, *pairs: str) -> None:
    """Cut the links of exactly these pairs of nodes."""
    away = {frozenset(pair) for pair in pairs}
    cluster.drop = lambda sender, to, message: frozenset((sender, to)) in away

    def link(dialler: str, acceptor: str) -> None:
        if frozenset((dialler, acceptor)) not in away:
            Cluster.link(cluster, dialler, acceptor)

    cluster.link = link  # type: ignore[method-assign]
    for one, two in pairs:
        for node, peer in ((one, two), (two, one)):
            if node in cluster.nodes:
                cluster.feed(node, LinkDown(peer))

"""Faults of the network and of disks in a cluster of cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quorumq.core import messages as m
from quorumq.core.messages.effects import LinkDown, Received
from quorumq.core.messages.records import JournalRecord
from tests.core.cluster import Cluster

Drop = Callable[[str, str, Any], bool]


def held_back(
    cluster: Cluster, is_late: Drop, is_lost: Drop = lambda *message: False
) -> list[tuple[str, str, object]]:
    """Have some messages be late, and some of the others lost. Returns the list of late ones."""
    late: list[tuple[str, str, object]] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if is_late(sender, to, message):
            late.append((sender, to, message))
            return True
        return is_lost(sender, to, message)

    cluster.drop = drop
    return late


def noted(cluster: Cluster, is_noted: Drop, is_lost: Drop = lambda *message: False) -> list[Any]:
    """Have some messages noted, and some lost. Returns the list of noted ones."""
    messages: list[Any] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if is_noted(sender, to, message):
            messages.append(message)
        return is_lost(sender, to, message)

    cluster.drop = drop
    return messages


def hand_over(cluster: Cluster, sender: str, to: str, message: object) -> None:
    """Deliver a message of an earlier moment now."""
    core, peer = cluster.nodes[sender], cluster.nodes[to]
    envelope = m.Envelope(
        sender, core.state.incarnation, to, peer.state.incarnation, core.state.clock.value, message
    )  # type: ignore[arg-type]
    cluster.feed(to, Received(envelope))


def deaf_to_registers(cluster: Cluster, name: str) -> None:
    """Drop all registers of groups on their way to node ``name``."""
    cluster.drop = lambda sender, to, message: to == name and isinstance(message, m.PutGroup | m.SyncTopics)


def begins_comparison(message: object) -> bool:
    """Return True if anti-entropy of a partition begins with this message."""
    return isinstance(message, m.SyncDigests) and not message.locations


class SlowDisk:
    """Journal of one node of a cluster whose records become durable by `sync` alone, from now on."""

    needs_sync = True

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.driver = cluster.drivers[name]
        self.records = cluster.journals[name]
        self.written = self.durable = 0
        self.synced = len(self.records)
        self.driver.journal = self  # type: ignore[assignment]

    @property
    def position(self) -> int:
        return len(self.records)

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        self.records += records
        self.written += bool(records)
        return self.written

    def begin_sync(self, here: bool) -> None:
        pass

    def sync(self) -> None:
        self.durable, self.synced = self.written, len(self.records)
        self.driver.synced()
        self.driver.feed()

    def lose(self) -> None:
        """Lose what is not durable: the node is about to be killed."""
        del self.records[self.synced :]


def wipe(cluster: Cluster, names: str, seconds: float = 0.0, *, kept: Sequence[JournalRecord] = ()) -> None:
    """Kill nodes, named by one character each, start them with empty journals or the records ``kept``, and wait."""
    for name in names:
        cluster.kill(name)
        cluster.journals[name] = list(kept)
        if not kept:
            cluster.dropped[name].clear()
    cluster.start(names, seconds)


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

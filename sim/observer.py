"""Reports of a run's machines for its history, its clients and their peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorumq.core.messages import Release
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Group, NodeId, PartitionId, Record, Span, Topic, record_rank
from quorumq.history import layout_values, owner_text, register_value, spans_value
from sim.topics import Topics
from sim.world import World


class Observer:
    """Hears the events of one run's machines.

    Args:
        full: True if the history gets the nodes' lines too, which no checker needs.
        steady: True if no clock is ever set.

    Attributes:
        hosts: the machines, by name.
        purged: purges of messages that replicas merged, by the node that did.
        hold_rounds: HOLD rounds that asked another replica.
        on_steps: called with the callers when a step of a node has left a part of their requests to the next one.
    """

    def __init__(self, world: World, topics: Topics, *, full: bool, steady: bool) -> None:
        self.world = world
        self.topics = topics
        self.full = full
        self.steady = steady
        self.hosts: Mapping[NodeId, Any] = {}
        self.on_steps: Callable[[NodeId, list[Any]], None] = lambda name, asked: None
        self.purged: dict[tuple[PartitionId, str], SpanMap[tuple[NodeId, Record]]] = {}
        self.hold_rounds: dict[tuple[NodeId, int, int], None] = {}
        self.fetched_batches = 0

    def on_broken(self, source: str, target: str) -> None:
        """Break a connection that keeps its order, because it lost something."""
        if source in self.hosts and target in self.hosts:
            self.hosts[source].lose_link(target, self.world.draw(0.01, 0.5, "broken", source, target))

    def on_death(self, name: NodeId, *, power: bool) -> None:
        """Let the others notice that a node is gone, sooner if its machine still answers for it."""
        soonest, latest = (0.3, 2.0) if power else (0.001, 0.05)
        for host in self.hosts.values():
            if name in host.links.up:
                host.lose_link(name, self.world.draw(soonest, latest, "death", host.name, name))

    def on_hold_sent(self, name: NodeId, life: int, number: int) -> None:
        """Note that a HOLD round asks another replica."""
        self.hold_rounds[(name, life, number)] = None

    def on_fetched(self, name: NodeId, reply: Any) -> None:
        """Note that a node began to write a FETCH's answer."""
        mine = [part for part in reply.slices if part.deliveries[0].receipt.owner.node == name]
        self.fetched_batches += len(mine)
        for delivery in (delivery for part in mine if self.full for delivery in part.deliveries):
            description = self.topics.described(delivery.receipt)
            self.world.note(f"node:{name}", "hold_won", **description, attempt=delivery.attempt)

    def note(self, name: NodeId, kind: str, partition: PartitionId, **fields: object) -> None:
        """Write a line of a node about a partition."""
        self.world.note(f"node:{name}", kind, **self.topics.location(partition), **fields)

    def note_release(self, name: NodeId, message: Release) -> None:
        """Note that a node gave up a HOLD round, or the holds that it won."""
        for released in message.released:
            if released.owner.node == name:
                fields = {"spans": spans_value(released.spans), "owner": owner_text(released.owner)}
                self.note(name, "hold_lost", released.partition, group=released.group, **fields)

    def note_death(self, name: NodeId, record: Any, span: Span, value: Record) -> None:
        """Note that a node wrote a dead letter because a message ran out of deliveries."""
        death = value.death
        assert death is not None
        self.note(
            name,
            "dead_letter",
            record.partition,
            group=record.group,
            generation=value.generation,
            n=value.n,
            spans=spans_value((span,)),
            owner=f"{death.node}.0.0#{death.ballot.time:x}@{death.ballot.node}",
            outcome="ok",
            reason=death.reason,
        )

    def note_purged(
        self, name: NodeId, partition: PartitionId, group: str, span: Span, record: Record
    ) -> None:
        """Note that a replica merged such a record: it is listed at the end even if its producer id was closed
        meanwhile."""
        purged = self.purged.setdefault((partition, group), SpanMap())
        for part, old in purged.split(span):
            if old is None or record_rank(old[1]) < record_rank(record):
                purged.set(part, (name, record))

    def note_layout(self, name: NodeId, topic: Topic) -> None:
        """Note that a node has this layout of a topic, durably."""
        for fields in layout_values(topic) if topic.id in self.topics.names else ():
            self.world.note(f"node:{name}", "layout", topic=self.topics.names[topic.id], **fields)

    def note_register(self, name: NodeId, register: Group) -> None:
        """Note that a node has this register of a group."""
        topic = self.topics.names[register.topic]
        self.world.note(f"node:{name}", "register", topic=topic, **register_value(register))

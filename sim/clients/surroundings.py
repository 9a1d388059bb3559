"""Surroundings that the clients of a run share: the world, the machines that they ask, and the sightings so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import Kind, PartitionId, Receipt, Span
from sim.machine import cores_of
from sim.options import Options
from sim.topics import Topics
from sim.world import World

LATE_GROUP = "late"
"""The group that is created from latest."""

STRAY_GROUP = "stray"
"""A group that is read and that no client creates."""


@dataclass(slots=True)
class Counts:
    """Counts of a run that are reported, not judged."""

    delivered: int = 0
    redelivered: int = 0
    published: int = 0


class Machine(Protocol):
    """Host of a node that may or may not run."""

    core: NodeCore | None

    def break_off(self, client: Any, op: int) -> None:
        """Break a client's connection with a request open on it."""

    def on_request(self, caller: Any, request: Any) -> None:
        """Take in a client's request."""

    def on_gone(self, name: str, op: int) -> None:
        """Note that a client has hung up."""


class Surroundings:
    """Everything that every client of one run knows.

    Attributes:
        groups: groups that read the topic.
        guests: groups made by a FETCH, if at all, while the run goes on.
        on_closing: called with a node when a change through it is to make the topic make no groups by itself.
        on_closed: called when that is confirmed.
        keeps: True if payload is kept as long as the run lasts.
        on_late_ack: called when a client learns that a message was acked after its hold had run out.
    """

    def __init__(self, world: World, topics: Topics, machines: Mapping[str, Machine]) -> None:
        self.world = world
        self.topics = topics
        self.machines = machines
        self.options: Options = world.options
        self.groups = [f"g{i}" for i in range(self.options.groups)]
        self.guests: list[str] = []
        self.on_closing: Callable[[str], None] = lambda node: None
        self.on_closed: Callable[[], None] = lambda: None
        # Reclaimed payload could not be read again.
        options = self.options
        self.keeps = bool(options.rewind or options.unmake or options.late_group or options.guests)
        self.keeps = self.keeps and options.keep
        self.retention = 3600.0 if self.keeps else 0.0
        self.counts = Counts()
        self.on_late_ack: Callable[[Receipt], None] = lambda receipt: None

    def lacks(self, group: str) -> bool:
        """Return True if a node that is up knows the group of the topic as deleted."""
        topic = self.topics.current
        cores = cores_of(self.machines).values()
        return topic is not None and any(core.catalogue.is_group_deleted(topic.id, group) for core in cores)

    def reads(self, group: str) -> bool:
        """Return True if a node that is up knows that the group reads the topic."""
        topic = self.topics.current
        cores = cores_of(self.machines).values()
        return topic is not None and any(core.catalogue.reads(topic.id, group) for core in cores)

    def tombstones(self, partition: PartitionId, group: str, span: Span) -> tuple[int, int]:
        """Count the replicas that are up and have ACKED for the first message of ``span``, and all members."""
        have, members = 0, 0
        for core in cores_of(self.machines).values():
            replica = core.replicas.get(partition)
            if replica is None:
                continue
            members = len(replica.members)
            view = replica.views.groups.get(group)
            record = view.records.get(span.producer_id, span.start) if view is not None else None
            have += record is not None and record.kind == Kind.ACKED
        return have, members

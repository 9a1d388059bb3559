"""Sightings that a run must have, and the history's lines of a node (sim/sometimes.py, docs/history.md).

A host reports to `Sightings` its sends, appends and losses; nothing that a node does depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quorumq.core.messages import Hold, HoldReply, PeerMessage, Release, Store, StoreReply
from quorumq.core.messages.records import AttemptsCounted, GroupPut, RecordsMerged, SessionsClosed, TopicPut
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    STAMP_ZERO,
    BatchHeader,
    Kind,
    NodeId,
    PartitionId,
    Span,
    Topic,
)
from quorumq.history import spans_value
from sim.observer import Observer
from sim.topics import Topics
from sim.world import SimError


class Sightings:
    """Sightings of one host of the run that the observer sees."""

    def __init__(self, observer: Observer, name: NodeId) -> None:
        self.observer = observer
        self.world = observer.world
        self.name = name
        self.stored: dict[tuple[Any, ...], None] = {}  # batches that were durable here once
        self.layouts: dict[bytes, int] = {}  # the last layout of each topic that was noted

    def sends(self, message: PeerMessage, life: int) -> None:
        """Note a message to a peer, in life number ``life``."""
        world = self.world
        world.count(type(message).__name__)
        if isinstance(message, Store):
            if message.more:
                world.saw("several publishes went as one STORE")
            if message.hold is not None:
                self.observer.on_hold_sent(self.name, life, message.hold.round)
        elif isinstance(message, StoreReply) and message.votes is not None:
            if message.votes.granted:
                world.saw("a HOLD was piggybacked on a STORE")
        elif isinstance(message, HoldReply):
            if message.abstained and not message.error:
                world.saw("a replica in quarantine abstained")
            if message.tombs:
                world.saw("read repair fired")
            if any(item.ballot == STAMP_ZERO for item in message.not_due):
                world.saw("a HOLD asked for what was not due")
            if message.tokens is not None and 0 <= message.tokens < sum(
                item.span.size for item in message.granted
            ):
                world.saw("a vote had too few tokens")
            if any(item.unseen for item in message.granted):
                world.saw("a replica voted on what it had not seen")
            for item in message.refused:
                if item.remaining > 0:
                    world.saw("a HOLD met another's hold")
                    break
        elif isinstance(message, Hold):
            self.observer.on_hold_sent(self.name, life, message.round)
        elif isinstance(message, Release) and self.observer.full:
            self.observer.note_release(self.name, message)

    def keeps(self, header: BatchHeader) -> None:
        """Note that a batch is durable here: the checker of loss counts its nodes when its publish is confirmed."""
        key = (header.partition, header.spans)
        if key in self.stored:
            return
        self.stored[key] = None
        self.observer.note(self.name, "store", header.partition, spans=spans_value(header.spans))

    def adopts(self, topic: Topic) -> None:
        """Note that a register is durable here: until then the node votes by the layout before."""
        if topic.layout_number > self.layouts.get(topic.id, FIRST_LAYOUT):
            self.layouts[topic.id] = topic.layout_number
            self.observer.note_layout(self.name, topic)

    def discards(self, headers: Iterable[BatchHeader | None]) -> None:
        """Count these batches as not stored: they are stored again if a peer sends their payload."""
        for header in headers:
            if header is not None:
                self.stored.pop((header.partition, header.spans), None)

    def appends(self, records: tuple[Any, ...], core: NodeCore | None, timed: bool) -> None:
        """Note the sightings in journal records; ``timed`` is True if nothing but time led to them."""
        for record in records:
            kind = type(record)
            if kind is AttemptsCounted:
                if timed:
                    self.world.saw("a hold expired")
            elif kind is GroupPut:
                self.observer.note_register(self.name, record.group)
            elif kind is TopicPut:
                self.observer.topics.registers.seen(self.name, record.topic)
            elif kind is SessionsClosed:
                self.world.saw("a producer id was closed")
            elif kind is RecordsMerged:
                for span, value in record.entries:
                    if value.kind in (Kind.SKIPPED, Kind.PURGED):
                        self.observer.note_purged(self.name, record.partition, record.group, span, value)
                    death = value.death
                    if value.kind != Kind.DEAD or death.node != self.name or death.reason == "rejected":
                        continue
                    if death.reason == "expired":
                        self.world.saw("a message expired")
                        self.see_ttl(core, record.partition, span)
                    if self.observer.full or death.reason == "expired":
                        self.observer.note_death(self.name, record, span, value)

    def see_ttl(self, core: NodeCore | None, partition: PartitionId, span: Span) -> None:
        """Note the expiry of a message without a TTL of its own: it was the topic's."""
        replica = core.replicas.get(partition) if core is not None else None
        for _, slot in replica.batches.index.within(span) if replica is not None else ():
            if not replica.batches.stored[slot.number].header.ttl_ms:  # type: ignore[union-attr]
                self.world.saw("a message expired by the topic's TTL")

    def recovers(self, core: NodeCore) -> None:
        """Note if replies on holds ended a replica's quarantine, and if it learned holds from them."""
        if core.context.hold_recovery.awaited:
            return
        self.world.saw("a quarantine ended early")
        views = [view for replica in core.replicas.values() for view in replica.views.groups.values()]
        if any(view.held_count for view in views):
            self.world.saw("a hold was learned from a peer")


def check_deleted(
    name: NodeId, core: NodeCore, stored: Iterable[tuple[int, BatchHeader]], topics: Topics
) -> None:
    """Check that nothing is left of deleted topics, once the node knows of the deletion: no state, no batch.

    A batch for which this start had no topic stays until the next one (`NodeCore.orphans`).
    """
    over = topics.is_over
    gone = list(filter(over, topics.names))
    leftovers: dict[str, list[Any]] = {
        "a register": [
            topic.name for topic in core.catalogue.topics.values() if over(topic.id) and not topic.deleted
        ],
        "replicas": [partition for partition in core.replicas if over(partition.topic)],
        # A group whose topic's register was damaged, without another copy by now, looks like a new one.
        "groups": [
            group for group in core.catalogue.groups if over(group[0]) and group[0] in core.catalogue.topics
        ],
        "registered groups": [
            key
            for key in core.catalogue.registered_groups
            if over(key[0].topic) and key[0].topic in core.catalogue.topics
        ],
        "hints": [key for key in (*core.state.parked, *core.state.active) if over(key[0].topic)],
        "requests": [one for one in core.context.requests.values() if any(map(one.concerns, gone))],
        "batches": [
            number for number, header in stored if over(header.partition.topic) and number not in core.orphans
        ],
    }
    for subject, entries in leftovers.items():
        if entries:
            raise SimError(f"node {name} still has {subject} of a topic that was deleted: {entries[:3]}")

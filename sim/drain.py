"""The end of a run: whether everything is settled everywhere, and what each replica then has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorumq.core.messages import PeekRequest
from quorumq.core.partition.replica import Replica
from quorumq.core.spans import SpanMap
from quorumq.core.topics import SETTINGS
from quorumq.core.types import (
    STAMP_ZERO,
    Kind,
    NodeId,
    Origin,
    PartitionId,
    Record,
    Span,
    Topic,
)
from quorumq.history import spans_value
from sim.clients.producer import Producer
from sim.host import Host
from sim.observer import Observer
from sim.topics import OUTPUTS, Topics
from sim.world import World

OUTPUT_GROUP = "o"


class Drain:
    """Looks at every replica, once the cluster is healed.

    Args:
        world: time and the history.
        topics: what is known of the topics.
        hosts: the machines.
        observer: what they told.
        producers: of the run.
        groups: that read the topic.
    """

    def __init__(
        self,
        world: World,
        topics: Topics,
        hosts: dict[NodeId, Host],
        observer: Observer,
        producers: Sequence[Producer],
        groups: list[str],
    ) -> None:
        self.world = world
        self.topics = topics
        self.hosts = hosts
        self.observer = observer
        self.producers = producers
        self.groups = groups

    def groups_of(self, partition: PartitionId) -> list[str]:
        """The groups that read a partition's topic."""
        return [OUTPUT_GROUP] if self.topics.name_of(partition) == OUTPUTS else self.groups

    def is_drained(self) -> bool:
        """Whether every publish is confirmed, and every replica knows of every message that it is settled."""
        if not all(producer.finished for producer in self.producers) or not all(self.topics.deleted.values()):
            return False
        if not self.topics.created and not self.topics.gone:
            return False
        expected: dict[PartitionId, dict[Origin, int]] = {}
        for producer in self.producers:
            for (partition, origin), count in producer.published.items():
                if self.topics.is_over(partition.topic):
                    continue
                expected.setdefault(partition, {})[origin] = count
        for (partition, origin), known in self.topics.confirmed_outputs.items():
            expected.setdefault(partition, {})[origin] = len(known)
        for host in self.hosts.values():
            core = host.core
            if core is None or not host.started or not core.state.vouched:
                return False
            for partition, replica in core.replicas.items():
                if self.topics.is_over(partition.topic):
                    continue
                if any(map(host.journal.is_set_aside, replica.batches.stored)):
                    return False
                for origin, count in expected.get(partition, {}).items():
                    here = sum(
                        span.size
                        for table in (replica.batches.present, replica.batches.reclaimed)
                        for span in table.spans_of(origin)
                    )
                    if here < count and origin not in replica.batches.closed:
                        return False
                if partition not in expected:
                    continue
                for group in self.groups_of(partition):
                    view = replica.views.groups.get(group)
                    if view is None:
                        return False
                    for span, slot in replica.batches.index.items():
                        covered = view.covers(replica.batches.stored[slot.number].header.published_ms)
                        if view.readable(span, covered):
                            return False
        registers: dict[Any, None] = {}
        for host in self.hosts.values():
            assert host.core is not None
            groups = tuple(sorted(host.core.catalogue.groups.items()))
            registers[(tuple(host.core.catalogue.registers()), groups)] = None
        if len(registers) > 1:
            return False
        for partition in expected:
            cores = [host.core for host in self.hosts.values() if host.core is not None]
            replicas = [core.replicas[partition] for core in cores if partition in core.replicas]
            views: dict[tuple[Any, ...], None] = {}
            for replica in replicas:
                found = tuple(
                    digest_of(replica.views.groups[group], replicas) for group in self.groups_of(partition)
                )
                views[found] = None
            if len(views) > 1:
                return False
        return True

    def list_settled(self, *, complete: bool) -> None:
        """What each replica has of each group at the end: its register, its dead letters as PEEK shows them, and
        what was purged, void or not.
        """
        for name, host in self.hosts.items():
            if host.core is None:
                continue
            for register in host.core.catalogue.groups.values():
                self.observer.note_register(name, register)
            for topic in host.core.catalogue.topics.values():
                if not topic.deleted and topic.stamp != STAMP_ZERO:  # else a creation went no further
                    label = self.topics.names[topic.id]
                    self.world.note(f"node:{name}", "topic", topic=label, settings=settings_of(topic))
            for partition, replica in host.core.replicas.items():
                for group in self.groups_of(partition):
                    page = replica.on_peek(
                        PeekRequest(0, partition, group, "dead", (0, 0), 10_000),
                        host.clock.now(self.world.time),
                    )
                    for item in page.items:
                        self.note_listed(name, partition, group, "dead", item.span, item.record, complete)
                    view = replica.views.groups.get(group)
                    for span, record in view.records.items() if view is not None else ():
                        if record.kind in (Kind.SKIPPED, Kind.PURGED):
                            self.note_listed(
                                name, partition, group, record.kind.name.lower(), span, record, complete
                            )
        self.list_closed(complete)

    def list_closed(self, complete: bool) -> None:
        """What was purged of origins of which a replica keeps only the number."""
        for (partition, group), purged in self.observer.purged.items():
            replicas = [
                host.core.replicas.get(partition) for host in self.hosts.values() if host.core is not None
            ]
            for span, (name, record) in purged.items():
                if any(replica is not None and span.origin in replica.batches.closed for replica in replicas):
                    self.note_listed(name, partition, group, record.kind.name.lower(), span, record, complete)

    def note_listed(
        self,
        name: NodeId,
        partition: PartitionId,
        group: str,
        state: str,
        span: Span,
        record: Record,
        complete: bool,
    ) -> None:
        """A replica has this record at the end."""
        self.world.note(
            f"node:{name}",
            "list",
            topic=self.topics.name_of(partition),
            partition=partition.number,
            group=group,
            state=state,
            spans=spans_value((span,)),
            n=record.n,
            generation=record.generation,
            complete=complete,
        )


def settings_of(topic: Topic) -> dict[str, Any]:
    """A register as the history has it."""
    return {"partitions": topic.partitions} | {name: getattr(topic, name) for name in SETTINGS}


def digest_of(view: Any, replicas: list[Replica]) -> tuple[Any, ...]:
    """What two replicas must agree on in the end: the records, letters by their ballot.

    Nothing is kept of an origin that was closed, which takes its time to spread.
    """
    agreed: SpanMap[tuple[Any, ...]] = SpanMap()
    for span, record in view.records.items():
        if not any(span.origin in replica.batches.closed for replica in replicas):
            agreed.set(span, (*record[:3], record.letter.ballot if record.letter is not None else None))
    return tuple(agreed.items())

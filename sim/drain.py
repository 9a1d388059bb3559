"""The end of a run: the check that everything is settled everywhere, and the list of each replica's content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quorumq.core.messages import SETTINGS, Peeked, PeekRequest
from quorumq.core.partition.replica import Replica
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import (
    STAMP_ZERO,
    Kind,
    NodeId,
    Now,
    PartitionId,
    Placement,
    ProducerId,
    Record,
    Span,
    Topic,
)
from quorumq.history import spans_value
from sim.clients.producer import Producer
from sim.clients.surroundings import STRAY_GROUP, Surroundings
from sim.host import Host
from sim.machine import cores_of
from sim.observer import Observer
from sim.topics import OUTPUTS

OUTPUT_GROUP = "o"


def dead_letters_of(replica: Replica, group: str, now: Now) -> Iterator[Peeked]:
    """Yield a group's dead letters as PEEK shows them, page by page."""
    cursor: tuple[int, int] | None = (0, 0)
    while cursor is not None:
        page = replica.on_peek(PeekRequest(replica.topic.name, 0, group, "dead", cursor, 10_000), now)
        yield from page.items
        cursor = page.cursor


class Drain:
    """Looks at every replica once the cluster is healed, and there at every group that reads the topic."""

    def __init__(
        self,
        hosts: dict[NodeId, Host],
        observer: Observer,
        producers: Sequence[Producer],
        around: Surroundings,
    ) -> None:
        self.world = observer.world
        self.topics = observer.topics
        self.hosts = hosts
        self.observer = observer
        self.producers = producers
        self.groups = around.groups
        self.guests = around.guests

    def groups_of(self, partition: PartitionId) -> list[str]:
        """Return the groups that read a partition's topic, and those that may and do."""
        known = [OUTPUT_GROUP] if self.topics.name_of(partition) == OUTPUTS else self.groups
        cores = cores_of(self.hosts).values()
        candidates = (STRAY_GROUP, *self.guests)
        return known + [
            group
            for group in candidates
            if any(core.catalogue.reads(partition.topic, group) for core in cores)
        ]

    def is_drained(self) -> bool:
        """Return True if every publish is confirmed, and every replica knows of every message that it is settled."""
        return next(self.unsettled(), None) is None

    def unsettled(self) -> Iterator[str]:
        """Yield the reasons why the run is not drained, one text each."""
        topics = self.topics
        for producer in self.producers:
            if not producer.finished:
                yield f"producer {producer.name} waits for what it published"
        for topic, confirmed in topics.deleted.items():
            if not confirmed:
                yield f"the deletion of {topics.names[topic]} is not confirmed"
        if not topics.created and not topics.gone:
            yield "no topic was created"
        expected = self.expected()
        for host in self.hosts.values():
            yield from self.unsettled_at(host, expected)
        cores = cores_of(self.hosts)
        registers = {
            name: (
                tuple(sorted(core.catalogue.live())),
                tuple(group for group in core.catalogue.all_groups() if not group.deleted),
                core.catalogue.all_deleted(),
            )
            for name, core in cores.items()
        }
        yield from differing("their registers", registers)
        yield from differing(
            "the members", {name: core.catalogue.cluster.layout for name, core in cores.items()}
        )
        for partition in expected:
            replicas = {
                name: core.replicas[partition] for name, core in cores.items() if partition in core.replicas
            }
            for group in self.groups_of(partition):
                views = {name: replica.views.groups.get(group) for name, replica in replicas.items()}
                among = list(replicas.values())
                yield from differing(
                    f"group {group} of {topics.name_of(partition)}/{partition.number}",
                    {name: digest_of(view, among) for name, view in views.items() if view is not None},
                )

    def expected(self) -> dict[PartitionId, dict[ProducerId, int]]:
        """Return the number of messages of each producer id that each replica must know, of topics that are not
        over."""
        expected: dict[PartitionId, dict[ProducerId, int]] = {}
        for producer in self.producers:
            for (partition, producer_id), count in producer.published.items():
                if not self.topics.is_over(partition.topic):
                    expected.setdefault(partition, {})[producer_id] = count
        for (partition, producer_id), known in self.topics.confirmed_outputs.items():
            expected.setdefault(partition, {})[producer_id] = len(known)
        return expected

    def unsettled_at(self, host: Host, expected: dict[PartitionId, dict[ProducerId, int]]) -> Iterator[str]:
        """Yield the parts that one node still lacks."""
        core = host.core
        if not host.is_member:
            return
        if core is None or not host.started or not core.state.trusted:
            yield f"node {host.name} is not in service"
            return
        for partition in core.context.sources:
            if not self.topics.is_over(partition.topic):
                yield f"node {host.name} is a source of {self.topics.name_of(partition)}/{partition.number} yet"
        for partition, replica in core.replicas.items():
            if self.topics.is_over(partition.topic):
                continue
            placement = replica.placement
            if placement is not None and (placement.before or is_raised_soon(replica.topic, placement)):
                yield f"node {host.name}: {self.topics.name_of(partition)}/{partition.number} gets slots yet"
            where = f"node {host.name}, {self.topics.name_of(partition)}/{partition.number}"
            if any(map(host.journal.is_set_aside, replica.batches.stored)):
                yield f"{where}: a damaged batch is not repaired"
            for producer_id, count in expected.get(partition, {}).items():
                here = known_of(replica, producer_id)
                lacks = here < count and producer_id not in replica.batches.closed
                if lacks and not self.is_gone_everywhere(replica, producer_id, count):
                    yield f"{where}: {here} of {count} messages of producer id {producer_id}"
            # Others than producers may have published.
            if partition not in expected and not replica.batches.stored:
                continue
            for group in self.groups_of(partition):
                view = replica.views.groups.get(group)
                if view is None:
                    yield f"{where}: group {group} is unknown"
                    continue
                for span, slot in replica.batches.index.items():
                    published_ms = replica.batches.stored[slot.number].header.published_ms
                    covered = view.covers(span.producer_id, published_ms)
                    if open_spans := view.readable(span, covered):
                        yield f"{where}: group {group} has not settled {open_spans[0]}"

    def is_gone_everywhere(self, here: Replica, producer_id: ProducerId, count: int) -> bool:
        """Return True if nodes reclaimed messages that this replica never got, and that a later group wants.

        It counts as absent then: replicas that compare find no difference, and no node has it to give.
        """
        cores = cores_of(self.hosts).values()
        replicas = [core.replicas[here.partition] for core in cores if here.partition in core.replicas]
        return any(known_of(other, producer_id) == count for other in replicas) and all(
            other.batches.content(producer_id) == here.batches.content(producer_id) for other in replicas
        )

    def one_by_one(self) -> int:
        """Return the number of messages that are suspects, or may be when their hold ends: each is delivered alone.

        A consumer may give up one more FETCH, which waits for an answer as the cluster is healed.
        """
        most: dict[tuple[PartitionId, str], int] = {}
        for core in cores_of(self.hosts).values():
            for partition, replica in core.replicas.items():
                for view in replica.views.sorted():
                    key = (partition, view.name)
                    most[key] = max(most.get(key, 0), view.held_count + view.suspects.messages)
        options = self.world.options
        return sum(most.values()) + options.consumers * options.fetch_healed

    def list_settled(self, *, complete: bool) -> None:
        """List the groups of each replica at the end: its register, its dead letters as PEEK shows them, and
        what was purged, void or not.
        """
        for name, core in cores_of(self.hosts).items():
            now = self.hosts[name].clock.now(self.world.time)
            for register in core.catalogue.groups.values():
                self.observer.note_register(name, register)
            for topic in core.catalogue.topics.values():
                if not topic.deleted and topic.stamp != STAMP_ZERO:  # else a creation went no further
                    label = self.topics.names[topic.id]
                    self.world.note(f"node:{name}", "topic", topic=label, settings=settings_of(topic))
            for partition, replica in core.replicas.items():
                for group in self.groups_of(partition):
                    for item in dead_letters_of(replica, group, now):
                        self.note_listed(name, partition, group, "dead", item.span, item.record, complete)
                    view = replica.views.groups.get(group)
                    for span, record in view.records.items() if view is not None else ():
                        if record.kind in (Kind.SKIPPED, Kind.PURGED):
                            self.note_listed(
                                name, partition, group, record.kind.name.lower(), span, record, complete
                            )
        self.list_closed(complete)

    def list_closed(self, complete: bool) -> None:
        """List purged messages of producer ids that a replica keeps only as numbers."""
        for (partition, group), purged in self.observer.purged.items():
            replicas = [core.replicas.get(partition) for core in cores_of(self.hosts).values()]
            for span, (name, record) in purged.items():
                if any(
                    replica is not None and span.producer_id in replica.batches.closed for replica in replicas
                ):
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
        """Note that a replica has this record at the end."""
        self.observer.note(
            name,
            "list",
            partition,
            group=group,
            state=state,
            spans=spans_value((span,)),
            n=record.n,
            generation=record.generation,
            complete=complete,
            **({"reason": record.death.reason} if record.death is not None else {}),
        )


def settings_of(topic: Topic) -> dict[str, Any]:
    """Return a register as the history has it."""
    return {"partitions": topic.partitions} | {name: getattr(topic, name) for name in SETTINGS}


def known_of(replica: Replica, producer_id: ProducerId) -> int:
    """Return the number of messages of a producer id that a replica has or reclaimed."""
    batches = replica.batches
    return sum(
        span.size for table in (batches.present, batches.reclaimed) for span in table.spans_of(producer_id)
    )


def differing(subject: str, by_node: dict[NodeId, Any]) -> Iterator[str]:
    """Yield one text if nodes do not have the same."""
    first, *others = by_node or ("",)
    for name in others:
        if by_node[name] != by_node[first]:
            yield f"{subject}: {first} and {name} differ"
            return


def digest_of(view: Any, replicas: list[Replica]) -> tuple[Any, ...]:
    """Return the values that two replicas must agree on in the end: the records, dead letters by their ballot.

    Nothing is kept of a producer id that was closed, which takes its time to spread.
    """
    agreed: SpanMap[tuple[Any, ...]] = SpanMap()
    for span, record in view.records.items():
        if not any(span.producer_id in replica.batches.closed for replica in replicas):
            agreed.set(span, (*record[:3], record.death.ballot if record.death is not None else None))
    return tuple(agreed.items())


def is_raised_soon(topic: Topic, placement: Placement) -> bool:
    """Return True if there are as many learners as a partition lacks slots, so that they are to get them."""
    return bool(placement.learners) and len(placement.slots) + len(placement.learners) >= topic.target_rf

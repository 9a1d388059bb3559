"""Journals of several nodes, written by the real journal, beside a naive account of what is in them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter

from quorumq.core.messages import SpanRecord
from quorumq.core.messages.records import (
    BatchStored,
    GroupPut,
    JournalRecord,
    Reclaimed,
    RecordsMerged,
    TopicPut,
)
from quorumq.core.values.types import (
    DERIVED,
    Batch,
    Death,
    Group,
    Kind,
    PartitionId,
    ProducerId,
    Record,
    Span,
    Stamp,
    Topic,
    merge_records,
    topic_id,
)
from quorumq.storage.disk import RealDisk
from quorumq.storage.journal import Journal
from quorumq.wire.batch import Message, encode_record, pack_spans
from spark.schemas import schema
from spark.source import offline
from spark.source.options import Options, Wanted, read_options

NAMES = ("n1", "n2", "n3")
ORDERS = topic_id("orders", 3)
MAILS = topic_id("mails", 3)
GROUPS = ("billing", "audit")
Name = tuple[PartitionId, ProducerId, int]
PRODUCER_ID = ProducerId("n1", 1, 0xABC, 0)
START_MS = 1_795_305_600_000
HOUR_MS = 3_600_000


def topic(name: str, identity: bytes, partitions: int = 2) -> Topic:
    return Topic(identity, name, 3, (NAMES,) * partitions, 5, Stamp(1, "n1"))


def options_of(table: str, data: Iterable[Path], **more: str) -> Options:
    return read_options({"table": table, "data": ",".join(map(str, data)), **more})


def batches_of(
    table: str, data: Iterable[Path], filters: Iterable[Filter] = (), **more: str
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches that Spark would get, task by task."""
    options = options_of(table, data, **more)
    selection = Wanted()
    selection.push(filters)
    whole = schema(table)
    columns = type(whole)([whole[name] for name in options.columns]) if options.columns else whole
    for at, task in enumerate(offline.plan(options, selection)):
        for batch in offline.read(task, options, selection, columns):
            yield at, batch


def rows_of(
    table: str, data: Iterable[Path], filters: Iterable[Filter] = (), **more: str
) -> list[dict[str, Any]]:
    """The rows of a table, read without Spark."""
    return [row for _, batch in batches_of(table, data, filters, **more) for row in batch.to_pylist()]


class Node:
    """One node's store, and what a node would know besides its batches."""

    def __init__(self, root: Path, name: str, segment_bytes: int) -> None:
        self.path = root / name
        self.name = name
        self.segment_bytes = segment_bytes
        self.batches: dict[int, Batch] = {}
        self.records: dict[tuple[PartitionId, str], dict[tuple[ProducerId, int], Record]] = {}
        self.reclaimed: dict[PartitionId, dict[tuple[ProducerId, int], None]] = {}
        self.registers: list[JournalRecord] = []
        self.number = 0
        self.store = self._open()

    def _open(self) -> Journal:
        store = Journal.open(
            RealDisk(self.path), node=self.name, cluster_id="test", segment_bytes=self.segment_bytes
        )
        list(store.replayed)
        store.roll(self.snapshot)
        store.commit()
        return store

    def snapshot(self) -> list[JournalRecord]:
        journal = list(self.registers)
        for key, names in self.reclaimed.items():
            journal.append(
                Reclaimed(key, tuple(Span(producer_id, seq, seq + 1) for producer_id, seq in names))
            )
        for (key, group), records in self.records.items():
            entries = tuple(
                SpanRecord(Span(producer_id, seq, seq + 1), record)
                for (producer_id, seq), record in records.items()
            )
            journal.append(RecordsMerged(key, group, entries))
        return journal

    def register(self, record: TopicPut | GroupPut) -> None:
        self.registers.append(record)
        self.store.append([record])

    def put(self, batch: Batch) -> int:
        self.number = max(self.number + 1, self.store.next_number)
        self.store.append([BatchStored(self.number, batch, 2_000 + self.number)])
        self.batches[self.number] = batch
        return self.number

    def resolve(self, key: PartitionId, group: str, span: Span, record: Record) -> None:
        """Merge a record, and write down the result, as a node does."""
        mine = self.records.setdefault((key, group), {})
        for seq in range(span.start, span.stop):
            name = (span.producer_id, seq)
            mine[name] = merge_records(mine[name], record) if name in mine else record
        self.store.append([RecordsMerged(key, group, (SpanRecord(span, record),))])

    def reclaim(self, number: int) -> None:
        batch = self.batches.pop(number)
        key = batch.header.partition
        self.store.append([Reclaimed(key, batch.header.spans, (number,))])
        kept = self.reclaimed.setdefault(key, {})
        for producer_id, start, stop in batch.header.spans:
            kept.update(dict.fromkeys((producer_id, seq) for seq in range(start, stop)))
        self.store.drop([number])

    def put_and_reclaim(self, key: PartitionId, span: Span) -> None:
        self.reclaim(self.put(batch_of(key, (span,), 1_000)))

    def commit(self) -> None:
        self.store.commit()
        if self.store.should_roll:
            self.store.roll(self.snapshot)
            self.store.commit()
        self.store.compact()

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    def stored(self) -> dict[Name, list[tuple[int, Batch]]]:
        """Every message that is here, with the batches that have it."""
        by_name: dict[Name, list[tuple[int, Batch]]] = {}
        for number, batch in self.batches.items():
            for producer_id, start, stop in batch.header.spans:
                for seq in range(start, stop):
                    by_name.setdefault((batch.header.partition, producer_id, seq), []).append((number, batch))
        return by_name


def payload_of(key: PartitionId, producer_id: ProducerId, seq: int) -> bytes:
    return f"{key.number} {producer_id} {seq} ".encode() * 3


def batch_of(key: PartitionId, spans: tuple[Span, ...], published_ms: int) -> Batch:
    records = [
        encode_record(Message(payload_of(key, producer_id, seq), f"k{seq % 5}".encode(), {"seq": seq}))
        for producer_id, start, stop in spans
        for seq in range(start, stop)
    ]
    return pack_spans(key, spans, published_ms, records, delay_ms=0, ttl_ms=published_ms % 3)


def cause_of(ballot: int, published_ms: int, message: str = "no such account") -> Death:
    return Death(
        Stamp(ballot, "n2"), "rejected", "ValueError", message, "stack", "f1", 5, published_ms, 20, 30, 40, "c",
        "1.0", "h", "n2",
    )  # fmt: skip


class DiskCluster:
    """Three nodes, and every message, record and death that there ever was."""

    def __init__(self, root: Path, *, segment_bytes: int = 1 << 26) -> None:
        self.nodes = [Node(root, name, segment_bytes) for name in NAMES]
        self.keys = [PartitionId(ORDERS, 0), PartitionId(ORDERS, 1), PartitionId(MAILS, 0)]
        self.published: dict[Name, int] = {}
        self.deaths: dict[tuple[Name, str, int, int], Death] = {}
        self.groups: dict[tuple[bytes, str], Group] = {}
        for made in (topic("orders", ORDERS), topic("mails", MAILS, 1)):
            for node in self.nodes:
                node.register(TopicPut(made))
            for group in GROUPS:
                self.set_group(Group(made.id, group, 0, 0))

    @property
    def data(self) -> list[Path]:
        return [node.path for node in self.nodes]

    def set_group(self, group: Group) -> None:
        self.groups[(group.topic, group.name)] = group
        for node in self.nodes:
            node.register(GroupPut(group))

    def publish(
        self,
        key: PartitionId,
        spans: tuple[Span, ...],
        published_ms: int,
        nodes: Iterable[Node] | None = None,
    ) -> None:
        batch = batch_of(key, spans, published_ms)
        for node in self.nodes if nodes is None else nodes:
            node.put(batch)
        for producer_id, start, stop in spans:
            for seq in range(start, stop):
                name = (key, producer_id, seq)
                self.published[name] = min(self.published.get(name, published_ms), published_ms)

    def resolve(
        self, key: PartitionId, group: str, span: Span, record: Record, nodes: Iterable[Node] | None = None
    ) -> None:
        for node in self.nodes if nodes is None else nodes:
            node.resolve(key, group, span, record)
        if record.death is not None:
            for seq in range(span.start, span.stop):
                self.deaths[((key, span.producer_id, seq), group, record.generation, record.n)] = record.death

    def commit(self) -> None:
        for node in self.nodes:
            node.commit()

    def close(self) -> None:
        for node in self.nodes:
            node.store.close()

    def merged(self, key: PartitionId, group: str, name: tuple[ProducerId, int]) -> Record:
        """Return the merged record of all nodes for a message of a group."""
        merged = Record(0, 0, Kind.OPEN)
        for node in self.nodes:
            record = node.records.get((key, group), {}).get(name)
            if record is not None:
                merged = merge_records(merged, record)
        return merged


def turmoil(cluster: DiskCluster, rng: random.Random, steps: int) -> None:
    """Everything that may happen to journals, at random: batches of several sections, some that overlap, some that
    reached few nodes, records in any order, reclaimed batches, rolls and restarts."""
    producer_ids = [ProducerId("n1", 1, 0xABC, k) for k in range(3)] + [ProducerId(DERIVED, 7, 0xDEF, 1)]
    next_seq: dict[tuple[PartitionId, ProducerId], int] = {}
    for step in range(steps):
        key = rng.choice(cluster.keys)
        nodes = rng.sample(cluster.nodes, rng.choice((1, 2, 3, 3, 3)))
        dice = rng.random()
        known = sorted(name for name in cluster.published if name[0] == key)
        if dice < 0.4 or not known:
            spans = []
            for producer_id in rng.sample(producer_ids, rng.choice((1, 1, 2, 3))):
                count = rng.randrange(1, 6)
                start = next_seq.get((key, producer_id), 0)
                if producer_id.node == DERIVED and start > 3 and rng.random() < 0.5:
                    start -= rng.randrange(3)  # published again, among others
                spans.append(Span(producer_id, start, start + count))
                next_seq[(key, producer_id)] = max(start + count, next_seq.get((key, producer_id), 0))
            cluster.publish(key, tuple(spans), 1_000 + step, nodes)
        elif dice < 0.8:
            _, producer_id, seq = rng.choice(known)
            group = rng.choice(GROUPS)
            span = Span(producer_id, seq, seq + 1)
            now = cluster.merged(key, group, (producer_id, seq))
            kind = rng.choice((Kind.ACKED, Kind.DEAD, Kind.DEAD, Kind.PURGED, Kind.OPEN, Kind.SKIPPED))
            n = now.n + (kind == Kind.OPEN)
            wrote = cause_of(step + 1, cluster.published[(key, producer_id, seq)], f"step {step}")
            record = Record(
                now.generation, 0 if kind == Kind.ACKED else n, kind, wrote if kind == Kind.DEAD else None
            )
            if kind == Kind.DEAD and now.kind == Kind.DEAD:
                record = now  # the replicas that have not heard of it hear of the same death
            cluster.resolve(key, group, span, record, nodes)
        elif dice < 0.9:
            node = rng.choice(cluster.nodes)
            if node.batches:
                node.reclaim(rng.choice(sorted(node.batches)))
        elif dice < 0.95:
            rng.choice(cluster.nodes).restart()
        if rng.random() < 0.5:
            rng.choice(cluster.nodes).commit()
    cluster.commit()


def die_at(cluster: DiskCluster, seq: int, fingerprint: str, at_ms: int, n: int = 0) -> None:
    wrote = cause_of(at_ms, START_MS, f"{fingerprint} failed")
    wrote = wrote._replace(
        fingerprint=fingerprint, first_delivered_ms=at_ms - 2, last_delivered_ms=at_ms - 1, died_ms=at_ms
    )
    cluster.resolve(
        cluster.keys[0], "billing", Span(PRODUCER_ID, seq, seq + 1), Record(0, n, Kind.DEAD, wrote)
    )


def mark(cluster: DiskCluster) -> None:
    """All appended records are durable, and a later record says so."""
    for node in cluster.nodes:
        node.store.commit()
        node.register(node.registers.pop())
        node.store.commit()


def roll(cluster: DiskCluster) -> None:
    for node in cluster.nodes:
        for number in list(node.batches):
            node.reclaim(number)
        node.store.roll(node.snapshot)
        node.store.commit()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))

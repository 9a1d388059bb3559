"""Records and journals to write, and checks of them after a crash."""

from __future__ import annotations

import struct
from pathlib import Path

import cbor2

from quorumq.core.messages import Counted, NotDue, SpanRecord
from quorumq.core.messages.records import (
    AbsentNoted,
    AttemptsCounted,
    BallotAtStop,
    BatchStored,
    CleanStopped,
    ClusterPut,
    DelaysSet,
    DirectoryMade,
    GroupPut,
    HeldAtStop,
    JournalRecord,
    MemoryAtStop,
    PartitionDropped,
    PartitionTrusted,
    PeerSeen,
    RecordsMerged,
    Reserved,
    Started,
    TopicPut,
    Trusted,
)
from quorumq.core.values.types import (
    Batch,
    ClusterLayout,
    Death,
    Group,
    Incarnation,
    Kind,
    Label,
    Member,
    Owner,
    PartitionId,
    ProducerId,
    Record,
    ReplicaSlot,
    Span,
    Stamp,
    Topic,
    topic_id,
)
from quorumq.storage.disk import Disk
from quorumq.storage.journal import Journal
from quorumq.wire.batch import Message, build_batch
from sim.memory_disk import MemoryDisk

DIRECTORY = 0x0123_4567_89AB_CDEF
TOPIC = topic_id("orders", 3)
PARTITION = PartitionId(TOPIC, 0)
PRODUCER_ID = ProducerId("n1", 1, 0xABCD, 0)


def batch(number: int, size: int = 40, partition: int = 0, published_ms: int = 0) -> BatchStored:
    """A stored batch of one message, unlike all others."""
    payload = f"payload {number} ".encode() * (size // 10 + 1)
    made = build_batch(
        PartitionId(TOPIC, partition),
        PRODUCER_ID,
        number,
        published_ms or 1_000 + number,
        [Message(payload[:size])],
    )
    return BatchStored(number, made, 2_000 + number)


def tombstone(number: int, kind: Kind = Kind.ACKED, death: Death | None = None) -> RecordsMerged:
    span = Span(PRODUCER_ID, number, number + 1)
    return RecordsMerged(PARTITION, "billing", (SpanRecord(span, Record(0, 0, kind, death)),))


def dead(number: int, message: str = "no such account") -> RecordsMerged:
    times = 1, 2, 3, 4
    death = Death(
        Stamp(77 << 16, "n2"),
        "rejected",
        "ValueError",
        message,
        "stack",
        "f1",
        5,
        *times,
        "c",
        "1.0",
        "h",
        "n2",
    )
    return tombstone(number, Kind.DEAD, death)


def clean_stop() -> CleanStopped:
    owner = Owner("n1", Incarnation(1, 99), Stamp(5 << 16, "n1"))
    return CleanStopped(
        Incarnation(1, 99),
        (HeldAtStop(PARTITION, "billing", Span(PRODUCER_ID, 0, 3), owner, 0, 12.5, (5 << 16, "n1")),),
        3.5,
        (PARTITION,),
        (
            MemoryAtStop(
                PARTITION, "billing", 4 << 16, (BallotAtStop(Span(PRODUCER_ID, 0, 3), (5 << 16, "n1"), 0),)
            ),
        ),
    )


def every_kind() -> list[JournalRecord]:
    """One of each record that may stand in the middle of a journal."""
    topic = Topic(TOPIC, "orders", 3, (("n1", "n2", "n3"), ("n2", "n3", "n1")), 5, Stamp(1, "n1"))
    topic = topic._replace(labels=(Label("owner", "x", Stamp(2, "n1")), Label("team", None, Stamp(3, "n2"))))
    span = Span(PRODUCER_ID, 0, 3)
    return [
        DirectoryMade("n1", "test", DIRECTORY),
        Started(Incarnation(1, 99)),
        Trusted(),
        PeerSeen("n2", Incarnation(3, 7), 88),
        Reserved(1 << 40),
        TopicPut(topic),
        PartitionTrusted(PARTITION, 2),
        ClusterPut(ClusterLayout(1, Stamp(4, "n1"), (Member("n1"), Member("n4", "n4:1", "n4:2", "m")), 1)),
        ClusterPut(
            ClusterLayout(
                2,
                Stamp(5, "n1"),
                (Member("n1"), Member("n4")),
                1,
                (ReplicaSlot("n4", 2),),
                (ReplicaSlot("n1", 0),),
                2,
            )
        ),
        PartitionDropped(PartitionId(TOPIC, 9)),
        AbsentNoted(PARTITION, (span,)),
        GroupPut(Group(TOPIC, "billing", 0, 0)),
        batch(0),
        dead(0),
        AttemptsCounted(PARTITION, "billing", (Counted(span, 0, 2),)),
        DelaysSet(PARTITION, "billing", 5, (NotDue(span, 0, Stamp(9, "n1"), 1.5),)),
    ]


def bare(record: JournalRecord) -> JournalRecord:
    """A record as replay gives it: the body of a batch stays in the segment."""
    if isinstance(record, BatchStored):
        return record._replace(batch=Batch(record.batch.header, record.batch.raw, b""))
    return record


def open_store(disk: Disk, **options: int) -> Journal:
    return Journal.open(disk, node="n1", cluster_id="test", new_directory_id=lambda: DIRECTORY, **options)


def small_state(records: list[JournalRecord]) -> list[JournalRecord]:
    """Return the snapshot of a core that keeps every record."""
    return [r for r in records if not isinstance(r, BatchStored | CleanStopped | DirectoryMade)]


def start(disk: Disk, **options: int) -> tuple[Journal, list[JournalRecord]]:
    """Open, replay, roll, commit: a store that can be written, and its replayed records."""
    store = open_store(disk, **options)
    try:
        replayed = list(store.replayed)
        store.roll(small_state(replayed))
        store.commit()
    except BaseException:
        store.abandon()
        raise
    store.check()
    return store, replayed


def started(**options: int) -> tuple[MemoryDisk, Journal, list[JournalRecord]]:
    """Return a new disk in memory, and a store on it by `start`."""
    disk = MemoryDisk()
    return disk, *start(disk, **options)


def bodies_are_right(store: Journal, records: list[JournalRecord]) -> None:
    """Every batch among ``records`` reads back as the batch of its number."""
    for record in records:
        if isinstance(record, BatchStored):
            size = int.from_bytes(record.batch.header.offsets[-4:], "little")
            body = bytes(store.read_slice(record.number))
            assert len(body) == size
            assert store.raw_header(record.number) == record.batch.raw
            assert f"payload {record.number} ".encode() in body


def copy_out(disk: MemoryDisk, folder: Path) -> None:
    """Its files, in a folder."""
    for name in disk.list():
        (folder / name).write_bytes(disk.read(name, 0, disk.size(name)))


def newest(disk: MemoryDisk) -> str:
    return [name for name in disk.list() if name.endswith(".journal")][-1]


def record_headers(segment: bytes) -> list[tuple[int, int]]:
    """(type, offset of the header) of each record of a segment (docs/file-format.md, "A record")."""
    headers, at = [], 0
    while segment[at : at + 4] == b"qjR1":
        header, body = struct.unpack_from("<II", segment, at + 8)
        headers.append((cbor2.loads(segment[at + 20 : at + 20 + header])[0], at + 20))
        at += 20 + header + body
    return headers

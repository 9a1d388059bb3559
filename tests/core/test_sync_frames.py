"""Anti-entropy of many producer ids and registers: each message is one that a peer takes off the wire."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.types import DERIVED, PartitionId, ProducerId, Span
from quorumq.wire.batch import Message, encode_record, pack_spans
from quorumq.wire.codec import decode_message, encode_message
from quorumq.wire.frames import FrameReader
from tests.core.cluster import Cluster

COMPARED = (m.SyncDigests, m.SyncListed, m.SyncState, m.SyncPull, m.SyncRegisters, m.SyncTopics)
PRODUCER_IDS = 4000


def over_the_wire(message: object) -> object:
    reader = FrameReader()
    reader.feed(b"".join(encode_message(message)))  # type: ignore[arg-type]
    frame = reader.next_frame()
    assert frame is not None
    return decode_message(frame).message


def test_a_replica_that_was_away_hears_messages_that_its_codec_takes() -> None:
    """A field of bytes had 1,024 at most: sums of five places were refused, and the link went down for good."""
    cluster = Cluster(sync_interval=2.0, sync_grace=0.5, checks=False)
    topic = cluster.topic()
    largest: dict[type, int] = {}
    away = False

    def received(sender: str, to: str, message: object) -> bool:
        if isinstance(message, COMPARED):
            over_the_wire(message)
            sums = len(getattr(message, "sums", b""))
            largest[type(message)] = max(largest.get(type(message), 0), sums)
        return away and "c" in (sender, to) and sender != to

    cluster.drop = received
    record = encode_record(Message(b"x"))
    for first in range(0, PRODUCER_IDS, 1000):
        away = first >= PRODUCER_IDS // 2  # before that all have many, so that trees are parted
        spans = tuple(Span(ProducerId(DERIVED, 1, n << 50, n), 0, 1) for n in range(first + 1, first + 1001))
        batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, [record] * len(spans))
        assert isinstance(cluster.ask("a", m.Publish(batch)), m.PublishReply)
    cluster.submit("a", m.CreateTopic("other"))
    cluster.advance(6.0)
    away = False
    cluster.advance(20.0)
    assert len(cluster.nodes["c"].replicas[PartitionId(topic.id, 0)].batches.present.runs) == PRODUCER_IDS
    assert largest[m.SyncDigests] > 1024
    assert largest[m.SyncRegisters] == 16 * limits.REGISTER_BUCKETS


def test_the_largest_sums_are_taken() -> None:
    locations = tuple(range(1 << 8, (1 << 8) + limits.DIGESTS_MAX // limits.DIGEST_BRANCHES))
    sums = bytes(limits.DIGEST_BYTES * limits.DIGEST_BRANCHES * len(locations))
    digests = m.SyncDigests(PartitionId(b"x" * 16, 0), 1, True, locations, sums)
    registers = m.SyncRegisters(bytes(limits.DIGEST_BYTES * limits.REGISTER_BUCKETS))
    assert [over_the_wire(message) for message in (digests, registers)] == [digests, registers]

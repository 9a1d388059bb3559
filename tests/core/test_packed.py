"""Batches of one message are kept as rows of numbers, and differ in memory alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumq.core.messages import Publish
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.batches import AGE_UNKNOWN
from quorumq.core.partition.stored import StoredBatch, StoredBatches
from quorumq.core.values.types import BatchHeader, PartitionId, ProducerId, Span
from tests.core.cluster import Cluster
from tests.core.steps import fetch, opened

HERE = PartitionId(b"t" * 16, 0)
SESSIONS = [ProducerId("a", 1, 2, k) for k in range(3)]


def header(
    seq: int = 0, producer_id: ProducerId = SESSIONS[0], published_ms: int = 5, size: int = 7, **more: int
) -> BatchHeader:
    crc = more.pop("crc", 0xFFFFFFFF - seq % 1000)
    of_record = more.pop("of_record", crc).to_bytes(4, "little")
    section = Span(producer_id, seq, seq + 1)
    return BatchHeader(HERE, (section,), published_ms, size.to_bytes(4, "little"), of_record, crc, **more)


BATCHES = st.builds(
    lambda number, seq, published_ms, size, delay_ms, ttl_ms, born, made_ms: StoredBatch(
        number,
        header(seq, SESSIONS[number % 3], published_ms, size, delay_ms=delay_ms, ttl_ms=ttl_ms),
        born,
        True,
        made_ms,
    ),
    st.integers(1, 40),
    st.integers(0, (1 << 62) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(1, 1 << 22),
    st.sampled_from([0, 1, (1 << 32) - 1, 1 << 32]),
    st.sampled_from([0, 9, (1 << 32) - 1, 1 << 32]),
    st.floats(-1e9, 1e9),
    st.one_of(st.none(), st.integers(-(1 << 62), 1 << 62)),
)


def fields(batch: StoredBatch) -> tuple[object, ...]:
    return batch.number, batch.header, batch.born, batch.durable, batch.key, batch.due, batch.salt


@given(st.lists(st.tuples(BATCHES, st.sampled_from(["put", "put", "pack", "pack", "delete"])), max_size=40))
def test_a_batch_is_what_it_was_whether_it_is_packed_or_not(steps: list[tuple[StoredBatch, str]]) -> None:
    table, plain = StoredBatches(HERE), {}
    for batch, step in steps:
        number = batch.number
        if step == "put" and number not in plain:
            table[number] = plain[number] = batch
        elif step == "pack" and number in plain and dict.__contains__(table, number):
            table.pack(plain[number])
            row_fits = max(plain[number].header.delay_ms, plain[number].header.ttl_ms) < 1 << 32
            assert dict.__contains__(table, number) is not row_fits
        elif step == "delete" and number in plain:
            del table[number], plain[number]
        table.check()
        in_order = {number: plain[number] for number in sorted(plain)}
        assert {number: fields(stored) for number, stored in table.items()} == {
            number: fields(stored) for number, stored in in_order.items()
        }
        assert [*table] == [*table.keys()] == [*in_order]
        assert [fields(stored) for stored in table.values()] == [
            fields(stored) for stored in in_order.values()
        ]
        assert (number in table, len(table), bool(table)) == (number in plain, len(plain), bool(plain))
        later = table.following(number)
        assert (later and later.number) == min((other for other in plain if other > number), default=None)
        stored = table.get(number)
        assert (stored is None) is (number not in plain)
        assert stored is None or fields(stored) == fields(plain[number])
        twin = table.clone()
        twin.check()
        assert twin.state() == table.state() == tuple((n, True) for n in in_order)
        for gone in plain:
            del twin[gone]
        assert [*table] == [*in_order], "a copy changes on its own"
    for number in range(41):
        if number not in plain:
            for question in (table.__getitem__, table.__delitem__):
                with pytest.raises(KeyError):
                    question(number)


@pytest.mark.parametrize(
    "batch",
    [
        StoredBatch(1, header(crc=1, of_record=2), 0.0, durable=True),
        StoredBatch(1, header(), 0.0, durable=False),
        StoredBatch(
            1,
            header()._replace(spans=(Span(SESSIONS[0], 0, 2),), offsets=b"1234" * 2, crcs=b"1234" * 2),
            0.0,
            durable=True,
        ),
    ],
)
def test_a_batch_that_does_not_fit_a_row_stays_an_object(batch: StoredBatch) -> None:
    table = StoredBatches(HERE)
    table[1] = batch
    table.pack(batch)
    assert dict.get(table, 1) is batch


def test_the_oldest_durable_and_due_batches_of_one_message_are_packed() -> None:
    """The oldest of those of one message, once durable, due, and of a known age; never so many as `packed_above`."""
    cluster = Cluster(1, packed_above=3)
    topic, producer_id = opened(cluster, rf=1)
    for seq in range(8):
        batch = cluster.batch(
            topic, producer_id, 10 * seq, [b"x"] * (1 + (seq == 1)), delay_ms=5000 * (seq == 2)
        )
        cluster.ask("a", Publish(batch))
    (replica,) = cluster.nodes["a"].replicas.values()
    plain = sorted(dict.keys(replica.batches.stored))
    assert [number - plain[0] for number in plain] == [0, 1, 5, 6], "two messages; delayed; and the last two"
    cluster.advance(10.0)
    for seq in range(8, 12):
        cluster.ask("a", Publish(cluster.batch(topic, producer_id, 10 * seq, [b"x"])))
    assert not replica.batches.stored[plain[1]].header.ttl_ms
    assert plain[1] not in dict.keys(replica.batches.stored), "it is due"
    assert [one.start for part in cluster.ask("a", fetch(most=100)).slices for one in part.header.spans] == (
        [10 * seq for seq in range(12)]
    )


def test_a_batch_whose_age_is_asked_for_is_not_packed_by_a_start() -> None:
    """The newest, if none were kept as an object, would be packed: its age, learned later, would change a copy."""
    cluster = Cluster(1, packed_above=0)
    topic, producer_id = opened(cluster, rf=1)
    (replica,) = cluster.nodes["a"].replicas.values()
    batches, now = replica.batches, cluster.now
    for number in (10, 11):
        batch = cluster.batch(topic, producer_id, number, [b"x"], ttl_ms=60_000)
        batches.load(BatchStored(number, batch, now.wall_ms, AGE_UNKNOWN), 0.0, now)
    for number in (10, 11):
        batches.told_age("b", number, 5000, now)
    assert [batches.age_ms(number, now) for number in (10, 11)] == [5000, 5000]

"""Within one boot of a machine nothing ages by the time of day, even if it is set while nodes start."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core.messages import FetchReply, NotDue, Publish, RejectRequest
from quorumq.core.messages.records import BatchStored, DelaysSet, Started
from quorumq.core.values.types import STAMP_ZERO, PartitionId, ProducerId, Span
from tests.core.cluster import Cluster
from tests.core.steps import fetch, outcomes, publish_first, receipts

HOUR_MS = 3_600_000
PLAIN = Cluster(1)
PRODUCER_ID = ProducerId("a", 1, 1, 1)
PARTITION = PartitionId(b"t" * 16, 0)


def restarted(cluster: Cluster, off_ms: int, *, boot: bool = False) -> None:
    """All nodes are killed and started with another time of day; with ``boot`` their machines, too."""
    cluster.kill(cluster.names)
    for name in cluster.names:
        cluster.wall_off_ms[name] = off_ms
        cluster.boots[name] = cluster.boots.get(name, 0) + boot
        cluster.start(name)


def booted() -> Cluster:
    cluster = Cluster()
    cluster.boots = dict.fromkeys(cluster.names, 7)
    for name in cluster.names:  # again, so that the starts know their boot
        cluster.crash(name)
    cluster.advance(70)
    return cluster


def delivered(cluster: Cluster) -> int:
    reply = cluster.ask("a", fetch(hold_time=1.0), of=FetchReply)
    return len(reply.slices)


@pytest.mark.parametrize("off_ms", [-300 * HOUR_MS, HOUR_MS, 300 * HOUR_MS])
def test_no_fresh_message_expires_where_clocks_are_put_right_while_nodes_start(off_ms: int) -> None:
    """The finding: 11,889 fresh messages died as expired."""
    cluster = booted()
    publish_first(cluster, ttl_ms=60_000)
    cluster.advance(10)
    restarted(cluster, off_ms)
    cluster.advance(75 - 45)  # the quarantine takes its time, and 40 of the 60 seconds are over
    assert all(core.state.moved_s == off_ms / 1000 for core in cluster.nodes.values())
    assert not any(core.state.is_uncertain(cluster.now) for core in cluster.nodes.values()), "ages are known"
    for core in cluster.nodes.values():
        (replica,) = core.replicas.values()
        (batch,) = replica.batches.stored.values()
        assert batch.born == pytest.approx(cluster.time - 40, abs=0.01)
    cluster.advance(15)
    restarted(cluster, 0)
    cluster.advance(70)
    assert delivered(cluster) == 0, "and it does expire in time"


def test_over_a_boot_the_time_of_day_counts_and_is_doubted_where_it_moved() -> None:
    cluster = booted()
    publish_first(cluster, ttl_ms=10_000)
    restarted(cluster, HOUR_MS, boot=True)
    for core in cluster.nodes.values():
        assert core.state.moved_s == 0.0, "an hour may have passed"
        assert core.state.is_uncertain(cluster.now)
        (replica,) = core.replicas.values()
        (batch,) = replica.batches.stored.values()
        assert batch.born == pytest.approx(cluster.time - 3600, abs=0.01)


def test_ages_of_an_earlier_boot_are_uncertain_after_a_clock_change() -> None:
    cluster = booted()
    publish_first(cluster, ttl_ms=10_000)
    restarted(cluster, 0, boot=True)
    cluster.advance(65)
    topic = cluster.nodes["a"].topic_named("jobs")
    assert topic is not None
    (producer_id,) = next(iter(cluster.nodes["a"].replicas.values())).batches.present.runs
    cluster.ask("a", Publish(cluster.batch(topic, producer_id, 1, [b"y"])))
    restarted(cluster, HOUR_MS)
    for core in cluster.nodes.values():
        assert core.state.moved_s == HOUR_MS / 1000
        assert core.state.is_uncertain(cluster.now), "the first one ages by a clock that was set"


def test_a_delay_goes_by_the_boots_clock() -> None:
    cluster = booted()
    publish_first(cluster)
    held = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("a", RejectRequest(held, 100.0))) == ["ok"]
    for off_ms in (HOUR_MS, -HOUR_MS, 0):
        restarted(cluster, off_ms)
        cluster.advance(1)
    cluster.advance(92)
    assert delivered(cluster) == 0, "95 of 100 seconds"
    cluster.advance(6)
    assert delivered(cluster) == 1


def test_starts_of_a_copy_with_the_same_count_say_nothing() -> None:
    """A copied directory counts on and may use a count again, on another machine."""
    cluster = booted()
    publish_first(cluster)
    journal = cluster.journals["a"]
    last = next(record for record in reversed(journal) if isinstance(record, Started))
    journal.append(last._replace(boot=99))
    cluster.crash("a")
    assert last.incarnation.n not in cluster.nodes["a"].state.same_boot


@settings(max_examples=200, deadline=None)
@given(
    mono=st.floats(0, 1e7),
    mono_ms=st.integers(0, 10**10),
    wall=st.integers(0, 2 * 10**12),
    wall_ms=st.integers(0, 2 * 10**12),
    start=st.integers(0, 5),
)
def test_elapsed_time_is_never_negative_and_exact_within_a_boot(
    mono: float, mono_ms: int, wall: int, wall_ms: int, start: int
) -> None:
    state = PLAIN.nodes["a"].state
    state.same_boot = frozenset({2, 3})
    now = PLAIN.now._replace(mono=mono, wall_ms=wall)
    entry = NotDue(Span(PRODUCER_ID, 0, 1), 0, STAMP_ZERO, 1.0, 0)
    record = DelaysSet(PARTITION, "g", wall_ms, (entry,), start, mono_ms)
    passed = state.passed_s(record, wall_ms, now)
    assert passed >= 0
    if start in (2, 3) and 1000 * mono >= mono_ms:
        assert passed == pytest.approx(mono - mono_ms / 1000)
    else:
        assert passed == max(0, wall - wall_ms) / 1000


def test_every_record_that_ages_says_when_by_both_clocks() -> None:
    cluster = booted()
    publish_first(cluster)
    cluster.ask("a", RejectRequest(receipts(cluster.ask("a", fetch())), 5.0))
    (batch,) = [record for record in cluster.journals["a"] if isinstance(record, BatchStored)]
    (delay,) = [record for record in cluster.journals["a"] if isinstance(record, DelaysSet)]
    snapshot = [
        record for record in cluster.nodes["a"].snapshot(cluster.now) if isinstance(record, DelaysSet)
    ]
    for record in (batch, delay, *snapshot):
        assert record.start == cluster.nodes["a"].state.incarnation.n
        assert record.mono_ms == int(1000 * cluster.time)
    assert len(snapshot) == 1

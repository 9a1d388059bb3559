"""A limit of deliveries a second (docs/registers.md, LIMIT): the rate, its bound, and whom it concerns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.cluster.buckets import Bucket, suffice
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Group, Kind, Limit, Pause, Stamp, merge_groups
from tests.core.cluster import Cluster
from tests.core.network import deaf_to_registers, noted, wipe
from tests.core.steps import (
    DEATH,
    check_failed,
    fetch,
    more,
    opened,
    outcomes,
    published,
    receipts,
    rewind,
    spans,
    with_session,
)


def limit(cluster: Cluster, per_second: float, burst: int = 0, node: str = "a") -> Limit:
    reply = cluster.ask(node, m.LimitGroup("jobs", "g", per_second, burst), of=m.GroupReply)
    return reply.group.limit


def made(count: int = 200, **settings: object) -> Cluster:
    cluster = Cluster(**settings)  # type: ignore[arg-type]
    cluster.checks = False
    published(cluster, count)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    return cluster


def fill(cluster: Cluster) -> None:
    """Have all buckets full, as they are after a quiet time."""
    for bucket in buckets(cluster):
        bucket.level = bucket.others = bucket.capacity


def buckets(cluster: Cluster) -> list[Bucket]:
    return [bucket for core in cluster.nodes.values() for bucket in core.state.buckets.values()]


def levels(cluster: Cluster) -> list[float]:
    return [bucket.take(0, cluster.time) for bucket in buckets(cluster)]


def messages(reply: object) -> int:
    return sum(stop - start for start, stop in spans(reply))


class Readers:
    """Clients that fetch all the time, one through each of ``nodes``."""

    def __init__(self, cluster: Cluster, nodes: str = "abc", wait: float = 0.9) -> None:
        self.cluster, self.wait = cluster, wait
        self.step = 0.02
        self.counts: list[tuple[float, int]] = []
        self.keys = {node: cluster.submit(node, fetch(wait=wait)) for node in nodes}

    def read(self, seconds: float) -> int:
        """Go on for some seconds; return the number of messages."""
        before, until = self.total, self.cluster.time + seconds
        while self.cluster.time < until - 1e-9:
            self.cluster.advance(self.step)
            for node, key in self.keys.items():
                if key in self.cluster.replies:
                    reply = self.cluster.replies[key]
                    if isinstance(reply, m.FetchReply) and reply.slices:
                        self.counts.append((self.cluster.time, messages(reply)))
                    self.keys[node] = self.cluster.submit(node, fetch(wait=self.wait))
        return self.total - before

    @property
    def total(self) -> int:
        return sum(count for _, count in self.counts)

    def most_within(self, seconds: float) -> int:
        """Return the most messages of any window."""
        ends = [time for time, _ in self.counts]
        return max(sum(n for time, n in self.counts if end - seconds <= time <= end) for end in ends)


# ------------------------------------------------------------------------------ the rate


@pytest.mark.parametrize("nodes", ["abc", "a"])
def test_a_group_gets_its_rate_through_one_node_or_all(nodes: str) -> None:
    cluster = made()
    limit(cluster, 20.0)
    readers = Readers(cluster, nodes)
    readers.read(0.5)
    assert 38 <= readers.read(2.0) <= 42
    assert readers.most_within(1.0) <= 20 + 2


def test_it_gets_its_rate_while_a_node_is_down_and_no_more_when_it_comes_back() -> None:
    cluster = made()
    limit(cluster, 20.0)
    cluster.kill("c")
    readers = Readers(cluster, "ab")
    readers.read(0.5)
    assert 18 <= readers.read(1.0) <= 22
    cluster.start("c")
    assert readers.read(1.0) <= 22


def test_messages_through_nodes_that_lose_each_others_holds_stay_below_the_bound() -> None:
    cluster = made()
    limit(cluster, 20.0)
    cluster.drop = lambda sender, to, message: (
        sender != to and isinstance(message, m.Hold) and cluster.rng.random() < 0.3
    )
    readers = Readers(cluster, wait=0.3)
    count = readers.read(2.0)
    assert 10 <= count <= 1.5 * (20 * 2 + 2)


def test_a_node_has_the_share_of_its_replicas() -> None:
    cluster = Cluster(5)
    topic, producer_id = opened(cluster, partitions=5)
    for number in range(5):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 20, partition=number)))
    cluster.ask("a", m.SetGroup("jobs", "g"))
    limit(cluster, 30.0, 6)
    assert sum(bucket.per_second for bucket in buckets(cluster)) == pytest.approx(3 * 30.0)
    cluster.checks = False
    readers = Readers(cluster, "abcde")
    readers.read(0.4)
    assert 12 <= readers.read(0.5) <= 21


def test_a_message_alone_comes_at_once_and_a_backlog_in_parts_of_the_burst() -> None:
    cluster, topic, producer_id = with_session(1)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    limit(cluster, 1.0, 5)
    fill(cluster)
    assert messages(cluster.ask("a", fetch())) == 1
    more(cluster, topic, producer_id, 1, 50)
    assert messages(cluster.ask("b", fetch())) == 4
    assert messages(cluster.ask("c", fetch())) == 0
    cluster.advance(3)
    assert messages(cluster.ask("c", fetch())) == 3


def test_a_waiting_fetch_goes_on_with_the_next_token_and_sends_no_hold_before() -> None:
    cluster = made()
    limit(cluster, 0.5, 1)
    key = cluster.submit("a", fetch(wait=5.0, hold_time=60.0))
    sent = noted(cluster, lambda sender, to, message: isinstance(message, m.Hold))
    cluster.advance(1.9)
    assert key not in cluster.replies
    assert not sent
    assert len([timer for _, _, timer in cluster.nodes["a"].state.timers if timer[0] == "tokens"]) == 1
    cluster.advance(0.2)
    assert messages(cluster.replies[key]) == 1
    assert len(sent) == 2, "one HOLD to each of the others"


def test_a_fetch_without_tokens_is_answered_with_nothing_and_is_no_failure() -> None:
    cluster = made()
    limit(cluster, 0.001, 1)
    for _ in range(3):
        keys = [cluster.submit(node, fetch(wait=0.5)) for node in "abc"]
        cluster.advance(0.7)
        assert [spans(cluster.replies[key]) for key in keys] == [[], [], []]


def test_a_group_without_a_limit_has_no_bucket_and_one_whose_limit_ends_goes_on_at_once() -> None:
    cluster = made()
    limit(cluster, 0.001, 1)
    key = cluster.submit("b", fetch(wait=5.0, hold_time=60.0))
    cluster.advance(1)
    assert key not in cluster.replies
    assert messages(cluster.ask("b", fetch("other"))) == 100
    assert limit(cluster, 0, node="c").per_second == 0
    cluster.advance(0.1)
    assert messages(cluster.replies[key]) > 0
    assert not any(core.state.buckets for core in cluster.nodes.values())


# ------------------------------------------------------------------------------ the voters


def test_voters_hold_a_coordinator_to_a_limit_that_it_does_not_know() -> None:
    cluster = made()
    assert messages(cluster.ask("c", fetch(most=1))) == 1
    deaf_to_registers(cluster, "c")
    limit(cluster, 10.0, 1)
    assert not cluster.nodes["c"].state.buckets
    readers = Readers(cluster, "c", wait=0.3)
    assert readers.read(1.0) <= 2 * (10 + 1)
    assert not cluster.nodes["c"].state.buckets
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    readers.read(0.3)
    assert cluster.nodes["c"].state.buckets, "a vote without tokens lets it ask for the register"
    assert 8 <= readers.read(1.0) <= 12


def test_a_round_that_is_lost_gives_all_tokens_back() -> None:
    cluster = made()
    limit(cluster, 1.0, 10)
    fill(cluster)
    for node in "bc":
        (bucket,) = cluster.nodes[node].state.buckets.values()
        bucket.take(10, cluster.time)
    before = levels(cluster)
    assert messages(cluster.ask("a", fetch(most=4))) == 0
    assert levels(cluster) == before


def test_messages_that_a_client_never_handed_over_give_their_tokens_back_once() -> None:
    cluster = made()
    limit(cluster, 0.01, 10)
    fill(cluster)
    got = receipts(cluster.ask("a", fetch(most=4)))
    assert levels(cluster) == pytest.approx([6, 6, 6])
    for _ in range(2):
        for core in cluster.nodes.values():
            (replica,) = core.replicas.values()
            for receipt, spans_of in got:
                released = m.Released(receipt.partition, "g", receipt.owner, spans_of)
                replica.on_release(released, cluster.now)
        assert levels(cluster) == pytest.approx([10, 10, 10])


def test_a_coordinator_asks_for_no_more_than_the_others_have() -> None:
    cluster = made()
    limit(cluster, 1.0, 10)
    fill(cluster)
    for node in "bc":
        (bucket,) = cluster.nodes[node].state.buckets.values()
        bucket.take(7, cluster.time)
    sizes: list[int] = []
    cluster.drop = lambda sender, to, message: (
        sender != to
        and isinstance(message, m.Hold)
        and bool(sizes.append(sum(want.span.size for want in message.wants)))
    )
    assert messages(cluster.ask("a", fetch(wait=0.5), 0.6)) == 3
    assert sizes == [10, 10, 3, 3]


def test_a_repeated_hold_takes_no_second_token_and_an_extension_takes_none() -> None:
    cluster = made()
    limit(cluster, 0.01, 10)
    fill(cluster)
    seen = noted(cluster, lambda sender, to, message: isinstance(message, m.Hold))
    got = receipts(cluster.ask("a", fetch(most=4)))
    core = cluster.nodes["b"]
    (replica,) = core.replicas.values()
    replica.on_hold("a", cluster.nodes["a"].state.incarnation, seen[0], cluster.now)
    assert outcomes(cluster.ask("c", m.ExtendRequest(got, 20.0, 0.0))) == ["ok"]
    assert levels(cluster) == pytest.approx([6, 6, 6])


def test_a_hold_that_is_piggybacked_takes_a_token_as_well() -> None:
    cluster, topic, producer_id = with_session(1)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    assert messages(cluster.ask("a", fetch(hold_time=60.0))) == 1
    limit(cluster, 0.01, 1)
    fill(cluster)
    cluster.advance(0.6)
    piggybacked: list[bool] = []
    cluster.drop = lambda sender, to, message: (
        sender != to and isinstance(message, m.Store) and bool(piggybacked.append(message.hold is not None))
    )
    key = cluster.submit("a", fetch(wait=0.9))
    more(cluster, topic, producer_id, 1)
    assert messages(cluster.replies[key]) == 1
    assert levels(cluster) == pytest.approx([0, 0, 0], abs=0.01)
    other = cluster.submit("a", fetch(wait=0.9))
    more(cluster, topic, producer_id, 2)
    assert other not in cluster.replies
    assert piggybacked == [True, True, False, False]


# ------------------------------------------------------------------------------ whom it concerns


def test_dead_letters_are_read_and_made_without_tokens() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster, ttl_s=5.0)
    more(cluster, topic, producer_id, 0, 10)
    got = receipts(cluster.ask("a", fetch(most=1)))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 0.0, DEATH))) == ["ok"]
    limit(cluster, 0.001, 1)
    assert spans(cluster.ask("b", fetch("g!dead"))) == [(0, 1)]
    cluster.advance(8)
    assert next(iter(cluster.nodes["a"].replicas.values())).views.groups["g"].records.count(Kind.DEAD) == 10
    assert all(level > -1 for level in levels(cluster))


def test_expired_messages_that_a_fetch_meets_cost_the_delivered_ones_no_tokens() -> None:
    cluster = Cluster(sync_interval=1000.0)
    topic, producer_id = opened(cluster)
    batch = cluster.batch(topic, producer_id, 0, [b"x"] * 20, ttl_ms=1000)
    cluster.ask("a", m.Publish(batch))
    more(cluster, topic, producer_id, 20, 5)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    limit(cluster, 0.01, 10)
    cluster.advance(1.5)
    fill(cluster)
    assert spans(cluster.ask("a", fetch(wait=0.9), 1)) == [(20, 25)]
    assert levels(cluster) == pytest.approx([5, 5, 5], abs=0.1)


def test_each_delivery_counts_also_of_a_message_that_comes_again() -> None:
    cluster = made(1)
    limit(cluster, 0.5, 1)
    fill(cluster)
    got = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 0.0))) == ["ok"]
    assert not spans(cluster.ask("b", fetch()))
    cluster.advance(2)
    assert spans(cluster.ask("b", fetch())) == [(0, 1)]


# ------------------------------------------------------------------------------ the register


def test_it_survives_a_rewind_a_start_and_a_wipe_and_ends_with_its_group() -> None:
    cluster = made()
    limit(cluster, 0.001, 1)
    rewind(cluster, "b")
    for name in "ab":
        cluster.crash(name)
    wipe(cluster, "c", 70)
    assert [spans(cluster.ask(node, fetch())) for node in "abc"] == [[], [], []], "buckets start empty"
    cluster.ask("a", m.DeleteGroup("jobs", "g"))
    check_failed(cluster.ask("b", m.LimitGroup("jobs", "g", 5.0)), Code.NOT_FOUND)
    cluster.ask("b", m.SetGroup("jobs", "g"))
    assert messages(cluster.ask("c", fetch())) == 100


def test_starts_again_and_again_bring_no_tokens() -> None:
    cluster = made(hold_time_max=0.1)
    limit(cluster, 1.0, 10)
    cluster.advance(60)
    count = 0
    for _ in range(3):
        for name in "abc":
            cluster.crash(name)
        cluster.advance(0.4)
        count += messages(cluster.ask("a", fetch(hold_time=0.1)))
    assert count <= 0.4 * 3


def test_the_default_burst_is_a_tenth_of_a_second_and_values_that_cannot_be_are_named() -> None:
    cluster = made()
    assert limit(cluster, 45.0)[2:] == (45.0, 5)
    assert limit(cluster, 0.25)[2:] == (0.25, 1)
    assert limit(cluster, 5.0, 70)[2:] == (5.0, 70)
    bad = (
        (-1.0, 0),
        (1e-9, 0),
        (float("inf"), 0),
        (float("nan"), 0),
        (2e6, 0),
        (1.0, -1),
        (0.0, 5),
        (1.0, 1 << 40),
    )
    for rate, burst in bad:
        refused = cluster.ask("a", m.LimitGroup("jobs", "g", rate, burst))
        check_failed(refused, Code.USAGE)
        assert f"{burst:,}" in refused.detail or f"{rate:g}" in refused.detail


def test_registers_merge_pauses_and_limits_apart() -> None:
    limited = Group(
        b"t" * 16, "g", 1, pause=Pause(0, Stamp(5, "a"), True), limit=Limit(0, Stamp(3, "a"), 5.0, 1)
    )
    other = Group(b"t" * 16, "g", 2, made=Stamp(9, "b"), limit=Limit(0, Stamp(4, "c"), 7.0, 1))
    merged = merge_groups(limited, other)
    assert merged == merge_groups(other, limited)
    assert (merged.generation, merged.pause, merged.limit) == (2, limited.pause, other.limit)
    assert merged.limited == other.limit
    assert merged._replace(generation=3, buried=3).limited is None


def test_an_answer_of_too_few_nodes_is_unknown() -> None:
    cluster = made()
    cluster.drop = lambda sender, to, message: sender != to and isinstance(message, m.PutGroup | m.SyncTopics)
    check_failed(cluster.ask("a", m.LimitGroup("jobs", "g", 5.0), 10), Code.OUTCOME_UNKNOWN)
    cluster.drop = lambda sender, to, message: sender != to
    check_failed(
        cluster.ask("a", m.LimitGroup("jobs", "g", 5.0), 10), Code.TOO_FEW_REPLICAS, "nothing was changed"
    )


def test_a_change_keeps_the_tokens_and_wakes_whoever_waits() -> None:
    cluster = made()
    limit(cluster, 0.001, 1)
    key = cluster.submit("b", fetch(wait=5.0, hold_time=60.0))
    limit(cluster, 2.0, 4)
    cluster.advance(0.4)
    assert key not in cluster.replies
    cluster.advance(0.2)
    assert messages(cluster.replies[key]) == 1


# ------------------------------------------------------------------------------ the bucket


STEPS = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.integers(1, 12), st.booleans(), st.booleans()), min_size=1, max_size=25
)


@settings(max_examples=40)
@given(steps=STEPS, rate=st.floats(0.1, 5.0), burst=st.integers(1, 10))
def test_votes_that_count_stay_below_the_rate_and_one_burst(
    steps: list[tuple[float, int, bool, bool]], rate: float, burst: int
) -> None:
    now, first = 50.0, 0.0
    bucket = Bucket(0.0)
    bucket.alter(Limit(0, Stamp(1, "a"), rate, burst), 1.0, 0.0)
    counted = 0
    for wait, count, lost, again in steps:
        now += wait
        count = min(count, burst)
        first = first or now
        if again:
            bucket = Bucket(now)
            bucket.alter(Limit(0, Stamp(1, "a"), rate, burst), 1.0, now)
        counts = suffice(bucket.take(count, now), count)
        if lost:
            bucket.give_back(count, now)
        elif counts:
            counted += count
        bucket.check()
        assert 0.98 * counted <= burst + rate * (now - first) + 1e-3


def test_debt_ends_within_two_bursts() -> None:
    bucket = Bucket(0.0)
    bucket.alter(Limit(0, Stamp(1, "a"), 10.0, 5), 1.0, 0.0)
    for _ in range(1000):
        bucket.take(5, 0.0)
    assert bucket.spare(0.9) == 0
    assert bucket.spare(1.1) >= 1


def test_a_high_rate_is_awaited_in_parts() -> None:
    bucket = Bucket(0.0)
    bucket.alter(Limit(0, Stamp(1, "a"), 10_000.0, 1000), 1.0, 0.0)
    assert bucket.ready_at(0.0) == pytest.approx(0.01)
    assert bucket.spare(0.01) == 100

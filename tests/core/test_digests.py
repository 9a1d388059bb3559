"""Digests are kept as their table changes, and a comparison costs by the difference, not by the size."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from quorumq.core import messages as m
from quorumq.core.partition import comparing, digests
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.digests import DIGEST_BYTES, LISTED_MAX, ROOT, Digests, Keyed, named, parts_of
from quorumq.core.partition.fate import on_merge
from quorumq.core.partition.group import Changes
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import merging
from quorumq.core.values import limits
from quorumq.core.values.types import DERIVED, Kind, PartitionId, ProducerId, Record, Span, Topic
from quorumq.wire.batch import Message, encode_record, pack_spans
from tests.core.cluster import Cluster
from tests.core.steps import DEATH, fetch, receipts, root_of
from tests.core.work import STEP_CALLS_MAX, calls, steps_of

KEYED = Keyed(b"a key of sixteen")
PRODUCER_IDS = [ProducerId(DERIVED, n, 7 * n, n % 3) for n in range(400)]


def derived(first: int, count: int) -> list[ProducerId]:
    return [ProducerId(DERIVED, n, n, n) for n in range(first, first + count)]


def publish(cluster: Cluster, topic: Topic, producer_ids: list[ProducerId], node: str = "a") -> None:
    """A message of each of these, of as many as one batch may have."""
    spans = tuple(sorted(Span(producer_id, 0, 1) for producer_id in producer_ids))
    records = [encode_record(Message(b"x"))] * len(spans)
    batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, records)
    assert isinstance(cluster.ask(node, m.Publish(batch)), m.PublishReply)


def replicas(cluster: Cluster) -> list[Replica]:
    return [core.replicas[partition] for core in cluster.nodes.values() for partition in core.replicas]


def filled(count: int, **more: Any) -> tuple[Cluster, Topic]:
    """A cluster whose replicas have the same message of each of ``count`` producer ids."""
    cluster = Cluster(checks=False, **more)
    topic = cluster.topic()
    for first in range(0, count, 1024):
        publish(cluster, topic, derived(first, min(1024, count - first)))
    cluster.advance(10)
    assert len({root_of(replica) for replica in replicas(cluster)}) == 1
    return cluster, topic


# ------------------------------------------------------------------------------------ the tree


@given(st.lists(st.tuples(st.integers(0, 399), st.integers(0, 3)), max_size=300), st.integers(0, 399))
@settings(deadline=None, max_examples=30)
def test_a_tree_is_a_function_of_its_content(changes: list[tuple[int, int]], many: int) -> None:
    """Producer ids are added, changed and removed, many at a time: the tree depends on the content alone."""
    table: dict[ProducerId, bytes] = {}
    kept = Digests()

    def renew() -> None:
        kept.renew(KEYED, b"t", lambda producer_id: table.get(producer_id, b""), 1 << 30)

    for number, content in changes:
        few = PRODUCER_IDS[number : number + many] if content == 3 else PRODUCER_IDS[number : number + 1]
        for producer_id in few:
            table[producer_id] = b"%d" % content if content else b""
            kept.stale[producer_id] = None
        if content == 1:
            twin = kept.clone()
            before = kept.root and kept.root.state()
            twin.put(KEYED.location(named(few[0])), few[0], 0)
            assert (kept.root and kept.root.state()) == before, "a clone changes on its own"
        kept.check(KEYED, b"t", table)
        renew()
        kept.check(KEYED, b"t", table)
    there = {producer_id for producer_id, content in table.items() if content}
    assert {producer_id for producer_id, _ in kept.items()} == there
    for location in (ROOT, *parts_of(ROOT), *parts_of(parts_of(ROOT)[7])):
        node, sums = kept.at(location), [0] * 16
        kept.add_sums(location, sums)
        assert sum(sums) % digests.SUMS_END == (node.sum if node is not None else 0)
        parts = [producer_id for part in parts_of(location) for producer_id, _ in kept.items(part)]
        assert sorted(parts) == sorted(producer_id for producer_id, _ in kept.items(location))


def test_sums_and_locations_depend_on_the_key() -> None:
    """A client without the key can neither aim producer ids at a node of the tree nor make digests cancel out."""
    other = Keyed(b"another key, too")
    name = named(PRODUCER_IDS[0])
    assert KEYED.location(name) != other.location(name)
    assert KEYED.digest(b"t", name, b"x") != other.digest(b"t", name, b"x")
    aimed = [
        producer_id for producer_id in derived(0, 40_000) if other.location(named(producer_id)) >> 52 == 0
    ]
    here = Counter(KEYED.location(named(producer_id)) >> 52 for producer_id in aimed)
    assert max(here.values()) <= 6, "aimed under another key, they are spread"


def test_a_sum_is_of_128_bits_and_what_is_taken_out_is_subtracted() -> None:
    kept = Digests()
    location = KEYED.location(named(PRODUCER_IDS[0]))
    for value in (digests.SUMS_END - 1, digests.SUMS_END - 2):
        kept.put(location + value % 2, PRODUCER_IDS[value % 2], (value << 60) | location + value % 2)
    assert kept.root is not None
    assert kept.root.sum == digests.SUMS_END - 3
    kept.put(location, PRODUCER_IDS[0], 0)
    assert kept.root.sum == digests.SUMS_END - 1


def test_a_topic_has_a_key_that_no_two_topics_share_and_that_stays() -> None:
    cluster = Cluster()
    keys = {cluster.topic(name).digest_key for name in ("one", "two")}
    assert len(keys) == 2
    assert all(len(key) == DIGEST_BYTES for key in keys)
    before = cluster.nodes["b"].topic_named("one")
    cluster.ask("c", m.AlterTopic("one", partitions=3))
    after = cluster.nodes["b"].topic_named("one")
    assert before is not None
    assert after is not None
    assert (after.partitions, after.digest_key) == (3, before.digest_key)


def test_replicas_compare_alike_again_under_a_key_that_was_merged_in() -> None:
    """The later register gives the key if a topic was chosen twice because its directories were lost."""
    cluster, topic = filled(100)
    cluster.checks = True
    newer = topic._replace(digest_key=b"n" * 16, made=topic.made._replace(time=topic.made.time + 1))
    for core in cluster.nodes.values():
        merging.take_in_topic(core.context, newer, cluster.now)
    assert {replica.sync.keyed.key for replica in replicas(cluster)} == {b"n" * 16}
    cluster.advance(5)
    assert len({root_of(replica) for replica in replicas(cluster)}) == 1


# --------------------------------------------------------------------------------- what it costs


class Work:
    """Counts producer ids whose digest is made anew, or listed, and sums that are said."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.renewed = self.listed = self.said = self.digests = 0
        content, listing = Batches.content, comparing.Trees.digests_in

        def counted(batches: Batches, producer_id: ProducerId) -> bytes:
            self.renewed += 1
            return content(batches, producer_id)

        def lists(trees: comparing.Trees, location: int) -> list[tuple[bytes, list[m.Digest]]]:
            listed = listing(trees, location)
            self.listed += sum(len(each) for _, each in listed)
            return listed

        patch.setattr(Batches, "content", counted)
        patch.setattr(comparing.Trees, "digests_in", lists)

    def hear(self, sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.SyncDigests):
            self.digests += 1
            self.said += len(message.sums) // DIGEST_BYTES
        return False


@pytest.mark.parametrize("count", [100, 8000])
def test_idle_partitions_are_not_examined(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = filled(count)
    work = Work(monkeypatch)
    cluster.drop = work.hear
    cluster.advance(20)
    assert work.digests >= 6 * 8
    assert work.said == work.digests, "the sum of all is all that is said"
    assert (work.renewed, work.listed) == (0, 0)


def test_one_producer_id_that_differs_costs_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 8,000 producer ids differs on one replica: a node of the tree at each level, and some producer ids of the
    last."""
    cluster, topic = filled(8000, sync_grace=0.0)
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.Store | m.SyncDigests)
    publish(cluster, topic, derived(9000, 1))
    work = Work(monkeypatch)
    cluster.drop = work.hear
    for core in cluster.nodes.values():
        for peer in core.state.links:
            core.state.at(cluster.now.mono, ("sync", peer))
    cluster.advance(0.001)
    assert len({root_of(replica) for replica in replicas(cluster)}) == 1
    assert work.renewed <= 3 * 4, "one producer id, at each replica, when it comes and when it is known"
    assert work.listed <= 8 * LISTED_MAX
    assert work.said <= 6 + 8 * 4 * 16


def test_the_newest_of_several_waiting_digests_is_answered() -> None:
    cluster, topic = filled(10)
    core = cluster.nodes["b"]
    (replica,) = core.replicas.values()
    core.state.compares_left = 0.0
    for sums in (b"1" * 16, b"2" * 16, replica.sync.trees().root()):
        ready = m.SyncDigests(replica.partition, topic.epoch_of(0), True, (), sums)
        assert core.upkeep.on_compared("a", ready, cluster.now) == []
    assert replica.sync.digests == {"a": (replica.sync.trees().root(), True)}
    core.state.compares_left = 100.0
    assert core.upkeep.go_on_comparing(cluster.now) == [], "which is alike"
    assert not replica.sync.is_left()


def test_no_step_takes_long_whatever_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of producer ids are stale, then missing on one replica: it goes in steps, and all of it gets there."""
    cluster = Cluster(sync_grace=0.0, checks=False)
    topic = cluster.topic()
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.Store)
    for first in range(0, 4096, 512):
        publish(cluster, topic, derived(first, 512))
    cluster.hear_all()
    assert limits.COMPARED_PER_STEP < 4096
    steps = steps_of(monkeypatch, lambda: cluster.advance(8.0))
    assert not [calls for calls in steps if calls > STEP_CALLS_MAX], sorted(steps)[-5:]
    (replica,) = cluster.nodes["c"].replicas.values()
    assert replica.batches.present.messages == 4096
    assert len({root_of(each) for each in replicas(cluster)}) == 1


def reclaiming(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Calls of the longest step, that settles batches of ``count`` producer ids, 1,024 in each, at once."""
    cluster = Cluster(checks=False)
    topic = cluster.topic()
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g")), m.GroupReply)
    for first in range(0, count, 1024):
        publish(cluster, topic, derived(first, 1024))
    cluster.advance(3.0)
    for replica in replicas(cluster):
        view, changes = replica.group("g"), Changes()
        for span in replica.batches.present.items():
            replica.views.apply(view, span, on_merge, Record(0, 0, Kind.ACKED), cluster.now, changes)
        replica.views.finish(view, changes, cluster.now)
    steps = steps_of(monkeypatch, lambda: cluster.advance(8.0))
    assert [replica.batches.reclaimed.messages for replica in replicas(cluster)] == [count] * 3
    return max(steps)


def test_reclaim_drops_one_batch_of_many_producer_ids_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reclaiming(2048, monkeypatch) <= 1.1 * reclaiming(1024, monkeypatch)


def closing(count: int) -> int:
    """Calls of closing a session at a replica, beside ``count`` other producer ids, which are acked and reclaimed."""
    cluster, _ = filled(count)
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    (replica,) = cluster.nodes["a"].replicas.values()
    replica.on_sync_state(
        "b", m.SyncState(replica.partition, 1, (), (), False, (Span(producer_id, 0, 1),)), cluster.now
    )
    assert producer_id in replica.batches.reclaimed.runs
    count_ = calls(
        lambda: replica.closing.close((Span(producer_id._replace(k=0), producer_id.k, producer_id.k + 1),))
    )
    assert producer_id in replica.batches.closed
    assert producer_id not in replica.batches.reclaimed.runs
    return count_


def test_to_close_a_session_costs_the_same_beside_however_many_others() -> None:
    assert closing(2000) == closing(20)


# ------------------------------------------------------------- true in any order


class Kept(RuleBasedStateMachine):
    """Three replicas to which everything happens: after each step digests equal those made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(3, 1, session_idle=5.0, sync_grace=0.1)
        self.topic = self.cluster.topic()
        self.sessions: list[tuple[ProducerId, int]] = []
        self.got: list[m.ReceiptPart] = []
        self.derived = 0
        self.wiped = False

    @initialize()
    def begin(self) -> None:
        self.cluster.submit("a", fetch(most=1))

    @rule(node=st.sampled_from("abc"), count=st.integers(1, 3))
    def store(self, node: str, count: int) -> None:
        producer_id = getattr(self.cluster.ask(node, m.OpenSession()), "producer_id", None)
        if producer_id is not None:
            self.sessions.append((producer_id, 0))
            self.cluster.submit(
                node, m.Publish(self.cluster.batch(self.topic, producer_id, 0, [b"x"] * count))
            )

    @rule(node=st.sampled_from("abc"), count=st.integers(1, 9))
    def derive(self, node: str, count: int) -> None:
        spans = tuple(Span(producer_id, 0, 1) for producer_id in derived(self.derived, count))
        self.derived += count
        record = [encode_record(Message(b"y"))] * count
        where = PartitionId(self.topic.id, 0)
        batch = pack_spans(where, tuple(sorted(spans)), self.cluster.now.wall_ms, record)
        self.cluster.submit(node, m.Publish(batch))

    @rule(node=st.sampled_from("abc"), group=st.sampled_from(["g", "h", "g!dead"]), most=st.integers(1, 20))
    def take(self, node: str, group: str, most: int) -> None:
        reply = self.cluster.ask(node, fetch(group, most=most))
        self.got += receipts(reply) if isinstance(reply, m.FetchReply) else ()

    @rule(node=st.sampled_from("abc"), how=st.sampled_from(["ack", "reject", "bury", "leave"]))
    def settle(self, node: str, how: str) -> None:
        got, self.got = tuple(self.got), []
        request = {
            "ack": m.AckRequest(got),
            "reject": m.RejectRequest(got, 1.0, None),
            "bury": m.RejectRequest(got, 0.0, DEATH),
            "leave": m.ReleaseRequest(got),
        }[how]
        if got:
            self.cluster.submit(node, request)

    @rule(seconds=st.sampled_from([0.3, 2.5, 11.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    @rule(node=st.sampled_from("abc"))
    def close(self, node: str) -> None:
        if self.sessions:
            producer_id, _ = self.sessions.pop()
            self.cluster.submit(node, m.CloseSession(producer_id, (PartitionId(self.topic.id, 0),)))

    @rule(node=st.sampled_from("abc"), how=st.sampled_from(["purge", "rewind", "delete", "latest"]))
    def operate(self, node: str, how: str) -> None:
        request = {
            "purge": m.PurgeRequest("jobs", 0, "g"),
            "rewind": m.SetGroup("jobs", "h", rewind=True),
            "delete": m.DeleteGroup("jobs", "h"),
            "latest": m.SetGroup("jobs", "late", "latest"),
        }[how]
        self.cluster.submit(node, request)

    @rule(node=st.sampled_from("abc"))
    def restart(self, node: str) -> None:
        self.cluster.crash(node)

    @rule(node=st.sampled_from("abc"))
    def wipe(self, node: str) -> None:
        """One node loses its disk, once, if all are trusted."""
        if not self.wiped and all(core.state.trusted for core in self.cluster.nodes.values()):
            self.wiped = True
            self.cluster.kill(node)
            self.cluster.journals[node] = []
            self.cluster.dropped[node] = set()
            self.cluster.start(node)

    @rule(mute=st.sampled_from("abc"))
    def miss(self, mute: str) -> None:
        """Until the next wait one node hears of no STORE, ACK or REJECT."""
        kinds = (m.Store, m.Ack, m.Reject, m.SyncDigests)
        self.cluster.drop = lambda sender, to, message: to == mute and isinstance(message, kinds)

    @rule()
    def heal(self) -> None:
        self.cluster.hear_all()

    @invariant()
    def digests_are_kept(self) -> None:
        for replica in replicas(self.cluster):
            replica.sync.check()

    def teardown(self) -> None:
        self.heal()
        for _ in range(20):  # the results have to spread
            self.cluster.advance(5.0)
            if len({root_of(replica) for replica in replicas(self.cluster)}) == 1:
                break
        else:
            raise AssertionError("replicas that compare are not alike in the end")
        self.digests_are_kept()


@pytest.fixture(autouse=True)
def deep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this machine a tree has parts if it has more than two producer ids."""
    if "whatever_happens" in request.node.name:
        monkeypatch.setattr(digests, "LISTED_MAX", 2)
        monkeypatch.setattr(comparing, "LISTED_MAX", 2)


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.soak)])
def test_digests_are_true_whatever_happens(examples: int) -> None:
    run_state_machine_as_test(
        Kept,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

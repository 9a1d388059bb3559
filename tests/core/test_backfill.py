"""A group that begins over a backlog, or is rewound, examines it in parts, and in the end has the right ones ready."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quorumq.core import messages as m
from quorumq.core.partition.backlog import backlog_of
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.views import Views
from quorumq.core.values import limits
from quorumq.core.values.types import Incarnation, Kind, Owner, PartitionId, ProducerId, Span, Stamp, Topic
from quorumq.wire.batch import Message, encode_record, pack_spans
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts, replica_of, seqs
from tests.core.work import QUIET, answered, filled, steps_of, with_holes


def backlog(batches: int, **more: object) -> tuple[Cluster, Topic, ProducerId]:
    """A topic with ``batches`` unread messages, a millisecond and a batch for each."""
    cluster = Cluster(checks=False, **{**QUIET, **more})
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    for seq in range(batches):
        cluster.advance(0.001)
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])))
    return cluster, topic, producer_id


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOKS_PER_STEP", 3)


STEP_LOOKS_CALLS_MAX = 90 * limits.LOOKS_PER_STEP
"""Python calls of a step that looks at as much as it may."""


def test_a_gap_in_the_numbers_of_a_session_costs_a_page_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client numbers its messages: between two of them may be 2^61 that there are not."""
    cluster, topic, producer_id = backlog(1)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 1 << 61, [b"x"])))
    cluster.ask("a", m.SetGroup("jobs", "g"))
    request = m.PeekRequest("jobs", 0, "g", "all", (0, 0), 256, complete=True)
    assert longest(cluster, request, monkeypatch) < 1000
    (page,) = [reply for reply in cluster.replies.values() if isinstance(reply, m.PeekReply)]
    assert [item.span.start for item in page.items] == [0, 1 << 61]


def test_a_page_of_many_runs_looks_at_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second message is acked, so each is a run; a PEEK or a PURGE takes them a page at a time."""
    cluster, (got,) = with_holes(6000)
    group = got.receipt.group
    for request in (
        m.PeekRequest("jobs", 0, group, "dead", (0, 0), 256),
        m.PeekRequest("jobs", 0, group, "all", (0, 0), 256, complete=True),
        m.PurgeRequest("jobs", 0, group),
    ):
        assert longest(cluster, request, monkeypatch) <= 100_000, request
    cluster.advance(1.0)
    assert replica_of(cluster, "a").group(group).records.count(Kind.SKIPPED) == 3000


def test_waiting_fetches_with_nothing_ready_examine_few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(partitions=100), cluster.ask("a", m.OpenSession()).producer_id
    answered(cluster, "a", fetch())
    for _ in range(20):
        cluster.submit("a", fetch(wait=10.0))
    assert longest(cluster, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])), monkeypatch) <= 20_000


def test_partitions_that_a_pattern_has_not_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(checks=False, **QUIET)
    for number in range(50):
        cluster.topic(f"topic-{number}")
    request = fetch(wait=0.0)._replace(topics=("*",), partitions=tuple(range(1024)))
    assert longest(cluster, request, monkeypatch) <= 20_000


def longest(cluster: Cluster, request: object, monkeypatch: pytest.MonkeyPatch) -> int:
    steps = steps_of(monkeypatch, lambda: (answered(cluster, "a", request), cluster.advance(0.001)))
    return max(steps)


@pytest.mark.parametrize("batches", [pytest.param(1000, marks=pytest.mark.soak), 2000])
def test_no_step_looks_at_a_whole_backlog(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither if a group is made by its first FETCH or by an operator, nor by a rewind or a deletion."""
    cluster, _, _ = backlog(batches)
    for request in (
        fetch(most=10),
        m.SetGroup("jobs", "other"),
        m.SetGroup("jobs", "g", rewind=True),
        m.SetGroup("jobs", "g", "latest", rewind=True),
    ):
        assert longest(cluster, request, monkeypatch) <= STEP_LOOKS_CALLS_MAX, request
        cluster.advance(0.1)
        assert not cluster.nodes["a"].state.backfill
    assert replica_of(cluster, "a").group("other").available.messages == batches
    assert replica_of(cluster, "a").group("g").available.messages == 0


def test_a_rewind_to_a_time_looks_first_at_what_it_covers(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a FETCH would wait until the group has looked at a backlog, and it gets nothing of it."""
    cluster, topic, producer_id = backlog(30)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    cluster.advance(2.0)
    from_ms = cluster.now.wall_ms
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 30, [b"x"])))
    looked: list[int] = []
    refresh = Views._refresh_one

    def noted(self: Views, view: GroupView, part: Span, since: object) -> None:
        looked.append(part.start)
        refresh(self, view, part, since)  # type: ignore[arg-type]

    monkeypatch.setattr(Views, "_refresh_one", noted)
    cluster.ask("a", m.SetGroup("jobs", "g", "time", from_ms, rewind=True))
    cluster.advance(2.0)
    assert looked[0] == 30
    assert len({*looked}) == 31, "the others are looked at afterwards"
    assert seqs(cluster.ask("a", fetch())) == [30]


def test_groups_of_partitions_that_are_added_begin_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(checks=False, **QUIET)
    topic = cluster.topic()
    for number in range(30):
        cluster.ask("a", m.SetGroup("jobs", f"g{number:02}"))
    assert longest(cluster, m.AlterTopic("jobs", partitions=101), monkeypatch) <= 100_000
    cluster.advance(0.1)
    for number in range(101):
        assert len(cluster.nodes["b"].replicas[PartitionId(topic.id, number)].views.groups) == 30


@pytest.mark.usefixtures("few")
def test_a_deleted_group_does_not_begin_in_partitions_that_are_added() -> None:
    """Seed 5013073: its view was to be made there, when a step has time, and RECLAIM waited for it."""
    cluster = Cluster(**QUIET)
    topic = cluster.topic()
    for name in ("g", "h"):
        cluster.ask("a", m.SetGroup("jobs", name))
    cluster.ask("a", m.DeleteGroup("jobs", "g"))
    cluster.ask("a", m.AlterTopic("jobs", partitions=9))
    cluster.advance(0.1)
    views = cluster.nodes["b"].replicas[PartitionId(topic.id, 8)].views
    assert ([*views.groups], [*views.over]) == (["h"], [])


def test_between_the_steps_in_which_groups_begin_others_have_their_time() -> None:
    """Each is short, and there may be a hundred: a publish goes through several nodes, and would wait at each."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    for number in range(30):
        cluster.ask("a", m.SetGroup("jobs", f"g{number:02}"))
    began = cluster.time
    answered(cluster, "a", m.AlterTopic("jobs", partitions=301))
    state, unmade = cluster.nodes["b"].state, []
    while state.backfill:
        cluster.advance(limits.COSTLY_PAUSE_S)
        cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, len(unmade), [b"x"])))
        unmade.append(sum(len(replica.views.unmade) for replica in cluster.nodes["b"].replicas.values()))
    made = [before - after for before, after in pairwise(unmade)]
    assert max(made) <= limits.LOOKS_PER_STEP, made
    assert cluster.time - began >= (300 * 30 / limits.LOOKS_PER_STEP - 2) * limits.COSTLY_PAUSE_S


def test_a_batch_of_many_sessions_is_processed_in_steps() -> None:
    cluster = filled(1, **QUIET)
    (topic,) = cluster.nodes["a"].catalogue.topics.values()
    for number in range(32):
        cluster.ask("a", m.SetGroup(topic.name, f"group-{number}"))
    producer_ids = sorted(cluster.ask("a", m.OpenSession()).producer_id for _ in range(512))  # type: ignore[union-attr]
    spans, records = (
        tuple(Span(producer_id, 0, 1) for producer_id in producer_ids),
        [encode_record(Message(b"x"))] * 512,
    )
    batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, records)
    began = cluster.time
    cluster.ask("a", m.Publish(batch))
    (replica,) = cluster.nodes["a"].replicas.values()
    while replica.group("group-0").available.messages < 513:
        cluster.advance(limits.COSTLY_PAUSE_S)
    steps = 512 * 32 / limits.REFRESHED_PER_STEP
    assert cluster.time - began >= (steps - 3) * limits.COSTLY_PAUSE_S


@pytest.mark.usefixtures("few")
def test_the_oldest_are_delivered_first_also_while_the_group_has_not_looked_at_all() -> None:
    cluster, topic, producer_id = backlog(20)
    key = cluster.submit("a", fetch(most=2))
    assert seqs(cluster.replies[key]) == [0, 1]
    assert replica_of(cluster, "a").group("g").begins
    cluster.submit("b", m.Publish(cluster.batch(topic, producer_id, 20, [b"x"])))
    got = [seq for _ in range(8) for seq in seqs(answered(cluster, "a", fetch(most=5)))]
    assert got == list(range(2, 21))


@pytest.mark.usefixtures("few")
def test_a_group_from_a_time_on_begins_with_what_it_covers() -> None:
    cluster, _, _ = backlog(30)
    middle = cluster.now.wall_ms - 10
    reply = answered(cluster, "a", m.SetGroup("jobs", "g", "time", middle))
    assert reply.group.from_ms == middle  # type: ignore[attr-defined]
    first = seqs(answered(cluster, "a", fetch(most=1)))
    assert replica_of(cluster, "a").group("g").backfill is not None, "what was before has not been looked at"
    assert first == [min(seq for seq in range(30) if published_at(cluster, seq) >= middle)]


def published_at(cluster: Cluster, seq: int) -> int:
    """The publish time of message ``seq``, by its producer's clock."""
    batches = replica_of(cluster, "a").batches
    _, number = [*batches.order][seq]
    return batches.stored[number].header.published_ms


@pytest.mark.usefixtures("few")
def test_a_group_from_a_time_on_gets_all_that_it_covers_whatever_the_order_of_publish_times() -> None:
    """Batches stand in the order in which they were made by our clock, and are covered by their producers' clocks."""
    cluster, topic, producer_id = backlog(0)
    offsets = [0, -3_600_000, 3_600_000, -1, 5, -7, 0, -3_600_000]
    for seq, offset in enumerate(offsets):
        cluster.advance(1.0)
        batch = cluster.batch(topic, producer_id, seq, [b"x"], published_ms=cluster.now.wall_ms + offset)
        cluster.ask("a", m.Publish(batch))
    middle = published_at(cluster, 3)
    answered(cluster, "a", m.SetGroup("jobs", "g", "time", middle))
    assert replica_of(cluster, "a").group("g").begins
    got: list[int] = []
    while new := seqs(answered(cluster, "a", fetch(most=2))):
        got += new
    assert got == [seq for seq in range(8) if published_at(cluster, seq) >= middle] == [2, 3, 4, 5, 6]
    cluster.advance(0.1)
    assert replica_of(cluster, "a").group("g").backfill is None


@pytest.mark.usefixtures("few")
def test_no_one_hears_that_nothing_is_left_while_a_group_has_not_looked_at_all() -> None:
    """A non-zero count of ready messages makes a FETCH that does not wait look on in the next steps."""
    cluster, _, producer_id = backlog(40)
    cluster.submit("a", m.SetGroup("jobs", "g"))
    replica, view = replica_of(cluster, "a"), replica_of(cluster, "a").group("g")
    acked = (m.Owned(Span(producer_id, 0, 39), Owner("a", Incarnation(1, 1), Stamp(1, "a"))),)
    for core in cluster.nodes.values():
        for copy in core.replicas.values():
            copy.on_ack("a", m.Ack(0, copy.partition, copy.epoch, "g", 0, acked), cluster.now)
    assert view.begins
    assert not view.available.messages
    assert backlog_of(replica.batches, view, cluster.now)["available"] == 1
    assert seqs(answered(cluster, "a", fetch())) == [39]


def test_no_batch_is_reclaimed_while_a_reading_group_has_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, _ = backlog(1, sync_interval=1.0)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    replica = replica_of(cluster, "a")
    replica.views.unmade["other"] = None
    cluster.advance(5.0)
    assert len(replica.batches.stored) == 1
    replica.views.begin({})
    cluster.advance(5.0)
    assert len(replica.batches.stored) == 1, "the other group has not settled it"
    assert not replica.views.unmade

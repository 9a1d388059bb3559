"""Costs of a step grow with the sections that it touches: counted in Python calls, which load does not change."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.values import limits
from quorumq.core.values.types import Latest, PartitionId, Span
from quorumq.wire.batch import Message, decode_header, encode_record, pack_spans
from tests.core.cluster import Cluster
from tests.core.steps import fetch, opened, outcomes, receipts
from tests.core.work import (
    QUIET,
    SLACK,
    STEP_CALLS_MAX,
    answered,
    by_one_each,
    by_spans,
    calls,
    filled,
    settling,
    steps_of,
    taken,
    with_holes,
)

SMALL, LARGE = 64, 512
GROWTH = LARGE / SMALL
"""Growth of a linear step; a quadratic one is at 8 times that."""


def cost(step: str, spans: int) -> int:
    """Calls of one request, or of a moment, on all three nodes, over a batch of ``spans`` spans."""
    cluster = filled(spans)
    if step == "hold":
        return calls(lambda: taken(cluster, spans))
    got = taken(cluster, spans)
    if step == "expire":
        cluster.advance(9.99)
        return calls(lambda: cluster.advance(0.02))
    request, verdict = settling(step, got)

    def settle() -> None:
        assert set(outcomes(answered(cluster, "c", request))) == {verdict}

    return calls(settle)


@pytest.mark.parametrize("step", ["hold", "ack", "reject", "bury", "extend", "expire"])
def test_the_cost_of_spans_is_linear(step: str) -> None:
    small, large = cost(step, SMALL), cost(step, LARGE)
    assert large <= SLACK * GROWTH * small, f"{step}: {small} calls for {SMALL} sections, {large} for {LARGE}"


# ------------------------------------------------------------------------- one message at a time

CALLS = {"publish": 225, "fetch": 379, "ack": 240}
"""Functions of Python called by all steps of the three cores for one message, at most: one a step is the counting."""

STEPS = {"publish": 8, "fetch": 5, "ack": 6}


def test_one_message_costs_so_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact and the same on any machine: who adds a call to every step sees it here."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    by_request: dict[str, list[int]] = {}
    for seq in range(3):  # the first one registers the group, and functions compile what they need
        batch = cluster.batch(topic, producer_id, seq, [b"x"])
        by_request["publish"] = steps_of(
            monkeypatch, lambda batch=batch: cluster.ask("a", m.Publish(batch)), builtins=False
        )
        got: list[tuple[m.ReceiptPart, ...]] = []
        by_request["fetch"] = steps_of(
            monkeypatch, lambda got=got: got.append(taken(cluster, 1)), builtins=False
        )
        by_request["ack"] = steps_of(
            monkeypatch, lambda got=got: cluster.ask("b", m.AckRequest(got[0])), builtins=False
        )
    assert {name: len(steps) for name, steps in by_request.items()} == STEPS
    assert {name: sum(steps) for name, steps in by_request.items() if sum(steps) > SLACK * CALLS[name]} == {}


MESSAGE_CALLS = 901
MESSAGE_STEPS = 19
MESSAGE_SAID = 12
"""Costs of one message in a row of them, 3.5 ms apart: calls, steps, and messages between the nodes."""


def test_a_message_in_a_row_of_them_costs_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(heartbeat=600.0, checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    said: list[object] = []

    def one(seq: int) -> None:
        waiting = cluster.submit("b", fetch(wait=1.0))
        cluster.advance(0.001)
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])), of=m.PublishReply)
        cluster.advance(0.001)
        assert outcomes(cluster.ask("b", m.AckRequest(receipts(cluster.replies[waiting])))) == ["acked"]
        cluster.advance(0.0015)

    one(0)
    cluster.advance(0.1)
    cluster.drop = lambda sender, to, message: said.append(message) is not None
    count = 40
    steps = steps_of(
        monkeypatch, lambda: [*map(one, range(1, 1 + count)), cluster.advance(0.1)], builtins=False
    )
    assert sum(steps) <= SLACK * MESSAGE_CALLS * count
    assert len(steps) <= MESSAGE_STEPS * count
    assert len(said) <= MESSAGE_SAID * count


def beside(topics: int) -> int:
    """Calls of a publish that a parked FETCH waits for, beside one parked for each of ``count`` other topics."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    for number in range(topics):
        cluster.topic(f"other{number}")
        cluster.submit("a", fetch(wait=1.0)._replace(topics=(f"other{number}",)))
    waiting = cluster.submit("a", fetch(wait=1.0))
    count = calls(
        lambda: cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"]))), builtins=False
    )
    assert receipts(cluster.replies[waiting])
    return count


def test_a_fetch_of_another_topic_is_not_woken() -> None:
    """A publish passes over each of 40 more parked FETCHes without examining it."""
    assert beside(41) - beside(1) <= 40 * 5


# ------------------------------------------------------------------ no step stands in the way


@pytest.mark.parametrize(
    ("made", "step"),
    [(by_one_each, step) for step in ("ack", "reject", "bury", "extend", "leave", "expire and fetch")]
    + [(with_holes, step) for step in ("ack", "leave", "expire and fetch")]
    + [(by_spans, step) for step in ("reject", "expire and fetch")],
    ids=lambda item: item if isinstance(item, str) else item.__name__,
)
def test_no_step_takes_long_whatever_is_settled(
    made: Callable[[int], tuple[Cluster, tuple[m.ReceiptPart, ...]]],
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, got = made(500)

    def work() -> None:
        if step == "leave":
            answered(cluster, "c", m.ReleaseRequest(got))
        elif step == "expire and fetch":
            cluster.advance(10.0)
            answered(cluster, "b", fetch())
        else:
            answered(cluster, "c", settling(step, got)[0])
        cluster.advance(2.0)

    steps = steps_of(monkeypatch, work)
    assert max(steps) <= STEP_CALLS_MAX, sorted(steps)[-5:]


def new_topics() -> tuple[Cluster, object]:
    """A FETCH that makes a group of each of 300 topics."""
    cluster = Cluster(checks=False, **QUIET)
    names = tuple(f"topic-{number}" for number in range(300))
    for name in names:
        cluster.topic(name)
    return cluster, fetch()._replace(topics=names)


def many_partitions() -> tuple[Cluster, object]:
    """A session that is closed in as many partitions as one request may name, each of them twice."""
    cluster = Cluster(checks=False, **QUIET)
    topic, session = cluster.topic(partitions=512), cluster.ask("a", m.OpenSession())
    locations = tuple(PartitionId(topic.id, number) for number in range(512))
    return cluster, m.CloseSession(session.producer_id, locations + locations)


def spans_for_groups() -> tuple[Cluster, object]:
    """A batch of many sessions' messages for a dozen groups."""
    cluster = filled(1, **QUIET)
    (topic,) = cluster.nodes["a"].catalogue.topics.values()
    for number in range(12):
        cluster.ask("a", m.SetGroup(topic.name, f"group-{number}"))
    producer_ids = sorted(cluster.ask("a", m.OpenSession()).producer_id for _ in range(1024))
    spans = tuple(Span(producer_id, 0, 1) for producer_id in producer_ids)
    records = [encode_record(Message(b"x"))] * len(spans)
    return cluster, m.Publish(pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, records))


def many_batches() -> tuple[Cluster, object]:
    """A FETCH of neighbouring messages, each in a batch of its own."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    for seq in range(600):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])))
    assert receipts(cluster.ask("c", fetch(most=1)))
    return cluster, fetch(most=10_000)


@pytest.mark.parametrize("made", [new_topics, many_partitions, spans_for_groups, many_batches])
def test_no_step_takes_long_whatever_is_asked_for(
    made: Callable[[], tuple[Cluster, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, request = made()
    steps = steps_of(monkeypatch, lambda: answered(cluster, "c", request))
    cluster.advance(0.5)
    assert max(steps) <= STEP_CALLS_MAX, sorted(steps)[-5:]
    if made is spans_for_groups:
        for group in ("group-0", "group-11"):
            assert len(taken(cluster, 1024, group=group)) == 1024, "all are offered in the end"


def test_a_group_from_latest_passes_over_many_sessions_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls by session, on all three nodes, with the look at the group's backfill."""
    cluster = of_sessions(1024)
    per_session = calls(lambda: begun(cluster, "late")) / 1024
    assert per_session <= 100
    steps = steps_of(monkeypatch, lambda: begun(cluster, "later"))
    assert max(steps) <= STEP_CALLS_MAX, sorted(steps)[-5:]
    assert receipts(answered(cluster, "b", fetch("late"))) == ()
    assert len(taken(cluster, 1024, group="other")) == 1024


def of_sessions(count: int) -> Cluster:
    """A cluster with a message of each of ``count`` sessions, beside one that is held."""
    cluster = filled(1, **QUIET)
    (topic,) = cluster.nodes["a"].catalogue.topics.values()
    for _ in range(0, count, 512):
        producer_ids = sorted(cluster.ask("b", m.OpenSession()).producer_id for _ in range(512))
        spans = tuple(Span(producer_id, 0, 1) for producer_id in producer_ids)
        records = [encode_record(Message(b"x"))] * len(spans)
        batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, records)
        assert isinstance(answered(cluster, "c", m.Publish(batch)), m.PublishReply)
    return cluster


def begun(cluster: Cluster, group: str) -> None:
    """Make a group from latest, and have all nodes look at their messages."""
    answered(cluster, "a", m.SetGroup("jobs", group, "latest"))
    views = [replica.group(group) for core in cluster.nodes.values() for replica in core.replicas.values()]
    while any(view.backfill is not None for view in views):
        cluster.advance(limits.COSTLY_PAUSE_S)


def test_fetches_of_other_groups_go_on_while_a_group_from_latest_begins() -> None:
    cluster = of_sessions(2048)
    cluster.delay = 0.001
    late = cluster.submit("a", m.SetGroup("jobs", "late", "latest"))
    assert receipts(cluster.ask("b", fetch("other", most=10), 0.01))
    assert late not in cluster.replies
    cluster.advance(0.1)
    assert cluster.replies[late].group.latest == Latest.BEGUN


@pytest.mark.soak
def test_a_group_from_latest_passes_over_the_most_sessions_there_may_be_in_seconds() -> None:
    """Processor time of all three nodes, which one process has here."""
    cluster = of_sessions(limits.SESSIONS_PER_PARTITION_MAX - 512)
    gc.collect()
    gc.freeze()
    began = time.process_time()
    begun(cluster, "late")
    took = time.process_time() - began
    gc.unfreeze()
    assert took <= 15.0, f"{took:.1f} s of processor time on three nodes"


def test_no_step_takes_long_where_a_topic_grows_for_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions are made in one step, as they are confirmed by one; their nodes are drawn in another."""
    cluster = Cluster(checks=False, **QUIET)
    cluster.topic()
    for number in range(20):
        cluster.ask("a", m.SetGroup("jobs", f"group-{number}"))
    steps = steps_of(monkeypatch, lambda: answered(cluster, "c", m.AlterTopic("jobs", partitions=1024)))
    assert max(steps) <= SLACK * 1.6 * STEP_CALLS_MAX, sorted(steps)[-5:]


def test_no_step_takes_long_where_many_partitions_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(sync_interval=600.0, checks=False)
    topic = cluster.topic(partitions=512)
    for number in range(32):
        cluster.ask("a", m.SetGroup("jobs", f"group-{number}"))
    cluster.advance(1.0)
    offered: Counter[tuple[str, str]] = Counter()

    def count(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.SyncDigests) and sender == "a":
            offered[sender, to] += 1
        return False

    cluster.drop = count
    core = cluster.nodes["a"]
    for peer in "bc":
        core.state.at(cluster.now.mono, ("sync", peer))
    steps = steps_of(monkeypatch, lambda: cluster.advance(0.5))
    assert max(steps) <= STEP_CALLS_MAX, sorted(steps)[-5:]
    assert offered == {("a", "b"): 512, ("a", "c"): 512}, "in chunks, to the last"
    core.state.at(cluster.now.mono, ("sync", "b"))
    cluster.advance(0.001)
    cluster.ask("c", m.DeleteTopic("jobs", topic.id))
    cluster.advance(0.5)  # the messages to be offered are gone


def test_the_holds_of_a_long_run_end_in_steps_of_bounded_size() -> None:
    """A run with every second message acked becomes as many runs: no node stands still for all of them."""
    cluster = Cluster(checks=False)
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 4000)))
    (got,) = receipts(cluster.ask("a", fetch(most=4000)))
    (replica,) = cluster.nodes["a"].replicas.values()
    acked = tuple(m.Owned(Span(producer_id, seq, seq + 1), got.receipt.owner) for seq in range(0, 4000, 2))
    replica.on_ack("a", m.Ack(0, replica.partition, replica.epoch, "g", 0, acked), cluster.now)
    view, held = replica.group("g"), []
    cluster.time += 10.0
    while cluster.nodes["a"].state.timers and view.held_count:
        cluster.drivers["a"].feed()
        held.append(view.held_count)
    assert len(held) > 1, "not all in one step"
    assert (held[-1], view.available.messages) == (0, 2000)


def test_a_message_published_alone_takes_little_memory_while_it_waits() -> None:
    """A replica's memory for one is bounded, tables included; partition and session are kept once for all."""
    cluster = Cluster(1)
    topic = cluster.topic(rf=1)
    cluster.ask("a", fetch())
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    core = cluster.nodes["a"]
    (replica,) = core.replicas.values()

    def store(seq: int) -> None:
        batch = cluster.batch(topic, producer_id, seq, [b"x" * 100])
        came = batch._replace(header=decode_header(batch.raw))  # as over the wire
        replica.storing.take("a", m.Part(topic.epoch_of(0), came), topic, cluster.now, asked=True)
        core.vote_router.on_durable(core.state.next_batch - 1, cluster.now)

    for seq in range(100):
        store(seq)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for seq in range(100, 4100):
            store(seq)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 4000 < 200, "and the journal's index takes 36 bytes"
    headers = [batch.header for batch in replica.batches.stored.values()]
    assert len({id(header.partition) for header in headers}) <= 2, (
        "the replica's own, and that of the newest batches"
    )
    assert len({id(header.spans[0].producer_id) for header in headers}) == 1


def upkeep(sessions: int, groups: int) -> int:
    """Calls of two rounds of upkeep on all three nodes, after ``groups`` began behind the messages of ``sessions``."""
    cluster = filled(sessions)
    for number in range(groups):
        assert isinstance(answered(cluster, "a", m.SetGroup("jobs", f"x{number}", "latest")), m.GroupReply)
    cluster.advance(10.0)
    return calls(lambda: cluster.advance(4.0))


def test_upkeep_does_not_grow_with_what_groups_keep_of_sessions() -> None:
    assert upkeep(LARGE, 8) <= SLACK * upkeep(SMALL, 8)


def lone_reader(given_back: int, *, released_at_once: bool) -> int:
    """Calls of a FETCH of one message, after ``given_back`` deliveries of one message each were given back."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * (given_back + 10))))
    held: list[tuple[str, tuple[m.ReceiptPart, ...]]] = []
    for number in range(given_back):
        node = "abc"[number % 3]
        held.append((node, receipts(cluster.ask(node, fetch(most=1)))))
        if released_at_once:
            cluster.ask(node, m.ReleaseRequest(held.pop()[1]))
    for node, got in held:
        cluster.ask(node, m.ReleaseRequest(got))
    cluster.advance(3.0)
    receipts(cluster.ask("a", fetch(most=1)))
    return calls(lambda: receipts(cluster.ask("a", fetch(most=1))))


@pytest.mark.parametrize("released_at_once", [True, False])
def test_a_fetch_costs_the_same_after_many_deliveries_were_given_back(released_at_once: bool) -> None:
    few, many = (lone_reader(given_back, released_at_once=released_at_once) for given_back in (10, 300))
    assert many <= SLACK * few

"""Names of publishers' own (docs/protocol.md, NAMES): the id of a name, and the end of its window."""

from __future__ import annotations

import pytest

from quorumq.client.produce.derived import Name
from quorumq.core import messages as m
from quorumq.core.requests.publish import producer_ids_begun
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.names import begins_ms, begins_ms_of, slots_of
from quorumq.core.values.types import DERIVED, NAMED, PartitionId, ProducerId, Span, Topic
from tests.core.cluster import Cluster
from tests.core.conftest import Without
from tests.core.network import wipe
from tests.core.steps import check_failed, closed, drained, fetch, receipts, replica_of, rewind, root_of, seqs

WINDOW_S = 60
SLOT, SEQ = 3, 17


def found(cluster: Cluster, topic: Topic, node: str = "a") -> tuple[ProducerId, bool]:
    reply = cluster.ask(node, m.FindName(PartitionId(topic.id, 0), WINDOW_S, SLOT, SEQ), of=m.FindNameReply)
    assert reply.producer_id[:3] == (NAMED, WINDOW_S, SLOT)
    return reply.producer_id, reply.known


def published(
    cluster: Cluster, topic: Topic, producer_id: ProducerId, node: str = "a", payload: bytes = b"x"
) -> object:
    return cluster.ask(node, m.Publish(cluster.batch(topic, producer_id, SEQ, [payload])))


def at_a_border(cluster: Cluster) -> None:
    """Let time pass until shortly before a window ends."""
    seconds = WINDOW_S - (cluster.now.wall_ms / 1000) % WINDOW_S
    cluster.time += seconds - 1


def test_a_name_is_found_in_the_window_before_and_after_and_by_clocks_that_differ() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    at_a_border(cluster)
    first, known = found(cluster, topic)
    assert not known
    assert isinstance(published(cluster, topic, first), m.PublishReply)
    assert found(cluster, topic, "b") == (first, True)
    cluster.wall_off_ms = {"b": 2_000, "c": -2_000}
    assert found(cluster, topic, "b") == (first, True), "that node's window is the next one"
    cluster.time += 2
    assert found(cluster, topic, "c") == (first, True), "and that one's the one before"
    cluster.time += WINDOW_S - 2
    cluster.wall_off_ms = {}
    later, known = found(cluster, topic, "a")
    assert (later, known) == (first, True)
    cluster.time += 2
    assert found(cluster, topic, "a") == (first, True), (
        "two windows on: the first node's clock may have been behind"
    )
    cluster.time += WINDOW_S
    later, known = found(cluster, topic, "a")
    assert (later.k, known) == (first.k + 3, False)


def test_a_caller_within_a_window_of_the_first_finds_its_name_whichever_clock_is_ahead() -> None:
    """The clocks differ by just less than a window, and so do the times: the second number is above by two."""
    cluster = Cluster()
    topic = cluster.topic()
    at_a_border(cluster)
    for ahead_ms, seconds in ((59_000, 59), (-59_000, 0), (-59_000, 59), (59_000, 0)):
        cluster.wall_off_ms = {"a": max(0, -ahead_ms), "b": max(0, ahead_ms), "c": 0}
        cluster.time += 5 * WINDOW_S
        first, known = found(cluster, topic, "a")
        assert not known
        assert isinstance(published(cluster, topic, first, "a"), m.PublishReply)
        cluster.time += seconds
        assert found(cluster, topic, "b") == (first, True), (ahead_ms, seconds)
        assert isinstance(published(cluster, topic, first, "b"), m.PublishReply), (
            "nor is it ahead of any clock"
        )


def test_one_replica_that_knows_is_enough_and_is_completed_by_the_next_publish() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to != "b"
    cluster.submit("a", m.Publish(cluster.batch(topic, first, SEQ, [b"x"])))
    cluster.hear_all()
    assert found(cluster, topic, "c") == (first, True)
    assert isinstance(published(cluster, topic, first, "c"), m.PublishReply)
    check_failed(published(cluster, topic, first, "b", b"y"), Code.CONFLICT)


def test_a_name_is_asked_of_a_majority_and_outlasts_a_disk() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    published(cluster, topic, first)
    wipe(cluster, "c", 70)
    assert found(cluster, topic, "c")[0] == first
    cluster.drop = lambda sender, to, message: sender != to
    assert (
        cluster.ask("c", m.FindName(PartitionId(topic.id, 0), WINDOW_S, SLOT, SEQ + 1), 6).code
        == Code.TOO_FEW_REPLICAS
    )  # type: ignore[union-attr]


def test_an_acked_message_is_known_by_its_name_until_its_window_is_past_and_then_closed() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    at_a_border(cluster)
    first, _ = found(cluster, topic)
    published(cluster, topic, first)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    cluster.advance(20)
    replica = next(iter(cluster.nodes["a"].replicas.values()))
    assert not replica.batches.stored, "its payload is reclaimed"
    assert found(cluster, topic, "b") == (first, True)
    assert first not in replica.batches.closed
    cluster.wall_off_ms = {"a": 4_000_000}
    cluster.advance(10)
    assert first not in replica.batches.closed, "one clock alone closes nothing"
    cluster.wall_off_ms = dict.fromkeys("abc", 4_000_000)
    cluster.advance(20)
    assert all(
        first in replica.batches.closed
        for core in cluster.nodes.values()
        for replica in core.replicas.values()
    )
    check_failed(published(cluster, topic, first), Code.SESSION_CLOSED)


def test_a_name_for_the_life_of_its_topic_is_never_closed() -> None:
    cluster = Cluster(session_idle=1.0)
    topic = cluster.topic()
    for_good = ProducerId(NAMED, 0, SLOT, 0)
    published(cluster, topic, for_good)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    cluster.advance(30)
    assert isinstance(published(cluster, topic, for_good, "b"), m.PublishReply)
    assert receipts(cluster.ask("c", fetch())) == ()


def test_a_name_whose_payload_is_absent_is_known() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    for core in cluster.nodes.values():
        replica = next(iter(core.replicas.values()))
        replica.batches.note_offered("b", (Span(first, SEQ, SEQ + 1),), cluster.now)
    assert found(cluster, topic, "b") == (first, True)


def refused(reply: object, code: Code, text: str) -> None:
    assert isinstance(reply, m.Failed), reply
    assert (reply.code, text in reply.detail) == (code, True), reply


@pytest.mark.parametrize(
    ("producer_id", "seq", "text"),
    [
        (ProducerId(NAMED, 61, 0, 0), 0, "names are kept for 61 s"),
        (ProducerId(NAMED, 1 << 40, 0, 0), 0, "names are kept for"),
        (ProducerId(NAMED, 60, slots_of(60), 0), 0, "there are 16"),
        (ProducerId(NAMED, 0, limits.NAME_SLOTS, 0), 0, "there are 4096"),
        (ProducerId(NAMED, 60, 0, 0), limits.NAME_NUMBERS, "the number of a name"),
        (ProducerId(NAMED, 0, 0, 1), 0, "without a window"),
    ],
)
def test_an_id_that_no_name_has_is_refused(producer_id: ProducerId, seq: int, text: str) -> None:
    cluster = Cluster()
    topic = cluster.topic()
    refused(cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"]))), Code.USAGE, text)
    assert not replica_of(cluster, "a").batches.stored
    if producer_id.n:
        ask = m.FindName(PartitionId(topic.id, 0), producer_id.n, producer_id.nonce, seq)
        refused(cluster.ask("a", ask), Code.USAGE, text)


def test_a_window_that_is_far_ahead_is_refused_by_a_node_and_may_be_taken_by_another() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    now, _ = found(cluster, topic)
    assert isinstance(published(cluster, topic, now._replace(k=now.k + 2)), m.PublishReply)
    ahead = now._replace(k=now.k + 3)
    refused(published(cluster, topic, ahead), Code.NOT_STORED, "Set the clocks of the nodes right")
    cluster.wall_off_ms = {"b": 1000 * WINDOW_S}
    assert isinstance(published(cluster, topic, ahead, "b"), m.PublishReply)


def settled(cluster: Cluster, topic: Topic, *numbers: int, seq: int = SEQ) -> None:
    """Publish a name in each of these windows, and ack it."""
    for k in numbers:
        cluster.time = max(cluster.time, WINDOW_S * k - cluster.now.wall_ms / 1000 + cluster.time)
        batch = cluster.batch(topic, ProducerId(NAMED, WINDOW_S, SLOT, k), seq, [b"x"])
        assert isinstance(cluster.ask("a", m.Publish(batch)), m.PublishReply)
        drained(cluster)


def windows(cluster: Cluster, node: str = "a") -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in replica_of(cluster, node).batches.closed.numbers.items()]


def test_windows_are_closed_with_the_unused_ones_before_them_and_are_one_run() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first = found(cluster, topic)[0].k + 1
    settled(cluster, topic, first, first + 3, first + 9, first + 40)
    cluster.time += 4 * WINDOW_S
    cluster.advance(20)
    assert [windows(cluster, node) for node in "abc"] == [[(first, first + 41)]] * 3
    assert len({root_of(replica_of(cluster, node)) for node in "abc"}) == 1
    assert not any(replica_of(cluster, node).closing.promised for node in "abc")


def test_a_window_with_a_message_left_stays_and_joins_the_others_later() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first = found(cluster, topic)[0].k + 1
    settled(cluster, topic, first)
    cluster.time += WINDOW_S
    delayed = cluster.batch(
        topic, ProducerId(NAMED, WINDOW_S, SLOT, first + 3), SEQ, [b"x"], delay_ms=20_000 * WINDOW_S
    )
    assert isinstance(cluster.ask("a", m.Publish(delayed)), m.PublishReply)
    settled(cluster, topic, first + 6)
    cluster.time += 4 * WINDOW_S
    cluster.advance(20)
    assert windows(cluster) == [(first, first + 3), (first + 4, first + 7)]
    cluster.time += 20 * WINDOW_S
    cluster.advance(1)
    drained(cluster)
    cluster.advance(20)
    assert windows(cluster) == [(first, first + 7)]


def test_a_promise_for_unused_windows_outlasts_a_crash() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first = found(cluster, topic)[0].k + 1
    settled(cluster, topic, first)
    cluster.time += 4 * WINDOW_S
    cluster.advance(20)
    assert closed(cluster) == [1, 1, 1]
    settled(cluster, topic, first + 8)
    cluster.time += 4 * WINDOW_S
    cluster.kill("c", 20)
    promised = [replica_of(cluster, node).closing.promised.state() for node in "ab"]
    assert promised[0] == promised[1]
    assert replica_of(cluster, "a").closing.promised.messages == 8, "c has not said that it is done"
    cluster.crash("a")
    assert replica_of(cluster, "a").closing.promised.state() == promised[0]
    refused(
        published(cluster, topic, ProducerId(NAMED, WINDOW_S, SLOT, first + 4), "b"),
        Code.SESSION_CLOSED,
        "past",
    )
    cluster.start("c", 20)
    assert closed(cluster) == [9, 9, 9]


@pytest.mark.parametrize("limit", ["NAMES_PER_PARTITION_MAX", "NAMES_PER_TOPIC_MAX"])
def test_names_are_bounded_and_take_no_session_space(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"quorumq.core.partition.storing.{limit}", 4)
    monkeypatch.setattr("quorumq.core.partition.storing.SESSIONS_PER_PARTITION_MAX", 1)
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    for slot in range(4):
        assert isinstance(published(cluster, topic, first._replace(nonce=slot)), m.PublishReply)
    fifth = first._replace(nonce=9)
    refused(published(cluster, topic, fifth), Code.STORAGE_FULL, "keeps 4 names of messages")
    assert isinstance(published(cluster, topic, first), m.PublishReply), "a retry takes no room"
    session = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    assert isinstance(published(cluster, topic, session), m.PublishReply), "the names are no sessions"
    drained(cluster)
    cluster.advance(20)
    refused(published(cluster, topic, fifth), Code.STORAGE_FULL, "short window")
    assert {core.state.names[topic.id] for core in cluster.nodes.values()} == {4}
    cluster.time += 5 * WINDOW_S
    cluster.advance(20)
    assert isinstance(published(cluster, topic, found(cluster, topic)[0]), m.PublishReply), (
        "their window is closed"
    )
    assert {core.state.names[topic.id] for core in cluster.nodes.values()} == {1}


def test_a_name_beyond_the_limit_that_a_peer_has_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(sync_grace=0.0)
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to == "c"
    for slot in range(3):
        published(cluster, topic, first._replace(nonce=slot))
    cluster.hear_all()
    monkeypatch.setattr("quorumq.core.partition.storing.NAMES_PER_PARTITION_MAX", 1)
    cluster.advance(10)
    assert replica_of(cluster, "c").batches.names == 3


def test_names_and_what_is_derived_count_as_begun_also_where_there_is_no_replica() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    first, _ = found(cluster, topic)
    replicas = cluster.nodes["a"].replicas
    session = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    for producer_id, here, nowhere in ((first, 2, 2), (ProducerId(DERIVED, 1, 1, 1), 1, 1), (session, 1, 0)):
        publish = m.Publish(cluster.batch(topic, producer_id, SEQ, [b"x", b"y"]))
        assert (producer_ids_begun(replicas, publish), producer_ids_begun({}, publish)) == (here, nowhere)
    published(cluster, topic, first)
    assert producer_ids_begun(replicas, m.Publish(cluster.batch(topic, first, SEQ, [b"x", b"y"]))) == 1


def test_to_compare_a_new_name_costs_a_slot_and_not_all_names() -> None:
    """2,000 names of a topic's life are spread over the slots, and each digest is charged for its bytes."""
    cluster = Cluster()
    cluster.topic()
    replica = replica_of(cluster, "a")
    names = [Name.of(f"invoice-{number}") for number in range(2000)]
    for name in names:
        replica.batches.note_reclaimed(Span(name.kept_for_good(), name.seq, name.seq + 1))
    content = replica.batches.content
    assert max(len(content(name.kept_for_good())) for name in names) < 300
    one = ProducerId(DERIVED, 1, 2, 3)  # as if they had one slot
    for name in names:
        replica.batches.note_reclaimed(Span(one, name.seq, name.seq + 1))
    replica.batches.digests.clear([one])
    spent = replica.batches.digests.renew(replica.sync.keyed, b"t", content, 1)
    assert spent > 300, "a step with little time left does nothing after that"


IDS = {
    "a window's": ProducerId(NAMED, WINDOW_S, SLOT, 0),
    "the topic's life": ProducerId(NAMED, 0, SLOT, 0),
    "derived": ProducerId(DERIVED, 1, 2, 3),
}


def with_two_times(cluster: Cluster, topic: Topic, producer_id: ProducerId, ahead_ms: int) -> int:
    """Publish one id so that a has a try from ``ahead_ms`` after now, the others one from before; return the time."""
    border = cluster.now.wall_ms
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and to != "a"
    first = cluster.batch(topic, producer_id, SEQ, [b"x"], published_ms=border + ahead_ms)
    cluster.submit("a", m.Publish(first))
    cluster.hear_all()
    second = cluster.batch(topic, producer_id, SEQ, [b"x"], published_ms=border - ahead_ms)
    assert isinstance(cluster.ask("b", m.Publish(second)), m.PublishReply)
    times = [
        batch.header.published_ms
        for node in "abc"
        for batch in replica_of(cluster, node).batches.stored.values()
    ]
    assert times == [border + ahead_ms, border - ahead_ms, border - ahead_ms]
    return border


@pytest.mark.parametrize("ahead_ms", [5000, -5000])
@pytest.mark.parametrize("kind", IDS)
def test_copies_of_one_id_with_other_times_are_covered_alike(kind: str, ahead_ms: int) -> None:
    cluster = Cluster(sync_grace=0.0)
    topic = cluster.topic(retention_s=3600.0)
    producer_id = IDS[kind]
    if producer_id.n == WINDOW_S:
        producer_id = found(cluster, topic)[0]
    border = with_two_times(cluster, topic, producer_id, ahead_ms)
    drained(cluster)
    rewind(cluster, start="time", from_ms=border)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold) and sender != "c"
    assert seqs(cluster.ask("c", fetch())) == [SEQ]


def test_a_purge_covers_what_a_replica_with_another_time_would_deliver(rule: bool, without: Without) -> None:
    for module in ("group", "views"):
        without(f"quorumq.core.partition.{module}.begins_ms", lambda producer_id, ms: ms)
    cluster = Cluster(sync_interval=1000.0)
    topic = cluster.topic(retention_s=3600.0)
    border = with_two_times(cluster, topic, IDS["derived"], 5000)
    drained(cluster)
    rewind(cluster, start="time", from_ms=border)
    cluster.drop = lambda sender, to, message: (sender, to) == ("b", "a")
    cluster.ask("b", m.PurgeRequest("jobs", 0, "g"), of=m.PurgeReply)
    cluster.hear_all()
    assert seqs(cluster.ask("a", fetch())) == ([] if rule else [SEQ])


def test_a_rewind_skips_windows_that_were_over_before_it() -> None:
    cluster = Cluster()
    topic = cluster.topic(retention_s=3600.0)
    first, _ = found(cluster, topic)
    end_ms = 1000 * WINDOW_S * (first.k + 1)
    assert begins_ms(first, 0) == begins_ms_of(str(first), 0) == end_ms
    published(cluster, topic, first)
    drained(cluster)
    rewind(cluster, start="time", from_ms=end_ms + 1)
    assert seqs(cluster.ask("c", fetch())) == [], "whatever its time of publishing"
    rewind(cluster, start="time", from_ms=end_ms)
    assert seqs(cluster.ask("c", fetch())) == [SEQ]

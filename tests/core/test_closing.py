"""Closing producer ids: the state of a closed session shrinks to its number (docs/protocol.md, RECLAIM)."""

from __future__ import annotations

import pytest

from quorumq.core.messages import (
    AckRequest,
    CloseRequest,
    Failed,
    OpenSession,
    Publish,
    PublishReply,
    Store,
    SyncState,
)
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.closed import number_of
from quorumq.core.values.types import DERIVED, ProducerId
from tests.core.cluster import Cluster
from tests.core.network import hand_over
from tests.core.steps import (
    check_failed,
    close,
    closed,
    drained,
    fetch,
    opened,
    outcomes,
    receipts,
    replica_of,
    root_of,
    spans,
    with_session,
)


def kept(cluster: Cluster) -> list[int]:
    """Return the number of producer ids with state, by node."""
    counts = []
    for node in cluster.nodes:
        copy = replica_of(cluster, node)
        tables = [
            copy.batches.present,
            copy.batches.reclaimed,
            copy.batches.wanted_again,
            copy.batches.absent,
        ]
        tables += [view.records for view in copy.views.groups.values()]  # type: ignore[misc]
        tables += [view.leases for view in copy.views.groups.values()]  # type: ignore[misc]
        counts.append(len({producer_id for table in tables for producer_id in table.runs}))
    return counts


def test_a_closed_session_of_which_nothing_is_left_shrinks_to_its_number() -> None:
    cluster, topic, producer_id = with_session()
    close(cluster, topic, producer_id)
    cluster.advance(20)
    assert closed(cluster) == [0, 0, 0], "its messages are still wanted"
    drained(cluster)
    cluster.advance(60)
    assert closed(cluster) == [1, 1, 1]
    assert kept(cluster) == [0, 0, 0]
    assert len({root_of(replica_of(cluster, node)) for node in "abc"}) == 1


def test_a_store_of_a_closed_session_is_refused_and_nothing_comes_back() -> None:
    cluster, topic, producer_id = with_session()
    old = receipts(cluster.ask("b", fetch(hold_time=1.0)))
    cluster.advance(1.5)
    drained(cluster)
    close(cluster, topic, producer_id)
    retry = cluster.batch(topic, producer_id, 8, [b"8", b"9", b"new"])
    answer = cluster.ask("a", Publish(retry))
    assert isinstance(answer, Failed), "promised: a new message of it is refused"
    assert answer.code == "session-closed"
    cluster.advance(60)
    assert closed(cluster) == [1, 1, 1]
    check_failed(cluster.ask("c", Publish(cluster.batch(topic, producer_id, 0, [b"0"]))), "session-closed")
    assert outcomes(cluster.ask("a", AckRequest(old))) == ["acked_unproven"], "durable already, and unproven"
    assert spans(cluster.ask("a", fetch())) == []
    assert kept(cluster) == [0, 0, 0]


def test_an_idle_session_is_closed_and_a_busy_one_is_not() -> None:
    cluster, topic, producer_id = with_session(session_idle=100.0)
    drained(cluster)
    cluster.advance(50)
    cluster.ask("a", Publish(cluster.batch(topic, producer_id, 10, [b"x"])))
    cluster.advance(80)
    drained(cluster)
    cluster.advance(80)
    assert closed(cluster) == [0, 0, 0]
    cluster.advance(200)
    assert closed(cluster) == [1, 1, 1]


def test_a_replica_that_is_down_delays_closing_and_hears_of_it_later() -> None:
    cluster, topic, producer_id = with_session(session_idle=10.0)
    drained(cluster)
    cluster.advance(5)
    cluster.kill("c")
    close(cluster, topic, producer_id)
    cluster.advance(100)
    assert closed(cluster) == [0, 0]
    cluster.start("c", 100)
    assert closed(cluster) == [1, 1, 1]


def test_a_session_without_messages_is_closed_though_the_node_that_asked_was_started_again() -> None:
    """The others have promised, and nothing but that promise is known of it anywhere."""
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.kill("c")
    close(cluster, topic, producer_id)
    cluster.advance(3.0)
    cluster.crash("b")
    cluster.start("c", 20.0)
    assert closed(cluster) == [1, 1, 1]


def test_a_producer_id_that_a_peer_names_twice_is_closed_once() -> None:
    """If two lists of digests reach the peer in one step, its answer has what differs twice. That stopped the node."""
    cluster, _, producer_id = with_session()
    replica = replica_of(cluster, "a")
    unused = producer_id._replace(k=9)
    replica.batches.idle_since[unused] = cluster.now.mono
    twice = (number_of(unused),) * 2
    hand_over(cluster, "b", "a", SyncState(replica.partition, replica.epoch, (), (), closed=twice))
    assert unused in replica.batches.closed
    assert unused not in replica.batches.idle_since


def test_a_batch_stored_before_the_closing_promise_reaches_all_replicas() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, Store) and message.round > 0
    assert isinstance(
        cluster.ask("a", Publish(cluster.batch(topic, producer_id, 10, [b"late"])), 6), Failed
    ), "only a has it: the outcome is unknown"
    close(cluster, topic, producer_id)
    cluster.hear_all(60)
    assert closed(cluster) == [0, 0, 0]
    assert spans(cluster.ask("c", fetch())) == [(10, 11)]
    cluster.advance(70)
    drained(cluster)
    cluster.advance(60)
    assert closed(cluster) == [1, 1, 1]


def test_closed_sessions_survive_restarts_and_many_of_them_are_one_span() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    for _ in range(30):
        producer_id = cluster.ask("a", OpenSession()).producer_id
        cluster.ask("a", Publish(cluster.batch(topic, producer_id, 0, [b"x"])), of=PublishReply)
        close(cluster, topic, producer_id)
    drained(cluster)
    cluster.advance(100)
    for node in "abc":
        assert replica_of(cluster, node).batches.closed.numbers.spans == 1
        assert replica_of(cluster, node).batches.closed.numbers.messages == 30
    cluster.crash("abc")
    assert closed(cluster) == [30, 30, 30]
    assert kept(cluster) == [0, 0, 0]
    assert not any(replica_of(cluster, node).closing.promised for node in "abc")
    snapshot = cluster.nodes["a"].snapshot(cluster.now)
    cluster.kill("a")
    cluster.journals["a"] = list(snapshot)
    cluster.dropped["a"].clear()
    cluster.start("a")
    assert closed(cluster) == [30, 30, 30]


def test_a_batch_of_a_closed_session_that_was_left_on_disk_does_not_open_it_again() -> None:
    cluster, topic, producer_id = with_session()
    stored = next(record for record in cluster.journals["a"] if isinstance(record, BatchStored))
    drained(cluster)
    close(cluster, topic, producer_id)
    cluster.advance(60)
    assert closed(cluster) == [1, 1, 1]
    cluster.kill("a")
    cluster.journals["a"].insert(0, stored._replace(number=77))
    cluster.start("a")
    assert 77 in cluster.dropped["a"]
    cluster.advance(70)
    assert closed(cluster) == [1, 1, 1]
    assert spans(cluster.ask("a", fetch())) == []


def test_a_group_that_comes_later_or_a_rewind_does_not_keep_a_session_open() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    cluster.advance(10)
    assert spans(cluster.ask("a", fetch("late"))) == []
    close(cluster, topic, producer_id)
    cluster.advance(60)
    assert closed(cluster) == [1, 1, 1]


@pytest.mark.parametrize("ask", [True, False])
def test_a_derived_producer_id_is_never_closed(ask: bool) -> None:
    cluster = Cluster(session_idle=5.0)
    topic = cluster.topic()
    producer_id = ProducerId(DERIVED, 0, 7, 0)
    assert isinstance(cluster.ask("a", Publish(cluster.batch(topic, producer_id, 0, [b"x"]))), PublishReply)
    drained(cluster)
    if ask:
        close(cluster, topic, producer_id)
    cluster.advance(60)
    assert closed(cluster) == [0, 0, 0]
    assert isinstance(cluster.ask("b", Publish(cluster.batch(topic, producer_id, 1, [b"y"]))), PublishReply)


def test_a_synced_batch_beside_a_conflicting_record_is_stored() -> None:
    """Outputs derived anew with other bytes: one record conflicts, and the next one is missing here."""
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.drop = lambda sender, to, message: isinstance(message, Store) and to == "c"
    cluster.ask("a", Publish(cluster.batch(topic, producer_id, 0, [b"one", b"two"])))
    cluster.drop = lambda sender, to, message: isinstance(message, Store) and to != "c"
    assert isinstance(cluster.ask("c", Publish(cluster.batch(topic, producer_id, 0, [b"other"])), 6), Failed)
    cluster.hear_all(30)
    assert replica_of(cluster, "c").batches.present.messages == 2


def test_one_promise_beside_a_replica_that_is_down_makes_the_outcome_unknown() -> None:
    """b refuses, c may start again: a has stored it, and nothing says that it ends there."""
    cluster, topic, producer_id = with_session()
    cluster.kill("c")
    replica_of(cluster, "b").closing.promise((number_of(producer_id),))
    key = cluster.submit("a", Publish(cluster.batch(topic, producer_id, 10, [b"late"])))
    check_failed(cluster.replies[key], "outcome-unknown", "being closed")
    cluster.start("c", 20)
    assert [replica_of(cluster, node).batches.present.messages for node in "abc"] == [11, 11, 11]
    cluster.ask("b", Publish(cluster.batch(topic, producer_id, 10, [b"late"])), of=PublishReply)


def test_a_batch_kept_by_one_replica_of_a_closed_session_is_accepted() -> None:
    """Its copy spreads and is delivered: who heard `session-closed` would publish it a second time."""
    cluster, topic, producer_id = with_session(1)
    assert outcomes(cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch()))))) == ["acked"]
    cluster.drop = lambda sender, to, message: isinstance(message, CloseRequest) and to == "c"
    close(cluster, topic, producer_id, "a")
    late = Publish(cluster.batch(topic, producer_id, 1, [b"late"]))
    check_failed(cluster.ask("b", late), "outcome-unknown")
    cluster.hear_all(10)
    assert isinstance(cluster.ask("b", late), PublishReply), "repeated, it is stored once"
    assert spans(cluster.ask("a", fetch())) == [(1, 2)]

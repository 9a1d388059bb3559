"""Groups, generations and rewinding; dead letters as a group; PURGE and PEEK complete, on a perfect network."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Request
from quorumq.core.messages.records import TopicPut, TrustLost
from quorumq.core.node.request_checks import check_group_name
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.fate import Delay
from quorumq.core.requests import purge
from quorumq.core.values.types import Kind, Latest, Record, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.network import deaf_to_registers, wipe
from tests.core.steps import (
    DEATH,
    check_failed,
    dead_entries,
    died,
    fetch,
    more,
    outcomes,
    peek,
    published,
    receipts,
    rewind,
    spans,
    with_messages,
    with_session,
)

# ------------------------------------------------------------------------------------------------ groups


def test_two_groups_each_get_everything() -> None:
    cluster = with_messages()
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch("one")))))
    assert spans(cluster.ask("b", fetch("two"))) == [(0, 10)]


def test_a_group_from_latest_gets_what_comes_after_its_creation() -> None:
    cluster, topic, producer_id = with_session()
    cluster.advance(1)
    assert spans(cluster.ask("b", fetch()._replace(start="latest"))) == []
    cluster.advance(1)
    more(cluster, topic, producer_id, 10, 5)
    for node in "abc":
        assert peek(cluster, node=node) == [(0, 10, "skipped"), (10, 15, "ready")]
    assert spans(cluster.ask("c", fetch())) == [(10, 15)]


def test_a_fetch_is_no_ok_if_too_few_nodes_are_trusted_to_begin_its_group() -> None:
    """It was answered with nothing, at once: what was published after that was skipped."""
    cluster = with_messages(4)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ReplicaListReply | m.ResyncReply)
    cluster.submit("a", fetch()._replace(start="latest"))
    cluster.advance(0.1)
    assert {group.latest for group in cluster.nodes["c"].catalogue.groups.values()} == {Latest.SKIPPING}
    wipe(cluster, "ab", 1.0)
    for wait in (0.0, 0.5):
        check_failed(cluster.ask("c", fetch(wait=wait)._replace(start="latest"), 1.0), "too-few-replicas")


def test_a_fetch_from_latest_does_not_rewind_a_group_that_this_node_does_not_know() -> None:
    cluster = with_messages()
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.PutGroup | m.SyncTopics)
    assert spans(cluster.ask("a", fetch(most=4))) == [(0, 4)]
    assert "g" not in {name for _, name in cluster.nodes["c"].catalogue.groups}, "c knows nothing of it"
    cluster.hear_all()
    assert spans(cluster.ask("c", fetch()._replace(start="latest"))) == [(4, 10)]


def test_creating_a_group_that_is_there_changes_nothing() -> None:
    cluster = with_messages()
    cluster.ask("b", m.AckRequest(receipts(cluster.ask("b", fetch(most=4)))))
    assert cluster.ask("c", m.SetGroup("jobs", "g", "latest"), of=m.GroupReply).group.generation == 0
    assert spans(cluster.ask("c", fetch())) == [(4, 10)]


# ------------------------------------------------------------------------------------------------ rewind


def test_a_rewind_to_earliest_delivers_everything_again_and_old_receipts_are_stale() -> None:
    cluster = with_messages()
    old = receipts(cluster.ask("b", fetch(most=4)))
    cluster.ask("b", m.AckRequest(old))
    held = receipts(cluster.ask("b", fetch(most=2)))
    generation = rewind(cluster)
    assert outcomes(cluster.ask("a", m.AckRequest(held))) == ["stale-generation"]
    assert outcomes(cluster.ask("a", m.RejectRequest(held))) == ["stale-generation"]
    again = cluster.ask("a", fetch())
    assert spans(again) == [(0, 4), (6, 10)], "what is held stays held, whatever generation"
    assert {item.receipt.generation for item in receipts(again)} == {generation}
    assert outcomes(cluster.ask("c", m.AckRequest(receipts(again)))) == ["acked", "acked"]
    cluster.advance(11)
    rest = cluster.ask("c", fetch())
    assert spans(rest) == [(4, 6)]
    assert rest.slices[0].deliveries[0].attempt == 1, "attempts begin anew"


def test_a_rewind_covers_what_was_rejected_with_a_delay_and_delays_of_its_own_count() -> None:
    cluster = with_messages()
    held = receipts(cluster.ask("b", fetch(most=4)))
    assert outcomes(cluster.ask("b", m.RejectRequest(held, delay=3600.0))) == ["ok"]
    assert spans(cluster.ask("a", fetch())) == [(4, 10)]
    rewind(cluster)
    again = receipts(cluster.ask("a", fetch()))
    assert spans_of(again) == [(0, 4)]
    assert outcomes(cluster.ask("c", m.RejectRequest(again, delay=3600.0))) == ["ok"]
    cluster.advance(11)
    for node in "abc":
        cluster.crash(node)
    cluster.advance(70)
    assert spans(cluster.ask("b", fetch())) == [(4, 10)]


def test_a_rewind_to_latest_skips_the_backlog_and_one_to_a_time_begins_there() -> None:
    cluster, topic, producer_id = with_session()
    cluster.advance(10)
    middle = cluster.now.wall_ms
    more(cluster, topic, producer_id, 10, 5)
    cluster.advance(10)
    cluster.ask("a", m.SetGroup("jobs", "g"))
    rewind(cluster, start="latest")
    assert spans(cluster.ask("a", fetch())) == []
    rewind(cluster, node="c", start="time", from_ms=middle)
    assert spans(cluster.ask("b", fetch())) == [(10, 15)]


def test_a_rewind_survives_restarts_and_reaches_a_node_that_was_down() -> None:
    cluster = with_messages()
    cluster.ask("b", m.AckRequest(receipts(cluster.ask("b", fetch()))))
    cluster.kill("c")
    rewind(cluster, node="a")
    cluster.kill("ab")
    cluster.start("abc", 70)
    assert spans(cluster.ask("c", fetch())) == [(0, 10)]


def test_a_coordinator_that_missed_a_rewind_wins_nothing_of_the_old_generation() -> None:
    cluster = with_messages()
    cluster.ask("c", fetch(most=1))
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.PutGroup | m.SyncTopics)
    generation = rewind(cluster, node="a", start="latest")
    assert (
        cluster.nodes["c"].catalogue.groups[next(iter(cluster.nodes["c"].catalogue.groups))].generation == 0
    )
    assert spans(cluster.ask("c", fetch(most=5, wait=1.0), 1.0)) == []
    cluster.hear_all(10)
    assert {group.generation for group in cluster.nodes["c"].catalogue.groups.values()} == {generation}


def test_an_ack_of_an_older_generation_that_comes_late_ends_no_delivery_of_the_newer() -> None:
    cluster = with_messages(1)
    cluster.ask("a", fetch(most=1, hold_time=1.0))
    cluster.advance(1.5)
    old = receipts(cluster.ask("a", fetch()))
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    assert outcomes(cluster.ask("b", m.AckRequest(old))) == ["acked"]
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncState)
    rewind(cluster)
    cluster.advance(11)
    assert spans(cluster.ask("c", fetch(hold_time=60.0))) == [(0, 1)]
    cluster.hear_all()
    cluster.advance(5)  # anti-entropy brings c the ACKED of before the rewind
    (replica,) = cluster.nodes["c"].replicas.values()
    assert [record.kind for _, record in replica.group("g").records.items()] == [Kind.ACKED]
    assert replica.group("g").held_count == 1
    assert spans(cluster.ask("c", fetch())) == []


def test_messages_won_before_a_rewind_are_not_delivered_after_it() -> None:
    cluster = with_messages()
    cluster.ask("a", fetch(most=1))
    key = cluster.submit("a", fetch(least=20, wait=1.0))
    generation = rewind(cluster, start="latest")
    assert key not in cluster.replies
    cluster.advance(1.1)
    assert spans(cluster.replies[key]) == []
    assert {group.generation for group in cluster.nodes["a"].catalogue.groups.values()} == {generation}


def test_two_rewinds_at_once_end_in_one_generation_everywhere() -> None:
    cluster = with_messages()
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch()))))
    keys = []
    for node, start in (("a", "earliest"), ("b", "latest")):
        cluster.keys += 1
        keys.append(cluster.keys)
        cluster.queue.append((node, Request(cluster.keys, m.SetGroup("jobs", "g", start, rewind=True))))
    cluster.run()
    cluster.advance(6)
    assert all(isinstance(cluster.replies[key], m.GroupReply) for key in keys)
    assert len({tuple(core.catalogue.groups.values()) for core in cluster.nodes.values()}) == 1
    newest = max(cluster.replies[key].group.generation for key in keys)
    assert {group.generation for group in cluster.nodes["c"].catalogue.groups.values()} == {newest}


def test_a_delay_of_an_older_generation_keeps_nothing_from_the_newer_one() -> None:
    cluster = with_messages(1)
    got = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, death=DEATH))) == ["ok"]
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))) == ["ok"]
    got = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, 3600.0))) == ["ok"], "at n = 1"
    rewind(cluster)
    got = receipts(cluster.ask("c", fetch()))
    assert [item.receipt.n for item in got] == [0]
    assert outcomes(cluster.ask("b", m.RejectRequest(got, 60.0))) == ["ok"]
    assert outcomes(cluster.ask("b", m.RejectRequest(got, 60.0))) == ["ok"], "a retry finds its ballot"
    assert spans(cluster.ask("c", fetch())) == [], "the delay at n = 1 does not overtake this one"
    cluster.advance(61)
    assert spans(cluster.ask("c", fetch())) == [(0, 1)]


def test_a_node_that_missed_a_rewind_delivers_no_dead_letter_that_it_opened_again() -> None:
    cluster = Cluster()
    died(cluster)
    held = receipts(cluster.ask("b", fetch("g!dead", most=1)))
    deaf_to_registers(cluster, "c")
    rewind(cluster, node="a")
    assert spans(cluster.ask("c", fetch("g!dead", wait=1.0), 1.0)) == []
    assert outcomes(cluster.ask("a", m.AckRequest(held))) == ["stale-generation"]
    assert outcomes(cluster.ask("a", m.RejectRequest(held))) == ["stale-generation"]
    assert spans(cluster.ask("a", fetch())) == [(0, 10)]


def test_an_ack_of_one_delivery_ends_no_hold_of_another_so_a_rewind_waits_for_it() -> None:
    cluster = with_messages(1)
    old = receipts(cluster.ask("a", fetch(hold_time=1.0)))
    cluster.advance(1.1)
    new = receipts(cluster.ask("b", fetch(hold_time=10.0)))
    assert outcomes(cluster.ask("c", m.AckRequest(old))) == ["acked_after_expiry"]
    assert outcomes(cluster.ask("c", m.ExtendRequest(new, 10.0, cluster.now.mono))) == ["hold-lost"]
    rewind(cluster)
    assert spans(cluster.ask("c", fetch())) == [], "new is live, and knows of nothing"
    cluster.advance(11)
    again = cluster.ask("a", fetch())
    assert spans(again) == [(0, 1)]
    assert again.slices[0].deliveries[0].attempt == 1


def test_a_message_acked_by_another_delivery_is_not_rejected() -> None:
    for request in (m.RejectRequest, lambda items: m.RejectRequest(items, death=DEATH)):
        cluster = with_messages(1)
        old = receipts(cluster.ask("a", fetch(hold_time=1.0)))
        cluster.advance(1.1)
        new = receipts(cluster.ask("b", fetch()))
        cluster.ask("c", m.AckRequest(old))
        assert outcomes(cluster.ask("c", request(new))) == ["already-settled"]
        cluster.advance(60)
        assert spans(cluster.ask("c", fetch())) == []


# ------------------------------------------------------------------------------- dead letters as a group


def test_dead_letters_are_fetched_held_and_acked_like_any_group() -> None:
    cluster = Cluster()
    died(cluster)
    first = cluster.ask("a", fetch("g!dead", most=2, hold_time=5.0))
    assert spans(first) == [(0, 2)]
    death = first.slices[0].deliveries[0].death
    assert death is not None
    assert (death.error_class, death.message) == ("ValueError", "no")
    assert spans(cluster.ask("c", fetch("g!dead"))) == [(2, 3)], "the others are held"
    assert outcomes(cluster.ask("b", m.AckRequest(receipts(first)))) == ["acked"]
    cluster.advance(11)
    assert spans(cluster.ask("b", fetch("g!dead"))) == [(2, 3)]
    assert spans(cluster.ask("b", fetch())) == [(3, 10)], "the group itself goes on"
    for core in cluster.nodes.values():
        (replica,) = core.replicas.values()
        assert [record.kind for _, record in replica.group("g").records.items()] == [Kind.PURGED, Kind.DEAD]


def test_the_dead_letters_of_a_topic_have_a_name_of_their_own() -> None:
    cluster = Cluster()
    died(cluster)
    request = fetch()._replace(topics=("jobs.deadletters",))
    assert spans(cluster.ask("c", request)) == [(0, 3)]
    assert isinstance(cluster.ask("c", request._replace(topics=("jobs.deadletters", "jobs"))), m.Failed)
    check_failed(cluster.ask("c", request._replace(group="nobody")), "not-found")


def test_a_dead_letter_is_requeued_in_its_queue_and_dies_no_second_time() -> None:
    cluster = Cluster()
    died(cluster)
    for _ in range(7):  # more than max_deliveries
        got = receipts(cluster.ask("a", fetch("g!dead")))
        assert spans_of(got) == [(0, 3)]
        assert outcomes(cluster.ask("c", m.RejectRequest(got))) == ["ok"]
    got = receipts(cluster.ask("a", fetch("g!dead")))
    check_failed(cluster.ask("c", m.RejectRequest(got, death=DEATH)), "usage")


def spans_of(items: tuple[m.ReceiptPart, ...]) -> list[tuple[int, int]]:
    return [(item.receipt.span.start, item.receipt.span.stop) for item in items]


def test_a_replica_that_missed_the_dead_letter_is_told_and_votes_then() -> None:
    cluster = with_messages()
    got = receipts(cluster.ask("b", fetch(most=1)))
    cluster.drop = lambda sender, to, message: to == "c" and type(message).__name__ != "Hold"
    assert outcomes(cluster.ask("b", m.RejectRequest(got, death=DEATH))) == ["ok"]
    cluster.hear_all()
    cluster.kill("a")
    assert spans(cluster.ask("b", fetch("g!dead", wait=1.0), 1.0)) == [(0, 1)], "c had to vote"


def test_redriven_twice_it_is_once_and_a_reader_of_the_dead_letter_hears_it() -> None:
    cluster = Cluster()
    died(cluster)
    held = receipts(cluster.ask("c", fetch("g!dead")))
    entries = dead_entries(cluster)
    assert outcomes(cluster.ask("a", m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"]
    assert outcomes(cluster.ask("b", m.RedriveRequest("jobs", 0, "g!dead", entries))) == ["ok"]
    assert outcomes(cluster.ask("b", m.AckRequest(held))) == ["already-settled"], "it is redriven, not purged"
    got = cluster.ask("b", fetch())
    assert spans(got)[0] == (0, 3)
    assert spans(cluster.ask("b", fetch())) == []
    cluster.ask("b", m.RejectRequest(receipts(got)))
    again = receipts(cluster.ask("a", fetch(most=3)))
    assert {item.receipt.n for item in again} == {1}
    assert outcomes(cluster.ask("a", m.RejectRequest(again, death=DEATH))) == ["ok"]
    assert [item.record.n for item in dead_entries(cluster)] == [1]
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", entries))) == ["already-settled"]
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))) == ["ok"]
    assert spans(cluster.ask("a", fetch(most=3))) == [(0, 3)]


def test_a_late_ack_beats_the_dead_letter_and_its_redrive() -> None:
    cluster = with_messages(1)
    old = receipts(cluster.ask("b", fetch(hold_time=1.0)))
    cluster.advance(1.1)
    new = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("b", m.RejectRequest(new, death=DEATH))) == ["ok"]
    assert outcomes(cluster.ask("a", m.AckRequest(old))) == ["acked_after_expiry"]
    assert spans(cluster.ask("b", fetch("g!dead"))) == []
    assert spans(cluster.ask("b", fetch())) == []


def test_a_dead_letter_that_a_rewind_keeps_is_redriven_where_it_died() -> None:
    cluster = Cluster()
    died(cluster)
    cluster.advance(1)
    assert rewind(cluster, start="time", from_ms=cluster.now.wall_ms + 1) == 1
    assert peek(cluster, "dead", "g!dead") == [(0, 3, "ready")]
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))) == ["ok"]
    got = receipts(cluster.ask("a", fetch()))
    assert [(item.receipt.generation, item.receipt.n) for item in got] == [(0, 1)]
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]


def test_a_rewind_over_dead_letters_opens_them_again() -> None:
    cluster = Cluster()
    died(cluster)
    rewind(cluster)
    assert peek(cluster, "all", "g!dead") == []
    assert spans(cluster.ask("a", fetch())) == [(0, 10)]


# -------------------------------------------------------------------------------------------------- PURGE


def test_purge_settles_the_backlog_of_one_group_only() -> None:
    cluster = Cluster()
    topic, producer_id = died(cluster)
    held = receipts(cluster.ask("a", fetch(most=2)))
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(7)
    assert cluster.ask("a", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(0)
    assert outcomes(cluster.ask("b", m.AckRequest(held))) == ["acked"], (
        "a delivery under way may still be acked"
    )
    assert spans(cluster.ask("b", fetch("g!dead"))) == [(0, 3)]
    more(cluster, topic, producer_id, 10)
    assert spans(cluster.ask("b", fetch())) == [(10, 11)]
    assert spans(cluster.ask("b", fetch("other"))) == [(0, 10), (10, 11)]


def test_purge_tells_a_majority_what_one_replica_alone_has_settled() -> None:
    """Seed 330856: an ACK that reached one replica; the others delivered the message after the purge had said OK."""
    cluster = with_messages(4, heartbeat=1e6, sync_interval=1e6)
    held = receipts(cluster.ask("a", fetch(most=4, hold_time=1.0)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Ack) and sender != to
    assert outcomes(cluster.ask("c", m.AckRequest(held), 10.0)) == ["outcome-unknown"]
    cluster.drop = lambda sender, to, message: isinstance(message, m.ReplicaList) and to == "a"
    assert cluster.ask("b", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(0), (
        "it is acked, as far as c knows"
    )
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    for node in "ab":
        assert spans(cluster.ask(node, fetch())) == []


def test_purge_of_named_messages_keeps_all_others() -> None:
    cluster = Cluster()
    _, producer_id = died(cluster)
    names = (
        Span(producer_id, 7, 8),
        Span(producer_id, 1, 2),
        Span(producer_id, 5, 6),
        Span(producer_id._replace(k=99), 0, 5),
    )
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g", names)) == m.PurgeReply(2), "1 is a dead letter"
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g", names)) == m.PurgeReply(0)
    assert cluster.ask("a", m.PurgeRequest("jobs", 0, "g!dead", names)) == m.PurgeReply(1)
    assert spans(cluster.ask("b", fetch("g!dead"))) == [(0, 1), (2, 3)]
    assert spans(cluster.ask("b", fetch())) == [(3, 5), (6, 7), (8, 10)]
    assert spans(cluster.ask("b", fetch("other"))) == [(0, 10)]


def test_purge_of_named_messages_looks_at_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page for each that is far from the one before, and none behind the last."""
    monkeypatch.setattr(purge, "REPLICA_LIST_LIMIT", 1)
    cluster = Cluster()
    topic = cluster.topic()
    cluster.ask("a", m.SetGroup("jobs", "g"))
    producer_ids = [cluster.ask("a", m.OpenSession()).producer_id for _ in range(30)]
    for producer_id in producer_ids:
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"m"])))
    asked: dict[int, None] = {}

    def watch(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.ReplicaList):
            asked[message.round] = None
        return False

    cluster.drop = watch
    ordered = sorted(producer_ids)
    names = (Span(ordered[3], 0, 1), Span(ordered[20], 0, 1))
    assert cluster.ask("a", m.PurgeRequest("jobs", 0, "g", names)) == m.PurgeReply(2)
    assert len(asked) <= 4


def test_a_mistyped_group_is_not_found_by_name() -> None:
    cluster = Cluster()
    died(cluster)
    refused = cluster.ask("b", m.PurgeRequest("jobs", 0, "gg"), of=m.Failed)
    assert (refused.topic, refused.group) == ("jobs", "gg"), "the shell adds which may be meant"


def test_purging_dead_letters_and_redriving_them_at_once_keeps_one_of_both() -> None:
    cluster = Cluster()
    died(cluster)
    entries = dead_entries(cluster)
    assert cluster.ask("b", m.PurgeRequest("jobs.deadletters", 0, "g")) == m.PurgeReply(3)
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"], (
        "redriven: n + 1 is higher"
    )
    assert spans(cluster.ask("c", fetch()))[0] == (0, 3)
    assert cluster.ask("b", m.PurgeRequest("jobs", 0, "g!dead")) == m.PurgeReply(0)


@pytest.mark.parametrize(
    ("pages", "code", "remaining"), [(0, "too-few-replicas", 6), (1, "outcome-unknown", 3)]
)
def test_a_purge_that_is_cut_off_says_whether_it_did_anything(
    pages: int, code: str, remaining: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages, or before the first one is written: that nothing was done is not to be said of the former."""
    monkeypatch.setattr(purge, "REPLICA_LIST_LIMIT", 1)
    cluster, topic, _ = with_session(3)
    other = cluster.ask("b", m.OpenSession()).producer_id
    cluster.ask("b", m.Publish(cluster.batch(topic, other, 0, [b"m"] * 3)))
    cluster.ask("a", m.SetGroup("jobs", "g"))
    cluster.advance(3.0)
    surveys: dict[int, None] = {}

    def breaks(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.ReplicaList):
            surveys[message.round] = None
        return len(surveys) > pages and "a" in (sender, to)

    cluster.drop = breaks
    reply = cluster.ask("a", m.PurgeRequest("jobs", 0, "g"), 6.0)
    check_failed(reply, code)
    assert (f"purged {6 - remaining} messages" in reply.detail) == (pages > 0)
    cluster.hear_all()
    assert cluster.ask("b", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(remaining), (
        "done again, it does the rest"
    )
    assert spans(cluster.ask("b", fetch())) == []


def test_one_replica_that_answers_twice_does_not_purge_alone() -> None:
    cluster = Cluster(5)
    topic = cluster.topic()
    x, y, z = topic.replicas[0]
    outside = next(name for name in cluster.names if name not in topic.replicas[0])
    cluster.ask(x, m.SetGroup("jobs", "g"))
    cluster.drop = lambda sender, to, message: z in (sender, to) and sender != to
    producer_id = cluster.ask(x, m.OpenSession()).producer_id
    assert isinstance(cluster.ask(x, m.Publish(cluster.batch(topic, producer_id, 0, [b"m"]))), m.PublishReply)
    cluster.drop = lambda sender, to, message: to in (x, y) and not isinstance(message, m.Heartbeat)
    send = cluster.send
    cluster.send = lambda *sent: [send(*sent) for _ in range(1 + isinstance(sent[2], m.ReplicaListReply))]  # type: ignore
    key = cluster.submit(outside, m.PurgeRequest("jobs", 0, "g"))
    assert key not in cluster.replies, "z alone decided, and has not got the message"
    cluster.advance(6.0)
    assert cluster.replies[key].code == "too-few-replicas", "nothing was written"


def test_a_redrive_believes_no_generation_that_a_client_names() -> None:
    """Above the group's own it would deliver acked messages again, and no rewind would ever be above it."""
    cluster, _, producer_id = with_session(2)
    got = receipts(cluster.ask("b", fetch(most=1)))
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"]
    for generation in (0, 7, 1 << 61):
        for n in (0, 5):
            made_up = m.SpanRecord(Span(producer_id, 0, 2), Record(generation, n, Kind.DEAD, DEATH))
            reply = cluster.ask("a", m.RedriveRequest("jobs", 0, "g", (made_up,)))
            assert set(outcomes(reply)) == {"already-settled"}, (generation, n, reply)
    cluster.advance(3.0)
    assert spans(cluster.ask("c", fetch())) == [(1, 2)]
    rewind(cluster)
    cluster.advance(3.0)
    assert spans(cluster.ask("c", fetch())) == [(0, 1)], "nothing stands above a rewind; the other is held"


@pytest.mark.parametrize("of", [3, 5])
def test_a_redrive_tells_those_that_do_not_know_the_dead_letter(of: int) -> None:
    cluster = Cluster(of)
    topic, _ = published(cluster, 1)
    aware, *others = topic.replicas[0]
    got = receipts(cluster.ask(aware, fetch()))
    cluster.drop = lambda sender, to, message: to in others and isinstance(message, m.Reject | m.SyncState)
    cluster.submit(aware, m.RejectRequest(got, death=DEATH))
    cluster.advance(6.0)
    (dead,) = cluster.ask(aware, m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10)).items
    entries = (m.SpanRecord(dead.span, dead.record),)
    assert outcomes(cluster.ask(others[0], m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"]
    cluster.advance(60.0)  # a replica that missed the REJECT still has it held
    (again,) = receipts(cluster.ask(others[0], fetch()))
    assert again.receipt.n == 1


def test_a_redrive_does_not_make_a_group() -> None:
    """A view of an unread group would keep every message for ever."""
    cluster, _, producer_id = with_session(1)
    dead = m.SpanRecord(Span(producer_id, 0, 1), Record(0, 0, Kind.DEAD, DEATH))
    reply = cluster.ask("a", m.RedriveRequest("jobs", 0, "nobody", (dead,)))
    check_failed(reply, "not-found", "no group 'nobody' reads topic 'jobs'")
    assert not any(
        "nobody" in replica.views.groups
        for core in cluster.nodes.values()
        for replica in core.replicas.values()
    )


def test_purge_without_a_majority_says_so_and_purges_the_rest_when_run_again() -> None:
    cluster = with_messages()
    cluster.ask("a", fetch(most=1))
    cluster.kill("bc")
    check_failed(cluster.ask("a", m.PurgeRequest("jobs", 0, "g")), "too-few-replicas")
    cluster.start("b")
    assert cluster.ask("a", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(10)


# ---------------------------------------------------------------------------------------- PEEK complete


def test_a_complete_peek_sees_what_one_replica_does_not() -> None:
    cluster, topic, producer_id = with_session(4)
    cluster.drop = lambda sender, to, message: to == "c"
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=2)))))
    more(cluster, topic, producer_id, 4)
    cluster.hear_all()
    alone = cluster.ask("c", m.PeekRequest("jobs", 0, "g", "all", (0, 0), 100))
    assert [(item.span.start, item.span.stop, item.state) for item in alone.items] == [(0, 4, "ready")]
    assert peek(cluster, node="c") == [(0, 2, "acked"), (2, 5, "ready")]
    assert peek(cluster, "ready", node="c") == [(2, 5, "ready")]


def test_a_complete_peek_goes_page_by_page() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    for _ in range(3):
        producer_id = cluster.ask("a", m.OpenSession()).producer_id
        for first in range(0, 20, 4):
            more(cluster, topic, producer_id, first, 4)
    got = receipts(cluster.ask("a", fetch(most=17)))
    cluster.ask(
        "b", m.AckRequest(tuple(m.ReceiptPart(item.receipt, (item.receipt.span,)) for item in got[::2]))
    )
    whole = cluster.ask("b", m.PeekRequest("jobs", 0, "g", "all", (0, 0), 1000, complete=True))
    paged: list[Span] = []
    after: Span | None = None
    for _ in range(100):
        page = cluster.ask("b", m.PeekRequest("jobs", 0, "g", "all", (0, 0), 1, complete=True, after=after))
        paged += [item.span for item in page.items]
        after = page.upto
        if after is None:
            break
    assert sum(span.size for span in paged) == 60
    assert sorted(paged) == paged
    assert sum(item.span.size for item in whole.items) == 60
    assert isinstance(cluster.ask("a", fetch()), m.FetchReply)


# ------------------------------------------------------------------------------ too few replicas


def test_too_few_reachable_replicas_are_not_reported_as_a_refusal() -> None:
    """Every settling request through a node that has lost its links: its outcome is unknown, and nothing else."""
    cluster = Cluster()
    died(cluster)
    held = receipts(cluster.ask("a", fetch(most=1)))
    dead = receipts(cluster.ask("a", fetch("g!dead", most=1)))
    entries = dead_entries(cluster)
    cluster.kill("bc")
    for request in (
        m.ExtendRequest(held, 5.0, cluster.now.mono),
        m.RedriveRequest("jobs", 0, "g", entries),
        m.RejectRequest(dead),
        m.RejectRequest(held, death=DEATH),
        m.AckRequest(dead),
        m.AckRequest(held),
    ):
        assert outcomes(cluster.ask("a", request)) == ["outcome-unknown"], request


def test_the_first_look_at_dead_letters_hides_nothing_of_the_group_itself() -> None:
    """A view that is made looks back to time 0; the group's own messages must not be taken for delayed with it."""
    cluster = with_messages()
    got = receipts(cluster.ask("b", fetch(most=1)))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, delay=2.0))) == ["ok"]
    cluster.advance(3)
    assert spans(cluster.ask("b", fetch("g!dead"))) == []
    for core in cluster.nodes.values():
        core.check(cluster.now)
    assert spans(cluster.ask("b", fetch())) == [(0, 1), (1, 10)]


def test_a_group_is_not_taken_in_before_its_topic() -> None:
    """The topic may be one that was deleted, and made again under another id: the group would stay for ever."""
    cluster = Cluster()
    cluster.drop = lambda sender, to, message: (
        to == "c"
        and (isinstance(message, m.PutTopic) or (isinstance(message, m.SyncTopics) and bool(message.topics)))
    )
    topic = cluster.topic()
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g")), m.GroupReply)
    c = cluster.nodes["c"]
    assert topic.id not in c.topics
    assert not c.catalogue.groups
    cluster.hear_all(5.0)
    assert (topic.id, "g") in c.catalogue.groups


def test_a_damaged_journal_that_lost_a_topic_gives_back_none_of_its_groups() -> None:
    """Same as above after a deletion of the topic and a creation under another id. Seed 30997 of the simulator."""
    cluster = Cluster()
    topic = cluster.topic()
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g")), m.GroupReply)
    cluster.kill("c")
    journal = cluster.journals["c"]
    journal[:] = [record for record in journal if not isinstance(record, TopicPut)]
    journal.append(TrustLost(0, "damaged"))
    assert isinstance(cluster.ask("a", m.DeleteTopic("jobs", topic.id)), m.TopicReply)
    again = cluster.topic()
    cluster.start("c")
    assert not cluster.nodes["c"].catalogue.groups
    cluster.advance(5.0)
    assert again.id in cluster.nodes["c"].topics
    assert not cluster.nodes["c"].catalogue.groups


def test_an_ack_ends_delays_and_attempts_that_are_learned_later_too() -> None:
    cluster = with_messages(1)
    (got,) = receipts(cluster.ask("b", fetch()))
    assert outcomes(cluster.ask("b", m.AckRequest((got,)))) == ["acked"]
    (replica,) = cluster.nodes["a"].replicas.values()
    view = replica.group("g")
    for rule, aware in (
        (fate.on_delay, Delay(0, Stamp(1, "c"), 999.0)),
        (fate.on_counted, Attempts(0, 0, 1)),
    ):
        replica.views.note(view, got.receipt.span, rule, aware)
        assert not view.leases
    replica.views.note(view, got.receipt.span, fate.on_counted, Attempts(5, 0, 1))
    assert view.leases, "but not those of a generation above"


@pytest.mark.parametrize("name", ["a\x07", "a\u200b", "\u202ea", "a\u2028", "\ue000", "a\x9b"])
def test_a_group_has_no_control_or_format_characters_in_its_name(name: str) -> None:
    """Names that look alike are not refused: scripts are mixed in honest names, too (SECURITY.md)."""
    check_failed(Cluster().ask("a", m.SetGroup("jobs", name)), "usage")
    assert check_group_name("\u0430dmin") == ""


def test_a_topic_may_want_its_groups_created() -> None:
    """Then a mistyped name is refused at once, and a group that another node created is asked for."""
    cluster = Cluster(5)
    cluster.topic(auto_create_groups=False)
    refused = cluster.ask("a", fetch(group="mian"))
    check_failed(refused, "not-found")
    assert refused.detail == "no group 'mian' reads topic 'jobs'"
    assert not any(core.catalogue.groups for core in cluster.nodes.values())
    cluster.drop = lambda sender, to, message: "e" in (sender, to)
    cluster.ask("a", m.SetGroup("jobs", "main", "earliest"))
    cluster.hear_all()
    assert isinstance(cluster.ask("e", fetch(group="main")), m.FetchReply)
    cluster.ask("a", m.AlterTopic("jobs", auto_create_groups=True))
    assert isinstance(cluster.ask("a", fetch(group="mian")), m.FetchReply)


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_replica_without_a_message_does_not_report_it_as_reopened(start: str) -> None:
    """b has not got the messages: it does not know whether the generation covers them."""
    cluster = Cluster()
    cluster.topic()
    cluster.ask("a", m.SetGroup("jobs", "g"))
    cluster.drop = lambda sender, to, message: to == "b" and isinstance(message, m.Store)
    published(cluster, 3)
    got = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("c", m.RejectRequest(got, death=DEATH))) == ["ok"]
    cluster.advance(1.0)
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "g", start, rewind=True)), m.GroupReply)
    cluster.advance(5.0)
    cluster.drop = lambda sender, to, message: (to, type(message)) in (("b", m.Store), ("a", m.ReplicaList))
    remaining = 3 if start == "latest" else 0  # dead letters, which the new generation leaves out
    listed = cluster.ask("c", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10, complete=True))
    assert sum(item.span.size for item in listed.items) == remaining
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g!dead")) == m.PurgeReply(remaining)
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(3 - remaining)


@pytest.mark.parametrize("lost", ["link", "trust"])
def test_a_group_is_made_as_soon_as_a_node_counts_that_did_not_when_it_was_asked(lost: str) -> None:
    """A majority of the voters answers, and of the replicas one alone: no timeout has to end first."""
    cluster = Cluster(5)
    first, second, third = cluster.topic().replicas[0]
    if lost == "link":
        cluster.kill([second, third])
    else:
        cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
        wipe(cluster, second, 0.5)
        cluster.drop = lambda sender, to, message: (
            isinstance(message, m.ResyncReply) or (isinstance(message, m.PutGroup) and to == third)
        )
    key = cluster.submit(first, m.SetGroup("jobs", "g", "earliest"))
    cluster.advance(0.1)
    assert key not in cluster.replies
    if lost == "link":
        cluster.start(second)
    cluster.hear_all(1.0)
    assert isinstance(cluster.replies[key], m.GroupReply)

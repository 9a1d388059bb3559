"""Answers of one replica: STORE, choosing, PEEK, anti-entropy (docs/protocol.md, section 3)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Damaged, Unsent
from quorumq.core.messages.records import BatchStored
from quorumq.core.partition.choice import Terms
from quorumq.core.values import limits
from quorumq.core.values.types import Death, ProducerId, Stamp, Topic
from tests.core.cluster import Cluster
from tests.core.steps import (
    check_failed,
    fetch,
    opened,
    outcomes,
    published,
    receipts,
    with_messages,
    with_session,
)


def sizes(reply: object) -> int:
    assert isinstance(reply, m.FetchReply), reply
    return sum(part.stop - part.first for part in reply.slices)


def bodies(reply: m.FetchReply) -> int:
    return sum(
        part.header.end_of(part.stop - 1) - part.header.end_of(part.first - 1) for part in reply.slices
    )


# ------------------------------------------------------------------------------- STORE


def test_a_retry_through_any_node_makes_no_second_message() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    batch = cluster.batch(topic, producer_id, 0, [b"x"] * 10)
    for node in "abcabc":
        assert isinstance(cluster.ask(node, m.Publish(batch)), m.PublishReply)
    assert sizes(cluster.ask("b", fetch())) == 10
    assert sizes(cluster.ask("c", fetch())) == 0


def test_other_bytes_under_the_same_id_are_a_conflict_per_record() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"%d" % i for i in range(10)])))
    overlap = cluster.batch(topic, producer_id, 5, [b"%d" % i for i in range(5, 15)])
    assert isinstance(cluster.ask("b", m.Publish(overlap)), m.PublishReply), (
        "the same records in another cut are the same"
    )
    other = cluster.batch(topic, producer_id, 14, [b"other", b"new"])
    check_failed(cluster.ask("c", m.Publish(other)), "conflict")
    assert sizes(cluster.ask("b", fetch())) == 15


def test_below_a_majority_the_outcome_is_unknown_and_the_retry_completes_it() -> None:
    cluster = Cluster(request_timeout=5.0)
    topic, producer_id = opened(cluster)
    batch = cluster.batch(topic, producer_id, 0, [b"x"])
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store)
    answer = cluster.ask("a", m.Publish(batch), 5.1, of=m.Failed)
    assert (answer.code, answer.needed, answer.answered) == ("outcome-unknown", 2, 1), "our own disk has it"
    cluster.hear_all()
    assert isinstance(cluster.ask("b", m.Publish(batch)), m.PublishReply)


def test_with_too_few_nodes_up_nothing_is_sent() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.kill("bc")
    answer = cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])), of=m.Failed)
    assert (answer.code, answer.needed, answer.answered) == ("not-stored", 2, 1)


def test_a_replica_that_missed_the_creation_is_told_and_asked_again() -> None:
    cluster = Cluster()
    cluster.kill("c")
    topic = cluster.topic()
    cluster.drop = lambda sender, to, message: type(message).__name__ == "SyncTopics"
    cluster.start("c")
    cluster.kill("b")
    producer_id = cluster.ask("a", m.OpenSession()).producer_id
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])), of=m.PublishReply)


# ---------------------------------------------------------------------------- choosing


@pytest.mark.parametrize("most", [1, 7, 64, 100, 1000])
def test_a_fetch_is_cut_at_its_messages(most: int) -> None:
    assert sizes(with_messages(300).ask("b", fetch(most=most))) == min(300, most)


def test_a_fetch_is_cut_at_its_bytes_but_gives_at_least_one() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"y" * 5000] + [b"x" * 100] * 50)))
    reply = cluster.ask("b", m.Fetch(("jobs",), "g", 100, 1000, 1, 0.0, 10.0, 0.0))
    assert sizes(reply) == 1
    reply = cluster.ask("b", m.Fetch(("jobs",), "g", 100, 1000, 1, 0.0, 10.0, 0.0))
    assert 800 < bodies(reply) <= 1000


def test_no_fetch_gets_more_bytes_than_one_answer_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FETCH_BYTES_MAX", 1000)
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x" * 100] * 50)))
    assert bodies(cluster.ask("b", m.Fetch(("jobs",), "g", 100, 10 << 30, 1, 0.0, 10.0, 0.0))) <= 1000


HOUR_MS = 3_600_000


@pytest.mark.parametrize("off", [0, HOUR_MS, -HOUR_MS])
def test_oldest_first_whatever_the_producers_clocks_say(off: int) -> None:
    """The second producer's clock is wrong: it neither waits behind later ones, nor overtakes an earlier one."""
    cluster = Cluster()
    topic = cluster.topic()
    producer_ids = [cluster.ask("a", m.OpenSession()).producer_id for _ in range(3)]
    for step, producer_id in enumerate(reversed(producer_ids)):
        cluster.advance(1)
        at = cluster.now.wall_ms + (off if step == 1 else 0)
        cluster.ask("abc"[step], m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], published_ms=at)))
    got = [receipts(cluster.ask("b", fetch(most=1)))[0].receipt.span.producer_id for _ in producer_ids]
    assert got == list(reversed(producer_ids))


@pytest.mark.parametrize("off", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_steady_stream_neither_starves_nor_is_overtaken_by_a_wrong_clock(off: int, restarted: bool) -> None:
    """A backlog that others keep up, read one by one: each message waits for as many as were there before it."""
    cluster = Cluster()
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    deep, wrong = 5, 8
    got: list[int] = []
    for seq in range(25):
        cluster.advance(0.01)
        at = cluster.now.wall_ms + (off if seq == wrong else 0)
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"], published_ms=at)))
        if restarted and seq == wrong:
            cluster.crash("b", 70.0)
        if seq >= deep:
            (item,) = receipts(cluster.ask("b", fetch(most=1)))
            cluster.ask("b", m.AckRequest((item,)))
            got.append(item.receipt.span.start)
    assert got == list(range(20))


def test_a_batch_is_ordered_by_its_age() -> None:
    """A late retry is older than messages published meanwhile."""
    cluster = Cluster()
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    late = cluster.batch(topic, producer_id, 0, [b"x"])
    for seq in (1, 2):
        cluster.advance(1)
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])))
    cluster.ask("a", m.Publish(late, age_ms=500))
    assert [receipts(cluster.ask("b", fetch(most=1)))[0].receipt.span.start for _ in range(3)] == [1, 0, 2]


def test_a_batch_from_a_peer_is_ordered_by_the_age_that_the_peer_gives() -> None:
    cluster = Cluster(sync_interval=0.5)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    cluster.kill("c")
    for seq in range(2):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"], delay_ms=2000 * seq)))
        cluster.advance(1)
    cluster.start("c")
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 2, [b"x"])))
    (replica,) = cluster.nodes["c"].replicas.values()
    cluster.advance(10)
    batches = replica.batches
    assert [batches.stored[number].header.spans[0].start for _, number in batches.order] == [0, 1, 2]
    batches.check(cluster.clocks("c"))


def test_partitions_are_taken_in_turn() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster, partitions=4)
    for number in range(4):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 5, number)))
    firsts = [cluster.ask("a", fetch(most=1)).slices[0].partition.number for _ in range(4)]
    assert sorted(firsts) == [0, 1, 2, 3]
    assert sizes(cluster.ask("b", fetch(most=100))) == 16


def test_three_coordinators_share_a_backlog_without_conflicts() -> None:
    cluster = with_messages(64 * 60, steal_after=1e6)
    for node in "abc":  # everyone has fetched, so everyone is known to
        cluster.ask(node, fetch(most=1))
    chosen = {}
    for node in "abc":
        replica = next(iter(cluster.nodes[node].replicas.values()))
        terms = Terms(10_000, 1 << 20, 100, float("inf"))
        picked = replica.choice.choose(replica.group("g"), cluster.now, terms)
        chosen[node] = {seq for want in picked.wants for seq in range(*want.span[1:])}
    assert not chosen["a"] & chosen["b"]
    assert not chosen["b"] & chosen["c"]
    assert not chosen["a"] & chosen["c"]
    assert len(chosen["a"] | chosen["b"] | chosen["c"]) == 64 * 60 - 3
    assert all(500 < len(part) < 2500 for part in chosen.values())


def test_messages_of_an_idle_coordinator_are_taken_after_a_while() -> None:
    cluster = with_messages(64 * 6, steal_after=0.05)
    for node in "bc":
        cluster.ask(node, fetch(most=1))
    total = 0
    for _ in range(20):
        key = cluster.submit("a", fetch(most=1000, wait=1.0))
        cluster.advance(0.06)
        if key in cluster.replies:
            total += sizes(cluster.replies[key])
        if total == 64 * 6 - 2:
            break
    assert total == 64 * 6 - 2


def test_a_fetch_waits_for_its_minimum_and_then_gives_what_there_is() -> None:
    cluster, topic, producer_id = with_session(3)
    key = cluster.submit("b", fetch(least=5, wait=1.0))
    cluster.advance(0.5)
    assert key not in cluster.replies
    cluster.ask("c", m.Publish(cluster.batch(topic, producer_id, 3, [b"x"] * 2)))
    assert sizes(cluster.replies[key]) == 5
    cluster.ask("c", m.Publish(cluster.batch(topic, producer_id, 5, [b"x"] * 2)))
    assert sizes(cluster.ask("b", fetch(least=5, wait=1.0), 1.01)) == 2


def test_unknown_names_and_bad_requests_are_answered_in_words() -> None:
    cluster = with_messages(1)
    for request, code, word in [
        (m.Fetch(("jbos",), "g", 1, 1, 1, 0.0, 10.0, 0.0), "not-found", "'jbos'"),
        (m.Fetch(("jobs",), "g", 1, 1, 1, 0.0, 61.0, 0.0), "usage", "60.0 s"),
        (m.Fetch(("jobs",), "", 1, 1, 1, 0.0, 10.0, 0.0), "usage", "group"),
        (m.Fetch(("jobs",), "g", 0, 1, 1, 0.0, 10.0, 0.0), "usage", "max_messages"),
        (m.Fetch(("jobs",), "g", 1, 1, 1, 99.0, 10.0, 0.0), "usage", "max_wait"),
        (m.Fetch(("jobs",), "g", 1, 1, 1, 0.0, 10.0, 0.0, "", (7,)), "not-found", "has 1 partition:"),
        (m.PeekRequest("nope", 0, "g", "all", (0, 0), 1), "not-found", "nope"),
    ]:
        check_failed(cluster.ask("a", request), code, word)


# ------------------------------------------------------------------- releases and LEAVE


def test_an_unsent_reply_gives_its_messages_back_everywhere_and_counts_no_attempt() -> None:
    cluster = with_messages(5)
    key = cluster.submit("b", fetch())
    assert sizes(cluster.replies[key]) == 5
    cluster.feed("b", Unsent(key))
    reply = cluster.ask("c", fetch())
    assert sizes(reply) == 5
    assert reply.slices[0].deliveries[0].attempt == 1


def test_a_release_that_was_lost_is_repeated_in_front_of_the_next_hold() -> None:
    cluster, topic, producer_id = with_session(1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Release)
    key = cluster.submit("b", fetch())
    cluster.feed("b", Unsent(key))
    assert cluster.nodes["b"].state.unconfirmed["c"]
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 1, [b"x"])))
    assert sizes(cluster.ask("b", fetch(most=1))) == 1
    assert not cluster.nodes["b"].state.unconfirmed["c"]


# -------------------------------------------------------------------------------- PEEK


def test_peek_shows_every_state_in_pages_and_holds_nothing() -> None:
    cluster = Cluster()
    topic: Topic
    producer_id: ProducerId
    topic, producer_id = published(cluster, 1)
    for first in range(1, 6):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, first, [b"x"])))
    one = [receipts(cluster.ask("b", fetch(most=1))) for _ in range(4)]
    cluster.ask("a", m.AckRequest(one[0]))
    cluster.ask("a", m.RejectRequest(one[1], 30.0))
    cluster.ask("a", m.RejectRequest(one[2], 0.0, Death(Stamp(0, ""), "rejected", "E")))
    states: list[str] = []
    cursor: tuple[int, int] | None = (0, 0)
    while cursor is not None:
        page = cluster.ask("c", m.PeekRequest("jobs", 0, "g", "all", cursor, 2, True), of=m.PeekReply)
        assert len(page.slices) == len(page.items)
        states += [item.state for item in page.items]
        cursor = page.cursor
    assert states == ["acked", "delayed", "dead", "held", "ready", "ready"]
    assert sizes(cluster.ask("c", fetch())) == 2


# ------------------------------------------------------------------------ anti-entropy


def test_a_message_on_one_replica_only_reaches_all_within_ten_seconds() -> None:
    cluster, topic, producer_id = with_session(1)
    cluster.drop = lambda sender, to, message: sender != to and isinstance(message, m.Store)
    cluster.submit("a", m.Publish(cluster.batch(topic, producer_id, 1, [b"x"] * 5)))
    cluster.hear_all(10)
    for node in "abc":
        assert next(iter(cluster.nodes[node].replicas.values())).batches.present.messages == 6, node
    assert sizes(cluster.ask("c", fetch())) == 6


def test_a_replica_that_was_away_for_long_catches_up_in_one_chain_of_pulls() -> None:
    cluster, topic, producer_id = with_session(1, hold_time_max=1.0)
    cluster.kill("c")
    for first in range(1, 501):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, first, [b"x" * 20])))
    cluster.start("c", 10)
    assert next(iter(cluster.nodes["c"].replicas.values())).batches.present.messages == 501


def test_records_attempts_and_delays_reach_all() -> None:
    cluster = with_messages(9, hold_time_max=5.0)
    cluster.kill("c")
    got = [receipts(cluster.ask("a", fetch(most=3, hold_time=5.0))) for _ in range(3)]
    assert outcomes(cluster.ask("a", m.AckRequest(got[0]))) == ["acked"]
    cluster.ask("a", m.RejectRequest(got[1], 60.0))
    cluster.ask("a", m.RejectRequest(got[2], 0.0, Death(Stamp(0, ""), "rejected", "E")))
    cluster.start("c", 10)
    views = [next(iter(cluster.nodes[node].replicas.values())).views.groups["g"] for node in "abc"]
    assert views[2].records.state() == views[0].records.state()
    kept = [
        [(span, lease._replace(delay=lease.delay._replace(due=0.0))) for span, lease in view.leases.items()]
        for view in views
    ]
    assert kept[2] == kept[0]


def test_an_attempt_counts_once_though_a_peer_counts_it_before_the_hold_ends_here() -> None:
    """c does not hear of the REJECT, learns the others' count of it, and then sees its own hold run out."""
    cluster = with_messages(1, hold_time_max=60.0)
    got = receipts(cluster.ask("a", fetch(hold_time=30.0)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Reject) and to == "c"
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 5.0))) == ["ok"]
    cluster.hear_all(20.0)
    counts = {
        name: next(iter(core.replicas.values())).views.groups["g"] for name, core in cluster.nodes.items()
    }
    assert [lease.attempts.ended for _, lease in counts["c"].leases.items()] == [1], (
        "it has heard of the count"
    )
    cluster.advance(20.0)
    assert not counts["c"].held_count, "its own hold is over"
    for name in "abc":
        assert [lease.attempts.ended for _, lease in counts[name].leases.items()] == [1], name
    (again,) = cluster.ask("c", fetch()).slices  # type: ignore[union-attr]
    assert again.deliveries[0].attempt == 2


def test_a_page_of_peek_ends_inside_a_batch_and_goes_on_there() -> None:
    cluster = with_messages(40)
    for _ in range(10):
        got = receipts(cluster.ask("a", fetch(most=2)))
        one = got[0]._replace(spans=(got[0].receipt.span._replace(stop=got[0].receipt.span.start + 1),))
        cluster.ask(
            "a", m.RejectRequest((one,), 0.0, Death(Stamp(0, ""), "rejected", "E", "m" * 8000, "s" * 8000))
        )
    seen: list[int] = []
    pages = 0
    cursor: tuple[int, int] | None = (0, 0)
    while cursor is not None:
        page = cluster.ask("b", m.PeekRequest("jobs", 0, "g", "dead", cursor, 3), of=m.PeekReply)
        assert len(page.items) <= 3
        seen += [item.span.start for item in page.items]
        cursor = page.cursor
        pages += 1
    assert seen == sorted(set(seen))
    assert (len(seen), pages) == (10, 4)


def test_a_batch_that_turns_out_damaged_is_not_chosen_and_comes_back_from_a_peer() -> None:
    cluster, topic, producer_id = with_session(5)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 5, [b"good"] * 2)))
    replica = next(iter(cluster.nodes["b"].replicas.values()))
    first = replica.batches.order.first()[1]
    cluster.feed("b", Damaged(first))
    assert [item.receipt.span.start for item in receipts(cluster.ask("b", fetch()))] == [5]
    cluster.feed("b", Damaged(first))
    cluster.advance(8)
    assert replica.batches.present.messages == 7
    assert not replica.batches.absent
    assert cluster.dropped["b"] == {first}, "the bytes of the damaged one go"
    assert not replica.batches.damaged
    assert sizes(cluster.ask("b", fetch())) == 5


def test_a_durable_ack_does_not_wait_the_whole_timeout_for_a_better_verdict() -> None:
    """A paused replica has its link up and says nothing; another one granted a higher ballot in a lost round."""
    cluster = with_messages(1)
    got = receipts(cluster.ask("a", fetch(hold_time=2.0)))
    cluster.advance(2.1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold)
    cluster.submit("b", fetch(hold_time=2.0))
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    cluster.advance(1.5)
    key = cluster.submit("a", m.AckRequest(got))
    assert key not in cluster.replies
    cluster.advance(0.6)
    assert outcomes(cluster.replies[key]) == ["acked_unproven"]


def test_a_batch_that_a_start_finds_damaged_is_known_and_dropped_once_it_is_here_again() -> None:
    cluster = with_messages(5)
    cluster.kill("b")
    (batch,) = [record for record in cluster.journals["b"] if isinstance(record, BatchStored)]
    cluster.unreadable["b"] = {batch.number}
    cluster.drop = lambda sender, to, message: "b" in (sender, to)
    cluster.start("b")
    (replica,) = cluster.nodes["b"].replicas.values()
    assert replica.batches.absent.messages == 5
    cluster.advance(8)
    assert not cluster.dropped["b"]
    cluster.hear_all(8)
    assert (replica.batches.present.messages, cluster.dropped["b"]) == (5, {batch.number})


def test_a_damaged_batch_goes_with_its_topic() -> None:
    cluster, topic, _ = with_session(5)
    (replica,) = cluster.nodes["b"].replicas.values()
    number = replica.batches.order.first()[1]
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncState)
    cluster.feed("b", Damaged(number))
    cluster.ask("a", m.DeleteTopic("jobs", topic.id))
    assert cluster.dropped["b"] == {number}

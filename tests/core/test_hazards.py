"""Hazards of queues of this kind, tried on this one (docs/verification.md, "Hazards").

Each test here is a hazard that no other test did on purpose; the page lists all, with the tests that answer them.
Messages are kept back and handed over late by `drop`; nothing waits.
"""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.records import AttemptsCounted, RecordsMerged
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Death, Kind, Record, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.network import hand_over, held_back
from tests.core.steps import (
    asked,
    fetch,
    opened,
    outcomes,
    published,
    receipts,
    replica_of,
    with_messages,
    with_session,
)

DEATH = Death(Stamp(0, ""), "rejected", "E")


def record_of(cluster: Cluster, node: str, span: Span, group: str = "g") -> Record:
    ((_, record),) = replica_of(cluster, node).group(group).record_chunks(span)
    return record


def token(cluster: Cluster, node: str) -> Stamp:
    (got,) = receipts(cluster.ask(node, fetch(hold_time=1.0)))
    return got.receipt.owner.ballot


# --------------------------------------------------------------------------------- holds


def test_a_voter_that_forgot_its_holds_makes_no_second_majority() -> None:
    """a holds with b's vote alone; b is killed and starts again with no knowledge: b and c are no majority yet."""
    cluster, _, producer_id = with_session(1, hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold) and to == "c"
    assert len(receipts(cluster.ask("a", fetch(hold_time=10.0)))) == 1
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsReply) or {sender, to} == {"a", "c"}
    cluster.crash("b")
    for _ in range(4):
        assert asked(cluster, "c") == []
    cluster.advance(7)
    assert asked(cluster, "c") == [(producer_id, 0, 1)]


def test_no_start_uses_the_ballots_of_an_earlier_one_though_the_clock_was_set_back() -> None:
    cluster = Cluster(1, hold_time_max=1.0)
    published(cluster, 1, rf=1)
    tokens = [token(cluster, "a")]
    for days in range(1, 4):
        cluster.kill("a")
        cluster.wall_off_ms["a"] = -days * 86_400_000
        cluster.start("a", 1.1)
        tokens.append(token(cluster, "a"))
    assert tokens == sorted(set(tokens))


def test_a_hold_that_overtook_its_own_release_delays_no_client_and_a_late_release_frees_no_other() -> None:
    cluster, _, producer_id = with_session(1)
    late: list[tuple[str, str, object]] = []

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.Hold | m.Release) and sender == "a":
            late.append((sender, to, message))
        return isinstance(message, m.Hold) and sender == "a"

    cluster.drop = keep
    asked(cluster, "a")  # no node learns of it: lost, and released everywhere
    cluster.hear_all()
    holds = [item for item in late if isinstance(item[2], m.Hold) and item[1] == "c"]
    assert holds
    assert any(isinstance(message, m.Release) for _, _, message in late)
    for item in holds[-1:]:
        hand_over(cluster, *item)  # c: a hold of an attempt that was given up
    assert replica_of(cluster, "c").group("g").held_count == 1
    assert asked(cluster, "b", hold_time=10.0) == [(producer_id, 0, 1)], "a and b are a majority"
    for item in late:
        if isinstance(item[2], m.Release):
            hand_over(cluster, *item)
    for node in "ac":
        assert asked(cluster, node) == []


def test_a_node_that_stood_still_delivers_nothing_whose_hold_may_be_over() -> None:
    """The message is won and waits for a second one; the node stands still until just before its replica's deadline."""
    cluster = with_messages(1)
    key = cluster.submit("a", fetch(least=2, wait=1.0, hold_time=10.0))
    assert key not in cluster.replies
    cluster.time += 9.85
    cluster.advance(0.0)
    assert receipts(cluster.replies[key]) == ()


def test_a_hold_that_is_repeated_is_for_no_message_that_was_released_meanwhile() -> None:
    """e does not know the topic yet. It gets that after a has lost what b alone knows to be acked."""
    cluster = Cluster(5)
    cluster.drop = lambda sender, to, message: to == "e"
    _, producer_id = published(cluster, rf=5)
    first = receipts(cluster.ask("b", fetch(most=5)))
    cluster.drop = lambda sender, to, message: sender == "b" or "e" in (sender, to)
    cluster.submit("b", m.AckRequest(first))
    cluster.advance(11.0)
    news = m.SyncTopics | m.SyncDigests
    late = held_back(
        cluster,
        lambda sender, to, message: sender in "cde" and isinstance(message, m.HoldReply),
        lambda sender, to, message: isinstance(message, news),
    )
    key = cluster.submit("a", fetch(wait=1.0))
    cluster.hear_all()
    for sender, to, message in sorted(late, key=lambda it: it[0] != "e"):
        hand_over(cluster, sender, to, message)
    rest = Span(producer_id, 5, 10)
    assert [item.receipt.span for item in receipts(cluster.replies[key])] == [rest]
    assert [span for span, _ in replica_of(cluster, "e").group("g").all_held()] == [rest]


def test_a_late_reject_or_extend_touches_no_other_hold() -> None:
    """A works on past its hold, B has the message: nothing of A's takes it from B, or says that A still has it."""
    cluster = with_messages(1)
    first = receipts(cluster.ask("a", fetch(hold_time=1.0)))
    cluster.advance(1.1)
    second = receipts(cluster.ask("b", fetch(hold_time=10.0)))
    assert second[0].receipt.owner.ballot > first[0].receipt.owner.ballot
    for request in (
        m.RejectRequest(first),
        m.RejectRequest(first, 0.0, DEATH),
        m.ExtendRequest(first, 10.0, 0.0),
    ):
        for node in "abc":
            assert outcomes(cluster.ask(node, request)) == ["hold-lost"]
    assert asked(cluster, "c") == []
    assert outcomes(cluster.ask("c", m.AckRequest(second))) == ["acked"]


def test_messages_held_by_a_dead_coordinator_come_back_within_one_hold_time() -> None:
    """a has its majority, and is killed before it hears of it; the message must not be hidden for longer."""
    cluster, _, producer_id = with_session(1, hold_time_max=4.0)
    cluster.ask("b", fetch("other"))
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldReply) and to == "a"
    cluster.submit("a", fetch(hold_time=4.0))
    assert all(replica_of(cluster, node).group("g").held_count for node in "abc")
    cluster.kill("a")
    cluster.hear_all()
    began = cluster.time
    while not (got := asked(cluster, "b", wait=0.3, hold_time=4.0)):
        assert cluster.time < began + 4.0 + 0.5
    assert got == [(producer_id, 0, 1)]
    assert cluster.time >= began + 4.0


# --------------------------------------------------------------------------- tombstones


def test_an_ack_of_a_minority_is_called_unknown_spreads_and_may_be_repeated_anywhere() -> None:
    cluster, _, producer_id = with_session(2, request_timeout=2.0)
    one, two = (receipts(cluster.ask("a", fetch(most=1, hold_time=30.0))) for _ in range(2))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Ack) and sender != to
    keys = [cluster.submit("b", m.AckRequest(got)) for got in (one, two)]
    cluster.advance(2.1)
    assert [outcomes(cluster.replies[key]) for key in keys] == [["outcome-unknown"]] * 2
    cluster.hear_all()
    assert outcomes(cluster.ask("c", m.AckRequest(one))) == ["acked"]
    cluster.advance(10)
    for node in "abc":
        assert record_of(cluster, node, Span(producer_id, 0, 2)).kind == Kind.ACKED


def test_one_tombstone_outweighs_any_number_of_oks_whenever_it_comes() -> None:
    """c alone knows of the ACK. Whether a gets its TOMB before or after b's OK, a does not deliver."""
    for first in "bc":
        cluster = Cluster(5)
        topic, producer_id = opened(cluster, rf=5)
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
        cluster.ask("a", fetch("other"))
        got = receipts(cluster.ask("c", fetch(hold_time=1.0)))
        cluster.drop = lambda sender, to, message: isinstance(message, m.Ack | m.SyncDigests) and sender != to
        cluster.submit("c", m.AckRequest(got))
        cluster.advance(1.1)
        replies: list[tuple[str, str, object]] = []

        def keep(
            sender: str, to: str, message: object, replies: list[tuple[str, str, object]] = replies
        ) -> bool:
            if isinstance(message, m.HoldReply) and sender != to:
                replies.append((sender, to, message))
                return True
            return isinstance(message, m.SyncDigests)

        cluster.drop = keep
        key = cluster.submit("a", fetch())
        cluster.drop = lambda sender, to, message: isinstance(message, m.SyncDigests)
        for item in sorted(replies, key=lambda item, first=first: (item[0] != first, item[0])):  # type: ignore[misc]
            if item[0] in "bc":
                hand_over(cluster, *item)
        assert key not in cluster.replies or receipts(cluster.replies[key]) == ()
        cluster.advance(1.2)
        assert receipts(cluster.replies[key]) == ()
        assert record_of(cluster, "a", Span(producer_id, 0, 1)).kind == Kind.ACKED, "read repair"


def test_a_replica_that_slept_through_ack_and_reclaim_brings_nothing_back() -> None:
    """c has the message and no tombstone; a and b have the tombstone and no payload any more."""
    cluster, topic, producer_id = with_session(3, hold_time_max=5.0, heartbeat=60.0)
    got = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.kill("c")
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]
    cluster.advance(100)
    assert not replica_of(cluster, "a").batches.stored
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncDigests)
    cluster.start("c", 6)
    assert asked(cluster, "c", hold_time=5.0) == [], "the others answer with the tombstone"
    cluster.ask("c", m.Publish(cluster.batch(topic, producer_id, 0, [b"0", b"1", b"2"])), of=m.PublishReply)
    cluster.hear_all(20)
    for node in "abc":
        assert asked(cluster, node, hold_time=5.0) == []
        assert record_of(cluster, node, Span(producer_id, 0, 3)).kind == Kind.ACKED
        assert not replica_of(cluster, node).batches.stored


def test_a_message_that_comes_after_its_tombstone_is_dead_on_arrival() -> None:
    """c is down when the message is stored, up when it is acked, and gets it after another start."""
    cluster = Cluster(hold_time_max=5.0)
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.Store) and sender != to
    topic, producer_id = published(cluster, 1)
    cluster.ask("a", fetch("other", hold_time=5.0))  # keeps the payload
    assert outcomes(cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(hold_time=5.0)))))) == [
        "acked"
    ]
    assert not replica_of(cluster, "c").batches.present
    assert any(isinstance(record, RecordsMerged) for record in cluster.journals["c"])
    cluster.kill("c")
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncDigests)
    cluster.start("c")
    stored = next(record for record in cluster.journals["a"] if hasattr(record, "batch"))
    hand_over(cluster, "a", "c", m.Store(0, topic.epoch_of(0), stored.batch))
    assert replica_of(cluster, "c").batches.present.messages == 1
    assert record_of(cluster, "c", Span(producer_id, 0, 1)).kind == Kind.ACKED
    assert not replica_of(cluster, "c").group("g").available.messages


def test_torn_tombstones_are_never_dropped_and_close_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other message of 4,200 is acked: more runs than fit one message between nodes."""
    monkeypatch.setattr(
        NodeCore, "check", lambda core, now: None
    )  # thousands of runs, checked after every event
    cluster, _, producer_id = with_session(4200, heartbeat=60.0, sync_interval=1.0)
    (got,) = receipts(cluster.ask("a", fetch(most=4200, hold_time=60.0)))
    cluster.kill("c")
    odd = tuple(Span(producer_id, seq, seq + 1) for seq in range(1, 4200, 2))
    assert set(outcomes(cluster.ask("a", m.AckRequest((got._replace(spans=odd),))))) == {"acked"}
    cluster.start("c", 1.6)
    assert [len(replica_of(cluster, node).group("g").records.items()) for node in "abc"] == [2100, 2100, 2100]
    kept = [
        record
        for record in replica_of(cluster, "c").recall.snapshot(cluster.now)
        if isinstance(record, RecordsMerged)
    ]
    assert sum(len(record.entries) for record in kept) == 2100
    even = tuple(Span(producer_id, seq, seq + 1) for seq in range(0, 4200, 2))
    cluster.ask("a", m.AckRequest((got._replace(spans=even),)))
    assert [len(replica_of(cluster, node).group("g").records.items()) for node in "abc"] == [1, 1, 1]


# ------------------------------------------------------------ dead letters and attempts


def test_a_dead_letter_is_in_one_record_and_survives_the_death_of_all_nodes() -> None:
    cluster, _, producer_id = with_session(2, hold_time_max=2.0)
    got = receipts(cluster.ask("a", fetch(most=1, hold_time=2.0)))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, 0.0, DEATH))) == ["ok"]
    cluster.crash("abc", 2.1)
    assert asked(cluster, "c", hold_time=2.0) == [(producer_id, 1, 2)]
    deaths = receipts(cluster.ask("c", fetch("g!dead", hold_time=2.0)))
    assert [item.receipt.span for item in deaths] == [(producer_id, 0, 1)]


def test_a_message_that_kills_its_nodes_still_uses_up_its_deliveries() -> None:
    """All nodes die after each delivery; counts are durable, and the highest of a majority counts."""
    cluster, topic, producer_id = with_session(1, hold_time_max=1.0)
    attempts = []
    for turn in range(topic.max_deliveries):
        if turn == 2:
            group = replica_of(cluster, "c").group("g")
            group.leases = SpanMap()
            group.digests.stale[producer_id] = None
            replica_of(cluster, "c").views.refresh_all(cluster.now)
            cluster.journals["c"] = [
                record for record in cluster.journals["c"] if not isinstance(record, AttemptsCounted)
            ]
        reply = cluster.ask("abc"[turn % 3], fetch(hold_time=1.0))
        attempts.append(reply.slices[0].deliveries[0].attempt)
        cluster.advance(1.1)
        cluster.crash("abc", 1.1)
    assert attempts == [1, 2, 3, 4, 5]
    assert asked(cluster, "a", hold_time=1.0) == []
    assert record_of(cluster, "a", Span(producer_id, 0, 1)).kind == Kind.DEAD


# ------------------------------------------------------------------------------ networks


def test_one_way_cuts_bridges_and_blips_need_no_repair_and_no_side_is_believed_alone() -> None:
    """Links that are up and lose messages, in every shape: each operation counts its own votes."""
    cuts = [  # and whether a publish through a can be confirmed
        ({("a", "c")}, True),
        ({("c", "a")}, True),
        ({("a", "c"), ("c", "a")}, True),  # b is the bridge
        ({("a", "b"), ("a", "c")}, False),  # a hears and is not heard
        ({("b", "a"), ("c", "a")}, False),  # a speaks into the dark
    ]
    cluster, topic, producer_id = with_session(1, request_timeout=1.0, hold_time_max=2.0)
    first = receipts(cluster.ask("a", fetch(hold_time=2.0)))
    assert outcomes(cluster.ask("a", m.AckRequest(first))) == ["acked"]
    acked: list[Span] = []
    published_count = 1
    for cut, possible in cuts:
        cluster.drop = lambda sender, to, message, cut=cut: (sender, to) in cut  # type: ignore[misc]
        confirmed = []
        for node in "abc":
            key = cluster.submit(node, m.Publish(cluster.batch(topic, producer_id, published_count, [b"x"])))
            published_count += 1
            cluster.advance(1.1)
            confirmed.append(isinstance(cluster.replies[key], m.PublishReply))
            reply = cluster.ask(node, fetch(wait=0.2, hold_time=2.0), 0.4)
            if isinstance(reply, m.FetchReply) and reply.slices:
                done = cluster.submit(node, m.AckRequest(receipts(reply)))
                cluster.advance(1.1)
                taken = [item.receipt.span for item in receipts(reply)]
                verdicts = outcomes(cluster.replies[done])
                acked += [span for span, verdict in zip(taken, verdicts, strict=True) if verdict == "acked"]
        assert confirmed == [possible, True, True]
    cluster.hear_all(10)
    while got_now := receipts(cluster.ask("b", fetch(hold_time=2.0))):
        assert set(outcomes(cluster.ask("c", m.AckRequest(got_now)))) == {"acked"}
        acked += [item.receipt.span for item in got_now]
    seqs = [seq for span in acked for seq in range(span.start, span.stop)]
    assert sorted(seqs) == list(range(1, published_count)), "each was acked once, none is lost"


def test_an_even_number_of_replicas_is_refused() -> None:
    """Two tolerate the loss of none, as one does; four that of one, as three do."""
    cluster = Cluster(5)
    for rf in (0, 2, 4, 6):
        answer = cluster.ask("a", m.CreateTopic(f"t{rf}", rf, 1), of=m.Failed)
        assert (answer.code, f"rf is {rf}: it must be odd" in answer.detail) == ("usage", True)

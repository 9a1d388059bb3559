"""Out of quarantine before its time: holds learned from the other replicas (docs/protocol.md, RECOVERY, (b))."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumq.core import messages as m
from quorumq.core.messages.records import CleanStopped, TopicPut, Trusted, TrustLost
from quorumq.core.partition import hold_recovery
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.lease import FREE, NO_OWNER, Held
from quorumq.core.values.types import Incarnation, Owner, ProducerId, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.holding import Holding
from tests.core.network import SlowDisk, hand_over, held_back, noted
from tests.core.steps import (
    created,
    fetch,
    opened,
    outcomes,
    published,
    receipts,
    rewind,
    with_messages,
    with_session,
)


def left(cluster: Cluster, node: str) -> float:
    return cluster.nodes[node].context.quarantine_left(cluster.now)


def view_of(cluster: Cluster, node: str) -> GroupView:
    (replica,) = cluster.nodes[node].replicas.values()
    return replica.group("g")


def delivered(cluster: Cluster, node: str) -> list[int]:
    """Return the numbers of messages that a FETCH gets through a node: none if it is refused."""
    reply = cluster.ask(node, fetch(wait=0.5), 1.0)
    return [] if isinstance(reply, m.Failed) else [part.receipt.span.size for part in receipts(reply)]


# ------------------------------------------------------------------------- recovered from peers


def test_a_restarted_replica_votes_as_soon_as_all_others_told_their_holds() -> None:
    cluster = with_messages(10)
    got = receipts(cluster.ask("a", fetch(most=4)))
    cluster.crash("b")
    assert left(cluster, "b") == 0.0
    assert view_of(cluster, "b").held_count == 4
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("b", fetch()))) == 6
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"]


def test_its_own_deliveries_of_before_are_still_held_and_go_on() -> None:
    cluster = with_messages(4)
    got = receipts(cluster.ask("b", fetch(hold_time=10.0)))
    cluster.crash("b")
    assert receipts(cluster.ask("b", fetch())) == (), "what it delivered itself is not delivered again"
    cluster.kill("c", 8.0)
    assert outcomes(cluster.ask("a", m.ExtendRequest(got, 10.0, 8.0))) == ["ok"], "a and b extend it"
    cluster.advance(9.0)
    assert receipts(cluster.ask("a", fetch())) == ()
    assert outcomes(cluster.ask("a", m.RejectRequest(got))) == ["ok"]


def test_holds_run_out_where_they_were_learned_and_count_as_attempts() -> None:
    cluster = with_messages(1)
    receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.advance(2.0)
    cluster.crash("b")
    ((_, held),) = view_of(cluster, "b").all_held()
    assert held.deadline == pytest.approx(cluster.time + 3.0)
    cluster.advance(3.1)
    (again,) = cluster.ask("b", fetch()).slices  # type: ignore[union-attr]
    assert again.deliveries[0].attempt == 2


def test_a_hold_that_was_learned_is_no_memory_of_a_ballot() -> None:
    cluster = with_messages(1)
    got = receipts(cluster.ask("a", fetch()))
    cluster.crash("b")
    cluster.kill("c", 0.1)
    assert outcomes(cluster.ask("a", m.AckRequest(got), 1.0)) == ["acked_unproven"], (
        "b may have granted a higher one before"
    )


def test_a_hold_that_is_reported_is_kept_though_another_delivery_was_acked() -> None:
    """The first delivery ran out and is acked late while the second is live; a rewind opens the message again."""
    cluster = with_messages(1)
    first = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.advance(5.1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold) and to == "c"
    assert receipts(cluster.ask("a", fetch(hold_time=60.0)))  # live, at a and b
    cluster.hear_all()
    assert outcomes(cluster.ask("b", m.AckRequest(first))) == ["acked_after_expiry"]
    cluster.crash("b")
    (held,) = view_of(cluster, "b").all_held()
    assert held[1].owner.node == "a"
    rewind(cluster, "b")
    assert receipts(cluster.ask("c", fetch(hold_time=60.0))) == (), "two live deliveries"


def half_acked(cluster: Cluster, stopped: bool = False) -> None:
    """A delivery has the votes of a and b, and its ACK is at b alone; a is started again, and no node hears b then."""
    published(cluster, 3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold) and to == "c"
    got = receipts(cluster.ask("a", fetch(most=1, hold_time=5.0)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Ack | m.SyncState)
    cluster.submit("b", m.AckRequest(got))
    cluster.advance(1.0)
    assert not view_of(cluster, "b").all_held()
    if stopped:
        cluster.stop("b")
        cluster.start("b")
    cluster.crash("a")
    assert left(cluster, "a") == 0.0
    assert not view_of(cluster, "a").records, "it has not heard of the ACK"
    cluster.drop = lambda sender, to, message: "b" in (sender, to)


@pytest.mark.parametrize("stopped", [False, True], ids=["it goes on", "the teller was stopped meanwhile"])
def test_a_message_acked_at_one_replica_is_not_delivered_inside_its_hold(stopped: bool) -> None:
    """Seed 6047545."""
    cluster = Cluster()
    half_acked(cluster, stopped)
    (held,) = view_of(cluster, "a").all_held()
    assert held[1].owner == NO_OWNER
    assert [item.receipt.span.start for item in receipts(cluster.ask("a", fetch()))] == [1]
    cluster.advance(5.1)
    assert receipts(cluster.ask("a", fetch())), (
        "it is acked nowhere that can be heard: this is the next delivery"
    )


def test_messages_acked_in_a_row_are_told_as_one() -> None:
    cluster = with_messages(100)
    for _ in range(100):
        cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=1, hold_time=5.0)))))
        cluster.advance(0.01)
    (replica,) = cluster.nodes["b"].replicas.values()
    granted = replica.node.grants([replica.partition], cluster.now)[replica.partition]
    assert len(granted) == 100
    holds = replica.recall.holds_to_tell(cluster.now, granted)
    assert len(holds) <= 2, "as many as there are powers of two among the times that are left"
    assert sum(held.span.size for held in holds) == 100
    cluster.advance(10.0)
    assert not replica.node.grants([replica.partition], cluster.now)[replica.partition]


# -------------------------------------------------------------------- without answers of peers


def test_every_other_replica_must_have_told() -> None:
    cluster = with_messages(1, hold_time_max=10.0)
    cluster.kill("c")
    cluster.crash("b", 9.0)
    assert 1.0 < left(cluster, "b") < 1.3
    cluster.advance(1.3)
    assert left(cluster, "b") == 0.0


def test_replicas_in_quarantine_tell_no_one_and_wait_together() -> None:
    cluster = with_messages(1, hold_time_max=10.0)
    cluster.crash("bc", 9.0)
    assert left(cluster, "b") > 1.0
    assert left(cluster, "c") > 1.0
    cluster.advance(1.3)
    assert left(cluster, "b") == left(cluster, "c") == 0.0


def test_one_replica_has_no_one_to_ask() -> None:
    cluster, topic, _ = with_session(1, rf=1, hold_time_max=10.0)
    home = topic.replicas[0][0]
    cluster.crash(home, 9.0)
    assert left(cluster, home) > 1.0


def test_requests_and_answers_that_are_lost_are_repeated() -> None:
    cluster = with_messages(3)
    receipts(cluster.ask("a", fetch(most=2)))
    lost = {m.HoldsRequest: 3, m.HoldsReply: 3}

    def drop(sender: str, to: str, message: object) -> bool:
        if lost.get(type(message), 0) == 0:
            return False
        lost[type(message)] -= 1
        return True

    cluster.drop = drop
    cluster.crash("b")
    assert left(cluster, "b") > 0
    cluster.advance(5.0)
    assert left(cluster, "b") == 0.0
    assert view_of(cluster, "b").held_count == 2
    assert lost == {m.HoldsRequest: 0, m.HoldsReply: 0}


def test_requests_become_rarer_and_end_with_the_quarantine() -> None:
    cluster = with_messages(3)
    asks: list[float] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.HoldsRequest) and to == "c":
            asks.append(cluster.time)
        return isinstance(message, m.HoldsReply)

    cluster.drop = drop
    began = cluster.time
    cluster.crash("b", 100.0)
    assert 25 < len(asks) < 40
    assert asks[-1] < began + 61.3


def test_a_long_table_comes_in_chunks_and_counts_when_all_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_recovery, "HOLDS_PER_CHUNK", 3)
    cluster = with_messages(40)
    for _ in range(10):
        receipts(cluster.ask("a", fetch(most=2)))
    chunks = noted(
        cluster,
        lambda sender, to, message: isinstance(message, m.HoldsReply),
        lambda sender, to, message: (
            isinstance(message, m.HoldsReply) and message.chunk == 1 and len(chunks) < 6
        ),
    )
    cluster.crash("b")
    assert chunks[0].chunks == 4
    assert all(len(chunk.holds) <= 3 for chunk in chunks)
    assert left(cluster, "b") > 0.0
    assert not view_of(cluster, "b").held_count, "nothing is taken over before everything is here"
    cluster.advance(1.0)
    assert left(cluster, "b") == 0.0
    assert view_of(cluster, "b").held_count == 20


def test_an_answer_to_an_earlier_request_does_not_count() -> None:
    cluster = with_messages(1)
    late = held_back(cluster, lambda sender, to, message: isinstance(message, m.HoldsReply) and sender == "c")
    cluster.crash("b", 1.0)
    assert len(late) > 2
    core = cluster.nodes["b"]
    for _, _, message in late[:-1]:
        core.context.hold_recovery.on_holds_reply(core.replicas, "c", message, cluster.now)
        assert left(cluster, "b") > 0.0
    core.context.hold_recovery.on_holds_reply(core.replicas, "c", late[-1][2], cluster.now)
    assert left(cluster, "b") == 0.0


def test_an_answer_that_comes_after_the_quarantine_changes_nothing() -> None:
    cluster = with_messages(1, hold_time_max=10.0)
    receipts(cluster.ask("a", fetch(hold_time=10.0)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsReply)
    cluster.crash("b", 10.19)
    core = cluster.nodes["b"]
    (partition,) = core.replicas
    cluster.time += 0.02
    asked = core.context.hold_recovery._asked["c"].round
    core.context.hold_recovery.on_holds_reply(
        core.replicas, "c", m.HoldsReply(asked, partition, 0, 1, ()), cluster.now
    )
    assert not core.context.hold_recovery.awaited


def test_a_late_vote_of_the_old_start_does_not_count_once_a_peer_has_told() -> None:
    """b's OK to a's HOLD is late; b is started again, and a reports to b that it has no hold yet."""
    cluster = with_messages(1)
    receipts(cluster.ask("a", fetch("other")))
    late: list[tuple[str, object]] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.HoldReply) and sender == "b":
            late.append((sender, message))
            return True
        return isinstance(message, m.HoldReply)

    cluster.drop = drop
    old = cluster.nodes["b"].state.incarnation
    key = cluster.submit("a", fetch())
    assert late
    assert key not in cluster.replies
    cluster.hear_all()
    cluster.crash("b")
    assert left(cluster, "b") == 0.0
    assert cluster.nodes["a"].state.superseded("b", old)
    assert view_of(cluster, "b").held_count == 1, "and a's hold of that round is known"


# ---------------------------------------------------------------------- per partition


def test_a_node_serves_what_is_out_of_quarantine_and_passes_the_rest_on() -> None:
    cluster = Cluster(5)
    topic = cluster.topic(partitions=12)
    alone = next(node for node in "bcde" if any(node in members for members in topic.replicas))
    both = [members for members in topic.replicas if "a" in members]
    assert any(alone in members for members in both)
    assert any(alone not in members for members in both)
    receipts(cluster.ask("a", fetch()))
    cluster.kill(alone)
    cluster.crash("a")
    core = cluster.nodes["a"]
    for partition, replica in core.replicas.items():
        assert replica.in_quarantine(cluster.now) == (alone in topic.replicas[partition.number])
    assert left(cluster, "a") > 60.0
    key = cluster.submit("a", fetch())
    cluster.advance(1.5)
    assert not isinstance(cluster.replies[key], m.Failed), cluster.replies[key]


def test_a_replica_that_comes_into_being_in_quarantine_asks_too() -> None:
    cluster, topic, _ = with_session(1)
    cluster.kill("b")
    # As many records as were reported to peers, and a resync from declared survivors, without the topic.
    cluster.journals["b"][:] = [
        TrustLost(1, "") if isinstance(it, TopicPut) else it for it in cluster.journals["b"]
    ]
    cluster.journals["b"].append(Trusted(declared=True))
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    cluster.start("b")
    assert not cluster.nodes["b"].replicas
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics | m.HoldsReply)
    hand_over(cluster, "a", "b", m.PutTopic(0, topic))
    assert left(cluster, "b") == pytest.approx(61.2)
    cluster.hear_all(0.2)
    assert left(cluster, "b") == 0.0


# -------------------------------------------------------------------------- clean stop


def test_a_clean_stop_keeps_what_was_learned_and_what_was_out_of_quarantine() -> None:
    cluster = with_messages(2, hold_time_max=10.0)
    got = receipts(cluster.ask("a", fetch(most=1)))
    alone = cluster.topic("alone", rf=1, partitions=3)
    assert ("b",) in alone.replicas
    cluster.crash("b", 1.0)
    cluster.stop("b")
    stop = cluster.journals["b"][-1]
    assert isinstance(stop, CleanStopped)
    assert [(held.span, held.owner.node, held.ballot) for held in stop.holds] == [
        (got[0].receipt.span, "a", (0, ""))
    ]
    assert stop.quarantine_s == pytest.approx(9.2)
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsRequest)
    cluster.start("b")
    core = cluster.nodes["b"]
    waits = {
        len(replica.members): replica.quarantine_until - cluster.time for replica in core.replicas.values()
    }
    assert waits == {3: pytest.approx(0.0), 1: pytest.approx(9.2)}
    owned = [
        held.owner.node for replica in core.replicas.values() for _, held in replica.group("g").all_held()
    ]
    assert owned == ["a"]
    cluster.advance(9.3)
    cluster.stop("b")
    assert cluster.journals["b"][-1][2:4] == (0.0, ())
    cluster.start("b")
    assert left(cluster, "b") == 0.0


# ------------------------------------------------------------------- the table of holds

PRODUCER_ID = ProducerId("a", 1, 7, 1)


def owner(time: int, node: str = "a") -> Owner:
    return Owner(node, Incarnation(1, 1), Stamp(time, node))


def test_two_owners_of_one_message_block_it_until_both_are_gone() -> None:
    span = Span(PRODUCER_ID, 0, 1)
    table = Holding(10)
    table.report(span, Held(owner(20), 5.0, 0))
    table.report(span, Held(owner(30, "c"), 4.0, 0))
    table.view.check()
    for who in (owner(20), owner(30, "c"), owner(99, "b")):
        assert table.hold(span, who, 1.0, 5.0)[0] == []
        assert table.extend(span, who, 9.0) == ([], [span])
    assert table.release(span, owner(20)) == []
    assert table.hold(span, owner(99, "b"), 1.0, 5.0)[0] == []
    assert table.extend(span, owner(30, "c"), 9.0) == ([], [span])
    assert table.release(span, owner(30, "c")) == [span]
    assert table.hold(span, owner(99, "b"), 1.0, 5.0)[0] == [span]
    table.view.check()


def test_two_owners_of_one_message_block_it_until_the_later_time_is_over() -> None:
    span = Span(PRODUCER_ID, 0, 1)
    table = Holding(10)
    for who, until in ((owner(20), 5.0), (owner(30, "c"), 4.0)):
        table.report(span, Held(who, until, 0))
    assert table.expire(span, 4.9) == []
    assert table.expire(span, 5.0) == [span]
    assert not table.view.leases.get(PRODUCER_ID, 0).rivals
    assert table.hold(span, owner(99, "b"), 5.0, 5.0)[0] == [span]


def test_a_message_of_two_owners_is_free_when_the_time_of_the_one_that_keeps_it_is_over() -> None:
    """In moves, each new slot learns such a hold from the one before, whose owner is not known there."""
    span = Span(PRODUCER_ID, 0, 1)
    table = Holding(10)
    for who, until in ((owner(20), 17.0), (owner(30, "c"), 4.0), (owner(20), 15.0)):
        table.report(span, Held(who, until, 0))
    assert table.release(span, owner(20)) == [], "it is blocked still"
    assert table.expire(span, 3.9) == []
    assert table.expire(span, 4.0) == [span]


def test_the_hold_of_an_ack_blocks_a_message_though_two_other_owners_give_theirs_back() -> None:
    """That ACK may be at one node alone, and all others would deliver the message again."""
    span = Span(PRODUCER_ID, 0, 1)
    table = Holding(10)
    for who, until in ((owner(20), 5.0), (owner(30, "c"), 4.0), (NO_OWNER, 9.0)):
        table.report(span, Held(who, until, 0))
    assert table.release(span, owner(20)) == table.release(span, owner(30, "c")) == []
    assert table.expire(span, 8.9) == []
    assert table.expire(span, 9.0) == [span]


def test_a_learned_hold_is_granted_to_its_owner_above_the_min_ballot_only() -> None:
    """Below it this replica may have granted a higher one in an earlier start: the fencing token would go back."""
    span = Span(PRODUCER_ID, 0, 2)
    for time, granted in ((10, []), (11, [span])):
        table = Holding(10)
        table.report(span, Held(owner(time), 5.0, 0))
        assert table.hold(span, owner(time), 1.0, 2.0)[0] == granted
        assert table.exclusive(span, owner(10)) == ([], granted)
        assert [held.deadline for _, held in table.holds()] == [5.0], "and never shortened"


reports = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 6), st.sampled_from((0, 20, 21, 22)), st.integers(1, 9)),
    max_size=8,
)


def reported_owner(ballot: int) -> Owner:
    """Return the owner of a report; of ballot 0 that of a hold that an ACK ended before its time."""
    return owner(ballot) if ballot else NO_OWNER


@given(reports)
@example([(0, 1, 20, 5), (0, 1, 21, 4), (0, 1, 0, 9)])
def test_the_union_is_kept_in_whatever_order_it_comes(holds: list[tuple[int, int, int, int]]) -> None:
    tables = []
    for order in (holds, holds[::-1]):
        table = Holding(10)
        for start, size, ballot, until in order:
            table.report(
                Span(PRODUCER_ID, start, start + size), Held(reported_owner(ballot), float(until), 0)
            )
        table.view.check()
        tables.append(table)
    for seq in range(12):
        theirs = [(b, until) for start, size, b, until in holds if start <= seq < start + size]
        for table in tables:
            lease = table.view.leases.get(PRODUCER_ID, seq) or FREE
            held = lease.held
            if not theirs:
                assert held is None
                continue
            assert held is not None
            owners = sorted({b for b, _ in theirs})
            assert held.deadline == max(until for _, until in theirs)
            assert held.owner == (reported_owner(owners[0]) if len(owners) == 1 else NO_OWNER)
            assert sorted(rival.owner.ballot.time for rival in lease.rivals) == (
                owners if len(owners) > 1 else []
            )


def test_a_release_that_comes_reaches_what_was_learned() -> None:
    cluster = with_messages(1)
    got = receipts(cluster.ask("a", fetch()))
    cluster.crash("b")
    cluster.drop = lambda sender, to, message: isinstance(message, m.Release) and to == "c"
    assert outcomes(cluster.ask("a", m.RejectRequest(got))) == ["ok"]
    assert not view_of(cluster, "b").held_count


def test_a_partition_in_quarantine_does_not_keep_a_fetch_from_the_next_one() -> None:
    """A node has both partitions; all others of one of them were started again, and find no hold of each other."""
    cluster = Cluster(5, hold_time_max=10.0)
    for name in map(str, range(100)):
        topic, producer_id = opened(cluster, name, partitions=2)
        blocked, other = map(set, topic.replicas)
        if len(blocked & other) == 1:
            break
    (both,) = blocked & other
    for number in (0, 1):
        batch = cluster.batch(topic, producer_id, 0, [b"1", b"2", b"3"], partition=number)
        assert isinstance(cluster.ask(both, m.Publish(batch)), m.PublishReply)
    cluster.crash(blocked - other)
    for _ in range(3):  # each begins with another partition than the one before
        asked = fetch(most=1, wait=2.0)._replace(topics=(name,))
        reply = cluster.ask(both, asked, 1.5, of=m.FetchReply)
        assert [part.partition.number for part in reply.slices] == [1]


# ------------------------------------------------------------------- topics that are new in a start


@pytest.mark.parametrize("rf", [1, 3])
def test_a_new_topic_is_delivered_at_once_after_a_crash(rf: int) -> None:
    cluster = Cluster(hold_time_max=10.0)
    cluster.crash("abc")
    topic, _ = published(cluster, 1, rf=rf)
    assert receipts(cluster.ask(topic.replicas[0][0], fetch()))


def test_new_partitions_of_a_topic_are_delivered_at_once_after_a_crash() -> None:
    cluster, topic, producer_id = with_session(1, hold_time_max=10.0)
    cluster.crash("abc")
    cluster.ask("a", m.AlterTopic("jobs", partitions=2), of=m.TopicReply)
    batch = cluster.batch(topic, producer_id, 0, [b"x"], partition=1)
    cluster.ask("a", m.Publish(batch), of=m.PublishReply)
    assert receipts(cluster.ask("a", fetch()))


def test_a_topic_of_before_with_one_replica_waits_though_its_register_changes() -> None:
    cluster, topic, _ = with_session(1, rf=1, hold_time_max=10.0)
    (owner,) = topic.replicas[0]
    assert receipts(cluster.ask(owner, fetch(hold_time=10.0)))
    cluster.crash(owner)
    assert isinstance(cluster.ask(owner, m.AlterTopic("jobs", max_deliveries=7)), m.TopicReply)
    assert not any(delivered(cluster, owner)), "two live deliveries"


def with_record_at_disk() -> tuple[Cluster, SlowDisk]:
    """A message whose topic b learns of while c is not heard: its record is on the way to b's disk."""
    cluster = Cluster(hold_time_max=10.0)
    cluster.drop = lambda sender, to, message: to == "b" and isinstance(message, m.PutTopic | m.SyncTopics)
    topic, _ = published(cluster, 1)
    created(cluster, "a")
    disk = SlowDisk(cluster, "b")
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    hand_over(cluster, "a", "b", m.PutTopic(0, topic))
    return cluster, disk


def test_a_vote_waits_for_the_record_of_its_topic() -> None:
    cluster, disk = with_record_at_disk()
    key = cluster.submit("a", fetch(hold_time=10.0))
    cluster.run()
    assert view_of(cluster, "b").held_count, "granted"
    assert key not in cluster.replies
    disk.sync()
    cluster.run()
    assert receipts(cluster.replies[key]), "by the votes of a and b"
    later = cluster.ask("a", m.ExtendRequest(receipts(cluster.replies[key]), 10.0, cluster.time))
    assert outcomes(later) == ["ok"], "without the disk"


def test_an_extension_waits_for_the_record_of_its_topic() -> None:
    cluster, disk = with_record_at_disk()
    cluster.hear_all()
    got = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    assert view_of(cluster, "b").held_count, "granted"
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    key = cluster.submit("a", m.ExtendRequest(got, 10.0, cluster.time))
    cluster.run()
    assert key not in cluster.replies
    disk.sync()
    cluster.run()
    assert outcomes(cluster.replies[key]) == ["ok"]


def test_a_replica_without_the_record_of_its_topic_has_voted_for_nothing() -> None:
    cluster, disk = with_record_at_disk()
    key = cluster.submit("a", fetch(hold_time=10.0))
    cluster.run()
    assert key not in cluster.replies
    disk.lose()
    cluster.kill("ab")
    cluster.hear_all()
    cluster.start("b")
    assert cluster.nodes["b"].replicas, "c has told it of the topic"
    assert any(delivered(cluster, "c")), "no delivery is live"


def test_a_piggybacked_vote_waits_with_stored() -> None:
    cluster, disk = with_record_at_disk()
    topic = cluster.nodes["a"].topic_named("jobs")
    assert topic is not None
    cluster.hear_all()
    assert receipts(cluster.ask("a", fetch(hold_time=10.0)))
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    waits = cluster.submit("a", fetch(wait=1.0))
    cluster.submit("a", m.Publish(cluster.batch(topic, PRODUCER_ID, 0, [b"y"])))
    cluster.run()
    assert view_of(cluster, "b").held_count == 2, "granted"
    assert waits not in cluster.replies
    disk.sync()
    cluster.run()
    assert receipts(cluster.replies[waits])

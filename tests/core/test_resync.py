"""Nodes that are not trusted, and how they are trusted again (docs/protocol.md, RECOVERY)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Damaged, Send
from quorumq.core.messages.records import (
    BatchStored,
    PeerPosition,
    Reserved,
    Started,
    TopicPut,
    Trusted,
    TrustLost,
)
from quorumq.core.recovery.resync import far_above
from quorumq.core.values.errors import Code, UsageError
from quorumq.core.values.limits import STARTS_FAR, STARTS_MAX
from quorumq.core.values.types import Incarnation
from tests.core.cluster import Cluster
from tests.core.network import SlowDisk, begins_comparison, cut, hand_over, held_back, wipe
from tests.core.steps import (
    DEATH,
    check_failed,
    close,
    closed,
    drained,
    fetch,
    opened,
    outcomes,
    present,
    published,
    receipts,
    replica_of,
    store,
    with_messages,
    with_session,
)


def test_a_wiped_node_comes_back_with_everything_and_above_its_old_start() -> None:
    cluster, topic, producer_id = with_session(10, hold_time_max=10.0)
    got = receipts(cluster.ask("b", fetch(most=4)))
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]
    before = cluster.nodes["b"].state.incarnation.n
    directory = cluster.nodes["b"].state.directory
    wipe(cluster, "b", 1.0)
    core = cluster.nodes["b"]
    assert not cluster.stopped
    assert core.state.trusted
    assert core.state.incarnation.n > before
    assert core.state.directory != directory
    assert len(cluster.restarts) == 1
    assert Trusted() in cluster.journals["b"]
    cluster.advance(8.0)
    assert present(cluster, "b") == 10
    assert core.context.quarantine_left(cluster.now) == 0.0
    cluster.kill("a")
    cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"])), of=m.PublishReply)
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("b", fetch(wait=0.9), 1.0))) == 7, (
        "not what was acked"
    )


def test_nothing_of_it_counts_before_the_resync_is_durable() -> None:
    cluster, topic, producer_id = with_session(3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply) and sender == "c"
    wipe(cluster, "b", 3.0)
    core = cluster.nodes["b"]
    assert not core.state.trusted
    answer = cluster.ask("b", m.OpenSession())
    check_failed(answer, None, "is not trusted")
    assert "still missing" in answer.detail
    cluster.kill("c")
    assert isinstance(
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 3, [b"x"])), 6.0), m.Failed
    ), "b has not stored it in a way that counts"
    cluster.hear_all()
    cluster.start("c", 2.0)
    assert core.state.trusted


def test_a_node_asks_for_what_was_published_while_it_could_not_vote() -> None:
    """The STORE was refused, after the others had listed their messages. A client may wait there alone."""
    cluster, topic, producer_id = with_session(3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    wipe(cluster, "b")
    disk = SlowDisk(cluster, "b")
    cluster.drop = lambda sender, to, message: (
        sender != "b" and begins_comparison(message)
    )  # theirs are sent later
    cluster.advance(2.0)
    core = cluster.nodes["b"]
    assert not core.state.trusted
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 3, [b"x"])), of=m.PublishReply)
    for _ in range(3):
        disk.sync()
        cluster.advance(0.1)
    assert core.state.trusted
    assert present(cluster, "b") == 4


def test_a_crash_in_the_middle_goes_on_resyncing() -> None:
    cluster = with_messages(3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    wipe(cluster, "b")
    for _ in range(2):
        cluster.crash("b")
        assert not cluster.nodes["b"].state.trusted
    assert any(isinstance(record, TrustLost) for record in cluster.journals["b"])
    journal = cluster.nodes["b"].snapshot(cluster.now)
    cluster.kill("b")
    cluster.journals["b"] = list(journal)
    cluster.start("b")
    assert cluster.nodes["b"].trust.resync is not None
    cluster.hear_all(2.0)
    assert cluster.nodes["b"].state.trusted
    cluster.crash("b")
    assert cluster.nodes["b"].state.trusted, "and it stays so"
    assert len(cluster.restarts) == 1


def test_a_resync_does_not_wait_for_a_topic_deleted_meanwhile() -> None:
    cluster, topic, _ = with_session(1)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.ResyncReply) and message.partition is not None
    )
    wipe(cluster, "c", 3.0)
    assert not cluster.nodes["c"].state.trusted
    assert isinstance(cluster.ask("a", m.DeleteTopic("jobs", topic.id)), m.TopicReply)
    cluster.advance(3.0)
    assert cluster.nodes["c"].state.trusted


def test_an_old_backup_resyncs_and_keeps_what_it_has() -> None:
    cluster = with_messages(10, hold_time_max=10.0)
    cluster.advance(1.0)
    backup = list(cluster.journals["b"])
    got = receipts(cluster.ask("a", fetch(most=5)))
    for _ in range(2):
        cluster.crash("b")
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]
    wipe(cluster, "b", 1.0, kept=backup)
    core = cluster.nodes["b"]
    assert core.state.trusted
    assert len(cluster.restarts) == 1
    assert present(cluster, "b") == 10
    (replica,) = core.replicas.values()
    assert sum(span.size for span, _ in replica.group("g").records.items()) == 5


def test_a_directory_brought_back_after_another_one_was_used_resyncs_even_at_a_higher_start() -> None:
    cluster = with_messages(3)
    old = list(cluster.journals["b"])
    wipe(cluster, "b", 2.0)
    assert cluster.nodes["b"].state.trusted
    n = cluster.nodes["b"].state.incarnation.n
    wipe(cluster, "b", kept=[*old, Started(Incarnation(n + 5, 1))])
    assert len(cluster.restarts) == 2
    cluster.advance(2.0)
    assert cluster.nodes["b"].state.trusted


def test_votes_of_a_start_that_one_peer_alone_has_seen_do_not_pass_for_votes_of_the_wiped_node() -> None:
    """RF 5. Node b alone has seen start 2 of d, and counts on its vote; the others report start 1 to d."""
    cluster = Cluster(5, hold_time_max=5.0)
    topic, producer_id = opened(cluster, rf=5)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"m"])))
    cluster.advance(3.0)
    cut(cluster, "ad", "cd", "de")
    cluster.crash("d")
    assert cluster.nodes["d"].state.incarnation.n == 2
    cluster.advance(6.0)
    got = receipts(cluster.ask("b", fetch(hold_time=5.0)))
    cut(cluster, "ad", "cd", "de", "bc", "be")
    late = held_back(
        cluster, lambda sender, to, message: isinstance(message, m.Ack) and to == "a", cluster.drop
    )
    key = cluster.submit("b", m.AckRequest(got))  # b and start 2 of d have the tombstone
    cut(cluster, "bd", "bc", "be")
    wipe(cluster, "d", 0.6)
    assert cluster.nodes["d"].state.trusted, "a, c and e told it what there is: no tombstone"
    assert cluster.nodes["d"].state.incarnation.n > STARTS_FAR
    cut(cluster, "ac", "ad", "ae", "bc", "bd", "be")
    hand_over(cluster, *late[0])  # a's answer says which start of d it knows
    assert outcomes(cluster.replies[key]) == ["outcome-unknown"], (
        "b, a and a superseded start of d are no majority"
    )
    cluster.advance(6.0)
    assert receipts(cluster.ask("c", fetch(hold_time=5.0))), (
        "c, e and d deliver what nobody was told is acked"
    )


def test_a_peer_that_saw_more_starts_than_those_who_reported_costs_no_second_resync() -> None:
    cluster = Cluster(5)
    published(cluster, 3, rf=5)
    cut(cluster, "ad", "cd", "de")
    for _ in range(3):
        cluster.crash("d")
    cluster.advance(3.0)
    assert cluster.nodes["b"].context.peers.seen["d"][-1].incarnation.n == 4
    cut(cluster, "bd")
    wipe(cluster, "d", 2.0)
    assert cluster.nodes["d"].state.trusted
    cut(cluster)
    for peer in "abce":
        cluster.link(peer, "d")
        cluster.link("d", peer)
    cluster.advance(2.0)
    for _ in range(2):
        cluster.crash("d", 2.0)
    assert cluster.nodes["d"].state.trusted
    assert len(cluster.restarts) == 1


def test_a_report_from_before_the_last_resync_leads_to_no_start_that_was_used_since() -> None:
    """Node b was away during the first resync of d, and has seen more earlier starts than those who answered d."""
    first = far_above(1) + 1  # the start after that resync, which all others have seen
    for n in (1, 2, 50, STARTS_FAR - 1):
        assert far_above(n) + 1 <= first, "refused by those who told d: not above what they have seen"
    for n in (STARTS_FAR, first - 2, first - 1, first, first + 7):
        assert far_above(n) >= first + STARTS_FAR - 1, "above that start and whatever came after it"


def test_a_directory_that_was_damaged_begins_far_above_too_and_once() -> None:
    cluster = with_messages(3)
    for _ in range(2):
        cluster.crash("b")
    # The record of start 3, which a peer knows, was in the part that cannot be read.
    lost = cluster.nodes["b"].trust.starts[-1]
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    cluster.kill("b")
    cluster.journals["b"].remove(lost)
    cluster.journals["b"].append(TrustLost(0, "damaged"))
    cluster.start("b")
    assert cluster.nodes["b"].state.incarnation.n == far_above(2) + 1
    cluster.crash("b")
    assert cluster.nodes["b"].state.incarnation.n == far_above(2) + 2, "each further start is the next one"
    cluster.hear_all(2.0)
    assert cluster.nodes["b"].state.trusted


def test_a_start_count_that_is_used_up_is_refused() -> None:
    cluster = Cluster()
    cluster.kill("b")
    cluster.journals["b"].append(Started(Incarnation(STARTS_MAX - 2, 1)))
    cluster.start("b")
    assert cluster.ask("b", m.OpenSession())
    cluster.kill("b")
    with pytest.raises(UsageError, match=f"start {STARTS_MAX}.*used up"):
        cluster.start("b")


def test_ballots_do_not_go_back_after_a_resync() -> None:
    cluster = with_messages(1, hold_time_max=10.0)
    core = cluster.nodes["a"]
    core.state.clock.merge(core.state.clock.value + (30_000 << 16))
    (first,) = receipts(cluster.ask("a", fetch(hold_time=1.0)))
    wipe(cluster, "b", 2.0)
    assert cluster.nodes["b"].state.clock.min_ballot >= first.receipt.owner.ballot.time


@pytest.mark.parametrize("count", [2, 5])
def test_other_sizes_of_clusters(count: int) -> None:
    cluster = Cluster(count)
    topic, producer_id = opened(cluster, rf=1 if count == 2 else 5, partitions=3)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 5)))
    wipe(cluster, "b")
    if count == 5:
        cluster.kill("e")
    cluster.advance(2.0)
    assert cluster.nodes["b"].state.trusted
    assert {each.name for each in cluster.nodes["b"].topics.values()} == {"jobs"}


def test_a_closed_producer_id_stays_closed_at_a_node_that_was_wiped_after_that() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    close(cluster, topic, producer_id)
    cluster.advance(60)
    assert closed(cluster) == [1, 1, 1]
    wipe(cluster, "b", 2.0)
    assert cluster.nodes["b"].state.trusted
    assert replica_of(cluster, "b").batches.closed.numbers.messages == 1
    late = cluster.batch(topic, producer_id, 0, [b"%d" % number for number in range(10)])
    (refused,) = store(cluster, "a", "b", m.Store(7, topic.epoch_of(0), late))
    assert isinstance(refused, Send)
    assert isinstance(refused.message, m.StoreReply)
    assert [problem.error for problem in refused.message.problems] == ["session-closed"], (
        "by the node that was wiped itself"
    )
    assert store(cluster, "a", "b", m.Store(0, topic.epoch_of(0), late)) == []
    cluster.advance(10.0)
    assert present(cluster, "b") == 0
    assert all(receipts(cluster.ask(node, fetch(group))) == () for node in "abc" for group in ("g", "new"))


def test_messages_without_a_replica_are_lost_until_one_returns() -> None:
    cluster, topic, producer_id = with_session(5, hold_time_max=5.0)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 5, [b"x"] * 2)))
    old = list(cluster.journals["c"])
    cluster.kill("abc")
    first = min(record.number for record in cluster.journals["a"] if isinstance(record, BatchStored))
    cluster.unreadable.update({"a": {first}, "b": {first}})
    cluster.journals["c"] = []
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncState) and sender == "c"
    cluster.start("abc", 15.0)
    assert lost(cluster) == [0, 0, 5], "c has heard of them, and has not said yet that it has not got them"
    cluster.hear_all(15.0)
    assert lost(cluster) == [5, 5, 5]
    assert present(cluster, "c") == 2
    assert not cluster.dropped["a"], "nor are they given up"
    got = receipts(cluster.ask("a", fetch(wait=0.5, hold_time=2.0), 1.0))
    assert sum(item.receipt.span.size for item in got) == 2, "what is there is delivered"
    wipe(cluster, "c", 20.0, kept=old)
    assert lost(cluster) == [0, 0, 0]
    assert present(cluster, "a") == present(cluster, "b") == 7
    assert cluster.dropped["a"] == {first}


def lost(cluster: Cluster) -> list[int]:
    return [replica_of(cluster, name).batches.lost for name in cluster.names]


def test_the_only_replica_has_lost_what_it_cannot_read() -> None:
    cluster = Cluster()
    topic, producer_id = opened(cluster, rf=1)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 3)))
    (home,) = topic.replicas[0]
    (only,) = cluster.nodes[home].replicas.values()
    cluster.feed(home, Damaged(only.batches.order.first()[1]))
    assert only.batches.lost == 3


def test_a_backup_of_the_last_start_is_noticed_by_how_many_records_it_has() -> None:
    cluster = with_messages(10, hold_time_max=10.0)
    cluster.advance(1.0)
    backup = list(cluster.journals["b"])
    n = cluster.nodes["b"].state.incarnation.n
    assert outcomes(cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=5)))))) == ["acked"]
    cluster.advance(1.5)
    wipe(cluster, "b", kept=backup)
    assert len(cluster.restarts) == 1
    assert f"start {n} of node 'b' told" in cluster.restarts[0][1]
    cluster.advance(2.0)
    core = cluster.nodes["b"]
    assert core.state.trusted
    assert core.state.incarnation.n == far_above(n) + 1
    assert sum(span.size for span, _ in replica_of(cluster, "b").group("g").records.items()) == 5
    for _ in range(2):  # it has fewer records than it once had, and that is known now
        cluster.crash("b", 2.0)
    assert len(cluster.restarts) == 1
    assert cluster.nodes["b"].state.trusted


@pytest.mark.parametrize("lost", ["a message", "an ack"])
def test_a_journal_that_lacks_what_a_peer_relied_on_a_moment_ago_is_noticed(lost: str) -> None:
    """Cut where it lies, as by a disk that lied about an fsync; no heartbeat has reported the last records."""
    cluster, topic, producer_id = with_session(10, hold_time_max=10.0)
    cluster.advance(1.0)
    if lost == "an ack":
        got = receipts(cluster.ask("a", fetch(most=5)))
    before = len(cluster.journals["b"])
    if lost == "a message":
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"])), of=m.PublishReply)
    else:
        assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]
    cluster.kill("b")
    del cluster.journals["b"][before:]
    cluster.start("b")
    assert [name for name, _ in cluster.restarts] == ["b"]
    cluster.advance(5.0)
    assert cluster.nodes["b"].state.trusted
    if lost == "an ack":
        assert sum(span.size for span, _ in replica_of(cluster, "b").group("g").records.items()) == 5


def test_a_late_answer_takes_no_position_back() -> None:
    cluster, topic, producer_id = with_session(1)
    late: list[tuple[str, str, object]] = []

    def listen(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.StoreReply) and (sender, to) == ("b", "a"):
            late.append((sender, to, message))
        return False

    cluster.drop = listen
    for seq in (1, 2):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])))
    after = cluster.nodes["a"].context.peers.positions.reported["b"]
    assert after == (len(cluster.journals["b"]), 1)
    hand_over(cluster, *late[0])
    assert cluster.nodes["a"].context.peers.positions.reported["b"] == after


def test_an_ordinary_restart_is_not_taken_for_a_backup() -> None:
    cluster, topic, producer_id = with_session(10, hold_time_max=10.0)
    for at in range(5):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10 + at, [b"x"])))
        cluster.advance(0.7)
        name = "abc"[at % 3]
        cluster.crash(name, 0.7)
    assert not cluster.restarts


def test_positions_survive_a_restart_of_those_that_were_told() -> None:
    cluster, topic, producer_id = with_session(10, hold_time_max=10.0)
    cluster.advance(1.0)
    backup = list(cluster.journals["b"])
    for at in range(20):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10 + at, [b"x"])))
        cluster.advance(1.0)
    cluster.kill("abc")
    cluster.journals["b"] = backup
    cluster.start("abc")
    assert len(cluster.restarts) == 1
    for name in "ac":
        snapshot = cluster.nodes[name].snapshot(cluster.now)
        assert any(isinstance(record, PeerPosition) and record.node == "b" for record in snapshot)


def test_idle_nodes_do_not_write_down_each_others_writing() -> None:
    cluster = with_messages(10)
    cluster.advance(60.0)
    before = {name: len(cluster.journals[name]) for name in "abc"}
    cluster.advance(300.0)
    for name in "abc":
        written = cluster.journals[name][before[name] :]
        reserves = sum(isinstance(record, Reserved) for record in written)
        positions = sum(isinstance(record, PeerPosition) for record in written)
        assert positions <= 4 * reserves + 4, (positions, reserves)


def test_messages_that_a_resync_learned_stay_known_over_a_restart() -> None:
    """b and a have a message, and b is wiped. It knows the message again, and has it not: then it starts again.

    A PURGE asks b and c. c never heard of the message, so only b can say that there is one.
    """
    cluster, topic, producer_id = with_session(1, hold_time_max=2.0)
    assert receipts(cluster.ask("a", fetch(hold_time=1.0)))
    cluster.advance(5.0)
    cluster.drop = lambda sender, to, message: to == "c" and not isinstance(message, m.ResyncReply)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 1, [b"x"])), of=m.PublishReply)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull | m.SyncState)
    wipe(cluster, "b", 4.0)
    assert cluster.nodes["b"].state.trusted
    assert not present(cluster, "b")
    cluster.kill("ba")
    cluster.start("b", 4.0)
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g"), of=m.PurgeReply).messages == 2


@pytest.mark.parametrize("why", ["slot", "directory"])
def test_no_client_waits_for_a_node_that_does_not_vote_yet(why: str) -> None:
    """Too few vote, so clients are to ask again, and not to wait for the timeout: it may vote after a round trip."""
    cluster = Cluster(5)
    topic = cluster.topic(rf=1 if why == "slot" else 3)
    old, *others = topic.replicas[0]
    producer_id = cluster.ask(old, m.OpenSession()).producer_id
    cluster.ask(old, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 2)))
    one, two = receipts(cluster.ask(old, fetch(most=1))) + receipts(cluster.ask(old, fetch(most=1)))
    assert outcomes(cluster.ask(old, m.RejectRequest((two,), 0.0, DEATH))) == ["ok"]
    (dead,) = cluster.ask(old, m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10)).items
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    if why == "slot":
        new = next(name for name in cluster.names if name != old)
        cluster.ask(old, m.MovePartition("jobs", 0, old, new), of=m.TopicReply)
    else:
        cluster.kill(others[0])
        wipe(cluster, others[1], 0.5)
    requests = (
        m.AckRequest((one,)),
        m.RejectRequest((one,), 0.0),
        m.ExtendRequest((one,), 5.0, 0.0),
        m.RedriveRequest("jobs", 0, "g", (m.SpanRecord(dead.span, dead.record),)),
        m.PurgeRequest("jobs", 0, "g"),
        m.PeekRequest("jobs", 0, "g", "open", (0, 0), 10, complete=True),
        m.SetGroup("jobs", "g", "latest", rewind=True),
        m.Publish(cluster.batch(topic, producer_id, 2, [b"x"])),
    )
    for request in requests:
        reply = cluster.ask(old, request)
        if isinstance(reply, m.SettleReply):
            assert outcomes(reply) == [Code.OUTCOME_UNKNOWN], request
        else:
            assert isinstance(reply, m.Failed), request
            assert reply.code in (Code.OUTCOME_UNKNOWN, Code.TOO_FEW_REPLICAS), reply
    if why == "directory":
        cluster.start(others[0])
    cluster.hear_all(10.0)
    assert outcomes(cluster.ask(old, requests[0]))[0].startswith("acked")


@pytest.mark.parametrize("rf", [1, 3])
@pytest.mark.parametrize("crashes", [True, False])
def test_a_topic_that_is_made_after_a_resync_is_delivered_at_once(rf: int, *, crashes: bool) -> None:
    cluster = Cluster()
    for name in "bc":
        wipe(cluster, name, 1.0)
    if crashes:
        cluster.crash("abc")
    topic, producer_id = opened(cluster, "new", rf=rf, partitions=8)
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsReply)
    for number, members in enumerate(topic.replicas):
        batch = cluster.batch(topic, producer_id, 0, [b"x"], partition=number)
        cluster.ask("a", m.Publish(batch), of=m.PublishReply)
        asked = fetch(most=1)._replace(topics=("new",))
        assert receipts(cluster.ask(members[0], asked, 1.5))


def test_a_partition_that_was_proposed_before_waits() -> None:
    """The directory before this one, whose resync brought the proposal alone, may have voted there."""
    cluster, topic, _ = with_session(1)
    cluster.ask("a", m.AlterTopic("jobs", partitions=2), of=m.TopicReply)
    wider = cluster.nodes["b"].topics[topic.id]
    cluster.kill("b")
    proposed = wider._replace(replicas=wider.replicas[:1], proposed=2)
    cluster.journals["b"][:] = [
        it._replace(topic=proposed) if isinstance(it, TopicPut) else it for it in cluster.journals["b"]
    ]
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsReply | m.SyncTopics)
    cluster.start("b")
    hand_over(cluster, "a", "b", m.PutTopic(0, wider))
    waits = [replica.quarantine_until > cluster.time for replica in cluster.nodes["b"].replicas.values()]
    assert waits == [True, True]

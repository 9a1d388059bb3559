"""RECLAIM: payload goes when no group needs it, and nothing that a group may read goes (docs/protocol.md, RECLAIM)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster import peer_groups
from quorumq.core.cluster.peer_groups import GroupsQuestion
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.effects import DropBatches, Send
from quorumq.core.messages.records import BatchStored, Reclaimed
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests import placing
from quorumq.core.values import limits
from quorumq.core.values.types import Group, Kind, Span
from quorumq.wire.codec import encode_message
from tests.core.cluster import Cluster
from tests.core.network import noted
from tests.core.steps import (
    DEATH,
    dead_entries,
    died,
    drained,
    fetch,
    opened,
    outcomes,
    published,
    receipts,
    replica_of,
    rewind,
    root_of,
    spans,
    with_messages,
    with_session,
)
from tests.core.work import calls


def batches(cluster: Cluster) -> list[int]:
    """Return the number of batches in memory and in the journal, by node."""
    counts = [len(replica_of(cluster, node).batches.stored) for node in cluster.nodes]
    for node in cluster.nodes:
        stored = sum(isinstance(record, BatchStored) for record in cluster.journals[node])
        assert stored - len(cluster.dropped[node]) == len(replica_of(cluster, node).batches.stored)
    return counts


def deaf(node: str, *more: str) -> Callable[[str, str, object], bool]:
    """For `Cluster.drop`: ``node`` hears of no group but by the answer to its own question."""
    kinds = ("PutGroup", "SyncTopics", "Hold", "SyncState", *more)
    return lambda sender, to, message: to == node and type(message).__name__ in kinds


def standing(cluster: Cluster, node: str) -> tuple[Kind, int]:
    """Return the record of the first message there."""
    (record, *_) = [record for _, record in replica_of(cluster, node).group("g").home.records.items()]
    return record.kind, record.n


def test_payload_goes_once_every_group_is_through_with_it() -> None:
    cluster = with_messages()
    cluster.ask("a", fetch("other", hold_time=1.0))
    drained(cluster)
    cluster.advance(10)
    assert batches(cluster) == [1, 1, 1], "the other group has not had it"
    drained(cluster, "other")
    cluster.advance(10)
    assert batches(cluster) == [0, 0, 0]
    for node in "abc":
        assert replica_of(cluster, node).batches.reclaimed.messages == 10
        assert not replica_of(cluster, node).group("g").ballots, "nor are its ballots kept"


def test_messages_that_were_published_alone_are_dropped_as_one_span() -> None:
    """Half of the calls were for maps of messages, when each message was taken out of them by itself."""
    cluster, topic, producer_id = with_session(1, checks=False)
    for first in range(1, 60):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, first, [b"x"])))
    drained(cluster)
    replica = replica_of(cluster, "a")
    replica.reclaim.sweep(cluster.now)
    count = calls(lambda: replica.reclaim.drop(cluster.now.mono, 0.0, cluster.now))
    assert not replica.batches.stored
    assert replica.batches.reclaimed.items() == [Span(producer_id, 0, 60)]
    assert count <= 60 * 100  # 88 each; 189 if each message is taken out of the maps by itself


def test_without_a_group_everything_is_kept() -> None:
    cluster = with_messages()
    cluster.advance(30)
    assert batches(cluster) == [1, 1, 1]


def test_peek_goes_on_where_the_batch_at_its_cursor_was_reclaimed() -> None:
    cluster, topic, producer_id = with_session(1)
    for first in range(1, 6):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, first, [b"x"])))
    page = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "ready", (0, 0), 2), of=m.PeekReply)
    assert page.cursor is not None
    assert [item.span.start for item in page.items] == [0, 1]
    assert set(outcomes(cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=3))))))) == {
        "acked"
    }
    cluster.advance(10)
    assert batches(cluster) == [3, 3, 3]
    page = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "ready", page.cursor, 10), of=m.PeekReply)
    assert [item.span.start for item in page.items] == [3, 4, 5]


def test_retention_begins_when_the_last_group_is_through() -> None:
    cluster = with_messages()
    assert isinstance(cluster.ask("a", m.AlterTopic("jobs", retention_s=60.0)), m.TopicReply)
    drained(cluster)
    cluster.advance(55)
    assert batches(cluster) == [1, 1, 1]
    assert spans(cluster.ask("a", fetch("late"))) == [(0, 10)], "a group that comes in time gets it"
    cluster.advance(120)
    assert batches(cluster) == [1, 1, 1]
    drained(cluster, "late")
    cluster.advance(70)
    assert batches(cluster) == [0, 0, 0]


def test_a_dead_letter_keeps_its_payload_until_it_is_purged() -> None:
    cluster = Cluster()
    died(cluster, most=1)
    drained(cluster)
    cluster.advance(30)
    assert batches(cluster) == [1, 1, 1]
    cluster.ask("c", m.AckRequest(receipts(cluster.ask("c", fetch("g!dead")))))
    cluster.advance(10)
    assert batches(cluster) == [0, 0, 0]


def test_a_retry_of_what_was_reclaimed_is_ok_and_makes_no_second_message() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    cluster.advance(10)
    retry = cluster.batch(topic, producer_id, 0, [b"%d" % i for i in range(10)])
    assert isinstance(cluster.ask("c", m.Publish(retry)), m.PublishReply)
    assert spans(cluster.ask("a", fetch())) == []
    assert batches(cluster) == [0, 0, 0]


def test_nothing_is_reclaimed_before_a_majority_has_said_which_groups_there_are() -> None:
    """c does not know of a group that a and b registered: its own list of groups is not enough."""
    cluster = with_messages()
    cluster.ask("c", fetch(hold_time=1.0))
    cluster.advance(2)
    cluster.drop = deaf("c", "GroupsReply")
    cluster.ask("a", fetch("other", most=1, hold_time=1.0))
    drained(cluster, "g", "c")
    cluster.advance(20)
    assert "other" not in {name for _, name in cluster.nodes["c"].catalogue.groups}
    assert batches(cluster) == [1, 1, 1], "c has heard no majority"
    cluster.drop = deaf("c")
    cluster.advance(20)
    assert batches(cluster) == [1, 1, 1], "c has heard of the other group"
    assert spans(cluster.ask("c", fetch("other"))) == [(0, 1), (1, 10)]


def test_more_groups_than_fit_one_answer_are_told_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_groups, "GROUPS_PER_CHUNK", 2)
    cluster = with_messages()
    for name in ("g", "h1", "h2", "h3"):
        cluster.ask("c", fetch(name, hold_time=1.0))
        cluster.advance(2)
    pages: list[m.GroupsReply] = []

    def lost(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.GroupsReply) and to == "c":
            pages.append(message)
            return not message.more  # the last page, where the other group is
        return deaf("c")(sender, to, message)

    cluster.drop = lost
    cluster.ask("a", fetch("other", most=1, hold_time=1.0))
    for name in ("g", "h1", "h2", "h3"):
        drained(cluster, name, "c")
    cluster.advance(20)
    assert {tuple(group.name for group in page.groups) for page in pages} == {
        ("g", "h1"), ("h2", "h3"), ("other",)
    }  # fmt: skip
    assert batches(cluster) == [1, 1, 1], "c has not heard all"
    cluster.drop = deaf("c")
    cluster.advance(20)
    assert "other" in {name for _, name in cluster.nodes["c"].catalogue.groups}
    assert batches(cluster) == [1, 1, 1], "it has not had it"
    drained(cluster, "other", "c")
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 0]


def test_waiting_topics_are_examined_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_groups, "TOPICS_PER_ASK", 2)
    cluster = Cluster()
    asks = noted(cluster, lambda sender, to, message: isinstance(message, m.GroupsRequest))
    topics = [cluster.topic(name) for name in ("one", "two", "three", "four", "five", "idle")]
    for topic in topics[:5]:
        producer_id = cluster.ask("a", m.OpenSession()).producer_id
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
        items = receipts(cluster.ask("b", fetch()._replace(topics=(topic.name,))))
        assert outcomes(cluster.ask("b", m.AckRequest(items))) == ["acked"]
    cluster.advance(10)
    assert max(len(ask.topics) for ask in asks) == 2
    assert topics[5].id not in {topic for ask in asks for topic in ask.topics}
    for core in cluster.nodes.values():
        for partition, found_here in core.replicas.items():
            assert not found_here.batches.stored, f"{core.topics[partition.topic].name} waits for ever"


def test_a_full_page_of_groups_fits_a_frame() -> None:
    name = "x" * limits.NAME_BYTES_MAX
    group = Group(b"t" * 16, name, (1 << 62) - 1, 1 << 48)
    encode_message(m.GroupsReply(1 << 60, (group,) * limits.GROUPS_PER_CHUNK, True))


def test_an_answer_given_before_the_tombstone_does_not_count() -> None:
    cluster = with_messages()
    kept: list[m.GroupsReply] = []
    cluster.ask("a", fetch(hold_time=1.0))
    cluster.advance(2)
    core = cluster.nodes["a"]
    core.context.peer_groups.asked[7] = GroupsQuestion(cluster.time, tuple(core.topics))
    cluster.advance(3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.GroupsReply) and not kept
    drained(cluster)
    core.context.peer_groups.on_groups_reply("b", m.GroupsReply(7, ()))  # asked 3 s before the ACK
    cluster.advance(10)
    assert batches(cluster) == [1, 1, 1]


def test_a_replica_that_was_away_pulls_nothing_that_was_reclaimed_and_agrees_with_the_others() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    cluster.kill("c")
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"] * 5)))
    drained(cluster, node="a")
    cluster.advance(10)
    cluster.start("c")
    sent = noted(cluster, lambda *message: True)
    cluster.advance(30)
    assert batches(cluster) == [0, 0, 0]
    assert not any(isinstance(message, m.Store) for message in sent)
    assert len({root_of(replica_of(cluster, node)) for node in "abc"}) == 1
    late = [message for message in sent[-100:] if isinstance(message, m.SyncState)]
    assert not late, "they agree, so they have nothing more to say"


def test_a_crash_between_the_record_and_the_drop_drops_the_batch_at_the_next_start() -> None:
    cluster = with_messages()
    drained(cluster)
    cluster.advance(10)
    assert any(isinstance(record, Reclaimed) for record in cluster.journals["a"])
    cluster.kill("a")
    cluster.dropped["a"].clear()
    cluster.start("a")
    assert len(cluster.dropped["a"]) == 1
    assert batches(cluster)[0] == 0
    assert replica_of(cluster, "a").batches.reclaimed.messages == 10


def test_a_start_drops_empty_batches_in_chunks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "DROPPED_MAX", 3)
    cluster = with_messages()
    stored = next(record for record in cluster.journals["a"] if isinstance(record, BatchStored))
    cluster.kill("a")
    cluster.journals["a"] += [stored._replace(number=number) for number in range(70, 77)]
    config = NodeConfig(node="a", nodes=cluster.names, hold_time_max=60.0)
    core = NodeCore(config, cluster.journals["a"], nonce=1, directory=1, now=cluster.now, rng=cluster.rng)
    chunks = [effect.numbers for effect in core.start(cluster.now) if isinstance(effect, DropBatches)]
    assert chunks == [(70, 71, 72), (73, 74, 75), (76,)]
    (copy,) = core.replicas.values()
    assert list(copy.batches.stored) == [stored.number]


def test_a_group_that_is_rewound_gets_what_any_replica_retained() -> None:
    """a and b have reclaimed; c, which was away, still has the payload: they get it by anti-entropy."""
    cluster = with_messages()
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    drained(cluster)
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 1]
    cluster.drop = lambda sender, to, message: "c" in (sender, to) and not isinstance(message, m.Store)
    rewind(cluster, "a")
    cluster.hear_all(20)
    assert batches(cluster) == [1, 1, 1]
    for node in "ab":
        assert not replica_of(cluster, node).batches.reclaimed
    assert spans(cluster.ask("a", fetch())) == [(0, 10)]


def test_reclaimed_messages_are_not_missing_for_a_later_group() -> None:
    cluster, topic, producer_id = with_session()
    drained(cluster)
    cluster.advance(10)
    assert spans(cluster.ask("b", fetch("late"))) == []
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"])))
    assert spans(cluster.ask("b", fetch("late"))) == [(10, 11)]
    cluster.advance(20)
    assert [replica_of(cluster, node).batches.absent.messages for node in "abc"] == [0, 0, 0]


def test_a_held_message_that_was_purged_is_reclaimed_after_its_hold() -> None:
    cluster = with_messages()
    cluster.ask("a", fetch(hold_time=10.0))
    cluster.ask("b", m.PurgeRequest("jobs", 0, "g"))
    cluster.advance(8)
    assert batches(cluster) == [1, 1, 1]
    cluster.advance(10)
    assert batches(cluster) == [0, 0, 0]


@pytest.mark.parametrize("how", ["purge", "ids", "group", "rewind", "restart"])
def test_a_message_settled_before_it_is_due_is_reclaimed(how: str) -> None:
    """However it is settled: else it lies on every disk until then, for a year at most, and nothing shows it."""
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.ask("a", fetch())
    cluster.ask("a", fetch("other"))
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 3, delay_ms=86_400_000)))
    cluster.ask("a", m.PurgeRequest("jobs", 0, "other"))
    cluster.advance(8)
    assert batches(cluster) == [1, 1, 1], "the other group has not had it"
    match how:
        case "ids":
            cluster.ask("c", m.PurgeRequest("jobs", 0, "g", (Span(producer_id, 0, 3),)))
        case "group":
            cluster.ask("c", m.DeleteGroup("jobs", "g"))
        case "rewind":
            cluster.ask("c", m.SetGroup("jobs", "g", start="latest", rewind=True))
        case _:
            cluster.ask("c", m.PurgeRequest("jobs", 0, "g"))
    if how == "restart":
        cluster.crash("abc", 70)
    cluster.advance(10)
    assert batches(cluster) == [0, 0, 0]


def test_a_late_receipt_of_reclaimed_messages_hears_no_acked() -> None:
    cluster = with_messages()
    old = receipts(cluster.ask("b", fetch(hold_time=1.0)))
    cluster.advance(1.5)
    drained(cluster)
    cluster.advance(10)
    assert batches(cluster) == [0, 0, 0]
    assert outcomes(cluster.ask("c", m.AckRequest(old))) == ["acked_unproven"]
    assert set(outcomes(cluster.ask("c", m.RejectRequest(old, death=DEATH)))) <= {
        "hold-lost",
        "already-settled",
    }


def test_a_batch_reclaimed_by_peers_before_its_tombstones_arrive_is_not_missing() -> None:
    """The chunks of a sync have any order; if one is lost, the next sync has it."""
    cluster = Cluster()
    cluster.kill("c")
    published(cluster)
    drained(cluster)
    cluster.advance(20)
    assert batches(cluster) == [0, 0]
    cluster.drop = lambda sender, to, message: (
        to == "c" and isinstance(message, m.SyncState) and bool(message.groups)
    )
    cluster.start("c", 20)
    assert replica_of(cluster, "c").batches.wanted_again.messages == 10, "c has heard of no tombstone"
    sent = noted(cluster, lambda *message: True)
    cluster.advance(40)
    assert not replica_of(cluster, "c").batches.wanted_again
    assert len({root_of(replica_of(cluster, node)) for node in "abc"}) == 1
    sent.clear()
    cluster.advance(10)
    assert not any(isinstance(message, m.SyncState) for message in sent), "they agree"


def test_replicas_that_reclaimed_before_and_after_a_rewind_agree_on_what_is_wanted() -> None:
    """a sees that the rewind leaves the messages out, and drops them; b and c have dropped them, and cannot see it."""
    cluster = with_messages()
    drained(cluster)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.GroupsReply) and to == "a" and sender != to
    )
    cluster.advance(20)
    assert batches(cluster) == [1, 0, 0]
    rewind(cluster, "b", "time", cluster.now.wall_ms)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncDigests)
    cluster.advance(20)
    tables = [replica_of(cluster, node).batches for node in "abc"]
    assert [table.wanted_again.messages for table in tables] == [0, 10, 10]
    cluster.hear_all(20)
    assert [table.wanted_again.messages for table in tables] == [10, 10, 10]
    assert len({root_of(replica_of(cluster, node)) for node in "abc"}) == 1


def test_a_pull_of_what_was_reclaimed_hears_so() -> None:
    """Else who has heard of it, and never had its payload, asks for ever once a rewind wants it again."""
    cluster = with_messages()
    drained(cluster)
    cluster.advance(20)
    a = replica_of(cluster, "a")
    (gone,) = a.batches.reclaimed.items()
    (send,) = a.sync.on_pull("c", m.SyncPull(a.partition, (gone,)), cluster.now)
    assert isinstance(send, Send)
    assert isinstance(send.message, m.SyncState)
    assert (send.message.reclaimed, send.message.nowhere) == ((gone,), ())


def test_payload_that_a_group_needs_is_still_missing_after_a_restart() -> None:
    cluster = with_messages()
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    drained(cluster)
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 1]
    rewind(cluster, "a")
    cluster.crash("a")
    cluster.hear_all(20)
    assert batches(cluster) == [1, 1, 1]
    assert spans(cluster.ask("a", fetch())) == [(0, 10)]


def test_an_ack_is_not_proven_by_ballots_that_went_with_a_payload_that_came_back() -> None:
    """Two receipts of one message: the second was acked, its payload dropped and pulled again for a new group."""
    cluster = with_messages(1)
    cluster.kill("c")
    first = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.advance(5.1)
    assert outcomes(cluster.ask("b", m.AckRequest(receipts(cluster.ask("a", fetch()))))) == ["acked"]
    cluster.advance(10.0)
    assert not replica_of(cluster, "a").batches.present.messages
    cluster.ask("a", m.SetGroup("jobs", "other"))
    cluster.start("c")  # it slept through all that, and has the payload
    cluster.advance(10.0)
    assert (
        replica_of(cluster, "a").batches.present.messages
        == replica_of(cluster, "b").batches.present.messages
        == 1
    )
    assert outcomes(cluster.ask("b", m.AckRequest(first))) == ["acked_unproven"]
    (item,) = receipts(cluster.ask("b", fetch("other")))
    assert outcomes(cluster.ask("c", m.AckRequest((item,)))) == ["acked"], (
        "a delivery of after that proves itself"
    )


def test_a_dead_letter_whose_payload_is_gone_is_not_redriven() -> None:
    cluster = Cluster()
    died(cluster, most=1)
    drained(cluster)
    entries = dead_entries(cluster)
    cluster.ask("c", m.PurgeRequest("jobs", 0, "g!dead"))
    cluster.advance(10)
    assert batches(cluster) == [0, 0, 0]
    assert outcomes(cluster.ask("b", m.RedriveRequest("jobs", 0, "g", entries))) == ["already-settled"]
    for node in "abc":
        kinds = {record.kind for _, record in replica_of(cluster, node).group("g").home.records.items()}
        assert kinds == {Kind.ACKED, Kind.PURGED}, "it is open nowhere"


@pytest.mark.parametrize("missed", ["Merge", "Hold", "anti-entropy"])
def test_a_redrive_is_ok_once_a_majority_has_the_payload_again(missed: str) -> None:
    """a and b have reclaimed; c, which was away, has the payload, which is no majority.

    They hear of the redrive in its second round, by a HOLD for c's messages, or by anti-entropy.
    """
    cluster = Cluster()
    died(cluster, most=1)
    drained(cluster)
    entries = dead_entries(cluster)
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    cluster.ask("a", m.PurgeRequest("jobs", 0, "g!dead"))
    cluster.advance(20)
    assert batches(cluster) == [0, 0, 1]
    cluster.drop = lambda sender, to, message: (
        not isinstance(message, m.Merge | m.MergeReply)
        or (isinstance(message, m.Merge) and not message.redrive and missed != "Merge")
    )
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", entries), 10)) == ["outcome-unknown"]
    if missed == "Hold":
        cluster.drop = lambda sender, to, message: isinstance(message, m.SyncDigests | m.SyncState | m.Merge)
        cluster.submit("c", fetch(hold_time=1.0))
        cluster.advance(2)
        assert {standing(cluster, node) for node in "abc"} == {(Kind.OPEN, 1)}
    cluster.hear_all(20)
    assert batches(cluster) == [1, 1, 1]
    assert outcomes(cluster.ask("a", m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"]
    assert spans(cluster.ask("b", fetch())) == [(0, 1)]


def test_payload_stays_while_a_group_that_reads_it_has_no_view_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_messages()
    cluster.ask("a", m.AlterTopic("jobs", retention_s=20.0))
    drained(cluster)
    cluster.advance(10)
    assert batches(cluster) == [1, 1, 1], "the time of its retention runs"
    monkeypatch.setattr(limits, "LOOKS_PER_STEP", 0)  # no step has time for a view
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "late")), m.GroupReply)
    for _ in range(40):
        cluster.advance(1)
    assert batches(cluster) == [1, 1, 1]
    monkeypatch.undo()
    assert spans(cluster.ask("a", fetch("late"))) == [(0, 10)]

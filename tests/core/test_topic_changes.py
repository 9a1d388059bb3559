"""CREATE, ALTER and DELETE of topics, by several operators, with nodes away (docs/registers.md, SETTINGS, DELETE)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Request
from quorumq.core.messages.records import BatchStored
from quorumq.core.values import limits
from quorumq.core.values.types import Topic
from tests.core.cluster import Cluster
from tests.core.network import hand_over, held_back
from tests.core.steps import check_failed, fetch, outcomes, receipts, with_session


def registers(cluster: Cluster, name: str = "jobs") -> list[Topic | None]:
    return [core.topic_named(name) for core in cluster.nodes.values()]


def agreed(cluster: Cluster, name: str = "jobs") -> Topic | None:
    """The register of that name, which is the same on every node."""
    cluster.advance(8)
    (one,) = set(registers(cluster, name))
    return one


def both(cluster: Cluster, first: tuple[str, object], second: tuple[str, object]) -> list[object]:
    """Two clients ask at the same time; the answers."""
    keys = []
    for node, request in (first, second):
        cluster.keys += 1
        keys.append(cluster.keys)
        cluster.queue.append((node, Request(cluster.keys, request)))  # type: ignore[arg-type]
    cluster.run()
    cluster.advance(1.0)  # one of two that outbid each other pauses
    return [cluster.replies[key] for key in keys]


def away(cluster: Cluster, *nodes: str) -> None:
    """These nodes receive nothing, and nothing of them is received, from now on."""
    cluster.drop = lambda sender, to, message: sender != to and (sender in nodes or to in nodes)


# ------------------------------------------------------------------------------------ settings


def test_only_the_settings_that_are_named_change() -> None:
    cluster = Cluster()
    before = cluster.topic(retention_s=60.0)
    reply = cluster.ask("b", m.AlterTopic("jobs", max_deliveries=9, backoff=(1.0, 5.0)), of=m.TopicReply)
    after = agreed(cluster)
    assert after == reply.topic
    assert after == before._replace(
        max_deliveries=9, backoff=(1.0, 5.0), stamp=after.stamp, stamps=after.stamps
    )
    assert after.stamp > before.stamp


def test_settings_survive_a_restart_of_everyone() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.ask("b", m.AlterTopic("jobs", ttl_s=5.0, partitions=3))
    before = agreed(cluster)
    cluster.crash("abc")
    assert agreed(cluster) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "nothing to change"),
        ({"partitions": 1}, "partitions is 1: topic 'jobs' has 2"),
        ({"partitions": 5000}, "up to 1024"),
        ({"ttl_s": -1.0}, "ttl_s is -1.0 s"),
    ],
)
def test_a_change_that_cannot_be_is_refused_by_name(change: dict[str, object], words: str) -> None:
    cluster = Cluster()
    before = cluster.topic(partitions=2)
    check_failed(cluster.ask("b", m.AlterTopic("jobs", **change)), None, words)  # type: ignore[arg-type]
    assert agreed(cluster) == before


def test_two_operators_who_change_different_settings_both_get_theirs() -> None:
    cluster = Cluster()
    cluster.topic()
    one, other = both(
        cluster, ("a", m.AlterTopic("jobs", max_deliveries=9)), ("c", m.AlterTopic("jobs", retention_s=7.0))
    )
    assert isinstance(one, m.TopicReply)
    assert isinstance(other, m.TopicReply)
    after = agreed(cluster)
    assert (after.max_deliveries, after.retention_s) == (9, 7.0)
    assert after in (one.topic, other.topic), "the later of the two heard what stands"


def test_one_of_two_simultaneous_changes_of_a_setting_wins_everywhere() -> None:
    cluster = Cluster()
    cluster.topic()
    one, other = both(
        cluster, ("a", m.AlterTopic("jobs", max_deliveries=9)), ("c", m.AlterTopic("jobs", max_deliveries=7))
    )
    assert (one.topic.max_deliveries, other.topic.max_deliveries) == (9, 7), "each held when it was said"
    assert agreed(cluster) == max(one.topic, other.topic, key=lambda topic: topic.stamp)


def test_a_node_with_old_state_writes_above_what_it_did_not_know() -> None:
    cluster = Cluster()
    cluster.topic()
    away(cluster, "c")
    cluster.ask("a", m.AlterTopic("jobs", max_deliveries=9))
    cluster.nodes["a"].state.clock.value += 1 << 20  # its stamps are far above what c would use by itself
    cluster.ask("a", m.AlterTopic("jobs", retention_s=7.0))
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    reply = cluster.ask("c", m.AlterTopic("jobs", ttl_s=3.0))
    assert (reply.topic.max_deliveries, reply.topic.retention_s, reply.topic.ttl_s) == (9, 7.0, 3.0)
    cluster.hear_all()
    assert agreed(cluster) == reply.topic


def test_a_change_waits_for_the_clocks_reserve() -> None:
    """It meets a newer stamp of another node, far ahead, and has none above that until the disk answers."""
    cluster = Cluster()
    cluster.topic()
    cluster.wall_off_ms["b"] = 400 * 86_400_000
    cluster.advance(3.0)
    away(cluster, "a")
    assert isinstance(cluster.ask("b", m.AlterTopic("jobs", max_deliveries=7)), m.TopicReply)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    done = cluster.ask("a", m.AlterTopic("jobs", max_deliveries=9, retention_s=60.0), of=m.TopicReply)
    assert (done.topic.max_deliveries, done.topic.retention_s) == (9, 60.0)


def test_a_change_without_a_majority_is_not_said_to_have_happened() -> None:
    cluster = Cluster()
    cluster.topic()
    away(cluster, "c")
    check_failed(cluster.ask("c", m.AlterTopic("jobs", max_deliveries=9), 6), "too-few-replicas")
    cluster.drop = lambda sender, to, message: sender != to and isinstance(message, m.PutTopic | m.SyncTopics)
    check_failed(cluster.ask("c", m.AlterTopic("jobs", max_deliveries=9), 6), "outcome-unknown")


# ------------------------------------------------------------------------------------ creation


def test_creating_twice_is_creating_once_and_other_settings_are_a_conflict() -> None:
    cluster = Cluster()
    made = cluster.topic(max_deliveries=9)
    assert cluster.ask("c", m.CreateTopic("jobs", max_deliveries=9)) == m.TopicReply(made)
    for request, words in (
        (m.CreateTopic("jobs", max_deliveries=5), "max_deliveries = 9, not 5"),
        (m.CreateTopic("jobs", rf=1, max_deliveries=9), "rf = 3, not 1"),
        (m.CreateTopic("jobs", partitions=4, max_deliveries=9), "partitions = 1, not 4"),
    ):
        check_failed(cluster.ask("b", request), "conflict", words)
    unnamed = m.CreateTopic("jobs", unnamed=("rf", "max_deliveries"))
    assert cluster.ask("b", unnamed) == m.TopicReply(made)
    assert agreed(cluster) == made


def test_a_creation_by_a_node_that_did_not_know_overwrites_nothing() -> None:
    cluster = Cluster()
    away(cluster, "c")
    made = cluster.topic(max_deliveries=9)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    check_failed(cluster.ask("c", m.CreateTopic("jobs", max_deliveries=5)), None, "max_deliveries = 9, not 5")
    assert cluster.ask("c", m.CreateTopic("jobs", max_deliveries=9)) == m.TopicReply(made)
    cluster.hear_all()
    assert agreed(cluster) == made


def test_a_creation_that_was_cut_off_is_finished_by_its_repetition() -> None:
    cluster = Cluster()
    away(cluster, "a")
    assert isinstance(cluster.ask("a", m.CreateTopic("jobs", partitions=4, ttl_s=5.0), 6), m.Failed)
    cluster.hear_all(5)
    reply = cluster.ask("b", m.CreateTopic("jobs", partitions=4, ttl_s=5.0), of=m.TopicReply)
    assert (reply.topic.partitions, reply.topic.ttl_s) == (4, 5.0)


# ------------------------------------------------------------------------------------ deletion


def deleted(cluster: Cluster, topic: Topic, node: str = "a") -> None:
    cluster.ask(node, m.DeleteTopic(topic.name, topic.id), of=m.TopicReply)


def is_gone(reply: object) -> bool:
    return isinstance(reply, m.Failed) and reply.code == "not-found" and "was deleted" in reply.detail


def test_nothing_succeeds_on_a_deleted_topic() -> None:
    cluster, topic, producer_id = with_session()
    got = receipts(cluster.ask("b", fetch(most=5)))
    parked = cluster.submit("c", fetch("other", most=100, least=50, wait=1.0))
    assert parked not in cluster.replies
    deleted(cluster, topic)
    assert is_gone(cluster.replies[parked]), "a parked FETCH ends"
    for node in "abc":
        assert is_gone(cluster.ask(node, m.Publish(cluster.batch(topic, producer_id, 10, [b"x"]))))
        assert is_gone(cluster.ask(node, fetch()))
        assert outcomes(cluster.ask(node, m.AckRequest(got))) == ["not-found"]
        assert not cluster.nodes[node].replicas
    assert agreed(cluster) is None


def test_the_payload_of_a_deleted_topic_is_dropped_also_by_a_later_start() -> None:
    cluster, topic, _ = with_session(hold_time_max=1.0)
    fill(cluster, "other")
    deleted(cluster, topic)
    mine = {
        name: {
            record.number
            for record in cluster.journals[name]
            if isinstance(record, BatchStored) and record.batch.header.partition.topic == topic.id
        }
        for name in "abc"
    }
    for name in "abc":
        assert mine[name]
        assert cluster.dropped[name] == mine[name]
        cluster.dropped[name].clear()  # it crashed before anything of it was durable
        cluster.crash(name)
        assert cluster.dropped[name] == mine[name]


def test_a_deletion_outlives_every_start() -> None:
    cluster, topic, producer_id = with_session()
    deleted(cluster, topic)
    cluster.crash("abc")
    assert agreed(cluster) is None
    assert is_gone(cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"]))))
    for core in cluster.nodes.values():
        assert not core.replicas
        assert not core.catalogue.groups


def test_deleting_again_is_deleting_once_and_does_not_change_the_next_topic() -> None:
    cluster, topic, _ = with_session()
    deleted(cluster, topic)
    deleted(cluster, topic, "b")
    again = cluster.ask("c", m.CreateTopic("jobs", rf=1)).topic
    assert again.id != topic.id, "with another RF, even"
    deleted(cluster, topic, "b")
    assert agreed(cluster) == again


def test_old_receipts_do_nothing_to_the_topic_of_the_same_name() -> None:
    cluster, topic, producer_id = with_session()
    got = receipts(cluster.ask("b", fetch()))
    deleted(cluster, topic)
    again = cluster.topic()
    for node in "abc":
        assert outcomes(cluster.ask(node, m.AckRequest(got))) == ["not-found"]
        assert is_gone(cluster.ask(node, m.Publish(cluster.batch(topic, producer_id, 10, [b"x"]))))
    session = cluster.ask("a", m.OpenSession()).producer_id
    assert isinstance(cluster.ask("a", m.Publish(cluster.batch(again, session, 0, [b"new"]))), m.PublishReply)
    assert [item.receipt.span for item in receipts(cluster.ask("b", fetch()))] == [(session, 0, 1)]


def test_a_node_that_was_down_hears_of_the_deletion_by_itself() -> None:
    cluster, topic, _ = with_session(hold_time_max=1.0)
    cluster.kill("c")
    deleted(cluster, topic)
    cluster.start("c")
    assert agreed(cluster) is None
    assert not cluster.nodes["c"].replicas
    cluster.crash("c")
    assert not cluster.nodes["c"].replicas, "what it heard is in its journal"


def test_a_node_that_does_not_know_finds_no_majority_and_learns_why() -> None:
    """No anti-entropy here: the refusal itself brings the news."""
    cluster, topic, producer_id = with_session(hold_time_max=1.0)
    away(cluster, "c")
    deleted(cluster, topic)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    assert cluster.nodes["c"].topic_named("jobs") == topic
    assert is_gone(cluster.ask("c", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"]))))
    assert cluster.nodes["c"].topic_named("jobs") is None


def test_a_late_message_for_a_deleted_topic_writes_no_hint() -> None:
    """Fetching and waiting clients are dropped with the topic: no later event would drop them."""
    cluster, topic, _ = with_session()
    late = held_back(
        cluster,
        lambda sender, to, message: isinstance(message, m.Hold | m.Heartbeat) and (sender, to) == ("c", "a"),
    )
    cluster.submit("c", fetch(most=5))
    cluster.submit("c", fetch("other", most=100, least=50, wait=0.9))
    cluster.advance(0.8)
    cluster.hear_all()
    deleted(cluster, topic)
    a = cluster.nodes["a"].state
    for item in late:
        hand_over(cluster, *item)
    assert {type(it) for _, _, it in late if isinstance(it, m.Hold) or it.waiting} == {m.Hold, m.Heartbeat}
    assert (a.active, a.parked) == ({}, {})


@pytest.mark.parametrize(
    "request_of",
    [lambda got: fetch(), lambda got: m.AckRequest(got), lambda got: m.AlterTopic("jobs", ttl_s=1.0)],
    ids=["fetch", "ack", "alter"],
)
def test_any_request_through_a_node_that_does_not_know_learns_it(request_of: object) -> None:
    cluster, topic, _ = with_session()
    got = receipts(cluster.ask("b", fetch(most=5)))
    away(cluster, "c")
    deleted(cluster, topic)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    reply = cluster.ask("c", request_of(got))  # type: ignore[operator]
    assert is_gone(reply) or outcomes(reply) == ["not-found"]


def test_a_name_is_made_anew_through_a_node_that_missed_its_deletion() -> None:
    cluster, topic, _ = with_session()
    away(cluster, "c")
    for _ in range(3):
        deleted(cluster, cluster.nodes["a"].topic_named("jobs") or topic)
        cluster.topic(partitions=2)
    last = cluster.nodes["a"].topic_named("jobs")
    deleted(cluster, last)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    assert cluster.nodes["c"].topic_named("jobs") == topic
    reply = cluster.ask("c", m.CreateTopic("jobs", partitions=3), of=m.TopicReply)
    assert (reply.topic.deletions, reply.topic.partitions) == (4, 3)
    cluster.hear_all()
    assert agreed(cluster) == reply.topic
    for core in cluster.nodes.values():
        assert {partition.topic for partition in core.replicas} == {reply.topic.id}


def test_a_publish_under_way_ends_when_the_deletion_comes() -> None:
    cluster, topic, producer_id = with_session()
    cluster.drop = lambda sender, to, message: (
        sender != to and "c" in (sender, to) and not is_register(message)
    )
    key = cluster.submit("c", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"])))
    assert key not in cluster.replies
    deleted(cluster, topic)
    assert is_gone(cluster.replies[key])


def is_register(message: object) -> bool:
    return isinstance(message, m.PutReply | m.PutTopic | m.SyncTopics)


def test_a_fetch_of_several_topics_goes_on_without_the_deleted_one() -> None:
    cluster, topic, _ = with_session()
    other = cluster.topic("other")
    receipts(cluster.ask("a", m.Fetch(("jobs", "other"), "g", 100, 1 << 20, 1, 0.0, 10.0, 0.0)))
    key = cluster.submit("a", m.Fetch(("jobs", "other"), "g", 100, 1 << 20, 1, 1.0, 10.0, 0.0))
    assert key not in cluster.replies
    deleted(cluster, topic)
    assert receipts(cluster.replies[key]) == (), "it ends, and the next one says why"
    assert agreed(cluster, "other") == other


def test_a_fetch_of_a_pattern_that_has_won_messages_of_a_deleted_topic_goes_on_without_them() -> None:
    cluster, topic, _ = with_session(1)
    cluster.topic("jobs-too")
    waiting = m.Fetch(("jobs*",), "g", 100, 1 << 20, 50, 1.0, 10.0, 0.0)
    key = cluster.submit("a", waiting)
    cluster.ask("a", m.DeleteTopic("jobs", topic.id))
    cluster.advance(1.1)
    assert not receipts(cluster.replies[key])


def test_deleting_while_too_few_replicas_answer_is_not_said_to_have_happened() -> None:
    """A majority of the nodes is not enough: one of the replicas of a partition could still be found by STORE."""
    cluster = Cluster(5)
    topic = cluster.topic()
    home = topic.replicas[0]
    away(cluster, *home[:2])
    asked = next(name for name in cluster.names if name not in home)
    check_failed(cluster.ask(asked, m.DeleteTopic("jobs", topic.id), 6), "outcome-unknown")
    cluster.hear_all()
    assert agreed(cluster) is None, "but it may happen all the same"


def test_deleting_one_of_which_only_another_of_its_name_is_known_says_that_this_stays() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    reply = cluster.ask("a", m.DeleteTopic("jobs", b"?" * 16))
    check_failed(reply, "not-found", "another one has its name, and is left alone")
    assert agreed(cluster) == topic


# ------------------------------------------------------------------------------------ patterns


def fill(cluster: Cluster, name: str, count: int = 2) -> None:
    topic = cluster.nodes["a"].topic_named(name) or cluster.topic(name)
    producer_id = cluster.ask("a", m.OpenSession()).producer_id
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * count)), of=m.PublishReply)


def asking(*topics: str, most: int = 100, wait: float = 0.0, partitions: tuple[int, ...] = ()) -> m.Fetch:
    return m.Fetch(topics, "g", most, 1 << 20, 1, wait, 10.0, 0.0, partitions=partitions)


def came_from(reply: object) -> list[str]:
    assert isinstance(reply, m.FetchReply), reply
    return sorted(part.topic for part in reply.slices for _ in part.deliveries)


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_pattern_stands_for_the_topics_that_are_there_when_it_is_asked(nodes: int) -> None:
    cluster = Cluster(nodes)
    for name in ("orders.at", "orders.de", "orders", "invoices.at"):
        fill(cluster, name)
    for node in cluster.names[-2:]:
        assert set(came_from(cluster.ask(node, asking("orders.*", most=3), 0.1))) <= {
            "orders.at",
            "orders.de",
        }
    assert came_from(cluster.ask("a", asking("invoices.?t", "orders"), 0.1)) == ["invoices.at", "orders"]


def test_limits_hold_across_all_topics_of_a_pattern() -> None:
    cluster = Cluster()
    for number in range(5):
        fill(cluster, f"t{number}", 10)
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("b", asking("t*", most=23)))) == 23


def test_a_pattern_that_matches_nothing_waits_and_its_repetition_finds_new_topics() -> None:
    cluster = Cluster()
    key = cluster.submit("b", asking("jobs.*", wait=1.0))
    fill(cluster, "jobs.new")
    assert key not in cluster.replies
    cluster.advance(1.1)
    assert came_from(cluster.replies[key]) == []
    assert came_from(cluster.ask("b", asking("jobs.*", wait=1.0))) == ["jobs.new"]


def test_deleted_topics_are_not_matched_and_end_no_consumer_of_a_pattern() -> None:
    cluster = Cluster()
    for name in ("t1", "t2"):
        fill(cluster, name)
    assert came_from(cluster.ask("b", asking("t*"))) == ["t1", "t2"]
    key = cluster.submit("c", asking("t*", wait=1.0))
    deleted(cluster, cluster.nodes["a"].topic_named("t1"))
    assert came_from(cluster.replies[key]) == []
    deleted(cluster, cluster.nodes["a"].topic_named("t2"))
    assert came_from(cluster.ask("c", asking("t*"))) == []
    assert cluster.ask("c", m.Metadata(("t*",))).topics == ()


def test_a_pattern_over_more_partitions_than_a_fetch_gets_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FETCH_PARTITIONS_MAX", 3)
    cluster = Cluster()
    for number in range(8):
        fill(cluster, f"t{number}", 1)
    seen: list[str] = []
    for _ in range(8):
        seen += came_from(cluster.ask("b", asking("t*")))
    assert sorted(seen) == [f"t{number}" for number in range(8)]


def test_metadata_of_a_pattern() -> None:
    cluster = Cluster()
    for name in ("b.1", "b.2", "c"):
        cluster.topic(name)
    assert [topic.name for topic in cluster.ask("b", m.Metadata(("b.*", "b.1"))).topics] == ["b.1", "b.2"]
    assert [topic.name for topic in cluster.ask("b", m.Metadata()).topics] == ["b.1", "b.2", "c"]
    assert cluster.ask("b", m.Metadata(("z*",))).topics == ()


# ------------------------------------------------------------------------------------ more partitions


def test_more_partitions_move_nothing_and_are_read_by_the_next_fetch() -> None:
    cluster, topic, producer_id = with_session(4)
    grown = cluster.ask("b", m.AlterTopic("jobs", partitions=3)).topic
    assert grown.replicas[:1] == topic.replicas
    again = cluster.batch(topic, producer_id, 0, [b"%d" % number for number in range(4)])
    assert isinstance(cluster.ask("c", m.Publish(again)), m.PublishReply), (
        "a retry stays where it was numbered"
    )
    cluster.ask("c", m.Publish(cluster.batch(grown, producer_id, 0, [b"x"], 2)), of=m.PublishReply)
    got = receipts(cluster.ask("b", fetch()))
    assert sum(item.receipt.span.size for item in got) == 5
    assert {item.receipt.partition.number for item in got} == {0, 2}


def test_a_new_partition_is_stored_by_nodes_that_do_not_know_it() -> None:
    cluster, _, producer_id = with_session(4)
    away(cluster, "c")
    grown = cluster.ask("b", m.AlterTopic("jobs", partitions=2)).topic
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics) or (sender != to and "b" in (sender, to))
    )
    assert cluster.nodes["c"].topic_named("jobs").partitions == 1
    cluster.ask("a", m.Publish(cluster.batch(grown, producer_id, 0, [b"x"], 1)), of=m.PublishReply)
    assert cluster.nodes["c"].topic_named("jobs").partitions == 2

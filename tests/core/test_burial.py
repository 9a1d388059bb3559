"""Undeliverable messages become dead letters without a FETCH, in runs, and never by a single clock."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.partition.backlog import part_of
from quorumq.core.partition.choice import Choice
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import burial
from quorumq.core.requests.burial import reasons
from quorumq.core.values.types import Now, PartitionId, ProducerId, Topic
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts, replica_of, seqs

MINUTE_S = 60.0


def published(cluster: Cluster, count: int, **settings: object) -> tuple[Topic, ProducerId]:
    """``count`` messages, in a batch each."""
    topic = cluster.topic(**settings)  # type: ignore[arg-type]
    producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    for seq in range(count):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"])))
    return topic, producer_id


def counts(cluster: Cluster, node: str = "a") -> tuple[int, int, int]:
    """Return the numbers of messages that are ready, dying and dead there."""
    part = part_of(replica_of(cluster, node), "g", cluster.now)
    return part.ready, part.dying, part.dead


def test_an_exhausted_message_dies_without_a_reader() -> None:
    cluster = Cluster()
    published(cluster, 300, max_deliveries=1)
    for _ in range(3):
        assert len(seqs(cluster.ask("a", fetch(most=100, hold_time=5.0)))) == 100
    cluster.advance(5.1)
    assert counts(cluster)[0] == 0, "nobody is to be started for it"
    cluster.advance(8.0)
    for node in "abc":
        assert counts(cluster, node) == (0, 0, 300)


@pytest.mark.parametrize("own", [False, True])
def test_an_expired_message_dies_without_a_reader(own: bool) -> None:
    cluster = Cluster()
    topic, producer_id = published(cluster, 0, ttl_s=0.0 if own else MINUTE_S)
    cluster.ask("a", fetch())
    for seq in range(300):
        batch = cluster.batch(topic, producer_id, seq, [b"x"], ttl_ms=60_000 if own else 0)
        cluster.ask("a", m.Publish(batch))
    cluster.advance(50.0)
    assert counts(cluster) == (300, 0, 0)
    cluster.advance(18.0)
    for node in "abc":
        assert counts(cluster, node) == (0, 0, 300)


@pytest.mark.parametrize("reader", [False, True])
def test_an_expired_message_is_dropped_if_the_topic_says_so(reader: bool) -> None:
    """With the setting by CREATE, or by ALTER; messages out of deliveries are dead letters there as well."""
    cluster = Cluster()
    settings = {} if reader else {"on_expiry": "drop"}
    published(cluster, 300, ttl_s=MINUTE_S, max_deliveries=1, **settings)
    if reader:
        reply = cluster.ask("b", m.AlterTopic("jobs", on_expiry="drop"), of=m.TopicReply)
        assert reply.topic.on_expiry == "drop"
    assert seqs(cluster.ask("a", fetch(most=2, hold_time=5.0))) == [0, 1]
    cluster.advance(59.9)
    if reader:
        cluster.advance(0.2)
        assert seqs(cluster.ask("c", fetch())) == []
    else:
        cluster.advance(9.0)
    for node in "abc":
        part = part_of(replica_of(cluster, node), "g", cluster.now)
        assert (part.ready, part.dying, part.dead, part.dropped) == (0, 0, 2, 298)
    cluster.advance(30.0)
    assert len(replica_of(cluster, "a").batches.stored) == 2, "and their payload goes as that of acked ones"


def test_an_answer_to_an_expiry_that_is_none_is_refused_by_name() -> None:
    cluster = Cluster()
    reply = cluster.ask("a", m.CreateTopic("jobs", on_expiry="forget"), of=m.Failed)
    assert (reply.code, "'forget'" in reply.detail) == ("usage", True)
    cluster.topic()
    reply = cluster.ask("a", m.AlterTopic("jobs", on_expiry=""), of=m.Failed)
    assert (reply.code, "on_expiry is ''" in reply.detail) == ("usage", True)


def test_expired_messages_cost_a_fetch_no_round_each() -> None:
    cluster = Cluster()
    topic, producer_id = published(cluster, 100, ttl_s=MINUTE_S)
    cluster.advance(59.0)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 100, [b"live"] * 3)))
    cluster.advance(1.0)
    rounds: list[int] = []

    def count(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.Hold) and to == "b":
            rounds.append(message.round)
        return False

    cluster.drop = count
    assert seqs(cluster.ask("a", fetch(most=2))) == [100, 101]
    assert len(rounds) <= 2
    assert counts(cluster)[2] == 100


def test_by_one_wrong_clock_nothing_is_buried_and_nothing_waits() -> None:
    cluster = Cluster()
    topic, producer_id = published(cluster, 0, ttl_s=MINUTE_S)
    cluster.ask("a", fetch())
    cluster.kill("a")
    cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 3)))
    cluster.start("a", 5.0)
    for batch in replica_of(cluster, "a").batches.stored.values():
        batch.born -= 3600.0
    cluster.advance(10.0)
    assert counts(cluster)[2] == 0
    reply = cluster.ask("a", fetch(most=2))
    assert seqs(reply) == [0, 1], "no more than was asked for"
    cluster.ask("a", m.AckRequest(receipts(reply)))
    assert seqs(cluster.ask("a", fetch())) == [2]


@pytest.mark.parametrize("restarted", ["a", "abc"])
def test_after_a_start_whose_time_of_day_moved_the_others_say_what_is_too_old(restarted: str) -> None:
    cluster = Cluster(hold_time_max=5.0)
    published(cluster, 3, ttl_s=12 * MINUTE_S)
    cluster.ask("a", fetch(hold_time=1.0))
    cluster.advance(2.0)
    cluster.kill(restarted)
    for node in restarted:
        cluster.wall_off_ms[node] = 3_600_000
        cluster.start(node)
    cluster.advance(9 * MINUTE_S)
    assert counts(cluster, "b") == (3, 0, 0)
    if restarted == "a":
        cluster.advance(4 * MINUTE_S)
        assert counts(cluster, "b") == (0, 0, 3)
        return
    cluster.advance(2 * MINUTE_S)
    assert counts(cluster, "b") == (0, 0, 3), "nobody contradicts"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("restarted", ["a", "ab", "abc"])
def test_a_fetch_after_a_clock_change_expires_only_what_certain_clocks_say(restarted: str, own: bool) -> None:
    cluster = Cluster(hold_time_max=5.0)
    topic, producer_id = published(cluster, 0, ttl_s=0.0 if own else MINUTE_S)
    cluster.ask("a", fetch(hold_time=1.0))

    def publish(seq: int) -> None:
        batch = cluster.batch(topic, producer_id, seq, [b"x"] * 2, ttl_ms=60_000 if own else 0)
        cluster.ask("c", m.Publish(batch))

    publish(0)
    publish(2)
    cluster.kill(restarted)
    for node in restarted:
        cluster.wall_off_ms[node] = 3_600_000
        cluster.start(node)
    cluster.advance(8.0)
    publish(4)
    reply = cluster.ask("a", fetch(most=2, hold_time=1.0, wait=1.0), 1.0)
    assert seqs(reply) == [0, 1], "no more than was asked for"
    cluster.ask("a", m.AckRequest(receipts(reply)))
    cluster.advance(55.0)  # no more of the first messages' minute
    assert counts(cluster)[2] == (2 if restarted == "a" else 0), "two certain clocks are a majority"
    cluster.advance(15.0)
    assert seqs(cluster.ask("a", fetch(hold_time=1.0))) == ([] if restarted == "a" else [2, 3])
    cluster.advance(1.0)
    assert counts(cluster)[2] == (4 if restarted == "a" else 2), (
        "all know the age of what came after the start"
    )


def test_another_start_within_the_boot_does_not_end_the_uncertainty() -> None:
    cluster = Cluster(hold_time_max=5.0)
    cluster.boots = dict.fromkeys("abc", 1)
    cluster.crash("abc", 6.0)
    topic, producer_id = published(cluster, 1, ttl_s=12 * MINUTE_S)
    cluster.ask("a", fetch(hold_time=1.0), 2.0)
    cluster.kill("abc")
    for node in "abc":
        cluster.wall_off_ms[node], cluster.boots[node] = 3_600_000, 2
        cluster.start(node)
    cluster.advance(6.0)
    cluster.ask("c", m.Publish(cluster.batch(topic, producer_id, 1, [b"x"])))
    cluster.crash("abc", 20.0)
    assert counts(cluster) == (2, 0, 0)
    cluster.advance(9 * MINUTE_S)
    assert counts(cluster) == (2, 0, 0)
    cluster.advance(1 * MINUTE_S)
    assert counts(cluster) == (1, 0, 1)


def test_an_exhausted_message_is_a_dead_letter_at_once() -> None:
    cluster = Cluster()
    published(cluster, 3, max_deliveries=1)
    assert len(seqs(cluster.ask("a", fetch(hold_time=5.0)))) == 3
    cluster.advance(5.2)
    assert counts(cluster) == (0, 0, 3)


def test_a_dying_message_is_not_delivered_after_a_restart() -> None:
    cluster = Cluster(hold_time_max=5.0)
    published(cluster, 3, max_deliveries=1)
    assert len(seqs(cluster.ask("a", fetch(hold_time=5.0)))) == 3
    cluster.drop = lambda sender, to, message: True
    cluster.advance(5.1)
    cluster.kill("abc")
    cluster.hear_all()
    cluster.start("abc")
    assert counts(cluster)[:2] == (0, 3)
    cluster.advance(20.0)
    assert counts(cluster) == (0, 0, 3)


def test_a_round_looks_at_so_many_groups_and_all_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients leave groups behind: upkeep pays for some of them in each round."""
    looks: list[tuple[PartitionId, str]] = []

    def counted(replica: Replica, view: GroupView, now: Now) -> list[int]:
        looks.append((replica.partition, view.name))
        return reasons(replica, view, now)

    cluster = Cluster()
    cluster.topic(partitions=10)
    for number in range(6):
        cluster.ask("a", m.SetGroup("jobs", f"g{number}"))
    cluster.advance(5.0)
    monkeypatch.setattr(burial, "LOOKS", 15)
    monkeypatch.setattr(burial, "reasons", counted)
    core = cluster.nodes["a"]
    rounds = []
    for _ in range(5):
        looks.clear()
        burial.bury(core.context, cluster.now)
        rounds.append([*looks])
    assert all(len(each) <= 18 for each in rounds), "three partitions of six groups"
    assert len({*rounds[0], *rounds[1], *rounds[2], *rounds[3]}) == 60


def test_a_message_out_of_deliveries_has_its_own_group_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    published(cluster, 2, max_deliveries=1)
    for number in range(30):
        cluster.ask("a", m.SetGroup("jobs", f"other{number}"))
    monkeypatch.setattr(burial, "LOOKS", 0)  # rounds find nothing
    assert seqs(cluster.ask("a", fetch(most=2, hold_time=5.0))) == [0, 1]
    cluster.advance(6.0)
    assert [counts(cluster, node) for node in "abc"] == [(0, 0, 2)] * 3


@pytest.mark.parametrize("own", [False, True])
def test_young_messages_cost_no_look_at_each_batch(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    topic, producer_id = published(cluster, 0, ttl_s=MINUTE_S)
    cluster.ask("a", fetch())
    for seq in range(40):
        batch = cluster.batch(topic, producer_id, seq, [b"x"], ttl_ms=50_000 if own else 0)
        cluster.ask("a", m.Publish(batch))
    asked: list[object] = []
    is_overdue = Choice.is_overdue
    monkeypatch.setattr(
        Choice, "is_overdue", lambda self, *args: asked.append(args) or is_overdue(self, *args)
    )
    replica = replica_of(cluster, "a")
    view = replica.views.groups["g"]
    assert replica.choice.overdue(view, cluster.now) == []
    assert len(asked) == (40 if own else 1)
    assert replica.choice.cost_of_overdue(view, cluster.now) == (6 if own else 1)
    replica.batches.ages_moved = True
    assert replica.choice.overdue(view, cluster.now) == []
    assert len(asked) == (80 if own else 41), "the order says nothing about ages any more"
    cluster.advance(MINUTE_S)
    assert counts(cluster) == (0, 0, 40)

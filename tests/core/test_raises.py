"""Raises of the replication factor (docs/layouts.md, RAISE)."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.members import kept_on, nodes_of
from quorumq.core.messages.effects import Effect
from quorumq.core.node import vote_router
from quorumq.core.node.status import moves
from quorumq.core.partition.backlog import part_of
from quorumq.core.partition.handoff import Handoff
from quorumq.core.partition.replica import Replica
from quorumq.core.requests import layout_steps, sources
from quorumq.core.requests.context import Context
from quorumq.core.requests.layout_steps import StepCoordinator
from quorumq.core.values.types import Layout, Now, PartitionId, Placement, ReplicaSlot, Span, Stamp, Topic
from tests.core import layouts
from tests.core.cluster import Cluster
from tests.core.conftest import Without
from tests.core.growing import GrowingCluster
from tests.core.layouts import ME, acked, fetched, is_voter, publish
from tests.core.network import wipe
from tests.core.steps import check_failed, receipts

made = partial(layouts.made, hold_time_max=2.0, heartbeat=2.0)


def raise_to(cluster: Cluster, rf: int, node: str = "a") -> m.ClientReply:
    return cluster.ask(node, m.AlterTopic("jobs", rf=rf))


def drained(cluster: Cluster, node: str) -> int:
    """Fetch and ack through a node until a FETCH is empty; return how many messages there were."""
    count = 0
    while got := fetched(cluster, node):
        assert acked(cluster, node, got) == ["acked"] * len(got)
        count += sum(part.receipt.span.size for part in got)
    return count


def current(cluster: Cluster, node: str, topic: Topic) -> Topic:
    return cluster.nodes[node].topics[topic.id]


def replica(cluster: Cluster, node: str, topic: Topic) -> Replica:
    return cluster.nodes[node].replicas[PartitionId(topic.id, 0)]


def present(cluster: Cluster, node: str, topic: Topic) -> int:
    return sum(span.size for span in replica(cluster, node, topic).batches.present.items())


@pytest.mark.parametrize(("rf", "to"), [(1, 3), (3, 5), (1, 5)])
def test_added_slots_have_the_payload_and_vote(rf: int, to: int) -> None:
    cluster, topic, members, others = made(rf, 6)
    publish(cluster, "a", topic, 0)
    reply = raise_to(cluster, to)
    assert isinstance(reply, m.TopicReply), reply
    assert reply.topic.target_rf == to
    assert reply.topic.rf == rf, "its id is of that"
    cluster.advance(15.0)
    for name in cluster.names:
        known = current(cluster, name, topic)
        assert len(known.replicas[0]) == to
        assert known.replicas[0][:rf] == tuple(members)
        placement = known.placement(0)
        assert placement is not None
        assert (placement.before, placement.learners, placement.sources) == ((), (), ())
    for name in current(cluster, "a", topic).replicas[0]:
        assert is_voter(cluster, name, topic)
        assert replica(cluster, name, topic).may_vote(cluster.now)
        assert present(cluster, name, topic) == 3
    for name in members[: to // 2]:
        cluster.kill(name)
    through = next(name for name in current(cluster, others[0], topic).replicas[0] if name in others)
    assert drained(cluster, through) == 3


def test_a_raise_takes_learners_that_are_up_if_they_suffice() -> None:
    cluster, topic, members, others = made(1, 5)
    cluster.advance(10.0)
    down = others[0]
    cluster.kill(down, 10.0)
    for rf, learns in ((3, False), (5, True)):
        reply = raise_to(cluster, rf, members[0])
        assert isinstance(reply, m.TopicReply), reply
        assert (down in reply.topic.layout.placements[0].learners) is learns
        cluster.advance(15.0)
        assert len(current(cluster, members[0], topic).replicas[0]) == 3, (
            "a fifth waits for the one that is down"
        )
    cluster.start(down, 15.0)
    assert len(current(cluster, members[0], topic).replicas[0]) == 5


def test_it_is_asked_for_again_and_taken_back_until_slots_are_added() -> None:
    cluster, topic, members, others = made(1)
    cluster.isolated = {others[0]}
    cluster.drop = lambda sender, to, message: others[0] in (sender, to)
    first, again = raise_to(cluster, 5, members[0]), raise_to(cluster, 5, others[1])
    assert isinstance(first, m.TopicReply)
    assert isinstance(again, m.TopicReply)
    assert again.topic.layout == first.topic.layout
    cluster.advance(8.0)
    assert list(current(cluster, members[0], topic).replicas[0]) == members, "a learner is away"
    back = raise_to(cluster, 1, members[0])
    assert isinstance(back, m.TopicReply), back
    cluster.hear_all()
    cluster.isolated = set()
    cluster.join(others[0])
    cluster.advance(8.0)
    for name in others:
        assert list(current(cluster, name, topic).replicas[0]) == members
        assert cluster.nodes[name].context.kept(PartitionId(topic.id, 0)) is None, "it copies no longer"


@pytest.mark.parametrize(
    ("rf", "request_", "why"),
    [
        (3, m.AlterTopic("jobs", rf=1), "has 3 replicas of a partition, which cannot become fewer"),
        (1, m.AlterTopic("jobs", rf=2), "must be odd"),
        (1, m.AlterTopic("jobs", rf=7), "at most 5"),
        (1, m.AlterTopic("jobs", rf=0), "cannot become fewer"),
        (1, m.AlterTopic("jobs", rf=3, ttl_s=5.0), "by itself"),
        (1, m.AlterTopic("jobs", rf=3, partitions=2), "by itself"),
    ],
)
def test_a_raise_that_is_impossible_is_refused(rf: int, request_: m.AlterTopic, why: str) -> None:
    cluster, topic, *_ = made(rf)
    check_failed(cluster.ask("a", request_), "usage", why)
    assert current(cluster, "a", topic).layout is None


def test_a_topic_that_was_raised_is_created_again_by_either_number() -> None:
    cluster, _, *_ = made(1)
    raise_to(cluster, 3)
    for rf in (1, 3):
        assert isinstance(cluster.ask("b", m.CreateTopic("jobs", rf)), m.TopicReply)
    check_failed(cluster.ask("b", m.CreateTopic("jobs", 5)), None, "rf = 3, not 5")


def test_no_two_replicas_on_one_machine() -> None:
    machines = tuple((name, "left" if name in "ab" else name) for name in "abcdef")
    cluster = Cluster(6, machines=machines)
    topic = cluster.topic(rf=1, partitions=8)
    assert isinstance(raise_to(cluster, 3), m.TopicReply)
    cluster.advance(30.0)
    sets = current(cluster, "c", topic).replicas
    assert [len(members) for members in sets] == [3] * 8
    assert not any({"a", "b"} <= set(members) for members in sets)
    check_failed(cluster.ask("a", m.AlterTopic("jobs", rf=7)), None, "at most 5, the number of machines")


def test_partitions_that_are_added_later_are_raised_too() -> None:
    cluster, topic, *_ = made(1)
    raise_to(cluster, 3)
    assert isinstance(cluster.ask("b", m.AlterTopic("jobs", partitions=3)), m.TopicReply)
    cluster.advance(30.0)
    assert [len(members) for members in current(cluster, "c", topic).replicas] == [3] * 3


@pytest.mark.parametrize(("rf", "to"), [(1, 3), (3, 5)])
def test_everything_goes_on_meanwhile(rf: int, to: int) -> None:
    """Publishes and deliveries go on through all steps, none waits for a second, and none is doubled or lost."""
    cluster = Cluster(5, hold_time_max=60.0, request_timeout=0.5)
    topic = cluster.topic(rf=rf)
    fetched(cluster, "a")
    number, longest, waits, acks = 0, 0.0, cluster.time, []
    raised = False
    key = cluster.submit("b", waiting())
    for step in range(150):
        if step == 10:
            raised = isinstance(raise_to(cluster, to), m.TopicReply)
        if step % 3 == 0:
            number += stored(cluster, "ace"[number % 3], topic, number)
        cluster.advance(0.05)
        if key in cluster.replies:
            got = receipts(cluster.replies.pop(key))
            if got:
                acks += [span for part in got for span in part.spans]
                longest, waits = max(longest, cluster.time - waits), cluster.time
                cluster.submit("d", m.AckRequest(got))
            key = cluster.submit("b", waiting())
    assert raised
    cluster.advance(5.0)
    assert len(current(cluster, "e", topic).replicas[0]) == to
    assert not current(cluster, "e", topic).placement(0).before  # type: ignore[union-attr]
    assert longest < 1.0
    rest = drained(cluster, "b")
    assert sum(span.size for span in acks) + rest >= number, "nothing is lost"
    taken = [seq for span in acks for seq in range(span.start, span.stop)]
    assert len(taken) == len(dict.fromkeys(taken)), "nothing that was acked comes again"


def waiting() -> m.Fetch:
    """A FETCH that waits for messages."""
    return m.Fetch(("jobs",), "g", 50, 1 << 20, 1, 1.0, 30.0, 0.0)


def stored(cluster: Cluster, node: str, topic: Topic, first: int) -> int:
    """Publish a message, again if need be; return 1."""
    batch = cluster.batch(topic, ME, first, [b"x"])
    for _ in range(10):
        key = cluster.submit(node, m.Publish(batch))
        for _ in range(20):
            if key in cluster.replies:
                break
            cluster.advance(0.05)
        if isinstance(cluster.replies.get(key), m.PublishReply):
            return 1
    raise AssertionError(f"message {first} is not stored")


def without_asking(
    self: StepCoordinator, context: Context, topic: Topic, placement: Placement, now: Now
) -> list[Effect]:
    return self.propose(context, topic, now)


def copied(context: Context, replica: Replica) -> bool:
    return True


def test_no_slot_is_added_before_each_learner_has_the_payload(rule: bool, without: Without) -> None:
    """The learners get no payload, and the disk of the only slot is lost."""
    without(layout_steps, "is_copied", copied)
    without(vote_router, "is_copied", copied)
    cluster, topic, (old,), others = made(1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Store) and not message.round
    publish(cluster, others[0], topic, 0)
    raise_to(cluster, 3)
    cluster.advance(10.0)
    assert (len(current(cluster, old, topic).replicas[0]) == 1) == rule
    cluster.hear_all(0.0 if not rule else 15.0)
    wipe(cluster, old, 15.0)
    assert (drained(cluster, others[0]) == 3) == rule


def test_no_slot_is_added_while_a_learner_is_down(rule: bool, without: Without) -> None:
    without(layout_steps, "is_copied", copied)
    without(vote_router, "is_copied", copied)
    cluster, topic, (old,), _ = made(1)
    publish(cluster, old, topic, 0)
    reply = raise_to(cluster, 3, old)
    assert isinstance(reply, m.TopicReply)
    learners = reply.topic.learners_of(0)
    cluster.kill(learners, 10.0)
    key = cluster.submit(old, m.Publish(cluster.batch(topic, ME, 3, [b"3"])))
    cluster.advance(1.0)
    assert isinstance(cluster.replies.get(key), m.PublishReply) == rule
    if rule:
        rows = [row for row, _ in moves(cluster.nodes[old].context, cluster.now)]
        assert [(row["state"], row["waits_for"]) for row in rows] == [("copying", list(learners))]
        cluster.start(learners, 15.0)
        assert set(current(cluster, old, topic).replicas[0]) == {old, *learners}
        assert not list(moves(cluster.nodes[old].context, cluster.now))


def test_the_set_before_is_kept_until_every_slot_is_trusted(rule: bool, without: Without) -> None:
    """The added slots hear nothing of the only one for a while."""
    cluster, topic, (old,), others = made(1)
    publish(cluster, others[0], topic, 0)
    raise_to(cluster, 3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    cluster.advance(8.0)
    assert len(current(cluster, old, topic).replicas[0]) == 3
    without(StepCoordinator, "check_slots", without_asking)
    cluster.advance(8.0)
    placement = current(cluster, old, topic).placement(0)
    assert placement is not None
    assert bool(placement.before) == rule
    cluster.hear_all(10.0)
    added = [name for name in current(cluster, old, topic).replicas[0] if name != old]
    assert [is_voter(cluster, name, topic) for name in added] == [rule, rule]


def test_slots_are_added_while_messages_are_published(rule: bool, without: Without) -> None:
    without(sources, "next_question", whatever_is_here)
    cluster, topic, members, _ = made(1)
    raise_to(cluster, 3)
    for number in range(60):
        publish(cluster, members[0], topic, number, 1)
        cluster.advance(0.2)
    assert (len(current(cluster, members[0], topic).replicas[0]) == 3) == rule


def whatever_is_here(replica_: Replica, handoff: Handoff) -> tuple[tuple[Span, ...], int]:
    return tuple(sources.remaining_spans(replica_)), 0


def test_a_learner_without_links_buries_nothing() -> None:
    """It has no vote; and its partition may have no member that is up."""
    cluster, topic, (old,), others = made(1, 3)
    cluster.ask(old, m.AlterTopic("jobs", ttl_s=20.0))
    assert not fetched(cluster, old)
    publish(cluster, old, topic, 0)
    raise_to(cluster, 3)
    learner, other = others
    cluster.kill((other,))
    cluster.advance(5.0)
    assert present(cluster, learner, topic) == 3
    cluster.kill((old,))
    cluster.advance(60.0)
    assert part_of(replica(cluster, learner, topic), "g", cluster.now).dead == 0


def test_a_learner_that_is_drained_is_replaced() -> None:
    cluster = GrowingCluster(4)
    cluster.add("e")
    topics = [cluster.topic(f"t{number}", rf=1) for number in range(9)]
    raised = [cluster.ask("a", m.AlterTopic(topic.name, rf=3)).topic for topic in topics]  # type: ignore[union-attr]
    topic = next(one for one in raised if "e" in one.learners_of(0))
    cluster.kill("e")
    assert isinstance(cluster.ask("a", m.ChangeMembers("drain", "e")), m.ChangeMembersReply)
    assert cluster.ask("a", m.ChangeMembers("remove", "e")).code == "usage"  # type: ignore[union-attr]
    cluster.advance(20.0)
    members = current(cluster, "a", topic).replicas[0]
    assert len(members) == 3
    assert "e" not in members


def test_a_learner_is_no_member_that_is_removed() -> None:
    topic = Topic(bytes(16), "jobs", 1, (("a",),), 5, Stamp(1, "a"))
    placement = Placement(0, 1, (ReplicaSlot("a", 1),), learners=("d",))
    raised = topic._replace(layout=Layout(topic.id, 2, Stamp(2, "a"), (placement,), 3))
    assert kept_on("d", raised, ("a",)) == ["jobs/0"]
    assert kept_on("d", topic._replace(next_layout=raised.layout), ("a",)) == ["jobs/0"]
    assert "d" in nodes_of(raised.layout)  # type: ignore[arg-type]


def test_a_raise_of_many_partitions_costs_few_layouts_and_messages() -> None:
    """A layout for each partition has the placements of all: their bytes grew with the square of the partitions."""
    cluster = Cluster(5, hold_time_max=2.0, checks=False)
    topic = cluster.topic(rf=1, partitions=96)
    sent: Counter[str] = Counter()

    def count(sender: str, to: str, message: object) -> bool:
        sent[type(message).__name__] += sender != to
        return False

    cluster.drop = count
    assert isinstance(raise_to(cluster, 3), m.TopicReply)
    cluster.advance(12.0)
    raised = current(cluster, "a", topic)
    assert [len(nodes) for nodes in raised.replicas] == [3] * 96
    assert raised.layout is not None
    assert not any(placement.before for placement in raised.layout.placements)
    assert raised.layout_number <= 24
    assert sent["PutTopic"] <= 4 * 96
    assert sent["HoldsRequest"] <= 4 * 96


def test_partitions_with_a_slot_that_is_away_hold_up_no_others() -> None:
    cluster = Cluster(7, hold_time_max=2.0, checks=False)
    topic = cluster.topic(rf=3, partitions=12)
    away = topic.replicas[0][0]
    through = next(name for name in cluster.names if name != away)
    reply = raise_to(cluster, 5, through)
    assert isinstance(reply, m.TopicReply)
    cluster.kill(away, 30.0)
    raised = current(cluster, through, topic)
    waits = [away in (*topic.replicas[at], *reply.topic.learners_of(at)) for at in range(12)]
    assert [len(nodes) for nodes in raised.replicas] == [3 if waiting else 5 for waiting in waits]
    assert len(dict.fromkeys(waits)) == 2
    cluster.start(away, 30.0)
    assert [len(nodes) for nodes in current(cluster, through, topic).replicas] == [5] * 12

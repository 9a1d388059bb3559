"""More partitions, against DELETE and SETGROUP through nodes that have not heard of them (MORE PARTITIONS)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.topics import with_partitions
from quorumq.core.messages.effects import Effect, LinkDown
from quorumq.core.requests.context import Context
from quorumq.core.requests.registration import Registration
from quorumq.core.requests.skipping import Skipping
from quorumq.core.values.types import Latest, Now, PartitionId, Topic
from tests.core.cluster import Cluster
from tests.core.conftest import Without
from tests.core.network import hand_over
from tests.core.steps import outcomes, receipts


class Five(Cluster):
    """Topic jobs has partition 0 at x, y and z; a second one is at z, v and w."""

    def __init__(self) -> None:
        for seed in range(100):
            super().__init__(5, seed, hold_time_max=10.0)
            self.name = f"jobs{seed}"
            self.made = self.topic(self.name)
            zero, one = map(set, with_partitions(self.made, 2, self.names).replicas)
            if len(zero & one) == 1:
                break
        self.advance(3.0)
        self.x, self.y = sorted(zero - one)
        (self.z,) = zero & one
        self.v, self.w = sorted(one - zero)

    def cut(self, names: Iterable[str]) -> None:
        """The nodes in ``names`` can reach no other node; all others can reach each other."""
        away = set(names)
        self.drop = lambda sender, to, message: (sender in away) != (to in away)
        for one in self.names:
            for other in self.names:
                if one != other:
                    self.feed(one, LinkDown(other))
        for one in self.names:
            for other in self.names:
                if one != other and (one in away) == (other in away):
                    self.link(one, other)

    def grow(self, node: str, partitions: int = 2) -> Topic:
        reply = self.ask(node, m.AlterTopic(self.name, partitions=partitions))
        assert isinstance(reply, m.TopicReply), reply
        assert reply.topic.partitions == partitions
        return reply.topic

    def published(self, node: str, topic: Topic, partition: int, timeout: float = 6.0) -> bool:
        producer_id = self.ask(node, m.OpenSession()).producer_id  # type: ignore[union-attr]
        key = self.submit(node, m.Publish(self.batch(topic, producer_id, 0, [b"m"], partition)))
        self.advance(timeout)
        return isinstance(self.replies.get(key), m.PublishReply)

    def fetched(self, node: str, group: str, partition: int) -> tuple[m.ReceiptPart, ...]:
        fetch = m.Fetch((self.name,), group, 10, 1 << 20, 1, 0.0, 10.0, 0.0, partitions=(partition,))
        reply = self.ask(node, fetch, 2.0)
        return receipts(reply) if isinstance(reply, m.FetchReply) else ()

    def came(self, key: int, seconds: float = 6.0) -> object:
        self.advance(seconds)
        return self.replies[key]


def test_a_deletion_is_not_confirmed_before_partitions_that_its_coordinator_does_not_know() -> None:
    cluster = Five()
    cluster.cut([cluster.x, cluster.y])
    grown = cluster.grow(cluster.z)
    cluster.cut([cluster.v, cluster.w])
    deleting = cluster.submit(cluster.x, m.DeleteTopic(cluster.name, grown.id))
    assert isinstance(cluster.came(deleting), m.Failed), "z knows of a partition at z, v and w"
    assert cluster.published(cluster.v, grown, 1), "nor is it deleted there"
    cluster.cut([])
    assert isinstance(cluster.ask(cluster.x, m.DeleteTopic(cluster.name, grown.id)), m.TopicReply)
    for node in cluster.names:
        assert not cluster.published(node, grown, 1, 0.0)


def test_a_deletion_that_was_begun_elsewhere_drops_no_partition() -> None:
    """z, which had heard of it, has dropped its replicas; only the count is left, and then that of its snapshot."""
    cluster = Five()
    cluster.cut([cluster.x, cluster.y])
    grown = cluster.grow(cluster.z)
    cluster.cut([cluster.v, cluster.w])
    cluster.came(cluster.submit(cluster.x, m.DeleteTopic(cluster.name, grown.id)))
    snapshot = cluster.nodes[cluster.z].snapshot(cluster.now)
    cluster.kill(cluster.z)
    cluster.journals[cluster.z] = list(snapshot)
    cluster.start(cluster.z)
    for node in (cluster.y, cluster.z):
        again = cluster.submit(node, m.DeleteTopic(cluster.name, grown.id))
        assert isinstance(cluster.came(again), m.Failed), node
    assert cluster.published(cluster.v, grown, 1)


def test_a_name_is_given_again_only_once_its_deletion_is_complete() -> None:
    cluster = Five()
    cluster.cut([cluster.x, cluster.y])
    grown = cluster.grow(cluster.z)
    cluster.cut([cluster.v, cluster.w])
    cluster.came(cluster.submit(cluster.x, m.DeleteTopic(cluster.name, grown.id)))
    creating = cluster.submit(cluster.x, m.CreateTopic(cluster.name))
    assert isinstance(cluster.came(creating), m.Failed)
    assert cluster.published(cluster.v, grown, 1)
    cluster.cut([])
    made = cluster.ask(cluster.x, m.CreateTopic(cluster.name), of=m.TopicReply)
    assert made.topic.deletions == 1
    assert not cluster.published(cluster.v, grown, 1, 0.0)
    assert isinstance(cluster.ask(cluster.v, m.DeleteTopic(cluster.name, grown.id)), m.TopicReply | m.Failed)
    assert cluster.nodes[cluster.x].topic_named(cluster.name) == made.topic


def test_a_deletion_and_partitions_that_are_proposed_at_the_same_time_see_each_other() -> None:
    """Three nodes have heard of the proposal when the deletion reads; all confirmations are before its OK."""
    cluster = Five()
    cluster.drop = lambda sender, to, message: (
        sender != to and isinstance(message, m.RegistersReply) and to == cluster.z
    )
    altering = cluster.submit(cluster.z, m.AlterTopic(cluster.name, partitions=2))
    assert altering not in cluster.replies, "it has proposed, and reads"
    for core in cluster.nodes.values():
        topic = core.topics[cluster.made.id]
        assert (topic.partitions, topic.all_partitions) == (1, 2)
    cluster.hear_all()
    assert isinstance(cluster.ask(cluster.x, m.DeleteTopic(cluster.name, cluster.made.id)), m.TopicReply)
    assert isinstance(cluster.came(altering), m.Failed)
    grown = with_partitions(cluster.made, 2, cluster.names)
    for node in cluster.names:
        assert not cluster.published(node, grown, 1, 0.0)


def test_a_rewind_is_not_confirmed_before_partitions_that_its_coordinator_does_not_know() -> None:
    cluster = Five()
    assert isinstance(cluster.ask(cluster.x, m.SetGroup(cluster.name, "g")), m.GroupReply)
    cluster.cut([cluster.x, cluster.y])
    grown = cluster.grow(cluster.z)
    assert cluster.published(cluster.v, grown, 1)
    rewinding = cluster.submit(cluster.x, m.SetGroup(cluster.name, "g", "latest", rewind=True))
    assert isinstance(cluster.came(rewinding), m.Failed)
    cluster.cut([cluster.v, cluster.w])
    rewinding = cluster.submit(cluster.x, m.SetGroup(cluster.name, "g", "latest", rewind=True))
    assert isinstance(cluster.came(rewinding), m.Failed), (
        "a majority of the nodes, and of what x has heard of"
    )
    cluster.cut([])
    cluster.ask(cluster.y, m.SetGroup(cluster.name, "g", "latest", rewind=True), of=m.GroupReply)
    for node in cluster.names:
        assert cluster.fetched(node, "g", 1) == ()


def test_a_group_that_was_confirmed_is_there_in_partitions_that_are_added_later() -> None:
    """x and y alone have heard of it from a FETCH; v and w get it with the partition."""
    cluster = Five()
    assert isinstance(cluster.ask(cluster.z, m.SetGroup(cluster.name, "fast")), m.GroupReply)
    cluster.cut([cluster.v, cluster.w])
    assert isinstance(cluster.ask(cluster.x, m.SetGroup(cluster.name, "slow")), m.GroupReply)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    for node in (cluster.v, cluster.w):
        assert (cluster.made.id, "slow") not in cluster.nodes[node].catalogue.groups
        for other in cluster.names:
            if other != node:
                cluster.link(node, other)
                cluster.link(other, node)
    grown = cluster.grow(cluster.v)
    assert all(
        (grown.id, "slow") in cluster.nodes[node].catalogue.groups
        for node in (cluster.z, cluster.v, cluster.w)
    )
    assert cluster.published(cluster.v, grown, 1)
    cluster.hear_all()
    assert outcomes(cluster.ask(cluster.v, m.AckRequest(cluster.fetched(cluster.v, "fast", 1)))) == ["acked"]
    cluster.advance(30.0)
    assert cluster.fetched(cluster.z, "slow", 1), "not reclaimed unread"


def test_a_group_is_confirmed_at_a_majority_of_the_nodes_and_of_each_replica_set() -> None:
    cluster = Five()
    for away in ((cluster.x, cluster.y), (cluster.v, cluster.w, cluster.y)):
        cluster.drop = lambda sender, to, message, away=away: (  # type: ignore[misc]
            isinstance(message, m.PutGroup | m.SyncTopics) and to in away and sender != to
        )
        making = cluster.submit(cluster.z, m.SetGroup(cluster.name, f"not by {away}"))
        assert isinstance(cluster.came(making), m.Failed), away
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.PutGroup) and to in (cluster.x, cluster.v)
    )
    assert isinstance(cluster.ask(cluster.z, m.SetGroup(cluster.name, "g")), m.GroupReply)


def test_a_group_of_one_partition_is_registered_in_another_one_by_the_fetch_that_reads_it() -> None:
    cluster = Five()
    grown = cluster.grow(cluster.z)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics)
        or (isinstance(message, m.PutGroup) and to in (cluster.v, cluster.w))
    )
    cluster.fetched(cluster.z, "g", 0)
    assert (PartitionId(grown.id, 0), "g") in cluster.nodes[cluster.z].catalogue.registered_groups
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    assert not any((grown.id, "g") in cluster.nodes[node].catalogue.groups for node in (cluster.v, cluster.w))
    cluster.fetched(cluster.z, "g", 1)
    assert all((grown.id, "g") in cluster.nodes[node].catalogue.groups for node in (cluster.v, cluster.w))


def test_a_creation_of_a_group_learns_of_partitions_from_its_voters() -> None:
    """x, which has not heard of the other partition, writes to x, y and z: a majority of all that it knows of."""
    cluster = Five()
    cluster.drop = lambda sender, to, message: (
        (sender in (cluster.x, cluster.y)) != (to in (cluster.x, cluster.y))
    )
    cluster.grow(cluster.z)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics)
        or (sender in (cluster.v, cluster.w)) != (to in (cluster.v, cluster.w))
    )
    making = cluster.submit(cluster.x, m.SetGroup(cluster.name, "g"))
    assert cluster.nodes[cluster.x].topics[cluster.made.id].partitions == 2
    assert isinstance(cluster.came(making), m.Failed)
    cluster.hear_all()
    assert isinstance(cluster.ask(cluster.x, m.SetGroup(cluster.name, "g")), m.GroupReply)
    assert all((cluster.made.id, "g") in core.catalogue.groups for core in cluster.nodes.values())


def test_partitions_are_not_confirmed_before_their_replicas_have_every_group() -> None:
    cluster = Five()
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.PutGroup | m.SyncTopics) and to in (cluster.v, cluster.w) and sender != to
    )
    assert isinstance(cluster.ask(cluster.z, m.SetGroup(cluster.name, "g")), m.GroupReply)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics)
        or (isinstance(message, m.PutTopic) and bool(message.groups) and to in (cluster.v, cluster.w))
    )
    altering = cluster.submit(cluster.z, m.AlterTopic(cluster.name, partitions=2))
    assert isinstance(cluster.came(altering), m.Failed)
    assert all(core.topics[cluster.made.id].partitions == 1 for core in cluster.nodes.values())


def test_partitions_that_are_only_proposed_are_not_used_and_the_next_change_finishes_them() -> None:
    cluster = Five()
    cluster.drop = lambda sender, to, message: (
        sender != to and isinstance(message, m.PutTopic) and message.topic.partitions == 2
    )
    altering = cluster.submit(cluster.z, m.AlterTopic(cluster.name, partitions=2))
    cluster.kill(cluster.z)  # it alone knew that it was confirmed
    cluster.hear_all(3.0)
    assert altering not in cluster.replies
    grown = with_partitions(cluster.made, 2, cluster.names)
    for node in (cluster.x, cluster.v):
        (shown,) = cluster.ask(node, m.Metadata((cluster.name,))).topics  # type: ignore[union-attr]
        assert shown.replicas == cluster.made.replicas
        assert not cluster.published(node, grown, 1, 0.0)
        assert PartitionId(grown.id, 1) not in cluster.nodes[node].replicas
    assert cluster.grow(cluster.x).replicas == grown.replicas
    assert cluster.published(cluster.v, grown, 1)


def test_more_partitions_are_four_rounds_and_settings_or_a_deletion_are_two() -> None:
    cluster = Five()
    for number in range(3):
        cluster.ask(cluster.x, m.SetGroup(cluster.name, f"g{number}"))
    kinds: list[str] = []
    cluster.drop = lambda sender, to, message: (
        sender == cluster.x and to == cluster.v and bool(kinds.append(type(message).__name__))
    )
    cluster.grow(cluster.x)
    assert kinds == ["PutTopic", "RegistersRequest", "PutTopic", "PutTopic"]
    kinds.clear()
    cluster.ask(cluster.x, m.AlterTopic(cluster.name, ttl_s=5.0))
    assert kinds == ["RegistersRequest", "PutTopic"], "settings are promised, then written"
    kinds.clear()
    cluster.ask(cluster.x, m.DeleteTopic(cluster.name, cluster.made.id))
    assert kinds == ["PutTopic", "RegistersRequest"]


def test_groups_are_read_and_carried_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("finding", "registers"):
        monkeypatch.setattr(f"quorumq.core.requests.{module}.GROUPS_PER_CHUNK", 2)
    cluster = Five()
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics) or (isinstance(message, m.PutGroup) and to == cluster.v)
    )
    for number in range(5):
        assert isinstance(cluster.ask(cluster.x, m.SetGroup(cluster.name, f"g{number}")), m.GroupReply)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    assert not cluster.nodes[cluster.v].catalogue.groups
    cluster.grow(cluster.v)
    assert len(cluster.nodes[cluster.v].catalogue.groups) == 5


@pytest.mark.parametrize("first", ["the rewind", "the proposal"])
def test_a_rewind_and_a_proposal_at_one_node_see_each_other(first: str) -> None:
    """x and y alone have the rewind, z, v and w the proposal: z is the node that both have asked, in either order."""
    cluster = Five()
    assert isinstance(cluster.ask(cluster.x, m.SetGroup(cluster.name, "g")), m.GroupReply)
    late: list[tuple[str, str, object]] = []

    def keep(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.SyncTopics):
            return True
        if (
            first == "the rewind"
        ):  # its register is at x, y and z before ALTER asks for groups; x gets no answer
            return (isinstance(message, m.PutGroup) and to in (cluster.v, cluster.w)) or (
                to == cluster.x and isinstance(message, m.PutReply) and sender != to
            )
        if isinstance(message, m.PutGroup) and sender == cluster.x != to:
            late.append((sender, to, message))
            return True
        return False

    cluster.drop = keep
    rewinding = cluster.submit(cluster.x, m.SetGroup(cluster.name, "g", rewind=True))
    assert rewinding not in cluster.replies
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.SyncTopics)
        or (sender in (cluster.x, cluster.y)) != (to in (cluster.x, cluster.y))
    )
    cluster.grow(cluster.z)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics)
    for item in late:
        hand_over(cluster, *item)
    cluster.came(rewinding)
    for node in (cluster.z, cluster.v, cluster.w):
        assert cluster.nodes[node].catalogue.groups[(cluster.made.id, "g")].generation == 1


def skips_first(
    self: Registration,
    context: Context,
    now: Now,
    *,
    real: Callable[[Registration, Context, Now], list[Effect]] = Registration.start,
) -> list[Effect]:
    """Ask for messages to skip before the waiting register is written anywhere."""
    known = context.catalogue.group(self.topic, self.name)
    if known is None or known.latest != Latest.SKIPPING:
        return real(self, context, now)
    self.close_rounds(context)
    self.put, self.written = None, known
    self.skipping = Skipping(self, context.catalogue.topics[self.topic], known)
    return [*self.skipping.start(context, now), *self._skipped(context, now)]


@pytest.mark.parametrize("proposal", [False, True])
@pytest.mark.parametrize("creates", [False, True])
def test_a_group_from_latest_gets_no_older_message_of_a_partition_that_its_node_missed(
    proposal: bool, creates: bool, rule: bool, without: Without
) -> None:
    """Another client publishes there before the group is asked for. The node may know the partition as proposed."""
    without(Registration, "start", skips_first)
    five = Five()

    def missed(sender: str, to: str, message: object) -> bool:
        if to != five.x or not isinstance(message, m.PutTopic | m.SyncTopics):
            return False
        return not (proposal and isinstance(message, m.PutTopic) and message.topic.partitions == 1)

    five.drop = missed
    grown = five.grow(five.v)
    assert five.nodes[five.x].topics[grown.id].all_partitions == 1 + proposal
    producer_id = five.ask(five.v, m.OpenSession()).producer_id
    one = PartitionId(grown.id, 1)

    def publish(seq: int) -> None:
        assert isinstance(
            five.ask(five.v, m.Publish(five.batch(grown, producer_id, seq, [b"x"], 1))), m.PublishReply
        )

    def reads(node: str) -> object:
        return five.ask(node, m.Fetch((five.name,), "g", 100, 1 << 20, 1, 0.0, 5.0, 0.0, "c", start="latest"))

    publish(0)
    made = five.ask(five.x, m.SetGroup(five.name, "g", "latest")) if creates else reads(five.x)
    assert isinstance(made, m.GroupReply | m.FetchReply), made
    five.hear_all()
    publish(1)
    got = [receipt for node in (five.v, five.x) for receipt, _ in receipts(reads(node))]
    seqs = [seq for it in got if it.partition == one for seq in range(it.span.start, it.span.stop)]
    assert sorted(seqs) == ([1] if rule else [0, 1])

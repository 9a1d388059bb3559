"""Any node serves any client: FETCH through a node that has no replica (docs/protocol.md, FETCH)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect, Gone, Send, Unsent
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.requests import remote
from quorumq.core.requests.context import Context
from quorumq.core.requests.remote import bytes_of
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Now, PartitionId, ProducerId, Topic
from quorumq.wire.values import WireDelivery, WireSlice
from tests.core.cluster import Cluster
from tests.core.network import hand_over
from tests.core.steps import check_failed, fetch, opened, outcomes, receipts


def filled(
    cluster: Cluster, rf: int, partitions: int, each: int, max_deliveries: int = 5
) -> tuple[Topic, ProducerId]:
    topic, producer_id = opened(cluster, rf=rf, partitions=partitions, max_deliveries=max_deliveries)
    for number in range(partitions):
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * each, number)))
    return topic, producer_id


def asked(cluster: Cluster, node: str, request: object, seconds: float = 0.1) -> object:
    return cluster.ask(node, request, seconds)


@pytest.mark.parametrize("node", ["a", "b", "c", "d", "e"])
def test_every_node_gives_everything(node: str) -> None:
    cluster = Cluster(5)
    filled(cluster, 3, 6, 10)
    got = 0
    for _ in range(8):
        reply = asked(cluster, node, fetch(most=20), 0.1)
        assert sizes_of(reply) <= 20
        for item in receipts(reply):
            assert outcomes(cluster.ask("abcde"[got % 5], m.AckRequest((item,)))) == ["acked"]
            got += item.receipt.span.size
    assert got == 60


@pytest.mark.parametrize("node", ["a", "b"])
def test_two_groups_that_fetch_in_turn_get_messages_of_each_partition(node: str) -> None:
    """Both partitions have one replica, at the same node: b serves itself, and a passes the FETCHes on."""
    cluster = Cluster(2)
    topic = next(topic for topic in topics_of_two(cluster) if set(topic.replicas) == {("b",)})
    got: dict[str, dict[int, None]] = {"g": {}, "h": {}}
    for _ in range(20):
        for group, numbers in got.items():
            (item,) = receipts(asked(cluster, node, fetch(group, most=1)._replace(topics=(topic.name,))))
            numbers[item.receipt.partition.number] = None
    assert [sorted(numbers) for numbers in got.values()] == [[0, 1], [0, 1]]


def topics_of_two(cluster: Cluster) -> Iterator[Topic]:
    """Topics of two partitions with one replica each, in which messages wait."""
    for number in range(50):
        topic, producer_id = opened(cluster, f"jobs{number}", rf=1, partitions=2)
        for partition in range(2):
            cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 40, partition)))
        yield topic


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 8])
def test_legs_bring_no_more_bytes_than_were_asked_for_and_the_rest_goes_back(capacity: int) -> None:
    """Each sub-fetch has a share of them, and brings one message however small that is."""
    cluster = Cluster(5)
    topic, _ = filled(cluster, 1, 8, 10)
    assert len({*topic.replicas}) >= 3
    one = bytes_of(asked(cluster, "a", fetch(most=1)).slices[0])  # type: ignore[attr-defined]
    most = capacity * one + one // 2
    reply = asked(cluster, "b", fetch(most=100)._replace(max_bytes=most))
    assert sizes_of(reply) >= 1
    assert sum(bytes_of(part) for part in reply.slices) <= most  # type: ignore[attr-defined]
    assert sizes_of(asked(cluster, "c", fetch(most=1000))) == 79 - sizes_of(reply)


def test_a_fetch_asks_no_more_nodes_than_it_needs() -> None:
    """Each gets a share of the limits, so more nodes bring fewer messages each."""
    cluster = Cluster(9)
    topic, _ = opened(cluster, rf=3, partitions=12)
    asked: list[tuple[str, tuple[PartitionId, ...]]] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.RemoteFetch):
            asked.append((to, message.partitions))
        return False

    cluster.drop = drop
    cluster.submit("a", fetch(most=20, wait=5.0))
    assert len(asked) > 1
    for at, (_, partitions) in enumerate(asked):
        earlier = {node for node, _ in asked[:at]}
        assert not earlier & {*topic.replicas[partitions[0].number]}, "it could have gone along"


@pytest.mark.parametrize("number", range(8))
def test_a_fetch_of_one_message_asks_every_node(number: int) -> None:
    """Its limit leaves nothing to divide, and one partition alone has a message."""
    cluster = Cluster(5)
    topic, producer_id = opened(cluster, rf=1, partitions=8)
    assert len({*topic.replicas}) >= 3
    key = cluster.submit("b", fetch(most=1, hold_time=60.0, wait=5.0))
    cluster.advance(0.1)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], number)))
    cluster.advance(0.1)
    assert sizes_of(cluster.replies[key]) == 1


@pytest.mark.parametrize(("most", "client"), [(7, "a"), (5, "e")])
def test_sub_fetches_that_moves_end_bring_no_more_than_asked_for(most: int, client: str) -> None:
    """A share is divided once more when a sub-fetch ends, and each node is asked for one message at least."""
    for seed in range(10):
        cluster, rng = Cluster(5), random.Random(seed)
        topic, producer_id = opened(cluster, rf=1, partitions=8)
        key = cluster.submit(client, fetch(most=most, hold_time=60.0, wait=19.0))
        cluster.advance(0.1)
        for number in rng.sample(range(8), 3):
            (source,) = topic.replicas[number]
            to = rng.choice([it for it in cluster.names if it != source])
            asked(cluster, client, m.MovePartition("jobs", number, source, to), 1.0)
        for number in rng.sample(range(8), 8):
            cluster.submit("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 5, number)))
        cluster.advance(0.2)
        assert 0 < sizes_of(cluster.replies[key]) <= most
        assert sizes_of(asked(cluster, "b", fetch(most=100))) == 40 - sizes_of(cluster.replies[key])


@pytest.mark.parametrize("rf", [1, 3])
def test_a_sub_fetch_that_a_move_ends_is_asked_for_anew(rf: int) -> None:
    """Else no node looks at its partitions until the other sub-fetches end, after seconds."""
    cluster = Cluster(5)
    topic, producer_id = opened(cluster, rf=rf, partitions=8)
    number = next(at for at, members in enumerate(topic.replicas) if members != topic.replicas[0])
    client = next((it for it in cluster.names if it not in topic.replicas[number]), "a")
    key = cluster.submit(client, fetch(hold_time=60.0, wait=5.0))
    cluster.advance(0.1)
    for source in topic.replicas[number]:  # all of its replicas, one after the other
        register = cluster.nodes[client].topics[topic.id]
        others = [it for it in cluster.names if it not in register.replicas[number]]
        to = next((it for it in others if it not in topic.replicas[number]), others[0])
        moved = asked(cluster, client, m.MovePartition("jobs", number, source, to), 1.0 / rf)
        assert isinstance(moved, m.TopicReply), moved
    cluster.ask(client, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], number)))
    cluster.advance(0.2)
    assert sizes_of(cluster.replies[key]) == 1


def test_partitions_that_every_node_refuses_are_asked_for_again() -> None:
    """A new slot does not vote at once, and the FETCH has a sub-fetch parked elsewhere meanwhile."""
    cluster = Cluster(5)
    topic, producer_id = opened(cluster, rf=1, partitions=8)
    source = topic.replicas[0][0]
    to, client = [it for it in cluster.names if it != source][:2]
    key = cluster.submit(client, fetch(hold_time=60.0, wait=5.0))
    cluster.drop = lambda sender, peer, message: isinstance(message, m.ResyncReply)
    assert isinstance(cluster.ask(client, m.MovePartition("jobs", 0, source, to)), m.TopicReply)
    cluster.advance(0.2)
    assert key not in cluster.replies
    cluster.hear_all(0.7)
    cluster.ask(client, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"], 0)))
    cluster.advance(0.2)
    assert sizes_of(cluster.replies[key]) == 1


def test_partitions_that_every_node_refuses_are_asked_for_less_and_less_often() -> None:
    """Two new slots never vote. Each is asked 0.1, 0.3, 0.7, 1.2, 1.7 … s after the first time, and at the end."""
    cluster = Cluster(5)
    topic = cluster.topic(rf=1, partitions=8)
    to = next(name for name in cluster.names if len({*topic.replicas} - {(name,)}) == 4)
    client = next(name for name in cluster.names if name != to)
    numbers = [at for at, (node,) in enumerate(topic.replicas) if node not in (to, client)][:2]
    asked: list[int] = []

    def drop(sender: str, peer: str, message: object) -> bool:
        if isinstance(message, m.RemoteFetch) and peer == to:
            asked.extend(number for number in numbers if PartitionId(topic.id, number) in message.partitions)
        return isinstance(message, m.ResyncReply)

    cluster.drop = drop
    for number in numbers:
        moved = cluster.ask(client, m.MovePartition("jobs", number, topic.replicas[number][0], to))
        assert isinstance(moved, m.TopicReply), moved
    key = cluster.submit(client, fetch(hold_time=60.0, wait=5.0))
    cluster.advance(4.9)
    assert key not in cluster.replies
    assert [asked.count(number) for number in numbers] == [12, 12]


def test_partitions_of_a_node_in_quarantine_are_not_asked_for_in_a_loop_after_the_park() -> None:
    """It is the only replica of some, and another node is silent, so that the FETCH goes on for some seconds."""
    cluster = Cluster(3, hold_time_max=20.0)
    opened(cluster, rf=1, partitions=8)
    asked(cluster, "a", fetch())
    cluster.crash("a")
    cluster.drop = lambda sender, to, message: isinstance(message, m.RemoteFetchReply) and sender == "b"
    key = cluster.submit("a", fetch(hold_time=10.0, wait=1.0))
    cluster.advance(0.9)
    assert key not in cluster.replies
    cluster.advance(6.0)
    assert key in cluster.replies


@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_messages_too_large_for_the_fetch_are_not_asked_for_again(node: str) -> None:
    """Neither in one step, if a node asks itself, nor with another node, for as long as the client would wait."""
    cluster = Cluster(3)
    filled(cluster, 1, 3, 10)
    one = bytes_of(asked(cluster, "a", fetch(most=1)).slices[0])  # type: ignore[attr-defined]
    sub_fetches: list[m.RemoteFetch] = []
    on_fetch = NodeCore._on_message

    def count(core: NodeCore, sender: str, incarnation: int, message: object, now: Now) -> list[Effect]:
        if isinstance(message, m.RemoteFetch):
            sub_fetches.append(message)
            assert len(sub_fetches) < 20, "a storm"
        return on_fetch(core, sender, incarnation, message, now)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeCore, "_on_message", count)
        reply = asked(cluster, node, fetch(most=100, least=5, wait=1.0)._replace(max_bytes=one + one // 2))
    assert sizes_of(reply) == 1
    assert len(sub_fetches) <= 6


def sizes_of(reply: object) -> int:
    return sum(item.receipt.span.size for item in receipts(reply))


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_node_that_knows_that_the_topic_makes_no_groups_proposes_none_for_another(start: str) -> None:
    """The node that was asked has not heard of it."""
    cluster = Cluster(3)
    topic = cluster.topic(rf=1, partitions=8)
    cluster.drop = lambda sender, to, message: to == "a" and isinstance(message, m.PutTopic)
    cluster.ask("b", m.AlterTopic("jobs", auto_create_groups=False))
    proposed: list[str] = []

    def note(sender: str, to: str, message: object) -> bool:
        proposed.extend([sender] if isinstance(message, m.Prepare | m.Accept) else [])
        return isinstance(message, m.PutTopic)

    cluster.drop = note
    assert isinstance(asked(cluster, "a", fetch("new")._replace(start=start), 1.0), m.Failed)
    assert {*topic.replicas} >= {("b",), ("c",)}
    assert {*proposed} == {"a"}


def test_a_node_that_answers_without_messages_at_once_is_not_asked_in_a_loop() -> None:
    """A pattern's FETCH goes on without a topic that refuses the group, so its parts are empty, and no failure."""
    cluster = Cluster(3)
    topic = cluster.topic(rf=1, partitions=8)
    elsewhere = tuple(at for at, members in enumerate(topic.replicas) if members != ("a",))
    cluster.drop = lambda sender, to, message: to == "a" and isinstance(message, m.PutTopic)
    cluster.ask("b", m.AlterTopic("jobs", auto_create_groups=False))
    parts = 0

    def count(sender: str, to: str, message: object) -> bool:
        nonlocal parts
        parts += isinstance(message, m.RemoteFetch)
        assert parts < 100, "a storm"
        return isinstance(message, m.PutTopic | m.SyncTopics)

    cluster.drop = count
    key = cluster.submit("a", fetch("new", wait=1.0)._replace(topics=("jo*",), partitions=elsewhere))
    cluster.advance(1.1)
    assert isinstance(cluster.replies[key], m.FetchReply)
    assert 4 < parts < 40


def test_a_parked_fetch_elsewhere_is_answered_by_the_publish() -> None:
    cluster = Cluster(5)
    topic, producer_id = filled(cluster, 1, 5, 1)
    asked(cluster, "b", fetch(most=100))
    key = cluster.submit("b", fetch(wait=1.0))
    cluster.advance(0.2)
    assert key not in cluster.replies
    cluster.ask("d", m.Publish(cluster.batch(topic, producer_id, 1, [b"next"], 3)))
    cluster.advance(0.01)
    assert sizes_of(cluster.replies[key]) == 1


def test_legs_bring_first_timers_or_one_suspect() -> None:
    cluster = Cluster(5)
    topic, _ = filled(cluster, 1, 6, 2, max_deliveries=2)
    stranger = next(
        name for name in cluster.names if all(name not in members for members in topic.replicas[:2])
    )
    for number in (0, 1):
        assert sizes_of(asked(cluster, stranger, fetch(hold_time=3.0)._replace(partitions=(number,)))) == 2
    cluster.advance(3.1)
    both = fetch()._replace(partitions=(0, 1))
    assert sizes_of(asked(cluster, stranger, both._replace(idle=False))) == 0
    assert [sizes_of(asked(cluster, stranger, both)) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert topic.replicas[0] != topic.replicas[1], "these were two sub-fetches"
    assert sizes_of(asked(cluster, stranger, fetch(wait=1.0)._replace(partitions=(2, 3, 4, 5)), 1.1)) == 8


def test_a_leg_says_that_suspects_wait_and_then_no_other_leg_is_waited_for() -> None:
    cluster = Cluster(5)
    _, _, stranger, first, second = two_legs(cluster)
    both = fetch(hold_time=3.0)._replace(partitions=(first, second))
    assert sizes_of(asked(cluster, stranger, both)) == 2
    cluster.advance(3.1)
    assert sizes_of(asked(cluster, stranger, fetch(hold_time=30.0)._replace(partitions=(first,)))) == 1
    busy = fetch(wait=3.0, hold_time=30.0, idle=False)._replace(partitions=(first, second))
    reply = asked(cluster, stranger, busy, 0.2)
    assert (sizes_of(reply), reply.suspects) == (0, True)  # type: ignore[attr-defined]
    key = cluster.submit(stranger, busy)
    cluster.advance(2.0)
    assert key not in cluster.replies


def two_legs(cluster: Cluster) -> tuple[Topic, ProducerId, str, int, int]:
    """Two partitions of one message each, on different nodes, and a node that has neither."""
    topic, producer_id = filled(cluster, 1, 6, 1, max_deliveries=2)
    second = next(number for number in range(1, 6) if topic.replicas[number] != topic.replicas[0])
    homes = (*topic.replicas[0], *topic.replicas[second])
    return topic, producer_id, next(name for name in cluster.names if name not in homes), 0, second


def alone(reply: object) -> bool:
    return any(delivery.suspect for part in reply.slices for delivery in part.deliveries)  # type: ignore[attr-defined]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_leg_s_suspect_or_the_first_timers_that_came_before_it_are_given_back(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chance decides, not the publishing time by any clock. A message that is given back is next."""
    monkeypatch.setattr(remote, "SUSPECT_SHARE", share)
    cluster = Cluster(5)
    topic, producer_id, stranger, first, second = two_legs(cluster)
    assert sizes_of(asked(cluster, stranger, fetch(hold_time=3.0)._replace(partitions=(second,)))) == 1
    cluster.ask("a", m.AckRequest(receipts(asked(cluster, stranger, fetch()._replace(partitions=(first,))))))
    cluster.advance(3.1)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 1, [b"x"] * 4, first)))
    both = fetch()._replace(partitions=(first, second))
    got = [asked(cluster, stranger, both) for _ in range(2)]
    expected = [(1, True), (4, False)]
    assert [(sizes_of(reply), alone(reply)) for reply in got] == (expected if share else expected[::-1])


@pytest.mark.parametrize("off", [-3_600_000, 0, 3_600_000])
def test_a_leg_s_suspect_waits_for_no_endless_stream_of_first_timers_whatever_clocks_say(off: int) -> None:
    cluster = Cluster(5)
    topic, producer_id, stranger, first, second = two_legs(cluster)
    cluster.ask("a", m.AckRequest(receipts(asked(cluster, stranger, fetch()._replace(partitions=(first,))))))
    assert sizes_of(asked(cluster, stranger, fetch(hold_time=3.0)._replace(partitions=(second,)))) == 1
    cluster.advance(3.1)
    both = fetch()._replace(partitions=(first, second))
    came = []
    for seq in range(1, 31):
        at = cluster.now.wall_ms + off
        cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"], first, published_ms=at)))
        came.append(alone(reply := asked(cluster, stranger, both)))
        cluster.ask("a", m.AckRequest(receipts(reply)))
    assert came.count(True) == 1


def test_a_leg_whose_node_is_gone_is_served_by_another_replica() -> None:
    cluster = Cluster(5)
    topic, _ = filled(cluster, 3, 1, 10)
    stranger = next(name for name in cluster.names if name not in topic.replicas[0])
    for victim in topic.replicas[0][:1]:
        cluster.kill(victim)
    assert sizes_of(asked(cluster, stranger, fetch())) == 10


def test_a_leg_whose_node_was_started_again_is_asked_for_anew() -> None:
    """The request was under way to the start before, and its node is not silent."""
    cluster = Cluster(5)
    topic, _ = filled(cluster, 3, 1, 1)
    stranger = next(name for name in cluster.names if name not in topic.replicas[0])
    lost: list[str] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.RemoteFetch) and not lost:
            lost.append(to)
            return True
        return False

    cluster.drop = drop
    key = cluster.submit(stranger, fetch(wait=1.0, hold_time=20.0))
    cluster.hear_all()
    cluster.kill(lost)
    cluster.start(lost)
    cluster.advance(0.5)
    assert sizes_of(cluster.replies.get(key)) == 1


class SubFetch:
    """A sub-fetch of this node for itself: its timer sends a HOLD to b, and its end a RELEASE."""

    cost, caller, key = 1, 0, 1_000_001
    hold = Send("b", m.Heartbeat((), 0.0, ""))
    release = Send("b", m.Release(()))

    def go_on(self, context: Context, now: Now) -> list[Effect]:
        return [self.hold]

    def on_gone(self, context: Context, now: Now) -> list[Effect]:
        del context.requests[self.key]
        return [self.release]


class Split(SubFetch):
    """A FETCH whose timer calls its sub-fetch, of round 7, off."""

    key = 1_000_000

    def go_on(self, context: Context, now: Now) -> list[Effect]:
        return [Send("a", m.RemoteGone(7))]


def test_a_hold_is_not_sent_after_its_release_if_both_timers_are_due() -> None:
    """Such a HOLD would stay for its whole time, and for no client: a peer gets the two in the order of the effects."""
    cluster = Cluster(3)
    core = cluster.nodes["a"]
    for pending in (Split(), SubFetch()):
        core.context.requests[pending.key] = pending  # type: ignore[assignment]
        core.state.at(cluster.now.mono, ("again", pending.key))
    core.context.sub_fetches[("a", 7)] = SubFetch.key
    effects = core.step([], cluster.now, random.Random(1))
    assert [it for it in effects if it in (SubFetch.hold, SubFetch.release)] == [SubFetch.release]


def test_a_fetch_is_not_answered_empty_if_no_node_has_looked() -> None:
    """Its node is started again when the wait is over: an empty answer would say that the group has begun."""
    cluster = Cluster(5)
    topic, _ = filled(cluster, 1, 1, 1)
    ((member,),) = topic.replicas
    stranger = next(name for name in cluster.names if name != member)
    cluster.drop = lambda sender, to, message: isinstance(message, m.RemoteFetch)
    key = cluster.submit(stranger, fetch("new", wait=0.3, hold_time=20.0))
    cluster.advance(0.31)
    assert key not in cluster.replies
    cluster.kill([member])
    cluster.start([member])
    cluster.advance(0.2)
    check_failed(cluster.replies[key], "outcome-unknown", "no replica of 'jobs'")


def test_a_silent_leg_is_given_up_and_the_next_node_asked() -> None:
    cluster = Cluster(5)
    topic, _ = filled(cluster, 3, 1, 1)
    stranger = next(name for name in cluster.names if name not in topic.replicas[0])
    silent: list[str] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.RemoteFetchReply) and not silent:
            silent.append(sender)
        return sender in silent

    cluster.drop = drop
    check_failed(cluster.ask(stranger, fetch(wait=1.0, hold_time=20.0), 2.5), None, silent[0])
    cluster.advance(20)
    assert sizes_of(asked(cluster, stranger, fetch())) == 1


@pytest.mark.parametrize("kind", [object, m.RemoteFetchReply])
@pytest.mark.parametrize("lost", range(1, 10))
def test_a_fetch_whose_sub_fetch_may_have_made_the_group_says_so(lost: int, kind: type) -> None:
    """A node without a replica hears nothing, or no answer, after some messages."""
    cluster = Cluster(5, request_timeout=2.0)
    topic = cluster.topic()
    through = next(node for node in cluster.names if node not in topic.replicas[0])
    count = 0

    def drop(sender: str, to: str, message: object) -> bool:
        nonlocal count
        count += through in (sender, to)
        return count >= lost and through in (sender, to) and isinstance(message, kind)

    cluster.drop = drop
    reply = asked(cluster, through, fetch("new"), 10.0)
    cluster.hear_all(10.0)
    made = any((topic.id, "new") in core.catalogue.groups for core in cluster.nodes.values())
    assert not made or not isinstance(reply, m.Failed) or reply.code == "outcome-unknown", reply


def test_an_unknown_outcome_of_one_sub_fetch_is_that_of_all() -> None:
    cluster = Cluster(5)
    topic = cluster.topic()
    through = next(node for node in cluster.names if node not in topic.replicas[0])
    cluster.drop = lambda sender, to, message: isinstance(message, m.RemoteFetch)
    key = cluster.submit(through, fetch("new", wait=1.0))
    codes = iter(["outcome-unknown", "too-few-replicas", "too-few-replicas"])
    while key not in cluster.replies:
        ((number, sub_fetch),) = cluster.nodes[through].context.requests[key].sub_fetches.items()
        hand_over(cluster, sub_fetch.node, through, m.RemoteFetchReply(number, next(codes), "", ()))
    reply = cluster.replies[key]
    assert isinstance(reply, m.Failed)
    assert reply.code == "outcome-unknown"


def test_late_and_unsent_deliveries_are_released_at_all_voters() -> None:
    cluster = Cluster(5)
    topic, producer_id = filled(cluster, 3, 2, 10)
    stranger = next(name for name in cluster.names if name not in topic.replicas[0])
    key = cluster.submit(stranger, fetch(most=100))
    cluster.advance(0.1)
    assert sizes_of(cluster.replies[key]) == 20
    cluster.feed(stranger, Unsent(key))
    assert sizes_of(asked(cluster, "a", fetch(most=100))) == 20
    held = cluster.submit(stranger, fetch(most=100, wait=1.0))
    cluster.feed(stranger, Gone(held))
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"], 0)))
    assert sizes_of(asked(cluster, "a", fetch(most=100))) == 1


def test_messages_won_of_a_topic_deleted_meanwhile_are_not_delivered() -> None:
    """The batch of the sub-fetch is dropped with the topic: no consumer could read it."""
    cluster = Cluster(5)
    topic, _ = filled(cluster, 3, 6, 1)
    node = next(name for name in "abcde" if 0 < sum(name in members for members in topic.replicas) < 6)
    cluster.drop = lambda sender, to, message: isinstance(message, m.RemoteFetch) and to != node
    key = cluster.submit(node, fetch(most=50))
    assert key not in cluster.replies, "the other sub-fetches have some time to answer"
    assert isinstance(cluster.ask(node, m.DeleteTopic("jobs", topic.id)), m.TopicReply)
    reply = cluster.replies[key]
    assert isinstance(reply, m.Failed), f"the payload is gone: {reply}"
    assert reply.code == "not-found"


def test_messages_of_another_node_are_dropped_with_their_topic() -> None:
    """Decoded slices have no partition but in their header."""
    cluster = Cluster(5)
    topic, _ = filled(cluster, 1, 1, 1)
    ((member,),) = topic.replicas
    through = next(name for name in cluster.names if name != member)
    (won,) = cluster.ask(member, fetch()).slices  # type: ignore[attr-defined]
    deliveries = tuple(WireDelivery(b"", it.attempt, it.receipt) for it in won.deliveries)
    came = WireSlice(won.topic, won.header, deliveries, memoryview(b""))
    key = cluster.submit(through, fetch(least=2, wait=1.0))
    ((number, _),) = cluster.nodes[through].context.requests[key].sub_fetches.items()
    hand_over(cluster, member, through, m.RemoteFetchReply(number, "", "", (came,)))
    assert key not in cluster.replies, "it waits for a second message"
    assert isinstance(cluster.ask(through, m.DeleteTopic("jobs", topic.id)), m.TopicReply)
    check_failed(cluster.replies[key], "not-found")


def test_peek_through_a_node_that_has_no_replica_shows_what_the_replica_shows() -> None:
    cluster = Cluster(5)
    topic, producer_id = filled(cluster, 1, 1, 4)
    (home,) = topic.replicas[0]
    cluster.ask(home, m.Publish(cluster.batch(topic, producer_id, 4, [b"y"] * 3)))
    stranger = next(name for name in cluster.names if name != home)
    for bodies in (False, True):
        ask = m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, bodies)
        page = cluster.ask(stranger, ask, of=m.PeekReply)
        assert sum(item.span.size for item in page.items) == 7
        assert sum(part.stop - part.first for part in page.slices) == (7 if bodies else 0)
        assert page == cluster.ask(home, ask)


def test_a_page_brings_no_more_bytes_than_an_answer_may_have() -> None:
    cluster = Cluster(3)
    topic, producer_id = cluster.topic(rf=1), cluster.ask("a", m.OpenSession()).producer_id
    (home,) = topic.replicas[0]
    for seq in range(10):
        cluster.ask(home, m.Publish(cluster.batch(topic, producer_id, seq, [b"x" * 1_000_000])))
    cluster.ask(home, m.Publish(cluster.batch(topic, producer_id, 10, [b"x" * 1_000_000] * 4)))
    for name in cluster.names:
        shown, cursor = [], (0, 0)
        while cursor is not None:
            page = cluster.ask(name, m.PeekRequest("jobs", 0, "g", "all", cursor, 100, bodies=True))
            assert isinstance(page, m.PeekReply)
            assert sum(item.span.size for item in page.items) == sum(
                part.stop - part.first for part in page.slices
            )
            shown += [(item.span.start, item.span.stop) for item in page.items]
            cursor = page.cursor
        assert shown == [*((seq, seq + 1) for seq in range(8)), (8, 9), (9, 10), (10, 14)]


def test_all_replicas_down_is_said_at_once() -> None:
    cluster = Cluster(5)
    topic, producer_id = filled(cluster, 1, 1, 4)
    home = topic.replicas[0][0]
    cluster.kill(home)
    stranger = next(name for name in cluster.names if name != home)
    check_failed(cluster.ask(stranger, fetch(wait=1.0)), None, "no replica of 'jobs' can be reached")
    refused = cluster.ask(stranger, m.Publish(cluster.batch(topic, producer_id, 4, [b"y"])))
    check_failed(refused, Code.NOT_STORED, f"nothing was sent: none of {home} can be reached")


def test_a_hold_that_comes_after_its_release_by_another_node_ends() -> None:
    """A busy replica held the messages for a hold time: its clients got none of them."""
    cluster = Cluster(5)
    topic, _ = filled(cluster, 3, 1, 3)
    through = next(name for name in cluster.names if name not in topic.replicas[0])
    waiting: list[tuple[str, str, object]] = []

    def drop(sender: str, to: str, message: object) -> bool:
        """Hold back all from the owner of the hold to one of the others."""
        held_back = sender in topic.replicas[0] and (isinstance(message, m.Hold) or bool(waiting))
        held_back = held_back and (not waiting or (sender, to) == waiting[0][:2])
        if held_back:
            waiting.append((sender, to, message))
        return held_back

    cluster.drop = drop
    assert sizes_of(asked(cluster, through, fetch(most=10))) == 3
    cluster.feed(through, Unsent(cluster.keys))
    cluster.hear_all()
    for message in waiting:
        cluster.send(*message)
        cluster.run()
    assert sizes_of(asked(cluster, waiting[0][1], fetch(most=10), 1.0)) == 3

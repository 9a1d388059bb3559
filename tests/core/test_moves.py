"""Moves of partitions between the nodes of a cluster (docs/layouts.md, LAYOUTS)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.state import NodeConfig
from quorumq.core.messages.effects import MovesLimited, Send, Unsent
from quorumq.core.messages.records import PartitionTrusted, Trusted
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.handoff import Handoff
from quorumq.core.partition.hold_recovery import RELEASES_MAX, HoldRecovery
from quorumq.core.partition.move_throttle import MoveThrottle
from quorumq.core.requests import merging, sources
from quorumq.core.requests.placing import Joined
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Now, Owner, PartitionId, ProducerId, Span, Stamp, Topic
from tests.core.cluster import Cluster
from tests.core.coded import Coded
from tests.core.layouts import made, move
from tests.core.network import SlowDisk, begins_comparison, hand_over, noted, wipe
from tests.core.steps import check_failed

ME = ProducerId("x", 1, 1, 1)


def fetch(cluster: Cluster, node: str, count: int = 10, hold_time: float = 30.0) -> list[bytes]:
    reply = cluster.ask(node, m.Fetch(("jobs",), "g", count, 1 << 20, 1, 0.0, hold_time, cluster.time))
    assert isinstance(reply, m.FetchReply), reply
    return [part for one in reply.slices for part in bodies(one)]


def bodies(part: m.Slice) -> list[bytes]:
    return [f"{delivery.receipt.span}".encode() for delivery in part.deliveries]


def publish(cluster: Cluster, node: str, topic: Topic, first: int, count: int = 3) -> m.ClientReply:
    payloads = [f"{first + at}".encode() for at in range(count)]
    return cluster.ask(node, m.Publish(cluster.batch(topic, ME, first, payloads)))


@pytest.mark.parametrize("rf", [1, 3, 5])
def test_a_moved_slot_has_what_was_there_and_the_source_is_released(rf: int) -> None:
    cluster, topic, members, others = made(rf, 6)
    assert isinstance(publish(cluster, others[0], topic, 0), m.PublishReply)
    moved = move(cluster, others[0], members[0], others[0])
    assert isinstance(moved, m.TopicReply), moved
    assert moved.topic.replicas[0] == (others[0], *members[1:])
    cluster.advance(0.1)
    partition = PartitionId(topic.id, 0)
    there = cluster.nodes[others[0]].replicas[partition]
    assert there.is_trusted
    assert there.may_vote(cluster.now)
    assert partition not in cluster.nodes[members[0]].replicas
    assert isinstance(publish(cluster, members[0], topic, 3), m.PublishReply)
    cluster.advance(12)
    assert sum(span.size for span in there.batches.present.items()) == 6
    assert not cluster.nodes[members[0]].context.sources
    assert cluster.nodes[members[0]].context.kept(partition) is None
    for node in cluster.nodes.values():
        placement = node.topics[topic.id].placement(0)
        assert placement is not None
        assert not placement.sources
        assert not placement.before
    for name in members[1 : len(members) // 2 + 1]:
        cluster.kill(name)
    assert len(fetch(cluster, others[0])) >= 1


@pytest.mark.parametrize("superseded", [False, True])
def test_a_slot_has_not_answered_if_another_one_knows_a_later_start_of_it(superseded: bool) -> None:
    """That start may have no disk any more. The move is refused, to be tried again."""
    cluster, _, (leaving, _, last), (to, via) = made()
    answers = noted(
        cluster,
        lambda sender, _, message: isinstance(message, m.SlotReply) and sender == last,
        lambda sender, _, message: isinstance(message, m.SlotReply) and sender == last,
    )
    key = cluster.submit(via, m.MovePartition("jobs", 0, leaving, to))
    newest = list(answers[0].known.newest)
    newest[1] = newest[1]._replace(n=newest[1].n + superseded)
    hand_over(cluster, last, via, answers[0]._replace(known=answers[0].known._replace(newest=tuple(newest))))
    cluster.hear_all(3.0)
    if superseded:
        check_failed(cluster.replies[key], Code.TOO_FEW_REPLICAS, "has to be up")
    else:
        assert isinstance(cluster.replies[key], m.TopicReply)


@pytest.mark.parametrize("rf", [1, 3])
def test_a_new_slot_has_the_payload_as_soon_as_it_votes(rf: int) -> None:
    """A client may wait there alone. The grace for messages under way, and the next comparison, would take seconds."""
    cluster, topic, members, others = made(rf=rf)
    publish(cluster, members[0], topic, 0)
    new = others[0]
    assert isinstance(move(cluster, others[1], members[0], new), m.TopicReply)
    cluster.advance(0.1)
    assert len(fetch(cluster, new)) == 1


@pytest.mark.parametrize("through", ["another", "new"])
def test_a_new_slot_asks_for_what_was_published_while_it_could_not_vote(through: str) -> None:
    """Its STOREs were refused, after the others had listed their messages."""
    cluster, topic, members, others = made()
    new, partition = others[0], PartitionId(topic.id, 0)
    cluster.drop = lambda sender, to, message: (
        sender != new and begins_comparison(message)
    )  # theirs are sent later
    disk = SlowDisk(cluster, new)
    cluster.submit(members[1], m.MovePartition("jobs", 0, members[0], new))
    replicas, context = cluster.nodes[new].replicas, cluster.nodes[new].context
    while not any(isinstance(each, Joined) for each in context.completions.values()):
        disk.sync()
        cluster.run()
    assert not replicas[partition].is_trusted
    via = new if through == "new" else members[1]
    assert isinstance(publish(cluster, via, topic, 0), m.PublishReply)
    while not replicas[partition].is_trusted:
        cluster.run()
        disk.sync()
    cluster.advance(0.1)
    disk.sync()
    assert len(fetch(cluster, new)) == 1


def test_a_slot_that_hears_late_of_a_layout_asks_for_what_it_refused() -> None:
    """The publish was over before the slot's refusal, so its coordinator did not send the message again."""
    cluster, topic, members, others = made()
    late = members[2]
    cluster.drop = lambda sender, to, message: to == late and isinstance(message, m.PutTopic)
    moved = move(cluster, members[1], members[0], others[0])
    assert isinstance(moved, m.TopicReply), moved
    assert isinstance(publish(cluster, members[1], topic, 0), m.PublishReply)
    cluster.hear_all()
    present = cluster.nodes[late].replicas[PartitionId(topic.id, 0)].batches.present
    assert not present.runs
    hand_over(cluster, members[1], late, m.PutTopic(0, moved.topic))
    cluster.advance(0.1)
    assert sum(span.size for span in present.items()) == 3


def test_a_slot_that_comes_back_without_its_payload_asks_for_it_as_soon_as_it_votes() -> None:
    """The source names it again while the slot learns the records. That is no pull under way."""
    cluster, topic, (old,), (new, other, *_) = made(rf=1)
    publish(cluster, old, topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    for source, to in ((old, new), (new, old)):
        assert isinstance(move(cluster, other, source, to), m.TopicReply)
        cluster.advance(1.0)
    kept = cluster.nodes[new].context.kept(PartitionId(topic.id, 0))
    assert kept is None or not kept.batches.stored
    cluster.drop = lambda sender, to, message: False
    assert isinstance(move(cluster, other, old, new), m.TopicReply)
    cluster.advance(0.1)
    assert len(fetch(cluster, new)) == 1


def test_a_move_is_asked_for_again_and_back() -> None:
    cluster, topic, members, others = made()
    publish(cluster, "a", topic, 0)
    first = move(cluster, "a", members[0], others[0])
    assert isinstance(first, m.TopicReply)
    again = move(cluster, others[1], members[0], others[0])
    assert isinstance(again, m.TopicReply)
    assert again.topic.layout == first.topic.layout
    back = move(cluster, others[1], others[0], members[0])
    assert isinstance(back, m.TopicReply), back
    assert list(back.topic.replicas[0]) == members
    cluster.advance(20)
    partition = PartitionId(topic.id, 0)
    assert cluster.nodes[members[0]].replicas[partition].is_trusted
    assert cluster.nodes[others[0]].context.kept(partition) is None
    assert len(fetch(cluster, others[1])) == 1


def moves_of(cluster: Cluster, topic: Topic) -> list[m.MovePartition]:
    """Return a move of each partition of a topic."""
    return [
        m.MovePartition(
            "jobs", number, members[0], next(name for name in cluster.names if name not in members)
        )
        for number, members in enumerate(topic.replicas)
    ]


def moves_at_once(cluster: Cluster, topic: Topic, node: str) -> list[int]:
    """Ask a node for a move of each partition of a topic; return the keys."""
    return [cluster.submit(node, request) for request in moves_of(cluster, topic)]


def test_moves_that_one_node_is_asked_for_at_once_are_one_layout() -> None:
    """Each competed with all others, and later had a layout of its own: 16 times the rounds, and more."""
    cluster = Cluster(5)
    topic = cluster.topic(partitions=16)
    cluster.delay = 0.002
    proposals = noted(cluster, lambda sender, to, message: to != sender and isinstance(message, m.Prepare))
    keys = moves_at_once(cluster, topic, "a")
    cluster.advance(4.0)
    for number, key in enumerate(keys):
        moved = cluster.replies[key]
        assert isinstance(moved, m.TopicReply)
        assert topic.replicas[number][0] not in moved.topic.replicas[number]
    assert len(proposals) == 4


def test_a_partition_that_was_added_during_a_move_is_moved_after_it() -> None:
    """The MOVE whose turn it is knows no such partition."""
    cluster = Cluster(5)
    topic = cluster.topic()
    cluster.delay = 0.002
    cluster.drop = lambda sender, to, message: isinstance(message, m.SlotReply)
    moves_at_once(cluster, topic, "a")
    cluster.advance(0.02)
    grown = cluster.ask("a", m.AlterTopic("jobs", partitions=2), 0.1, of=m.TopicReply).topic
    key = cluster.submit("a", moves_of(cluster, grown)[1])
    cluster.advance(0.05)
    cluster.drop = lambda sender, to, message: False
    cluster.advance(10.0)
    assert isinstance(cluster.replies[key], m.TopicReply)


def test_a_layout_of_a_topic_that_was_deleted_and_packed_is_not_adopted() -> None:
    """Its record was on the way to the disk meanwhile."""
    cluster = Cluster(deleted_unpacked=0)
    topic = cluster.topic()
    cluster.ask("a", m.DeleteTopic("jobs", topic.id), of=m.TopicReply)
    cluster.advance(60.0)
    context = cluster.nodes["a"].context
    assert topic.id not in context.catalogue.topics
    assert merging.adopt(context, topic, cluster.now) == []


@pytest.mark.parametrize("hears", [True, False])
def test_moves_off_a_silent_node_wait_for_it_together(hears: bool) -> None:
    """It keeps its links. They waited one after the other, for half of the request timeout each."""
    cluster = Cluster(4)
    topic = cluster.topic(partitions=16)
    numbers = [number for number, members in enumerate(topic.replicas) if "d" in members]
    cluster.delay = 0.002
    cluster.drop = lambda sender, to, message: "d" == (to if hears else sender) != (sender if hears else to)
    if not hears:
        cluster.advance(2.0)
    wait = 2.7 if hears else 0.2
    asked = [
        m.MovePartition(
            "jobs", number, "d", next(name for name in "abc" if name not in topic.replicas[number])
        )
        for number in numbers
    ]
    assert len(asked) > 4
    keys = [cluster.submit("a", request) for request in asked]
    cluster.advance(wait)
    assert all(isinstance(cluster.replies.get(key), m.TopicReply) for key in keys)


@pytest.mark.parametrize("number", [0, 2])
def test_a_move_that_cannot_be_made_holds_no_other_one_up(number: int) -> None:
    """The new slot of one partition has heard nothing yet, the first one to be asked about or the last."""
    cluster = Cluster(5)
    topic = cluster.topic(partitions=3)
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    moved = cluster.ask("a", moves_of(cluster, topic)[number], of=m.TopicReply)
    cluster.delay = 0.002
    keys = moves_at_once(cluster, moved.topic, "a")
    cluster.advance(0.2)
    check_failed(cluster.replies[keys.pop(number)], Code.TOO_FEW_REPLICAS, "says not-trusted")
    assert all(isinstance(cluster.replies.get(key), m.TopicReply) for key in keys)


@pytest.mark.parametrize("together", [True, False])
def test_a_move_that_was_not_proposed_did_nothing(together: bool) -> None:
    """If node a has the slot of the first one, it proposes that without the other."""
    cluster = Cluster()
    topic = cluster.topic(rf=1, partitions=2)
    assert topic.replicas[0] == ("a",)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Accept)
    cluster.delay = 0.002
    first, second = moves_at_once(cluster, topic, "b" if together else "a")
    cluster.advance(6.0)
    check_failed(cluster.replies[first], Code.OUTCOME_UNKNOWN)
    if together:
        check_failed(cluster.replies[second], Code.OUTCOME_UNKNOWN)
    else:
        check_failed(cluster.replies[second], Code.TOO_FEW_REPLICAS, "try again")
    cluster.hear_all(1.0)
    for key in moves_at_once(cluster, topic, "a"):
        cluster.advance(1.0)
        assert isinstance(cluster.replies[key], m.TopicReply)


@pytest.mark.parametrize(
    ("source", "to", "why"),
    [("first", "none", "one of"), ("other", "another", "from is"), ("first", "second", "two slots")],
)
def test_a_move_that_cannot_be_is_refused(source: str, to: str, why: str) -> None:
    cluster, _, members, others = made()
    names = {"first": members[0], "second": members[1], "other": others[0], "another": others[1], "none": "z"}
    check_failed(move(cluster, "a", names[source], names[to]), "usage", why)


def test_no_two_slots_on_one_machine() -> None:
    machines = tuple((name, "left" if name in "ab" else name) for name in "abcdef")
    cluster = Cluster(6, machines=machines)
    topics = [cluster.topic(f"t{number}") for number in range(9)]
    topic, here = next((one, name) for one in topics for name in one.replicas[0] if name in "ab")
    beside = "b" if here == "a" else "a"
    source = next(name for name in topic.replicas[0] if name != here)
    check_failed(cluster.ask("c", m.MovePartition(topic.name, 0, source, beside)), None, "machine 'left'")


def test_a_new_slot_that_crashes_before_it_votes_asks_again() -> None:
    cluster, topic, members, others = made()
    publish(cluster, members[1], topic, 0)
    new, partition = others[0], PartitionId(topic.id, 0)
    cluster.drop = lambda sender, to, message: to == new and isinstance(message, m.ResyncReply)
    assert isinstance(move(cluster, others[1], members[0], new), m.TopicReply)
    assert not cluster.nodes[new].replicas[partition].is_trusted
    refused = cluster.submit(others[1], m.MovePartition("jobs", 0, members[1], others[1]))
    assert isinstance(cluster.replies[refused], m.Failed), "a slot that stays is not trusted yet"
    cluster.crash(new)
    assert not cluster.nodes[new].replicas[partition].is_trusted
    assert isinstance(publish(cluster, others[1], topic, 3), m.PublishReply), "a majority has adopted it"
    cluster.hear_all(1)
    assert cluster.nodes[new].replicas[partition].is_trusted
    cluster.crash(new)
    assert cluster.nodes[new].replicas[partition].is_trusted, "it is in the journal"


def test_a_hold_outlives_the_move_of_its_only_replica() -> None:
    cluster, topic, (old,), others = made(rf=1)
    publish(cluster, old, topic, 0, 1)
    assert len(fetch(cluster, old, hold_time=5.0)) == 1
    assert isinstance(move(cluster, others[1], old, others[0]), m.TopicReply)
    cluster.advance(3.5)
    partition = PartitionId(topic.id, 0)
    assert cluster.nodes[others[0]].replicas[partition].may_vote(cluster.now), (
        "it heard the holds of the node that left"
    )
    assert fetch(cluster, others[0]) == []
    cluster.advance(2)
    assert len(fetch(cluster, others[0])) == 1


def test_a_node_that_missed_a_move_learns_of_it_from_a_reply() -> None:
    cluster, topic, members, others = made()
    late = others[1]
    cluster.drop = lambda sender, to, message: to == late and not isinstance(message, m.StoreReply)
    assert isinstance(move(cluster, members[1], members[0], others[0]), m.TopicReply)
    assert cluster.nodes[late].topics[topic.id].layout is None
    cluster.hear_all()
    key = cluster.submit(late, m.Publish(cluster.batch(topic, ME, 0, [b"x"])))
    first = cluster.replies[key]
    assert isinstance(first, m.PublishReply) or first.code == "outcome-unknown"  # type: ignore[union-attr]
    assert cluster.nodes[late].topics[topic.id].layout_number == 2
    cluster.ask(late, m.Publish(cluster.batch(topic, ME, 0, [b"x"])), of=m.PublishReply)


@pytest.mark.parametrize("through", ["new", "stays"])
def test_a_publish_waits_for_the_disk_of_a_node_that_adopts(through: str) -> None:
    """Else it waits for the new slot, which does not vote yet, until the request timeout."""
    cluster, topic, members, others = made()
    new, slow = others[0], members[1]
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    disk = SlowDisk(cluster, slow)
    moving = cluster.submit(others[1], m.MovePartition("jobs", 0, members[0], new))
    assert cluster.nodes[slow].topics[topic.id].layout_number == 2
    assert cluster.nodes[slow].replicas[PartitionId(topic.id, 0)].epoch == 1, "it is on its way to the disk"
    node = new if through == "new" else members[2]
    key = cluster.submit(node, m.Publish(cluster.batch(topic, ME, 0, [b"x"])))
    assert key not in cluster.replies
    for _ in range(3):
        disk.sync()
        cluster.run()
    assert isinstance(cluster.replies[moving], m.TopicReply)
    assert isinstance(cluster.replies[key], m.PublishReply)


def test_a_new_slot_asks_for_payload_at_once_though_an_answer_comes_while_its_disk_is_slow() -> None:
    cluster, topic, members, others = made()
    assert isinstance(publish(cluster, members[0], topic, 0), m.PublishReply)
    disk = SlowDisk(cluster, others[0])
    cluster.submit(members[1], m.MovePartition("jobs", 0, members[0], others[0]))
    for _ in range(4):
        cluster.run()
        disk.sync()
    cluster.run()
    there = cluster.nodes[others[0]].replicas[PartitionId(topic.id, 0)]
    assert there.is_trusted
    assert there.batches.present.messages == 3


@pytest.mark.parametrize("which", ["leaves", "joins", "resyncs"])
def test_a_segment_that_begins_while_trust_is_on_its_way_to_the_disk_says_so(which: str) -> None:
    """Else the record is gone with the segment before, and after its next start the node asks others that have left."""
    cluster, _, members, others = made()
    name = members[0] if which == "leaves" else others[0]
    if which == "resyncs":
        cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
        wipe(cluster, name)
    disk, core = SlowDisk(cluster, name), cluster.nodes[name]
    if which != "resyncs":
        cluster.submit(members[1], m.MovePartition("jobs", 0, members[0], others[0]))
    cluster.drop = lambda sender, to, message: False
    seen = 0
    for _ in range(9):
        cluster.advance(1.0)
        kinds = (PartitionTrusted, Trusted)
        written = [record for record in disk.records[disk.synced :] if isinstance(record, kinds)]
        seen += len(written)
        assert all(record in core.snapshot(cluster.now) for record in written)
        disk.sync()
    assert seen


@pytest.mark.parametrize("waits", [True, False])
def test_a_publish_to_a_slot_that_does_not_vote_yet_is_answered_at_once(waits: bool) -> None:
    """The only slot is new: the client is to ask again, and not to wait for the timeout."""
    cluster, topic, (old,), others = made(rf=1)
    new = others[0]
    cluster.drop = lambda sender, to, message: isinstance(message, m.ResyncReply)
    assert isinstance(cluster.ask(old, m.MovePartition("jobs", 0, old, new)), m.TopicReply)
    if waits:  # for a message, so that the STORE brings a HOLD
        cluster.submit(new, m.Fetch(("jobs",), "g", 10, 1 << 20, 1, 3.0, 30.0, cluster.time, idle=True))
    publish = m.Publish(cluster.batch(topic, ME, 0, [b"x"]))
    for through in (new, others[1]):
        reply = cluster.ask(through, publish, of=m.Failed)
        assert (reply.code, f"{new}: not-trusted" in reply.detail) == (Code.OUTCOME_UNKNOWN, True), reply
    cluster.drop = lambda sender, to, message: False
    cluster.advance(0.6)
    assert isinstance(cluster.ask(new, publish), m.PublishReply)


def test_no_hold_is_piggybacked_in_a_layout_that_waits_for_our_disk() -> None:
    """Else it is won without the message, in the old layout, and no client gets that for a hold time."""
    cluster, topic, members, others = made()
    through = members[1]
    request = m.Fetch(("jobs",), "g", 10, 1 << 20, 1, 3.0, 30.0, cluster.time, idle=True)
    key = cluster.submit(through, request)
    disk = SlowDisk(cluster, through)
    cluster.submit(others[1], m.MovePartition("jobs", 0, members[0], others[0]))
    assert cluster.nodes[through].topics[topic.id].layout_number == 2
    cluster.submit(through, m.Publish(cluster.batch(topic, ME, 0, [b"x"])))
    for _ in range(4):
        disk.sync()
        cluster.advance(0.1)
    reply = cluster.replies[key]
    assert isinstance(reply, m.FetchReply)
    assert len(reply.slices) == 1


@pytest.mark.parametrize("loses", ["no one", "the old one", "the new one"])
def test_a_new_slot_learns_no_hold_that_was_released(loses: str) -> None:
    """A round ends with the move, and the node that leaves has granted its HOLD. It may get the RELEASE late."""
    cluster, topic, members, others = made()
    old, through, new = members[0], members[1], others[0]
    loser = {"the old one": old, "the new one": new}.get(loses)
    publish(cluster, others[1], topic, 0, 1)
    cluster.drop = lambda sender, to, message: to == through and isinstance(message, m.HoldReply)
    key = cluster.submit(through, m.Fetch(("jobs",), "g", 10, 1 << 20, 1, 0.0, 30.0, cluster.time))
    assert key not in cluster.replies

    def drop(sender: str, to: str, message: object) -> bool:
        too_early = isinstance(message, m.HoldsRequest) and key not in cluster.replies
        return too_early or (to == loser and isinstance(message, m.Release))

    cluster.drop = drop
    assert isinstance(move(cluster, others[1], old, new), m.TopicReply)
    cluster.advance(10.0)  # the payload follows
    assert isinstance(cluster.replies[key], m.FetchReply | m.Failed)
    replica = cluster.nodes[new].replicas[PartitionId(topic.id, 0)]
    assert replica.may_vote(cluster.now)
    assert not replica.group("g").all_held()
    assert len(fetch(cluster, new)) == 1


def test_releases_for_a_replica_that_never_votes_take_no_capacity_of_others() -> None:
    """A source hears all of them. Those of a replica that is gone, or votes by now, are needed no more."""
    cluster, topic, members, others = made()
    old, new = members[0], others[0]
    publish(cluster, "a", topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    assert isinstance(move(cluster, others[1], old, new), m.TopicReply)
    cluster.advance(5.0)
    key = cluster.submit(members[1], m.Fetch(("jobs",), "g", 10, 1 << 20, 1, 0.0, 30.0, cluster.time))
    cluster.feed(members[1], Unsent(key))
    assert cluster.nodes[old].context.sources
    recovery, replicas = cluster.nodes[old].context.hold_recovery, cluster.nodes[old].replicas
    assert not recovery.releases
    for time in range(RELEASES_MAX + 1):
        owner = Owner(old, cluster.nodes[old].state.incarnation, Stamp(time, old))
        gone = m.Released(PartitionId(topic.id, 9), "g", owner, ())
        for _ in range(2):  # a RELEASE is repeated until it is confirmed
            recovery.note_release(replicas, gone, cluster.now)
    assert gone in recovery.releases


def test_a_replica_that_moves_in_its_quarantine_keeps_the_releases_that_it_received() -> None:
    """The members of the new set report their holds anew, and one of them may not have heard the RELEASE yet."""
    cluster, topic, members, _ = made()
    replica = cluster.nodes[members[0]].replicas[PartitionId(topic.id, 0)]
    owner = Owner(members[1], cluster.nodes[members[1]].state.incarnation, Stamp(1, members[1]))
    released = m.Released(replica.partition, "g", owner, ())
    recovery = HoldRecovery()
    replica.quarantine_until = cluster.now.mono + 1.0
    recovery.note_release({}, released, cluster.now)
    for _ in range(2):
        recovery.await_holds(replica, cluster.now)
        assert recovery.awaited
        assert list(recovery.releases) == [released]


def test_sources_of_a_topic_are_released_together() -> None:
    """A node with 300 partitions would else keep the last one for 300 intervals, and each layout names all."""
    cluster, leaving = Cluster(4), "a"
    topic = cluster.topic(partitions=8)
    moves = [number for number, members in enumerate(topic.replicas) if leaving in members]
    for number in moves:
        to = next(name for name in cluster.names if name not in topic.replicas[number])
        cluster.ask("b", m.MovePartition("jobs", number, leaving, to), 0.5, of=m.TopicReply)
    sources = cluster.nodes[leaving].context.sources
    assert len(sources) == len(moves) > 4
    cluster.advance(3 * cluster.nodes["b"].context.config.sync_interval)
    assert not sources
    assert cluster.nodes["b"].topics[topic.id].layout_number <= 1 + len(moves) + 2


def test_a_source_that_was_wiped_is_released_at_once() -> None:
    cluster, topic, members, others = made()
    publish(cluster, "a", topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply)
    assert isinstance(move(cluster, others[1], members[0], others[0]), m.TopicReply)
    cluster.advance(10)
    assert cluster.nodes[members[0]].context.sources
    wipe(cluster, members[0], 20)
    assert not cluster.nodes[others[1]].topics[topic.id].placement(0).sources  # type: ignore[union-attr]


def test_deletion_reaches_the_set_before_and_the_next_one() -> None:
    cluster, topic, members, others = made()
    assert isinstance(move(cluster, "a", members[0], others[0]), m.TopicReply)
    cluster.kill((others[0], members[1]))
    assert isinstance(cluster.ask(members[2], m.DeleteTopic("jobs", topic.id), 6), m.Failed), (
        "of the present set only one is up"
    )
    cluster.start(members[1], 3)
    assert isinstance(cluster.ask(members[2], m.DeleteTopic("jobs", topic.id)), m.TopicReply)


def test_a_first_fetch_that_a_move_ends_is_no_ok_before_its_group_has_begun() -> None:
    """Else its client publishes what it takes for the first message of its group, and the group skips that."""
    cluster, _, (old,), others = made(rf=1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutGroup) and sender == old
    first = m.Fetch(("jobs",), "fresh", 10, 1 << 20, 1, 1.0, 5.0, 0.0, start="latest", idle=True)
    key = cluster.submit(old, first)
    assert isinstance(move(cluster, others[1], old, others[0]), m.TopicReply)
    check_failed(cluster.replies[key], "outcome-unknown", "was moved away")


def test_a_release_of_one_source_keeps_the_answers_to_the_others() -> None:
    """Else each handoff has the next source ask again, and many moves of a topic take as many rounds to end."""
    cluster, topic, (old,), others = made(rf=1)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply)
    assert isinstance(move(cluster, others[1], old, others[0]), m.TopicReply)
    core = cluster.nodes[old]
    source = core.context.sources[PartitionId(topic.id, 0)]
    handoff = source.handoff = Handoff()
    register = core.topics[topic.id]
    assert register.layout is not None
    source.use_set(register._replace(layout=register.layout._replace(number=9)))
    assert source.handoff is handoff
    placement = register.layout.placements[0]
    layout = register.layout._replace(number=9, placements=(placement._replace(epoch=9),))
    source.use_set(register._replace(layout=layout))
    assert source.handoff is None, "the slots are others"


def questioned(count: int) -> tuple[Cluster, Batches, Callable[[], list[int]]]:
    """Return the batches of a new slot, and a call that asks how many of ``count`` messages it lacks."""
    cluster, topic, (old,), (new, *_) = made(rf=1)
    publish(cluster, old, topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply)
    assert isinstance(move(cluster, new, old, new), m.TopicReply)
    cluster.advance(10.0)
    context, partition = cluster.nodes[new].context, PartitionId(topic.id, 0)
    batches = context.replicas[partition].batches
    request = m.SourceRequest(1, partition, batches.epoch, (Span(ME, 0, count),))

    def lacking() -> list[int]:
        effects = sources.answer(context, old, request, cluster.now)
        replies = [one.message for one in effects if isinstance(one, Send)]
        return [one.lacking for one in replies if isinstance(one, m.SourceReply)]

    return cluster, batches, lacking


def test_a_message_that_is_lost_is_counted_after_a_move_as_well() -> None:
    """A node that left has said that it lacks the message, and is none of the others any more."""
    cluster, topic, members, others = made(hold_time_max=2.0, heartbeat=2.0)
    publish(cluster, members[0], topic, 0, 1)
    partition = PartitionId(topic.id, 0)
    for name in members:
        cluster.unreadable[name] = {*cluster.nodes[name].replicas[partition].batches.stored}
    cluster.crash(members, 20.0)
    assert isinstance(move(cluster, members[0], members[2], others[0]), m.TopicReply)
    cluster.advance(20.0)
    assert cluster.nodes[members[2]].context.kept(partition) is None
    replicas = [cluster.nodes[name].replicas[partition] for name in (*members[:2], others[0])]
    assert [replica.batches.lost for replica in replicas] == [1, 1, 1]


def test_a_slot_lacks_what_is_not_on_its_disk_yet() -> None:
    _, batches, lacking = questioned(3)
    assert lacking() == [0]
    (batch,) = batches.stored.values()
    batch.durable = False
    assert lacking() == [3]
    batch.durable = True


def test_a_slot_does_not_lack_what_it_has_reclaimed_even_if_a_rewound_group_may_read_it() -> None:
    """Else a message that the rewind does not cover is pulled from the source and reclaimed, for ever."""
    cluster, batches, lacking = questioned(6)
    assert lacking() == [3]
    batches.learn_reclaimed([Span(ME, 3, 6)], cluster.now)
    assert lacking() == [0]
    batches.want_again(Span(ME, 3, 6))
    assert lacking() == [0]
    assert batches.absent.covers(Span(ME, 3, 6)), "it is pulled as long as a node has it"


def test_a_source_repeats_a_question_under_its_number_so_that_a_late_answer_counts() -> None:
    cluster, topic, (old,), (new, *_) = made(rf=1)
    publish(cluster, old, topic, 0)
    asked = noted(
        cluster,
        lambda sender, to, message: isinstance(message, m.SourceRequest),
        lambda sender, to, message: isinstance(message, m.SourceReply),
    )
    assert isinstance(move(cluster, new, old, new), m.TopicReply)
    cluster.advance(10.0)
    assert len(asked) >= 2
    assert len({message.round for message in asked}) == 1
    core, partition = cluster.nodes[old], PartitionId(topic.id, 0)
    late = m.SourceReply(asked[0].round, partition, asked[0].epoch, 0)
    (effect,) = sources.on_answer(core.context, new, late, cluster.now)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, m.SourceRequest)
    assert not effect.message.spans, "the rest is asked about"
    assert effect.message.round != asked[0].round


def shown(cluster: Cluster, node: str) -> list[dict[str, object]]:
    """The moves in a node's status."""
    return cluster.nodes[node].status(cluster.now)["moves"]  # type: ignore[return-value]


def test_the_status_of_a_move_has_its_progress() -> None:
    cluster, topic, (old,), (new, *_) = made(rf=1)
    for first in range(0, 200, 2):
        publish(cluster, old, topic, first, 2)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    assert isinstance(move(cluster, new, old, new), m.TopicReply)
    cluster.advance(3.0)
    (row,) = shown(cluster, old)
    assert (row["state"], row["waits_for"]) == ("leaving", [new])
    assert row["messages_left"] == 200
    pulls = iter(range(1))
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull) and next(pulls, None) is None
    cluster.advance(9.0)
    (row,) = shown(cluster, old)
    rest = row["messages_left"]
    assert isinstance(rest, int)
    assert 0 < rest < 200
    assert row["messages_per_s"]
    cluster.hear_all(10.0)
    assert shown(cluster, old) == []


def test_a_source_that_cannot_be_reached_is_shown_by_one_node() -> None:
    cluster, topic, members, others = made()
    publish(cluster, members[0], topic, 0)
    cluster.drop = lambda sender, to, message: isinstance(message, m.SourceReply)
    assert isinstance(move(cluster, others[1], members[0], others[0]), m.TopicReply)
    cluster.advance(5.0)
    cluster.kill(members[0], 1.0)
    rows = [row for node in cluster.nodes for row in shown(cluster, node)]
    assert [(row["state"], row["waits_for"]) for row in rows] == [("away", [members[0]])]


def test_the_rate_of_a_copy_goes_by_its_last_answers() -> None:
    handoff = Handoff()
    assert handoff.progress(Now(0.0, 0)) == (None, None, None)

    def answered(time: float, lacking: int, beyond: int = 0) -> None:
        handoff.ask(1, (), ("b", "c"), time + 1, beyond)
        handoff.lacking = {"b": lacking, "c": 0}
        handoff.count(("b", "c"), Now(time, 0))

    answered(10.0, 100, beyond=900)
    assert handoff.progress(Now(10.5, 0)) == (1000, None, None), "a rate over half a second would be noise"
    for at in range(1, 10):
        answered(10.0 + at / 10, 100, beyond=900 - 10 * at)
    assert len(handoff.counts) == 2, "answers of one second are one count"
    answered(11.0, 100, beyond=800)
    assert handoff.progress(Now(11.0, 0)) == (900, 100.0, 9.0)
    for second in range(12, 60):
        answered(float(second), 900)
    assert handoff.progress(Now(59.0, 0)) == (900, 0.0, None), "it stands still"
    answered(60.0, 950)
    assert handoff.progress(Now(62.0, 0)) == (950, 0.0, None), "a slot has lost its disk"
    handoff.ask(2, (), ("b",), 62.0, 0)
    handoff.lacking = {"b": 3}
    handoff.count(("b", "c"), Now(62.0, 0))
    assert handoff.progress(Now(62.0, 0)).messages_left == 950, "c has not said what it lacks"


def test_an_adopted_layout_is_handed_to_the_driver_when_it_is_durable() -> None:
    cluster, _, members, others = made()
    assert isinstance(move(cluster, others[1], members[0], others[0]), m.TopicReply)
    cluster.advance(12.0)
    for core in cluster.nodes.values():
        assert [each.layout_number for each in core.context.adopted] == [2, 3], "moved, and released"


def test_a_node_gives_moves_no_more_bytes_than_its_limit() -> None:
    cluster = Cluster(3, move_bytes_per_s=1000)
    topic = cluster.topic(rf=1)
    (old,) = topic.replicas[0]
    new = next(name for name in cluster.names if name != old)
    partition = PartitionId(topic.id, 0)
    for first in range(100):
        batch = cluster.batch(topic, ME, first, [b"x" * 500])
        assert isinstance(cluster.ask(old, m.Publish(batch)), m.PublishReply)
    assert isinstance(move(cluster, new, old, new), m.TopicReply)
    cluster.advance(1.0)
    batches = cluster.nodes[new].replicas[partition].batches
    for _ in range(6):
        before = batches.present.messages
        cluster.advance(4.0)
        assert 3 <= batches.present.messages - before <= 16, (
            "two seconds' more for the budget of the beginning"
        )
    rows = shown(cluster, old)
    assert [row["state"] for row in rows] == ["leaving", "limited"]
    assert rows[1]["waits_for"] == []
    cluster.advance(60.0)
    assert batches.present.messages == 100
    cluster.advance(10.0)
    assert not any(shown(cluster, name) for name in cluster.names)


def test_a_node_gives_to_no_more_moves_at_a_time_than_its_limit() -> None:
    config = NodeConfig(node="a", nodes=("a", "b"), moves_at_once=1)
    throttle, first, second = MoveThrottle(config), PartitionId(b"t", 0), PartitionId(b"t", 1)
    assert throttle.begin(first, Now(10.0, 0))
    assert not throttle.begin(second, Now(11.0, 0))
    assert throttle.held_up(Now(11.0, 0)) == [(second, [first])]
    assert throttle.begin(first, Now(12.0, 0)), "it goes on"
    throttle.end(first)
    assert throttle.begin(second, Now(13.0, 0))
    assert throttle.held_up(Now(13.0, 0)) == []
    assert not throttle.begin(first, Now(14.0, 0))
    assert throttle.begin(first, Now(19.5, 0)), "the other asked for nothing for three intervals"


def test_a_limit_changes_within_an_interval_for_a_move_that_is_under_way() -> None:
    """Bytes that were given without a limit are no debt, or a limit would stop the move for as long as they take."""
    cluster = Cluster(3)
    topic = cluster.topic(rf=1)
    (old,) = topic.replicas[0]
    new = next(name for name in cluster.names if name != old)
    for first in range(40):
        batch = cluster.batch(topic, ME, first, [b"x" * 50_000])
        assert isinstance(cluster.ask(old, m.Publish(batch)), m.PublishReply)
    throttle = cluster.nodes[old].context.throttle
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncPull)
    assert isinstance(move(cluster, new, old, new), m.TopicReply)
    cluster.advance(1.0)
    cluster.drop = lambda sender, to, message: False
    cluster.feed(old, MovesLimited(bytes_per_s=1_000, at_once=2))
    cluster.advance(10.0)
    batches = cluster.nodes[new].replicas[PartitionId(topic.id, 0)].batches
    assert batches.present.messages < 40
    assert [row["state"] for row in shown(cluster, old)] == ["leaving", "limited"]
    status = cluster.nodes[old].status(cluster.now)
    assert (status["move_bytes_per_s"], status["moves_at_once"]) == (1_000, 2)
    cluster.feed(old, MovesLimited(bytes_per_s=0, at_once=0))
    cluster.advance(5.0)
    assert batches.present.messages == 40
    assert throttle.budget < -1_000_000, "given without a limit"
    cluster.feed(old, MovesLimited(bytes_per_s=1_000, at_once=0))
    assert not throttle.is_used_up


def test_a_lower_number_of_moves_has_those_wait_that_began_last() -> None:
    throttle, parts = (
        MoveThrottle(NodeConfig(node="a", nodes=("a", "b"))),
        [PartitionId(b"t", number) for number in range(3)],
    )
    assert all(throttle.begin(part, Now(10.0, 0)) for part in parts)
    throttle.limit(0, 1, Now(11.0, 0))
    assert throttle.held_up(Now(11.0, 0)) == [(part, parts[:1]) for part in parts[1:]]
    assert [throttle.begin(part, Now(12.0, 0)) for part in parts] == [True, False, False]


def test_all_that_nodes_say_of_a_move_can_be_read() -> None:
    """A slot that did not vote yet answered a source with -1, and that broke the connection."""
    cluster = Coded(5)
    cluster.submit("a", m.CreateTopic("jobs", 3, 1))
    (topic,) = cluster.nodes["a"].topics.values()
    members = list(topic.replicas[0])
    (to, _) = [name for name in cluster.names if name not in members]
    cluster.drop = lambda sender, receiver, message: isinstance(message, m.ResyncReply)
    cluster.submit(members[1], m.MovePartition("jobs", 0, members[0], to))
    cluster.advance(10.0)
    partition = PartitionId(topic.id, 0)
    handoff = cluster.nodes[members[0]].context.sources[partition].handoff
    assert handoff is not None
    assert handoff.lacking[to] == -1
    cluster.hear_all(20.0)
    assert not cluster.nodes[members[0]].context.sources

"""Registers of deleted topics that name sets: kept until the deletion is at a majority of each, then packed."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.catalogue import Catalogue
from quorumq.core.cluster.members import first_layout, with_member
from quorumq.core.cluster.topics import all_sets, closed, merge_topics
from quorumq.core.recovery import resync
from quorumq.core.values import limits
from quorumq.core.values.types import Group, Layout, Member, Placement, ReplicaSlot, Stamp, Topic, topic_id
from quorumq.wire.codec import encode_message
from tests.core.conftest import Without
from tests.core.growing import GrowingCluster

NODES = ("a", "b", "c")


def grown(**settings: object) -> GrowingCluster:
    """A cluster of three nodes and two later members, whose nodes pack every deleted register at once."""
    cluster = GrowingCluster(3, **{"deleted_unpacked": 0, "sync_interval": 2.0, **settings})
    cluster.add("d")
    cluster.add("e")
    return cluster


def packed(cluster: GrowingCluster) -> list[tuple[int, int]]:
    """Return how many deleted registers each node has packed, and how many it has not."""
    catalogues = [core.catalogue for core in cluster.nodes.values()]
    return [(len(it.deleted), len(it.unpacked) + len(it.unpackable)) for it in catalogues]


def agreed(cluster: GrowingCluster) -> bool:
    return len({core.catalogue.sums.root() for core in cluster.nodes.values()}) == 1


def register(**more: object) -> Topic:
    """Return the register of a topic that a later member has made."""
    made = Stamp(7, "d")
    return Topic(topic_id("t", 3, 0), "t", 3, (NODES,), 5, made, made=made)._replace(**more)  # type: ignore[arg-type]


def test_names_that_were_deleted_in_a_grown_cluster_are_packed() -> None:
    """A topic with five replicas, one with a layout and a group, made and deleted by a later member."""
    cluster = grown()
    wide = cluster.ask("d", m.CreateTopic("wide", 5, 2)).topic
    moved = cluster.ask("a", m.CreateTopic("moved", 3, 1)).topic
    (source, *_), (to, *_) = moved.replicas[0], [node for node in "abcde" if node not in moved.replicas[0]]
    assert isinstance(cluster.ask("a", m.MovePartition("moved", 0, source, to)), m.TopicReply)
    cluster.ask("d", m.SetGroup("wide", "g"))
    cluster.ask("d", m.DeleteGroup("wide", "g"))
    cluster.advance(5.0)
    assert packed(cluster) == [(1, 0)] * 5
    for topic in (wide, moved):
        assert isinstance(cluster.ask("d", m.DeleteTopic(topic.name, topic.id)), m.TopicReply)
    cluster.advance(10.0)
    assert packed(cluster) == [(2, 0)] * 5, "the group went with its topic"
    assert agreed(cluster)
    for name in "abcde":
        cluster.crash(name)
    cluster.relink()
    assert packed(cluster) == [(2, 0)] * 5
    assert cluster.ask("b", m.CreateTopic("wide", 5, 2)).topic.deletions == 1


def test_a_register_keeps_its_sets_until_the_deletion_has_reached_them(rule: bool, without: Without) -> None:
    """Else a DELETE that is repeated counts other sets: it is OK, and messages are published and acked after it."""
    without("quorumq.core.cluster.deleted_names.names_sets", lambda topic: False)
    cluster = grown()
    topic = cluster.ask("a", m.CreateTopic("jobs", 3, 8)).topic
    assert any({"d", "e"} <= set(members) for members in topic.replicas)
    cut_off = dict.fromkeys("de")
    cluster.drop = lambda sender, to, message: (sender in cut_off) != (to in cut_off)
    assert isinstance(cluster.ask("a", m.DeleteTopic("jobs", topic.id), 6.0), m.Failed), (
        "the sets with d and e have not heard of it"
    )
    assert isinstance(cluster.ask("a", m.DeleteTopic("jobs", topic.id), 6.0), m.Failed) is rule
    assert {cluster.nodes[name].catalogue.topics[topic.id].deleted for name in "de"} == {False}


def test_a_deletion_of_unknown_outcome_is_completed_by_a_node() -> None:
    cluster = grown()
    topic = cluster.ask("a", m.CreateTopic("jobs", 3, 8)).topic
    cluster.drop = lambda sender, to, message: isinstance(message, m.PutReply)
    assert isinstance(cluster.ask("a", m.DeleteTopic("jobs", topic.id), 6.0), m.Failed)
    assert any(core.catalogue.unpackable for core in cluster.nodes.values())
    cluster.hear_all(20.0)
    assert packed(cluster) == [(1, 0)] * 5
    assert agreed(cluster)


def test_a_buried_register_names_no_sets_whatever_it_is_merged_with() -> None:
    layout = Layout(topic_id("t", 3, 0), 2, Stamp(8, "a"), (Placement(0, 2, (ReplicaSlot("d", 2),)),))
    live = register(layout=layout, over=(("a", ""), ("d", "")), proposed=7)
    buried = closed(live._replace(buried=True))
    assert (buried.layout, buried.over, buried.proposed) == (None, (), 7)
    assert all_sets(buried, NODES) == ()
    for other in (live, closed(live), closed(live._replace(next_layout=layout))):
        assert merge_topics(buried, other) == merge_topics(other, buried) == buried
    catalogue = Catalogue("a", b"key", first_layout((*NODES, "d")))
    plain, more = closed(register()), closed(register(proposed=9))
    entries = [catalogue.deleted.pack(it) for it in (buried, plain, more)]
    assert all(entry is not None and catalogue.deleted.is_sound(entry) for entry in entries)
    catalogue.deleted.put(catalogue.deleted.index_of(entries[0][:32]), [entries[0]])  # type: ignore[index]
    assert catalogue.deleted.merged(entries[1]) is None  # type: ignore[arg-type]
    merged = catalogue.deleted.unpack(catalogue.deleted.merged(entries[2]), "t")  # type: ignore[arg-type]
    assert (merged.buried, merged.proposed) == (True, 9)  # type: ignore[union-attr]


def test_registers_of_a_member_that_becomes_known_later_have_one_digest() -> None:
    """They may be received before the layout with the node that made them."""
    layout = first_layout(NODES)
    later = with_member(layout, Member("d", "d:1"), Stamp(3, "a"))
    before, after = Catalogue("a", b"key", layout), Catalogue("b", b"key", later)
    live = register(made=Stamp(1, "a"))._replace(id=topic_id("u", 3, 0), name="u")
    for catalogue in (before, after):
        catalogue.take_topic(closed(register()))
        catalogue.take_topic(live)
        catalogue.take_group(Group(live.id, "g", 1, buried=1, made=Stamp(5, "d")))
        while (bucket := catalogue.crowded(0)) is not None:
            catalogue.pack(bucket)
    assert (len(before.unpackable), len(after.unpackable)) == (2, 0)
    assert before.take_cluster(later)
    before.check()
    assert before.sums.root() == after.sums.root()
    while (bucket := before.crowded(0)) is not None:
        before.pack(bucket)
    assert not before.unpackable
    assert before.all_deleted() == after.all_deleted()


def test_a_register_with_more_replicas_than_voters_is_sound() -> None:
    deleted = Catalogue("a", b"key", first_layout(NODES)).deleted
    entry = deleted.pack(closed(register(made=Stamp(7, "a"), rf=5)))
    assert entry is not None
    assert deleted.is_sound(entry)
    assert len(entry) == limits.DELETED_BYTES


def test_registers_with_many_placements_fit_a_frame() -> None:
    """Fifty registers of moved topics had 12 MB, and a frame's header has 4 MB at most."""
    slots = tuple(ReplicaSlot(node * 32, 2) for node in NODES)
    placements = tuple(Placement(at, 2, slots, slots, ("d" * 32,)) for at in range(limits.PARTITIONS_MAX))
    layout = Layout(topic_id("t", 3, 0), 2, Stamp(8, "a"), placements)
    sets = (tuple(slot.node for slot in slots),) * limits.PARTITIONS_MAX
    topics = [register(layout=layout, next_layout=layout, replicas=sets)] * 5
    chunks = resync.in_chunks([register()] * 60 + topics, [])
    assert [len(chunk.topics) for chunk in chunks] == [50, 11, 1, 1, 1, 1]
    assert all(sum(map(len, encode_message(chunk))) < limits.HEADER_BYTES_MAX for chunk in chunks[1:3])

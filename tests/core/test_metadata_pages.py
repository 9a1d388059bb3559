"""METADATA in pages: what one frame cannot hold is not refused."""

from __future__ import annotations

from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.node import status
from quorumq.core.values.limits import PARTITIONS_MAX
from quorumq.core.values.types import Group, Layout, Placement, ReplicaSlot, Stamp, Topic
from quorumq.wire.codec import encode_message
from tests.core.cluster import Cluster


def pages_of(cluster: Cluster, *names: str) -> list[m.MetadataReply]:
    pages: list[m.MetadataReply] = []
    after: Any = None
    while not pages or after is not None:
        pages.append(cluster.ask("a", m.Metadata(names, after=after), of=m.MetadataReply))
        after = pages[-1].more
    return pages


def in_a_raise(topic: Topic, number: int) -> Topic:
    """A topic of as many partitions as may be, in a raise, with the longest names of nodes."""
    nodes = [f"{at:032}" for at in range(5)]
    slots = tuple(ReplicaSlot(node, 1 << 40) for node in nodes)
    placements = tuple(
        Placement(at, 1 << 40, slots, slots[:3], tuple(nodes[:3]), tuple(nodes[3:]))
        for at in range(PARTITIONS_MAX)
    )
    id_ = number.to_bytes(16, "big")
    layout = Layout(id_, 2, Stamp(1 << 50, nodes[0]), placements, 5)
    replicas = (tuple(nodes),) * PARTITIONS_MAX
    return topic._replace(id=id_, name=f"{number:0200}", replicas=replicas, layout=layout, next_layout=layout)


def test_nine_topics_in_a_raise_take_several_pages_and_each_fits_a_frame() -> None:
    cluster = Cluster()
    topic = cluster.topic()
    context = cluster.nodes["a"].context
    topics = {one.id: one for one in (in_a_raise(topic, number) for number in range(1, 10))}
    for one in topics.values():
        register = m.TopicReply(one)
        assert sum(map(len, encode_message(register))) <= status.weight_of(one)
    seen: list[Topic] = []
    after: Any = None
    pages = 0
    while not pages or after is not None:
        shown, groups, after = status.registers_page(context.catalogue, topics, m.Metadata(after=after))
        reply = cluster.ask("a", m.Metadata(), of=m.MetadataReply)
        encode_message(reply._replace(topics=shown, groups=groups))
        seen += shown
        pages += 1
    assert seen == list(topics.values())
    assert pages > 1


@pytest.mark.parametrize("size", [1, 3000, 6000, 1 << 20])
def test_pages_have_all_topics_and_groups_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    for name in ("one", "two", "three"):
        cluster.topic(name)
        for number in range({"one": 0, "two": 1, "three": 20}[name]):
            cluster.ask("a", m.SetGroup(name, f"g{number}"))
    cluster.ask("a", m.DeleteGroup("three", "g3"))
    (whole,) = pages_of(cluster)
    monkeypatch.setattr(status, "METADATA_BYTES", size)
    pages = pages_of(cluster)
    assert (len(pages) > 1) == (size < 1 << 20)
    groups: list[Group] = [group for page in pages for group in page.groups]
    assert sorted(groups) == sorted(whole.groups)
    assert {topic.id for page in pages for topic in page.topics} == {topic.id for topic in whole.topics}
    assert all(page.nodes == whole.nodes for page in pages)
    assert [len(page.topics) for page in pages_of(cluster, "two")] == [1]

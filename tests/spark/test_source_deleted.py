"""Deleted names and moved partitions in journals: what was deleted or moved away is not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from quorumq.core.cluster.deleted_names import DeletedNames, key_of_register
from quorumq.core.cluster.topics import closed, with_layout
from quorumq.core.messages.records import DeletedNoted, DeletedPage, GroupPut, TopicPut
from quorumq.core.values.types import (
    Group,
    Kind,
    Layout,
    PartitionId,
    Placement,
    ProducerId,
    Record,
    ReplicaSlot,
    Span,
    Stamp,
    Topic,
    topic_id,
)
from spark.schemas import schema
from spark.source.arrow import Batches
from spark.source.options import read_options
from spark.source.stream import DeathsStream, StreamReader
from tests.spark.cluster_on_disk import (
    MAILS,
    NAMES,
    ORDERS,
    PRODUCER_ID,
    DiskCluster,
    Node,
    cause_of,
    mark,
    rows_of,
    topic,
)

OTHER = ProducerId("n1", 1, 0xABC, 9)
KEY = PartitionId(MAILS, 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DiskCluster]:
    disk_cluster = DiskCluster(tmp_path)
    yield disk_cluster
    disk_cluster.close()


def die(cluster: DiskCluster, key: PartitionId, seq: int, nodes: list[Node] | None = None) -> None:
    """Publish a message, and let it die for the group billing."""
    span = Span(PRODUCER_ID, seq, seq + 1)
    cluster.publish(key, (span,), 1_000 + seq, nodes)
    cluster.resolve(key, "billing", span, Record(0, 0, Kind.DEAD, cause_of(seq, 1_000 + seq)), nodes)


def roll(*nodes: Node) -> None:
    for node in nodes:
        node.store.roll(node.snapshot)
        node.store.commit()


def page_of(node: Node, register: Topic | Group) -> DeletedPage:
    """The page of the journal that has one packed register."""
    names = DeletedNames(NAMES, b"a secret")
    index = names.index_of(key_of_register(register))
    entry = names.pack(register)
    assert entry is not None
    names.put(index, (entry,))
    node.number = max(node.number + 1, node.store.next_number)
    return names.save(index, node.number)[0]


def drop_topic(node: Node, identity: bytes) -> None:
    """Do as a node that knows of the deletion, and has packed the name since: it has nothing of the topic."""
    node.registers = [it for it in node.registers if it[0][0] != identity]  # type: ignore[index]
    node.records = {key: value for key, value in node.records.items() if key[0].topic != identity}
    for number, batch in list(node.batches.items()):
        if batch.header.partition.topic == identity:
            node.reclaim(number)
    node.reclaimed = {key: names for key, names in node.reclaimed.items() if key.topic != identity}


def packed(node: Node, register: Topic | Group, way: str) -> None:
    """Pack a register into a page of an older segment, into one that was moved, or into a record of the newest."""
    page = page_of(node, register)
    if way == "noted":
        node.registers.append(DeletedNoted(page.packed))
        node.store.append([DeletedNoted(page.packed)])
    else:
        node.store.append([page])
        die_elsewhere(node)
    roll(node)
    if way == "moved":
        for _ in range(4):
            node.store.compact()
            node.store.commit()
        roll(node)
        roll(node)


def die_elsewhere(node: Node) -> None:
    """Append much that no one needs, so that the segment is worth compaction."""
    for at in range(20):
        node.put_and_reclaim(PartitionId(ORDERS, 1), Span(OTHER, 100 + at, 101 + at))


def ids(cluster: DiskCluster, table: str) -> list[tuple[str, int]]:
    rows = rows_of(table, cluster.data)
    return sorted((row["topic"], row.get("seq", row.get("start"))) for row in rows)


def followed(cluster: DiskCluster) -> list[dict[str, Any]]:
    """The rows of a stream from the beginning, and that nothing follows."""
    options = read_options({"table": "deadletters", "data": ",".join(map(str, cluster.data))}, stream=True)
    stream = DeathsStream(options, schema("deadletters"))
    end = stream.latestOffset({}, stream.getDefaultReadLimit())
    rows = [
        row
        for task in stream.partitions({}, end)
        for batch in StreamReader(task, options, Batches(schema("deadletters"))).read()  # type: ignore[arg-type]
        for row in batch.to_pylist()
    ]
    stream.stop()
    return rows


TABLES = ("deadletters", "messages")


@pytest.mark.parametrize("way", ["page", "moved", "noted"])
@pytest.mark.parametrize("away", [0, 1])
def test_a_deleted_and_packed_topic_does_not_come_back(cluster: DiskCluster, away: int, way: str) -> None:
    """Older segments still have its dead letters, and a node that was away has its register."""
    for key in (KEY, PartitionId(ORDERS, 0)):
        die(cluster, key, 1)
    roll(*cluster.nodes)
    for node in cluster.nodes[away:]:
        drop_topic(node, MAILS)
        packed(node, closed(topic("mails", MAILS, 1)), way)
    for table in TABLES:
        assert ids(cluster, table) == [("orders", 1)], table
    mark(cluster)
    assert [row["topic"] for row in followed(cluster)] == ["orders"]


def test_a_topic_without_a_register_is_shown_unless_its_journal_is_whole(cluster: DiskCluster) -> None:
    """The page itself may be lost: a whole journal with batches of a topic, and no register of it, says enough."""
    die(cluster, KEY, 1)
    die(cluster, PartitionId(ORDERS, 0), 1)
    roll(*cluster.nodes)
    for node in cluster.nodes:
        drop_topic(node, MAILS)
    roll(*cluster.nodes)
    assert ids(cluster, "deadletters") == [("orders", 1)]


def test_a_topic_that_was_made_again_has_only_its_own(cluster: DiskCluster) -> None:
    die(cluster, KEY, 1)
    roll(*cluster.nodes)
    again = topic("mails", topic_id("mails", 3, 1), 1)._replace(deletions=1, made=Stamp(9, "n1"))
    for node in cluster.nodes[1:]:
        drop_topic(node, MAILS)
        packed(node, closed(topic("mails", MAILS, 1)), "page")
        node.register(TopicPut(again))
    die(cluster, PartitionId(again.id, 0), 5, cluster.nodes[1:])
    mark(cluster)
    for table in TABLES:
        assert ids(cluster, table) == [("mails", 5)], table
    (row,) = followed(cluster)
    assert row["seq"] == 5


@pytest.mark.parametrize("way", ["page", "noted", "register"])
def test_a_group_that_was_deleted_has_no_dead_letters(cluster: DiskCluster, way: str) -> None:
    """Records of generations below that of the deletion are void, and those of a later one count."""
    for seq in (1, 2):
        die(cluster, KEY, seq)
    roll(*cluster.nodes)
    gone = Group(MAILS, "billing", 3, buried=3, made=Stamp(7, "n2"))
    for node in cluster.nodes[1:]:
        if way == "register":
            node.register(GroupPut(gone))
            continue
        node.registers = [
            it for it in node.registers if not (isinstance(it, GroupPut) and it.group.topic == MAILS)
        ]
        node.records.pop((KEY, "billing"))
        packed(node, gone, way)
    cluster.commit()
    assert ids(cluster, "deadletters") == [] == followed(cluster)
    span = Span(PRODUCER_ID, 2, 3)
    cluster.resolve(KEY, "billing", span, Record(4, 0, Kind.DEAD, cause_of(9, 1_002)), cluster.nodes[1:])
    for node in cluster.nodes[1:]:
        node.register(GroupPut(gone._replace(generation=4)))
    cluster.commit()
    (row,) = rows_of("deadletters", cluster.data)
    assert (row["seq"], int(row["generation"]), row["resolution"]) == (2, 4, "dead")


def moved(sources: tuple[str, ...]) -> Topic:
    """Partition 0 of orders after its move from n3 to n4."""
    slots = tuple(ReplicaSlot(node, since) for node, since in (("n1", 1), ("n2", 1), ("n4", 2)))
    layout = Layout(ORDERS, 2, Stamp(5, "n1"), (Placement(0, 2, slots, (), sources),))
    return with_layout(topic("orders", ORDERS), layout)


@pytest.mark.parametrize("sources", [(), ("n3",)])
def test_a_moved_partition_is_read_by_its_slots_and_sources(
    tmp_path: Path, cluster: DiskCluster, sources: tuple[str, ...]
) -> None:
    """A node that has released it still has its dead letters in older segments."""
    key = PartitionId(ORDERS, 0)
    die(cluster, key, 1)
    die(
        cluster, key, 2, cluster.nodes[2:]
    )  # redriven and closed at the others meanwhile: they have nothing of it
    die(cluster, PartitionId(ORDERS, 1), 3)
    roll(*cluster.nodes)
    cluster.nodes.append(Node(tmp_path, "n4", 1 << 26))
    cluster.nodes[3].register(TopicPut(topic("mails", MAILS, 1)))
    for node in cluster.nodes:
        node.register(TopicPut(moved(sources)))
    die(cluster, key, 1, cluster.nodes[3:])
    if not sources:
        cluster.nodes[2].records.pop((key, "billing"))
    cluster.commit()
    roll(*cluster.nodes)
    slots = ["n1", "n2", *sources, "n4"]
    expected = {(0, 1): slots, (1, 3): ["n1", "n2", "n3"], **({(0, 2): ["n3"]} if sources else {})}
    for rows in (rows_of("deadletters", cluster.data), rows_of("messages", cluster.data), followed(cluster)):
        assert {(row["partition"], row["seq"]): row["replicas"] for row in rows} == expected
    for row in rows_of("messages", cluster.data, [EqualTo(("partition",), 0)]):
        assert row["replica_set"] == row["asked"] == ["n1", "n2", "n4"]

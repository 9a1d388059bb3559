"""The live tables, of a real cluster: complete, and nothing is held, counted or consumed by looking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from pyspark.sql import DataFrame, SparkSession

from quorumq.client import Client, connect
from quorumq.core.values.types import Kind
from quorumq.lab.local import LocalCluster
from tests.patience import PATIENCE_S
from tests.spark.cluster_on_disk import rows_of

pytestmark = pytest.mark.e2e


async def fill(client: Client) -> None:
    """Sixty messages in two partitions: ten acked, ten dead, five held, the rest ready."""
    await client.create_topic("jobs", partitions=2)
    async with client.producer("jobs") as producer:
        for number in range(60):
            await producer.send(
                f"job {number}".encode() * 20, key=f"{number}".encode(), headers={"n": number}
            )
    taken = await client.fetch(
        "jobs", "g", max_messages=25, min_messages=25, max_wait=PATIENCE_S, hold_time=600
    )
    await client.ack(taken[:10])
    for number, message in enumerate(taken[10:20]):
        await client.dead_letter([message], error=ValueError(f"no such account {number}"))
    assert len(taken) == 25


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, hold_time_max=600.0) as local:

        async def run() -> None:
            async with connect(list(local.addresses)) as client:
                await fill(client)

        trio.run(run)
        yield local


def table(spark: SparkSession, cluster: LocalCluster, name: str, **options: str) -> DataFrame:
    reader = spark.read.format("quorumq").option("table", name).option("nodes", ",".join(cluster.addresses))
    return reader.options(**options).load()


async def tops_of(client: Client) -> list[Any]:
    """Everything that a look may not change: states, records, attempts, owners."""
    items: list[Any] = []
    for group in ("g", "g!dead"):
        async for item in client.peek("jobs", group, "all", complete=True):
            items.append((group, item.partition, item.peeked._replace(remaining=0.0)))
    known = await client.metadata()
    return [*items, known.groups, known.topics]


def observed(cluster: LocalCluster) -> list[Any]:
    async def run() -> list[Any]:
        async with connect(list(cluster.addresses)) as client:
            return await tops_of(client)

    return trio.run(run)


def wait_until_all_have_all(cluster: LocalCluster) -> None:
    """A publish returns when a majority has it: wait for the third."""

    async def run() -> None:
        async with connect(list(cluster.addresses)) as client:
            await client.metadata()
            for node in cluster.nodes:
                with trio.fail_after(PATIENCE_S):
                    while True:
                        seen = [item async for item in client.peek("jobs", "g", "all", node=node)]
                        states = [item.peeked.record.kind for item in seen for _ in item.ids(b"")]
                        if len(states) == 60 and states.count(Kind.DEAD) == states.count(Kind.ACKED) == 10:
                            break
                        await trio.sleep(0.05)

    trio.run(run)


def test_a_look_at_everything_changes_nothing(spark: SparkSession, cluster: LocalCluster) -> None:
    wait_until_all_have_all(cluster)
    before = observed(cluster)
    messages = table(spark, cluster, "messages").collect()
    dead_letters = table(spark, cluster, "deadletters", group="g").collect()
    assert observed(cluster) == before

    everyone = sorted(cluster.nodes)
    assert len({row.id for row in messages}) == len(messages) == 60
    for row in messages:
        number = int(row.headers["n"])
        assert bytes(row.payload) == f"job {number}".encode() * 20
        assert bytes(row.key) == f"{number}".encode()
        assert row.replicas == row.asked == row.replica_set == everyone
    assert len({row.id for row in dead_letters}) == len(dead_letters) == 10
    for row in dead_letters:
        assert (row.resolution, row.reason, row.error_class) == ("dead", "rejected", "ValueError")
        assert bytes(row.payload) == f"job {row.headers['n']}".encode() * 20
        assert row.replicas == everyone
    # And the same offline, while the nodes are running.
    data = [cluster.data_path(name) for name in cluster.nodes]
    same = ("id", "topic", "partition", "key", "payload", "size", "crc", "replicas", "asked", "replica_set")
    offline = sorted([[row[name] for name in same] for row in rows_of("messages", data)], key=str)
    assert offline == sorted(
        [
            [bytes(row[name]) if name in ("key", "payload") else row[name] for name in same]
            for row in messages
        ],
        key=str,
    )
    died = {
        row["id"]: (row["message"], row["died_at"], row["digest"]) for row in rows_of("deadletters", data)
    }
    died_at = {row["id"]: row["died_at"] for row in rows_of("deadletters", data)}
    assert {row.id: (row.message, died_at[row.id], row.digest) for row in dead_letters} == died


def test_columns_and_filters_are_taken(spark: SparkSession, cluster: LocalCluster) -> None:
    rows = table(spark, cluster, "messages", columns="id,partition,replicas").where("partition = 1").collect()
    assert rows
    assert {row.partition for row in rows} == {1}
    assert table(spark, cluster, "messages", topic="nothing").count() == 0
    assert table(spark, cluster, "deadletters", group="h").count() == 0


def test_a_cluster_that_is_down_is_an_error_in_time(spark: SparkSession) -> None:
    reader = spark.read.format("quorumq").options(table="messages", nodes="127.0.0.1:1", timeout="2")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        reader.load().count()

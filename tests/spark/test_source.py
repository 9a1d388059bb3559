"""`format("quorumq")` through Spark: options, columns, filters, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from quorumq.core.values.types import Kind, ProducerId, Record, Span
from spark.schemas import TABLES, schema
from tests.spark.cluster_on_disk import DiskCluster, cause_of, rows_of

PRODUCER_ID = ProducerId("n1", 1, 0xABC, 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskCluster]:
    disk_cluster = DiskCluster(tmp_path_factory.mktemp("nodes"), segment_bytes=3_000)
    for at in range(40):
        key = disk_cluster.keys[at % 3]
        disk_cluster.publish(
            key, (Span(PRODUCER_ID, at, at + 1),), 1_000 + at, disk_cluster.nodes[: 2 + at % 2]
        )
        if at % 4 == 0:
            disk_cluster.resolve(
                key,
                "billing",
                Span(PRODUCER_ID, at, at + 1),
                Record(0, 0, Kind.DEAD, cause_of(at, 1_000 + at)),
            )
        disk_cluster.commit()
    yield disk_cluster
    disk_cluster.close()


def data_of(cluster: DiskCluster) -> str:
    return ",".join(map(str, cluster.data))


@pytest.mark.parametrize("table", TABLES)
def test_every_table_comes_with_its_schema(spark: SparkSession, cluster: DiskCluster, table: str) -> None:
    frame = spark.read.format("quorumq").option("table", table).load(data_of(cluster))
    assert frame.schema == schema(table)
    assert frame.count() == len(rows_of(table, cluster.data))


def test_filters_and_columns_read_less_and_give_the_same(spark: SparkSession, cluster: DiskCluster) -> None:
    whole = (
        spark.read.format("quorumq").option("table", "messages").load([str(path) for path in cluster.data])
    )
    condition = (
        (F.col("topic") == "orders")
        & (F.col("partition") == 1)
        & (F.col("published_at") > F.timestamp_millis(F.lit(1_010)))
    )
    rows = [
        row for row in rows_of("messages", cluster.data) if row["topic"] == "orders" and row["partition"] == 1
    ]
    expected = sorted(row["id"] for row in rows if row["published_at"].timestamp() > 1.010)
    assert expected
    narrow = (
        spark.read.format("quorumq")
        .option("table", "messages")
        .option("columns", "id,topic,partition,published_at")
    )
    for frame in (whole.where(condition), narrow.load(data_of(cluster)).where(condition)):
        assert sorted(row["id"] for row in frame.collect()) == expected
    assert narrow.load(data_of(cluster)).columns == ["id", "topic", "partition", "published_at"]


def test_under_replication_is_a_query(spark: SparkSession, cluster: DiskCluster) -> None:
    messages = spark.read.format("quorumq").option("table", "messages").load(data_of(cluster))
    missing = F.array_except(F.array_except("asked", "replicas"), "reclaimed")
    rows = messages.select("seq", missing.alias("missing")).where(F.size("missing") > 0).collect()
    assert {row["seq"]: row["missing"] for row in rows} == {at: ["n3"] for at in range(0, 40, 2)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "option table is missing"),
        ({"table": "letters"}, "there is no table 'letters'"),
        ({"table": "messages"}, "give either option data"),
        ({"table": "messages", "data": "a", "nodes": "b:1"}, "both are given"),
        ({"table": "problems", "nodes": "127.0.0.1:1"}, "does not show its journal"),
        ({"table": "messages", "data": "a", "colour": "red"}, "there is no option 'colour'"),
        ({"table": "messages", "data": "a", "columns": "id,colour"}, "has no column 'colour'"),
        ({"table": "messages", "data": "a", "group": "g"}, "has no groups"),
        ({"table": "messages", "data": "a", "onDamage": "ignore"}, "must be fail or report"),
        ({"table": "messages", "data": "[1"}, "begins like a JSON list"),
    ],
)
def test_unreadable_options_are_refused(spark: SparkSession, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        spark.read.format("quorumq").options(**options).load().count()


def test_a_schema_of_other_columns_is_refused(spark: SparkSession, cluster: DiskCluster) -> None:
    reader = spark.read.format("quorumq").option("table", "messages")
    assert reader.schema("id string, size bigint").load(data_of(cluster)).columns == ["id", "size"]
    with pytest.raises(Exception, match="the schema names id bigint"):
        reader.schema("id bigint").load(data_of(cluster)).count()


def test_a_directory_that_is_no_nodes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for path, says in (
        (tmp_path, "is no node's data directory"),
        (tmp_path / "nowhere", "there is no such directory"),
    ):
        with pytest.raises(Exception, match=says):
            spark.read.format("quorumq").option("table", "messages").load(str(path)).count()

"""Writing to a real cluster: what is written twice is there once, and a redrive twice is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumq.client import connect
from quorumq.core.messages import Peeked
from quorumq.core.values.errors import QuorumqError, TooLarge, UsageError
from quorumq.core.values.types import STAMP_ZERO, Topic, topic_id
from quorumq.lab.local import LocalCluster
from quorumq.wire.batch import SEQ_MAX
from spark.source.writer import Options, Publisher
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, hold_time_max=600.0) as local:

        async def run() -> None:
            async with connect(list(local.addresses)) as client:
                for name in ("rows", "outputs"):
                    await client.create_topic(name, partitions=3)

        trio.run(run)
        yield local


def write(frame: DataFrame, cluster: LocalCluster, **options: str) -> None:
    nodes = ",".join(cluster.addresses)
    frame.write.format("quorumq").mode("append").options(nodes=nodes, **options).save()


def payloads(spark: SparkSession, cluster: LocalCluster, topic: str) -> list[tuple[bytes, Any, Any]]:
    reader = spark.read.format("quorumq").options(
        table="messages", nodes=",".join(cluster.addresses), topic=topic, columns="key,headers,payload"
    )
    return sorted(
        (bytes(row.payload), row.key and bytes(row.key), row.headers) for row in reader.load().collect()
    )


def test_a_job_that_runs_again_or_fails_adds_nothing(spark: SparkSession, cluster: LocalCluster) -> None:
    rows = spark.range(0, 600, numPartitions=2).select(
        F.concat(F.lit("row "), F.col("id").cast("string")).alias("payload"),
        (F.col("id") % 7).cast("string").alias("key"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("headers"),
    )
    expected = sorted(
        (f"row {number}".encode(), f"{number % 7}".encode(), {"n": str(number)}) for number in range(600)
    )
    write(rows, cluster, topic="rows", job="nightly")
    write(rows, cluster, topic="rows", job="nightly")
    assert payloads(spark, cluster, "rows") == expected
    with pytest.raises(Exception, match="write under a new job"):
        write(rows.orderBy(F.desc("payload")).coalesce(1), cluster, topic="rows", job="nightly")

    numbered = rows.select("payload", "key", "headers", F.expr("cast(headers['n'] as bigint)").alias("id"))
    before = len(payloads(spark, cluster, "rows"))
    write(numbered.where("id < 50"), cluster, topic="rows", job="by id")
    write(numbered.where("id < 100").orderBy(F.desc("id")), cluster, topic="rows", job="by id")
    assert len(payloads(spark, cluster, "rows")) == before + 100


def test_outputs_are_derived_from_the_ids_of_messages(spark: SparkSession, cluster: LocalCluster) -> None:
    nodes = ",".join(cluster.addresses)
    source = spark.read.format("quorumq").options(table="messages", nodes=nodes, topic="rows").load()
    outputs = source.where("key = '3'").select("id", F.lit("done").alias("payload"))
    expected = outputs.count()
    assert expected
    for _ in range(2):
        write(outputs.repartition(2), cluster, topic="outputs", group="mailer")
    assert len(payloads(spark, cluster, "outputs")) == expected


@pytest.mark.soak
def test_a_stream_repeated_adds_nothing(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    nodes = ",".join(cluster.addresses)
    options = {"nodes": nodes, "checkpointLocation": str(tmp_path / "checkpoint")}

    def run() -> None:
        source = spark.readStream.schema("payload string").text(str(tmp_path / "in"))
        query = source.writeStream.format("quorumq").options(topic="streamed", **options).start()
        query.processAllAvailable()
        query.stop()

    async def make() -> None:
        async with connect(list(cluster.addresses)) as client:
            await client.create_topic("streamed")

    trio.run(make)
    (tmp_path / "in").mkdir()
    for batch in ("first", "second"):
        (tmp_path / "in" / batch).write_text(f"{batch} a\n{batch} b\n")
        run()
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    last.with_name(f".{last.name}.crc").unlink()
    last.unlink()  # as if Spark had ended before it noted that the batch was done
    run()
    assert [row[0] for row in payloads(spark, cluster, "streamed")] == [
        b"first a", b"first b", b"second a", b"second b",
    ]  # fmt: skip


def test_a_redrive_twice_is_one(spark: SparkSession, cluster: LocalCluster) -> None:
    nodes = ",".join(cluster.addresses)

    async def die() -> None:
        async with connect(list(cluster.addresses)) as client:
            await client.create_topic("jobs")
            async with client.producer("jobs") as producer:
                for number in range(6):
                    await producer.send(f"job {number}".encode())
            taken = await client.fetch("jobs", "g", max_messages=6, min_messages=6, max_wait=PATIENCE_S)
            await client.dead_letter(taken, error=ValueError("no such account"))

    async def ready() -> list[tuple[str, int, int]]:
        async with connect(list(cluster.addresses)) as client:
            return [
                (item.peeked.state, item.peeked.record.n, item.peeked.span.size)
                async for item in client.peek("jobs", "g", "all", complete=True)
            ]

    trio.run(die)
    dead_letters = spark.read.format("quorumq").options(table="deadletters", nodes=nodes, topic="jobs").load()
    rows = spark.createDataFrame(dead_letters.orderBy("id").limit(4).collect(), dead_letters.schema)
    write(rows.select("id", "group", "generation", "n"), cluster, action="redrive")
    write(rows, cluster, action="redrive")  # other columns are left alone
    peeks = trio.run(ready)
    assert sum(size for state, n, size in peeks if (state, n) == ("ready", 1)) == 4
    assert sum(size for state, n, size in peeks if (state, n) == ("dead", 0)) == 2


def test_the_examples_of_the_manual_run(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, as they build on each other, with this cluster in place of the one in the examples."""

    async def die() -> None:
        async with connect(list(cluster.addresses)) as client:
            await client.create_topic("mails")
            await client.create_topic("orders")
            async with client.producer("orders") as producer:
                await producer.send(b"an order")
            taken = await client.fetch("orders", "g", max_messages=1, max_wait=PATIENCE_S)
            await client.dead_letter(taken, error=KeyError("colour"))

    async def peeked(topic: str, state: str) -> list[Peeked]:
        async with connect(list(cluster.addresses)) as client:
            return [item.peeked async for item in client.peek(topic, "g", state, complete=True)]

    trio.run(die)
    (dead,) = trio.run(peeked, "orders", "dead")
    assert dead.record.death is not None
    theirs = {
        "/var/lib/quorumq/a,/var/lib/quorumq/b,/var/lib/quorumq/c": ",".join(
            str(cluster.data_path(name)) for name in cluster.nodes
        ),
        "10.0.0.1:7401,10.0.0.2:7401": ",".join(cluster.addresses),
        "10.0.0.1:7401": cluster.addresses[0],
        "9f0c…": dead.record.death.fingerprint,
        "/var/lib/deaths": str(tmp_path / "deaths"),
    }
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.setattr("spark.session.session", lambda: spark)
    scope = {"rows": spark.sql("select 'a digest' as payload")}
    for snippet in snippets:
        for word, ours in theirs.items():
            snippet = snippet.replace(word, ours)
        exec(compile(snippet, "docs/spark.md", "exec"), scope)
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    assert [it.record.n for it in trio.run(peeked, "orders", "ready")] == [1], "redriven"
    assert len(trio.run(peeked, "mails", "ready")) == 1, "published"
    followed = pq.read_table(
        [*(tmp_path / "deaths").glob("*.parquet")], columns=["topic", "reason"]
    ).to_pylist()
    assert {"topic": "orders", "reason": "rejected"} in followed


@pytest.mark.parametrize(
    ("columns", "options", "mode", "says"),
    [
        ("payload", {"topic": "rows"}, "overwrite", "only ever added"),
        ("payload", {}, "append", "option topic is missing"),
        ("payload", {"topic": "rows", "colour": "red"}, "append", "no option 'colour'"),
        ("payload as body", {"topic": "rows"}, "append", "column payload is missing"),
        ("payload, payload as colour", {"topic": "rows"}, "append", "no place for column colour"),
        ("1 as payload", {"topic": "rows"}, "append", "column payload is int"),
        ("payload", {"action": "redrive"}, "append", "column id is missing"),
        ("payload", {"action": "erase"}, "append", "must be publish or redrive"),
        ("cast(null as string) as payload", {"topic": "rows"}, "append", "payload is null"),
        ("payload", {"topic": "nowhere"}, "append", "nowhere"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(
    spark: SparkSession, cluster: LocalCluster, columns: str, options: dict[str, str], mode: str, says: str
) -> None:
    rows = spark.sql("select 'x' as payload").selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=says):
        rows.write.format("quorumq").mode(mode).options(nodes=",".join(cluster.addresses), **options).save()


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        ({"payload": "\ud800"}, UsageError, "row 2 of its Spark partition is no message: .*surrogates"),
        ({"payload": b"", "id": "\ud800"}, UsageError, "the row with id .* is no message: .*surrogates"),
        ({"payload": b"", "id": 7, "headers": {"": "x"}}, UsageError, "the row with id 7 .*header name ''"),
        (
            {"payload": b"", "id": 7, "headers": {"a": [1]}},
            UsageError,
            "the row with id 7 .*header 'a' is an array",
        ),
        (
            {"payload": b"", "id": 7, "headers": {"a": 1e400}},
            UsageError,
            "the row with id 7 .*header 'a' is inf",
        ),
        (
            {"payload": b"x" * (1 + (1 << 20)), "id": "big"},
            TooLarge,
            "the row with id 'big': a payload of 1048577 bytes",
        ),
        ({"payload": b"", "id": -1}, UsageError, "a row's id is -1: a number must be from 0 to"),
        ({"payload": b"", "id": SEQ_MAX + 1}, UsageError, f"to {SEQ_MAX}"),
        ({"payload": b"", "id": ""}, UsageError, "null or empty"),
        ({"payload": b"", "id": None}, UsageError, "null or empty"),
    ],
)
def test_a_row_that_is_no_message_is_named(row: dict[str, Any], kind: type[QuorumqError], says: str) -> None:
    topic = Topic(topic_id("rows", 3), "rows", 3, (("n1", "n2", "n3"),), 5, STAMP_ZERO, born=1)
    publisher = Publisher(None, Options(("n1",), "rows", False, "job", "spark", 1.0), 0)  # type: ignore[arg-type]
    publisher.name({"payload": "a good one"}, topic)
    publisher.name({"payload": "another", "id": SEQ_MAX}, topic)
    with pytest.raises(kind, match=says):
        publisher.name(row, topic)

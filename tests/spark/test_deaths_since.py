"""Nightly runs: `--since` reads the deaths after an earlier run, and `--table` keeps each dead letter once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import Span
from spark.folders import Folder
from spark.jobs import deadletters as job
from spark.jobs.deaths_table import check_table, into_table
from tests.spark.cluster_on_disk import HOUR_MS, PRODUCER_ID, START_MS, DiskCluster, die_at, mark, roll
from tests.spark.rows import NOON, deaths


@pytest.mark.soak
def test_each_run_has_the_deaths_since_the_last_and_a_table_all(spark: SparkSession, tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path / "nodes", segment_bytes=1 << 12)
    name = "deaths_since"

    def more(first: int, stop: int) -> None:
        for seq in range(first, stop):
            cluster.publish(cluster.keys[0], (Span(PRODUCER_ID, seq, seq + 1),), START_MS - HOUR_MS)
            die_at(cluster, seq, "lasting", START_MS + seq)

    def run(out: str, hours: int, since: str = "", *, problems: int = 0) -> list[int]:
        """Run the job; return the numbers of its messages."""
        data = cluster.data[:1] if problems else cluster.data
        inputs = job.read(spark, data=data, since=Folder(tmp_path / since) if since else None)
        settings = job.Settings(now=NOON + timedelta(hours=hours), table=name, overwrite=True)
        summary = job.run(inputs, Folder(tmp_path / out), settings)
        rows = spark.read.parquet(str(tmp_path / out / "tables" / "deaths")).select("seq").collect()
        assert len(rows) == summary["deaths"]
        assert (summary["problems"]["count"], sorted(summary["positions"])) == (problems, ["n1", "n2", "n3"])
        return sorted(row["seq"] for row in rows)

    more(0, 5)
    cluster.commit()  # the last ones are not known to be durable yet, so the positions are in front of them
    assert run("one", 0) == [0, 1, 2, 3, 4]
    more(5, 8)
    mark(cluster)
    assert run("two", 1, "one") == [5, 6, 7]
    roll(cluster)  # the segments up to there are gone, and the nodes say again which dead letters they have
    more(8, 9)
    mark(cluster)
    assert run("three", 2, "two") == [8]
    die_at(cluster, 9, "lasting", START_MS)
    mark(cluster)
    assert run("four", 3, "three", problems=2) == [9], "two nodes are away"
    there = spark.table(name).groupBy("since").count().collect()
    assert {row["since"]: row["count"] for row in there} == {
        "beginning": 5,
        "2026-11-22T12:00:00.000Z": 3,
        "2026-11-22T13:00:00.000Z": 1,
        "2026-11-22T14:00:00.000Z": 1,
    }
    with pytest.raises(UsageError, match="is of topic all: choose the same"):
        job.read(spark, data=cluster.data, since=Folder(tmp_path / "two"), topics=["mails"])
    with pytest.raises(UsageError, match="only journals have positions"):
        job.read(spark, nodes="a:1", since=Folder(tmp_path / "two"))


@pytest.mark.soak
def test_a_table_takes_the_deaths_of_all_runs(spark: SparkSession) -> None:
    name = "deaths_of_runs"

    def put(since: str | None, *seqs: int) -> dict[str, int]:
        into_table(deaths(spark, *seqs), name, since)
        return {row["since"]: row["count"] for row in spark.table(name).groupBy("since").count().collect()}

    assert put(None, 1, 2) == {"beginning": 2}
    assert put("monday", 3) == {"beginning": 2, "monday": 1}
    assert put("monday", 3, 4) == {"beginning": 2, "monday": 2}, "another try replaces the first"
    assert put(None, 1, 2, 3) == {"beginning": 3}, "a run that reads everything replaces everything"


def test_a_table_in_memory_or_with_other_columns_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="the catalog is in this session's memory"):
        check_table(spark, "deaths")
    spark.range(1).createOrReplaceTempView("other_columns")
    with pytest.raises(UsageError, match="has other columns"):
        into_table(deaths(spark, 1), "other_columns", None)

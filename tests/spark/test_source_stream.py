"""Following dead letters: each is read once, whenever nodes roll or hear of it, and a restart reads nothing again."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from quorumq.client.base.message import MessageId
from quorumq.core.messages import SpanRecord
from quorumq.core.messages.records import RecordsMerged
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.types import Kind, Record, Span, Stamp
from quorumq.storage.records import BATCH_STORED
from quorumq.storage.scan import Scan
from quorumq.storage.segment import segment_name
from spark.schemas import schema
from spark.source import offline
from spark.source.follow import NOTHING, Gap, Tail
from spark.source.options import Wanted, read_options
from spark.source.registers import Registers
from spark.source.stream import DeathsStream, SinceReader, positions_of
from tests.spark.cluster_on_disk import (
    PRODUCER_ID,
    DiskCluster,
    Name,
    cause_of,
    flip,
    mark,
    options_of,
    roll,
    rows_of,
    turmoil,
)
from tests.spark.journals import bury, write
from tests.storage.samples import record_headers

DeathColumns = tuple[Name, str, int, int]


def stream_of(cluster: DiskCluster, **more: str) -> DeathsStream:
    data = ",".join(map(str, cluster.data))
    return DeathsStream(
        read_options({"table": "deadletters", "data": data, **more}, stream=True), schema("deadletters")
    )


def batch(stream: DeathsStream, start: dict[str, Any], end: dict[str, Any]) -> list[DeathColumns]:
    """Return the rows of a micro-batch, its reader and its tasks pickled as Spark does."""
    tasks = pickle.loads(pickle.dumps(list(stream.partitions(start, end))))
    reader = pickle.loads(pickle.dumps(stream))
    deaths: list[DeathColumns] = []
    for task in tasks:
        for rows in reader.read(task):
            for row in rows.to_pylist():
                name = MessageId.parse(row["id"])
                deaths.append(
                    (
                        (name.partition, name.producer_id, name.seq),
                        row["group"],
                        int(row["generation"]),
                        row["n"],
                    )
                )
    return deaths


def die(cluster: DiskCluster, seq: int, *nodes: int) -> DeathColumns:
    """A message dies, as far as these nodes hear; and one commit more, so that this one is known to be durable."""
    key = cluster.keys[0]
    if (key, PRODUCER_ID, seq) not in cluster.published:
        cluster.publish(key, (Span(PRODUCER_ID, seq, seq + 1),), 1_000 + seq)
    chosen = [cluster.nodes[at] for at in nodes]
    cluster.resolve(
        key, "billing", Span(PRODUCER_ID, seq, seq + 1), Record(0, 0, Kind.DEAD, cause_of(seq, 1_000)), chosen
    )
    mark(cluster)
    return (key, PRODUCER_ID, seq), "billing", 0, 0


@pytest.mark.parametrize("seed", range(4))
def test_every_dead_letter_comes_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    gaps = seed % 2 == 1  # nodes roll more often than the stream looks
    cluster = DiskCluster(tmp_path, segment_bytes=6_000 if gaps else 1 << 26)
    stream = stream_of(cluster, onGap="reread" if gaps else "fail")
    start = stream.initialOffset()
    deaths: list[DeathColumns] = []
    for _ in range(8):
        for _ in range(20):
            turmoil(cluster, rng, 1)
            if not gaps:
                stream.latestOffset(start, None)
        end = stream.latestOffset(start, None)
        if rng.random() < 0.5:
            turmoil(cluster, rng, 1)  # between the end of a batch and its reading
        now = batch(stream, start, end)
        assert sorted(batch(stream, start, end)) == sorted(now), "the same batch again"
        deaths += now
        stream.commit(end)
        start = end
    cluster.close()
    end = stream.latestOffset(start, None)
    deaths += batch(stream, start, end)
    assert gaps or len(deaths) == len(set(deaths)), "no death twice"
    assert set(deaths) <= set(cluster.deaths)
    for death in cluster.deaths:
        (key, producer_id, seq), group, generation, n = death
        if cluster.merged(key, group, (producer_id, seq))[:3] == (generation, n, Kind.DEAD):
            assert death in deaths, f"{death} never came"
    again = stream_of(cluster)
    assert again.latestOffset(end, None) == end
    assert batch(again, end, end) == []


def test_a_node_that_hears_late_brings_nothing_again(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    stream = stream_of(cluster)
    first = die(cluster, 1, 0, 1)
    middle = stream.latestOffset({}, None)
    assert batch(stream, {}, middle) == [first]
    second = die(cluster, 2, 1, 2)
    die(cluster, 1, 2)
    roll(cluster)
    end = stream.latestOffset(middle, None)
    assert batch(stream, middle, end) == [second]
    die(cluster, 2, 0)
    assert batch(stream, end, stream.latestOffset(end, None)) == []
    cluster.close()


def test_deaths_that_a_record_has_once_have_its_time_of_publish(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    ballots = [Stamp(number, "n2") for number in (1, 2)]
    entries = (
        SpanRecord(
            Span(PRODUCER_ID, ballot.time, ballot.time + 1),
            Record(0, 0, Kind.DEAD, cause_of(7, 1_000)._replace(ballot=ballot)),
        )
        for ballot in ballots
    )
    cluster.nodes[0].store.append([RecordsMerged(cluster.keys[0], "billing", tuple(entries))])
    mark(cluster)
    tail = Tail(str(cluster.data[0]), NOTHING, lambda *settled: None, Registers())
    tail.poll()
    assert [(it.ballot, it.published_ms) for it in tail.entries] == [(it, 1_000) for it in ballots]
    tail.close()


def test_a_journal_that_does_not_reach_back_is_said(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    stream = stream_of(cluster)
    first = die(cluster, 1, 0, 1, 2)
    start = stream.latestOffset({}, None)
    for _ in range(2):
        roll(cluster)
        second = die(cluster, 2, 0, 1, 2)
        stream.latestOffset(start, None)
    restarted = stream_of(cluster)
    with pytest.raises(Gap, match=r"begins at position \d+, and it was read to"):
        restarted.latestOffset(start, None)
    reread = stream_of(cluster, onGap="reread")
    end = reread.latestOffset(start, None)
    assert sorted(batch(reread, start, end)) == sorted([first, second])
    assert batch(stream, start, stream.latestOffset(start, None)) == [second], "who was running lost nothing"
    cluster.close()


def test_a_node_that_was_replaced_is_said_and_what_others_prove_is_known(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    stream = stream_of(cluster)
    die(cluster, 1, 0, 1, 2)
    start = stream.latestOffset({}, None)
    shutil.rmtree(cluster.data[0])
    other = DiskCluster(tmp_path / "other")
    other.close()
    shutil.copytree(other.data[0], cluster.data[0])
    with pytest.raises(Gap, match="it was wiped or replaced"):
        stream_of(cluster).latestOffset(start, None)
    reread = stream_of(cluster, onGap="reread")
    assert batch(reread, start, reread.latestOffset(start, None)) == []
    for node in cluster.nodes[1:]:
        node.store.close()


def test_a_batch_that_is_repeated_after_a_node_was_added_is_the_same(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    everywhere, there = die(cluster, 0, 0, 1, 2), die(cluster, 1, 2)
    for node in cluster.nodes:
        node.restart()  # all state is in snapshots
    options = read_options(
        {"table": "deadletters", "data": ",".join(map(str, cluster.data[:2]))}, stream=True
    )
    end = DeathsStream(options, schema("deadletters")).latestOffset({}, None)
    stream = stream_of(cluster)  # the query was ended within its first batch, and has one node more
    assert batch(stream, {}, end) == [everywhere]
    assert batch(stream, end, stream.latestOffset(end, None)) == [there]
    cluster.close()


def test_a_stream_from_latest_begins_with_new_dead_letters(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    die(cluster, 1, 0, 1, 2)
    stream = stream_of(cluster, **{"from": "latest"})
    start = stream.initialOffset()
    second = die(cluster, 2, 0, 1, 2)
    assert batch(stream, start, stream.latestOffset(start, None)) == [second]
    cluster.close()


def test_in_spark_a_restart_from_the_checkpoint_rereads_nothing(spark: SparkSession, tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path / "nodes")
    data = ",".join(map(str, cluster.data))
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> None:
        died = spark.readStream.format("quorumq").option("table", "deadletters").load(data)
        query = died.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(out)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    die(cluster, 1, 0, 1)
    run()
    assert spark.read.parquet(out).count() == 1
    die(cluster, 2, 1, 2)
    die(cluster, 1, 2)
    run()
    assert sorted(row.seq for row in spark.read.parquet(out).collect()) == [1, 2]
    cluster.close()


def test_a_task_is_small_and_reads_for_itself(tmp_path: Path) -> None:
    cluster = write(500, tmp_path, stack_bytes=10_000)
    stream = stream_of(cluster)
    end = stream.latestOffset({}, None)
    tasks = [pickle.dumps(task) for task in stream.partitions({}, end)]
    assert len(tasks) > 1
    assert max(map(len, tasks)) < 2048
    reader = pickle.loads(pickle.dumps(stream))
    rows = [row for task in tasks for part in reader.read(pickle.loads(task)) for row in part.to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows) == 500
    assert all(row["payload"] and len(row["stack"]) == 10_000 for row in rows)
    assert {tuple(row["replicas"]) for row in rows} == {("n1", "n2", "n3")}
    cluster.close()


def test_deaths_of_messages_that_were_published_alone_share_a_task(tmp_path: Path) -> None:
    """The batches between the records of these deaths are passed over."""
    cluster = write(200, tmp_path, together=1)
    stream = stream_of(cluster)
    end = stream.latestOffset({}, None)
    (task,) = stream.partitions({}, end)
    assert sum(rows.num_rows for rows in stream.read(task)) == 200
    cluster.close()


def test_a_damaged_batch_between_deaths_is_passed_over_only_when_asked(tmp_path: Path) -> None:
    cluster = write(50, tmp_path, together=1)
    roll(cluster)
    path = cluster.data[0] / segment_name(1)
    batches = [at for kind, at in record_headers(path.read_bytes()) if kind == BATCH_STORED]
    flip(path, batches[25])
    with pytest.raises(StorageError, match="goes on from position"):
        stream_of(cluster).latestOffset({}, None)
    stream = stream_of(cluster, onDamage="report")
    deaths = batch(stream, {}, stream.latestOffset({}, None))
    assert len(set(deaths)) == len(deaths) == 50
    cluster.close()


def test_a_new_dead_letter_costs_the_same_however_much_is_stored(tmp_path: Path) -> None:
    reads: list[int] = []
    for count in (100, 1_000):
        cluster = write(count, tmp_path / str(count))
        stream = stream_of(cluster)
        start = stream.latestOffset({}, None)
        stream.partitions({}, start)
        die(cluster, 5_000, 0, 1, 2)
        before = calls_of_frame.count
        end = stream.latestOffset(start, None)
        assert len(batch(stream, start, end)) == 1
        reads.append(calls_of_frame.count - before)
        cluster.close()
    assert reads[1] < 2 * reads[0]


class calls_of_frame:
    count = 0


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Scan.frame

    def counted(scan: Scan, offset: int) -> Any:
        calls_of_frame.count += 1
        return frame(scan, offset)

    monkeypatch.setattr(Scan, "frame", counted)


def test_a_limited_batch_ends_early_and_nothing_comes_twice(tmp_path: Path) -> None:
    limit = ReadMaxBytes(20_000)
    cluster = DiskCluster(tmp_path)
    for at in range(6):
        bury(cluster, 10, first=100 * at)
    stream = stream_of(cluster)
    start: dict[str, Any] = {}
    sizes: list[int] = []
    deaths: list[DeathColumns] = []
    while (end := stream.latestOffset(start, limit)) != start:
        now = batch(stream, start, end)
        assert batch(stream_of(cluster), start, end) == now, "after a restart"
        sizes.append(len(now))
        deaths += now
        stream.commit(end)
        start = end
    assert len(set(deaths)) == len(deaths) == 60
    assert len(sizes) > 3
    assert max(sizes) <= 30
    cluster.close()


def test_available_now_ends_with_what_was_there(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    first = die(cluster, 1, 0, 1, 2)
    stream = stream_of(cluster)
    stream.prepareForTriggerAvailableNow()
    die(cluster, 2, 0, 1, 2)
    end = stream.latestOffset({}, ReadAllAvailable())
    assert batch(stream, {}, end) == [first]
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    cluster.close()


def test_a_directory_that_is_away_is_named_while_a_majority_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = DiskCluster(tmp_path)
    first = die(cluster, 1, 0, 1, 2)
    stream = stream_of(cluster)
    start = stream.latestOffset({}, None)
    assert batch(stream, {}, start) == [first]
    away = tmp_path / "away"
    cluster.data[0].rename(away)
    second = die(cluster, 2, 1, 2)
    for running in (stream, stream_of(cluster)):
        end = running.latestOffset(start, None)
        assert batch(running, start, end) == [second]
        assert end["n1"] == start["n1"]
        assert running.reportLatestOffset()["away"] == [str(cluster.data[0])]
        assert f"going on without {cluster.data[0]}" in capsys.readouterr().err
    cluster.data[1].rename(tmp_path / "away 2")
    with pytest.raises(StorageError, match=r"too few replicas are left: .* 3 topic partitions \(mails/0 "):
        stream.latestOffset(end, None)
    away.rename(cluster.data[0])
    (tmp_path / "away 2").rename(cluster.data[1])
    die(cluster, 2, 0)
    third = die(cluster, 3, 0, 1, 2)
    last = stream.latestOffset(end, None)
    assert batch(stream, end, last) == [third]
    assert "away" not in stream.reportLatestOffset()
    with pytest.raises(UsageError, match="there is no such directory"):
        DeathsStream(
            read_options({"table": "deadletters", "data": f"{cluster.data[0]},/nowhere"}, stream=True),
            schema("deadletters"),
        ).latestOffset({}, None)
    cluster.close()


def test_a_dead_letter_in_a_deleted_segment_is_read_from_the_drivers_file(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    stream = stream_of(cluster)
    start = stream.latestOffset({}, None)
    death = die(cluster, 1, 0, 1, 2)
    end = stream.latestOffset(start, None)
    tasks = pickle.loads(pickle.dumps(list(stream.partitions(start, end))))
    roll(cluster)
    roll(cluster)
    assert not any((cluster.data[0] / segment_name(part[0])).exists() for part in tasks[0].parts)
    (rows,) = (row for part in stream.read(tasks[0]) for row in part.to_pylist())
    assert rows["seq"] == death[0][2]
    cluster.close()


def test_a_batch_says_the_settled_messages(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    stream = stream_of(cluster)
    for seq in range(3):
        die(cluster, seq, 0, 1, 2)
    key, group = cluster.keys[0], "billing"
    cluster.resolve(key, group, Span(PRODUCER_ID, 1, 2), Record(0, 0, Kind.PURGED))
    cluster.resolve(key, group, Span(PRODUCER_ID, 2, 3), Record(0, 1, Kind.OPEN))
    mark(cluster)
    end = stream.latestOffset({}, None)
    rows = [
        row for task in stream.partitions({}, end) for part in stream.read(task) for row in part.to_pylist()
    ]
    assert {row["seq"]: row["resolution"] for row in rows} == {0: "dead", 1: "purged", 2: "redriven"}
    cluster.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "messages", "data": "a"}, "only table deadletters can be followed"),
        ({"table": "deadletters", "nodes": "127.0.0.1:1"}, "there is no option 'nodes'"),
        ({"table": "deadletters", "data": "a", "onGap": "maybe"}, "must be fail or reread"),
    ],
)
def test_a_journal_that_cannot_be_followed_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        read_options(options, stream=True)


def rows_since(cluster: DiskCluster, positions: dict[str, Any]) -> list[int]:
    """The numbers of the messages of a batch read behind these positions, its tasks pickled as Spark does."""
    given = {"table": "deadletters", "data": ",".join(map(str, cluster.data)), "since": json.dumps(positions)}
    reader = SinceReader(read_options(given), schema("deadletters"))
    tasks = pickle.loads(pickle.dumps(list(reader.partitions())))
    assert not any(task.held for task in tasks), "no task reads by the number of a file that is closed"
    reader = pickle.loads(pickle.dumps(reader))
    return sorted(row["seq"] for task in tasks for rows in reader.read(task) for row in rows.to_pylist())


def test_a_batch_read_goes_on_from_the_positions_of_an_earlier_one(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    die(cluster, 1, 0, 1, 2)
    die(cluster, 2, 0)
    options = read_options({"table": "deadletters", "data": ",".join(map(str, cluster.data))})
    positions = positions_of(options, schema("deadletters"))
    assert rows_since(cluster, positions) == []
    die(cluster, 2, 1, 2)  # known before, by another node
    die(cluster, 3, 1)
    assert rows_since(cluster, positions) == [3]
    assert rows_since(cluster, positions) == [3], "the same positions give the same rows"
    roll(cluster)
    assert rows_since(cluster, positions_of(options, schema("deadletters"))) == []
    die(cluster, 4, 1)
    assert rows_since(cluster, positions) == [1, 2, 3, 4], (
        "the segments are gone, and nodes say what they have"
    )


def test_a_batch_read_of_too_few_nodes_is_a_problem(tmp_path: Path) -> None:
    """Only the plan looks: the newest segments, and the directories that are not there."""
    cluster = DiskCluster(tmp_path)
    die(cluster, 1, 0, 1, 2)
    cluster.close()
    options = read_options({"table": "deadletters", "data": ",".join(map(str, cluster.data))})
    since = json.dumps(positions_of(options, schema("deadletters")))
    seen = rows_of("problems", cluster.data[1:2], since=since)
    assert [(row["node"], row["kind"]) for row in seen] == [("n1", "absent"), ("n3", "absent")]
    assert rows_of("problems", cluster.data[1:], since=since) == []
    assert all(
        not directory.segments
        for task in offline.plan(options_of("problems", cluster.data, since=since), Wanted())
        for directory in task.directories
    )


@pytest.mark.parametrize("since", ["7", "[]x", '{"n1": 3}', '{"n1": {"directory": "xyz", "position": 1}}'])
def test_positions_that_are_none_are_refused(since: str) -> None:
    with pytest.raises(UsageError, match=r"must be `positions` of the summary.json"):
        read_options({"table": "deadletters", "data": "d", "since": since})
    with pytest.raises(UsageError, match="is for dead letters and problems"):
        read_options({"table": "messages", "data": "d", "since": "{}"})

"""The offline tables against a naive account of what was written, and what becomes of damage and of a writing node."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from quorumq.client.base.message import MessageId
from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.types import Group, Kind, PartitionId, ProducerId, Record, Span
from quorumq.storage import records as storage_records
from quorumq.storage.disk import RealDisk
from quorumq.storage.journal import Journal
from quorumq.storage.records import BATCH_STORED
from quorumq.storage.segment import FORMAT_VERSION
from quorumq.wire import cbor
from quorumq.wire.batch import Message, encode_record, pack_spans
from spark.schemas import schema
from spark.source import fragments, journals, offline, planning
from spark.source.arrow import BYTES_MAX, ROWS_MAX
from spark.source.options import Options, Wanted
from spark.source.reader import Task
from tests.spark.cluster_on_disk import (
    NAMES,
    DiskCluster,
    Name,
    batches_of,
    cause_of,
    flip,
    options_of,
    payload_of,
    rows_of,
    turmoil,
)
from tests.spark.journals import write
from tests.storage.samples import record_headers

PRODUCER_ID = ProducerId("n1", 1, 0xABC, 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DiskCluster]:
    disk_cluster = DiskCluster(tmp_path)
    yield disk_cluster
    disk_cluster.close()


def name_of(row: dict[str, Any]) -> Name:
    id_ = MessageId.parse(row["id"])
    return id_.partition, id_.producer_id, id_.seq


def by_name(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["id"], row.get("group"), row.get("generation"), row.get("n")))


def check_each_node(cluster: DiskCluster, **options: str) -> None:
    for node in cluster.nodes:
        rows = rows_of("messages", [node.path], **options)
        assert sorted(map(name_of, rows)) == sorted(node.stored()), "a message is there once"
        for row in rows:
            assert row["payload"] == payload_of(*name_of(row))
            assert row["replicas"] == [node.name]


def check_messages(cluster: DiskCluster, rows: list[dict[str, Any]]) -> None:
    expected: dict[Name, list[str]] = {}
    published: dict[Name, int] = {}
    for node in cluster.nodes:
        for name, copies in node.stored().items():
            expected.setdefault(name, []).append(node.name)
            made = min(batch.header.published_ms for _, batch in copies)
            published[name] = min(made, published.get(name, made))
    assert sorted(name_of(row) for row in rows) == sorted(expected), "every message once"
    for row in rows:
        name = name_of(row)
        assert row["replicas"] == expected[name]
        assert row["replica_set"] == row["asked"] == ["n1", "n2", "n3"]
        assert row["damaged"] == []
        assert row["reclaimed"] == [
            node.name
            for node in cluster.nodes
            if name[1:] in node.reclaimed.get(name[0], {}) and node.name not in expected[name]
        ]
        assert row["payload"] == payload_of(*name)
        assert dict(row["headers"]) == {"seq": str(name[2])}
        assert row["key"] == f"k{name[2] % 5}".encode()
        assert row["published_at"].timestamp() * 1000 == pytest.approx(published[name])
        assert row["size"] == len(row["payload"])
        assert row["producer_id"].startswith(name[1].node)


def naive_resolution(cluster: DiskCluster, name: Name, group: str, generation: int, n: int) -> str:
    now = cluster.merged(name[0], group, name[1:])
    if now[:3] == (generation, n, Kind.DEAD):
        return "dead"
    if now.kind == Kind.ACKED:
        return "acked"
    return "redriven" if now.n > n else "purged"


def check_dead_letters(cluster: DiskCluster, rows: list[dict[str, Any]]) -> None:
    resolutions: dict[tuple[Name, str, int, int], str] = {}
    for row in rows:
        death = (name_of(row), row["group"], int(row["generation"]), row["n"])
        assert death not in resolutions, "a dead letter is there once"
        resolutions[death] = row["resolution"]
        wrote = cluster.deaths[death]
        assert (row["message"], row["fingerprint"]) == (wrote.message, "f1")
        there = [node.stored() for node in cluster.nodes if name_of(row) in node.stored()]
        if there:
            assert row["payload"] == payload_of(*name_of(row))
            assert row["digest"] == hashlib.sha256(row["payload"]).hexdigest()
        else:
            assert row["payload"] is None
    for death, resolution in resolutions.items():
        assert resolution == naive_resolution(cluster, *death), death
    for death in cluster.deaths:
        if naive_resolution(cluster, *death) == "dead":
            assert resolutions.get(death) == "dead", f"{death} is missing"


@pytest.mark.parametrize("seed", range(4))
def test_the_tables_are_what_a_naive_account_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    cluster = DiskCluster(tmp_path, segment_bytes=rng.choice((1_500, 6_000, 1 << 26)))
    for _ in range(2):
        turmoil(cluster, rng, 60)  # the nodes are running while their directories are read
        more = {"tasks": rng.choice(("1", "2", "4"))}
        monkeypatch.setattr(offline, "TASK_BYTES_MAX", rng.choice((2_000, 1 << 30)))
        check_each_node(cluster, **more)
        check_messages(cluster, rows_of("messages", cluster.data, **more))
        check_dead_letters(cluster, rows_of("deadletters", cluster.data, **more))
        assert rows_of("problems", cluster.data, **more) == []
        only = [row for row in rows_of("deadletters", cluster.data, **more) if row["resolution"] == "dead"]
        dead = rows_of("deadletters", cluster.data, filters=[EqualTo(("resolution",), "dead")], **more)
        assert by_name(dead) == by_name(only)
    cluster.close()
    check_messages(cluster, rows_of("messages", cluster.data))


def test_a_generation_that_covers_a_dead_letter_makes_it_void(cluster: DiskCluster) -> None:
    key = cluster.keys[0]
    cluster.publish(key, (Span(PRODUCER_ID, 0, 4),), 1_000)
    cluster.publish(key, (Span(PRODUCER_ID, 4, 8),), 2_000)
    for seq in range(8):
        record = Record(0, 0, Kind.DEAD, cause_of(1, 1_000 if seq < 4 else 2_000))
        cluster.resolve(key, "billing", Span(PRODUCER_ID, seq, seq + 1), record)
    rewound = 7
    cluster.set_group(Group(key.topic, "billing", rewound, 1_500))
    cluster.resolve(
        key, "billing", Span(PRODUCER_ID, 0, 1), Record(rewound, 1, Kind.OPEN)
    )  # not covered: a redrive
    cluster.resolve(key, "billing", Span(PRODUCER_ID, 4, 5), Record(rewound, 0, Kind.ACKED))  # read again
    cluster.resolve(
        key, "billing", Span(PRODUCER_ID, 5, 6), Record(rewound, 0, Kind.DEAD, cause_of(9, 2_000))
    )
    cluster.commit()
    seen = {
        (row["seq"], int(row["generation"])): row["resolution"]
        for row in rows_of("deadletters", cluster.data)
    }
    assert seen == {
        (0, 0): "redriven",
        **{(seq, 0): "dead" for seq in (1, 2, 3)},
        **{(seq, 0): "reopened" for seq in (4, 5, 6, 7)},
        (5, rewound): "dead",
    }


def filled(cluster: DiskCluster, batches: int = 12) -> None:
    """Batches of three messages each on all nodes, in segments of a few, and some records."""
    for at in range(batches):
        key = cluster.keys[at % 3]
        cluster.publish(key, (Span(PRODUCER_ID, 3 * at, 3 * at + 3),), 1_000 + at)
        dead = Record(0, 0, Kind.DEAD, cause_of(at, 1_000 + at))
        cluster.resolve(key, "billing", Span(PRODUCER_ID, 3 * at, 3 * at + 1), dead)
        cluster.commit()


def stopped(tmp_path: Path, batches: int = 12, **options: Any) -> DiskCluster:
    """The same, with all nodes stopped."""
    cluster = DiskCluster(tmp_path, **options)
    filled(cluster, batches)
    cluster.close()
    return cluster


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.journal"))


def first_batch(path: Path) -> tuple[int, int]:
    """Return where the first batch of a segment begins, and where its body does."""
    data = path.read_bytes()
    for kind, header in record_headers(data):
        if kind == BATCH_STORED:
            return header - 20, header + int.from_bytes(data[header - 12 : header - 8], "little")
    raise AssertionError(f"{path} has no batch")


@pytest.mark.parametrize("tail", [b"qjR1", b"\0" * 500, b"x" * 30])
def test_a_torn_tail_is_cut_and_listed(tmp_path: Path, tail: bytes) -> None:
    cluster = stopped(tmp_path)
    before = by_name(rows_of("messages", cluster.data))
    newest = segments(cluster.data[0])[-1]
    size = newest.stat().st_size
    with newest.open("ab") as file:
        file.write(tail)
    assert by_name(rows_of("messages", cluster.data)) == before
    (problem,) = rows_of("problems", cluster.data)
    assert (problem["node"], problem["offset"], problem["bytes"], problem["kind"]) == (
        "n1",
        size,
        len(tail),
        "torn",
    )


def test_a_batch_that_is_half_written_is_cut_at_every_byte(tmp_path: Path) -> None:
    """A reader beside a writing node sees the last record end anywhere; it was reported to no client."""
    cluster = DiskCluster(tmp_path)
    filled(cluster, 3)
    newest = segments(cluster.data[0])[-1]
    start = newest.stat().st_size
    before = by_name(rows_of("messages", cluster.data[:1]))
    cluster.publish(cluster.keys[0], (Span(PRODUCER_ID, 90, 93),), 5_000)
    cluster.nodes[0].store.commit()
    data = newest.read_bytes()
    for cut in range(start + 1, len(data), 7):
        newest.write_bytes(data[:cut])
        assert by_name(rows_of("messages", cluster.data[:1])) == before, cut
    newest.write_bytes(data)
    assert len(rows_of("messages", cluster.data[:1])) == len(before) + 3
    cluster.close()


def test_a_damaged_body_ends_the_read_or_is_shown(tmp_path: Path) -> None:
    cluster = stopped(tmp_path)
    path = segments(cluster.data[1])[-1]
    record, body = first_batch(path)
    flip(path, body)
    with pytest.raises(StorageError, match=f"{path}, byte {record}: the body of the batch"):
        rows_of("messages", cluster.data)
    rows = rows_of("messages", cluster.data, onDamage="report")
    spoilt = [row for row in rows if row["damaged"]]
    assert {tuple(row["damaged"]) for row in spoilt} == {("n2",)}
    assert {tuple(row["replicas"]) for row in spoilt} == {("n1", "n3")}
    assert len(spoilt) == 3
    assert all(row["payload"] == payload_of(*name_of(row)) for row in rows)
    (problem,) = rows_of("problems", cluster.data)
    assert (problem["node"], problem["offset"], problem["kind"]) == ("n2", record, "body")
    only = rows_of("messages", cluster.data[1:2], onDamage="report")
    assert [row["payload"] for row in only if not row["replicas"]] == [None] * 3, "and where no other copy is"


def test_bodies_are_not_read_where_they_are_not_wanted(tmp_path: Path) -> None:
    cluster = stopped(tmp_path)
    for path in segments(cluster.data[0]):
        flip(path, first_batch(path)[1])
    rows_of("messages", cluster.data, columns="id,crc,published_at")
    rows_of("messages", cluster.data, columns="id,replicas", verify="false")
    rows_of("deadletters", cluster.data, columns="id,message,replicas")
    for columns in ("id,payload", "id,replicas"):
        with pytest.raises(StorageError, match="onDamage"):
            rows_of("messages", cluster.data, columns=columns)


def test_damage_between_records_is_passed_over_only_when_asked(tmp_path: Path) -> None:
    cluster = stopped(tmp_path, segment_bytes=1_500)
    path = segments(cluster.data[0])[0]
    record, _ = first_batch(path)
    whole = rows_of("messages", cluster.data[:1])
    flip(path, record + 30)
    with pytest.raises(StorageError, match=f"{path}, byte {record}: the checksum of the record's header"):
        rows_of("messages", cluster.data)
    assert len(rows_of("messages", cluster.data[:1], onDamage="report")) == len(whole) - 3
    problems = rows_of("problems", cluster.data)
    assert [(row["segment"], row["offset"], row["kind"]) for row in problems] == [
        (int(path.name[:12]), record, "damage")
    ]
    assert len(rows_of("messages", cluster.data, onDamage="report")) == 36, "the other nodes have them"


def test_small_state_that_is_damaged_is_looked_for_in_older_segments(tmp_path: Path) -> None:
    cluster = stopped(tmp_path, segment_bytes=1_500)
    expected = {row["id"] for row in rows_of("deadletters", cluster.data[:1])}
    path = segments(cluster.data[0])[-1]
    for kind, header in record_headers(path.read_bytes()):
        if kind == journals.RECORDS_MERGED:
            flip(path, header + 20)
            break
    with pytest.raises(StorageError, match=str(path)):
        rows_of("deadletters", cluster.data[:1])
    assert len(segments(cluster.data[0])) > 2
    seen = {row["id"] for row in rows_of("deadletters", cluster.data[:1], onDamage="report")}
    assert len(seen) > len(expected) // 2
    assert [row["kind"] for row in rows_of("problems", cluster.data[:1])] == ["damage", "absent", "absent"]
    flip(path, 25)  # and now nothing says what counts: every file that is there does
    seen = {row["id"] for row in rows_of("messages", cluster.data[:1], onDamage="report", columns="id,topic")}
    assert len(seen) == 36


def test_a_segment_that_is_missing_is_named(tmp_path: Path) -> None:
    cluster = stopped(tmp_path, segment_bytes=1_500)
    gone = segments(cluster.data[0])[0]
    gone.unlink()
    with pytest.raises(StorageError, match=f"{gone}.*missing"):
        rows_of("messages", cluster.data)
    assert len(rows_of("messages", cluster.data, onDamage="report")) == 36
    assert [row["kind"] for row in rows_of("problems", cluster.data)] == ["missing"]


@pytest.mark.parametrize("damage", ["fail", "report"])
def test_a_newer_format_and_unknown_records_are_refused_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    cluster = stopped(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "FORMAT_VERSION", FORMAT_VERSION - 1)
        with pytest.raises(StorageError, match=f"format version {FORMAT_VERSION} by a newer quorumq"):
            rows_of("messages", cluster.data, onDamage=damage)
    with monkeypatch.context() as patch:
        patch.delitem(journals.CLASS_OF, BATCH_STORED)
        patch.delitem(storage_records._DECODERS, BATCH_STORED)
        with pytest.raises(StorageError, match=f"a record of type {BATCH_STORED}, which this version"):
            rows_of("messages", cluster.data, onDamage=damage)


def test_two_directories_of_one_node_or_of_two_clusters_are_refused(tmp_path: Path) -> None:
    cluster = stopped(tmp_path, 1)
    copy = tmp_path / "copy"
    shutil.copytree(cluster.data[0], copy)
    with pytest.raises(UsageError, match=r"are both of node 'n1'"):
        rows_of("messages", [cluster.data[0], copy])
    store = Journal.open(RealDisk(tmp_path / "strange"), node="n9", cluster_id="other")
    list(store.replayed)
    store.roll([])
    store.close()
    with pytest.raises(UsageError, match="read one cluster at a time"):
        rows_of("messages", [cluster.data[0], tmp_path / "strange"])
    with pytest.raises(UsageError, match="no file in it is called"):
        rows_of("messages", [cluster.data[0], tmp_path])


def test_segments_that_go_between_plan_and_read_lose_nothing(tmp_path: Path) -> None:
    """The node rolls and reclaims after the plan was made: merged tables plan again, `problems` says to read again."""
    cluster = DiskCluster(tmp_path, segment_bytes=1_500)
    filled(cluster)
    node = cluster.nodes[0]
    stay = sorted(node.batches)[-2:]
    messages, problems = (options_of(table, cluster.data, tasks="1") for table in ("messages", "problems"))
    planned = offline.plan(messages, Wanted())
    segment_tasks = offline.plan(problems, Wanted())
    reading = offline.read(planned[0], messages, Wanted(), schema("messages"))
    first = next(reading).to_pylist()
    before = segments(node.path)
    for number in sorted(node.batches):
        if number not in stay:
            node.reclaim(number)
    for _ in range(3):
        node.store.roll(node.snapshot)
        node.store.commit()
        node.store.compact()
    assert not set(before) & set(segments(node.path)), "every file that was planned is gone"
    seen = [*first, *(row for batch in reading for row in batch.to_pylist())]
    assert len(seen) == 36, "who had opened them reads on"
    check_messages(cluster, read_all(planned, messages, Wanted()))
    with pytest.raises(StorageError, match="run the query again"):
        read_all(segment_tasks, problems, Wanted())
    check_each_node(cluster)
    cluster.close()


def read_all(tasks: list[Task], options: Options, selection: Wanted) -> list[dict[str, Any]]:
    return [
        row
        for task in tasks
        for batch in offline.read(task, options, selection, schema(options.table))
        for row in batch.to_pylist()
    ]


def test_segments_without_what_is_wanted_are_not_opened(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path, segment_bytes=1_500)
    for at in range(12):
        cluster.publish(cluster.keys[at // 6], (Span(PRODUCER_ID, 3 * at, 3 * at + 3),), 1_000 + at)
        cluster.commit()
    planned = planning.plan_directory(str(cluster.data[0]), journals.refuse).directory.segments
    without = next(
        plan for plan in planned if plan.footer and all(part.partition == 0 for part in plan.footer)
    )
    path = segments(cluster.data[0])[planned.index(without)]
    assert int(path.name[:12]) == without.number
    flip(path, first_batch(path)[0] + 30)
    selection = Wanted()
    selection.values["partition"] = frozenset((1,))
    options = options_of("messages", cluster.data[:1])
    rows = read_all(offline.plan(options, selection), options, selection)
    assert {row["partition"] for row in rows} == {1}
    assert len(rows) == 18
    with pytest.raises(StorageError):
        rows_of("messages", cluster.data[:1])
    cluster.close()


def test_arrow_batches_are_bounded_in_rows_and_bytes(cluster: DiskCluster) -> None:
    key = cluster.keys[0]
    small = [encode_record(Message(b"x")) for _ in range(9_000)]
    large = [encode_record(Message(b"y" * 900_000)) for _ in range(4)]
    start = 0
    for records in (small, small, large, large, large, large):
        span = Span(PRODUCER_ID, start, start + len(records))
        cluster.nodes[0].put(pack_spans(key, (span,), 1_000, records))
        start = span.stop
    cluster.commit()
    batches = [batch for _, batch in batches_of("messages", cluster.data)]
    assert sum(batch.num_rows for batch in batches) == start
    assert max(batch.num_rows for batch in batches) <= ROWS_MAX
    assert max(batch.nbytes for batch in batches) <= BYTES_MAX + (1 << 20)


def test_numbers_are_kept_as_ranges() -> None:
    numbers = journals.Numbers.of([(5, 6), (1, 3), (3, 4), (9, 12)])
    assert numbers == journals.Numbers((1, 5, 9), (4, 6, 12))
    assert [number for number in range(14) if number in numbers] == [1, 2, 3, 5, 9, 10, 11]


def test_nodes_without_whose_directories_deaths_may_be_missing_are_listed(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    cluster.commit()
    cluster.close()
    assert [row["kind"] for row in rows_of("problems", cluster.data)] == []
    assert [row["kind"] for row in rows_of("problems", cluster.data[1:])] == [], "two of three are enough"
    seen = rows_of("problems", cluster.data[2:])
    assert [(row["node"], row["kind"]) for row in seen] == [("n1", "absent"), ("n2", "absent")]
    assert "3 topic partitions (mails/0 …)" in seen[0]["impact"]


def test_times_of_a_wrong_clock_are_shown_in_any_time_zone_and_found_by_it(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    for seq, wrong in enumerate((-(1 << 62), 1 << 62)):
        cluster.publish(cluster.keys[0], (Span(PRODUCER_ID, seq, seq + 1),), wrong)
    cluster.commit()
    cluster.close()
    shown = [row["published_at"] for row in rows_of("messages", cluster.data, columns="seq,published_at")]
    for hours in (-14, 14):
        assert {at.astimezone(timezone(timedelta(hours=hours))).year for at in shown} <= {1, 2, 9998, 9999}
    for at in shown:
        selection = Wanted()
        selection.push([EqualTo(("published_at",), at)])
        options = options_of("messages", cluster.data)
        assert len(read_all(offline.plan(options, selection), options, selection)) == 1


def test_deaths_of_spans_that_nodes_cut_differently_are_one_each(tmp_path: Path) -> None:
    cluster = DiskCluster(tmp_path)
    key, producer = cluster.keys[0], ProducerId("n1", 1, 0xABC, 0)
    cluster.publish(key, (Span(producer, 0, 10),), 1_000)
    first, second, third = cluster.nodes
    early, late = (
        Record(0, 0, Kind.DEAD, cause_of(3, 1_000, "early")),
        Record(0, 0, Kind.DEAD, cause_of(7, 0, "late")),
    )
    cluster.resolve(key, "billing", Span(producer, 0, 10), late, [first])
    cluster.resolve(key, "billing", Span(producer, 0, 4), early, [second])
    cluster.resolve(key, "billing", Span(producer, 2, 6), early, [third])
    cluster.resolve(key, "billing", Span(producer, 3, 8), Record(0, 0, Kind.ACKED), [third])
    cluster.resolve(key, "billing", Span(producer, 9, 10), Record(0, 1, Kind.DEAD, cause_of(9, 0, "again")))
    cluster.commit()
    cluster.close()
    rows = {(row["seq"], row["n"]): row for row in rows_of("deadletters", cluster.data)}
    assert sorted(rows) == [*((seq, 0) for seq in range(10)), (9, 1)]
    assert [rows[seq, 0]["message"] for seq in range(10)] == ["early"] * 6 + ["late"] * 4
    fates = ["dead"] * 3 + ["acked"] * 5 + ["dead", "redriven"]
    assert [rows[seq, 0]["resolution"] for seq in range(10)] == fates
    assert rows[9, 1]["resolution"] == "dead"
    nodes = [["n1", "n2"]] * 2 + [["n1", "n2", "n3"]] * 2 + [["n1", "n3"]] * 2 + [["n1"]] * 4
    assert [rows[seq, 0]["replicas"] for seq in range(10)] == nodes
    assert all(row["payload"] and row["published_at"].timestamp() == 1.0 for row in rows.values())


@pytest.mark.parametrize(("most", "stack_bytes"), [("1", 600), ("4", 600), ("4", 90_000)])
def test_a_record_is_decoded_once_by_the_task_of_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, stack_bytes: int
) -> None:
    """However many nodes have it, also if it is longer than what is read at once."""
    write(120, tmp_path, stack_bytes=stack_bytes).close()
    data = [tmp_path / name for name in NAMES]
    decoded: list[int] = []
    load = cbor.load

    def counted(source: bytes, name: str = "CBOR") -> Any:
        if name == "the record's header":
            decoded.append(source[2] if source[1] == 0x18 else source[1])
        return load(source, name)

    monkeypatch.setattr(cbor, "load", counted)
    options = options_of("deadletters", data, tasks=most)
    tasks = list(offline.plan(options, Wanted()))
    before = decoded.count(24)
    rows = [batch.num_rows for task in tasks for batch in
            offline.read(task, options, Wanted(), schema("deadletters"))]  # fmt: skip
    assert before == 0, "the plan needs partitions of records alone"
    assert decoded.count(24) == 120
    assert sum(rows) == 120
    assert len(tasks) == (1 if most == "1" else 3)


def test_a_snapshot_is_not_decoded_after_its_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = stopped(tmp_path, 60, segment_bytes=16_000)
    assert [int(path.name[:12]) for path in segments(cluster.data[0])] == [1, 2]
    entries: list[int] = []
    add = fragments.Fragments.add_entries

    def counted(self: fragments.Fragments, key: Any, group: str, given: Any, *more: Any) -> None:
        entries.append(len(given))
        add(self, key, group, given, *more)

    monkeypatch.setattr(fragments.Fragments, "add_entries", counted)
    assert len(rows_of("deadletters", cluster.data)) == sum(entries) == 60


@pytest.mark.parametrize("cut", [False, True])
def test_a_snapshot_is_decoded_after_a_damaged_segment(tmp_path: Path, cut: bool) -> None:
    """A record in the segment before is damaged, or the file ends in front of it."""
    cluster = stopped(tmp_path, 60, segment_bytes=16_000)
    whole = by_name(rows_of("deadletters", cluster.data[:1], columns="id,message"))
    path = segments(cluster.data[0])[0]
    headers = [at for kind, at in record_headers(path.read_bytes()) if kind == journals.RECORDS_MERGED]
    if cut:
        os.truncate(path, headers[0] - 20)
    else:
        flip(path, headers[0] + 20)
    assert by_name(rows_of("deadletters", cluster.data[:1], columns="id,message", onDamage="report")) == whole


def test_tasks_are_no_more_than_asked_for_and_than_partitions_unless_memory_needs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = stopped(tmp_path)

    def tasks(most: int) -> list[tuple[int, tuple[int, int]]]:
        options = options_of("deadletters", cluster.data, tasks=str(most))
        planned = offline.plan(options, Wanted())
        return [(len(task.keys or ()), task.share) for task in planned]

    assert tasks(1) == [(3, (0, 1))]
    assert sorted(tasks(2)) == [(1, (0, 1)), (2, (0, 1))]
    assert tasks(9) == [(1, (0, 1))] * 3
    size = sum(path.stat().st_size for it in cluster.data for path in segments(it))
    monkeypatch.setattr(offline, "TASK_BYTES_MAX", size // 4)
    assert sorted(tasks(3)) == sorted([(1, (0, 2)), (1, (1, 2))] * 3)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[journals.OpenDirectory]:
    """Open the directory of a node with 1,000 dead letters of two topic partitions, in one segment."""
    write(1_000, tmp_path).close()
    planned = planning.plan_directory(str(tmp_path / "n1"), journals.refuse)
    directory = journals.OpenDirectory(planned.directory)
    yield directory
    directory.close()


def test_a_task_decodes_records_of_its_own_topic_partitions_only(opened: journals.OpenDirectory) -> None:
    """Each further task passes over all records of others, so these must not be decoded."""
    (plan,) = opened.plan.segments

    def read(known: journals.Decoded | None) -> list[tuple[int, PartitionId]]:
        """Return the offset and the topic partition of each batch, and of each record about messages."""
        result = []
        for frame in opened.frames(plan, journals.refuse, known):
            if frame.type == BATCH_STORED:
                header = journals.batch_of("", frame)[0].batch.header
                result.append((frame.offset, header.partition))
            elif frame.type == journals.RECORDS_MERGED:
                result.append((frame.offset, journals.decoded("", frame).partition))
        return result

    every = read(None)
    keys = sorted({key for _, key in every})
    assert len(keys) == 2
    for key in keys:
        assert read(journals.Decoded((key,), (key,))) == [it for it in every if it[1] == key]
        batches = read(journals.Decoded((), (key,)))
        assert len(batches) == 5
        assert set(batches) <= set(every)
    assert not read(journals.Decoded((), ()))


def test_a_segment_that_became_shorter_than_its_plan_is_damaged(opened: journals.OpenDirectory) -> None:
    (plan,) = opened.plan.segments
    frames = opened.frames(plan, journals.refuse)
    cut = [frame.offset for frame in frames if frame.type == journals.RECORDS_MERGED][-3]
    os.truncate(opened.files[plan.number].name, cut + 100)
    problems: list[journals.Problem] = []
    for _ in opened.frames(plan, problems.append, journals.Decoded((), ())):
        assert not problems
    assert [problem.offset for problem in problems] == [cut]

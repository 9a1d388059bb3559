"""The offline tables against a naive account of what was written, and what becomes of damage and of a writing node."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumq.client.message import MessageId
from quorumq.core.types import Group, Kind, Origin, Record, Span
from tests.spark.cluster_on_disk import (
    DiskCluster,
    Name,
    letter,
    payload_of,
    rows_of,
    turmoil,
)

ORIGIN = Origin("n1", 1, 0xABC, 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DiskCluster]:
    found = DiskCluster(tmp_path)
    yield found
    found.close()


def name_of(row: dict[str, Any]) -> Name:
    found = MessageId.parse(row["id"])
    return found.partition, found.origin, found.seq


def by_name(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["id"], row.get("group"), row.get("generation"), row.get("n")))


def check_copies(cluster: DiskCluster, rows: list[dict[str, Any]]) -> None:
    found = {(row["node"], row["batch"], name_of(row)) for row in rows}
    assert len(found) == len(rows), "a copy is there once"
    assert found == {
        (node.name, number, name)
        for node in cluster.nodes
        for name, copies in node.stored().items()
        for number, _ in copies
    }
    for row in rows:
        assert row["payload"] == payload_of(*name_of(row))
        assert row["intact"]


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
        assert row["origin"].startswith(name[1].node)


def check_tombstones(cluster: DiskCluster, rows: list[dict[str, Any]]) -> None:
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        for seq in range(row["start"], row["stop"]):
            name = (row["topic_id"], row["partition"], row["group"], row["origin"], seq)
            assert name not in found, "a message has one record per group"
            found[name] = (int(row["generation"]), row["n"], row["kind"], row["replicas"])
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for node in cluster.nodes:
        for (key, group), records in node.records.items():
            for origin, seq in records:
                record = cluster.merged(key, group, (origin, seq))
                having = [
                    other.name
                    for other in cluster.nodes
                    if other.records.get((key, group), {}).get((origin, seq), Record(0, 0, Kind.OPEN))[:3]
                    == record[:3]
                ]
                text = f"{origin.node}.{origin.n}.{origin.nonce:x}.{origin.k}"
                expected[(key.topic.hex(), key.number, group, text, seq)] = (
                    record.generation,
                    record.n,
                    record.kind.name.lower(),
                    having,
                )
    assert found == expected


def naive_resolution(cluster: DiskCluster, name: Name, group: str, generation: int, n: int) -> str:
    now = cluster.merged(name[0], group, name[1:])
    if now[:3] == (generation, n, Kind.DEAD):
        return "dead"
    if now.kind == Kind.ACKED:
        return "acked"
    return "redriven" if now.n > n else "purged"


def check_letters(cluster: DiskCluster, rows: list[dict[str, Any]]) -> None:
    found: dict[tuple[Name, str, int, int], str] = {}
    for row in rows:
        death = (name_of(row), row["group"], int(row["generation"]), row["n"])
        assert death not in found, "a dead letter is there once"
        found[death] = row["resolution"]
        wrote = cluster.deaths[death]
        assert row["message"] == wrote.message
        assert row["fingerprint"] == "f1"
        there = [node.stored() for node in cluster.nodes if name_of(row) in node.stored()]
        if there:
            assert row["payload"] == payload_of(*name_of(row))
            assert row["digest"] == hashlib.sha256(row["payload"]).hexdigest()
        else:
            assert row["payload"] is None
    for death, what in found.items():
        assert what == naive_resolution(cluster, *death), death
    for death in cluster.deaths:
        if naive_resolution(cluster, *death) == "dead":
            assert found.get(death) == "dead", f"{death} is missing"


@pytest.mark.parametrize("seed", range(4))
def test_the_tables_are_what_a_naive_account_says(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cluster = DiskCluster(tmp_path, segment_bytes=rng.choice((1_500, 6_000, 1 << 26)))
    for _ in range(2):
        turmoil(cluster, rng, 60)  # the nodes are running while their directories are read
        more = {"splitBytes": rng.choice(("1", "5000", "100000000")), "buckets": rng.choice(("1", "3"))}
        check_copies(cluster, rows_of("copies", cluster.data, **more))
        check_messages(cluster, rows_of("messages", cluster.data, **more))
        check_tombstones(cluster, rows_of("tombstones", cluster.data, **more))
        check_letters(cluster, rows_of("deadletters", cluster.data, **more))
        assert rows_of("problems", cluster.data, **more) == []
        only = [row for row in rows_of("deadletters", cluster.data, **more) if row["resolution"] == "dead"]
        assert by_name(rows_of("deadletters", cluster.data, resolved="false", **more)) == by_name(only)
    cluster.close()
    check_messages(cluster, rows_of("messages", cluster.data))


def test_a_generation_that_covers_a_dead_letter_makes_it_void(cluster: DiskCluster) -> None:
    key = cluster.keys[0]
    cluster.publish(key, (Span(ORIGIN, 0, 4),), 1_000)
    cluster.publish(key, (Span(ORIGIN, 4, 8),), 2_000)
    for seq in range(8):
        record = Record(0, 0, Kind.DEAD, letter(1, 1_000 if seq < 4 else 2_000))
        cluster.resolve(key, "billing", Span(ORIGIN, seq, seq + 1), record)
    rewound = (1 << 64) - 1
    cluster.set_group(Group(key.topic, "billing", rewound, 1_500))
    cluster.resolve(
        key, "billing", Span(ORIGIN, 0, 1), Record(rewound, 1, Kind.OPEN)
    )  # not covered: a redrive
    cluster.resolve(key, "billing", Span(ORIGIN, 4, 5), Record(rewound, 0, Kind.ACKED))  # read again
    cluster.resolve(key, "billing", Span(ORIGIN, 5, 6), Record(rewound, 0, Kind.DEAD, letter(9, 2_000)))
    cluster.commit()
    found = {
        (row["seq"], int(row["generation"])): row["resolution"]
        for row in rows_of("deadletters", cluster.data)
    }
    assert found == {
        (0, 0): "redriven",
        **{(seq, 0): "dead" for seq in (1, 2, 3)},
        **{(seq, 0): "reopened" for seq in (4, 5, 6, 7)},
        (5, rewound): "dead",
    }

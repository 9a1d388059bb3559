"""PEEK that counts, and the backlog of several groups in one request."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages import AckRequest, Failed, PeekReply, PeekRequest, Publish, RejectRequest
from quorumq.core.values import limits
from quorumq.core.values.types import DERIVED, Death, ProducerId, Stamp
from tests.core.cluster import Cluster
from tests.core.steps import fetch, published, receipts, with_messages, with_session

HOUR_MS = 3_600_000


def death(text: str, fingerprint: str, version: str = "") -> Death:
    return Death(
        Stamp(0, ""), "rejected", "E", text, "stack" * 99, fingerprint=fingerprint, consumer_version=version
    )


def counted(cluster: Cluster, node: str, which: str, since_ms: int = 0) -> tuple[list[m.StateCount], int]:
    rows: list[m.StateCount] = []
    cursor: tuple[int, int] | None = (0, 0)
    pages = 0
    while cursor is not None:
        request = PeekRequest("jobs", 0, "g", which, cursor, 10, counted=True, since_ms=since_ms)
        page = cluster.ask(node, request, of=PeekReply)
        assert (page.items, page.slices) == ((), ())
        rows += page.counts
        cursor = page.cursor
        pages += 1
    return rows, pages


def test_dead_letters_are_counted_by_kind_version_and_hour_of_death() -> None:
    cluster, topic, producer_id = with_session(6, heartbeat=600.0, sync_interval=600.0)
    del topic, producer_id
    first = cluster.now.wall_ms
    for text, fingerprint, version in (
        ("a" * 500, "f1", "1"),
        ("b", "f1", "1"),
        ("c", "f2", "1"),
        ("d", "f1", "2"),
    ):
        cluster.ask(
            "a",
            RejectRequest(receipts(cluster.ask("a", fetch(most=1))), 0.0, death(text, fingerprint, version)),
        )
    cluster.checks = False  # an hour of heartbeats
    cluster.advance(HOUR_MS / 1000)
    cluster.checks = True
    cluster.ask("a", RejectRequest(receipts(cluster.ask("a", fetch(most=1))), 0.0, death("e", "f1", "1")))
    rows, _ = counted(cluster, "b", "dead")
    assert [(row.fingerprint, row.version, row.messages) for row in rows] == [
        ("f1", "1", 2), ("f2", "1", 1), ("f1", "2", 1), ("f1", "1", 1),
    ]  # fmt: skip
    assert (rows[0].message, rows[0].sample.start) == ("a" * limits.COUNTED_TEXT_MAX, 0)
    assert rows[0].first_died_ms // HOUR_MS == first // HOUR_MS
    assert rows[3].first_died_ms // HOUR_MS == first // HOUR_MS + 1


def test_a_rewind_is_counted_by_state_from_a_time_on() -> None:
    cluster, topic, producer_id = with_session(3)
    cluster.advance(10)
    since = cluster.now.wall_ms
    cluster.ask("a", Publish(cluster.batch(topic, producer_id, 3, [b"x"] * 4, published_ms=since)))
    cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch(most=2)))))
    everything, _ = counted(cluster, "c", "all")
    assert {row.state: row.messages for row in everything} == {"acked": 2, "ready": 5}
    later, _ = counted(cluster, "c", "all", since)
    assert {row.state: row.messages for row in later} == {"ready": 4}
    derived = ProducerId(DERIVED, 1, 2, 3)  # a rewind to any time covers it
    cluster.ask("a", Publish(cluster.batch(topic, derived, 0, [b"x"], published_ms=since - 1)))
    later, _ = counted(cluster, "c", "all", since)
    assert {row.state: row.messages for row in later} == {"ready": 5}


def test_a_page_of_counts_looks_at_a_bounded_number_of_batches_also_of_those_before_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PEEK_SCAN_MAX", 40)
    cluster = Cluster(1)
    topic, producer_id = published(cluster, 1, rf=1)
    since = cluster.now.wall_ms
    for seq in range(1, 60):
        cluster.ask("a", Publish(cluster.batch(topic, producer_id, seq, [b"x"], published_ms=since + seq)))
    rows, pages = counted(cluster, "a", "all", since + 50)
    assert (sum(row.messages for row in rows), pages) == (10, 2)


def test_several_groups_are_described_at_once_and_those_unknown_here_left_out() -> None:
    cluster = with_messages(3)
    cluster.ask("a", m.SetGroup("jobs", "h"))
    cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch(most=1)))))
    named = (("jobs", "g"), ("jobs", "nobody"), ("nothing", "g"), ("jobs", "h"))
    reply = cluster.ask("b", m.DescribeGroups(named), of=m.DescribeGroupsReply)
    assert [(one.group, one.parts[0].ready) for one in reply.groups] == [("g", 2), ("h", 3)]


def test_one_request_describes_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DESCRIBED_MAX", 4)
    cluster = Cluster()
    cluster.topic(partitions=4)
    refused = cluster.ask("a", m.DescribeGroups((("jobs", "g"), ("jobs", "h"))), of=Failed)
    assert (refused.code, "name fewer groups" in refused.detail) == ("too-large", True)
    assert not isinstance(cluster.ask("a", m.DescribeGroups((("jobs", "g"),))), Failed)

"""STATUS describes the node, costs the same at any size, and is sent in chunks of one size.

Every check between two steps compares its counts with a recount (`Views.check`).
"""

from __future__ import annotations

from typing import Any

import pytest

from quorumq.core.messages import (
    AckRequest,
    Metadata,
    MetadataReply,
    ReceiptPart,
    RejectRequest,
    StatusReply,
    StatusRequest,
)
from quorumq.core.values import limits
from quorumq.core.values.counted import CountedMap
from quorumq.core.values.types import Death, ProducerId, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.steps import fetch, many, publish_first, receipts, with_messages
from tests.core.work import calls

CALLS_OF_A_ROW = 60
"""Calls that a partition, or a group in it, may cost: a few microseconds."""


def asked(cluster: Cluster, begin: Any = None) -> StatusReply:
    return cluster.ask("a", StatusRequest(begin), of=StatusReply)


def counted(cluster: Cluster) -> tuple[Any, ...]:
    (row,) = asked(cluster).fields["partitions"]
    fields = row["groups"]["g"]
    return tuple(
        fields[name] for name in ("available", "held", "delayed", "dead", "settled", "oldest_s", "kept_s")
    )


def test_each_message_that_a_group_has_still_to_do_is_counted_once_and_its_age_told() -> None:
    cluster = with_messages(4)
    cluster.advance(1.0)
    first, second = (receipts(cluster.ask("a", fetch(most=1, hold_time=60.0))) for _ in range(2))
    assert counted(cluster) == (2, 2, 0, 0, 0, 1.0, 1.0)
    cluster.ask("a", RejectRequest(first, 3.0))
    cluster.ask("a", RejectRequest(second, 0.0, Death(Stamp(0, ""), "rejected")))
    assert counted(cluster) == (2, 0, 1, 1, 1, 1.0, 1.0)
    cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch(most=10)))))
    assert counted(cluster) == (0, 0, 1, 1, 3, 1.0, 1.0)
    cluster.advance(3.5)
    assert counted(cluster) == (1, 0, 0, 1, 3, 4.5, 4.5)
    cluster.ask("a", AckRequest(receipts(cluster.ask("a", fetch(most=10)))))
    assert counted(cluster) == (0, 0, 0, 1, 4, None, 4.5), "a dead letter is kept, and is nothing to do"


def test_a_message_delayed_since_its_publish_is_listed_as_delayed() -> None:
    cluster = Cluster()
    publish_first(cluster, delay_ms=5000)
    cluster.ask("a", fetch(most=1))
    assert counted(cluster)[:3] == (0, 0, 1)
    cluster.advance(5.1)
    assert counted(cluster)[:3] == (1, 0, 0)


@pytest.mark.parametrize("batches", [1, 40])
def test_a_status_costs_the_same_however_much_is_held_delayed_and_settled(batches: int) -> None:
    cluster = Cluster(1, checks=False)  # they look at everything
    topic = cluster.topic(rf=1)
    many(cluster, topic, batches, 3)
    for _ in range(batches):
        ((receipt, (span,)),) = receipts(cluster.ask("a", fetch(most=3, hold_time=60.0)))
        each = [span._replace(start=at, stop=at + 1) for at in range(span.start, span.stop)]
        cluster.ask("a", AckRequest((ReceiptPart(receipt, (each[0],)),)))
        cluster.ask("a", RejectRequest((ReceiptPart(receipt, (each[1],)),), 60.0))
    assert counted(cluster)[:5] == (0, batches, batches, 0, batches)
    assert calls(lambda: cluster.nodes["a"].router.status(StatusRequest(), cluster.now)) < 3 * CALLS_OF_A_ROW


def test_a_status_of_many_partitions_and_groups_comes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATUS_ROWS_MAX", 5)
    cluster = Cluster(1)
    cluster.topic(rf=1, partitions=3)
    for group in "cdabefhg":
        cluster.ask("a", fetch(group=group))
    reply = asked(cluster)
    assert reply.fields["node"] == "a"
    fields, chunks, more = reply.fields, 1, reply.more
    while more is not None:
        begin = more
        reply = asked(cluster, begin)
        assert [*reply.fields] == ["partitions"]
        assert sum(1 + len(row["groups"]) for row in reply.fields["partitions"]) <= 5
        cost = calls(lambda begin=begin: cluster.nodes["a"].router.status(StatusRequest(begin), cluster.now))
        assert cost < 6 * CALLS_OF_A_ROW
        fields, chunks, more = reply.joined_to(fields), chunks + 1, reply.more
    assert chunks > 3
    seen = [(row["partition"], "".join(row["groups"])) for row in fields["partitions"]]
    assert seen == [(number, "abcdefgh") for number in range(3)]


def test_a_count_follows_all_that_happens_to_a_map() -> None:
    table: CountedMap[str] = CountedMap(len)
    producer_id = ProducerId("a", 1, 1, 1)
    table.put(Span(producer_id, 0, 10), "xy")
    table.put(Span(producer_id, 5, 7), "z")
    twin = table.clone()
    table.put(Span(producer_id, 0, 6), None)
    table.check()
    twin.check()
    assert (table.counts, twin.counts) == ({2: 3, 1: 1}, {2: 8, 1: 2})
    assert (table.count(1), table.count(9)) == (1, 0)


def test_a_node_that_says_nothing_is_not_up_though_its_links_are() -> None:
    cluster = Cluster()
    for silent, up in ((False, True), (True, False), (False, True)):
        cluster.drop = lambda sender, to, message, silent=silent: silent and sender == "b"
        cluster.advance(5.0)
        nodes = {info.node: info.up for info in cluster.ask("a", Metadata(()), of=MetadataReply).nodes}
        assert nodes == {"a": True, "b": up, "c": True}
        assert asked(cluster).fields["peers"]["b"]["up"] is up
        assert "b" in cluster.nodes["a"].state.links

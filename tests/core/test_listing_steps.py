"""A listing sorts a bounded number of producer ids in one step."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quorumq.core import messages as m
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.listing import FIRST, known_spans, list_some
from quorumq.core.values import limits
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import DERIVED, PartitionId, ProducerId, Span, Topic
from quorumq.wire.batch import Message, encode_record, pack_spans
from tests.core.cluster import Cluster
from tests.core.steps import fetch, receipts, replica_of

PRODUCER_IDS = 50


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each step puts 8 in order; returned are the numbers of those that each step did."""
    monkeypatch.setattr(limits, "LISTED_PER_STEP", 8)
    steps: list[int] = []

    def counted(batches: Batches, after: Span | None, recorded: Iterable[ProducerId] = ()) -> bool:
        before = len(batches.listed) if after is not None and batches.listed is not None else 0
        done = list_some(batches, after, recorded)
        assert batches.listed is not None
        steps.append(len(batches.listed) - before)
        return done

    monkeypatch.setattr("quorumq.core.partition.listing.list_some", counted)
    return steps


def filled(cluster: Cluster) -> Topic:
    """A topic with one message of each of `PRODUCER_IDS` producer ids."""
    topic = cluster.topic()
    cluster.ask("a", fetch())
    spans = tuple(Span(ProducerId(DERIVED, n, n, n), 0, 1) for n in range(1, PRODUCER_IDS + 1))
    record = encode_record(Message(b"x"))
    batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, [record] * len(spans))
    cluster.ask("a", m.Publish(batch))
    return topic


def test_a_group_from_latest_skips_all_in_steps(few: list[int]) -> None:
    cluster = Cluster()
    filled(cluster)
    few.clear()
    assert isinstance(cluster.ask("a", m.SetGroup("jobs", "late", "latest")), m.GroupReply)
    assert 8 in few
    assert max(few) <= 8
    reply = cluster.ask("b", fetch("late"), of=m.FetchReply)
    assert not receipts(reply), "all that was there before is skipped"
    assert len(receipts(cluster.ask("b", fetch("g", most=100)))) > 0


def test_a_complete_peek_and_a_purge_see_all(few: list[int]) -> None:
    cluster = Cluster()
    topic = filled(cluster)
    shown, after = SpanSet(), None
    for _ in range(100):
        page = cluster.ask("a", m.PeekRequest("jobs", 0, "g", "all", (0, 0), 20, complete=True, after=after))
        assert isinstance(page, m.PeekReply)
        for item in page.items:
            shown.add(item.span)
        after = page.upto
        if after is None:
            break
    assert shown.messages == PRODUCER_IDS
    assert max(few) <= 8
    reply = cluster.ask("b", m.PurgeRequest("jobs", 0, "g"))
    assert reply.messages == PRODUCER_IDS  # type: ignore[union-attr]
    assert not receipts(cluster.ask("c", fetch()))
    assert topic.name == "jobs"


def test_two_listings_at_a_time_lose_nothing() -> None:
    cluster = Cluster()
    filled(cluster)
    batches = replica_of(cluster, "a").batches
    one: Span | None = None
    while not list_some(batches, one):
        one = FIRST
        list_some(batches, None)  # another one begins anew
        if len(batches.unlisted) < PRODUCER_IDS - 8:
            break
        while not list_some(batches, FIRST):
            pass
    half = list(known_spans(batches, FIRST))[:20]
    while not list_some(batches, half[-1]):
        pass
    rest = list(known_spans(batches, half[-1]))
    assert len({*half, *rest}) == PRODUCER_IDS


def test_a_producer_id_that_was_closed_between_two_pages_is_passed_over() -> None:
    cluster = Cluster()
    filled(cluster)
    batches = replica_of(cluster, "a").batches
    while not list_some(batches, FIRST):
        pass
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=100)))))
    gone = next(iter(batches.listed or ()))
    for table in (batches.present, batches.reclaimed):
        table.remove(Span(gone, 0, 1))
    assert len(list(known_spans(batches, FIRST))) == PRODUCER_IDS - 1

"""A cluster whose messages carry the last numbers that a record can hold."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.clock import RESERVE_STEP
from quorumq.core.values.limits import AGES_ASKED_END, NUMBERS_END, WORDS_END
from quorumq.core.values.types import Batch, PartitionId, ProducerId, Span, Topic
from quorumq.wire.batch import Message, build_batch, encode_header
from quorumq.wire.values import SignedNamed
from tests.core.coded import Coded

LAST = Span(ProducerId("a", NUMBERS_END - 1, WORDS_END - 1, NUMBERS_END - 1), NUMBERS_END - 3, NUMBERS_END)
"""The last messages that can be: published before the drawn requests, and redriven, shown and settled by them."""


def far_batch(producer_id: ProducerId, start: int, published_ms: int, ttl_ms: int, topic: bytes) -> Batch:
    """Return a batch whose header was written by hand, without the checks of a producer."""
    good = build_batch(PartitionId(topic, 0), ProducerId("a", 1, 1, 1), 0, 0, [Message(b"x")])
    section = Span(producer_id, min(start, WORDS_END - 2), min(start, WORDS_END - 2) + 1)
    header = good.header._replace(spans=(section,), published_ms=published_ms, ttl_ms=ttl_ms)
    return good._replace(header=header, raw=encode_header(header))


def receipts(reply: Any) -> tuple[SignedNamed, ...]:
    """Return the receipts of a FETCH."""
    return tuple(SignedNamed(item.signed) for part in reply.slices for item in part.deliveries)


def begun() -> tuple[Coded, Topic, tuple[SignedNamed, ...]]:
    """Return a cluster with the last possible messages, two of them delivered."""
    cluster = Coded()
    cluster.checks = False
    topic = cluster.topic()
    batch = cluster.batch(topic, LAST.producer_id, LAST.start, [b"x"] * LAST.size)
    assert isinstance(cluster.ask("a", m.Publish(batch, AGES_ASKED_END - 1)), m.PublishReply)
    return cluster, topic, receipts(cluster.ask("a", m.Fetch(("jobs",), "g", 2, 100, 1, 0.0, 1.0, 0.0)))


def see_stamps(cluster: Coded) -> None:
    """Assert that no request moved a clock more than one step beyond the time of day."""
    for node in cluster.nodes.values():
        clock = node.state.clock
        assert max(clock.value, clock.highest) <= (cluster.now.wall_ms << 16) + RESERVE_STEP

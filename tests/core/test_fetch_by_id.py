"""A FETCH that names messages: it gets these, if any FETCH might, and no others (docs/protocol.md, FETCH)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.values.types import Death, ProducerId, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.steps import (
    check_failed,
    fetch,
    opened,
    outcomes,
    receipts,
    seqs,
    with_messages,
    with_session,
)

SOME = Span(ProducerId("x", 1, 1, 1), 0, 1)


def by_id(*spans: Span, group: str = "g", idle: bool = True, hold_time: float = 10.0) -> m.Fetch:
    return fetch(group, idle=idle, hold_time=hold_time)._replace(partitions=(0,), spans=spans)


def suspects(reply: object) -> list[bool]:
    assert isinstance(reply, m.FetchReply)
    return [delivery.suspect for part in reply.slices for delivery in part.deliveries]


def test_named_messages_come_once_and_no_others() -> None:
    cluster, _, producer_id = with_session()
    named = (
        Span(producer_id, 7, 8), Span(producer_id, 2, 4), Span(producer_id, 3, 5), Span(producer_id, 90, 95),
        SOME,
    )  # fmt: skip
    reply = cluster.ask("b", by_id(*named))
    assert seqs(reply) == [2, 3, 4, 7]
    assert outcomes(cluster.ask("c", m.AckRequest(receipts(reply)))) == ["acked", "acked"]
    assert seqs(cluster.ask("a", by_id(*named))) == []
    assert seqs(cluster.ask("c", fetch())) == [0, 1, 5, 6, 8, 9]


def test_it_wins_nothing_that_another_fetch_would_not() -> None:
    """Held, delayed and dead messages stay as they are, also if this node does not know about them."""
    cluster, _, producer_id = with_session(4)
    held, late, dead, free = (Span(producer_id, seq, seq + 1) for seq in range(4))
    receipts(cluster.ask("a", by_id(held)))
    cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", by_id(late))), 60.0))
    death = Death(Stamp(0, ""), "rejected")
    cluster.ask("b", m.RejectRequest(receipts(cluster.ask("b", by_id(dead))), 0.0, death))
    for node in "abc":
        assert seqs(cluster.ask(node, by_id(held, late, dead))) == []
    assert seqs(cluster.ask("c", by_id(dead, group="g!dead"))) == [2]
    assert seqs(cluster.ask("c", by_id(held, late, dead, free))) == [3]


def test_a_suspect_is_alone_and_only_for_a_client_with_nothing_in_hand() -> None:
    cluster, _, producer_id = with_session(3, max_deliveries=2)
    first, second, third = (Span(producer_id, seq, seq + 1) for seq in range(3))
    assert seqs(cluster.ask("a", by_id(first, second, hold_time=2.0))) == [0, 1]
    cluster.advance(2.1)
    assert seqs(cluster.ask("b", by_id(first, second, idle=False))) == []
    reply = cluster.ask("b", by_id(second))
    assert (seqs(reply), suspects(reply)) == ([1], [True]), (
        "an older one that is not named does not come for it"
    )
    assert outcomes(cluster.ask("b", m.AckRequest(receipts(reply)))) == ["acked"]
    assert sorted([seqs(cluster.ask("c", by_id(first, third))) for _ in range(2)]) == [[0], [2]]


def test_a_node_without_a_replica_has_another_one_do_it() -> None:
    cluster = Cluster(5)
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 5)), of=m.PublishReply)
    (outsider, *_) = [name for name in cluster.names if name not in topic.replicas[0]]
    reply = cluster.ask(outsider, by_id(Span(producer_id, 3, 4)))
    assert seqs(reply) == [3]
    assert seqs(cluster.ask(outsider, by_id(Span(producer_id, 2, 4)))) == [2]
    items = tuple(m.ReceiptPart(item.receipt, item.spans) for item in receipts(reply))
    assert outcomes(cluster.ask(outsider, m.AckRequest(items))) == ["acked"]


def test_many_that_are_apart_come_in_several_answers() -> None:
    cluster, _, producer_id = with_session(600)
    odd = tuple(Span(producer_id, seq, seq + 1) for seq in range(1, 600, 2))
    answers: list[list[int]] = []
    while answer := seqs(cluster.ask("a", by_id(*odd))):
        answers.append(answer)
    assert [seq for answer in answers for seq in answer] == [span.start for span in odd]
    assert max(map(len, answers)) <= 130, "one step votes on more runs than others wait for"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (by_id(SOME._replace(stop=1001)), "1,001 messages"),
        (by_id(*[SOME] * 1001), "1,001 messages"),
        (by_id(SOME)._replace(partitions=()), "their partition"),
        (by_id(SOME)._replace(partitions=(0, 1)), "their partition"),
        (by_id(SOME)._replace(topics=("job*",)), "their topic"),
        (by_id(SOME)._replace(topics=("jobs", "other")), "their topic"),
        (by_id(SOME)._replace(max_wait=0.5), "must be 0"),
    ],
)
def test_a_fetch_of_too_many_names_is_refused(request_: m.Fetch, says: str) -> None:
    cluster = with_messages(1)
    check_failed(cluster.ask("a", request_), "usage", says)

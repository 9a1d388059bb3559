"""A partition's replica set is chosen once: requests of another epoch are refused (docs/protocol.md, section 1)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quorumq.core.messages import (
    QUORUM_REQUESTS,
    AckRequest,
    CloseSession,
    Envelope,
    ExtendRequest,
    Failed,
    FetchReply,
    OpenSession,
    PeekRequest,
    PeerMessage,
    Publish,
    PurgeRequest,
    PutTopic,
    RedriveRequest,
    RejectRequest,
    SettleReply,
    SlotRequest,
    SpanRecord,
    Store,
    StoreReply,
    SyncDigests,
    SyncListed,
    SyncState,
    SyncTopics,
)
from quorumq.core.messages.effects import Effect, Persist, Received, Send
from quorumq.core.values.types import STAMP_ZERO, Death, PartitionId, ProducerId, Span, Topic
from tests.core.cluster import Cluster
from tests.core.steps import fetch, opened, receipts

DEATH = Death(STAMP_ZERO, "rejected", "E", "", "", "f")


def received(effects: Iterable[Effect]) -> list[PeerMessage]:
    """Return the messages that these effects send; none may be journaled."""
    messages: list[PeerMessage] = []
    for effect in effects:
        if isinstance(effect, Persist):
            assert not effect.records
            messages += received(effect.then)  # type: ignore[arg-type]
        elif isinstance(effect, Send):
            messages.append(effect.message)
    return messages


def lively(cluster: Cluster) -> tuple[Topic, ProducerId, list[Envelope]]:
    """A topic on which everything was done once, and every message that a sent to b for it."""
    sent: list[Envelope] = []

    def watch(sender: str, to: str, message: object) -> bool:
        if (sender, to) == ("a", "b"):
            ours, theirs = (cluster.nodes[name].state.incarnation for name in "ab")
            sent.append(Envelope("a", ours, "b", theirs, 0, message))  # type: ignore[arg-type]
        return False

    cluster.drop = watch
    topic, producer_id = opened(cluster)
    cluster.ask("a", Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 8)))
    first = receipts(cluster.ask("a", fetch(most=2)))
    cluster.ask("a", ExtendRequest(first, 20.0, cluster.now.mono))
    cluster.ask("a", AckRequest(first))
    cluster.ask("a", RejectRequest(receipts(cluster.ask("a", fetch(most=2))), death=DEATH))
    cluster.ask("a", RedriveRequest("jobs", 0, "g", first_half(deaths(cluster))))
    cluster.ask("a", PeekRequest("jobs", 0, "g", "all", (0, 0), 10, complete=True))
    brief = cluster.ask("a", OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("a", CloseSession(brief, (PartitionId(topic.id, 0),)))
    cluster.drop = lambda sender, to, message: (
        watch(sender, to, message) or (to == "b" and isinstance(message, Store))
    )
    cluster.ask("a", Publish(cluster.batch(topic, producer_id, 8, [b"y"])))
    cluster.advance(30)  # they compare, and differ
    cluster.hear_all()
    return topic, producer_id, sent


def first_half(entries: tuple[SpanRecord, ...]) -> tuple[SpanRecord, ...]:
    """The first of two messages that were listed together."""
    (entry,) = entries
    return (entry._replace(span=entry.span._replace(stop=entry.span.start + 1)),)


def deaths(cluster: Cluster) -> tuple[SpanRecord, ...]:
    page = cluster.ask("a", PeekRequest("jobs", 0, "g", "dead", (0, 0), 10))
    return tuple(SpanRecord(item.span, item.record) for item in page.items)  # type: ignore[union-attr]


def test_every_request_of_another_epoch_is_refused_without_a_trace() -> None:
    cluster = Cluster()
    topic, producer_id, sent = lively(cluster)
    core = cluster.nodes["b"]
    replica = core.replicas[PartitionId(topic.id, 0)]
    by_kind = {type(envelope.message): envelope for envelope in sent if hasattr(envelope.message, "epoch")}
    by_kind[SlotRequest] = by_kind[Store]._replace(message=SlotRequest(99, replica.partition, topic.epoch))
    assert set(by_kind) == {*QUORUM_REQUESTS, SyncDigests, SyncListed, SyncState}, (
        "every kind was sent, and no other has an epoch"
    )

    def kept() -> tuple[object, ...]:
        return (
            replica.recall.snapshot(cluster.now),
            replica.recall.holds_at_stop(cluster.now, ()),
            list(replica.batches.absent.items()),
        )

    before = kept()
    for kind, envelope in by_kind.items():
        for epoch in (topic.epoch + 1, topic.epoch - 1):
            number = {"round": 99} if hasattr(envelope.message, "round") else {}  # 0 asks for no answer
            message = envelope.message._replace(epoch=epoch, **number)  # type: ignore[union-attr, arg-type]
            if kind is SyncState:  # a span that b lacks
                message = message._replace(spans=(Span(producer_id, 100, 101),))
            other = envelope._replace(message=message)
            answers = received(core.step([Received(other)], cluster.now, cluster.rng))
            assert kept() == before, kind
            if kind in (SyncDigests, SyncListed, SyncState):
                assert answers == []
                continue
            *news, answer = answers
            assert all(isinstance(one, PutTopic) for one in news), "the sender gets the layout that it lacks"
            (error,) = (
                [problem.error for problem in answer.problems]
                if isinstance(answer, StoreReply)
                else [answer.error]  # type: ignore[union-attr]
            )
            assert error == "wrong-epoch", kind
    core.check(cluster.now)


@pytest.mark.parametrize("inside", [False, True], ids=["without a replica", "with one"])
def test_through_a_node_of_another_epoch_a_client_hears_of_no_success(inside: bool) -> None:
    """Nor that anything is certain: the client library asks the next node after such an answer."""
    cluster = Cluster(5)
    topic, producer_id, _ = lively(cluster)
    (members,) = topic.replicas
    node = members[0] if inside else next(name for name in cluster.names if name not in members)
    held = receipts(cluster.ask(members[1], fetch(most=1, hold_time=50.0)))
    dead = deaths(cluster)
    before = sizes(cluster, members[1])
    # Otherwise all would take it over.
    cluster.drop = lambda sender, to, message: isinstance(message, SyncTopics | PutTopic)
    core = cluster.nodes[node]
    other = topic._replace(epoch=topic.epoch + 1)
    core.context.catalogue.sums.replace(topic, other)
    core.topics[topic.id] = other
    for replica in core.replicas.values():
        replica.topic = other
        replica.epoch = replica.batches.epoch = other.epoch
    settled = "outcome-unknown" if inside else "wrong-epoch"  # its own replica does what it is asked
    for request, expected in (
        (Publish(cluster.batch(topic, producer_id, 20, [b"y"])), "outcome-unknown"),
        (AckRequest(held), settled),
        (ExtendRequest(held, 5.0, cluster.now.mono), settled),
        (RejectRequest(held), settled),
        (RedriveRequest("jobs", 0, "g", dead), settled),
        (PurgeRequest("jobs", 0, "g"), "too-few-replicas"),
        (PeekRequest("jobs", 0, "g", "all", (0, 0), 10, complete=True), "too-few-replicas"),
    ):
        reply = cluster.ask(node, request, 6)
        if isinstance(reply, SettleReply):
            assert {verdict.outcome for verdict in reply.verdicts} == {expected}, request
        else:
            assert isinstance(reply, Failed), request
            assert reply.code == expected
            assert "epoch" in reply.detail
    if inside:
        assert cluster.ask(node, fetch(), 6) == FetchReply(0.0, 10.0, ())
    assert sizes(cluster, members[1]) == before


def sizes(cluster: Cluster, node: str) -> dict[str, int]:
    """Return the number of messages by state at one replica."""
    counts: dict[str, int] = {}
    for item in cluster.ask(node, PeekRequest("jobs", 0, "g", "all", (0, 0), 100)).items:  # type: ignore[union-attr]
        counts[item.state] = counts.get(item.state, 0) + item.span.size
    return counts

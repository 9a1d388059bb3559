"""A partition's replica set is chosen once: requests of another epoch are refused (docs/protocol.md, section 1)."""

from __future__ import annotations

import typing
from collections.abc import Iterable

import pytest

from quorumq.core import messages as m
from quorumq.core.cluster.raising import present_placement
from quorumq.core.cluster.topics import with_layout
from quorumq.core.messages.effects import Effect, Persist, Received, Send
from quorumq.core.values.types import STAMP_ZERO, Death, Layout, PartitionId, ProducerId, Span, Topic
from tests.core.cluster import Cluster
from tests.core.network import hand_over, noted
from tests.core.steps import dead_entries, fetch, opened, receipts
from tests.wire.strategies import MESSAGE_TYPES

DEATH = Death(STAMP_ZERO, "rejected", "E", "", "", "f")


def received(effects: Iterable[Effect]) -> list[m.PeerMessage]:
    """Return the messages that these effects send; none may be journaled."""
    messages: list[m.PeerMessage] = []
    for effect in effects:
        if isinstance(effect, Persist):
            assert not effect.records
            messages += received(effect.then)  # type: ignore[arg-type]
        elif isinstance(effect, Send):
            messages.append(effect.message)
    return messages


def lively(cluster: Cluster) -> tuple[Topic, ProducerId, list[m.Envelope]]:
    """A topic on which everything was done once, and every message that a sent to b for it."""
    sent: list[m.Envelope] = []

    def watch(sender: str, to: str, message: object) -> bool:
        if (sender, to) == ("a", "b"):
            ours, theirs = (cluster.nodes[name].state.incarnation for name in "ab")
            sent.append(m.Envelope("a", ours, "b", theirs, 0, message))  # type: ignore[arg-type]
        return False

    cluster.drop = watch
    topic, producer_id = opened(cluster)
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * 8)))
    first = receipts(cluster.ask("a", fetch(most=2)))
    cluster.ask("a", m.ExtendRequest(first, 20.0, cluster.now.mono))
    cluster.ask("a", m.AckRequest(first))
    cluster.ask("a", m.RejectRequest(receipts(cluster.ask("a", fetch(most=2))), death=DEATH))
    cluster.ask("a", m.RedriveRequest("jobs", 0, "g", first_half(dead_entries(cluster))))
    cluster.ask("a", m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, complete=True))
    brief = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("a", m.CloseSession(brief, (PartitionId(topic.id, 0),)))
    cluster.drop = lambda sender, to, message: (
        watch(sender, to, message) or (to == "b" and isinstance(message, m.Store))
    )
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 8, [b"y"])))
    cluster.advance(30)  # they compare, and differ
    cluster.hear_all()
    return topic, producer_id, sent


def first_half(entries: tuple[m.SpanRecord, ...]) -> tuple[m.SpanRecord, ...]:
    """The first of two messages that were listed together."""
    (entry,) = entries
    return (entry._replace(span=entry.span._replace(stop=entry.span.start + 1)),)


def test_every_request_of_another_epoch_is_refused_without_a_trace() -> None:
    cluster = Cluster()
    topic, producer_id, sent = lively(cluster)
    core = cluster.nodes["b"]
    replica = core.replicas[PartitionId(topic.id, 0)]
    by_kind = {type(envelope.message): envelope for envelope in sent if hasattr(envelope.message, "epoch")}
    by_kind[m.SlotRequest] = by_kind[m.Store]._replace(
        message=m.SlotRequest(99, replica.partition, topic.epoch_of(0))
    )
    assert set(by_kind) == {*m.QUORUM_REQUESTS, m.SyncDigests, m.SyncListed, m.SyncState}, (
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
        for epoch in (topic.epoch_of(0) + 1, topic.epoch_of(0) - 1):
            number = {"round": 99} if hasattr(envelope.message, "round") else {}  # 0 asks for no answer
            message = envelope.message._replace(epoch=epoch, **number)  # type: ignore[union-attr, arg-type]
            if kind is m.SyncState:  # a span that b lacks
                message = message._replace(spans=(Span(producer_id, 100, 101),))
            other = envelope._replace(message=message)
            answers = received(core.step([Received(other)], cluster.now, cluster.rng))
            assert kept() == before, kind
            if kind in (m.SyncDigests, m.SyncListed, m.SyncState):
                assert answers == []
                continue
            *news, answer = answers
            assert all(isinstance(one, m.PutTopic) for one in news), (
                "the sender gets the layout that it lacks"
            )
            (error,) = (
                [problem.error for problem in answer.problems]
                if isinstance(answer, m.StoreReply)
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
    dead = dead_entries(cluster)
    before = sizes(cluster, members[1])
    # Otherwise all would take it over.
    cluster.drop = lambda sender, to, message: isinstance(message, m.SyncTopics | m.PutTopic)
    core = cluster.nodes[node]
    placement = present_placement(topic, 0)._replace(epoch=2)
    other = with_layout(topic, Layout(topic.id, 2, topic.made, (placement,)))
    core.context.catalogue.sums.replace(topic, other)
    core.topics[topic.id] = other
    for replica in core.replicas.values():
        replica.topic = other
        replica.epoch = replica.batches.epoch = other.epoch_of(0)
    settled = "outcome-unknown" if inside else "wrong-epoch"  # its own replica does what it is asked
    for request, expected in (
        (m.Publish(cluster.batch(topic, producer_id, 20, [b"y"])), "outcome-unknown"),
        (m.AckRequest(held), settled),
        (m.ExtendRequest(held, 5.0, cluster.now.mono), settled),
        (m.RejectRequest(held), settled),
        (m.RedriveRequest("jobs", 0, "g", dead), settled),
        (m.PurgeRequest("jobs", 0, "g"), "too-few-replicas"),
        (m.PeekRequest("jobs", 0, "g", "all", (0, 0), 10, complete=True), "too-few-replicas"),
    ):
        reply = cluster.ask(node, request, 6)
        if isinstance(reply, m.SettleReply):
            assert {verdict.outcome for verdict in reply.verdicts} == {expected}, request
        else:
            assert isinstance(reply, m.Failed), request
            assert reply.code == expected
            assert "epoch" in reply.detail
    if inside:
        assert cluster.ask(node, fetch(), 6) == m.FetchReply(0.0, 10.0, ())
    assert sizes(cluster, members[1]) == before


def sizes(cluster: Cluster, node: str) -> dict[str, int]:
    """Return the number of messages by state at one replica."""
    counts: dict[str, int] = {}
    for item in cluster.ask(node, m.PeekRequest("jobs", 0, "g", "all", (0, 0), 100)).items:  # type: ignore[union-attr]
        counts[item.state] = counts.get(item.state, 0) + item.span.size
    return counts


BY_NUMBER = (m.PutReply, m.ProposalReply, m.RegistersReply)
"""Answers about registers: their starts go by the numbers of the members, which no other member ever gets."""


def test_every_answer_of_a_replica_names_the_nodes_that_its_starts_are_of() -> None:
    answers = [kind for kind in MESSAGE_TYPES if kind in m.QUORUM_REPLIES and "known" in kind.__annotations__]
    named = [typing.get_type_hints(kind)["known"] for kind in answers if kind not in BY_NUMBER]
    assert named == [m.Starts] * len(m.QUORUM_REQUESTS)


@pytest.mark.parametrize("epoch", ["this", "another"])
def test_starts_of_the_slots_of_another_epoch_are_not_those_of_this_one(epoch: str) -> None:
    """An answer of b with them says nothing of c, which would count in no majority until its next start."""
    cluster = Cluster(4)
    topic, producer_id = opened(cluster)
    a, b, c = topic.replicas[0]
    (other,) = set(cluster.names) - {a, b, c}
    for _ in range(3):
        cluster.crash(other, 1.0)
    stored = noted(
        cluster,
        lambda sender, to, message: isinstance(message, m.StoreReply) and sender == b,
        lambda sender, to, message: isinstance(message, m.StoreReply) and sender in (b, c),
    )
    key = cluster.submit(a, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
    state = cluster.nodes[b].state
    slots = (a, b, c) if epoch == "this" else (a, b, other)
    known = state.vector(tuple(sorted(slots)))
    hand_over(cluster, b, a, stored[0]._replace(known=known))
    assert isinstance(cluster.replies[key], m.PublishReply)
    for name in (b, c, other):
        start = cluster.nodes[name].state.incarnation
        assert not cluster.nodes[a].state.superseded(name, start)
    cluster.drop = lambda sender, to, message: isinstance(message, m.StoreReply) and sender == b
    again = cluster.ask(a, m.Publish(cluster.batch(topic, producer_id, 1, [b"y"])))
    assert isinstance(again, m.PublishReply), "c is counted"

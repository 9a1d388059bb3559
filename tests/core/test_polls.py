"""A FETCH that does not wait takes what is there: each message whose publish is OK (docs/protocol.md, FETCH)."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Gone
from quorumq.core.requests.remote import LOOK_S
from tests.core.cluster import Cluster
from tests.core.network import hand_over, held_back, noted
from tests.core.steps import fetch, opened, outcomes, receipts


def published_without(missing: str, nodes: int = 3, rf: int = 3) -> tuple[Cluster, list[str]]:
    """Return a cluster in which all replicas but ``missing`` have the one message, and its members.

    ``missing`` are indexes among the members.
    """
    cluster = Cluster(nodes)
    topic, producer_id = opened(cluster, rf=rf)
    (members,) = topic.replicas
    cluster.ask("a", m.SetGroup("jobs", "g"))
    cluster.hear_all(1.0)
    lacking = [members[int(index)] for index in missing]
    cluster.drop = lambda sender, to, message: to in lacking and isinstance(message, m.Store | m.SyncDigests)
    via = next(node for node in members if node not in lacking)
    cluster.ask(via, m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])), of=m.PublishReply)
    return cluster, list(members)


def kinds_of(cluster: Cluster, node: str, request: m.Fetch) -> list[str]:
    """Return the kinds of messages between nodes until the request is answered."""
    kinds: list[str] = []
    cluster.drop = lambda sender, to, message: sender != to and bool(kinds.append(type(message).__name__))
    assert isinstance(cluster.ask(node, request), m.FetchReply)
    return kinds


@pytest.mark.parametrize(("rf", "missing"), [(3, "0"), (3, "1"), (3, "2"), (5, "04"), (5, "12"), (5, "34")])
def test_a_replica_that_lacks_a_message_asks_others_before_it_says_nothing(rf: int, missing: str) -> None:
    for index in missing:
        cluster, members = published_without(missing, 5, rf)
        got = receipts(cluster.ask(members[int(index)], fetch()))
        assert len(got) == 1
        assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]


def test_a_node_without_a_replica_asks_more_than_one_of_them() -> None:
    for _ in range(3):  # it begins with another one each time
        cluster, members = published_without("1", 5)
        (other, *_) = [node for node in cluster.nodes if node not in members]
        for _ in range(3):
            got = receipts(cluster.ask(other, fetch()))
            assert len(got) == 1
            cluster.ask(other, m.RejectRequest(got, 0.0))


@pytest.mark.parametrize(("rf", "looks"), [(1, 0), (3, 1), (5, 2)])
def test_an_empty_poll_asks_all_but_a_majority_and_no_other_fetch_asks_any(rf: int, looks: int) -> None:
    cluster = Cluster(5)
    topic, producer_id = opened(cluster, rf=rf)
    first = topic.replicas[0][0]
    cluster.ask("a", m.SetGroup("jobs", "g"))
    for node in cluster.nodes:  # each knows from now on that a majority has the group
        cluster.ask(node, fetch(wait=0.1), 1.0)
    assert kinds_of(cluster, first, fetch()) == ["RemoteFetch", "RemoteFetchReply"] * looks
    cluster.hear_all()
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"])))
    assert "RemoteFetch" not in kinds_of(cluster, first, fetch())
    cluster.hear_all()
    parked = noted(cluster, lambda sender, to, message: isinstance(message, m.RemoteFetch))
    cluster.ask(first, fetch(wait=0.5), 1.0, of=m.FetchReply)
    assert parked == []


def test_replicas_that_do_not_answer_make_an_empty_answer_late_and_no_error() -> None:
    cluster, members = published_without("0")
    late = held_back(
        cluster,
        lambda sender, to, message: isinstance(message, m.RemoteFetchReply),
        lambda sender, to, message: isinstance(message, m.SyncDigests | m.Store),
    )
    key = cluster.submit(members[0], fetch(hold_time=20.0))
    cluster.advance(2 * LOOK_S - 0.1)
    assert key not in cluster.replies
    cluster.advance(0.2)
    assert receipts(cluster.replies[key]) == ()
    assert len(late) == 2, "each was asked"
    cluster.hear_all()
    for item in late:
        hand_over(cluster, *item)
    assert len(receipts(cluster.ask(members[0], fetch()))) == 1, "it was given back"


def test_a_replica_in_quarantine_has_not_looked() -> None:
    for index in (1, 2):
        cluster, members = published_without("0")
        cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsReply | m.SyncDigests | m.Store)
        cluster.crash(members[index], 1.0)
        for _ in range(2):  # it begins with another one each time
            got = receipts(cluster.ask(members[0], fetch()))
            assert len(got) == 1
            cluster.ask(members[0], m.RejectRequest(got, 0.0))


def test_a_client_that_ends_while_others_are_asked_keeps_nothing() -> None:
    cluster, members = published_without("0")
    cluster.delay = 0.01
    key = cluster.submit(members[0], fetch(hold_time=20.0))
    cluster.advance(0.015)
    cluster.feed(members[0], Gone(key))
    cluster.advance(1.0)
    cluster.delay = 0.0
    assert key not in cluster.replies
    assert len(receipts(cluster.ask(members[1], fetch()))) == 1


@pytest.mark.parametrize("silent", ["b", "bc"])
def test_a_poll_waits_for_a_silent_replica_once(silent: str) -> None:
    """Its links stay, as those of a process that was stopped. When it says something, it is asked again."""
    cluster, _ = published_without("")
    drained = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("a", m.AckRequest(drained))) == ["acked"]
    asked: list[str] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, m.RemoteFetch) and sender == "a":
            asked.append(to)
        return {sender, to} & {*silent} != set()

    cluster.drop = drop
    began = cluster.time
    for _ in range(6):
        key = cluster.submit("a", fetch())
        while key not in cluster.replies:
            cluster.advance(0.01)
    assert cluster.time - began < len(silent) * LOOK_S + 0.1
    assert [asked.count(node) for node in silent] == [1] * len(silent)
    cluster.hear_all(1.0)
    asked.clear()
    cluster.drop = lambda sender, to, message: isinstance(message, m.RemoteFetch) and bool(asked.append(to))
    for _ in range(4):
        assert receipts(cluster.ask("a", fetch())) == ()
    assert {*asked} == {"b", "c"}

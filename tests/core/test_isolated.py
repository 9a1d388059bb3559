"""A FETCH through a node that cannot reach a majority ends, at once, and names other nodes."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import LinkDown
from quorumq.core.requests.holdround import QUIET_S
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from tests.core.cluster import Cluster
from tests.core.network import noted
from tests.core.steps import check_failed, fetch, receipts, with_messages, with_session


def test_a_fetch_on_a_node_without_links_is_refused_at_once() -> None:
    cluster = with_messages(10)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=1)))))
    cluster.feed("a", LinkDown("b"), LinkDown("c"))
    rounds = cluster.nodes["a"].state.round_count
    check_failed(cluster.ask("a", fetch(wait=1.0)), None, "ask another node")
    assert cluster.nodes["a"].state.round_count == rounds + 1
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("b", fetch()))) == 9


@pytest.mark.parametrize("seed", range(4))
def test_so_is_one_of_a_group_that_has_not_looked_at_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began a round on what it had looked at, without end in one step."""
    cluster = Cluster(3, seed)
    topic = cluster.topic(partitions=2)
    producer_id = cluster.ask("a", m.OpenSession()).producer_id
    for partition in range(2):
        for seq in range(40):
            cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, seq, [b"x"], partition)))
    monkeypatch.setattr(limits, "LOOKS_PER_STEP", 2)
    cluster.ask("a", fetch(most=1))
    cluster.feed("a", LinkDown("b"), LinkDown("c"))
    for wait in (0.0, 1.0):
        check_failed(cluster.ask("a", fetch(wait=wait)), "too-few-replicas", "ask another node")


def test_a_fetch_that_only_meets_abstentions_pauses_between_its_rounds() -> None:
    cluster = with_messages(10, hold_time_max=10.0)
    cluster.ask("a", m.AckRequest(receipts(cluster.ask("a", fetch(most=1)))))
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsRequest)
    for name in "bc":
        cluster.crash(name)
    rounds = cluster.nodes["a"].state.round_count
    abstained = noted(
        cluster,
        lambda sender, to, message: isinstance(message, m.HoldReply) and message.abstained,
        lambda sender, to, message: isinstance(message, m.HoldsRequest),
    )
    reply = cluster.ask("a", fetch(wait=1.0), 1.1)
    assert isinstance(reply, m.Failed), "an empty answer would be taken for an empty queue"
    assert (reply.code, "in quarantine" in reply.detail) == (Code.TOO_FEW_REPLICAS, True)
    assert abstained
    assert cluster.nodes["a"].state.round_count - rounds <= 2 + 1.0 / QUIET_S[0], "not every few milliseconds"


def test_no_node_asks_a_peer_that_cannot_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was started has links first, and the others have none to it for a moment. Their answers would be
    lost, and the client would wait for the request timeout."""
    cluster, topic, producer_id = with_session()
    cluster.kill("a")
    monkeypatch.setattr(cluster, "join", lambda name: None)
    cluster.start("a")
    publish = m.Publish(cluster.batch(topic, producer_id, 10, [b"x"]))
    for peer in "bc":
        cluster.link("a", peer)
    check_failed(cluster.ask("a", publish), Code.NOT_STORED, "only a of")
    for peer in "bc":
        cluster.link(peer, "a")
    assert isinstance(cluster.ask("a", publish), m.PublishReply)
    cluster.link("b", "a")
    cluster.feed("c", LinkDown("a"))
    cluster.link("c", "a")
    assert isinstance(cluster.ask("a", publish), m.PublishReply)


def test_an_empty_node_asks_again_once_others_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_messages(3)
    cluster.kill("a")
    cluster.journals["a"] = []
    monkeypatch.setattr(cluster, "join", lambda name: None)
    cluster.start("a")
    for dialler, acceptor in ("ab", "ac", "ab", "ac", "ba", "ca"):
        cluster.link(dialler, acceptor)
    assert cluster.nodes["a"].state.trusted

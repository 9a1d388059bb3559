"""A NOK that says who holds a message keeps a coordinator from choosing it again (docs/protocol.md, FETCH, step 1)."""

from __future__ import annotations

import pytest

from quorumq.core.messages import AckRequest, Hold, HoldReply, Release
from quorumq.core.messages.effects import Unsent
from tests.core.network import hand_over
from tests.core.steps import fetch, receipts, with_session


def test_a_coordinator_that_was_refused_takes_other_messages_at_once() -> None:
    """b never heard of a's hold. Its own RELEASE of the lost round must not make it drop the deferrals."""
    cluster, _, producer_id = with_session(20)
    cluster.ask("b", AckRequest(receipts(cluster.ask("b", fetch(group="other", most=1)))))
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and (sender, to) == ("a", "b")
    first = receipts(cluster.ask("a", fetch(most=10)))
    assert [item.receipt.span for item in first] == [(producer_id, 0, 10)]
    rounds = cluster.nodes["b"].state.round_count
    assert [item.receipt.span for item in receipts(cluster.ask("b", fetch(most=10, wait=1.0), 0.1))] == [
        (producer_id, 10, 20)
    ]
    assert cluster.nodes["b"].state.round_count - rounds <= 3


def test_a_release_by_the_holder_makes_a_deferred_message_available() -> None:
    cluster, _, producer_id = with_session(10)
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and (sender, to) == ("a", "b")
    key = cluster.submit("a", fetch(most=10))
    held = receipts(cluster.replies[key])
    asked = cluster.submit("b", fetch(most=10, wait=1.0))
    cluster.advance(0.2)
    assert asked not in cluster.replies
    cluster.hear_all()
    cluster.feed("a", Unsent(key))
    cluster.advance(0.1)
    assert [item.receipt.span for item in receipts(cluster.replies[asked])] == [(producer_id, 0, 10)]
    assert len(held) == 1


@pytest.mark.parametrize("lost", ["release", "order"])
def test_a_deferral_outlives_its_hold_by_half_a_second_at_most(lost: str) -> None:
    """The RELEASE is lost, or received before the NOKs. No other node has a FETCH that would take the messages."""
    cluster, _, producer_id = with_session(10)
    late: list[tuple[str, object]] = []

    def drop(sender: str, to: str, message: object) -> bool:
        if isinstance(message, HoldReply) and to == "b" and lost == "order":
            late.append((sender, message))
            return True
        return (sender, to) == ("a", "b") and (
            isinstance(message, Hold) or (isinstance(message, Release) and lost == "release")
        )

    cluster.drop = drop
    key = cluster.submit("a", fetch(most=10))
    asked = cluster.submit("b", fetch(most=10, wait=1.0))
    cluster.feed("a", Unsent(key))
    cluster.hear_all()
    for sender, message in late:
        hand_over(cluster, sender, "b", message)
    cluster.advance(0.9)
    assert [item.receipt.span for item in receipts(cluster.replies[asked])] == [(producer_id, 0, 10)]


def test_a_deferral_lasts_beyond_a_round_that_waits_for_a_silent_replica() -> None:
    """a missed b's HOLD, and c is silent: the round ends a second after b's NOK, and a chooses others at once."""
    cluster, _, producer_id = with_session(20)
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and (sender, to) == ("b", "a")
    cluster.ask("b", fetch(most=10, hold_time=30.0))
    cluster.drop = lambda sender, to, message: sender == "c"
    asked = cluster.submit("a", fetch(most=10, hold_time=30.0, wait=2.0))
    cluster.advance(1.2)
    assert [item.receipt.span for item in receipts(cluster.replies[asked])] == [(producer_id, 10, 20)]


def test_messages_that_are_held_elsewhere_cost_no_timeout_beside_a_silent_replica() -> None:
    """a missed b's three HOLDs. Each round would wait for c, and the first deferral be over before the last ends."""
    cluster, _, producer_id = with_session(20)
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and (sender, to) == ("b", "a")
    for _ in range(3):
        cluster.ask("b", fetch(most=1, hold_time=30.0))
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    cluster.advance(2.0)
    asked = cluster.submit("a", fetch(most=1, hold_time=30.0, wait=2.0))
    cluster.advance(0.5)
    assert [item.receipt.span for item in receipts(cluster.replies[asked])] == [(producer_id, 3, 4)]

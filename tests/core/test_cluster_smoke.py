"""One message's life on a perfect network, step by step (docs/protocol.md, section 3)."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import DiskFull
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values.types import Now, Span
from tests.core.steps import check_failed, fetch, outcomes, receipts, with_messages, with_session


def test_publish_fetch_ack_through_three_nodes() -> None:
    cluster, _, producer_id = with_session()
    got = receipts(cluster.ask("b", fetch()))
    assert [item.receipt.span for item in got] == [(producer_id, 0, 10)]
    assert outcomes(cluster.ask("c", m.AckRequest(got))) == ["acked"]
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]
    cluster.advance(30)
    assert receipts(cluster.ask("a", fetch())) == ()
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked_unproven"], (
        "a retry may hear a weaker answer: the memory of ballots went with the payload"
    )


def test_a_held_message_is_delivered_again_after_its_hold_and_not_before() -> None:
    cluster = with_messages(1)
    first = receipts(cluster.ask("b", fetch(hold_time=5.0)))
    cluster.advance(4.9)
    assert receipts(cluster.ask("a", fetch())) == ()
    cluster.advance(0.2)
    reply = cluster.ask("a", fetch())
    again = receipts(reply)
    assert reply.slices[0].deliveries[0].attempt == 2
    assert again[0].receipt.owner.ballot > first[0].receipt.owner.ballot
    assert outcomes(cluster.ask("c", m.AckRequest(first))) == ["acked_after_expiry"]
    assert outcomes(cluster.ask("c", m.AckRequest(again))) == ["acked"]


def test_time_wakes_a_node_at_its_own_deadlines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_messages()
    due: list[bool] = []
    step = NodeCore.step

    def noted(core: NodeCore, events: Any, now: Now, rng: random.Random) -> Any:
        if not events:
            due.append((core.next_deadline() or math.inf) <= now.mono)
        return step(core, events, now, rng)

    monkeypatch.setattr(NodeCore, "step", noted)
    cluster.advance(30)
    assert len(due) > 20
    assert all(due)


def test_a_parked_fetch_ends_empty_after_a_tenth_of_its_hold_time() -> None:
    cluster = with_messages(1)
    receipts(cluster.ask("a", fetch()))
    key = cluster.submit("b", fetch(wait=20.0, hold_time=10.0))
    cluster.advance(0.99)
    assert key not in cluster.replies
    cluster.advance(0.02)
    assert receipts(cluster.replies[key]) == ()


def test_reject_requeues_now_or_after_its_delay() -> None:
    cluster = with_messages(1)
    got = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("b", m.RejectRequest(got, 0.0))) == ["ok"]
    reply = cluster.ask("c", fetch())
    assert reply.slices[0].deliveries[0].attempt == 2
    assert outcomes(cluster.ask("b", m.RejectRequest(receipts(reply), 3.0))) == ["ok"]
    assert receipts(cluster.ask("a", fetch())) == ()
    cluster.advance(3.1)
    assert len(receipts(cluster.ask("a", fetch()))) == 1
    assert outcomes(cluster.ask("b", m.RejectRequest(got, 0.0))) == ["hold-lost"]


def test_the_delivery_limit_ends_in_a_dead_letter() -> None:
    cluster = with_messages(1)
    for _ in range(5):
        assert len(receipts(cluster.ask("a", fetch(hold_time=1.0)))) == 1
        cluster.advance(1.5)
    assert receipts(cluster.ask("b", fetch())) == ()
    cluster.advance(6.0)
    page = cluster.ask("c", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 100))
    assert [item.record.death.reason for item in page.items] == ["max-deliveries"]


def test_extend_keeps_a_hold_and_revives_none() -> None:
    cluster = with_messages(1)
    got = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.advance(4)
    assert outcomes(cluster.ask("b", m.ExtendRequest(got, 5.0, 4.0))) == ["ok"]
    cluster.advance(4)
    assert receipts(cluster.ask("c", fetch())) == ()
    cluster.advance(2)
    assert outcomes(cluster.ask("b", m.ExtendRequest(got, 5.0, 4.0))) == ["hold-lost"]
    assert len(receipts(cluster.ask("c", fetch()))) == 1


def test_one_node_down_changes_nothing_and_it_catches_up() -> None:
    cluster, topic, producer_id = with_session(10, hold_time_max=10.0)
    cluster.kill("b")
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 10, [b"x"] * 10)), of=m.PublishReply)
    got = receipts(cluster.ask("c", fetch(most=5)))
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked"]
    cluster.drop = lambda sender, to, message: isinstance(message, m.HoldsRequest)
    cluster.start("b", 8)
    assert cluster.nodes["b"].replicas[next(iter(cluster.nodes["b"].replicas))].batches.present.messages == 20
    assert cluster.nodes["b"].context.quarantine_left(cluster.now), "nobody has told it of its holds"
    served = receipts(cluster.ask("b", fetch(most=3), 0.1))
    assert [item.receipt.span.size for item in served] == [3], "through another node meanwhile"
    assert served[0].receipt.owner.node != "b"
    cluster.advance(8)
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("b", fetch()))) == 12


def test_a_clean_restart_keeps_its_holds_and_needs_no_quarantine() -> None:
    cluster = with_messages(2, hold_time_max=10.0)
    receipts(cluster.ask("b", fetch(most=1, hold_time=5.0)))
    cluster.stop("b")
    cluster.start("b")
    assert len(receipts(cluster.ask("b", fetch()))) == 1
    cluster.advance(5.1)
    assert len(receipts(cluster.ask("b", fetch()))) == 1


def test_all_nodes_killed_at_once_come_back_after_quarantine() -> None:
    cluster = with_messages(10, hold_time_max=10.0)
    got = receipts(cluster.ask("b", fetch(most=4)))
    cluster.ask("a", m.AckRequest(got))
    cluster.crash("abc", 10.3)
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("c", fetch()))) == 6


def test_no_one_waits_for_a_replica_that_could_not_be_asked() -> None:
    cluster = with_messages(1, hold_time_max=5.0)
    got = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.kill("c")
    cluster.crash("b")
    assert outcomes(cluster.ask("a", m.AckRequest(got))) == ["acked_unproven"]


def test_full_disks_are_the_answer_only_if_no_replica_that_was_asked_can_have_stored_it() -> None:
    """`storage-full` says that nothing was done."""
    cluster, topic, producer_id = with_session()
    batch = cluster.batch(topic, producer_id, 10, [b"x"])
    cluster.feed("a", DiskFull(True))
    cluster.feed("b", DiskFull(True))
    cluster.drop = lambda sender, to, message: isinstance(message, m.StoreReply) and sender == "c"
    answer = cluster.ask("a", m.Publish(batch), 6, of=m.Failed)
    assert answer.code == "outcome-unknown", "c has it"
    assert "reserve of disk space" in answer.detail
    cluster.feed("c", DiskFull(True))
    cluster.hear_all()
    check_failed(cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 11, [b"y"]))), "storage-full")


@pytest.mark.parametrize("limit", ["max_messages", "max_bytes"])
def test_messages_won_in_earlier_rounds_count_against_the_limits_of_a_fetch(limit: str) -> None:
    cluster, topic, producer_id = with_session(3)
    (replica,) = cluster.nodes["a"].replicas.values()
    most = {"max_messages": 4, "max_bytes": 4 * replica.batches.bytes_of(Span(producer_id, 0, 1))}
    key = cluster.submit("a", fetch(least=4, wait=5.0)._replace(**{limit: most[limit]}))
    assert key not in cluster.replies, "it has three, and waits for one more"
    # Through a node that sends no HOLD with it.
    cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, 3, [b"x"] * 5)), of=m.PublishReply)
    cluster.advance(1.0)
    assert sum(item.receipt.span.size for item in receipts(cluster.replies[key])) == 4
    assert sum(item.receipt.span.size for item in receipts(cluster.ask("c", fetch()))) == 4

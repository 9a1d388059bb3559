"""REDRIVE beside rewinds: a dead letter is opened in its generation, and stays open if a rewind omits it."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from tests.core.cluster import Cluster
from tests.core.network import deaf_to_registers
from tests.core.steps import (
    DEATH,
    dead_entries,
    died,
    fetch,
    outcomes,
    peek,
    receipts,
    rewind,
    spans,
    with_messages,
)


@pytest.mark.parametrize("covers", [True, False])
@pytest.mark.parametrize("wait", [0.0, 10.0])
def test_a_redrive_through_a_node_that_missed_a_rewind_is_delivered(covers: bool, wait: float) -> None:
    """A rewind that leaves the dead letters out leaves them open, too, once they are redriven."""
    cluster = Cluster()
    died(cluster)
    cluster.advance(1)
    deaf_to_registers(cluster, "c")
    rewind(cluster, node="a", start="time", from_ms=0 if covers else cluster.now.wall_ms + 1)
    entries = dead_entries(cluster, "c")
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", entries))) == ["ok"]
    if wait:
        cluster.hear_all()
        cluster.advance(wait)  # reopened messages reach every replica
    got = receipts(cluster.ask("a", fetch()))
    expected = (0, 10, 1, 0) if covers else (0, 3, 0, 1)
    assert [(*it.receipt.span[1:], it.receipt.generation, it.receipt.n) for it in got] == [expected]
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"]
    cluster.advance(61.0)
    assert spans(cluster.ask("c", fetch())) == []


def test_a_redriven_message_outside_a_rewind_stays_open() -> None:
    """It is given back, delayed, extended and purged there, as anywhere. Messages open at n = 0 stay so."""
    cluster = Cluster()
    died(cluster)
    cluster.ask("a", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))
    cluster.advance(1)
    rewind(cluster, start="time", from_ms=cluster.now.wall_ms + 1)
    assert peek(cluster, "ready") == [(0, 3, "ready")]
    got = receipts(cluster.ask("b", fetch(most=1)))
    assert outcomes(cluster.ask("c", m.ExtendRequest(got, 20.0, cluster.time))) == ["ok"]
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 5.0))) == ["ok"]
    assert peek(cluster)[:2] == [(0, 1, "delayed"), (1, 3, "ready")]
    again = receipts(cluster.ask("a", fetch(most=1)))
    assert outcomes(cluster.ask("c", m.RejectRequest(again, death=DEATH))) == ["ok"]
    assert [(it.record.generation, it.record.n) for it in dead_entries(cluster)] == [(0, 1)]
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, "g")) == m.PurgeReply(2)
    cluster.advance(6)
    assert spans(cluster.ask("a", fetch())) == []


def test_a_redriven_message_outside_a_rewind_can_die() -> None:
    """Nodes bury what is out of deliveries in any generation in which it is open."""
    cluster = with_messages(max_deliveries=1)
    assert outcomes(
        cluster.ask("b", m.RejectRequest(receipts(cluster.ask("b", fetch(most=1))), death=DEATH))
    ) == ["ok"]
    cluster.ask("a", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))
    cluster.advance(1)
    rewind(cluster, start="time", from_ms=cluster.now.wall_ms + 1)
    assert spans(cluster.ask("b", fetch(hold_time=1.0))) == [(0, 1)]
    cluster.advance(10)
    assert [(it.record.n, it.record.death.reason) for it in dead_entries(cluster)] == [(1, "max-deliveries")]


def test_a_receipt_of_before_a_rewind_that_omits_its_message_is_refused_alone() -> None:
    """A redriven message is acked, though a message at n = 0 of the same request and generation is refused."""
    cluster = Cluster()
    died(cluster)
    cluster.ask("a", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))
    got = receipts(cluster.ask("b", fetch()))
    assert sorted((it.receipt.n, it.receipt.span.size) for it in got) == [(0, 7), (1, 3)]
    cluster.advance(1)
    rewind(cluster, start="time", from_ms=cluster.now.wall_ms + 1)
    verdicts = cluster.ask("c", m.AckRequest(got)).verdicts
    assert {got[it.item].receipt.n: it.outcome for it in verdicts} == {0: "stale-generation", 1: "acked"}


def test_an_acked_message_is_not_redriven_by_an_older_list_after_a_rewind_that_omits_it() -> None:
    cluster = with_messages(1)
    old = receipts(cluster.ask("b", fetch(hold_time=1.0)))
    cluster.advance(1.1)
    new = receipts(cluster.ask("c", fetch()))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Reject) and to != "c"
    cluster.submit("c", m.RejectRequest(new, death=DEATH))
    cluster.drop = lambda sender, to, message: (
        to == "c" and isinstance(message, m.Ack | m.SyncDigests | m.SyncState)
    )
    assert outcomes(cluster.ask("a", m.AckRequest(old))) == ["acked_after_expiry"]
    entries = dead_entries(cluster, "c")
    rewind(cluster, "a", "time", cluster.now.wall_ms + 1)
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.SyncDigests | m.SyncState)
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", entries))) == ["already-settled"]
    cluster.hear_all(70)
    assert spans(cluster.ask("a", fetch())) == []

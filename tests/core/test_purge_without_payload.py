"""PURGE and a rewind to latest, while no replica that is asked has the payload (docs/protocol.md, PURGE 5).

a and b have stored the messages. b is wiped, so that it knows them and has none, and a goes away.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from quorumq.core import messages as m
from tests.core.cluster import Cluster
from tests.core.network import wipe
from tests.core.steps import (
    DEATH,
    check_failed,
    dead_entries,
    drained,
    fetch,
    opened,
    outcomes,
    peek,
    published,
    receipts,
    rewind,
    spans,
    with_messages,
)


@dataclass
class Case:
    """``settles``: fate of the first message before the rewind; ``start`` of it; True if that ``covers`` messages."""

    settles: str
    start: str
    covers: bool


ACKED = Case("ack", "earliest", covers=True)
ACKED_SINCE = Case("ack", "time", covers=True)
ACKED_BEFORE = Case("ack", "time", covers=False)
DEAD = Case("dead", "earliest", covers=True)
DEAD_SINCE = Case("dead", "time", covers=True)
DEAD_BEFORE = Case("dead", "time", covers=False)


def away(case: Case) -> Cluster:
    """Return a cluster whose nodes b and c know two messages. The first was settled before a rewind."""
    cluster = Cluster(hold_time_max=2.0)
    cluster.drop = lambda sender, to, message: (
        (to == "c" and isinstance(message, m.Store)) or isinstance(message, m.SyncPull)
    )
    published(cluster, 2)
    made = cluster.now.wall_ms
    got = receipts(cluster.ask("a", fetch(most=1, hold_time=1.0)))
    settle = m.AckRequest(got) if case.settles == "ack" else m.RejectRequest(got, death=DEATH)
    assert outcomes(cluster.ask("a", settle)) in (["acked"], ["ok"])
    wipe(cluster, "b", 4.0)
    rewind(cluster, "c", case.start, 0 if case.start == "earliest" else made - 5 if case.covers else made + 5)
    cluster.kill("a")
    return cluster


def back(cluster: Cluster) -> list[tuple[int, int]]:
    """Return the deliveries once the payload is back."""
    cluster.hear_all()
    cluster.start("a", 8.0)
    return spans(cluster.ask("b", fetch(hold_time=1.0)))


@pytest.mark.parametrize("rewinds", [False, True])
@pytest.mark.parametrize("case", [ACKED, ACKED_SINCE, ACKED_BEFORE, DEAD], ids=str)
def test_an_older_record_hides_no_message_that_is_open_again(case: Case, rewinds: bool) -> None:
    cluster = away(case)
    request = m.SetGroup("jobs", "g", "latest", 0, rewind=True) if rewinds else m.PurgeRequest("jobs", 0, "g")
    cluster.ask("c", request, of=m.GroupReply | m.PurgeReply)
    assert back(cluster) == []


@pytest.mark.parametrize("rewinds", [False, True])
@pytest.mark.parametrize("case", [DEAD_SINCE, DEAD_BEFORE], ids=str)
def test_a_dead_letter_that_a_rewind_may_have_opened_is_left_and_told(case: Case, rewinds: bool) -> None:
    cluster = away(case)
    request = m.SetGroup("jobs", "g", "latest", 0, rewind=True) if rewinds else m.PurgeRequest("jobs", 0, "g")
    failed = cluster.ask("c", request)
    check_failed(failed, "outcome-unknown", "the payload of 1 dead letter is at no replica that was asked")
    assert back(cluster) == ([(0, 1)] if case.covers else [])
    assert (0, 1, "dead") in peek(cluster) or case.covers
    cluster.ask("c", request, of=m.GroupReply | m.PurgeReply)


@pytest.mark.parametrize("how", ["purge", "latest", "neither"])
def test_messages_that_were_reclaimed_stay_purged_though_a_replica_brings_them_back(how: str) -> None:
    """a and b have reclaimed them. A group that begins later would get them from c, which was away."""
    cluster = with_messages()
    cluster.drop = lambda sender, to, message: "c" in (sender, to)
    drained(cluster)
    cluster.advance(20)
    assert spans(cluster.ask("b", fetch("late"))) == []
    if how == "purge":
        assert cluster.ask("a", m.PurgeRequest("jobs", 0, "late")) == m.PurgeReply(0)
    elif how == "latest":
        cluster.ask("a", m.SetGroup("jobs", "late", "latest", 0, rewind=True))
    listed = cluster.ask("a", m.PeekRequest("jobs", 0, "late", "open", (0, 0), 100, complete=True))
    assert isinstance(listed, m.PeekReply)
    assert listed.items == ()
    cluster.hear_all(20)
    assert spans(cluster.ask("a", fetch("late"))) == ([(0, 10)] if how == "neither" else [])


@pytest.mark.parametrize("redriven", [False, True])
def test_a_replica_with_a_record_alone_reports_it_to_a_purge(redriven: bool) -> None:
    """The payload is only at a so far. The REJECT and the REDRIVE reach a and b, and the PURGE asks b and c."""
    cluster = Cluster()
    topic, producer_id = opened(cluster)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.Store | m.SyncDigests | m.SyncState)
        or (to == "c" and isinstance(message, m.Reject | m.Merge))
    )
    cluster.submit("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"0"])))
    got = receipts(cluster.ask("a", fetch()))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, death=DEATH))) == ["ok"]
    group, state = "g!dead", "dead"
    if redriven:
        again = m.RedriveRequest("jobs", 0, "g", dead_entries(cluster))
        assert outcomes(cluster.ask("a", again)) == ["ok"]
        group, state = "g", "ready"
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.Store | m.SyncDigests | m.SyncState)
        or (to == "a" and isinstance(message, m.ReplicaList))
    )
    assert peek(cluster, node="c") == [(0, 1, state)]
    assert cluster.ask("c", m.PurgeRequest("jobs", 0, group)) == m.PurgeReply(1)
    cluster.hear_all(10)
    assert spans(cluster.ask("b", fetch())) == spans(cluster.ask("b", fetch("g!dead"))) == []

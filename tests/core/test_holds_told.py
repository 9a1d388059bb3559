"""Starts learn of holds by grant and end, with any record (RECOVERY, (b) 7 to 9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumq.core import messages as m
from quorumq.core.partition.lease import NO_OWNER
from quorumq.core.values.types import Kind, PartitionId, Span
from tests.core.cluster import Cluster
from tests.core.steps import (
    DEATH,
    asked,
    created,
    deleted,
    fetch,
    outcomes,
    receipts,
    replica_of,
    rewind,
    with_messages,
    with_session,
)

HOLD_S = 30.0


def told(cluster: Cluster, node: str) -> list[tuple[str, Span, bool]]:
    """Return the holds that the node would report: group, messages, and True if they are blocked, held by NO_OWNER."""
    copy = replica_of(cluster, node)
    granted = copy.node.grants([copy.partition], cluster.now)[copy.partition]
    holds = copy.recall.holds_to_tell(cluster.now, granted)
    return [(hold.group, hold.span, hold.owner == NO_OWNER) for hold in holds]


def restart(cluster: Cluster, node: str) -> None:
    cluster.crash(node)
    assert cluster.nodes[node].context.quarantine_left(cluster.now) == 0.0, "it was told"


def half_acked(cluster: Cluster, group: str = "g", name: str = "a") -> None:
    """The votes of a and b make a delivery, and b alone has its ACK. Anti-entropy is lost."""
    compared = m.SyncState | m.SyncDigests | m.SyncPull
    cluster.drop = lambda sender, to, message: (
        (isinstance(message, m.Hold) and to == "c") or isinstance(message, compared)
    )
    got = receipts(cluster.ask(name, fetch(group, most=1, hold_time=HOLD_S)))
    assert got
    cluster.drop = lambda sender, to, message: isinstance(message, m.Ack | compared)
    cluster.submit("b", m.AckRequest(got))
    cluster.advance(6.0)
    assert not replica_of(cluster, "b").group(group).all_held()
    cluster.drop = lambda sender, to, message: isinstance(message, compared)


def listed(cluster: Cluster) -> tuple[m.SpanRecord, ...]:
    page = cluster.ask("c", m.PeekRequest("jobs", 0, "g", "dead", (0, 0), 10), of=m.PeekReply)
    return tuple(m.SpanRecord(item.span, item.record) for item in page.items)


def died(cluster: Cluster) -> None:
    got = receipts(cluster.ask("c", fetch(hold_time=1.0)))
    assert outcomes(cluster.ask("c", m.RejectRequest(got, death=DEATH))) == ["ok"]


def purge(cluster: Cluster) -> None:
    assert isinstance(cluster.ask("c", m.PurgeRequest("jobs", 0, "g")), m.PurgeReply)


# ---------------------------------------------------------- with any record


def remade(cluster: Cluster) -> None:
    deleted(cluster, "c")
    created(cluster, "c")


def rewound(cluster: Cluster) -> None:
    rewind(cluster, "c")


def purged_above(cluster: Cluster) -> None:
    """SKIPPED of a newer generation replaced ACKED."""
    rewind(cluster, "c")
    purge(cluster)
    ((_, record),) = replica_of(cluster, "b").group("g").records.items()
    assert record.kind == Kind.SKIPPED


LOSSES: dict[str, tuple[Callable[[Cluster], None], Callable[[Cluster], None]]] = {
    "the group is deleted and made again": (remade, lambda cluster: None),
    "the group is deleted, and made again later": (
        lambda cluster: deleted(cluster, "c") and None,
        lambda cluster: created(cluster, "c") and None,
    ),
    "the group is rewound": (rewound, lambda cluster: None),
    "a newer generation is purged": (purged_above, rewound),
}


@pytest.mark.parametrize("stopped", [False, True], ids=["it goes on", "the teller was stopped meanwhile"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_hold_whose_ack_one_replica_has_outlives_its_record(loss: str, stopped: bool) -> None:
    """a, started again, has no more of its votes than if it had not been: the hold is live there until its time."""
    before, after = LOSSES[loss]
    cluster = with_messages(1)
    half_acked(cluster)
    before(cluster)
    if stopped:
        cluster.stop("b")
        cluster.start("b")
    restart(cluster, "a")
    after(cluster)
    cluster.drop = lambda sender, to, message: "b" in (sender, to)  # b knows that a0 is over
    began = cluster.time
    for node in ("c", "a"):
        assert asked(cluster, node) == [], "its hold has a while to go"
    cluster.advance(HOLD_S - (cluster.time - began))
    assert asked(cluster, "c"), "and not for longer than that"


def test_a_dead_letter_whose_ack_one_replica_has_stays_blocked_when_it_is_redriven_and_dies_again() -> None:
    cluster = with_messages(1)
    died(cluster)
    half_acked(cluster, "g!dead")
    assert outcomes(cluster.ask("c", m.RedriveRequest("jobs", 0, "g", listed(cluster)))) == ["ok"]
    died(cluster)
    restart(cluster, "a")
    cluster.drop = lambda sender, to, message: "b" in (sender, to)
    assert receipts(cluster.ask("c", fetch("g!dead"), 1.0)) == (), (
        "the dead letter at n = 0 was handed to a reader who has 20 s left"
    )
    cluster.advance(HOLD_S)
    (got,) = receipts(cluster.ask("c", fetch("g!dead")))
    assert got.receipt.n == 1


def test_a_hold_outlives_payload_and_session_and_keeps_neither_for_longer_than_its_time() -> None:
    cluster, topic, producer_id = with_session(4)
    got = receipts(cluster.ask("a", fetch(hold_time=60.0)))
    assert outcomes(cluster.ask("b", m.AckRequest(got))) == ["acked"]
    cluster.ask("b", m.CloseSession(producer_id, (PartitionId(topic.id, 0),)))
    cluster.advance(30.0)
    assert [replica_of(cluster, node).batches.closed.numbers.messages for node in "abc"] == [1, 1, 1]
    assert told(cluster, "b") == [("g", Span(producer_id, 0, 4), True)]
    restart(cluster, "a")
    assert replica_of(cluster, "a").group("g").held_count == 4
    cluster.advance(30.1)
    for node in "abc":
        assert not replica_of(cluster, node).group("g").leases, "no attempt is counted of what is settled"
        assert told(cluster, node) == []


# ------------------------------------------------------------------ what gives a hold up


def left(cluster: Cluster, got: tuple[m.ReceiptPart, ...]) -> None:
    cluster.ask("c", m.ReleaseRequest(got))


def rejected(cluster: Cluster, got: tuple[m.ReceiptPart, ...]) -> None:
    assert outcomes(cluster.ask("c", m.RejectRequest(got, 1.0))) == ["ok"]


def buried(cluster: Cluster, got: tuple[m.ReceiptPart, ...]) -> None:
    assert outcomes(cluster.ask("c", m.RejectRequest(got, death=DEATH))) == ["ok"]


def part_of(got: tuple[m.ReceiptPart, ...], start: int, stop: int) -> tuple[m.ReceiptPart, ...]:
    (item,) = got
    return (m.ReceiptPart(item.receipt, (item.receipt.span._replace(start=start, stop=stop),)),)


@pytest.mark.parametrize("how", [left, rejected, buried])
@pytest.mark.parametrize("gone", [False, True], ids=["the group stays", "the group is deleted"])
def test_a_released_part_of_a_hold_is_not_reported(
    how: Callable[[Cluster, tuple[m.ReceiptPart, ...]], None], gone: bool
) -> None:
    """Messages of one delivery are partly released, partly acked, and partly held."""
    cluster, _, producer_id = with_session(6)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    how(cluster, part_of(got, 0, 2))
    assert outcomes(cluster.ask("c", m.AckRequest(part_of(got, 2, 4)))) == ["acked"]
    if gone:
        deleted(cluster, "c")
    expected = [("g", Span(producer_id, 2, 4), True), ("g", Span(producer_id, 4, 6), False)]
    for node in "abc":
        assert sorted(told(cluster, node)) == expected
    cluster.advance(HOLD_S)
    for node in "abc":
        assert told(cluster, node) == []


def test_a_new_grant_after_a_release_is_reported() -> None:
    cluster, _, producer_id = with_session(1)
    left(cluster, receipts(cluster.ask("a", fetch(hold_time=HOLD_S))))
    again = receipts(cluster.ask("c", fetch(hold_time=5.0)))
    assert told(cluster, "b") == [("g", Span(producer_id, 0, 1), False)]
    assert outcomes(cluster.ask("c", m.AckRequest(again))) == ["acked"]
    assert told(cluster, "b") == [("g", Span(producer_id, 0, 1), True)]
    cluster.advance(5.1)
    assert told(cluster, "b") == [], "the first one would last for longer, and was given up"


def test_a_refused_part_of_a_hold_is_not_reported() -> None:
    """c holds the first message for itself, which a asks for with the others. It is not acked."""
    cluster, _, producer_id = with_session(4)
    cluster.drop = lambda sender, to, message: isinstance(message, m.Hold | m.Release) and sender == "c"
    cluster.submit("c", fetch(most=1, hold_time=1.0))
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S), 0.5))
    assert sum(item.receipt.span.size for item in got) == 4, "a and b grant all"
    cluster.advance(1.0)
    assert told(cluster, "c") == [("g", Span(producer_id, 1, 4), False)]


def test_an_extended_hold_is_told_to_the_end_that_it_was_extended_to_unless_it_was_given_up() -> None:
    cluster, _, producer_id = with_session(3)
    got = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    assert outcomes(cluster.ask("b", m.AckRequest(part_of(got, 2, 3)))) == ["acked"], (
        "this one is not extended"
    )
    cluster.advance(4.0)
    assert outcomes(cluster.ask("a", m.ExtendRequest(got, 20.0, 4.0)))[0] == "ok"
    cluster.advance(2.0)
    assert outcomes(cluster.ask("b", m.AckRequest(part_of(got, 0, 1)))) == ["acked"]
    rejected(cluster, part_of(got, 1, 2))
    cluster.advance(15.0)
    assert told(cluster, "b") == [("g", Span(producer_id, 0, 1), True)]
    cluster.advance(5.0)
    assert told(cluster, "b") == []


@pytest.mark.parametrize("acks", [False, True], ids=["both release", "one acks"])
def test_each_of_two_owners_releases_only_its_own_hold(acks: bool) -> None:
    """Both were reported. If one releases its hold, and the other acks at this replica alone, the end is reported."""
    cluster, _, producer_id = with_session(1)
    whole = Span(producer_id, 0, 1)
    cluster.drop = lambda sender, to, message: (
        isinstance(message, m.Release) or (isinstance(message, m.Hold) and (sender, to) != ("a", "b"))
    )
    cluster.submit("c", fetch(hold_time=HOLD_S))  # c holds it alone
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    assert got
    cluster.hear_all()
    restart(cluster, "b")
    copy, view = replica_of(cluster, "b"), replica_of(cluster, "b").group("g")
    ((_, lease),) = view.leases.items()
    assert lease.held is not None
    assert lease.held.owner == NO_OWNER
    mine = got[0].receipt.owner
    (theirs,) = [rival.owner for rival in lease.rivals if rival.owner != mine]
    view.give_up(whole, theirs, cluster.now.mono, rivals=False)
    assert not view.given_up, "a REJECT of what NO_OWNER holds is refused"
    cluster.drop = lambda sender, to, message: isinstance(
        message, m.Ack | m.Release | m.SyncState | m.SyncDigests
    )
    if acks:
        cluster.submit("b", m.AckRequest(got))
        cluster.advance(1.0)
    else:
        copy.on_release(m.Released(copy.partition, "g", mine, (whole,)), cluster.now)
    assert told(cluster, "b") == [("g", whole, True)], "until the other one lets go"
    assert view.held_count == 1
    copy.on_release(m.Released(copy.partition, "g", theirs, (whole,)), cluster.now)
    assert view.held_count == 0
    assert told(cluster, "b") == ([("g", whole, True)] if acks else [])


# ------------------------------------------------------------------------------ bounds


def test_a_released_hold_is_dropped_when_it_would_have_expired() -> None:
    """One note for each delivery, in runs; the time of the oldest one being over, the next one sweeps it."""
    cluster = with_messages(200)
    for _ in range(20):
        left(cluster, receipts(cluster.ask("a", fetch(most=100, hold_time=5.0))))
        cluster.advance(1.0)
    for node in "abc":
        notes = replica_of(cluster, node).group("g").given_up
        assert 5 <= len(notes) <= 7
        assert all(given.spans == 1 for _, given in notes.values())


def test_messages_rejected_one_by_one_are_one_note() -> None:
    cluster = with_messages(100)
    got = receipts(cluster.ask("a", fetch(most=100, hold_time=HOLD_S)))
    for at in range(100):
        rejected(cluster, part_of(got, at, at + 1))
    for node in "abc":
        ((_, given),) = replica_of(cluster, node).group("g").given_up.values()
        assert given.spans == 1
        assert told(cluster, node) == []


def test_grants_of_a_group_that_was_deleted_while_the_partition_was_elsewhere_are_told() -> None:
    """The node's timers of grants outlive its replica. A later replica of the partition has no view of that group."""
    cluster, topic, producer_id = with_session(1)
    cluster.ask("a", m.SetGroup("jobs", "gone"))
    cluster.ask("a", m.DeleteGroup("jobs", "gone", topic.id))
    replica, span = replica_of(cluster, "a"), Span(producer_id, 0, 1)
    replica.views.over.pop("gone", None)
    (there,) = replica.recall.holds_to_tell(cluster.now, [(cluster.now.mono + 1.0, "gone", span, NO_OWNER)])
    assert (there.group, there.span) == ("gone", span)
    assert "gone" in replica.views.over

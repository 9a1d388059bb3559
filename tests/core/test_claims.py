"""Claims (docs/protocol.md, CLAIMS): a delivered message is kept from others for longer than any hold."""

from __future__ import annotations

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.diskroom import Shortage
from quorumq.core.messages.records import BatchStored
from quorumq.core.values.errors import Code
from tests.core.cluster import Cluster
from tests.core.network import noted, wipe
from tests.core.steps import (
    DEATH,
    check_failed,
    created,
    dead_entries,
    deleted,
    fetch,
    more,
    outcomes,
    peek,
    receipts,
    rewind,
    with_messages,
)

HOLD_S, CLAIM_S = 2.0, 30.0
"""The cluster grants no hold of more than 4 s."""


def claimed() -> tuple[Cluster, tuple[m.ReceiptPart, ...]]:
    """Return a cluster whose only message is delivered, and claimed through another node."""
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    assert extend(cluster, "b", got, CLAIM_S) == ["ok"]
    return cluster, got


def extend(cluster: Cluster, node: str, got: tuple[m.ReceiptPart, ...], seconds: float) -> list[str]:
    return outcomes(cluster.ask(node, m.ExtendRequest(got, seconds, 0.0)))


def attempts(cluster: Cluster) -> list[int]:
    """Return the attempt of the message delivered now by one of the nodes. The others find it held."""
    for node in "abc":
        reply = cluster.ask(node, fetch(hold_time=HOLD_S))
        numbers = [delivery.attempt for part in reply.slices for delivery in part.deliveries]  # type: ignore[union-attr]
        if numbers:
            return numbers
    return []


def test_a_claim_outlasts_the_hold_and_its_end_is_one_attempt() -> None:
    cluster, _ = claimed()
    cluster.advance(CLAIM_S - 5)
    assert attempts(cluster) == []
    assert peek(cluster) == [(0, 1, "held")]
    cluster.advance(6)
    assert attempts(cluster) == [2]


def test_a_claim_outlasts_its_coordinator_and_a_crash_of_all() -> None:
    cluster, got = claimed()
    cluster.crash("abc", CLAIM_S - 12)
    assert attempts(cluster) == []
    assert extend(cluster, "c", got, CLAIM_S) == ["ok"], "the receipt is still good"
    cluster.advance(CLAIM_S - 12)
    assert attempts(cluster) == []
    cluster.advance(14)
    assert attempts(cluster) == [2]


def test_a_claim_is_at_the_head_of_the_next_segment() -> None:
    cluster, _ = claimed()
    for name, core in list(cluster.nodes.items()):
        batches = [record for record in cluster.journals[name] if isinstance(record, BatchStored)]
        cluster.journals[name][:] = [*core.snapshot(cluster.clocks(name)), *batches]
        cluster.kill(name)
    cluster.start("abc", CLAIM_S - 12)
    assert attempts(cluster) == []


def test_a_wiped_replica_learns_claims_before_it_votes() -> None:
    cluster, _ = claimed()
    for name in "bc":
        wipe(cluster, name, 10)
    assert attempts(cluster) == []


@pytest.mark.parametrize("seconds", [HOLD_S, CLAIM_S])
def test_an_extension_is_for_the_owner_alone_once_its_hold_is_over(seconds: float) -> None:
    cluster, got = claimed()
    cluster.advance(10)
    assert extend(cluster, "a", got, seconds) == ["ok"]
    cluster.advance(CLAIM_S - 5)
    assert attempts(cluster) == ([] if seconds == CLAIM_S else [2])
    assert extend(cluster, "a", got, seconds) == (["ok"] if seconds == CLAIM_S else [Code.HOLD_LOST])


def test_an_ack_and_a_reject_settle_what_is_claimed() -> None:
    cluster, got = claimed()
    cluster.advance(10)
    assert outcomes(cluster.ask("c", m.AckRequest(got))) == ["acked"]
    cluster.advance(CLAIM_S)
    assert attempts(cluster) == []
    cluster, got = claimed()
    cluster.advance(10)
    assert outcomes(cluster.ask("c", m.RejectRequest(got, 5.0))) == ["ok"]
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 5.0))) == ["ok"], "a retry"
    assert attempts(cluster) == []
    cluster.advance(6)
    assert attempts(cluster) == [2]
    assert extend(cluster, "a", got, CLAIM_S) == [Code.HOLD_LOST]
    cluster, got = claimed()
    cluster.advance(10)
    assert outcomes(cluster.ask("c", m.RejectRequest(got, death=DEATH))) == ["ok"]
    assert peek(cluster, "dead") == [(0, 1, "dead")]


def test_a_reject_of_what_was_purged_ends_the_claim_for_good() -> None:
    """No other record of that moment shows the next start that the claim is over."""
    cluster, got = claimed()
    cluster.advance(1)
    assert isinstance(cluster.ask("a", m.PurgeRequest("jobs", 0, "g")), m.PurgeReply)
    assert claims(cluster) == 3
    assert outcomes(cluster.ask("c", m.RejectRequest(got))) == [Code.ALREADY_SETTLED]
    assert claims(cluster) == 0
    assert outcomes(cluster.ask("c", m.RejectRequest(got))) == [Code.HOLD_LOST], "nor is it requeued now"
    cluster.crash("abc")
    assert claims(cluster) == 0


def test_a_reject_of_an_acked_dead_letter_ends_the_claim_for_good() -> None:
    """Seed 8900015: the message is ACKED then, and that ends no claim of the dead letters' reader."""
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, death=DEATH))) == ["ok"]
    read = receipts(cluster.ask("a", fetch("g!dead", hold_time=HOLD_S)))
    assert extend(cluster, "b", read, CLAIM_S) == ["ok"]
    cluster.ask("a", m.AckRequest(got))
    assert claims(cluster, "g!dead") == 3
    assert outcomes(cluster.ask("c", m.RejectRequest(read))) == [Code.ALREADY_SETTLED]
    assert claims(cluster, "g!dead") == 0
    cluster.crash("abc")
    assert claims(cluster, "g!dead") == 0


def claims(cluster: Cluster, group: str = "g") -> int:
    """Return the number of replicas at which a claim stands."""
    replicas = [replica for core in cluster.nodes.values() for replica in core.replicas.values()]
    leases = [lease for replica in replicas for _, lease in replica.views.look(group).leases.items()]
    return sum(lease.claim is not None for lease in leases)


def test_a_dead_letter_of_its_owner_ends_the_claim_for_good() -> None:
    """The journal has the claim, and behind it the record that ends it: redriven, the message is delivered at once."""
    cluster, got = claimed()
    assert outcomes(cluster.ask("a", m.RejectRequest(got, death=DEATH))) == ["ok"]
    cluster.crash("abc", CLAIM_S / 2)
    assert outcomes(cluster.ask("b", m.RedriveRequest("jobs", 0, "g", dead_entries(cluster)))) == ["ok"]
    assert attempts(cluster) == [1]


def test_a_hold_of_before_a_deletion_of_the_group_claims_nothing() -> None:
    """Seed 12200092: a deletion ends all claims of the group, and a hold of before runs on."""
    cluster = with_messages(1, hold_time_max=4.0)
    first = receipts(cluster.ask("b", fetch(hold_time=HOLD_S)))
    assert outcomes(cluster.ask("b", m.RejectRequest(first, death=DEATH))) == ["ok"]
    got = receipts(cluster.ask("a", fetch("g!dead", hold_time=HOLD_S)))
    deleted(cluster)
    created(cluster)
    assert extend(cluster, "b", got, CLAIM_S) != ["ok"]
    cluster.advance(HOLD_S + 1)


def test_a_rewind_opens_nothing_inside_a_claim() -> None:
    cluster, _ = claimed()
    cluster.advance(10)
    rewind(cluster)
    assert attempts(cluster) == []
    cluster.advance(CLAIM_S)
    assert attempts(cluster) == [1]


def test_an_ack_of_another_delivery_ends_a_claim() -> None:
    """ACKED names no delivery. A rewind then opens the message to all, at each replica alike."""
    cluster = with_messages(1, hold_time_max=4.0)
    late = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    cluster.advance(HOLD_S + 1)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    assert extend(cluster, "b", got, CLAIM_S) == ["ok"]
    assert outcomes(cluster.ask("c", m.AckRequest(late))) == ["acked_after_expiry"]
    assert claims(cluster) == 0
    cluster.advance(HOLD_S + 1)
    rewind(cluster)
    assert attempts(cluster) == [1]


def test_a_claim_that_reached_one_replica_does_not_hide_the_message_from_the_next() -> None:
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    cluster.drop = lambda sender, to, message: sender != to and isinstance(message, m.Extend | m.ExtendReply)
    assert outcomes(cluster.ask("a", m.ExtendRequest(got, CLAIM_S, 0.0), 6)) == [Code.OUTCOME_UNKNOWN]
    cluster.hear_all()
    assert attempts(cluster) == [2]
    cluster.advance(5)
    assert attempts(cluster) == [3], "nor did it spread"


def test_one_who_lost_the_hold_claims_nothing() -> None:
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    cluster.advance(HOLD_S + 1)
    assert extend(cluster, "b", got, CLAIM_S) == [Code.HOLD_LOST]
    assert attempts(cluster) == [2]
    assert extend(cluster, "b", got, CLAIM_S) == [Code.HOLD_LOST]


def test_a_claim_is_durable_before_it_is_promised_and_no_claim_costs_nothing() -> None:
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    before = {name: len(cluster.journals[name]) for name in "abc"}
    assert extend(cluster, "b", got, HOLD_S) == ["ok"]
    assert {name: len(cluster.journals[name]) for name in "abc"} == before
    assert extend(cluster, "b", got, CLAIM_S) == ["ok"]
    assert all(len(cluster.journals[name]) == before[name] + 1 for name in "abc")


def test_a_claim_is_refused_without_space_and_beyond_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    check_failed(cluster.ask("a", m.ExtendRequest(got, 8 * 86400.0, 0.0)), None, "604800")
    for core in cluster.nodes.values():
        core.state.disk_shortage = Shortage.RESERVE
    assert extend(cluster, "a", got, CLAIM_S) == [Code.STORAGE_FULL]
    assert extend(cluster, "a", got, HOLD_S) == ["ok"]


def half_claimed(*nodes: str) -> tuple[Cluster, tuple[m.ReceiptPart, ...]]:
    """Return a cluster in which only `a` and ``nodes`` know the claim of the one message, whose hold is over."""
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Extend) and to not in nodes
    assert outcomes(cluster.ask("a", m.ExtendRequest(got, CLAIM_S, 0.0), 6)) == [
        "ok" if nodes else Code.OUTCOME_UNKNOWN
    ]
    cluster.hear_all()
    return cluster, got


def another(cluster: Cluster) -> None:
    """Publish one more message of the same producer."""
    core = cluster.nodes["a"]
    (topic,), (replica,) = core.topics.values(), core.replicas.values()
    more(cluster, topic, next(iter(replica.batches.present.runs)), 1)


def test_a_node_that_missed_a_claim_asks_seldom_and_delivers_younger_messages() -> None:
    cluster, _ = half_claimed("b")
    asked = noted(cluster, lambda sender, to, message: sender == "c" and isinstance(message, m.Hold))
    assert receipts(cluster.ask("c", fetch(wait=10.0, hold_time=HOLD_S), 10.5)) == ()
    assert len(asked) <= 2 * 4, "every few seconds, and not every round trip"
    another(cluster)
    assert len(receipts(cluster.ask("c", fetch(most=1, wait=1.0, hold_time=HOLD_S), 1.0))) == 1


def test_a_claim_that_failed_does_not_spread_when_replicas_compare() -> None:
    """A producer id whose records differ is sent with all that replicas compare of it."""
    cluster, _ = half_claimed()
    cluster.advance(CLAIM_S / 10)
    another(cluster)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    cluster.drop = lambda sender, to, message: isinstance(message, m.Ack)
    cluster.submit("a", m.AckRequest(got))  # it reaches this node alone
    cluster.hear_all(5)
    for node in "bc":
        (replica,) = cluster.nodes[node].replicas.values()
        assert replica.group("g").records, "they have compared"
        assert not replica.group("g").claims, node


def test_a_wiped_replica_learns_claims_of_producers_that_have_no_other_state() -> None:
    cluster, _ = claimed()
    for core in cluster.nodes.values():
        (replica,) = core.replicas.values()
        assert replica.group("g").digests.root is None, "replicas compare no claims"
    wipe(cluster, "c", 10)
    (replica,) = cluster.nodes["c"].replicas.values()
    assert replica.group("g").claims


@pytest.mark.parametrize("settle", [m.AckRequest, m.RejectRequest])
def test_a_delivery_of_before_a_rewind_can_end_its_claim(settle: type) -> None:
    cluster, got = claimed()
    cluster.advance(10)
    rewind(cluster)
    assert attempts(cluster) == []
    assert outcomes(cluster.ask("c", settle(got))) == [Code.STALE_GENERATION]
    cluster.crash("abc", 5)
    assert attempts(cluster) == [1]


def test_nothing_that_keeps_messages_is_written_on_a_full_disk_and_a_resumption_is() -> None:
    cluster, got = claimed()
    cluster.advance(5)
    for core in cluster.nodes.values():
        core.state.disk_shortage = Shortage.LAST_RESERVE
    assert extend(cluster, "a", got, HOLD_S) == [Code.STORAGE_FULL], "the claim would be prolonged"
    check_failed(cluster.ask("a", m.PauseGroup("jobs", "g", True)), Code.STORAGE_FULL)
    for core in cluster.nodes.values():
        core.state.disk_shortage = Shortage.NONE
    assert isinstance(cluster.ask("a", m.PauseGroup("jobs", "g", True)), m.GroupReply)
    for core in cluster.nodes.values():
        core.state.disk_shortage = Shortage.LAST_RESERVE
    assert isinstance(cluster.ask("a", m.PauseGroup("jobs", "g", False)), m.GroupReply), "acks make room"


def test_an_extension_of_a_hold_waits_for_no_disk_though_another_message_was_claimed() -> None:
    cluster, _ = claimed()
    another(cluster)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    sent = noted(cluster, lambda sender, to, message: isinstance(message, m.Extend))
    assert extend(cluster, "b", got, HOLD_S) == ["ok"]
    (replica,) = cluster.nodes["b"].replicas.values()
    assert replica.on_extend(sent[0], cluster.clocks("b"))[1] is None


def test_replicas_compare_alike_while_a_claim_stands_that_one_of_them_missed() -> None:
    """An older REJECT's delay is compared, and a claim must not hide it: else its producer id is sent every 2 s."""
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 0.5))) == ["ok"]
    cluster.advance(1)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    cluster.drop = lambda sender, to, message: to == "c" and isinstance(message, m.Extend)
    assert extend(cluster, "a", got, CLAIM_S) == ["ok"]
    cluster.advance(10)
    views = [next(iter(core.replicas.values())).group("g") for core in cluster.nodes.values()]
    assert [view.claims for view in views] == [True, True, False]
    assert len({view.content(producer_id) for view in views for producer_id in view.leases.runs}) == 1
    states = noted(cluster, lambda sender, to, message: isinstance(message, m.SyncState))
    cluster.advance(10)
    assert not states
    cluster.advance(CLAIM_S)
    assert attempts(cluster) == [3]


def test_a_claim_and_an_older_delay_outlive_a_start_each() -> None:
    cluster = with_messages(1, hold_time_max=4.0)
    got = receipts(cluster.ask("a", fetch(hold_time=HOLD_S)))
    assert outcomes(cluster.ask("a", m.RejectRequest(got, 0.5))) == ["ok"]
    cluster.advance(1)
    assert extend(cluster, "b", receipts(cluster.ask("a", fetch(hold_time=HOLD_S))), CLAIM_S) == ["ok"]
    cluster.crash("abc")
    for name in "abc":
        ((_, lease),) = next(iter(cluster.nodes[name].replicas.values())).group("g").leases.items()
        assert lease.delay is not None
        assert lease.claim is not None
        assert lease.delay.ballot < lease.claim.ballot

"""Certainty of an ACK beside restarted nodes (docs/protocol.md, ACK and RECOVERY)."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from quorumq.core.cluster.rounds import Round
from quorumq.core.messages import AckRequest, Hold, HoldsReply, ReceiptPart
from quorumq.core.messages.records import CleanStopped
from quorumq.core.recovery import replay
from quorumq.core.requests.settle import AckCoordinator, Ask, VoteCount
from quorumq.core.values.types import Incarnation, Owner, PartitionId, ProducerId, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.steps import fetch, outcomes, receipts, with_messages


def verdicts(cluster: Cluster, node: str, got: tuple[ReceiptPart, ...]) -> list[str]:
    """Return the verdicts of an ACK that has a second."""
    return outcomes(cluster.ask(node, AckRequest(got), 1.0))


@pytest.mark.parametrize("missing", ["b", "c"])
def test_clean_restarts_one_after_the_other_keep_every_ack_certain(missing: str) -> None:
    """Grants before the stop, and deliveries while it was down, are both certain there."""
    cluster = with_messages(30)
    got = receipts(cluster.ask("a", fetch(most=10, hold_time=60.0)))
    for down in "bcbc":
        cluster.stop(down)
        got += receipts(cluster.ask("a", fetch(most=5, hold_time=60.0)))
        cluster.start(down)
    assert sum(item.receipt.span.size for item in got) == 30
    cluster.stop(missing)
    assert {*verdicts(cluster, "a", got)} == {"acked"}


def test_a_clean_stop_drops_no_ballot_of_a_delivery_that_ran_out() -> None:
    cluster = with_messages(1)
    first = receipts(cluster.ask("a", fetch(hold_time=5.0)))
    cluster.advance(6.0)
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and to == "a"
    assert receipts(cluster.ask("c", fetch(hold_time=5.0)))
    cluster.advance(6.0)
    cluster.hear_all()
    for _ in range(2):
        cluster.stop("b")
        cluster.start("b")
    assert verdicts(cluster, "a", first) == ["acked_after_expiry"]


@pytest.mark.parametrize(("restarted", "verdict"), [(False, "acked"), (True, "acked_unproven")])
def test_an_attempt_that_lost_is_no_later_delivery(*, restarted: bool, verdict: str) -> None:
    """c grants its own attempt, which a and b refuse. Of a0, live and in time, b has forgotten that it granted it."""
    cluster = with_messages(1)
    cluster.drop = lambda sender, to, message: isinstance(message, Hold) and to == "c"
    got = receipts(cluster.ask("a", fetch(hold_time=60.0)))
    cluster.hear_all()
    assert not receipts(cluster.ask("c", fetch(hold_time=60.0)))
    if restarted:
        cluster.crash("b")
    assert verdicts(cluster, "a", got) == [verdict]


@pytest.mark.parametrize(("capacity", "verdict"), [(2, "acked"), (1, "acked_unproven")])
def test_state_beyond_the_space_of_a_clean_stop_is_unproven(
    monkeypatch: pytest.MonkeyPatch, capacity: int, verdict: str
) -> None:
    monkeypatch.setattr(replay, "BALLOTS_AT_STOP_MAX", capacity)
    cluster = with_messages(10)
    cluster.ask("b", fetch(most=5, hold_time=1.0))
    got = receipts(cluster.ask("a", fetch(most=5, hold_time=2.0)))
    cluster.advance(3.0)
    cluster.stop("b")
    (stop,) = [record for record in cluster.journals["b"] if isinstance(record, CleanStopped)]
    assert sum(len(group.ballots) for group in stop.memory) == (2 if capacity == 2 else 0)
    cluster.start("b")
    cluster.kill("c")
    assert verdicts(cluster, "a", got) == [verdict]


def test_a_replica_in_quarantine_is_certain_of_what_was_delivered_since_its_start() -> None:
    cluster = with_messages(2, hold_time_max=10.0)
    before = receipts(cluster.ask("a", fetch(most=1, hold_time=10.0)))
    cluster.drop = lambda sender, to, message: isinstance(message, HoldsReply)
    cluster.crash("b")
    since = receipts(cluster.ask("a", fetch(most=1, hold_time=10.0)))
    cluster.kill("c")
    assert cluster.nodes["b"].context.quarantine_left(cluster.now) > 5.0
    assert verdicts(cluster, "a", since) == ["acked"]
    assert verdicts(cluster, "a", before) == ["acked_unproven"], "b may have granted a higher one before"


SPAN = Span(ProducerId("p", 1, 1, 1), 0, 1)
OWNER = Owner("a", Incarnation(1, 1), Stamp(1, "a"))


def said(answers: tuple[str, ...], order: tuple[int, ...]) -> list[str | None]:
    """Return the verdict after each of the answers: *yes*, *no* (more was granted) or *unsure*."""
    members = tuple("abcde"[: len(answers)])
    round_ = Round(1, members)
    votes = VoteCount(round_, Ask(PartitionId(b"", 0), "g", 0))
    coordinator = AckCoordinator(1, AckRequest(()))
    yes = no = 0
    outcomes = []
    for at in order:
        bit = round_.hear(members[at], OWNER.incarnation)
        votes.answered |= bit
        yes |= bit if answers[at] == "yes" else 0
        no |= bit if answers[at] == "no" else 0
        outcomes.append(coordinator.outcome_of(votes, SPAN, yes, no, votes.answered, last=round_.everyone))
    return outcomes


@pytest.mark.parametrize("replicas", [3, 5])
def test_in_whatever_order_the_replicas_answer_the_verdict_is_the_same(replicas: int) -> None:
    majority = replicas // 2 + 1
    for answers in product(("yes", "no", "unsure"), repeat=replicas):
        end = "acked_unproven"
        if answers.count("yes") >= majority:
            end = "acked"
        if answers.count("no") >= majority:
            end = "acked_after_expiry"
        for order in permutations(range(replicas)):
            outcomes = said(answers, order)
            assert outcomes[-1] == end, answers
            assert {*outcomes} <= {None, end}, f"{answers} in order {order}: {outcomes}"
            assert not any(outcomes[: majority - 1]), "and nothing before it is durable"

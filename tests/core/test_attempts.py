"""Limits of deliveries hold: replicas that miss a delivery learn of it before the next one."""

from __future__ import annotations

import random

import pytest

from quorumq.core.messages import Extend, Hold, OpenSession, Owned, Publish, RejectRequest
from quorumq.core.messages.records import AttemptsCounted
from quorumq.core.partition import fate
from quorumq.core.partition.lease import NO_OWNER, Held
from quorumq.core.values.types import Incarnation, Kind, Owner, ProducerId, Record, Span, Stamp
from tests.core.cluster import Cluster
from tests.core.holding import Holding
from tests.core.steps import DEATH, fetch, outcomes, receipts, with_messages

MOST = 4


def deliveries(cluster: Cluster, rng: random.Random, hears: float, rejects: float) -> list[int]:
    """The attempts of one message whose holds run out or are given up, while one of three misses most HOLDs."""
    published, seen = cluster.topic(max_deliveries=MOST), []
    producer_id = cluster.ask("a", OpenSession()).producer_id  # type: ignore[union-attr]
    cluster.ask("a", Publish(cluster.batch(published, producer_id, 0, [b"poison"])))
    for _ in range(3 * MOST):
        coordinator = rng.choice(cluster.names)
        deaf = rng.choice([name for name in cluster.names if name != coordinator])
        if rng.random() > hears:
            cluster.drop = lambda sender, to, message, deaf=deaf: isinstance(message, Hold) and to == deaf
        reply = cluster.ask(coordinator, fetch(hold_time=1.0), 0.3)
        seen += [item.attempt for part in reply.slices for item in part.deliveries]  # type: ignore[union-attr]
        cluster.hear_all()
        if rng.random() < rejects and receipts(reply):
            cluster.ask(coordinator, RejectRequest(receipts(reply), 0.1))
            cluster.advance(0.15)  # before anti-entropy spreads it
        else:
            cluster.advance(1.0)
    return seen


@pytest.mark.parametrize("seeds", [4, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize("rejects", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("hears", [0.0, 0.5])
def test_whoever_misses_a_delivery_a_message_has_as_many_as_its_topic_says(
    hears: float, rejects: float, seeds: int
) -> None:
    for seed in range(seeds):
        cluster = Cluster(seed=seed)
        assert deliveries(cluster, random.Random(seed), hears, rejects) == list(range(1, MOST + 1)), seed


def test_an_attempt_that_an_extend_counts_is_in_the_journal() -> None:
    """A hold that has run out may meet an EXTEND before its timer, if more run out than one step looks at. The timer
    finds nothing to count then, so that a restart would forget the attempt (seed 4008942)."""
    cluster = with_messages(1)
    (got,) = receipts(cluster.ask("b", fetch(hold_time=1.0)))
    for core in cluster.nodes.values():
        (replica,) = core.replicas.values()
        now = cluster.clocks(core.config.node)
        entry = Owned(got.receipt.span, got.receipt.owner, got.receipt.n)
        request = Extend(1, replica.partition, replica.epoch, "g", (entry,), 5.0)
        reply, persist = replica.on_extend(request, now._replace(mono=now.mono + 2.0))
        assert (reply.granted, reply.refused) == ((), (entry,))
        assert persist is not None
        (record,) = persist.records
        assert isinstance(record, AttemptsCounted)
        assert [(counted.span, counted.ended) for counted in record.entries] == [(entry.span, 1)]


def test_a_reject_to_the_dead_letters_may_be_repeated_through_any_node() -> None:
    cluster = with_messages(1)
    got = receipts(cluster.ask("a", fetch()))
    for node in "abc":
        assert outcomes(cluster.ask(node, RejectRequest(got, death=DEATH))) == ["ok"]


def test_a_hold_that_was_given_up_makes_no_attempt_of_the_one_beside_it() -> None:
    """A restarted replica learns of an ACK before a rewind, and of a hold after it whose client gives it back."""
    holding, span = Holding(0), Span(ProducerId("a", 1, 1, 1), 0, 1)
    owner = Owner("b", Incarnation(1, 1), Stamp(5, "b"))
    holding.ask(span, fate.on_merge, Record(1, 0, Kind.ACKED))
    for held in (Held(NO_OWNER, 1.0, 0, 1), Held(owner, 2.0, 0, 2)):
        holding.ask(span, fate.on_reported, held)
    holding.release(span, owner)
    assert holding.view.held(span), "until the ACK's hold would have ended"
    holding.ask(span, fate.on_expire, None, now=1.5)
    assert not holding.view.leases

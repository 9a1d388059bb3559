"""What one step costs grows as the sections that it touches: counted in Python calls, which no busy machine changes."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

from quorumq.core.messages import (
    Ack,
    AckEntry,
    AckRequest,
    ExtendRequest,
    OpenSession,
    Publish,
    PublishReply,
    RejectRequest,
)
from quorumq.core.types import PartitionId, Span
from quorumq.wire.batch import Message, encode_record, pack_sections
from tests.core.cluster import Cluster
from tests.core.test_cluster_smoke import fetch, outcomes, receipts

SMALL, LARGE = 64, 512
GROWTH = LARGE / SMALL
SLACK = 1.25
"""Room for sorting (n log n). A step of quadratic cost is at 8."""


def calls(work: Callable[[], object]) -> int:
    """How many Python-level calls ``work`` makes."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def filled(sections: int) -> Cluster:
    """A cluster with one batch: a message from each of so many sessions, as fan-in makes it."""
    cluster = Cluster()
    cluster.checks = False  # they look at everything
    topic = cluster.topic()
    origins = sorted(cluster.ask("a", OpenSession()).origin for _ in range(sections))
    records = [encode_record(Message(b"%d" % i)) for i in range(sections)]
    spans = tuple(Span(origin, 0, 1) for origin in origins)
    batch = pack_sections(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, records)
    assert isinstance(cluster.ask("b", Publish(batch)), PublishReply)
    assert receipts(cluster.ask("a", fetch(group="other", most=1)))  # the group's view is made elsewhere
    return cluster


def cost(step: str, sections: int) -> int:
    """Calls of one step, on all three nodes, over a batch of so many sections."""
    cluster = filled(sections)
    if step == "hold":
        return calls(lambda: cluster.ask("a", fetch(most=sections)))
    got = receipts(cluster.ask("a", fetch(most=sections)))
    assert sum(item.receipt.span.size for item in got) == sections
    if step == "expire":
        cluster.advance(9.99)
        return calls(lambda: cluster.advance(0.02))
    request = {
        "ack": AckRequest(got),
        "reject": RejectRequest(got, 1.0, None),
        "extend": ExtendRequest(got, 20.0, 0.0),
    }[step]
    verdict = "acked" if step == "ack" else "ok"

    def settle() -> None:
        assert set(outcomes(cluster.ask("c", request))) == {verdict}

    return calls(settle)


@pytest.mark.parametrize("step", ["hold", "ack", "reject", "extend", "expire"])
def test_a_step_costs_as_many_calls_as_it_has_sections(step: str) -> None:
    small, large = cost(step, SMALL), cost(step, LARGE)
    assert large <= SLACK * GROWTH * small, f"{step}: {small} calls for {SMALL} sections, {large} for {LARGE}"


def test_the_holds_of_a_long_run_end_in_steps_of_bounded_size() -> None:
    """A run of which every second message was acked is as many runs: no node stands still for all of them."""
    cluster = Cluster()
    cluster.checks = False
    topic = cluster.topic()
    origin = cluster.ask("a", OpenSession()).origin
    cluster.ask("a", Publish(cluster.batch(topic, origin, 0, [b"x"] * 4000)))
    (got,) = receipts(cluster.ask("a", fetch(most=4000)))
    (replica,) = cluster.nodes["a"].replicas.values()
    acked = tuple(AckEntry(Span(origin, seq, seq + 1), got.receipt.owner) for seq in range(0, 4000, 2))
    replica.on_ack("a", Ack(0, replica.partition, replica.topic.epoch, "g", 0, acked), cluster.now)
    view, left = replica.group("g"), []
    cluster.time += 10.0
    while cluster.nodes["a"].state.timers and view.held_count:
        cluster.advance(0.001)
        left.append(view.held_count)
    assert len(left) > 1, "not all in one step"
    assert left[-1] == 0
    assert view.suspects.messages == 2000

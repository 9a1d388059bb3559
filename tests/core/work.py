"""Counts of Python calls by step, and clusters with many messages or sessions."""

from __future__ import annotations

import cProfile
import gc
from collections.abc import Callable
from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.node.nodecore import NodeCore
from quorumq.core.values import limits
from quorumq.core.values.types import PartitionId, Span
from quorumq.wire.batch import Message, encode_record, pack_spans
from tests.core.cluster import Cluster
from tests.core.steps import DEATH, fetch, receipts


def calls(work: Callable[[], object], *, builtins: bool = True) -> int:
    """Count the Python-level calls of ``work``; without ``builtins`` those of functions in C are left out.

    The garbage collector is off meanwhile: callbacks of hypothesis would be counted whenever it runs.
    """
    profile = cProfile.Profile()
    gc.disable()
    try:
        profile.runcall(work)
    finally:
        gc.enable()
    return sum(entry.callcount for entry in profile.getstats() if builtins or not isinstance(entry.code, str))


def filled(sessions: int, **settings: object) -> Cluster:
    """Return a cluster with one batch that has one message of each of ``sessions`` sessions."""
    cluster = Cluster(checks=False, **settings)  # they look at everything
    topic = cluster.topic()
    producer_ids = sorted(cluster.ask("a", m.OpenSession()).producer_id for _ in range(sessions))
    records = [encode_record(Message(b"%d" % i)) for i in range(sessions)]
    spans = tuple(Span(producer_id, 0, 1) for producer_id in producer_ids)
    batch = pack_spans(PartitionId(topic.id, 0), spans, cluster.now.wall_ms, records)
    assert isinstance(cluster.ask("b", m.Publish(batch)), m.PublishReply)
    assert receipts(cluster.ask("a", fetch(group="other", most=1)))  # the group's view is made elsewhere
    return cluster


def answered(cluster: Cluster, name: str, request: object) -> object:
    """Return the reply to a request that may take several steps. Time passes only for requests that wait their turn."""
    key = cluster.submit(name, request)
    while key not in cluster.replies:
        waits = any(core.context.costly.lines for core in cluster.nodes.values())
        cluster.advance(limits.COSTLY_PAUSE_S if waits else 0.0)
    return cluster.replies[key]


def taken(cluster: Cluster, messages: int, name: str = "a", group: str = "g") -> tuple[m.ReceiptPart, ...]:
    """Fetch ``messages`` messages. Returns their receipts."""
    got = receipts(answered(cluster, name, fetch(group, most=messages, least=messages, wait=1.0)))
    assert sum(item.receipt.span.size for item in got) == messages
    return got


def settling(step: str, got: tuple[m.ReceiptPart, ...]) -> tuple[object, str]:
    """Return a request that settles or extends all of ``got``, and its expected verdict."""
    return {
        "ack": (m.AckRequest(got), "acked"),
        "reject": (m.RejectRequest(got, 1.0, None), "ok"),
        "bury": (m.RejectRequest(got, 0.0, DEATH), "ok"),
        "extend": (m.ExtendRequest(got, 20.0, 0.0), "ok"),
    }[step]


SLACK = 1.1
"""Factor on ceilings of calls, which follow the cut of code into functions. Counts of other things are exact."""

STEP_CALLS_MAX = 40_000
"""Python calls of one step of a core, for any request: some 10 ms, in which no other client is served."""


QUIET = {"sync_interval": 600.0}  # anti-entropy has its own costs


def steps_of(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], *, builtins: bool = True
) -> list[int]:
    """Count the calls of each step that a core takes in ``work``."""
    counts: list[int] = []
    step = NodeCore.step

    def counted(self: NodeCore, *args: Any) -> object:
        made: list[object] = []
        counts.append(calls(lambda: made.append(step(self, *args)), builtins=builtins))
        return made[0]

    with monkeypatch.context() as patch:
        patch.setattr(NodeCore, "step", counted)
        work()
    return counts


def by_one_each(count: int) -> tuple[Cluster, tuple[m.ReceiptPart, ...]]:
    """Publish ``count`` messages, and fetch each in a delivery of its own."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    cluster.ask("b", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * count)))
    return cluster, tuple(
        item for n in range(count) for item in receipts(cluster.ask("abc"[n % 3], fetch(most=1)))
    )


def with_holes(count: int) -> tuple[Cluster, tuple[m.ReceiptPart, ...]]:
    """Fetch ``count`` messages in one delivery, and ack every second one."""
    cluster = Cluster(checks=False, **QUIET)
    topic, producer_id = cluster.topic(), cluster.ask("a", m.OpenSession()).producer_id
    cluster.ask("a", m.Publish(cluster.batch(topic, producer_id, 0, [b"x"] * count)))
    (got,) = taken(cluster, count)
    acked = tuple(m.Owned(Span(producer_id, seq, seq + 1), got.receipt.owner) for seq in range(0, count, 2))
    for core in cluster.nodes.values():
        for replica in core.replicas.values():
            replica.on_ack("a", m.Ack(0, replica.partition, replica.epoch, "g", 0, acked), cluster.now)
    return cluster, (got,)


def by_spans(count: int) -> tuple[Cluster, tuple[m.ReceiptPart, ...]]:
    """Publish one message in each of ``count`` sessions, and fetch all."""
    cluster = filled(count, **QUIET)
    return cluster, taken(cluster, count)

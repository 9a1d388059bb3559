"""The copies of a partition that was raised: each slot counts, in the core and in the checker of loss."""

from __future__ import annotations

from typing import Any

import pytest

from quorumq.core.cluster.rounds import Round, majority_of
from quorumq.core.messages import PublishReply
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.publish import PublishCoordinator
from sim.checkers.replica_sets import ReplicaSet, ReplicaSets
from sim.cluster import Cluster
from sim.options import Options
from sim.runner import Outcome, run_schedule
from sim.schedule import Schedule

OPTIONS = Options(
    nodes=5,
    rf=1,
    partitions=2,
    producers=2,
    batches=60,
    batch_messages=4,
    fault_time=5.0,
    sync_interval=0.3,
    loss=0.0,
    late=0.0,
    moves=1e-9,
    alter=0.0,
)
"""Two operators of moves, which do nothing by themselves."""


def raised() -> Outcome:
    """Run a cluster whose topic gets three replicas in place of one while messages flow."""

    def prepare(cluster: Cluster) -> None:
        mover: Any = cluster.clients["m0"]
        cluster.world.at(0.8, mover.raise_to, 3, "a")

    outcome = run_schedule(Schedule(3, "moves", OPTIONS), prepare=prepare, keep=True)
    sets = [row for row in outcome.rows if row["kind"] == "layout" and len(row["nodes"]) == 3]
    confirmed = [row["at"] for row in outcome.rows if row["kind"] == "publish" and row["outcome"] == "ok"]
    assert sets[0]["at"] < confirmed[-1], "the raise is over before the last publish"
    return outcome


def as_made(
    self: PublishCoordinator, context: Context, round_: Round, stored: int, valid: int, *, timed_out: bool
) -> list[Effect]:
    copies = (stored & valid).bit_count()
    if copies >= majority_of(context.catalogue.topics[self.partition.topic].rf):
        return self.finish(context, PublishReply(copies))
    return _decide(self, context, round_, stored, valid, timed_out=timed_out)


_decide = PublishCoordinator.decide


def test_a_raised_partition_keeps_every_promise() -> None:
    assert raised().violations == []


@pytest.mark.parametrize("checker", ["by its sets", "as made"])
def test_a_publish_by_a_raised_set_as_made_is_found(checker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublishCoordinator, "decide", as_made)
    if checker == "as made":
        monkeypatch.setattr(
            ReplicaSets, "counting", lambda self, topic, partition, rf, sent: [ReplicaSet(rf)]
        )
    violations = raised().violations
    assert [text.split(" at ")[0] for text in violations[:1]] == (
        ["no loss"] if checker == "by its sets" else []
    )

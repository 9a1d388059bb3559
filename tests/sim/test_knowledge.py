"""A node's journal is compared with the node's readable state, and a missing record is reported."""

from __future__ import annotations

import dataclasses

import pytest

from quorumq.core.messages.effects import Persist
from quorumq.core.messages.records import GroupPut, JournalRecord, Reclaimed, RecordsMerged
from quorumq.core.node.nodecore import NodeCore
from sim.cluster import Cluster
from sim.knowledge import compare
from sim.options import Options
from sim.runner import run_schedule
from sim.schedule import Schedule, draw
from sim.world import SimError


def watched(seed: int, disk: str) -> Schedule:
    """A seed whose steps are all compared."""
    schedule = draw(seed)
    return dataclasses.replace(schedule, options=dataclasses.replace(schedule.options, disk=disk, recall=1.0))


@pytest.mark.parametrize(
    ("seed", "disk"),
    [
        (3, "store"),
        pytest.param(7, "memory", marks=pytest.mark.soak),
        pytest.param(7, "store", marks=pytest.mark.soak),
    ],
)
def test_every_step_of_a_run_is_compared(seed: int, disk: str) -> None:
    outcome = run_schedule(watched(seed, disk))
    assert outcome.violations == []
    assert outcome.seen["a journal was compared with what its node knows"] > 100


@pytest.mark.parametrize(("kind", "first"), [(GroupPut, 0), (RecordsMerged, 0), (Reclaimed, 1)])
def test_a_record_that_is_not_written_is_found(
    kind: type[JournalRecord], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = NodeCore.step

    def forgetful(self: NodeCore, *args: object) -> object:
        return [
            effect._replace(records=tuple(one for one in effect.records if not isinstance(one, kind)))
            if isinstance(effect, Persist)
            else effect
            for effect in step(self, *args)  # type: ignore[arg-type]
        ]

    monkeypatch.setattr(NodeCore, "step", forgetful)
    runs = (run_schedule(watched(seed, "memory")).violations for seed in range(first, 8))
    assert any("and its journal" in texts[0] for texts in runs if texts)


def test_a_record_that_is_taken_out_of_the_journal_is_found() -> None:
    cluster = Cluster(Schedule(7, "swarm", Options()))
    cluster.run()
    host = cluster.hosts["a"]
    core, records = host.core, host.journal.kept()
    assert core is not None
    assert records is not None
    now = host.clock.now(cluster.world.time)
    compare(core, records, now, durable=False, times=cluster.observer.steady)
    del records[-1 - [type(record) for record in reversed(records)].index(RecordsMerged)]
    with pytest.raises(SimError, match="records"):
        compare(core, records, now, durable=False, times=cluster.observer.steady)

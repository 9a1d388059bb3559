"""Nothing that is promised depends on when a costly request has its turn: here every request that has a price waits."""

from __future__ import annotations

import pytest

from quorumq.core.values import limits
from quorumq.core.values.fairqueue import Chunk, FairQueue
from sim.runner import run_schedule
from sim.schedule import draw


@pytest.mark.parametrize(("seed", "profile"), [(500_006, "store"), (500_009, "store"), (500_010, "swarm")])
def test_queued_requests_break_nothing(seed: int, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = 0
    take = FairQueue.take

    def counted(self: FairQueue[object]) -> Chunk[object]:
        nonlocal served
        served += 1
        return take(self)

    monkeypatch.setattr(FairQueue, "take", counted)
    monkeypatch.setattr(limits, "CHEAP", 0)
    monkeypatch.setattr(limits, "COSTLY_PER_STEP", 1)
    assert run_schedule(draw(seed, profile)).violations == []
    assert served > 50

"""Parked FETCHes of one client are woken a few in a step, those of others in the same step, and all in the end."""

from __future__ import annotations

from typing import Any

import pytest

from quorumq.core import messages as m
from quorumq.core.messages.effects import Request
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.values import limits
from tests.core.cluster import Cluster
from tests.core.steps import wait_for
from tests.core.work import QUIET

GREEDY, CALM = ("greedy", 1), ("calm", 2)
GROUPS = 50


def waiting(group: str, wait: float = 20.0) -> m.Fetch:
    return m.Fetch(("jobs",), group, 1, 1 << 20, 1, wait, 200.0, 0.0, idle=True)


class Parked:
    """A topic that fifty groups read, whose FETCHes are parked, and how many of them go on in each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fetches: int, wait: float = 20.0) -> None:
        self.cluster = cluster = Cluster(checks=False, **{**QUIET, "hold_time_max": 300.0})
        self.topic = cluster.topic("jobs")
        self.producer_id = cluster.ask("a", m.OpenSession()).producer_id  # type: ignore[union-attr]
        self.keys = [self.send(waiting(f"g{at % GROUPS}", wait), GREEDY) for at in range(fetches)]
        self.calm = self.send(waiting("calm", wait), CALM)
        cluster.run()
        cluster.advance(0.5)
        self.steps: list[list[Any]] = []
        core = cluster.nodes["a"]
        step, advance = core.step, FetchCoordinator.advance

        def stepped(*args: Any) -> Any:
            self.steps.append([])
            return step(*args)

        def advanced(fetch: FetchCoordinator, *args: Any) -> Any:
            if self.steps and not (fetch.rounds or fetch.done):
                self.steps[-1].append(fetch.caller)
            return advance(fetch, *args)

        monkeypatch.setattr(core, "step", stepped)
        monkeypatch.setattr(FetchCoordinator, "advance", advanced)

    def send(self, request: m.Fetch, caller: tuple[str, int]) -> int:
        self.cluster.keys += 1
        self.cluster.drivers["a"].feed(Request(self.cluster.keys, request, caller))
        return self.cluster.keys

    def publish(self, number: int) -> None:
        self.cluster.ask("a", m.Publish(self.cluster.batch(self.topic, self.producer_id, number, [b"x"])))

    def most(self) -> int:
        return max(step.count(GREEDY) for step in self.steps)


def test_one_message_wakes_a_few_in_a_step_and_all_groups_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    parked = Parked(monkeypatch, 600)
    parked.publish(0)
    assert parked.cluster.replies.get(parked.calm), "it waits for nobody"
    wait_for(parked.cluster, parked.keys[:GROUPS])
    assert parked.most() <= limits.COSTLY_PER_STEP // limits.WAKING_COST + limits.WOKEN_PER_STEP
    answered = [key for key in parked.keys if key in parked.cluster.replies]
    assert len(answered) == GROUPS, "one of each group has the message"
    assert sum(map(len, parked.steps)) < 5 * GROUPS, "nobody else looks"


def test_many_that_waited_long_are_answered_a_few_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    parked = Parked(monkeypatch, 300, wait=5.0)
    parked.cluster.advance(4.4)
    assert not parked.cluster.replies.get(parked.calm)
    parked.cluster.advance(0.11)
    assert parked.cluster.replies.get(parked.calm), "it waits for nobody"
    wait_for(parked.cluster, parked.keys)
    assert parked.most() <= limits.COSTLY_PER_STEP // limits.WAKING_COST + limits.WOKEN_PER_STEP


def test_the_line_that_is_left_of_a_group_is_served_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    parked = Parked(monkeypatch, 0)
    keys = [parked.send(waiting("one"), GREEDY) for _ in range(30)]
    parked.cluster.run()
    parked.cluster.advance(0.5)
    payloads = [b"x"] * 20
    parked.cluster.ask("a", m.Publish(parked.cluster.batch(parked.topic, parked.producer_id, 0, payloads)))
    wait_for(parked.cluster, keys[:20])
    assert not any(key in parked.cluster.replies for key in keys[20:])

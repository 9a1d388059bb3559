"""Every state that can be reached, breadth first: the first violation found is a shortest one."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from quorumq.core.values.types import NodeId
from sim.explorer.goals import GOALS, Ways
from sim.explorer.scenario import ExplorerError
from sim.explorer.steps import Action, Explorer, State, Step


class Walk:
    """Walks a chosen path through the steps of a scenario, to the beginning of its exploration."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.state = explorer.first
        self.path: list[Step] = []

    def take(self, fits: Callable[[Action], bool], text: str) -> None:
        """Take the first step that ``fits``."""
        for step in self.explorer.steps(self.state):
            if fits(step[0]):
                if step[2]:
                    raise ExplorerError(f"the script's step {text} breaks a promise: {step[2]}")
                self.path.append(step)
                self.state = step[1]
                return
        raise ExplorerError(f"the script's step {text} is not possible")

    def take_step(self, step: tuple[Any, ...]) -> None:
        """Take one step of a `Script`."""
        if step == ("settle",):
            self.settle()
        elif step[0] == "deliver":
            self.deliver(*step[1:])
        elif step[0] == "may":  # it may be possible only if the rule is left out
            with suppress(ExplorerError):
                self.take_step(step[1:])
        elif step[0] == "link" and self.explorer.is_refused(self.state, *step[1:]):
            pass  # as it may be if a rule is kept, which the scenario is about
        else:
            self.take(lambda action: action[: len(step)] == step, " ".join(map(str, step)))

    def deliver(self, kind: str, sender: NodeId, to: NodeId) -> None:
        """Deliver the newest message of that kind between those two that has an effect."""
        envelopes = self.explorer.traffic.messages.all
        fitting = [
            message
            for message in self.explorer.messages(self.state)
            if (type(envelopes[message].message).__name__, envelopes[message].sender, envelopes[message].to)
            == (kind, sender, to)
        ]
        steps = {step[0] for step in self.explorer.steps(self.state)}
        newest = next((each for each in reversed(fitting) if ("deliver", each) in steps), None)
        self.take(lambda step: step == ("deliver", newest), f"{kind} {sender} -> {to}")

    def settle(self) -> None:
        """Deliver everything, in order, until there is nothing new."""
        for _ in range(200):
            before = self.state
            for step in self.explorer.steps(self.state):
                if step[0][0] == "deliver" and step[1] != self.state:
                    self.path.append(step)
                    self.state = step[1]
                    break
            if self.state == before:
                return
        raise ExplorerError("the script's messages do not come to rest")


@dataclass
class Result:
    """Result of an exploration."""

    scenario: str
    without: str | None
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    violation: str = ""
    steps: int = 0  # to the violation, the script's included
    trace: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)  # stand-ins of the rule left out that were not called
    core_steps: int = 0

    @property
    def states_per_s(self) -> float:
        """Return the number of states looked at in a second."""
        return self.states / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """Return the result in a few words."""
        if self.violation:
            return f"violated in {self.steps} steps"
        return "exhausted, nothing found" if self.exhausted else "bounded, nothing found"


@contextmanager
def uncollected() -> Iterator[None]:
    """Stop the collector of cyclic garbage while the context lasts.

    It would go over all states again and again, and there is far less garbage than kept states.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def search(
    explorer: Explorer,
    states_max: int = 1_000_000,
    seconds: float = 3600.0,
    on_progress: Callable[[Result], None] | None = None,
) -> tuple[Result, list[Step]]:
    """Explore breadth first, until everything was seen, a promise is broken, or a bound is reached.

    Args:
        seconds: processor time to take at most. A search that this ends is not reproducible in its count.
        on_progress: called every few thousand states.

    Returns:
        the result, and the steps to the violation (with the scenario's script before them), if there is one.
    """
    walk = Walk(explorer)
    for step in explorer.scenario.script:
        walk.take_step(step)
    first = walk.state
    result = Result(explorer.scenario.name, None)
    began = time.process_time()
    seen: dict[State, int] = {first: 0}
    parents = array("q", [-1])
    frontier: list[State] = [first]
    broken: tuple[State, Step] | None = None
    ways = Ways() if explorer.scenario.goal else None
    looked, count, transitions = 0, 1, 0
    full = False
    while frontier and broken is None and not full:
        following: list[State] = []
        for state in frontier:
            for step in explorer.steps(state):
                transitions += 1
                after = step[1]
                if step[2]:
                    broken = (state, step)
                    break
                number = seen.setdefault(after, count)
                if ways is not None:
                    ways.add(looked, number)
                if number == count:
                    count += 1
                    parents.append(looked)  # states are numbered in the order in which they are looked at
                    following.append(after)
            looked += 1
            if broken is not None:
                break
            if not looked % 2048:
                result.states, result.seconds = count, time.process_time() - began
                result.transitions = transitions
                if on_progress is not None:
                    on_progress(result)
                if result.seconds > seconds:
                    full = True
                    break
            if count >= states_max:
                full = True
                break
        if following or broken is not None:
            result.depth += 1
        frontier = following
    result.states, result.transitions = len(seen), transitions
    result.seconds = time.process_time() - began
    result.exhausted = broken is None and not full
    result.core_steps = explorer.nodes.core_steps
    if broken is None:
        if ways is None or not result.exhausted:
            return result, []
        reached = [GOALS[explorer.scenario.goal](explorer, state) for state in seen]
        stuck = ways.first_stuck(reached)
        if stuck is None:
            return result, []
        result.violation = f"stuck: from here no state is reached in which {explorer.scenario.goal}"
        trapped = next(state for state, number in seen.items() if number == stuck)
        path = [*walk.path, *path_to(explorer, seen, parents, trapped)]
        return result, [*path[:-1], (*path[-1][:2], result.violation)]
    result.violation = broken[1][2]
    return result, [*walk.path, *path_to(explorer, seen, parents, broken[0]), broken[1]]


def path_to(explorer: Explorer, seen: dict[State, int], parents: array[int], state: State) -> list[Step]:
    """Return the steps from the beginning of the search to ``state``."""
    numbers = [seen[state]]
    while parents[numbers[-1]] >= 0:
        numbers.append(parents[numbers[-1]])
    chosen = set(numbers)
    states = {number: key for key, number in seen.items() if number in chosen}
    numbers.reverse()
    path: list[Step] = []
    for before, after in pairwise(numbers):
        for step in explorer.steps(states[before]):
            if step[1] == states[after]:
                path.append(step)
                break
    return path

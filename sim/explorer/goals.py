"""Ends that have to be possible from every state: from one in which they are not, there is no way out.

It needs no fairness. Messages are never lost for good within an exploration: each may still be delivered, again and
again. So an end that no state reaches is reached in no network.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from sim.explorer.steps import Explorer, State


class Ways:
    """The steps of an exploration, from state to state, by number."""

    def __init__(self) -> None:
        self.sources = array("I")
        self.targets = array("I")

    def add(self, source: int, target: int) -> None:
        """Note a step."""
        self.sources.append(source)
        self.targets.append(target)

    def first_stuck(self, reached: Sequence[bool]) -> int | None:
        """Return the first state from which no state that is ``reached`` can be reached; None without one."""
        before: dict[int, list[int]] = {}
        for source, target in zip(self.sources, self.targets, strict=True):
            before.setdefault(target, []).append(source)
        good = list(reached)
        waiting = [number for number, there in enumerate(good) if there]
        while waiting:
            for source in before.get(waiting.pop(), ()):
                if not good[source]:
                    good[source] = True
                    waiting.append(source)
        return next((number for number, there in enumerate(good) if not there), None)


def last_is_done(explorer: Explorer, state: State) -> bool:
    return explorer.observations(state).operations[-1].phase == "done"


def slots_vote(explorer: Explorer, state: State) -> bool:
    """Return True if each slot of the newest adopted layout votes."""
    cores = [explorer.nodes.locals[local].core for local in state[:-3]]
    topics = [topic for core in cores for topic in core.catalogue.live() if topic.replicas]
    if not topics:
        return False
    newest = max(topics, key=lambda topic: topic.layout_number)
    slots = [core for core in cores if core.config.node in newest.replicas[0]]
    replicas = [replica for core in slots if core.state.trusted for replica in core.replicas.values()]
    voting = [replica for replica in replicas if replica.epoch == newest.epoch_of(0) and replica.is_trusted]
    return len(voting) == len(newest.replicas[0])


def voters_vote(explorer: Explorer, state: State) -> bool:
    """Return True if each voter of the newest layout of the cluster votes."""
    cores = [explorer.nodes.locals[local].core for local in state[:-3]]
    newest = max((core.catalogue.cluster for core in cores), key=lambda cluster: cluster.layout.number)
    voting = [core for core in cores if core.state.trusted and core.state.voting_epoch == newest.epoch]
    return {core.config.node for core in voting} >= {*newest.voters} and newest.epoch > 0


GOALS: dict[str, Callable[[Explorer, State], bool]] = {
    "the last operation is done": last_is_done,
    "every slot votes": slots_vote,
    "every voter votes": voters_vote,
}

"""Changes of layouts that no client waits for: they are upkeep, so they go on without the client, and after a crash.

A layout that was chosen is announced and adopted. Sources whose payload every slot has are released. A raise of the
replication factor takes its next steps (docs/layouts.md; core/cluster/raising.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeVar

from quorumq.core.cluster.raising import next_placement
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import TOGETHER_MAX, LayoutCoordinator, is_source, without_source
from quorumq.core.requests.registers import BuryCoordinator, complete_deletion
from quorumq.core.requests.sources import is_copied, needless
from quorumq.core.values.types import Now, Placement, Topic

Item = TypeVar("Item")


class UpkeepCoordinator(LayoutCoordinator):
    """A layout that was chosen is announced and adopted, because no request goes on with it. No client waits for it."""

    __slots__ = ()

    def is_done(self, topic: Topic) -> bool:
        return True


class StepCoordinator(UpkeepCoordinator):
    """The next steps of some partitions of a topic, in one layout: sources are released, or a raise goes on.

    Attributes:
        adopted: number of the layout that was adopted when it began.
    """

    __slots__ = ("adopted",)

    def __init__(self, key: int, topic: Topic, placements: list[Placement]) -> None:
        super().__init__(key, topic, placements[0].partition)
        self.adopted = topic.layout_number
        self.placements = {each.partition: each for each in placements}

    def is_done(self, topic: Topic) -> bool:
        return topic.layout_number > self.adopted

    def change(self, topic: Topic) -> Placement | str:
        return self.placements[self.partition]

    def refuse_partition(self, context: Context, partition: int, why: str) -> list[Effect]:
        """End if no other partition is left."""
        if not self.placements:
            return self.refuse_slots(context, why)
        self.partition = next(iter(self.placements))
        return []

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        """Begin the next steps of other partitions at once, after these: a topic may have a thousand."""
        effects = super().on_written(context, now)
        return effects + take_steps(context, now) if self.done else effects


def change_layouts(context: Context, now: Now) -> list[Effect]:
    """Go on with a layout that was chosen and not adopted, or with a deletion.

    One change at a time; and in each round one of the nodes, on average, goes on with what no request may own.
    """
    catalogue, requests = context.catalogue, context.requests
    upkeep = (UpkeepCoordinator, BuryCoordinator)
    if not context.state.trusted or any(isinstance(each, upkeep) for each in requests.values()):
        return []
    waiting = [topic for topic in catalogue.live() if topic.next_layout is not None]
    if waiting and context.rng.random() * len(catalogue.cluster.present) < 1:
        return context.begin(UpkeepCoordinator(context.next_key(), waiting[0], 0), now)
    return complete_deletion(context, now)


def step_here(context: Context, replica: Replica) -> Placement | None:
    """Return the next placement of a partition if this node is to propose it: the first of its set that is up."""
    state, topic = context.state, context.catalogue.topics[replica.partition.topic]
    if topic.layout is None or not topic.layout.rf or topic.next_layout is not None:
        return None
    up = next((node for node in replica.members if node == state.me or node in state.links), "")
    if up != state.me or not replica.is_trusted or replica.epoch != topic.epoch_of(replica.partition.number):
        return None
    placement = next_placement(topic, replica.partition.number, *context.catalogue.cluster.placing)
    if placement is not None and placement.nodes != replica.members and not is_copied(context, replica):
        return None
    return placement


def steps(context: Context) -> Iterator[tuple[Topic, Placement]]:
    """Iterate over the next placements that this node is to propose: without it as a source, and those of a raise."""
    topics, rng = context.catalogue.topics, context.rng
    for partition in rotated(needless(context), rng):
        topic = topics[partition.topic]
        if topic.next_layout is None and is_source(
            topic, partition.number, context.state.me
        ):  # not released yet
            yield topic, without_source(topic, partition.number, context.state.me)
    raised = {topic.id for topic in context.catalogue.live() if topic.layout is not None and topic.layout.rf}
    replicas = [each for each in context.replicas.values() if raised and each.partition.topic in raised]
    for replica in rotated(replicas, rng):
        placement = step_here(context, replica)
        if placement is not None:
            yield topics[replica.partition.topic], placement


def rotated(each: list[Item], rng: Random) -> list[Item]:
    """Return a list from a place by chance on, as one that waits would keep others from their turn."""
    first = int(rng.random() * len(each)) if each else 0
    return each[first:] + each[:first]


def take_steps(context: Context, now: Now) -> list[Effect]:
    """Begin next steps of partitions of one topic, unless there is a change of a layout already."""
    upkeep = (UpkeepCoordinator, BuryCoordinator)
    if not context.state.trusted or any(isinstance(each, upkeep) for each in context.requests.values()):
        return []
    topic: Topic | None = None
    placements: list[Placement] = []
    for each, placement in steps(context):
        topic = topic or each
        if each.id == topic.id:
            placements.append(placement)
        if len(placements) == TOGETHER_MAX:
            break
    if topic is None:
        return []
    return context.begin(StepCoordinator(context.next_key(), topic, placements), now)

"""Changes of layouts that no client waits for: they are upkeep, so they go on without the client, and after a crash.

A layout that was chosen is announced and adopted. Sources whose payload every slot has are released. A raise of the
replication factor takes its next steps (docs/layouts.md; core/cluster/raising.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, TypeVar

from quorumq.core import messages as m
from quorumq.core.cluster.raising import next_placement
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import LEAVER_WAIT, LayoutCoordinator, is_source, numbered, without_source
from quorumq.core.requests.registers import BuryCoordinator, complete_deletion
from quorumq.core.requests.sources import is_copied, needless
from quorumq.core.values.types import Incarnation, Layout, NodeId, Now, PartitionId, Placement, Stamp, Topic

Item = TypeVar("Item")

STEPS_MAX: Final = 64
"""Partitions whose next steps are in one layout."""


class UpkeepCoordinator(LayoutCoordinator):
    """A layout that was chosen is announced and adopted, because no request goes on with it. No client waits for it."""

    __slots__ = ()

    def is_done(self, topic: Topic) -> bool:
        return True


class StepCoordinator(UpkeepCoordinator):
    """The next steps of some partitions of a topic, in one layout: sources are released, or a raise goes on.

    Why not one by one: a layout has all placements of its topic, so that a layout for each partition costs its square.

    Attributes:
        adopted: number of the layout that was adopted when it began.
        placements: placements to propose, by partition.
        asked: partitions whose slots are asked, by the number of the round.
        answered: slots that said that they are trusted, as bits of the round, by its number.
    """

    __slots__ = ("adopted", "answered", "asked", "placements")

    def __init__(self, key: int, topic: Topic, placements: list[Placement]) -> None:
        super().__init__(key, topic, placements[0].partition)
        self.adopted = topic.layout_number
        self.placements = {each.partition: each for each in placements}
        self.asked: dict[int, int] = {}
        self.answered: dict[int, int] = {}

    def is_done(self, topic: Topic) -> bool:
        return topic.layout_number > self.adopted

    def change(self, topic: Topic) -> Placement | str:
        return self.placements[self.partition]

    def own_value(self, context: Context, ballot: Stamp) -> Layout:
        """Return the layout after the adopted one, with these partitions changed."""
        topic, number = self.topic, self.topic.layout_number + 1
        assert topic.layout is not None
        placements = {each.partition: each for each in topic.layout.placements}
        placements |= {at: numbered(topic, each, number) for at, each in self.placements.items()}
        ordered = tuple(placements[at] for at in sorted(placements))
        return Layout(topic.id, number, ballot, ordered, topic.layout.rf)

    def check_slots(self, context: Context, topic: Topic, placement: Placement, now: Now) -> list[Effect]:
        """Ask every slot of each partition; if slots are to be added, also if the learners have the payload."""
        self.step = "slots"
        self.asked, self.answered = {}, {}
        effects: list[Effect] = []
        for number, each in self.placements.items():
            nodes, partition = topic.replicas[number], PartitionId(topic.id, number)
            round_ = self.open_round(context, nodes, now, LEAVER_WAIT * context.config.request_timeout)
            self.asked[round_.number], self.answered[round_.number] = number, 0
            epoch, copied = topic.epoch_of(number), each.nodes != nodes
            question = m.SlotRequest(round_.number, partition, epoch, copied)
            effects += self.ask(context, round_, partition, question, now)
        return effects

    def on_slot(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.SlotReply, now: Now
    ) -> list[Effect]:
        if message.error:
            return self.drop_partition(context, message.round, f"{sender} says {message.error}", now)
        self.answered[message.round] |= self.rounds[message.round].hear(sender, incarnation)
        return self.propose_answered(context, now)

    def drop_partition(self, context: Context, number: int, why: str, now: Now) -> list[Effect]:
        """Propose nothing for the partition of a round; end if no other one is left."""
        self.close_round(context, number)
        del self.placements[self.asked.pop(number)]
        if not self.placements:
            return self.refuse_slots(context, why)
        self.partition = next(iter(self.placements))
        return self.propose_answered(context, now)

    def propose_answered(self, context: Context, now: Now) -> list[Effect]:
        """Propose the layout once every slot of each partition is trusted."""
        asked = [self.rounds[number] for number in self.asked]
        if all(self.has_answered(context, round_) for round_ in asked):
            return self.propose(context, self.topic, now)
        return []

    def has_answered(self, context: Context, round_: Round) -> bool:
        """Return True if every slot that a round asks is trusted, as each has said."""
        answered = self.answered[round_.number] & round_.valid(context.state)
        return not round_.bits_of(round_.members) & ~answered

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        if self.step != "slots":
            return super().on_timeout(context, number, now)
        if self.has_answered(context, self.rounds[number]):
            return []  # the rounds of other partitions, which it waits for, end now as well
        return self.drop_partition(context, number, "a slot did not answer", now)

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
        if len(placements) == STEPS_MAX:
            break
    if topic is None:
        return []
    return context.begin(StepCoordinator(context.next_key(), topic, placements), now)

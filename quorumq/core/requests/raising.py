"""Raises of the replication factor: learners are named, get slots together, and the set before is dropped.

A request only names the number, in a layout. Every later step is upkeep: the first node of a partition's set that is up
proposes it. So a raise goes on without the client, after a crash, and for partitions that are added later
(docs/layouts.md, RAISE; core/cluster/raising.py).
"""

from __future__ import annotations

from typing import Final

from quorumq.core import messages as m
from quorumq.core.cluster.raising import next_placement, raised
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import LEAVER_WAIT, LayoutCoordinator, UpkeepCoordinator, numbered
from quorumq.core.requests.sources import is_copied
from quorumq.core.values.types import Incarnation, Layout, NodeId, Now, PartitionId, Placement, Stamp, Topic

STEPS_MAX: Final = 64
"""Partitions whose next steps are in one layout."""


class RaiseCoordinator(LayoutCoordinator):
    """ALTER of the replication factor: the number is in the layout, with the nodes that copy each partition for it.

    Asked again, it changes nothing. Until slots are added, a lower number takes it back.
    """

    __slots__ = ("request", "rf")

    rf: int

    def __init__(self, key: int, request: m.AlterTopic, topic: Topic) -> None:
        super().__init__(key, topic, 0)
        assert request.rf is not None
        self.request, self.rf = request, request.rf

    def is_late(self, topic: Topic) -> bool:
        """Return True if there is a later layout than the client knows: layouts do not say when the number changed."""
        return self.request.seen is not None and topic.layout_number > self.request.seen.layout

    def is_done(self, topic: Topic) -> bool:
        return topic.target_rf == self.rf

    def change(self, topic: Topic) -> Placement | str:
        """Return why the number cannot be changed: slots were added meanwhile."""
        has = max(len(members) for members in topic.replicas)
        if self.rf < has:
            return f"rf is {self.rf}: topic {self.name!r} has {has} replicas of a partition by now"
        return Placement(0, 0, ())

    def check_slots(self, context: Context, topic: Topic, placement: Placement, now: Now) -> list[Effect]:
        """Propose at once: no slot changes."""
        return self.propose(context, topic, now)

    def own_value(self, context: Context, ballot: Stamp) -> Layout:
        """Return the layout after the adopted one, with the number and the learners, nodes with space."""
        topic = self.topic
        before = topic.layout.placements if topic.layout is not None else ()
        layout = Layout(topic.id, topic.layout_number + 1, ballot, before)
        nodes, machines = context.catalogue.cluster.placing
        able = tuple(node for node in nodes if not context.peers.full(node))
        return raised(layout, topic, self.rf, able, machines)


class StepCoordinator(UpkeepCoordinator):
    """RAISE: the next steps of some partitions of a topic, in one layout.

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


def take_steps(context: Context, now: Now) -> list[Effect]:
    """Begin the next steps of partitions whose raise is not over, unless there is a change of a layout already."""
    if not context.state.trusted:
        return []
    if any(isinstance(each, UpkeepCoordinator) for each in context.requests.values()):
        return []
    layouts = [topic.layout for topic in context.catalogue.live() if topic.layout is not None]
    topics = {layout.topic: None for layout in layouts if layout.rf}
    replicas = [each for each in context.replicas.values() if topics and each.partition.topic in topics]
    if not replicas:
        return []
    first = int(context.rng.random() * len(replicas))  # else one that waits would keep others from their turn
    steps: list[Placement] = []
    name = b""
    for replica in replicas[first:] + replicas[:first]:
        if steps and replica.partition.topic != name:
            continue
        placement = step_here(context, replica)
        if placement is not None:
            steps.append(placement)
            name = replica.partition.topic
        if len(steps) == STEPS_MAX:
            break
    if not steps:
        return []
    return context.begin(StepCoordinator(context.next_key(), context.catalogue.topics[name], steps), now)

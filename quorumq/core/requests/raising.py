"""Raises of the replication factor: learners are named, get slots together, and the set before is dropped.

A request only names the number, in a layout. Every later step is upkeep: the first node of a partition's set that is up
proposes it. So a raise goes on without the client, after a crash, and for partitions that are added later
(docs/protocol.md, RAISE; core/cluster/raising.py).
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.raising import next_placement, raised
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import LayoutCoordinator, UpkeepCoordinator
from quorumq.core.requests.sources import is_copied
from quorumq.core.values.types import Layout, NodeId, Now, Placement, Stamp, Topic


class RaiseCoordinator(LayoutCoordinator):
    """ALTER of the replication factor: the number is in the layout, with the nodes that copy each partition for it.

    Asked again, it changes nothing. Until slots are added, a lower number takes it back.
    """

    __slots__ = ("rf",)

    def __init__(self, key: int, rf: int, topic: Topic) -> None:
        super().__init__(key, topic, 0)
        self.rf = rf

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

    def reply(self) -> m.AlterTopicReply:
        return m.AlterTopicReply(self.merged)


class StepCoordinator(UpkeepCoordinator):
    """RAISE: the next step of one partition.

    Attributes:
        nodes: the nodes of the set when it began.
        adopted: number of the layout that was adopted when it began.
        placement: the placement to propose.
    """

    __slots__ = ("adopted", "nodes", "placement")

    def __init__(self, key: int, topic: Topic, placement: Placement) -> None:
        super().__init__(key, topic, placement.partition)
        self.placement = placement
        self.adopted = topic.layout_number
        self.nodes: tuple[NodeId, ...] = topic.replicas[placement.partition]

    @property
    def needs_copies(self) -> bool:
        """Return True if learners are to get slots: each has to have the payload."""
        return self.placement.nodes != self.nodes

    def is_done(self, topic: Topic) -> bool:
        return topic.layout_number > self.adopted

    def change(self, topic: Topic) -> Placement | str:
        return self.placement

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        """Begin the next step of another partition at once, after this one: a topic may have a thousand."""
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
    """Begin the next step of a partition whose raise is not over, unless there is a change of a layout already."""
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
    for replica in replicas[first:] + replicas[:first]:
        placement = step_here(context, replica)
        if placement is not None:
            topic = context.catalogue.topics[replica.partition.topic]
            request = StepCoordinator(context.next_key(), topic, placement)
            context.requests[request.key] = request
            return request.start(context, now)
    return []

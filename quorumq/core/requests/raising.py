"""Raises of the replication factor: learners are named, get slots together, and the set before is dropped.

A request only names the number, in a layout. Every later step is upkeep: the first node of a partition's set that is up
proposes it. So a raise goes on without the client, after a crash, and for partitions that are added later
(docs/layouts.md, RAISE; core/requests/layout_steps.py).
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.raising import raised
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.moving import LayoutCoordinator
from quorumq.core.values.types import Layout, NodeId, Now, Placement, Stamp, Topic


class RaiseCoordinator(LayoutCoordinator):
    """ALTER of the replication factor: the number is in the layout, with the nodes that copy each partition for it.

    Asked again, it changes nothing. Until slots are added, a lower number takes it back.
    """

    __slots__ = ("able", "request", "rf")

    able: tuple[NodeId, ...]  # members that learners are drawn from
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
        """Propose at once: no slot changes. Learners are members with space that are up, if these suffice."""
        nodes, machines = context.catalogue.cluster.placing
        on = dict(machines)
        self.able = tuple(node for node in nodes if not context.peers.full(node))
        up = tuple(node for node in self.able if not context.peers.is_away(node, now))
        if len({on.get(node, node) for node in up}) >= self.rf:
            self.able = up
        return self.propose(context, topic, now)

    def own_value(self, context: Context, ballot: Stamp) -> Layout:
        """Return the layout after the adopted one, with the number and the learners."""
        topic = self.topic
        before = topic.layout.placements if topic.layout is not None else ()
        layout = Layout(topic.id, topic.layout_number + 1, ballot, before)
        return raised(layout, topic, self.rf, self.able, context.catalogue.cluster.placing[1])

"""A node's votes: requests of a quorum go to the replica that they are about, or are refused."""

from __future__ import annotations

from quorumq.core.context import Context
from quorumq.core.deadnames import source_of
from quorumq.core.effects import Effect, Send
from quorumq.core.errors import Code
from quorumq.core.messages import (
    Ack,
    CloseRequest,
    Extend,
    Hold,
    Merge,
    PutGroup,
    PutTopic,
    QuorumRequest,
    Reject,
    ReleaseReply,
    Store,
    Survey,
)
from quorumq.core.types import Incarnation, NodeId, Now, PartitionId


class Voter:
    """Answers quorum requests.

    Args:
        context: of the node.
    """

    __slots__ = ("context",)

    def __init__(self, context: Context) -> None:
        self.context = context

    def on_request(
        self, sender: NodeId, incarnation: Incarnation, message: QuorumRequest, now: Now
    ) -> list[Effect]:
        partition = message.batch.header.partition if isinstance(message, Store) else message.partition
        if not self.context.state.vouched and not isinstance(message, Hold):
            # What we answered would not count: this directory may not be all there ever was. But a HOLD is abstained
            # from, so that its round need not wait for us.
            return []
        if isinstance(message, Hold) and message.freed:
            self.context.release(message.freed, now)
        replica = self.context.replicas.get(partition)
        if replica is None:
            return self._refuse(sender, message, partition)
        if isinstance(message, Store):
            return replica.on_store(sender, message, now)
        if isinstance(message, CloseRequest):
            return replica.on_close_ask(sender, message, now)
        views = replica.views
        if message.group not in views.groups and views.is_deleted(message.group):
            return self._refuse_group(sender, message)
        match message:
            case Hold():
                key = (partition, message.group, sender)
                self.context.state.active[key] = now.mono
                if message.parked:
                    self.context.state.parked[key] = now.mono
                else:
                    self.context.state.parked.pop(key, None)
                reply, effects = replica.on_hold(sender, incarnation, message, now)
                if message.freed:
                    effects.append(Send(sender, ReleaseReply(message.freed)))
                return [*effects, Send(sender, reply)]
            case Extend():
                return [Send(sender, replica.on_extend(message, now))]
            case Ack():
                return replica.on_ack(sender, message, now)
            case Reject():
                return replica.on_reject(sender, message, now)
            case Merge():
                return replica.on_merge(sender, message, now)
            case Survey():
                return [Send(sender, replica.on_survey(message, now))]

    def _refuse(self, sender: NodeId, message: QuorumRequest, partition: PartitionId) -> list[Effect]:
        """We have no such replica: we have not heard of the topic, are not in its replica set, or it was deleted.

        Of a deletion the sender hears before it hears our answer, so that it asks nobody again.
        """
        effects: list[Effect] = []
        topic = self.context.catalogue.topics.get(partition.topic)
        if topic is not None and topic.deleted:
            error = Code.NOT_FOUND
            effects.append(Send(sender, PutTopic(0, topic)))
        elif topic is not None and partition.number < topic.partitions:
            error = Code.WRONG_EPOCH
        else:
            error = Code.UNKNOWN_TOPIC
        if message.round or not isinstance(message, Store | Merge):  # those of anti-entropy are not answered
            effects.append(Send(sender, message.refusal(error)))
        return effects

    def _refuse_group(
        self, sender: NodeId, message: Hold | Extend | Ack | Reject | Merge | Survey
    ) -> list[Effect]:
        """The group was deleted. Here, too, the sender hears the register first."""
        catalogue = self.context.catalogue
        register = catalogue.groups[(message.partition.topic, source_of(message.group))]
        effects: list[Effect] = [Send(sender, PutGroup(0, register))]
        if message.round or not isinstance(message, Merge):
            effects.append(Send(sender, message.refusal(Code.NOT_FOUND)))
        return effects

    def on_durable(self, number: int, now: Now) -> None:
        """A batch is durable."""
        partition = self.context.state.unwritten.pop(number, None)
        if partition in self.context.replicas:
            self.context.replicas[partition].storing.on_durable(number, now)

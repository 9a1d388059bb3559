"""PEEK through a node that has no replica of the partition."""

from __future__ import annotations

from quorumq.core.messages import PeekRequest, PeerMessage, ReplicaPeekReply, ReplicaPeekRequest
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId


class PeekCoordinator(Coordinator):
    """PEEK through a node that has no replica of the partition: ask one that does, pass on its page with bodies."""

    __slots__ = ("partition", "request")

    def __init__(self, key: int, partition: PartitionId, request: PeekRequest) -> None:
        super().__init__(key)
        self.partition = partition
        self.request = request

    def start(self, context: Context, now: Now) -> list[Effect]:
        members = context.catalogue.members_of(self.partition)
        up = [member for member in members if member in context.state.answering]
        if not up:
            detail = f"none of {', '.join(members)} can be reached from {context.state.me}: ask one of them"
            return self.fail(context, Code.NOT_STORED, detail, 1)
        round_ = self.open_round(context, (up[0],), now)
        message = ReplicaPeekRequest(round_.number, self.partition, self.request)
        return self.ask(context, round_, self.partition, message, now)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, ReplicaPeekReply)
        if message.page is None:
            return self.teach(context, message.round, sender)
        return self.finish(context, message.page)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        node = self.rounds[number].members[0]
        return self.fail(context, Code.OUTCOME_UNKNOWN, f"{node} did not answer: ask again", 1)

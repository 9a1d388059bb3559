"""PUBLISH: a batch is stored at a majority of its partition's replicas."""

from __future__ import annotations

from quorumq.core.context import Context
from quorumq.core.coordinator import Coordinator, too_few
from quorumq.core.effects import Effect
from quorumq.core.errors import Code
from quorumq.core.messages import Failed, PeerMessage, Publish, PublishReply, Store, StoreReply
from quorumq.core.rounds import Round
from quorumq.core.types import Incarnation, NodeId, Now, Topic


class PublishCoordinator(Coordinator):
    """PUBLISH: STORE to the replica set, OK at a majority of durable STORED (docs/protocol.md, PUBLISH).

    Below a majority the outcome is unknown and nothing is aborted: anti-entropy finishes what reached fewer.
    """

    __slots__ = ("came", "problems", "publish", "stored")

    def __init__(self, key: int, publish: Publish) -> None:
        super().__init__(key)
        self.publish = publish
        self.came = 0.0
        self.stored = 0  # bits of those that have it on disk
        self.problems: dict[NodeId, tuple[str, str]] = {}

    def start(self, context: Context, now: Now) -> list[Effect]:
        partition = self.publish.batch.header.partition
        topic = context.catalogue.topics.get(partition.topic)
        if topic is None or partition.number >= topic.partitions:
            return self.finish(context, Failed(Code.NOT_FOUND, context.catalogue.why_not_here(partition)))
        members = topic.replicas[partition.number]
        self.came = now.mono
        this = self.open_round(context, members, now)
        reachable = [
            member for member in members if member == context.state.me or member in context.state.links
        ]
        if len(reachable) < this.majority:
            detail = f"nothing was sent: only {', '.join(reachable) or 'none'} of {', '.join(members)} can be reached"
            return self.finish(context, too_few(Code.NOT_STORED, detail, this.majority, len(reachable)))
        return self.ask(context, this, partition, self.store(this, topic, now))

    def store(self, this: Round, topic: Topic, now: Now) -> Store:
        """The STORE to send now: the batch has aged since it came."""
        age_ms = max(0, self.publish.age_ms) + int(1000 * (now.mono - self.came))
        return Store(this.number, topic.epoch, self.publish.batch, age_ms)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, StoreReply)
        this = self.rounds[message.round]
        context.state.learn_vector(this.members, message.known)
        if message.refused == Code.UNKNOWN_TOPIC:
            partition = self.publish.batch.header.partition
            again = self.store(this, context.catalogue.topics[partition.topic], now)
            self.requests[message.round] = (partition, again)
            return self.teach(context, message.round, sender)
        bit = this.hear(sender, incarnation)
        if message.refused:
            self.problems[sender] = (message.refused, message.detail)
        else:
            self.stored |= bit
        return self._decide(context, this, timed_out=False)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self._decide(context, self.rounds[number], timed_out=True)

    def _decide(self, context: Context, this: Round, *, timed_out: bool) -> list[Effect]:
        stored = self.stored & this.valid(context.state)
        if this.is_majority(stored):
            return self.finish(context, PublishReply(stored.bit_count()))
        for code, detail in self.problems.values():
            if code == Code.CONFLICT:
                return self.finish(context, Failed(code, detail))
        closed = [node for node, (code, _) in self.problems.items() if code == Code.ORIGIN_CLOSED]
        if this.is_refused(sum(1 << this.members.index(node) for node in closed)):
            return self.finish(context, Failed(Code.ORIGIN_CLOSED, self.problems[closed[0]][1]))
        if not timed_out and not this.everyone:
            return []
        codes = {code for code, _ in self.problems.values()}
        if not self.stored and codes == {Code.STORAGE_FULL} and this.everyone:  # so nothing was done anywhere
            _, detail = next(iter(self.problems.values()))
            return self.finish(context, Failed(Code.STORAGE_FULL, detail))
        detail = "it may be stored: publish the same batch again, through any node"
        if self.problems:
            detail += "; " + "; ".join(
                f"{node}: {text or code}" for node, (code, text) in self.problems.items()
            )
        return self.finish(context, too_few(Code.OUTCOME_UNKNOWN, detail, this.majority, stored.bit_count()))

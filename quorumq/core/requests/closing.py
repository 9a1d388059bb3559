"""Dropping of producer ids that are over.

Every producer session is a producer id. For every producer id each replica keeps which of its messages it knows and
their state in each group: a few runs, but for ever, unless it is certain that the producer id has no more messages.
That takes all replicas of the partition (docs/protocol.md, RECLAIM, "Closing a producer id"). Each promises, durably,
to take no further STORE of it from a client, and says that it has nothing left of it but the knowledge that it is done.
When all have said so in one round, each in its newest incarnation, nothing of the producer id can be anywhere. Its
published messages are settled and reclaimed, and a batch that was not stored yet is refused from then on. Its number
stays in a set of spans, which spreads by anti-entropy and is part of a resync, and is never dropped. The request names
producer ids by spans of these numbers: windows of names under which nothing was published are closed with those between
which they lie, so that the set stays small.

While a promise stands and the producer id is not closed, anti-entropy may still bring messages that another replica
stored before it promised. A replica that is down, or has a message left, delays closing, and nothing else.
"""

from __future__ import annotations

from quorumq.core.messages import CloseReply, CloseRequest, PeerMessage
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import Incarnation, NodeId, Now, PartitionId, Span

PRODUCER_IDS_PER_ROUND = 256
"""Producer ids that one round asks about."""


class CloseCoordinator(Coordinator):
    """Asks all replicas of a partition to promise, and whether they are done. No client waits for it.

    Args:
        numbers: spans of the numbers of the producer ids.
    """

    __slots__ = ("done_with", "numbers", "partition")

    def __init__(self, partition: PartitionId, numbers: tuple[Span, ...]) -> None:
        super().__init__(0)
        self.partition = partition
        self.numbers = numbers
        self.done_with: SpanMap[int] = SpanMap()  # bits of those that promised and are done

    def start(self, context: Context, now: Now) -> list[Effect]:
        round_ = self.open_round(context, context.catalogue.members_of(self.partition), now)
        epoch = context.catalogue.epoch_of(self.partition)
        return self.ask(
            context,
            round_,
            self.partition,
            CloseRequest(round_.number, self.partition, epoch, self.numbers),
            now,
        )

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, CloseReply)
        round_ = self.rounds[message.round]
        context.state.learn_vector(round_.members, message.known)
        bit = round_.hear(sender, incarnation)
        for span in message.done:
            self.done_with.update(span, lambda bits: (bits or 0) | bit)
        if not round_.everyone:
            return []
        everyone = (1 << len(round_.members)) - 1
        valid = round_.valid(context.state)
        replica = context.replicas.get(self.partition)
        closed = [
            part
            for span in self.numbers
            for part, bits in self.done_with.within(span)
            if self.is_closed(bits & valid, everyone)
        ]
        effects = replica.closing.close(closed) if replica is not None else []
        return effects + self.finish(context, None)

    def is_closed(self, done: int, everyone: int) -> bool:
        """Return True if every replica has promised and is done, in its newest incarnation."""
        return done == everyone

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self.finish(context, None)

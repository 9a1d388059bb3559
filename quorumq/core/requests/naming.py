"""Finding a message by a name of its publisher's: which id it has, or is to have (docs/protocol.md, NAMES).

An id has the number of a window of time, by the clock of the node that is asked. Names are looked for in
the windows around it, too (`LOOKED_IN`), because the nodes' clocks differ, and a window may end between two callers.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.names import LOOKED_IN, number_at, problem_with
from quorumq.core.values.spanlists import overlap
from quorumq.core.values.types import NAMED, NodeId, Now, ProducerId, Span


class NameCoordinator(Coordinator):
    """One question for the id of a name.

    Attributes:
        spans: the ids that the name may have, the one of the asking node's own window first.
    """

    __slots__ = ("looked", "request", "spans")

    def __init__(self, key: int, request: m.FindName, now: Now) -> None:
        super().__init__(key)
        self.request = request
        self.looked = 0  # bits of replicas that know none of them
        number = number_at(request.window_s, now.wall_ms)
        ids = [ProducerId(NAMED, request.window_s, request.slot, max(0, number + at)) for at in LOOKED_IN]
        self.spans = tuple(Span(one, request.seq, request.seq + 1) for one in dict.fromkeys(ids))

    def start(self, context: Context, now: Now) -> list[Effect]:
        partition = self.request.partition
        problem = problem_with(self.spans[0])
        if problem:
            return self.fail(context, Code.USAGE, problem)
        members = context.catalogue.members_of(partition)
        if not members:
            return self.fail(context, Code.NOT_FOUND, context.catalogue.why_not_here(partition))
        asked = self.open_round(context, members, now)
        epoch = context.catalogue.epoch_of(partition)
        ask = m.ReplicaList(asked.number, partition, epoch, "", None, 1, named=self.spans)
        effects = self.ask(context, asked, partition, ask, now)
        return self.give_up(context, asked) if asked.is_blocked_by(asked.unreachable) else effects

    def on_answer(
        self, context: Context, asked: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.ReplicaListReply)
        if message.error:
            return self.give_up(context, asked) if asked.everyone else []
        for span in self.spans:
            if any(overlap(span, known) for known in message.open):
                return self.finish(context, m.FindNameReply(span.producer_id, True))
        self.looked |= bit
        if asked.is_read(self.looked & asked.valid(context.state)):
            return self.finish(context, m.FindNameReply(self.spans[0].producer_id, False))
        return self.give_up(context, asked) if asked.everyone else []

    def give_up(self, context: Context, asked: Round) -> list[Effect]:
        """Fail: too few replicas answered."""
        detail = f"too few replicas of {self.request.partition} said if they know the name: try again, through any node"
        needed = len(asked.members) - asked.majority + 1
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, needed, len(asked.answered_by))

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self.give_up(context, self.rounds[number])

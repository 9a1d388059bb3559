"""A partition seen through several replicas: PEEK complete, and the reading half of PURGE.

RF - majority + 1 replicas are asked, so that everything that a majority has is in at least one answer, and their
answers are merged.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round, majority_of
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.listing import is_shown
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.values.deadnames import source_of
from quorumq.core.values.errors import Code
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import NodeId, Now, PartitionId, ProducerId, Span, Topic, record_rank

ANY = Span(ProducerId("", 0, 0, 0), 0, 1)
"""Stands for the span of an item that is kept under its span, so that equal neighbours join."""


class ReplicaListCoordinator(Coordinator):
    """A group as RF - majority + 1 replicas of a partition have it, page by page.

    Args:
        which: kind of messages, as in a PeekRequest.
        after: span behind whose end to begin; None for the beginning.
    """

    __slots__ = ("after", "answers", "group", "limit", "needed", "partition", "problem", "which")

    def __init__(
        self, key: int, partition: PartitionId, group: str, which: str, after: Span | None, limit: int
    ) -> None:
        super().__init__(key)
        self.partition = partition
        self.group = group
        self.which = which
        self.after = after
        self.limit = limit
        self.needed = 0
        self.problem = ""
        self.answers: list[m.ReplicaListReply] = []

    def start(self, context: Context, now: Now) -> list[Effect]:
        return self.list_replicas(context, now)

    @property
    def wants_reclaimed(self) -> bool:
        """Return True if messages are listed that were reclaimed, and that the group would read."""
        return False

    def reads(self, topic: bytes, group: str) -> bool:
        return (self.partition.topic, source_of(self.group)) == (topic, group)

    def on_group_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.finish(context, context.catalogue.no_group(topic.name, source_of(self.group)))

    def list_replicas(self, context: Context, now: Now) -> list[Effect]:
        """Ask for the next page."""
        members = context.catalogue.members_of(self.partition)
        self.needed = self.enough(len(members))
        self.answers = []
        round_ = self.open_round(context, members, now)
        epoch = context.catalogue.epoch_of(self.partition)
        which = (self.partition, epoch, self.group, self.after, self.limit)
        message = m.ReplicaList(round_.number, *which, requested=self.wants_reclaimed)
        effects = self.ask(context, round_, self.partition, message, now)
        if len(members) - round_.unreachable.bit_count() < self.needed:
            return self.give_up(context, "too few replicas can be reached from here")
        return effects

    def enough(self, members: int) -> int:
        """Return how many replicas must answer, so that one of them was in every majority that confirmed something."""
        return members - majority_of(members) + 1

    def give_up(self, context: Context, why: str) -> list[Effect]:
        """Fail: too few replicas answered."""
        detail = f"{self.partition} seen from {context.state.me}: {why}: ask again, through any node"
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, self.needed, len(self.answers))

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.ReplicaListReply)
        if not message.error:
            self.answers.append(message)
        if len(self.answers) >= self.needed:
            self.close_round(context, round_.number)
            return self.on_page(context, *merge_pages(self.answers), now)
        if round_.everyone:
            return self.give_up(context, message.error or "too few replicas answered")
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self.give_up(context, "too few replicas answered in time")

    def on_page(self, context: Context, items: list[m.Peeked], upto: Span | None, now: Now) -> list[Effect]:
        """Take in a page: for a PEEK, it is the answer."""
        shown = tuple(item for item in items if is_shown(item, self.group, self.which))
        return self.finish(context, m.PeekReply(self.partition, shown, None, (), upto))


def merge_pages(answers: list[m.ReplicaListReply]) -> tuple[list[m.Peeked], Span | None]:
    """Return one page from several replicas': the highest record of each message, and its longest hold or delay.

    It ends with the first of them to end.
    """
    ends = [answer.upto for answer in answers if answer.upto is not None]
    upto = min(ends, key=lambda span: (span.producer_id, span.stop)) if ends else None
    merged: SpanMap[m.Peeked] = SpanMap()
    for answer in answers:
        for item in answer.items:
            span = item.span
            if upto is not None:
                if (span.producer_id, span.start) >= (upto.producer_id, upto.stop):
                    continue
                if span.producer_id == upto.producer_id:
                    span = span._replace(stop=min(span.stop, upto.stop))
            for part, old in merged.split(span):
                merged.set(part, _higher(old, item)._replace(span=ANY))
    return [item._replace(span=span) for span, item in merged.items()], upto


def _higher(ours: m.Peeked | None, theirs: m.Peeked) -> m.Peeked:
    """Return that of two replicas' views of a message which is to be shown."""
    if ours is None:
        return theirs
    mine, other = record_rank(ours.record), record_rank(theirs.record)
    best = ours if (mine, ours.remaining) >= (other, theirs.remaining) else theirs
    best = best._replace(may_cover=min(ours.may_cover, theirs.may_cover))  # one with the payload knows
    return best._replace(attempts=max(ours.attempts, theirs.attempts)) if mine == other else best

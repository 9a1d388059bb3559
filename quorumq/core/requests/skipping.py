"""Skipping all present messages for a group: it begins, or is rewound, with what is published from now on.

No clock says what "from now on" is. Each message whose publish was OK before the question is known to one of any
RF - majority + 1 replicas; what these report as known is SKIPPED at a majority, and then the group has it behind it.
A message that is published later is reported by none; its producer's clock does not matter.

A group that is made so waits for that (`Latest.SKIPPING`), and any node may carry it out, several at once. So a node
may find, behind the answers of the replicas, that another one was done meanwhile: then the group has begun, messages
may have been published to it since, and what this node has found is thrown away. It asks after the answers and before
the first SKIPPED; the next page of the listing is that question, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round, Votes, majority_of
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.listing import is_left
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.purge import dead_letters, settled_by_few, skipped_unseen, split_unseen
from quorumq.core.requests.replica_list import merge_pages
from quorumq.core.values import limits
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import Group, Kind, NodeId, Now, PartitionId, Record, Span, Topic

AT_ONCE = 16
"""Partitions that are gone through at a time."""

Wanted = tuple[m.SpanRecord, ...]


class Writing:
    """Spans that a round of SKIPPED writes, and bits of the replicas that have each span, or all."""

    __slots__ = ("spans", "votes", "whole")

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = spans
        self.votes = Votes()
        self.whole = 0

    def count(self, reply: m.MergeReply, bit: int) -> None:
        """Take a replica's answer: spans that it has as asked, or settled otherwise."""
        self.whole |= bit if reply.whole else 0
        self.votes.add(reply.exact, bit)
        self.votes.add([item.span for item in reply.higher], bit)

    def is_done(self, round_: Round, valid: int) -> bool:
        """Return True if a majority has all of it."""
        return round_.is_majority(self.whole & valid) or all(
            round_.is_majority(((bits or 0) | self.whole) & valid)
            for span in self.spans
            for _, bits in self.votes.split(span)
        )


@dataclass(slots=True)
class SkippedPartition:
    """One partition, page by page.

    Attributes:
        after: start of the page that is asked for.
        answers: answers to the open question.
        unsettled: spans of the last page to skip; it is not yet known if the group has begun since.
        last: True if no page is behind that.
        merging: open rounds of SKIPPED, and their spans.
    """

    partition: PartitionId
    after: Span | None = None
    answers: dict[NodeId, m.ReplicaListReply] = field(default_factory=dict)
    unsettled: tuple[Span, ...] = ()
    last: bool = False
    asking: int = 0
    merging: dict[int, Writing] = field(default_factory=dict)


class Skipping:
    """Skips all present messages, partition by partition, in rounds of a coordinator.

    Args:
        owner: coordinator of the rounds; it hands their answers and time-outs over.

    Attributes:
        has_begun: True if another node has finished meanwhile; the spans found here are not to be written.
        wrote: True if a SKIPPED was sent.
        unclear: number of dead letters that were left, because no replica that was asked has their payload.
    """

    __slots__ = ("group", "has_begun", "owner", "parts", "remaining", "topic", "unclear", "wrote")

    def __init__(self, owner: Coordinator, topic: Topic, group: Group) -> None:
        self.owner = owner
        self.topic = topic
        self.group = group
        self.remaining = deque(range(topic.partitions))
        self.parts: dict[int, SkippedPartition] = {}  # by round
        self.has_begun = False
        self.wrote = False
        self.unclear = 0

    @property
    def done(self) -> bool:
        """Return True if all is skipped, or there is nothing to skip any more."""
        return self.has_begun or not (self.remaining or self.parts)

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Ask about the first partitions."""
        effects: list[Effect] = []
        while self.remaining and len({id(part) for part in self.parts.values()}) < AT_ONCE:
            effects += self._ask(
                context, SkippedPartition(PartitionId(self.topic.id, self.remaining.popleft())), now
            )
        return effects

    def _ask(self, context: Context, part: SkippedPartition, now: Now) -> list[Effect]:
        """Ask for a page; of the last one again, only whether the group has begun since."""
        part.answers = {}
        round_ = self.owner.open_round(context, context.catalogue.members_of(part.partition), now)
        part.asking = round_.number
        self.parts[round_.number] = part
        most = limits.BEGIN_RUNS_MAX if self.group.latest else limits.PEEK_ITEMS_MAX
        limit = most if not part.last else 1
        ask = m.ReplicaList(
            round_.number,
            part.partition,
            context.catalogue.epoch_of(part.partition),
            self.group.name,
            part.after,
            limit,
            reclaimed=bool(self.group.latest),
            generation=self.group.generation,
            requested=not self.group.latest,
        )
        return self.owner.ask(context, round_, part.partition, ask, now)

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        """Take in an answer to one of the rounds."""
        part = self.parts[round_.number]
        if isinstance(message, m.ReplicaListReply):
            if not message.error and bit:
                part.answers[sender] = message
            return self._on_page(context, part, round_, now)
        assert isinstance(message, m.MergeReply)
        if not message.error and bit:
            part.merging[round_.number].count(message, bit)
        if part.merging[round_.number].is_done(round_, round_.valid(context.state)):
            del part.merging[round_.number]
            self._close(context, round_.number)
            return self._go_on(context, part, now)
        return self._give_up(context, round_, now)

    def _give_up(self, context: Context, round_: Round, now: Now) -> list[Effect]:
        """End as at the timeout once all that were asked have answered, and too few of them vote."""
        return self.owner.on_timeout(context, round_.number, now) if round_.everyone else []

    def _on_page(self, context: Context, part: SkippedPartition, round_: Round, now: Now) -> list[Effect]:
        valid = round_.valid(context.state)
        answers = [
            answer for at, node in enumerate(round_.members)
            if valid & 1 << at and (answer := part.answers.get(node)) is not None
        ]  # fmt: skip
        beginning = bool(self.group.latest)
        if beginning and any(answer.has_begun for answer in answers):
            self.has_begun = True
            self.owner.close_rounds(context)
            self.parts.clear()
            return []
        if len(answers) < len(round_.members) - majority_of(len(round_.members)) + 1:
            return self._give_up(context, round_, now)
        self._close(context, round_.number)
        part.asking = 0
        effects = self._skip_found(context, part, now)
        if part.last:
            return effects + self._go_on(context, part, now)
        if beginning:
            part.unsettled, upto, last = self._unsettled(answers)
        else:
            items, upto = merge_pages(answers)
            last = max((item.span for item in items), default=None)
            effects += self._skip(context, part, self._open(items, answers), (), now)
        part.last = upto is None
        part.after = upto or last
        return effects + self._go_on(context, part, now)

    def _go_on(self, context: Context, part: SkippedPartition, now: Now) -> list[Effect]:
        """Ask for the next page, or begin the next partition."""
        if part.asking or len(part.merging) > 1:  # one page is written while the next is read
            return []
        if part.unsettled or not part.last:
            return self._ask(context, part, now)
        return [] if part.merging else self.start(context, now)

    def _unsettled(
        self, answers: list[m.ReplicaListReply]
    ) -> tuple[tuple[Span, ...], Span | None, Span | None]:
        """Return all that a replica which answered knows, but for what they have all settled in this generation.

        Returns:
            These spans, the end of the page if there is another one, and the last span that was looked at.
        """
        first = answers[0]
        if all((it.items, it.open, it.upto) == ((), first.open, first.upto) for it in answers):
            return first.open, first.upto, first.upto or max(first.open, default=None)
        ends = [answer.upto for answer in answers if answer.upto is not None]
        upto = min(ends, key=lambda span: (span.producer_id, span.stop)) if ends else None
        known, having = SpanSet(), Votes()
        for at, answer in enumerate(answers):
            settled = until([item.span for item in answer.items], upto)
            having.add(settled, 1 << at)
            for span in (*settled, *until(answer.open, upto)):
                known.add(span)
        everyone = (1 << len(answers)) - 1
        spans = known.items()
        unsettled = SpanSet.from_spans(
            part for span in spans for part, bits in having.split(span) if bits != everyone
        )
        return tuple(unsettled.items()), upto, upto or max(spans, default=None)

    def _open(self, items: list[m.Peeked], answers: list[m.ReplicaListReply]) -> Wanted:
        """Return what is open, and what is settled at a few, as a purge of the backlog does."""
        items, unseen = split_unseen(items)
        self.unclear += dead_letters(unseen, lambda span: (span,))
        open_items = [
            m.SpanRecord(item.span, item.record._replace(kind=Kind.SKIPPED))
            for item in items
            if item.record.kind == Kind.OPEN and is_left(item, self.group.name)
        ]
        others = (*settled_by_few(items, answers), *skipped_unseen(unseen))
        return (*open_items, *(m.SpanRecord(*item) for item in others))

    def _skip_found(self, context: Context, part: SkippedPartition, now: Now) -> list[Effect]:
        """Skip the messages that the page before has shown: all by one record."""
        first, part.unsettled = part.unsettled[:1], part.unsettled[1:]
        skipped = Record(self.group.generation, 0, Kind.SKIPPED)
        items = tuple(m.SpanRecord(span, skipped) for span in first)
        effects = self._skip(context, part, items, part.unsettled, now)
        part.unsettled = ()
        return effects

    def _skip(
        self, context: Context, part: SkippedPartition, items: Wanted, alike: tuple[Span, ...], now: Now
    ) -> list[Effect]:
        if not items:
            return []
        self.wrote = True
        round_ = self.owner.open_round(context, context.catalogue.members_of(part.partition), now)
        self.parts[round_.number] = part
        part.merging[round_.number] = Writing((*(item.span for item in items), *alike))
        epoch = context.catalogue.epoch_of(part.partition)
        merge = m.Merge(round_.number, part.partition, epoch, self.group.name, items, alike=alike)
        return self.owner.ask(context, round_, part.partition, merge, now)

    def _close(self, context: Context, number: int) -> None:
        del self.parts[number]
        self.owner.close_round(context, number)


def until(spans: Iterable[Span], upto: Span | None) -> list[Span]:
    """Return the parts of these that are not behind the end of ``upto``."""
    if upto is None:
        return list(spans)
    end = (upto.producer_id, upto.stop)
    return [
        span._replace(stop=min(span.stop, upto.stop)) if span.producer_id == upto.producer_id else span
        for span in spans
        if (span.producer_id, span.start) < end
    ]

"""What is there is skipped for a group: it begins, or is rewound to begin, with what is published from now on.

No clock says what "from now on" is. Each message whose publish was OK before the question is known to one of any
RF - majority + 1 replicas; what so many report as known is SKIPPED at a majority, and then the group has it behind it.
A message that is published later is reported by nobody, whatever its producer's clock shows.

A group that is made so waits for that (`Latest.SKIPPING`), and any node may carry it out, several at once. So a node
may find, behind the answers of the replicas, that another one was done meanwhile: then the group has begun, messages
may have been published to it since, and what this node has found is thrown away. It asks after the answers and before
the first SKIPPED; the next page of the survey is that question, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quorumq.core import limits
from quorumq.core import messages as m
from quorumq.core.context import Context
from quorumq.core.coordinator import Coordinator
from quorumq.core.effects import Effect
from quorumq.core.partition.listing import is_shown
from quorumq.core.purge import settled_by_few
from quorumq.core.rounds import Round, Votes, majority_of
from quorumq.core.spans import SpanSet
from quorumq.core.survey import merge_pages
from quorumq.core.types import (
    Group,
    Kind,
    NodeId,
    Now,
    PartitionId,
    Record,
    Span,
    Topic,
    record_rank,
)

AT_ONCE = 16
"""Partitions that are gone through at a time."""

Wanted = tuple[m.Resolved, ...]


@dataclass(slots=True)
class Part:
    """One partition, page by page.

    Attributes:
        after: where the page begins that is asked for.
        answers: to the question that is open.
        found: what the last page has to have skipped; nobody was asked yet whether the group has begun since.
        last: no page is behind that.
        merging: rounds of SKIPPED that are open, and what they write.
    """

    partition: PartitionId
    after: Span | None = None
    answers: dict[NodeId, m.SurveyReply] = field(default_factory=dict)
    found: Wanted = ()
    last: bool = False
    asking: int = 0
    merging: dict[int, tuple[Wanted, Votes]] = field(default_factory=dict)


class Skipping:
    """Skips what is there, partition by partition, in rounds of a coordinator.

    Args:
        owner: whose rounds they are; it hands their answers and time-outs over.
        group: the register that is to begin, or is rewound.

    Attributes:
        begun: another node has finished meanwhile; what was found here is nothing to write.
        wrote: a SKIPPED was sent.
    """

    __slots__ = ("begun", "group", "left", "owner", "parts", "topic", "wrote")

    def __init__(self, owner: Coordinator, topic: Topic, group: Group) -> None:
        self.owner = owner
        self.topic = topic
        self.group = group
        self.left = deque(range(topic.partitions))
        self.parts: dict[int, Part] = {}  # by round
        self.begun = False
        self.wrote = False

    @property
    def done(self) -> bool:
        """Return True if all is skipped, or there is nothing to skip any more."""
        return self.begun or not (self.left or self.parts)

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Ask about the first partitions."""
        effects: list[Effect] = []
        while self.left and len({id(part) for part in self.parts.values()}) < AT_ONCE:
            effects += self._ask(context, Part(PartitionId(self.topic.id, self.left.popleft())), now)
        return effects

    def _ask(self, context: Context, part: Part, now: Now) -> list[Effect]:
        """Ask for a page; of the last one again, only whether the group has begun since."""
        part.answers = {}
        this = self.owner.open_round(context, context.catalogue.members_of(part.partition), now)
        part.asking = this.number
        self.parts[this.number] = part
        limit = limits.PEEK_ITEMS_MAX if not part.last else 1
        ask = m.Survey(
            this.number,
            part.partition,
            self.topic.epoch,
            self.group.name,
            part.after,
            limit,
            reclaimed=bool(self.group.latest),
            generation=self.group.generation,
        )
        return self.owner.ask(context, this, part.partition, ask, now)

    def on_answer(
        self, context: Context, this: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        """An answer to one of the rounds."""
        part = self.parts[this.number]
        if isinstance(message, m.SurveyReply):
            if not message.error and bit:
                part.answers[sender] = message
            return self._on_page(context, part, this, now)
        assert isinstance(message, m.MergeReply)
        if message.error or not bit:
            return []
        wanted, votes = part.merging[this.number]
        votes.add(message.exact, bit)
        votes.add([item.span for item in message.higher], bit)  # settled otherwise
        valid = this.valid(context.state)
        if all(this.is_majority((bits or 0) & valid) for span, _ in wanted for _, bits in votes.split(span)):
            del part.merging[this.number]
            self._close(context, this.number)
            return self._go_on(context, part, now)
        return []

    def _on_page(self, context: Context, part: Part, this: Round, now: Now) -> list[Effect]:
        valid = this.valid(context.state)
        answers = [
            answer for at, node in enumerate(this.members)
            if valid & 1 << at and (answer := part.answers.get(node)) is not None
        ]  # fmt: skip
        beginning = bool(self.group.latest)
        if beginning and any(answer.begun for answer in answers):
            self.begun = True
            self.owner.close_rounds(context)
            self.parts.clear()
            return []
        if len(answers) < len(this.members) - majority_of(len(this.members)) + 1:
            return []
        self._close(context, this.number)
        part.asking = 0
        effects = self._skip(context, part, part.found, now)
        part.found = ()
        if part.last:
            return effects + self._go_on(context, part, now)
        items, upto = merge_pages(answers)
        found = self._unsettled(items, answers) if beginning else self._open(items, answers)
        part.last = upto is None
        part.after = upto or max((item.span for item in items), default=None)
        if beginning:
            part.found = found
        else:
            effects += self._skip(context, part, found, now)
        return effects + self._go_on(context, part, now)

    def _go_on(self, context: Context, part: Part, now: Now) -> list[Effect]:
        """The next page, or the next partition."""
        if part.asking or len(part.merging) > 1:  # one page is written while the next is read
            return []
        if part.found or not part.last:
            return self._ask(context, part, now)
        return [] if part.merging else self.start(context, now)

    def _unsettled(self, items: list[m.Peeked], answers: list[m.SurveyReply]) -> Wanted:
        """All that is known to somebody who answered, but for what they have all settled in this generation."""
        skipped = Record(self.group.generation, 0, Kind.SKIPPED)
        having = Votes()
        for at, answer in enumerate(answers):
            settled = [it.span for it in answer.items if record_rank(it.record) >= record_rank(skipped)]
            having.add(settled, 1 << at)
        everyone = (1 << len(answers)) - 1
        left = SpanSet.from_spans(
            part for item in items for part, bits in having.split(item.span) if bits != everyone
        )
        return tuple(m.Resolved(span, skipped) for span in left.items())

    def _open(self, items: list[m.Peeked], answers: list[m.SurveyReply]) -> Wanted:
        """As a purge of the backlog: what is open, and what is settled at a few."""
        found = [
            m.Resolved(item.span, item.record._replace(kind=Kind.SKIPPED))
            for item in items
            if item.record.kind == Kind.OPEN and is_shown(item, self.group.name, "open")
        ]
        return (*found, *(m.Resolved(*item) for item in settled_by_few(items, answers)))

    def _skip(self, context: Context, part: Part, wanted: Wanted, now: Now) -> list[Effect]:
        if not wanted:
            return []
        self.wrote = True
        this = self.owner.open_round(context, context.catalogue.members_of(part.partition), now)
        self.parts[this.number] = part
        part.merging[this.number] = (wanted, Votes())
        merge = m.Merge(this.number, part.partition, self.topic.epoch, self.group.name, wanted)
        return self.owner.ask(context, this, part.partition, merge, now)

    def _close(self, context: Context, number: int) -> None:
        del self.parts[number]
        self.owner.close_round(context, number)

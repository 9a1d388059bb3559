"""Creating and rewinding groups, looking at all of one, and purging it.

A rewind is a write to a register: a new generation with a start predicate, on a majority of every partition's replica
set. From then on no delivery of the old generation can be won: any HOLD majority meets a replica that refuses it as
stale. Nothing is swept: what older generations recorded is void where the new one covers the message
(core/partition/group.py).

PEEK complete and PURGE both survey: they ask RF - majority + 1 replicas, so that everything that a majority has is in
one answer at least, and merge what those say.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumq.core import limits
from quorumq.core import messages as m
from quorumq.core.context import Context
from quorumq.core.coordinator import Coordinator
from quorumq.core.deadnames import DEAD_SUFFIX, source_of
from quorumq.core.effects import Effect
from quorumq.core.errors import Code
from quorumq.core.partition.listing import is_shown
from quorumq.core.printable import plural
from quorumq.core.rounds import Round, Votes, majority_of
from quorumq.core.spans import SpanMap, SpanSet
from quorumq.core.topics import all_sets
from quorumq.core.types import (
    Group,
    Incarnation,
    Kind,
    NodeId,
    Now,
    Origin,
    PartitionId,
    Record,
    Span,
    Topic,
    just_before,
    record_rank,
)

STAMPS_MAX = 8
"""How often a rewind is stamped again above another one's before the caller is told to try later."""

ANY = Span(Origin("", 0, 0, 0), 0, 1)
"""Stands for the span of an item that is kept under its span, so that equal neighbours join."""

SURVEY_LIMIT = limits.RUNS_PER_STEP
"""Items of one survey that a purge settles at once."""


class GroupCoordinator(Coordinator):
    """Create a group, or rewind it.

    First it is asked what is known, by a majority: a group that is there is rewound only if that is what was asked.
    Then the register is written to a majority of the nodes, and of the replica set of every partition, those included
    that are only proposed; and after that it is asked for partitions that were proposed meanwhile. A rewind that meets
    a newer generation is stamped again above it and repeated, so of two at once each has been the newest, and the one
    with the last stamp stays (docs/protocol.md, "settings", MORE PARTITIONS). One that was deleted is created anew, in
    a generation above all before; it is never rewound.
    """

    __slots__ = ("asking", "request", "stamps", "topic", "wanted", "written")

    request: m.SetGroup | m.DeleteGroup

    def __init__(self, key: int, request: m.SetGroup | m.DeleteGroup, topic: bytes) -> None:
        super().__init__(key)
        self.request = request
        self.topic = topic
        self.asking = True
        self.stamps = 0
        self.wanted = Group(topic, request.group, 0, 0)
        self.written = 0  # to so many partitions

    def concerns(self, topic: bytes) -> bool:
        return self.topic == topic

    def start(self, context: Context, now: Now) -> list[Effect]:
        return self._put(context, self.wanted, now)

    def _put(self, context: Context, wanted: Group, now: Now) -> list[Effect]:
        self.wanted = wanted
        _, effects = self.put_group(context, wanted, now, ask=self.asking)
        return effects

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.PutReply | m.RegistersReply)
        this = self.rounds[message.round]
        if isinstance(message, m.RegistersReply):
            effects, _ = self.take_in(context, sender, incarnation, message, now)
            if self.done or not this.is_read(this.valid(context.state)):
                return effects
            self.close_round(context, this.number)
            topic = context.catalogue.topics[self.topic]
            if topic.all_partitions > self.written:  # more were proposed before the register was written
                return effects + self._put(context, self.wanted, now)
            return effects + self.on_written(context, topic)
        effects = context.take_in_group(message.group, now) if message.group is not None else []
        this.hear(sender, incarnation)
        topic = context.catalogue.topics[self.topic]
        heard = this.valid(context.state)
        sets = all_sets(topic, context.config.nodes, context.config.machines)
        if not (this.is_majority(heard) and this.is_majority_of_each(heard, sets)):
            return effects
        self.close_round(context, this.number)
        known = context.catalogue.groups.get((self.topic, self.request.group))
        if not self.asking and known is not None and self.is_written(known):
            self.written = topic.all_partitions
            return effects + self.read_register(context, self.topic, now)
        self.asking = False
        return effects + self.write(context, known, now)

    def is_written(self, known: Group) -> bool:
        """Whether ``known``, which a majority has, is what was to be written."""
        return known == self.wanted

    def on_written(self, context: Context, topic: Topic) -> list[Effect]:
        """The register is at a majority of every partition's replica set."""
        for number in range(topic.partitions):
            context.catalogue.settled_groups[(PartitionId(self.topic, number), self.request.group)] = None
        return self.finish(context, m.SetGroupReply(self.wanted))

    def write(self, context: Context, known: Group | None, now: Now) -> list[Effect]:
        """A majority of every partition's replicas was asked, and this is ``known``.

        Write that where it is all that is asked for, else a generation above it.
        """
        request = self.request
        assert isinstance(request, m.SetGroup)
        if known is not None and not known.deleted and not request.rewind:
            return self._put(context, known, now)
        if request.rewind and (known is None or known.deleted):
            return self.finish(context, context.catalogue.no_group(request.topic, request.group))
        if known is None and request.start == "earliest":
            return self._put(context, self.wanted, now)
        from_ms = {"earliest": 0, "latest": now.wall_ms, "time": request.from_ms}[request.start]
        return self._put_next(context, known or self.wanted, from_ms, now)

    def _put_next(self, context: Context, known: Group, from_ms: int, now: Now) -> list[Effect]:
        """Write a generation above ``known``."""
        self.stamps += 1
        if self.stamps > STAMPS_MAX:
            detail = f"group {self.request.group!r} is being changed by others all the time: try again"
            return self.fail(context, Code.OUTCOME_UNKNOWN, detail, 1)
        wanted = context.next_generation(known, from_ms, now)
        if wanted is None:
            return self.refuse_unstamped(context)
        wanted = self.marked(known, wanted)
        return [*context.take_in_group(wanted, now), *self._put(context, wanted, now)]

    def marked(self, known: Group, wanted: Group) -> Group:
        """``wanted``, above ``known``, as what it is: made anew, where that was deleted, and all of that void."""
        return wanted._replace(made=wanted.generation, buried=known.generation) if known.deleted else wanted

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        this = self.rounds[number]
        code = Code.NOT_STORED if self.asking else Code.OUTCOME_UNKNOWN
        detail = f"group {self.request.group!r}: too few replicas of its topic answered: ask again, through any node"
        return self.fail(context, code, detail, this.majority, len(this.heard))


class DeleteGroupCoordinator(GroupCoordinator):
    """Delete a group: a generation that nobody reads, and that makes all below it void.

    It is written as a rewind is. From then on any HOLD majority meets a replica that answers `NotFound`.
    """

    __slots__ = ()

    def is_written(self, known: Group) -> bool:
        return known.buried >= self.wanted.buried  # it may have been created again by now

    def on_written(self, context: Context, topic: Topic) -> list[Effect]:
        return self.finish(context, m.DeleteGroupReply(self.wanted))

    def write(self, context: Context, known: Group | None, now: Now) -> list[Effect]:
        if known is None:
            return self.finish(context, context.catalogue.no_group(self.request.topic, self.request.group))
        if known.deleted and known.buried == known.generation:
            return self._put(context, known, now)
        return self._put_next(context, known, 0, now)

    def marked(self, known: Group, wanted: Group) -> Group:
        return wanted._replace(buried=wanted.generation)


class SurveyCoordinator(Coordinator):
    """What RF - majority + 1 replicas of a partition make of a group, page by page.

    Args:
        which: as in a PeekRequest.
        after: where to begin.
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
        self.answers: list[m.SurveyReply] = []

    def start(self, context: Context, now: Now) -> list[Effect]:
        return self.survey(context, now)

    def reads(self, topic: bytes, group: str) -> bool:
        return (self.partition.topic, source_of(self.group)) == (topic, group)

    def on_group_deleted(self, context: Context, topic: Topic, now: Now) -> list[Effect]:
        return self.finish(context, context.catalogue.no_group(topic.name, source_of(self.group)))

    def survey(self, context: Context, now: Now) -> list[Effect]:
        """Ask for the next page."""
        members = context.catalogue.members_of(self.partition)
        self.needed = self.enough(len(members))
        self.answers = []
        this = self.open_round(context, members, now)
        epoch = context.catalogue.topics[self.partition.topic].epoch
        message = m.Survey(this.number, self.partition, epoch, self.group, self.after, self.limit)
        effects = self.ask(context, this, self.partition, message, now)
        if len(members) - this.unasked.bit_count() < self.needed:
            return self.give_up(context, "too few replicas can be reached from here")
        return effects

    def enough(self, members: int) -> int:
        """How many replicas to hear: one of them was in every majority that something was confirmed by."""
        return members - majority_of(members) + 1

    def give_up(self, context: Context, why: str) -> list[Effect]:
        """Too few replicas said what they see."""
        detail = f"{self.partition} seen from {context.state.me}: {why}: ask again, through any node"
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, self.needed, len(self.answers))

    def on_answer(
        self, context: Context, this: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.SurveyReply)
        if not message.error:
            self.answers.append(message)
        if len(self.answers) >= self.needed:
            self.close_round(context, this.number)
            return self.on_page(context, *merge_pages(self.answers), now)
        if this.everyone:
            return self.give_up(context, message.error or "too few replicas answered")
        return []

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        return self.give_up(context, "too few replicas answered in time")

    def on_page(self, context: Context, items: list[m.Peeked], upto: Span | None, now: Now) -> list[Effect]:
        """A page has come: for a PEEK, the answer."""
        shown = tuple(item for item in items if is_shown(item, self.group, self.which))
        return self.finish(context, m.BrowseReply(self.partition, shown, None, (), upto))


def merge_pages(answers: list[m.SurveyReply]) -> tuple[list[m.Peeked], Span | None]:
    """One page out of several replicas': the highest record of each message, and what holds or delays it longest.

    It ends where the first of them ends.
    """
    ends = [answer.upto for answer in answers if answer.upto is not None]
    upto = min(ends, key=lambda span: (span.origin, span.stop)) if ends else None
    merged: SpanMap[m.Peeked] = SpanMap()
    for answer in answers:
        for item in answer.items:
            span = item.span
            if upto is not None:
                if (span.origin, span.start) >= (upto.origin, upto.stop):
                    continue
                if span.origin == upto.origin:
                    span = span._replace(stop=min(span.stop, upto.stop))
            for part, old in merged.split(span):
                merged.set(part, _higher(old, item)._replace(span=ANY))
    return [item._replace(span=span) for span, item in merged.items()], upto


def settled_by_few(items: list[m.Peeked], answers: list[m.SurveyReply]) -> list[tuple[Span, Record]]:
    """What is settled by the highest record, which not all who answered have.

    All of them are a majority, as RF is odd. Of a record that fewer have the others may still deliver the message.
    """
    highest: SpanMap[Record] = SpanMap()
    for item in items:
        highest.set(item.span, item.record)
    having: SpanMap[int] = SpanMap()
    for answer in answers:
        for item in answer.items:
            for part, record in highest.within(item.span):
                if record_rank(record) == record_rank(item.record):
                    for span, count in having.split(part):
                        having.set(span, (count or 0) + 1)
    return [
        (span, record)
        for part, record in highest.items()
        if record.kind != Kind.OPEN
        for span, count in having.split(part)
        if (count or 0) < len(answers)
    ]


def _higher(ours: m.Peeked | None, theirs: m.Peeked) -> m.Peeked:
    """Which of two replicas' views of a message to show."""
    if ours is None:
        return theirs
    mine, other = record_rank(ours.record), record_rank(theirs.record)
    best = ours if (mine, ours.remaining) >= (other, theirs.remaining) else theirs
    return best._replace(attempts=max(ours.attempts, theirs.attempts)) if mine == other else best


class PurgeCoordinator(SurveyCoordinator):
    """PURGE: SKIPPED for what the group may still deliver, PURGED for the dead letters of a dead-letter group.

    It settles what RF - majority + 1 replicas report as known when they are asked, page by page; what is published
    meanwhile may stay. A delivery that is under way may still be acked: ACKED is above SKIPPED. Interrupted and run
    again, it does the rest. Where messages are named, it goes from one to the next and leaves all others alone.
    """

    __slots__ = ("only", "purged", "upto", "votes", "wanted")

    def __init__(self, key: int, partition: PartitionId, group: str, spans: tuple[Span, ...] = ()) -> None:
        which = "dead" if group.endswith(DEAD_SUFFIX) else "open"
        super().__init__(key, partition, source_of(group), which, None, SURVEY_LIMIT)
        self.only = SpanSet.from_spans(spans)
        self.purged = 0
        self.upto: Span | None = None
        self._skip()
        self.wanted: tuple[m.Resolved, ...] = ()
        self.votes = Votes()

    def on_page(self, context: Context, items: list[m.Peeked], upto: Span | None, now: Now) -> list[Effect]:
        kind = Kind.PURGED if self.which == "dead" else Kind.SKIPPED
        below = Kind.DEAD if self.which == "dead" else Kind.OPEN
        self.upto = upto
        self.wanted = tuple(
            m.Resolved(span, Record(item.record.generation, item.record.n, kind))
            for item in items
            if is_shown(item, self.group, self.which) and item.record.kind == below
            for span in self.chosen(item.span)
        )
        if self.which == "open":
            self.wanted += tuple(
                m.Resolved(span, record)
                for part, record in settled_by_few(items, self.answers)
                for span in self.chosen(part)
            )
        if not self.wanted:
            return self._next(context, now)
        self.votes = Votes()
        this = self.open_round(context, context.catalogue.members_of(self.partition), now)
        epoch = context.catalogue.topics[self.partition.topic].epoch
        merge = m.Merge(this.number, self.partition, epoch, self.group, self.wanted)
        return self.ask(context, this, self.partition, merge, now)

    def on_answer(
        self, context: Context, this: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.SurveyReply):
            return super().on_answer(context, this, sender, bit, message, now)
        assert isinstance(message, m.MergeReply)
        self.votes.add(message.exact, bit)
        # Settled otherwise, or redriven: not ours.
        self.votes.add([item.span for item in message.higher], bit)
        valid = this.valid(context.state)
        if all(
            self.is_settled(this, (bits or 0) & valid)
            for span, _ in self.wanted
            for _, bits in self.votes.split(span)
        ):
            self.close_round(context, this.number)
            self.purged += sum(
                span.size for span, record in self.wanted if record.kind in (Kind.SKIPPED, Kind.PURGED)
            )
            return self._next(context, now)
        if this.everyone:
            return self.on_timeout(context, this.number, now)
        return []

    def chosen(self, span: Span) -> Sequence[Span]:
        """What is to be settled of this: what is named, or all where nothing is."""
        return self.only.within(span) if self.only else (span,)

    def is_settled(self, this: Round, bits: int) -> bool:
        """Whether a message counts as purged once these replicas have the record, or one above it."""
        return this.is_majority(bits)

    def _next(self, context: Context, now: Now) -> list[Effect]:
        if self.upto is None or not self._skip():
            return self.finish(context, m.PurgeReply(self.purged))
        return self.survey(context, now)

    def _skip(self) -> bool:
        """Go on behind the last page, or before the next message that is named; False where none is left."""
        self.after = self.upto
        upto = (self.upto.origin, self.upto.stop) if self.upto is not None else None
        left = (span for span in self.only.items() if upto is None or (span.origin, span.stop) > upto)
        following = next(left, None)
        if following is None:
            return not self.only
        place = just_before(following.origin, following.start)
        if place is not None and (upto is None or (place.origin, place.stop) > upto):
            self.after = place
        return True

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        detail = f"purged {plural(self.purged, 'message')} of {self.partition}, maybe more: purge again, by any node"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, self.rounds[number].majority)

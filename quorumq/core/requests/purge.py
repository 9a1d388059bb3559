"""PURGE: settling the messages that a group may still deliver, or its dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import Round, Votes, majority_of
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.listing import RECLAIMED, is_left, is_shown
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import late
from quorumq.core.requests.replica_list import ReplicaListCoordinator
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_SUFFIX, source_of
from quorumq.core.values.errors import Code
from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.printable import plural
from quorumq.core.values.spanlists import subtract
from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.core.values.types import Kind, NodeId, Now, PartitionId, Record, Span, just_before, record_rank

REPLICA_LIST_LIMIT = limits.RUNS_PER_STEP
"""Items of one page of a listing that a purge settles at once."""


class PurgeCoordinator(ReplicaListCoordinator):
    """PURGE: SKIPPED for messages that the group may still deliver, PURGED for the dead letters of a dead-letter group.

    It settles what RF - majority + 1 replicas report as known when they are asked, page by page; what is published
    meanwhile may stay. A delivery that is under way may still be acked: ACKED is above SKIPPED. Interrupted and run
    again, it does the rest. Where messages are named, it goes from one to the next and leaves all others alone.

    If the payload of a dead letter is at none of them, and its generation may be over, the outcome is unknown.

    Too few replicas mean that nothing was done only until the first page was written; from then on the outcome is
    unknown.
    """

    __slots__ = ("items", "newest", "only", "purged", "reclaimed", "unclear", "upto", "votes", "writes")

    def __init__(self, key: int, partition: PartitionId, group: str, request: m.PurgeRequest) -> None:
        which = "dead" if group.endswith(DEAD_SUFFIX) else "open"
        super().__init__(key, partition, source_of(group), which, None, REPLICA_LIST_LIMIT)
        self.newest = (
            request.generation if request.id is not None else NUMBERS_END
        )  # later ones are left as they are
        self.only = SpanSet.from_spans(request.spans)
        self.purged = 0
        self.unclear = 0
        self.reclaimed = SpanSet()  # those of the page; they are settled, and not counted
        self.writes = False  # something was written, perhaps
        self.upto: Span | None = None
        self._skip()
        self.items: tuple[m.SpanRecord, ...] = ()
        self.votes = Votes()

    @property
    def wants_reclaimed(self) -> bool:
        return self.which == "open"

    def on_page(self, context: Context, items: list[m.Peeked], upto: Span | None, now: Now) -> list[Effect]:
        known = context.catalogue.group(self.partition.topic, self.group)
        present = known.generation if known is not None else 0
        if max(present, *[item.record.generation for item in items], 0) > self.newest:
            refusal = late(self.group, self.newest)
            return self.give_up(context, refusal.detail) if self.writes else self.finish(context, refusal)
        kind = Kind.PURGED if self.which == "dead" else Kind.SKIPPED
        below = Kind.DEAD if self.which == "dead" else Kind.OPEN
        self.upto = upto
        unseen: list[m.Peeked] = []
        if self.which == "open":
            items, unseen = split_unseen(items)
        self.reclaimed = SpanSet.from_spans(item.span for item in items if item.state == RECLAIMED)
        self.items = tuple(
            m.SpanRecord(span, Record(item.record.generation, item.record.n, kind))
            for item in items
            if self.is_named(item) and item.record.kind == below
            for span in self.chosen(item.span)
        )
        if self.which == "open":
            self.items += tuple(
                m.SpanRecord(span, record)
                for part, record in (*settled_by_few(items, self.answers), *skipped_unseen(unseen))
                for span in self.chosen(part)
            )
        self.unclear += dead_letters(unseen, self.chosen)
        if not self.items:
            return self._next(context, now)
        self.votes, self.writes = Votes(), True
        round_ = self.open_round(context, context.catalogue.members_of(self.partition), now)
        epoch = context.catalogue.epoch_of(self.partition)
        merge = m.Merge(round_.number, self.partition, epoch, self.group, self.items)
        return self.ask(context, round_, self.partition, merge, now)

    def on_answer(
        self, context: Context, round_: Round, sender: NodeId, bit: int, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.ReplicaListReply):
            return super().on_answer(context, round_, sender, bit, message, now)
        assert isinstance(message, m.MergeReply)
        self.votes.add(message.exact, bit)
        # Settled otherwise, or redriven: not ours.
        self.votes.add([item.span for item in message.higher], bit)
        valid = round_.valid(context.state)
        if all(
            self.is_settled(round_, (bits or 0) & valid)
            for span, _ in self.items
            for _, bits in self.votes.split(span)
        ):
            self.close_round(context, round_.number)
            self.purged += sum(
                part.size
                for span, record in self.items
                if record.kind in (Kind.SKIPPED, Kind.PURGED)
                for part in subtract(span, self.reclaimed.within(span))
            )
            return self._next(context, now)
        if round_.everyone:
            return self.give_up(context, "too few replicas have written it")
        return []

    def is_named(self, item: m.Peeked) -> bool:
        """Return True if messages in this state are to be settled."""
        return is_left(item, self.group) if self.which == "open" else is_shown(item, self.group, "dead")

    def chosen(self, span: Span) -> Sequence[Span]:
        """Return the part of this to settle: the named messages, or all if none is named."""
        return self.only.within(span) if self.only else (span,)

    def is_settled(self, round_: Round, bits: int) -> bool:
        """Return True if a message counts as purged once these replicas have the record, or one above it."""
        return round_.is_majority(bits)

    def _next(self, context: Context, now: Now) -> list[Effect]:
        if self.upto is None or not self._skip():
            if self.unclear:
                self.writes = True
                return self.give_up(context, not_here(self.unclear))
            return self.finish(context, m.PurgeReply(self.purged))
        return self.list_replicas(context, now)

    def _skip(self) -> bool:
        """Move on behind the last page, or before the next named message; return False if none is left."""
        self.after = self.upto
        upto = (self.upto.producer_id, self.upto.stop) if self.upto is not None else None
        remaining = (
            span for span in self.only.items() if upto is None or (span.producer_id, span.stop) > upto
        )
        following = next(remaining, None)
        if following is None:
            return not self.only
        cursor = just_before(following.producer_id, following.start)
        if cursor is not None and (upto is None or (cursor.producer_id, cursor.stop) > upto):
            self.after = cursor
        return True

    def give_up(self, context: Context, why: str) -> list[Effect]:
        if not self.writes:
            return super().give_up(context, why)
        done = f"purged {plural(self.purged, 'message')} of {self.partition}, maybe more"
        needed = majority_of(len(context.catalogue.members_of(self.partition)))
        return self.fail(
            context, Code.OUTCOME_UNKNOWN, f"{done}: {why}: purge again, through any node", needed
        )


def split_unseen(items: list[m.Peeked]) -> tuple[list[m.Peeked], list[m.Peeked]]:
    """Return these items in two lists: those whose record counts, and those whose record no replica has."""
    return [item for item in items if not item.may_cover], [item for item in items if item.may_cover]


def skipped_unseen(items: list[m.Peeked]) -> list[tuple[Span, Record]]:
    """Return records that settle messages in the generation that may cover them.

    Why: their payload is at no replica that was asked. If the generation covers one, its older record is void, and the
    message is open. If not, it is not delivered either way. Dead letters are left: that record would end them.
    """
    return [
        (item.span, Record(item.may_cover, 0, Kind.SKIPPED))
        for item in items
        if item.record.kind != Kind.DEAD
    ]


def dead_letters(items: list[m.Peeked], chosen: Callable[[Span], Sequence[Span]]) -> int:
    """Return the number of dead letters among these that a purge of open messages has to leave."""
    dead = [item.span for item in items if item.record.kind == Kind.DEAD]
    return sum(part.size for span in dead for part in chosen(span))


def not_here(count: int) -> str:
    """Return why a purge may have left something: ``count`` dead letters without payload."""
    return (
        f"the payload of {plural(count, 'dead letter')} is at no replica that was asked, so it is not known whether "
        "the group's last rewind opened them. The replicas copy it as soon as a node that has it is up"
    )


def settled_by_few(items: list[m.Peeked], answers: list[m.ReplicaListReply]) -> list[tuple[Span, Record]]:
    """Return the spans that are settled by the highest record, if not all replicas that answered have it.

    All of them are a majority, as RF is odd. If fewer have a record, the others may still deliver the message.
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

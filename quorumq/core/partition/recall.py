"""Memory of one partition of a node from one start to the next: in a snapshot, in the journal, at a clean stop.

Holds are in no journal. A clean stop keeps them; else a replica learns them from the others
(core/partition/hold_recovery.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from quorumq.core.cluster.state import GrantTimer
from quorumq.core.messages import HeldThere
from quorumq.core.messages import records as r
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.closing import ClosingComponent
from quorumq.core.partition.comparing import group_states
from quorumq.core.partition.delays import delay_from
from quorumq.core.partition.group import Changes, GroupView
from quorumq.core.partition.lease import NO_OWNER, Ballots, Held
from quorumq.core.values import limits
from quorumq.core.values.chunks import chunks_of
from quorumq.core.values.spanlists import merge_spans, subtract
from quorumq.core.values.spans import across
from quorumq.core.values.types import Kind, Now, Owner, Span, Stamp

PartitionRecord = (
    r.RecordsMerged
    | r.AttemptsCounted
    | r.DelaysSet
    | r.Reclaimed
    | r.SessionsPromised
    | r.SessionsClosed
    | r.AbsentNoted
)
"""Records of one partition, batches aside."""


class Reported(NamedTuple):
    """A hold as a peer reported it, with the deadline by our own clock."""

    hold: HeldThere
    deadline: float


class Recall(ClosingComponent):
    """The memory of one partition."""

    __slots__ = ()

    # ---------------------------------------------------- the journal, and a start

    def snapshot(self, now: Now) -> list[r.JournalRecord]:
        """Return the small state of every group, for the head of a journal segment. Holds are never in it."""
        partition, limit = self.batches.partition, limits.SPANS_PER_REQUEST_MAX
        promised = self.closing.promised.items()
        records: list[r.JournalRecord] = [
            r.SessionsPromised(partition, chunk) for chunk in chunks_of(promised, limit)
        ]
        closed = self.batches.closed.numbers.items()
        records += [r.SessionsClosed(partition, chunk) for chunk in chunks_of(closed, limit)]
        gone = self.batches.reclaimed.items()
        records += [r.Reclaimed(partition, chunk) for chunk in chunks_of(gone, limit)]
        records += self.absent_noted(self.batches.noted())
        for view in self.views.with_holds():  # deleted ones have what was recorded since
            for state in group_states(view, view.lasting_producer_ids(), now):
                if state.records:
                    records.append(r.RecordsMerged(partition, view.name, state.records))
                if state.attempts:
                    records.append(r.AttemptsCounted(partition, view.name, state.attempts))
                if state.delays:
                    records.append(self.views.delays_set(view, state.delays, now))
            if view.claims:
                chunks = chunks_of(view.claims_left(now.mono), limit)
                records += [self.views.delays_set(view, chunk, now) for chunk in chunks]
        return records

    def absent_noted(self, spans: Sequence[Span]) -> list[r.JournalRecord]:
        """Return the records that keep absent messages known over a restart."""
        return [
            r.AbsentNoted(self.batches.partition, chunk)
            for chunk in chunks_of(spans, limits.SPANS_PER_REQUEST_MAX)
        ]

    def note_absent(self) -> list[r.JournalRecord]:
        """Return the records of all absent messages, before this replica votes for what it lost or heard of."""
        return self.absent_noted(self.batches.note_absent())

    def replay(self, record: PartitionRecord, now: Now) -> None:
        """Merge a record of the journal at start."""
        match record:
            case r.Reclaimed():
                for span in record.spans:
                    self.batches.note_reclaimed(span)
                    self.batches.digests.stale[span.producer_id] = None
                    self.batches.idle_since.setdefault(span.producer_id, now.mono)
            case r.AbsentNoted():
                self.batches.note_offered("", record.spans, now)
                self.batches.note_absent()
            case r.SessionsPromised():
                self.closing.promise(record.spans)
            case r.SessionsClosed():
                self.closing.close(record.spans)
            case r.RecordsMerged():
                view = self.views.named(record.group)
                for span, value in record.entries:
                    self.views.note(view, span, fate.on_merge, value)
            case r.AttemptsCounted():
                view = self.views.named(record.group)
                for item in record.entries:
                    attempts = Attempts(item.generation, item.n, item.ended, *item[4:])
                    self.views.note(view, item.span, fate.on_counted, attempts)
            case r.DelaysSet():
                view = self.views.named(record.group)
                gone = self.node.passed_s(record, record.at_ms, now)
                for due in record.entries:
                    delay = delay_from(due, now.mono, max(0.0, due.remaining - gone))
                    self.views.note(view, due.span, fate.on_delay, delay)

    # ------------------------------------------------------------ a clean stop

    def holds_at_stop(self, now: Now, granted: Iterable[GrantTimer]) -> list[r.HeldAtStop]:
        """Return what CLEAN_STOP keeps: every hold with its remaining time and the highest ballot granted."""
        return [
            r.HeldAtStop(
                partition=self.batches.partition,
                group=view.name,
                span=part,
                owner=held.owner,
                n=held.n,
                remaining=max(0.0, held.deadline - now.mono),
                ballot=(ballots and ballots.highest) or (0, ""),
                generation=held.generation,
            )
            for view, span, held in self._holds(now, granted)
            for part, ballots in view.ballots.split(span)
        ]

    def _holds(self, now: Now, granted: Iterable[GrantTimer]) -> Iterator[tuple[GroupView, Span, Held]]:
        for view in self.views.with_holds():
            yield from ((view, span, held) for span, held in view.all_held())
        yield from self.acked_early(now, granted)

    def acked_early(self, now: Now, granted: Iterable[GrantTimer]) -> Iterator[tuple[GroupView, Span, Held]]:
        """Yield the grants that an ACK ended before their time, as blocked for the rest of it.

        If a message is acked here, and nowhere else, a node that was started again knows neither. Once its ACK was
        sent, no client may get the message before its hold would have been over (docs/protocol.md, RECOVERY, (b)).

        These are the grants that are neither held nor given up. The record does not show them: the ACK may have found a
        higher one, and a deletion of the group, or a later generation, may have replaced the one that it wrote.

        Args:
            granted: grants of this partition in `NodeState.grants`.
        """
        views = {view.name: view for view in self.views.with_holds()}
        ends: dict[tuple[int, str], float] = {}
        spans: dict[tuple[int, str], list[Span]] = {}
        for until, name, span, owner in granted:
            if name not in views:  # it was deleted while the partition was elsewhere, or is not made yet
                views[name] = self.views.named(name)
            # Grants are grouped by powers of two of their remaining time and take the latest end of their group, so
            # that many neighbours are one run.
            key = math.frexp(until - now.mono)[1], name
            ends[key] = max(until, ends.get(key, 0.0))
            parts = spans.setdefault(key, [])
            given_up = views[name].given_up
            if given_up and owner in given_up:
                parts += subtract(span, given_up[owner][1].within(span))
            else:
                parts.append(span)
        for key in sorted(ends):
            view, until = views[key[1]], ends[key]
            done = Kind.ACKED if view.source is None else Kind.PURGED
            for whole in merge_spans(spans[key]):
                for span, (record, lease) in across(whole, (view.home.records, view.leases)):
                    if lease is not None and lease.held is not None:
                        continue
                    if record is not None and record.kind == done:
                        yield view, span, Held(NO_OWNER, until, record.n, record.generation)
                    else:  # no generation that is read counts its end as an attempt
                        yield view, span, Held(NO_OWNER, until, 0, 0)

    def memory_at_stop(self, most: int) -> list[r.MemoryAtStop]:
        """Return the ballots that CLEAN_STOP keeps: of each group all of them, or none if they are too many.

        Args:
            most: ballots, of all groups together.
        """
        kept: list[r.MemoryAtStop] = []
        for view in self.views.sorted():
            ballots = view.memory_at_stop()
            if len(ballots) <= most:
                most -= len(ballots)
                kept.append(r.MemoryAtStop(self.batches.partition, view.name, view.min_ballot, ballots))
        return kept

    def restore_hold(self, held: r.HeldAtStop, now: Now) -> None:
        """Take back a hold of CLEAN_STOP: its remaining time starts again in full."""
        view = self.views.named(held.group)
        deadline = now.mono + held.remaining
        ballots = Ballots(Stamp(*held.ballot) if held.ballot[0] else None)
        view.restore(held.span, Held(held.owner, deadline, held.n, held.generation), ballots)
        self._expire_at(deadline, held.group, held.span, held.owner)

    def _expire_at(self, deadline: float, group: str, span: Span, owner: Owner) -> None:
        self.node.at(deadline, ("expire", self.batches.partition, group, span, owner))

    # --------------------------------------------------- a start after a crash

    def holds_to_tell(self, now: Now, granted: Iterable[GrantTimer]) -> list[HeldThere]:
        """Return every live hold, for a replica that was started again (core/partition/hold_recovery.py)."""
        return [
            HeldThere(view.name, span, held.owner, held.n, held.deadline - now.mono, held.generation)
            for view, span, held in self._holds(now, granted)
            if held.deadline > now.mono
        ]

    def learn_holds(self, reported: Iterable[Reported], now: Now) -> None:
        """Keep the union of the holds that all other replicas have reported.

        Our record does not matter: the delivery that was acked may be another one than the hold that is reported, and
        no record ends a hold.
        """
        for (name, span, owner, n, _, generation), deadline in reported:
            if deadline > now.mono:
                view, changes = self.views.named(name), Changes()
                held = Held(owner, deadline, n, generation)
                self.views.apply(view, span, fate.on_reported, held, now, changes)
                self.views.finish(view, changes, now)
                self._expire_at(deadline, name, span, owner)

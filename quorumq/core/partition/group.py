"""One group's view of one partition on one replica: the state of each message, in runs.

A group is a reader. What becomes of one message is decided in core/partition/fate.py; here the messages that share
an answer are kept, and asked, together. "Available" is never a cursor: it is present - tombstones - holds - delays,
worked out again for just the spans that changed, so that nothing can be skipped by moving past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from quorumq.core.messages import Counted, NotDue, SpanRecord
from quorumq.core.messages.records import BallotAtStop
from quorumq.core.partition import fate
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.backfill import Backfill
from quorumq.core.partition.closed import ClosedSessions
from quorumq.core.partition.delays import not_due_of
from quorumq.core.partition.digests import Digests
from quorumq.core.partition.fate import Rule, RuleContext
from quorumq.core.partition.lease import FREE, NO_BALLOTS, NO_OWNER, Ballots, Held, Lease
from quorumq.core.partition.ready import Kept, ReadyMessages
from quorumq.core.values import limits
from quorumq.core.values.counted import CountedMap
from quorumq.core.values.names import begins_ms
from quorumq.core.values.spans import SpanMap, SpanSet, across
from quorumq.core.values.types import (
    OPEN_ZERO,
    Death,
    Group,
    Kind,
    Latest,
    Owner,
    ProducerId,
    Record,
    Span,
    Stamp,
)

_new: Any = tuple.__new__
"""`_new(Record, fields)` is a Record in half the time."""

CHUNKS_OF = 4096
"""Messages that `GroupView.chunks` cuts at a time."""


class Changes:
    """Changes made by passes over a group: for the journal, and for clients that wait for messages.

    Attributes:
        records: raised, for RecordsMerged.
        counted: attempts, for AttemptsCounted.
        delays: set, with the seconds left, for DelaysSet.
        gained: the groups to which more is available than before.
        wakes: messages that become available by themselves, with the time and the group.
        unavailable: batches without available messages: the views queue them for RECLAIM.
    """

    __slots__ = ("counted", "delays", "gained", "records", "unavailable", "wakes")

    def __init__(self) -> None:
        self.records: list[SpanRecord] = []
        self.counted: list[Counted] = []
        self.delays: list[NotDue] = []
        self.gained: list[str] = []
        self.wakes: list[tuple[float, str, Span]] = []
        self.unavailable: list[int] = []


@dataclass(slots=True, eq=False, repr=False)
class GroupView:
    """One group in one partition of one replica.

    Attributes:
        min_ballot: stamps up to this one may have been granted before this start, and forgotten.
        closed: the partition's closed producer ids: all of their messages are settled, and nothing is kept of them.
        source: the group whose dead letters this group reads; None for others. Its leases and ballots are its own;
            the records are the source's. A message is available if it is DEAD, and ACK writes PURGED. A DEAD record is
            never made here, so nothing dies twice (docs/protocol.md, REJECT).
        home: the view that keeps the records: this one, or the source of a dead-letter group.
        generation: the current one: records of older ones are void if ``from_ms`` covers the message.
        from_ms: the start predicate: the generation reads batches published at or after this time of day.
        last_deletion: generation of the group's last deletion: records of generations before it are void.
        paused: True while voters refuse HOLDs of the group; its dead letters are not concerned.
        skipping: True while the messages here are skipped; then none that was reclaimed here is wanted again.
        dead: the group of this group's dead letters, if a client reads it.
        available: messages that may be delivered with any others; a suspect is never in it.
        suspects: messages that may be delivered in lots, with nothing else.
        kept: other messages of the batches here that the group keeps.
        backfill: batches that the group has not examined yet; None if it has examined all.
        dropped: messages that expired here, since the start, if the topic drops such.
        given_up: holds that each owner gave up, and the time until which the longest of them was to last.
        digests: digests of records, attempts and delays.
        claims: True if a message was claimed since the start.
    """

    name: str
    min_ballot: int
    closed: ClosedSessions
    source: GroupView | None = None
    home: GroupView = field(init=False)
    generation: int = 0
    from_ms: int = 0
    last_deletion: int = 0
    skipping: bool = False
    paused: bool = False
    dead: GroupView | None = None
    records: CountedMap[Record] = field(default_factory=lambda: CountedMap(kind_of))
    leases: SpanMap[Lease] = field(default_factory=SpanMap)
    ballots: SpanMap[Ballots] = field(default_factory=SpanMap)
    available: ReadyMessages = field(default_factory=ReadyMessages)
    suspects: ReadyMessages = field(default_factory=ReadyMessages)
    kept: Kept = field(default_factory=Kept)
    backfill: Backfill | None = None
    given_up: dict[Owner, tuple[float, SpanSet]] = field(default_factory=dict)
    digests: Digests = field(default_factory=Digests)
    dropped: int = 0
    claims: bool = False

    def __post_init__(self) -> None:
        self.home = self if self.source is None else self.source

    def rule_context(
        self,
        now: float,
        covered: bool = True,
        early: float = 0.0,
        born: float = 0.0,
        ttl: float = 0.0,
        unseen: bool = False,
        closed: bool = False,
    ) -> RuleContext:
        """Return the inputs of rules for messages of one batch; the arguments are those of `RuleContext`."""
        dead = self.source is not None
        home = self.home
        return RuleContext(
            now,
            dead,
            home.generation,
            self.min_ballot,
            covered,
            early,
            born,
            ttl,
            unseen,
            closed,
            home.last_deletion,
        )

    # ------------------------------------------------------------------- passes

    def apply(
        self,
        span: Span,
        rule: Rule | None,
        ask: Any,
        context: RuleContext,
        changes: Changes,
        key: tuple[int, int] | None = None,
    ) -> list[tuple[Span, Any]]:
        """Apply ``rule`` to each message of ``span``; return its answers, equal neighbours joined.

        If something changed, it is worked out again which of the messages are available.

        Args:
            span: messages with one context: of one batch, or of none.
            rule: a rule of core/partition/fate.py; None if only the available messages are to be worked out.
            context: the rule's inputs.
            changes: receives the changes that the rule made.
            key: key of the messages' batch, as in `ready`, if that is durable.
        """
        answers: list[tuple[Span, Any]] = []
        producer_id, home = span.producer_id, self.home
        balance, alone, looked, raised, over = 0, 0, False, False, False
        available, suspects = self.available.spans, self.suspects.spans
        waits = context.early > 0
        tables = (home.records, self.leases, self.ballots, available, suspects, self.kept.spans)
        for part, (record, lease, ballots, was_free, was_lot, was_kept) in across(span, tables):
            record, lease, ballots = record or OPEN_ZERO, lease or FREE, ballots or NO_BALLOTS
            changed = rule is None
            if rule is not None:
                kept, after, granted, answer = rule(record, lease, ballots, context, ask)
                if answer is not None:
                    if answers:
                        join(answers, (part, answer))
                    else:
                        answers.append((part, answer))
                if kept is not record:
                    home.records.put(part, kept)
                    home.digests.stale[producer_id] = None
                    if changes.records:
                        join(changes.records, SpanRecord(part, kept))
                    else:
                        changes.records.append(_new(SpanRecord, (part, kept)))
                    record, changed, raised = kept, True, True
                if after is not lease:
                    lease, changed = self._keep(part, lease, after, context, changes), True
                if granted is not ballots:
                    self.ballots.put(part, granted if granted != NO_BALLOTS else None)
            if changed and key is not None:
                looked = not waits
                stands = fate.standing(record, lease, context)
                over = over or stands is None
                free = stands == fate.READY
                why = None if free else stands
                if why != was_kept:
                    self.kept.put(key, part, was_kept, why)
                lot = fate.lot_at(record, lease, context) if free and lease.attempts is not None else 0
                free = free and not lot
                if free is (was_free is None):
                    available.put(part, 0 if free else None)
                    balance += part[2] - part[1] if free else part[1] - part[2]
                if lot != (was_lot or 0):
                    suspects.put(part, lot or None)
                    if not lot or not was_lot:
                        alone += part[2] - part[1] if lot else part[1] - part[2]
                if not waits and (lease.delay is not None or lease.deferred_until or lease.claim is not None):
                    changes.wakes += [(time, self.name, part) for time in wakes(lease, context.now)]
        if looked and key is not None:
            self._count(key, balance, alone, context.now, changes)
        elif over and key is not None:  # settled before it was due
            changes.unavailable.append(key[1])
        if raised:
            other = home.dead if home is self else home
            if other is not None:
                dead = not context.dead
                other.apply(
                    span, None, None, context._replace(dead=dead, min_ballot=other.min_ballot), changes, key
                )
        return answers

    def _keep(self, span: Span, before: Lease, lease: Lease, context: RuleContext, changes: Changes) -> Lease:
        """Put a lease into the table, and its parts that outlast a restart into ``changes``."""
        if context.closed:
            lease = Lease(lease.held, lease.rivals)
        self.leases.put(span, lease if lease != FREE else None)
        attempts, delay, claim = lease.attempts, lease.delay, lease.claim
        if attempts is not before.attempts or delay is not before.delay:
            self.digests.stale[span.producer_id] = None
            if attempts is not None and attempts is not before.attempts:
                join(changes.counted, counted(span, attempts))
        if delay is None and claim is None:  # mostly
            return lease
        self.claims = self.claims or claim is not None
        for part, old in ((delay, before.delay), (claim, before.claim)):
            if part is not None and part is not old:
                join(changes.delays, NotDue(span, *not_due_of(part, context.now)))
        return lease

    def _count(self, key: tuple[int, int], balance: int, alone: int, now: float, changes: Changes) -> None:
        """Add ``balance`` first-timers and ``alone`` suspects to the available messages of the batch with ``key``."""
        if balance > 0 or alone > 0:
            changes.gained.append(self.name)
        if balance:
            self.available.count(key, balance, now)
        if alone:
            self.suspects.count(key, alone, now)
        one, other = self.available.batches, self.suspects.batches
        if (
            balance <= 0
            and alone <= 0
            and not (one.size and key in one)
            and not (other.size and key in other)
        ):
            changes.unavailable.append(key[1])

    def cut(self, span: Span) -> list[tuple[Span, int]]:
        """Return ``span`` in chunks that a rule is done with in one step, each with its number of runs, about."""
        most = limits.RUNS_PER_STEP
        return [
            (part, max(1, runs, more))
            for chunk, runs in self.leases.cut(span, most)
            for part, more in self.home.records.cut(chunk, most)
        ]

    def chunks(self, span: Span) -> Iterator[tuple[Span, int]]:
        """Yield the same as `cut`, chunk by chunk, because a caller may not ask for most of a long span."""
        producer_id, start, stop = span
        if stop - start == 1:
            yield span, 1
            return
        for at in range(start, stop, CHUNKS_OF):
            yield from self.cut(Span(producer_id, at, min(stop, at + CHUNKS_OF)))

    # ------------------------------------------------------------------ records

    def covers(self, producer_id: ProducerId, published_ms: int) -> bool:
        """Return True if the generation's start predicate holds for messages of a batch published then, by its
        producer's clock (`begins_ms`)."""
        from_ms = self.home.from_ms
        # 0 covers clocks from before 1970 too
        return not from_ms or begins_ms(producer_id, published_ms) >= from_ms

    def record_chunks(self, span: Span, generation: int | None = None) -> list[tuple[Span, Record]]:
        """Return ``span`` in chunks of one record each, as ``generation`` reads them (the current one if None).

        Ask it of messages that the generation covers: older records of them are void, and they are
        OPEN at n = 0 (docs/protocol.md, "group, generation").
        """
        context = self.rule_context(0.0)
        current = context.generation if generation is None else generation
        return [
            (part, fate.as_read(record or OPEN_ZERO, context, current))
            for part, record in self.home.records.split(span)
        ]

    def readable(self, span: Span, covered: bool) -> list[tuple[Span, Record]]:
        """Return the parts of ``span`` that may be delivered but for holds and delays, with their records.

        Args:
            span: messages of one batch.
            covered: True if the start predicate holds for that batch.
        """
        context = self.rule_context(0.0, covered)
        return [
            (part, fate.as_read(record or OPEN_ZERO, context, context.generation))
            for part, record in self.home.records.split(span)
            if fate.is_readable(record or OPEN_ZERO, context)
        ]

    def shown(self, span: Span, covered: bool) -> list[tuple[Span, Record]]:
        """Return ``span`` with its records as PEEK shows them; arguments as for `readable`."""
        return self.home.record_chunks(span) if covered else self.home.record_chunks(span, 0)

    def asked(self, generation: int, n: int) -> Record:
        """Return the record that the message must have for a HOLD that names ``generation`` and ``n``."""
        kind = Kind.OPEN if self.source is None else Kind.DEAD
        return _new(Record, (generation, n, kind, None))  # type: ignore[no-any-return]

    def ack_record(self, generation: int, n: int) -> Record:
        """Return the record that an ACK of a delivery at (generation, n) writes."""
        n, kind = (0, Kind.ACKED) if self.source is None else (n, Kind.PURGED)
        return _new(Record, (generation, n, kind, None))  # type: ignore[no-any-return]

    def deaths(self, span: Span) -> list[tuple[Span, Death | None]]:
        """Return ``span`` in chunks, each with the death of its deliveries, which they have in a dead-letter group."""
        if self.source is None:
            return [(span, None)]
        return [(part, record.death) for part, record in self.source.records.within(span)]

    def is_stale(self, generation: int) -> bool:
        """Return True if ``generation`` was rewound since: requests that name it are refused.

        In a dead-letter group only if it was deleted since. Else a dead letter of an older generation stands if the
        newer one does not cover it.
        """
        return generation < (self.generation if self.source is None else self.home.last_deletion)

    # ------------------------------------------------------------------- leases

    def held(self, span: Span) -> list[tuple[Span, Held]]:
        return [(part, lease.held) for part, lease in self.leases.within(span) if lease.held is not None]

    def charged(self, spans: Iterable[Span], owner: Owner) -> int:
        """Return the number of messages of ``spans`` for which ``owner`` holds a token of the group's limit."""
        held = [item for span in spans for item in self.held(span)]
        return sum(part.size for part, hold in held if hold.charged and hold.owner == owner)

    def all_held(self) -> list[tuple[Span, Held]]:
        return [(part, lease.held) for part, lease in self.leases.items() if lease.held is not None]

    @property
    def held_count(self) -> int:
        """Return the number of messages that are held."""
        return sum(part.size for part, _ in self.all_held())

    def holds_any(self, producer_id: ProducerId) -> bool:
        return any(lease.held is not None for _, lease in self.leases.spans_of(producer_id))

    def give_up(self, span: Span, owner: Owner, now: float, *, rivals: bool) -> None:
        """Note the messages of ``span`` that ``owner`` holds, and is about to give up by RELEASE, LEAVE or REJECT.

        A grant that is not noted here, and ended before its time, ended by an ACK. It is then reported as blocked for
        the rest of that time (`Recall.acked_early`). A note is kept until a later one finds that this time is over.

        Args:
            rivals: True if each rival gives up a blocked message for itself alone, as by a RELEASE.
        """
        for part, lease in self.leases.within(span):
            held = lease.held
            owners = [rival.owner for rival in lease.rivals] if rivals else []
            if held is None or (held.owner != owner and owner not in owners):
                continue
            while self.given_up:
                first = next(iter(self.given_up))
                if self.given_up[first][0] > now:
                    break
                del self.given_up[first]
            until, given = self.given_up.get(owner) or (0.0, SpanSet())
            given.add(part)
            self.given_up[owner] = (max(until, held.deadline), given)

    def attempts_of(self, producer_id: ProducerId) -> list[Counted]:
        attempts: list[Counted] = []
        for part, lease in self.leases.spans_of(producer_id):
            if lease.attempts is not None:
                join(attempts, counted(part, lease.attempts))
        return attempts

    def delays_of(self, producer_id: ProducerId, now: float) -> list[NotDue]:
        """Return a REJECT's delays of a producer id's messages as a peer hears them: durations, never times."""
        delays: list[NotDue] = []
        for part, lease in self.leases.spans_of(producer_id):
            if lease.delay is not None:
                join(delays, NotDue(part, *not_due_of(lease.delay, now)))
        return delays

    def claims_left(self, now: float) -> list[NotDue]:
        """Return all claims as a peer hears them: durations, never times."""
        claims: list[NotDue] = []
        for part, lease in self.leases.items():
            if lease.claim is not None:
                join(claims, NotDue(part, *not_due_of(lease.claim, now)))
        return claims

    def lasting_producer_ids(self) -> list[ProducerId]:
        """Return the producer ids with group state that outlives a restart, sorted."""
        lasting = [
            producer_id
            for producer_id in self.leases.runs
            if any(
                lease.attempts is not None or lease.delay is not None
                for _, lease in self.leases.spans_of(producer_id)
            )
        ]
        return sorted({*self.records.runs, *lasting})

    def content(self, producer_id: ProducerId) -> bytes:
        """Return a producer id's content for comparison: records, attempts and delays; holds are no part of it."""
        records = self.records.content(producer_id, encode_record)
        leases = self.leases.content(producer_id, encode_lease) if producer_id in self.leases.runs else b""
        return b"%b;%b" % (records, leases) if records or leases else b""

    def compare_anew(self) -> None:
        self.digests.clear([*self.records.runs, *self.leases.runs])

    def keep_holds(self, producer_id: ProducerId) -> None:
        """Drop the leases of a closed producer id, but for holds, as long as they last."""
        self.digests.stale[producer_id] = None
        for part, lease in self.leases.spans_of(producer_id):
            self.leases.put(part, Lease(lease.held, lease.rivals) if lease.held is not None else None)

    # ----------------------------------------------------------------- a register

    def read_by(self, register: Group) -> None:
        """Take over a newer register. Records from before its last deletion are dropped."""
        self.generation, self.from_ms = register.generation, register.from_ms
        self.skipping, self.paused = register.latest == Latest.SKIPPING, register.paused
        if register.buried > self.last_deletion:
            self.last_deletion = register.buried
            records = self.records
            self.records = CountedMap(kind_of)
            for span, record in records.items():
                if record.generation >= self.last_deletion:
                    self.records.put(span, record)
            for view in (self, self.dead):
                if view is not None:
                    view.void_leases()

    def reset_ready(self) -> None:
        """Have no ready messages; all messages here have to be looked at again."""
        self.available, self.suspects, self.kept = ReadyMessages(), ReadyMessages(), Kept()
        self.backfill = None

    @property
    def first_ms(self) -> int:
        """Return the time before which no published message is available. A dead letter may stand in spite of it."""
        return self.from_ms if self.source is None else 0

    @property
    def begins(self) -> bool:
        """Return True if more messages may be ready than those that the group has looked at so far."""
        return self.backfill is not None and not self.backfill.last and not self.home.skipping

    def void_leases(self) -> None:
        """Drop attempts and delays of generations before `last_deletion`."""
        for span, lease in list(self.leases.items()):
            since, kept = self.home.last_deletion, lease
            if lease.attempts is not None and lease.attempts.generation < since:
                kept = kept._replace(attempts=None)
            if lease.delay is not None and lease.delay.generation < since:
                kept = kept._replace(delay=None)
            if lease.claim is not None and lease.claim.generation < since:
                kept = kept._replace(claim=None)
            if kept != lease:
                self.leases.put(span, kept if kept != FREE else None)
        self.compare_anew()

    def end(self, min_ballot: int) -> None:
        """End the view, as the group was deleted: nothing is offered. Holds stay until they run out: work may go on.

        Records since the deletion stay, too: they belong to a creation that is not known here yet, and this replica has
        voted for it.

        Args:
            min_ballot: stamps up to this one may have been granted.
        """
        self.min_ballot = min_ballot
        self.ballots = SpanMap()
        self.reset_ready()
        self.compare_anew()

    # ------------------------------------------------------------- a clean stop

    def memory_at_stop(self) -> tuple[BallotAtStop, ...]:
        """Return every ballot and minimum ballot of its own that is remembered of a message, for CLEAN_STOP."""
        return tuple(
            BallotAtStop(part, ballots.highest or (0, ""), ballots.min_ballot)
            for part, ballots in self.ballots.items()
        )

    def restore_memory(self, min_ballot: int, kept: Iterable[BallotAtStop]) -> None:
        """Take back the memory of CLEAN_STOP: grants from before this start are known, as if there were no stop."""
        self.min_ballot = min_ballot
        for span, ballot, own in kept:
            self.restore(span, None, Ballots(Stamp(*ballot) if ballot[0] else None, own))

    def restore(self, span: Span, held: Held | None, ballots: Ballots) -> None:
        """Take back a hold, if there is one, and ballots from CLEAN_STOP."""
        self.apply(span, fate.on_restored, (held, ballots), self.rule_context(0.0), Changes())

    # --------------------------------------------------------------- invariants

    def check(self) -> None:
        """Assert what holds between any two events: every hold granted here was granted under the highest ballot."""
        self.records.check()
        self.leases.check()
        self.ballots.check()
        self.available.spans.check()
        self.suspects.spans.check()
        assert self.source is None or not self.records, f"{self.name} keeps records of its own"
        for span, record in self.records.items():
            assert (record.kind == Kind.DEAD) == (record.death is not None), f"{span}: {record}"
            assert record.kind != Kind.ACKED or record.n == 0, f"{span}: {record}"
            assert record.kind != Kind.OPEN or record.n > 0, f"{span}: {record} is written down"
            assert record.generation >= self.last_deletion, (
                f"{span}: {record} is of before the group was deleted"
            )
        for span, lease in self.leases.items():
            blocked = lease.held is not None and lease.held.owner == NO_OWNER
            assert blocked or not lease.rivals, f"{span} has rivals, and is held by {lease.held}"
            for dated in (lease.attempts, lease.delay, lease.claim):
                late = dated is not None and dated.generation < self.home.last_deletion
                assert not late, f"{span}: {dated} is of before the group was deleted"
            assert lease.delay is None or lease.delay.claim is None, f"{span}: a claim is kept as a delay"
        for span, held in self.all_held():
            for ready in (self.available, self.suspects):
                assert not ready.spans.within(span), f"{span} is available and held"
            for _, ballots in self.ballots.within(span):
                highest = ballots.highest or held.owner.ballot
                assert held.owner.ballot <= highest, f"{span}: held under {held.owner}, above {highest}"


def counted(span: Span, attempts: Attempts) -> Counted:
    """Return the attempts at ``span`` as the journal and peers get them."""
    return Counted(span, attempts.n, attempts.ended, attempts.generation, *attempts[3:])


kind_of: Any = attrgetter("kind")
"""By which records are counted."""


def wakes(lease: Lease, now: float) -> list[float]:
    """Return the times when the message becomes free by itself: its delay is due, its deferral is over."""
    times = [delay.due for delay in (lease.delay, lease.claim) if delay is not None and delay.due > now]
    return [*times, lease.deferred_until] if lease.deferred_until > now else times


def join(items: list[Any], item: Any) -> None:
    """Append ``item``, which begins with a span, or make the last one longer if it goes on in the same way."""
    if items:
        last = items[-1]
        before, span = last[0], item[0]
        if before.stop == span.start and before.producer_id == span.producer_id and last[1:] == item[1:]:
            joined = Span(span.producer_id, before.start, span.stop)
            items[-1] = (joined, *last[1:]) if type(last) is tuple else last._replace(span=joined)
            return
    items.append(item)


def encode_lease(lease: Lease) -> bytes | None:
    """Return the part of a lease that replicas compare, as bytes: its attempts, and a REJECT's delay but for the time.

    Why no claim: one that failed at most replicas is not to spread, and hide the message from the next delivery.
    """
    attempts, delay = lease.attempts, lease.delay
    if attempts is None and delay is None:
        return None
    known = (delay.generation, delay.n, tuple(delay.ballot)) if delay is not None else None
    return repr((attempts and tuple(attempts), known)).encode()


def encode_record(record: Record) -> bytes:
    """Return a record as bytes for a digest; of a death only its ballot, which decides which of two stays."""
    ballot = tuple(record.death.ballot) if record.death is not None else ()
    return repr((record.generation, record.n, int(record.kind), ballot)).encode()

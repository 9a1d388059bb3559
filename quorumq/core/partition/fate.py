"""State that a replica keeps of ONE message for ONE group, and the effect of each protocol step on it.

Every rule is a pure function of one message; there is no span, no loop and no replica here:

    rule(record, lease, ballots, context, ask) -> (record, lease, ballots, answer)

`GroupView.apply` lifts a rule to runs of messages that share all of this. A rule that changes nothing returns the
same object: `apply` detects changes by identity. The state of a message is split by its lifetime:

- its `Record`: what became of it. It only rises, and a group shares it with the group of its dead letters.
- its `Lease`: hold, rivals, attempts, delay and deferral. An ACK ends all of it, except the hold of another delivery.
- its `Ballots`: what was granted here. They outlast the ACK, until RECLAIM drops the payload.

                        HOLD of its owner again, EXTEND
                              ┌─── longer ───┐
              HOLD            ▼              │
      free ───────────────▶ held ────────────┘        HOLD is refused if its ballot is not above all that was
       ▲                      │                       granted before, if the record is another, if the message
       ├────── RELEASE ───────┤ of exactly its owner  is not due, and if another owner holds it.
       ├─────── ACK ──────────┤ of exactly its owner
       ├────── REJECT ────────┤ of exactly its owner: an attempt has ended, or the message is dead
       └────── expiry ────────┘ an attempt has ended

      free or held ─── RECOVERY: two owners are reported, or one that acked ───▶ blocked: held by no owner
       free ◀─── each of the rivals, if any, has released it, or the longest of their times is over ───┘

Exclusivity (promise G2) rests on `on_hold`. Two majorities share a replica; that replica grants one owner at a time,
replaces none, and forgets nothing that it granted while the grant can be live. The explorer and the simulator
replace functions of this module to leave a rule out, so a rule calls another by its name in the module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from quorumq.core.messages import Granted, NotDue, Refused, SpanRecord
from quorumq.core.partition import attempts as counts
from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts, greater, is_exhausted
from quorumq.core.partition.delays import Delay, claim_of, is_rejected, keeping, latest, not_due_of, rank
from quorumq.core.partition.lease import (
    NO_BALLOTS,
    NO_OWNER,
    Ballots,
    Held,
    Lease,
    counted,
    rivals_with,
    with_hold,
    without_deferral,
    without_rival,
)  # fmt: skip
from quorumq.core.values.limits import NUMBERS_END
from quorumq.core.values.types import OPEN_ZERO, STAMP_ZERO, Kind, Owner, Record, Stamp, merge_records

_new: Any = tuple.__new__
"""`_new(Lease, fields)` is a Lease in half the time: one for each message that is held or settled."""


class RuleContext(NamedTuple):
    """Inputs of a rule besides the message: the time, the group, and the batch that the message is in."""

    now: float  # monotonic seconds
    dead: bool  # the group is that of another one's dead letters
    generation: int  # the group's; of dead letters, that of the group where they died
    min_ballot: int  # stamps up to this time may have been granted before this start and forgotten
    covered: bool = True  # the generation's start predicate holds for the batch
    early: float = 0.0  # seconds until the batch is due by our clock
    born: float = 0.0  # when the batch was made, by our clock
    ttl: float = 0.0  # its own time to live, in seconds; 0: the topic's
    unseen: bool = False  # the payload is not here
    closed: bool = (
        False  # the message's producer id is over: it is settled, and nothing but a hold is kept of it
    )
    last_deletion: int = 0  # records of generations below it are void: the group was deleted then
    max_deliveries: int = NUMBERS_END  # the topic's; those of a dead letter are not limited


Fate = tuple[Record, Lease, Ballots, Any]
"""State of a message after a rule, and the rule's answer."""

Rule = Callable[[Record, Lease, Ballots, RuleContext, Any], Fate]


# ------------------------------------------------------------------------------------ HOLD


class HoldAsk(NamedTuple):
    owner: Owner
    record: Record  # the record that the message must have
    until: float  # the end of the hold
    max_deliveries: int
    ttl: float  # the topic's, in seconds; 0: for ever
    ended: int = 0  # attempts of the record that the coordinator knows
    last_expired: bool = False  # the last of them ended by expiry
    expiries: int = 0  # how many of them did
    interruptions: int = 0  # deliveries beside them that were interrupted
    limited: bool = False  # the hold takes a token, unless the message is dying


def on_hold(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: HoldAsk) -> Fate:
    """HOLD: grant this message to ``ask.owner`` from now on, as far as it goes by this replica, or refuse.

    Answers a vote without its span: `Granted`, `SpanRecord`, `NotDue` or `Refused`, and the other fields of that.
    """
    answered = record
    if record != ask.record or context.closed:
        answered, stands = merge_asked(record, context, ask.record)
        if stands[:3] != ask.record[:3]:
            return answered, lease, ballots, (SpanRecord, stands)
    if lease.held is not None or lease.claim is not None:
        lease = in_time(answered, lease, context)
    delayed_here = lease.delay is not None or lease.claim is not None
    early = not_due(lease, context, ask.record) if delayed_here or context.early > 0 else None
    if early is not None:
        return answered, lease, ballots, (NotDue, *early)
    if ask.ended or ask.interruptions:
        lease = counted(lease, Attempts(ask.record.generation, ask.record.n, *ask[5:9]))
    held, attempts = lease.held, NO_ATTEMPTS if lease.attempts is None else attempts_at(lease, ask.record)
    mine = held is not None and is_owner(held, ask.owner)
    if held is not None and mine and ballots.highest is not None:  # asked again
        held = held._replace(deadline=max(held.deadline, ask.until))
    elif is_above(ask.owner.ballot, ballots, context) and (
        held is None or mine or may_replace(held, ask.owner)
    ):
        # A hold of this very owner that was learned from a peer was not granted here: it is now.
        until = max(held.deadline, ask.until) if held is not None and mine else ask.until
        held = _new(Held, (ask.owner, until, ask.record.n, ask.record.generation, attempts, False))
        ballots = _new(Ballots, (ask.owner.ballot, ballots.min_ballot))
    else:
        remaining = held.deadline - context.now if held is not None else 0.0
        highest = ballots.highest or Stamp(min_ballot_of(ballots, context), "")
        return answered, lease, ballots, (Refused, highest, remaining)
    timed = ask.record.n == 0 and not context.dead  # a redriven message, or a dead letter, has had its time
    most = ask.max_deliveries
    exhausted = attempts[2] >= most and is_exhausted(attempts, most) and not context.dead
    late = timed and bool(context.ttl or ask.ttl) and is_expired(context, ask.ttl)
    granted = (Granted, attempts[2], exhausted, late, timed and context.unseen, *attempts[3:])
    if ask.limited and not (exhausted or late):
        held = held._replace(charged=True)
    return answered, _new(Lease, (held, (), *lease[2:])), ballots, granted


def merge_asked(record: Record, context: RuleContext, asked: Record) -> tuple[Record, Record]:
    """Return our record after a HOLD that names ``asked``, and the record that it then reads as.

    The HOLD may follow a redrive that this replica has not heard of. A dead letter is granted only if the record is
    DEAD at exactly that n: a HOLD carries no death to merge.
    """
    return (record, record) if context.dead else merge(record, context, asked)


def not_due(lease: Lease, context: RuleContext, asked: Record) -> tuple[Any, ...] | None:
    """Return the delay that keeps the message, at ``asked``, from being delivered now: of the group, or the batch.

    The fields are those of `NotDue`, without the span.
    """
    delay = kept_by(lease, context.now, asked)
    if delay is not None:
        return not_due_of(delay, context.now)
    return (
        (0, STAMP_ZERO, context.early, 0) if context.early > 0 and asked.n == 0 and not context.dead else None
    )


def kept_by(lease: Lease, now: float, asked: Record) -> Delay | None:
    """Return the claim or the delay that keeps the message from being delivered at ``asked``."""
    return keeping(lease.claim, now, asked) or keeping(lease.delay, now, asked)


def is_owner(held: Held, owner: Owner) -> bool:
    """Return True if the hold is this owner's: attempt, incarnation and node must all match."""
    return held.owner == owner


def is_above(ballot: Stamp, ballots: Ballots, context: RuleContext) -> bool:
    """Return True if the ballot is above the highest granted for the message, or the minimum ballot if none is
    remembered."""
    if ballots.highest is None:
        return ballot.time > context.min_ballot and ballot.time > ballots.min_ballot
    return ballot > ballots.highest


def may_replace(held: Held, owner: Owner) -> bool:
    """Return False: a hold is never replaced, however high the ballot is. sim/rules replaces this function."""
    return False


def min_ballot_of(ballots: Ballots, context: RuleContext) -> int:
    """Return the time up to which stamps may have been granted for the message, and forgotten."""
    return max(context.min_ballot, ballots.min_ballot)


def is_expired(context: RuleContext, ttl: float) -> bool:
    """Return True if the batch's time to live, or else the topic's, is over by our clock."""
    ttl = context.ttl or ttl
    return ttl > 0 and context.now >= context.born + ttl and not context.unseen


# ------------------------------------------------------- the other steps of a delivery


class ReleaseAsk(NamedTuple):
    owner: Owner
    theirs: bool  # another node's: our own RELEASE, of a lost round, says nothing of the holder


def on_release(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: ReleaseAsk) -> Fate:
    """RELEASE or LEAVE: end the hold if the owner matches exactly. Counts no attempt."""
    lease = release(lease, ask.owner)
    return record, without_deferral(lease) if ask.theirs else lease, ballots, None


LOST, HOLD, CLAIM = range(3)
"""Answers to an EXTEND: it prolongs nothing, a hold or a claim."""


class ExtendAsk(NamedTuple):
    owner: Owner
    until: float
    claims: bool = False  # for longer than any hold


def on_extend(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: ExtendAsk) -> Fate:
    """EXTEND: prolong the hold to ``ask.until`` at least, or the claim, if exactly this owner has it.

    Answers which of the two is prolonged, or LOST.
    """
    lease = in_time(record, lease, context)
    held, claim = lease.held, claim_of(lease.claim, ask.owner.ballot)
    kept = held if held is not None and is_owner(held, ask.owner) else claim  # nothing else revives a hold
    if kept is None or is_acked(record, context, kept.generation):  # by another delivery
        return record, lease, ballots, LOST
    if ask.claims and kept.generation < context.last_deletion:
        return record, lease, ballots, LOST  # a deletion of the group ends claims, though no hold
    if ask.claims or kept is claim:
        if claim is None and held is not None:
            # The journal and peers get no more of the attempts than this.
            before = held.before._replace(
                generation=held.generation, n=held.n, last_expired=False, interruptions=0
            )
            claim = Delay(held.n, ask.owner.ballot, context.now, held.generation, before)
        if claim is not None and claim.due < ask.until:
            lease = lease._replace(claim=claim._replace(due=ask.until))
        return record, lease, ballots, CLAIM
    if held is not None:
        lease = with_hold(lease, held._replace(deadline=max(held.deadline, ask.until)))
    return record, lease, ballots, HOLD


def on_expire(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: None) -> Fate:
    """Drop a hold if its time has run out. Answers the hold if it has not."""
    lease = in_time(record, lease, context)
    return record, lease, ballots, lease.held


def in_time(record: Record, lease: Lease, context: RuleContext) -> Lease:
    """Return the lease without a hold or a claim whose time has run out, timer or not: an attempt has ended."""
    held = lease.held
    if held is not None and held.deadline <= context.now:
        lease = with_hold(lease, None)
        over = is_acked(record, context, held.generation) or held.generation < context.last_deletion
        if not over and claim_of(lease.claim, held.owner.ballot) is None:
            lease = count_attempt(lease, held, expired=True)
    return unclaimed(record, lease, context) if lease.claim is not None else lease


class AckAsk(NamedTuple):
    owner: Owner
    record: Record  # ACKED; in a group of dead letters PURGED, which anything newer stands above


def on_ack(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: AckAsk) -> Fate:
    """ACK: write it, and end the hold of this delivery. Another one may be live: its hold stays.

    Answers whether this delivery is `exclusive`, and the record as it stands.
    """
    record, lease, ballots, stands = on_merge(record, lease, ballots, context, ask.record)
    lease = release(lease, ask.owner)
    if lease.deferred_until:
        lease = without_deferral(lease)
    return record, lease, ballots, (exclusive(ballots, context, ask.owner), stands)


def exclusive(ballots: Ballots, context: RuleContext, owner: Owner) -> bool | None:
    """Return True if no higher ballot than the owner's was granted here; None below the minimum ballot, where it is
    unknown."""
    if ballots.highest is not None:
        return ballots.highest <= owner.ballot
    return True if owner.ballot.time > context.min_ballot and owner.ballot.time > ballots.min_ballot else None


class RejectAsk(NamedTuple):
    owner: Owner
    record: Record  # SKIPPED, or with a death, what the message becomes; else what it must be
    backoff: tuple[float, ...]  # seconds after the first attempt, the second, …; the last entry repeats
    interrupted: bool = False  # a clean stop of the consumer ended the delivery


def on_reject(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: RejectAsk) -> Fate:
    """REJECT: a compare-and-set on the hold; requeue with a delay, or DEAD or SKIPPED, in one step with the release.

    Answers whether it is applied, and the record that stands instead.
    """
    lease, now = in_time(record, lease, context), context.now
    held, asked = lease.held, ask.record
    claim = claim_of(lease.claim, ask.owner.ballot)
    if held is None and claim is not None and claim.claim is not None:  # it outlasted the hold
        held = Held(ask.owner, claim.due, claim.n, claim.generation, claim.claim)
    if held is None or not is_owner(held, ask.owner):
        again = is_retry(record, lease, context, ask)
        if asked.death is not None and exclusive(ballots, context, ask.owner) is False:
            again = False  # the record was learned: that other delivery may yet be won
        return record, without_deferral(lease), ballots, (again, None)
    lease = without_deferral(with_hold(lease, None))
    if claim is not None:
        lease = lease._replace(claim=None)
    if asked.death is not None or asked.kind == Kind.SKIPPED:
        record, lease, ballots, stands = on_merge(record, lease, ballots, context, asked)
    else:
        stands = as_read(record, context, asked.generation)
        if stands[:3] == asked[:3]:
            lease = count_attempt(lease, held, interrupted=ask.interrupted)
            step = max(1, min(attempts_at(lease, asked).ended, len(ask.backoff)))
            due = now + ask.backoff[step - 1]
            lease = delayed(lease, Delay(asked.n, ask.owner.ballot, due, asked.generation))
    # Else it was settled by another delivery, or purged.
    if claim is not None and outlives(lease._replace(claim=claim), context, record).claim is not None:
        # As in on_stale: no record of the message ends the claim in the journal.
        lease = delayed(lease, Delay(claim.n, claim.ballot, now, claim.generation))
    same = stands[:3] == asked[:3]
    return record, lease, ballots, (same, None if same else stands)


def is_retry(record: Record, lease: Lease, context: RuleContext, ask: RejectAsk) -> bool:
    """Return True if a REJECT without a hold is a retry: its ballot is in the record, or in the delay if it is open."""
    ballot = ask.owner.ballot
    if ask.record.death is None:
        is_open = as_read(record, context, ask.record.generation)[:3] == ask.record[:3]
        # Else the delay may be that of a refusal, which ended a claim.
        return is_open and lease.delay is not None and lease.delay.ballot == ballot
    stands = as_read(record, context, context.generation)
    return stands.n == ask.record.n and stands.death is not None and stands.death.ballot == ballot


def on_stale(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Owner) -> Fate:
    """ACK or REJECT of a delivery before a rewind: it settles nothing, but ends this owner's claim.

    Why: nothing else ends it for up to a week. A REJECT's delay without time ends it in the journal, too, and at
    replicas that missed the request.
    """
    claim = claim_of(lease.claim, ask.ballot)
    if claim is not None:
        lease = delayed(lease, Delay(claim.n, claim.ballot, context.now, claim.generation))
    return record, lease, ballots, None


# ------------------------------------------------------------------------------- learning


def on_merge(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Record) -> Fate:
    """MERGE, read repair, anti-entropy, replay: keep the larger record, and return the record as the group reads it
    then."""
    kept, stands = merge(record, context, ask)
    if kept is not record:
        lease = outlives(lease, context, kept)
    return kept, lease, ballots, stands


def merge(record: Record, context: RuleContext, theirs: Record) -> tuple[Record, Record]:
    """Return the record to keep, and how the message reads.

    OPEN at n = 0 is never written down: it is what a covered message is without a record of its generation.
    """
    if context.closed:
        return record, Record(theirs.generation, 0, Kind.ACKED)
    if record == theirs or theirs.generation < context.last_deletion:
        return record, record
    stands = theirs if record is OPEN_ZERO else merge_records(record, theirs)  # nothing is below that
    if stands == record or (theirs.kind == Kind.OPEN and theirs.n == 0):
        return record, stands
    return stands, stands


def outlives(lease: Lease, context: RuleContext, record: Record) -> Lease:
    """Return the lease that is left when the record has become ``record``: ACKED ends the attempts and the delay.

    No record ends a hold. Another delivery than the one that was acked, or died, may be live, and a rewind or a
    redrive may open the message again before its hold has run out (docs/protocol.md, "record, hold key").
    """
    attempts, delay, claim = lease.attempts, lease.delay, lease.claim
    if attempts is None and delay is None and claim is None:
        return lease
    parts: list[Any] = [
        None if part is not None and is_acked(record, context, part.generation) else part
        for part in (attempts, delay, claim)
    ]
    attempts, delay, claim = parts
    if claim is not None and is_rejected(record, claim):
        claim = None
    same = attempts is lease.attempts and delay is lease.delay and claim is lease.claim
    return lease if same else lease._replace(attempts=attempts, delay=delay, claim=claim)


def on_reported(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Held) -> Fate:
    """Add a hold that a peer reported (core/partition/hold_recovery.py). All that are reported are kept; none was
    granted here.

    If two owners are reported, one has half won the message and the other may be delivering it. The message is blocked:
    no owner is granted, extended or rejected until both have given it up or all time is over.
    """
    known = attempts_at(lease, Record(ask.generation, ask.n, Kind.OPEN))
    theirs = ask._replace(before=known)
    ours = lease.held
    if ours is None:
        return record, with_hold(lease, theirs), ballots, None
    until = max(ours.deadline, theirs.deadline)
    if is_owner(ours, theirs.owner) and not lease.rivals:
        return record, with_hold(lease, ours._replace(deadline=until)), ballots, None
    n, generation = max(ours.n, theirs.n), max(ours.generation, theirs.generation)
    no_node = Held(NO_OWNER, until, n, generation, greater(ours.before, theirs.before))
    return record, lease._replace(held=no_node, rivals=rivals_with(lease, theirs)), ballots, None


def on_counted(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Attempts) -> Fate:
    """Merge a peer's count, or the journal's: the higher one stays, unless an ACK has ended them all."""
    done = is_acked(record, context, ask.generation) or ask.generation < context.last_deletion
    return record, lease if done else counted(lease, ask), ballots, None


def on_won(
    record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: tuple[Owner, Attempts]
) -> Fate:
    """Add attempts that the voters knew and this replica had missed: they ended before the hold that is won here.

    Asked by its owner, with the greatest count of the replicas that granted it.
    """
    owner, attempts = ask
    record, lease, ballots, _ = on_counted(record, lease, ballots, context, attempts)
    held = lease.held
    if held is not None and is_owner(held, owner):
        lease = lease._replace(held=held._replace(before=greater(held.before, attempts)))
    return record, lease, ballots, None


def on_delay(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: Delay) -> Fate:
    """Adopt a delay: of NOT_DUE, anti-entropy or replay. An ACK has ended all delays, and a later grant a claim."""
    done = is_acked(record, context, ask.generation) or ask.generation < context.last_deletion
    if ask.claim is not None:
        later = ballots.highest is not None and ballots.highest > ask.ballot
        done = done or later or is_rejected(record, ask)
    return record, lease if done else delayed(lease, ask), ballots, None


def on_defer(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: float) -> Fate:
    """Leave the message out of our choices until ``ask``: by votes another owner holds it, or it is not due."""
    return record, lease if lease.deferred_until == ask else lease._replace(deferred_until=ask), ballots, None


def on_reclaim(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: None) -> Fate:
    """Drop the remembered ballots together with the payload: without them no ACK can be proved exclusive."""
    return record, without_deferral(lease), NO_BALLOTS, None


def on_return(record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: int) -> Fate:
    """Raise the minimum ballot, as the payload is back: no grant that was made before, and forgotten, is above
    ``ask``."""
    return record, lease, ballots._replace(min_ballot=ask) if ask > context.min_ballot else ballots, None


def on_restored(
    record: Record, lease: Lease, ballots: Ballots, context: RuleContext, ask: tuple[Held | None, Ballots]
) -> Fate:
    """Restore a hold, or none, and ballots from a clean stop; they may have been restored already."""
    held, theirs = ask
    if held is not None:
        known = attempts_at(lease, Record(held.generation, held.n, Kind.OPEN))
        lease = with_hold(lease, held._replace(before=known))
    return (
        record,
        lease,
        Ballots(theirs.highest or ballots.highest, theirs.min_ballot or ballots.min_ballot),
        None,
    )


# ------------------------------------------------------------------------- what is left over


HELD, DEFERRED, DELAYED, DEAD, READY, EXHAUSTED = range(6)
"""Held here, deferred as votes said, not due, a dead letter, available, out of deliveries."""


def standing(record: Record, lease: Lease, context: RuleContext) -> int | None:
    """Return the state of a present message of a durable batch for the group; None if the group has done with it."""
    if not is_readable(record, context):
        return DEAD if is_dead_letter(record, context) else None
    if lease.held is not None:
        return HELD
    if context.early > 0:
        return DELAYED
    if lease.delay is not None or lease.claim is not None:
        delay = kept_by(lease, context.now, as_read(record, context, context.generation))
        if delay is not None:
            return DELAYED if delay.claim is None else HELD
    if lease.deferred_until > context.now:
        return DEFERRED
    if lease.attempts is not None and not context.dead:
        attempts = attempts_at(lease, as_read(record, context, context.generation))
        if is_exhausted(attempts, context.max_deliveries):
            return EXHAUSTED
    return READY


def lot_at(record: Record, lease: Lease, context: RuleContext) -> int:
    """Return how many may be delivered together with the message, as the group reads it (`lot_of`)."""
    attempts = attempts_at(lease, as_read(record, context, context.generation))
    return counts.lot_of(attempts, NUMBERS_END if context.dead else context.max_deliveries)


def is_readable(record: Record, context: RuleContext) -> bool:
    """Return True if the message may be delivered, holds and delays aside.

    If the start predicate leaves it out, its older record stands. It is then read only if it was redriven, in any
    generation. A dead letter of an older generation is read only then.
    """
    if context.dead:
        return is_dead_letter(record, context)
    if record.generation < context.generation:
        record = as_read(record, context, context.generation)
    return record.kind == Kind.OPEN and (context.covered or record.n > 0)


def is_dead_letter(record: Record, context: RuleContext) -> bool:
    """Return True if the message is shown as a dead letter: one of an older generation only if that is left out."""
    return record.kind == Kind.DEAD and not (context.covered and record.generation < context.generation)


def as_read(record: Record, context: RuleContext, generation: int) -> Record:
    """Return the record as ``generation`` reads it: an older record is void, and the message open, if it covers it."""
    if record.generation < generation and context.covered and not context.dead:
        return Record(generation, 0, Kind.OPEN)
    return record


# -------------------------------------------------------------------------- parts of a lease


def release(lease: Lease, owner: Owner) -> Lease:
    """Return the lease without the hold of exactly ``owner``, or without it among the rivals of a blocked message."""
    if lease.held is not None and is_owner(lease.held, owner):
        return with_hold(lease, None)
    return without_rival(lease, owner)


def is_acked(record: Record, context: RuleContext, generation: int) -> bool:
    """Return True if the message is ACKED in ``generation`` or a newer one. A dead letter never is: it is PURGED."""
    return record.kind == Kind.ACKED and record.generation >= generation and not context.dead


def count_attempt(lease: Lease, held: Held, **how: bool) -> Lease:
    """Count the end of a hold by time or by REJECT (`with_another`): there is one more than when it was granted.

    A peer's count of the same hold may be here already.
    """
    before = held.before._replace(generation=held.generation, n=held.n)
    return counted(lease, counts.with_another(before, **how))


def attempts_at(lease: Lease, asked: Record) -> Attempts:
    """Return the attempts that have ended at the generation and redrive number of ``asked``."""
    kept = lease.attempts
    return kept if kept is not None and kept[:2] == asked[:2] else NO_ATTEMPTS


def delayed(lease: Lease, delay: Delay) -> Lease:
    """Return the lease with a delay or a claim, if it is the later one of two. A claim below a delay is over."""
    stays, claim = lease.delay, lease.claim
    if delay.claim is None:
        stays = latest(stays, delay)
    else:
        claim = latest(claim, delay)
    if stays is not None and claim is not None and rank(stays) > rank(claim):
        claim = None
    return (
        lease if stays is lease.delay and claim is lease.claim else lease._replace(delay=stays, claim=claim)
    )


def unclaimed(record: Record, lease: Lease, context: RuleContext) -> Lease:
    """Return the lease without a claim whose time is over: an attempt has ended by expiry."""
    claim = lease.claim
    if claim is None or claim.claim is None or claim.due > context.now:
        return lease
    lease = lease._replace(claim=None)
    over = is_acked(record, context, claim.generation) or claim.generation < context.last_deletion
    if over or (lease.held is not None and lease.held.owner.ballot == claim.ballot):
        return lease  # that hold's end is counted
    return counted(lease, counts.with_another(claim.claim, expired=True))

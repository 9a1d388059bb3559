"""State of one message besides its record: hold, attempts and delay, and the ballots that were granted."""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumq.core.partition.attempts import NO_ATTEMPTS, Attempts, greater
from quorumq.core.partition.delays import Delay
from quorumq.core.values.types import STAMP_ZERO, Incarnation, Owner, Stamp

_new: Any = tuple.__new__
"""`_new(Lease, fields)` is a Lease in half the time."""

NO_OWNER = Owner("", Incarnation(0, 0), STAMP_ZERO)
"""Owner of a message for which two owners were reported: it matches none, so nothing can be done in its name."""


class Held(NamedTuple):
    """A hold, until ``deadline`` by the replica's monotonic clock (seconds)."""

    owner: Owner
    deadline: float
    n: int  # the redrive number it was granted under: the attempt that it may become belongs to it
    generation: int = 0  # the generation it was granted under
    before: Attempts = NO_ATTEMPTS  # attempts that had ended when it was granted here: its end adds one
    charged: bool = False  # it took a token of the group's limit here


class Lease(NamedTuple):
    """State that an ACK ends, except the hold of another delivery."""

    held: Held | None = None
    rivals: tuple[Held, ...] = ()  # the holds of several owners that were reported, if the message is blocked
    attempts: Attempts | None = None
    delay: Delay | None = None
    deferred_until: float = 0.0  # not chosen until then: by votes, held elsewhere or not due
    claim: Delay | None = None  # beside a REJECT's delay, which replicas compare, as claims are not


class Ballots(NamedTuple):
    """Ballots that were granted for the message."""

    highest: Stamp | None = None  # None: no grant is remembered
    min_ballot: int = 0  # minimum ballot of the message; it counts if it is above the group's


FREE = Lease()
NO_BALLOTS = Ballots()


def with_hold(lease: Lease, held: Held | None) -> Lease:
    """Return the lease with this hold, and no other owner beside it."""
    made: Lease = _new(Lease, (held, (), *lease[2:]))
    return made


def rivals_with(lease: Lease, theirs: Held) -> tuple[Held, ...]:
    """Return the rivals with this hold, for as long as the later report of its owner says. The lease has a hold."""
    rivals = lease.rivals or (lease.held,) if lease.held is not None else ()
    others = [rival for rival in rivals if rival.owner != theirs.owner]
    times = [rival.deadline for rival in rivals if rival.owner == theirs.owner]
    return (*others, theirs._replace(deadline=max([theirs.deadline, *times])))


def without_rival(lease: Lease, owner: Owner) -> Lease:
    """Return the lease without this rival: blocked for as long as those that remain would hold it, or free.

    The attempt that it may become is of their life: one that was given up is none.
    """
    rivals = tuple(rival for rival in lease.rivals if rival.owner != owner)
    if lease.held is None or len(rivals) == len(lease.rivals):
        return lease
    if not rivals:
        return with_hold(lease, None)
    _, deadlines, ns, generations, *_ = zip(*rivals, strict=True)
    held = lease.held._replace(deadline=max(deadlines), n=max(ns), generation=max(generations))
    return lease._replace(held=held, rivals=rivals)


def without_deferral(lease: Lease) -> Lease:
    """Return the lease without its deferral: the owner that a vote named does not hold the message any more."""
    return lease._replace(deferred_until=0.0) if lease.deferred_until else lease


def counted(lease: Lease, attempts: Attempts) -> Lease:
    """Return the lease with the greater of the two counts."""
    ours = lease.attempts
    if ours is not None:
        attempts = greater(ours, attempts)
        if attempts == ours:
            return lease
    return lease._replace(attempts=attempts)

"""Delays of messages: of a REJECT, which says when the message is delivered again, and of a claim.

A claim keeps a delivered message from other deliveries for longer than any hold (docs/protocol.md, CLAIMS). It is a
delay under a receipt that is still good: its owner may settle the message, or claim it for longer.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages import NotDue
from quorumq.core.partition.attempts import Attempts
from quorumq.core.values.types import Record, Stamp


class Delay(NamedTuple):
    """The message is not due before ``due`` (monotonic seconds).

    A REJECT's delays (generation, n) alone; the higher (generation, n, ballot) wins. A ``claim`` delays the message in
    any generation; it has the attempts that had ended when its delivery was granted.
    """

    n: int
    ballot: Stamp
    due: float
    generation: int = 0
    claim: Attempts | None = None


def latest(ours: Delay | None, theirs: Delay) -> Delay:
    """Return the delay or claim that stays: ours if they are equal, or the later end of one claim."""
    if ours is None:
        return theirs
    mine, other = rank(ours), rank(theirs)
    if mine == other and ours.claim is not None and theirs.due > ours.due:
        return theirs
    return ours if mine >= other else theirs


def rank(delay: Delay) -> tuple[int, int, Stamp, bool]:
    """Return the order of delays and claims of a message: a claim is over once a REJECT's delay is above it."""
    return (delay.generation, delay.n, delay.ballot, delay.claim is None)


def keeping(delay: Delay | None, now: float, asked: Record) -> Delay | None:
    """Return the delay if it keeps the message from being delivered at ``asked``, else None."""
    if delay is None or delay.due <= now:
        return None
    return delay if delay.claim is not None or (delay.generation, delay.n) == asked[:2] else None


def claim_of(delay: Delay | None, ballot: Stamp) -> Delay | None:
    """Return the claim of the delivery under ``ballot``; its time may be over."""
    return delay if delay is not None and delay.claim is not None and delay.ballot == ballot else None


def is_rejected(record: Record, claim: Delay) -> bool:
    """Return True if a claim is over because its owner has made the message a dead letter.

    Why: the journal, and a peer that missed the REJECT, have the claim beside that record.
    """
    return record.death is not None and record.death.ballot == claim.ballot


def not_due_of(delay: Delay, now: float) -> tuple[int, Stamp, float, int, bool, int, int]:
    """Return a delay as the journal and peers get it, in a `NotDue`, without the span: its rest, never a time."""
    n, ballot, due, generation, claim = delay
    ended, expiries = (claim.ended, claim.expiries) if claim is not None else (0, 0)
    return (n, ballot, max(0.0, due - now), generation, claim is not None, ended, expiries)


def delay_from(item: NotDue, now: float, seconds: float | None = None) -> Delay:
    """Return the delay that a journal or a peer has reported, with ``seconds`` left if the time since is known."""
    due = now + (item.remaining if seconds is None else seconds)
    claim = Attempts(item.generation, item.n, item.ended, False, item.expiries) if item.claimed else None
    return Delay(item.n, item.ballot, due, item.generation, claim)

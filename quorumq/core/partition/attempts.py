"""Number of deliveries of a message that have ended, the way they ended, and the effect on its next delivery."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.values.limits import INTERRUPTIONS_MAX, NUMBERS_END

LOT_MAX = 4
"""Most messages that expired twice that are delivered together."""


class Attempts(NamedTuple):
    """Number of attempts at (generation, redrive number ``n``) that ended by expiry or REJECT, and the last one's end.

    The greater count is kept, and the greater numbers of expiries and of interruptions of the two. Of equal counts the
    greater is the one whose last attempt expired. A message that is wrongly suspected loses some time, while one that
    is wrongly trusted takes its neighbours along.
    """

    generation: int
    n: int
    ended: int
    last_expired: bool = False  # the last of them ended by expiry: it may have taken its process along
    expiries: int = 0  # how many of them did
    interruptions: int = 0  # deliveries beside them that a clean stop of their consumer ended


NO_ATTEMPTS = Attempts(0, 0, 0)


def greater(ours: Attempts, theirs: Attempts) -> Attempts:
    """Merge two counts; each field is the maximum, because nodes count only attempts that have ended."""
    best = max(ours, theirs)
    if ours[:2] == theirs[:2]:
        expiries = max(ours.expiries, theirs.expiries)
        return best._replace(expiries=expiries, interruptions=max(ours.interruptions, theirs.interruptions))
    return best


def with_another(before: Attempts, *, expired: bool = False, interrupted: bool = False) -> Attempts:
    """Return the count once another delivery has ended: by expiry, interrupted by a clean stop, or else by REJECT.

    An interruption is not the message's fault, so it ends no attempt and keeps the last outcome. Up to the limit:
    operators also stop workers that are stuck on a poison message.
    """
    if interrupted and before.interruptions < INTERRUPTIONS_MAX:
        return before._replace(interruptions=before.interruptions + 1)
    ended = min(before.ended + 1, NUMBERS_END - 1)
    return before._replace(ended=ended, last_expired=expired, expiries=min(before.expiries + expired, ended))


def is_exhausted(attempts: Attempts, max_deliveries: int) -> bool:
    """Return True if no delivery is left.

    A message that was only rejected before, and expired at the last delivery, had company there. It gets one more
    delivery, alone.
    """
    if attempts[2] < max_deliveries:
        return False
    once = attempts.last_expired and attempts.expiries == 1 and attempts.ended == max_deliveries
    return not (once and max_deliveries > 1)


def lot_of(attempts: Attempts, max_deliveries: int) -> int:
    """Return the largest lot in which messages that expired are delivered, given one message's attempts; 0: any.

    An expiry does not show its cause. The message may have crashed its process; mostly a neighbour did, or no message.
    So a message that expired once is delivered as any other. From the second expiry on it is in a lot of 4, then of 2,
    then alone. A message that crashes its process is found in a few more attempts. Its neighbours wait for a few
    lots and not for each other. The last delivery before the dead letters is always alone, and the ones before it are
    in lots of 2 and 4 at most, so that no neighbour's fault ends a message.
    """
    if not attempts.last_expired or is_exhausted(attempts, max_deliveries):
        return 0
    remaining = max_deliveries - attempts.ended  # deliveries, the next one included
    if remaining <= 1:
        return 1
    if attempts.expiries < 2:
        return 0
    return max(1, min(LOT_MAX >> (attempts.expiries - 2), 1 << min(remaining - 1, LOT_MAX)))

"""The HOLD table of one group in one partition of one replica.

Why it is a file of its own: exclusivity (promise G2) rests on what a single replica does here. Two majorities
share a replica; that replica grants one owner at a time, replaces none, and forgets nothing that it granted
while the grant can be live. Everything that could break that is in this file, as small methods, so that the
explorer can switch each rule off and show the failure that follows (docs/protocol.md, section 4).

Holds and the highest ballot granted belong to the message, whatever generation or redrive number the HOLD had.
Nothing here is on disk: a replica that restarts asks the others, or waits out its quarantine (core/recovery.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quorumq.core.messages import Refused
from quorumq.core.records import BallotAtStop
from quorumq.core.spans import SpanMap
from quorumq.core.types import Incarnation, Owner, Span, Stamp


class Held(NamedTuple):
    """A hold as its replica keeps it: until ``deadline`` by the replica's monotonic clock (seconds)."""

    owner: Owner
    deadline: float
    n: int  # the redrive number it was granted under: the attempt that it may become belongs to it
    generation: int = 0  # likewise
    ended: int = 0  # attempts that had ended when it was granted here: when it ends, one more have


NOBODY = Owner("", Incarnation(0, 0), Stamp(0, ""))
"""The owner of what two owners were reported of: it matches none, so nothing can be done in its name."""


class HoldTable:
    """The holds of one group in one partition.

    Args:
        floor: stamps up to this time may have been granted before this start and forgotten.
    """

    __slots__ = ("ballots", "floor", "floors", "holds", "rivals")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.floors: SpanMap[int] = (
            SpanMap()
        )  # higher ones, of messages whose ballots were forgotten in this start
        self.holds: SpanMap[Held] = SpanMap()
        self.ballots: SpanMap[Stamp] = SpanMap()
        self.rivals: SpanMap[tuple[Owner, ...]] = SpanMap()  # the owners reported of what NOBODY holds

    # ------------------------------------------------------------------- rules

    def is_owner(self, held: Held, owner: Owner) -> bool:
        """A hold belongs to one attempt of one incarnation of one node: all three must match."""
        return held.owner == owner

    def is_above(self, ballot: Stamp, highest: Stamp | None, floor: int) -> bool:
        """Ballots only rise: above the highest granted for the message, or the floor where we have no memory."""
        if highest is None:
            return ballot.time > floor
        return ballot > highest

    def may_replace(self, held: Held, owner: Owner) -> bool:
        """No hold is ever replaced, whatever its ballot."""
        return False

    def may_extend(self, held: Held | None, owner: Owner) -> bool:
        """EXTEND is granted only where exactly this owner holds now; nothing else revives a hold."""
        return held is not None and self.is_owner(held, owner)

    # ------------------------------------------------------------------- votes

    def vote(
        self,
        span: Span,
        n: int,
        owner: Owner,
        now: float,
        hold_time: float,
        generation: int = 0,
        ended: int = 0,
    ) -> tuple[list[Span], list[Refused]]:
        """ON HOLD, the part about holds: what is granted of ``span``, and what is refused and why.

        Call `expire` first: what has run out must not stand in the way, and must be counted.
        """
        granted: list[Span] = []
        refused: list[Refused] = []
        deadline = now + hold_time
        for part, held in self.holds.split(span):
            mine = held is not None and self.is_owner(held, owner)
            for piece, highest, floor in self.memory(part):
                if held is not None and mine and highest is not None:
                    self.holds.set(piece, held._replace(deadline=max(held.deadline, deadline)))
                    granted.append(piece)
                    continue
                # A hold learned from a peer was not granted here: it is now, if its ballot is above the floor.
                if not self.is_above(owner.ballot, highest, floor) or (
                    held is not None and not mine and not self.may_replace(held, owner)
                ):
                    remaining = held.deadline - now if held is not None else 0.0
                    refused.append(Refused(piece, highest or Stamp(floor, ""), remaining))
                    continue
                until = max(held.deadline, deadline) if held is not None and mine else deadline
                self.holds.set(piece, Held(owner, until, n, generation, ended))
                self.ballots.set(piece, owner.ballot)
                granted.append(piece)
        return granted, refused

    def memory(self, span: Span) -> list[tuple[Span, Stamp | None, int]]:
        """``span`` in pieces with the highest ballot granted, or None, and the floor of what may be forgotten."""
        if not self.floors:
            return [(part, highest, self.floor) for part, highest in self.ballots.split(span)]
        return [
            (piece, highest, max(self.floor, floor or 0))
            for part, highest in self.ballots.split(span)
            for piece, floor in self.floors.split(part)
        ]

    def forget(self, span: Span) -> None:
        """The payload goes, and with it the memory of ballots: no ACK is exclusive until it is back."""
        self.ballots.remove(span)
        self.floors.remove(span)

    def raise_floor(self, span: Span, floor: int) -> None:
        """The payload is back: whatever was granted before and forgotten is not above ``floor``."""
        if floor > self.floor:
            self.floors.set(span, floor)

    def release(self, span: Span, owner: Owner) -> list[tuple[Span, Held]]:
        """Remove the holds of exactly ``owner``; what was removed."""
        gone = [(part, held) for part, held in self.holds.within(span) if self.is_owner(held, owner)]
        for part, _ in gone:
            self.holds.remove(part)
        for part, rivals in self.rivals.within(span) if self.rivals else ():
            if owner in rivals:
                left = tuple(rival for rival in rivals if rival != owner)
                if left:
                    self.rivals.set(part, left)
                else:
                    gone += self.holds.within(part)
                    self._remove(part)
        return gone

    def _remove(self, span: Span) -> bool:
        """Nobody holds ``span`` any more; whether somebody did."""
        if self.rivals:
            self.rivals.remove(span)
        return bool(self.holds.remove(span))

    def extend(self, span: Span, owner: Owner, deadline: float) -> tuple[list[Span], list[Span]]:
        """EXTEND: what now lasts until ``deadline`` at least, and what was refused."""
        granted: list[Span] = []
        refused: list[Span] = []
        for part, held in self.holds.split(span):
            if self.may_extend(held, owner):
                until = deadline if held is None else max(held.deadline, deadline)
                before = held if held is not None else Held(owner, until, 0)
                self.holds.set(part, before._replace(owner=owner, deadline=until))
                granted.append(part)
            else:
                refused.append(part)
        return granted, refused

    def expired(self, span: Span, now: float) -> list[tuple[Span, Held]]:
        """Remove and return the holds within ``span`` whose time has run out."""
        gone = [(part, held) for part, held in self.holds.within(span) if held.deadline <= now]
        for part, _ in gone:
            self._remove(part)
        return gone

    def exclusivity(self, span: Span, owner: Owner) -> tuple[list[Span], list[Span]]:
        """For an ACK under ``owner``: where no higher ballot can have been granted here, and where one was.

        What is in neither list lies below the floor: this replica cannot say (docs/protocol.md, ACK).
        """
        exclusive: list[Span] = []
        higher: list[Span] = []
        for part, highest, floor in self.memory(span):
            if highest is None:
                if floor < owner.ballot.time:
                    exclusive.append(part)
            elif highest <= owner.ballot:
                exclusive.append(part)
            else:
                higher.append(part)
        return exclusive, higher

    def restore(self, span: Span, held: Held, ballot: Stamp) -> None:
        """Take back a hold from CLEAN_STOP."""
        self.holds.set(span, held)
        if ballot.time:
            self.ballots.set(span, ballot)

    def memory_at_stop(self) -> tuple[BallotAtStop, ...]:
        """Every ballot and floor of its own that is remembered of a message, for CLEAN_STOP."""
        kept: list[BallotAtStop] = []
        for span, ballot in self.ballots.items():
            kept += [BallotAtStop(part, ballot, floor or 0) for part, floor in self.floors.split(span)]
        for span, floor in self.floors.items():
            kept += [BallotAtStop(gap, (0, ""), floor) for gap in self.ballots.gaps(span)]
        return tuple(kept)

    def restore_memory(self, floor: int, kept: Iterable[BallotAtStop]) -> None:
        """Take back the memory of CLEAN_STOP: what was granted before this start is known, as if there were no stop."""
        self.floor = floor
        for span, ballot, own in kept:
            if ballot[0]:
                self.ballots.set(span, Stamp(*ballot))
            if own:
                self.floors.set(span, own)

    def learn(self, span: Span, held: Held) -> None:
        """Take over a hold that a peer reported (core/recovery.py). All that are reported are kept.

        Where two owners are, one has half won the message and the other may be delivering it: it is blocked, held by
        NOBODY, so that nobody is granted, extended or rejected, until both have given it up or all time is over.
        """
        for part, ours in self.holds.split(span):
            if ours is None:
                self.holds.set(part, held)
                continue
            until = max(ours.deadline, held.deadline)
            if self.is_owner(ours, held.owner):
                self.holds.set(part, ours._replace(deadline=until))
                continue
            newest = max(ours.generation, held.generation)
            ended = max(ours.ended, held.ended)
            self.holds.set(part, Held(NOBODY, until, max(ours.n, held.n), newest, ended))
            for piece, rivals in self.rivals.split(part):
                known = rivals or (ours.owner,)
                if held.owner not in known:
                    self.rivals.set(piece, (*known, held.owner))

    def check(self) -> None:
        """Assert what holds between any two events: every hold granted here was granted under the highest ballot."""
        self.holds.check()
        self.ballots.check()
        self.rivals.check()
        self.floors.check()
        for span, held in self.holds.items():
            for _, highest in self.ballots.within(span):
                assert held.owner.ballot <= highest, f"{span}: held under {held.owner}, above {highest}"
        for span, rivals in self.rivals.items():
            for _, blocked in self.holds.split(span):
                assert blocked is not None, f"{span} has rivals and is not held"
                assert blocked.owner == NOBODY, f"{span}: held by {blocked.owner} beside {rivals}"

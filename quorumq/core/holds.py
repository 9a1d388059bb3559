# quorumq/core/holds.py: the HOLD table of one group in one partition of one replica.
#
# Why it is a file of its own: exclusivity (promise G2) rests on what a single replica does here. Two majorities
# share a replica; that replica grants one owner at a time, replaces none, and forgets nothing that it granted
# while the grant can be live. Everything that could break that is in this file, as small methods, so that the
# explorer can switch each rule off and show the failure that follows (docs/protocol.md, section 4).
#
# Holds and the highest ballot granted belong to the message, whatever generation or redrive number the HOLD had.
# Nothing here is on disk: a replica that restarts waits out its quarantine instead (docs/protocol.md, RECOVERY).
"""Who holds what, until when, and the highest ballot ever granted for each message."""

from __future__ import annotations

from typing import NamedTuple

from quorumq.core.messages import Refused
from quorumq.core.spans import SpanMap
from quorumq.core.types import Owner, Span, Stamp


class Held(NamedTuple):
    """A hold as its replica keeps it: until ``deadline`` by the replica's monotonic clock (seconds)."""

    owner: Owner
    deadline: float
    n: int  # the redrive number it was granted under: the attempt that it may become belongs to it
    generation: int = 0  # likewise


class HoldTable:
    """The holds of one group in one partition.

    Args:
        floor: stamps up to this time may have been granted before this start and forgotten.
    """

    __slots__ = ("ballots", "floor", "holds")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.holds: SpanMap[Held] = SpanMap()
        self.ballots: SpanMap[Stamp] = SpanMap()

    # ------------------------------------------------------------------- rules

    def is_owner(self, held: Held, owner: Owner) -> bool:
        """A hold belongs to one attempt of one incarnation of one node: all three must match."""
        return held.owner == owner

    def is_above(self, ballot: Stamp, highest: Stamp | None) -> bool:
        """Ballots only rise: above the highest granted for the message, or the floor where we have no memory."""
        if highest is None:
            return ballot.time > self.floor
        return ballot > highest

    def may_replace(self, held: Held, owner: Owner) -> bool:
        """No hold is ever replaced, whatever its ballot."""
        return False

    def may_extend(self, held: Held | None, owner: Owner) -> bool:
        """EXTEND is granted only where exactly this owner holds now; nothing else revives a hold."""
        return held is not None and self.is_owner(held, owner)

    # ------------------------------------------------------------------- votes

    def vote(
        self, span: Span, n: int, owner: Owner, now: float, hold_time: float, generation: int = 0
    ) -> tuple[list[Span], list[Refused]]:
        """ON HOLD, the part about holds: what is granted of ``span``, and what is refused and why.

        Call `expire` first: what has run out must not stand in the way, and must be counted.
        """
        granted: list[Span] = []
        refused: list[Refused] = []
        deadline = now + hold_time
        for part, held in self.holds.split(span):
            if held is not None and self.is_owner(held, owner):
                self.holds.set(part, held._replace(deadline=max(held.deadline, deadline)))
                granted.append(part)
                continue
            for piece, highest in self.ballots.split(part):
                if not self.is_above(owner.ballot, highest) or (
                    held is not None and not self.may_replace(held, owner)
                ):
                    remaining = held.deadline - now if held is not None else 0.0
                    refused.append(Refused(piece, highest or Stamp(self.floor, ""), remaining))
                    continue
                self.holds.set(piece, Held(owner, deadline, n, generation))
                self.ballots.set(piece, owner.ballot)
                granted.append(piece)
        return granted, refused

    def release(self, span: Span, owner: Owner) -> list[tuple[Span, Held]]:
        """Remove the holds of exactly ``owner``; what was removed."""
        gone = [(part, held) for part, held in self.holds.within(span) if self.is_owner(held, owner)]
        for part, _ in gone:
            self.holds.remove(part)
        return gone

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

    def end(self, span: Span, generation: int) -> None:
        """``span`` was ACKED in ``generation``: end the holds of that and of older ones.

        An ACKED of an older generation that comes late says nothing of a delivery after the rewind.
        """
        for part, held in self.holds.within(span):
            if held.generation <= generation:
                self.holds.remove(part)

    def expired(self, span: Span, now: float) -> list[tuple[Span, Held]]:
        """Remove and return the holds within ``span`` whose time has run out."""
        gone = [(part, held) for part, held in self.holds.within(span) if held.deadline <= now]
        for part, _ in gone:
            self.holds.remove(part)
        return gone

    def exclusivity(self, span: Span, owner: Owner) -> tuple[list[Span], list[Span]]:
        """For an ACK under ``owner``: where no higher ballot can have been granted here, and where one was.

        What is in neither list lies below the floor: this replica cannot say (docs/protocol.md, ACK).
        """
        exclusive: list[Span] = []
        higher: list[Span] = []
        for part, highest in self.ballots.split(span):
            if highest is None:
                if self.floor <= owner.ballot.time:
                    exclusive.append(part)
            elif highest <= owner.ballot:
                exclusive.append(part)
            else:
                higher.append(part)
        return exclusive, higher

    def restore(self, span: Span, held: Held, ballot: Stamp) -> None:
        """Take back a hold from CLEAN_STOP."""
        self.holds.set(span, held)
        self.ballots.set(span, ballot)

    def check(self) -> None:
        """Assert what holds between any two events: every hold was granted under the highest ballot."""
        self.holds.check()
        self.ballots.check()
        for span, held in self.holds.items():
            for _, highest in self.ballots.split(span):
                assert highest is not None, f"{span} is held and has no ballot"
                assert held.owner.ballot <= highest, f"{span}: held under {held.owner}, above {highest}"

"""The holds of one group by themselves: each step of a delivery, asked of a view without a replica around it."""

from __future__ import annotations

from typing import Any

from quorumq.core.messages import Granted, Refused
from quorumq.core.partition import fate
from quorumq.core.partition.closed import ClosedSessions
from quorumq.core.partition.fate import AckAsk, ExtendAsk, HoldAsk, ReleaseAsk
from quorumq.core.partition.group import Changes, GroupView
from quorumq.core.partition.lease import NO_BALLOTS, Held
from quorumq.core.values.types import OPEN_ZERO, Kind, Owner, Record, Span


class Holding:
    """A group whose messages are all open."""

    def __init__(self, min_ballot: int) -> None:
        self.view = GroupView("g", min_ballot, ClosedSessions())

    def ask(self, span: Span, rule: fate.Rule, ask: Any, now: float = 0.0) -> list[tuple[Span, Any]]:
        """The answers of ``rule`` for ``span``."""
        return self.view.apply(span, rule, ask, self.view.rule_context(now), Changes())

    def hold(
        self, span: Span, owner: Owner, now: float, hold_time: float
    ) -> tuple[list[Span], list[tuple[Span, Refused]]]:
        """Return the granted and the refused spans."""
        answers = self.ask(span, fate.on_hold, HoldAsk(owner, OPEN_ZERO, now + hold_time, 5, 0.0), now)
        granted = [part for part, (vote, *_) in answers if vote is Granted]
        return granted, [(part, vote(part, *rest)) for part, (vote, *rest) in answers if vote is Refused]

    def release(self, span: Span, owner: Owner) -> list[Span]:
        """Return the spans that are released."""
        before = self.view.held(span)
        self.ask(span, fate.on_release, ReleaseAsk(owner, theirs=True))
        return [part for part, _ in before if not self.view.held(part)]

    def extend(
        self, span: Span, owner: Owner, until: float, now: float = 0.0
    ) -> tuple[list[Span], list[Span]]:
        """Return the extended and the refused spans."""
        answers = self.ask(span, fate.on_extend, ExtendAsk(owner, until), now)
        return [part for part, yes in answers if yes], [part for part, yes in answers if not yes]

    def expire(self, span: Span, now: float) -> list[Span]:
        """Return the spans whose hold has expired."""
        before = self.view.held(span)
        self.ask(span, fate.on_expire, None, now)
        return [part for part, held in before if held.deadline <= now]

    def exclusive(self, span: Span, owner: Owner) -> tuple[list[Span], list[Span]]:
        """Return the spans for which an ACK would learn that no higher ballot was granted, and those with one."""
        answers = [
            (part, fate.exclusive(ballots or NO_BALLOTS, self.view.rule_context(0.0), owner))
            for part, ballots in self.view.ballots.split(span)
        ]
        return [part for part, proof in answers if proof], [part for part, proof in answers if proof is False]

    def ack(self, span: Span, owner: Owner) -> None:
        self.ask(span, fate.on_ack, AckAsk(owner, Record(0, 0, Kind.ACKED)))

    def report(self, span: Span, held: Held) -> None:
        self.ask(span, fate.on_reported, held)

    def holds(self) -> list[tuple[Span, Held]]:
        return self.view.all_held()

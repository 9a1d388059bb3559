"""The judges of a history: each file holds one promise of docs/protocol.md and the way to see it broken.

They read lines of quorumq/history.py and nothing else, so a history of real processes can be judged as well.
All of them see every line once, in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.history import Row
from sim.checkers.base import Checker, Violation
from sim.checkers.clocks import OneWrongClock
from sim.checkers.dead_letters import DeadLettersConserved
from sim.checkers.exclusive import Exclusive
from sim.checkers.final import FinalAfterAck
from sim.checkers.groups import GroupsAsAsked
from sim.checkers.live import Live
from sim.checkers.loss import NoLoss
from sim.checkers.settings import SettingsAsWritten
from sim.checkers.thin_air import NoThinAir

CHECKERS: tuple[type[Checker], ...] = (
    NoLoss,
    NoThinAir,
    Exclusive,
    FinalAfterAck,
    DeadLettersConserved,
    GroupsAsAsked,
    Live,
    OneWrongClock,
    SettingsAsWritten,
)


def judge(rows: Iterable[Row]) -> list[Violation]:
    """What all checkers say of a history in order of time; empty if it keeps every promise."""
    checkers = [checker() for checker in CHECKERS]
    wanted: dict[str, list[Checker]] = {}
    for checker in checkers:
        for kind in checker.kinds:
            wanted.setdefault(kind, []).append(checker)
    for row in rows:
        for checker in wanted.get(row["kind"], ()):
            checker.see(row)
    return [violation for checker in checkers for violation in checker.verdict()]


__all__ = ["CHECKERS", "Checker", "Violation", "judge"]

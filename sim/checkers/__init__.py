"""The checkers of a history: each file holds one promise of docs/protocol.md and the way to see it broken.

They read lines of quorumq/history and nothing else, so a history of real processes can be judged as well.
All of them see every line once, in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.history import Row
from sim.checkers.asked_for import GroupsAskedFor
from sim.checkers.base import Checker, Violation
from sim.checkers.claims import ClaimsKept
from sim.checkers.clocks import OneWrongClock
from sim.checkers.dead_letters import DeadLettersConserved
from sim.checkers.deleted import DeletedForGood, deleted_topics
from sim.checkers.derived import DerivedOnce
from sim.checkers.exclusive import Exclusive
from sim.checkers.failed import FailedIsNo
from sim.checkers.final import FinalAfterAck
from sim.checkers.groups import GroupsAsAsked
from sim.checkers.labels import LabelsAsWritten
from sim.checkers.layouts import OneLayout
from sim.checkers.limited import LimitedGroups
from sim.checkers.live import Live
from sim.checkers.loss import NoLoss
from sim.checkers.named import NamesKept
from sim.checkers.paused import PausedGroups
from sim.checkers.settings import SettingsAsWritten
from sim.checkers.standing import CreationsStand
from sim.checkers.thin_air import NoThinAir
from sim.checkers.turns import EachInTurn
from sim.checkers.waits import NoLongWaits
from sim.checkers.wins import ExclusiveWins

CHECKERS: tuple[type[Checker], ...] = (
    NoLoss,
    NoThinAir,
    Exclusive,
    ClaimsKept,
    ExclusiveWins,
    FinalAfterAck,
    DeadLettersConserved,
    GroupsAsAsked,
    GroupsAskedFor,
    LabelsAsWritten,
    PausedGroups,
    LimitedGroups,
    NamesKept,
    CreationsStand,
    FailedIsNo,
    Live,
    NoLongWaits,
    EachInTurn,
    OneWrongClock,
    SettingsAsWritten,
    OneLayout,
)

OF_ALL: tuple[type[Checker], ...] = (DerivedOnce, DeletedForGood)


def check_history(rows: Iterable[Row]) -> list[Violation]:
    """Return all checkers' violations of a history in order of time; empty if it keeps every promise.

    Each topic has checkers of its own, which see the lines of it and those of no topic; `OF_ALL` see every line. The
    checkers of a topic that was deleted do not see that the run was drained.
    """
    rows = list(rows)
    over = deleted_topics(rows)
    checkers: list[Checker] = [checker() for checker in OF_ALL]
    of_all = dict(wanted_by(checkers))
    by_topic: dict[str, dict[str, list[Checker]]] = {}
    for topic in dict.fromkeys(row["topic"] for row in rows if "topic" in row) or ("",):
        mine = [checker() for checker in CHECKERS]
        checkers += mine
        by_topic[topic] = wanted_by(mine)
    for row in rows:
        kind = row["kind"]
        for checker in of_all.get(kind, ()):
            checker.see(row)
        drained = kind == "phase" and row["phase"] == "drained"
        for topic in [row["topic"]] if "topic" in row else by_topic:
            if not drained or topic not in over:
                for checker in by_topic[topic].get(kind, ()):
                    checker.see(row)
    return list(dict.fromkeys(violation for checker in checkers for violation in checker.verdict()))


def wanted_by(checkers: Iterable[Checker]) -> dict[str, list[Checker]]:
    """Return the checkers that read each kind of line."""
    by_kind: dict[str, list[Checker]] = {}
    for checker in checkers:
        for kind in checker.kinds:
            by_kind.setdefault(kind, []).append(checker)
    return by_kind


__all__ = ["CHECKERS", "OF_ALL", "Checker", "Violation", "check_history"]

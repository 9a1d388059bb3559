"""Rules of suspects: what may have taken its process along is delivered alone."""

from __future__ import annotations

from typing import Any

from quorumq.core.fetch import FetchCoordinator
from quorumq.core.partition import fate
from sim.explorer.scenario import Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, C

_win = FetchCoordinator._win


def win_whatever_voters_say(self: FetchCoordinator, *args: Any) -> Any:
    *rest, _, now = args
    return _win(self, *rest, False, now)


def first_timers_only(self: FetchCoordinator, context: Any) -> list[tuple[Any, bool]]:
    return [(partition, False) for partition in self.partitions]


BESIDE_OTHERS = Scenario(
    "beside-others",
    "1 attempt that runs out, 1 of a client that has something in hand",
    attempts=1,
    busy=1,
    ticks=2,
    coordinators=(A, C),
)

RULES: tuple[Rule, ...] = (
    Rule(
        "suspects-are-alone",
        "what ended by expiry is delivered only to a client that has nothing in hand",
        ((fate, "is_suspect", lambda lease, asked: False),),
        off="how an attempt ended is not looked at",
        scenario=BESIDE_OTHERS,
    ),
    Rule(
        "voters-name-suspects",
        "what a voter calls a suspect is one, whatever the coordinator took it for",
        ((FetchCoordinator, "_win", win_whatever_voters_say),),
        off="the coordinator goes by its own record alone",
        scenario=BESIDE_OTHERS,
    ),
    Rule(
        "idle-clients-get-suspects",
        "a client that has nothing in hand gets a suspect, where there is one",
        ((FetchCoordinator, "_turns", first_timers_only),),
        hunted=True,
    ),
)

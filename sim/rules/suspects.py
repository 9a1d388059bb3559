"""Rules of suspects, which may have taken their process along, and of messages that are asked for by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorumq.core.partition import attempts
from quorumq.core.partition.attempts import Attempts
from quorumq.core.partition.choice import Choice
from quorumq.core.requests import lots
from quorumq.core.requests.fetch import FetchCoordinator
from sim.explorer.scenario import Budget, Scenario
from sim.rules.rule import Rule
from sim.rules.scripts import A, C
from sim.rules.stand_ins import Before, around, given


def by_its_own_record(*args: Any) -> tuple[Any, ...]:
    *asked, attempts, now = args
    return (*asked, attempts._replace(last_expired=False), now)


def take_named_for_idle(before: Before[Any], self: FetchCoordinator, context: Any, now: Any) -> Any:
    if self.request.spans:
        self.request = self.request._replace(idle=True)
    return before(self, context, now)


def interrupted_for_ever(
    before: Before[Attempts], counted: Attempts, *, expired: bool = False, interrupted: bool = False
) -> Attempts:
    known = before(counted._replace(interruptions=0), expired=expired, interrupted=interrupted)
    return known._replace(interruptions=known.interruptions + counted.interruptions)


def interrupted_as_rejected(
    before: Before[Attempts], counted: Attempts, *, expired: bool = False, interrupted: bool = False
) -> Attempts:
    return before(counted, expired=expired)


BESIDE_OTHERS = Scenario(
    "beside-others",
    "1 attempt of 2 that runs out, 1 of a client that has something in hand",
    budget=Budget(attempts=1, busy=1, ticks=2),
    max_deliveries=2,  # so that the second one is the last
    coordinators=(A, C),
)

RULES: tuple[Rule, ...] = (
    Rule(
        "suspects-are-alone",
        "what may die of one more expiry, or expired twice, is delivered only to a client that has nothing in hand",
        ((attempts, "lot_of", lambda counted, max_deliveries: 0),),
        scenario=BESIDE_OTHERS,
    ),
    Rule(
        "voters-name-suspects",
        "what a voter calls a suspect is one, whatever the coordinator took it for",
        (given(FetchCoordinator, "_win", by_its_own_record),),
        scenario=BESIDE_OTHERS,
    ),
    Rule(
        "names-are-no-exception",
        "what a client asks for by its id is delivered only where any FETCH might bring it: a suspect is alone",
        (around(FetchCoordinator, "start", take_named_for_idle),),
        scenario=replace(
            BESIDE_OTHERS,
            name="named-beside-others",
            about="1 attempt of 2 that runs out, 1 of a client that has something in hand; both by the message's id",
            by_id=True,
        ),
    ),
    Rule(
        "fetch-what-is-named",
        "a FETCH that names messages brings these and no others",
        (given(Choice, "choose", lambda *args: (*args[:3], args[3]._replace(named=()), args[4])),),
        scenario=Scenario(
            "fetch-beside",
            "1 attempt, by the id of another message",
            budget=Budget(attempts=1, ticks=2),
            by_id=True,
            beside=True,
            coordinators=(A, C),
        ),
    ),
    Rule(
        "interrupted-is-no-attempt",
        "a delivery that is given back as interrupted counts as no attempt",
        (around(attempts, "with_another", interrupted_as_rejected),),
        scenario=Scenario(
            "interrupted",
            "1 attempt that is given back as interrupted, and time for a dead letter, but not for an expiry",
            budget=Budget(attempts=1, rejects=2, ticks=1),
            max_deliveries=1,
            coordinators=(A, C),
            reject_as=("interrupted",),
        ),
    ),
    Rule(
        "interruptions-end",
        "from the eleventh on, an interruption counts as an attempt",
        (around(attempts, "with_another", interrupted_for_ever),),
        survives="a promise about messages that are always interrupted",
        test="test_interruptions::test_the_eleventh_interruption_counts_and_the_dead_letter_has_both_counts",
    ),
    Rule(
        "idle-clients-get-suspects",
        "a client that has nothing in hand gets a suspect, where there is one",
        ((lots, "turns", lambda _, request, partitions, *__, idle: [(it, False) for it in partitions]),),
    ),
)

"""Rules of claims, which keep a delivered message from others for longer than a hold."""

from __future__ import annotations

from typing import Any

from quorumq.core.partition import fate
from quorumq.core.partition.delays import Delay
from quorumq.core.partition.replica import Replica
from quorumq.core.values.types import Record, Stamp
from sim.explorer.scenario import Budget, Scenario, Script
from sim.rules.rule import Rule
from sim.rules.scripts import RUN_OUT, A, B, C, answered, won
from sim.rules.stand_ins import Before, after, around


def keeping_one_life(delay: Delay | None, now: float, asked: Record) -> Delay | None:
    """Keep the message at one generation and redrive number alone, as a REJECT's delay does."""
    known = delay is not None and delay.due > now and (delay.generation, delay.n) == asked[:2]
    return delay if known else None


def keeping_no_claim(
    before: Before[Delay | None], delay: Delay | None, now: float, asked: Record
) -> Delay | None:
    """Keep only messages that a REJECT has delayed."""
    return None if delay is not None and delay.claim is not None else before(delay, now, asked)


def claim_of_any(delay: Delay | None, ballot: Stamp) -> Delay | None:
    """Return the claim, whichever delivery it is of."""
    return delay if delay is not None and delay.claim is not None else None


CLAIMED: Script = (*won(A, B), ("ask", A, "claim", 0), *answered("Extend", "ExtendReply", A, B))
"""a0 is delivered through a by the vote of b, and claimed at both."""

OUTLASTED: dict[str, Any] = {"via": (A,), "give_up": False}

RULES = (
    Rule(
        "claim-in-any-generation",
        "a claim keeps the message from being delivered in any generation",
        ((fate, "keeping", keeping_one_life),),
        scenario=Scenario(
            "claim-rewound",
            "1 attempt claims the message, a rewind, its hold runs out, 1 attempt",
            budget=Budget(claims=1, ticks=3, rewinds=1),
            rewind_via=(B,),
            coordinators=(A, C),
            script=(*CLAIMED, ("ask", B, "rewind"), ("settle",), *RUN_OUT),
            **OUTLASTED,
        ),
        hunted=True,
    ),
    Rule(
        "claim-outlasts-its-hold",
        "while a claim stands, a replica grants no other ballot",
        (around(fate, "keeping", keeping_no_claim),),
        scenario=Scenario(
            "claim",
            "1 attempt claims the message at two of three nodes, its hold runs out, 1 attempt",
            budget=Budget(claims=1, ticks=4),
            coordinators=(A, C),
            script=(*CLAIMED, *RUN_OUT),
            **OUTLASTED,
        ),
    ),
    Rule(
        "claim-is-durable",
        "a claim is on disk before it is answered for",
        (after(Replica, "on_extend", lambda extended: (extended[0], None)),),
        scenario=Scenario(
            "claim-restart",
            "1 attempt claims the message at two of three nodes, 1 crash, its hold runs out, 1 attempt",
            budget=Budget(claims=1, ticks=3, restarts=1),
            restart_nodes=(B,),
            coordinators=(A, C),
            script=(*CLAIMED, ("crash", B), *RUN_OUT, ("tick",)),
            **OUTLASTED,
        ),
    ),
    Rule(
        "claim-ends-by-its-owner",
        "after the hold a REJECT or EXTEND is for the delivery that has the claim",
        ((fate, "claim_of", claim_of_any),),
        scenario=Scenario(
            "claim-rejected",
            "a0 runs out, a1 claims the message and its hold runs out; a late REJECT of a0, 1 attempt",
            budget=Budget(claims=1, attempts=3, ticks=5, rejects=1),
            reject_as=("now",),
            coordinators=(A, C),
            script=(
                *won(A, B),
                *RUN_OUT,
                *won(A, B),
                ("ask", A, "claim", 1),
                *answered("Extend", "ExtendReply", A, B),
                *RUN_OUT,
                ("ask", A, "now", 0),
            ),
            **OUTLASTED,
        ),
    ),
)

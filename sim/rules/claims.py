"""Rules of claims: what keeps a delivered message from others for longer than a hold."""

from __future__ import annotations

from quorumq.core.partition import fate
from quorumq.core.partition.delays import Delay
from quorumq.core.values.types import Record
from sim.rules.rule import Rule


def keeping_one_life(delay: Delay | None, now: float, asked: Record) -> Delay | None:
    """Keep the message at one generation and redrive number alone, as a REJECT's delay does."""
    known = delay is not None and delay.due > now and (delay.generation, delay.n) == asked[:2]
    return delay if known else None


RULES = (
    Rule(
        "claim-in-any-generation",
        "a claim keeps the message from being delivered in any generation",
        ((fate, "keeping", keeping_one_life),),
    ),
)

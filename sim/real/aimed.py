"""Faults that test three rules: an ACK is durable at a majority, holds survive a crash, an fsync syncs.

Faults that are drawn one by one seldom meet such a state: a partition has to outlast a hold with an ACK in it,
and a majority has to die while handlers are at work. So a run has each of these in turn, with time of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sim.fault_plan import Fault
from sim.real.cluster import HOLD_S, LONER

AFTER_S = 0.2
"""Seconds between a delivery and these faults."""

OUTLAST = (2.0, 4.0)
"""Fewest and most holds that a node is isolated for."""

RECOVERY_S = 1.5 * HOLD_S
"""Seconds without another fault after nodes are back: forgotten messages may be delivered again."""

Shape = Callable[[random.Random, Sequence[str], float], tuple[Fault, float]]
"""A fault for these nodes at a time, and until when nothing else is to happen."""


def isolate(rng: random.Random, names: Sequence[str], at: float) -> tuple[Fault, float]:
    """Cut off one node and one client, together, for some holds.

    If the client acks a message there, it is delivered again elsewhere, and an ACK that was called durable is not.
    """
    node = rng.choice(names)
    seconds = round(rng.uniform(*OUTLAST) * HOLD_S, 2)
    others = [name for name in names if name != node]
    links = tuple(
        pair for here in (node, LONER) for other in others for pair in ((here, other), (other, here))
    )
    return Fault(at, "partition", (), seconds, AFTER_S, links), at + seconds


def kill_majority(rng: random.Random, names: Sequence[str], at: float) -> tuple[Fault, float]:
    """Kill a majority at once, or all, while messages are held: they are back within the holds that they forgot.

    Mostly a majority: the fewer start at once, the sooner they are back.
    """
    majority = len(names) // 2 + 1
    size = rng.choice((majority, majority, len(names)))
    killed = tuple(sorted(rng.sample(names, size)))
    return Fault(at, "kill", killed, 0.05, AFTER_S), at + RECOVERY_S


def lose(rng: random.Random, names: Sequence[str], at: float) -> tuple[Fault, float]:
    """Have all nodes lose power at once: confirmed bytes that were not synced are nowhere."""
    return Fault(at, "crash", tuple(names), 0.05, AFTER_S), at + RECOVERY_S


SHAPES: tuple[Shape, ...] = (isolate, kill_majority, lose)

"""The schedule of a run of real processes: each minute one of the faults of aimed.py, then some of the simulator's.

Processes cannot have all of these, and there are fewer.
"""

from __future__ import annotations

import dataclasses
import random

from sim.fault_plan import LOSSES, Fault, draw_faults
from sim.options import NODE_NAMES, Options
from sim.real.aimed import SHAPES, Shape
from sim.real.cluster import CLIENTS, HOLD_S
from sim.schedule import Schedule

STRETCH = 4.0
"""Real seconds per second of the simulator's plan of faults: processes take their time to start."""

DELAY_S = (0.05, 0.2, 0.5)
WINDOW_S = 60.0
MOVE_EVERY_S = 10.0
"""Seconds between two moves of partitions, about."""

MEMBERS = ("add", "drain", "remove")
"""Changes of the members: a node joins, gives away all that it has, or leaves."""

MEMBERS_S = 60.0
"""Seconds that a run with such changes has at least."""

KINDS = (
    "crash", "kill", "stop", *LOSSES, "partition", "cut", "delay", "freeze", "pause", "slow-disk", "full-disk",
    "wall-jump", "wrong-clock", "move", *MEMBERS,
)  # fmt: skip
"""Faults for real processes, and moves of partitions; ``crash`` and ``wrong-clock`` also take what was not fsynced
(power.py)."""


def draw_real(seed: int, nodes: int, seconds: float) -> Schedule:
    """Draw the schedule of a seed: for ``nodes`` nodes, n1 and so on, and ``seconds`` seconds of faults."""
    rng = random.Random(f"{seed}/real")
    options = Options(nodes=nodes, rf=min(3, nodes), producers=0, consumers=0, partitions=6)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    faults: list[Fault] = []
    shown: list[Fault] = []
    shapes: list[Shape] = []
    calms: list[tuple[float, float]] = []
    begin = min(HOLD_S, seconds / 2)  # until messages are in hand
    while begin < seconds:
        window = min(WINDOW_S, seconds - begin)
        calm, end = begin, begin + window
        if window >= WINDOW_S - HOLD_S:
            shapes = shapes or rng.sample(SHAPES, len(SHAPES))
            fault, calm = shapes.pop()(rng, names, round(begin + rng.uniform(1.0, 3.0), 3))
            shown.append(fault)
            calms.append((begin - HOLD_S, calm))
            end -= HOLD_S  # leaves time for messages at work before the next one
        brief = dataclasses.replace(options, fault_time=max(1.0, (end - calm) / STRETCH) + 1e-3, slow=0.1)
        drawn: tuple[Fault, ...] = ()
        while not drawn:  # a window without faults shows nothing
            drawn = draw_faults(rng, brief)
        faults += [dataclasses.replace(fault, at=round(calm + fault.at * STRETCH, 3)) for fault in drawn]
        pairs = [(one, two) for one in options.node_names for two in options.node_names if one != two]
        if pairs and rng.random() < 0.5:
            delayed = tuple(rng.sample(pairs, rng.randint(1, len(pairs))))
            at = round(begin + rng.uniform(0.0, window), 3)
            faults.append(
                Fault(at, "delay", (), round(rng.uniform(1.0, 10.0), 2), rng.choice(DELAY_S), delayed)
            )
        begin += window
    if options.rf > 1 and seconds >= 30.0 and rng.random() < 0.75:  # one node only, as promise G1 wants it
        victim = (rng.choice(options.node_names),)
        for kind in rng.sample(LOSSES, rng.choice((1, 2, 3))):
            amount = {"restore": rng.choice((0.0, 1.0)), "damage": rng.choice((0.0, 0.0, 5.0))}.get(kind, 0.0)
            at = round(rng.uniform(0.2, 0.9) * seconds, 3)
            at = next((end for start, end in calms if start <= at < end), at)
            faults.append(Fault(at, kind, victim, round(rng.uniform(0.2, 2.0), 2), amount))
    faults += [
        move for move in draw_moves(seed, options, seconds)
        if not any(start <= move.at < end for start, end in calms)
    ]  # fmt: skip
    for change in draw_members(seed, options, seconds):
        at = next((end for start, end in calms if start <= change.at < end), change.at)
        faults.append(dataclasses.replace(change, at=at))
    named = [renamed(fault) for fault in faults if fault.at < seconds]
    ordered = tuple(sorted(named + shown, key=lambda fault: fault.at))
    return Schedule(seed, "real", dataclasses.replace(options, fault_time=seconds), ordered)


def draw_moves(seed: int, options: Options, seconds: float) -> list[Fault]:
    """Draw moves of partitions, if there are more nodes than replicas; the other faults stay as they are."""
    rng = random.Random(f"{seed}/moves")
    moves: list[Fault] = []
    at = rng.uniform(0.0, MOVE_EVERY_S)
    while options.nodes > options.rf and at < seconds:
        moves.append(Fault(round(at, 3), "move", (rng.choice(options.node_names),), 0.0, rng.randrange(1000)))
        at += rng.uniform(0.2, 2.0) * MOVE_EVERY_S
    return moves


def draw_members(seed: int, options: Options, seconds: float) -> list[Fault]:
    """Draw a node that joins, and one that leaves, perhaps the same; the other faults stay as they are."""
    rng = random.Random(f"{seed}/members")
    if options.rf < 3 or options.nodes == len(NODE_NAMES) or seconds < MEMBERS_S or rng.random() < 0.3:
        return []
    joiner = NODE_NAMES[options.nodes]
    leaver = rng.choice((*options.node_names, joiner))
    changes = [("add", joiner, 0.3)]
    if rng.random() < 0.7:
        changes += [("drain", leaver, 0.5), ("remove", leaver, 0.7)]
        changes += [("add", leaver, 0.85)] if leaver == joiner else []
    return [
        Fault(round((share - 0.1 * rng.random()) * seconds, 3), kind, (node,))
        for kind, node, share in changes
    ]


def renamed(fault: Fault) -> Fault:
    """Return the fault with the names of real nodes: n1 for a. All clients are one to the network."""

    def name(of: str) -> str:
        return f"n{NODE_NAMES.index(of) + 1}" if of in NODE_NAMES else CLIENTS

    links = dict.fromkeys((name(one), name(two)) for one, two in fault.links)
    return dataclasses.replace(fault, nodes=tuple(map(name, fault.nodes)), links=tuple(links))

"""The schedule of a run of real processes: the heap's faults, as far as processes can have them, and fewer a minute."""

from __future__ import annotations

import dataclasses
import random

from sim.fault_plan import LOSSES, Fault, draw_faults
from sim.options import NODE_NAMES, Options
from sim.real.cluster import CLIENTS
from sim.schedule import Schedule

STRETCH = 4.0
"""A minute has the faults of so many times fewer seconds of the heap: processes take their time to start."""

DELAY_S = (0.05, 0.2, 0.5)
WINDOW_S = 60.0

KINDS = (
    "crash", "kill", "stop", *LOSSES, "partition", "cut", "delay", "freeze", "pause", "slow-disk", "full-disk",
    "wall-jump", "wrong-clock",
)  # fmt: skip
"""What can be done to real processes; ``crash`` is a kill that takes what was not fsynced (power.py)."""


def draw_real(seed: int, nodes: int, seconds: float) -> Schedule:
    """The schedule of a seed: for so many nodes, n1 and so on, and so many seconds of faults."""
    rng = random.Random(f"{seed}/real")
    options = Options(nodes=nodes, rf=min(3, nodes), producers=0, consumers=0, partitions=6)
    faults: list[Fault] = []
    begin = 0.0
    while begin < seconds:
        window = min(WINDOW_S, seconds - begin)
        brief = dataclasses.replace(options, fault_time=max(1.0, window / STRETCH) + 1e-3, slow=0.1)
        drawn: tuple[Fault, ...] = ()
        while not drawn:  # a window without faults shows nothing
            drawn = draw_faults(rng, brief)
        faults += [dataclasses.replace(fault, at=round(begin + fault.at * STRETCH, 3)) for fault in drawn]
        pairs = [(one, two) for one in options.node_names for two in options.node_names if one != two]
        if pairs and rng.random() < 0.5:
            some = tuple(rng.sample(pairs, rng.randint(1, len(pairs))))
            at = round(begin + rng.uniform(0.0, window), 3)
            faults.append(Fault(at, "delay", (), round(rng.uniform(1.0, 10.0), 2), rng.choice(DELAY_S), some))
        begin += window
    if options.rf > 1 and seconds >= 30.0 and rng.random() < 0.75:  # of one node only, as promise G1 wants it
        victim = (rng.choice(options.node_names),)
        for kind in rng.sample(LOSSES, rng.choice((1, 2, 3))):
            amount = {"restore": rng.choice((0.0, 1.0)), "damage": rng.choice((0.0, 0.0, 5.0))}.get(kind, 0.0)
            at = round(rng.uniform(0.2, 0.9) * seconds, 3)
            faults.append(Fault(at, kind, victim, round(rng.uniform(0.2, 2.0), 2), amount))
    named = (renamed(fault) for fault in faults if fault.at < seconds)
    ordered = tuple(sorted(named, key=lambda fault: fault.at))
    return Schedule(seed, "real", dataclasses.replace(options, fault_time=seconds), ordered)


def renamed(fault: Fault) -> Fault:
    """The fault with the names of real nodes: n1 for a. All clients are one to the network."""

    def name(of: str) -> str:
        return f"n{NODE_NAMES.index(of) + 1}" if of in NODE_NAMES else CLIENTS

    links = dict.fromkeys((name(one), name(two)) for one, two in fault.links)
    return dataclasses.replace(fault, nodes=tuple(map(name, fault.nodes)), links=tuple(links))

"""Faults, and their choice for a seed.

The kinds, with the unit of `Fault.amount` in brackets. Simulator (faults.py) and real processes (real/inflict.py):

- ``crash``: power is lost, with all that is not durable. ``kill``: the process ends. ``stop``: it stops cleanly.
- ``wipe``, ``restore``: killed; the directory is then empty, or as before some start [above 0: the last backup].
- ``flip``, ``damage``: killed; bodies of batches are then damaged, or other records [number of last records; 0: any].
- ``rot``: bodies of batches are damaged under a running process.
- ``partition``: `Fault.links` carry nothing. ``cut``: their connections break, and are made again.
- ``freeze``: nodes stand still. ``pause``: clients do.
- ``slow-disk`` [factor of an fsync's time]; ``full-disk`` [a `Shortage`, in the simulator].
- ``wall-jump`` [seconds]: the time of day jumps. ``wrong-clock`` [seconds]: a crash, and it jumps at the next boot.

Simulator: ``bereave``: once this node knows all that others know, their directories are lost, and an operator declares
it to be all that is left.

Real processes, where the amount of a ``partition``, ``kill`` or ``crash`` is the seconds from a delivery to
its begin [0: it waits for no delivery]:

- ``delay`` [seconds]: bytes of `Fault.links` are received later.
- ``move`` [chooses the partition]: a slot goes to this node, or from it.
- ``add``, ``drain``, ``remove``: a node joins, gives away all that it has, or leaves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from quorumq.core.cluster.topics import rendezvous
from quorumq.core.values.types import topic_id
from sim.options import Options


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to the cluster, with everything that was drawn for it."""

    at: float  # when
    kind: str  # one of those above
    nodes: tuple[str, ...] = ()  # nodes that it hits
    seconds: float = 0.0  # seconds that it lasts
    amount: float = 0.0  # its unit goes by the kind
    # For ``partition`` and ``cut``: directed pairs that carry nothing.
    links: tuple[tuple[str, str], ...] = ()

    def told(self) -> dict[str, object]:
        """Return the fields of its line in the history."""
        fields: dict[str, object] = {"fault": self.kind, "seconds": self.seconds}
        if self.nodes:
            fields["nodes"] = list(self.nodes)
        if self.links:
            fields["links"] = [list(pair) for pair in self.links]
        return fields


class Inflict(Protocol):
    """Inflicts a fault now."""

    def __call__(self, fault: Fault, _: object = None) -> None: ...


LOSSES = ("wipe", "restore", "flip", "rot", "damage")
"""Faults that lose a directory, or a part of it."""

YEAR_S = 31_536_000.0

WEIGHTS = {
    "crash": 4,
    "kill": 2,
    "stop": 2,
    "partition": 5,
    "freeze": 2,
    "pause": 2,
    "slow-disk": 1,
    "full-disk": 2,
    "wall-jump": 1,
    "cut": 1,
    "wrong-clock": 4,
}


UPRIGHT = ("partition", "freeze", "pause", "slow-disk", "full-disk", "cut")
"""Faults under which no node goes down, and no clock is set."""


def draw_faults(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw the faults of a run: a few kinds that the seed chose, within the time for faults."""
    if options.is_brief and options.slow == options.vanish == options.loss == options.spikes == 0.0:
        return ()  # profiles quiet and groups
    kinds = [kind for kind in WEIGHTS if rng.random() < 0.6] or ["crash"]
    wide = options.nodes > options.rf > 1
    if wide and "partition" not in kinds:
        kinds.append("partition")
    count = rng.choice((0, 1, 2, 3, 4, 6, 9)) * max(1, round(options.fault_time / 8))
    victim = rng.choice(options.node_names) if rng.random() < 0.4 else ""  # hit again and again
    faults: list[Fault] = []
    for _ in range(count):
        at = round(rng.uniform(0.3, options.fault_time), 4)
        seconds = round(rng.choice((0.05, 0.5, 1.0, 3.0)) * rng.uniform(0.5, 2.0), 4)
        kind = rng.choices(kinds, [WEIGHTS[kind] + 5 * (wide and kind == "partition") for kind in kinds])[0]
        faults.append(draw_fault(rng, options, at, kind, seconds, victim))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def draw_silence(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw times in which the silent node stands still. Others wait for it, when it answers late."""
    faults: list[Fault] = []
    at, seconds = rng.uniform(0.5, 1.0), rng.uniform(1.2, 1.6)
    while at < options.fault_time:
        faults.append(Fault(round(at, 4), "freeze", (options.silent,), round(seconds, 4)))
        at += seconds + rng.uniform(0.1, 0.6)
        seconds = rng.uniform(6.0, 9.0)
    return tuple(faults)


def draw_losses(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw, in some runs, directories that are lost or brought back from a backup.

    Of one node only: a confirmed message is on another one, as promise G1 wants it. Where a partition has one replica,
    no such loss is promised to be survived.
    """
    if options.rf == 1 or options.is_brief or rng.random() > 0.2:
        return ()
    victim = (rng.choice(options.node_names),)
    return draw_some(rng, options, ("wipe", "restore"), victim)


def draw_some(
    rng: random.Random, options: Options, kinds: tuple[str, ...], victim: tuple[str, ...]
) -> tuple[Fault, ...]:
    """Draw one fault of these kinds, or two, at any time."""
    return tuple(
        Fault(
            round(rng.uniform(0.5, options.fault_time), 4),
            rng.choice(kinds),
            victim,
            round(rng.choice((0.05, 0.5, 2.0)) * rng.uniform(0.5, 2.0), 4),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )


def draw_damage(rng: random.Random, options: Options, losses: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Draw bits that flip on one node's disk, in some runs: the node whose directory is lost, if one is."""
    if options.rf == 1 or options.is_brief or rng.random() > 0.2:
        return ()
    victim = losses[0].nodes if losses else (rng.choice(options.node_names),)
    return draw_some(rng, options, ("flip", "rot", "damage"), victim)


def draw_relay(rng: random.Random, options: Options, losses: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Draw, in some runs, faults in a row: a minority is cut off, a second node loses power, a third its directory.

    The minority is back at that moment, so that few nodes know of the changes meanwhile: if all of the directory is
    lost, or it is restored from a backup, only the node that loses power has seen its last start. Half of the backups
    are started twice before it is back.
    """
    if not options.relay:
        return ()
    victim = losses[0].nodes[0] if losses else rng.choice(options.node_names)
    others = [name for name in options.node_names if name != victim]
    goes, *rest = rng.sample(others, len(others))
    away = rest[: (options.nodes - 1) // 2]
    begin, lasts = round(rng.uniform(0.8, 2.5), 4), round(rng.uniform(0.4, 1.5), 4)
    kind = rng.choice(("damage", "damage", "damage", "wipe", "restore", "restore"))
    if kind != "damage":  # long enough for deliveries after the victim's quarantine
        begin, lasts = begin / 2, lasts + 2.0
    alone = [] if kind == "damage" else [name for name in rest if name not in away]
    links = tuple(
        (one, two)
        for one in options.node_names
        for two in options.node_names
        if (one in away) != (two in away) or {one, two} in [{victim, name} for name in alone]
    )
    end = round(begin + lasts - 0.02, 4)
    again: tuple[Fault, ...] = () if kind == "damage" else (Fault(begin + 0.05, "kill", (victim,), 0.05),)
    # A copy that is started twice has a start of its own to show.
    if kind == "restore" and rng.random() < 0.5:
        again += (Fault(round(end + rng.uniform(0.3, 1.5), 4), "kill", (victim,), 0.05),)
    return (
        Fault(begin, "partition", (), lasts, 0.0, links),
        *again,
        Fault(end, "crash", (goes,), options.fault_time),
        Fault(end, kind, (victim,), 0.05, rng.choice((5.0, 10.0, 20.0)) if kind == "damage" else 1.0),
    )


def draw_bereavement(rng: random.Random, options: Options, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Draw, in a few runs without another loss, the loss of all directories but one node's, a replica of everything.

    No clock is set in these: a ballot that only lost directories knew of may be used again where theirs went back.
    """
    if options.rf != options.nodes or options.rf == 1 or options.is_brief or rng.random() > 0.08:
        return ()
    if any(fault.kind in (*LOSSES, "wall-jump", "wrong-clock") for fault in faults):
        return ()
    at = round(rng.uniform(0.5, 0.7 * options.fault_time), 4)
    return (Fault(at, "bereave", (rng.choice(options.node_names),), round(rng.uniform(0.05, 1.0), 4)),)


def draw_one_clock(rng: random.Random, options: Options, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Draw one node that boots with a time of day far ahead; nothing else goes down, so that it is asked."""
    others = [fault for fault in faults if fault.kind in UPRIGHT]
    at = round(rng.uniform(0.5, options.fault_time / 2), 4)
    ahead = rng.choice((120.0, 86_400.0))
    return (*others, Fault(at, "wrong-clock", (rng.choice(options.node_names),), 0.1, ahead))


def draw_fault(
    rng: random.Random, options: Options, at: float, kind: str, seconds: float, victim: str
) -> Fault:
    """Draw one fault of a kind, mostly on ``victim`` if there is one."""
    names = options.node_names
    victims = tuple(sorted(rng.sample(names, rng.choice((1, 1, 1, 2, len(names))))))
    if victim and rng.random() < 0.7:
        victims = (victim,)
    if kind == "pause":
        return Fault(at, kind, (rng.choice(options.client_names),), seconds * 2)
    if kind == "slow-disk":
        return Fault(at, kind, victims, seconds, rng.choice((20.0, 200.0)))
    if kind in ("wall-jump", "wrong-clock"):
        if kind == "wall-jump":
            seconds = 0.0
        return Fault(
            at, kind, victims, seconds, rng.choice((-YEAR_S, -3600.0, -1.0, 1.0, 120.0, 86_400.0, YEAR_S))
        )
    if kind == "cut":
        return Fault(
            at, kind, (), 0.0, 0.0, tuple((one, two) for one in names for two in names if one != two)
        )
    if kind == "partition":
        return Fault(at, kind, (), seconds, 0.0, draw_links(rng, options))
    if kind == "full-disk":  # at one node, or at all, as each replica has the same writes
        full = rng.choice((victims, tuple(names)))
        return Fault(
            at, kind, full, round(seconds * rng.choice((1, 1, 5)), 4), rng.choice((1.0, 1.0, 2.0, 3.0))
        )
    if kind == "freeze":
        return Fault(at, kind, (rng.choice(names),), seconds)
    return Fault(at, kind, victims, seconds)


def draw_links(rng: random.Random, options: Options) -> tuple[tuple[str, str], ...]:
    """Draw the directed pairs that a partition cuts; clients are on one side or the other, or see both."""
    names = list(options.node_names)
    shapes = ("split", "isolate", "one-way", "bridge", "pair")
    shape = rng.choice(
        (*shapes, "through", "through", "through") if options.nodes > options.rf > 1 else shapes
    )
    rng.shuffle(names)
    if shape == "pair":
        return ((names[0], names[1]),)
    if shape == "bridge" and len(names) > 2:
        half = names[1:][: (len(names) - 1) // 2]
        other = [name for name in names[1:] if name not in half]
    elif shape == "through":
        half, other = draw_through(rng, options, names)
    else:
        size = 1 if shape != "split" else max(1, len(names) // 2)
        half, other = names[:size], names[size:]
    if rng.random() < 0.5:
        for client in options.client_names:
            (half if rng.random() < 0.5 else other).append(client)
    pairs = [(one, two) for one in half for two in other]
    if shape != "one-way":
        pairs += [(two, one) for one, two in pairs]
    elif rng.random() < 0.5:
        pairs = [(two, one) for one, two in pairs]
    return tuple(pairs)


def draw_through(rng: random.Random, options: Options, names: list[str]) -> tuple[list[str], list[str]]:
    """Draw two sides of a cut through the replica set of a partition; other nodes are on either side."""
    partition = rng.randrange(options.partitions + (2 if options.alter else 0))
    members = rendezvous(options.founder_names, topic_id("jobs", options.rf), partition)[: options.rf]
    half = rng.sample(members, rng.randint(1, options.rf - 1))
    half += [name for name in names if name not in members and rng.random() < 0.5]
    return half, [name for name in names if name not in half]

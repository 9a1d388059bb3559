"""Runs of the comparison: one workload, and a few faults of one kind at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from sim.fault_plan import Fault
from sim.options import Options
from sim.schedule import Schedule

PLAIN = Options(
    nodes=3,
    rf=3,
    partitions=4,
    latency=0.002,
    fsync=0.003,
    clock_rate=0.001,
    hold_time_max=2.0,
    hold_times=(2.0, 2.0),
    request_timeout=1.0,
    producers=2,
    batches=12,
    batch_messages=6,
    consumers=4,
    fetch_messages=4,
    fault_time=6.0,
)
"""Some 84 messages in six seconds, in four partitions that everyone replicates, read by four consumers."""

HANDLING_S = 0.02
"""Mean time that a consumer works on a message."""

SLOW = 0.1
"""Share of the messages on which it works for longer: see the next."""

SLOW_S = (0.2, 0.45)
"""Least and most seconds of that: four such messages in one hand are done within a hold."""

POISON_S = 1.0
"""Seconds that a consumer works on the poison message before it fails."""

TRIES = 3
"""Failures after which a message becomes a dead letter."""


def _times(rng: random.Random, count: int) -> list[float]:
    return sorted(round(rng.uniform(0.8, 5.0), 4) for _ in range(count))


def _crashes(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    names = options.node_names
    return tuple(
        Fault(at, rng.choice(("crash", "kill")), (rng.choice(names),), round(rng.uniform(0.5, 2.0), 4))
        for at in _times(rng, 2)
    )


def _partitions(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw cuts of one node from the others, with some of the clients, in both directions or in one."""
    faults = []
    for at in _times(rng, 2):
        alone = rng.choice(options.node_names)
        inside = [alone, *(name for name in options.client_names if rng.random() < 0.4)]
        outside = [name for name in (*options.node_names, *options.client_names) if name not in inside]
        pairs = [(one, two) for one in inside for two in outside]
        shape = rng.choice(("both", "both", "out", "in"))
        links = {"both": pairs + [(two, one) for one, two in pairs], "out": pairs}
        cut = links.get(shape, [(two, one) for one, two in pairs])
        faults.append(Fault(at, "partition", (), round(rng.uniform(0.5, 3.0), 4), 0.0, tuple(cut)))
    return tuple(faults)


def _freezes(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw freezes, now and then longer than a hold."""
    names = options.node_names
    return tuple(
        Fault(at, "freeze", (rng.choice(names),), round(rng.uniform(0.2, 3.0), 4)) for at in _times(rng, 2)
    )


def _clocks(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    return tuple(
        Fault(at, "wall-jump", (rng.choice(options.node_names),), 0.0, rng.choice((-60.0, -2.0, 2.0, 60.0)))
        for at in _times(rng, 2)
    )


def _consumers(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw consumers that stall for longer than a hold, or end and are started again."""
    names = [f"c{i}" for i in range(options.consumers)]
    return tuple(
        Fault(at, rng.choice(("pause", "die")), (rng.choice(names),), round(rng.uniform(0.5, 4.0), 4))
        for at in _times(rng, 3)
    )


def _nothing(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    return ()


def _everything(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    drawn = (_crashes, _partitions, _freezes, _clocks, _consumers)
    faults = [fault for draw_kind in drawn for fault in draw_kind(rng, options) if rng.random() < 0.5]
    return tuple(sorted(faults, key=lambda fault: fault.at))


CLOCKS: dict[str, object] = {"wall_offset": 0.5, "spikes": 0.05, "late": 0.2}
NETWORK: dict[str, object] = {"loss": 0.01, "spikes": 0.05, "late": 1.0}

KINDS: dict[str, tuple[Callable[[random.Random, Options], tuple[Fault, ...]], dict[str, object], str]] = {
    "none": (_nothing, {}, "no faults"),
    "network": (_nothing, NETWORK, "1 % of the messages lost, 5 % up to a second late"),
    "crash": (_crashes, {}, "two times a node loses power or is killed, for 0.5 to 2 s"),
    "partition": (_partitions, {}, "two times a node is cut off, both ways or one, for 0.5 to 3 s"),
    "freeze": (_freezes, {}, "two times a node's process stands still for 0.2 to 3 s"),
    "clock": (_clocks, CLOCKS, "times of day up to 0.5 s off, and two jumps; 5 % of the messages up to 0.2 s late"),
    "consumer": (_consumers, {}, "three times a consumer stalls, or dies and comes back, for 0.5 to 4 s"),
    "poison": (_nothing, {"poison": 1.0}, "one message fails three times, after a second each"),
    "mixed": (_everything, {"wall_offset": 0.5, **NETWORK}, "half of each of the above"),
}  # fmt: skip
"""A function that draws a seed's faults, the options that differ, and a description, by kind of fault."""


def draw(seed: int, kind: str, **options: object) -> Schedule:
    """Return the schedule of a seed for one of `KINDS`, the same for every design; with options that differ."""
    faults_of, differs, _ = KINDS[kind]
    mine = replace(PLAIN, **{**differs, **options})  # type: ignore[arg-type]
    return Schedule(seed, f"rivals-{kind}", mine, faults_of(random.Random(f"{seed}/rivals/{kind}"), mine))

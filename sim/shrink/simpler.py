"""Simpler options of a run: each option that is not at its plainest, and its way there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from sim.fault_plan import Fault
from sim.options import Options
from sim.schedule import Schedule

PLAIN: dict[str, Any] = {
    "loss": 0.0, "duplicate": 0.0, "spikes": 0.0, "distance": 0.0, "wall_offset": 0.0, "clock_rate": 0.0,
    "retry_early": 0.0, "slow": 0.0, "reject": 0.0, "dead": 0.0, "extend": 0.0, "release": 0.0, "vanish": 0.0,
    "partial": 0.0, "shred": 0.0, "replay": 0.0, "redrive": 0.0, "rewind": 0.0, "unmake": 0.0, "purge": 0.0,
    "alter": 0.0, "derive": 0.0, "targeted_faults": 0.0, "delayed": 0.0, "ttl_share": 0.0, "by_topic": 0.0,
    "recall": 0.0, "poison": 0.0, "stops": 0.0, "late_group": False, "fifo": False, "implicit": False, "check": False,
    "relay": False, "auto_create_groups": True, "session_idle": 86_400.0, "disk": "memory", "dead_readers": 0,
    "rivals": 0, "deletions": 0, "operators": 1, "runs_per_step": 0,
}  # fmt: skip
"""Options that a run need not have, and their plain values."""

LEAST = {
    "producers": 1, "batches": 1, "batch_messages": 1, "consumers": 1, "groups": 1, "partitions": 1,
    "output_partitions": 1, "fetch_messages": 1, "max_deliveries": 1,
}  # fmt: skip
"""Options that count something, and the least of it."""

SHAPES = ((3, 3), (5, 3), (7, 3), (5, 5))
"""Nodes and replicas, the smallest first."""


def richness(options: Options) -> list[str]:
    """Return the options of `PLAIN` that this run has."""
    return [name for name, plain in PLAIN.items() if getattr(options, name) != plain]


def with_only(options: Options, names: list[str]) -> Options:
    """Return the same with no other options of `PLAIN` than these."""
    return dataclasses.replace(options, **{name: plain for name, plain in PLAIN.items() if name not in names})


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule with less of one thing, the largest steps first."""
    options = schedule.options
    for nodes, rf in SHAPES:
        if nodes < options.nodes and options.rf > 1:
            yield changed(schedule, nodes=nodes, rf=rf)
    for name, least in LEAST.items():
        has = getattr(options, name)
        for value in sorted({least, has // 2, has - 1}):
            if least <= value < has:
                yield changed(schedule, **{name: value})
    for time in (2.0, options.fault_time / 2, options.fault_time * 0.8):
        if 1.0 <= time < options.fault_time:
            yield changed(schedule, fault_time=round(time, 2))


def changed(schedule: Schedule, **options: Any) -> Schedule:
    """Return the schedule with other options, and the faults that are possible under them."""
    return fitted(dataclasses.replace(schedule, options=dataclasses.replace(schedule.options, **options)))


def fitted(schedule: Schedule) -> Schedule:
    """Return the schedule without faults of nodes that it does not have, or after its time."""
    options = schedule.options
    names = {*options.node_names, *options.client_names}
    faults = []
    for fault in schedule.faults:
        nodes = tuple(name for name in fault.nodes if name in names)
        links = tuple(pair for pair in fault.links if pair[0] in names and pair[1] in names)
        if (nodes or links) and fault.at < options.fault_time:
            faults.append(dataclasses.replace(fault, nodes=nodes, links=links))
    return dataclasses.replace(schedule, faults=tuple(faults))


def smaller_faults(fault: Fault) -> Iterator[Fault]:
    """Yield the fault with fewer nodes or links, or with shorter numbers."""
    for name in fault.nodes if len(fault.nodes) > 1 else ():
        yield dataclasses.replace(fault, nodes=tuple(other for other in fault.nodes if other != name))
    for name in dict.fromkeys(name for pair in fault.links for name in pair):
        links = tuple(pair for pair in fault.links if name not in pair)
        if links and links != fault.links:
            yield dataclasses.replace(fault, links=links)
    for digits in (1, 2):
        short = dataclasses.replace(fault, at=round(fault.at, digits), seconds=round(fault.seconds, digits))
        if short != fault:
            yield short
            break

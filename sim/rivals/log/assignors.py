"""Division of a topic's partitions among the consumers of a group.

The text: "Each of which is consumed by exactly one consumer within each subscribing consumer group at any given time";
"the consumer provides two strategies by default: range and round-robin", and sticky, which moves as few as it can. The
consumer that is the group's leader runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Assignment = dict[str, tuple[int, ...]]


def range_(members: Mapping[str, Sequence[int]], partitions: Sequence[int]) -> Assignment:
    """Give each consecutive partitions; the first consumers get one more."""
    names = sorted(members)
    size, more = divmod(len(partitions), len(names))
    result: Assignment = {}
    at = 0
    for index, name in enumerate(names):
        stop = at + size + (index < more)
        result[name] = tuple(partitions[at:stop])
        at = stop
    return result


def round_robin(members: Mapping[str, Sequence[int]], partitions: Sequence[int]) -> Assignment:
    """Give each partitions in turn."""
    names = sorted(members)
    return {name: tuple(partitions[index :: len(names)]) for index, name in enumerate(names)}


def sticky(members: Mapping[str, Sequence[int]], partitions: Sequence[int]) -> Assignment:
    """Keep each member's partitions, up to its share; the rest goes to the members with the least."""
    names = sorted(members)
    size, more = divmod(len(partitions), len(names))
    result: dict[str, list[int]] = {name: [] for name in names}
    owned: dict[int, None] = {}
    for name in sorted(names, key=lambda name: (-len(members[name]), name)):
        share = size + (more > 0)
        kept = [p for p in members[name] if p in partitions and p not in owned][:share]
        more -= len(kept) > size
        owned.update(dict.fromkeys(kept))
        result[name] = kept
    for partition in partitions:
        if partition not in owned:
            result[min(names, key=lambda name: (len(result[name]), name))].append(partition)
    return {name: tuple(sorted(given)) for name, given in result.items()}


def cooperative(members: Mapping[str, Sequence[int]], target: Assignment) -> Assignment:
    """Return the part of an assignment that takes nothing away yet: partitions of others come in the next round."""
    owner = {partition: name for name, owned in members.items() for partition in owned}
    return {name: tuple(p for p in given if owner.get(p, name) == name) for name, given in target.items()}


ASSIGNORS: dict[str, Callable[[Mapping[str, Sequence[int]], Sequence[int]], Assignment]] = {
    "range": range_,
    "roundrobin": round_robin,
    "sticky": sticky,
}

"""Replica sets of a partition that was moved or raised, and those that may have counted a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from quorumq.audit.moment import Moment, maybe_by, sure_by
from quorumq.core.values.types import FIRST_LAYOUT
from quorumq.history import Row


class Slots(NamedTuple):
    """The replica set of a partition that was moved, as of a layout, and the moment since which a node has it."""

    layout: int
    nodes: Sequence[str]
    who: str
    at: Moment


class ReplicaSet(NamedTuple):
    """A replica set: its size, and the writers of its nodes; None if no line names them."""

    size: int
    nodes: frozenset[str] | None = None

    def has_majority(self, having: Collection[str]) -> bool:
        """Return True if a majority of it is among these writers."""
        mine = having if self.nodes is None else self.nodes.intersection(having)
        return len(mine) > self.size // 2


def first_of_each(lines: Iterable[Slots]) -> list[Slots]:
    """Return the first line of each node about each layout: a node repeats them with each change of the register."""
    result: dict[tuple[int, str], Slots] = {}
    for it in lines:
        known = result.get((it.layout, it.who))
        if known is None or it.at < known.at:
            result[(it.layout, it.who)] = it
    return list(result.values())


def counting(moved: Sequence[Slots], rf: float, sent: Moment | None, done: Moment | None) -> list[ReplicaSet]:
    """Return the sets that may have counted a request that was sent and confirmed at these moments.

    Why: a node that has adopted a layout gives no vote in an earlier one. So a set is over once too few of its nodes
    are left for a majority. It is also over once a node has the second set after it. That is proposed only after the
    set between is trusted (docs/layouts.md, LAYOUTS 7).

    Args:
        moved: the lines about the partition's layouts, of all nodes.
        rf: number of slots that the partition was made with.
    """
    sets = _sets(moved)
    numbers = sorted({FIRST_LAYOUT, *sets})
    result = []
    for at, number in enumerate(numbers):
        mine = ReplicaSet(len(sets[number]), sets[number]) if number in sets else ReplicaSet(int(rf))
        has_begun = number == FIRST_LAYOUT or any(
            it.layout == number and maybe_by(it.at, done) for it in moved
        )
        later = [it for it in moved if it.layout > number and sure_by(it.at, sent)]
        passed = any(it.layout >= numbers[at + 2] for it in later) if at + 2 < len(numbers) else False
        if (
            has_begun
            and not passed
            and not (later and _is_over(mine, {it.who for it in later}, sets[numbers[at + 1]]))
        ):
            result.append(mine)
    return result


def _is_over(one: ReplicaSet, adopters: Collection[str], after: frozenset[str]) -> bool:
    """Return True if its nodes that have adopted no later layout are no majority of it."""
    if one.nodes is not None:
        return len(one.nodes.intersection(adopters)) >= one.size - one.size // 2
    # A layout moves one slot, or adds some. So all nodes of the next set but one at most are in this one.
    return after.issubset(adopters) and (one.size > 1 or len(after) > 1)


def smallest_sets(rows: Iterable[Row]) -> dict[tuple[str, str, int], int]:
    """Return the slots of the smallest set of each partition that was moved, by run, topic and partition."""
    result: dict[tuple[str, str, int], int] = {}
    for row in rows:
        if row["kind"] == "layout":
            key = (row["run"], row["topic"], row["partition"])
            result[key] = min(result.get(key, len(row["nodes"])), len(row["nodes"]))
    return result


def nodes_until(moved: Sequence[Slots], at: Moment | None) -> frozenset[str]:
    """Return the writers of all nodes that may have had a slot by a moment; None asks about the whole run."""
    return frozenset(f"node:{node}" for it in moved if at is None or maybe_by(it.at, at) for node in it.nodes)


def most_replicas(moved: Sequence[Slots], rf: float) -> float:
    """Return the largest number of nodes that may ever have had a slot, one after the other included."""
    if not moved:
        return rf
    # A first set that no line names has one node at most that the next one has not.
    return max(rf, len(nodes_until(moved, None)) + all(it.layout > FIRST_LAYOUT for it in moved))


def _sets(moved: Iterable[Slots]) -> dict[int, frozenset[str]]:
    return {it.layout: frozenset(f"node:{node}" for node in it.nodes) for it in moved}

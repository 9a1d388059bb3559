"""Replica sets of moved and raised partitions, and those that may have counted a request."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from quorumq.history import Row


class ReplicaSet(NamedTuple):
    """The nodes of a set, as they write lines, and its size; no nodes if no line names them."""

    size: int
    nodes: frozenset[str] = frozenset()

    def has_majority(self, having: Collection[str]) -> bool:
        """Return True if a majority of it is among these nodes."""
        there = self.nodes.intersection(having) if self.nodes else having
        return len(there) > self.size // 2

    def is_over(self, adopters: Collection[str], after: frozenset[str]) -> bool:
        """Return True if too few nodes are left for a majority that have adopted no later layout.

        A layout moves one slot, or adds some. So of a set without names at most one node is not in the next one.
        """
        if self.nodes:
            return len(self.nodes.intersection(adopters)) >= self.size - self.size // 2
        return after.issubset(adopters) and (self.size > 1 or len(after) > 1)


class ReplicaSets:
    """The layouts of each partition, and when each node adopted them.

    Attributes:
        sets: nodes of each layout, by topic and partition, then number.
        adopted: true seconds at which a node adopted a layout, by topic and partition, then number, then node.
    """

    def __init__(self) -> None:
        self.sets: dict[tuple[str, int], dict[int, frozenset[str]]] = {}
        self.adopted: dict[tuple[str, int], dict[int, dict[str, float]]] = {}

    def see(self, row: Row) -> None:
        """Take in a line about a layout. A node repeats it with each later change of the register."""
        key, number = (row["topic"], row["partition"]), row["layout"]
        nodes = frozenset(f"node:{node}" for node in row["nodes"])
        self.sets.setdefault(key, {})[number] = nodes
        self.adopted.setdefault(key, {}).setdefault(number, {}).setdefault(row["who"], row["at"])

    def counting(self, topic: str, partition: int, rf: int, sent: float) -> list[ReplicaSet]:
        """Return the sets that may have counted a request that was sent then, and is confirmed now.

        Why: a node that has adopted a layout gives no vote in an earlier one. So a set is over once too few of its
        nodes are left for a majority. It is over, too, once a node has the second set after it, which is proposed only
        after the set between is trusted (docs/layouts.md, LAYOUTS 7).

        Args:
            rf: number of slots that the partition was made with.
            sent: true seconds.
        """
        later = self.sets.get((topic, partition), {})
        sets = [ReplicaSet(rf), *[ReplicaSet(len(later[each]), later[each]) for each in sorted(later)]]
        adopted = [self.adopted[topic, partition][each] for each in sorted(later)]
        counting = []
        for at, one in enumerate(sets):
            after = [node for nodes in adopted[at:] for node, when in nodes.items() if when < sent]
            passed = any(when < sent for nodes in adopted[at + 1 :] for when in nodes.values())
            if not passed and not (after and one.is_over(after, sets[at + 1].nodes)):
                counting.append(one)
        return counting

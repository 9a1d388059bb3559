"""Moves of partitions between the nodes of a running cluster, while clients work and faults happen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from quorumq.client import Client
from quorumq.core.values.errors import QuorumqError

MOVE_S = 10.0
"""Seconds that one move may take. One that is broken off is finished by a node, or by the next move of that topic."""


class Moves:
    """Moves slots of the topics that a workload reads.

    Args:
        client: an operator's.
        topics: names of the topics.

    Attributes:
        done: number of moves that were confirmed.
    """

    def __init__(self, client: Client, topics: Sequence[str]) -> None:
        self.client = client
        self.topics = sorted(dict.fromkeys(topics))
        self.done = 0

    async def move(self, node: str, drawn: int) -> None:
        """Move a slot of one partition to ``node``; if it has one, its slot goes to the first node without any.

        Args:
            drawn: number that chooses the partition and the slot.

        A move that is refused, because the last one of that partition is not over, or fails, is left at that.
        """
        with suppress(QuorumqError):
            metadata = await self.client.metadata()
            names = [info.node for info in metadata.nodes]
            slots = [
                (topic.name, number, members)
                for topic in metadata.topics
                if topic.name in self.topics
                for number, members in enumerate(topic.replicas)
                if len(members) < len(names)
            ]
            if not slots:
                return
            topic, number, members = slots[drawn % len(slots)]
            source, to = members[drawn % len(members)], node
            if node in members:
                source, to = node, next(name for name in names if name not in members)
            await self.client.move_partition(topic, number, source, to, timeout=MOVE_S)
            self.done += 1

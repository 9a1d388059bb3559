"""Moves of partitions, and changes of the members of a running cluster, while clients work and faults happen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio

from quorumq.client import Client
from quorumq.core.values.errors import QuorumqError

MOVE_S = 10.0
"""Seconds that one move may take. One that is broken off is finished by a node, or by the next move of that topic."""

CHANGE_S = 60.0
"""Seconds in which a change of the members is tried again."""

AGAIN_S = 0.5


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


class Members:
    """Has nodes join and leave, as an operator does.

    A step that fails is tried again for `CHANGE_S` seconds. A change that is broken off stays as it is.

    Args:
        client: an operator's.
        cluster: starts nodes that were added, and ends those that were removed.
    """

    def __init__(self, client: Client, cluster: Any) -> None:
        self.client = client
        self.cluster = cluster

    async def add(self, node: str) -> None:
        """Have a node be a member, and start it; one that is drained may get partitions again."""
        cluster = self.cluster
        address = cluster.front[cluster.nodes.index(node)]
        with trio.move_on_after(CHANGE_S):
            while True:
                with suppress(QuorumqError):
                    await self.client.add_node(
                        node, address, peer_address=cluster.peer_address(node), timeout=MOVE_S
                    )
                    cluster.let_in(node)
                    return
                await trio.sleep(AGAIN_S)

    async def drain(self, node: str) -> bool:
        """Have a node give away its partitions and its voter's slot; return False if the time is over before."""
        with trio.move_on_after(CHANGE_S):
            while True:
                with suppress(QuorumqError):
                    await self.client.drain_node(node, timeout=MOVE_S)
                    if await self.give_away(node):
                        return True
                await trio.sleep(AGAIN_S)
        return False

    async def give_away(self, node: str) -> bool:
        """Move one slot of each partition off a node; return True if it has nothing any more."""
        known = await self.client.metadata()
        info = next((info for info in known.nodes if info.node == node), None)
        if info is None:
            return True
        kept = False
        for topic in known.topics:
            for number, members in enumerate(topic.replicas):
                others = [other.node for other in known.nodes if other.node not in members]
                if node in members and others:
                    kept = True
                    with suppress(QuorumqError):
                        await self.client.move_partition(topic.name, number, node, others[0], timeout=MOVE_S)
        if info.voter and not kept:
            await self.client.move_voter(node, timeout=MOVE_S)
        return not (kept or info.voter)

    async def remove(self, node: str) -> None:
        """Have a node leave, and end its process."""
        if not await self.drain(node):
            return
        with trio.move_on_after(CHANGE_S):
            while True:
                with suppress(QuorumqError):
                    await self.client.remove_node(node, timeout=MOVE_S)
                    self.cluster.dismiss(node)
                    return
                await trio.sleep(AGAIN_S)

    async def settle(self, patience: float) -> None:
        """Have those nodes run that are members: a change of unknown outcome may have been made."""
        with trio.move_on_after(patience):
            while True:
                with suppress(QuorumqError):
                    known = [info.node for info in (await self.client.metadata()).nodes]
                    for node in self.cluster.nodes:
                        if node in known and node in self.cluster.outside:
                            self.cluster.let_in(node)
                        elif node not in known and node not in self.cluster.outside:
                            self.cluster.dismiss(node)
                    return
                await trio.sleep(AGAIN_S)

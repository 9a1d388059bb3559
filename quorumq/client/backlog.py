"""How much a group has still to do: what the nodes say that they have, merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from quorumq.client.context import Calls
from quorumq.client.groups import source_of
from quorumq.core import messages as m
from quorumq.core.catalogue import unknown_group
from quorumq.core.errors import NotFound, QuorumqError, TooFewReplicas

EACH_S: Final = 3.0
"""How long a node is waited for that may be down, while the others have answered."""


class PartitionBacklog(NamedTuple):
    """What a group has still to do in one partition; fields as in `Backlog`."""

    partition: int
    ready: int
    held: int
    delayed: int
    dead: int
    oldest: float | None


class Backlog(NamedTuple):
    """What a group has still to do, as the nodes see it at the moment: near enough for an autoscaler.

    ``ready`` may be delivered now, ``held`` is being worked on, ``delayed`` waits for its time, and ``dead`` are dead
    letters. ``oldest`` is the age in seconds of the oldest message that is ready, held or delayed; None: there is none.
    """

    ready: int
    held: int
    delayed: int
    dead: int
    oldest: float | None
    partitions: tuple[PartitionBacklog, ...]


class BacklogCalls(Calls):
    """Tells how much a group has still to do."""

    async def backlog(self, topic: str, group: str, *, timeout: float | None = None) -> Backlog:
        """How many messages a group has ready, held, delayed and dead, and how old the oldest is.

        Every node is asked what its replicas have in memory. Of what is ready, held or delayed the middle of their
        answers counts, which is what a majority has; of dead letters the most.

        Args:
            topic, group: whose.
            timeout: seconds for each node; if None the client's, and at most 3, as one may be down.

        Returns:
            the sums, and each partition's part.

        Raises:
            NotFound: no such topic, or no such group of it.
            TooFewReplicas: of some partition no replica answered.
        """
        topic, group = source_of(topic, group)
        known = await self.context.metadata(topic, timeout=timeout)
        register = self.context.known(known.topics[0])
        if group not in [found.name for found in known.groups]:
            raise NotFound(unknown_group(topic, group, [found.name for found in known.groups]))
        answers: list[Mapping[str, Any]] = []

        each = min(EACH_S, self.context.timeout) if timeout is None else timeout

        async def ask(node: str) -> None:
            only = self.context.nodes.addresses_of((node,))
            try:
                reply = await self.context.ask(
                    m.StatusRequest(), f"status of {node}", each, writes=False, only=only
                )
            except QuorumqError:
                return  # the others may do
            answers.extend(part for part in reply.facts["partitions"] if part["topic"] == topic)

        async with trio.open_nursery() as nursery:
            for node in dict.fromkeys(node for members in register.replicas for node in members):
                nursery.start_soon(ask, node)
        parts: list[PartitionBacklog] = []
        for number in range(register.partitions):
            views = [answer["groups"].get(group, {}) for answer in answers if answer["partition"] == number]
            if not views:
                raise TooFewReplicas(
                    f"no replica of {topic!r}/{number} answers: try again", needed=1, answered=0
                )
            parts.append(merged(number, views))
        return Backlog(
            ready=sum(part.ready for part in parts),
            held=sum(part.held for part in parts),
            delayed=sum(part.delayed for part in parts),
            dead=sum(part.dead for part in parts),
            oldest=oldest_of(part.oldest for part in parts),
            partitions=tuple(parts),
        )


def merged(number: int, views: Sequence[Mapping[str, Any]]) -> PartitionBacklog:
    """What the replicas of one partition say, each of a group; {} of one that has not heard of it."""

    def middle(name: str) -> int:
        values = sorted(view.get(name, 0) for view in views)
        return int(values[(len(values) - 1) // 2])

    ready, held, delayed = (middle(name) for name in ("available", "held", "delayed"))
    dead = max(view.get("dead", 0) for view in views)
    oldest = oldest_of(view.get("oldest_s") for view in views) if ready or held or delayed else None
    return PartitionBacklog(number, ready, held, delayed, dead, oldest)


def oldest_of(ages: Any) -> float | None:
    """The highest of those ages that there are."""
    return max((age for age in ages if age is not None), default=None)

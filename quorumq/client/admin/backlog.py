"""Remaining work of a group: the nodes' counts, merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from quorumq.client.base.context import Calls
from quorumq.client.base.names import source_of
from quorumq.core import messages as m
from quorumq.core.values.errors import NotFound, TooFewReplicas
from quorumq.wire.hints import unknown_group


class GroupConsumer(NamedTuple):
    """A consumer that asked for messages in the last minute; those of one name on one machine are one.

    ``name`` and ``version`` are as its program says (`Client.consumer`), ``software`` is its client's, ``address`` the
    machine that it dials from, and ``delivered`` how many messages it got within the minute.
    """

    name: str
    version: str
    software: str
    address: str
    delivered: int


class PartitionBacklog(NamedTuple):
    """Remaining work of a group in one partition; fields as in `Backlog`."""

    partition: int
    ready: int
    held: int
    delayed: int
    dead: int
    oldest: float | None
    delivered: int = 0
    settled: int = 0
    consumers: tuple[GroupConsumer, ...] = ()
    suspects: int = 0
    dying: int = 0
    dropped: int = 0


class Backlog(NamedTuple):
    """Remaining work of a group, as the nodes see it at the moment: near enough for an autoscaler.

    ``ready`` may be delivered now, ``held`` is being worked on, ``delayed`` waits for its time, and ``dead`` are dead
    letters. ``oldest`` is the age in seconds of the oldest message that is ready, held or delayed; None: there is none.
    ``delivered`` and ``settled`` (acked, rejected or dead-lettered) are messages of the last minute, and ``consumers``
    that asked for any meanwhile, as far as nodes answer that did not start since. ``suspects`` are those of the ready
    ones that were in hand when consumers ended, and come in lots of at most 4 with nothing else.
    ``dying`` are out of deliveries: no consumer gets them, and they are dead letters within seconds.
    ``dropped`` expired, since the nodes started, in a topic that drops expired messages.
    """

    ready: int
    held: int
    delayed: int
    dead: int
    oldest: float | None
    partitions: tuple[PartitionBacklog, ...]
    delivered: int = 0
    settled: int = 0
    consumers: tuple[GroupConsumer, ...] = ()
    suspects: int = 0
    dying: int = 0
    dropped: int = 0


class BacklogCalls(Calls):
    """Calls that count the remaining work of a group."""

    async def backlog(self, topic: str, group: str, *, timeout: float | None = None) -> Backlog:
        """Count a group's ready, held, delayed and dead messages, with the age of the oldest one and the consumers.

        Every node is asked what its replicas have in memory. Of what is ready, held or delayed the middle of their
        answers counts, which is what a majority has; of dead letters the most. What was delivered and settled is
        summed over the nodes.

        Args:
            topic, group: name of the topic and of its group.
            timeout: seconds for each node; if None the client's, and at most 3, as one may be down.

        Returns:
            the sums, and each partition's part.

        Raises:
            NotFound: no such topic, or no such group of it.
            TooFewReplicas: no replica of some partition answered.
        """
        topic, group = source_of(topic, group)
        known = await self.context.metadata(topic, timeout=timeout)
        register = self.context.known(known.topics[0])
        if group not in [known_group.name for known_group in known.groups]:
            raise NotFound(unknown_group(topic, group, [known_group.name for known_group in known.groups]))
        nodes = [node for members in register.replicas for node in members]
        nodes += [info.node for info in known.nodes if info.up]
        request = m.DescribeGroup(topic, group)
        replies, _ = await self.context.ask_each(dict.fromkeys(nodes), request, "backlog", timeout)
        answers: list[m.DescribeGroupReply] = [*replies.values()]
        parts: list[PartitionBacklog] = []
        for number in range(register.partitions):
            views = [part for answer in answers for part in answer.parts if part.partition == number]
            if not views:
                raise TooFewReplicas(
                    f"no replica of {topic!r}/{number} answers: try again", needed=1, answered=0
                )
            parts.append(merged(number, views, answers))
        counted = ("ready", "held", "delayed", "dead", "delivered", "settled", "suspects", "dying", "dropped")
        return Backlog(
            **{name: sum(getattr(part, name) for part in parts) for name in counted},
            oldest=oldest_of(part.oldest for part in parts),
            partitions=tuple(parts),
            consumers=joined(consumer for part in parts for consumer in part.consumers),
        )


def merged(
    number: int, views: Sequence[m.GroupPart], answers: Sequence[m.DescribeGroupReply]
) -> PartitionBacklog:
    """Merge the views of one partition's replicas, and all nodes' counts of its deliveries."""

    def middle(values: Iterable[int]) -> int:
        ordered = sorted(values)
        return ordered[(len(ordered) - 1) // 2]

    ready, held, delayed = (middle(counts) for counts in zip(*(view[1:4] for view in views), strict=True))
    flows = [flow for answer in answers for flow in answer.flows if flow.partition == number]
    consumers = [
        GroupConsumer(*consumer[:4], delivered)
        for answer in answers
        for consumer in answer.consumers
        for partition, delivered in zip(consumer.partitions, consumer.delivered, strict=True)
        if partition == number
    ]
    return PartitionBacklog(
        number,
        ready,
        held,
        delayed,
        dead=max(view.dead for view in views),
        oldest=oldest_of(view.oldest_s for view in views) if ready or held or delayed else None,
        delivered=sum(flow.delivered for flow in flows),
        settled=sum(flow.settled for flow in flows),
        consumers=joined(consumers),
        suspects=middle(view.suspects for view in views),
        dying=middle(view.dying for view in views),
        dropped=max(view.dropped for view in views),
    )


def joined(consumers: Iterable[GroupConsumer]) -> tuple[GroupConsumer, ...]:
    """Merge consumers by name, with the sum of their deliveries."""
    sums: dict[GroupConsumer, int] = {}
    for consumer in consumers:
        who = consumer._replace(delivered=0)
        sums[who] = sums.get(who, 0) + consumer.delivered
    return tuple(who._replace(delivered=delivered) for who, delivered in sorted(sums.items()))


def oldest_of(ages: Any) -> float | None:
    """Return the highest of those ages that there are."""
    return max((age for age in ages if age is not None), default=None)

"""Remaining work of a group: the nodes' counts, merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from quorumq.client.base.context import Calls, check_group, topic_of
from quorumq.client.base.names import source_of
from quorumq.core import messages as m
from quorumq.core.values.errors import TooFewReplicas
from quorumq.core.values.types import Topic

PARTITIONS_ASKED: Final = 250
"""Partitions of groups that one request of `BacklogCalls.backlogs` names: half of what a node allows, as partitions may
be added meanwhile."""


class GroupConsumer(NamedTuple):
    """A consumer that asked for messages in the last minute; consumers of one name on one machine count as one.

    ``name`` and ``version`` are those that its program gave (`Client.consumer`), ``software`` is its client's,
    ``address`` is its machine's, and ``delivered`` is the number of messages that it got in the minute.
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
    """Remaining work of a group, as the nodes see it now: exact enough for an autoscaler.

    ``ready`` may be delivered now, ``held`` is being worked on, ``delayed`` waits for its time. ``dead`` counts the
    dead letters. ``oldest`` is the age in seconds of the oldest message that is ready, held or delayed, or None.
    ``delivered`` and ``settled`` are messages of the last minute, and ``consumers`` are those that fetched in it.
    ``suspects`` are ready messages that were in hand when consumers ended. ``dying`` are out of deliveries, and within
    seconds dead letters. ``dropped`` expired in a topic that drops expired messages, since the nodes started.
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

        Of ready, held and delayed messages the middle of the replicas' answers counts, of dead letters the most.
        Delivered and settled messages are summed over the nodes.

        Args:
            timeout: seconds for each node; if None the client's, and at most 3, as one may be down.

        Returns:
            the sums, and each partition's part.

        Raises:
            NotFound: no such topic, or no such group of it.
            TooFewReplicas: no replica of some partition answered.
        """
        topic, group = source_of(topic, group)
        known = await self.context.metadata(topic, timeout=timeout)
        register = self.context.known(topic_of(known, topic))
        check_group(known, topic, group)
        request = m.DescribeGroups(((topic, group),))
        nodes = nodes_of(known, (register,))
        replies, _ = await self.context.ask_each(nodes, request, "backlog", timeout)
        return backlog_of(register, [one for reply in replies.values() for one in reply.groups])

    async def backlogs(
        self, *topics: str, timeout: float | None = None
    ) -> dict[tuple[str, str], Backlog | None]:
        """Count the work of all groups of some topics at once, like `backlog`, with some consumers of each.

        Each node gets one request for some hundred partitions of groups.

        Args:
            topics: names or patterns; all topics that the client may see if none is given.
            timeout: seconds for each node; if None the client's, and at most 3, as one may be down.

        Returns:
            by topic and group, in the order of names, its backlog; None if no replica of a partition answered.

        Raises:
            NotFound: no such topic.
            TooFewReplicas: no node answered at all.
        """
        known = await self.context.metadata(*topics, timeout=timeout)
        registers = {topic.id: self.context.known(topic) for topic in known.topics}
        groups = sorted(
            (registers[group.topic].name, group.name, group.topic)
            for group in known.groups
            if group.topic in registers
        )
        nodes = nodes_of(known, registers.values())
        answers: dict[tuple[bytes, str], list[m.DescribedGroup]] = {}
        for chunk in chunked(groups, registers):
            request = m.DescribeGroups(tuple((topic, group) for topic, group, _ in chunk))
            replies, errors = await self.context.ask_each(nodes, request, "backlogs", timeout)
            if not replies:
                raise TooFewReplicas(f"no node answers: {next(iter(errors.values()))}", needed=1, answered=0)
            for reply in replies.values():
                for one in reply.groups:
                    answers.setdefault((one.topic, one.group), []).append(one)
        backlogs: dict[tuple[str, str], Backlog | None] = {}
        for topic, group, key in groups:
            try:
                backlogs[topic, group] = backlog_of(registers[key], answers.get((key, group), []))
            except TooFewReplicas:
                backlogs[topic, group] = None
        return backlogs


def nodes_of(known: m.MetadataReply, topics: Iterable[Topic]) -> dict[str, None]:
    """Return the nodes to ask about topics: those with replicas, and all others that are up, once each."""
    nodes = [node for topic in topics for members in topic.replicas for node in members]
    return dict.fromkeys([*nodes, *(info.node for info in known.nodes if info.up)])


def chunked(
    groups: Iterable[tuple[str, str, bytes]], topics: Mapping[bytes, Topic]
) -> Iterator[list[tuple[str, str, bytes]]]:
    """Yield the groups in lists that one request may name."""
    chunk: list[tuple[str, str, bytes]] = []
    rows = 0
    for group in groups:
        more = topics[group[2]].partitions
        if chunk and rows + more > PARTITIONS_ASKED:
            yield chunk
            chunk, rows = [], 0
        chunk.append(group)
        rows += more
    if chunk:
        yield chunk


def backlog_of(register: Topic, answers: Sequence[m.DescribedGroup]) -> Backlog:
    """Merge all nodes' views of one group.

    Raises:
        TooFewReplicas: no replica of some partition answered.
    """
    parts: list[PartitionBacklog] = []
    for number in range(register.partitions):
        views = [part for answer in answers for part in answer.parts if part.partition == number]
        if not views:
            raise TooFewReplicas(
                f"no replica of {register.name!r}/{number} answers: try again", needed=1, answered=0
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
    number: int, views: Sequence[m.GroupPart], answers: Sequence[m.DescribedGroup]
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

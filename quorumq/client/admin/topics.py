"""The calls of a client about topics and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from quorumq.client.base.context import Calls, topic_of
from quorumq.client.base.sight import as_seen
from quorumq.client.base.times import Duration, number_of, positive_of
from quorumq.client.transport.nodes import left_of
from quorumq.core import messages as m
from quorumq.core.values.errors import Conflict, NotFound, UsageError
from quorumq.core.values.patterns import NO_TOPIC
from quorumq.core.values.printable import plural
from quorumq.core.values.types import STAMP_ZERO, ClusterLayout, Topic


class TopicCalls(Calls):
    """Calls that create, change, delete and look up topics, and ask nodes for their status."""

    async def create_topic(
        self,
        name: str,
        *,
        rf: int | None = None,
        partitions: int | None = None,
        max_deliveries: int | None = None,
        retention: Duration | None = None,
        ttl: Duration | None = None,
        backoff: Sequence[Duration] | Duration | None = None,
        auto_create_groups: bool | None = None,
        on_expiry: Literal["dead-letter", "drop"] | None = None,
        timeout: float | None = None,
    ) -> Topic:
        """Create a topic. If it exists already, the given settings must agree with it.

        Args:
            name: letters, digits, '.', '_' and '-'.
            rf: number of nodes that keep each message: odd. 3 if None, or 1 if the cluster has fewer nodes.
            partitions: number of partitions; 1 if None.
            max_deliveries: deliveries after which a message becomes a dead letter; 5 if None.
            retention: seconds or a timedelta that payload is kept after the last group is done with it; 0 if None.
            ttl: seconds or a timedelta after which a message without an ack expires; 0 = never, also if None.
            backoff: seconds or timedeltas, or one alone, that a rejected message waits if the reject does not say,
                attempt by attempt; the last one repeats. No wait if None.
            auto_create_groups: true, also if None, for the first consumer of a group to create it.
            on_expiry: result of an expiry: a dead letter, also if None, or "drop", and the message is gone.

        Returns:
            the topic; if it was there, with its own settings beside those given.

        Raises:
            Conflict: the topic exists with another value, or with messages and fewer partitions.
            UsageError: a value that cannot be.
            NotStored, OutcomeUnknown: too few nodes answered.
        """
        given = {
            "rf": rf,
            **_settings(partitions, max_deliveries, retention, ttl, backoff, auto_create_groups, on_expiry),
        }
        named: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        unnamed = tuple(field for field in given if field not in named)
        end = self.context.end(timeout)
        if partitions is not None and positive_of("partitions", partitions) > 1:
            await self._check_unspoilt(name, partitions, end)
        if rf is None:
            named["rf"] = await self.context.default_rf(left_of(end))
        request = m.CreateTopic(name, unnamed=unnamed, deletions=0, **named)
        watch = self.context.calling("set_topic", name)
        reply = await self.context.ask_for_change(
            request, f"create topic {name!r}", left_of(end), watch=watch
        )
        return self.context.known(reply.topic)

    async def _check_unspoilt(self, name: str, partitions: int, end: float) -> None:
        """Refuse more partitions of a topic that publishing made, once there are messages that they do not share.

        Messages published at this moment are not seen. It is then as if `alter_topic` had been called.
        """
        try:
            known = await self.context.metadata(name, groups=False, timeout=left_of(end))
            (topic,) = known.topics
        except NotFound:
            return
        if topic.stamp != STAMP_ZERO or topic.partitions >= partitions:
            return
        for number in range(topic.partitions):
            look = m.PeekRequest(name, number, "", "all", (0, 0), 1, False, True)
            reply = await self.context.ask(look, f"look at {name!r}/{number}", left_of(end), writes=False)
            if reply.items:
                has = plural(topic.partitions, "partition")
                raise Conflict(
                    f"topic {name!r} was made by publishing, with {has}, and has messages: with {partitions} those of "
                    "one key would be in two partitions, out of their order. `quorumq topics set` adds partitions all "
                    "the same; or use it as it is"
                )

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        max_deliveries: int | None = None,
        retention: Duration | None = None,
        ttl: Duration | None = None,
        backoff: Sequence[Duration] | Duration | None = None,
        auto_create_groups: bool | None = None,
        on_expiry: Literal["dead-letter", "drop"] | None = None,
        rf: int | None = None,
        timeout: float | None = None,
    ) -> Topic:
        """Change the given settings of a topic; those that are None stay. Of two that change one, the last one wins.

        Args:
            partitions: number of partitions; never fewer than there are. Messages of a key that is published from
                now on may go to another partition than those before.
            max_deliveries, retention, ttl, backoff, auto_create_groups, on_expiry: as in `create_topic`.
            rf: count of replicas of each partition, odd, given by itself, and more than there are. They are added after
                this has returned, partition by partition, once new nodes have copied the messages; `target_rf` of the
                topic is the new count, `replicas` has those that exist. Until replicas are added, a lower
                count takes it back.

        Returns:
            the topic with all its settings, as a majority of the nodes had it.

        Raises:
            NotFound: no such topic.
            UsageError: a value that cannot be, or nothing given.
            Conflict: replicas were added meanwhile, and ``rf`` is below their count.
            StorageFull: too few nodes have space for more replicas.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        settings = _settings(
            partitions, max_deliveries, retention, ttl, backoff, auto_create_groups, on_expiry
        )
        request = m.AlterTopic(name, **settings, rf=rf)
        watch = self.context.calling("set_topic", name)
        action, waits = f"change topic {name!r}", rf is None
        reply = await self.context.ask_for_change(
            request, action, timeout, self._look_at_topic, watch=watch, waits_for_space=waits
        )
        return self.context.known(reply.topic)

    async def _look_at_topic(self, request: Any, timeout: float) -> Any:
        """Return a request about a topic with its id, and the stamp, layout or epoch that it has now."""
        if not isinstance(request.name, str):
            return request
        known = await self.context.metadata(request.name, groups=False, timeout=timeout)
        return as_seen(request, topic_of(known, request.name))

    async def move_partition(
        self,
        topic: str,
        partition: int,
        source: str,
        to: str,
        *,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Topic:
        """Move one replica of a partition from one node to another, while messages flow.

        Once this has returned, the new node is in the partition's replica set for good. Its payload follows; until it
        has all, the old node keeps its own. Asked again, it changes nothing more.

        Args:
            source: id of the node whose replica moves.
            to: id of the node that gets it.
            dry_run: check the move, and move nothing.

        Returns:
            the topic with its replica sets, as a majority of the nodes had it.

        Raises:
            NotFound: no such topic or partition.
            UsageError: no such replica, a node that has one already, or one on a machine that has one.
            Conflict: the partition was moved elsewhere meanwhile.
            StorageFull: the node that is to get it takes no messages now.
            TooFewReplicas: another replica of the partition, or the new node, is away, or its last move is not over;
                try again.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        if not to:
            raise UsageError(f"to is {to!r}: it must be the id of a node")
        request = m.MovePartition(topic, partition, source, to, dry_run)
        action = f"move partition {topic}/{partition}"
        reply = await self.context.ask_for_change(
            request, action, timeout, self._look_at_topic, waits_for_space=False
        )
        return self.context.known(reply.topic)

    async def give_up_source(
        self, topic: str, partition: int, source: str, *, timeout: float | None = None
    ) -> Topic:
        """Give up the payload of a node that left a partition and is dead for good. Messages of it alone are lost.

        Without this, the partition waits for it. It is refused while the node is up, because it copies its payload.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            source: id of the node that left it.
            timeout: seconds; the client's if None.

        Returns:
            the topic with its replica sets, as a majority of the nodes had it.

        Raises:
            NotFound: no such topic or partition.
            UsageError: the node has a replica still, or is up.
            TooFewReplicas: a replica of the partition is away; try again.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        request = m.MovePartition(topic, partition, source, "")
        action = f"give up what {source} has of {topic}/{partition}"
        reply = await self.context.ask_for_change(request, action, timeout, self._look_at_topic)
        return self.context.known(reply.topic)

    async def add_node(
        self,
        node: str,
        address: str,
        *,
        peer_address: str = "",
        machine: str = "",
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> ClusterLayout:
        """Have a node be a member of the cluster, or change its addresses.

        An empty node that asks to be let in begins then. It keeps replicas and serves clients; settings stay on the
        voters until `move_voter` has one of them leave. Asked again, it changes nothing.

        Args:
            address: ``host:port`` for clients, and for the other nodes.
            peer_address: ``host:port`` for the other nodes, if that differs. A member keeps the one that it has.
            machine: machine of the node, if the cluster has several nodes on one. A member keeps the one that it has.
            dry_run: check the change, and change nothing.

        Returns:
            the layout of the cluster, as a majority of the voters had it.

        Raises:
            UsageError: no such id or address, another member's address, or a machine that is missing or was another.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        return await self._change_members(
            m.ChangeMembers("add", node, address, peer_address, machine, dry_run), timeout
        )

    async def drain_node(
        self, node: str, *, dry_run: bool = False, timeout: float | None = None
    ) -> ClusterLayout:
        """Place no new partition on a node. Its partitions stay until the caller moves them (`move_partition`).

        Args:
            node: id of the node.
            dry_run: check the change, and change nothing.
            timeout: seconds; the client's if None.

        Returns:
            the layout of the cluster, as a majority of the voters had it.

        Raises:
            UsageError: no such node, or no member that can take over its voter's slot.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        return await self._change_members(m.ChangeMembers("drain", node, dry_run=dry_run), timeout)

    async def move_voter(self, node: str, to: str = "", *, timeout: float | None = None) -> ClusterLayout:
        """Have another member keep the settings of topics and groups in place of a node, if that is a voter.

        Args:
            node: id of the node.
            to: id of the member that takes over; empty: the cluster chooses one.
            timeout: seconds; the client's if None.

        Returns:
            the layout of the cluster, as a majority of the voters had it.

        Raises:
            UsageError: no such node, or no member that can take over.
            TooFewReplicas: another voter, or the member, is not up, or learns the settings; repeat it.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        return await self._change_members(m.ChangeMembers("move-voter", node, to=to), timeout)

    async def raise_voters(
        self, count: int, *, dry_run: bool = False, timeout: float | None = None
    ) -> ClusterLayout:
        """Have more members keep the settings of topics and groups, for good: voters never become fewer.

        The cluster chooses members that are up. Asked again, it changes nothing.

        Args:
            count: number of voters that there are to be: 3 or 5.
            dry_run: check the change, and change nothing.
            timeout: seconds; the client's if None.

        Returns:
            the layout of the cluster, as a majority of the voters had it.

        Raises:
            UsageError: an even number, fewer than there are, more than five, or too few other members.
            TooFewReplicas: a voter, or a member that would be one, is not up, or learns the settings; repeat it.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        request = m.ChangeMembers("raise-voters", "", dry_run=dry_run, voters=positive_of("count", count))
        return await self._change_members(request, timeout)

    async def remove_node(self, node: str, *, timeout: float | None = None) -> ClusterLayout:
        """End the membership of a drained node: the others refuse it by name from then on.

        Returns:
            the layout of the cluster, as a majority of the voters had it.

        Raises:
            UsageError: no such node, a voter, one that is not drained, or one that still has partitions.
            NotStored, OutcomeUnknown: too few nodes answered; repeat it.
        """
        return await self._change_members(m.ChangeMembers("remove", node), timeout)

    async def _change_members(self, request: m.ChangeMembers, timeout: float | None) -> ClusterLayout:
        action = (
            f"{request.change} node {request.node!r}"
            if request.node
            else f"{request.change} to {request.voters}"
        )
        reply = await self.context.ask_for_change(request, action, timeout, self._look_at_members)
        return cast("ClusterLayout", reply.layout)

    async def _look_at_members(self, request: m.ChangeMembers, timeout: float) -> m.ChangeMembers:
        known = await self.context.metadata(NO_TOPIC, timeout=timeout)
        return request._replace(layout=known.layout)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> Topic:
        """Delete a topic with its messages, groups and dead letters, for good.

        Once this has returned, nothing is published to it or delivered from it; a client that still works on a
        message of it gets `NotFound` when acking. A topic made later under the same name is another one.

        Args:
            name: name of the topic. Only the topic that has it now is deleted, however often this is repeated.

        Returns:
            the deleted topic.

        Raises:
            NotFound: no such topic, or it was deleted already.
            OutcomeUnknown: too few nodes answered: it may be deleted, or become so. Repeat it.
        """
        end = self.context.end(timeout)
        topic = await self.context.topic(name, timeout=left_of(end))
        request = m.DeleteTopic(name, topic.id)
        watch = self.context.calling("delete_topic", name)
        await self.context.ask(request, f"delete topic {name!r}", left_of(end), writes=True, watch=watch)
        if self.context.history is not None:
            self.context.history.learn(topic, deleted=True)
        return topic

    async def labels(self, topic: str, *, timeout: float | None = None) -> dict[str, str]:
        """Return the labels of a topic by name: small texts for programs and people, which nodes do not read.

        Every change that returned before this call is in it, through whichever node it was made.

        Raises:
            NotFound: no such topic.
            TooFewReplicas: too few nodes answered.
        """
        reply = await self.context.ask(
            m.LabelsRequest(topic), f"read labels of {topic!r}", timeout, writes=False
        )
        return {name: text for name, text in reply.labels if text is not None}

    async def set_labels(
        self, topic: str, labels: Mapping[str, str | None], *, timeout: float | None = None
    ) -> dict[str, str]:
        """Change the given labels of a topic; others stay. Of two that change one label, the last one wins.

        Args:
            labels: texts by name, of at most 1 KiB each; None removes one. A topic has at most 64 labels, and 256
                names in its life; those of a cluster have at most 16 MiB.

        Returns:
            all labels of the topic, as a majority of the nodes had them.

        Raises:
            NotFound: no such topic.
            TooLarge: a limit of the topic or the cluster; names it. Nothing was changed.
            UsageError: a name or text that cannot be, or no labels.
            TooFewReplicas, OutcomeUnknown: too few nodes answered; repeat it.
        """
        if not isinstance(labels, Mapping):
            raise UsageError(f"labels are {labels!r:.60}: give a mapping of names to texts")
        changes = tuple(m.LabelChange(name, text) for name, text in labels.items())
        if not changes:
            raise UsageError("no label is given: `labels` reads them")
        request = m.LabelsRequest(topic, changes)
        reply = await self.context.ask_for_change(
            request, f"change labels of {topic!r}", timeout, self._look_at_labels
        )
        return {name: text for name, text in reply.labels if text is not None}

    async def _look_at_labels(self, request: m.LabelsRequest, timeout: float) -> m.LabelsRequest:
        read = await self.context.ask(
            m.LabelsRequest(request.topic), f"read labels of {request.topic!r}", timeout, writes=False
        )
        return request._replace(id=read.topic, seen=read.stamp)

    async def topic(self, name: str, *, create: bool = False, timeout: float | None = None) -> Topic:
        """Return the topic of that name: its id, replicas and settings.

        Args:
            create: make it, if the cluster lets publishing do that (``auto_create_topics``).

        Raises:
            NotFound: every node that could be reached says that there is none.
        """
        return await self.context.topic(name, create=create, timeout=timeout)

    async def metadata(self, *topics: str, timeout: float | None = None) -> m.MetadataReply:
        """Return nodes, limits, and the named topics with their groups (all topics if none is named).

        Raises:
            NotFound: no such topic.
            TooFewReplicas: no node answered.
        """
        return await self.context.metadata(*topics, timeout=timeout)

    async def status(self, node: str | None = None, *, timeout: float | None = None) -> dict[str, object]:
        """Return a node's knowledge of itself and its peers (docs/operations.md).

        Args:
            node: its id or address; any node that answers if None.

        Raises:
            NotFound: no such node is known.
            TooFewReplicas: it does not answer; says why.
        """
        end = self.context.end(timeout)
        only = () if node is None else (await self.context.address_of(node, left_of(end)),)
        reply = await self.context.ask(
            m.StatusRequest(), f"status of {node or 'a node'}", left_of(end), writes=False, only=only
        )
        fields: dict[str, object] = reply.fields
        while reply.more is not None:
            only = only or (await self.context.address_of(str(fields["node"]), left_of(end)),)
            action = f"more of the status of {fields['node']}"
            reply = await self.context.ask(
                m.StatusRequest(reply.more), action, left_of(end), writes=False, only=only
            )
            fields = reply.joined_to(fields)
        return fields


def _settings(
    partitions: int | None,
    max_deliveries: int | None,
    retention: Duration | None,
    ttl: Duration | None,
    backoff: Sequence[Duration] | Duration | None,
    auto_create_groups: bool | None,
    on_expiry: str | None,
) -> dict[str, Any]:
    """Return a topic's settings as CreateTopic and AlterTopic name them; None if not given."""
    steps = (backoff,) if isinstance(backoff, float | int | timedelta) else backoff or ()
    return {
        "partitions": partitions,
        "max_deliveries": max_deliveries,
        "retention_s": None if retention is None else number_of("retention", retention),
        "ttl_s": None if ttl is None else number_of("ttl", ttl),
        "backoff": None if backoff is None else tuple(number_of("backoff", step) for step in steps),
        "auto_create_groups": auto_create_groups,
        "on_expiry": on_expiry,
    }

"""Registers that peers have, or that were chosen: merged here, with all consequences.

Replicas are made; those of a deleted topic end at once, and so do its requests. A peer behind the times gets ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core import messages as m
from quorumq.core.cluster.labels import last_change
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import ClusterPut, GroupPut
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.packing import keep_packed, pack_deleted
from quorumq.core.requests.placing import ClusterAdopted, discarded
from quorumq.core.values.deadnames import source_of
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    ClusterLayout,
    Group,
    MemberState,
    NodeId,
    Now,
    PartitionId,
    Topic,
    Value,
)


def take_in_group(context: Context, group: Group, now: Now) -> list[Effect]:
    """Merge a group's register: each replica of its topic is read by it, or, if it is deleted, its reading ends."""
    merged = context.catalogue.take_group(group)
    if merged is None:
        return []
    context.state.clock.merge(merged.made.time)
    for number in range(context.catalogue.topics[group.topic].partitions):
        replica = context.kept(PartitionId(group.topic, number))
        if replica is not None:
            replica.views.on_register(merged, now)
    if merged.limit.per_second or (merged.topic, merged.name) in context.state.buckets:
        context.limiting.limit(merged, now, context.parking.lines)
    effects: list[Effect] = [Persist((GroupPut(merged),))]
    return (
        effects + end_group(context, merged, now) + pack_deleted(context.state) if merged.deleted else effects
    )


def take_in_groups(context: Context, groups: Iterable[Group], now: Now) -> list[Effect]:
    """Merge the registers of several groups."""
    return [effect for group in groups for effect in take_in_group(context, group, now)]


def end_group(context: Context, group: Group, now: Now) -> list[Effect]:
    """End the requests that are under way for a deleted group."""
    topic = context.catalogue.topics[group.topic]
    effects: list[Effect] = []
    context.state.drop_fetchers(lambda partition, name: (partition.topic, source_of(name)) == group[:2])
    for pending in dict.fromkeys([*context.requests.values(), *context.rounds.values()]):
        if not pending.done and pending.reads(group.topic, group.name):
            effects += pending.on_group_deleted(context, topic, now)
    return effects


def take_in_topic(context: Context, topic: Topic, now: Now) -> list[Effect]:
    """Merge a register that a peer has, and carry out its consequences: partitions begin, or end."""
    before = context.catalogue.register_named(topic.name)
    ours = context.catalogue.topics.get(topic.id)
    merged = context.catalogue.take_topic(topic)
    if merged is None:
        return []
    context.state.clock.merge(max(topic.stamp, last_change(topic.labels)).time)
    if not merged.deleted and merged.layout != (ours.layout if ours is not None else None):
        context.peer_groups.discard(topic.id)
        effects = context.put_layout(merged)
        effects += end_rounds(context, ours, merged, now) if ours is not None else []
    else:
        effects = context.put_register(merged, ours)
    there = before if before is not None and not before.deleted else merged
    for over in dict.fromkeys((there, merged)):
        if context.catalogue.is_deleted(over.id):
            effects += end_topic(context, over, now)
    effects += make_replicas(context, (merged,), now)
    return effects + pack_deleted(context.state)


def make_replicas(context: Context, topics: Iterable[Topic], now: Now) -> list[Effect]:
    """Make a replica of each partition whose replica set, or list of sources, has this node.

    In quarantine, it asks for its holds. A layout that is not durable here yet counts once it is.
    """
    made = False
    for topic in topics:
        registers = context.catalogue.group_registers(topic.id)
        groups = dict.fromkeys([register.name for register in registers if not register.deleted])
        waits = context.is_adopting(topic)
        for register in registers:
            if register.limited is not None and not waits:
                context.limiting.limit(register, now, context.parking.lines)
        for number, members in enumerate(topic.replicas):
            partition = PartitionId(topic.id, number)
            replica = context.kept(partition) if context.sources else context.replicas.get(partition)
            if replica is not None:
                replica.alter(topic, now)
            elif waits:
                continue
            elif context.state.me in members or (
                topic.layout and context.state.me in topic.learners_of(number)
            ):
                replica = context.replicas[partition] = Replica(context.state, topic, partition)
                if partition in context.slots:
                    replica.trust_slot(context.slots[partition])
                context.hold_recovery.await_holds(replica, now)
                made = True
                replica.views.begin(groups)
            elif topic.layout is not None and context.make_source(topic, partition):
                context.sources[partition].views.begin(groups)
    context.join_soon(now)
    return ask_for_holds(context, now) if made and context.hold_recovery.awaited else []


def take_in_cluster(context: Context, layout: ClusterLayout, now: Now) -> list[Effect]:
    """Take over a layout that was chosen, if it is newer: one with other voters once it is durable here."""
    if not context.catalogue.is_newer(layout) or layout in context.adopting:
        return []
    if layout.epoch != context.catalogue.cluster.epoch:
        # After a crash this node's answers would count for the old voters again.
        return [Persist((ClusterPut(layout),), (context.when_durable(ClusterAdopted(layout)),))]
    return [*use_cluster(context, layout, now), Persist((ClusterPut(layout),))]


def use_cluster(context: Context, layout: ClusterLayout, now: Now) -> list[Effect]:
    """Act upon a layout of the cluster: add and remove peers. A removed one gets it before its link ends."""
    before = context.catalogue.cluster.present
    context.catalogue.take_cluster(layout)
    context.state.clock.merge(layout.made.time)
    context.departure_is_due = context.state.standing != MemberState.JOINED
    effects: list[Effect] = []
    for peer in before:
        if not context.catalogue.cluster.is_member(peer) and context.state.on_link_down(peer):
            effects.append(Send(peer, m.PutCluster(0, layout)))
    for peer in context.catalogue.cluster.present:
        if peer not in before and peer != context.state.me:
            context.state.at(now.mono + context.rng.random() * context.config.sync_interval, ("sync", peer))
    return effects


def take_in_chosen(context: Context, value: Value, now: Now) -> list[Effect]:
    """Take in a value that was just chosen. A layout is not adopted before a majority of the nodes has it."""
    if isinstance(value, Topic):
        return take_in_topic(context, value, now)
    if isinstance(value, Group):
        return take_in_group(context, value, now)
    if isinstance(value, ClusterLayout):
        return take_in_cluster(context, value, now)
    topic = context.catalogue.topics.get(value.topic)
    return take_in_topic(context, topic._replace(next_layout=value), now) if topic is not None else []


def end_rounds(context: Context, ours: Topic, merged: Topic, now: Now) -> list[Effect]:
    """End the rounds of requests about partitions whose slots have changed: fewer and fewer nodes answer them."""
    moved = tuple(
        PartitionId(ours.id, number)
        for number in range(ours.partitions)
        if ours.epoch_of(number) != merged.epoch_of(number)
    )
    effects: list[Effect] = []
    for pending in dict.fromkeys([*context.requests.values(), *context.rounds.values()]):
        if not pending.done and moved:
            effects += pending.on_moved(context, moved, now)
    return effects


def adopt(context: Context, topic: Topic, now: Now) -> list[Effect]:
    """Move this node's replicas to the sets of a layout that is durable here."""
    known = context.catalogue.topics.get(topic.id)
    if known is None or known.deleted:  # a deleted one is packed at some time
        return []
    departed, effects = context.take_layout(topic, now)
    for partition in departed:
        for pending in list(context.requests.values()):
            if not pending.done:
                effects += pending.on_left(context, partition, now)
        context.replicas.pop(partition)
    context.state.drop_fetchers(lambda partition, _: partition in departed)
    effects += make_replicas(context, (context.catalogue.topics[topic.id],), now)
    return effects + (ask_for_holds(context, now) if context.hold_recovery.awaited else [])


def ask_for_holds(context: Context, now: Now) -> list[Effect]:
    """Ask all peers for the holds of replicas in quarantine."""
    return [
        effect
        for peer in context.state.links
        for effect in context.hold_recovery.ask(context.state, context.replicas, peer, now, afresh=True)
    ]


def end_topic(context: Context, topic: Topic, now: Now) -> list[Effect]:
    """End requests and drop replicas (DELETE). The journal's records of them mean nothing from here on."""
    effects: list[Effect] = []
    for table in (context.replicas, context.sources):
        for partition in [each for each in table if each.topic == topic.id]:
            effects += discarded(table.pop(partition))
    context.state.producer_ids.pop(topic.id, None)
    context.state.names.pop(topic.id, None)
    context.catalogue.drop_groups(topic.id)
    context.peer_groups.discard(topic.id)
    context.limiting.drop(topic.id)
    context.state.drop_fetchers(lambda partition, _: partition.topic == topic.id)
    for pending in dict.fromkeys([*context.requests.values(), *context.rounds.values()]):
        if not pending.done and pending.concerns(topic.id):
            effects += pending.on_deleted(context, topic, now)
    return effects


def put_topic(context: Context, sender: NodeId, message: m.PutTopic, now: Now) -> list[Effect]:
    """Merge a topic's register and some groups' registers, to be kept (in a round), or as news (round 0).

    A sender behind the times gets the newer register.
    """
    number, topic, groups, _ = message
    newest = context.catalogue.register_named(topic.name)
    known, epoch = context.state.register_vector(), context.state.voting_epoch
    if newest is not None and newest.deletions > topic.deletions:
        if number:
            reply = m.PutReply(
                number, Code.DELETED, f"topic {topic.name!r} was deleted", newest, None, known, epoch
            )
            return [Persist((), (Send(sender, reply),))]
        return [Send(sender, m.PutTopic(0, newest))]
    effects = take_in_topic(context, topic, now)
    effects += take_in_groups(context, groups, now)
    effects += take_in_packed(context, message.packed, now)
    merged = context.catalogue.register_with(topic.id, topic.name)
    assert merged is not None, "it was merged a moment ago"
    if number:
        stamps = (topic.stamp, last_change(topic.labels))
        promised = context.state.promised((topic.id, ""), *stamps)
        more = merged if merged != topic else None
        reply = m.PutReply(number, "", "", more, None, known, epoch, promised)
        return [*effects, Persist((), (Send(sender, reply),))]
    if (merged.deleted and not topic.deleted) or merged.layout_known > topic.layout_known:
        return [*effects, Send(sender, m.PutTopic(0, merged))]
    return effects


def put_group(context: Context, sender: NodeId, message: m.PutGroup, now: Now) -> list[Effect]:
    """Merge a group's register, to be kept, or as news (round 0). An older one is answered with the newer one."""
    number, group, partitions, layout = message
    if not number:
        effects = take_in_group(context, group, now)
        merged = context.catalogue.group(group.topic, group.name) or group
        return effects if merged == group else [*effects, Send(sender, m.PutGroup(0, merged))]
    topic = context.catalogue.topics.get(group.topic)
    if topic is None or not context.state.trusted:
        code = Code.UNKNOWN_TOPIC if context.state.trusted else Code.NOT_TRUSTED
        return [Send(sender, m.PutReply(number, code, "", None, None))]
    known, epoch = context.state.register_vector(), context.state.voting_epoch
    if topic.deleted:
        reply = m.PutReply(number, Code.DELETED, "", topic, None, known, epoch)
        return [Persist((), (Send(sender, reply),))]
    effects = take_in_group(context, group, now)
    merged = context.catalogue.group(group.topic, group.name) or group
    more = topic if topic.all_partitions > partitions or topic.layout_known > layout else None
    promised = context.state.promised((group.topic, group.name), group.pause.stamp, group.limit.stamp)
    reply = m.PutReply(number, "", "", more, merged if merged != group else None, known, epoch, promised)
    return [*effects, Persist((), (Send(sender, reply),))]


def take_in_registers(context: Context, sender: NodeId, registers: m.SyncTopics, now: Now) -> list[Effect]:
    """Merge the registers that a peer has."""
    topics, groups, packed = registers
    effects = [effect for topic in topics for effect in put_topic(context, sender, m.PutTopic(0, topic), now)]
    effects += take_in_groups(context, groups, now)
    return effects + take_in_packed(context, packed, now)


def take_in_packed(context: Context, packed: bytes, now: Now) -> list[Effect]:
    """Merge packed registers of deleted names that a peer has."""
    registers, effects = keep_packed(context.state, context.replicas, packed)
    for register in registers:
        if isinstance(register, Group):
            effects += take_in_group(context, register, now)
        else:
            effects += take_in_topic(context, register, now)
    return effects

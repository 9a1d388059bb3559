"""Topic registers: their limits, their making, and the merge of two.

A register is written to a majority of the node list and spread by anti-entropy (docs/registers.md, SETTINGS).
Any two of one topic merge, in any order and any number of times, to the same one: that is all that keeps nodes of
one mind.
"""

from __future__ import annotations

import hashlib
from typing import Any

from quorumq.core.cluster.labels import merge_labels
from quorumq.core.messages import SETTINGS, AlterTopic, CreateTopic, MovePartition
from quorumq.core.values import limits
from quorumq.core.values.types import (
    FIRST_LAYOUT,
    STAMP_ZERO,
    Decision,
    Layout,
    Machines,
    NodeId,
    Stamp,
    Topic,
    topic_id,
)

ON_EXPIRY = ("dead-letter", "drop")


def stamps_of(topic: Topic) -> tuple[Stamp, ...]:
    """Return the stamp of each setting, in the order of SETTINGS."""
    if not topic.stamps:
        return (topic.stamp,) * len(SETTINGS)
    return (*topic.stamps, *[topic.made] * (len(SETTINGS) - len(topic.stamps)))  # settings of later versions


def stamped(topic: Topic, stamps: tuple[Stamp, ...]) -> Topic:
    """Return ``topic`` with these stamps of its settings."""
    highest = max(stamps)
    return topic._replace(stamp=highest, stamps=() if min(stamps) == highest else stamps)


def rank(topic: Topic) -> tuple[int, Stamp]:
    """Return the rank of a topic: the highest among those of one name is the topic."""
    return topic.deletions, topic.made


def merge_topics(ours: Topic, theirs: Topic) -> Topic:
    """Merge two registers of one topic: partitions by maximum, deleted for good, each setting by its stamp."""
    assert ours.id == theirs.id
    proposed = max(ours.all_partitions, theirs.all_partitions)
    layout = max(ours.layout, theirs.layout, key=layout_rank)
    chosen = max(ours.next_layout, theirs.next_layout, key=layout_rank)
    chosen = chosen if layout_rank(chosen) > layout_rank(layout) else None
    later = max(ours, theirs, key=rank)  # they are of one creation, unless one was forgotten
    if ours.deleted or theirs.deleted:
        later = later._replace(layout=layout, next_layout=chosen, buried=ours.buried or theirs.buried)
        return closed(with_proposed(later, proposed))
    merged = ours if ours.partitions >= theirs.partitions else theirs
    merged = merged._replace(born=later.born, made=later.made, digest_key=later.digest_key, over=later.over)
    merged = merged._replace(labels=merge_labels(ours.labels, theirs.labels))
    pairs = list(zip(stamps_of(ours), stamps_of(theirs), strict=True))
    newer = {
        name: getattr(ours if mine >= other else theirs, name)
        for name, (mine, other) in zip(SETTINGS, pairs, strict=True)
    }
    merged = stamped(merged._replace(**newer), tuple(max(pair) for pair in pairs))
    return with_layout(with_proposed(merged, proposed), layout)._replace(next_layout=chosen)


def layout_rank(layout: Layout | None) -> tuple[int, Stamp]:
    """Return the rank of a layout; the highest stands, as one value, in a merge of two registers.

    Two layouts have one number only if a majority of the directories was lost; the later proposal stands then.
    """
    return (FIRST_LAYOUT, STAMP_ZERO) if layout is None else (layout.number, layout.made)


def layout_digest(layout: Layout) -> bytes:
    """Return the digest of a layout's content. Nodes whose layouts of one number differ are of two clusters."""
    words: list[object] = [layout.number, *layout.made, *([layout.rf] if layout.rf else [])]
    for placement in layout.placements:
        words += [";", placement.partition, placement.epoch, *placement.sources]
        words += ["+", *placement.learners] if placement.learners else []
        for slots in (placement.slots, placement.before):
            words += [",", *(word for slot in slots for word in slot)]
    return hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=limits.DIGEST_BYTES).digest()


def with_layout(topic: Topic, layout: Layout | None) -> Topic:
    """Return ``topic`` with this layout adopted: its replica sets are those of the layout."""
    sets = list(topic.replicas)
    for placement in layout.placements if layout is not None else ():
        if placement.partition < len(sets):
            sets[placement.partition] = placement.nodes
    return topic._replace(layout=layout, replicas=tuple(sets))


def closed(topic: Topic) -> Topic:
    """Return the register of the topic once it is deleted: only its identity is kept, for good.

    The sets that the deletion has to reach are kept until it has.
    """
    gone = Topic(topic.id, topic.name, topic.rf, (), 0, STAMP_ZERO, deleted=True)
    gone = gone._replace(deletions=topic.deletions, made=topic.made, proposed=topic.all_partitions)
    if topic.buried:
        return gone._replace(buried=True)
    return gone._replace(layout=topic.layout, next_layout=topic.next_layout, over=topic.over)


def names_sets(topic: Topic) -> bool:
    """Return True if a register names sets that cannot be drawn from the first list of nodes."""
    return bool(topic.over or topic.layout or topic.next_layout)


def first_topic(
    request: CreateTopic,
    nodes: tuple[NodeId, ...],
    deletions: int,
    made: Stamp,
    machines: Machines = (),
    digest_key: bytes = b"",
    over: Machines = (),
) -> Topic:
    """Return the register that a creation proposes, under the ballot ``made``.

    ``over``: members, with their machines, from which its replica sets are drawn if the cluster has grown.

    If a producer made it, no operator chose the settings: their stamp is below all others, and a later CREATE
    sets its own.
    """
    topic = Topic(
        topic_id(request.name, request.rf, deletions),
        request.name,
        request.rf,
        (),
        request.max_deliveries,
        STAMP_ZERO if request.implicit else made,
        retention_s=request.retention_s,
        ttl_s=request.ttl_s,
        backoff=request.backoff,
        born=request.partitions,
        deletions=deletions,
        made=made,
        auto_create_groups=request.auto_create_groups,
        on_expiry=request.on_expiry,
        digest_key=digest_key,
        over=over,
    )
    return with_partitions(topic, request.partitions, nodes, machines)


def merge_decisions(ours: Decision, theirs: Decision) -> Decision:
    """Merge two nodes' promises and acceptances in one instance: each part by its higher ballot."""
    assert ours.instance == theirs.instance
    accepted = max(ours, theirs, key=lambda decision: (decision.ballot, decision.value is not None))
    return accepted._replace(promised=max(ours.promised, theirs.promised))


def difference(request: CreateTopic, topic: Topic) -> str:
    """Return the differences of an existing topic from a creation, in words, or ""."""
    if request.rf not in (topic.rf, topic.target_rf) and "rf" not in request.unnamed:
        return f"rf = {topic.target_rf!r}, not {request.rf!r}"
    for name in ("partitions", *SETTINGS):
        requested, there = getattr(request, name), getattr(topic, name)
        if requested != there and name not in request.unnamed:
            return f"{name} = {there!r}, not {requested!r}"
    return ""


def as_change(request: CreateTopic) -> AlterTopic:
    """Return the change that gives a topic which is there everything that a creation names."""
    names = [name for name in ("partitions", *SETTINGS) if name not in request.unnamed]
    return AlterTopic(request.name, **{name: getattr(request, name) for name in names})


def named(request: AlterTopic) -> dict[str, Any]:
    """Return the settings that a change names."""
    return {name: getattr(request, name) for name in SETTINGS if getattr(request, name) is not None}


def alter(topic: Topic, request: AlterTopic, stamp: Stamp) -> Topic:
    """Return ``topic`` with the settings that the request names, under ``stamp``, and partitions proposed."""
    changed = named(request)
    stamps = tuple(
        stamp if name in changed else before for name, before in zip(SETTINGS, stamps_of(topic), strict=True)
    )
    return stamped(with_proposed(topic, request.partitions or 0)._replace(**changed), stamps)


def is_overtaken(topic: Topic, request: AlterTopic, stamp: Stamp) -> bool:
    """Return True if a setting that the request wrote under ``stamp`` was written under a higher one since."""
    changed = named(request)
    return any(
        name in changed and there > stamp for name, there in zip(SETTINGS, stamps_of(topic), strict=True)
    )


def is_changed(topic: Topic, request: AlterTopic, own: Stamp) -> bool:
    """Return True if a setting that the request names was changed since its client looked, and not as it wants it.

    Args:
        own: stamp that this request has written.
    """
    seen, changed = request.seen, named(request)
    return seen is not None and any(
        there > seen.stamp and there != own and getattr(topic, name) != changed[name]
        for name, there in zip(SETTINGS, stamps_of(topic), strict=True)
        if name in changed
    )


def check_alteration(request: AlterTopic, topic: Topic) -> str:
    """Return the error in a change of ``topic``, or ""."""
    if all(value is None for value in request[1:9]):
        return "no setting is named: there is nothing to change"
    partitions = topic.partitions if request.partitions is None else request.partitions
    if not topic.partitions <= partitions <= limits.PARTITIONS_MAX:
        return (
            f"partitions is {partitions}: topic {topic.name!r} has {topic.partitions}, which can only become more, up "
            f"to {limits.PARTITIONS_MAX}"
        )
    return check_settings(topic._replace(**named(request)))


def check_placing(
    request: AlterTopic,
    topic: Topic,
    nodes: tuple[NodeId, ...],
    machines: Machines,
    joined: tuple[NodeId, ...],
) -> str:
    """Return why more partitions of a topic cannot be placed, or "": on a node that leaves, or has left."""
    drawn = replica_sets(topic, request.partitions or 0, nodes, machines)
    named = dict.fromkeys(node for each in drawn[topic.partitions :] for node in each)
    gone = [node for node in named if node not in joined]
    if not gone:
        return ""
    return (
        f"partitions is {request.partitions}: new partitions of topic {topic.name!r} go to the nodes that were "
        f"there when it was made, and {', '.join(gone)} is no member any more, or drained. Make another topic"
    )


def check_move(
    request: MovePartition, topic: Topic, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> str:
    """Return the error in a move of a partition, or ""."""
    if request.source == request.to or request.to not in nodes:
        return (
            f"to is {request.to!r}: it must be another node of the cluster than {request.source!r}, one of "
            f"{', '.join(nodes)}"
        )
    members = topic.replicas[request.partition]
    if request.to in members and request.source not in members:
        return ""  # it was moved
    where = f"partition {request.partition} of topic {topic.name!r} is on {', '.join(members)}"
    if request.source not in members:
        return f"from is {request.source!r}: {where}"
    if request.to in members:
        return f"to is {request.to!r}: {where}, and no node has two slots"
    on = dict(machines)
    beside = [
        node
        for node in members
        if node != request.source and on.get(node, node) == on.get(request.to, request.to)
    ]
    if machines and beside:
        return (
            f"to is {request.to!r}: it shares machine {on.get(request.to)!r} with {beside[0]}, and {where}; a machine "
            "that fails must not take two replicas along"
        )
    return ""


def with_proposed(topic: Topic, partitions: int) -> Topic:
    """Return ``topic`` with at least ``partitions`` whose addition has begun."""
    proposed = max(topic.all_partitions, partitions)
    return topic._replace(proposed=proposed if proposed > topic.partitions else 0)


def with_partitions(
    topic: Topic, partitions: int, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> Topic:
    """Return ``topic`` with at least ``partitions`` that are confirmed; those that are there stay."""
    return with_replicas(topic, replica_sets(topic, partitions, nodes, machines))


def with_replicas(topic: Topic, sets: tuple[tuple[NodeId, ...], ...]) -> Topic:
    """Return ``topic`` with the partitions confirmed that ``sets`` has beyond its own."""
    return with_proposed(topic._replace(replicas=topic.replicas + sets[topic.partitions :]), 0)


def replica_sets(
    topic: Topic, partitions: int, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> tuple[tuple[NodeId, ...], ...]:
    """Return the sets of at least ``partitions``, confirmed or not.

    They are drawn from the node list, which does not change, or from the members that the topic was made with.
    """
    more = range(topic.partitions, partitions)
    if topic.over:
        nodes = tuple(node for node, _ in topic.over)
        machines = tuple((node, machine) for node, machine in topic.over if machine)
    return topic.replicas + tuple(replica_set(nodes, machines, topic.rf, topic.id, number) for number in more)


def all_sets(
    topic: Topic, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> tuple[tuple[NodeId, ...], ...]:
    """Return the replica sets of all partitions that the topic has, or may yet have, or had, each once.

    None has to hear of a deletion again that has reached them all.
    """
    if topic.buried:
        return ()
    sets = required_sets(topic, nodes, machines)
    return tuple(dict.fromkeys(nodes for number in range(len(sets)) for nodes in sets[number]))


def required_sets(
    topic: Topic, nodes: tuple[NodeId, ...], machines: Machines = ()
) -> list[tuple[tuple[NodeId, ...], ...]]:
    """Return the sets, by partition, that each need a majority with a register, proposed partitions included.

    A partition that moves has several: the set before the move may still act while some of its nodes have not heard
    of the layout, and the set of a chosen layout may act any moment (docs/layouts.md, LAYOUTS).
    """
    drawn = replica_sets(topic, topic.all_partitions, nodes, machines)
    sets: list[dict[tuple[NodeId, ...], None]] = [{members: None} for members in drawn]
    for layout in (topic.layout, topic.next_layout):
        for placement in layout.placements if layout is not None else ():
            if placement.partition < len(sets):
                if layout is topic.layout:
                    sets[placement.partition] = {}
                sets[placement.partition][placement.nodes] = None
                if placement.before:
                    sets[placement.partition][placement.nodes_before] = None
    return [tuple(each) for each in sets]


def check_topic_name(name: str) -> str:
    """Return the error in a topic's name, or ""."""
    allowed = all(character.isascii() and (character.isalnum() or character in "._-") for character in name)
    if not name or not allowed or len(name) > limits.NAME_BYTES_MAX or name.endswith(".deadletters"):
        return (
            f"topic name is {name[:50]!r}: it must have 1 to {limits.NAME_BYTES_MAX} letters, digits, '.', '_' or "
            "'-', and not end in '.deadletters'"
        )
    return ""


def check_topic_request(request: CreateTopic, nodes: tuple[NodeId, ...], machines: Machines = ()) -> str:
    """Return the error in a topic's creation, or ""."""
    if error := check_topic_name(request.name):
        return error
    sites = len({machine for _, machine in machines} or nodes)
    if request.rf % 2 == 0 or not 1 <= request.rf <= sites:
        items = "machines, as no machine has two replicas of a partition" if machines else "nodes"
        return (
            f"rf is {request.rf}: it must be odd (an even one tolerates no more failures than the odd one below it) "
            f"and at most {sites}, the number of {items}"
        )
    if not 1 <= request.partitions <= limits.PARTITIONS_MAX:
        return f"partitions is {request.partitions}: it must be from 1 to {limits.PARTITIONS_MAX}"
    return check_settings(request)


def check_settings(settings: Topic | CreateTopic) -> str:
    """Return the error in a topic's settings, or ""."""
    if settings.max_deliveries < 1:
        return f"max_deliveries is {settings.max_deliveries}: it must be at least 1"
    for name, seconds in (("retention_s", settings.retention_s), ("ttl_s", settings.ttl_s)):
        if not 0 <= seconds <= limits.TOPIC_TIME_MAX_S:
            return f"{name} is {seconds} s: it must be from 0 to {limits.TOPIC_TIME_MAX_S:.0f} s"
    if len(settings.backoff) > limits.BACKOFF_STEPS_MAX:
        return f"backoff has {len(settings.backoff)} steps: it must have at most {limits.BACKOFF_STEPS_MAX}"
    for seconds in settings.backoff:
        if not 0 <= seconds <= limits.BACKOFF_MAX_S:
            return f"backoff has a step of {seconds} s: each must be from 0 to {limits.BACKOFF_MAX_S:.0f} s"
    if settings.on_expiry not in ON_EXPIRY:
        return f"on_expiry is {settings.on_expiry!r}: it must be one of {', '.join(ON_EXPIRY)}"
    return ""


def replica_set(
    nodes: tuple[NodeId, ...], machines: Machines, size: int, *keys: object
) -> tuple[NodeId, ...]:
    """Return the first ``size`` of ``nodes`` as ranked for ``keys``, no two of them on one machine."""
    ranked = rendezvous(nodes, *keys)
    if not machines:
        return tuple(ranked[:size])
    on = dict(machines)
    chosen: dict[str, NodeId] = {}
    for node in ranked:
        chosen.setdefault(on.get(node, node), node)
    return tuple(chosen.values())[:size]


def rendezvous(nodes: tuple[NodeId, ...] | list[NodeId], *keys: object) -> list[NodeId]:
    """Return ``nodes`` ranked by highest random weight for ``keys``; the same everywhere, in any order of the nodes."""
    rest = "\0".join(["", *[key.hex() if isinstance(key, bytes) else str(key) for key in keys]]).encode()

    def weight(node: NodeId) -> bytes:
        return hashlib.blake2b(node.encode() + rest, digest_size=8).digest()

    return sorted(nodes, key=weight, reverse=True)

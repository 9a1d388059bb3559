# quorumq/core/topics.py: topic registers: what they may say, how they are made, and how two of them merge.
#
# A register is written to a majority of the node list and spread by anti-entropy (docs/protocol.md, "settings").
# Any two of one topic merge, in any order and any number of times, to the same one: that is all that keeps nodes of
# one mind.
"""Topic registers as values: checks, creation and merging."""

from __future__ import annotations

from quorumq.core import limits
from quorumq.core.messages import CreateTopic
from quorumq.core.types import NodeId, Topic, rendezvous


def merge_topics(ours: Topic, theirs: Topic) -> Topic:
    """Merge two registers of one topic: partitions by maximum, deleted for good, settings by stamp.

    Of two creations at once the one with fewer partitions says how many the topic was born with.
    """
    assert ours.id == theirs.id
    newer = ours if ours.stamp >= theirs.stamp else theirs
    longer = ours if ours.partitions >= theirs.partitions else theirs
    return newer._replace(
        replicas=longer.replicas,
        epoch=max(ours.epoch, theirs.epoch),
        deleted=ours.deleted or theirs.deleted,
        born=min(ours.born or theirs.born, theirs.born or ours.born),
    )


def with_partitions(topic: Topic, partitions: int, nodes: tuple[NodeId, ...]) -> Topic:
    """``topic`` with replica sets for at least ``partitions``; those that are there stay."""
    replicas = list(topic.replicas)
    for number in range(len(replicas), partitions):
        replicas.append(tuple(rendezvous(nodes, topic.id, number)[: topic.rf]))
    return topic._replace(replicas=tuple(replicas))


def make_topic(request: CreateTopic, nodes: tuple[NodeId, ...], topic: Topic) -> Topic:
    """``topic`` as the request wants it: settings and partitions beyond those that are there."""
    born = topic.born if topic.replicas else request.partitions
    return with_partitions(topic, request.partitions, nodes)._replace(
        born=born,
        max_deliveries=request.max_deliveries,
        durability=request.durability,
        retention_s=request.retention_s,
        ttl_s=request.ttl_s,
        backoff=request.backoff,
    )


def check_topic_request(request: CreateTopic, nodes: tuple[NodeId, ...]) -> str:
    """What is wrong with a topic's creation, or ""."""
    name = request.name
    allowed = all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in name)
    if not name or not allowed or len(name) > limits.NAME_BYTES_MAX or name.endswith(".deadletters"):
        return (
            f"topic name is {name[:50]!r}: it must have 1 to {limits.NAME_BYTES_MAX} letters, digits, '.', '_' or "
            "'-', and not end in '.deadletters'"
        )
    if request.rf % 2 == 0 or not 1 <= request.rf <= len(nodes):
        return (
            f"rf is {request.rf}: it must be odd (an even one tolerates no more failures than the odd one below it) "
            f"and at most the number of nodes, {len(nodes)}"
        )
    if not 1 <= request.partitions <= limits.PARTITIONS_MAX:
        return f"partitions is {request.partitions}: it must be from 1 to {limits.PARTITIONS_MAX}"
    return check_settings(
        request.max_deliveries, request.durability, request.retention_s, request.ttl_s, request.backoff
    )


def check_settings(
    max_deliveries: int, durability: str, retention_s: float, ttl_s: float, backoff: tuple[float, ...]
) -> str:
    """What is wrong with a topic's settings, or ""."""
    if max_deliveries < 1:
        return f"max_deliveries is {max_deliveries}: it must be at least 1"
    if durability not in ("fsync", "os"):
        return f"durability is {durability!r}: it must be 'fsync' or 'os'"
    for name, seconds in (("retention_s", retention_s), ("ttl_s", ttl_s)):
        if not 0 <= seconds <= limits.TOPIC_TIME_MAX_S:
            return f"{name} is {seconds} s: it must be from 0 to {limits.TOPIC_TIME_MAX_S:.0f} s"
    if len(backoff) > limits.BACKOFF_STEPS_MAX:
        return f"backoff has {len(backoff)} steps: it must have at most {limits.BACKOFF_STEPS_MAX}"
    for seconds in backoff:
        if not 0 <= seconds <= limits.BACKOFF_MAX_S:
            return f"backoff has a step of {seconds} s: each must be from 0 to {limits.BACKOFF_MAX_S:.0f} s"
    return ""

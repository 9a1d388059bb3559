"""Work that one group has left in a partition, as this replica sees it: numbers that are counted as they change."""

from __future__ import annotations

from quorumq.core.messages import GroupPart
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.fate import DEAD, DEFERRED, DELAYED, EXHAUSTED, HELD
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.ready import Key
from quorumq.core.partition.replica import Replica
from quorumq.core.values.types import Kind, Now


def backlog_of(batches: Batches, view: GroupView, now: Now) -> dict[str, object]:
    """Return counts of messages; ages in seconds, None if there is nothing to take an age from.

    If a group begins, the messages it has looked at are available, and never nothing; ``suspects`` are those of the
    available ones that are delivered in lots. ``dying`` have no deliveries left, and are about to be dead letters.
    ``dropped`` are those that expired, since the node started, if the topic drops such. ``held`` and ``delayed`` are of
    messages that are here. ``oldest_s`` is the age of the oldest that is ready, held or delayed; ``kept_s`` that of the
    oldest batch that the group keeps, for a dead letter as well. ``per_second`` is its limit of deliveries, 0 for none.
    """
    kept = view.kept
    ready = [row[:2] for messages in (view.available, view.suspects) if (row := messages.batches.first())]
    ready += kept.oldest(HELD, DEFERRED, DELAYED)
    return {
        "available": max(view.available.messages + view.suspects.messages, int(view.begins)),
        "suspects": view.suspects.messages,
        "dying": kept.count(EXHAUSTED),
        "held": kept.count(HELD),
        "delayed": kept.count(DELAYED),
        "oldest_s": age_of(batches, ready, now),
        "kept_s": age_of(batches, ready + kept.oldest(DEAD, EXHAUSTED), now),
        "tombstone_spans": view.records.spans,
        "settled": view.records.messages - view.records.count(Kind.OPEN),
        "dead": view.records.count(Kind.DEAD),
        "dropped": view.dropped,
        "paused": view.paused,
        "per_second": bucket.limit
        if (bucket := batches.node.bucket_of(batches.partition.topic, view.name))
        else 0.0,
    }


def part_of(replica: Replica, group: str, now: Now) -> GroupPart:
    """Return the work that a group has left here; nothing if the group is unknown. Looking does not make it."""
    number, view = replica.partition.number, replica.views.groups.get(group)
    if view is None:
        return GroupPart(number)
    backlog = backlog_of(replica.batches, view, now)
    names = ("available", "held", "delayed", "dead", "oldest_s", "suspects", "dying", "dropped")
    counts = (backlog[name] for name in names)
    return GroupPart(number, *counts)  # type: ignore[arg-type]


def age_of(batches: Batches, keys: list[Key], now: Now) -> float | None:
    """Return the age of the oldest of these batches in seconds, by our clock."""
    ages = [now.mono - batches.stored[number].born for _, number in keys]
    return round(max(ages), 3) if ages else None

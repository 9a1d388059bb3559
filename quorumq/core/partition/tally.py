"""What one group has still to do in a partition, as this replica sees it, in numbers."""

from __future__ import annotations

import itertools

from quorumq.core.messages import GroupPart
from quorumq.core.partition import fate
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.replica import Replica
from quorumq.core.types import OPEN_ZERO, Kind, Now

LOOKED_MAX = 4096
"""Batches, the oldest first, of which the first that a group needs is looked for."""


def tally(batches: Batches, view: GroupView, now: Now) -> dict[str, object]:
    """Counts of messages; ages in seconds, None where there is nothing of which to tell one.

    ``oldest_s`` is the age of the oldest message that is ready, held or delayed; ``kept_s`` that of the oldest batch
    that the group keeps, for a dead letter as well.
    """
    delayed = 0
    ready = [*view.available.ready.keys()[:1], *view.suspects.ready.keys()[:1]]
    numbers: dict[int, None] = dict.fromkeys(number for _, number in ready)
    facts = view.facts(now.mono)
    for span, lease in view.leases.items():
        if lease.held is None and lease.delay is None:
            continue
        for part, record in view.home.records.split(span):
            stands = fate.as_read(record or OPEN_ZERO, facts, facts.generation)
            late = lease.held is None and fate.delay_at(lease, facts, stands) is not None
            if late and fate.is_readable(record or OPEN_ZERO, facts):
                delayed += part.size
            elif lease.held is None:
                continue
            numbers.update((slot.number, None) for _, slot in batches.index.within(part))
    for number in batches.waiting:
        batch = batches.stored[number]
        covered = view.covers(batch.header.published_ms)
        spans = [part for whole in batches.parts_of(batch) for part, _ in view.readable(whole, covered)]
        if spans and view.source is None:
            delayed += sum(span.size for span in spans)
            numbers[number] = None
    ages = [now.mono - batches.stored[number].born for number in numbers]
    return {
        "delayed": delayed,
        "oldest_s": round(max(ages), 3) if ages else None,
        "kept_s": kept_s(batches, view, now),
    }


def part_of(replica: Replica, group: str, now: Now) -> GroupPart:
    """What a group has still to do here; nothing where nobody has heard of it. Looking does not make it."""
    number, view = replica.partition.number, replica.views.groups.get(group)
    if view is None:
        return GroupPart(number)
    facts = tally(replica.batches, view, now)
    ready = view.available.messages + view.suspects.messages
    dead = sum(span.size for span, record in view.records.items() if record.letter is not None)
    return GroupPart(number, ready, view.held_count, facts["delayed"], dead, facts["oldest_s"])  # type: ignore[arg-type]


def kept_s(batches: Batches, view: GroupView, now: Now) -> float | None:
    """How old the oldest batch is that the group keeps."""
    for _, number in itertools.islice(batches.order, LOOKED_MAX):
        batch = batches.stored[number]
        covered = view.covers(batch.header.published_ms)
        for part in batches.parts_of(batch):
            dead = any(record.kind == Kind.DEAD for _, record in view.shown(part, covered))
            if dead or view.readable(part, covered):
                return round(now.mono - batch.born, 3)
    return None

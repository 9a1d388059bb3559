"""PEEK that counts: messages of a group by state, dead letters by kind of failure, on one node.

A million dead letters are as many records with their stacks, and a few rows here. A page looks at as much as a page of
a list does, and the client adds the pages up.
"""

from __future__ import annotations

from collections.abc import Hashable

from quorumq.core.messages import Peeked, PeekReply, PeekRequest, StateCount
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.listing import is_shown, peek, stored_parts
from quorumq.core.values import limits
from quorumq.core.values.names import begins_ms
from quorumq.core.values.types import Now

HOUR_MS = 3_600_000


def count_of(batches: Batches, view: GroupView, request: PeekRequest, now: Now) -> PeekReply:
    """PEEK: return the counts of one page, and the place where the next page goes on.

    A page ends when it has many rows, or has looked at many batches or runs.
    """
    rows: dict[Hashable, StateCount] = {}
    scanned = 0
    for part, shift, batch in stored_parts(batches, request.cursor):
        if scanned > limits.PEEK_SCAN_MAX:
            return reply(batches, rows, (batch.number, part.start + shift))
        if request.since_ms and begins_ms(part.producer_id, batch.header.published_ms) < request.since_ms:
            scanned += 1
            continue
        for chunk, runs in view.chunks(part):
            if scanned > limits.PEEK_SCAN_MAX or len(rows) >= limits.PEEK_ITEMS_MAX:
                return reply(batches, rows, (batch.number, chunk.start + shift))
            scanned += runs
            for item in peek(batches, view, chunk, batch, now):
                if is_shown(item, request.group, request.which):
                    add(rows, item)
    return reply(batches, rows, None)


def reply(batches: Batches, rows: dict[Hashable, StateCount], cursor: tuple[int, int] | None) -> PeekReply:
    return PeekReply(batches.partition, (), cursor, counts=tuple(rows.values()))


def add(rows: dict[Hashable, StateCount], item: Peeked) -> None:
    dead = item.record.death
    if dead is None:
        key: Hashable = item.state
        row = StateCount(item.state, 0, item.span)
    else:
        died = dead.died_ms
        kind = (dead.reason, dead.error_class, dead.fingerprint)
        key = (item.state, kind, dead.consumer_version, died // HOUR_MS)
        text = dead.message[: limits.COUNTED_TEXT_MAX]
        row = StateCount(item.state, 0, item.span, *kind, text, dead.consumer_version, died, died)
    before = rows.get(key, row)
    rows[key] = before._replace(
        messages=before.messages + item.span.size,
        first_died_ms=min(before.first_died_ms, row.first_died_ms),
        last_died_ms=max(before.last_died_ms, row.last_died_ms),
    )

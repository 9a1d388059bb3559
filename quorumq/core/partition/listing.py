"""PEEK and ReplicaList: a group's state of the messages of one partition on one node. Nothing is held or counted."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from sortedcontainers import SortedList

from quorumq.core.messages import (
    Peeked,
    PeekReply,
    PeekRequest,
    ReplicaList,
    ShownGroup,
    ShowReply,
    Slice,
)
from quorumq.core.partition import fate
from quorumq.core.partition.batches import Batches
from quorumq.core.partition.group import GroupView, join
from quorumq.core.partition.lease import FREE, NO_BALLOTS
from quorumq.core.partition.stored import StoredBatch
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_SUFFIX
from quorumq.core.values.spanlists import subtract
from quorumq.core.values.spans import SpanMap, SpanSet
from quorumq.core.values.types import STAMP_ZERO, Kind, Now, ProducerId, Record, Span, record_rank

PEEK_BYTES_MAX = limits.MIB

RECLAIMED = "reclaimed"
"""State of messages that were reclaimed, and that the group would read."""

FIRST = Span(ProducerId("", 0, 0, 0), 0, 1)
"""A place in front of all messages: an empty page ends there while a replica still puts its producer ids in order."""

_new: Any = tuple.__new__
"""`_new(Span, fields)` is a Span in half the time."""


def page_of(batches: Batches, view: GroupView, request: PeekRequest, now: Now) -> PeekReply:
    """PEEK: return a page of what this replica sees, oldest first, holding nothing and counting nothing.

    A page ends at its limit, at a megabyte of dead letters, with bodies at the bytes of one answer, or after many
    batches or runs with nothing to show. The cursor says at which record of a batch to go on. If that batch was
    reclaimed meanwhile, it goes on from the beginning: a message that is shown twice is recognized by its id, and
    nothing is left out.
    """
    items: list[Peeked] = []
    if request.follow and request.cursor[0] < 0:
        return PeekReply(batches.partition, (), end_of(batches))
    limit = min(request.limit, limits.PEEK_ITEMS_MAX)
    capacity = PEEK_BYTES_MAX
    bytes_left = limits.FETCH_BYTES_MAX
    scanned, last = 0, -1
    for part, shift, batch in stored_parts(batches, request.cursor, request.follow):
        scanned += batch.number != last
        last = batch.number
        if scanned > limits.PEEK_SCAN_MAX:
            return PeekReply(batches.partition, tuple(items), (batch.number, part.start + shift))
        if request.since_ms and batch.header.published_ms < request.since_ms:
            continue
        first = len(items)
        for chunk, runs in view.chunks(part):
            if scanned > limits.PEEK_SCAN_MAX:
                return PeekReply(batches.partition, tuple(items), (batch.number, chunk.start + shift))
            scanned += runs - 1
            for item in peek(batches, view, chunk, batch, now):
                if not is_shown(item, request.group, request.which):
                    continue
                span = fitting(batches, item.span, bytes_left) if request.bodies else item.span
                if len(items) >= limit or capacity <= 0 or span is None:
                    cursor = (batch.number, item.span.start + shift)
                    return PeekReply(batches.partition, tuple(items), cursor)
                capacity -= append(items, item._replace(span=span), first)
                bytes_left -= batches.bytes_of(span) if request.bodies else 0
                if span.stop < item.span.stop:
                    return PeekReply(batches.partition, tuple(items), (batch.number, span.stop + shift))
    return PeekReply(batches.partition, tuple(items), end_of(batches) if request.follow else None)


def end_of(batches: Batches) -> tuple[int, int]:
    """Return the cursor behind the last message that is here; the first place if none is."""
    last = batches.order.before((limits.NUMBERS_END, 0))
    return (last[1], batches.stored[last[1]].header.size) if last is not None else (0, 0)


def fitting(batches: Batches, span: Span, bytes_left: int) -> Span | None:
    """Return the first messages of a span that have at most ``bytes_left`` bytes, half of those that fit or more.

    None if the first one has more.
    """
    while batches.bytes_of(span) > bytes_left:
        if span.size == 1:
            return None
        span = span._replace(stop=span.start + span.size // 2)
    return span


def stored_parts(
    batches: Batches, cursor: tuple[int, int], follow: bool = False
) -> Iterator[tuple[Span, int, StoredBatch]]:
    """Yield the messages whose payload is here, batch by batch, oldest first, from the record at ``cursor`` on.

    If the cursor's batch was reclaimed meanwhile, that is from the beginning; if they are followed, from the next batch
    that has come since.

    Returns:
        Messages of one batch, the difference between a record's index in it and the message's number, and the batch.
    """
    at = batches.stored.get(cursor[0])
    if at is None and follow:
        at = batches.stored.following(cursor[0])
        if at is None:
            return
    for _, number in batches.order.onward(at.key if at is not None else None):
        begin = cursor[1] if number == cursor[0] else 0
        batch = batches.stored[number]
        for section in batch.header.spans:
            for part, location in batches.index.within(section):
                start = max(part.start, begin - location.shift)
                if location.number == number and start < part.stop:
                    yield part._replace(start=start), location.shift, batch


def slices_of(batches: Batches, topic: str, spans: Iterable[Span]) -> tuple[Slice, ...]:
    """Return the locations of the bytes of the first messages, up to the size of one answer."""
    slices: list[Slice] = []
    capacity = limits.FETCH_BYTES_MAX
    for span in spans:
        capacity -= batches.bytes_of(span)
        if capacity < 0:
            break
        for part, (number, shift) in batches.index.within(span):
            slices.append(
                Slice(
                    topic=topic,
                    partition=batches.partition,
                    batch=number,
                    first=part.start + shift,
                    stop=part.stop + shift,
                    header=batches.stored[number].header,
                    deliveries=(),
                )
            )
    return tuple(slices)


def replica_list_of(
    batches: Batches, view: GroupView, message: ReplicaList, now: Now
) -> tuple[tuple[Peeked, ...], Span | None]:
    """ReplicaList: return the group's state of every message known here, payload or not, in the order of ids.

    Messages with nothing here but a record that a purge settles are included.

    Returns:
        The states found, and the last span that was looked at; None if that is all.
    """
    records = view.home.records
    if not list_some(batches, message.after, records.runs):
        return (), message.after or FIRST
    items: list[Peeked] = []
    capacity, scanned = PEEK_BYTES_MAX, 0
    limit = max(1, min(message.limit, limits.PEEK_ITEMS_MAX))
    last = message.after
    for part, batch in known_after(batches, records, last, requested=message.requested):
        for chunk, runs in view.chunks(part):
            if len(items) >= limit or capacity <= 0 or scanned > limits.REPLICA_LIST_SCAN_MAX:
                return tuple(items), last
            scanned += runs
            last = chunk
            gone = batch is None and message.requested and batches.wanted_again.covers(chunk)
            for item in peek(batches, view, chunk, batch, now):
                capacity -= append(items, item._replace(state=RECLAIMED) if gone else item)
    return tuple(items), None


def shown_of(batches: Batches, views: Mapping[str, GroupView], span: Span, now: Now) -> ShowReply:
    """Return every group's state of one message, and whether its payload is here."""
    batch = next((batches.stored[location.number] for _, location in batches.index.within(span)), None)
    groups = [
        ShownGroup(name, peeked, ballots.highest or STAMP_ZERO)
        for name, view in sorted(views.items())
        for peeked in peek(batches, view, span, batch, now)
        for _, known in view.ballots.split(span)
        for ballots in (known or NO_BALLOTS,)
    ]
    header = batch.header if batch is not None else None
    times = (header.published_ms, header.delay_ms) if header is not None else (0, 0)
    return ShowReply(header is not None, *times, tuple(groups))


def unsettled_of(
    batches: Batches, view: GroupView, message: ReplicaList
) -> tuple[tuple[Peeked, ...], tuple[Span, ...], Span | None]:
    """ReplicaList for a group that begins: return every message known here, reclaimed or not, in the order of ids.

    Returns:
        The messages that the generation has settled, and those it has not; and the last span, as in `replica_list_of`.
    """
    if not list_some(batches, message.after):
        return (), (), message.after or FIRST
    settled: list[Peeked] = []
    unsettled: list[Span] = []
    least = record_rank(Record(message.generation, 0, Kind.SKIPPED))
    records = view.home.records
    capacity, last = float(min(message.limit, limits.BEGIN_RUNS_MAX)), message.after
    for part in known_spans(batches, last):
        if capacity <= 0:
            return tuple(settled), tuple(unsettled), last
        if part.producer_id not in records.runs:  # nearly all
            capacity -= 1
            last = part
            unsettled.append(part)
            continue
        for chunk, runs in view.chunks(part):
            if capacity <= 0:
                return tuple(settled), tuple(unsettled), last
            capacity -= runs * limits.BEGIN_RUNS_MAX / limits.REPLICA_LIST_SCAN_MAX
            last = chunk
            for known, record in records.split(chunk):
                if record is None or record_rank(record) < least:
                    unsettled.append(known)
                else:
                    settled.append(Peeked(known, "", record._replace(death=None), 0, 0.0, None))
    return tuple(settled), tuple(unsettled), None


def append(items: list[Peeked], item: Peeked, first: int = 0) -> int:
    """Append an item, joined to the last one from ``first`` on; return its bytes of a dead letter."""
    before = len(items)
    if before > first:
        join(items, item)
    else:
        items.append(item)
    dead_letter = item.record.death
    return dead_letter.text_bytes if dead_letter is not None and len(items) > before else 0


def known_after(
    batches: Batches, records: SpanMap[Record], after: Span | None, *, requested: bool = False
) -> Iterator[tuple[Span, StoredBatch | None]]:
    """Yield the spans known here behind ``after``, in order, with their batch if it is here.

    Messages with only a record are found in ``records``, the group's.

    Of what was reclaimed there is only what a group would read, and that only if it is ``requested``. It steps from run
    to run, however many numbers lie between them.
    """
    for producer_id in producer_ids_from(batches, after):
        start = after.stop if after is not None and producer_id == after.producer_id else 0
        here = (
            (span, batches.stored[location.number])
            for span, location in batches.index.onward(producer_id, start)
        )
        tables = (batches.absent, batches.wanted_again) if requested else (batches.absent,)
        gone = [
            ((span, None) for span, _ in table.onward(producer_id, start))
            for table in tables
            if producer_id in table.runs
        ]
        if producer_id in records.runs:
            recorded = recorded_only(batches, records, Span(producer_id, start, limits.NUMBERS_END))
            gone += [((span, None) for span in recorded)] if recorded else []
        yield from heapq.merge(here, *gone, key=itemgetter(0)) if gone else here


def recorded_only(batches: Batches, records: SpanMap[Record], span: Span) -> list[Span]:
    """Return the parts of ``span`` that have an OPEN or DEAD record here, and are not known otherwise.

    Why: a replica votes for a dead letter and for a redrive without payload, and that vote may be the only one that a
    listing hears. Other records settle their messages for good.
    """
    unknown = subtract(span, batches.known_of(span))
    recorded = (item for gap in unknown for item in records.within(gap))
    return [part for part, record in recorded if record.kind in (Kind.OPEN, Kind.DEAD)]


def known_spans(batches: Batches, after: Span | None) -> Iterator[Span]:
    """Return all that is known here behind ``after``, in order."""
    tables = (batches.present, batches.absent, batches.reclaimed)
    for producer_id in producer_ids_from(batches, after):
        start = after.stop if after is not None and producer_id == after.producer_id else 0
        having = [table for table in tables if producer_id in table.runs]
        if not having:
            continue  # closed since the first page
        runs = having[0].runs[producer_id]
        if len(having) == 1 and len(runs) == 1 and type(runs) is tuple:  # nearly all
            begin, stop, _ = runs[0]
            if stop > start:
                yield _new(Span, (producer_id, max(begin, start), stop))
            continue
        for span, _ in heapq.merge(
            *[table.onward(producer_id, start) for table in having], key=itemgetter(0)
        ):
            yield span


def list_some(batches: Batches, after: Span | None, recorded: Iterable[ProducerId] = ()) -> bool:
    """Put some more producer ids in order for the pages of a listing; return True if all are.

    A partition may have 250,000 of them, and a step has time for a part. The first page begins anew, with all producer
    ids that have a known message then, and the ``recorded`` ones. Later ones are missing in the pages that follow:
    their messages were not there when the first page was asked for.
    """
    if after is None or batches.listed is None:
        batches.listed = SortedList()
        tables = (batches.present, batches.absent, batches.reclaimed)
        batches.unlisted = [*recorded, *[producer_id for table in tables for producer_id in table.runs]]
    numbers = batches.unlisted[-limits.LISTED_PER_STEP :]
    del batches.unlisted[-limits.LISTED_PER_STEP :]
    batches.listed.update(numbers)
    return not batches.unlisted


def producer_ids_from(batches: Batches, after: Span | None) -> Iterator[ProducerId]:
    """Yield the producer ids that `list_some` has put in order, from that of ``after`` on."""
    last = None
    assert batches.listed is not None
    for producer_id in batches.listed.irange(after.producer_id if after is not None else None):
        if producer_id != last:  # it may be in several tables
            last = producer_id
            yield producer_id
    batches.listed = None


def peek(batches: Batches, view: GroupView, span: Span, batch: StoredBatch | None, now: Now) -> list[Peeked]:
    """Return the group's states of ``span``, of one batch; None if its payload is not here.

    The verdict of a start time on a message without payload is not known. The message is taken for covered unless it
    has a record; of an older one the item says which generation may cover it.
    """
    if batch is not None:
        early = batch.due - now.mono if batch.number in batches.waiting else 0.0
        covered = view.covers(span.producer_id, batch.header.published_ms)
        return peek_as(view, span, now, early, covered=covered)
    items: list[Peeked] = []
    generation, from_ms = view.home.generation, view.home.from_ms
    for part, record in view.home.records.split(span):
        may_cover = generation if record is not None and from_ms and record.generation < generation else 0
        for item in peek_as(view, part, now, 0.0, covered=record is None or not from_ms):
            items.append(item._replace(may_cover=may_cover))
    return items


def peek_as(view: GroupView, span: Span, now: Now, early: float, *, covered: bool) -> list[Peeked]:
    """Return the same; ``covered`` by the start predicate or not, ``span`` is due in ``early`` seconds."""
    items: list[Peeked] = []
    readable = SpanSet.from_spans(part for part, _ in view.readable(span, covered))
    rule_context = view.rule_context(now.mono, covered, early)
    for whole, record in view.shown(span, covered):
        for part, lease in view.leases.split(whole):
            lease = lease or FREE
            held, count = lease.held, fate.attempts_at(lease, record)
            state, remaining, owner = record.kind.name.lower(), 0.0, None
            if readable.covers(part):
                due = fate.not_due(lease, rule_context, record)
                state, remaining = ("delayed", due[2]) if due is not None else ("ready", 0.0)
                if due is not None and len(due) > 4 and due[4]:
                    state = "held"  # claimed for longer than a hold
                if held is not None and held.deadline > now.mono:
                    claimed = remaining if state == "held" else 0.0
                    state, remaining, owner = "held", max(claimed, held.deadline - now.mono), held.owner
            elif record.kind == Kind.OPEN and view.home is view:
                state = "skipped"  # before the start of the generation
            item = Peeked(part, state, record, count.ended, remaining, owner, count.interruptions)
            join(items, item)
    return items


def is_left(item: Peeked, group: str) -> bool:
    """Return True if the group may still deliver this, also if another replica has to bring it back."""
    return item.state == RECLAIMED or is_shown(item, group, "open")


def is_shown(item: Peeked, group: str, which: str) -> bool:
    """Return True if a PEEK of ``group`` for ``which`` shows this. A dead-letter group shows only dead letters."""
    if which == "open" or group.endswith(DEAD_SUFFIX):
        return item.state in ("ready", "held", "delayed") and which in ("open", "dead", "all", item.state)
    return which in ("all", item.state)

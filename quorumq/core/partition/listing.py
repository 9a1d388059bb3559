"""PEEK and Survey: what a group makes of the messages of one partition on one node. Nothing is held or counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from quorumq.core import limits
from quorumq.core.deadnames import DEAD_SUFFIX
from quorumq.core.messages import Peeked, PeekReply, PeekRequest, ShownGroup, ShowReply, Slice, Survey
from quorumq.core.partition import fate
from quorumq.core.partition.batches import Batches, StoredBatch
from quorumq.core.partition.fate import FREE, NO_BALLOTS
from quorumq.core.partition.group import GroupView, join
from quorumq.core.spans import SpanSet
from quorumq.core.types import STAMP_ZERO, Kind, Now, Span

PEEK_BYTES_MAX = limits.MIB

SURVEY_WINDOW = 1 << 16
"""Sequence numbers of an origin that a survey looks at in one go."""


def page_of(batches: Batches, view: GroupView, message: PeekRequest, now: Now) -> PeekReply:
    """PEEK: a page of what this replica sees, oldest first, holding nothing and counting nothing.

    A page ends at its limit, at a megabyte of dead letters, or after many batches with nothing to show; the
    cursor says at which record of which batch to go on. Where that batch was reclaimed meanwhile, it goes on from
    the beginning: what is shown twice can be told by its id, and nothing is left out.
    """
    items: list[Peeked] = []
    limit = min(message.limit, limits.PEEK_ITEMS_MAX)
    room = PEEK_BYTES_MAX
    at = batches.stored.get(message.cursor[0])
    scanned = 0
    for _, number in batches.order.irange(at.key if at is not None else None):
        scanned += 1
        if scanned > limits.PEEK_SCAN_MAX:
            return PeekReply(message.round, tuple(items), (number, 0), "")
        begin = message.cursor[1] if number == message.cursor[0] else 0
        batch = batches.stored[number]
        for section in batch.header.sections:
            for part, slot in batches.index.within(section):
                start = max(part.start, begin - slot.shift)
                if slot.number != number or start >= part.stop:
                    continue
                for item in peek(batches, view, Span(part.origin, start, part.stop), batch, now):
                    if not is_shown(item, message.group, message.which):
                        continue
                    if len(items) >= limit or room <= 0:
                        cursor = (number, item.span.start + slot.shift)
                        return PeekReply(message.round, tuple(items), cursor, "")
                    items.append(item)
                    room -= item.record.letter.text_bytes if item.record.letter is not None else 0
    return PeekReply(message.round, tuple(items), None, "")


def slices_of(batches: Batches, topic: str, items: Iterable[Peeked]) -> tuple[Slice, ...]:
    """Where the bytes of the first items are, as many as one answer may bring."""
    slices: list[Slice] = []
    room = limits.FETCH_BYTES_MAX
    for item in items:
        room -= batches.bytes_of(item.span)
        if room < 0:
            break
        for part, (number, shift) in batches.index.within(item.span):
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


def survey_of(
    batches: Batches, view: GroupView, message: Survey, now: Now
) -> tuple[tuple[Peeked, ...], Span | None]:
    """Survey: what the group makes of every message known here, payload or not, in the order of ids.

    Returns:
        What is found, and the last span that was looked at; None where that is all.
    """
    items: list[Peeked] = []
    room, scanned = PEEK_BYTES_MAX, 0
    limit = max(1, min(message.limit, limits.PEEK_ITEMS_MAX))
    last = message.after
    for part, batch in known_after(batches, last):
        if len(items) >= limit or room <= 0 or scanned > limits.PEEK_SCAN_MAX:
            return tuple(items), last
        scanned += 1
        last = part
        for item in peek(batches, view, part, batch, now):
            before = items[-1] if items else None
            if (
                before is not None
                and before[1:] == item[1:]
                and (before.span.origin, before.span.stop) == (item.span.origin, item.span.start)
            ):
                items[-1] = item._replace(span=item.span._replace(start=before.span.start))
                continue
            items.append(item)
            room -= item.record.letter.text_bytes if item.record.letter is not None else 0
    return tuple(items), None


def shown_of(batches: Batches, views: Mapping[str, GroupView], span: Span, now: Now) -> ShowReply:
    """What every group makes of one message, and whether its payload is here."""
    batch = next((batches.stored[slot.number] for _, slot in batches.index.within(span)), None)
    groups = [
        ShownGroup(name, found, ballots.highest or STAMP_ZERO)
        for name, view in sorted(views.items())
        for found in peek(batches, view, span, batch, now)
        for _, known in view.ballots.split(span)
        for ballots in (known or NO_BALLOTS,)
    ]
    header = batch.header if batch is not None else None
    times = (header.published_ms, header.delay_ms) if header is not None else (0, 0)
    shown = tuple(groups[: limits.SHOWN_GROUPS_MAX])
    return ShowReply(header is not None, *times, shown, len(groups) - len(shown))


def known_after(batches: Batches, after: Span | None) -> Iterator[tuple[Span, StoredBatch | None]]:
    """Every message known here behind ``after``, in order, with its batch where the payload is here."""
    for origin in sorted({*batches.present.origins(), *batches.absent.origins()}):
        if after is not None and origin < after.origin:
            continue
        ends = [*batches.present.spans_of(origin), *(span for span, _ in batches.absent.spans_of(origin))]
        start = min(span.start for span in ends)
        stop = max(span.stop for span in ends)
        if after is not None and origin == after.origin:
            start = max(start, after.stop)
        while start < stop:
            window = Span(origin, start, min(stop, start + SURVEY_WINDOW))
            known: list[tuple[Span, StoredBatch | None]] = [
                (part, None) for part, _ in batches.absent.within(window)
            ]
            known += [(part, batches.stored[slot.number]) for part, slot in batches.index.within(window)]
            yield from sorted(known, key=lambda item: item[0])
            start = window.stop


def peek(batches: Batches, view: GroupView, span: Span, batch: StoredBatch | None, now: Now) -> list[Peeked]:
    """What the group makes of ``span``, of one batch; None where its payload is not here.

    What a start predicate says of a message without payload is not known: it is taken for covered, unless it has a
    record of more than OPEN. Because who has the payload, and finds it covered, has a higher record of it than that.
    """
    if batch is not None:
        early = batch.due - now.mono if batch.number in batches.waiting else 0.0
        return peek_as(view, span, now, early, covered=view.covers(batch.header.published_ms))
    return [
        item
        for part, record in view.home.records.split(span)
        for item in peek_as(view, part, now, 0.0, covered=record is None or record.kind == Kind.OPEN)
    ]


def peek_as(view: GroupView, span: Span, now: Now, early: float, *, covered: bool) -> list[Peeked]:
    """Likewise, where the start predicate covers ``span``, or does not, and it is due in ``early`` seconds."""
    items: list[Peeked] = []
    readable = SpanSet.from_spans(part for part, _ in view.readable(span, covered))
    facts = view.facts(now.mono, covered, early)
    for whole, record in view.shown(span, covered):
        for part, lease in view.leases.split(whole):
            lease = lease or FREE
            held, count = lease.held, fate.attempts_at(lease, record)
            state, remaining, owner = record.kind.name.lower(), 0.0, None
            if readable.covers(part):
                due = fate.not_due(lease, facts, record)
                state, remaining = ("delayed", due.remaining) if due is not None else ("ready", 0.0)
                if held is not None and held.deadline > now.mono:
                    state, remaining, owner = "held", held.deadline - now.mono, held.owner
            elif record.kind == Kind.OPEN and view.home is view:
                state = "skipped"  # before the start of the generation
            join(items, Peeked(part, state, record, count, remaining, owner))
    return items


def is_shown(item: Peeked, group: str, which: str) -> bool:
    """Whether a PEEK of ``group`` for ``which`` shows this. Of a dead-letter group only its dead letters are shown."""
    if which == "open" or group.endswith(DEAD_SUFFIX):
        return item.state in ("ready", "held", "delayed") and which in ("open", "dead", "all", item.state)
    return which in ("all", item.state)

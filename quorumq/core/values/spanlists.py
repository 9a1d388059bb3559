"""Lists of spans: merged, compared, and one taken out of another. `SpanSet` is for those that grow."""

from __future__ import annotations

from collections.abc import Iterable

from quorumq.core.values.types import Span


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same messages in as few spans as possible, sorted; empty spans are dropped."""
    merged: list[Span] = []
    for span in sorted(spans):
        producer_id, start, stop = span
        if start >= stop:
            continue
        if merged:
            last = merged[-1]
            if last.stop >= start and last.producer_id == producer_id:
                if stop > last.stop:
                    merged[-1] = Span(producer_id, last.start, stop)
                continue
        merged.append(span)
    return tuple(merged)


def overlap(one: Span, other: Span) -> bool:
    return one.producer_id == other.producer_id and one.start < other.stop and other.start < one.stop


def subtract(span: Span, others: Iterable[Span]) -> list[Span]:
    """Return the parts of ``span`` without ``others``, in order.

    The others may overlap, have any order, and belong to other producer ids (those take nothing away).
    """
    rest: list[Span] = []
    producer_id, start, stop = span
    for other in merge_spans(other for other in others if other.producer_id == producer_id):
        if other.stop <= start:
            continue
        if other.start >= stop:
            break
        if other.start > start:
            rest.append(Span(producer_id, start, other.start))
        start = other.stop
    if start < stop:
        rest.append(Span(producer_id, start, stop))
    return rest

"""Suspects of one FETCH: the turn of their partitions, the one lot that is delivered, and the hint that some wait."""

from __future__ import annotations

from quorumq.core.messages import Fetch
from quorumq.core.requests.context import Context
from quorumq.core.requests.deliveries import Won
from quorumq.core.values.types import Now, PartitionId, Span

Partitions = tuple[PartitionId, ...]


def turns(
    context: Context, request: Fetch, partitions: Partitions, first: int, *, idle: bool
) -> list[tuple[PartitionId, bool]]:
    """List the partitions to look at, each with True for suspects: from ``first`` on, for first-timers.

    If the client is ``idle``, partitions with suspects older than the oldest first delivery are first, and other
    suspects last, so that neither kind is overtaken by younger messages. A client that had a lot of suspects gets
    first deliveries next, so that a crash of many does not delay all others.
    """
    at = first % len(partitions) if partitions else 0
    in_turn = [(partition, False) for partition in partitions[at:] + partitions[:at]]
    if not idle:
        return in_turn
    suspects: list[tuple[int, PartitionId]] = []
    oldest: list[int] = []
    for partition, _ in in_turn:
        view = context.replicas[partition].group(request.group)
        if (ms := view.suspects.oldest_ms) is not None:
            suspects.append((ms, partition))
        if (ms := view.available.oldest_ms) is not None:
            oldest.append(ms)
    if not suspects:
        return in_turn
    suspects.sort(key=lambda item: item[0])
    until = min(oldest, default=suspects[-1][0] + 1) if not (oldest and request.had_lot) else 0
    early = [(partition, True) for ms, partition in suspects if ms < until]
    return [*early, *in_turn, *((partition, True) for _, partition in suspects[len(early) :])]


def divide(won: list[Won], capacity: int) -> tuple[list[Won], list[Won]]:
    """Divide suspects into one lot to deliver, of ``capacity`` messages at most, and those to give back."""
    lot: list[Won] = []
    others: list[Won] = []
    messages = 0
    for each in won:
        producer_id, start, stop = each.span
        capacity = min(capacity, each.lot)
        count = max(0, min(capacity - messages, stop - start))
        if count:
            lot.append(each._replace(span=Span(producer_id, start, start + count)))
            messages += count
        if start + count < stop:
            others.append(each._replace(span=Span(producer_id, start + count, stop)))
    return lot, others


def end_hint(context: Context, request: Fetch, partitions: Partitions) -> None:
    """Let the next client of the group have the hint that suspects wait."""
    for partition in partitions:
        context.replicas[partition].group(request.group).suspects.hint_after = 0.0


def take_hint(context: Context, request: Fetch, partitions: Partitions, now: Now) -> bool:
    """Return True if this client, which has messages in hand, is to learn that it would get suspects without them.

    Then no other client of the group gets the hint for a hold time: else all would empty their hands at once.
    """
    if request.idle or request.spans:
        return False
    views = [context.replicas[partition].group(request.group) for partition in partitions]
    waiting = [view.suspects for view in views if view.suspects.batches]
    if not waiting or any(now.mono < view.suspects.hint_after for view in views):
        return False
    times = [view.available.oldest_ms for view in views]
    oldest = [ms for ms in times if ms is not None]
    if oldest and all(ready.oldest_ms is None or min(oldest) <= ready.oldest_ms for ready in waiting):
        return False
    for ready in waiting:
        ready.hint_after = now.mono + request.hold_time
    return True

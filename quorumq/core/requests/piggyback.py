"""Piggybacked HOLD: if a FETCH is parked here, the STORE of a new message also carries a HOLD for it.

So a message that is published alone is delivered after one round instead of two. The HOLD is one like any other: each
replica votes on it as on any HOLD, and says so with STORED, behind the fsync (docs/protocol.md, HOLD IS PIGGYBACKED
ON STORE). Only the choice differs: it is made before the message is stored, so the new message is the one that is
chosen.
"""

from __future__ import annotations

from quorumq.core.messages import Hold, Want
from quorumq.core.partition.group import GroupView
from quorumq.core.partition.replica import Replica
from quorumq.core.requests.context import Context
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.values.types import BatchHeader, Now, Span

PIGGYBACK_TIMEOUT_S = 1.0
"""Shortest wait in seconds for a HOLD that is piggybacked, or a tenth of its hold if less: its answers wait for
disks."""


def piggyback_hold(context: Context, header: BatchHeader, now: Now) -> Hold | None:
    """Return the HOLD to send with a batch's STORE; None if no client waits here, or another node might have it sooner.

    A round of it is open then: STORED has the votes, our own as well.
    """
    if len(header.spans) != 1 or header.delay_ms or context.state.disk_shortage or context.state.memory_full:
        return None
    replica = context.replicas.get(header.partition)
    if replica is None or not replica.may_vote(now) or not is_new(context, replica, header.spans[0]):
        return None
    if context.completions and replica.epoch != context.catalogue.epoch_of(header.partition):
        return None  # our replica takes the batch in once it has adopted the layout, and would grant the HOLD before
    for view in replica.views.main_groups():
        if (header.partition, view.name) in context.parking.lines and may_choose(view, header):
            parked, _ = context.state.fetchers(header.partition, view.name, replica.members, now)
            fetch = waiting(context, replica, view) if parked == [context.state.me] else None
            spare = None
            if context.state.buckets:
                spare = context.limiting.spare(header.partition, view.name, now, context.rng)
            span = share_of(fetch, header, spare) if fetch is not None else None
            if fetch is not None and span is not None:
                return ride(context, fetch, replica, view, span, now)
    return None


def is_new(context: Context, replica: Replica, span: Span) -> bool:
    """Return True if nothing was heard of these messages, and none before them waits for our disk."""
    batches = replica.batches
    return (
        span.producer_id not in batches.closed
        and batches.index.gaps(span) == [span]
        and not batches.reclaimed.within(span)
        and not batches.absent.within(span)
        and replica.partition not in context.state.unwritten.values()
    )


def may_choose(view: GroupView, header: BatchHeader) -> bool:
    """Return True if the group may have new messages: its generation covers them, and has no record of them yet."""
    (span,) = header.spans
    return (
        view.covers(span.producer_id, header.published_ms)  # voters on a HOLD do not ask
        and view.backfill is None
        and not view.paused
        and not view.records.within(span)
        and not view.leases.within(span)
    )


def waiting(context: Context, replica: Replica, view: GroupView) -> FetchCoordinator | None:
    """Return the FETCH to serve first of those that wait here: idle clients', then the longest waiting."""
    for key in context.parking.keys_at((replica.partition, view.name)):
        it = context.requests.get(key)
        if isinstance(it, FetchCoordinator) and not (it.rounds or it.request.spans):
            return it
    return None


def share_of(fetch: FetchCoordinator, header: BatchHeader, spare: int | None = None) -> Span | None:
    """Return the first part of the batch that the FETCH, and ``spare`` tokens if there are any, have room for."""
    producer_id, start, stop = header.spans[0]
    count = min(stop - start, fetch.request.max_messages - fetch.won_messages)
    count = count if spare is None else min(count, spare)
    if count <= 0:
        return None
    fits = header.end_of(count - 1) <= fetch.request.max_bytes - fetch.won_bytes
    return Span(producer_id, start, start + count) if fits or (count == 1 and not fetch.won) else None


def ride(
    context: Context, fetch: FetchCoordinator, replica: Replica, view: GroupView, span: Span, now: Now
) -> Hold | None:
    """Open the round; return None while the clock's reserve has to be raised for its ballot."""
    ballot = context.state.clock.fresh(now)
    if ballot is None:
        return None
    least = min(PIGGYBACK_TIMEOUT_S, fetch.request.hold_time / 10)
    usual, longest = fetch.patience(context, replica)
    patience = (max(usual, least), max(longest, least))
    wants = [Want(span, 0)]
    round_, hold = fetch.open_hold(context, replica, wants, view.generation, ballot, patience, now)
    fetch.requests[round_.number] = (replica.partition, hold)
    round_.mark_unreachable(context.state)
    return hold

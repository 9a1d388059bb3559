"""Parked FETCHes look at newly available messages: a few of each client in one step, the others in their client's turn.

A client may have thousands of FETCHes parked, and one message may be of use to fifty groups of them. All of them in one
step would keep all other clients waiting. The step wakes `limits.WOKEN_PER_STEP` of each client; the line that is left
waits in the fair queue (core/values/fairqueue.py), as costly work does.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.values import limits
from quorumq.core.values.types import Now, PartitionId

ROUNDS_MAX = 8
"""Rounds in one step: one FETCH may give back messages that another one waits for."""


def wake_newly_ready(context: Context, now: Now) -> list[Effect]:
    """Wake the FETCHes that wait for messages which became available in this step."""
    effects: list[Effect] = []
    for _ in range(ROUNDS_MAX):
        newly_ready, context.state.newly_ready = context.state.newly_ready, {}
        if not newly_ready:
            break
        for group_key in newly_ready:
            if group_key in context.parking.lines:
                effects += wake(context, group_key, context.parking.keys_at(group_key), now)
    return effects


def wake(context: Context, group_key: tuple[PartitionId, str], keys: Sequence[int], now: Now) -> list[Effect]:
    """Wake FETCHes by key, in order, while their group has ready messages; those parked no more are left out."""
    effects: list[Effect] = []
    for at, key in enumerate(keys):
        if not has_ready(context, group_key, now):
            break
        pending = context.requests.get(key)
        if not isinstance(pending, FetchCoordinator) or not pending.parked:
            continue
        if not context.may_wake(pending.caller):
            context.costly.put(
                pending.caller, limits.WAKING_COST, ("wake", group_key, tuple(keys[at:])), ("wake", group_key)
            )
            break
        if not context.queue_if_costly(pending, ("advance", key)):
            effects += pending.advance(context, now)
    return effects


def has_ready(context: Context, group_key: tuple[PartitionId, str], now: Now) -> bool:
    """Return True if something is left to take: a late FETCH need not look at all that it reads."""
    partition, name = group_key
    replica = context.replicas.get(partition)
    view = replica.views.groups.get(name) if replica is not None else None
    if view is None or view.paused or not (view.available.batches.size or view.suspects.batches.size):
        return False
    return not context.state.buckets or context.limiting.spare(partition, name, now, context.rng) != 0

"""What stands in for more than one rule."""

from __future__ import annotations

from collections.abc import Callable

from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.partition import fate
from quorumq.core.partition.fate import Facts, Lease
from quorumq.core.types import Kind, Record


def no_hold_outlives(kind: Kind) -> Callable[[Lease, Facts, Record], Lease]:
    """Whoever holds the message does no more once its record is of that kind."""

    def outlives(lease: Lease, facts: Facts, record: Record) -> Lease:
        left = _outlives(lease, facts, record)
        return fate.with_hold(left, None) if record.kind == kind else left

    return outlives


_outlives = fate.outlives


def say_at_once(effects: list[Effect]) -> list[Effect]:
    """The same effects, where no message waits for the disk."""
    said = [then for effect in effects if isinstance(effect, Persist) for then in effect.then]
    return [
        *[
            effect._replace(then=tuple(then for then in effect.then if not isinstance(then, Send)))
            if isinstance(effect, Persist)
            else effect
            for effect in effects
        ],
        *[then for then in said if isinstance(then, Send)],
    ]


def without(effects: list[Effect], kind: type) -> list[Effect]:
    """Records of that kind are not written."""
    return [
        effect._replace(records=tuple(record for record in effect.records if not isinstance(record, kind)))
        if isinstance(effect, Persist)
        else effect
        for effect in effects
    ]

"""Stand-ins that several rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.partition import fate
from quorumq.core.partition.fate import RuleContext
from quorumq.core.partition.lease import Lease, with_hold
from quorumq.core.requests.registration import Registration
from quorumq.core.values.types import Kind, Record


def after(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return ``function`` with each result replaced by ``change`` of it."""
    return lambda *args, **named: change(function(*args, **named))


def told(function: Callable[..., Any], change: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return ``function`` with its arguments replaced by ``change`` of them."""
    return lambda *args: function(*change(*args))


def but(kind: type) -> Callable[[Iterable[Any]], list[Any]]:
    """Return the same list without values of that kind."""
    return lambda effects: [one for one in effects if not isinstance(one, kind)]


def nothing(records: list[Any]) -> list[Any]:
    """Return no records: changes in memory are done, and not written."""
    return []


def no_hold_outlives(kind: Kind) -> Callable[[Lease, RuleContext, Record], Lease]:
    """End the hold of a message once its record is of that kind."""

    def outlives(lease: Lease, context: RuleContext, record: Record) -> Lease:
        kept = _outlives(lease, context, record)
        return with_hold(kept, None) if record.kind == kind else kept

    return outlives


_outlives = fate.outlives


def say_at_once(effects: list[Effect]) -> list[Effect]:
    """Return the same effects, in which no message waits for the disk."""
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


def unwritten(kind: type) -> Callable[[list[Effect]], list[Effect]]:
    """Return the same effects, which write no records of that kind."""
    kept = but(kind)
    return lambda effects: [
        effect._replace(records=tuple(kept(effect.records))) if isinstance(effect, Persist) else effect
        for effect in effects
    ]


def at_a_majority_of_nodes(self: Registration, *args: Any) -> bool:
    """Take a register for written once a majority of the nodes has it, without a look at the replica sets."""
    *_, put, _, bits = args
    return bool(put.is_majority(bits))

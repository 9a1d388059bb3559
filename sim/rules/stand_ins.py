"""Stand-ins that several rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.partition import fate
from quorumq.core.partition.fate import RuleContext
from quorumq.core.partition.lease import Lease, with_hold
from quorumq.core.recovery import resync
from quorumq.core.requests.registration import Registration
from quorumq.core.values.types import Kind, Record
from sim.rules.rule import Patch

Result = TypeVar("Result")
Before = Callable[..., Result]
"""The function that a patch replaces, by its result."""


def around(owner: Any, name: str, instead: Callable[..., Any]) -> Patch:
    """Return a patch that calls ``instead`` with the function that it replaces, and then the arguments."""
    before = getattr(owner, name)
    return owner, name, lambda *args, **named: instead(before, *args, **named)


def after(owner: Any, name: str, change: Callable[[Any], Any]) -> Patch:
    """Return a patch that replaces each result by ``change`` of it."""
    return around(owner, name, lambda before, *args, **named: change(before(*args, **named)))


def given(owner: Any, name: str, change: Callable[..., tuple[Any, ...]]) -> Patch:
    """Return a patch that replaces the arguments by ``change`` of them."""
    return around(owner, name, lambda before, *args: before(*change(*args)))


def resync_without(**fields: Any) -> Patch:
    """Return a patch by which a resync takes these fields in place of those of the answer."""
    return given(
        resync,
        "take_in",
        lambda context, sender, message, now: (context, sender, message._replace(**fields), now),
    )


def but(kind: type) -> Callable[[Iterable[Any]], list[Any]]:
    """Return the same list without values of that kind."""
    return lambda effects: [one for one in effects if not isinstance(one, kind)]


def nothing(records: list[Any]) -> list[Any]:
    """Return no records: changes in memory are done, and not written."""
    return []


def no_hold_outlives(kind: Kind) -> Patch:
    """Return a patch that ends the hold of a message once its record is of that kind."""

    def outlives(before: Before[Lease], lease: Lease, context: RuleContext, record: Record) -> Lease:
        kept = before(lease, context, record)
        return with_hold(kept, None) if record.kind == kind else kept

    return around(fate, "outlives", outlives)


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


AT_A_MAJORITY_OF_NODES: Patch = (
    Registration, "_is_at_each", lambda self, context, round_, bits, sets: round_.is_majority(bits),
)  # fmt: skip
"""Take a register for written once a majority of the nodes has it, without a look at the replica sets."""

"""What stands in for more than one rule."""

from __future__ import annotations

from quorumq.core.effects import Effect, Persist, Send
from quorumq.core.partition.group import GroupView
from quorumq.core.types import Span


def drop_any_hold(self: GroupView, span: Span) -> None:
    """Whoever holds it does no more."""
    self.holds.holds.remove(span)


def say_at_once(effects: list[Effect]) -> list[Effect]:
    """The same effects, where no message waits for the disk."""
    said = [then for effect in effects if isinstance(effect, Persist) for then in effect.then]
    return [
        *[effect._replace(then=()) if isinstance(effect, Persist) else effect for effect in effects],
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

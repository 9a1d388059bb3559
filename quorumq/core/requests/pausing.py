"""Pausing, resuming and limiting a group: fields of its register that go to their last writer.

Each is written as a register of a change is (core/requests/registration.py). From the OK of a pause on a majority of
each replica set refuses HOLDs of the group, so no FETCH that begins later wins a message. From that of a limit on each
majority has a member that counts the group's tokens.
"""

from __future__ import annotations

import math
from typing import Final

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.registers import WRITES_MAX
from quorumq.core.requests.registration import GroupChange
from quorumq.core.values import limits
from quorumq.core.values.types import Group, Limit, Now, Pause, Stamp

BURST_DEFAULT_S: Final = 0.1
"""Seconds of the rate that are delivered at once, if the limit does not say how many messages may be."""


class PauseCoordinator(GroupChange):
    """PAUSE: stamped above the pause that is known, and again above a later one that the answers bring."""

    __slots__ = ("writes", "written")

    def __init__(self, key: int, request: m.PauseGroup | m.LimitGroup, topic: bytes) -> None:
        super().__init__(key, request, topic)
        self.written: Pause | Limit | None = None
        self.writes = 0

    def setting(self, group: Group) -> Pause | Limit:
        """Return the field of the register that is set."""
        return group.pause

    def with_setting(self, group: Group, stamp: Stamp) -> Group:
        """Return the register with the field as the request asks for it."""
        return group._replace(pause=Pause(group.buried, stamp, self.request.paused))

    def is_late(self, known: Group) -> bool:
        """Return True if the group was deleted since the generation that the request names: a rewind is no matter."""
        return self.request.id is not None and known.buried > self.request.generation

    def ends(self, group: Group) -> bool:
        """Return True if the request lets deliveries go on, which a full disk must not prevent."""
        return group.pause.on and not self.request.paused

    def start(self, context: Context, now: Now) -> list[Effect]:
        known = self.known(context)
        if known is None or known.deleted:
            return self.finish(context, context.catalogue.no_group(self.request.topic, self.request.group))
        if self.is_late(known):
            return self.refuse_late(context)
        context.state.clock.merge(self.setting(known).stamp.time)
        stamp = context.state.clock.fresh(now)
        if self.writes and (stamp is None or self.writes > WRITES_MAX):
            return self.fail_unknown(context)
        if stamp is None:
            return self.refuse_unstamped(context)
        self.writes += 1
        changed = self.with_setting(known, stamp)
        self.written = self.setting(changed)
        effects = context.take_in_group(changed, now)
        return effects + self.write(context, now)

    def on_registered(self, context: Context, topic: bytes, now: Now) -> list[Effect]:
        newest = self.known(context)
        if newest is None or newest.deleted or self.setting(newest) != self.written:
            return self.start(context, now)
        if self.setting(newest).buried != newest.buried:  # the group was made again since: it counts no more
            return self.start(context, now)
        return self.answer(context, newest)


class LimitCoordinator(PauseCoordinator):
    """LIMIT: as PAUSE, for the limit of deliveries a second."""

    __slots__ = ()

    def setting(self, group: Group) -> Limit:
        return group.limit

    def with_setting(self, group: Group, stamp: Stamp) -> Group:
        rate, burst = self.request.per_second, self.request.burst
        burst = (burst or max(1, math.ceil(rate * BURST_DEFAULT_S))) if rate else 0
        return group._replace(limit=Limit(group.buried, stamp, rate, burst))

    def ends(self, group: Group) -> bool:
        return not self.request.per_second


def check_limit(request: m.LimitGroup) -> str:
    """Return the error of a limit that cannot be, or ""."""
    rate, burst = request.per_second, request.burst
    if rate and not limits.RATE_MIN <= rate <= limits.RATE_MAX:
        few, many = limits.RATE_MIN, limits.RATE_MAX
        return f"per_second is {rate:g}: it must be from {few:g} to {many:,}, or 0 for no limit"
    if not 0 <= burst <= limits.RATE_MAX or (burst and not rate):
        return f"burst is {burst:,}: it must be from 1 to {limits.RATE_MAX:,}; 0 for the default, or without limit"
    return ""

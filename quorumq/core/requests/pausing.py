"""Pausing, resuming and limiting a group: fields of its register that go to their last writer.

Each is promised (core/requests/promising.py), then written as a register of a change is
(core/requests/registration.py). From the OK of a pause on, a majority of each replica set refuses HOLDs of the group,
so no FETCH that begins later wins a message. From that of a limit on, each majority has a member that counts the
group's tokens.
"""

from __future__ import annotations

import math
from typing import Final

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import late
from quorumq.core.requests.promising import ask_for_promises, ask_later, is_outbid, overtaken
from quorumq.core.requests.proposing import wait_for_stamp
from quorumq.core.requests.registers import WRITES_MAX
from quorumq.core.requests.registration import GroupChange
from quorumq.core.values import limits
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Group, Incarnation, Limit, NodeId, Now, Pause, Stamp

BURST_DEFAULT_S: Final = 0.1
"""Seconds of the rate that are delivered at once, if the limit does not say how many messages may be."""


class PauseCoordinator(GroupChange):
    """PAUSE: stamped above the pause that is known, promised by the voters, then written; and again if that is in vain.

    Attributes:
        stamp: stamp that the voters are asked to promise.
        written: field of the register, as it was written last.
        tries: number of stamps so far.
    """

    __slots__ = ("stamp", "tries", "written")

    stamp: Stamp

    def __init__(self, key: int, request: m.PauseGroup | m.LimitGroup, topic: bytes) -> None:
        super().__init__(key, request, topic)
        self.written: Pause | Limit | None = None
        self.tries = 0

    def setting(self, group: Group) -> Pause | Limit:
        """Return the field of the register that is set."""
        return group.pause

    def with_setting(self, group: Group, stamp: Stamp) -> Group:
        """Return the register with the field as the request asks for it."""
        return group._replace(pause=Pause(group.buried, stamp, self.request.paused))

    def is_late(self, known: Group) -> bool:
        """Return True if the group was deleted since the generation that the request names: a rewind is no matter."""
        return self.request.id is not None and known.buried > self.request.generation

    def is_overtaken(self, known: Group) -> bool:
        """Return True if the field was set since the client looked, and not as the request asks for it."""
        there, seen = self.setting(known), self.request.seen
        return (
            seen is not None
            and there.stamp > seen
            and there != self.setting(self.with_setting(known, there.stamp))
        )

    def ends(self, group: Group) -> bool:
        """Return True if the request lets deliveries go on, which a full disk must not prevent."""
        return group.pause.on and not self.request.paused

    def check(self, context: Context, known: Group | None) -> m.Failed | None:
        """Return why nothing is to be written on top of this register; None if something is."""
        if known is None or known.deleted:
            return context.catalogue.no_group(self.request.topic, self.request.group)
        if self.is_late(known):
            return late(self.request.group, self.request.generation)
        return overtaken(f"group {known.name!r}") if self.is_overtaken(known) else None

    def start(self, context: Context, now: Now) -> list[Effect]:
        known = self.known(context)
        problem = self.check(context, known)
        if problem is not None:
            return self.refuse(context, problem)
        assert known is not None
        context.state.clock.merge(self.setting(known).stamp.time)
        stamp = context.state.clock.fresh(now)
        self.tries += 1
        if self.tries > WRITES_MAX:
            return self.fail_unknown(context)
        if stamp is None:
            return wait_for_stamp(self, context, now)
        self.stamp = stamp
        return ask_for_promises(self, context, (self.topic, known.name), stamp, now)

    def refuse(self, context: Context, problem: m.Failed) -> list[Effect]:
        """Refuse; if something was written that was overtaken, it may have shown meanwhile."""
        written = self.written is not None and problem.code == Code.STALE_GENERATION
        return self.fail_unknown(context) if written else self.finish(context, problem)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        """Write, once voters of every majority have promised the stamp, if that is above what they know."""
        assert isinstance(message, m.RegistersReply)
        round_ = self.rounds[message.round]
        effects, _ = self.take_in(context, sender, incarnation, message, now)
        if self.done or not round_.is_read(round_.valid(context.state)):
            return effects
        self.close_rounds(context)
        known = self.known(context)
        if known is None or self.check(context, known) is not None or self.setting(known).stamp > self.stamp:
            return effects + self.start(context, now)
        changed = self.with_setting(known, self.stamp)
        self.written = self.setting(changed)
        effects += merging.take_in_group(context, changed, now)
        return effects + self.write(context, now)

    def on_registered(self, context: Context, topic: bytes, now: Now) -> list[Effect]:
        newest = self.known(context)
        if newest is None or newest.deleted or self.setting(newest) != self.written:
            return self.start(context, now)
        if self.setting(newest).buried != newest.buried:  # the group was made again since: it counts no more
            return self.start(context, now)
        if is_outbid(context, (topic, newest.name), self.stamp):
            return ask_later(self, context, self.tries, now)
        return self.answer(context, newest)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        if self.written is not None:
            return super().on_timeout(context, number, now)
        round_ = self.rounds[number]
        detail = f"group {self.request.group!r}: nothing was changed; try again, through any node"
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, round_.majority, len(round_.answered_by))


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

"""Pausing and resuming a group: a field of its register that goes to its last writer.

It is written as a register of a change is (core/requests/registration.py). From its OK on a majority of each replica
set refuses HOLDs of the group, so no FETCH that begins later wins a message.
"""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.rounds import majority_of
from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.registers import WRITES_MAX
from quorumq.core.requests.registration import EVERY, register
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Group, Now, Pause


class PauseCoordinator(Coordinator):
    """PAUSE: stamped above the pause that is known, and again above a later one that the answers bring."""

    __slots__ = ("pause", "request", "topic", "writes")

    def __init__(self, key: int, request: m.PauseGroup, topic: bytes) -> None:
        super().__init__(key)
        self.request = request
        self.topic = topic
        self.pause: Pause | None = None
        self.writes = 0

    def concerns(self, topic: bytes) -> bool:
        return self.topic == topic

    def known(self, context: Context) -> Group | None:
        """Return the register as this node has it."""
        return context.catalogue.group(self.topic, self.request.group)

    def start(self, context: Context, now: Now) -> list[Effect]:
        known = self.known(context)
        if known is None or known.deleted:
            return self.finish(context, context.catalogue.no_group(self.request.topic, self.request.group))
        context.state.clock.merge(known.pause.stamp.time)
        stamp = context.state.clock.fresh(now)
        if self.writes and (stamp is None or self.writes > WRITES_MAX):
            return self._unknown(context, 1, 0)
        if stamp is None:
            return self.refuse_unstamped(context)
        self.writes += 1
        self.pause = Pause(known.buried, stamp, self.request.paused)
        effects = context.take_in_group(known._replace(pause=self.pause), now)
        return effects + register(context, self.key, self.topic, self.request.group, EVERY, now)

    def on_registered(self, context: Context, topic: bytes, now: Now) -> list[Effect]:
        newest = self.known(context)
        if newest is None or newest.deleted or newest.pause != self.pause:
            return self.start(context, now)
        return self.finish(context, m.PauseGroupReply(newest))

    def on_unregistered(
        self, context: Context, topic: bytes, problem: m.Failed | None, now: Now
    ) -> list[Effect]:
        needed, answered = (problem.needed, problem.answered) if problem is not None else (1, 0)
        return self._unknown(context, needed, answered)

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        asked = self.rounds[number]
        return self._unknown(context, majority_of(len(asked.members)), len(asked.heard))

    def _unknown(self, context: Context, needed: int, answered: int) -> list[Effect]:
        detail = f"group {self.request.group!r}: it may have happened, or may yet happen: do it again"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, needed, answered)

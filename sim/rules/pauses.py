"""Rules of paused groups."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.messages.effects import Effect
from quorumq.core.partition.replica import Replica
from quorumq.core.values.types import Incarnation, NodeId, Now
from sim.rules.rule import Rule


def vote_all_the_same(
    self: Replica, sender: NodeId, incarnation: Incarnation, message: m.Hold, now: Now
) -> tuple[m.HoldReply, list[Effect]]:
    """Vote as if the group were not paused; a FETCH here still chooses nothing of it."""
    view = self.group(message.group)
    paused, view.paused = view.paused, False
    try:
        return _on_hold(self, sender, incarnation, message, now)
    finally:
        view.paused = paused


_on_hold = Replica.on_hold

RULES = (
    Rule(
        "pause-voters",
        "voters that know of a pause refuse the HOLDs of the group",
        ((Replica, "on_hold", vote_all_the_same),),
        survives="a FETCH through a node that missed the register, and is back before it learns of it: too rare",
        test="test_pauses::test_voters_refuse_and_tell_a_coordinator_that_has_not_heard",
    ),
)

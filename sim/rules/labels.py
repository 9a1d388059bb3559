"""Rules of labels: registers that are read and written at a majority of the nodes."""

from __future__ import annotations

from quorumq.core.messages.effects import Effect
from quorumq.core.requests.context import Context
from quorumq.core.requests.labels import LabelsCoordinator
from quorumq.core.values.types import Now
from sim.rules.rule import Rule


def answer_a_read(self: LabelsCoordinator, context: Context, now: Now) -> list[Effect]:
    return self._answer(context)


def read_nothing(self: LabelsCoordinator, context: Context, now: Now) -> list[Effect]:
    if not self.request.changes:
        return self._ask_all(context, (), now)
    return self._change(context, now)


RULES = (
    Rule(
        "labels-write-back",
        "a read of labels writes the newest ones to a majority before it answers",
        ((LabelsCoordinator, "_repair", answer_a_read),),
    ),
    Rule(
        "labels-read-first",
        "a change of labels is stamped above what a majority has",
        ((LabelsCoordinator, "start", read_nothing),),
    ),
)

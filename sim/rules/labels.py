"""Rules of labels: fields of a register that are read and written at a majority of the nodes."""

from __future__ import annotations

from quorumq.core.cluster.rounds import RegisterRound
from quorumq.core.messages.effects import Effect
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.labels import LabelsCoordinator
from quorumq.core.values.types import Now
from sim.rules.decisions import A_CRASH
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, answered, of_operators, promised
from sim.rules.stand_ins import Before, after, around, say_at_once


def answer_a_read(
    before: Before[list[Effect]], self: LabelsCoordinator, context: Context, now: Now
) -> list[Effect]:
    return before(self, context, now) if self.request.changes else self.answer(context, self.merged)


def read_nothing(
    before: Before[list[Effect]], self: LabelsCoordinator, context: Context, now: Now
) -> list[Effect]:
    if not self.request.changes:
        return before(self, context, now)
    self.stamp, self.merged = context.state.clock.fresh(now), self.topic
    return self.on_read(context, now)


RULES = (
    Rule(
        "labels-write-back",
        "a read of labels writes the newest ones to a majority before it answers",
        (around(LabelsCoordinator, "on_read", answer_a_read),),
        scenario=of_operators(
            "labels-read-twice",
            "a change of a label and two reads, through three nodes, 1 crash",
            ("label", A),
            ("labels", B),
            ("labels", C),
            # b has read, and has crashed before its fsync.
            script=(
                ("ask", A, "label", 0),
                *promised(A, B),
                ("ask", B, "labels", 1),
                *promised(B, A),
                ("crash", B),
                ("link", B, C),
            ),
            **A_CRASH,
        ),
        hunted=True,
        survives="none in 800 seeds; why is not known",
    ),
    Rule(
        "labels-read-first",
        "a change of labels is stamped above what a majority has",
        (around(LabelsCoordinator, "start", read_nothing),),
        scenario=of_operators(
            "labels-changed-twice",
            "two changes of a label through two nodes, and a read",
            ("label", C),
            ("label", A),
            ("labels", B),
            # Without the rule b has what c writes.
            script=(
                ("ask", C, "label", 0),
                ("may", "deliver", "PutTopic", C, B),
                ("may", "deliver", "PutReply", B, C),
                ("ask", A, "label", 1),
            ),
        ),
        hunted=True,
    ),
    Rule(
        "labels-show-what-was-written",
        "an answer shows labels that this request has written, or read from a majority, and no others",
        ((LabelsCoordinator, "on_written", lambda self, context, now: self.answer(context, self.merged)),),
        scenario=of_operators(
            "labels-overtaken",
            "a change of a label that a and c have, a later one at c alone, and two reads",
            ("label", A),
            ("label", C),
            ("labels", B),
            ("labels", A),
            script=(
                ("ask", A, "label", 0),
                *promised(A, B),
                *answered("PutTopic", "PutReply", A, C),
                ("ask", C, "label", 1),
                *promised(C, B),
                ("ask", B, "labels", 2),
                *promised(B, A),
            ),
        ),
    ),
    Rule(
        "labels-at-a-majority",
        "a change of labels is OK once a majority of the nodes has it",
        ((RegisterRound, "is_majority", lambda self, bits: bool(bits)),),
        scenario=of_operators(
            "labels-changed",
            "a change of a label, and a read",
            ("label", A),
            ("labels", C),
        ),
    ),
    Rule(
        "labels-are-durable",
        "labels are on disk before they are answered for",
        (after(merging, "put_topic", say_at_once),),
        scenario=of_operators(
            "labels-restart",
            "a change of a label, 1 crash, and a read",
            ("label", A),
            ("labels", C),
            **A_CRASH,
            # b has crashed before its fsync; its answer is still under way.
            script=(
                ("ask", A, "label", 0),
                *promised(A, B),
                ("deliver", "PutTopic", A, B),
                ("crash", B),
                ("link", B, C),
            ),
        ),
    ),
)

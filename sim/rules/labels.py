"""Rules of labels: registers that are read and written at a majority of the nodes."""

from __future__ import annotations

from quorumq.core import messages as m
from quorumq.core.cluster.labels import merge_labels
from quorumq.core.cluster.rounds import RegisterRound
from quorumq.core.messages.effects import Effect
from quorumq.core.node import nodecore
from quorumq.core.requests.context import Context
from quorumq.core.requests.labels import LabelsCoordinator, put_labels
from quorumq.core.values.types import Incarnation, NodeId, Now
from sim.explorer.scenario import Budget
from sim.rules.decisions import of_operators
from sim.rules.rule import Rule
from sim.rules.scripts import A, B, C, answered
from sim.rules.stand_ins import after, say_at_once


def answer_a_read(self: LabelsCoordinator, context: Context, now: Now) -> list[Effect]:
    return self._answer(context)


def read_nothing(self: LabelsCoordinator, context: Context, now: Now) -> list[Effect]:
    if not self.request.changes:
        return self._ask_all(context, (), now)
    self.stamp = context.state.clock.fresh(now)
    return self._change(context, now)


def merge_every_answer(
    self: LabelsCoordinator,
    context: Context,
    sender: NodeId,
    incarnation: Incarnation,
    message: m.PutLabelsReply,
    now: Now,
) -> list[Effect]:
    if self.written is not None:
        self.merged = merge_labels(self.merged, message.labels)
    return _on_reply(self, context, sender, incarnation, message, now)


_on_reply = LabelsCoordinator.on_reply

ASKED = answered("PutLabels", "PutLabelsReply", A, B)

RULES = (
    Rule(
        "labels-write-back",
        "a read of labels writes the newest ones to a majority before it answers",
        ((LabelsCoordinator, "_repair", answer_a_read),),
        off="it answers with what it read",
        scenario=of_operators(
            "labels-read-twice",
            "a change of a label and two reads, through three nodes",
            ("label", A),
            ("labels", B),
            ("labels", C),
            script=(("ask", A, "label", 0), *ASKED),
        ),
        hunted=True,
    ),
    Rule(
        "labels-read-first",
        "a change of labels is stamped above what a majority has",
        ((LabelsCoordinator, "start", read_nothing),),
        off="it is stamped by the clock of its node",
        scenario=of_operators(
            "labels-changed-twice",
            "two changes of a label through two nodes, and a read",
            ("label", C),
            ("label", A),
            ("labels", B),
            script=(
                ("ask", C, "label", 0),
                *answered("PutLabels", "PutLabelsReply", C, B),
                ("ask", A, "label", 1),
            ),
        ),
        hunted=True,
    ),
    Rule(
        "labels-show-what-was-written",
        "an answer shows labels that this request has written, or read from a majority, and no others",
        ((LabelsCoordinator, "on_reply", merge_every_answer),),
        off="it shows newer ones that the answers to its write bring",
        scenario=of_operators(
            "labels-overtaken",
            "a change of a label that a and c have, a later one at c alone, and two reads",
            ("label", A),
            ("label", C),
            ("labels", B),
            ("labels", A),
            script=(
                ("ask", A, "label", 0),
                *ASKED,
                *answered("PutLabels", "PutLabelsReply", A, C),
                ("ask", C, "label", 1),
                *answered("PutLabels", "PutLabelsReply", C, B),
                ("ask", B, "labels", 2),
                *answered("PutLabels", "PutLabelsReply", B, A),
            ),
        ),
    ),
    Rule(
        "labels-at-a-majority",
        "a change of labels is OK once a majority of the nodes has it",
        ((RegisterRound, "is_majority", lambda self, bits: bool(bits)),),
        off="it is OK once one node has it",
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
        ((nodecore, "put_labels", after(put_labels, say_at_once)),),
        off="the answer does not wait for the fsync",
        scenario=of_operators(
            "labels-restart",
            "a change of a label, 1 crash, and a read",
            ("label", A),
            ("labels", C),
            budget=Budget(attempts=0, restarts=1),
            restart_nodes=(B,),
            unsynced=True,
            # b has crashed before its fsync; its answer is still under way.
            script=(
                ("ask", A, "label", 0),
                *ASKED,
                ("deliver", "PutLabels", A, B),
                ("crash", B),
                ("link", B, C),
            ),
        ),
    ),
)

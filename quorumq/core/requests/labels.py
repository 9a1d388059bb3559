"""Reading and changing the labels of a topic, which are in its register.

A read asks enough voters for the register to meet each majority, and a change has its stamp promised in that
(core/requests/promising.py). Unless a majority has answered alike, the newest labels are written to one before they are
shown, so that no later read finds older ones (docs/registers.md, LABELS).
"""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.cluster.labels import last_change, merge_labels, size_of, why_no_capacity
from quorumq.core.messages.effects import Effect
from quorumq.core.requests import merging
from quorumq.core.requests.context import Context
from quorumq.core.requests.promising import ask_for_promises, ask_later, is_outbid, overtaken
from quorumq.core.requests.proposing import wait_for_stamp
from quorumq.core.requests.registers import TopicCoordinator
from quorumq.core.values.errors import Code
from quorumq.core.values.types import STAMP_ZERO, Incarnation, Label, NodeId, Now, Stamp, Topic


class LabelsCoordinator(TopicCoordinator):
    """One request for the labels of a topic: reads them, and changes those that it names.

    Attributes:
        answers: labels in each answer to the read.
        stamp: stamp of the change, which the voters promise as they are read; None for a read.
        own: stamp of the change as it was written last; zero before.
    """

    __slots__ = ("answers", "own", "request", "stamp")

    def __init__(self, key: int, request: m.LabelsRequest, topic: Topic) -> None:
        super().__init__(key, topic.name)
        self.request = request
        self.topic = topic
        self.answers: list[tuple[Label, ...]] = []
        self.stamp: Stamp | None = None
        self.own = STAMP_ZERO

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Read; a change has its stamp promised by that, and reads again if others get in between."""
        if self.count_write():
            return self.give_up(context)
        topic = self.merged = self.topic
        self.answers = []
        if not self.request.changes:
            return self.read(context, "look", now)
        context.state.clock.merge(last_change(topic.labels).time)
        self.stamp = context.state.clock.fresh(now)
        if self.stamp is None:
            return wait_for_stamp(self, context, now)
        self.step, self.stored = "look", 0
        return ask_for_promises(self, context, (topic.id, ""), self.stamp, now)

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: Any, now: Now
    ) -> list[Effect]:
        if isinstance(message, m.RegistersReply):
            there = {topic.id: topic.labels for topic in message.topics}
            self.answers.append(there.get(self.topic.id, ()))
        return super().on_reply(context, sender, incarnation, message, now)

    def on_read(self, context: Context, now: Now) -> list[Effect]:
        """Write what the request changes, or what a majority may lack; else answer."""
        merged, stamp = self.merged, self.stamp
        if merged.deleted:
            return self.on_replaced(context, now)
        if stamp is None:
            (round_,) = self.rounds.values()  # two of four voters meet each majority, and are none
            if round_.is_majority(self.stored & round_.valid(context.state)) and all(
                labels == merged.labels for labels in self.answers
            ):
                return self.answer(context, merged)
            return self.write(context, "repair", merged, now)
        if self.is_overtaken():
            problem = overtaken(f"a label of topic {self.name!r}")
            return self.finish(context, problem) if self.own == STAMP_ZERO else self.give_up(context)
        if last_change(merged.labels) > stamp:
            self.topic = merged
            return self.start(context, now)
        changes = [Label(change.name, change.text, stamp) for change in self.request.changes]
        labels = merge_labels(merged.labels, changes)
        in_all = sum(size_of(topic.labels) for topic in context.catalogue.live())
        problem_of_space = why_no_capacity(labels, size_of(merged.labels), in_all)
        if problem_of_space:
            return self.fail(context, Code.TOO_LARGE, f"topic {self.name!r}: {problem_of_space}")
        self.own = stamp
        return self.write(context, "change", merged._replace(labels=labels), now)

    def is_overtaken(self) -> bool:
        """Return True if a label that the request changes was changed since its client looked, and not to the same."""
        seen, texts = self.request.seen, dict(self.request.changes)
        return seen is not None and any(
            label.stamp > seen
            and label.stamp != self.own
            and label.name in texts
            and texts[label.name] != label.text
            for label in self.merged.labels
        )

    def on_written(self, context: Context, now: Now) -> list[Effect]:
        """Answer with what was written: newer labels that its answers bring may be at one node only."""
        if self.merged.deleted:
            return merging.take_in_topic(context, self.merged, now) + self.on_replaced(context, now)
        if self.stamp is not None and is_outbid(context, (self.topic.id, ""), self.stamp):
            self.topic = self.merged
            return ask_later(self, context, self.writes, now)
        return self.answer(context, self.topic)

    def answer(self, context: Context, topic: Topic) -> list[Effect]:
        shown = tuple(
            m.LabelChange(label.name, label.text) for label in topic.labels if label.text is not None
        )
        return self.finish(context, m.LabelsReply(topic.id, shown, last_change(topic.labels)))

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        if self.own != STAMP_ZERO:
            return super().on_timeout(context, number, now)
        round_ = self.rounds[number]
        detail = f"labels of topic {self.name!r} could not be read: ask again, through any node"
        answered = (self.stored & round_.valid(context.state)).bit_count()
        return self.fail(context, Code.TOO_FEW_REPLICAS, detail, round_.majority, answered)

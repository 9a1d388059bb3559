"""Reading and changing the labels of a topic: registers with many writers, read and written at a majority of the nodes.

A change reads a majority first, which promises its stamp, above what it read (core/requests/promising.py). A read whose
answers differ writes the newest labels to a majority before it answers, so that no later read finds older ones
(docs/registers.md, LABELS).
"""

from __future__ import annotations

from typing import Final

from quorumq.core import messages as m
from quorumq.core.cluster.labels import merge_labels, size_of, why_no_capacity
from quorumq.core.messages.effects import Effect, Persist, Send
from quorumq.core.messages.records import LabelsPut, Reserved
from quorumq.core.requests.context import Context
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.promising import (
    ask_later,
    is_outbid,
    note_promised,
    overtaken,
    promise,
    wait_for_stamp,
)
from quorumq.core.requests.registers import WRITES_MAX
from quorumq.core.values.errors import Code
from quorumq.core.values.types import (
    STAMP_ZERO,
    Incarnation,
    Label,
    Labels,
    NodeId,
    Now,
    PartitionId,
    Stamp,
    Topic,
)

LABELS: Final = "!labels"
"""Stands for the labels of a topic, among names of groups, in promises."""

# ------------------------------------------------------------------------------- a node's part


def put_labels(context: Context, sender: NodeId, message: m.PutLabels) -> list[Effect]:
    """Merge labels, durably, and answer with ours: of the names that came, or all if none came."""
    number, labels, ballot = message
    catalogue = context.catalogue
    topic = catalogue.topics.get(labels.topic)
    known, epoch = context.state.register_vector(), context.state.voting_epoch
    if topic is None or topic.deleted:
        if not number:
            return []  # anti-entropy comes again
        code = Code.UNKNOWN_TOPIC if topic is None else Code.NOT_FOUND
        news = [Send(sender, m.PutTopic(0, topic))] if topic is not None else []
        return [*news, Send(sender, m.PutLabelsReply(number, code, (), known, epoch))]
    changed = catalogue.labels.take(labels)
    for label in changed:
        context.state.clock.merge(label.stamp.time)
    records: tuple[LabelsPut | Reserved, ...] = (LabelsPut(Labels(labels.topic, changed)),) if changed else ()
    if not number:
        return [Persist(records)] if records else []
    names = dict.fromkeys(label.name for label in labels.labels)
    ours = catalogue.labels.of(labels.topic)
    shown = tuple(label for label in ours if not names or label.name in names)
    reserved, done = promise(context, ((labels.topic, LABELS),), ballot)
    promised = context.state.promised((labels.topic, LABELS), *[label.stamp for label in shown])
    reply = m.PutLabelsReply(number, "", shown, known, epoch, promised)
    return [Persist((*records, *reserved), (*done, Send(sender, reply)))]


def compare_labels(context: Context, sender: NodeId, message: m.SyncLabels) -> list[Effect]:
    """Answer another digest of all labels with ours of each topic: the sender sends what differs."""
    table = context.catalogue.labels
    return [] if message.digest == table.digest() else [Send(sender, m.LabelsListed(table.digests()))]


def send_differing(context: Context, sender: NodeId, message: m.LabelsListed) -> list[Effect]:
    """Send the labels of topics whose digests differ from ours."""
    return [
        Send(sender, m.PutLabels(0, labels)) for labels in context.catalogue.labels.differing(message.topics)
    ]


# ------------------------------------------------------------------------------- a client's request


class LabelsCoordinator(Coordinator):
    """One request for the labels of a topic: reads them, and changes those that it names.

    Attributes:
        merged: labels of all answers to the read.
        written: labels that the second round writes; None while it reads.
        stamp: stamp of the change, which the voters promise as they are read; None for a read.
        own: stamp of the change as it was written last; zero before.
    """

    __slots__ = ("answers", "counted", "merged", "own", "request", "stamp", "topic", "tries", "written")

    def __init__(self, key: int, request: m.LabelsRequest, topic: Topic) -> None:
        super().__init__(key)
        self.request = request
        self.topic = topic
        self.merged: tuple[Label, ...] = ()
        self.written: tuple[Label, ...] | None = None
        self.answers: dict[NodeId, tuple[Label, ...]] = {}
        self.counted = 0
        self.stamp: Stamp | None = None
        self.own = STAMP_ZERO
        self.tries = 0

    def concerns(self, topic: bytes) -> bool:
        return self.topic.id == topic

    def start(self, context: Context, now: Now) -> list[Effect]:
        """Read; a change has its stamp promised by that, and reads again if others get in between."""
        if self.request.changes:
            self.tries += 1
            self.stamp = context.state.clock.fresh(now)
            if self.tries > WRITES_MAX:
                return self._fail_unknown(context)
            if self.stamp is None:
                return wait_for_stamp(self, context, now)
        self.written, self.answers = None, {}
        return self._ask_all(context, (), now)

    def _ask_all(self, context: Context, labels: tuple[Label, ...], now: Now) -> list[Effect]:
        self.close_rounds(context)
        self.counted = 0
        round_ = self.open_voter_round(context, now)
        ballot = self.stamp if self.written is None else None
        put = m.PutLabels(round_.number, Labels(self.topic.id, labels), ballot)
        self.requests[round_.number] = (PartitionId(self.topic.id, 0), put)
        return [Send(node, put) for node in round_.members]

    def on_reply(
        self, context: Context, sender: NodeId, incarnation: Incarnation, message: m.PeerMessage, now: Now
    ) -> list[Effect]:
        assert isinstance(message, m.PutLabelsReply)
        round_ = self.rounds[message.round]
        if message.error == Code.UNKNOWN_TOPIC:
            return self.teach(context, message.round, sender)
        if message.error:
            return []  # the topic was deleted: its register came before, and ended this request
        note_promised(context, (self.topic.id, LABELS), message.promised)
        self.counted |= round_.hear(sender, incarnation)
        if self.written is None:  # later answers may name labels that no majority has
            self.merged = merge_labels(self.merged, message.labels)
            self.answers[sender] = message.labels
        if not round_.is_majority(self.counted & round_.valid(context.state)):
            return []
        if self.written is not None:
            if self.stamp is not None and is_outbid(context, (self.topic.id, LABELS), self.stamp):
                self.close_rounds(context)
                return ask_later(self, context, self.tries, now)
            return self._answer(context)
        return self._change(context, now) if self.request.changes else self._repair(context, now)

    def _differing(self) -> tuple[Label, ...]:
        """Return the newest labels that some of the answers to the read lack."""
        return tuple(
            label for label in self.merged if any(label not in labels for labels in self.answers.values())
        )

    def _repair(self, context: Context, now: Now) -> list[Effect]:
        """Answer a read, once a majority has what it found."""
        self.written = self._differing()
        return self._ask_all(context, self.written, now) if self.written else self._answer(context)

    def _change(self, context: Context, now: Now) -> list[Effect]:
        """Write what the request changes, if its stamp is above all that a majority had."""
        table, stamp = context.catalogue.labels, self.stamp
        assert stamp is not None
        if self._is_overtaken():
            if self.own != STAMP_ZERO:
                return self._fail_unknown(context)
            return self.finish(context, overtaken(f"a label of topic {self.topic.name!r}"))
        highest = max((label.stamp for label in self.merged), default=STAMP_ZERO)
        if highest > stamp:
            context.state.clock.merge(highest.time)
            self.close_rounds(context)
            return self.start(context, now)
        self.own = stamp
        changes = tuple(Label(change.name, change.text, stamp) for change in self.request.changes)
        changed = merge_labels(self.merged, changes)
        ours = size_of(table.of(self.topic.id))
        problem = why_no_capacity(changed, ours, table.size)
        if problem:
            return self.fail(context, Code.TOO_LARGE, f"topic {self.topic.name!r}: {problem}")
        self.written = merge_labels(self._differing(), changes)  # the answer names them all
        self.merged = changed
        return self._ask_all(context, self.written, now)

    def _is_overtaken(self) -> bool:
        """Return True if a label that the request changes was changed since its client looked, and not to the same."""
        seen, texts = self.request.seen, dict(self.request.changes)
        return seen is not None and any(
            label.stamp > seen
            and label.stamp != self.own
            and label.name in texts
            and texts[label.name] != label.text
            for label in self.merged
        )

    def _answer(self, context: Context) -> list[Effect]:
        shown = tuple(
            m.LabelChange(label.name, label.text) for label in self.merged if label.text is not None
        )
        highest = max((label.stamp for label in self.merged), default=STAMP_ZERO)
        return self.finish(context, m.LabelsReply(self.topic.id, shown, highest))

    def on_timeout(self, context: Context, number: int, now: Now) -> list[Effect]:
        round_ = self.rounds[number]
        answered = (self.counted & round_.valid(context.state)).bit_count()
        if self.own == STAMP_ZERO:
            detail = f"labels of topic {self.topic.name!r} could not be read: ask again, through any node"
            return self.fail(context, Code.TOO_FEW_REPLICAS, detail, round_.majority, answered)
        return self._fail_unknown(context, round_.majority, answered)

    def _fail_unknown(self, context: Context, needed: int = 1, answered: int = 0) -> list[Effect]:
        detail = f"labels of topic {self.topic.name!r}: they may be changed, or become so: do it again"
        return self.fail(context, Code.OUTCOME_UNKNOWN, detail, needed, answered)

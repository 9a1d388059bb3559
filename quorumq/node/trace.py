"""The node's lines in the history of a run (docs/history.md), if one is configured.

The lines are facts that a node knows better than its clients: its start and kind of start, its stop and the reason,
its durable messages, the deliveries that it began to write and their length, those given back, and dead letters that
no client declared. If a history cannot be written, it is given up with one line in the log: the node serves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from quorumq.core.messages import FetchReply, RejectRequest, ReleaseRequest
from quorumq.core.messages.records import BatchStored, GroupPut, JournalRecord, RecordsMerged, TopicPut
from quorumq.core.partition.replica import Replica
from quorumq.core.values.limits import DEADLINE_SHARE
from quorumq.core.values.types import STAMP_ZERO, Incarnation, Owner, PartitionId, Span, Topic
from quorumq.history import (
    HistoryError,
    HistoryWriter,
    layout_values,
    owner_text,
    register_value,
    settings_value,
    spans_value,
    token_text,
    topic_label,
)
from quorumq.node.config import ServeConfig

MOVE_IT: Final = "nothing more is written there; move it away and start the node again for a new one"

SPANS_PER_LINE: Final = 1000
"""Most spans in one line of a start's findings."""


class Trace:
    """Writes a node's history; every method is quiet when none is configured.

    Args:
        writer: writes it instead, wherever that goes.
    """

    def __init__(
        self, config: ServeConfig, log: Any, writer: HistoryWriter | None = None, nodes: Sequence[str] = ()
    ) -> None:
        self._log = log
        self._node = config.node
        self._writer = writer
        self._lines = 0
        self._path = config.history
        self._full = False  # as the log has said
        if config.history and writer is None:
            settings = {"hold_time_max": config.hold_time_max, "nodes": list(nodes or [config.node])}
            try:
                self._writer = HistoryWriter(
                    config.history, run=config.cluster_id, who=f"node:{config.node}", settings=settings
                )
            except OSError as error:
                self._give_up(error)

    @property
    def on(self) -> bool:
        """True if anything is written."""
        return self._writer is not None

    def _write(self, kind: str, **fields: object) -> None:
        if self._writer is not None:
            self._lines += 1
            self._do(HistoryWriter.write, kind, **fields)

    def _do(self, act: Callable[..., None], *args: object, **fields: object) -> None:
        """Have the writer, if there is one, do something; if it fails, it is given up."""
        if self._writer is not None:
            try:
                act(self._writer, *args, **fields)
                if self._writer.dropped and not self._full:
                    self._full = True
                    self._log.warning("history_full", reason=f"{self._path} is at its limit: {MOVE_IT}")
            except (OSError, HistoryError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        self._log.error("history_given_up", reason=str(error))

    def started(self, incarnation: Incarnation, *, waits: bool) -> None:
        """Write that the start is durable."""
        outcome = "quarantine" if waits else "restored" if incarnation.n > 1 else "fresh"
        self._write("start", incarnation=incarnation.n, outcome=outcome)
        self.flush()

    def stopped(self, incarnation: Incarnation, reason: str) -> None:
        """Write the last line: the node stops."""
        self._write("stop", incarnation=incarnation.n, reason=reason)
        self.close()

    def found(self, replicas: Iterable[Replica]) -> None:
        """Write that a start has found these replicas' messages in its directory, and fsynced them.

        A process that is killed before an fsync leaves its writes, and no line that says so.
        """
        for replica in replicas if self.on else ():
            spans = replica.batches.present.items()
            for at in range(0, len(spans), SPANS_PER_LINE):
                self._write(
                    "store",
                    topic=topic_label(replica.topic.id, replica.topic.name),
                    partition=replica.partition.number,
                    spans=spans_value(spans[at : at + SPANS_PER_LINE]),
                    detail="found at the start",
                )

    def durable(self, records: tuple[JournalRecord, ...], topics: Mapping[bytes, Topic]) -> None:
        """Write the batches and registers of durable records, before a client or peer learns that they are durable."""
        before = self._lines
        for record in records:
            if isinstance(record, GroupPut):
                of = topics.get(record.group.topic)
                if of is not None:
                    label = topic_label(of.id, of.name)
                    self._write("register", topic=label, **register_value(record.group))
                continue
            if isinstance(record, TopicPut):
                register = record.topic
                if not register.deleted and register.stamp != STAMP_ZERO:  # else a creation went no further
                    label = topic_label(register.id, register.name)
                    self._write("topic", topic=label, settings=settings_value(register))
                    for fields in layout_values(register):
                        self._write("layout", topic=label, **fields)
                continue
            if isinstance(record, RecordsMerged):
                self._buried(record, topics)
            if not isinstance(record, BatchStored):
                continue
            header = record.batch.header
            topic = topics.get(header.partition.topic)
            if topic is not None:
                self._write(
                    "store",
                    topic=topic_label(topic.id, topic.name),
                    partition=header.partition.number,
                    spans=spans_value(header.spans),
                )
        if self._lines > before:
            self.flush()

    def _buried(self, record: RecordsMerged, topics: Mapping[bytes, Topic]) -> None:
        """Messages are dead letters here that no client rejected."""
        topic = topics.get(record.partition.topic)
        if topic is None:
            return
        for span, value in record.entries:
            death = value.death
            if death is None or death.reason == "rejected":
                continue
            self._write(
                "dead_letter",
                topic=topic_label(topic.id, topic.name),
                partition=record.partition.number,
                group=record.group,
                generation=value.generation,
                n=value.n,
                spans=spans_value([span]),
                owner=owner_text(Owner(death.node, Incarnation(0, 0), death.ballot)),
                outcome="ok",
                reason=death.reason,
            )

    def answered(self, reply: FetchReply, replicas: Mapping[PartitionId, Replica]) -> None:
        """Write that the reply of a FETCH begins to be written.

        Args:
            replicas: replicas of this node, which know the ends of its own holds.
        """
        for topic, where, group, generation, n, owner, attempt, spans in _deliveries(reply):
            mine = replicas.get(where) if owner.node == self._node else None
            end = _end(mine, group, owner, spans[0])
            until = {} if end is None else {"until": end - (1 - DEADLINE_SHARE) * reply.hold_time}
            self._write(
                "hold_won",
                topic=topic,
                partition=where.number,
                group=group,
                generation=generation,
                n=n,
                spans=spans_value(spans),
                owner=owner_text(owner),
                token=token_text(owner.ballot),
                attempt=attempt,
                **until,
            )

    def given_back(self, reply: FetchReply, reason: str) -> None:
        """Write that the reply of a FETCH will certainly not be written."""
        for topic, where, group, _, _, owner, _, spans in _deliveries(reply):
            self._write(
                "release",
                topic=topic,
                partition=where.number,
                group=group,
                spans=spans_value(spans),
                owner=owner_text(owner),
                reason=reason,
            )
        self.flush()

    def give_up(self, request: ReleaseRequest | RejectRequest, topics: Mapping[bytes, Topic]) -> None:
        """Write that holds of any coordinator may end, because a client asks for that: before anything is done."""
        for receipt, spans in request.items if self.on else ():
            topic = topics.get(receipt.partition.topic)
            if topic is not None:
                self._write(
                    "release",
                    topic=topic_label(topic.id, topic.name),
                    partition=receipt.partition.number,
                    group=receipt.group,
                    spans=spans_value(spans),
                    owner=owner_text(receipt.owner),
                    reason="left" if isinstance(request, ReleaseRequest) else "rejected",
                )
        self.flush()

    def flush(self) -> None:
        """Hand everything so far to the system."""
        self._do(HistoryWriter.flush)

    def close(self) -> None:
        self._do(HistoryWriter.close)
        self._writer = None


def _end(replica: Replica | None, group: str, owner: Owner, span: Span) -> float | None:
    """Return the end of a hold at our own replica, in monotonic seconds; None if it does not have it."""
    view = None if replica is None else replica.views.groups.get(group)
    held = [] if view is None else [held for _, held in view.held(span) if held.owner == owner]
    return held[0].deadline if held else None


Delivered = tuple[str, PartitionId, str, int, int, Owner, int, list[Span]]


def _deliveries(reply: FetchReply) -> list[Delivered]:
    """Return the deliveries of a reply, one for each attempt of each owner: a line costs as much as a span."""
    by_delivery: dict[tuple[Any, ...], list[Span]] = {}
    for part in reply.slices:
        for delivery in part.deliveries:
            receipt = delivery.receipt
            key = (
                topic_label(receipt.partition.topic, part.topic), receipt.partition, receipt.group, receipt.generation,
                receipt.n, receipt.owner, delivery.attempt,
            )  # fmt: skip
            by_delivery.setdefault(key, []).append(receipt.span)
    return [(*key, spans) for key, spans in by_delivery.items()]

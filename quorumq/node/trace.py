"""The node's lines in the history of a run (docs/history.md), where one is configured.

What a node can say of itself better than its clients can: that it started and how, that it stopped and why, which
messages it has durably, which deliveries it began to write, and which it gave back. A history that cannot be
written is given up with one line in the log: the node serves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from quorumq.core.messages import FetchReply
from quorumq.core.partition.replica import Replica
from quorumq.core.records import BatchStored, GroupPut, JournalRecord, TopicPut
from quorumq.core.types import STAMP_ZERO, Incarnation, Owner, PartitionId, Span, Topic
from quorumq.history import (
    HistoryError,
    HistoryWriter,
    owner_text,
    register_value,
    settings_value,
    spans_value,
    token_text,
    topic_label,
)
from quorumq.node.config import ServeConfig

SPANS_PER_LINE: Final = 1000
"""Of what a start finds."""


class Trace:
    """Writes a node's history; every method is quiet when none is configured.

    Args:
        config: the node's; ``history`` is the path, or "".
        log: for the one line that says it is given up.
        writer: writes it instead, wherever that goes.
    """

    def __init__(self, config: ServeConfig, log: Any, writer: HistoryWriter | None = None) -> None:
        self._log = log
        self._writer = writer
        self._lines = 0
        if config.history and writer is None:
            settings = {"hold_time_max": config.hold_time_max, "nodes": list(config.nodes or [config.node])}
            try:
                self._writer = HistoryWriter(
                    config.history, run=config.cluster_id, who=f"node:{config.node}", settings=settings
                )
            except OSError as error:
                self._give_up(error)

    @property
    def on(self) -> bool:
        """Whether anything is written."""
        return self._writer is not None

    def _write(self, kind: str, **fields: object) -> None:
        if self._writer is not None:
            self._lines += 1
            self._do(HistoryWriter.write, kind, **fields)

    def _do(self, act: Callable[..., None], *args: object, **fields: object) -> None:
        """Have the writer do something, where there is one; where it fails, it is given up."""
        if self._writer is not None:
            try:
                act(self._writer, *args, **fields)
            except (OSError, HistoryError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        self._log.error("history_given_up", reason=str(error))

    def started(self, incarnation: Incarnation, *, waits: bool) -> None:
        """The start is durable.

        Args:
            incarnation: of this start.
            waits: whether the node is in quarantine.
        """
        outcome = "quarantine" if waits else "restored" if incarnation.n > 1 else "fresh"
        self._write("start", incarnation=incarnation.n, outcome=outcome)
        self.flush()

    def stopped(self, incarnation: Incarnation, reason: str) -> None:
        """The node stops: the last line."""
        self._write("stop", incarnation=incarnation.n, reason=reason)
        self.close()

    def found(self, replicas: Iterable[Replica]) -> None:
        """A start has found what these have in its directory, and fsynced it.

        A process that is killed before an fsync leaves what it wrote, and no line that says so.
        """
        for replica in replicas if self.on else ():
            spans = replica.batches.present.items()
            for some in range(0, len(spans), SPANS_PER_LINE):
                self._write(
                    "store",
                    topic=topic_label(replica.topic.id, replica.topic.name),
                    partition=replica.partition.number,
                    spans=spans_value(spans[some : some + SPANS_PER_LINE]),
                    detail="found at the start",
                )

    def durable(self, records: tuple[JournalRecord, ...], topics: Mapping[bytes, Topic]) -> None:
        """These records are durable here: their batches and registers are in the file before anyone is told of it."""
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
                continue
            if not isinstance(record, BatchStored):
                continue
            header = record.batch.header
            topic = topics.get(header.partition.topic)
            if topic is not None:
                self._write(
                    "store",
                    topic=topic_label(topic.id, topic.name),
                    partition=header.partition.number,
                    spans=spans_value(header.sections),
                )
        if self._lines > before:
            self.flush()

    def answered(self, reply: FetchReply) -> None:
        """The reply of a FETCH begins to be written."""
        for topic, where, group, generation, n, owner, attempt, spans in _deliveries(reply):
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
            )

    def given_back(self, reply: FetchReply, reason: str) -> None:
        """The reply of a FETCH will certainly not be written."""
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

    def flush(self) -> None:
        """Hand everything so far to the system."""
        self._do(HistoryWriter.flush)

    def close(self) -> None:
        """Flush and close."""
        self._do(HistoryWriter.close)
        self._writer = None


Delivered = tuple[str, PartitionId, str, int, int, Owner, int, list[Span]]


def _deliveries(reply: FetchReply) -> list[Delivered]:
    """What a reply delivers, one item for each attempt of each owner: a line costs what a span costs."""
    found: dict[tuple[Any, ...], list[Span]] = {}
    for part in reply.slices:
        for delivery in part.deliveries:
            receipt = delivery.receipt
            key = (
                topic_label(receipt.partition.topic, part.topic), receipt.partition, receipt.group, receipt.generation,
                receipt.n, receipt.owner, delivery.attempt,
            )  # fmt: skip
            found.setdefault(key, []).append(receipt.span)
    return [(*key, spans) for key, spans in found.items()]

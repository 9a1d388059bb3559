"""Lines about this client's calls and deliveries, in the format of docs/history.md.

A line is written at the source of the fact: `publish`, `ack` and their like around each attempt at one node, `deliver`
when messages are handed to the application. So checkers can compare the application's view with the nodes'.
Times are the client's own clock, the one that stamps FETCH and EXTEND, as `until` and `asked` are on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from quorumq.client.base.message import Message, deadline_of
from quorumq.client.transport.log import LOGGER
from quorumq.core import messages as m
from quorumq.core.values.errors import Code
from quorumq.core.values.spanlists import merge_spans
from quorumq.core.values.types import BatchHeader, PartitionId, ProducerId, Receipt, Span, Topic
from quorumq.history import (
    HistoryWriter,
    label_after,
    owner_text,
    settings_value,
    spans_value,
    token_text,
    topic_label,
)
from quorumq.wire.receipts import read_receipt
from quorumq.wire.values import SignedNamed

UNKNOWN: Final = frozenset({Code.OUTCOME_UNKNOWN, Code.TOO_FEW_REPLICAS, Code.NOT_FOUND, "error"})
"""Error codes after which a request may have been carried out; a topic that is not found may be deleted since."""


@dataclass(eq=False)
class History:
    """Writer of a client's lines."""

    writer: HistoryWriter  # for this client alone; flushed and closed by its maker
    clock: Callable[[], float]  # the client's monotonic clock, in seconds
    wall_ms: Callable[[], int]  # its time of day in milliseconds
    _ops: int = 0
    _labels: dict[str, str] = field(default_factory=dict)  # by name, as far as this client knows

    def write(self, kind: str, **fields: object) -> None:
        """Write one line, at this moment of the client's clocks. After an error none follows, and the client goes on.

        Why: the call that the line is about may have been carried out, and its caller would take the error for its end.
        """
        try:
            self.writer.write(kind, at=self.clock(), wall_ms=self.wall_ms(), **fields)
        except OSError as error:
            LOGGER.error("the history of this client is given up, as it cannot be written: %s", error)

    def op(self) -> int:
        """Return the next number of a request."""
        self._ops += 1
        return self._ops

    def learn(self, topic: Topic, *, deleted: bool = False) -> None:
        """Learn a topic's name, which it has or had until now: a request by the name means it, or the next one."""
        self._labels[topic.name] = (
            label_after(topic.name, topic.deletions + 1) if deleted else topic_label(topic.id, topic.name)
        )

    def label(self, name: str) -> str:
        """Return the label that a request's lines give a topic that the request names by its name."""
        return self._labels.get(name, name)

    def delivered(self, messages: Sequence[Message]) -> None:
        """Write that messages are being handed to the application."""
        for delivery, same_delivery in groupby(messages, key=_delivery):
            for until, same_deadline in groupby(same_delivery, key=_deadline):
                mine = list(same_deadline)
                producer_id, first, _ = delivery.receipt.span
                crcs = "".join(delivery.crcs[8 * (x.seq - first) : 8 * (x.seq - first) + 8] for x in mine)
                self.write(
                    "deliver",
                    **held(delivery.receipt, topic_label(delivery.receipt.partition.topic, delivery.topic)),
                    spans=spans_value(_runs(producer_id, (message.seq for message in mine))),
                    token=token_text(delivery.receipt.owner.ballot),
                    attempt=delivery.attempt,
                    until=until,
                    asked=delivery.asked,
                    crcs=crcs,
                    via=delivery.via,
                )

    def left(self, items: Iterable[SignedNamed], topics: dict[bytes, str]) -> None:
        """Write that messages that were never handed over are being given back."""
        op = self.op()
        for item in items:
            receipt = read_receipt(item.signed)
            fields = held(receipt, topic_name(receipt.partition, topics))
            self.write("leave", **fields, spans=spans_value(item.spans or (receipt.span,)), op=op)

    def listed(
        self, topic: str, partition: int, group: str, items: Iterable[m.Peeked], via: str, complete: bool
    ) -> None:
        """Write that a listing showed these messages; a complete one has those of a majority."""
        for item in items:
            self.write(
                "list",
                topic=self.label(topic),
                partition=partition,
                group=group,
                state=item.state,
                spans=spans_value([item.span]),
                n=item.record.n,
                generation=item.record.generation,
                complete=complete,
                via=via,
            )

    def listed_all(self, topic: str, partition: int, group: str, which: str, asked: float) -> None:
        """Write that a complete listing, first requested at ``asked``, has ended: the rest was not there."""
        self.write(
            "list",
            topic=self.label(topic),
            partition=partition,
            group=group,
            state=which,
            spans=[],
            complete=True,
            asked=asked,
        )

    def derived(self, outputs: Iterable[Output]) -> None:
        """Write that these are about to be published: a line for each run of them."""
        ordered = sorted(outputs)
        for _, run in groupby(ordered, key=lambda output: output[:-2]):
            mine = list(run)
            first = mine[0]
            self.write(
                "derive",
                topic=first.topic,
                partition=first.partition,
                group=first.group,
                spans=spans_value(_runs(first.producer_id, [it.seq for it in mine])),
                crcs="".join(f"{it.crc:08x}" for it in mine),
                into={
                    "topic": self.label(first.into),
                    "partition": first.into_partition,
                    "spans": spans_value(_runs(first.name, [it.seq for it in mine])),
                    "index": first.which,
                },
            )


_delivery: Final = attrgetter("delivery")
_deadline: Final = attrgetter("deadline")


class Output(NamedTuple):
    """A message that is derived from another, both named but for the number, which they share."""

    topic: str  # the input's, like all that follow
    partition: int
    group: str
    producer_id: ProducerId
    which: int  # number of this output among several of one input
    into: str  # the topic's name
    into_partition: int
    name: ProducerId
    seq: int
    crc: int  # CRC-32C of the output's record


def _runs(producer_id: ProducerId, numbers: Iterable[int]) -> tuple[Span, ...]:
    """Return numbers as spans."""
    return merge_spans(Span(producer_id, number, number + 1) for number in numbers)


def topic_name(partition: PartitionId, topics: dict[bytes, str]) -> str:
    """Return the topic label of a partition in a history, or the topic's id in hex if its name is not known."""
    topic = partition.topic
    return topic_label(topic, topics[topic]) if topic in topics else topic.hex()


def held(receipt: Receipt, topic: str) -> dict[str, Any]:
    """Return the fields that name a delivery."""
    return {
        "topic": topic,
        "partition": receipt.partition.number,
        "group": receipt.group,
        "generation": receipt.generation,
        "n": receipt.n,
        "owner": owner_text(receipt.owner),
    }


def failure(code: str) -> str:
    """Return the outcome that an error code is: whether it may have happened."""
    return "unknown" if code in UNKNOWN else "fail"


def failed(reply: m.ClientReply | None, sent: bool) -> tuple[str, dict[str, Any]]:
    """Return the outcome of an attempt that was not answered, or by `Failed`, and its detail."""
    if isinstance(reply, m.Failed):
        return failure(reply.code), {"detail": f"{reply.code}: {reply.detail}"}
    return ("unknown", {"detail": "no answer"}) if sent else ("fail", {"detail": "not sent"})


GROUP_FIELDS: Final = {"set_group": ("generation", "from_ms"), "delete_group": ("generation",)}
"""Fields of a group's register in the outcome of a change, by kind."""

Item = tuple[dict[str, Any], tuple[Span, ...]]
"""Messages that a request names by a receipt, or as listed: the fields of its lines, and the spans."""


def _made(header: BatchHeader) -> dict[str, object]:
    """Return the further fields of a batch that is about to be sent."""
    times = {"delay": header.delay_ms / 1000, "ttl": header.ttl_ms / 1000}
    crcs = "".join(f"{header.crc_of(index):08x}" for index in range(header.size))
    said = {name: seconds for name, seconds in times.items() if seconds}
    return {**said, "crcs": crcs, "published_ms": header.published_ms}


@dataclass(eq=False)
class Settled:
    """The attempts of one PUBLISH, ACK, REJECT, EXTEND or REDRIVE."""

    history: History
    kind: str  # "publish", "ack", "reject", "dead_letter", "extend", "claim" or "redrive"
    topics: dict[bytes, str]  # names of topics, by id; one that is not there is written as its id
    fields: dict[str, object]  # for its ``invoke`` lines
    _op: int = 0
    _first: int = 0  # the op of the first attempt
    _items: list[Item] = field(default_factory=list)
    _hold_time: float = 0.0

    def asked(self, via: str, request: m.ClientRequest) -> None:
        """Write that the request is about to be sent."""
        self._op = self.history.op()
        if isinstance(request, m.ExtendRequest):
            self._hold_time = request.hold_time
        if isinstance(request, m.Publish):
            self.fields = _made(request.batch.header)
            if self._first:
                self.fields["retries"] = self._first
        self._first = self._first or self._op
        self._items = [*self._items_of(request)]
        for item in self._items:
            self._write(item, "invoke", via=via, **self.fields)

    def _items_of(self, request: m.ClientRequest) -> Iterator[Item]:
        if isinstance(request, m.Publish):
            header = request.batch.header
            topic = topic_name(header.partition, self.topics)
            yield {"topic": topic, "partition": header.partition.number}, header.spans
        elif isinstance(request, m.RedriveRequest):
            topic = self.history.label(request.topic)
            names = {"topic": topic, "partition": request.partition, "group": request.group}
            for entry in request.entries:
                yield {**names, "generation": entry.record.generation, "n": entry.record.n}, (entry.span,)
        else:
            for item in cast("tuple[SignedNamed, ...]", cast("m.AckRequest", request).items):
                receipt = read_receipt(item.signed)
                fields = held(receipt, topic_name(receipt.partition, self.topics))
                yield fields, item.spans or (receipt.span,)

    def answered(self, reply: m.ClientReply | None, *, sent: bool) -> None:
        """Write the outcome of each message."""
        if not isinstance(reply, m.SettleReply):
            outcome, more = ("ok", {}) if isinstance(reply, m.PublishReply) else failed(reply, sent)
            for item in self._items:
                self._write(item, outcome, **more)
            return
        for (index, said), verdicts in groupby(
            reply.verdicts, key=lambda verdict: (verdict.item, verdict.outcome)
        ):
            if index >= len(self._items):
                continue
            known = said in ("acked", "acked_after_expiry", "acked_unproven", "ok")
            known = known or (self.kind != "ack" and said in (Code.HOLD_LOST, Code.ALREADY_SETTLED))
            more = {} if known else {"detail": said}
            if self.kind in ("extend", "claim") and said == "ok":
                more["until"] = deadline_of(reply.sent_at, self._hold_time)
            outcome = said if known else failure(said)
            spans = tuple(verdict.span for verdict in verdicts)
            self._write((self._items[index][0], spans), outcome, **more)

    def _write(self, item: Item, outcome: str, **more: object) -> None:
        names, spans = item
        self.history.write(self.kind, **names, spans=spans_value(spans), op=self._op, outcome=outcome, **more)


@dataclass(eq=False)
class Calling:
    """The attempts of one request that names a topic by its name, such as PURGE, SETGROUP or CREATE."""

    history: History
    kind: str  # "purge", "set_group", "pause_group", "limit_group", "delete_group", "set_topic" or "delete_topic"
    topic: str
    fields: dict[str, object]  # for all its lines
    _asked: dict[str, object] = field(default_factory=dict)  # fields of the `invoke` line
    _label: str = ""
    _op: int = 0

    def asked(self, via: str, request: m.ClientRequest) -> None:
        """Write that the request is about to be sent."""
        self._asked = {"via": via}
        if isinstance(request, m.SetGroup):
            self._asked |= {"start": request.start, "from_ms": request.from_ms}
        elif isinstance(request, m.CreateTopic):
            values = settings_value(request)
            omitted = tuple(values) if request.implicit else request.unnamed
            self._asked["settings"] = {name: value for name, value in values.items() if name not in omitted}
            self._asked["defaults"] = {name: value for name, value in values.items() if name in omitted}
        elif isinstance(request, m.AlterTopic):
            self._asked["settings"] = settings_value(request)
        elif isinstance(request, m.PurgeRequest) and request.spans:
            self.fields["spans"] = spans_value(request.spans)
        if isinstance(request, m.DeleteTopic):
            self._invoke(topic_label(request.id, self.topic))
        else:
            self._invoke(self.history.label(self.topic))

    def _invoke(self, label: str) -> None:
        self._label, self._op = label, self.history.op()
        self._write("invoke", **self._asked)

    def _write(self, outcome: str, **more: object) -> None:
        self.history.write(self.kind, topic=self._label, **self.fields, **more, op=self._op, outcome=outcome)

    def answered(self, reply: m.ClientReply | None, *, sent: bool) -> None:
        """Write the outcome."""
        outcome = "ok"
        more: dict[str, Any] = {}
        reached = b""
        if isinstance(reply, m.PurgeReply):
            outcome = "named" if "spans" in self.fields else "ok"
            more = {"messages": reply.messages}
        elif isinstance(reply, m.GroupReply):
            group = reply.group
            values = {"generation": group.generation, "from_ms": group.from_ms}
            more = {name: values[name] for name in GROUP_FIELDS.get(self.kind, ())}
            reached = group.topic
        elif isinstance(reply, m.TopicReply):
            reached = b"" if self.kind == "delete_topic" else reply.topic.id
        else:
            outcome, more = failed(reply, sent)
        if reached and topic_label(reached, self.topic) != self._label:
            # Another topic has the name by now: that is the one that it was sent to.
            self._write("fail", detail="the topic was deleted before")
            self._invoke(topic_label(reached, self.topic))
        self._write(outcome, **more)

"""quorumq itself among its rivals: the real node core on its own machines (sim/host.py), asked by the same clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quorumq.core.messages import (
    AckRequest,
    ClientRequest,
    CreateTopic,
    CreateTopicReply,
    Failed,
    Fetch,
    FetchReply,
    LeaveRequest,
    OpenSession,
    OpenSessionReply,
    PublishReply,
    ReceiptPart,
    RejectRequest,
    SettleReply,
)
from quorumq.core.values.spans import merge_spans
from quorumq.core.values.types import Letter, NodeId, PartitionId, ProducerId, Receipt, Span, Stamp
from quorumq.history import owner_text, parse_producer_id, producer_id_text, token_text
from quorumq.wire.batch import Message, build_batch
from sim.clients.client import nothing_done
from sim.fsyncs import Disk
from sim.host import Host
from sim.links import Links
from sim.observer import Observer
from sim.rivals.harness import Run
from sim.rivals.machine import CountedJournal
from sim.rivals.workload import DEADLINE_SHARE, GROUP, TOPIC, Batch, Consumer, Key, Producer, Taken


class MajorityProducer(Producer):
    """Opens a session first; p0 creates the topic before that."""

    session: ProducerId | None = None

    def begin(self, _: object = None, __: object = None) -> None:
        super().begin()
        if self.name == "p0":
            self.create()
        else:
            self.open_session()

    def create(self) -> None:
        """Create the topic, again and again until it is there."""
        request = CreateTopic(TOPIC, self.options.rf, self.options.partitions, max_deliveries=50)

        def then(answer: Any, _: Any) -> None:
            if isinstance(answer, CreateTopicReply):
                self.topics.current = answer.topic
                self.open_session()
            else:
                self.later(0.05, self.create)

        self.ask(self.node(), request, self.timeout, then)

    def open_session(self) -> None:
        """Get a producer id, under which batches are numbered."""

        def then(answer: Any, _: Any) -> None:
            if isinstance(answer, OpenSessionReply) and self.topics.current is not None:
                self.session = answer.producer_id
                self.producer_id = producer_id_text(answer.producer_id)
            else:
                self.later(0.05, self.open_session)

        self.ask(self.node(), OpenSession(), self.timeout, then)

    def store(self, batch: Batch, tried: str, then: Callable[[bool, str], None]) -> None:
        if self.session is None or self.topics.current is None:
            self.later(0.02, self.store, batch, tried, then)
            return
        messages = [Message(value) for value in batch.values]
        partition = PartitionId(self.topics.current.id, batch.partition)
        built = build_batch(partition, self.session, batch.first, batch.made, messages)
        node = self.node(tried)
        self.send_batch(built, node, 0, lambda answer, _: then(isinstance(answer, PublishReply), node))


class MajorityConsumer(Consumer):
    """FETCH, ACK and REJECT."""

    def take(self, most: int, then: Callable[[Sequence[Taken]], None]) -> None:
        hold = self.options.hold_times[0]
        sent_at = self.clock.mono(self.world.time)
        request = Fetch((TOPIC,), GROUP, most, 1 << 20, 1, 0, 0.5, hold, sent_at, self.name, idle=True)
        node = self.node()

        def heard(answer: Any, batches: Any) -> None:
            if not isinstance(answer, FetchReply):
                then(())
                return
            until = self.clock.true_time(answer.sent_at + DEADLINE_SHARE * answer.hold_time)
            taken: list[Taken] = []
            for part, batch in zip(answer.slices, batches, strict=True):
                at = part.first
                header, body = batch.header, batch.body
                for delivery in part.deliveries:
                    receipt = delivery.receipt
                    for seq in range(receipt.span.start, receipt.span.stop):
                        value = bytes(body[header.end_of(at - 1) : header.end_of(at)])
                        producer_id = producer_id_text(receipt.span.producer_id)
                        key = Key(header.published_ms, producer_id, seq, receipt.partition.number)
                        owner, token = owner_text(receipt.owner), token_text(receipt.owner.ballot)
                        taken.append(Taken(key, value, until, owner, node, receipt, token))
                        at += 1
            then(taken)

        self.ask(node, request, 2.5, heard)

    def conclude(
        self, kind: str, items: Sequence[Taken], node: str, op: int, then: Callable[[Sequence[str]], None]
    ) -> None:
        parts: dict[Receipt, list[Span]] = {}
        for item in items:
            parts.setdefault(item.receipt, []).append(span_of(item))
        named = tuple(ReceiptPart(receipt, merge_spans(spans)) for receipt, spans in parts.items())
        request: ClientRequest = AckRequest(named)
        if kind != "ack":
            letter = Letter(Stamp(0, ""), "rejected", "Error", f"by {self.name}", consumer=self.name)
            request = RejectRequest(named, 0.0, letter if kind == "dead_letter" else None)

        def heard(answer: Any, _: Any) -> None:
            if not isinstance(answer, SettleReply):
                done = nothing_done(answer) if answer is None or isinstance(answer, Failed) else True
                then(["fail" if done else "unknown"] * len(items))
                return
            outcomes: dict[tuple[Receipt, int], str] = {}
            for verdict in answer.verdicts:
                outcome = "unknown" if verdict.outcome == "outcome-unknown" else verdict.outcome
                for seq in range(verdict.span.start, verdict.span.stop):
                    outcomes[(named[verdict.item].receipt, seq)] = outcome
            then([outcomes.get((item.receipt, item.key.seq), "unknown") for item in items])

        self.ask(node, request, self.timeout, heard, op)

    def drop(self, item: Taken) -> None:
        part = ReceiptPart(item.receipt, (span_of(item),))
        self.ask(self.node(), LeaveRequest((part,)), 1.0, lambda answer, _: None)


def span_of(item: Taken) -> Span:
    """Return the span of the message in hand alone."""
    return Span(parse_producer_id(item.key.producer_id), item.key.seq, item.key.seq + 1)


def build(run: Run) -> None:
    """Fill a run."""
    steady = not any(fault.kind == "wall-jump" for fault in run.schedule.faults)
    observer = Observer(run.world, run.topics, full=True, steady=steady)
    run.world.on_broken = observer.on_broken
    links: dict[NodeId, Links] = {}
    for name in run.options.node_names:
        host = Host(observer, name, links)
        host.journal = CountedJournal()
        host.disk = Disk(host, host.journal, host.disk_rng)
        run.machines[name] = host
    links.update((name, host.links) for name, host in run.machines.items())
    observer.hosts = run.machines
    run.add_clients(MajorityProducer, MajorityConsumer)

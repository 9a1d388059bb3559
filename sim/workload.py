"""The clients of a simulated cluster: producers, consumers, an operator.

They are what the client library will be at its best and its worst: they retry the same batch or receipts
through other nodes when an outcome is unknown, never hand over a message whose deadline has passed, and
also pause, overrun their holds, vanish, and try old receipts again. Every request and what came of it goes
into the history. Once the cluster is healed they all behave.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from crc32c import crc32c

from quorumq.client.derived import derived_origin, derived_partition, runs_of
from quorumq.client.message import MessageId
from quorumq.core.limits import DEADLINE_SHARE, TOPIC_BACKOFF_S
from quorumq.core.messages import (
    AckRequest,
    AlterTopic,
    ClientReply,
    ClientRequest,
    CloseSession,
    CreateTopic,
    DeleteTopic,
    ExtendRequest,
    Failed,
    Fetch,
    Fetched,
    GroupSet,
    LeaveRequest,
    Metadata,
    MetadataReply,
    Named,
    OpenSession,
    PeekAsk,
    PeekPage,
    Publish,
    Published,
    Purged,
    PurgeRequest,
    RedriveRequest,
    RejectRequest,
    Resolved,
    SessionOpened,
    SetGroup,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    Verdicts,
)
from quorumq.core.partition.group import DEAD_SUFFIX
from quorumq.core.topics import SETTINGS
from quorumq.core.types import Batch, Letter, Origin, PartitionId, Receipt, Span, Stamp, Topic
from quorumq.history import owner_text, spans_value, token_text
from quorumq.wire.batch import Message, build_batch, encode_record, pack_sections
from sim.host import REFUSAL, Refusal
from sim.schedule import Options
from sim.world import EPOCH_MS, Clock

if TYPE_CHECKING:
    from sim.cluster import Cluster

Answer = ClientReply | Refusal | None
NOTHING_DONE = (
    "not-stored",
    "usage",
    "not-found",
    "conflict",
    "storage-full",
    "too-few-replicas",
    "too-large",
)
"""Errors that say that nothing was done."""


def label_of(name: str, rf: int, deletions: int, options: Options) -> str:
    """What a topic is called in the history: a name may have several, one after the other, or in dispute."""
    return (
        name
        + (f"#{deletions}" if deletions else "")
        + (f"/rf{rf}" if options.rf != rf and name == "jobs" else "")
    )


LATE_GROUP = "late"
"""The group that is created from latest."""


def no_keys(key: bytes, partitions: int) -> int:
    """The partitioner where messages have no key."""
    raise AssertionError("nothing here has a key")


def nothing_done(answer: Answer) -> bool:
    """Whether an answer says that nothing was done, so that the request is over."""
    return isinstance(answer, Refusal) or (isinstance(answer, Failed) and answer.code in NOTHING_DONE)


def refused_as_deleted(answer: Answer) -> bool:
    """Whether an answer says that the topic was deleted."""
    return isinstance(answer, Failed) and answer.code == "not-found" and "was deleted" in answer.detail


class Tally:
    """Counts of a run that are reported, not judged."""

    def __init__(self) -> None:
        self.delivered = 0
        self.redelivered = 0
        self.published = 0
        self.dead = 0


class Client:
    """Something outside the cluster that asks nodes.

    Args:
        cluster: its surroundings.
        name: its name.

    Attributes:
        paused_until: true time until which it does not run.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.options = cluster.options
        self.name = name
        self.who = f"client:{name}"
        self.rng: random.Random = self.world.stream(f"client/{name}")
        self.clock = Clock(self.rng, self.options.clock_rate, 0.0)
        self.paused_until = 0.0
        self.ops = 0
        self.pending: dict[int, tuple[Callable[[Answer, Any], None], str]] = {}
        self.backlog: list[tuple[int, Any]] = []

    def begin(self, _: object = None, __: object = None) -> None:
        """The client starts."""
        raise NotImplementedError

    def node(self, not_this: str = "") -> str:
        """A node to ask, another than ``not_this`` if there is one."""
        names = [name for name in self.options.node_names if name != not_this]
        return self.rng.choice(names or [not_this])

    def ask(
        self,
        node: str,
        request: ClientRequest,
        timeout: float,
        then: Callable[[Answer, Any], None],
        op: int = 0,
    ) -> int:
        """Ask ``node``; ``then(answer, bodies)`` is called once: with None when the outcome is unknown."""
        if not op:
            self.ops += 1
            op = self.ops
        self.pending[op] = (then, node)
        host = self.cluster.hosts[node]
        self.world.transmit(self.name, node, host.on_request, (self, op), request)
        self.world.after(timeout, self.on_timeout, op)
        return op

    def next_op(self) -> int:
        """A number for a request, so that its history line can be written before it is sent."""
        self.ops += 1
        return self.ops

    def on_timeout(self, op: int, _: object = None) -> None:
        """No answer in time: the client hangs up, which the node may hear."""
        if op not in self.pending:
            return
        if self.paused_until > self.world.time:
            self.world.at(self.paused_until, self.on_timeout, op)
            return
        then, node = self.pending.pop(op)
        self.world.transmit(self.name, node, self.cluster.hosts[node].on_gone, self.name, op)
        then(None, None)

    def on_reply(self, op: int, answer: tuple[Answer, Any]) -> None:
        """An answer has come."""
        if op not in self.pending:
            return
        if self.paused_until > self.world.time:
            self.world.at(self.paused_until, self.on_reply, op, answer)
            return
        self.world.messages += 1
        then, _ = self.pending.pop(op)
        reply = answer[0]
        if isinstance(reply, TopicCreated | TopicAltered):
            self.cluster.registers.seen(self.who, reply.topic)
        elif isinstance(reply, MetadataReply):
            for topic in reply.topics:
                self.cluster.registers.seen(self.who, topic)
        then(*answer)

    def later(
        self, seconds: float, action: Callable[[Any, Any], None], one: Any = None, two: Any = None
    ) -> None:
        """Do something in ``seconds``, or when the client runs again."""
        self.world.after(seconds, self._later, action, (one, two))

    def _later(self, action: Callable[[Any, Any], None], args: tuple[Any, Any]) -> None:
        if self.paused_until > self.world.time:
            self.world.at(self.paused_until, self._later, action, args)
            return
        action(*args)

    def send_batch(self, batch: Batch, node: str, age_ms: int, then: Callable[[Answer, Any], None]) -> None:
        """One try to publish, and its lines."""
        header = batch.header
        op = self.next_op()
        fields: dict[str, Any] = {
            "topic": self.cluster.topic_name(header.partition),
            "partition": header.partition.number,
            "spans": spans_value(header.sections),
            "op": op,
            "via": node,
        }
        for section in header.sections:
            self.cluster.published_to[section.origin] = fields["topic"]
        crcs = "".join([f"{header.crc_of(i):08x}" for i in range(header.size)])
        times = {"delay": header.delay_ms / 1000, "ttl": header.ttl_ms / 1000}
        times = {what: seconds for what, seconds in times.items() if seconds}
        made = header.published_ms
        self.world.note(
            self.who, "publish", **fields, **times, outcome="invoke", crcs=crcs, published_ms=made
        )

        def heard(answer: Answer, bodies: Any) -> None:
            if isinstance(answer, Published):
                self.world.note(self.who, "publish", **fields, outcome="ok")
            elif nothing_done(answer):
                detail = answer.code if isinstance(answer, Failed) else "refused"
                self.world.note(self.who, "publish", **fields, outcome="fail", detail=detail)
            else:
                self.world.note(self.who, "publish", **fields, outcome="unknown")
            then(answer, bodies)

        self.ask(node, Publish(batch, age_ms), self.timeout, heard, op)

    @property
    def timeout(self) -> float:
        """How long to wait for a quorum round's answer."""
        return self.options.request_timeout + 0.5


# ------------------------------------------------------------------------- producers


class Producer(Client):
    """Publishes its batches, one after the other, each until it is confirmed."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.origin: Origin | None = None
        self.topic: Topic | None = None
        self.left = self.options.batches
        self.made = 0.0  # when the batch was made that is being published, by our clock
        self.sequence: dict[int, int] = {}
        self.published: dict[tuple[PartitionId, Origin], int] = {}
        self.finished = False

    def begin(self, _: object = None, __: object = None) -> None:
        if self.cluster.operator.gone:
            self.finished = True
            return
        if not self.cluster.operator.created:
            self.later(0.1, self.begin)
            return
        self.topic = self.cluster.operator.topic
        if self.options.rivals:
            self.ask(self.node(), Metadata(("jobs",)), self.timeout, self.on_metadata)
        else:
            self.open_session()

    def on_metadata(self, answer: Answer, _: Any) -> None:
        """Publish to what a node says the topic is."""
        if (
            isinstance(answer, MetadataReply)
            and answer.topics
            and not self.cluster.is_over(answer.topics[0].id)
        ):
            self.topic = answer.topics[0]
        self.open_session()

    def begin_again(self) -> None:
        """The topic is deleted: there is more to publish to the next one of its name.

        A producer that is still at it notices by itself.
        """
        self.left += self.rng.randint(1, self.options.batches)
        if self.finished:
            self.finished = False
            self.later(0.1, self.begin)

    def open_session(self, _: object = None, __: object = None) -> None:
        """Get an origin, under which the next batches are numbered."""
        self.ask(self.node(), OpenSession(), self.timeout, self.on_session)

    def on_session(self, answer: Answer, _: Any) -> None:
        if isinstance(answer, SessionOpened):
            self.origin = answer.origin
            self.sequence.clear()
            self.publish_next()
        else:
            self.later(0.1, self.open_session)

    def on_grown(self, topic: Topic) -> None:
        """The topic has more partitions: the next batch may go there."""
        if self.topic is not None and topic.id == self.topic.id and topic.partitions > self.topic.partitions:
            self.topic = topic

    def look_up(self, _: object = None, __: object = None) -> None:
        """Ask a node how many partitions there are by now, then go on."""

        def then(answer: Answer, _: Any) -> None:
            assert self.topic is not None
            if isinstance(answer, MetadataReply) and answer.topics:
                self.on_grown(answer.topics[0])
            self.publish_next()

        self.ask(self.node(), Metadata(("jobs",)), self.timeout, then)

    def next_batch(self, _: object = None, __: object = None) -> None:
        """Publish the next batch; where partitions are added, look for them first."""
        if self.options.alter and self.left:
            self.look_up()
        else:
            self.publish_next()

    def publish_next(self, _: object = None, __: object = None) -> None:
        """Make the next batch and publish it."""
        if not self.left:
            self.finished = True
            if self.options.origin_idle < 3600.0 and self.rng.random() < 0.5:
                self.close_session()
            return
        self.left -= 1
        assert self.origin is not None
        assert self.topic is not None
        rng = self.rng
        number = rng.randrange(self.topic.partitions)
        first = self.sequence.get(number, 0)
        count = rng.randint(1, self.options.batch_messages)
        self.sequence[number] = first + count
        messages = [Message(b"%s/%d/%d" % (self.name.encode(), number, first + i)) for i in range(count)]
        partition = PartitionId(self.topic.id, number)
        wall = EPOCH_MS + int(self.world.time * 1000)
        options = self.options
        delayed = rng.random() * options.delayed_by if rng.random() < options.delayed else 0.0
        ttl = rng.random() * options.ttl if rng.random() < options.mortal else 0.0
        batch = build_batch(
            partition,
            self.origin,
            first,
            wall,
            messages,
            delay_ms=int(1000 * delayed),
            ttl_ms=int(1000 * ttl),
        )
        self.made = self.clock.mono(self.world.time)
        self.publish(batch, "")

    def close_session(self) -> None:
        """All is confirmed, and no more comes under our origin; a copy of a batch may still be on its way."""
        assert self.origin is not None
        used = tuple(partition for partition, origin in self.published if origin == self.origin)
        if used:
            self.ask(self.node(), CloseSession(self.origin, used), self.timeout, lambda answer, _: None)

    def publish(self, batch: Batch, tried: Any) -> None:
        """Send the batch to a node, another than the one just tried."""
        node = self.node(tried)
        early = not self.world.healed and self.rng.random() < self.options.retry_early
        self.send(batch, node, main=True)
        if early:
            self.send(batch, self.node(node), main=False)

    def send(self, batch: Batch, node: str, *, main: bool) -> None:
        """One try."""
        header = batch.header
        created = header.partition.number < self.cluster.confirmed.get(header.partition.topic, 0)

        def then(answer: Answer, _: Any) -> None:
            if not main:
                return
            if isinstance(answer, Published):
                count = header.size
                where = (header.partition, header.sections[0].origin)
                self.published[where] = self.published.get(where, 0) + count
                self.cluster.tally.published += count
                if header.partition.number >= self.options.partitions:
                    self.world.saw("a partition that was added was published to")
                self.later(self.rng.expovariate(1 / self.gap), self.next_batch)
            elif self.cluster.is_over(header.partition.topic):
                if refused_as_deleted(answer):
                    self.world.saw("a publish was refused: its topic was deleted")
                self.later(0.02, self.begin)
            elif isinstance(answer, Failed) and answer.code == "origin-closed":
                self.world.saw("a producer heard that its session is closed")
                # An earlier try may have stored the batch: it is left at that.
                self.later(0.02, self.open_session)
            else:
                if refused_as_deleted(answer):
                    self.world.saw("a publish was refused: its topic was deleted")
                elif isinstance(answer, Failed) and answer.code == "not-found":
                    assert not created, f"the creation of {header.partition} was OK: {answer.detail}"
                self.later(0.02 + self.rng.random() * 0.1, self.publish, batch, node)

        age_ms = int(1000 * (self.clock.mono(self.world.time) - self.made))
        self.send_batch(batch, node, age_ms, then)

    @property
    def gap(self) -> float:
        """The mean pause between two batches: they are spread over the time for faults."""
        return 0.001 if self.world.healed else 0.7 * self.options.fault_time / (self.options.batches + 1)


# ------------------------------------------------------------------------- consumers


class Taken(NamedTuple):
    """A delivery that the application has."""

    receipt: Receipt
    until: float  # true time
    records: tuple[bytes, ...]  # where they are wanted


class Consumer(Client):
    """Fetches, works, and settles what it got in every way there is.

    A reader of dead letters does the same with those, until everything is healed: they may stay.

    Args:
        cluster: its surroundings.
        name: its name.
        group: for which it reads; one of dead letters ends in "!dead".
        start: where the group begins if this consumer is the first to read it.
        topic: that it reads.
    """

    def __init__(
        self, cluster: Cluster, name: str, group: str, start: str = "earliest", topic: str = "jobs"
    ) -> None:
        super().__init__(cluster, name)
        self.group = group
        self.topic = topic
        self.start = start
        self.of_dead = group.endswith(DEAD_SUFFIX)
        self.derives = (
            bool(self.options.derive) and topic == "jobs" and group != LATE_GROUP and not self.of_dead
        )
        self.old: list[Receipt] = []

    def begin(self, _: object = None, __: object = None) -> None:
        self.fetch()

    def fetch(self, _: object = None, __: object = None) -> None:
        """One FETCH; the next follows when what it brought is dealt with."""
        rng, options = self.rng, self.options
        if self.of_dead and self.world.healed:
            return
        shortest, longest = options.hold_times
        hold = shortest if rng.random() < 0.5 else rng.uniform(shortest, longest)
        wait = rng.choice((0.0, 0.2, 1.0))
        least = 1 if self.world.healed or rng.random() < 0.8 else rng.randint(1, options.fetch_messages)
        most = options.fetch_messages if not self.world.healed else max(64, options.fetch_messages)
        asked = self.world.time
        sent_at = self.clock.mono(asked)
        request = Fetch(
            (self.topic,),
            self.group,
            most,
            1 << 20,
            least,
            0,
            wait,
            hold,
            sent_at,
            self.name,
            start=self.start,
        )
        node = self.node()

        def then(answer: Answer, batches: Any) -> None:
            if isinstance(answer, Fetched):
                self.on_fetched(answer, batches, asked, node)
            else:
                if refused_as_deleted(answer):
                    self.world.saw("a FETCH was refused: its topic was deleted")
                self.later(0.03 + self.rng.random() * 0.15, self.fetch)

        op = self.ask(node, request, min(wait, hold / 10) + 2.0, then)
        if not self.world.healed and rng.random() < options.leave:
            self.later(rng.random() * 0.1, self.hang_up, op)

    def hang_up(self, op: int, _: object = None) -> None:
        """Close the connection on which a FETCH is open, and begin again."""
        if op in self.pending:
            _, node = self.pending.pop(op)
            self.world.transmit(self.name, node, self.cluster.hosts[node].on_gone, self.name, op)
            self.later(0.05, self.fetch)

    def on_fetched(self, answer: Fetched, batches: tuple[Batch, ...], asked: float, node: str) -> None:
        """Hand to the application what may still be handed over."""
        rng, world, options = self.rng, self.world, self.options
        if not answer.slices:
            self.later(0.05 + rng.random() * 0.25, self.fetch)
            return
        sent_at = self.clock.mono(world.time) if self.cluster.late_clients else answer.sent_at
        until = self.clock.true_time(sent_at + DEADLINE_SHARE * answer.hold_time)
        taken: list[Taken] = []
        left: list[Receipt] = []
        for part, batch in zip(answer.slices, batches, strict=True):
            at = part.first
            for delivery in part.deliveries:
                receipt = delivery.receipt
                start, at = at, at + receipt.span.size
                shirks = not world.healed and rng.random() < options.leave
                if world.time >= until or shirks:
                    left.append(receipt)
                    continue
                self.deliver(batch, start, at, receipt, delivery.attempt, until, asked, node)
                records = self.records(batch, start, at) if self.derives else ()
                taken.append(Taken(receipt, until, records))
        if left and (world.healed or rng.random() < 0.8):
            self.leave(left)
        self.work(taken, answer.hold_time)

    def deliver(
        self,
        batch: Batch,
        start: int,
        stop: int,
        receipt: Receipt,
        attempt: int,
        until: float,
        asked: float,
        via: str,
    ) -> None:
        """Hand records [start, stop) of the batch to the application."""
        crcs = "".join([f"{crc32c(record):08x}" for record in self.records(batch, start, stop)])
        self.world.note(
            self.who,
            "deliver",
            **self.described(receipt),
            token=token_text(receipt.owner.ballot),
            attempt=attempt,
            until=until,
            asked=asked,
            crcs=crcs,
            via=via,
        )
        if self.of_dead:
            self.world.saw("a dead letter was fetched")
        elif receipt.generation:
            self.world.saw("a delivery of a new generation")
        if self.options.distance > 0.15 * (until - asked):
            self.world.saw("a delivery was won though answers take a third of its hold")
        tally = self.cluster.tally
        tally.delivered += receipt.span.size
        if attempt > 1:
            tally.redelivered += receipt.span.size
        if len(self.old) < 200:
            self.old.append(receipt)
        else:
            self.old[self.rng.randrange(200)] = receipt

    def records(self, batch: Batch, start: int, stop: int) -> tuple[bytes, ...]:
        """The bytes of records [start, stop) of the batch."""
        header, body = batch.header, memoryview(batch.body)
        return tuple(bytes(body[header.end_of(i - 1) : header.end_of(i)]) for i in range(start, stop))

    def work(self, taken: list[Taken], hold: float) -> None:
        """Take some time, then settle; sometimes fetch more meanwhile."""
        rng, options = self.rng, self.options
        if not taken:
            self.later(0.01, self.fetch)
            return
        seconds = rng.expovariate(1 / 0.05)
        if self.world.healed:
            seconds = min(seconds, 0.02)
        elif rng.random() < options.slow:
            seconds = hold * rng.uniform(0.8, 3.0)
        elif rng.random() < options.extend:
            for _ in range(rng.choice((1, 1, 2, 3))):  # by any time, also by less than what is left
                more = hold if rng.random() < 0.5 else rng.uniform(*options.hold_times)
                self.later(hold * rng.uniform(0.1, 0.9), self.extend, [item.receipt for item in taken], more)
            seconds = hold * rng.uniform(0.9, 2.0)
        ahead = rng.random() < 0.3
        self.later(seconds, self.settle, taken, not ahead)
        if ahead:
            self.later(0.001, self.fetch)

    def settle(self, taken: list[Taken], then_fetch: bool) -> None:
        """ACK, REJECT, dead-letter, or forget each of them."""
        rng, options = self.rng, self.options
        acks: list[Named] = []
        rejects: list[Named] = []
        deads: list[Named] = []
        for receipt, _, _ in taken:
            span = receipt.span
            whole = Named(receipt, (span,))
            if self.world.healed:
                acks.append(whole)
            elif rng.random() < options.vanish:
                continue
            elif options.shred and rng.random() < options.shred:
                every = range(span.start, span.stop, 2)
                acks.append(Named(receipt, tuple(Span(span.origin, seq, seq + 1) for seq in every)))
            elif rng.random() < options.reject:
                rejects.append(whole)
            elif rng.random() < options.dead and not self.of_dead:
                deads.append(whole)
            elif span.size > 1 and rng.random() < options.partial:
                middle = rng.randrange(span.start + 1, span.stop)
                acks.append(Named(receipt, (Span(span.origin, span.start, middle),)))
                rejects.append(Named(receipt, (Span(span.origin, middle, span.stop),)))
            else:
                acks.append(whole)
        if rejects:
            delay = round(rng.random() * options.delay, 3)
            if rng.random() < options.by_topic:
                delay = TOPIC_BACKOFF_S
            self.call("reject", tuple(rejects), 3, delay=delay)
        if deads:
            self.call("dead_letter", tuple(deads), 3)
        if acks and self.derives:
            self.derive(taken, tuple(acks))
        elif acks:
            self.call("ack", tuple(acks), 6)
        if not self.world.healed and self.old and rng.random() < options.replay:
            self.later(rng.random() * 2.0, self.replay)
        if then_fetch:
            self.later(0.001, self.fetch)

    def replay(self, _: object = None, __: object = None) -> None:
        """Try an old receipt again."""
        receipt = self.rng.choice(self.old)
        if self.cluster.is_over(receipt.partition.topic) and self.cluster.operator.topic is not None:
            self.world.saw("an old receipt was used when its topic had been created again")
        items = (Named(receipt, (receipt.span,)),)
        kind = self.rng.choice(("ack", "ack", "reject", "dead_letter", "extend"))
        if self.derives and kind == "ack":  # without its outputs
            kind = "reject"
        if self.of_dead and kind == "dead_letter":  # a dead letter dies no second time
            kind = "ack"
        if kind == "extend":
            self.extend([receipt], self.options.hold_times[0])
        else:
            self.call(kind, items, 1, delay=0.1)

    def derive(self, taken: list[Taken], acks: tuple[Named, ...]) -> None:
        """Publish what is derived from ``taken``; once all of it is confirmed, ack, or die."""
        batches = self.derived(taken)
        dies = not self.world.healed and self.rng.random() < self.options.derive
        left = len(batches)

        def done() -> None:
            nonlocal left
            left -= 1
            if left > 0:
                return
            if dies:
                self.world.saw("a consumer died between its outputs and the ACK")
            else:
                self.call("ack", acks, 6)

        if not batches:
            done()
        for batch in batches:
            self.publish_output(batch, self.clock.mono(self.world.time), 4, "", done)

    def derived(self, taken: list[Taken]) -> list[Batch]:
        """The outputs of ``taken``, in batches of any size: none to two of each message, by its bytes alone."""
        cluster, rng = self.cluster, self.rng
        topic = cluster.operator.outputs
        assert topic is not None
        made: dict[int, dict[tuple[Origin, int], bytes]] = {}  # by partition
        for receipt, _, records in taken:
            source, span = receipt.partition, receipt.span
            number = derived_partition(MessageId(source, span.origin, span.start), None, topic, no_keys)
            outputs = made.setdefault(number, {})
            for index in (0, 1):
                origin = derived_origin(
                    MessageId(source, span.origin, span.start), self.group, topic.id, index
                )
                mine = {
                    seq: encode_record(Message(b"%d of " % index + record))
                    for seq, record in zip(range(span.start, span.stop), records, strict=True)
                    if crc32c(record) % 3 > index
                }
                outputs.update(((origin, seq), record) for seq, record in mine.items())
                for run in runs_of([(origin, seq) for seq in mine]):
                    cluster.world.note(
                        self.who,
                        "derive",
                        topic=cluster.topic_name(source),
                        partition=source.number,
                        group=self.group,
                        spans=spans_value((Span(span.origin, run.start, run.stop),)),
                        crcs="".join([f"{crc32c(mine[seq]):08x}" for seq in range(run.start, run.stop)]),
                        into={
                            "topic": topic.name,
                            "partition": number,
                            "spans": spans_value((run,)),
                            "index": index,
                        },
                    )
        batches: list[Batch] = []
        for number, outputs in made.items():
            names = sorted(outputs)
            while names:
                count = rng.randint(1, len(names))
                now, names = names[:count], names[count:]
                wall = EPOCH_MS + int(self.world.time * 1000)
                batches.append(
                    pack_sections(
                        PartitionId(topic.id, number), runs_of(now), wall, [outputs[name] for name in now]
                    )
                )
        return batches

    def publish_output(
        self, batch: Batch, made: float, tries: int, tried: str, done: Callable[[], None]
    ) -> None:
        """Publish until it is confirmed, then ``done``; or give up: who gets the inputs next does it all again."""
        node = self.node(tried)

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, Published):
                self.confirm(batch)
                done()
            elif tries > 1 or self.world.healed:
                self.later(
                    0.02 + self.rng.random() * 0.1,
                    lambda _, __: self.publish_output(batch, made, tries - 1, node, done),
                )

        self.send_batch(batch, node, int(1000 * (self.clock.mono(self.world.time) - made)), then)

    def confirm(self, batch: Batch) -> None:
        """Outputs are confirmed, for the first time or again."""
        header, world = batch.header, self.world
        for section in header.sections:
            known = self.cluster.outputs.setdefault((header.partition, section.origin), {})
            for seq in range(section.start, section.stop):
                first = known.setdefault(seq, header.sections)
                if first is not header.sections:
                    world.saw("an output was published again")
                    if first != header.sections:
                        world.saw("outputs were published again in other batches")

    def described(self, receipt: Receipt, spans: tuple[Span, ...] | None = None) -> dict[str, Any]:
        """The fields of a history line that a receipt gives."""
        return {
            "topic": self.cluster.topic_name(receipt.partition),
            "partition": receipt.partition.number,
            "group": receipt.group,
            "generation": receipt.generation,
            "n": receipt.n,
            "spans": spans_value(spans if spans is not None else (receipt.span,)),
            "owner": owner_text(receipt.owner),
        }

    def extend(self, receipts: list[Receipt], hold: float) -> None:
        """Ask for more time."""
        items = tuple(Named(receipt, (receipt.span,)) for receipt in receipts)
        self.call("extend", items, 2, hold_time=hold)

    def leave(self, receipts: list[Receipt]) -> None:
        """Give back what the application never got."""
        items = tuple(Named(receipt, (receipt.span,)) for receipt in receipts)
        node = self.node()
        op = self.next_op()
        for receipt in receipts:
            self.world.note(self.who, "leave", **self.described(receipt), op=op, via=node)
        self.world.saw("a delivery was left")
        self.ask(node, LeaveRequest(items), 1.0, lambda answer, _: None, op)

    def call(
        self,
        kind: str,
        items: tuple[Named, ...],
        tries: int,
        *,
        delay: float = 0.0,
        hold_time: float = 0.0,
        tried: str = "",
    ) -> None:
        """One settling request, repeated through other nodes while its outcome is unknown."""
        node = self.node(tried)
        op = self.next_op()
        world = self.world
        sent_at = self.clock.mono(world.time)
        request: ClientRequest
        extra: dict[str, Any] = {}
        if kind == "ack":
            request = AckRequest(items)
        elif kind == "reject":
            request = RejectRequest(items, delay)
            extra = {"delay": delay} if delay != TOPIC_BACKOFF_S else {}
        elif kind == "extend":
            request = ExtendRequest(items, hold_time, sent_at)
            extra = {"hold_time": hold_time}
        else:
            letter = Letter(Stamp(0, ""), "rejected", "Error", f"by {self.name}", consumer=self.name)
            request = RejectRequest(items, 0.0, letter)
        for receipt, spans in items:
            fields = self.described(receipt, spans)
            world.note(self.who, kind, **fields, op=op, outcome="invoke", via=node, **extra)

        def then(answer: Answer, _: Any) -> None:
            again = self.on_settled(kind, items, answer, op, sent_at + DEADLINE_SHARE * hold_time)
            if again and (tries > 1 or (world.healed and kind == "ack")):
                self.later(
                    0.02 + self.rng.random() * 0.1,
                    lambda _, __: self.call(
                        kind, again, tries - 1, delay=delay, hold_time=hold_time, tried=node
                    ),
                )

        self.ask(node, request, self.timeout, then, op)

    def on_settled(
        self, kind: str, items: tuple[Named, ...], answer: Answer, op: int, until: float
    ) -> tuple[Named, ...]:
        """Write down the verdicts; what is to be tried again."""
        world = self.world
        unknown: list[Named] = []
        if not isinstance(answer, Verdicts):
            nothing = isinstance(answer, Refusal) or (
                isinstance(answer, Failed) and answer.code in NOTHING_DONE
            )
            for receipt, spans in items:
                outcome = "fail" if nothing else "unknown"
                world.note(self.who, kind, **self.described(receipt, spans), op=op, outcome=outcome)
            return items
        for verdict in answer.verdicts:
            receipt = items[verdict.item].receipt
            outcome = verdict.outcome
            extra: dict[str, Any] = {}
            if outcome == "outcome-unknown":
                outcome = "unknown"
                unknown.append(Named(receipt, (verdict.span,)))
                if kind == "ack":
                    have, members = self.cluster.tombstones(receipt.partition, receipt.group, verdict.span)
                    if 0 < have <= members // 2:
                        world.saw("a tombstone was on a minority")
            elif outcome not in OUTCOMES:
                if outcome == "not-found" and kind == "ack":
                    world.saw("an ACK was refused: its topic was deleted")
                outcome, extra = "fail", {"detail": outcome}
            if outcome == "ok" and kind == "extend":
                extra = {"until": self.clock.true_time(until)}
            if outcome == "acked_after_expiry":
                self.cluster.moments.on_late_ack(receipt)
            if kind == "ack":
                world.saw(
                    f"an ACK heard {outcome}"
                    if not self.of_dead
                    else f"an ACK of a dead letter heard {outcome}"
                )
            world.note(
                self.who, kind, **self.described(receipt, (verdict.span,)), op=op, outcome=outcome, **extra
            )
        return tuple(unknown)


OUTCOMES = (
    "ok",
    "acked",
    "acked_after_expiry",
    "acked_unproven",
    "hold-lost",
    "already-resolved",
    "stale-generation",
)


# -------------------------------------------------------------------------- operator


class Call(NamedTuple):
    """A request that names the topic by its name: it may reach any topic of that name.

    Args:
        kind: of its lines.
        fields: that its lines share.
        asked: those of its ``invoke``.
        first: the oldest topic that it may reach by the time it is sent: how often the name was deleted before.
        rf: of the topics that it may reach; 0: any.
        ops: its number in the lines of each topic that it may reach, by the topic's name in the history.
    """

    kind: str
    fields: dict[str, Any]
    asked: dict[str, Any]
    first: int
    rf: int
    ops: dict[str, int]


class Operator(Client):
    """Creates the topic, and deletes it; redrives dead letters, purges, and creates and rewinds groups.

    Args:
        cluster: its surroundings.
        name: its name.
        first: whether it is the one that creates the topic.

    Attributes:
        topic: that of the name, once it is created; None while it is not there.
        gone: whether it was deleted for good.
    """

    def __init__(self, cluster: Cluster, name: str, *, first: bool = True) -> None:
        super().__init__(cluster, name)
        self.first = first
        self.topic: Topic | None = None
        self.outputs: Topic | None = None
        self.gone = False
        self.deletions = 0  # that are left
        self.calls: list[Call] = []  # that may still reach a topic that is created later
        # Not there yet.
        self.groups = self.groups_of_jobs() if first else []
        if self.options.derive and first:
            self.groups.append(("out", "o"))
        self.partitions = cluster.options.partitions  # that we heard of

    def groups_of_jobs(self) -> list[tuple[str, str]]:
        """The groups that are created before anything is published to the topic."""
        return [("jobs", group) for group in self.cluster.groups if group != LATE_GROUP]

    @property
    def created(self) -> bool:
        """Whether the topic and its groups are there: what is published then is for all of them."""
        return (
            self.topic is not None
            and not self.groups
            and (self.outputs is not None or not self.options.derive)
        )

    def begin(self, _: object = None, __: object = None) -> None:
        if self.first:
            self.create()
        else:
            self.later(0.5, self.work)

    def create(self, _: object = None, __: object = None) -> None:
        """One CREATE of the topic; the operator whose topic it is repeats it until it is there."""
        options = self.options
        request = CreateTopic(
            "jobs",
            options.rf,
            options.partitions,
            options.max_deliveries,
            options.durability,
            retention_s=self.cluster.retention,
            backoff=options.backoff,
        )
        named = {name: getattr(request, name) for name in ("rf", "partitions", *SETTINGS)}
        self.set_topic(request, named, self.node(), self.on_created)

    def on_created(self, answer: Answer, _: Any) -> None:
        if not self.first or self.topic is not None or self.gone:
            return
        if isinstance(answer, Failed) and answer.code == "conflict":
            # Somebody else created it, or it has been changed already.
            self.ask(self.node(), Metadata(("jobs",)), self.timeout, self.on_created)
            return
        found = answer.topics[0] if isinstance(answer, MetadataReply) else getattr(answer, "topic", None)
        if found is None or self.cluster.is_over(found.id):
            self.later(0.05 + self.rng.random() * 0.1, self.create)
            return
        self.topic = found
        self.partitions = found.partitions
        if self.topic.deletions:
            self.world.saw("a deleted topic was created again")
            self.create_group()
            return
        if self.options.derive:
            self.create_outputs()
        else:
            self.create_group()
        self.later(0.5, self.work)
        if self.options.late_group:
            self.later(self.rng.random() * self.options.fault_time / 2, self.create_late_group)
        self.deletions = self.options.deletions
        for _ in range(self.deletions):
            self.later(self.rng.uniform(0.2, 0.9) * self.options.fault_time, self.delete)

    def create_outputs(self, _: object = None, __: object = None) -> None:
        """Create the topic that outputs are published to, then the groups."""
        options = self.options
        request = CreateTopic(
            "out", options.rf, options.output_partitions, options.max_deliveries, options.durability
        )

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, TopicCreated):
                self.outputs = answer.topic
                self.create_group()
            else:
                self.later(0.05 + self.rng.random() * 0.1, self.create_outputs)

        self.ask(self.node(), request, self.timeout, then)

    def create_group(self, _: object = None, __: object = None) -> None:
        """Create the next group; what its consumers need not wait for, the producers do."""

        def then(answer: Answer, _: Any) -> None:
            if (
                isinstance(answer, GroupSet)
                and not self.cluster.is_over(answer.group.topic)
                and asked in self.groups
            ):
                self.groups.remove(asked)
            if self.groups:
                self.later(0.02, self.create_group)

        if self.groups and self.topic is not None:
            asked = self.groups[-1]
            self.ask(self.node(), SetGroup(*asked), self.timeout, then)

    def work(self, _: object = None, __: object = None) -> None:
        """One round: perhaps a rewind, perhaps a purge, perhaps some redrives; then again."""
        rng, options = self.rng, self.options
        if self.world.healed or not (options.redrive or options.rewind or options.purge or options.alter):
            return
        group = rng.choice(self.cluster.groups)
        number = rng.randrange(self.partitions)
        if rng.random() < options.rewind:
            self.rewind(group)
        if rng.random() < options.purge:
            self.purge(number, rng.choice((group, group + DEAD_SUFFIX)), 2)
        if rng.random() < 0.7 and options.redrive:
            self.look(number, group)
        # A change names the topic by its name: nothing is changed that is being created, nor from when a DELETE is sent
        # until the next topic is there.
        operator = self.cluster.operator
        there = (
            operator.created and operator.topic is not None and operator.topic.id not in self.cluster.deleted
        )
        if there and options.alter and rng.random() < options.alter:
            self.alter()
        self.later(0.15 + rng.random() * 0.5, self.work)

    # ------------------------------------------------------------------- topic

    def set_topic(
        self,
        request: CreateTopic | AlterTopic,
        named: dict[str, Any],
        node: str,
        then: Callable[[Answer, Any], None],
        defaults: dict[str, Any] | None = None,
    ) -> None:
        """One CREATE or ALTER, sent once: what is unknown may still come about."""
        left = {"defaults": defaults} if defaults else {}
        rf = request.rf if isinstance(request, CreateTopic) else 0
        call = self.call("set_topic", node, {}, rf, settings=named, **left)

        def heard(answer: Answer, bodies: Any) -> None:
            if answer is not None:
                self.calls.remove(call)  # no copy follows
            if isinstance(answer, (TopicCreated, TopicAltered)):
                self.cluster.on_topic(answer.topic)
                self.came_of(call, "ok", self.cluster.names[answer.topic.id])
            else:
                self.came_of(call, "fail" if nothing_done(answer) else "unknown")
            then(answer, bodies)

        self.ask(node, request, self.timeout, heard)

    def call(self, kind: str, node: str, fields: dict[str, Any], rf: int = 0, **asked: Any) -> Call:
        """A request is sent that names the topic by its name: an ``invoke`` for each topic that it may reach."""
        call = Call(kind, fields, {**asked, "via": node}, self.cluster.newest, rf, {})
        self.calls.append(call)
        for deletions in range(self.cluster.lives):
            self.reaches(call, deletions)
        return call

    def reaches(self, call: Call, deletions: int) -> None:
        """The request may reach the topic after so many deletions."""
        for rf in self.cluster.rfs:
            if call.rf in (0, rf):
                self.invoke(call, label_of("jobs", rf, deletions, self.options))

    def invoke(self, call: Call, label: str) -> None:
        """One topic that the request may reach."""
        call.ops[label] = self.next_op()
        common = {"topic": label, **call.fields, "op": call.ops[label]}
        self.world.note(self.who, call.kind, **common, **call.asked, outcome="invoke")

    def came_of(self, call: Call, outcome: str, reached: str = "", **extra: Any) -> None:
        """What came of it: in the topic that the answer names, or in any that it may have reached."""
        for label, op in call.ops.items():
            if label == reached or not reached:
                common = {"topic": label, **call.fields, "op": op}
                self.world.note(self.who, call.kind, **common, **extra, outcome=outcome)

    def delete(self, _: object = None, __: object = None) -> None:
        """Delete the topic, mostly while nodes are away; sometimes twice at once, or while somebody creates it."""
        rng, topic, world = self.rng, self.topic, self.world
        if world.healed or self.gone or not self.deletions:
            return
        cut = sorted({one for pair in world.blocked for one in pair if one in self.cluster.hosts})
        down = [name for name, host in self.cluster.hosts.items() if host.core is None]
        early = world.time < 0.8 * self.options.fault_time and rng.random() < 0.98
        if topic is None or (early and not cut and not down):  # it is being created again, or all are there
            self.later(0.05, self.delete)
            return
        self.delete_now(rng.choice(cut) if cut and rng.random() < 0.5 else self.node())
        other = rng.choice(self.cluster.operators)
        if rng.random() < 0.3:
            other.delete_topic(topic, self.node())
        if rng.random() < 0.3:
            other.later(rng.random() * 0.1, other.create)

    def delete_now(self, node: str) -> None:
        """Delete the topic through ``node``, unless all deletions of this run have been made."""
        if self.topic is not None and self.deletions:
            self.deletions -= 1
            self.cluster.on_delete_sent(self.topic)
            self.delete_topic(self.topic, node)

    def delete_topic(self, topic: Topic, node: str) -> None:
        """Ask for it until it is certain."""
        op = self.next_op()
        common: dict[str, Any] = {"topic": self.cluster.names[topic.id], "op": op}
        self.world.note(self.who, "delete_topic", **common, outcome="invoke", via=node)

        def then(answer: Answer, _: Any) -> None:
            done = isinstance(answer, TopicDeleted)
            outcome = "ok" if done else "fail" if nothing_done(answer) else "unknown"
            self.world.note(self.who, "delete_topic", **common, outcome=outcome)
            if done:
                self.cluster.on_deleted(topic.id)
            elif not self.cluster.is_over(topic.id):
                pause = 0.02 + self.rng.random() * 0.1
                self.later(pause, lambda _, __: self.delete_topic(topic, self.node(node)))

        self.ask(node, DeleteTopic("jobs", topic.id), self.timeout, then, op)

    def on_deleted(self) -> None:
        """The topic is deleted: mostly, it is created again."""
        self.partitions = self.options.partitions
        if not self.first or self.topic is None:
            return
        self.topic = None
        self.groups = [*self.groups_of_jobs(), *(named for named in self.groups if named[0] != "jobs")]
        self.gone = self.rng.random() < 0.2
        if not self.gone:
            self.later(self.rng.choice((0.0, 0.0, self.rng.random())), self.create)

    def alter(self) -> None:
        """Change the topic; sometimes another operator does through another node, at once or as soon as it is done."""
        rng = self.rng
        mode = rng.choice(("alone", "at once", "at once", "next", "next"))
        node = self.node()
        other, another = rng.choice(self.cluster.operators), self.node(node)
        chosen = self.some_settings()
        theirs = self.values(chosen if rng.random() < 0.6 else self.some_settings())

        def then(answer: Answer, _: Any) -> None:
            if mode == "next" and isinstance(answer, TopicAltered) and not self.world.healed:
                other.alter_to(theirs, another)

        self.alter_to(self.values(chosen), node, then)
        if mode == "at once":
            self.world.saw("two changes of a topic at once")
            other.alter_to(theirs, another)

    def some_settings(self) -> list[str]:
        """Names of settings that may be changed in this run."""
        rng, options = self.rng, self.options
        names = ["max_deliveries", "ttl_s", "partitions"]
        if not self.cluster.keeps:
            names.append("retention_s")
        if options.backoff:
            names.append("backoff")
        if options.durability == "os":  # else power cuts are not spared
            names.append("durability")
        return sorted(rng.sample(names, rng.choice((1, 1, 2, len(names)))))

    def values(self, names: list[str]) -> dict[str, Any]:
        """New values of these settings."""
        rng, options = self.rng, self.options
        drawn: dict[str, Callable[[], Any]] = {
            "max_deliveries": lambda: rng.randint(1, 60),
            "ttl_s": lambda: rng.choice(
                (0.0, round(rng.uniform(0.3, 4.0), 3), round(rng.uniform(20.0, 40.0), 3))
            ),
            "partitions": lambda: min(self.partitions + rng.randint(0, 2), options.partitions + 3),
            "retention_s": lambda: round(rng.uniform(0.0, 2.0), 3),
            "backoff": lambda: tuple(
                round(rng.random() * options.delay, 3) for _ in range(rng.randint(0, 3))
            ),
            "durability": lambda: rng.choice(("os", "fsync")),
        }
        return {name: drawn[name]() for name in names}

    def alter_to(
        self,
        named: dict[str, Any],
        node: str,
        next_step: Callable[[Answer, Any], None] = lambda answer, _: None,
    ) -> None:
        """One ALTER."""

        def then(answer: Answer, bodies: Any) -> None:
            if isinstance(answer, TopicAltered):
                self.world.saw("a change of a topic was confirmed")
                if answer.topic.partitions > self.options.partitions:
                    self.world.saw("partitions were added")
                self.partitions = max(self.partitions, answer.topic.partitions)
            next_step(answer, bodies)

        self.set_topic(AlterTopic("jobs", **named), named, node, then)

    # ------------------------------------------------------------------ groups

    def create_late_group(self, _: object = None, __: object = None) -> None:
        """Create the group that reads from latest, perhaps through two nodes at once."""
        for _ in range(self.rng.choice((1, 2))):
            self.set_group(LATE_GROUP, "latest", 0, rewind=False)

    def rewind(self, group: str) -> None:
        """Rewind a group; sometimes twice at once, through any two nodes, to other places."""
        rng = self.rng
        twice = rng.random() < 0.3
        for _ in range(2 if twice else 1):
            start = rng.choice(("earliest", "earliest", "latest", "time"))
            from_ms = EPOCH_MS + int(1000 * self.world.time * rng.random()) if start == "time" else 0
            self.set_group(group, start, from_ms, rewind=True)
        if twice:
            self.world.saw("two rewinds at once")

    def set_group(self, group: str, start: str, from_ms: int, *, rewind: bool, node: str = "") -> None:
        """One request, sent once: what is unknown may still come about."""
        node = node or self.node()
        call = self.call("set_group", node, {"group": group, "rewind": rewind}, start=start, from_ms=from_ms)

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, GroupSet):
                now = answer.group
                self.world.saw("a rewind was confirmed" if rewind else "a group was created from latest")
                label = self.cluster.names[now.topic]
                self.came_of(call, "ok", label, generation=now.generation, from_ms=now.from_ms)
            else:
                self.came_of(call, "fail" if nothing_done(answer) else "unknown")

        request = SetGroup("jobs", group, start, from_ms, rewind)
        self.ask(node, request, self.timeout + self.options.request_timeout, then)

    # ------------------------------------------------------------------- purge

    def purge(self, number: int, group: str, tries: int) -> None:
        """Settle what a group has open, or its dead letters; again where the outcome is unknown."""
        node = self.node()
        call = self.call("purge", node, {"partition": number, "group": group})

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, Purged):
                # The answer does not say which topic it was.
                certain = len(call.ops) == 1 or (
                    call.first == self.cluster.lives - 1 and len(self.cluster.rfs) == 1
                )
                reached = list(call.ops)[-1] if certain else ""
                self.came_of(call, "ok" if certain else "unknown", reached, messages=answer.messages)
                if answer.messages:
                    self.world.saw(
                        "dead letters were purged" if group.endswith(DEAD_SUFFIX) else "a backlog was purged"
                    )
                return
            self.came_of(call, "fail" if nothing_done(answer) else "unknown")
            if tries > 1 and not self.world.healed:
                self.later(0.1, lambda _, __: self.purge(number, group, tries - 1))

        self.ask(node, PurgeRequest("jobs", number, group), 2 * self.timeout, then)

    # ------------------------------------------------------------------ redrive

    def look(self, number: int, group: str) -> None:
        """List some dead letters, as one replica or as a majority sees them, and redrive some."""
        rng = self.rng
        node = self.node()

        def then(answer: Answer, _: Any) -> None:
            if not isinstance(answer, PeekPage) or self.world.healed:
                return
            chosen = [item for item in answer.items if rng.random() < self.options.redrive]
            for life in sorted({item.record[:2] for item in chosen}):
                entries = tuple(Resolved(x.span, x.record) for x in chosen if x.record[:2] == life)
                self.redrive(number, group, entries, node)
                if rng.random() < 0.3:  # done twice, by any operator, it is done once
                    again = rng.choice(self.cluster.operators).redrive
                    self.later(rng.random(), lambda _, __, e=entries, go=again: go(number, group, e, node))
                if rng.random() < self.options.purge:  # or purged at the same time
                    self.purge(number, group + DEAD_SUFFIX, 1)

        ask = PeekAsk("jobs", number, group, "dead", (0, 0), 50, complete=rng.random() < 0.5)
        self.ask(node, ask, self.timeout, then)

    def redrive(self, number: int, group: str, entries: tuple[Resolved, ...], tried: str) -> None:
        """Ask for another life for these dead letters, all at the same redrive number."""
        node = self.node(tried)
        op = self.next_op()
        n, generation = entries[0].record.n, entries[0].record.generation
        topic = self.cluster.published_to[entries[0].span.origin]
        common: dict[str, Any] = {
            "topic": topic, "partition": number, "group": group, "generation": generation, "n": n, "op": op,
        }  # fmt: skip
        spans = spans_value([item.span for item in entries])
        self.world.note(self.who, "redrive", **common, spans=spans, outcome="invoke", via=node)

        def then(answer: Answer, _: Any) -> None:
            if not isinstance(answer, Verdicts):
                self.world.note(self.who, "redrive", **common, spans=spans, outcome="unknown")
                return
            for verdict in answer.verdicts:
                outcome, extra = verdict.outcome, {}
                if outcome == "outcome-unknown":
                    outcome = "unknown"
                elif outcome not in OUTCOMES:
                    outcome, extra = "fail", {"detail": outcome}
                if outcome == "ok" and n >= 1:
                    self.world.saw("a redrive of a redrive")
                if outcome == "already-resolved":
                    self.world.saw("a redrive came too late")
                self.world.note(
                    self.who,
                    "redrive",
                    **common,
                    spans=spans_value((verdict.span,)),
                    outcome=outcome,
                    **extra,
                )

        self.ask(node, RedriveRequest("jobs", number, group, entries), self.timeout, then, op)


__all__ = ["Client", "Consumer", "Operator", "Producer", "Tally", "REFUSAL"]

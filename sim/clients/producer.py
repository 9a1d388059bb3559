"""A producer."""

from __future__ import annotations

from typing import Any

from quorumq.core import messages as m
from quorumq.core.values.errors import Code
from quorumq.core.values.types import Batch, PartitionId, ProducerId, Topic
from quorumq.wire.batch import Message, build_batch
from sim.clients.client import Answer, Client, refused_as_deleted
from sim.clients.surroundings import Surroundings


class Producer(Client):
    """Publishes its batches, one after the other, each until it is confirmed."""

    def __init__(self, around: Surroundings, name: str) -> None:
        super().__init__(around, name)
        self.producer_id: ProducerId | None = None
        self.topic: Topic | None = None
        self.remaining = self.options.batches
        self.made = 0.0  # when the batch was made that is being published, by our clock
        self.sequence: dict[int, int] = {}
        self.published: dict[tuple[PartitionId, ProducerId], int] = {}
        self.finished = False

    def begin(self, _: object = None, __: object = None) -> None:
        if self.topics.gone:
            self.finished = True
            return
        if not self.topics.created:
            self.later(0.1, self.begin)
            return
        self.topic = self.topics.current
        if self.options.rivals:
            self.ask(self.node(), m.Metadata(("jobs",)), self.timeout, self.on_metadata)
        else:
            self.open_session()

    def on_metadata(self, answer: Answer, _: Any) -> None:
        """Publish to the topic that a node describes."""
        if (
            isinstance(answer, m.MetadataReply)
            and answer.topics
            and not self.topics.is_over(answer.topics[0].id)
        ):
            self.topic = answer.topics[0]
        self.open_session()

    def begin_again(self) -> None:
        """Begin again after a deletion: there is more to publish to the next topic of its name.

        A producer that is still at it notices by itself.
        """
        self.remaining += self.rng.randint(1, self.options.batches)
        if self.finished:
            self.finished = False
            self.later(0.1, self.begin)

    def open_session(self) -> None:
        """Get a producer id, under which the next batches are numbered."""
        self.ask(self.node(), m.OpenSession(), self.timeout, self.on_session)

    def on_session(self, answer: Answer, _: Any) -> None:
        if isinstance(answer, m.OpenSessionReply):
            self.producer_id = answer.producer_id
            self.sequence.clear()
            self.publish_next()
        else:
            self.later(0.1, self.open_session)

    def on_grown(self, topic: Topic) -> None:
        """Note that the topic has more partitions: the next batch may go there."""
        if self.topic is not None and topic.id == self.topic.id and topic.partitions > self.topic.partitions:
            self.topic = topic

    def look_up(self) -> None:
        """Ask a node for the number of partitions by now, then go on."""

        def then(answer: Answer, _: Any) -> None:
            assert self.topic is not None
            if isinstance(answer, m.MetadataReply) and answer.topics:
                self.on_grown(answer.topics[0])
            self.publish_next()

        self.ask(self.node(), m.Metadata(("jobs",)), self.timeout, then)

    def next_batch(self) -> None:
        """Publish the next batch; if partitions are added, look for them first."""
        if self.options.alter and self.remaining:
            self.look_up()
        else:
            self.publish_next()

    def publish_next(self) -> None:
        """Make the next batch and publish it."""
        if not self.remaining:
            self.finished = True
            if self.options.session_idle < 3600.0 and self.rng.random() < 0.5:
                self.close_session()
            return
        self.remaining -= 1
        assert self.producer_id is not None
        assert self.topic is not None
        rng = self.rng
        number = rng.randrange(self.topic.partitions)
        first = self.sequence.get(number, 0)
        count = rng.randint(1, self.options.batch_messages)
        self.sequence[number] = first + count
        messages = [Message(b"%s/%d/%d" % (self.name.encode(), number, first + i)) for i in range(count)]
        partition = PartitionId(self.topic.id, number)
        options = self.options
        delayed = rng.random() * options.delayed_by if rng.random() < options.delayed else 0.0
        ttl = rng.random() * options.ttl if rng.random() < options.ttl_share else 0.0
        batch = build_batch(
            partition,
            self.producer_id,
            first,
            self.wall_ms,
            messages,
            delay_ms=int(1000 * delayed),
            ttl_ms=int(1000 * ttl),
        )
        self.made = self.clock.mono(self.world.time)
        self.publish(batch, "")

    def close_session(self) -> None:
        """Close the session once all is confirmed; a copy of a batch may still be on its way."""
        assert self.producer_id is not None
        used = tuple(
            partition for partition, producer_id in self.published if producer_id == self.producer_id
        )
        if used:
            self.close(self.node(), used)

    def close(self, node: str, used: tuple[PartitionId, ...]) -> None:
        """Close the session in these partitions."""
        assert self.producer_id is not None
        self.ask(node, m.CloseSession(self.producer_id, used), self.timeout, lambda answer, _: None)

    def publish(self, batch: Batch, tried: Any) -> None:
        """Send the batch to a node, another than the one just tried."""
        node = self.node(tried)
        early = not self.world.healed and self.rng.random() < self.options.retry_early
        self.send(batch, node, main=True)
        if (
            self.options.guests
            and self.options.session_idle < 3600.0
            and not self.remaining
            and self.rng.random() < 0.3
        ):
            self.close(self.node(node), (batch.header.partition,))  # its last batch is still under way
        if early:
            self.send(batch, self.node(node), main=False)

    def send(self, batch: Batch, node: str, *, main: bool) -> None:
        """Try once to publish."""
        header = batch.header
        created = header.partition.number < self.topics.confirmed.get(header.partition.topic, 0)

        def then(answer: Answer, _: Any) -> None:
            if not main:
                return
            if isinstance(answer, m.PublishReply):
                count = header.size
                where = (header.partition, header.spans[0].producer_id)
                self.published[where] = self.published.get(where, 0) + count
                self.around.counts.published += count
                if header.partition.number >= self.options.partitions:
                    self.world.saw("a partition that was added was published to")
                self.later(self.rng.expovariate(1 / self.gap), self.next_batch)
            elif self.topics.is_over(header.partition.topic):
                if refused_as_deleted(answer):
                    self.world.saw("a publish was refused: its topic was deleted")
                self.later(0.02, self.begin)
            elif isinstance(answer, m.Failed) and answer.code == Code.SESSION_CLOSED:
                self.world.saw("a producer heard that its session is closed")
                # An earlier try may have stored the batch: it is left at that.
                self.later(0.02, self.open_session)
            else:
                if refused_as_deleted(answer):
                    self.world.saw("a publish was refused: its topic was deleted")
                elif isinstance(answer, m.Failed) and answer.code == Code.NOT_FOUND:
                    assert not created, f"the creation of {header.partition} was OK: {answer.detail}"
                self.later(0.02 + self.rng.random() * 0.1, self.publish, batch, node)

        age_ms = int(1000 * (self.clock.mono(self.world.time) - self.made))
        self.send_batch(batch, node, age_ms, then)

    @property
    def gap(self) -> float:
        """Return the mean pause between two batches: they are spread over the time for faults."""
        return 0.001 if self.world.healed else 0.7 * self.options.fault_time / (self.options.batches + 1)

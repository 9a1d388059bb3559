"""Outputs: messages derived from each input, under ids made from its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from crc32c import crc32c

from quorumq.client.base.message import MessageId
from quorumq.client.produce.derived import derived_partition, derived_producer_id, runs_of
from quorumq.core.messages import PublishReply
from quorumq.core.values.types import Batch, PartitionId, ProducerId, Receipt, Span
from quorumq.history import spans_value
from quorumq.wire.batch import Message, encode_record, pack_spans
from sim.clients.calls import Caller
from sim.clients.client import Answer
from sim.clients.surroundings import Surroundings


def no_keys(key: bytes | None, partitions: int) -> int:
    """Raise, as a partitioner of messages that have no key."""
    raise AssertionError("nothing here has a key")


class Taken(NamedTuple):
    """A delivery that the application has."""

    receipt: Receipt
    until: float  # true time
    records: tuple[bytes, ...]  # where they are wanted


class Deriving(Caller):
    """Publishes the outputs of its inputs for ``group``, under derived ids and in batches of any size."""

    def __init__(self, around: Surroundings, name: str, group: str) -> None:
        super().__init__(around, name)
        self.group = group

    def derive(self, taken: list[Taken], then: Callable[[], None]) -> None:
        """Publish the outputs of ``taken``; once all of it is confirmed, ``then``, or die."""
        batches = self.derived(taken)
        dies = not self.world.healed and self.rng.random() < self.options.derive
        remaining = len(batches)

        def done() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining > 0:
                return
            if dies:
                self.world.saw("a consumer died between its outputs and the ACK")
            else:
                then()

        if not batches:
            done()
        for batch in batches:
            self.publish_output(batch, self.clock.mono(self.world.time), 4, "", done)

    def derived(self, taken: list[Taken]) -> list[Batch]:
        """Return the outputs of ``taken``, in batches of any size: none to two of each message, by its bytes alone."""
        rng = self.rng
        topic = self.topics.outputs
        assert topic is not None
        made: dict[int, dict[tuple[ProducerId, int], bytes]] = {}  # by partition
        for receipt, _, records in taken:
            source, span = receipt.partition, receipt.span
            number = derived_partition(MessageId(source, span.producer_id, span.start), None, topic, no_keys)
            outputs = made.setdefault(number, {})
            for index in (0, 1):
                producer_id = derived_producer_id(
                    MessageId(source, span.producer_id, span.start), self.group, topic.id, index
                )
                mine = {
                    seq: encode_record(Message(b"%d of " % index + record))
                    for seq, record in zip(range(span.start, span.stop), records, strict=True)
                    if crc32c(record) % 3 > index
                }
                outputs.update(((producer_id, seq), record) for seq, record in mine.items())
                for run in runs_of([(producer_id, seq) for seq in mine]):
                    self.world.note(
                        self.who,
                        "derive",
                        **self.topics.location(source),
                        group=self.group,
                        spans=spans_value((Span(span.producer_id, run.start, run.stop),)),
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
                wall = self.wall_ms
                batches.append(
                    pack_spans(
                        PartitionId(topic.id, number), runs_of(now), wall, [outputs[name] for name in now]
                    )
                )
        return batches

    def publish_output(
        self, batch: Batch, made: float, tries: int, tried: str, done: Callable[[], None]
    ) -> None:
        """Publish until it is confirmed, then ``done``; or give up: the next reader of the inputs does it all again."""
        node = self.node(tried)

        def then(answer: Answer, _: Any) -> None:
            if isinstance(answer, PublishReply):
                self.confirm(batch)
                done()
            elif tries > 1 or self.world.healed:
                pause = 0.02 + self.rng.random() * 0.1
                self.later(pause, self.publish_output, batch, made, tries - 1, node, done)

        self.send_batch(batch, node, int(1000 * (self.clock.mono(self.world.time) - made)), then)

    def confirm(self, batch: Batch) -> None:
        """Note that outputs are confirmed, for the first time or again."""
        header, world = batch.header, self.world
        for section in header.spans:
            known = self.topics.confirmed_outputs.setdefault((header.partition, section.producer_id), {})
            for seq in range(section.start, section.stop):
                first = known.setdefault(seq, header.spans)
                if first is not header.spans:
                    world.saw("an output was published again")
                    if first != header.spans:
                        world.saw("outputs were published again in other batches")

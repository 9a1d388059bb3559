"""A producer's messages, from being taken until they have their outcome.

Latency and size: a partition's batch closes at once when nothing of that partition is under way, and otherwise
when it is full, when it has lingered, or when the one under way is answered. A single message is sent at once; under
load, batches fill up. The more is under way, the more a batch takes until it is full; messages that
are taken together fill the largest at once, as they are a load by themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import Final

import trio
from trio.lowlevel import ParkingLot

from quorumq.client.base.context import Context
from quorumq.client.produce.batches import DerivedBatch, RecordBatch, Run, Times
from quorumq.client.produce.derived import EncodedMessage
from quorumq.client.produce.sending import Session
from quorumq.core.values.errors import NotStored, OutcomeUnknown, QuorumqError
from quorumq.core.values.limits import BATCH_MESSAGES_MAX, KIB
from quorumq.core.values.printable import plural
from quorumq.core.values.types import PartitionId, ProducerId

BATCH_BYTES: Final = 64 * KIB
"""Bytes at which a batch closes by default, if no other of its partition is under way."""

LOADED_BYTES: Final = 512 * KIB
"""The same if many are under way, and for messages that are taken together. Twice as large saves a node a sixth of
its work, and has others wait twice as long for their turn."""

LOADED_MESSAGES: Final = 4096
"""Messages at which a batch does not grow beyond `BATCH_BYTES`, so that a step that takes it in stays short."""


@dataclass(eq=False)
class PartitionQueue:
    """One partition: the batch that is being filled, and how many are not answered yet."""

    partition: PartitionId
    kind: type[RecordBatch]
    most: int  # bytes at which `open` closes
    open: RecordBatch | None = None
    unanswered: int = 0  # closed and not done
    producer_id: ProducerId | None = None
    next_seq: int = 0  # under `producer_id`

    @property
    def numbers(self) -> bool:
        """Return True if messages get their numbers here; else they have names already."""
        return self.kind is RecordBatch


@dataclass(eq=False)
class Outbox:
    """Batches being filled, and batches without an outcome yet."""

    context: Context  # has the clocks, the history and the log
    topic: str  # name of the topic
    session: Session  # assigns sequence numbers to messages without an id of their own
    _: KW_ONLY
    batch_bytes: int
    """Bytes at which a batch closes if nothing is under way before it; each batch that is doubles them. Nodes pay for
    batches, hardly for bytes (docs/performance.md)."""
    loaded_bytes: int
    """Bytes at which a batch closes at the latest; messages that are taken together count as that load."""
    send_soon: Callable[[PartitionQueue], bool]
    """Called when a queue with nothing under way opens a batch. It returns True if it will close and send the batch.
    If it returns False, the batch waits until `poke` is set."""
    buffered: int = 0  # bytes of messages that have no outcome yet
    waiting: ParkingLot = field(default_factory=ParkingLot)  # tasks that wait for ``buffered`` to fall
    poke: trio.Event = field(default_factory=trio.Event)  # there may be something to close or to send
    closed: deque[tuple[PartitionQueue, RecordBatch]] = field(default_factory=deque)  # wait for their turn
    unanswered: dict[RecordBatch, None] = field(default_factory=dict)  # open, waiting or under way
    failed: list[RecordBatch] = field(default_factory=list)  # with given-up messages; the last 1,000
    silent: dict[RecordBatch, None] = field(default_factory=dict)
    """Failed batches with messages that no caller can wait for any more, and whose failure no caller has received."""
    _queues: dict[tuple[int, int], PartitionQueue] = field(default_factory=dict)
    """Queues by partition, and whether messages are numbered (0), derived (1) or named (2)."""
    _open: dict[PartitionQueue, None] = field(default_factory=dict)  # queues with a batch being filled

    def put(
        self, partition: PartitionId, records: Sequence[bytes], times: Times, timeout: float | None
    ) -> list[Run]:
        """Take messages, to be numbered: the batches that they are in, in order."""
        queue = self._queue(partition, derived=False)
        if len(records) == 1:
            size = len(records[0])
            record_batch = self._filling(queue, size, times, queue.most, timeout)
            run = Run(record_batch, record_batch.add(records, size), 1)
            self._taken(queue, record_batch, size, queue.most)
            return [run]
        most = self.loaded_bytes
        ends = list(accumulate(map(len, records)))
        runs: list[Run] = []
        at = before = 0  # records taken, and their bytes
        while at < len(records):
            record_batch = self._filling(queue, len(records[at]), times, most, timeout)
            capacity = most - record_batch.size
            stop = max(at + 1, bisect_right(ends, before + capacity, at))
            stop = min(stop, at + BATCH_MESSAGES_MAX - record_batch.count)
            size = ends[stop - 1] - before
            runs.append(Run(record_batch, record_batch.add(records[at:stop], size), stop - at))
            self._taken(queue, record_batch, size, most)
            at, before = stop, ends[stop - 1]
        return runs

    def put_named(
        self, partition: PartitionId, name: tuple[ProducerId, int], encoded: EncodedMessage, times: Times
    ) -> Run:
        """Take a message named by its input, or its publisher; Conflict if another payload was just taken so."""
        queue = self._queue(partition, derived=True, named=encoded.name is not None)
        record_batch = self._filling(queue, len(encoded.record), times, queue.most, encoded.timeout)
        assert isinstance(record_batch, DerivedBatch)
        before = record_batch.count
        position = record_batch.index_of(name, encoded)
        self._taken(
            queue, record_batch, len(encoded.record) if record_batch.count > before else 0, queue.most
        )
        return Run(record_batch, position, 1)

    def _queue(self, partition: PartitionId, *, derived: bool, named: bool = False) -> PartitionQueue:
        number = (partition.number, derived + named)
        queue = self._queues.get(number)
        if queue is None:
            kind = DerivedBatch if derived else RecordBatch
            queue = self._queues[number] = PartitionQueue(partition, kind, self.batch_bytes)
        return queue

    def _filling(
        self, queue: PartitionQueue, size: int, times: Times, most: int, timeout: float | None
    ) -> RecordBatch:
        """Return the queue's open batch for these times, with room for a record of ``size`` bytes within ``most``."""
        record_batch = queue.open
        if record_batch is not None and (
            record_batch.size + size > most or record_batch.times != times or record_batch.timeout != timeout
        ):
            self._close(queue)
            self.poke.set()
            record_batch = None
        if record_batch is None:
            record_batch = queue.open = queue.kind(
                queue.partition, trio.current_time(), times, self.silent, timeout
            )
            self._open[queue] = None
            self.unanswered[record_batch] = None
            if queue.unanswered or not self.send_soon(queue):
                self.poke.set()
        return record_batch

    def _taken(self, queue: PartitionQueue, record_batch: RecordBatch, size: int, most: int) -> None:
        """Count ``size`` more bytes in the queue's open batch, and close it if it has ``most``."""
        self.buffered += size
        if (
            record_batch.size >= most
            or (record_batch.count >= LOADED_MESSAGES and record_batch.size >= BATCH_BYTES)
            or record_batch.full
        ):
            self._close(queue)
            self.poke.set()

    def answered(self, queue: PartitionQueue) -> None:
        """Note that a batch of the queue is done."""
        self._count(queue, -1)
        if self._open or self.closed:
            self.poke.set()

    def _count(self, queue: PartitionQueue, more: int) -> None:
        queue.unanswered += more
        queue.most = min(self.batch_bytes << queue.unanswered, self.loaded_bytes)

    def _close(self, queue: PartitionQueue) -> None:
        """Complete the queue's batch: have it named and encoded, and put it in line."""
        record_batch = queue.open
        assert record_batch is not None
        queue.open = None
        del self._open[queue]
        record_batch.encoded_at = self.context.clock()
        if queue.numbers:
            self._number(queue, record_batch)
        self._count(queue, 1)
        self.closed.append((queue, record_batch))

    def number_anew(self, record_batch: RecordBatch, partition: PartitionId) -> None:
        """Give a complete batch numbers for a partition of another topic."""
        queue = self._queue(partition, derived=False)
        record_batch.partition = partition
        self._number(queue, record_batch)

    def _number(self, queue: PartitionQueue, record_batch: RecordBatch) -> None:
        producer_id = self.session.producer_id
        assert producer_id is not None
        if queue.producer_id != producer_id:
            queue.producer_id, queue.next_seq = producer_id, 0
        record_batch.number(producer_id, self.session.signature, queue.next_seq, self.context.wall_ms())
        queue.next_seq += record_batch.count

    def _can_close(self, queue: PartitionQueue) -> bool:
        """Return True if an open session can number the batch; False while a new session is being opened."""
        return not queue.numbers or self.session.producer_id is not None

    def close(self, queue: PartitionQueue) -> None:
        """Close the queue's batch, if there is one, nothing is under way, and it can be numbered."""
        if queue.open is not None and queue.unanswered == 0 and self._can_close(queue):
            self._close(queue)

    def close_due(self, linger: float) -> float:
        """Close each batch that is open for ``linger`` seconds, or whose partition has nothing under way.

        Returns:
            Time by trio's clock at which the next one is due; inf if there is none.
        """
        now = trio.current_time()
        wake = float("inf")
        for queue in list(self._open):
            record_batch = queue.open
            assert record_batch is not None
            due = record_batch.opened + linger
            if not self._can_close(queue):
                continue
            if queue.unanswered == 0 or now >= due:
                self._close(queue)
            else:
                wake = min(wake, due)
        return wake

    def expire(self) -> float:
        """Fail queued batches whose timeout has passed; return when the next one's time is over, by trio's clock."""
        now = trio.current_time()
        soon = float("inf")
        for queue, record_batch in list(self.closed):
            if now < record_batch.until:
                soon = min(soon, record_batch.until)
                continue
            self.closed.remove((queue, record_batch))
            self.answered(queue)
            text = (
                f"a batch to {self.topic!r} had no turn within {record_batch.timeout:g} s. Nothing was sent"
            )
            self.finish(record_batch, NotStored(text))
        return soon

    def discard_others(self, topic: bytes) -> None:
        """Keep the numbers of this topic's partitions only: the name is its own now, and others have ended.

        Those of the same topic go on counting: a number that was used names that message for ever.
        """
        self._queues = {key: queue for key, queue in self._queues.items() if queue.partition.topic == topic}

    def used(self, producer_id: ProducerId) -> list[PartitionId]:
        """Return the partitions that something was numbered for under ``producer_id``."""
        return [queue.partition for queue in self._queues.values() if queue.producer_id == producer_id]

    def finish(self, record_batch: RecordBatch, error: QuorumqError | None) -> None:
        """Finish a batch: it is confirmed, or given up with ``error``."""
        if record_batch.done:
            return
        self.unanswered.pop(record_batch, None)
        self.buffered -= record_batch.size
        record_batch.finish(error)
        if error is not None or record_batch.refused:
            self._log(record_batch)
            self.failed.append(record_batch)
            if len(self.failed) > 1000:
                for old in self.failed[:-1000]:
                    self.silent.pop(old, None)
                del self.failed[:-1000]
        self.waiting.unpark_all()

    def take_silent(self) -> list[QuorumqError]:
        """Return the errors of given-up messages that no caller can wait for any more; each once."""
        errors: list[QuorumqError] = []
        while self.silent:
            record_batch, _ = self.silent.popitem()
            self._log(record_batch)
            errors += record_batch.take_failures(discarded=True)
        return errors

    def _log(self, record_batch: RecordBatch) -> None:
        """Log that messages of it were given up, as far as no caller can wait for them any more."""
        lost = [failure for failure in record_batch.failures() if failure in record_batch.discarded]
        if len(lost) > record_batch.logged:
            self.context.log.error(
                ("given up", self.topic),
                "given up, and nobody waits: %s to %r: %s",
                plural(len(lost) - record_batch.logged, "message"),
                self.topic,
                record_batch.error or record_batch.refused[lost[-1]],
            )
            record_batch.logged = len(lost)

    def fail_unnumbered(self, error: QuorumqError) -> None:
        """Give up batches that wait for their numbers, because no session can be opened."""
        for queue in [queue for queue in self._open if queue.numbers]:
            assert queue.open is not None
            record_batch, queue.open = queue.open, None
            del self._open[queue]
            self.finish(record_batch, error)

    def end(self) -> None:
        """Give up all messages that are not confirmed."""
        for queue in self._open:
            queue.open = None
        self._open.clear()
        self.closed.clear()
        for record_batch in list(self.unanswered):
            if record_batch.sent:
                detail = "the producer was closed before the answer came: it may be stored"
                self.finish(record_batch, OutcomeUnknown(detail))
            else:
                self.finish(record_batch, NotStored("the producer was closed before it was sent"))

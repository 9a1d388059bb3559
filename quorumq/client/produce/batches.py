"""A batch of a producer, from its first message until it is confirmed or given up.

A batch is encoded once, numbered once, and repeated byte for byte through any node until it is confirmed or its
time is over (docs/protocol.md, PUBLISH and promise G6). Numbers are per partition and dense; a batch that is never
confirmed leaves a gap, and nothing waits for it. Messages that are derived from others bring their names along
(derived.py); they go in batches of their own, of many sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from typing import Final, NamedTuple

import trio
from crc32c import crc32c

from quorumq.client.base.history import Output
from quorumq.client.base.message import MessageId, again
from quorumq.client.base.times import Duration, check_order, delay_ms, number_of, ttl_ms
from quorumq.client.produce.derived import EncodedMessage, runs_of
from quorumq.core.values.errors import Conflict, QuorumqError, UsageError
from quorumq.core.values.limits import BATCH_MESSAGES_MAX
from quorumq.core.values.types import Batch, PartitionId, ProducerId, Span, Topic
from quorumq.history import topic_label
from quorumq.wire.batch import SPANS_MAX, encode_header, pack_spans

_new_tuple: Final[Callable[[type[MessageId], tuple[object, ...]], MessageId]] = tuple.__new__


class Times(NamedTuple):
    """Times shared by all messages of a batch, in milliseconds; 0 if none."""

    delay_ms: int
    ttl_ms: int


NO_TIMES: Final = Times(0, 0)

ONE_PAYLOAD: Final = (
    "what is derived must depend on its input alone, and each of several outputs needs an index of its own; one dedup= "
    "name is for one payload"
)


def times_of(
    delay: Duration | None,
    not_before: datetime | None,
    ttl: Duration | None,
    wall_ms: int,
    topic: Topic | None = None,
) -> Times:
    """Convert a message's time options, checked against a topic if that is known; raise UsageError out of bounds."""
    times = Times(delay_ms(delay, not_before, wall_ms), ttl_ms(ttl))
    check_order(*times, 0.0 if topic is None else topic.ttl_s)
    return times


def message_timeout(timeout: Duration) -> float:
    """Return a message's timeout in seconds; raise UsageError if it could not be sent in that time."""
    seconds = number_of("timeout", timeout)
    if not seconds > 0:
        raise UsageError(f"timeout is {timeout!r}: give seconds above 0, or None for the client's")
    return seconds


class Run(NamedTuple):
    """Consecutive messages of one batch: ``count`` messages from index ``first`` on."""

    record_batch: RecordBatch
    first: int
    size: int


class Pending:
    """A message that was taken, and may not be stored yet.

    If the caller drops one without waiting and its message is given up, the producer's next call raises that.
    """

    __slots__ = ("_index", "_record_batch")

    def __init__(self, record_batch: RecordBatch, index: int) -> None:
        self._record_batch = record_batch
        self._index = index

    def __del__(self) -> None:
        self._record_batch.discard(self._index)

    @property
    def done(self) -> bool:
        """Return True if `wait` would return or raise at once."""
        return self._record_batch.done

    async def wait(self) -> MessageId:
        """Wait until the message is durable on a majority.

        Raises:
            NotStored: given up, and certainly never sent: publishing it again makes no second message.
            OutcomeUnknown: given up after it was sent: it may be stored, or become so.
            QuorumqError: refused for good: see `Client.producer`.
        """
        if not self._record_batch.done:
            await self._record_batch.event.wait()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        return self._outcome()

    def _outcome(self) -> MessageId:
        """Return or raise the result of `wait`, once it is `done`."""
        error = self._record_batch.failure(self._index)
        if error is not None:
            raise again(error)
        return self._record_batch.id_of(self._index)

    def _abandon(self) -> None:
        """Note that its caller does not want its outcome any more."""
        self._record_batch.reported.add(self._index)

    def _watch(self, then: Callable[[], None]) -> None:
        """Have ``then`` called once it is `done`, which it must not be yet: for a front that has no task to wait."""
        self._record_batch.watchers.append(then)


@dataclass(eq=False)
class RecordBatch:
    """One batch, from its first message until it is confirmed or given up."""

    partition: PartitionId
    opened: float  # when its first message was added
    times: Times
    silent: dict[RecordBatch, None]  # batches with failures that no caller has received, nor can
    timeout: float | None = None  # seconds that its messages have; the producer's if None
    encoded_at: float = (
        0.0  # when it was numbered and encoded, by the client's clock: its age counts from there
    )
    records: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes
    count: int = 0
    batch: Batch | None = None  # once it is numbered and encoded
    producer_id: ProducerId | None = None
    signature: bytes = b""  # the signature of the producer id's session
    first: int = 0
    fixed: bool = False  # a caller named the partition of its message
    keyed: int = 0  # number of partitions among which a key chose this one; 0 if there are no keys
    sent: bool = False
    done: bool = False
    reported: set[int] = field(default_factory=set)  # indexes of messages whose failure reached a caller
    discarded: set[int] = field(
        default_factory=set
    )  # indexes of messages that no caller can wait for any more
    logged: int = 0  # number of failed messages that were logged
    error: QuorumqError | None = None
    refused: dict[int, QuorumqError] = field(default_factory=dict)  # messages that were refused alone
    event: trio.Event = field(default_factory=trio.Event)
    watchers: list[Callable[[], None]] = field(default_factory=list)  # called when it is done

    @property
    def until(self) -> float:
        """When its messages have had their own timeout, by trio's clock; it is not sent after that."""
        return float("inf") if self.timeout is None else self.opened + self.timeout

    @property
    def full(self) -> bool:
        """Return True if no message may be added, however small."""
        return self.count >= BATCH_MESSAGES_MAX

    def add(self, records: Sequence[bytes], size: int) -> int:
        """Append records, of ``size`` bytes together; the index of the first."""
        self.records += records
        self.size += size
        index = self.count
        self.count += len(records)
        return index

    def fix(self, partition: int | None, count: int) -> None:
        """Note that a message belongs to this partition, of ``count``: its caller named it, or its key leads to it."""
        self.fixed = self.fixed or partition is not None
        self.keyed = count if partition is None else self.keyed

    def number_in(self, count: int) -> int:
        """Return its partition if the topic was made again with ``count`` of them; -1 if its keys go to others."""
        if self.fixed or self.keyed:
            return self.partition.number if self.keyed in (0, count) else -1
        return self.partition.number % count

    def number(self, producer_id: ProducerId, signature: bytes, first: int, wall_ms: int) -> None:
        """Name the messages of this complete batch, and encode it: again only for the partition of another topic."""
        self.producer_id, self.signature, self.first = producer_id, signature, first
        spans = (Span(producer_id, first, first + self.count),)
        if self.batch is None:
            self.batch = pack_spans(self.partition, spans, wall_ms, self.records, **self.times._asdict())
            self.records = []
            return
        header = self.batch.header._replace(partition=self.partition, spans=spans)
        self.batch = Batch(header, encode_header(header), self.batch.body)

    def id_of(self, index: int) -> MessageId:
        assert self.producer_id is not None
        return MessageId(self.partition, self.producer_id, self.first + index)

    def ids(self, index: int, count: int) -> list[MessageId]:
        assert self.producer_id is not None
        first = self.first + index
        names = zip(repeat(self.partition), repeat(self.producer_id), range(first, first + count))
        return list(map(_new_tuple, repeat(MessageId), names))

    def finish(self, error: QuorumqError | None) -> None:
        """Finish it: it is confirmed, or given up with ``error``."""
        self.error = error
        self.done = True
        self.batch = None
        self.records = []
        self.event.set()
        if self.discarded and (error is not None or self.refused):
            self.silent[self] = None
        watchers, self.watchers = self.watchers, []
        for then in watchers:
            then()

    def discard(self, index: int) -> None:
        """Note that no caller can wait for one of its messages any more. May be called in any thread."""
        if not self.done:
            self.discarded.add(index)
        elif (self.error is not None or index in self.refused) and index not in self.reported:
            self.discarded.add(index)
            self.silent[self] = None

    def failure(self, index: int) -> QuorumqError | None:
        """Return the error of a message that was given up, or None; the caller passes it to the application."""
        error = self.error or self.refused.get(index)
        if error is not None:
            self.reported.add(index)
        return error

    def failures(self) -> Iterable[int]:
        """Return the indexes of its messages that were given up."""
        return range(self.count) if self.error is not None else self.refused

    def take_failures(self, *, discarded: bool = False) -> list[QuorumqError]:
        """Return the errors of given-up messages that no caller has received, or can if ``discarded``; each once."""
        indexes = [index for index in self.failures() if index not in self.reported]
        if discarded:
            indexes = [index for index in indexes if index in self.discarded]
        self.reported.update(indexes)
        return [self.error or self.refused[index] for index in indexes]


@dataclass(eq=False)
class DerivedBatch(RecordBatch):
    """A batch of messages that have names already: sections in place of one run of numbers."""

    fixed: bool = True
    names: list[tuple[ProducerId, int]] = field(default_factory=list)
    messages: list[EncodedMessage] = field(default_factory=list)
    indexes: dict[tuple[ProducerId, int], int] = field(default_factory=dict)
    runs: int = 0  # sections that it takes, or fewer

    @property
    def full(self) -> bool:
        return super().full or self.runs >= SPANS_MAX

    def index_of(self, name: tuple[ProducerId, int], encoded: EncodedMessage) -> int:
        """Append a message under its name, once, and return its index; Conflict if another payload has the name."""
        index = self.indexes.get(name)
        if index is None:
            index = self.indexes[name] = self.add((encoded.record,), len(encoded.record))
            self.names.append(name)
            self.messages.append(encoded)
            self.runs += (name[0], name[1] - 1) not in self.indexes
        elif self.records[index] != encoded.record:
            raise Conflict(f"another payload is being published as {self.id_of(index)}: {ONE_PAYLOAD}")
        return index

    def rename(self, partition: PartitionId, names: list[tuple[ProducerId, int]]) -> bool:
        """Name its messages for a partition of another topic; return False if two would have one name there."""
        if len(set(names)) < self.count:
            return False
        self.partition, self.names = partition, names
        self.refused.clear()  # by the topic that is gone
        return True

    def finish(self, error: QuorumqError | None) -> None:
        super().finish(error)
        self.messages = []

    def in_order(self) -> list[int]:
        """Return the indexes of its messages as `packed` wants them."""
        return sorted(range(self.count), key=self.names.__getitem__)

    def packed(self, indexes: Sequence[int], wall_ms: int) -> Batch:
        """Return a batch of some of its messages."""
        spans = runs_of([self.names[index] for index in indexes])
        records = [self.records[index] for index in indexes]
        return pack_spans(self.partition, spans, wall_ms, records, **self.times._asdict())

    def outputs(self, topic: str) -> Iterator[Output]:
        """Yield each output with its input, for the history; ``topic`` is the one that they are published to."""
        for encoded, (name, seq) in zip(self.messages, self.names, strict=True):
            source = encoded.derived_from
            if source is None:
                return  # their publishers name them
            of = source.id
            label = topic_label(of.partition.topic, source.topic)
            yield Output(
                label, of.partition.number, source.group, of.producer_id, encoded.output,
                topic, self.partition.number, name, seq, crc32c(encoded.record),
            )  # fmt: skip

    def id_of(self, index: int) -> MessageId:
        return MessageId(self.partition, *self.names[index])

    def ids(self, index: int, count: int) -> list[MessageId]:
        return [MessageId(self.partition, *name) for name in self.names[index : index + count]]

    def refuse(self, index: int, error: QuorumqError) -> None:
        """Refuse one of its messages for good, and not the others."""
        if isinstance(error, Conflict):
            error = Conflict(f"other bytes are stored as {self.id_of(index)}: {ONE_PAYLOAD}")
        self.refused[index] = error

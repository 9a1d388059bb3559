"""Rows become messages, or redrives.

Spark may run a task twice, at once or after a failure, and a person runs a job again. So a row has a name that does
not depend on when or where it is written, and a message is stored once per name (docs/protocol.md, promise G6).
Where the rows bring no names of their own, their place in the Spark partition is the name: if a repeated task sees
them in another order, the cluster finds another payload under a name that it has, and the write ends with `Conflict`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from quorumq.client import Client, DefaultPartitioner, MessageId, Peek, connect
from quorumq.client.produce.batches import NO_TIMES, DerivedBatch
from quorumq.client.produce.derived import EncodedMessage, derived_partition, derived_producer_id
from quorumq.client.produce.sending import Sender
from quorumq.core import messages as m
from quorumq.core.values.errors import AlreadySettled, Conflict, TooLarge, UsageError
from quorumq.core.values.types import DERIVED, Kind, PartitionId, ProducerId, Record, Span, Topic
from quorumq.wire.batch import SEQ_MAX, Message, encode_record

from .options import TIMEOUT_S, WRITE, known_only, names_in, number, one_of

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Properties of a task by which Spark names the query, the same after a restart, and the micro-batch."""

BATCH_BYTES: Final = 256 << 10
RUN: Final = 1024
"""Rows with consecutive numbers that go to one partition if they have no key: nodes keep runs, not messages."""

REDRIVE_AT_ONCE: Final = 1000

STAYS: Final = (
    "Nothing was lost, and what was published stays. Without a column id, rows are named by their order: sort them, or "
    "give them ids, and write under a new job"
)
"""The remedy if a name has another payload."""

Named = tuple[int, tuple[ProducerId, int], EncodedMessage]
"""A row's partition, its name, and the message."""

_TEXT: Final = (T.StringType, T.BinaryType)
_WHOLE: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
PUBLISH_COLUMNS: Final[Mapping[str, tuple[type[T.DataType], ...]]] = {
    "payload": _TEXT,
    "key": _TEXT,
    "headers": (T.MapType,),
    "id": (T.StringType, *_WHOLE),
}
REDRIVE_COLUMNS: Final[Mapping[str, tuple[type[T.DataType], ...]]] = {
    "id": (T.StringType,),
    "group": (T.StringType,),
    "n": _WHOLE,
    "generation": (T.DecimalType, *_WHOLE),
}


class Options(NamedTuple):
    """A checked request to write; ``batch`` is the number of a stream's micro-batch."""

    nodes: tuple[str, ...]
    topic: str
    redrive: bool
    job: str
    group: str
    timeout: float
    batch: str = ""


Rows = Iterator[Mapping[str, Any]]


def write_options(
    given: Mapping[str, str], schema: T.StructType, overwrite: bool, *, stream: bool = False
) -> Options:
    """Check the options of a write, and the columns of its rows.

    A write without a job gets one of its own; a stream is named by Spark, in `StreamWriter`.

    Raises:
        UsageError: an option that there is not, a value that cannot be, or a column that is missing or of another type.
    """
    spark_own = {"checkpointlocation"} if stream else set()
    options = known_only({name: said for name, said in given.items() if name.lower() not in spark_own}, WRITE)
    if overwrite:
        raise UsageError("messages are only ever added: write with mode('append')")
    redrive = one_of(options, "action", "publish", "redrive") == "redrive"
    nodes = names_in(options.get("nodes", ""))
    if not nodes:
        raise UsageError("option nodes is missing: `host:port,…` of the cluster that is to be written to")
    topic = options.get("topic", "")
    if redrive and topic:
        raise UsageError("option topic is given and action is redrive: ids say of which topic they are")
    if not redrive and not topic:
        raise UsageError("option topic is missing: to which topic the rows are published")
    known = REDRIVE_COLUMNS if redrive else PUBLISH_COLUMNS
    there = {field.name: field.dataType for field in schema}
    for name in REDRIVE_COLUMNS if redrive else ("payload",):
        if name not in there:
            raise UsageError(f"column {name} is missing: the rows have {', '.join(there)}")
    for name, kind in there.items():
        if name not in known and not redrive:
            raise UsageError(f"there is no place for column {name} in a message: select {', '.join(known)}")
        if name in known and not isinstance(kind, known[name]):
            allowed = " or ".join(
                allowed().typeName() if allowed is not T.MapType else "map" for allowed in known[name]
            )
            raise UsageError(f"column {name} is {kind.simpleString()}: it must be {allowed}")
    job = options.get("job", "") or ("" if stream else uuid.uuid4().hex)
    timeout = number(options, "timeout", TIMEOUT_S, 0.1)
    return Options(nodes, topic, redrive, job, options.get("group", "spark"), timeout)


class Writer(DataSourceArrowWriter):
    """Publishes or redrives. What a failed job wrote stays: run it again under the same `job`, and it does the rest."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return write(self.options, iterator, context.partitionId())


class StreamWriter(DataSourceStreamArrowWriter):
    """The same for each micro-batch of a stream: one that is repeated, as after a restart, adds nothing."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        if not query or not batch:
            raise UsageError("Spark does not say which micro-batch of which query this is: give option job, and write "
                             "with foreachBatch")  # fmt: skip
        options = self.options._replace(job=self.options.job or query, batch=batch)
        return write(options, iterator, context.partitionId())


def write(options: Options, batches: Iterator[pa.RecordBatch], task: int) -> WriterCommitMessage:
    async def run(rows: Rows) -> None:
        async with connect(options.nodes, timeout=options.timeout) as client:
            if options.redrive:
                await redrive(client, rows)
            else:
                await Publisher(client, options, task).publish(rows)

    rows = (row for batch in batches for row in batch.to_pylist())
    first = next(rows, None)
    if first is not None:
        trio.run(run, chain((first,), rows))
    return WriterCommitMessage()


def binary(value: str | bytes | bytearray | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


class Publisher:
    """Publishes the rows of one task, which is the number of its Spark partition."""

    def __init__(self, client: Client, options: Options, task: int) -> None:
        self.client = client
        self.options = options
        self.task = task
        self.partitioner = DefaultPartitioner()
        self.counts: dict[int, int] = {}  # rows without a name, by the partition that they go to
        self.count = 0

    async def publish(self, rows: Rows) -> None:
        """Publish all rows.

        Raises:
            NotFound: no such topic.
            UsageError: a row that is no message.
            Conflict: a row's name has another payload.
            OutcomeUnknown, NotStored: too few replicas answered; running the task again does the rest.
        """
        topic = await self.client.topic(self.options.topic)
        batches: dict[int, DerivedBatch] = {}
        for row in rows:
            partition, name, message = self.name(row, topic)
            batch = batches.get(partition)
            if batch is None or batch.full or batch.size + len(message.record) > BATCH_BYTES:
                if batch is not None:
                    await self._send(batch)
                batch = batches[partition] = DerivedBatch(
                    PartitionId(topic.id, partition), self.client.clock(), NO_TIMES, {}
                )
            try:
                batch.index_of(name, message)
            except Conflict:
                raise Conflict(
                    f"id {row['id']!r} occurs twice in these rows, with two payloads. {STAYS}"
                ) from None
        for batch in batches.values():
            await self._send(batch)

    def name(self, row: Mapping[str, Any], topic: Topic) -> Named:
        """Return a row's message and its name.

        Raises:
            UsageError, TooLarge: it is no message; says which row, and why.
        """
        try:
            return self._name(row, topic)
        except TooLarge as error:
            raise TooLarge(f"{self._which(row)}: {error}") from None
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(f"{self._which(row)} is no message: {error}") from None

    def _which(self, row: Mapping[str, Any]) -> str:
        if "id" in row:
            return f"the row with id {row['id']!r:.100}"
        return f"row {self.count + 1} of its Spark partition"

    def _name(self, given: Mapping[str, Any], topic: Topic) -> Named:
        payload, key = binary(given.get("payload")), binary(given.get("key"))
        if payload is None:
            raise UsageError("a row's payload is null: a message has one, if empty")
        record = encode_record(Message(payload, key, dict(given.get("headers") or {})))
        message = EncodedMessage(record, key, None, None, 0, None, None, None, 0, False)
        born = topic.born or 1
        if "id" not in given:
            location = self.count
            self.count += 1
            partition = (
                self.partitioner(key, born) if key is not None else (location // RUN + self.task) % born
            )
            seq = self.counts.get(partition, 0)
            self.counts[partition] = seq + 1
            row_name = f"{self.options.batch}/{self.task}" if self.options.batch else str(self.task)
            return partition, (self._producer_id(topic, "row", row_name), seq), message
        value = given["id"]
        if isinstance(value, int):
            if not 0 <= value <= SEQ_MAX:
                raise UsageError(f"a row's id is {value}: a number must be from 0 to {SEQ_MAX}")
            partition = self.partitioner(key, born) if key is not None else value // RUN % born
            return partition, (self._producer_id(topic, "id", ""), value), message
        if not value:
            raise UsageError("a row's id is null or empty: without one the write cannot be repeated")
        try:
            source = MessageId.parse(value)
        except ValueError:
            partition = self.partitioner(value.encode() if key is None else key, born)
            return partition, (self._producer_id(topic, "text", value), 0), message
        partition = derived_partition(source, key, topic, self.partitioner)
        producer_id = derived_producer_id(source, self.options.group, topic.id, 0)
        return partition, (producer_id, source.seq), message

    def _producer_id(self, topic: Topic, kind: str, name: str) -> ProducerId:
        text = "\0".join(("quorumq spark", self.options.job, topic.id.hex(), kind, name))
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        n, k, nonce = (int.from_bytes(digest[at:end], "big") for at, end in ((0, 4), (4, 8), (8, 16)))
        return ProducerId(DERIVED, n, nonce, k)

    async def _send(self, batch: DerivedBatch) -> None:
        batch.encoded_at = self.client.clock()
        await Sender(self.client.context, self.options.topic, self.options.timeout).send(batch)
        for index, error in batch.refused.items():
            other = f"another payload is stored as {batch.id_of(index)}"
            raise Conflict(f"{other if isinstance(error, Conflict) else error}. {STAYS}")


async def redrive(client: Client, rows: Rows) -> None:
    """Redrive the dead letters that rows name. One that was redriven, acked or purged since is left as it is.

    Raises:
        UsageError: a row that names no dead letter.
        NotFound: a row names a topic that does not exist any more.
        OutcomeUnknown, NotStored: too few replicas answered; running the task again does the rest.
    """
    known = await client.metadata()
    topics = {topic.id: topic.name for topic in known.topics if not topic.deleted}
    waiting: dict[tuple[str, str], list[Peek]] = {}
    for row in rows:
        try:
            partition, producer_id, seq = MessageId.parse(row["id"] or "")
        except ValueError as error:
            raise UsageError(str(error)) from None
        topic = topics.get(partition.topic)
        if topic is None:
            raise UsageError(
                f"{row['id']} is of a topic that this cluster does not have: nothing of it can be redriven"
            )
        if any(row[name] is None for name in REDRIVE_COLUMNS):
            raise UsageError(
                f"the row of {row['id']} has a null: a dead letter has an id, a group, a generation and an n"
            )
        record = Record(int(row["generation"]), int(row["n"]), Kind.DEAD)
        peeked = m.Peeked(Span(producer_id, seq, seq + 1), "dead", record, 0, 0.0, None)
        items = waiting.setdefault((topic, row["group"]), [])
        items.append(Peek(topic, partition.number, peeked, 0, {}))
        if len(items) >= REDRIVE_AT_ONCE:
            await _redrive(client, topic, row["group"], items)
            items.clear()
    for (topic, group), items in waiting.items():
        if items:
            await _redrive(client, topic, group, items)


async def _redrive(client: Client, topic: str, group: str, items: list[Peek]) -> None:
    result: Any = await client.redrive(topic, group, items)
    for _, error in result.refused:
        if not isinstance(error, AlreadySettled):
            raise error

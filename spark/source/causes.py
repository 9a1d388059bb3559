"""Columns of `deadletters`: of a death, of its cause as the consumer reported it, and of its message.

A cause is a `Letter` as it stands in a record: a tuple of its fields. Causes come out of journals before it is known
which nodes have them and what became of their messages, so `Causes` keeps them as Arrow in a temporary file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from quorumq.client.base.message import MessageId
from quorumq.core.values.types import Kind, Letter, PartitionId, ProducerId
from quorumq.history import producer_id_text
from quorumq.wire.batch import Message

from .arrow import BYTES_MAX, MS_MAX, MS_MIN, Values, known_time, small
from .reader import content

ROWS: Final = 2048
"""Causes of one batch."""

SPOOL_BYTES: Final = 16 << 20
"""Bytes of causes that are kept in memory."""

FIELDS: Final = {
    **{
        name: Letter._fields.index(name)
        for name in (
            "reason", "error_class", "message", "stack", "fingerprint", "attempts", "consumer", "consumer_version",
            "host", "node",
        )
    },
    **{f"{name}_at": Letter._fields.index(f"{name}_ms") for name in ("first_delivered", "last_delivered", "died")},
}  # fmt: skip
"""Columns of causes, with the indices of their fields."""

MESSAGE, STACK = FIELDS["message"], FIELDS["stack"]
PUBLISHED: Final = Letter._fields.index("published_ms")


class Producer(NamedTuple):
    """A producer id in a topic partition."""

    key: PartitionId
    producer_id: ProducerId


class Rank(NamedTuple):
    """A record without its cause."""

    generation: int
    n: int
    kind: Kind


class Death(NamedTuple):
    """A row of `deadletters` less its cause and the content of its message, by the names of its columns."""

    id: str
    topic: str
    topic_id: str
    partition: int
    producer_id: str
    seq: int
    group: str
    generation: Any
    n: int
    resolution: str
    published_at: int | None
    replicas: list[str]


def times(ms: Sequence[int] | np.ndarray[Any, Any]) -> pa.Array:
    """Return milliseconds since 1970 as a column of times; null for 0."""
    try:
        values = np.asarray(ms, np.int64)
    except OverflowError:
        values = np.array([min(value, MS_MAX) for value in ms], np.int64)
    shown = 1000 * np.clip(values, MS_MIN, MS_MAX)
    return pa.array(shown, pa.int64(), mask=values == 0).view(pa.timestamp("us", "UTC"))


def text_bytes(cause: Sequence[Any]) -> int:
    """Return the size of a cause's long texts."""
    return len(cause[MESSAGE]) + len(cause[STACK])


def causes_batch(causes: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of causes that are in ``schema``."""
    fields = list(zip(*causes, strict=True))
    arrays = []
    for column in schema:
        values = fields[FIELDS[column.name]]
        if pa.types.is_timestamp(column.type):
            arrays.append(times(values))
        else:
            arrays.append(
                pa.array(list(map(small, values)) if column.name == "attempts" else values, column.type)
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def schema_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns of causes in a schema; at least one, so that a batch has its number of rows."""
    chosen = [column for column in schema if column.name in FIELDS]
    return pa.schema(chosen or [pa.field("attempts", pa.int32())])


class Causes:
    """Causes in the order in which they came."""

    def __init__(self, schema: pa.Schema) -> None:
        self.count = 0
        self._schema = schema_of(schema)
        self._rows: list[Sequence[Any]] = []
        self._bytes = 0
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        folder = folder if os.path.isdir(folder) else gettempdir()
        self._file = SpooledTemporaryFile(SPOOL_BYTES, dir=folder)  # noqa: SIM115 - `batches` closes it
        self._writer = pa.ipc.new_stream(self._file, self._schema)

    def add(self, cause: Sequence[Any]) -> int:
        """Add a cause; return its number."""
        self._rows.append(cause)
        self._bytes += text_bytes(cause)
        if len(self._rows) == ROWS or self._bytes > BYTES_MAX:
            self._write()
        self.count += 1
        return self.count - 1

    def _write(self) -> None:
        if self._rows:
            self._writer.write_batch(causes_batch(self._rows, self._schema))
        self._rows, self._bytes = [], 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all causes, once."""
        self._write()
        self._writer.close()
        self._file.seek(0)
        with self._file:
            yield from pa.ipc.open_stream(self._file)


def deaths_batch(
    schema: pa.Schema,
    deaths: Mapping[str, Any],
    causes: pa.RecordBatch,
    messages: list[Message | None],
    crcs: list[str | None],
) -> pa.RecordBatch:
    """Return rows of `deadletters`.

    Args:
        schema: the columns that are asked for.
        deaths: the columns of `Death`, as lists or as Arrow arrays.
        causes, messages, crcs: the cause, the message and the CRC of its record, for each death.
    """
    columns: dict[str, Values] = {**content(messages, crcs), **deaths}
    arrays = []
    for column in schema:
        if column.name in FIELDS:
            arrays.append(causes.column(column.name))
            continue
        values: Any = columns[column.name]
        values = values() if callable(values) else values
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


DeathRow = tuple[Death, Any, Message | None, str | None]
"""A death, with its cause, its message and the CRC of that."""


def named_by(producer: Producer) -> tuple[str, str]:
    """Return the id of a place's messages, up to their number, and its producer id as text."""
    return str(MessageId(producer.key, producer.producer_id, 0))[:-1], producer_id_text(producer.producer_id)


def death_of(
    producer: Producer,
    topic: str,
    seq: int,
    group: str,
    rank: Rank,
    resolution: str,
    published_ms: int,
    nodes: list[str],
) -> Death:
    """Return the row of one death."""
    head, producer_id = named_by(producer)
    key = producer.key
    return Death(
        f"{head}{seq}", topic, key.topic.hex(), key.number, producer_id, seq, group, Decimal(rank.generation),
        small(rank.n), resolution, known_time(published_ms), nodes,
    )  # fmt: skip


def rows_batch(schema: pa.Schema, rows: Sequence[DeathRow]) -> pa.RecordBatch:
    """Return rows of `deadletters`."""
    deaths, causes, messages, crcs = zip(*rows, strict=True)
    columns = dict(zip(Death._fields, map(list, zip(*deaths, strict=True)), strict=True))
    return deaths_batch(schema, columns, causes_batch(causes, schema_of(schema)), list(messages), list(crcs))

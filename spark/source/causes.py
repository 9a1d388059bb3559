"""Columns of `deadletters`: of a death, of its cause as the consumer reported it, and of its message.

A cause is a `Death` as it stands in a record: a tuple of its fields. Causes are read from journals before it is known
which nodes have them and what became of their messages, so `Causes` keeps them as Arrow in a temporary file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from quorumq.client.base.message import MessageId
from quorumq.core.values.types import Death, Kind, PartitionId, ProducerId, Record, record_rank
from quorumq.history import producer_id_text
from quorumq.storage.scan import Frame

from .arrow import BYTES_MAX, MS_MAX, MS_MIN, Same, Values, known_time, small
from .journals import decoded

T = TypeVar("T")

ROWS: Final = 2048
"""Causes of one batch."""

SPOOL_BYTES: Final = 16 << 20
"""Bytes of causes that are kept in memory."""

FIELDS: Final = {
    **{
        name: Death._fields.index(name)
        for name in (
            "reason", "error_class", "message", "stack", "fingerprint", "attempts", "consumer", "consumer_version",
            "host", "node",
        )
    },
    **{f"{name}_at": Death._fields.index(f"{name}_ms") for name in ("first_delivered", "last_delivered", "died")},
}  # fmt: skip
"""Columns of causes, with the indices of their fields."""

MESSAGE, STACK = FIELDS["message"], FIELDS["stack"]
_DEFAULTS: Final = tuple(Death._field_defaults[name] for name in Death._fields[2:])
PUBLISHED: Final = Death._fields.index("published_ms")


class Producer(NamedTuple):
    """A producer id in a topic partition."""

    key: PartitionId
    producer_id: ProducerId


class Rank(NamedTuple):
    """A record without its cause."""

    generation: int
    n: int
    kind: Kind

    def order(self) -> tuple[int, bool, int, int]:
        """Return the order in which records merge."""
        return record_rank(Record(*self))


def times(ms: Sequence[int] | np.ndarray[Any, Any]) -> pa.Array:
    """Return milliseconds since 1970 as a column of times; null for 0."""
    try:
        values = np.asarray(ms, np.int64)
    except OverflowError:
        values = np.array([min(value, MS_MAX) for value in ms], np.int64)
    shown = 1000 * np.clip(values, MS_MIN, MS_MAX)
    return pa.array(shown, pa.int64(), mask=values == 0).view(pa.timestamp("us", "UTC"))


def text_bytes(cause: Sequence[Any]) -> int:
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


def take_entries(name: str, frame: Frame, take: Callable[[PartitionId, str, Any, Sequence[Any]], T]) -> T:
    """Give a function the partition, the group, the entries and their causes of a RecordsMerged; return its result.

    They are passed as they stand in the header. If the function cannot take these, because another version wrote them
    with more or fewer fields, they are passed decoded.

    Raises:
        StorageError: they cannot be decoded.
    """
    try:
        (topic, number), group, entries, *rest = frame.fields[2:]
        return take(PartitionId(topic, number), group, entries, _raw_causes(entries, rest[0] if rest else ()))
    except (TypeError, ValueError, IndexError):
        record = decoded(name, frame)
        causes = [entry.record.death for entry in record.entries]
        return take(record.partition, record.group, record.entries, causes)


def _raw_causes(entries: Any, again: Any) -> list[Any]:
    """Return the cause of each entry, as a tuple of at least the fields of `Death`; None without one."""
    causes = [record[3] if len(record) > 3 else None for _, record in entries]
    for at, first in again:
        causes[at] = causes[first]
    return [
        cause if cause is None or len(cause) >= len(Death._fields) else (*cause, *_DEFAULTS[len(cause) - 2 :])
        for cause in causes
    ]


class Causes:
    """Causes in the order in which they were added."""

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
        self._write()
        self._writer.close()
        self._file.seek(0)
        with self._file:
            yield from pa.ipc.open_stream(self._file)


def columns_of(cause: Death) -> dict[str, Values]:
    """Return the columns of a cause, for any number of deaths of it."""
    columns: dict[str, Values] = {name: Same(cause[at]) for name, at in FIELDS.items()}
    times = {name: Same(known_time(cause[at])) for name, at in FIELDS.items() if name.endswith("_at")}
    return {**columns, **times, "attempts": Same(small(cause.attempts))}


def named_by(producer: Producer) -> tuple[str, str]:
    """Return the id of a place's messages, up to their number, and its producer id as text."""
    return str(MessageId(producer.key, producer.producer_id, 0))[:-1], producer_id_text(producer.producer_id)

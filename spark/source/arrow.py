"""Rows as Arrow batches, column by column, bounded in rows and in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20
ROW_BYTES: Final = 256
"""Bytes that a row takes besides its payload, about."""

MS_MAX: Final = 253_370_764_799_999
MS_MIN: Final = -62_104_060_800_000
"""The years 2 to 9998: what a wrong clock says beyond them is shown as their end. Python has one year more at either
end, so that it can show these in any time zone."""

INT_MAX: Final = (1 << 31) - 1


class Same(NamedTuple):
    """One value for all rows of a block."""

    value: Any


Values = list[Any] | Same | Callable[[], list[Any]]
"""A column of a block: its values, one for all, or a function that makes them if the column is wanted."""


def time_of(ms: int | None) -> int | None:
    """Return milliseconds since 1970 as Spark's timestamps count; None for None."""
    return None if ms is None else 1000 * shown_ms(ms)


def shown_ms(ms: int) -> int:
    """Return milliseconds since 1970 as the tables have them."""
    return max(MS_MIN, min(ms, MS_MAX))


def known_time(ms: int) -> int | None:
    """Return the same, with 0 for a value that is not known."""
    return time_of(ms or None)


def small(number: int) -> int:
    """Return a count for a column of 32 bits."""
    return min(number, INT_MAX)


class Batches:
    """Collects blocks of rows and gives them out as Arrow batches, with the columns of ``schema``."""

    def __init__(self, schema: StructType) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self.names = frozenset(self.schema.names)
        self._columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        self._rows = 0
        self._bytes = 0

    def wants(self, *names: str) -> bool:
        """Return True if one of these columns is wanted."""
        return not self.names.isdisjoint(names)

    def add(self, rows: int, size: int, values: Mapping[str, Values]) -> Iterator[pa.RecordBatch]:
        """Add rows with ``size`` bytes of payloads and texts; yield the earlier rows, if these are full."""
        size += rows * ROW_BYTES
        if self._rows and (self._rows + rows > ROWS_MAX or self._bytes + size > BYTES_MAX):
            yield from self.rest()
        for name, column in self._columns.items():
            value = values[name]
            if isinstance(value, Same):
                column.extend([value.value] * rows)
            else:
                column.extend(value() if callable(value) else value)
        self._rows += rows
        self._bytes += size

    def rest(self) -> Iterator[pa.RecordBatch]:
        if not self._rows:
            return
        arrays = [pa.array(self._columns[field.name], field.type) for field in self.schema]
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._columns = {name: [] for name in self._columns}
        self._rows = self._bytes = 0

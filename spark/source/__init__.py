"""`format("quorumq")`.

Spark calls this in Python processes of its own: the driver's planner, and the workers of tasks. So everything here is
picklable, and the reader that goes to every task is small: what a task needs is in its partition.

    from . import register
    register(session)                       # spark.session.session() has done it already
    session.read.format("quorumq").option("table", "deadletters").load("/var/lib/quorumq/a,/var/lib/quorumq/b")

docs/spark.md, "The data source", is its manual.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
)
from pyspark.sql.types import StructType

from quorumq.core.values.errors import UsageError

from ..schemas import TABLES
from ..schemas import schema as schema_of
from .options import Options, Wanted, read_options

if TYPE_CHECKING:
    import pyarrow as pa


def register(session: SparkSession) -> None:
    """Make ``format("quorumq")`` known to a session, and let Spark push filters down to it."""
    session.dataSource.register(QuorumqDataSource)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class QuorumqDataSource(DataSource):
    """``format("quorumq")``."""

    @classmethod
    def name(cls) -> str:
        return "quorumq"

    def schema(self) -> StructType:
        options = read_options(self.options, stream=None)
        whole = schema_of(options.table)
        return StructType([whole[name] for name in options.columns]) if options.columns else whole

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        check_schema(options.table, schema)
        if options.since is not None and options.table == "deadletters":
            from .stream import SinceReader

            return SinceReader(options, schema)
        return Reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream import DeathsStream

        options = read_options(self.options, stream=True)
        check_schema(options.table, schema)
        return DeathsStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .writer import Writer, write_options

        return Writer(write_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .writer import StreamWriter, write_options

        return StreamWriter(write_options(self.options, schema, overwrite, stream=True))


def check_schema(table: str, schema: StructType) -> None:
    """Check that a schema that the caller gave is one of columns of the table.

    Raises:
        UsageError: another column, or another type.
    """
    there = {column.name: column.type for column in TABLES[table]}
    for field in schema:
        if there.get(field.name) != field.dataType:
            raise UsageError(
                f"the schema names {field.name} {field.dataType.simpleString()}, and table {table} has "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in there.items())
            )


class Reader(DataSourceReader):
    """A batch read. Rows that Spark's filters rule out are not read, and Spark applies all filters again."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.selection = Wanted()
        self.schema = schema

    @property
    def module(self) -> Any:
        """The module that plans and reads: imported only when needed."""
        return importlib.import_module(".live" if self.options.nodes else ".offline", __package__)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.selection.push(filters)
        return filters

    def partitions(self) -> Sequence[Any]:
        return cast("Sequence[Any]", self.module.plan(self.options, self.selection))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if type(partition).__name__ != "InputPartition":  # Spark makes one if there is nothing to read
            yield from self.module.read(partition, self.options, self.selection, self.schema)


__all__ = ["QuorumqDataSource", "register"]

"""The table of a catalog to which `--table` writes: the dead letters of many runs."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from quorumq.core.values.errors import UsageError

from ..transforms.deaths import DEATHS, shaped

SINCE: Final = "since"
"""The column that partitions the table: `as_of` of the run before these deaths, or `BEGINNING`."""

BEGINNING: Final = "beginning"
_MODE: Final = "spark.sql.sources.partitionOverwriteMode"


def check_table(session: SparkSession, name: str) -> None:
    """Check that deaths can be written to a table, which may not be there yet.

    Raises:
        UsageError: it has other columns, or its catalog is in the memory of this session.
    """
    catalog, *rest = name.split(".")
    if len(rest) < 2:
        catalog = session.catalog.currentCatalog()
    if catalog == "spark_catalog" and session.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise UsageError(
            f"--table {name} would be forgotten: the catalog is in this session's memory. Name a table of a catalog in "
            "spark-defaults.conf, or set spark.sql.catalogImplementation to hive there"
        )
    _exists(session, name)


def _exists(session: SparkSession, name: str) -> bool:
    if not session.catalog.tableExists(name):
        return False
    there = [(field.name, field.dataType) for field in session.table(name).schema]
    if there != [(field.name, field.dataType) for field in StructType.fromDDL(f"{DEATHS}, {SINCE} STRING")]:
        raise UsageError(
            f"--table {name} has other columns than the table deaths with {SINCE}: name another table"
        )
    return True


def into_table(deaths: DataFrame, name: str, since: str | None) -> None:
    """Write deaths to a table, which is made if it is not there.

    Args:
        deaths: the table `deaths`.
        name: the table, with its catalog and database if they are not the session's.
        since: `as_of` of the run before these deaths: they replace those of an earlier try. None replaces all rows.
    """
    session = deaths.sparkSession
    rows = shaped(deaths, DEATHS).withColumn(SINCE, F.lit(since or BEGINNING))
    if not _exists(session, name):
        rows.write.partitionBy(SINCE).saveAsTable(name)
        return
    before = session.conf.get(_MODE)
    session.conf.set(_MODE, "dynamic" if since else "static")
    try:
        rows.write.insertInto(name, overwrite=True)
    finally:
        session.conf.set(_MODE, before or "static")

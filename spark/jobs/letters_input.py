"""Sources of a job's dead letters: data directories, a running cluster, or Parquet; and the run before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumq.client import connect
from quorumq.core.values.errors import NotFound, QuorumqError, StorageError, UsageError

from ..schemas import TABLES, schema
from ..session import exactly, file_path
from ..source import register
from ..source.journals import ignore
from ..source.options import names_in
from ..source.planning import plan_directory
from .output import Output

OUTPUT: Final = Output("deadletters", 1)


class Input(NamedTuple):
    """Input of an analysis.

    Attributes:
        deadletters: rows of the table `deadletters` (spark/schemas.py).
        problems: rows of the table `problems`, about data that could not be read; None without such a table.
        source: producer id of the rows, in words.
        cluster: the cluster's id; None if not known.
        nodes: addresses of the cluster, if it was read live.
        topics, groups: only these are in it; all if empty.
    """

    deadletters: DataFrame
    problems: DataFrame | None
    source: str
    cluster: str | None = None
    nodes: str = ""
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def read(
    session: SparkSession,
    *,
    data: Iterable[Path] = (),
    nodes: str = "",
    parquet: Path | None = None,
    topics: Iterable[str] = (),
    groups: Iterable[str] = (),
) -> Input:
    """Return the dead letters of data directories, of a running cluster, or of a table in Parquet.

    Raises:
        UsageError, NotFound, StorageError: there is nothing that can be read; the text names it.
    """
    directories = [str(path) for path in data]
    problems: DataFrame | None
    cluster: str | None
    if parquet is not None:
        if not parquet.is_dir():
            raise NotFound(f"{parquet} is no directory: --parquet takes what `DataFrame.write.parquet` wrote")
        letters = read_parquet(session, parquet)
        problems, source, cluster = None, str(parquet), None
    else:
        register(session)
        place = {"data": json.dumps(directories)} if directories else {"nodes": nodes}
        reader = session.read.format("quorumq").options(**place)
        if directories:
            reader = reader.option("onDamage", "report")
        letters = reader.option("table", "deadletters").load()
        problems = reader.option("table", "problems").load() if directories else None
        source = ", ".join(directories) or nodes
        cluster = cluster_of_directories(directories) if directories else cluster_of_nodes(nodes)
    topics, groups = tuple(topics), tuple(groups)
    letters = only(letters, topics, groups)
    for column, names in (("topic", topics), ("group", groups)):
        if names:
            source += f"; {column} {', '.join(names)}"
    return Input(letters, problems, source, cluster, nodes, topics, groups)


def read_parquet(session: SparkSession, place: Path) -> DataFrame:
    """Return the rows of the table `deadletters` in a directory.

    Raises:
        NotFound: there is no Parquet in it.
        UsageError: a column that every dead letter has is missing.
    """
    whole, path = schema("deadletters"), exactly(file_path(place))
    if not any(name.is_file() and not name.name.startswith(("_", ".")) for name in place.rglob("*")):
        if not (place / "_SUCCESS").exists():
            raise NotFound(
                f"{place} has no Parquet in it: --parquet takes what `DataFrame.write.parquet` wrote"
            )
        # Spark makes no more than that of a table that has partitions and no rows.
        return session.createDataFrame([], whole)
    needed = [column.name for column in TABLES["deadletters"] if not column.nullable]
    there = session.read.parquet(path).columns
    missing = [name for name in needed if name not in there]
    if missing:
        raise UsageError(
            f"{place} has no column {', '.join(missing)}: --parquet takes rows of the table deadletters"
        )
    return session.read.schema(whole).parquet(path)


def only(rows: DataFrame, topics: Iterable[str], groups: Iterable[str]) -> DataFrame:
    """Return the rows of these topics and groups; all rows if none is named."""
    for column, names in (("topic", list(topics)), ("group", list(groups))):
        if names:
            rows = rows.where(F.col(column).isin(names))
    return rows


def cluster_of_directories(directories: Iterable[str]) -> str | None:
    """Return the id of the cluster of these data directories; None if none of them can be read."""
    for directory in directories:
        try:
            return plan_directory(directory, ignore).directory.cluster_id
        except QuorumqError:
            continue  # the read itself says why
    return None


def cluster_of_nodes(nodes: str) -> str:
    """Return the id of the cluster that answers at these addresses."""

    async def ask() -> str:
        async with connect(names_in(nodes), timeout=10.0) as client:
            return (await client.metadata()).cluster_id

    return trio.run(ask)


def read_previous_head(previous: Path) -> dict[str, Any]:
    """Return the summary of a run; the table that is compared with must be there."""
    summary = OUTPUT.read_head(previous)
    if not (previous / "tables" / "failures").is_dir():
        raise StorageError(f"{previous}/tables/failures is missing: the run that wrote it was not complete")
    return summary


def check_previous(previous: Mapping[str, Any], place: Path | None, inputs: Input) -> None:
    """Check that a run can be compared with this one: rows that only one looked at would be called new, or gone.

    Raises:
        UsageError: it was of another cluster, or looked at less.
    """
    cluster = previous.get("cluster")
    if cluster is not None and inputs.cluster is not None and cluster != inputs.cluster:
        raise UsageError(
            f"{place} is of cluster {cluster!r} and this one is {inputs.cluster!r}: give --previous an OUT "
            "of the same cluster"
        )
    for option, names in (("topic", inputs.topics), ("group", inputs.groups)):
        before = previous.get("only", {}).get(f"{option}s", [])
        if before and not (names and set(names) <= set(before)):
            raise UsageError(
                f"{place} is of {option} {', '.join(before)} only: choose no others with --{option}, or "
                "give --previous an OUT that has them all"
            )

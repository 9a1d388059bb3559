"""Sources of a job's dead letters: data directories, a running cluster, or Parquet; and the run before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumq.client.blocking import connect
from quorumq.core.values.errors import NotFound, QuorumqError, StorageError, UsageError
from quorumq.storage.scan import start_of
from quorumq.storage.segment import NAME_SUFFIX

from ..folders import Folder
from ..schemas import TABLES, schema
from ..session import exactly
from ..source import register
from ..source.options import TASKS, names_in, read_options
from ..source.stream import positions_of
from ..transforms.deaths import DEATHS
from .output import Output

OUTPUT: Final = Output("deadletters", 1)

KNOWN: Final = "known"
"""The directory in OUT, if it goes on from another run, with hashes of all deaths up to that run."""


class Input(NamedTuple):
    """Input of an analysis.

    Attributes:
        deadletters: rows of the table `deadletters` (spark/schemas.py).
        problems: rows of the table `problems`, about data that could not be read; None without such a table.
        source: producer id of the rows, in words.
        cluster: the cluster's id; None if not known.
        nodes: addresses of the cluster, if it was read live.
        topics, groups: only these are in it; all if empty.
        positions: positions of the nodes' journals before they were read; None if not known.
        since: the earlier run to go on from; its `out` and `as_of`.
        known: hashes of the deaths of that run and of those before it, to be left out; None without such a run.
    """

    deadletters: DataFrame
    problems: DataFrame | None
    source: str
    cluster: str | None = None
    nodes: str = ""
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    positions: Mapping[str, Any] | None = None
    since: Mapping[str, str] | None = None
    known: DataFrame | None = None


def read(
    session: SparkSession,
    *,
    data: Iterable[Path] = (),
    nodes: str = "",
    parquet: Folder | None = None,
    topics: Iterable[str] = (),
    groups: Iterable[str] = (),
    since: Folder | None = None,
) -> Input:
    """Return the dead letters of data directories, of a running cluster, or of a table in Parquet.

    With ``since``, the OUT of an earlier run, only those that nodes have got since.

    Raises:
        UsageError, NotFound, StorageError: there is nothing that can be read; the text names it.
    """
    directories = [str(path) for path in data]
    topics, groups = tuple(topics), tuple(groups)
    problems: DataFrame | None
    cluster: str | None
    head = head_since(since, bool(directories)) if since is not None else None
    positions = positions_in(directories) if directories else None
    if parquet is not None:
        if parquet.session is None and not parquet.local.is_dir():
            raise NotFound(f"{parquet} is no directory: --parquet takes what `DataFrame.write.parquet` wrote")
        deaths = read_parquet(session, parquet)
        problems, source, cluster = None, str(parquet), None
    else:
        register(session)
        tasks = min(session.sparkContext.defaultParallelism, TASKS)  # each reads all records
        offline = {"data": json.dumps(directories), "onDamage": "report", "tasks": str(tasks)}
        location = offline if directories else {"nodes": nodes}
        if head:
            location["since"] = json.dumps(head["positions"])
            # A node that is away is read from there later.
            positions = {**head["positions"], **(positions or {})}
        reader = session.read.format("quorumq").options(**location)
        problems = reader.option("table", "problems").load() if directories else None
        deaths = reader.option("table", "deadletters").load()
        source = ", ".join(directories) or nodes
        cluster = cluster_of_directories(directories) if directories else cluster_of_nodes(nodes)
    deaths = only(deaths, topics, groups)
    for column, names in (("topic", topics), ("group", groups)):
        if names:
            source += f"; {column} {', '.join(names)}"
    inputs = Input(deaths, problems, source, cluster, nodes, topics, groups, positions)
    if head is None:
        return inputs
    check_previous(head, since, inputs, same=True)
    return inputs._replace(since={"out": str(since), "as_of": head["as_of"]}, known=known_to(session, since))


def known_to(session: SparkSession, out: Folder) -> DataFrame:
    """Return the hashes of the dead letters of a run, and of those before it.

    Its positions are from before it read, and a node whose segments are gone says again what it has.
    """
    deaths = session.read.schema(DEATHS).parquet(exactly((out / "tables" / "deaths").uri))
    known = deaths.select(death_hash().alias("hash"))
    if (out / KNOWN).exists():
        known = known.union(session.read.schema("hash BIGINT").parquet(exactly((out / KNOWN).uri)))
    return known


def death_hash() -> Column:
    return F.xxhash64("id", "group", "generation", "n")


def head_since(since: Folder, offline: bool) -> dict[str, Any]:
    """Return the summary of the run to go on from.

    Raises:
        UsageError: it has no positions, or this run does not read data directories.
    """
    head = OUTPUT.read_head(since)
    if not offline:
        raise UsageError("--since goes with --data: only journals have positions")
    if not head.get("positions"):
        raise UsageError(
            f"{since} has no positions to go on from: it was not read from data directories that can be followed"
        )
    return head


def positions_in(directories: Sequence[str]) -> dict[str, Any] | None:
    """Return the positions of data directories; None if one cannot be followed: the read itself says why."""
    options = read_options({"table": "deadletters", "data": json.dumps(directories)})
    try:
        return positions_of(options, schema("deadletters"))
    except (QuorumqError, OSError):
        return None


def read_parquet(session: SparkSession, location: Folder) -> DataFrame:
    """Return the rows of the table `deadletters` in a directory.

    Raises:
        NotFound: there is no Parquet in it.
        UsageError: a column that every dead letter has is missing.
    """
    whole, path = schema("deadletters"), exactly(location.uri)
    here = location.local if location.session is None else None
    if here and not any(it.is_file() and not it.name.startswith(("_", ".")) for it in here.rglob("*")):
        if not (here / "_SUCCESS").exists():
            raise NotFound(
                f"{location} has no Parquet in it: --parquet takes what `DataFrame.write.parquet` wrote"
            )
        # Spark makes no more than that of a table that has partitions and no rows.
        return session.createDataFrame([], whole)
    needed = [column.name for column in TABLES["deadletters"] if not column.nullable]
    there = session.read.parquet(path).columns
    missing = [name for name in needed if name not in there]
    if missing:
        raise UsageError(
            f"{location} has no column {', '.join(missing)}: --parquet takes rows of the table deadletters"
        )
    return session.read.schema(whole).parquet(path)


def only(rows: DataFrame, topics: Iterable[str], groups: Iterable[str]) -> DataFrame:
    """Return the rows of these topics and groups; all rows if none is named."""
    for column, names in (("topic", list(topics)), ("group", list(groups))):
        if names:
            rows = rows.where(F.col(column).isin(names))
    return rows


def cluster_of_directories(directories: Iterable[str]) -> str | None:
    """Return the id of the cluster of these data directories, by their newest segments; None if none can be read."""
    segments = (path for it in directories for path in sorted(Path(it).glob(f"*{NAME_SUFFIX}"))[::-1])
    start = next(filter(None, map(start_of, segments)), None)
    return None if start is None else start.cluster_id


def cluster_of_nodes(nodes: str) -> str:
    with connect(names_in(nodes), timeout=10.0) as client:
        return client.metadata().cluster_id


def read_previous_head(previous: Folder) -> dict[str, Any]:
    """Return the summary of a run; the table that is compared with must be there."""
    summary = OUTPUT.read_head(previous)
    if not (previous / "tables" / "failures").exists():
        raise StorageError(f"{previous}/tables/failures is missing: the run that wrote it was not complete")
    return summary


def check_previous(
    previous: Mapping[str, Any], location: Folder | None, inputs: Input, *, same: bool = False
) -> None:
    """Check that a run can be compared with this one: rows that only one looked at would be called new, or gone.

    Raises:
        UsageError: it was of another cluster, or looked at less; with ``same``, also if it looked at more.
    """
    cluster = previous.get("cluster")
    if cluster is not None and inputs.cluster is not None and cluster != inputs.cluster:
        raise UsageError(
            f"{location} is of cluster {cluster!r} and this one is {inputs.cluster!r}: give an OUT of the same cluster"
        )
    for option, names in (("topic", inputs.topics), ("group", inputs.groups)):
        before = previous.get("only", {}).get(f"{option}s", [])
        if same and set(before) != set(names):
            raise UsageError(
                f"{location} is of {option} {', '.join(before) or 'all'}: choose the same with --{option}"
            )
        if before and not (names and set(names) <= set(before)):
            raise UsageError(
                f"{location} is of {option} {', '.join(before)} only: choose no others with --{option}, or "
                "give an OUT that has them all"
            )

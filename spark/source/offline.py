"""Tables out of data directories.

`problems` is read segment by segment. In the others a message is one row however many nodes have it, so one Spark task
has all of a topic partition (or all of a share of its producer ids), and each reads all records
(docs/decisions/0029-each-task-reads-all-records.md).

A task begins with opening every file it needs and gives out its first row after it has read all headers. So a task
that is repeated gives the same rows or an error, and never some rows twice.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import PartitionId

from .arrow import Batches
from .deaths import DeathsReader
from .journals import Directory, Problem
from .merged import MessagesReader
from .options import Options, Wanted
from .planning import plan_directory
from .problems import ProblemsReader
from .reader import Task, reporter
from .registers import Registers

TASK_BYTES: Final = 64 << 20
"""Bytes of segments in which a task looks for problems, on average."""

TASK_BYTES_MAX: Final = 16 << 30
"""Bytes of journals to a task, for its memory: it keeps 200 bytes of each dead letter."""


def plan(options: Options, selection: Wanted) -> list[Task]:
    """Return the tasks of a read: on the driver.

    Raises:
        UsageError: a directory that is no node's, two of one node, or of two clusters.
        StorageError: a directory cannot be read.
    """
    planned = [plan_directory(path, reporter(options)) for path in options.data]
    check_nodes(entry.directory for entry in planned)
    registers, sizes = Registers(), Counter[PartitionId]()
    for entry in planned:
        registers.update(entry.registers)
        sizes.update(entry.sizes)
    directories = tuple(entry.directory for entry in planned)
    for topic in (topic for entry in planned for topic in entry.registers.topics.values()):
        for partition in range(topic.partitions):
            sizes.setdefault(PartitionId(topic.id, partition), 0)
    if options.table == "problems":
        first = directories[0]
        first = first._replace(problems=(*first.problems, *absent(directories, registers)))
        if options.since is not None:  # the plan has the problems of the newest segments
            return [Task((it._replace(segments=()),)) for it in (first, *directories[1:])]
        return [task for it in (first, *directories[1:]) for task in _problem_tasks(it)]
    bodies = {key: sizes[key] for key in wanted_keys(sizes, registers, options, selection)}
    least = -(-sum(segment.bytes for it in directories for segment in it.segments) // TASK_BYTES_MAX)
    return [
        Task(directories, chunk, share=share, registers=registers.only({key.topic for key in chunk}))
        for chunk, share in shares(bodies, options.tasks, least)
    ]


def absent(directories: Iterable[Any], registers: Registers) -> Iterator[Problem]:
    """Yield a problem for each node whose directory is absent: a list of dead letters may be incomplete without it."""
    given = {directory.node for directory in directories}
    lacking: dict[str, list[str]] = {}
    for topic in sorted(registers.topics.values(), key=lambda topic: topic.name):
        for number, members in enumerate(() if registers.is_deleted(topic.id) else topic.replicas):
            if len(given.intersection(members)) < (len(members) + 1) // 2:
                for node in sorted(set(members) - given):
                    lacking.setdefault(node, []).append(f"{topic.name}/{number}")
    for node, partitions in sorted(lacking.items()):
        names = f"{len(partitions)} topic partitions ({partitions[0]} …)"
        impact = f"dead letters and messages of {names}, unless another has them"
        reason = "the data directory of this node was not given, and too few of the others were"
        yield Problem(node, "", None, None, None, "absent", reason, impact)


def check_nodes(directories: Iterable[Any]) -> None:
    """Refuse directories, or journals that are followed, that cannot be merged: two of one node, or of two clusters."""
    by_node: dict[str, Any] = {}
    cluster: Any = None
    for directory in directories:
        before = by_node.get(directory.node)
        if before is not None:
            raise UsageError(
                f"{before.path} and {directory.path} are both of node {directory.node!r}: give one of them"
                + ("" if before.directory == directory.directory else ", that which the node uses now")
            )
        by_node[directory.node] = directory
        if cluster is not None and cluster.cluster_id != directory.cluster_id:
            raise UsageError(
                f"{cluster.path} is of cluster {cluster.cluster_id!r} and {directory.path} of "
                f"{directory.cluster_id!r}: read one cluster at a time"
            )
        cluster = cluster or directory


def wanted_keys(
    keys: Iterable[PartitionId], registers: Registers, options: Options, selection: Wanted
) -> Iterator[PartitionId]:
    """Yield the topic partitions that options and filters leave."""
    for key in keys:
        name = registers.name_of(key.topic)
        if (
            not registers.is_deleted(key.topic)
            and options.chooses(name)
            and selection.may_be("topic", name)
            and selection.may_be("topic_id", key.topic.hex())
            and selection.may_be("partition", key.number)
        ):
            yield key


def shares(
    sizes: Mapping[PartitionId, int], most: int, least: int
) -> Iterator[tuple[frozenset[PartitionId], tuple[int, int]]]:
    """Yield the topic partitions, and the share of the producer ids, of each task.

    Args:
        sizes: bytes of the bodies in each topic partition.
        most: most tasks, if they are as many as ``least``.
        least: with more tasks than topic partitions, each of these is cut by producer ids.
    """
    chunks: list[tuple[int, int, list[PartitionId]]] = [(0, at, []) for at in range(min(most, len(sizes)))]
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        size, at, chunk = heapq.heappop(chunks)
        heapq.heappush(chunks, (size + sizes[key], at, [*chunk, key]))
    for _, _, chunk in chunks:
        of = -(-least // len(chunks))
        yield from ((frozenset(chunk), (number, of)) for number in range(of))


def _problem_tasks(directory: Directory) -> Iterator[Task]:
    of = -(-sum(segment.bytes for segment in directory.segments) // TASK_BYTES)
    yield from (Task((directory,), share=(number, of)) for number in range(of))


def read(task: Task, options: Options, selection: Wanted, schema: StructType) -> Iterator[pa.RecordBatch]:
    table = {
        "problems": ProblemsReader,
        "messages": MessagesReader,
        "deadletters": DeathsReader,
    }[options.table]
    yield from table(task, options, selection, Batches(schema)).read()

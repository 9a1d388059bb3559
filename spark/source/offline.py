"""Tables out of data directories.

`copies` and `problems` are read segment by segment. In the others a message is one row however many nodes have it, so
one Spark task has all of a topic partition (or all of a share of its producer ids).

A task begins with opening every file it needs and gives out its first row after it has read all headers. So a task
that is repeated gives the same rows or an error, and never some rows twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from quorumq.core.values.errors import UsageError
from quorumq.core.values.types import PartitionId

from .arrow import Batches
from .copies import CopiesReader, ProblemsReader
from .deaths import DeathsReader
from .journals import Directory, Problem
from .merged import MessagesReader
from .options import Options, Wanted
from .planning import plan_directory
from .reader import Task, holds_any, reporter
from .registers import Registers

T = TypeVar("T")


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
        directories = (
            first._replace(problems=(*first.problems, *absent(directories, registers))),
            *directories[1:],
        )
    if options.table in ("copies", "problems"):
        keys = wanted_keys(sizes, registers, options, selection, deleted=True)
        return _segment_tasks(directories, registers, keys, options, selection)
    keys = wanted_keys(sizes, registers, options, selection, deleted=False)
    tasks: list[Task] = []
    # Small topic partitions come together, as each task reads all headers.
    for chunk in packed(((key, sizes[key]) for key in sorted(keys)), options.split_bytes):
        mine = registers.only({key.topic for key in chunk})
        for number in range(options.buckets):
            share = (number, options.buckets)
            tasks.append(Task(directories, frozenset(chunk), bucket=share, registers=mine))
    return tasks


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
    sizes: Mapping[PartitionId, int],
    registers: Registers,
    options: Options,
    selection: Wanted,
    *,
    deleted: bool,
) -> frozenset[PartitionId]:
    """Return the topic partitions that options and filters leave."""

    def is_wanted(key: PartitionId) -> bool:
        name = registers.name_of(key.topic)
        return (
            (deleted or not registers.is_deleted(key.topic))
            and options.chooses(name)
            and selection.may_be("topic", name)
            and selection.may_be("topic_id", key.topic.hex())
            and selection.may_be("partition", key.number)
        )

    return frozenset(filter(is_wanted, sizes))


def packed(items: Iterable[tuple[T, int]], most: int) -> list[list[T]]:
    """Return items in lists, in order: each of at most ``most`` bytes, or of one item if it is larger."""
    result: list[list[T]] = []
    total = 0
    for item, size in items:
        if not result or total + size > most:
            result.append([])
            total = 0
        result[-1].append(item)
        total += size
    return result


def _segment_tasks(
    directories: tuple[Directory, ...],
    registers: Registers,
    keys: frozenset[PartitionId],
    options: Options,
    selection: Wanted,
) -> list[Task]:
    """Return one task for each range of a node's segments."""
    tasks: list[Task] = []
    copies = options.table == "copies"
    for directory in directories:
        if copies and not selection.may_be("node", directory.node):
            continue
        counting = (
            (segment.number, segment.bytes)
            for segment in directory.segments
            if not copies or holds_any(segment, keys, "published_at", selection)
        )
        ranges = packed(counting, options.split_bytes)
        tasks += [
            Task(
                (directory,),
                keys=keys if copies else None,
                segments=frozenset(numbers),
                bucket=(at, len(ranges)),
                registers=registers.only(registers.topics),
            )
            for at, numbers in enumerate(ranges)
        ]
    return tasks


def read(task: Task, options: Options, selection: Wanted, schema: StructType) -> Iterator[pa.RecordBatch]:
    table = {
        "copies": CopiesReader,
        "problems": ProblemsReader,
        "messages": MessagesReader,
        "deadletters": DeathsReader,
    }[options.table]
    yield from table(task, options, selection, Batches(schema)).read()

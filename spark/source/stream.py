"""Following dead letters in the journals of nodes.

An offset is a position in each node's journal. Between two offsets a node got some DEAD records, and the same death
reaches several nodes, now or later. So the batch in which the first node got it gives it out.

The driver reads each record once (`follow.Tail`) and decides by names of 16 bytes which deaths are new. A task carries
parts of one node's segments and a byte for each death in them; it reads deaths and messages for itself.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorumq.core.values.errors import StorageError, UsageError
from quorumq.core.values.names import begins_ms
from quorumq.core.values.spans import SpanMap
from quorumq.core.values.types import PartitionId, Span
from quorumq.storage.segment import segment_name

from .arrow import Batches
from .causes import Rank
from .deaths import Closed, DeathsReader, resolution_of
from .follow import NOTHING, Chunk, Entry, Gap, Seen, Tail, joined
from .fragments import RECORD, expanded, take
from .fragments import Numbers as Column
from .journals import (
    RECORDS_MERGED,
    Decoded,
    Directory,
    Numbers,
    OpenDirectory,
    SegmentGone,
    SegmentPlan,
    ignore,
)
from .offline import absent as lacking_nodes
from .offline import check_nodes
from .options import BATCH_BYTES, Options, Wanted
from .planning import segments_in
from .reader import BATCHES, CONTENT, Task
from .registers import Registers

TASK_DEATHS: Final = 4096
TASK_BYTES: Final = 4 << 20
TASK_PARTS: Final = 32
TASK_CODES: Final = 1000
"""Most deaths, bytes of records, parts with messages in each directory, and packed codes of one task."""


class Fate(NamedTuple):
    """The topic of some deaths, what became of their messages, and the nodes that have them."""

    topic: str
    resolution: str
    nodes: tuple[str, ...]


@dataclass(eq=False)
class StreamTask(InputPartition):
    """Deaths in one node's journal.

    Attributes:
        path, directory: the node's data directory, and its number.
        parts: (segment, first, stop) with the records.
        codes: a byte for each death in the parts, packed: 0 if another task or batch gives it out, else the number
            of its fate, from 1 on.
        fates: each fate that occurs.
        bodies: path, number and parts of each directory that may have the messages.
        held: number and open file of segments that the driver holds, which may be deleted: usable on its machine.
    """

    path: str
    directory: int
    parts: tuple[tuple[int, int, int], ...]
    codes: bytes
    fates: tuple[Fate, ...]
    bodies: tuple[tuple[str, int, tuple[tuple[int, int, int], ...]], ...]
    held: tuple[tuple[int, str], ...]


Ranks = dict[tuple[PartitionId, str], SpanMap[Rank]]
"""Records of messages, by topic partition and group."""


class DeathsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the dead letters of some data directories. Its state is on the driver only."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._clear()

    def _clear(self) -> None:
        for tail in getattr(self, "tails", {}).values():
            tail.close()
        self.tails: dict[str, Tail] = {}  # by path
        self.away: dict[str, str] = {}  # the paths that cannot be read now, with the reason
        self.registers = Registers()
        self.seen = Seen()
        self.before: Ranks = {}  # settled before the stream was taken up
        self.later: list[Ranks] = [{}, {}]  # settled since the last batch, and since the one before
        self.closed = Closed()
        self.reread: dict[str, Any] = {}  # offsets by node that do not count: its journal lacks them
        self.targets: dict[str, tuple[int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema}

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:
        if not self.options.latest:
            return {}
        for path in self.options.data:
            tail = self.tails[path] = self._open(path, NOTHING, newest=True)
            tail.poll()
        self._check({}, {})
        return self._offset({})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self.options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        for path in self.options.data:
            with suppress(UsageError, OSError):
                number = segments_in(path)[-1]
                self.targets[path] = (number, os.path.getsize(os.path.join(path, segment_name(number))))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 1 << 62
        self._follow(start, -(-most // len(self.options.data)))
        return self._offset(start)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the nodes' positions, for the progress of the query, and the directories that are away."""
        return {**self._offset({}), **({"away": sorted(self.away)} if self.away else {})}

    def commit(self, end: dict[str, Any]) -> None:
        self._advance(end)

    def stop(self) -> None:
        self._clear()

    def _offset(self, start: Mapping[str, Any]) -> dict[str, Any]:
        end = dict(start)
        for tail in self.tails.values():
            end[tail.node] = {"directory": f"{tail.directory:016x}", "position": tail.position}
        return end

    # ------------------------------------------------------------------ nodes

    def _follow(self, start: Mapping[str, Any], most: int) -> None:
        """Have a tail of each directory that can be read, from its position in ``start`` on; read ``most`` bytes."""
        absent: dict[str, str] = {}
        for path in self.options.data:
            try:
                self._tail(path, start, most)
            except (UsageError, OSError) as error:
                absent[path] = str(error)
                if path in self.tails:
                    self.tails.pop(path).close()
        self._check(start, absent)
        self._advance(start)

    def _open(self, path: str, since: int, *, newest: bool = False) -> Tail:
        def settle(position: int, key: PartitionId, group: str, span: Span, rank: Rank) -> None:
            ranks = (self.before if position <= since else self.later[0]).setdefault((key, group), SpanMap())
            ranks.update(span, lambda old: rank if old is None or old.order() < rank.order() else old)

        return Tail(path, since, settle, self.registers, newest=newest, report=self.options.report)

    def _tail(self, path: str, start: Mapping[str, Any], most: int) -> None:
        tail = self.tails.get(path)
        if tail is not None:
            with suppress(Gap, SegmentGone):
                self._poll(tail, most)
                since = self._since(start, tail)
                if since == NOTHING or since >= tail.base:
                    return
            self.tails.pop(path).close()
        probe = Tail(path, NOTHING, lambda *settled: None, Registers(), newest=True)
        probe.close()
        since = self._since(start, probe)
        try:
            tail = self._open(path, since)
            self._catch_up(tail, since)
        except (Gap, SegmentGone) as error:
            self._gap(error)
            self.reread[probe.node] = start[probe.node]
            tail = self._open(path, NOTHING)
        self._poll(tail, most)
        self.tails[path] = tail

    def _catch_up(self, tail: Tail, since: int) -> None:
        """Read a journal to the position up to which it was read before."""
        while tail.position < since:
            if not tail.poll(BATCH_BYTES) and tail.position < since:
                raise Gap(
                    f"{tail.path} is an older copy of itself: it was read to {since} and ends at {tail.position}"
                )
            self._given(tail.drop(since))

    def _since(self, start: Mapping[str, Any], tail: Tail) -> int:
        """Return the position up to which a node was read: NOTHING if it was not."""
        known = start.get(tail.node)
        if known is None or self.reread.get(tail.node) == known:
            return NOTHING
        if known["directory"] != f"{tail.directory:016x}":
            self._gap(
                f"node {tail.node!r} has another directory than the one that was followed ({tail.directory:016x}, not "
                f"{known['directory']}): it was wiped or replaced"
            )
            self.reread[tail.node] = known
            return NOTHING
        return int(known["position"])

    def _gap(self, why: object) -> None:
        if not self.options.reread:
            raise Gap(
                f"{why}. Deaths that were settled meanwhile cannot be known any more. option('onGap', 'reread') goes "
                "on: all dead letters that the node has now come again, but for those that another node proves known"
            )

    def _check(self, start: Mapping[str, Any], absent: dict[str, str]) -> None:
        """Go on without some directories if a majority of each replica set is there.

        Raises:
            UsageError: two directories of one node, of two clusters, or one that no earlier batch knew.
            StorageError: dead letters may be missing without those that are away.
        """
        check_nodes(self.tails.values())
        if len(absent) > len(set(start) - {tail.node for tail in self.tails.values()}):
            raise UsageError(next(iter(absent.values())))
        for lacking in lacking_nodes(self.tails.values(), self.registers) if absent else ():
            raise StorageError(
                f"{next(iter(absent.values()))}. Without it too few replicas are left: {lacking.impact}"
            )
        if set(absent) != set(self.away):
            for path, why in absent.items():
                print(f"quorumq: going on without {path}: {why}", file=sys.stderr)
        self.away = absent

    # ------------------------------------------------------------------ reading

    def _poll(self, tail: Tail, most: int) -> None:
        tail.until = self.targets.get(tail.path, tail.until)
        tail.poll(most)
        for record in tail.closed:
            self.closed.take(record)
        tail.closed.clear()

    def _advance(self, start: Mapping[str, Any]) -> None:
        """Take what nodes had up to ``start`` as given out."""
        moved = [self._given(tail.drop(self._since(start, tail))) for tail in self.tails.values()]
        if any(moved):
            self.later = [{}, self.later[0]]

    def _given(self, entries: Iterator[Entry]) -> bool:
        moved = False
        for entry in entries:
            self.seen.add(entry.name)
            moved = True
        return moved

    # ------------------------------------------------------------------ tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._follow(start, 0)
        ranges: dict[str, tuple[int, int]] = {}
        for path, tail in self.tails.items():
            known = end.get(tail.node)
            same = known is not None and known["directory"] == f"{tail.directory:016x}"
            until = int(known["position"]) if known is not None and same else NOTHING
            while tail.position < until and tail.poll(BATCH_BYTES):
                pass
            ranges[path] = (self._since(start, tail), until)
        new = {
            path: [entry for entry in self.tails[path].entries if since < entry.position <= until]
            for path, (since, until) in ranges.items()
        }
        return Planner(self, new).tasks()

    def read(self, partition: Any) -> Iterator[Any]:
        yield from StreamReader(partition, self.options, Batches(self.schema)).read()


class SinceReader(DataSourceReader):
    """Reads the dead letters behind some positions once, as one micro-batch that no gap ends."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.stream = DeathsStream(options._replace(reread=True), schema)

    def partitions(self) -> Sequence[InputPartition]:
        start = dict(self.stream.options.since or {})
        try:
            tasks = self.stream.partitions(start, self.stream.latestOffset(start, ReadAllAvailable()))
        finally:
            self.stream.stop()
        for task in tasks:
            task.held = ()  # type: ignore[attr-defined]  # they are closed: Spark plans in a process of its own
        return tasks

    def read(self, partition: Any) -> Iterator[Any]:
        if isinstance(partition, StreamTask):  # Spark makes another one if there is nothing to read
            yield from self.stream.read(partition)


def positions_of(options: Options, schema: StructType) -> dict[str, Any]:
    """Return the positions of nodes now, as an offset of a stream has them; only their newest segments are read."""
    stream = DeathsStream(options._replace(latest=True), schema)
    try:
        return stream.initialOffset()
    finally:
        stream.stop()


class Planner:
    """Makes the tasks of one micro-batch.

    Args:
        stream: the state.
        new: the deaths that each directory got in this batch, by path.
    """

    def __init__(self, stream: DeathsStream, new: Mapping[str, Sequence[Entry]]) -> None:
        self.stream = stream
        self.new = new
        self.registers = stream.registers
        self.columns = set(stream.schema.names)
        self.best: dict[bytes, Entry] = {}
        self.nodes: dict[bytes, set[str]] = {}

    def tasks(self) -> list[InputPartition]:
        """Return the tasks. Of the same death in several nodes, that with the lowest ballot is given out."""
        for path, entries in self.new.items():
            node = self.stream.tails[path].node
            for entry in entries:
                if entry.name in self.stream.seen or not self._is_due(entry, node):
                    continue
                before = self.best.setdefault(entry.name, entry)
                if entry.ballot < before.ballot:
                    self.best[entry.name] = entry
                self.nodes.setdefault(entry.name, set()).add(node)
        return [task for path, entries in self.new.items() for task in self._tasks(path, entries)]

    def _is_due(self, entry: Entry, node: str) -> bool:
        """Return True if a death in a node's journal counts, is chosen, and was not settled before the stream."""
        options, registers, topic = self.stream.options, self.registers, entry.key.topic
        if registers.is_deleted(topic) or not registers.counts_at(entry.key, node):
            return False
        if entry.rank.generation < registers.buried(topic, entry.group):
            return False
        if not options.chooses(registers.name_of(topic)):
            return False
        if options.groups is not None and entry.group not in options.groups:
            return False
        known = rank_in(self.stream.before, entry)
        return known is None or known.order() < entry.rank.order()

    def _fate(self, entry: Entry) -> Fate:
        now = entry.rank
        for ranks in self.stream.later:
            then = rank_in(ranks, entry)
            if then is not None and then.order() > now.order():
                now = then
        register = self.registers.groups.get((entry.key.topic, entry.group))
        covered = (
            register is not None and begins_ms(entry.producer_id, entry.published_ms) >= register.from_ms
        )
        resolution = resolution_of(entry.rank, now, register, covered)
        if (entry.key, entry.producer_id) in self.stream.closed:
            resolution = "closed"
        nodes = tuple(sorted(self.nodes[entry.name]))
        return Fate(self.registers.name_of(entry.key.topic), resolution, nodes)

    def _tasks(self, path: str, entries: Sequence[Entry]) -> Iterator[StreamTask]:
        """Yield the tasks over one directory: a part of each segment, cut between records."""
        parts: dict[int, tuple[int, int]] = {}
        codes, fates = bytearray(), dict[Fate, int]()
        taken: list[Entry] = []
        for (segment, offset, end), each in groupby(entries, key=itemgetter(1, 2, 3)):
            record = list(each)
            mine = [entry for entry in record if self.best.get(entry.name) is entry]
            if not mine and not codes:
                continue
            first, stop = parts.get(segment, (offset, offset))
            size = sum(stop - first for first, stop in parts.values()) + end - stop
            if codes and (
                len(codes) + len(record) > TASK_DEATHS or size > TASK_BYTES
                or len(fates) > 200 or len(zlib.compress(codes)) > TASK_CODES
            ):  # fmt: skip
                yield self._task(path, parts, codes, fates, taken)
                parts, codes, fates, taken, first = {}, bytearray(), {}, [], offset
                if not mine:
                    continue
            parts[segment] = (first, end)
            for entry in record:
                chosen = self.best.get(entry.name) is entry
                codes.append(fates.setdefault(self._fate(entry), len(fates) + 1) if chosen else 0)
            taken += mine
        if codes:
            yield self._task(path, parts, codes, fates, taken)

    def _task(
        self,
        path: str,
        parts: Mapping[int, tuple[int, int]],
        codes: bytearray,
        fates: dict[Fate, int],
        taken: list[Entry],
    ) -> StreamTask:
        tail = self.stream.tails[path]
        held = tuple((it, f"/proc/{os.getpid()}/fd/{tail.files[it].fd}") for it in parts if it in tail.files)
        return StreamTask(
            path, tail.directory, tuple((number, *part) for number, part in parts.items()), zlib.compress(codes),
            tuple(fates), tuple(self._bodies(path, taken)), held,
        )  # fmt: skip

    def _bodies(self, path: str, taken: list[Entry]) -> Iterator[Any]:
        if self.columns.isdisjoint((*CONTENT, "crc")) and (
            "published_at" not in self.columns or all(entry.published_ms for entry in taken)
        ):
            return
        lookups: dict[PartitionId, list[int]] = {}
        for entry in taken:
            lookups.setdefault(entry.key, []).append(entry.published_ms)
        for times in lookups.values():
            times.sort()
        for each in sorted(self.stream.tails, key=lambda other: other != path):
            tail = self.stream.tails[each]
            chunks: list[Chunk] = list(tail.bodies(lookups))
            if chunks:
                yield each, tail.directory, joined(chunks, TASK_PARTS)


def rank_in(ranks: Ranks, entry: Entry) -> Rank | None:
    spans = ranks.get((entry.key, entry.group))
    return None if spans is None else spans.get(entry.producer_id, entry.seq)


# ------------------------------------------------------------------ executors


def planned(
    path: str, directory: int, parts: Iterable[tuple[int, int, int]], held: Iterable[tuple[int, str]]
) -> OpenDirectory:
    """Open these parts of segments of a directory, to be read in this order."""
    by_segment: dict[int, list[tuple[int, int]]] = {}
    for segment, first, stop in parts:
        by_segment.setdefault(segment, []).append((first, stop))
    plans = (
        SegmentPlan(segment, max(stop for _, stop in ranges), newest=False, state=True, parts=tuple(ranges))
        for segment, ranges in by_segment.items()
    )
    plan = Directory(path, "", "", directory, tuple(plans), Numbers(), frozenset(), ())
    return OpenDirectory(plan, held=dict(held))


class StreamReader(DeathsReader):
    """Reads one task: the deaths of one node that the driver chose, and their messages wherever they are."""

    def __init__(self, task: StreamTask, options: Options, out: Batches) -> None:
        super().__init__(Task(()), options, Wanted(), out)
        self.stream_task = task
        self.report = ignore  # a damaged copy is in the table `problems`; another node may have it whole

    def open(self) -> None:
        """Open all files, less those of messages that were reclaimed meanwhile."""
        task = self.stream_task
        try:
            there = planned(task.path, task.directory, task.parts, task.held)
        except SegmentGone:
            raise SegmentGone(
                f"{task.path}: the node deleted a segment with deaths of this batch before they were read: run the "
                "query again, with option('onGap', 'reread') if its journal does not reach back"
            ) from None
        self.open_directories.append(there)
        for path, directory, parts in task.bodies:
            held = task.held if path == task.path else ()
            for _, mine in groupby(parts, itemgetter(0)):
                with suppress(SegmentGone):
                    self.open_directories.append(planned(path, directory, mine, held))

    def _scan(self) -> None:
        records, *bodies = self.open_directories
        for plan in records.plan.segments:
            for frame in records.frames(plan, self.report, Decoded(None, ())):
                if frame.type == RECORDS_MERGED:
                    self._entries(0, records, plan, frame)
        mine = Decoded((), {producer.key for producer in self.fragments.producers})
        for at, opened in enumerate(bodies, 1):
            for plan in opened.plan.segments:
                for frame in opened.frames(plan, self.report, mine):
                    if frame.type in BATCHES:
                        self._spans(at, opened, plan, frame)

    def _dead(self) -> dict[str, Column]:
        rows = self.fragments.rows(RECORD)
        rows = expanded(take(rows, rows["cause"] >= 0))
        codes = np.frombuffer(zlib.decompress(self.stream_task.codes), np.uint8).astype(np.int64)
        if codes.size != rows["start"].size:
            raise StorageError(
                f"{self.stream_task.path}: the journal changed while it was read: run the query again"
            )
        return take({**rows, "fate": codes - 1}, codes > 0)

    def _chosen(self, dead: dict[str, Column]) -> Column:
        return np.arange(dead["start"].size)

    def _columns(self, masks: list[int]) -> dict[str, tuple[str, list[Any]]]:
        topics, resolutions, nodes = map(list, zip(*self.stream_task.fates, strict=True))
        fates = {"topic": topics, "resolution": resolutions, "replicas": nodes}
        return {**super()._columns(masks), **{name: ("fate", values) for name, values in fates.items()}}

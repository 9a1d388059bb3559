"""One task of a stream: deaths and messages out of parts of segments. Imported by the executors alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from quorumq.core.values.errors import StorageError
from quorumq.storage.segment import segment_number

from .arrow import Batches
from .deaths import DeathsReader
from .fragments import RECORD, expanded, take
from .fragments import Numbers as Column
from .journals import (
    RECORDS_MERGED,
    Decoded,
    Directory,
    Numbers,
    OpenDirectory,
    Problem,
    SegmentGone,
    SegmentPlan,
    ignore,
)
from .options import Options, Wanted
from .reader import BATCHES, Task
from .stream import StreamTask


def changed(problem: Problem) -> None:
    """End the read at records that were there when the task was planned."""
    raise StorageError(f"{problem}: it changed while it was read")


def planned(path: str, directory: int, parts: Iterable[tuple[int, int, int]]) -> Directory:
    """Return the plan of a directory if these parts of its segments are read, in this order."""
    by_segment: dict[int, list[tuple[int, int]]] = {}
    for segment, first, stop in parts:
        by_segment.setdefault(segment, []).append((first, stop))
    plans = (
        SegmentPlan(segment, max(stop for _, stop in ranges), newest=False, state=True, parts=tuple(ranges))
        for segment, ranges in by_segment.items()
    )
    return Directory(path, "", "", directory, tuple(plans), Numbers(), frozenset(), ())


class StreamReader(DeathsReader):
    """Reads one task: the deaths of one node that the driver chose, and their messages wherever they are."""

    def __init__(self, task: StreamTask, options: Options, out: Batches) -> None:
        super().__init__(Task(()), options, Wanted(), out)
        self.stream_task = task
        self.report = ignore  # a damaged copy is in the table `problems`; another node may have it whole

    def open(self) -> None:
        """Open all files, less those of messages that were reclaimed meanwhile."""
        task = self.stream_task
        held = {number: file for name, file in task.held if (number := segment_number(name)) is not None}
        try:
            there = OpenDirectory(planned(task.path, task.directory, task.parts), held=held)
        except SegmentGone:
            raise SegmentGone(
                f"{task.path}: the node deleted a segment with letters of this batch before they were read: run the "
                "query again, with option('onGap', 'reread') if its journal does not reach back"
            ) from None
        self.open_directories.append(there)
        for path, directory, parts in task.bodies:
            for part in parts:
                try:
                    opened = OpenDirectory(
                        planned(path, directory, [part]), held=held if path == task.path else {}
                    )
                except SegmentGone:
                    continue
                self.open_directories.append(opened)

    def _scan(self) -> None:
        (records, *bodies), others = self.open_directories, Decoded(())
        for plan in records.plan.segments:
            for frame in records.frames(plan, changed):
                if frame.type == RECORDS_MERGED:
                    self._entries(0, records, plan, frame)
        for at, opened in enumerate(bodies, 1):
            for plan in opened.plan.segments:
                for frame in opened.frames(plan, self.report, others):
                    if frame.type in BATCHES:
                        self._spans(at, opened, plan, frame)

    def _dead(self) -> dict[str, Column]:
        rows = self.fragments.rows(RECORD)
        rows = expanded(take(rows, rows["cause"] >= 0))
        codes = np.frombuffer(zlib.decompress(self.stream_task.codes), np.uint8).astype(np.int64)
        return take({**rows, "fate": codes - 1}, codes > 0)

    def _chosen(self, dead: dict[str, Column]) -> Column:
        return np.arange(dead["start"].size)

    def _columns(self, masks: list[int]) -> dict[str, tuple[str, list[Any]]]:
        topics, resolutions, nodes = map(list, zip(*self.stream_task.fates, strict=True))
        fates = {"topic": topics, "resolution": resolutions, "replicas": nodes}
        return {**super()._columns(masks), **{name: ("fate", values) for name, values in fates.items()}}

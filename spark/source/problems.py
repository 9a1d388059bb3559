"""Each copy of each batch as it lies in one node's journal, and the problems of reading it."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pyarrow as pa

from quorumq.storage.scan import Frame

from .arrow import Same, Values, known_time, time_of
from .journals import OpenDirectory, Problem, SegmentPlan
from .reader import BATCHES, Loaded, Reader, content, names


class CopiesReader(Reader):
    """`copies`: every batch that counts, as it lies in one node's journal."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        (directory,) = self.open_directories
        bodies = self.content or (self.options.verify and self.out.wants("intact"))
        for plan in self.segments_of(directory.plan):
            for frame in directory.frames(plan, self.report):
                if frame.type in BATCHES:
                    yield from self._batch(directory, plan, frame, bodies)

    def _batch(
        self, directory: OpenDirectory, plan: SegmentPlan, frame: Frame, bodies: bool
    ) -> Iterator[pa.RecordBatch]:
        batch = directory.batch(plan, frame)
        if batch is None:
            return
        stored = batch.stored
        header = stored.batch.header
        key = header.partition
        if self.task.keys is not None and key not in self.task.keys:
            return
        if not self.selection.may_be_at("published_at", header.published_ms, header.published_ms):
            return
        body = directory.body(plan.number, frame) if bodies and not batch.damaged else None
        intact = not batch.damaged and (body is not None or not bodies)
        if not intact:
            self.report(directory.body_problem(plan.number, frame))
        loaded = Loaded(directory, plan.number, frame, header, body)
        at = 0
        for section in header.spans:
            first, count = at, section.size
            at += count
            messages = self.messages_in(loaded, first, count)
            yield from self.out.add(
                count,
                header.end_of(first + count - 1) - header.end_of(first - 1),
                {
                    "node": Same(directory.plan.node),
                    **names(key, section, self.registers.name_of(key.topic)),
                    **content(messages, functools.partial(loaded.crcs, first, count)),
                    "published_at": Same(time_of(header.published_ms)),
                    "received_at": Same(known_time(stored.received_ms)),
                    "delay_ms": Same(header.delay_ms),
                    "ttl_ms": Same(header.ttl_ms),
                    "intact": Same(intact),
                    "batch": Same(stored.number),
                    "segment": Same(plan.number),
                    "offset": Same(frame.offset),
                },
            )


class ProblemsReader(Reader):
    """`problems`: everything that cannot be read or does not count. Reads every body."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        (directory,) = self.open_directories
        problems: list[Problem] = list(directory.plan.problems) if self.task.bucket[0] == 0 else []
        known = {(problem.segment, problem.offset) for problem in directory.plan.problems}

        def note(problem: Problem) -> None:
            if (problem.segment, problem.offset) not in known:
                problems.append(problem)

        self.report, self.content = note, True
        for plan in self.segments_of(directory.plan):
            for frame in directory.frames(plan, note):
                if frame.type in BATCHES:
                    self._check(directory, plan, frame)
                    yield from self._give(problems)
        yield from self._give(problems)

    def _check(self, directory: OpenDirectory, plan: SegmentPlan, frame: Frame) -> None:
        batch = directory.batch(plan, frame)
        if batch is None:
            return
        header = batch.stored.batch.header
        body = None if batch.damaged else directory.body(plan.number, frame)
        if body is None:
            self.report(directory.body_problem(plan.number, frame))
            return
        self.messages_in(Loaded(directory, plan.number, frame, header, body), 0, header.size)

    def _give(self, problems: list[Problem]) -> Iterator[pa.RecordBatch]:
        for problem in problems:
            values: dict[str, Values] = {name: Same(value) for name, value in problem._asdict().items()}
            yield from self.out.add(1, 0, values)
        problems.clear()

"""Everything in journals that cannot be read or does not count."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from quorumq.storage.scan import Frame

from .arrow import Same, Values
from .journals import Directory, OpenDirectory, Problem, SegmentPlan
from .reader import BATCHES, Loaded, Reader


class ProblemsReader(Reader):
    """`problems`: a task reads some segments of one node, and every body in them.

    It plans once. Why: the node moves batches to newer segments, which no task may have in its plan.
    """

    plans = 1

    def segments_of(self, directory: Directory) -> list[SegmentPlan]:
        number, of = self.task.share
        return [plan for plan in directory.segments if plan.number % of == number]

    def rows(self) -> Iterator[pa.RecordBatch]:
        (directory,) = self.open_directories
        (planned,) = self.task.directories
        problems: list[Problem] = list(planned.problems) if self.task.share[0] == 0 else []
        known = {(problem.segment, problem.offset) for problem in planned.problems}

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
        header, damaged = batch
        body = directory.files[plan.number].read(frame.body_offset, frame.body_length)
        loaded = Loaded(directory, plan.number, frame, header, body)
        if damaged or not loaded.intact:
            self.report(directory.body_problem(plan.number, frame))
            return
        self.messages_in(loaded, 0, header.size)

    def _give(self, problems: list[Problem]) -> Iterator[pa.RecordBatch]:
        for problem in problems:
            values: dict[str, Values] = {name: Same(value) for name, value in problem._asdict().items()}
            yield from self.out.add(1, 0, values)
        problems.clear()

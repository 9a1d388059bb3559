"""A node's journal under everything at once, against a list of the appended records."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumq.core.values.errors import StorageError
from quorumq.storage.commit import Commit
from quorumq.storage.segment import segment_name
from sim.memory_disk import MemoryDisk
from tests.storage.writer import PowerCut, Writer


class JournalMachine(RuleBasedStateMachine):
    """Appends, commits (in steps), rolls, restarts, crashes
    in the middle of disk calls, failed syncs, batches that are forgotten, moved, damaged, or several of these."""

    commit: Commit | None = None

    @initialize()
    def begin(self) -> None:
        self.writer = Writer(MemoryDisk(), segment_bytes=700)
        self.writer.open()

    @rule(count=st.integers(1, 5), size=st.sampled_from([20, 300, 5_000]))
    def append(self, count: int, size: int) -> None:
        self.writer.append(count, size)

    @precondition(lambda self: self.commit is None)
    @rule()
    def begin_commit(self) -> None:
        self.commit = self.writer.store.begin_commit()

    @precondition(lambda self: self.commit is not None)
    @rule()
    def finish_commit(self) -> None:
        assert self.commit is not None
        commit, self.commit = self.commit, None
        if commit.written:
            commit.sync()
        else:
            commit.run()
        self.writer.note_durable(self.writer.store.finish(commit))

    @precondition(lambda self: self.commit is not None and not self.commit.written)
    @rule()
    def write_of_the_commit(self) -> None:
        assert self.commit is not None
        self.commit.write()

    @rule()
    def roll(self) -> None:
        if self.writer.store.should_roll:
            self.writer.roll()

    @precondition(lambda self: self.commit is None)
    @rule()
    def restart(self) -> None:
        self.writer.close()
        self.again(self.writer.disk)

    @rule(seed=st.integers(0, 1 << 16))
    def crash(self, seed: int) -> None:
        self.again(self.writer.disk.crash(random.Random(seed)))

    @rule(seed=st.integers(0, 1 << 16), calls=st.integers(0, 8), kill=st.booleans())
    def crash_inside_a_commit(self, seed: int, calls: int, kill: bool) -> None:
        """The machine stops at a disk call, or only the process is killed there."""
        disk = self.writer.disk
        stop = disk.operations + calls

        def cut(operation: str, name: str) -> None:
            if disk.operations >= stop:
                raise PowerCut

        disk.on_operation = cut
        try:
            if self.commit is not None:
                self.commit.sync() if self.commit.written else self.commit.run()
            else:
                self.writer.store.begin_commit().run()
        except PowerCut:
            pass
        disk.on_operation = None
        self.writer.store.abandon()
        self.again(disk if kill else disk.crash(random.Random(seed)))

    @precondition(lambda self: self.commit is None)
    @rule(seed=st.integers(0, 1 << 16), kill=st.booleans())
    def failed_sync(self, seed: int, kill: bool) -> None:
        self.writer.append(1)
        disk = self.writer.disk
        disk.fail_syncs = 1
        try:
            self.writer.store.commit()
        except StorageError:
            pass
        else:
            raise AssertionError("a failed sync went unnoticed")
        self.writer.store.close()
        self.again(disk if kill else disk.crash(random.Random(seed)))

    @precondition(lambda self: self.writer.live())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        live = self.writer.live()
        numbers = data.draw(st.lists(st.sampled_from(live), unique=True, max_size=len(live)))
        self.writer.drop(sorted(numbers))

    @rule(keep=st.integers(2, 4))
    def discard_most(self, keep: int) -> None:
        self.writer.drop([number for number in self.writer.live() if number % keep])

    @rule(size=st.sampled_from([1, 400, 1 << 20]))
    def compact(self, size: int) -> None:
        self.writer.compact(size)

    @precondition(lambda self: self.commit is None and not self.writer.store.needs_write)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A medium that fails inside the body of a batch of an older segment, whose successor is on the disk."""
        store = self.writer.store
        locations = [(number, store._index.get(number)) for number in self.writer.live()]
        locations = [
            (number, at)
            for number, at in locations
            if at is not None and at.segment < max(store.live) and number not in self.writer.damaged
        ]
        if locations and len(self.writer.damaged) < 3:
            number, at = data.draw(st.sampled_from(locations))
            assert at is not None
            byte = data.draw(st.integers(at.offset, at.end - 1))
            self.writer.disk.flip(segment_name(at.segment), byte)
            self.writer.damaged |= {number}

    def again(self, disk: MemoryDisk) -> None:
        self.commit = None
        self.writer = Writer(disk, self.writer, segment_bytes=700)
        self.writer.open()

    @invariant()
    def sound(self) -> None:
        self.writer.store.check()


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)

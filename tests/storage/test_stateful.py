"""A node's journal under everything at once, against a list of what was appended."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumq.core.errors import StorageError
from quorumq.storage.disk import MemoryDisk
from quorumq.storage.journal import Commit
from tests.storage.test_crash import PowerCut, Writer


class JournalMachine(RuleBasedStateMachine):
    """Appends, commits (in steps), rolls, restarts, crashes in the middle of disk calls, failed syncs."""

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
        assert self.writer.store is not None
        self.commit = self.writer.store.begin_commit()

    @precondition(lambda self: self.commit is not None)
    @rule()
    def finish_commit(self) -> None:
        assert self.commit is not None
        assert self.writer.store is not None
        commit, self.commit = self.commit, None
        commit.run()
        self.writer.note_durable(self.writer.store.finish(commit))

    @rule()
    def roll(self) -> None:
        assert self.writer.store is not None
        if self.writer.store.should_roll:
            self.writer.roll()

    @precondition(lambda self: self.commit is None)
    @rule()
    def restart(self) -> None:
        assert self.writer.store is not None
        self.writer.store.close()
        self.again(self.writer.disk, len(self.writer.appended))

    @rule(seed=st.integers(0, 1 << 16))
    def crash(self, seed: int) -> None:
        self.again(self.writer.disk.crash(random.Random(seed)), self.writer.durable)

    @rule(seed=st.integers(0, 1 << 16), calls=st.integers(0, 8), kill=st.booleans())
    def crash_inside_a_commit(self, seed: int, calls: int, kill: bool) -> None:
        """The machine stops at a disk call, or only the process is killed there."""
        disk = self.writer.disk
        stop = disk.operations + calls

        def cut(operation: str, name: str) -> None:
            if disk.operations >= stop:
                raise PowerCut

        assert self.writer.store is not None
        disk.on_operation = cut
        try:
            if self.commit is not None:
                self.commit.run()
            else:
                self.writer.store.begin_commit().run()
        except PowerCut:
            pass
        disk.on_operation = None
        self.writer.store.abandon()
        self.again(disk if kill else disk.crash(random.Random(seed)), self.writer.durable)

    @precondition(lambda self: self.commit is None)
    @rule(seed=st.integers(0, 1 << 16), kill=st.booleans())
    def failed_sync(self, seed: int, kill: bool) -> None:
        assert self.writer.store is not None
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
        self.again(disk if kill else disk.crash(random.Random(seed)), self.writer.durable)

    def again(self, disk: MemoryDisk, durable: int) -> None:
        self.commit = None
        before = self.writer
        self.writer = Writer(disk, before.appended, segment_bytes=700)
        self.writer.durable = durable
        self.writer.open()

    @invariant()
    def sound(self) -> None:
        assert self.writer.store is not None
        self.writer.store.check()


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)

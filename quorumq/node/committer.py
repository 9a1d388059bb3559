"""The node's journal, as its driver sees it: what a commit is, segments and old ones included.

When a commit begins is the driver's to say (quorumq/driver.py), and who runs it is a `CommitRunner`'s. Here it is taken
from the store, written, and finished; between two commits the segment is rolled and old ones are emptied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import trio

from quorumq.core.errors import QuorumqError, StorageError
from quorumq.core.records import JournalRecord
from quorumq.driver import Driver
from quorumq.node.commits import CommitRunner
from quorumq.storage.commit import Commit
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal


class Shell(Protocol):
    """Who hears what became of commits.

    Attributes:
        driver: asked for commits that only the journal wants.
    """

    driver: Driver

    @property
    def silent(self) -> bool:
        """Whether nothing may stand behind what was appended last."""

    @property
    def has_failed(self) -> bool:
        """Whether the node must stop already."""

    def appended(self) -> None:
        """More waits for the next commit."""

    def wrote(self) -> None:
        """What waited in memory for a commit is written."""

    def synced(self, seconds: float, size: int) -> None:
        """Everything up to `Journal.durable` is; how long the commit took, and how many bytes it wrote."""

    def disk_failed(self, error: BaseException) -> None:
        """The node must stop: what the disk has is unknown."""

    def damaged(self, number: int, error: Exception) -> None:
        """A batch cannot be read."""


class Committer:
    """Appends and commits.

    Args:
        store: replayed.

    Attributes:
        durable: as of `Journal`.
    """

    def __init__(
        self,
        store: Journal,
        runner: CommitRunner,
        snapshot: Callable[[], Iterable[JournalRecord]],
        shell: Shell,
        log: Any,
    ) -> None:
        self._store = store
        self._runner = runner
        self._snapshot = snapshot
        self._shell = shell
        self._log = log
        self._commit: Commit | None = None
        self._over: trio.Event | None = None  # of the commit under way, where somebody waits for it
        self._durable_before = 0  # at the last `mark_if_quiet`
        self.durable = store.durable

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._commit is not None

    async def rest(self) -> None:
        """Wait until no commit is under way."""
        if self.committing:
            if self._over is None:
                self._over = trio.Event()
            await self._over.wait()

    @property
    def position(self) -> int:
        return self._store.position

    @property
    def needs_sync(self) -> bool:
        return self._store.needs_sync

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        ticket = self._store.append(records)
        self._shell.appended()
        return ticket

    def forget(self, numbers: tuple[int, ...]) -> None:
        self._store.forget(numbers)

    # ------------------------------------------------------------------------ commits

    def commit(self) -> None:
        """Commit all that was appended; blocks for the disk."""
        self.durable = self._store.commit()

    def begin_sync(self, here: bool) -> None:
        rolls = self._store.rolling
        self._commit = commit = self._store.begin_commit()
        if rolls or self._write(commit):
            self._runner.start(commit, self._finished, here=here and not rolls)

    def _write(self, commit: Commit) -> bool:
        """Write on the loop: that is a copy in memory. Whether the system took it."""
        try:
            commit.write()
        except StorageError as error:
            self._commit = None
            self._shell.disk_failed(error)
            return False
        self._shell.wrote()
        return True

    def _finished(self, commit: Commit, error: BaseException | None, seconds: float) -> None:
        """On the loop: the disk has it, or has refused. What waited for it may be said now, or never."""
        self._commit = None
        if self._over is not None:
            self._over.set()
            self._over = None
        if self._shell.has_failed:
            with contextlib.suppress(StorageError):
                self._store.finish(commit)
            return
        if error is not None and not isinstance(error, QuorumqError):
            self._shell.disk_failed(error)
            return
        try:
            self.durable = self._store.finish(commit)
        except StorageError as failure:
            self._shell.disk_failed(failure)
        else:
            self._shell.synced(seconds, commit.size)

    # ----------------------------------------------------------------------- segments

    def roll_if_due(self) -> None:
        """Begin another segment where this one is full. Nothing may stand behind a clean stop."""
        if not self._shell.silent and not self._store.rolling and self._store.should_roll:
            self.roll()

    def roll(self) -> None:
        """Begin another segment with a snapshot of now. Between two steps, so it is whole."""
        try:
            self._store.roll(self._snapshot)
        except StorageError as error:
            self._shell.disk_failed(error)
            return
        self._log.info("segment_begun", segments=len(self._store.live))
        self._shell.driver.commit_all()

    def mark_if_quiet(self) -> None:
        """Mark what is durable, where nothing was since the last call: once for each pause between writes."""
        quiet, self._durable_before = self._store.durable == self._durable_before, self._store.durable
        if quiet and not self._shell.silent and self._store.is_unmarked:
            self._store.mark()
            self._shell.driver.commit_all()

    def reclaim(self) -> None:
        """Go on emptying old segments, a little after each fsync until there is none worth it."""
        if not self._store.is_emptying:
            return
        before = self._store.pending_bytes
        try:
            damaged = self._store.reclaim()
        except StorageError as error:
            self._shell.disk_failed(error)
            return
        if self._store.pending_bytes > before:
            self._shell.driver.commit_all()
        for number in damaged:
            self._shell.damaged(
                number, DamagedBatch("found while it was copied out of an old segment", number)
            )

"""The node's journal, as its driver sees it: commits, segments and old ones included.

The driver decides when a commit begins (quorumq/driver.py), and a `CommitRunner` decides who runs it. Here it is taken
from the store, written, and finished; between two commits the segment is rolled and old ones are emptied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio

from quorumq.core.messages.records import JournalRecord
from quorumq.core.values.errors import QuorumqError, StorageError
from quorumq.core.values.limits import KIB
from quorumq.driver import Driver
from quorumq.node.commits import CommitRunner
from quorumq.storage.commit import Commit, NoCapacity
from quorumq.storage.damage import DamagedBatch
from quorumq.storage.journal import Journal

WRITTEN_HERE_BYTES: Final = 512 * KIB
"""The largest commit that is written on the loop. A larger one would block the event loop for milliseconds."""


class Shell(Protocol):
    """Owner of a committer, which learns the results of commits.

    Attributes:
        driver: driver for commits that only the journal wants.
    """

    driver: Driver

    @property
    def silent(self) -> bool:
        """True if no record may follow the last one appended."""

    @property
    def has_failed(self) -> bool:
        """True if the node must stop already."""

    def appended(self) -> None:
        """Note that more waits for the next commit."""

    def wrote(self) -> None:
        """Note that all records that waited in memory for a commit are written."""

    def synced(self, seconds: float, size: int) -> None:
        """Note that everything up to `Journal.durable` is durable, by a commit of ``seconds`` and ``size`` bytes."""

    def disk_filled(self) -> None:
        """Note that the disk has no room for a commit: it waits, and so does all that waits for it."""

    def disk_failed(self, error: BaseException) -> None:
        """Stop the node: the content of the disk is unknown."""

    def damaged(self, number: int, error: Exception) -> None:
        """Note that a batch cannot be read."""


@dataclass(eq=False)
class Committer:
    """Appends and commits."""

    store: Journal  # replayed
    runner: CommitRunner
    snapshot: Callable[[], Iterable[JournalRecord]]
    shell: Shell
    log: Any
    stalled: bool = False  # the commit under way waits for room on the disk
    _commit: Commit | None = None
    _over: trio.Event | None = None  # set when the commit under way ends; None if no task waits
    _durable_before: int = 0  # at the last `mark_if_quiet`

    def __post_init__(self) -> None:
        self.durable = self.store.durable  # as of `Journal`

    @property
    def committing(self) -> bool:
        return self._commit is not None

    async def rest(self) -> None:
        """Wait until no commit is under way, but for one that waits for room."""
        if self.committing and not self.stalled:
            if self._over is None:
                self._over = trio.Event()
            await self._over.wait()

    @property
    def position(self) -> int:
        return self.store.position

    @property
    def needs_sync(self) -> bool:
        return self.store.needs_sync

    def append(self, records: tuple[JournalRecord, ...]) -> int:
        ticket = self.store.append(records)
        self.shell.appended()
        return ticket

    def drop(self, numbers: tuple[int, ...]) -> None:
        self.store.drop(numbers)

    # ------------------------------------------------------------------------ commits

    def commit(self) -> None:
        """Commit all that was appended; blocks for the disk."""
        self.durable = self.store.commit()

    def begin_sync(self, here: bool) -> None:
        rolls = self.store.rolling
        self._commit = commit = self.store.begin_commit()
        away = rolls or commit.size > WRITTEN_HERE_BYTES
        if away or self._write(commit):
            self.runner.start(commit, self._finished, here=here and not away)

    def _write(self, commit: Commit) -> bool:
        """Write on the loop: that is a copy in memory. Return True if the system took it."""
        try:
            commit.write()
        except NoCapacity:
            self._stall()
            return False
        except StorageError as error:
            self._commit = None
            self.shell.disk_failed(error)
            return False
        self.shell.wrote()
        return True

    def _finished(self, commit: Commit, error: BaseException | None, seconds: float) -> None:
        """On the loop: the disk has it, or has refused. Answers that waited for it may be sent now, or never."""
        self._end_writer()
        if isinstance(error, NoCapacity) and not self.shell.has_failed:
            self._stall()
            return
        self._commit = None
        if self.shell.has_failed:
            with contextlib.suppress(StorageError):
                self.store.finish(commit)
            return
        if error is not None and not isinstance(error, QuorumqError):
            self.shell.disk_failed(error)
            return
        try:
            self.durable = self.store.finish(commit)
        except StorageError as failure:
            self.shell.disk_failed(failure)
        else:
            self.shell.synced(seconds, commit.size)

    def _end_writer(self) -> None:
        """Wake the tasks that wait for the commit under way."""
        if self._over is not None:
            self._over.set()
            self._over = None

    def _stall(self) -> None:
        """Keep the commit under way until there is room. Nothing that it has was promised to a client."""
        self.stalled = True
        self.shell.disk_filled()

    def retry(self) -> None:
        """Run the commit again that waits for room, if one does."""
        if self.stalled and self._commit is not None:
            self.stalled = False
            self.runner.start(self._commit, self._finished, here=False)

    # ----------------------------------------------------------------------- segments

    def roll_if_due(self) -> None:
        """Begin another segment if it is time for it (`Log.should_roll`). Nothing may stand behind a clean stop."""
        if not self.shell.silent and not self.store.rolling and self.store.should_roll:
            self.roll()

    def roll(self) -> None:
        """Begin another segment with a snapshot of now. Between two steps, so it is whole."""
        try:
            self.store.roll(self.snapshot)
        except StorageError as error:
            self.shell.disk_failed(error)
            return
        self.log.info("segment_begun", segments=len(self.store.live))
        self.shell.driver.commit_all()

    def mark_if_quiet(self) -> None:
        """Mark the durable records, if none was written since the last call: once for each pause between writes."""
        quiet, self._durable_before = self.store.durable == self._durable_before, self.store.durable
        if quiet and not self.shell.silent and self.store.is_unmarked:
            self.store.mark()
            self.shell.driver.commit_all()

    def compact(self) -> None:
        """Compact old segments, a little after each fsync, while any is worth it."""
        if not self.store.needs_compaction:
            return
        before = self.store.pending_bytes
        try:
            damaged = self.store.compact()
        except StorageError as error:
            self.shell.disk_failed(error)
            return
        if self.store.pending_bytes > before:
            self.shell.driver.commit_all()
        for number in damaged:
            self.shell.damaged(
                number, DamagedBatch("found while it was copied out of an old segment", number)
            )

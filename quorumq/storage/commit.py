"""What the disk does for a commit, which may run outside the node's loop.

How a segment comes to be: it is written as NAME.new, synced, renamed, and the directory is synced, before anything
behind its snapshot is written. So a segment with its final name is complete, and a snapshot in it that cannot be read
is damage, not a crash.

Threads: one commit at a time, in the caller's thread or in a worker.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumq.core.errors import StorageError
from quorumq.storage.disk import Buffer, Disk
from quorumq.storage.records import SegmentStart, encode_record
from quorumq.storage.segment import NEW_SUFFIX, body_crc_of, encode_frame, segment_name
from quorumq.storage.tail import Tail

ASIDE_SUFFIX: Final = ".damaged"
"""Behind the name of a segment file of which nothing could be read; it is nobody's from then on."""


class NewSegment(NamedTuple):
    """A segment to be begun: its snapshot, and the files that are of no use once it is there.

    ``start`` is encoded once the file is there: it says where that lies.
    """

    start: SegmentStart
    buffers: list[Buffer]
    obsolete: tuple[str, ...]
    aside: tuple[str, ...]


@dataclass(eq=False)
class Writer:
    """The file that is written. Unusable after anything in it failed, because what the disk has is then unknown, and a
    sync that succeeds later would prove nothing (the system may have dropped the pages).
    """

    disk: Disk
    failed: str = ""  # why it is unusable; "" while it is not
    _handle: int | None = None
    _unsynced: bool = False
    """Written to the file since a sync began; whose turn it is to write owns both."""

    def check(self) -> None:
        """Raise `StorageError` after a failure."""
        if self.failed:
            raise StorageError(self.failed)

    def poison(self, error: BaseException) -> StorageError:
        """Note that nothing may be written any more, and give the error that says so."""
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        advice = (
            "make room on the disk, then start it again" if full else "check the disk before the next start"
        )
        what = str(error) or type(error).__name__
        self.failed = (
            f"the journal in {self.disk} could not be written: {what}; nothing since then is reported durable, "
            f"and the node must stop: {advice}"
        )
        return StorageError(self.failed)

    def __enter__(self) -> None:
        """What fails inside makes the journal unusable."""
        self.check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            refused = self.poison(error)
            if isinstance(error, OSError):
                raise refused from error

    def write(self, buffers: list[Buffer]) -> None:
        """Append to the segment."""
        assert self._handle is not None
        self._unsynced = True
        self.disk.append(self._handle, buffers)

    def take_unsynced(self) -> int | None:
        """The file with bytes that no sync was for, if there are any: whoever asks syncs it now."""
        unsynced, self._unsynced = self._unsynced, False
        return self._handle if unsynced else None

    def sync(self, handle: int) -> None:
        """Sync a file that `take_unsynced` gave."""
        self.disk.sync(handle)

    def begin(self, step: NewSegment) -> None:
        """Begin a segment, durably, and let go what it makes useless."""
        if self._handle is not None:
            unsynced = self.take_unsynced()
            if unsynced is not None:
                self.disk.sync(unsynced)  # the new segment's start says that these bytes count
            self.disk.close(self._handle)
            self._handle = None
        name = segment_name(step.start.segment)
        handle = self.disk.create(name + NEW_SUFFIX)
        header, _ = encode_record(step.start._replace(lies=self.disk.place(name + NEW_SUFFIX)), 0)
        self.disk.append(handle, [encode_frame(header, 0, body_crc_of(b""), 0), *step.buffers])
        self.disk.sync(handle)
        self.disk.rename(name + NEW_SUFFIX, name)
        self.disk.sync_dir()
        self._handle = handle
        for obsolete in step.obsolete:
            with contextlib.suppress(FileNotFoundError):
                self.disk.delete(obsolete)
        for aside in step.aside:
            with contextlib.suppress(FileNotFoundError):
                self.disk.rename(aside, aside + ASIDE_SUFFIX)
                self.disk.sync_dir()


@dataclass(eq=False, kw_only=True)
class Commit:
    """What was pending when `Journal.begin_commit` was called, on its way to the disk."""

    writer: Writer
    steps: list[list[Buffer] | NewSegment]
    ticket: int  # what `Journal.durable` becomes when it is finished
    position: int  # what `Journal.position` becomes then
    tail: Tail  # the segment that it ends in,
    end: int  # and where
    size: int  # how many bytes it writes
    written: bool = False  # the operating system has it
    done: bool = False  # it was run, and the disk has it
    _unsynced: int | None = None  # the file to be synced

    def run(self) -> None:
        """`write` unless that is done, and `sync`; `Journal.finish` follows always.

        Raises:
            StorageError: the disk refused; the journal is unusable from now on.
        """
        if not self.written:
            self.write()
        self.sync()

    def write(self) -> None:
        """Write. Errors as of `run`."""
        assert not self.written, "a commit runs once"
        writer = self.writer
        with writer:
            for step in self.steps:
                if isinstance(step, NewSegment):
                    writer.begin(step)
                else:
                    writer.write(step)
            self._unsynced = writer.take_unsynced()
        self.written = True

    def sync(self) -> None:
        """Sync what this commit wrote. May be called in a worker thread. Errors as of `run`."""
        assert self.written, "write first"
        assert not self.done, "a commit runs once"
        with self.writer:
            if self._unsynced is not None:
                self.writer.sync(self._unsynced)
        self.done = True

"""Writes of a commit to the disk, which may run outside the node's loop.

A full disk is no failure. If the disk is full, the writer deletes the reserve, a file that takes space for this case.
If there is no reserve, the commit raises `NoCapacity`. It is run again when there is space, and writes the rest.

How a segment is made: the writer writes it as NAME.new, syncs it, renames it, and syncs the directory. It writes
records behind the snapshot only then. So a segment with its final name is complete. If its snapshot cannot be read,
that is damage, and not the result of a crash.

Threads: one commit runs at a time. `Commit.write` and `Commit.sync` may run in different threads.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumq.core.values.errors import StorageError
from quorumq.storage.disk import Buffer, Disk
from quorumq.storage.records import SegmentStart, encode_record
from quorumq.storage.segment import NEW_SUFFIX, body_crc_of, encode_frame, segment_name
from quorumq.storage.tail import Tail

RESERVE_NAME: Final = "reserve"
"""The file of a data directory that only takes space. If the disk is full, it is deleted for acks and a start."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a write to a full disk. They say nothing about earlier writes."""

ASIDE_SUFFIX: Final = ".damaged"
"""Suffix that a salvage gives to segment files of another directory, or to all if none has a readable start."""


class NoCapacity(StorageError):
    """The disk is full. Nothing has failed: the same commit may be run again, and writes the rest."""

    code = "no-room"


class NewSegment(NamedTuple):
    """A segment to create: its snapshot, and the files that are of no use when it exists.

    ``start`` is encoded when the file exists, because it has the file's `Disk.location`.
    """

    start: SegmentStart
    buffers: list[Buffer]
    obsolete: tuple[str, ...]
    aside: tuple[str, ...]


@dataclass(eq=False)
class Writer:
    """Writes to the newest segment. If a write or sync fails, it is unusable, because the disk's contents are unknown.
    A later sync that succeeds would prove nothing: the system may have dropped the pages.
    """

    disk: Disk
    failed: str = ""  # the reason if it is unusable, else ""
    reserved: bool = False  # the reserve exists
    _handle: int | None = None
    _name: str = ""  # name of the segment that is written
    _bytes: int = 0  # its length
    _unsynced: bool = False
    """True if the file has bytes that `take_unsynced` has not returned. Only the thread that writes uses it."""

    def check(self) -> None:
        """Raise `StorageError` if the writer is unusable."""
        if self.failed:
            raise StorageError(self.failed)

    def poison(self, error: BaseException) -> StorageError:
        """Make the writer unusable. Returns the error for the caller."""
        reason = str(error) or type(error).__name__
        self.failed = (
            f"the journal in {self.disk} could not be written: {reason}; nothing since then is reported durable, "
            "and the node must stop: check the disk before the next start"
        )
        return StorageError(self.failed)

    def __enter__(self) -> None:
        """Begin a block. If an error other than `NoCapacity` ends it, the writer is unusable."""
        self.check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, NoCapacity):
            refused = self.poison(error)
            if isinstance(error, OSError):
                raise refused from error

    def write(self, buffers: list[Buffer]) -> None:
        """Append to the segment, and take the written bytes out of ``buffers``. If some are left, raise NoCapacity."""
        assert self._handle is not None
        self._unsynced = True
        while buffers:
            try:
                self.disk.append(self._handle, buffers)
            except OSError as error:
                self._bytes += take_out(buffers, self.disk.size(self._name) - self._bytes)
                self._make_capacity(error)
            else:
                self._bytes += sum(map(len, buffers))
                buffers.clear()

    def _make_capacity(self, error: OSError) -> None:
        """Delete the reserve if ``error`` says that the disk is full.

        Raises:
            NoCapacity: the disk is full, and there is no reserve.
            OSError: ``error`` itself, if it has another reason.
        """
        if error.errno not in FULL:
            raise error
        if not self.reserved:
            raise NoCapacity(
                f"the disk of {self.disk} is full ({error.strerror}): make room on it"
            ) from error
        self.disk.delete(RESERVE_NAME)
        self.reserved = False

    def reserve(self, length: int) -> None:
        """Create the reserve of ``length`` bytes if it does not exist. If the disk has no space, do nothing."""
        if not self.reserved:
            with contextlib.suppress(OSError):
                self.disk.allocate(RESERVE_NAME, length)
                self.reserved = True

    def _create(self, name: str, step: NewSegment) -> int:
        """Create the file of a segment, with its snapshot. Returns the handle."""
        while True:
            handle = None
            try:
                handle = self.disk.create(name)
                header, _ = encode_record(step.start._replace(lies=self.disk.location(name)), 0)
                self.disk.append(handle, [encode_frame(header, 0, body_crc_of(b""), 0), *step.buffers])
                return handle
            except OSError as error:
                if handle is not None and error.errno in FULL:
                    self.disk.close(handle)
                    self.disk.delete(name)
                self._make_capacity(error)

    def take_unsynced(self) -> int | None:
        """Return the handle of the file if it has unsynced bytes, else None. The caller must sync it now."""
        unsynced, self._unsynced = self._unsynced, False
        return self._handle if unsynced else None

    def sync(self, handle: int) -> None:
        """Sync a file that `take_unsynced` gave."""
        self.disk.sync(handle)

    def begin(self, step: NewSegment) -> None:
        """Create a segment durably, then delete the files that it replaces. If it does not fit, raise NoCapacity."""
        if self._handle is not None:
            unsynced = self.take_unsynced()
            if unsynced is not None:
                self.disk.sync(unsynced)  # the new segment's start says that these bytes count
            self.disk.close(self._handle)
            self._handle = None
        name = segment_name(step.start.segment)
        handle = self._create(name + NEW_SUFFIX, step)
        self.disk.sync(handle)
        self._bytes = self.disk.size(name + NEW_SUFFIX)
        self.disk.rename(name + NEW_SUFFIX, name)
        self.disk.sync_dir()
        self._handle, self._name = handle, name
        for obsolete in step.obsolete:
            with contextlib.suppress(FileNotFoundError):
                self.disk.delete(obsolete)
        for aside in step.aside:
            with contextlib.suppress(FileNotFoundError):
                self.disk.rename(aside, aside + ASIDE_SUFFIX)
                self.disk.sync_dir()


def take_out(buffers: list[Buffer], count: int) -> int:
    """Take the first ``count`` bytes out of ``buffers``. Returns ``count``."""
    remaining, done = count, 0
    while done < len(buffers) and len(buffers[done]) <= remaining:
        remaining -= len(buffers[done])
        done += 1
    del buffers[:done]
    if remaining:
        buffers[0] = memoryview(buffers[0]).cast("B")[remaining:]
    return count


@dataclass(eq=False, kw_only=True)
class Commit:
    """Records that were pending when `Journal.begin_commit` was called, to be written to the disk.

    If it raised `NoCapacity`, it may be run again: it writes no record twice.
    """

    writer: Writer
    steps: list[list[Buffer] | NewSegment]
    ticket: int  # value of `Journal.durable` when it is finished
    position: int  # value of `Journal.position` then
    tail: Tail  # the segment that it ends in,
    end: int  # and the offset of its end
    size: int  # number of bytes that it writes
    written: bool = False  # the operating system has it
    done: bool = False  # it was run, and the disk has it
    _unsynced: int | None = None  # the file to be synced

    def run(self) -> None:
        """Call `write` if that is not done, then `sync`. The caller calls `Journal.finish` then, also after an error.

        Raises:
            NoCapacity: the disk is full. Run it again before `Journal.finish`.
            StorageError: the disk refused; the journal is unusable from now on.
        """
        if not self.written:
            self.write()
        self.sync()

    def write(self) -> None:
        """Write the records. Raises as `run`."""
        assert not self.written, "a commit runs once"
        writer = self.writer
        with writer:
            while self.steps:
                step = self.steps[0]
                if isinstance(step, NewSegment):
                    writer.begin(step)
                else:
                    writer.write(step)
                del self.steps[0]
            self._unsynced = writer.take_unsynced()
        self.written = True

    def sync(self) -> None:
        """Sync the bytes of this commit, if need be in a worker thread. Raises as `run`."""
        assert self.written, "write first"
        assert not self.done, "a commit runs once"
        with self.writer:
            if self._unsynced is not None:
                self.writer.sync(self._unsynced)
        self.done = True

"""Writes of a commit to the disk, which may run outside the node's loop.

A full disk is no failure: the write keeps the part that fitted, and the rest waits. First the reserve is given up, a
file that takes room for exactly this; then the commit raises `NoCapacity`, and is run again when there is room.

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

from quorumq.core.values.errors import StorageError
from quorumq.storage.disk import Buffer, Disk
from quorumq.storage.records import SegmentStart, encode_record
from quorumq.storage.segment import NEW_SUFFIX, body_crc_of, encode_frame, segment_name
from quorumq.storage.tail import Tail

RESERVE_NAME: Final = "reserve"
"""The file of a data directory that only takes room: without it, acks and a start can be written on a full disk."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write that say that there is no room, and nothing about earlier writes."""

ASIDE_SUFFIX: Final = ".damaged"
"""Suffix of the name of a segment file without a readable record; quorumq leaves it alone from then on."""


class NoCapacity(StorageError):
    """The disk is full. Nothing has failed: the same commit may be run again, and writes the rest."""

    code = "no-room"


class NewSegment(NamedTuple):
    """A segment to be begun: its snapshot, and the files that are of no use once it is there.

    ``start`` is encoded once the file is there: it has the file's place.
    """

    start: SegmentStart
    buffers: list[Buffer]
    obsolete: tuple[str, ...]
    aside: tuple[str, ...]


@dataclass(eq=False)
class Writer:
    """The file that is written. It is unusable after a failure: the disk's contents are then unknown, and a sync that
    succeeds later would prove nothing, because the system may have dropped the pages.
    """

    disk: Disk
    failed: str = ""  # why it is unusable; "" while it is not
    reserved: bool = False  # the reserve is there
    _handle: int | None = None
    _name: str = ""  # name of the segment that is written
    _bytes: int = 0  # how long it is
    _unsynced: bool = False
    """Written to the file since a sync began; whose turn it is to write owns both."""

    def check(self) -> None:
        """Raise `StorageError` after a failure."""
        if self.failed:
            raise StorageError(self.failed)

    def poison(self, error: BaseException) -> StorageError:
        """Note that nothing may be written any more, and give the error that says so."""
        reason = str(error) or type(error).__name__
        self.failed = (
            f"the journal in {self.disk} could not be written: {reason}; nothing since then is reported durable, "
            "and the node must stop: check the disk before the next start"
        )
        return StorageError(self.failed)

    def __enter__(self) -> None:
        """Begin a block in which any error but `NoCapacity` makes the journal unusable."""
        self.check()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, NoCapacity):
            refused = self.poison(error)
            if isinstance(error, OSError):
                raise refused from error

    def write(self, buffers: list[Buffer]) -> None:
        """Append to the segment, and take the written bytes out of ``buffers``; NoCapacity if some are left."""
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
        """Give the reserve up, as the disk is full.

        Raises:
            NoCapacity: there is no reserve.
            OSError: ``error``, which says something else.
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
        """Take the reserve of ``length`` bytes, unless it is taken; if the disk has no room, leave it."""
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
        """Return the file with bytes that no sync was for; None without any. The caller syncs it now."""
        unsynced, self._unsynced = self._unsynced, False
        return self._handle if unsynced else None

    def sync(self, handle: int) -> None:
        """Sync a file that `take_unsynced` gave."""
        self.disk.sync(handle)

    def begin(self, step: NewSegment) -> None:
        """Begin a segment, durably, and delete the files that it replaces; NoCapacity if nothing of it was begun."""
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
    """Take the first ``count`` bytes out of ``buffers``. Returns how many that are."""
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
    """Records pending when `Journal.begin_commit` was called, on their way to the disk.

    One that raised `NoCapacity` may be run again: it writes no record twice.
    """

    writer: Writer
    steps: list[list[Buffer] | NewSegment]
    ticket: int  # value of `Journal.durable` when it is finished
    position: int  # value of `Journal.position` then
    tail: Tail  # the segment that it ends in,
    end: int  # and the offset of its end
    size: int  # how many bytes it writes
    written: bool = False  # the operating system has it
    done: bool = False  # it was run, and the disk has it
    _unsynced: int | None = None  # the file to be synced

    def run(self) -> None:
        """Do `write`, unless that is done, and `sync`; `Journal.finish` follows always.

        Raises:
            NoCapacity: the disk is full.
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
        """Sync the bytes of this commit. May be called in a worker thread. Errors as of `run`."""
        assert self.written, "write first"
        assert not self.done, "a commit runs once"
        with self.writer:
            if self._unsynced is not None:
                self.writer.sync(self._unsynced)
        self.done = True

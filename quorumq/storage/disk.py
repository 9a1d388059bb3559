"""The only interface between the journal and a disk.

Why an interface: the promises of a queue about a crash rest on the few calls below. `RealDisk` carries them
out on a directory. `MemoryDisk` (sim) carries them out in memory, and knows the unsynced writes. When a test
or the simulator makes it crash, it tears writes, loses files that were created or renamed, and zeroes pages
that were not written back yet. Its hooks fail a sync, fill the disk, or flip a bit.

A caller may rely on this alone:

1. Bytes are durable once `sync` of their file returned, names once `sync_dir` returned. Before that
   any prefix of the bytes, with any of its pages zeroed, and any subset of the changes of names
   may survive a crash.
2. `rename` is atomic: after a crash the file is there under the old name or under the new one.
3. If a `sync` fails, the state of its bytes is unknown, and a later `sync` that succeeds proves nothing
   about them: the system may have dropped the pages and marked them clean.
4. `read` may run in one thread when another one calls `append` or `sync` of the same file. Calls for
   different files may run beside each other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from quorumq.core.values.errors import StorageError

Buffer = bytes | bytearray | memoryview

LOCK_NAME = "LOCK"
"""The file that keeps a second process out. It is never part of `Disk.list`."""

PAGE_BYTES = 4096
"""Bytes that a real page cache writes back at once; `MemoryDisk.crash` loses unsynced bytes in these units too."""

READ_HANDLES_MAX = 64
"""Files that `RealDisk` keeps open for reading. If there are more, the one unused for longest is closed."""

FS_IOC_GETVERSION = 0x80087601
"""The request of Linux for the generation of an inode: ext4, xfs, btrfs and others answer it."""

WRITEV_BUFFERS_MAX = 1024
"""Most buffers of one ``writev``: IOV_MAX of every system that quorumq runs on."""


class Disk(Protocol):
    """One flat directory of append-only files. Every call may raise `OSError`.

    A file handle is a small integer, valid from `create` until `close`.
    """

    def lock(self) -> None:
        """Lock the directory for this process, until `unlock`.

        Raises:
            StorageError: another process has it, or it cannot be made or written to.
        """

    def unlock(self) -> None:
        """Close every handle and give the directory back. May be called twice."""

    def list(self) -> list[str]:
        """Return the names of all files but the lock, sorted."""

    def create(self, name: str) -> int:
        """Create an empty file and open it for appending; `FileExistsError` if the name is taken."""

    def append(self, file: int, buffers: Sequence[Buffer]) -> None:
        """Write ``buffers`` one after the other at the end. If it fails, some prefix of them is written."""

    def sync(self, file: int) -> None:
        """Make the bytes of ``file`` durable, and not its name (see `sync_dir`)."""

    def close(self, file: int) -> None:
        """Give the handle back. Syncs nothing."""

    def sync_dir(self) -> None:
        """Make every create, rename and delete so far durable."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``; fewer if the file ends before."""

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""

    def rename(self, old: str, new: str) -> None:
        """Give ``old`` the name ``new``. If a file has that name, it is replaced. Handles stay valid."""

    def truncate(self, name: str, length: int) -> None:
        """Cut a file to ``length`` bytes and make that durable."""

    def delete(self, name: str) -> None:
        """Remove a file."""

    def allocate(self, name: str, length: int) -> None:
        """Create a file of ``length`` bytes, durably. If the disk has no space for it, there is no file."""

    def free_bytes(self) -> int:
        """Return the bytes that can still be written, as far as the system knows."""

    def location(self, name: str) -> bytes:
        """Return 8 bytes that identify a file: they stay when it is renamed or written, and a copy has others."""


def check_name(name: str) -> None:
    """Assert that a directory may have a file of this name."""
    assert "/" not in name, f"not a file name: {name!r}"
    assert name not in ("", ".", "..", LOCK_NAME), f"not a name for a file here: {name!r}"


def allocate(disk: Disk, name: str, fill: Callable[[int], None]) -> None:
    """Create a file, durably, that ``fill`` gives its length and syncs. If ``fill`` fails, the file is deleted."""
    file = disk.create(name)
    try:
        fill(file)
    except OSError:
        disk.delete(name)
        raise
    finally:
        disk.close(file)
    disk.sync_dir()


class RealDisk:
    """A directory of the operating system. If it does not exist, `lock` creates it, with its parents."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._lock_fd: int | None = None
        self._open: set[int] = set()  # handles of create(), which are file descriptors
        self._readers: OrderedDict[str, int] = OrderedDict()
        self._readers_lock = threading.Lock()

    def __str__(self) -> str:
        return str(self.directory)

    def lock(self) -> None:
        assert self._lock_fd is None, "locked already"
        try:
            _make_directory(self.directory)
            fd = self._open_lock(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StorageError(
                f"{self.directory} is in use by another quorumq process (pid {holder}): "
                f"stop it first, or give this node a data directory of its own"
            ) from None
        except OSError as error:
            os.close(fd)
            raise self._unusable(error) from error
        with contextlib.suppress(OSError):  # for people only, and on a full disk it does not fit
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _open_lock(self, flags: int) -> int:
        """Open the lock's file. If a link is in its place, refuse it: its target may be another program's file.

        Raises:
            StorageError: the path is a link, or no file.
            OSError: it cannot be opened.
        """
        path = self.directory / LOCK_NAME
        existing = os.lstat(path) if os.path.lexists(path) else None
        if existing is None or stat.S_ISREG(existing.st_mode):
            try:
                return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
        raise StorageError(
            f"{path} is a link, or no file: a node keeps its lock in a file of its own. Look who put it there, "
            "remove it, and start again"
        )

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.directory} cannot be used as a data directory: {error.strerror}; "
            f"give the node a directory that it may write to"
        )

    def unlock(self) -> None:
        for fd in sorted(self._open):
            os.close(fd)
        self._open.clear()
        with self._readers_lock:
            for fd in self._readers.values():
                os.close(fd)
            self._readers.clear()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def list(self) -> list[str]:
        return sorted(
            entry.name for entry in os.scandir(self.directory) if entry.is_file() and entry.name != LOCK_NAME
        )

    def create(self, name: str) -> int:
        check_name(name)
        fd = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._open.add(fd)
        return fd

    def append(self, file: int, buffers: Sequence[Buffer]) -> None:
        todo = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        first = 0  # index in `todo` of the first buffer not written yet
        while first < len(todo):
            written = os.writev(file, todo[first : first + WRITEV_BUFFERS_MAX])
            while written and written >= len(todo[first]):
                written -= len(todo[first])
                first += 1
            if written:
                todo[first] = todo[first][written:]

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def close(self, file: int) -> None:
        self._open.remove(file)
        os.close(file)

    def sync_dir(self) -> None:
        _sync_directory(self.directory)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self._readers_lock:
            fd = self._reader(name)
            data = os.pread(fd, length, offset)
            while len(data) < length:
                more = os.pread(fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data

    def _reader(self, name: str) -> int:
        fd = self._readers.get(name)
        if fd is None:
            check_name(name)
            fd = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
            self._readers[name] = fd
            if len(self._readers) > READ_HANDLES_MAX:
                os.close(self._readers.popitem(last=False)[1])
        else:
            self._readers.move_to_end(name)
        return fd

    def _drop_reader(self, name: str) -> None:
        with self._readers_lock:
            fd = self._readers.pop(name, None)
            if fd is not None:
                os.close(fd)

    def size(self, name: str) -> int:
        return os.stat(self.directory / name).st_size

    def rename(self, old: str, new: str) -> None:
        check_name(new)
        self._drop_reader(old)
        self._drop_reader(new)
        os.rename(self.directory / old, self.directory / new)

    def truncate(self, name: str, length: int) -> None:
        fd = os.open(self.directory / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            os.fsync(fd)
        finally:
            os.close(fd)

    def delete(self, name: str) -> None:
        check_name(name)
        self._drop_reader(name)
        os.unlink(self.directory / name)

    def allocate(self, name: str, length: int) -> None:
        def fill(file: int) -> None:
            os.posix_fallocate(file, 0, length)
            os.fsync(file)

        allocate(self, name, fill)

    def free_bytes(self) -> int:
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def location(self, name: str) -> bytes:
        parts: list[int] = []
        for path in (self.directory, self.directory / name):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:  # no device numbers: those change when the machine is started again
                parts += [os.fstat(fd).st_ino, _inode_generation(fd)]
            finally:
                os.close(fd)
        return location_of(parts)


def _inode_generation(fd: int) -> int:
    """Return the generation of an inode, which changes when its number is used again; 0 if it has none."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, FS_IOC_GETVERSION, bytes(8)), sys.byteorder)
    except OSError:
        return 0


def location_of(parts: Sequence[int]) -> bytes:
    return hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest()


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_directory(directory: Path) -> None:
    """Create ``directory`` and its missing parents, durably: if a directory is lost, its files are."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(path.parent)

"""The only door between the journal and a disk.

Why a port: what a queue promises about a crash is decided by the few calls below and by what a disk
may do between them. `RealDisk` carries them out on a directory. `MemoryDisk` carries them out in
memory and remembers what was never synced, so that tests and the simulator can take it away again:
a crash tears writes, forgets files that were created or renamed, zeroes pages that were not written
back yet; the hooks fail a sync, fill the disk, flip a bit.

What a caller may rely on, and nothing more:

1. Bytes are durable once `sync` of their file returned, names once `sync_dir` returned. Before that
   any prefix of the bytes, with any of its pages zeroed, and any subset of the changes of names
   may survive a crash.
2. `rename` is atomic: after a crash the file is there under the old name or under the new one.
3. After a failed `sync` nothing is known of the bytes it was for, and a later `sync` that succeeds
   proves nothing about them: the system may have dropped the pages and called them clean.
4. `append` and `sync` of one file may each run in a thread of its own, beside `read`; nothing else may.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import hashlib
import os
import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from quorumq.core.errors import StorageError

Buffer = bytes | bytearray | memoryview

LOCK_NAME = "LOCK"
"""The file that keeps a second process out. It is never part of `Disk.list`."""

PAGE_BYTES = 4096
"""What a real page cache writes back at once; `MemoryDisk.crash` loses unsynced bytes in these units too."""

READ_HANDLES_MAX = 64
"""Files that `RealDisk` keeps open for reading; the one unused for longest is closed first."""

FS_IOC_GETVERSION = 0x80087601
"""Linux: asks ext4, xfs, btrfs and others for the generation of an inode."""

WRITEV_BUFFERS_MAX = 1024
"""IOV_MAX on every system quorumq runs on."""


class Disk(Protocol):
    """One flat directory of append-only files. Every call may raise `OSError`.

    A file handle is a small integer, valid from `create` until `close`.
    """

    def lock(self) -> None:
        """Take the directory for this process. Released by `unlock`.

        Raises:
            StorageError: another process has it, or it cannot be made or written to.
        """

    def unlock(self) -> None:
        """Close every handle and give the directory back. May be called twice."""

    def list(self) -> list[str]:
        """The names of all files but the lock, sorted."""

    def create(self, name: str) -> int:
        """Create an empty file and open it for appending; `FileExistsError` if there is one."""

    def append(self, file: int, buffers: Sequence[Buffer]) -> None:
        """Write ``buffers`` one after the other at the end. On an error some prefix of them is written."""

    def sync(self, file: int) -> None:
        """Make the bytes of ``file`` durable, and not its name (see `sync_dir`)."""

    def close(self, file: int) -> None:
        """Give the handle back. Syncs nothing."""

    def sync_dir(self) -> None:
        """Make every create, rename and delete so far durable."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def size(self, name: str) -> int:
        """The length of a file in bytes."""

    def rename(self, old: str, new: str) -> None:
        """Give ``old`` the name ``new``, replacing a file of that name. Handles stay valid."""

    def truncate(self, name: str, length: int) -> None:
        """Cut a file to ``length`` bytes and make that durable."""

    def delete(self, name: str) -> None:
        """Remove a file."""

    def free_bytes(self) -> int:
        """How many more bytes can be written, as far as the system tells."""

    def place(self, name: str) -> bytes:
        """8 bytes that stand for where this file lies: it keeps them, renamed or written to, and a copy has others."""


def _check_name(name: str) -> None:
    assert "/" not in name, f"not a file name: {name!r}"
    assert name not in ("", ".", "..", LOCK_NAME), f"not a name for a file here: {name!r}"


class RealDisk:
    """A directory of the operating system. It is created, with its parents, when it is not there.

    Args:
        directory: where the files are.
    """

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
            fd = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        _check_name(name)
        fd = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._open.add(fd)
        return fd

    def append(self, file: int, buffers: Sequence[Buffer]) -> None:
        todo = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        first = 0  # of `todo`, not written yet
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
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

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
            _check_name(name)
            fd = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
            self._readers[name] = fd
            if len(self._readers) > READ_HANDLES_MAX:
                os.close(self._readers.popitem(last=False)[1])
        else:
            self._readers.move_to_end(name)
        return fd

    def _forget_reader(self, name: str) -> None:
        with self._readers_lock:
            fd = self._readers.pop(name, None)
            if fd is not None:
                os.close(fd)

    def size(self, name: str) -> int:
        return os.stat(self.directory / name).st_size

    def rename(self, old: str, new: str) -> None:
        _check_name(new)
        self._forget_reader(old)
        self._forget_reader(new)
        os.rename(self.directory / old, self.directory / new)

    def truncate(self, name: str, length: int) -> None:
        fd = os.open(self.directory / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            os.fsync(fd)
        finally:
            os.close(fd)

    def delete(self, name: str) -> None:
        _check_name(name)
        self._forget_reader(name)
        os.unlink(self.directory / name)

    def free_bytes(self) -> int:
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def place(self, name: str) -> bytes:
        parts: list[int] = []
        for path in (self.directory, self.directory / name):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:  # no device numbers: those change when the machine is started again
                parts += [os.fstat(fd).st_ino, _inode_generation(fd)]
            finally:
                os.close(fd)
        return _place_of(parts)


def _inode_generation(fd: int) -> int:
    """What tells an inode from the next one of its number, which may come at once, where the file system says."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, FS_IOC_GETVERSION, bytes(8)), sys.byteorder)
    except OSError:
        return 0


def _place_of(parts: Sequence[int]) -> bytes:
    return hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest()


def _make_directory(directory: Path) -> None:
    """Create ``directory`` and what is missing above it, durably: files live as long as their directory."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _Inode:
    """The bytes of one file of a `MemoryDisk`: the first ``synced`` of them are durable."""

    __slots__ = ("data", "number", "synced")

    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.synced = 0


class MemoryDisk:
    """A disk in memory that knows what a crash would take.

    Args:
        capacity: bytes that fit on it, all files together; more is ENOSPC, after what fitted was written.

    Attributes:
        on_operation: called with (operation, name) before every call that changes something; what it
            raises is raised there. The place to crash a node in the middle, or to fail a chosen call.
        fail_syncs: that many of the next `sync` and `sync_dir` raise EIO. As on a real system, the bytes
            they were for read fine afterwards, are lost by a crash, and no later sync saves them.
        operations: how many calls changed something so far.
    """

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.directory = 0  # its inode's number; the files' count up
        self._inodes = 0
        self.on_operation: Callable[[str, str], None] | None = None
        self.fail_syncs = 0
        self.operations = 0
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._name_changes: list[tuple[tuple[str, _Inode | None], ...]] = []  # not synced yet, in order
        self._handles: dict[int, tuple[str, _Inode]] = {}
        self._next_handle = 1
        self._locked = False
        self._dead = False
        self._poisoned: list[_Inode] = []  # a sync of these failed: no later one makes their bytes durable

    def __str__(self) -> str:
        return "memory"

    # ------------------------------------------------------------------ the port

    def lock(self) -> None:
        self._alive()
        if self._locked:
            raise StorageError(
                "memory disk is in use by another quorumq node of this process: close it first"
            )
        self._locked = True

    def unlock(self) -> None:
        self._locked = False
        self._handles.clear()

    def list(self) -> list[str]:
        self._alive()
        return sorted(self._names)

    def create(self, name: str) -> int:
        _check_name(name)
        self._operation("create", name)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        self._inodes += 1
        inode = _Inode(self._inodes)
        self._change_names((name, inode))
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = (name, inode)
        return handle

    def append(self, file: int, buffers: Sequence[Buffer]) -> None:
        self._alive()
        name, inode = self._handles[file]
        self._operation("append", name)
        room = self.free_bytes()
        for buffer in buffers:
            if len(buffer) > room:
                inode.data += memoryview(buffer)[:room]
                raise OSError(errno.ENOSPC, "No space left on device", name)
            inode.data += buffer
            room -= len(buffer)

    def sync(self, file: int) -> None:
        self._alive()
        name, inode = self._handles[file]
        self._operation("sync", name)
        if self._sync_fails():
            self._poisoned.append(inode)
            raise OSError(errno.EIO, "Input/output error", name)
        if not any(inode is other for other in self._poisoned):
            inode.synced = len(inode.data)

    def close(self, file: int) -> None:
        self._alive()
        del self._handles[file]

    def sync_dir(self) -> None:
        self._operation("sync_dir", "")
        if self._sync_fails():
            raise OSError(errno.EIO, "Input/output error")
        self._durable_names = dict(self._names)
        self._name_changes.clear()

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(memoryview(self._inode(name).data)[offset : offset + length])

    def size(self, name: str) -> int:
        return len(self._inode(name).data)

    def rename(self, old: str, new: str) -> None:
        _check_name(new)
        self._operation("rename", old)
        inode = self._inode(old)
        self._handles = {
            handle: (new if found is inode else name, found)
            for handle, (name, found) in self._handles.items()
        }
        self._change_names((old, None), (new, inode))

    def truncate(self, name: str, length: int) -> None:
        self._operation("truncate", name)
        inode = self._inode(name)
        del inode.data[length:]
        inode.synced = len(inode.data)

    def delete(self, name: str) -> None:
        self._operation("delete", name)
        self._inode(name)
        self._change_names((name, None))

    def free_bytes(self) -> int:
        self._alive()
        return max(0, self.capacity - sum(len(inode.data) for inode in self._names.values()))

    def place(self, name: str) -> bytes:
        return _place_of((self.directory, self._inode(name).number))

    # ------------------------------------------------------------------ faults

    def crash(
        self,
        rng: random.Random | None = None,
        *,
        keep_bytes: int | None = None,
        keep_names: int | None = None,
    ) -> MemoryDisk:
        """The machine stops. This disk is dead from now on: every call raises EIO.

        Args:
            rng: decides what survives of what was not synced: of each file any prefix, torn at any byte
                and with any of its unsynced pages zeroed; of the changes of names any subset.
            keep_bytes: instead of asking ``rng``, keep exactly this many unsynced bytes of each file.
            keep_names: instead of asking ``rng``, keep exactly the first so many unsynced changes of names.

        Returns:
            The disk that the next start finds; with neither rng nor numbers nothing unsynced survives.
        """
        self._alive()
        changes = self._name_changes
        if keep_names is not None:
            changes = changes[:keep_names]
        elif rng is not None:
            changes = [change for change in changes if rng.random() < 0.5]
        else:
            changes = []
        names = dict(self._durable_names)
        for change in changes:
            for name, inode in change:
                if inode is None:
                    names.pop(name, None)
                else:
                    names[name] = inode
        survivor = MemoryDisk(self.capacity)
        survivor.directory, survivor._inodes = self.directory, self._inodes
        for name in sorted(names):
            inode = names[name]
            unsynced = len(inode.data) - inode.synced
            if keep_bytes is not None:
                keep = min(keep_bytes, unsynced)
            elif rng is not None:
                keep = rng.choice((0, unsynced, rng.randint(0, unsynced)))
            else:
                keep = 0
            twin = _Inode(inode.number)
            twin.data[:] = memoryview(inode.data)[: inode.synced + keep]
            if rng is not None and keep_bytes is None and rng.random() < 0.3:
                _zero_pages(twin.data, inode.synced, rng)
            twin.synced = len(twin.data)
            survivor._names[name] = twin
        survivor._durable_names = dict(survivor._names)
        self._dead = True
        return survivor

    def clone(self) -> MemoryDisk:
        """A disk of its own in the same state (names, bytes, synced or not, handles, lock), without the hook.

        It is for forking a world: whoever forks has to fork the journal that holds the handles with it.
        """
        self._alive()
        hook, self.on_operation = self.on_operation, None
        try:
            return copy.deepcopy(self)
        finally:
            self.on_operation = hook

    def copied(self) -> MemoryDisk:
        """As `clone`, and it lies elsewhere: what a restored backup is."""
        twin = self.clone()
        twin.directory += 1
        return twin

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """Turn one bit of a file over, as a failing medium does."""
        self._inode(name).data[offset] ^= 1 << bit

    def unsynced_bytes(self, name: str) -> int:
        """How many bytes at the end of a file a crash may take."""
        inode = self._inode(name)
        return len(inode.data) - inode.synced

    # ------------------------------------------------------------------ inside

    def _alive(self) -> None:
        if self._dead:
            raise OSError(errno.EIO, "this disk belongs to a machine that has crashed")

    def _operation(self, operation: str, name: str) -> None:
        self._alive()
        if self.on_operation is not None:
            self.on_operation(operation, name)
        self.operations += 1

    def _sync_fails(self) -> bool:
        if self.fail_syncs:
            self.fail_syncs -= 1
            return True
        return False

    def _inode(self, name: str) -> _Inode:
        self._alive()
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file", name) from None

    def _change_names(self, *change: tuple[str, _Inode | None]) -> None:
        self._name_changes.append(change)
        for name, inode in change:
            if inode is None:
                del self._names[name]
            else:
                self._names[name] = inode


def _zero_pages(data: bytearray, start: int, rng: random.Random) -> None:
    """Zero some of the pages of ``data`` from ``start`` on: pages are written back in any order."""
    for page in range(start // PAGE_BYTES, (len(data) + PAGE_BYTES - 1) // PAGE_BYTES):
        if rng.random() < 0.5:
            low, high = max(start, page * PAGE_BYTES), min(len(data), (page + 1) * PAGE_BYTES)
            data[low:high] = bytes(high - low)

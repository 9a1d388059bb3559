"""A disk in memory, for the simulator and for tests: it loses, tears and damages as a real one may."""

from __future__ import annotations

import copy
import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quorumq.core.values.errors import StorageError
from quorumq.storage.disk import PAGE_BYTES, Buffer, allocate, check_name, location_of


@dataclass(slots=True, eq=False)
class _Inode:
    """The bytes of one file of a `MemoryDisk`: the first ``synced`` of them are durable."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0


class MemoryDisk:
    """A disk in memory that knows the writes that a crash would take."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        # Most bytes of all files together; more is ENOSPC, after the part that fits is written.
        self.capacity = capacity
        self.directory = 0  # its inode's number; the files' count up
        self._inodes = 0
        self.on_operation: Callable[[str, str], None] | None = None
        """Called with (operation, name) before every call that changes something. If it raises, so does the call. The
        place to crash a node in the middle, or to fail a chosen call."""
        self.fail_syncs = 0
        """That many of the next `sync` and `sync_dir` raise EIO. As on a real system, the bytes they were for read fine
        afterwards, are lost by a crash, and no later sync saves them."""
        self.operations = 0  # how many calls changed something so far
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
        check_name(name)
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
        capacity = self.free_bytes()
        for buffer in buffers:
            if len(buffer) > capacity:
                inode.data += memoryview(buffer)[:capacity]
                raise OSError(errno.ENOSPC, "No space left on device", name)
            inode.data += buffer
            capacity -= len(buffer)

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
        check_name(new)
        self._operation("rename", old)
        inode = self._inode(old)
        self._handles = {
            handle: (new if opened is inode else name, opened)
            for handle, (name, opened) in self._handles.items()
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

    def allocate(self, name: str, length: int) -> None:
        def fill(file: int) -> None:
            self.append(file, [bytes(length)])
            self.sync(file)

        allocate(self, name, fill)

    def free_bytes(self) -> int:
        self._alive()
        return max(0, self.capacity - sum(len(inode.data) for inode in self._names.values()))

    def location(self, name: str) -> bytes:
        return location_of((self.directory, self._inode(name).number))

    # ------------------------------------------------------------------ faults

    def crash(
        self,
        rng: random.Random | None = None,
        *,
        keep_bytes: int | None = None,
        keep_names: int | None = None,
    ) -> MemoryDisk:
        """Stop the machine. This disk is dead from now on: every call raises EIO.

        Args:
            rng: decides how much survives of unsynced writes: of each file any prefix, torn at any byte
                and with any of its unsynced pages zeroed; of the changes of names any subset.
            keep_bytes: if it is given, this number of unsynced bytes of each file survive, or all if there are fewer.
            keep_names: if it is given, this number of unsynced changes of names survive, the first ones.

        Returns:
            The disk that the next start finds. If neither rng nor numbers are given, nothing unsynced survives.
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
        """Return a disk of its own in the same state (names, bytes, synced or not, handles, lock), without the hook.

        It is for forking a world: the journal that holds the handles has to be forked with it.
        """
        self._alive()
        hook, self.on_operation = self.on_operation, None
        try:
            return copy.deepcopy(self)
        finally:
            self.on_operation = hook

    def copied(self) -> MemoryDisk:
        """Return a clone that lies elsewhere, like a restored backup."""
        twin = self.clone()
        twin.directory += 1
        return twin

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """Turn one bit of a file over, as a failing medium does."""
        self._inode(name).data[offset] ^= 1 << bit

    def unsynced_bytes(self, name: str) -> int:
        """Return the bytes at the end of a file that a crash may take."""
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

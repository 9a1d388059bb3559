"""The contract of the Disk port, over both disks, and crashes of the one in memory."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import pytest

from quorumq.core.values.errors import StorageError
from quorumq.storage.disk import PAGE_BYTES, WRITEV_BUFFERS_MAX, Disk, RealDisk
from quorumq.storage.offline import ReadOnlyDisk
from sim.memory_disk import MemoryDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = RealDisk(tmp_path / "deep" / "er") if request.param == "real" else MemoryDisk()
    made.lock()
    return made


def test_bytes_go_in_at_the_end_and_come_out_where_they_are(disk: Disk) -> None:
    file = disk.create("a")
    disk.append(file, [b"one", memoryview(b"-two"), bytearray(b""), b"-three"])
    disk.append(file, [b"!"])
    disk.sync(file)
    assert disk.size("a") == 14
    assert disk.read("a", 0, 100) == b"one-two-three!"
    assert disk.read("a", 4, 3) == b"two"
    assert disk.read("a", 14, 1) == b""
    assert disk.read("a", 99, 1) == b""


def test_more_buffers_than_one_system_call_takes_are_all_written(disk: Disk) -> None:
    file = disk.create("a")
    buffers = [bytes([n % 251]) * (n % 7) for n in range(3 * WRITEV_BUFFERS_MAX + 5)]
    disk.append(file, buffers)
    assert disk.read("a", 0, 1 << 20) == b"".join(buffers)


def test_names_are_made_once_listed_sorted_renamed_over_and_deleted(disk: Disk) -> None:
    b, a = disk.create("b"), disk.create("a")
    with pytest.raises(FileExistsError):
        disk.create("a")
    disk.append(a, [b"in a"])
    assert disk.list() == ["a", "b"]
    assert disk.read("b", 0, 9) == b""
    disk.rename("a", "b")
    disk.append(a, [b" and on"])
    disk.sync_dir()
    assert disk.list() == ["b"]
    assert disk.read("b", 0, 99) == b"in a and on", "handles follow a rename, readers do not see the old file"
    disk.close(a)
    disk.close(b)
    disk.delete("b")
    assert disk.list() == []
    for call in (lambda: disk.read("b", 0, 1), lambda: disk.size("b"), lambda: disk.delete("b")):
        with pytest.raises(FileNotFoundError):
            call()


def test_truncate_cuts(disk: Disk) -> None:
    file = disk.create("a")
    disk.append(file, [b"0123456789"])
    disk.truncate("a", 4)
    assert disk.read("a", 0, 99) == b"0123"


def test_a_name_is_a_name_in_this_directory(disk: Disk) -> None:
    for name in ("../a", "a/b", "", ".", "LOCK"):
        with pytest.raises(AssertionError):
            disk.create(name)


def test_the_lock_is_held_until_unlock(disk: Disk) -> None:
    other: Disk = RealDisk(disk.directory) if isinstance(disk, RealDisk) else disk
    with pytest.raises(StorageError, match="in use by another quorumq"):
        other.lock()
    disk.unlock()
    disk.unlock()
    other.lock()
    other.unlock()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_directory_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match=r"file.* cannot be used as a data directory: Not a directory; give"
    ):
        RealDisk(tmp_path / "file" / below).lock()


@pytest.mark.parametrize("made", ["a link to a file", "a link to nothing", "a pipe", "a directory"])
def test_a_lock_that_is_no_file_of_its_own_is_refused_and_what_it_leads_to_is_not_touched(
    tmp_path: Path, made: str
) -> None:
    """A user who may write to a directory must not have the node empty a file elsewhere (it writes its pid there)."""
    data, lock, other = tmp_path / "data", tmp_path / "data" / "LOCK", tmp_path / "other"
    data.mkdir()
    if made == "a pipe":
        os.mkfifo(lock)
    elif made == "a directory":
        lock.mkdir()
    else:
        lock.symlink_to(other)
        if made == "a link to a file":
            other.write_text("kept")
    for disk in (RealDisk(data), ReadOnlyDisk(data)):
        with pytest.raises(StorageError, match=r"LOCK is a link, or no file.*remove it"):
            disk.lock()
    assert not other.exists() or other.read_text() == "kept"


def test_a_disk_without_space_for_the_holders_pid_is_locked_all_the_same(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        disk = RealDisk(tmp_path)
        disk.lock()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(StorageError, match=r"in use by another quorumq process .pid unknown"):
        RealDisk(tmp_path).lock()
    disk.unlock()


def test_free_bytes_is_a_number_that_shrinks_with_what_is_written() -> None:
    disk = MemoryDisk(capacity=100)
    file = disk.create("a")
    disk.append(file, [bytes(60)])
    assert disk.free_bytes() == 40
    with pytest.raises(OSError, match="No space left"):
        disk.append(file, [bytes(30), bytes(30)])
    assert disk.size("a") == 100, "what fitted was written"


def test_a_real_disk_reports_the_free_space_of_its_filesystem(tmp_path: Path) -> None:
    assert RealDisk(tmp_path).free_bytes() > 0


def test_reading_many_files_keeps_few_open(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    for number in range(200):
        file = disk.create(f"f{number}")
        disk.append(file, [str(number).encode()])
        disk.close(file)
    for _ in range(2):
        for number in range(200):
            assert disk.read(f"f{number}", 0, 9) == str(number).encode()
    assert len(disk._readers) <= 64


def files(disk: MemoryDisk) -> dict[str, bytes]:
    return {name: disk.read(name, 0, 1 << 20) for name in disk.list()}


def written() -> MemoryDisk:
    disk = MemoryDisk()
    a = disk.create("a")
    disk.append(a, [b"synced"])
    disk.sync(a)
    disk.sync_dir()
    disk.append(a, [b"-not"])
    b = disk.create("b")
    disk.append(b, [b"bytes"])
    disk.sync(b)
    disk.rename("b", "c")
    return disk


def test_a_crash_takes_what_was_not_synced_and_nothing_else() -> None:
    assert files(written().crash()) == {"a": b"synced"}
    assert files(written().crash(keep_bytes=2, keep_names=1)) == {"a": b"synced-n", "b": b"bytes"}
    assert files(written().crash(keep_bytes=9, keep_names=2)) == {"a": b"synced-not", "c": b"bytes"}
    seen = set()
    for seed in range(200):
        survived = files(written().crash(random.Random(seed)))
        assert survived["a"].startswith(b"synced")
        assert not {"b", "c"} <= set(survived), "a rename is atomic"
        assert survived.get("b", b"bytes") == survived.get("c", b"bytes") == b"bytes"
        seen.add((survived["a"], *sorted(survived)))
    assert len(seen) > 8


def test_a_crash_loses_whole_pages_in_any_order_too() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    disk.sync_dir()
    disk.append(file, [b"x" * 4 * PAGE_BYTES])
    holes = set()
    for seed in range(200):
        survived = disk.clone().crash(random.Random(seed)).read("a", 0, 1 << 20)
        holes.add(tuple(survived[at : at + 1] for at in range(0, len(survived), PAGE_BYTES)))
    assert (b"x", b"\0", b"x", b"x") in holes or (b"x", b"\0", b"x", b"\0") in holes


def test_a_dead_disk_answers_nothing() -> None:
    disk = written()
    disk.crash()
    for call in (
        disk.list,
        disk.free_bytes,
        lambda: disk.read("a", 0, 1),
        lambda: disk.append(1, [b"x"]),
        disk.lock,
    ):
        with pytest.raises(OSError, match="crashed"):
            call()


def test_a_failed_sync_loses_its_bytes_even_when_a_later_one_succeeds() -> None:
    disk = MemoryDisk()
    file = disk.create("a")
    disk.sync_dir()
    disk.append(file, [b"gone"])
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    disk.sync(file)
    assert disk.read("a", 0, 9) == b"gone", "the page cache still has it"
    assert files(disk.crash()) == {"a": b""}


def test_a_clone_goes_its_own_way() -> None:
    disk = written()
    twin = disk.clone()
    twin.flip("a", 0, 5)
    twin.append(1, [b"more"])
    assert disk.read("a", 0, 99) == b"synced-not"
    assert twin.read("a", 0, 99) == b"Synced-notmore"
    assert files(twin.crash()) == {"a": b"Synced"}
    assert files(disk.crash()) == {"a": b"synced"}

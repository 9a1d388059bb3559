"""A copy of a data directory is distinguished from the directory itself, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumq.storage.disk import RealDisk, _inode_generation
from tests.storage.samples import batch, dead, small_state, start, started


def location_of(directory: Path) -> int:
    """Return the location that a start finds; every start begins a new segment."""
    store, _ = start(RealDisk(directory))
    location = store.location
    store.append([batch(store.next_number), dead(0)])
    store.close()
    return location


def copied_elsewhere(home: Path, backup: Path) -> Path:
    return Path(shutil.copytree(backup, home.with_name("elsewhere")))


def emptied_and_copied_back(home: Path, backup: Path) -> Path:
    shutil.rmtree(home)
    subprocess.run(["cp", "-a", backup, home], check=True)
    return home


def copied_over(home: Path, backup: Path) -> Path:
    """The directory itself stays, and has other files: their inodes may well have the numbers of the old ones."""
    for path in home.iterdir():
        path.unlink()
    subprocess.run(["cp", "-a", f"{backup}/.", home], check=True)
    return home


def unpacked(home: Path, backup: Path) -> Path:
    archive = home.with_suffix(".tar")
    subprocess.run(["tar", "-cf", archive, "-C", backup, "."], check=True)
    for path in home.iterdir():
        path.unlink()
    subprocess.run(["tar", "-xf", archive, "-C", home], check=True)
    return home


def linked(home: Path, backup: Path) -> Path:
    """A copy made of hard links has the same inodes, in another directory."""
    subprocess.run(["cp", "-al", backup, home.with_name("linked")], check=True)
    return home.with_name("linked")


def tells_generations(directory: Path) -> bool:
    fd = os.open(directory, os.O_RDONLY)
    try:
        return _inode_generation(fd) > 0
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "restore", [copied_elsewhere, emptied_and_copied_back, copied_over, unpacked, linked]
)
def test_a_restored_backup_lies_elsewhere(tmp_path: Path, restore: Callable[[Path, Path], Path]) -> None:
    if restore in (emptied_and_copied_back, copied_over, unpacked) and not tells_generations(tmp_path):
        pytest.skip(
            "this file system may give a copy the very inodes that were there, and says nothing of that"
        )
    home, backup = tmp_path / "data", tmp_path / "backup"
    before = location_of(home)
    shutil.copytree(home, backup)
    location_of(home)
    restored = restore(home, backup)
    location = location_of(restored)
    assert location != before
    assert location_of(restored) == location, "and stays there"
    assert location_of(Path(shutil.copytree(restored, tmp_path / "again"))) not in (before, location)


def test_starts_rolls_reclaiming_and_renaming_do_not_move_it(tmp_path: Path) -> None:
    home = tmp_path / "data"
    before = location_of(home)
    for _ in range(3):
        assert location_of(home) == before
    store, records = start(RealDisk(home))
    for _ in range(5):
        store.append([batch(store.next_number + number) for number in range(20)])
        store.commit()
        store.drop(range(1, store.next_number - 1))
        store.compact()
        store.roll(lambda: small_state(records))
        store.commit()
        assert store.location == before
    store.abandon()
    assert location_of(home) == before
    assert location_of(home.rename(tmp_path / "renamed")) == before
    (tmp_path / "renamed" / "LOCK").unlink()
    assert location_of(tmp_path / "renamed") == before


def test_a_disk_in_memory_tells_its_copies_too() -> None:
    disk, store, _ = started()
    before = store.location
    store.close()
    for other, moved in ((disk.clone(), False), (disk.copied(), True), (disk.crash(), False)):
        store, _ = start(other)
        assert (store.location != before) == moved
        store.close()

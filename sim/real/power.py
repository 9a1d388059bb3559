"""Losses of a directory by a power cut after its process was killed: any bytes that it had not fsynced.

Killed alone, a process loses nothing that it wrote, as the system still has it. Its twin in the node's process
(faulty_node.py) writes a line for each fsync: a file's inode and how long it was when the fsync began, or what a
directory listed then. Files only grow, so bytes behind that length were never synced.

As a disk may (quorumq/storage/disk.py): unsynced bytes survive as any prefix, with any of its pages zeroed; a
file whose name was not synced is gone, or has its old name. One thing is kinder: a deleted file stays deleted.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

from quorumq.storage.disk import LOCK_NAME, PAGE_BYTES


def files_of(directory: Path) -> list[os.DirEntry[str]]:
    """Return the files that a node keeps there."""
    if not directory.is_dir():
        return []
    entries = [entry for entry in os.scandir(directory) if entry.is_file() and entry.name != LOCK_NAME]
    return sorted(entries, key=lambda entry: entry.name)


def begin(directory: Path, log: Path) -> None:
    """Note before a process starts that all its bytes have survived already."""
    entries = files_of(directory)
    lines = [{"file": entry.inode(), "bytes": entry.stat().st_size} for entry in entries]
    names = {"names": {entry.name: entry.inode() for entry in entries}}
    log.write_text("".join(json.dumps(line) + "\n" for line in (*lines, names)))


def lose(directory: Path, log: Path, rng: random.Random) -> int:
    """Take away unsynced bytes and names, once the process is gone. Return the number of both."""
    sizes: dict[int, int] = {}
    names: dict[int, str] = {}
    for line in log.read_text().splitlines():
        fields = json.loads(line)
        if "names" in fields:
            names = {inode: name for name, inode in fields["names"].items()}
        else:
            sizes[fields["file"]] = fields["bytes"]
    lost = 0
    for entry in files_of(directory):
        lost += cut_off(Path(entry.path), sizes.get(entry.inode(), 0), rng)
        old = names.get(entry.inode())
        if old != entry.name and rng.random() < 0.5:
            lost += 1
            if old is None:
                os.unlink(entry.path)
            elif not (directory / old).exists():
                os.rename(entry.path, directory / old)
    return lost


def cut_off(path: Path, synced: int, rng: random.Random) -> int:
    """Keep the first ``synced`` bytes of a file, and of the others what ``rng`` says. Return the bytes gone."""
    size = path.stat().st_size
    unsynced = max(0, size - synced)
    keep = rng.choice((0, unsynced, rng.randint(0, unsynced)))
    with path.open("r+b") as file:
        file.truncate(size - unsynced + keep)
        if rng.random() < 0.3:
            for at in pages(synced, synced + keep):
                if rng.random() < 0.5:
                    file.seek(at)
                    file.write(bytes(min(PAGE_BYTES, synced + keep - at)))
    return unsynced - keep


def pages(first: int, stop: int) -> Iterator[int]:
    """Yield the beginnings of the pages of bytes [first, stop), and ``first`` itself."""
    at = first
    while at < stop:
        yield at
        at = (at // PAGE_BYTES + 1) * PAGE_BYTES

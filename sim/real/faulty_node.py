"""``python faulty_node.py CONTROL [--warm] --config node.toml``: a node whose disk and clock do as a file says.

CONTROL is JSON: ``fsync_s``, extra seconds of each fsync; ``full``, true if the disk has no space; ``wall_s``, the
error of its time of day in seconds; ``boots``, number of losses of power so far: each start after one is in a boot of
its own. The file is read again when it is replaced. Beside it, in CONTROL with the ending ``.synced``, stands what was
fsynced, for power cuts (power.py).

With ``--warm`` it imports all, makes a file CONTROL.PID.warm, and is a node once that file is deleted: a start then
takes a small part of a second, even on a busy machine.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

LOOK_S = 0.02
"""Seconds for which the file's last content is believed."""

WAIT_S = 0.005
"""Seconds between two looks of a warm process for its beginning."""


class Control:
    """Current content of the file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.looked = -1.0
        self.changed = -1
        self.values: dict[str, Any] = {}

    def get(self, name: str, default: Any) -> Any:
        """Return one value; ``default`` if the file has none."""
        now = time.monotonic()
        if now > self.looked + LOOK_S:
            self.looked = now
            try:
                changed = os.stat(self.path).st_mtime_ns
                if changed != self.changed:
                    with open(self.path, encoding="utf-8") as file:
                        self.values = json.load(file)
                    self.changed = changed
            except FileNotFoundError:
                self.values = {}
        return self.values.get(name, default)


def noted(sync: Callable[[Any], None], control: Control) -> Callable[[Any], None]:
    """Return an fsync that takes as long as the file says, and writes down the data it has made durable."""
    log = os.open(control.path.removesuffix(".json") + ".synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call(fd: Any) -> None:
        seconds = control.get("fsync_s", 0.0)
        if seconds:
            time.sleep(seconds)
        number = fd if isinstance(fd, int) else fd.fileno()
        status = os.fstat(number)
        line: dict[str, Any] = {"file": status.st_ino, "bytes": status.st_size}
        if stat.S_ISDIR(status.st_mode):
            line = {"names": {entry.name: entry.inode() for entry in os.scandir(number)}}
        sync(fd)
        os.write(log, json.dumps(line).encode() + b"\n")

    return call


def booted(boot: Callable[[], str], control: Control) -> Callable[[], str]:
    """Return the id of a boot that began with the last loss of power.

    Why: within one boot a node counts nothing by the time of day, so a wrong clock would show nothing.
    """

    def call() -> str:
        boots = control.get("boots", 0)
        return f"{boot()}/{boots}" if boots else boot()

    return call


def wait(path: str) -> None:
    """Import the modules of a node, and wait until the file that holds it back is gone."""
    importlib.import_module("quorumq.node.serve")
    with open(path, "w", encoding="utf-8"):
        pass
    while os.path.exists(path):
        time.sleep(WAIT_S)


def main() -> None:
    """Put faults into this process, then be a node."""
    control = Control(sys.argv.pop(1))
    if sys.argv[1] == "--warm":
        del sys.argv[1]
        wait(f"{control.path}.{os.getpid()}.warm")
    statvfs, wall_ns = os.statvfs, time.time_ns

    def no_space(path: Any) -> Any:
        result = statvfs(path)
        if not control.get("full", False):
            return result
        return os.statvfs_result((*result[:3], 0, 0, *result[5:]))

    os.fdatasync = noted(os.fdatasync, control)  # type: ignore[assignment]
    os.fsync = noted(os.fsync, control)  # type: ignore[assignment]
    os.statvfs = no_space
    time.time_ns = lambda: wall_ns() + int(control.get("wall_s", 0.0) * 1e9)
    serve = importlib.import_module("quorumq.node.serve")
    serve.boot = booted(serve.boot, control)  # type: ignore[attr-defined]
    runpy.run_module("quorumq.node", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()

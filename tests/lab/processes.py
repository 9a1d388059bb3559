"""Processes of this machine, by their ids."""

from __future__ import annotations

import os
from pathlib import Path

from tests.patience import until


def alive(pid: int) -> bool:
    """Return True if it runs or is stopped; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used so far; 0 if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_gone(pids: list[int]) -> None:
    until(
        lambda: not any(map(alive, pids)),
        lambda: f"{[pid for pid in pids if alive(pid)]} of {pids} still run",
    )

"""An audit of many lines finds the planted faults, and no others, in memory that does not grow with the lines."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MACHINES = 8

MESSAGES = 620_000
"""Messages of a soak: with nine lines each, its clocks have as many windows as an audit of any length places."""

MEMORY_MB = 300


@pytest.mark.parametrize("count", [2_000, pytest.param(MESSAGES, marks=pytest.mark.soak)])
def test_many_lines_are_audited_in_bounded_memory(count: int, tmp_path: Path) -> None:
    command = ("-m", "tests.measure.audit", str(count), str(tmp_path), str(MACHINES))
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
    shutil.rmtree(tmp_path / "histories")  # more than a gigabyte
    most = re.search(r", ([0-9,]+) MB; ", done.stdout)
    assert most is not None, done.stdout
    assert int(most[1].replace(",", "")) < MEMORY_MB

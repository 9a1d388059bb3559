"""A gateway process beside real nodes, for tests that need other programs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quorumq.lab.local import LocalCluster


@contextmanager
def started(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a gateway with its own cluster; yield its URL and its process."""
    with LocalCluster(hold_time_max=60.0, settings={"auto_create_topics": True}) as cluster:
        command = [sys.executable, "-m", "quorumq", "gateway", "--listen", "127.0.0.1:0", "--json", *options]
        for address in cluster.addresses:
            command += ["--node", address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.search(r'"url": ?"([^"]+)"', line)
            assert match is not None, line
            yield match[1], process
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="session")
def gateway_url() -> Iterator[str]:
    """The URL of a gateway with a console that may change the cluster."""
    with started("--console-write") as (url, _):
        yield url


@pytest.fixture
def gateway_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL and the process of a gateway."""
    with started() as it:
        yield it

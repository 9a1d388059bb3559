"""A gateway process beside real nodes, for tests that need other programs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from quorumq.lab.local import LocalCluster


@pytest.fixture(scope="session")
def gateway_url() -> Iterator[str]:
    """The URL of a gateway with a console that may change the cluster."""
    with LocalCluster(hold_time_max=60.0, settings={"auto_create_topics": True}) as cluster:
        command = [
            sys.executable,
            "-m",
            "quorumq",
            "gateway",
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--console-write",
        ]
        for address in cluster.addresses:
            command += ["--node", address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            started = re.search(r'"url": ?"([^"]+)"', line)
            assert started is not None, line
            yield started[1]
        finally:
            process.terminate()
            process.wait(30)

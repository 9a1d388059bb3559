"""Real clusters for the end-to-end tests: node processes on loopback, one cluster for all tests that spare it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumq.lab.local import LocalCluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def shared() -> Iterator[LocalCluster]:
    """A cluster that every test must leave as it found it: all nodes running, out of quarantine."""
    with LocalCluster(3, hold_time_max=3.0) as cluster:
        yield cluster
        for name in cluster.nodes:
            assert cluster.running(name), f"a test left {name} dead: {cluster.log_tail(name)}"


@pytest.fixture(scope="session")
def five() -> Iterator[LocalCluster]:
    """A cluster of five, whose nodes no test hurts."""
    with LocalCluster(5, hold_time_max=30.0) as cluster:
        yield cluster


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster of the test's own, to be killed: of three nodes, or of as many as the test is parametrised with."""
    with LocalCluster(getattr(request, "param", 3), hold_time_max=3.0) as cluster:
        yield cluster


def rss_of(pid: int) -> int:
    """Resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmRSS: it is a zombie")

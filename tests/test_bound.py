"""Tests that start clusters respect the limit of tests/bound.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.lab.leash import Leashed
from quorumq.lab.local import LocalCluster
from tests import bound, forked

HERE = Path(__file__)


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "quorumq", "dev"],
        [sys.executable, "-m", "quorumq", "demo", "--json"],
        [sys.executable, "-m", "sim", "real"],
        [sys.executable, "-m", "spark", "audit"],
        [sys.executable, "-c", "from quorumq.lab.local import LocalCluster"],
        ["sh", "-c", 'exec "$@"', "sh", sys.executable, "-m", "quorumq.node", "--config", "n.toml"],
        ["/usr/lib/jvm/java-17/bin/java", "-version"],
        ["/spark/bin/spark-submit", "job.py"],
    ],
    ids=lambda command: " ".join(command[-3:]),
)
def test_a_test_outside_of_the_bound_starts_no_cluster_and_no_java(command: list[str]) -> None:
    with pytest.raises(bound.OutOfBounds, match=HERE.name):
        subprocess.Popen(command)
    for group in bound.BOUNDED:
        bound.refuse(command, group)


def test_a_test_outside_of_the_bound_starts_no_node(tmp_path: Path) -> None:
    cluster = LocalCluster(1, keep=tmp_path)
    with pytest.raises(bound.OutOfBounds, match=HERE.name):
        cluster.spawn("n1")
    assert not cluster.running("n1")


def test_small_tests_may_start_anywhere() -> None:
    for command in (
        [sys.executable, "-c", "pass"],
        [sys.executable, "-m", "quorumq", "status"],
        "true",
        ["cp"],
    ):
        bound.refuse(command, str(HERE))


def test_every_test_of_real_processes_is_in_a_bounded_group() -> None:
    """The folder or the marker names those tests; each group is in one process of pytest."""
    groups = {path: bound.group_of(path) for path in bound.TESTS.rglob("test_*.py")}
    for path, group in groups.items():
        inside = path.parent.name in ("e2e", "spark") or bound.MARK in path.read_text()
        assert inside == (group in bound.BOUNDED), path
    assert set(bound.FIRST) <= set(groups.values())


@pytest.mark.parametrize(("cores", "workers"), [(1, 3), (2, 4), (8, 10), (64, 12)])
def test_pytest_has_processes_by_the_cores(cores: int, workers: int) -> None:
    assert bound.workers(cores) == workers


def test_a_forked_node_has_its_own_log_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("node = 1\n")
    command = [sys.executable, "-m", "quorumq.node", "--config", "node.toml"]
    process = forked.logged(command, tmp_path / "log", tmp_path)
    assert process.wait() == 78
    assert "node.toml" in (tmp_path / "log").read_text()
    assert not isinstance(process, Leashed) or sys.platform != "linux"

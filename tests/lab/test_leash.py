"""Processes started on this machine end with their starter, however that ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.lab import leash
from quorumq.lab.leash import Leashed
from quorumq.lab.ports import free_ports
from tests.lab.processes import alive, wait_until_gone
from tests.patience import PATIENCE_S

CLUSTER = """
import json, sys, threading, time
from quorumq.lab.local import LocalCluster
cluster = LocalCluster(3, keep=sys.argv[1])
thread = threading.Thread(target=lambda: [cluster.spawn(name) for name in cluster.nodes])
thread.start()
thread.join()  # a process that ends with its thread would be gone now
cluster.pause("n2")  # it can notice nothing
cluster.kill("n3")
print(json.dumps([cluster.pid("n1"), cluster.pid("n2")]), flush=True)
time.sleep(600)  # it is killed before
"""


@pytest.mark.e2e
def test_nodes_end_with_a_parent_that_is_killed_also_those_that_are_stopped(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert all(map(alive, pids)), pids
        parent.kill()
    wait_until_gone(pids)


@pytest.mark.e2e
def test_a_killed_dev_ends_its_nodes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from quorumq.cli.main import main; main()", "dev", "--json"]
    command += ["--nodes", "1", "--port", str(free_ports(1)[0]), "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        pids = list(json.loads(dev.stdout.readline())["pids"].values())
        assert all(map(alive, pids)), pids
        dev.kill()
    wait_until_gone(pids)


def test_ended_processes_are_not_killed_again_at_a_normal_end() -> None:
    script = (
        "import sys\n"
        "from quorumq.lab.leash import Leashed\n"
        "gone = [Leashed(['sleep', '600']) for _ in range(3)]\n"
        "left = Leashed(['sleep', '600'])\n"
        "for process in gone:\n"
        "    process.kill()\n"
        "    process.wait()\n"
        "print(left.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert not alive(int(done.stdout)), "it is waited for that it is killed"
    assert "Traceback" not in done.stderr


def test_no_process_starts_without_a_watcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An image without the watcher's program would keep nodes of a killed `quorumq dev`."""
    monkeypatch.setattr(leash, "_WATCHER", leash._Watcher())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        Leashed(["touch", str(tmp_path / "started")])
    assert not (tmp_path / "started").exists()


def test_the_tests_themselves_start_nothing_that_outlives_them() -> None:
    assert subprocess.Popen is Leashed
    with pytest.raises(FileNotFoundError):
        subprocess.run(["/no/such/program"], check=False)
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.poll() == -signal.SIGKILL

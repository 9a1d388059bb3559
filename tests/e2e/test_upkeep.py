"""Upgrade, backup and restore of three nodes by the commands of docs/operations.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quorumq.client.blocking import Client, connect
from quorumq.lab.local import LocalCluster
from tests.e2e.nodes import status_when
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def blocks(heading: str) -> list[list[str]]:
    """Return the lines of each block of commands in a section of the page."""
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n#")[0]
    return [text.splitlines() for text in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)]


class Machine:
    """A machine with one node. The test acts as systemd and curl there."""

    def __init__(self, cluster: LocalCluster, name: str, directory: Path) -> None:
        self.cluster, self.name, self.backup = cluster, name, directory / name
        self.backup.mkdir()

    def run(self, lines: list[str]) -> None:
        for line in lines:
            if line.startswith("systemctl"):
                self._control(line.split()[1])
            elif line.startswith("until curl"):
                self.cluster.wait_ready(quarantine=True)
            elif "pip install" not in line:
                assert "/var/lib/quorumq" in line
                data, backup = str(self.cluster.data_path(self.name)), str(self.backup)
                command = line.replace("/var/lib/quorumq", data).replace("/backup", backup)
                subprocess.run(["sh", "-ec", command], check=True, timeout=PATIENCE_S)

    def _control(self, verb: str) -> None:
        if verb in ("stop", "restart") and self.cluster.running(self.name):
            assert self.cluster.terminate(self.name) == 0
        if verb in ("start", "restart"):
            self.cluster.spawn(self.name)


def work(client: Client, numbers: range, acked: int) -> set[bytes]:
    """Publish numbers and ack some of those waiting; return the acked ones."""
    for number in numbers:
        client.publish("jobs", str(number).encode())
    messages = client.fetch("jobs", "workers", max_messages=acked, min_messages=acked, max_wait=30)
    for message in messages:
        message.ack()
    return {message.payload for message in messages}


def quorumq(cluster: LocalCluster, line: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *line.split()],
        env={**os.environ, "QUORUMQ_NODES": ",".join(cluster.addresses)},
        input=answer, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_copies_of_different_times_are_a_backup(tmp_path: Path) -> None:
    save, restore, declare = blocks("Backup and restore")
    with LocalCluster(3, hold_time_max=3.0) as cluster:
        machines = [Machine(cluster, name, tmp_path) for name in cluster.nodes]
        cluster.wait_ready()
        acked: set[bytes] = set()
        with connect(cluster.addresses) as client:
            client.create_topic("jobs")
            client.create_group("jobs", "workers")
            for number, machine in enumerate(machines):
                acked |= work(client, range(10 * number, 10 * number + 10), 4)
                machine.run(save)
            again = work(client, range(100, 110), 4)
        for machine in machines:
            machine._control("stop")
        for machine in machines:
            machine.run(restore)
        for name in ("n1", "n2"):
            status_when(cluster, name, lambda status: "is not trusted either" in status["resync"])
        plan, done = (quorumq(cluster, line, "y\n") for line in declare)
        assert "left: n3\n" in plan.stdout, plan.stderr
        assert done.returncode == 0, done.stderr
        cluster.wait_ready(quarantine=True)
        with connect(cluster.addresses) as client:
            delivered: list[bytes] = []
            while messages := client.fetch("jobs", "workers", max_messages=100, max_wait=6):
                delivered += [message.payload for message in messages]
                for message in messages:
                    message.ack()
    stored = {str(number).encode() for number in range(30)}
    assert {*delivered} == stored - acked | (again & stored)
    assert len(delivered) == len({*delivered})


def test_nodes_are_upgraded_while_a_client_publishes(tmp_path: Path) -> None:
    (upgrade,) = blocks("Upgrading")
    with LocalCluster(3, hold_time_max=3.0) as cluster, connect(cluster.addresses) as client:
        client.create_topic("jobs")
        for name in cluster.nodes:
            before = cluster.pid(name)
            Machine(cluster, name, tmp_path).run(upgrade)
            assert cluster.pid(name) != before
            client.publish("jobs", name.encode())
        messages = client.fetch("jobs", "workers", max_messages=3, min_messages=3, max_wait=30)
        assert sorted(message.payload for message in messages) == [b"n1", b"n2", b"n3"]

"""The image of the Containerfile, built and run without a daemon if buildah is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumq.client.blocking import connect
from quorumq.lab.ports import free_ports
from tests.lab.processes import alive, wait_until_gone
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
BUILD_S = 1800.0
PIP = (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf")
"""Configuration of pip, which counts for the image's packages, too."""
WITHOUT_DAEMON = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}


def buildah(*arguments: str, timeout: float = PATIENCE_S) -> str:
    """Run a command of buildah; return its output."""
    done = subprocess.run(
        ["buildah", *arguments],
        cwd=ROOT,
        env={**os.environ, **WITHOUT_DAEMON},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode and "docker.io" in done.stderr and "pull" in arguments:
        pytest.skip("the base image cannot be pulled here")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """Build the image, and make a container of it that has no shell."""
    if shutil.which("buildah") is None:
        pytest.skip("needs buildah")
    buildah("pull", "--policy", "missing", "docker.io/library/python:3.13-slim", timeout=BUILD_S)
    volumes = [f"--volume={path}:{path}:ro" for path in PIP if path.exists()]
    buildah("build", "--layers", "--pull=missing", "--tag", "quorumq-test", *volumes, ".", timeout=BUILD_S)
    name = buildah("from", "--pull-never", "quorumq-test")
    try:
        root = Path(buildah("mount", name))
        for shell in ("bin/sh", "bin/dash", "bin/bash"):
            (root / shell).unlink(missing_ok=True)
        yield name
    finally:
        buildah("rm", name)


def test_the_image_runs_commands_of_an_ordinary_user(container: str) -> None:
    program = "import os; print(os.getuid(), os.access('/var/lib/quorumq', os.W_OK))"
    assert buildah("run", container, "--", "python3", "-c", program) == "65532 True"
    assert buildah("run", container, "--", "quorumq", "--version").startswith("quorumq ")
    gateway = "import quorumq.gateway.serve, quorumq.gateway.app; print('imported')"
    assert buildah("run", container, "--", "python3", "-c", gateway) == "imported"
    made = buildah("run", container, "--", "quorumq", "init", "/etc/quorumq", "--tls", "--json")
    assert len(json.loads(made)["files"]) == 3 + 2 + 6 + 1


def test_nodes_end_with_a_killed_dev_in_the_image(container: str) -> None:
    (port,) = free_ports(1)
    command = [
        "buildah", "run", container, "--", "quorumq", "dev", "--json", "--nodes", "1", "--port", str(port),
    ]  # fmt: skip
    environment = {**os.environ, **WITHOUT_DAEMON}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        (pid,) = json.loads(run.stdout.readline())["pids"].values()
        assert alive(pid), "the container shares the machine's process ids"
        with connect(f"127.0.0.1:{port}") as client:
            client.publish("jobs", b"from outside")
        stat = Path(f"/proc/{pid}/stat").read_text()
        dev = int(stat.rpartition(")")[2].split()[1])
        os.kill(dev, 9)
    wait_until_gone([pid])

"""Installation without extras: a program that publishes and consumes needs only the base dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from quorumq.commands import SERVER
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

CLIENTS = """
import quorumq.client.aio, quorumq.testing.aio
from quorumq.testing import blocking

with blocking.cluster() as client:
    client.publish("jobs", b"resize 17.png")
    (message,) = client.fetch("jobs", "workers")
    message.ack()
print(message.payload)
"""

COMMAND = "from quorumq.__main__ import main; main()"


def modules_of(extra: str) -> list[str]:
    """Return the modules that an extra brings."""
    names = (re.split(r"[<>=\[]", line)[0] for line in PROJECT["optional-dependencies"][extra])
    return [name.replace("-", "_") for name in names]


def run(program: str, missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own without some modules."""
    text = f"MISSING = {missing!r}\n{WITHOUT}\n{program}"
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_client_needs_nothing_of_the_server() -> None:
    done = run(CLIENTS, modules_of("server"))
    assert (done.stdout, done.stderr) == ("b'resize 17.png'\n", "")


def test_a_command_without_the_server_names_the_extra() -> None:
    assert {*SERVER, "click"} == {*modules_of("server")}
    remedy = "is not installed: pip install 'quorumq[server]'\n"
    done = run(COMMAND, modules_of("server"), "--version")
    assert (done.returncode, done.stderr) == (64, f"quorumq: click {remedy}")
    done = run(COMMAND, ["msgspec"], "clients", "list", "--file", "clients.toml")
    assert (done.returncode, done.stderr) == (64, f"quorumq: msgspec {remedy}")


def test_extras_that_run_commands_bring_the_server() -> None:
    for extra in ("audit", "spark"):
        assert "quorumq[server]" in PROJECT["optional-dependencies"][extra]


def test_the_sdist_has_what_the_tests_read() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text()
    named = {word for line in manifest.splitlines() for word in line.split()[1:] if not line.startswith("#")}
    top = {path.name for path in ROOT.iterdir() if not path.name.startswith(".") and path.suffix != ".md"}
    made = {"build", "dist", "MANIFEST.in", "PKG-INFO", "setup.cfg"} | {
        name for name in top if name.endswith(".egg-info")
    }
    assert top - made <= named


def test_workflows_run_each_python_that_is_promised() -> None:
    versions = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert {*workflow["jobs"]["test"]["strategy"]["matrix"]["python"]} == versions
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert release["jobs"]["test"]["uses"] == "./.github/workflows/test.yml"
    assert [release["jobs"][job]["needs"] for job in ("build", "publish")] == ["test", "build"]

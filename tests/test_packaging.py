"""Installation without extras: a program that publishes and consumes needs only the base dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

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
    """Run a program in a process of its own where some modules are not installed."""
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

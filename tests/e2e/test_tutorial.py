"""docs/tutorial.md, and the commands and the program with which README.md begins: each says what its page says.

They run in order and as they stand, in a directory of their own, but for three things: what installs quorumq is left
out; the cluster is at ports that are free; and process ids are those that this cluster has. `…` stands for any text,
as an id of a message in README.md does, and `^C` for the moment at which a reader who has seen all that is above
presses that.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumq.client import UsageError
from quorumq.lab.ports import free_ports, given_ports
from tests.patience import PATIENCE_S, until

UNORDERED = ("quorumq consume", "quorumq work")
"""Commands whose messages, if published at once, may be in any order."""

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = [
    re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for page in (README, (ROOT / "docs" / "tutorial.md").read_text())
]
INSTALL = ["python3 -m venv .venv", ". .venv/bin/activate", "pip install '.[server]'"]


class Step(NamedTuple):
    command: str
    before: str  # its output, until Ctrl-C if that is pressed
    after: str | None  # and then


def steps_of(block: str) -> list[Step]:
    steps = []
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, shown = part.partition("\n")
        command, shown = re.sub(r"  +# .*", "", command), re.sub(r"^[0-9a-f]{32}/\S+", "…", shown, flags=re.M)
        before, pressed, after = shown.partition("^C\n")
        steps.append(Step(command, before, after if pressed else None))
    return steps


def is_like(printed: str, shown: str) -> bool:
    """Return True if a command printed the text of the page, except for spaces and varying parts."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in shown.split("…"))
    return re.fullmatch(r"\s*" + pattern.replace(r"\ ", r"\s+") + r"\s*", printed, re.DOTALL) is not None


def is_like_in_any_order(printed: str, shown: str) -> bool:
    """Return True if each printed line is like a shown line of its own."""
    lines = printed.splitlines()
    for pattern in shown.splitlines():
        match = next((line for line in lines if is_like(line, pattern)), None)
        if match is None:
            return False
        lines.remove(match)
    return not lines


class Terminal:
    """A terminal in which the commands of the page run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = self._ports()
        tools = directory / "bin"
        tools.mkdir()
        for name, program in (("quorumq", "-m quorumq"), ("python", "")):
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
            (tools / name).chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "QUORUMQ_NODES": ",".join(f"127.0.0.1:{self.base + index}" for index in range(3)),
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.dev = ""  # the output of the cluster
        self.pids: dict[str, str] = {}  # those of the page, and what they are here

    def _ports(self) -> int:
        for _ in range(100):
            (base,) = free_ports(1)
            try:
                return given_ports(base, 3)[0]
            except UsageError:
                pass
        raise AssertionError("no three free ports in a row")

    def here(self, text: str) -> str:
        """Return the text of the page with the actual ports and processes."""
        text = re.sub(r"127\.0\.0\.1:740(\d)", lambda it: f"127.0.0.1:{self.base + int(it[1]) - 1}", text)
        for pid, real in self.pids.items():
            text = text.replace(pid, real)
        return text

    def run(self, step: Step) -> None:
        if step.command == "quorumq dev" and self.dev:
            assert is_like(self.dev, self.here(step.before)), self.dev
            return
        out = self.directory / f"out-{len(self.processes)}"
        command = self.here(step.command)
        if command == "quorumq dev":
            command += f" --port {self.base}"
        with out.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=self.directory, env=self.environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        if command.startswith("quorumq dev"):
            until(lambda: re.search(r"( pid .*){3}Ctrl-C", out.read_text(), re.S), out.read_text, process)
            real = re.findall(r"pid (\d+)", out.read_text())
            self.pids = dict(zip(re.findall(r"pid (\d+)", step.before), real, strict=True))
            self.dev = re.sub(r"(?m)^waiting: .*\n", "", out.read_text())  # as on a machine that is not slow
            return
        shown = self.here(step.before)
        like = is_like_in_any_order if command.startswith(UNORDERED) else is_like
        if step.after is not None:
            until(lambda: like(out.read_text(), shown), out.read_text, process)
            os.killpg(process.pid, signal.SIGINT)
            shown += self.here(step.after)
        process.wait(PATIENCE_S)
        said = out.read_text()
        assert like(said, shown), f"$ {command}\n{said}\nis not\n{shown}"

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(PATIENCE_S)


def test_every_step_does_what_the_page_shows(tmp_path: Path) -> None:
    (_, first), (_, program), *_ = BLOCKS[0]
    (_, install), *blocks = BLOCKS[1]
    assert steps_of(install) == [Step(command, "", None) for command in INSTALL]
    assert "`pip install '.[server]'`" in README
    terminal = Terminal(tmp_path)
    try:
        for language, text in [
            ("", first),
            ("python", f"# readme.py\n{program}"),
            ("", "$ python readme.py\nresized b'19.png'\n^C\n"),
            *blocks,
        ]:
            if language == "python":
                name = text.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(terminal.here(text))
                continue
            assert language == ""
            for step in steps_of(text):
                terminal.run(step)
    finally:
        terminal.close()


def test_lines_in_another_order_are_compared_one_by_one() -> None:
    assert is_like_in_any_order("c d\nab 2\n", "ab …\nc …\n")
    assert not is_like_in_any_order("ab 2\nab 3\n", "ab …\nc …\n")
    assert not is_like_in_any_order("ab 2\nc d\nc d\n", "ab …\nc …\n")


@pytest.mark.parametrize(
    ("printed", "like"), [("ab  12\nc\n", True), ("ab 12", False), ("ab\nc", False), ("xab 12 c", False)]
)
def test_shown_output_is_compared(printed: str, like: bool) -> None:
    assert is_like(printed, "ab …2\nc\n") == like

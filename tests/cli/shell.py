"""Commands of quorumq against real node processes: in this process, or in one of their own that can be stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from quorumq.cli.main import main
from quorumq.lab.local import LocalCluster
from tests.patience import PATIENCE_S

QUORUMQ = (sys.executable, "-m", "quorumq")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def lines(self) -> list[Any]:
        """Standard output as JSON, one value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands with QUORUMQ_NODES set."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.nodes = {"QUORUMQ_NODES": ",".join(cluster.addresses)}
        self.environ = {**os.environ, **self.nodes}

    def __call__(self, line: str, *more: str, stdin: bytes = b"", code: int = 0) -> Done:
        """Run a command, given as in a shell, and then arguments as they are."""
        result = CliRunner().invoke(main, [*shlex.split(line), *more], input=stdin, env=self.nodes)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return Done(result.exit_code, result.stdout, result.stderr)

    def bury(self, topic: str, count: int, reason: str = "no") -> None:
        """Have the group g make dead letters of messages until it has ``count``. A FETCH may bring fewer."""
        end = time.monotonic() + PATIENCE_S
        while missing := count - len(self(f"deadletters list {topic} --group g --each --json").lines()):
            assert time.monotonic() < end, f"{missing} of {count} are no dead letters"
            self(f"consume {topic} --group g --max {missing} --dead-letter", reason)

    def states(self, topic: str, group: str = "g") -> dict[str, int]:
        """Return the number of messages in each state. `ready` includes messages that an old hold still blocks: that
        of a replica which missed the REJECT."""
        counts: dict[str, int] = {}
        for line in self(
            f"peek {topic} --group {group} --which all --limit 100000 --complete --json"
        ).lines():
            state = "ready" if line["state"] == "held" else line["state"]
            counts[state] = counts.get(state, 0) + 1
        return counts


def peeked(shell: Shell, topic: str) -> list[dict[str, object]]:
    """Return the answering node's listing of a group's messages."""
    return list(shell(f"peek {topic} --group g --which all --json").lines())


class Running:
    """A command in a process of its own, whose standard input stays open; its output is in files."""

    def __init__(
        self,
        shell: Shell,
        folder: Path,
        arguments: tuple[str, ...],
        out: int | None,
        before: Callable[[], None] | None,
    ) -> None:
        number = len(list(folder.glob("out*")))
        self.out, self.err = folder / f"out{number}", folder / f"err{number}"
        with self.out.open("wb") as stdout, self.err.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*QUORUMQ, *arguments],
                env=shell.environ,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=out or stdout,
                stderr=stderr,
                preexec_fn=before,
            )

    def type(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def send(self, how: signal.Signals) -> int:
        """Send a signal; the exit code. It ends soon."""
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)

"""Processes that end when this one does, however it ends.

A second process of a few lines reads from a pipe which processes run. Only this process has the other end, so the
system closes it when this process is gone, by `kill -9` too, and the second process then kills those that still run.

Why not PR_SET_PDEATHSIG: it is Linux's alone, and it is sent when the *thread* ends that started the child, while nodes
are also started from short-lived threads. Why not a pipe in each child: one that is stopped watches nothing.
Why not a shell, which starts sooner: an image of a container may have none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

WATCH: Final = """
import os, signal, sys
held = {}
for line in sys.stdin:
    sign, pid = line.split()
    if sign == "+":
        held[pid] = None
    else:
        held.pop(pid, None)
for pid in held:
    try:
        os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


END_S: Final = 5.0
"""Time in seconds that the watcher may take to kill the rest."""


class _Watcher:
    """The watching process, started before the first process that it watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the watching process, unless it was started before; OSError if that cannot be."""
        with self._lock:
            if self._process is None:
                self._process = POPEN(
                    [sys.executable, "-I", "-S", "-c", WATCH],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is for this process alone
                )
                atexit.register(self._end)

    def tell(self, line: str) -> None:
        """Send a line to the watching process, which was started."""
        assert self._process is not None
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):  # it was killed: then no process is watched
            self._process.stdin.write(line.encode())

    def _end(self) -> None:
        """Have it kill the rest. It sees no end while a child that was forked has the pipe, too."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=END_S)


POPEN: Final = subprocess.Popen
_WATCHER: Final = _Watcher()


class Leashed(subprocess.Popen[Any]):
    """A `subprocess.Popen` whose process is killed when this one ends and has not waited for it before.

    Its process id cannot be another's by then: the system gives it away only once its end was waited for.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        _WATCHER.start()
        super().__init__(*args, **options)
        self._held = True
        _WATCHER.tell(f"+ {self.pid}\n")

    def poll(self) -> int | None:
        return self._let_go(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self._let_go(code)
        return code

    def _let_go(self, code: int | None) -> int | None:
        if code is not None and self._held:
            self._held = False
            _WATCHER.tell(f"- {self.pid}\n")
        return code


def logged(command: Sequence[str], log: Path, cwd: Path | None = None) -> Leashed:
    """Start a process in a session of its own, out of reach of Ctrl-C; its output is added to a file."""
    with open(log, "ab") as file:
        return Leashed(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def end(processes: Iterable[Leashed], patience: float) -> None:
    """SIGTERM those that run or are stopped, and SIGKILL those left after ``patience`` seconds. Safe to repeat."""
    live = [process for process in processes if process.poll() is None]
    for process in live:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # a process that is stopped does not hear SIGTERM
    until = time.monotonic() + patience
    try:
        for process in live:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:
        for process in live:
            if process.poll() is None:
                process.kill()
                process.wait()

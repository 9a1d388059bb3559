"""Nodes of `LocalCluster` and of `sim real` as forks of one process that has imported a node.

A node imports for half a second of processor time, and the tests start hundreds. Each process of pytest has one process
that imports once and forks for each node. A fork runs `quorumq.node` as its own session, with its own files, signals
and process id. Starts by command are tested in tests/node/test_process.py and tests/cli.

A node becomes a child of pytest: its parent ends at once, and pytest is the subreaper at that moment. So pytest gets
its exit code as that of any child. Linux alone has subreapers. Elsewhere nodes start by command.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from quorumq.lab import leash
from quorumq.lab.leash import Leashed
from sim.real import faulty_node

MODULE: Final = "quorumq.node"
PR_SET_CHILD_SUBREAPER: Final = 36
MESSAGE_MAX: Final = 1 << 20
FILES_MAX: Final = 1 << 16
POLL_S: Final = 0.01


class Forked:
    """A node's process, with the methods of `Leashed` that `LocalCluster` calls.

    Args:
        pid: process id of a child of this process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()
        leash._WATCHER.tell(f"+ {pid}\n")

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    leash._WATCHER.tell(f"- {pid}\n")
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that forks, started with the first node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: Leashed | None = None

    def fork(self, arguments: Sequence[str], log: Path, cwd: Path | None) -> Forked:
        """Start a node whose output is added to a file."""
        request = {"arguments": arguments, "cwd": str(cwd or Path.cwd()), "environ": dict(os.environ)}
        with self._lock, open(log, "ab") as file:
            if self._socket is None:
                self._socket = self._started()
            set_subreaper(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [file.fileno()])
                return Forked(int(self._socket.recv(MESSAGE_MAX)))
            finally:
                set_subreaper(False)

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = Leashed(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                cwd=Path(__file__).parents[1],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return ours


def set_subreaper(on: bool) -> None:
    """Have orphaned descendants become children of this process, or no more."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def serve(requests: socket.socket) -> None:
    """Fork a node for each request, until pytest has ended. Returns in each node, with its arguments in `sys.argv`."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, MESSAGE_MAX, 1)
        if not message:
            sys.exit()
        reading, writing = os.pipe()
        parent = os.fork()
        if not parent:
            node = os.fork()
            if not node:
                requests.detach()
                return become(json.loads(message), files[0])
            os.write(writing, b"%d" % node)
            os._exit(0)
        os.waitpid(parent, 0)  # the node is a child of pytest before pytest knows its process id
        requests.send(os.read(reading, MESSAGE_MAX))
        for file in (reading, writing, *files):
            os.close(file)


def become(request: dict[str, Any], output: int) -> None:
    """Give this fork the session, files, directory, environment and arguments of a node."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, FILES_MAX)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv[:] = request["arguments"]


def logged(command: Sequence[str], log: Path, cwd: Path | None = None) -> Any:
    """Start a node by a fork, and any other process by its command, as `quorumq.lab.leash.logged` does."""
    program = [sys.executable, "-m", MODULE], [sys.executable, "-P", faulty_node.__file__]
    if sys.platform == "linux" and list(command[:3]) in program:
        return FORKER.fork(command[2:], log, cwd)
    return leash.logged(command, log, cwd)


FORKER: Final = Forker()


if __name__ == "__main__":
    from quorumq.node.__main__ import main

    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv.pop(1))))
    if sys.argv[0] == MODULE:
        sys.exit(main())
    runpy.run_path(sys.argv[0], run_name="__main__")

"""A real cluster on this machine, for `quorumq dev`, the demo, the benchmarks and tests.

Every node is a process of its own, `python -m quorumq.node --config node.toml`, on a loopback port, with a
directory, a configuration file and a log of its own. Nothing here knows how a node works inside: it treats nodes
as an operator or an accident can, with signals.

Promises: all that was started here is stopped when the `with` block ends, by process id, and killed when the process
that started it ends in any other way (leash.py). A node that dies while it is awaited is reported with the end of its
log. A directory that was not asked for is removed. The nodes are in sessions of their own, so a Ctrl-C at the terminal
reaches only the program that holds the cluster, which then stops them in order.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from quorumq.cli.init import config_text
from quorumq.cli.probe import Unreachable, status_of
from quorumq.core.values.errors import QuorumqError, UsageError
from quorumq.lab.leash import Leashed, end, logged
from quorumq.lab.ports import HeldPorts, given_ports
from quorumq.storage.disk import RealDisk

HISTORIES: Final = "histories"
"""The directory, beside those of the nodes, for histories."""

LOG_TAIL_LINES: Final = 20
POLL_S: Final = 0.05
START_LIMIT_S: Final = 600.0
"""A start waits until nodes answer, and fails when a process ends. No process that lives needs this long, however slow
and busy the machine is."""

STOP_LIMIT_S: Final = 60.0
"""A clean stop writes little. A process that has not ended by then hangs."""

PROBE_S: Final = 5.0
"""Time that one node may take to report its state, in seconds."""

TELL_EVERY_S: Final = 5.0


class NodeDied(QuorumqError):
    """A node process ended during a wait for it. The text has the end of its log."""

    code = "node-died"
    exit_code = 70


class NotReady(QuorumqError):
    """The nodes run, and did not become ready in time. The text names the lacks of each."""

    code = "not-ready"
    exit_code = 69


class LocalCluster:
    """N node processes on loopback ports. Use it as a context manager, with ``with`` or ``async with`` (trio).

    ::

        with LocalCluster(nodes=3) as cluster:
            cluster.addresses          # ["127.0.0.1:…", …], n1 first
            cluster.kill("n2")         # SIGKILL, as a crash
            cluster.start("n2")        # from the same directory; waits until it answers

    Methods are blocking; most take milliseconds. Those that wait for nodes have a twin ``…_async`` for trio, and
    everything else may be called from trio as it is.

    Args:
        nodes: number of nodes; they are called n1, n2, …
        keep: a directory to work in and to leave behind, made if it is not there. If it holds a cluster of an
            earlier run, that is continued: secret, cluster id and data are kept, ports are chosen anew. None
            takes a temporary directory and removes it.
        base_port: n1 listens there, n2 on the next, …; None takes free ones.
        hold_time_max: seconds, the longest hold; also nearly the length of a quarantine after a crash.
        history: True if each node writes a history of its protocol messages, `history_path(name)`.
        settings: more lines for every node.toml, by name, for example ``{"sync_interval": 0.5}``.
        tell: called every few seconds of a wait for nodes, with the problems of each; in another thread if the
            wait is a twin ``…_async``.

    Raises:
        StorageError: a node runs in ``keep``.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        keep: str | os.PathLike[str] | None = None,
        base_port: int | None = None,
        hold_time_max: float = 5.0,
        history: bool = False,
        settings: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= nodes <= 9:
            raise UsageError(f"{nodes} nodes: a local cluster has 1 to 9")
        self.nodes = tuple(f"n{index}" for index in range(1, nodes + 1))
        self._temporary = keep is None
        if keep is None:
            self.directory = Path(tempfile.mkdtemp(prefix="quorumq-"))
        else:
            self.directory = Path(keep).resolve()
            self.directory.mkdir(parents=True, exist_ok=True)
            names = sorted(path.parent.name for path in self.directory.glob("n[1-9]/node.toml"))
            if names and names != sorted(self.nodes):
                raise UsageError(
                    f"{self.directory} has a cluster of the nodes {', '.join(names)}: ask for {len(names)} nodes, or "
                    "give another directory"
                )
            for name in names:  # a node that runs there would find its configuration changed
                disk = RealDisk(self.data_path(name))
                disk.lock()
                disk.unlock()
        self._history = history
        self._tell = tell
        self._processes: dict[str, Leashed] = {}
        self._paused: dict[str, None] = {}
        self._held: HeldPorts | None = None
        try:
            if base_port is None:
                self._held = HeldPorts(nodes)
                ports = self._held.numbers
            else:
                ports = given_ports(base_port, nodes)
            self.addresses = [f"127.0.0.1:{port}" for port in ports]
            shared: dict[str, Any] = {
                "cluster_id": kept_config(self.directory).get("cluster_id", "local"),
                "secret_file": str(self._secret_path()),
                "hold_time_max": float(hold_time_max),
                "auto_create_topics": True,
                **(settings or {}),
            }
            for name in self.nodes:
                self._write_config(name, shared)
        except BaseException:
            self._remove()
            raise

    # ------------------------------------------------------------------------ where things are

    def address(self, name: str) -> str:
        return self.addresses[self._index(name)]

    def node_directory(self, name: str) -> Path:
        """Return everything of one node: node.toml, node.log and data/."""
        self._index(name)
        return self.directory / name

    def config_path(self, name: str) -> Path:
        return self.node_directory(name) / "node.toml"

    def data_path(self, name: str) -> Path:
        return self.node_directory(name) / "data"

    def log_path(self, name: str) -> Path:
        """Return the file of the node's standard output and error. It grows over restarts."""
        return self.node_directory(name) / "node.log"

    def history_path(self, name: str) -> Path:
        """Return the file of the node's history, if ``history`` was asked for."""
        self._index(name)
        return self.directory / HISTORIES / f"{name}.jsonl"

    def log_tail(self, name: str, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of a node's log; "" if it has none."""
        try:
            with open(self.log_path(name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 400 * lines))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    # ---------------------------------------------------------------------------- processes

    def pid(self, name: str) -> int | None:
        """Return the node's process id while it runs (paused counts as running), else None."""
        process = self._processes.get(name)
        return process.pid if process is not None and process.poll() is None else None

    def running(self, name: str) -> bool:
        """Return True if the node's process is there, paused or not."""
        return self.pid(name) is not None

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of the node's process: minus a signal's number if killed; None while it runs."""
        return self._processes[name].poll()

    def command(self, name: str) -> list[str]:
        return [sys.executable, "-m", "quorumq.node", "--config", str(self.config_path(name))]

    def spawn(self, name: str) -> None:
        """Start one node's process and do not wait for anything. A node that runs is left alone."""
        if self.running(name):
            return
        self._processes[name] = logged(self.command(name), self.log_path(name), self.node_directory(name))

    def start(self, name: str, timeout: float = START_LIMIT_S) -> None:
        """Start one node from the files in its directory, and wait until it answers.

        It answers before its quarantine is over, and before its peers have found it: `wait_ready` waits for more.

        Raises:
            NodeDied: it ended instead.
            NotReady: it does not answer within ``timeout`` seconds.
        """
        self.spawn(name)
        self._wait([name], timeout, connected=False, quarantine=False)

    def start_all(self) -> None:
        """Start every node that does not run, and wait until all are ready; raises as `wait_ready` does."""
        for name in self.nodes:
            self.spawn(name)
        self.wait_ready()

    def kill(self, name: str) -> None:
        """SIGKILL the node, as a crash: no last words, holds forgotten. Returns when the process is gone."""
        self._signal(name, signal.SIGKILL)
        self._processes[name].wait()
        self._paused.pop(name, None)

    def terminate(self, name: str, timeout: float = STOP_LIMIT_S) -> int:
        """SIGTERM the node, and wait: a clean stop, so that the next start has no quarantine.

        Returns:
            The exit code of the process.

        Raises:
            NotReady: it did not end within ``timeout`` seconds; it was left running.
        """
        self.resume(name)
        self._signal(name, signal.SIGTERM)
        try:
            return self._processes[name].wait(timeout)
        except subprocess.TimeoutExpired:
            raise NotReady(
                f"node {name} did not stop within {timeout:g} s of SIGTERM; the end of its log:\n{self.log_tail(name)}"
            ) from None

    def pause(self, name: str) -> None:
        """SIGSTOP the node: it stays connected and says nothing, as in a long garbage collection."""
        self._signal(name, signal.SIGSTOP)
        self._paused[name] = None

    def resume(self, name: str) -> None:
        """SIGCONT the node, which ends `pause`. A node that is not paused is left alone."""
        if name in self._paused:
            del self._paused[name]
            self._signal(name, signal.SIGCONT)

    def status(self, name: str, timeout: float = 2.0) -> dict[str, Any]:
        """Return the node's status (docs/operations.md); Unreachable if it is silent for ``timeout`` seconds."""
        return status_of(self.address(name), timeout)

    def wait_ready(
        self,
        names: Iterable[str] | None = None,
        timeout: float = START_LIMIT_S,
        *,
        quarantine: bool = False,
    ) -> None:
        """Wait until nodes answer, are trusted, and see each other.

        Args:
            names: names of the nodes; None for all that run and are not paused.

        Raises:
            NodeDied: one of them ended meanwhile; with the end of its log.
            NotReady: not in time; with the reason for each.
        """
        if names is None:
            names = [name for name in self.nodes if name in self._processes and name not in self._paused]
        self._wait(list(names), timeout, connected=True, quarantine=quarantine)

    def stop(self) -> None:
        """Stop everything that was started, cleanly if that works within seconds. Safe to repeat."""
        self._paused.clear()
        end(self._processes.values(), STOP_LIMIT_S)

    def keep(self) -> None:
        """Leave the directory behind at the end, though none was given."""
        self._temporary = False

    def close(self) -> None:
        """`stop`, and remove the directory unless it was given. Safe to repeat."""
        try:
            self.stop()
        finally:
            self._remove()

    def __enter__(self) -> LocalCluster:
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------- in trio

    async def start_async(self, name: str) -> None:
        self.spawn(name)
        wait = functools.partial(self._wait, [name], START_LIMIT_S, connected=False, quarantine=False)
        await trio.to_thread.run_sync(wait, abandon_on_cancel=True)

    async def wait_ready_async(self, timeout: float = START_LIMIT_S, *, quarantine: bool = False) -> None:
        wait = functools.partial(self.wait_ready, timeout=timeout, quarantine=quarantine)
        await trio.to_thread.run_sync(wait, abandon_on_cancel=True)

    async def terminate_async(self, name: str) -> int:
        return await trio.to_thread.run_sync(self.terminate, name)

    async def __aenter__(self) -> LocalCluster:
        try:
            for name in self.nodes:
                self.spawn(name)
            await self.wait_ready_async()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.close)

    # -------------------------------------------------------------------------------- inside

    def _index(self, name: str) -> int:
        if name not in self.nodes:
            raise UsageError(f"there is no node {name!r} here: the nodes are {', '.join(self.nodes)}")
        return self.nodes.index(name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        self._index(name)
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            raise UsageError(f"node {name} is not running: start it first")
        process.send_signal(number)

    def _secret_path(self) -> Path:
        """Return the cluster's secret: of the earlier run in this directory, or a new one."""
        path = self.directory / "secret"
        if not path.exists():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w") as file:
                file.write(os.urandom(32).hex() + "\n")
        return path

    def _write_config(self, name: str, shared: Mapping[str, Any]) -> None:
        directory = self.node_directory(name)
        directory.mkdir(exist_ok=True)
        values = {"node": name, "data_dir": str(self.data_path(name)), "listen": self.address(name), **shared}
        if self._history:
            self.history_path(name).parent.mkdir(exist_ok=True)
            values["history"] = str(self.history_path(name))
        path = self.config_path(name)
        path.touch(mode=0o600)
        path.write_text(config_text(values, self._tables(name)))

    def _tables(self, name: str) -> dict[str, dict[str, str]]:
        """Return the tables of a node's configuration that give the addresses of all nodes to it and its clients."""
        return {"nodes": dict(zip(self.nodes, self.addresses, strict=True))}

    def _remove(self) -> None:
        if self._held is not None:
            self._held.release()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _check_alive(self, name: str) -> None:
        process = self._processes.get(name)
        if process is None:
            raise UsageError(f"node {name} was never started: start it first")
        code = process.poll()
        if code is not None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise NodeDied(f"node {name} ended with {how}; the end of its log:\n{self.log_tail(name)}")

    def _wait(self, names: list[str], timeout: float, *, connected: bool, quarantine: bool) -> None:
        def lacks(probe: float) -> list[str]:
            problems = []
            for name in names:
                self._check_alive(name)
            for name in names:
                if missing := lack(
                    self.address(name), name, names, probe, connected=connected, quarantine=quarantine
                ):
                    problems.append(f"node {name} {missing}")
            return problems

        wait_for(lacks, timeout, self._tell, "Look at the nodes' logs, or allow more time")


def wait_for(
    lacks: Callable[[float], list[str]], timeout: float, tell: Callable[[str], None] | None, advice: str
) -> None:
    """Wait until ``lacks``, called with the seconds that one node may take to answer, returns no problem.

    Raises:
        NotReady: if there are still some after ``timeout`` seconds. The text has them, and ``advice``.
    """
    now = time.monotonic()
    until, tell_at = now + timeout, now + TELL_EVERY_S
    while problems := "; ".join(lacks(min(PROBE_S, until - now))):
        now = time.monotonic()
        if now >= until:
            raise NotReady(f"not ready after {timeout:g} s: {problems}. {advice}")
        if tell is not None and now >= tell_at:
            tell(f"waiting: {problems}")
            tell_at = now + TELL_EVERY_S
        time.sleep(min(POLL_S, until - now))


def kept_config(directory: Path) -> dict[str, Any]:
    """Return the configuration of node n1 that an earlier run left in ``directory``; empty if there is none."""
    try:
        return tomllib.loads((directory / "n1" / "node.toml").read_text())
    except FileNotFoundError:
        return {}


def lack(
    address: str,
    name: str,
    names: Iterable[str],
    probe: float = PROBE_S,
    *,
    connected: bool,
    quarantine: bool,
) -> str:
    """Return the reason, in words, for which the node ``name`` at ``address`` is not ready; "" if it is.

    It has to answer within ``probe`` seconds. If ``connected``, it must be trusted and to see all
    of ``names``. If ``quarantine``, it has to be out of it.
    """
    try:
        fields = status_of(address, probe)
    except Unreachable:
        return "does not answer"
    if not connected:
        return ""
    if not fields.get("trusted", True):
        return "waits for the other nodes to say that it is new"
    peers = fields.get("peers", {})
    unseen = [other for other in names if other != name and not peers.get(other, {}).get("up")]
    if unseen:
        return f"has no connection to {', '.join(unseen)}"
    if quarantine and fields.get("quarantine_s", 0) > 0:
        return f"is in quarantine for another {fields['quarantine_s']:.1f} s"
    return ""

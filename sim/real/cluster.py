"""A cluster of processes whose links go through a proxy, and whose disks and clocks can fail at a command."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import trio

from quorumq.lab.leash import Leashed, end, logged
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import HeldPorts
from quorumq.storage.disk import RealDisk
from sim.flips import Flip, flip_bodies, flip_records
from sim.real import faulty_node, power
from sim.real.proxy import Proxy

CLIENTS = "clients"
"""Name of all clients, which the network treats alike; but for `LONER`, if a fault names that one."""

LONER = "c0"
"""The client that has the first task: a fault may leave it alone with one node."""

HOLD_S = 10.0
"""The longest hold, in seconds: killed nodes are back within it, even if a start takes seconds."""

STARTED = b"node_started"
"""The event in a node's log by which it serves."""

EXPECTED = (0, -signal.SIGKILL)
"""The exit codes of a process that was stopped or killed."""


class FaultyCluster(LocalCluster):
    """A `LocalCluster` with a proxy before each node for clients, and one between each two nodes.

    Attributes:
        copied: nodes with a copy of their directory's last two states before a start, for `restore`.
        proxy: carries the links; it is there inside of the ``with`` of the cluster.
        front: addresses of the nodes for clients.
        founders: nodes that the cluster is made with; the others ask to be let in.
        outside: nodes that are no members now, and do not run.
        clients: clients that dial these, as the proxy names them.
        ended: nodes that ended by themselves, with the reasons.
    """

    def __init__(self, nodes: int, *, keep: Path | None, rng: random.Random, joining: int = 0) -> None:
        self.rng = rng
        self.copied: tuple[str, ...] = ()
        self.clients = (CLIENTS, LONER)
        self.ended: list[str] = []
        self.founders = tuple(f"n{index}" for index in range(1, nodes + 1))
        nodes += joining
        names = [f"n{index}" for index in range(1, nodes + 1)]
        self.outside = dict.fromkeys(names[len(self.founders) :])
        pairs = list(permutations(names, 2))
        self.kept_ports = HeldPorts(3 * nodes + len(pairs))
        ports = self.kept_ports.numbers
        self.peer_ports = dict(zip(names, ports, strict=False))
        fronts, alone = ports[nodes : 2 * nodes], ports[2 * nodes : 3 * nodes]
        self.between = dict(zip(pairs, ports[3 * nodes :], strict=True))
        self.front = [f"127.0.0.1:{port}" for port in fronts]
        self.alone = dict(zip(self.front, alone, strict=True))
        try:
            super().__init__(nodes, keep=keep, hold_time_max=HOLD_S, history=True)
        except BaseException:
            self.kept_ports.release()
            raise
        listeners = {port: (*pair, self.peer_ports[pair[1]]) for pair, port in self.between.items()}
        for client, theirs in zip(self.clients, (fronts, alone), strict=True):
            for name, port in zip(names, theirs, strict=True):
                listeners[port] = (client, name, int(self.address(name).rsplit(":", 1)[1]))
        self.proxy = Proxy(listeners)
        self.spares: dict[str, Leashed] = {}  # processes that wait to be a node
        self.log_sizes: dict[str, int] = {}  # at their spawning, of nodes that may not serve yet
        self.controls: dict[str, dict[str, Any]] = {name: {} for name in self.nodes}

    def control_path(self, name: str) -> Path:
        """Return the path of the file that the node's process reads for its disk and clock."""
        return self.node_directory(name) / "control.json"

    def control(self, name: str, **values: Any) -> None:
        """Change the behaviour of the node's disk and clock (faulty_node.py)."""
        self.controls[name].update(values)
        path = self.control_path(name)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(self.controls[name]))
        beside.replace(path)

    async def dial(self, address: str) -> trio.abc.Stream:
        """Dial a node as `LONER`."""
        return await trio.open_tcp_stream("127.0.0.1", self.alone[address])

    def serves(self, name: str) -> bool:
        """Return True if the node's process runs and has started."""
        if not self.running(name):
            return False
        if name in self.log_sizes:
            with self.log_path(name).open("rb") as file:
                file.seek(self.log_sizes[name])
                if STARTED not in file.read():
                    return False
            del self.log_sizes[name]
        return True

    def warm(self, names: Iterable[str]) -> None:
        """Have processes at hand that take these nodes' places at their next start: `is_warm` says when they are."""
        for name in names:
            if name not in self.spares:
                command = self.command(name)
                command.insert(command.index("--config"), "--warm")
                self.spares[name] = logged(command, self.log_path(name), self.node_directory(name))

    def is_warm(self, name: str) -> bool:
        """Return True if the next start of the node takes next to no time."""
        return name in self.spares and self.warm_path(name).exists()

    def warm_path(self, name: str) -> Path:
        """Return the file of a spare process that waits until it is gone."""
        return Path(f"{self.control_path(name)}.{self.spares[name].pid}.warm")

    def take_spare(self, name: str) -> None:
        """Have the spare process of a node be the node, if one waits."""
        warm = self.is_warm(name)
        path = self.warm_path(name) if warm else None
        spare = self.spares.pop(name, None)
        if spare is not None and path is not None and spare.poll() is None:
            self._processes[name] = spare
            path.unlink()
        elif spare is not None:
            end([spare], 0.0)

    def note_end(self, name: str) -> None:
        """Note the end of a node's last process, if it was not stopped or killed."""
        code = None if name not in self._processes else self.exit_code(name)
        if code is not None and code not in EXPECTED:
            self.ended.append(f"node {name} ended with exit code {code}: {self.log_tail(name, 1)}")

    @property
    def members(self) -> list[str]:
        """Return the names of the nodes that are to run."""
        return [name for name in self.nodes if name not in self.outside]

    def peer_address(self, name: str) -> str:
        """Return the address of a node that joins, for all others: through the proxy, as if the first node dialled."""
        return f"127.0.0.1:{self.between[self.founders[0], name]}"

    def let_in(self, name: str) -> None:
        """Start a node that is a member now."""
        self.outside.pop(name, None)
        self.spawn(name)

    def dismiss(self, name: str) -> None:
        """End a node that is no member any more, and lose its directory. It may be let in again, empty."""
        self.outside[name] = None
        if self.running(name):
            self.kill(name)
        self._processes.pop(name, None)
        self.wipe(name)

    def spawn(self, name: str) -> None:
        if name in self.outside:
            return
        if not self.running(name):
            self.note_end(name)
            log = self.log_path(name)
            self.log_sizes[name] = log.stat().st_size if log.exists() else 0
            if name in self.copied and self.data_path(name).exists():
                shutil.rmtree(self.copy_path(name, 1), ignore_errors=True)
                if self.copy_path(name, 0).exists():
                    self.copy_path(name, 0).rename(self.copy_path(name, 1))
                shutil.copytree(self.data_path(name), self.copy_path(name, 0))
            power.begin(self.data_path(name), self.synced_path(name))
            self.take_spare(name)
        super().spawn(name)

    def synced_path(self, name: str) -> Path:
        """Return the path of the file in which the node's process writes its fsyncs."""
        return self.control_path(name).with_suffix(".synced")

    def copy_path(self, name: str, age: int) -> Path:
        """Return the path of a copy of the directory as it was before the last start, or before that."""
        return self.node_directory(name) / f"copy-{age}"

    # -------------------------------------------------- what happens to directories

    def cut_power(self, name: str) -> None:
        """Kill the node, and lose the bytes that it had not fsynced. Its next start is in another boot."""
        self.kill(name)
        self.control(name, boots=self.controls[name].get("boots", 0) + 1)
        power.lose(self.data_path(name), self.synced_path(name), self.rng)

    def wipe(self, name: str) -> None:
        """Lose the data directory of a node that does not run."""
        shutil.rmtree(self.data_path(name), ignore_errors=True)

    def restore(self, name: str, last: bool) -> None:
        """Restore it as it was before its last start, or the one before, at another place; else it is lost."""
        self.wipe(name)
        there = [path for age in (0, 1) if (path := self.copy_path(name, age)).exists()]
        if there:
            shutil.copytree(there[0] if last else self.rng.choice(there), self.data_path(name))

    def flip(self, name: str) -> None:
        """Flip bits of some batches' bodies, of a node that runs or not."""
        with self.disk_of(name) as (disk, flip):
            flip_bodies(disk, flip, self.rng)

    def damage(self, name: str, last: int) -> None:
        """Flip bits of other records, of a node that does not run."""
        with self.disk_of(name) as (disk, flip):
            flip_records(disk, flip, self.rng, last)

    @contextmanager
    def disk_of(self, name: str) -> Iterator[tuple[RealDisk, Flip]]:
        """Yield the node's directory, and a function that turns over a bit of it."""
        path = self.data_path(name)
        path.mkdir(parents=True, exist_ok=True)

        def flip(file: str, offset: int, bit: int) -> None:
            with (path / file).open("r+b") as opened:
                opened.seek(offset)
                (byte,) = opened.read(1)
                opened.seek(offset)
                opened.write(bytes([byte ^ 1 << bit]))

        disk = RealDisk(path)
        try:
            yield disk, flip
        finally:
            disk.unlock()

    def close(self) -> None:
        try:
            super().close()
        finally:
            end(self.spares.values(), 0.0)
            self.proxy.__exit__()
            self.kept_ports.release()

    async def __aenter__(self) -> FaultyCluster:
        self.proxy.__enter__()
        await super().__aenter__()
        return self

    def command(self, name: str) -> list[str]:
        path = faulty_node.__file__  # by its path: `sim` is not installed, and nodes run elsewhere
        config = str(self.config_path(name))
        return [sys.executable, "-P", path, str(self.control_path(name)), "--config", config]

    def _write_config(self, name: str, shared: Mapping[str, Any]) -> None:
        values = {**shared, "peer_listen": f"127.0.0.1:{self.peer_ports[name]}"}
        if name in self.outside:
            values["join"] = [f"127.0.0.1:{self.between[name, other]}" for other in self.founders]
        super()._write_config(name, values)

    def _tables(self, name: str) -> dict[str, dict[str, str]]:
        if name in self.outside:
            return {}
        ports = {
            other: self.peer_ports[other] if other == name else self.between[name, other]
            for other in self.founders
        }
        peers = {other: f"127.0.0.1:{port}" for other, port in ports.items()}
        return {"nodes": dict(zip(self.founders, self.front, strict=False)), "peers": peers}

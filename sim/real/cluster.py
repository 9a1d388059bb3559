"""A cluster of processes whose links go through a proxy, and whose disks and clocks can be told to fail."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import free_ports
from quorumq.storage.disk import RealDisk
from sim.flips import Flip, flip_bodies, flip_records
from sim.real import faulty_node, power
from sim.real.proxy import Proxy

CLIENTS = "clients"
"""Who dials where it is no node: all clients, which the network treats alike."""


class FaultyCluster(LocalCluster):
    """As `LocalCluster`, with a proxy before each node for clients, and one between each two nodes.

    Args:
        keep: see `LocalCluster`.
        rng: draws what a power cut takes, and which bits flip.

    Attributes:
        copied: nodes of whose directory the last two states before a start are kept, for `restore`.
        proxy: carries the links; it is there inside of the ``with`` of the cluster.
        front: addresses of the nodes for clients.
    """

    def __init__(self, nodes: int, *, keep: Path | None, rng: random.Random) -> None:
        self.rng = rng
        self.copied: tuple[str, ...] = ()
        names = [f"n{index}" for index in range(1, nodes + 1)]
        pairs = list(permutations(names, 2))
        ports = free_ports(2 * nodes + len(pairs))
        self.peer_ports = dict(zip(names, ports, strict=False))
        fronts = dict(zip(names, ports[nodes:], strict=False))
        self.between = dict(zip(pairs, ports[2 * nodes :], strict=True))
        self.front = [f"127.0.0.1:{port}" for port in fronts.values()]
        super().__init__(nodes, keep=keep, hold_time_max=4.0, history=True)
        listeners = {port: (*pair, self.peer_ports[pair[1]]) for pair, port in self.between.items()}
        for name, port in fronts.items():
            listeners[port] = (CLIENTS, name, int(self.address(name).rsplit(":", 1)[1]))
        self.proxy = Proxy(listeners)
        self.controls: dict[str, dict[str, Any]] = {name: {} for name in self.nodes}

    def control_path(self, name: str) -> Path:
        """Where the node's process reads what its disk and clock do."""
        return self.node_directory(name) / "control.json"

    def control(self, name: str, **values: Any) -> None:
        """Change what the node's disk and clock do (faulty_node.py)."""
        self.controls[name].update(values)
        path = self.control_path(name)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(self.controls[name]))
        beside.replace(path)

    def spawn(self, name: str) -> None:
        if not self.running(name):
            if name in self.copied and self.data_path(name).exists():
                shutil.rmtree(self.copy_path(name, 1), ignore_errors=True)
                if self.copy_path(name, 0).exists():
                    self.copy_path(name, 0).rename(self.copy_path(name, 1))
                shutil.copytree(self.data_path(name), self.copy_path(name, 0))
            power.begin(self.data_path(name), self.synced_path(name))
        super().spawn(name)

    def synced_path(self, name: str) -> Path:
        """Where the node's process writes what it has fsynced."""
        return self.control_path(name).with_suffix(".synced")

    def copy_path(self, name: str, age: int) -> Path:
        """Where the directory is kept as it was before the last start, or before that."""
        return self.node_directory(name) / f"copy-{age}"

    # -------------------------------------------------- what happens to directories

    def cut_power(self, name: str) -> None:
        """Kill the node, and lose what it had not fsynced."""
        self.kill(name)
        power.lose(self.data_path(name), self.synced_path(name), self.rng)

    def wipe(self, name: str) -> None:
        """The data directory of a node that does not run is lost."""
        shutil.rmtree(self.data_path(name), ignore_errors=True)

    def restore(self, name: str, last: bool) -> None:
        """It comes back as it was before its last start, or the one before, at another place; else it is lost."""
        self.wipe(name)
        there = [path for age in (0, 1) if (path := self.copy_path(name, age)).exists()]
        if there:
            shutil.copytree(there[0] if last else self.rng.choice(there), self.data_path(name))

    def flip(self, name: str) -> None:
        """Bits of some batches' bodies flip, whether the node runs or not."""
        with self.disk_of(name) as (disk, flip):
            flip_bodies(disk, flip, self.rng)

    def damage(self, name: str, last: int) -> None:
        """Bits of other records flip, of a node that does not run."""
        with self.disk_of(name) as (disk, flip):
            flip_records(disk, flip, self.rng, last)

    @contextmanager
    def disk_of(self, name: str) -> Iterator[tuple[RealDisk, Flip]]:
        """The node's directory, and what turns over a bit of it."""
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
            self.proxy.__exit__()

    async def __aenter__(self) -> FaultyCluster:
        self.proxy.__enter__()
        await super().__aenter__()
        return self

    def command(self, name: str) -> list[str]:
        path = faulty_node.__file__  # by its path: `sim` is not installed, and nodes run elsewhere
        config = str(self.config_path(name))
        return [sys.executable, "-P", path, str(self.control_path(name)), "--config", config]

    def _write_config(self, name: str, shared: Mapping[str, Any]) -> None:
        super()._write_config(name, {**shared, "peer_listen": f"127.0.0.1:{self.peer_ports[name]}"})

    def _tables(self, name: str) -> dict[str, dict[str, str]]:
        ports = {
            other: self.peer_ports[other] if other == name else self.between[name, other]
            for other in self.nodes
        }
        peers = {other: f"127.0.0.1:{port}" for other, port in ports.items()}
        return {"nodes": dict(zip(self.nodes, self.front, strict=True)), "peers": peers}

"""Nodes that are added to a cluster of real nodes, and leave it, by commands."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner, Result

from quorumq.cli.main import main
from quorumq.lab.leash import Leashed, end, logged
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import HeldPorts
from tests.lab.processes import cpu_s
from tests.patience import PATIENCE_S


@dataclass
class Members:
    """Nodes of a cluster by name: those that it was made with, and those that are added.

    Args:
        cluster: the first nodes, running.
        folder: directory for the nodes that are added.
    """

    cluster: LocalCluster
    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    data: dict[str, Path] = field(default_factory=dict)
    added: dict[str, Leashed] = field(default_factory=dict)
    _ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.addresses |= zip(self.cluster.nodes, self.cluster.addresses, strict=True)
        self.data |= {name: self.cluster.data_path(name) for name in self.cluster.nodes}

    @contextmanager
    def joining(self, names: str) -> Iterator[None]:
        """Hold ports for nodes that are added during the body, and stop those that were started in the end."""
        held = HeldPorts(len(names))
        self._ports = dict(zip(names, held.numbers, strict=True))
        try:
            yield
        finally:
            end(self.added.values(), 10.0)
            held.release()

    def start(self, name: str) -> None:
        """Start a node that asks to be let in."""
        self.addresses[name] = f"127.0.0.1:{self._ports[name]}"
        directory = self.folder / name
        directory.mkdir()
        self.data[name] = directory / "data"
        values = tomllib.loads(self.cluster.config_path(self.cluster.nodes[0]).read_text())
        history = self.cluster.history_path(self.cluster.nodes[0]).with_name(f"{name}.jsonl")
        file = directory / "node.toml"
        file.write_text(
            f'node = "{name}"\ncluster_id = "{values["cluster_id"]}"\nsecret_file = "{values["secret_file"]}"\n'
            f'data_dir = "data"\nlisten = "{self.addresses[name]}"\nhistory = "{history}"\n'
            f"join = {json.dumps(self.cluster.addresses)}\n"
        )
        self.added[name] = logged(
            [*self.cluster.command("n1")[:-1], str(file)], directory / "node.log", directory
        )

    async def run(self, *arguments: str) -> Result:
        """Run a command with the addresses of all nodes that are there."""
        arguments += ("--json",)
        environment = {"QUORUMQ_NODES": ",".join(self.addresses.values())}
        with trio.fail_after(PATIENCE_S):
            result = await trio.to_thread.run_sync(
                lambda: CliRunner().invoke(main, arguments, env=environment), abandon_on_cancel=True
            )
        assert result.exit_code == 0, f"{arguments}: {result.stderr}"
        return result

    async def listed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await self.run("nodes", "list")).stdout.splitlines()]

    async def add(self, name: str) -> None:
        """Start a node, add it, and wait until all serve."""
        self.start(name)
        await self.run("nodes", "add", name, "--address", self.addresses[name])
        with trio.fail_after(PATIENCE_S):
            while not all(row["up"] for row in await self.listed()):
                await trio.sleep(0.5)

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds that each node has used so far."""
        pids = {name: self.cluster.pid(name) for name in self.cluster.nodes if name in self.addresses}
        pids |= {name: process.pid for name, process in self.added.items() if name in self.addresses}
        return {name: cpu_s(pid) for name, pid in pids.items() if pid is not None}

    async def remove(self, name: str) -> None:
        """Drain and remove a node, stop it, and see that it keeps no message."""
        await self.run("nodes", "drain", name)
        await self.run("nodes", "remove", name)
        del self.addresses[name]
        if name in self.added:
            await trio.to_thread.run_sync(partial(end, [self.added[name]], 10.0))
        elif self.cluster.running(name):
            await self.cluster.terminate_async(name)
        kept = await trio.to_thread.run_sync(exported, self.data[name])
        assert not kept, f"{name} was removed and has {len(kept)} messages: {list(kept.items())[:3]}"


def exported(data: Path) -> dict[str, str]:
    """Return the topic of each message in the directory of a stopped node, by id."""
    result = CliRunner().invoke(main, ["export", "--data", str(data)])
    assert result.exit_code == 0, result.stderr
    rows = map(json.loads, result.stdout.splitlines())
    return {row["id"]: row["topic"] for row in rows}

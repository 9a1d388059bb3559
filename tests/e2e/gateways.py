"""Gateways in processes of their own beside a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import free_ports
from quorumq.wire.hello import TOKEN_VARIABLE
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BOTO3 = ROOT / "build" / "boto3"
"""The SDK with its dependencies, apart from the packages of the tests: they need a newer python-dateutil."""


class GatewayProcess:
    """A gateway at one port, to be killed and started again.

    Args:
        nodes: addresses of nodes.
        port: its port.
        arguments: more arguments of the command.
        token: its token at the nodes.
    """

    def __init__(self, nodes: list[str], port: int, arguments: Sequence[str] = (), token: str = "") -> None:
        self.command = [sys.executable, "-m", "quorumq", "gateway", "--listen", f"127.0.0.1:{port}", "--json"]
        self.command += [word for node in nodes for word in ("--node", node)]
        self.command += arguments
        self.environment = {**os.environ, **({TOKEN_VARIABLE: token} if token else {})}
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=self.environment)
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["url"] == self.url

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def gateways(
    cluster: LocalCluster, count: int = 1, arguments: Sequence[str] = (), token: str = ""
) -> Iterator[list[GatewayProcess]]:
    """Run gateways."""
    running = [GatewayProcess(cluster.addresses, port, arguments, token) for port in free_ports(count)]
    try:
        for gateway in running:
            gateway.start()
        yield running
    finally:
        for gateway in running:
            if gateway.process is not None and gateway.process.poll() is None:
                gateway.end(signal.SIGKILL)

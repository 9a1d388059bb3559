"""Brokers of Celery on this machine whose servers can be killed, each as safe as its own documentation makes it."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any, Final, Protocol

from quorumq.lab.leash import Leashed, logged
from quorumq.lab.local import LocalCluster
from quorumq.lab.ports import free_ports

HOLD_S: Final = 5.0
HOLD_MAX_S: Final = 10.0
"""Also the quarantine of a killed node."""
VISIBILITY_S: Final = 30.0
"""Redis's visibility timeout: a task that takes longer runs twice, and the longest takes 12 s."""
START_S: Final = 180.0


class Broker(Protocol):
    """Servers of a broker.

    Attributes:
        servers: number of them.
        settings: settings of Celery.
    """

    servers: int
    settings: dict[str, Any]

    def kill(self, number: int) -> None:
        """Send SIGKILL to a server, and return when it has ended."""

    def start(self, number: int) -> None:
        """Start a server, and do not wait for it."""

    def wait(self) -> None:
        """Wait until all servers answer."""

    def close(self) -> None:
        """Stop all servers."""


class Quorumq:
    """Three nodes."""

    servers = 3

    def __init__(self, folder: Path, program: str = "") -> None:
        settings = {"log_level": "error"}
        self.cluster = LocalCluster(
            self.servers, keep=folder / "nodes", hold_time_max=HOLD_MAX_S, settings=settings
        )
        self.settings = {
            "broker_url": "quorumq://",
            "broker_transport_options": {"nodes": self.cluster.addresses, "hold_time": HOLD_S},
        }

    def kill(self, number: int) -> None:
        self.cluster.kill(self.cluster.nodes[number])

    def start(self, number: int) -> None:
        self.cluster.spawn(self.cluster.nodes[number])

    def wait(self) -> None:
        self.cluster.wait_ready()

    def close(self) -> None:
        self.cluster.close()


class Processes:
    """Servers that are programs with a port each.

    Args:
        folder: for their files.
        count: number of servers.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.servers = count
        self.ports = free_ports(count)
        self.processes: dict[int, Leashed] = {}

    def command(self, number: int) -> list[str]:
        """Return the command that starts a server."""
        raise NotImplementedError

    def kill(self, number: int) -> None:
        os.killpg(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()

    def start(self, number: int) -> None:
        log = self.folder / f"server-{number}.log"
        self.processes[number] = logged(self.command(number), log, self.folder)

    def wait(self) -> None:
        deadline = time.monotonic() + START_S
        for port in self.ports:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1.0).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, (
                        f"port {port} does not answer: look into {self.folder}"
                    )
                    time.sleep(0.1)

    def close(self) -> None:
        for number, process in self.processes.items():
            if process.poll() is None:
                self.kill(number)


class Redis(Processes):
    """One Redis that syncs its log at each command. ``program``: path of redis-server."""

    def __init__(self, folder: Path, program: str) -> None:
        super().__init__(folder, 1)
        self.program = program
        self.settings = {
            "broker_url": f"redis://127.0.0.1:{self.ports[0]}/0",
            "broker_transport_options": {"visibility_timeout": VISIBILITY_S},
        }

    def command(self, number: int) -> list[str]:
        words = f"--bind 127.0.0.1 --port {self.ports[0]} --appendonly yes --appendfsync always --dir {self.folder}"
        return [self.program, *words.split(), "--save", ""]


class RabbitMQ(Processes):
    """Three nodes with quorum queues and publisher confirms. ``program``: path of rabbitmq-server."""

    def __init__(self, folder: Path, program: str) -> None:
        super().__init__(folder, 3)
        self.program = program
        *self.inner, self.epmd_port = free_ports(4)
        self.names = [f"kills{number}@localhost" for number in range(3)]
        (folder / ".erlang.cookie").write_text("kills")
        (folder / ".erlang.cookie").chmod(0o400)
        peers = [
            f"cluster_formation.classic_config.nodes.{n + 1} = {name}" for n, name in enumerate(self.names)
        ]
        (folder / "rabbitmq.conf").write_text(
            "\n".join(["cluster_formation.peer_discovery_backend = classic_config", *peers, ""])
        )
        self.epmd = logged(
            ["epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"], folder / "epmd.log"
        )
        self.settings = {
            "broker_url": ";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in self.ports),
            "broker_transport_options": {"confirm_publish": True},
            "task_default_queue_type": "quorum",
            "task_default_exchange_type": "topic",  # others cannot delay tasks in quorum queues
        }

    def command(self, number: int) -> list[str]:
        own = self.folder / f"n{number}"
        own.mkdir(exist_ok=True)
        variables = {
            "HOME": self.folder,
            "ERL_EPMD_PORT": self.epmd_port,
            "RABBITMQ_NODENAME": self.names[number],
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.ports[number],
            "RABBITMQ_DIST_PORT": self.inner[number],
            "RABBITMQ_MNESIA_BASE": own / "mnesia",
            "RABBITMQ_LOG_BASE": own,
            "RABBITMQ_ENABLED_PLUGINS_FILE": own / "plugins",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items()), self.program]

    def close(self) -> None:
        super().close()
        self.epmd.kill()
        self.epmd.wait()


BROKERS: Final[dict[str, Any]] = {"quorumq": Quorumq, "redis": Redis, "rabbitmq": RabbitMQ}

"""Processor time of a message by protocol: `python -m tests.measure.protocols [PROTOCOL …]`.

A client publishes, fetches and acks messages of 100 bytes through one gateway and three nodes on this machine, one by
one and in batches of ten, in turns with the other clients. User and system time of the nodes, without that of idle
nodes, of the gateway, and of the client; medians of the turns, and ratios to the first protocol's sum. It needs the
extras gateway and kombu, and boto3.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from quorumq.client.blocking import connect
from quorumq.lab.local import LocalCluster
from tests.e2e.gateways import GatewayProcess, gateways
from tests.e2e.protocols import GROUP, PROTOCOLS, ProtocolClient

TURNS: Final = 2
MESSAGES: Final = {1: 60, 10: 300}
"""Messages of a turn, by the size of the batches."""
IDLE_S: Final = 5.0
PADDING: Final = "x" * 100
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """Processor seconds since the start of each process, and the time."""

    nodes: float
    gateway: float
    client: float
    at: float


def used_s(process: int | None) -> float:
    """Return user and system seconds of a process, of all its threads."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) * TICK_S


def used(cluster: LocalCluster, gateway: GatewayProcess) -> Used:
    """Return the times now."""
    assert gateway.process is not None
    nodes = sum(used_s(cluster.pid(node)) for node in cluster.nodes)
    return Used(nodes, used_s(gateway.process.pid), time.process_time(), time.monotonic())


def cycle(client: ProtocolClient, texts: list[str]) -> None:
    """Send messages, receive as many, and settle them."""
    assert client.send(texts) == texts
    missing = len(texts)
    while missing:
        deliveries = client.receive()
        assert all(client.settle(deliveries) if deliveries else [])
        missing -= len(deliveries)


Costs = dict[tuple[str, int], list[tuple[float, ...]]]
"""Microseconds a message of nodes, gateway and client in each turn, by protocol and size of batches."""


def measure(client: ProtocolClient, size: int, idle: float, now: Callable[[], Used]) -> tuple[float, ...]:
    """Return the microseconds a message of nodes, gateway and client."""
    client.count = size
    client.reconnect()
    before = now()
    for number in range(MESSAGES[size] // size):
        cycle(client, [f"{number}.{n}{PADDING}" for n in range(size)])
    after = now()
    nodes = after.nodes - before.nodes - idle * (after.at - before.at)
    times = (nodes, after.gateway - before.gateway, after.client - before.client)
    return tuple(1e6 * one / MESSAGES[size] for one in times)


def report(costs: Costs, first: str) -> None:
    """Print medians, and ratios to the first protocol, also of a run that was stopped."""
    print("µs a message: nodes + gateway + client = sum, ratio")
    for (name, size), turns in costs.items():
        parts = [f"{statistics.median(part):,.0f}" for part in zip(*turns, strict=True)]
        whole, base = (statistics.median(map(sum, costs[one, size])) for one in (name, first))
        print(f"{name}, {size} at once: {' + '.join(parts)} = {whole:,.0f}, {whole / base:.2f}", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    names = sys.argv[1:] or [name for name in PROTOCOLS if name != "curl"]
    costs: Costs = defaultdict(list)
    with LocalCluster(3, settings={"log_level": "error"}) as cluster, gateways(cluster) as (gateway,):
        with connect(cluster.addresses) as admin:
            for name in names:
                admin.create_topic(name)
                admin.create_group(name, GROUP)
        clients = {name: PROTOCOLS[name](name, cluster.addresses, [gateway.url]) for name in names}
        for client in clients.values():
            cycle(client, ["warm up"])
        before = used(cluster, gateway)
        time.sleep(IDLE_S)
        idle = (used(cluster, gateway).nodes - before.nodes) / IDLE_S
        try:
            for _ in range(TURNS):
                for size in MESSAGES:
                    for name, client in clients.items():
                        cost = measure(client, size, idle, lambda: used(cluster, gateway))
                        costs[name, size].append(cost)
        finally:
            report(costs, names[0])


if __name__ == "__main__":
    main()

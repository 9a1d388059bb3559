"""Throughput that a second node on a machine adds: `python -m tests.measure.machines`.

A node uses one core. One node, and then two that share a machine, take small publishes, each message a batch of its
own, `WINDOW` at a time on one connection for each node, whose requests were encoded before, so that the clients' work
hardly counts. Rates in turns, and cores in use. No test: it needs a quiet machine with a core for each node.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Final

from quorumq.core.values.types import Topic
from quorumq.lab.local import LocalCluster
from quorumq.wire.codec import encode_message
from quorumq.wire.frames import FrameReader
from tests.e2e.raw import Raw, publish

TURNS: Final = 5
MESSAGES: Final = 64_000
"""For each node."""
WINDOW: Final = 64
PARTITIONS: Final = 8


def requests(raw: Raw, topic: Topic, partitions: list[int]) -> list[bytes]:
    """Windows of encoded publishes, spread over the partitions whose replica is the node that ``raw`` is at."""
    producer_id = raw.session()
    windows = []
    for at in range(0, MESSAGES, WINDOW):
        window = b""
        for number in range(at, at + WINDOW):
            location = partitions[number % len(partitions)]
            request = publish(topic, producer_id, number // len(partitions), [b"hello"], location)
            window += b"".join(encode_message(request, request=1_000_000 + number))
        windows.append(window)
    return windows


def pour(raw: Raw, windows: list[bytes]) -> None:
    """Send window after window, each when the one before is answered."""
    reader = FrameReader()
    for window in windows:
        raw.sock.sendall(window)
        answered = 0
        while answered < WINDOW:
            reader.feed(raw.sock.recv(1 << 16))
            for frame in reader:
                assert len(frame.header) < 200, "an OK is short, and what went wrong is told at length"
                answered += 1


def busy_s(cluster: LocalCluster) -> float:
    """Seconds of processor time that its nodes have used."""
    stats = [Path(f"/proc/{cluster.pid(node)}/schedstat").read_text() for node in cluster.nodes]
    return sum(int(stat.split()[0]) for stat in stats) / 1e9


def rate(nodes: int) -> tuple[float, float]:
    """Messages a second of ``nodes`` nodes on one machine, and the cores that they used."""
    cluster = LocalCluster(nodes, settings={"log_level": "error"})
    for name in cluster.nodes:
        with cluster.config_path(name).open("a") as file:
            file.write("[machines]\n" + "".join(f'{each} = "here"\n' for each in cluster.nodes))
    with cluster:
        with Raw(cluster.addresses[0]) as raw:
            topic = raw.topic("jobs", rf=1, partitions=PARTITIONS)
        assert {len(replicas) for replicas in topic.replicas} == {1}
        ends = [Raw(address) for address in cluster.addresses]
        work = []
        for name, raw in zip(cluster.nodes, ends, strict=True):
            here = [number for number, replicas in enumerate(topic.replicas) if replicas == (name,)]
            work.append((raw, requests(raw, topic, here)))
        threads = [threading.Thread(target=pour, args=each) for each in work]
        used, began = busy_s(cluster), time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        used = busy_s(cluster) - used
        for raw in ends:
            raw.sock.close()
    return nodes * MESSAGES / seconds, used / seconds


def main() -> None:
    by_nodes: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for turn in range(TURNS):
        for nodes, rates in by_nodes.items():
            rates.append(rate(nodes))
            print(
                f"turn {turn + 1}: {nodes} on the machine: {rates[-1][0]:,.0f}/s, {rates[-1][1]:.2f} cores",
                flush=True,
            )
    one, two = (statistics.median(each for each, _ in rates) for rates in by_nodes.values())
    print(f"two nodes take {two / one:.2f} times what one takes: {two:,.0f}/s and {one:,.0f}/s")


if __name__ == "__main__":
    main()

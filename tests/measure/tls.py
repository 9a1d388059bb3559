"""Costs of TLS and tokens: `python -m tests.measure.tls`.

`quorumq bench stream` and `latency` on three processes of this machine, plain, with a clients file, and with TLS
between nodes and to clients, in turns, so that other load of the machine slows all. Ratios are of medians, to the
plain one. Producer and consumer each have a node of their own: if they choose, they share one in one run of three,
which costs a third. No test: machines are too noisy for a bound.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumq.cli.clients import entry_of
from quorumq.lab.bench import measure
from quorumq.lab.bench_runs import Bench, Latency, Stream, Worker
from quorumq.lab.local import LocalCluster
from quorumq.node.clients import new_token, write_clients
from quorumq.wire.hello import TOKEN_VARIABLE
from quorumq.wire.tls import CA_VARIABLE
from tests.node.certificates import Files

TURNS = 5
MESSAGES = {Stream: 20_000, Latency: 300}
KINDS = ("plain", "tokens", "TLS")


@contextmanager
def cluster_of(kind: str, folder: Path) -> Iterator[LocalCluster]:
    """Three nodes, and the credentials of clients in this environment."""
    settings: dict[str, str] = {"log_level": "warning"}
    shown: dict[str, str] = {}
    if kind == "tokens":
        token, kept = new_token("bench")
        everything = {"publish": ["*"], "consume": [["*", "*"]], "admin": ["*"]}
        path = folder / "clients.toml"
        write_clients(path, {"bench": entry_of(path, "bench", {"token": kept, **everything})})
        settings["clients_file"] = str(path)
        shown[TOKEN_VARIABLE] = token
    elif kind == "TLS":
        files = Files(folder)
        cert, key = files.issue("n1", "n2", "n3", "127.0.0.1", file="node")
        settings |= {"tls_cert": cert, "tls_key": key, "tls_ca": files.ca}
        shown[CA_VARIABLE] = files.ca
    os.environ.update(shown)
    try:
        with LocalCluster(3, settings=settings) as cluster:
            yield cluster
    finally:
        for name in shown:
            del os.environ[name]


def located(bench: type[Bench]) -> type[Bench]:
    """The same benchmark, whose workers each ask a node of their own."""

    class Located(bench):  # type: ignore[misc, valid-type]
        def _worker(self, name: str) -> Worker:
            addresses = self.addresses
            self.addresses = [addresses[len(self.workers) % len(addresses)]]
            try:
                made: Worker = super()._worker(name)
            finally:
                self.addresses = addresses
            return made

    return Located


def measured(bench: type[Bench], cluster: LocalCluster) -> float:
    """Messages a second, or the median of milliseconds."""
    options = {
        "messages": MESSAGES[bench],
        "size": 1024,
        "partitions": 1,
        "warm_up": 500,
        "hold_time": 5.0,
        "as_json": True,
        "consumers": 1 if bench is Stream else 0,
    }
    figures = measure(located(bench), options, cluster)
    rate: float = figures["stream"]["messages_per_s"] if bench is Stream else figures["whole_ms"]["p50"]
    return rate


def main() -> None:
    for bench, unit in ((Stream, "messages/s"), (Latency, "ms, p50")):
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(TURNS):
            for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
                with tempfile.TemporaryDirectory() as folder, cluster_of(kind, Path(folder)) as cluster:
                    rates[kind].append(measured(bench, cluster))
        plain = statistics.median(rates["plain"])
        for kind, values in rates.items():
            middle = statistics.median(values)
            print(
                f"{bench.__name__.lower()} {kind}: {middle:,.2f} {unit}, {middle / plain:.2f} of plain {values}"
            )


if __name__ == "__main__":
    main()

"""`quorumq dev`: a cluster on this machine in one command."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from quorumq.cli.common import NODES_DEFAULT, NODES_VARIABLE, json_option, print_json
from quorumq.core import limits


@click.command()
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 9), help="How many nodes.")
@click.option(
    "--port", default=7401, show_default=True, type=click.IntRange(1, 65_500), help="The first node's port."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster here, and continue what is here; without it everything is gone after Ctrl-C.",
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Create this topic; may be repeated.")
@click.option(
    "--hold-time-max",
    default=limits.HOLD_TIME_MAX_DEFAULT_S,
    show_default=True,
    type=click.FloatRange(0.1, 3600),
    help="Longest hold in seconds, and how long a node that crashed stays in quarantine.",
)
@json_option
def dev(
    nodes: int,
    port: int,
    directory: Path | None,
    topics: tuple[str, ...],
    hold_time_max: float,
    as_json: bool,
) -> None:
    """Run a cluster of real node processes on this machine until Ctrl-C.

    Publishing to a topic creates it here, and the other commands find the cluster by themselves unless --port
    is given. The nodes are ordinary processes, so kill one to see what happens: its messages stay available, and
    when nodes are killed `quorumq dev` tells so and goes on. Their logs are in the directory that it prints.
    """
    from quorumq.lab.local import LocalCluster

    count = nodes
    stop: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        cluster = LocalCluster(count, keep=directory, base_port=port, hold_time_max=hold_time_max)
        try:
            with cluster:
                _create(cluster.addresses, topics, min(3, count if count % 2 else count - 1))
                _announce(cluster, topics, directory, as_json)
                _watch(cluster, as_json)
        except KeyboardInterrupt:
            if not as_json:
                kept = "" if directory is None else f"; everything is in {directory}"
                click.echo(f"\nstopped{kept}", err=True)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _create(addresses: list[str], topics: tuple[str, ...], rf: int) -> None:
    from quorumq.cli.probe import ask
    from quorumq.core.messages import CreateTopic
    from quorumq.core.topics import SETTINGS

    for topic in topics:  # in a kept directory it may be there, with other settings
        request = CreateTopic(topic, rf=rf, unnamed=("rf", "partitions", *SETTINGS))
        ask(addresses[0], request, timeout=10.0)


def _announce(cluster: Any, topics: tuple[str, ...], directory: Path | None, as_json: bool) -> None:
    addresses = dict(zip(cluster.nodes, cluster.addresses, strict=True))
    if as_json:
        pids = {name: cluster.pid(name) for name in cluster.nodes}
        print_json({"directory": str(cluster.directory), "addresses": addresses, "pids": pids})
        return
    for name, address in addresses.items():
        click.echo(f"{name}  {address}  pid {cluster.pid(name)}")
    click.echo(f"logs and data: {cluster.directory}" + ("" if directory else "  (removed at the end)"))
    topic = topics[0] if topics else "jobs"
    click.echo("\nTry, in another terminal:\n")
    if tuple(cluster.addresses) != NODES_DEFAULT[: len(cluster.addresses)]:
        click.echo(f"  export {NODES_VARIABLE}={','.join(cluster.addresses)}")
    click.echo(f"  quorumq publish {topic} 'hello' 'world'")
    click.echo(f"  quorumq consume {topic} --group mine --wait 2")
    click.echo("  quorumq status --watch")
    click.echo("\nCtrl-C stops the cluster.")


def _watch(cluster: Any, as_json: bool) -> None:
    """Until Ctrl-C: tell of nodes that ended."""
    told: dict[str, None] = {}
    while True:
        time.sleep(0.2)
        for name in cluster.nodes:
            if not cluster.running(name) and name not in told:
                told[name] = None
                left = sum(cluster.running(other) for other in cluster.nodes)
                if as_json:
                    print_json({"ended": name, "running": left})
                else:
                    click.echo(f"{name} has ended; {left} of {len(cluster.nodes)} nodes run", err=True)

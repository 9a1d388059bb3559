"""`quorumq dev`: a cluster on this machine in one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from quorumq.cli.common import NODES_DEFAULT, ended_by_sigterm, json_option, print_json
from quorumq.core.values import limits
from quorumq.core.values.errors import QuorumqError
from quorumq.lab import gateways
from quorumq.wire.address import NODES_VARIABLE

WAIT_S: Final = 300.0
"""Time that `--wait` waits, in seconds: a start on a slow machine, and a quarantine of the default hold time."""

CREATE_S: Final = 60.0
"""Time that the creation of a topic may take, in seconds."""

GATEWAY_PATIENCE_S: Final = 5.0
"""Seconds that the gateway may take to stop."""


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
    type=click.FloatRange(0.1, 3600),
    help="Longest hold in seconds, and how long a node that crashed stays in quarantine. "
    f"[default: that of the cluster in --dir, else {limits.HOLD_TIME_MAX_DEFAULT_S:g}]",
)
@click.option(
    "--wait",
    is_flag=False,
    flag_value=WAIT_S,
    type=click.FloatRange(0.1),
    metavar="[SECONDS]",
    help="Start nothing: wait until the cluster that another `quorumq dev` starts on these ports serves, for so long "
    f"at most. [default: {WAIT_S:g}]",
)
@click.option(
    "--gateway/--no-gateway",
    default=True,
    show_default=True,
    help="Start a gateway with SQS, JSON and a console 79 ports above the first node, if the extra is installed.",
)
@json_option
def dev(
    nodes: int,
    port: int,
    directory: Path | None,
    topics: tuple[str, ...],
    hold_time_max: float | None,
    wait: float | None,
    gateway: bool,
    as_json: bool,
) -> None:
    """Run a cluster of real node processes on this machine until Ctrl-C.

    Publishing to a topic creates it here, and the other commands find the cluster by themselves unless --port
    is given. The nodes are ordinary processes, so you may kill one: its messages stay available, and
    `quorumq dev` says so and goes on. Their logs are in the directory that it prints, which stays if the cluster does
    not start, or if a node ended by itself.

    It prints the addresses once the cluster serves. A script that starts it in the background waits with another one:
    `quorumq dev & quorumq dev --wait && ...`, with the same --nodes, --port and --topic. If the cluster does not
    serve in time, the exit code is 69.
    """
    from quorumq.lab.leash import Leashed, end
    from quorumq.lab.local import LocalCluster, kept_config

    if wait is not None:
        addresses = [f"127.0.0.1:{port + index}" for index in range(nodes)]
        _wait(addresses, topics, wait)
        if as_json:
            print_json({"ready": True, "addresses": addresses})
        else:
            click.echo(f"ready: {', '.join(addresses)}")
        return
    if hold_time_max is None:  # a cluster never changes its own
        config = kept_config(directory) if directory is not None else {}
        hold_time_max = float(config.get("hold_time_max", limits.HOLD_TIME_MAX_DEFAULT_S))
    with ended_by_sigterm():
        cluster = LocalCluster(nodes, keep=directory, base_port=port, hold_time_max=hold_time_max, tell=_tell)
        died: dict[str, None] = {}
        served: list[Leashed] = []
        try:
            cluster.start_all()
            if nodes == 2:
                _tell("two nodes keep one copy of each message: --nodes 3 keeps three")
            _create(cluster.addresses, topics, min(3, nodes if nodes % 2 else nodes - 1))
            if gateway and gateways.is_installed():
                served.append(gateways.start_gateway(cluster.addresses, port, cluster.directory))
            _announce(cluster, topics, directory, as_json, gateways.gateway_url(port) if served else "")
            _watch(cluster, died, as_json)
        except KeyboardInterrupt:
            if died:
                cluster.keep()
            if not as_json:
                kept = f"; everything is in {cluster.directory}" if directory or died else ""
                click.echo(f"\nstopped{kept}", err=True)
        except QuorumqError as error:
            cluster.keep()
            raise type(error)(
                f"{error}\nthe nodes' logs are kept: {cluster.directory}/n*/node.log"
            ) from error
        finally:
            end(served, GATEWAY_PATIENCE_S)
            cluster.close()


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _create(addresses: list[str], topics: tuple[str, ...], rf: int) -> None:
    from quorumq.cli.probe import ask
    from quorumq.core.messages import SETTINGS, CreateTopic

    for topic in topics:  # in a kept directory it may be there, with other settings
        request = CreateTopic(topic, rf=rf, unnamed=("rf", "partitions", *SETTINGS))
        ask(addresses[0], request, timeout=CREATE_S)


def _announce(cluster: Any, topics: tuple[str, ...], directory: Path | None, as_json: bool, url: str) -> None:
    addresses = dict(zip(cluster.nodes, cluster.addresses, strict=True))
    if as_json:
        pids = {name: cluster.pid(name) for name in cluster.nodes}
        fields = {"directory": str(cluster.directory), "addresses": addresses, "pids": pids}
        print_json({**fields, "gateway": url or None})
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
    if url:
        click.echo(f"\nConsole: {url}/console    JSON: {url}/v1    SQS: {url}")
    elif not gateways.is_installed():
        click.echo(f"\nFor a console, JSON over HTTP and SQS: {gateways.INSTALL}")
    click.echo("\nCtrl-C stops the cluster.")


def _wait(addresses: list[str], topics: tuple[str, ...], seconds: float) -> None:
    """Wait until these nodes can publish and deliver, and know the topics; NotReady after ``seconds``."""
    from quorumq.cli.probe import ask
    from quorumq.core.messages import Metadata
    from quorumq.lab.local import lack, wait_for

    nodes = {f"n{index}": address for index, address in enumerate(addresses, 1)}

    def lacks(probe: float) -> list[str]:
        problems = []
        for name, address in nodes.items():
            if missing := lack(address, name, nodes, probe, connected=True, quarantine=True):
                problems.append(f"{name} at {address} {missing}")
        if not problems:
            try:
                ask(addresses[0], Metadata(topics), timeout=probe)
            except QuorumqError as error:
                return [str(error)]
        return problems

    wait_for(lacks, seconds, _tell, "See what the `quorumq dev` that starts the cluster says")


def _watch(cluster: Any, died: dict[str, None], as_json: bool) -> None:
    """Print the nodes that end, until Ctrl-C; add to ``died`` those that failed by themselves."""
    reported: dict[str, None] = {}
    while True:
        time.sleep(0.2)
        for name in cluster.nodes:
            if not cluster.running(name) and name not in reported:
                reported[name] = None
                running = sum(cluster.running(other) for other in cluster.nodes)
                code, log = cluster.exit_code(name), str(cluster.log_path(name))
                if code > 0:
                    died[name] = None
                if as_json:
                    print_json({"ended": name, "running": running, "exit_code": code, "log": log})
                else:
                    why = f" with exit code {code}, see {log}" if code > 0 else ""
                    click.echo(
                        f"{name} has ended{why}; {running} of {len(cluster.nodes)} nodes run", err=True
                    )

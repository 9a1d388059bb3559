"""Speed of a cluster here, with a check that every message was really delivered.

The nodes are processes of their own, and so is every producer and every consumer (bench_worker.py), so that
they share no interpreter lock with each other. This process only starts them, sends them commands, and keeps
the ledger. All of them are on one machine with one monotonic clock, so times of different processes are compared.

Four rules keep the numbers honest. A warm-up of its own topic, through the same processes, is not counted. The
disk's fsync is measured first, in the nodes' directory, because it decides most of the rest. Every result names the
machine. If the ledger does not add up, there is no result at all.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import click

from quorumq.cli.common import Address, Where, console, json_option, print_json, print_table, run
from quorumq.cli.common import cluster as connected
from quorumq.cli.progress import bar
from quorumq.core.values.errors import UsageError
from quorumq.core.values.printable import plural
from quorumq.lab.bench_ledger import PAYLOAD_BYTES_MIN, Payloads, percentiles
from quorumq.lab.bench_runs import Bench, Degraded, Drain, FanIn, Latency, Stream
from quorumq.lab.local import LocalCluster

WARM_UP: Final = 2_000
FSYNCS: Final = 50
Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _count(name: str, default: int, most: int, text: str) -> Option:
    return click.option(
        f"--{name}", default=default, show_default=True, type=click.IntRange(1, most), help=text
    )


OPTIONS: Final[Mapping[str, Option]] = {
    "producers": _count("producers", 1, 64, "How many producers, each a process."),
    "consumers": _count("consumers", 1, 64, "How many consumers, each a process."),
    "groups": _count("groups", 4, 64, "How many groups, each with a consumer in a process of its own."),
    "connections": _count("connections", 200, 2_000, "How many connections."),
    "single": click.option("--single", is_flag=True, help="Publish each message in a batch of its own."),
    "size": click.option(
        "--size", default=1024, show_default=True, type=click.IntRange(PAYLOAD_BYTES_MIN, 1_000_000),
        help="Bytes of each payload.",
    ),
}  # fmt: skip


class Workload(NamedTuple):
    """One benchmark."""

    name: str
    kind: type[Bench]
    messages: int  # by default
    text: str
    options: tuple[str, ...] = ("size", "producers", "consumers")
    fixed: Mapping[str, Any] = {}  # options that can not be chosen
    runs: tuple[Mapping[str, Any], ...] = ({},)  # each with more of that
    nodes: int = 3


WORKLOADS: Final = (
    Workload(
        "drain", Drain, 50_000,
        """Publish all messages first, then consume them all: the rate of each alone.

        This is what catching up with a backlog looks like.
        """,
    ),
    Workload(
        "stream", Stream, 50_000,
        """Publish and consume at the same time: the rate from the first publish to the last ack.

        Producers go as fast as publishes are confirmed. The latency from a publish to its delivery is that under
        full load, which is mostly waiting in queues; `quorumq bench latency` shows it without.
        """,
    ),
    Workload(
        "latency", Latency, 1_000,
        """One message at a time, publish, deliver, ack: the latency of each leg.

        One client publishes a message, a consumer that was already waiting gets it and acks it, and only then comes
        the next one. So nothing is hidden by batches or by queues.
        """,
        ("size",), {"consumers": 0},
    ),
    Workload(
        "fanin", FanIn, 10_000,
        """Publish over many connections, each with one message in flight, then consume them all.

        This is what many small services do to a queue: no message finds a batch to travel in.
        """,
        ("size", "connections"),
    ),
    Workload(
        "fanout", Stream, 20_000,
        """Have several groups read one topic while it is published to: each gets every message.

        A group costs what its deliveries and acks cost. Messages are stored once, whatever the number of groups.
        """,
        ("size", "producers", "groups"),
    ),
    Workload(
        "backlog", Drain, 1_000_000,
        """Let very many messages wait, then consume them: rates by tenth, and what they take of a node's memory.

        The rates of the last tenth are those of the first if a backlog costs nothing, and so is the processor time,
        which a slow disk does not change. In between one of the nodes is killed and started again. With --single each
        message is a batch of its own, as if many producers publish now and then.
        """,
        ("size", "producers", "consumers", "single"), {"tenths": True},
    ),
    Workload(
        "degraded", Degraded, 50_000,
        """Stream, and kill a node when half of the messages are through: the rates before and after, and the pause.

        Two of three nodes are a majority, so it goes on. Messages that the clients were asking that node about may
        come twice; none is lost.
        """,
    ),
    Workload(
        "sizes", Stream, 20_000,
        """Stream messages of 100 bytes, 1 KiB, 10 KiB and 100 KiB: the large ones cost what their bytes cost.

        Of messages above 1 KiB there are fewer, as many as make the same number of bytes.
        """,
        ("producers", "consumers"), runs=tuple({"size": size} for size in (100, 1024, 10_240, 102_400)),
    ),
    Workload(
        "replicas", Stream, 20_000,
        """Stream to topics with one, three and five replicas, on five nodes: what each replica costs.

        All nodes share this machine, so this shows work and not what a network would add.
        """,
        nodes=5, runs=tuple({"rf": rf} for rf in (1, 3, 5)),
    ),
)  # fmt: skip


@click.group()
def bench() -> None:
    """Measure rates and latencies on this machine, with every message verified.

    If --node is not given, each run starts three nodes of its own on loopback and removes them afterwards. Producers
    and consumers are processes of their own. Every payload carries a digest that is checked on delivery, and the
    run counts only if each message was acked exactly once. The warm-up before it is not counted.

    The numbers are of this machine, with everything on it sharing its cores and its disk: say which machine when
    you quote them. They are printed along with it.
    """


def _command(workload: Workload) -> click.Command:
    options: list[Any] = [
        _count("messages", workload.messages, 10_000_000, "How many messages."),
        *(OPTIONS[name] for name in workload.options),
        _count("partitions", 1, 64, "Partitions of the topic."),
        click.option(
            "--warm-up", default=WARM_UP, show_default=True, type=click.IntRange(0, 1_000_000),
            help="Messages sent before, and not counted.",
        ),
        click.option("--hold-time", default=5.0, show_default=True, type=click.FloatRange(0.5, 60), help="Seconds."),
        click.option(
            "--node", "nodes", type=Address(), multiple=True, metavar="HOST:PORT",
            help="Measure this cluster instead of one made for it; may be repeated.",
        ),
        click.option(
            "--keep", type=click.Path(file_okay=False, path_type=Path),
            help="Make the cluster's directory here (another disk, say), and leave it behind.",
        ),
        json_option,
    ]  # fmt: skip

    def command(**options: Any) -> None:
        _run(workload, options)

    made: Any = click.command(workload.name, help=workload.text)(command)
    for option in reversed(options):
        made = option(made)
    return cast("click.Command", made)


for _workload in WORKLOADS:
    bench.add_command(_command(_workload))


def _run(workload: Workload, options: dict[str, Any]) -> None:
    options = {"size": 1024, **options, **workload.fixed}
    Payloads(0, options["size"])  # a size that is too small is refused before anything is started
    if options["nodes"] and options["keep"] is not None:
        raise UsageError("--keep is for the cluster that a run makes for itself: leave it out with --node")
    with ExitStack() as stack:
        cluster: LocalCluster | None = None
        if not options["nodes"]:
            cluster = stack.enter_context(
                LocalCluster(
                    workload.nodes,
                    keep=options["keep"],
                    hold_time_max=max(5.0, options["hold_time"]),
                    settings={"log_level": "warning"},
                    tell=lambda text: click.echo(text, err=True),
                )
            )
        results = [
            measure(workload.kind, {**options, **more}, cluster) | dict(more) for more in workload.runs
        ]
    result = {"bench": workload.name, **results[0]}
    if len(results) > 1:
        result = {"bench": workload.name, "machine": results[0]["machine"], "verified": True, "runs": results}
    if options["as_json"]:
        print_json(result)
    else:
        _print(result)


def measure(kind: type[Bench], options: Mapping[str, Any], cluster: LocalCluster | None) -> dict[str, Any]:
    """Run once, after a warm-up, on ``cluster``; if it is None, on ``options["nodes"]``."""
    addresses = list(options["nodes"]) if cluster is None else cluster.addresses
    size = options["size"]
    # A run of large messages has fewer, so that runs of all sizes take about as long.
    messages = max(1, min(options["messages"], options["messages"] * 1024 // size))
    machine = machine_fields()
    if cluster is not None:
        machine["fsync_ms"] = fsync_ms(cluster.directory)
    name = f"bench-{os.urandom(4).hex()}"
    settings = {"rf": options.get("rf"), "partitions": options["partitions"]}
    run(_create, Where(tuple(addresses)), (name, f"{name}-warm-up"), settings)
    with bar(sys.stderr.isatty() and not options["as_json"]) as progress:
        runner = kind(addresses, options, progress, cluster)
        try:
            if options["warm_up"]:
                runner.progress = lambda label, done, total: progress(f"warm-up: {label}", done, total)
                runner.phase(f"{name}-warm-up", min(options["warm_up"], messages))
                runner.progress = progress
            before = runner.nodes_cpu_s()
            figures = runner.phase(name, messages)
            after = runner.nodes_cpu_s()
        finally:
            runner.stop()
    result = {
        "messages": messages,
        "size": size,
        **{key: options[key] for key in OPTIONS if key in options and key != "size"},
        "partitions": options["partitions"],
        "nodes": "own" if cluster is not None else addresses,
        "machine": machine,
        **figures,
        "verified": True,
    }
    if before is not None and after is not None and "nodes_cpu_s" not in figures:
        result["nodes_cpu_s"] = round(after - before, 3)
    return result


async def _create(where: Where, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
    async with connected(where) as client:
        for topic in topics:
            await client.create_topic(topic, **settings)


# ------------------------------------------------------------------------------------ the machine


def machine_fields() -> dict[str, Any]:
    """Return the facts that the numbers depend on: cores, processor, Python, system."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cores": usable,
        "cpu": model,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def fsync_ms(directory: Path) -> dict[str, Any]:
    """Measure an append of 4 KiB until it is on the disk of ``directory``, in milliseconds."""
    path = directory / "fsync.probe"
    taken = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(FSYNCS):
            os.write(fd, bytes(4096))
            before = time.monotonic()
            os.fsync(fd)
            taken.append(time.monotonic() - before)
    finally:
        os.close(fd)
        path.unlink()
    return percentiles(taken)


# --------------------------------------------------------------------------------------- output

_LEGS: Final = {
    "publish_ms": "publish → OK",
    "publish_to_delivery_ms": "publish → delivered",
    "ack_ms": "ack → verdict",
    "whole_ms": "publish → acked",
}


def _print_machine(machine: Mapping[str, Any]) -> None:
    fsync = machine.get("fsync_ms")
    console().print(
        f"{machine['cores']} cores, {machine['cpu']}, Python {machine['python']}, {machine['system']}"
        + (f", fsync p50 {fsync['p50']} ms, p99 {fsync['p99']} ms" if fsync else "")
        + f", load {machine['load_before']} before"
    )


def _print(result: Mapping[str, Any]) -> None:
    _print_machine(result["machine"])
    for each in result.get("runs", (result,)):
        _print_run(result["bench"], each)
    console().print("verified: each message was delivered unaltered, and acked" + (
        " at least once" if result["bench"] == "degraded" else " exactly once"
    ))  # fmt: skip


def _print_run(name: str, run: Mapping[str, Any]) -> None:
    out = console()
    parts = [plural(run["messages"], "message") + f" of {plural(run['size'], 'byte')}"]
    for key in ("partitions", "producers", "consumers", "groups", "connections"):
        if run.get(key):
            parts.append(plural(run[key], key.removesuffix("s")))
    if run.get("single"):
        parts.append("each in a batch of its own")
    if "rf" in run:
        parts.append(plural(run["rf"], "replica"))
    out.print(f"{name}: {', '.join(parts)}")
    for key in ("publish", "consume", "stream", "deliveries", "before", "after"):
        if key in run:
            out.print(f"  {key:<10} {run[key]['messages_per_s']:>9,} messages/s  ({run[key]['seconds']} s)")
    for key, rates in run.get("tenths", {}).items():
        out.print(f"  {key} by tenth: {' '.join(f'{rate:,}' for rate in rates)}")
    for key, used in run.get("cpu_tenths", {}).items():
        out.print(f"  µs of the nodes' processors a message, {key} by tenth: {' '.join(map(str, used))}")
    if "longest_pause_ms" in run:
        out.print(f"  longest pause after a node was killed: {run['longest_pause_ms']:,} ms")
    columns = ("p50", "p99", "p999", "max", "count")
    legs = [
        (leg, *(f"{run[key][column]:,}" for column in columns)) for key, leg in _LEGS.items() if run.get(key)
    ]
    if legs:
        print_table(("|", *(f">{column}" for column in columns)), legs, "milliseconds")
    for key, who in (("nodes_cpu_s", "the nodes"), ("clients_cpu_s", "the clients")):
        if key in run:
            out.print(
                f"{who} used {run[key]} s of processor time, {1e6 * run[key] / run['messages']:,.0f} µs a message"
            )
    if "node_bytes_a_message" in run:
        out.print(f"a message that waits takes {run['node_bytes_a_message']:,} bytes of each node's memory")
    if "restart_s" in run:
        out.print(f"a node that was killed while all of them wait starts in {run['restart_s']} s")
    if run["redelivered"]:
        out.print(f"{run['redelivered']:,} messages were delivered again, because a hold had run out")
    verdicts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(run["outcomes"].items()))
    out.print(f"verdicts: {verdicts}")

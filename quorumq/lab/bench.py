"""How fast is it here, and was every message really delivered?

The nodes are processes of their own, and so is every producer and every consumer (bench_worker.py), so that
they share no interpreter lock with each other. This process only starts them, tells them what to do, and keeps
the ledger. All of them are on one machine with one monotonic clock, so times of different processes are compared.

What makes the numbers honest: a warm-up of its own topic, through the same processes, that is not counted; the
disk's fsync measured first, in the nodes' directory, because it decides most of the rest; the machine's facts with
every result; and no result at all when the ledger does not add up.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from quorumq.cli.common import Address, json_option, print_json
from quorumq.core.errors import UsageError
from quorumq.core.printable import plural
from quorumq.lab.bench_ledger import PAYLOAD_BYTES_MIN, Payloads, percentiles
from quorumq.lab.bench_runs import Bench, Drain, Latency, Stream

WARM_UP: Final = 2_000
FSYNCS: Final = 50
F = Callable[..., Any]


@click.group()
def bench() -> None:
    """Measure rates and latencies on this machine, with every message verified.

    Without --node each run starts three nodes of its own on loopback and removes them afterwards. Producers and
    consumers are processes of their own. Every payload carries a digest that is checked on delivery, and the
    run counts only if each message was acked exactly once. A warm-up comes first and is not counted.

    The numbers are of this machine, with everything on it sharing its cores and its disk: say which machine when
    you quote them. They are printed along with it.
    """


def _options(messages: int) -> Callable[[F], F]:
    """What all benchmarks take."""
    options = [
        click.option(
            "--messages", default=messages, show_default=True, type=click.IntRange(1, 10_000_000),
            help="How many messages.",
        ),
        click.option(
            "--size",
            default=1024,
            show_default=True,
            type=click.IntRange(PAYLOAD_BYTES_MIN, 1_000_000),
            help="Bytes of each payload.",
        ),
        click.option(
            "--partitions", default=1, show_default=True, type=click.IntRange(1, 64), help="Partitions of the topic."
        ),
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

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _workers_option(name: str, default: int) -> Callable[[F], F]:
    return click.option(
        f"--{name}",
        default=default,
        show_default=True,
        type=click.IntRange(1, 64),
        help=f"How many {name}, each a process.",
    )


@bench.command()
@_options(50_000)
@_workers_option("producers", 1)
@_workers_option("consumers", 1)
def drain(producers: int, consumers: int, **options: Any) -> None:
    """Publish all messages first, then consume them all: the rate of each alone.

    This is what catching up with a backlog looks like.
    """
    _run(Drain, producers, consumers, options)


@bench.command()
@_options(50_000)
@_workers_option("producers", 1)
@_workers_option("consumers", 1)
def stream(producers: int, consumers: int, **options: Any) -> None:
    """Publish and consume at the same time: the rate from the first publish to the last ack.

    Producers go as fast as publishes are confirmed. The latency from a publish to its delivery is that under
    full load, which is mostly waiting in queues; `quorumq bench latency` shows it without.
    """
    _run(Stream, producers, consumers, options)


@bench.command()
@_options(1_000)
def latency(**options: Any) -> None:
    """One message at a time, publish, deliver, ack: the latency of each leg.

    One client publishes a message, a consumer that was already waiting gets it and acks it, and only then comes the
    next one. So nothing is hidden by batches or by queues.
    """
    _run(Latency, 0, 0, {**options, "warm_up": min(options["warm_up"], 200)})


def _run(kind: type[Bench], producers: int, consumers: int, options: dict[str, Any]) -> None:
    from quorumq.lab.local import LocalCluster

    Payloads(0, options["size"])  # a size that is too small is refused before anything is started
    as_json = options["as_json"]
    if options["nodes"]:
        if options["keep"] is not None:
            raise UsageError(
                "--keep is for the cluster that a run makes for itself: leave it out with --node"
            )
        result = _measure(kind, list(options["nodes"]), producers, consumers, options, None)
    else:
        cluster = LocalCluster(
            3,
            keep=options["keep"],
            hold_time_max=max(5.0, options["hold_time"]),
            settings={"log_level": "warning"},
        )
        with cluster:
            result = _measure(kind, cluster.addresses, producers, consumers, options, cluster)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _measure(
    kind: type[Bench],
    addresses: list[str],
    producers: int,
    consumers: int,
    options: dict[str, Any],
    cluster: Any,
) -> dict[str, Any]:
    from quorumq.cli.probe import ask_any
    from quorumq.core.messages import CreateTopic

    machine = machine_facts()
    if cluster is not None:
        machine["fsync_ms"] = fsync_ms(cluster.directory)
    name = f"bench-{os.urandom(4).hex()}"
    for topic in (name, f"{name}-warm-up"):
        wanted = CreateTopic(topic, partitions=options["partitions"])
        ask_any(addresses, wanted)
    with _Progress(enabled=sys.stderr.isatty() and not options["as_json"]) as progress:
        runner = kind(addresses, options, producers, consumers, progress.show)
        try:
            if options["warm_up"]:
                progress.prefix = "warm-up: "
                runner.phase(f"{name}-warm-up", min(options["warm_up"], options["messages"]))
                progress.prefix = ""
            before = _cpu_s(cluster)
            found = runner.phase(name, options["messages"])
            after = _cpu_s(cluster)
        finally:
            runner.stop()
    result = {
        "bench": kind.__name__.removeprefix("_").lower(),
        "messages": options["messages"],
        "size": options["size"],
        "partitions": options["partitions"],
        "producers": producers or 1,
        "consumers": consumers or 1,
        "nodes": "own" if cluster is not None else addresses,
        "machine": machine,
        **found,
        "verified": True,
    }
    if before is not None and after is not None:
        result["nodes_cpu_s"] = round(after - before, 3)
    return result


class _Progress:
    """A bar on standard error, or nothing."""

    def __init__(self, *, enabled: bool) -> None:
        self.prefix = ""
        self._bar: Any = None
        self._task: Any = None
        if enabled:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            from quorumq.cli.common import console

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                console=console(stderr=True), transient=True,
            )  # fmt: skip

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=self.prefix + what, completed=done, total=total)


# ------------------------------------------------------------------------------------ the machine


def machine_facts() -> dict[str, Any]:
    """What the numbers depend on: cores, processor, Python, system."""
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


def fsync_ms(directory: Path, count: int = FSYNCS) -> dict[str, Any]:
    """How long it takes to append 4 KiB and have them on the disk of ``directory``, in milliseconds."""
    path = directory / "fsync.probe"
    taken = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(count):
            os.write(fd, bytes(4096))
            before = time.monotonic()
            os.fsync(fd)
            taken.append(time.monotonic() - before)
    finally:
        os.close(fd)
        path.unlink()
    return percentiles(taken)


def _cpu_s(cluster: Any) -> float | None:
    """Processor seconds that the nodes have used so far, where the system tells."""
    if cluster is None:
        return None
    try:
        ticks = 0
        for name in cluster.nodes:
            fields = Path(f"/proc/{cluster.pid(name)}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


# --------------------------------------------------------------------------------------- output

_LEGS: Final = {
    "publish_ms": "publish → OK",
    "publish_to_delivery_ms": "publish → delivered",
    "ack_ms": "ack → verdict",
    "whole_ms": "publish → acked",
}


def _print(result: Mapping[str, Any]) -> None:
    from quorumq.cli.common import console, table

    out = console()
    machine = result["machine"]
    fsync = machine.get("fsync_ms")
    out.print(
        f"{machine['cores']} cores, {machine['cpu']}, Python {machine['python']}, {machine['system']}"
        + (f", fsync p50 {fsync['p50']} ms, p99 {fsync['p99']} ms" if fsync else "")
        + f", load {machine['load_before']} before"
    )
    out.print(
        f"{result['bench']}: {plural(result['messages'], 'message')} of {plural(result['size'], 'byte')}, "
        f"{plural(result['partitions'], 'partition')}, {plural(result['producers'], 'producer')}, "
        f"{plural(result['consumers'], 'consumer')}"
    )
    for name in ("publish", "consume", "stream"):
        if name in result:
            rate = result[name]
            out.print(f"  {name:<8} {rate['messages_per_s']:>9,} messages/s  ({rate['seconds']} s)")
    legs = table("milliseconds")
    for column in ("", "p50", "p99", "p999", "max", "count"):
        legs.add_column(column, justify="right" if column else "left", no_wrap=True)
    for key, name in _LEGS.items():
        if result.get(key):
            leg = result[key]
            legs.add_row(name, *(f"{leg[column]:,}" for column in ("p50", "p99", "p999", "max", "count")))
    out.print(legs)
    if "nodes_cpu_s" in result:
        out.print(f"the nodes used {result['nodes_cpu_s']} s of processor time")
    if result["redelivered"]:
        out.print(f"{result['redelivered']:,} messages were delivered again, because a hold had run out")
    verdicts = ", ".join(f"{count:,} {name}" for name, count in sorted(result["outcomes"].items()))
    out.print(f"verified: each message delivered unaltered and acked exactly once ({verdicts})")
